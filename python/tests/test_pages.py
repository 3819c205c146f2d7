"""The pages of docs/: every page is in the site's navigation, every link resolves, and every program runs."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import assert_succeeded

import cairn

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SLURM_PAGE = DOCS / "guide/slurm-and-containers.md"  # its programs need Slurm
GUIDES = sorted({*(DOCS / "guide").glob("*.md"), DOCS / "torch_checkpointing.md"} - {SLURM_PAGE})
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
    assert_succeeded(done)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """The untitled Python blocks of a page are one program; a title is a file's name.

    Shell commands run after the program: those of blocks titled "ranks" too. A script of bash is only parsed.
    """
    if page.stem == "torch_checkpointing":
        pytest.importorskip("torch_checkpointing.default_resharder")
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


JOB = """
import os, sys, time
from pathlib import Path
import torch

steps = 4
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

def loss_of(model, step):
    if str(step) == os.environ.get("HOLD_AT"):  # until the signal has arrived
        Path("held").touch()
        while not sys.modules["__main__"].must_end():
            time.sleep(0.01)
    return model(torch.randn(2, 8, generator=torch.Generator().manual_seed(step))).square().sum()
"""
SRUN = """#!/bin/bash
exec "$PYTHON" -W error "${@: -1}"
"""
SCONTROL = """#!/bin/bash
if [[ $1 = show ]]; then echo localhost; else echo "$@" >>requeued; fi
"""


class SlurmJob:
    """The job of the page in a folder, with stand-ins for Slurm's commands: each run has the same job id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        (folder / "job.py").write_text(JOB)
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        for _, _, title, code in BLOCK.findall(SLURM_PAGE.read_text()):
            if title:
                (folder / title).write_text(code)

    def run(self, signal_number: int | None = None, *, hold_at: int = 0) -> None:
        """Runs the batch script. The signal arrives in step `hold_at`: SIGUSR1 at the script alone (`--signal=B:`), and
        SIGTERM at all processes of the job."""
        names = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "localhost", "HOLD_AT": str(hold_at)}
        found = environment()
        found |= names | {"PYTHON": sys.executable, "PATH": f"{self.folder / 'bin'}:{found['PATH']}"}
        held = self.folder / "held"
        held.unlink(missing_ok=True)
        script = subprocess.Popen(
            ["bash", "job.sh"], cwd=self.folder, env=found, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            until = time.monotonic() + 240
            while signal_number is not None and not held.exists():
                assert script.poll() is None and time.monotonic() < until
                time.sleep(0.01)
            if signal_number == signal.SIGUSR1:
                script.send_signal(signal_number)
            elif signal_number is not None:
                os.killpg(script.pid, signal_number)
            _, told = script.communicate(timeout=240)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
        assert script.returncode == 0, told
        assert not (self.folder / "ending.7").exists()

    def saved(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "run").iterdir())

    def requeued(self) -> list[str]:
        file = self.folder / "requeued"
        return file.read_text().splitlines() if file.exists() else []


def test_the_slurm_job_resumes_after_its_time_limit_and_after_a_preemption(tmp_path: Path) -> None:
    whole, parts = SlurmJob(tmp_path / "whole"), SlurmJob(tmp_path / "parts")
    whole.run()
    parts.run(signal.SIGUSR1, hold_at=2)
    assert parts.saved() == ["step-1", "step-2"]
    assert parts.requeued() == ["requeue 7"]
    (parts.folder / "ending.7").touch()  # as after a SIGKILL: the requeued job has the same id
    parts.run(signal.SIGTERM, hold_at=3)
    assert parts.saved() == ["step-1", "step-2", "step-3"]
    parts.run()
    assert parts.saved() == whole.saved() == ["step-1", "step-2", "step-3", "step-4"]
    assert parts.requeued() == ["requeue 7"]
    assert not cairn.diff(whole.folder / "run/step-4", parts.folder / "run/step-4")
    for command in ("cairn status run", "cairn ls run"):
        assert f"$ {command}" in SLURM_PAGE.read_text()
        run(["bash", "-c", command], parts.folder)
