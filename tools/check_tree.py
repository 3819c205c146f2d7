"""Fails when the shape of the tree breaks a rule of STYLE.md: names, sizes, depth, fuzz targets, stray paths.

The case of a C++ test, the second part of its name, has 15 to 30 characters: a shorter name says too little, and a
longer one is a sentence.
"""

import re
import subprocess
import sys
from pathlib import Path

DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc", "base", "types", "internal", "manager"}
HEADER_LINES_MAX = 300
SOURCE_LINES_MAX = 600
SOURCE_DEPTH_MAX = 4  # src/<folder>/<part>/<file>
CASE_LENGTHS = range(15, 31)
CPP_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
# Paths that exist only on one machine.
STRAY = re.compile(rb"/work/(main|shared)|/tmp/w/|/root/")
TEXT_SUFFIXES = {".h", ".cc", ".py", ".pyi", ".md", ".txt", ".cmake", ".toml", ".json", ""}
# Recognises a decoder: a function that turns bytes into values.
DECODER = re.compile(
    r"^(?:static )?(?:"
    r"Result<.*> (?:read|parse|decode|open)\w*\((?:const ByteSource&|std::span<const std::byte>)"
    r"|(?:Result|std::optional)<.*> (?:read|parse|decode)\w*\(std::string_view"
    r"|Result<(?!std::string>).*> (?:read|parse|decode)\w*\(const storage::Storage&"
    r")",
    re.MULTILINE,
)


def listed_files(root: Path) -> list[Path]:
    """Returns the files that git tracks or would track, relative to the root; without git, all files."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    return sorted(Path(name) for name in names if name and (root / name).is_file())


def check_name(file: Path) -> list[str]:
    """Refuses drawers: a folder or file is named after its one concept."""
    words = {word for part in (*file.parts[:-1], file.stem) for word in re.split(r"[_\-.]", part.lower())}
    problems = [f"{file}: '{word}' names nothing; what is the idea called?" for word in sorted(words & DRAWERS)]
    if file.suffix in {".h", ".cc", ".py"} and not re.fullmatch(r"[a-z0-9_]+", file.stem):
        problems.append(f"{file}: file names are snake_case")
    if file.parts[0] == "src" and len(file.parts) > SOURCE_DEPTH_MAX:
        problems.append(f"{file}: deeper than src/<folder>/<part>/<file>")
    return problems


def check_size(root: Path, file: Path) -> list[str]:
    """Limits the lines of headers and sources, for readers."""
    limit = {".h": HEADER_LINES_MAX, ".cc": SOURCE_LINES_MAX, ".py": SOURCE_LINES_MAX}.get(file.suffix)
    if limit is None:
        return []
    lines = (root / file).read_bytes().count(b"\n")
    return [f"{file}: {lines} lines, at most {limit}"] if lines > limit else []


def check_text(root: Path, file: Path) -> list[str]:
    """Refuses paths of one machine. Headers must open with a sentence and #pragma once."""
    if file.suffix not in TEXT_SUFFIXES or "corpus" in file.parts or file == Path("tools/check_tree.py"):
        return []
    content = (root / file).read_bytes()
    problems = [f"{file}: mentions {match.decode()}" for match in sorted({m.group() for m in STRAY.finditer(content)})]
    if file.suffix == ".h":
        if not content.startswith(b"// "):
            problems.append(f"{file}: does not open with a sentence that says what it is")
        if b"#pragma once" not in content:
            problems.append(f"{file}: lacks #pragma once")
    return problems


def check_cases(root: Path, file: Path) -> list[str]:
    """Limits the length of the second part of the name of a C++ test."""
    if not file.name.endswith("_test.cc"):
        return []
    return [
        f"{file}: the case {test[1]}.{test[2]} has {len(test[2])} characters, "
        f"not {CASE_LENGTHS.start} to {CASE_LENGTHS.stop - 1}"
        for test in CPP_TEST.finditer((root / file).read_text())
        if len(test[2]) not in CASE_LENGTHS
    ]


def check_fuzz(root: Path, files: list[Path]) -> list[str]:
    """Requires a fuzz target for each decoder's header, and seeds for each target."""
    problems = []
    targets = [file for file in files if file.parts[0] == "fuzz" and file.name.endswith("_fuzz.cc")]
    included = {
        name for target in targets for name in re.findall(r'#include "([^"]+/[^"]+)"', (root / target).read_text())
    }
    for header in files:
        if header.parts[0] != "src" or "testing" in header.parts or header.suffix != ".h":
            continue
        if DECODER.search((root / header).read_text()) and str(header.relative_to("src")) not in included:
            problems.append(f"{header}: decodes bytes, and no fuzz/*_fuzz.cc includes it")
    for target in targets:
        corpus = Path("fuzz/corpus") / target.stem.removesuffix("_fuzz")
        if not any(corpus in file.parents for file in files):
            problems.append(f"{target}: no seeds in {corpus}")
    return problems


def check(root: Path) -> list[str]:
    """Returns all problems of the tree at `root`."""
    files = listed_files(root)
    problems = check_fuzz(root, files)
    for file in files:
        problems += check_name(file) + check_size(root, file) + check_text(root, file) + check_cases(root, file)
    return problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    problems = check(root)
    print("\n".join(problems) or "tree ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
