"""Hooks of mkdocs for the site: pages that are made from other files, and links that leave docs/.

index.md is README.md. api/cpp.md has the declarations and comments of include/cairn/. A link from a page to a file
outside of docs/ becomes a link to the web page of the repository; a link to a missing file ends the build.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HEADERS = ROOT / "include" / "cairn"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
SOURCE = re.compile(r'((?:src|srcset)=")([^"]+)(")')


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages, and the pictures of README.md."""
    readme = (ROOT / "README.md").read_text()
    for picture in sorted(set(re.findall(r'(?:\]\(|srcset="|src=")(docs/[^)"]+\.svg)', readme))):
        assert (ROOT / picture).is_file(), picture
    files.append(File.generated(config, "index.md", content=_from_root(readme)))
    files.append(File.generated(config, "api/cpp.md", content=cpp_reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrites the links that leave docs/."""
    place = DOCS / page.file.src_uri

    def rewritten(match: "re.Match[str]") -> str:
        before, link, after = match.groups()
        if re.match(r"[a-z]+:|#", link):
            return match[0]
        name, _, anchor = link.partition("#")
        target = (place.parent / name).resolve()
        if target.is_relative_to(DOCS):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: no file {link}")
        kind = "tree" if target.is_dir() else "blob"
        address = f"{config.repo_url}/{kind}/main/{target.relative_to(ROOT)}"
        return f"{before}{address}{'#' + anchor if anchor else ''}{after}"

    return "".join(part if is_code else LINK.sub(rewritten, part) for part, is_code in _parts(markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Removes the Sphinx roles of docstrings (``:func:``), which mkdocstrings leaves in the text."""
    return re.sub(r":(?:func|class|mod|meth|attr):(?=<code>)", "", html)


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """The text and the fenced code of a page, in their order."""
    for index, part in enumerate(re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)):
        yield part, index % 2 == 1


def _from_root(readme: str) -> str:
    """README.md as a page of docs/: a link docs/X becomes X, a link to a file of the root ../X."""

    def moved(match: "re.Match[str]") -> str:
        before, link, after = match.groups()
        if re.match(r"[a-z]+:|#", link):
            return match[0]
        return f"{before}{link.removeprefix('docs/') if link.startswith('docs/') else '../' + link}{after}"

    return "".join(part if is_code else SOURCE.sub(moved, LINK.sub(moved, part)) for part, is_code in _parts(readme))


def cpp_reference() -> str:
    """A section per public header: its opening comment, then each declaration with its comment."""
    lines = [
        "# C++ reference",
        "",
        "The public headers, `include/cairn/`: the comments and declarations as they stand in the headers. A program",
        "includes `<cairn/cairn.h>` and links `cairn::cairn`. Functions that can fail return a `cairn::Result`.",
        "",
    ]
    for header in sorted(HEADERS.glob("*.h")):
        if header.name == "cairn.h":
            continue
        text = header.read_text()
        opening, _, rest = text.partition("#pragma once\n")
        title, *more = _prose(opening).split("\n\n")
        lines += [f"## cairn/{header.name} {{#{header.stem}}}", "", title, "", *("\n\n".join(more).split("\n")), ""]
        for comment, code in declarations(rest):
            lines += [comment, "", "```cpp", code, "```", ""]
    return "\n".join(lines)


def declarations(text: str) -> Iterator[tuple[str, str]]:
    """The declarations of namespace cairn: the comment before each, as prose, and its code."""
    body = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    body = re.sub(r"^(namespace [\w:]+ \{|\}  // namespace .*)\n", "", body, flags=re.MULTILINE)
    for block in _blocks(body.splitlines()):
        comment = []
        while block and block[0].startswith("//"):
            comment.append(block.pop(0))
        if block:
            yield _prose("\n".join(comment)), "\n".join(block)


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines between blank lines at the level of the namespace."""
    block: list[str] = []
    depth = 0
    for line in [*lines, ""]:
        if not line.strip() and depth == 0:
            if block:
                yield block
            block = []
            continue
        block.append(line)
        code = line.partition("//")[0]
        depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")


def _prose(comment: str) -> str:
    """A comment of C++ as Markdown: angle brackets and names with underscores stay as they are."""
    lines = [line.removeprefix("//").removeprefix(" ") for line in comment.strip().splitlines()]
    text = "\n".join(lines)
    return re.sub(r"<(?=[a-zA-Z/])", "&lt;", text)
