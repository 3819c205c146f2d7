"""Fails when comments or pages hold more stand-in words than tools/prose_limits.txt allows, or a test's name holds one.

Stand-in words (STAND_IN, mostly pronouns) hide the subject of a sentence. They make up 2.4 to 4.8 % of the comments of
code bases with readable comments. A limit falls with the text: a limit of more than half a percent above the measured
share fails too, with the number to write into the file. The goal is 5 % everywhere. The name of a test holds none of
NAME_WORDS: a name states a subject and a fact.

usage: check_prose.py [ROOT] [--worst N] [--write]
"""

import argparse
import re
import tokenize
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from check_tree import CPP_TEST, listed_files

STAND_IN = re.compile(
    r"it|its|that|those|these|this|what|whatever|who|whoever|whose|whom|one|ones|they|them|their|somebody|nobody|so|else",
    re.IGNORECASE,
)
# Words that hide the subject of a test's name, and verbs that give a program a mind.
NAME_WORDS = re.compile(
    r"it|they|them|what|whatever|who|whom|whoever|nobody|nobodys|somebody|told|untold|tells?|knows?|believe[sd]?|wants?"
    r"|hears?|heard|heed|heeds|heeded",
    re.IGNORECASE,
)
PYTHON_TEST = re.compile(r"^ *(?:async )?def test_(\w+)", re.MULTILINE)
CAMEL_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
WORD = re.compile(r"[A-Za-z']+")
DOCSTRING = re.compile(r'[rR]?"""(.*)"""', re.DOTALL)
SENTENCE_END = re.compile(r"(?<=[.;:])\s+")
LIMITS = Path("tools/prose_limits.txt")
GOAL = 5.0
SLACK = 0.5
PAGE_WORDS_MIN = 200  # the share of a shorter page has little meaning
SENTENCE_WORDS_MIN = 14
COMMENTS = "comments"


class Text(NamedTuple):
    """A comment, docstring or paragraph."""

    group: str  # a page's path, or COMMENTS
    place: str
    words: str


def comments_of_python(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the comments, neighbouring lines joined, and the docstrings."""
    block: list[str] = []
    begin = last = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                if block and token.start[0] != last + 1:
                    yield begin, " ".join(block)
                    block = []
                begin = begin if block else token.start[0]
                last = token.start[0]
                block.append(token.string.lstrip("# "))
            elif token.type == tokenize.STRING and (docstring := DOCSTRING.fullmatch(token.string)):
                yield token.start[0], docstring[1]
    if block:
        yield begin, " ".join(block)


def comments_after(marker: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yields the comments, which `marker` begins, neighbouring lines joined."""
    block: list[str] = []
    begin = 0
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        code, found, comment = line.partition(marker)
        if found and not code.strip():
            begin = begin if block else number
            block.append(comment)
            continue
        if block:
            yield begin, " ".join(block)
            block = []
        if found and code.count('"') % 2 == 0:
            yield number, comment


def paragraphs_of_page(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the paragraphs, without code."""
    block: list[str] = []
    begin = 0
    is_code = False
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.startswith("```"):
            is_code = not is_code
        if is_code or not line.strip() or line.startswith("```"):
            if block:
                yield begin, re.sub(r"`[^`]*`", "", " ".join(block))
            block = []
            continue
        begin = begin if block else number
        block.append(line)


READERS = {
    ".py": comments_of_python,
    ".pyi": comments_of_python,
    ".h": partial(comments_after, "//"),
    ".cc": partial(comments_after, "//"),
    ".cmake": partial(comments_after, "#"),
    ".md": paragraphs_of_page,
}


def texts_of(root: Path) -> Iterator[Text]:
    """Yields the texts of all files of the tree."""
    for file in listed_files(root):
        name, path = str(file), root / file
        reader = READERS.get(".cmake" if path.name == "CMakeLists.txt" else path.suffix)
        if reader is None:
            continue
        group = name if path.suffix == ".md" else COMMENTS
        for line, words in reader(path):
            yield Text(group, f"{name}:{line}", words)


def name_problems_of(root: Path) -> list[str]:
    """Returns a text for each test whose name holds one of NAME_WORDS."""
    problems = []
    for file in listed_files(root):
        if file.suffix == ".py":
            names = [(match, match[1].split("_")) for match in PYTHON_TEST.finditer((root / file).read_text())]
        elif file.name.endswith("_test.cc"):
            found = CPP_TEST.finditer((root / file).read_text())
            names = [(match, CAMEL_WORD.findall(f"{match[1]} {match[2]}")) for match in found]
        else:
            continue
        for match, words in names:
            line = match.string.count("\n", 0, match.start()) + 1
            problems += [
                f"{file}:{line}: the name of a test holds '{word}': name the subject and the fact"
                for word in sorted({word.lower() for word in words if NAME_WORDS.fullmatch(word)})
            ]
    return problems


def share_of(text: str) -> tuple[int, int]:
    """Returns the number of stand-in words, and the number of all words."""
    words = WORD.findall(text)
    return sum(STAND_IN.fullmatch(word) is not None for word in words), len(words)


def measured(texts: list[Text]) -> dict[str, float]:
    """Returns the shares in percent, of the comments and of each page of PAGE_WORDS_MIN words."""
    sums: dict[str, tuple[int, int]] = {}
    for text in texts:
        stand_ins, words = share_of(text.words)
        before = sums.get(text.group, (0, 0))
        sums[text.group] = (before[0] + stand_ins, before[1] + words)
    return {group: 100 * stand_ins / words for group, (stand_ins, words) in sums.items() if words >= PAGE_WORDS_MIN}


def read_limits(file: Path) -> dict[str, float]:
    """Returns the limits in percent, by group."""
    pairs = (line.split() for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return {group: float(limit) for limit, group in pairs}


def problems_of(shares: dict[str, float], limits: dict[str, float]) -> list[str]:
    """Returns a text for each share above its limit, and for each limit far above its share."""
    problems = [f"{LIMITS}: {group} is no page of {PAGE_WORDS_MIN} words" for group in limits if group not in shares]
    for group, share in sorted(shares.items()):
        limit = limits.get(group, GOAL)
        if share > limit:
            problems.append(f"{group}: {share:.1f} % of the words stand for another word, at most {limit:.1f} %")
        elif limit > GOAL and share < limit - SLACK:
            lower = max(GOAL, share)
            problems.append(f"{LIMITS}: the limit of {group} is {limit:.1f}, and {lower:.1f} is enough now: lower it")
    return problems


def sentences_of(texts: list[Text]) -> list[tuple[float, str, str]]:
    """Returns the share, place and words of each long sentence, the greatest share first."""
    found = []
    for text in texts:
        for sentence in SENTENCE_END.split(" ".join(text.words.split())):
            stand_ins, words = share_of(sentence)
            if words >= SENTENCE_WORDS_MIN:
                found.append((100 * stand_ins / words, text.place, sentence))
    return sorted(found, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path())
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N sentences to mend first")
    parser.add_argument("--write", action="store_true", help="write limits that the text keeps now")
    options = parser.parse_args()
    texts = list(texts_of(options.root))
    shares = measured(texts)
    for share, place, sentence in sentences_of(texts)[: options.worst]:
        print(f"{share:5.1f} %  {place}  {sentence[:160]}")
    if options.write:
        lines = [f"{max(GOAL, share + 0.05):4.1f} {group}\n" for group, share in sorted(shares.items()) if share > GOAL]
        head = "# The greatest share of words that stand for another word, in percent; 5.0 where nothing is said.\n"
        (options.root / LIMITS).write_text(head + "".join(lines))
    problems = problems_of(shares, read_limits(options.root / LIMITS)) + name_problems_of(options.root)
    print("\n".join(problems) or f"prose ok: {len(shares)} groups")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
