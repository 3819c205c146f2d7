"""The pages of docs/: every page is in the site's navigation, every link resolves, and every program runs."""

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GUIDES = sorted((DOCS / "guide").glob("*.md"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r'^( *)```(\w+)(?: title="([^"]+)")?\n(.*?)^ *```$', re.DOTALL | re.MULTILINE)
GENERATED = {"index.md", "api/cpp.md"}  # by tools/docs/site_hooks.py

PRELUDE = """
import torch
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.ones(2, 8)
model(batch).sum().backward()
optimizer.step()
step = 1000
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
"""


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python objects."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(part)]


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings, as Python-Markdown makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.+)$", text, re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        anchors.add(slug)
    return anchors


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE))


def test_the_navigation_has_every_page_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    listed = sorted(page for page in pages_of(nav) if not page.startswith("https:"))
    assert listed == sorted({str(page.relative_to(DOCS)) for page in PAGES} | GENERATED)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    for link in LINK.findall(without_code(page.read_text())):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if target.is_relative_to(DOCS) and str(target.relative_to(DOCS)) in GENERATED:
            continue
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{page.name}: {link}"


def test_the_tests_of_dev_compat_exist() -> None:
    lines = (ROOT / "compat/tests.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert listed and [name for name in listed if not (ROOT / "python/tests" / name).is_file()] == []


def environment() -> dict[str, str]:
    tools = f"{ROOT / 'build/release/bin'}:{Path(sys.executable).parent}"
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """The untitled Python blocks of a page are one program; a title is a file's name.

    Shell commands run after the program: those of blocks titled "ranks" too. A script of bash is only parsed.
    """
    program = [PRELUDE]
    commands: list[str] = []
    for indent, language, title, code in BLOCK.findall(page.read_text()):
        lines = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
        if language == "python" and title:
            (tmp_path / title).write_text(lines)
        elif language == "python":
            program.append(lines)
        elif language == "console":
            commands += [line.removeprefix("$ ") for line in lines.splitlines() if line.startswith("$ ")]
        elif language == "bash":
            run(["bash", "-n", "-c", lines], tmp_path)
    (tmp_path / "program.py").write_text("\n".join(program))
    run([sys.executable, "-W", "error::DeprecationWarning:__main__", "program.py"], tmp_path)
    for command in commands:
        damaged = command.startswith("cairn verify") and page.stem == "damaged-checkpoints"
        # torchrun of this interpreter, whatever the PATH has; a damaged checkpoint has exit code 1.
        words = command.replace("torchrun", f"{sys.executable} -m torch.distributed.run")
        run(["bash", "-c", f"{words} || [ $? = {1 if damaged else 0} ]"], tmp_path)
