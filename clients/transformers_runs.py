"""Tests of the code of docs/clients.md for managed runs of the Trainer of Transformers: ./dev clients transformers."""

import json
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent / "python/tests"
sys.path[:0] = [str(HERE), str(TESTS), str(TESTS / "clients")]

import commands  # noqa: E402
from clients import environment_of  # noqa: E402
from managed_program import Ended, Play  # noqa: E402

PROGRAM = TESTS / "clients/managed_transformers.py"


@pytest.fixture(scope="module")
def python() -> Path:
    return environment_of("transformers")


def job(python: Path, ranks: int, folder: Path, play: Play) -> Ended:
    folder.mkdir(exist_ok=True)
    options = ["--steps", str(play.steps), "--stop", str(play.stop)]
    before = Path.cwd()
    os.chdir(folder)
    try:
        output = commands.torchrun(ranks, PROGRAM, play.title, *options, timeout=300, python=python)
    finally:
        os.chdir(before)
    return Ended(**json.loads(next(line for line in reversed(output.splitlines()) if line.startswith('{"step": '))))


def saved_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run").iterdir())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stopped_trainer_resumes(python: Path, ranks: int, tmp_path: Path) -> None:
    title = "transformers_run.py"
    whole = job(python, ranks, tmp_path / "whole", Play(title))
    stopped = job(python, ranks, tmp_path / "parts", Play(title, stop=7))
    assert stopped.preempted
    assert 7 <= stopped.step < 13
    assert f"step-{stopped.step}" in saved_in(tmp_path / "parts")
    assert job(python, ranks, tmp_path / "parts", Play(title)) == whole


def test_a_run_of_the_trainer_goes_on(python: Path, tmp_path: Path) -> None:
    job(python, 1, tmp_path, Play(""))
    assert job(python, 1, tmp_path, Play("transformers_old.py", steps=9)).step == 9
    assert saved_in(tmp_path) == ["step-8", "step-9"]
    assert job(python, 1, tmp_path, Play("transformers_old.py")).step == 13
    assert saved_in(tmp_path) == ["step-12", "step-13", "step-9"]


def test_a_damaged_checkpoint_leads_to_the_older(python: Path, tmp_path: Path) -> None:
    title = "transformers_run.py"
    whole = job(python, 1, tmp_path / "whole", Play(title))
    job(python, 1, tmp_path / "parts", Play(title, stop=9))
    newest = max((tmp_path / "parts/run").iterdir(), key=lambda path: int(path.name[5:]))
    data = next(newest.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1  # in the tensors
    data.write_bytes(content)
    assert job(python, 1, tmp_path / "parts", Play(title)) == whole
