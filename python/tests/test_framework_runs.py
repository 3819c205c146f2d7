"""The code of docs/clients.md for managed runs of frameworks: stopped, resumed, begun from an old checkpoint.

Each test compares with a run that nothing interrupts: the models are equal bit by bit.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import run_program

import cairn

PROGRAMS = Path(__file__).parent / "clients"
sys.path.insert(0, str(PROGRAMS))

from managed_program import Ended, Play  # noqa: E402

FRAMEWORKS = ("lightning", "accelerate")


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs the program of the framework in this process, in a folder below `tmp_path`."""
    program = importlib.import_module(f"managed_{framework}")

    def in_folder(folder: str, play: Play) -> Ended:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        ended: Ended = program.play(play)
        return ended

    return in_folder


def job(ranks: int, framework: str, folder: Path, play: Play) -> Ended:
    """Runs the program on each rank."""
    folder.mkdir(exist_ok=True)
    program = PROGRAMS / f"managed_{framework}.py"
    options = ["--steps", str(play.steps), "--stop", str(play.stop), "--strategy", play.strategy]
    lines = reversed(run_program(program, ranks, play.title, *options, preload=(framework,), cwd=folder).splitlines())
    return Ended(**json.loads(next(line for line in lines if line.startswith('{"step"'))))


def saved_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run").iterdir())


def test_a_stopped_run_resumes(framework: str, run: Callable[..., Ended], tmp_path: Path) -> None:
    title = f"{framework}_run.py"
    whole = run("whole", Play(title))
    stopped = run("parts", Play(title, stop=7))
    assert stopped.preempted
    assert 7 <= stopped.step < 13
    assert f"step-{stopped.step}" in saved_in(tmp_path / "parts")
    resumed = run("parts", Play(title))
    assert resumed == whole
    assert resumed.step == 13


def test_damaged_checkpoints_alone_end_the_run(framework: str, run: Callable[..., Ended], tmp_path: Path) -> None:
    run("parts", Play(f"{framework}_run.py", steps=8))
    for directory in (tmp_path / "parts" / "run").iterdir():
        (directory / ".metadata").write_bytes(b"nonsense")
    with pytest.raises(cairn.Corrupt, match="does not start anew by itself"):
        run("parts", Play(f"{framework}_run.py"))


def test_a_run_of_the_framework_goes_on(framework: str, run: Callable[..., Ended], tmp_path: Path) -> None:
    whole = run("whole", Play(f"{framework}_run.py"))
    run("parts", Play(""))
    assert run("parts", Play(f"{framework}_old.py", steps=9)).step == 9
    assert "step-8" in saved_in(tmp_path / "parts")
    assert run("parts", Play(f"{framework}_old.py")).step == whole.step


@pytest.mark.parametrize("framework", ["lightning"], indirect=True)
def test_the_best_checkpoint_is_validated(run: Callable[..., Ended], tmp_path: Path) -> None:
    import managed_lightning

    run("best", Play(""))  # only for the folder
    stored, computed = managed_lightning.validate_best(Play("lightning_run.py"))
    assert computed == pytest.approx(stored)


@pytest.mark.parametrize("framework", ["lightning"], indirect=True)
def test_a_stop_does_not_wait_for_a_validation(run: Callable[..., Ended], tmp_path: Path) -> None:
    import managed_lightning

    run("parts", Play(""))  # only for the folder
    step, validations = managed_lightning.stop_at_validation(Play("lightning_run.py", steps=40, stop=8))
    assert validations == (step - 1) // 4
    assert f"step-{step}" in saved_in(tmp_path / "parts")


@pytest.mark.slow
def test_two_ranks_stop_and_resume(framework: str, tmp_path: Path) -> None:
    title = f"{framework}_run.py"
    whole = job(2, framework, tmp_path / "whole", Play(title))
    stopped = job(2, framework, tmp_path / "parts", Play(title, stop=7))
    assert stopped.preempted
    assert 7 <= stopped.step < 13
    assert f"step-{stopped.step}" in saved_in(tmp_path / "parts")
    assert job(2, framework, tmp_path / "parts", Play(title)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("strategies", [("ddp", "sharded"), ("sharded", "ddp")], ids="-".join)
def test_lightning_resumes_with_another_strategy(strategies: tuple[str, str], tmp_path: Path) -> None:
    """The runs differ in the order of additions alone."""
    first, second = strategies
    whole = job(2, "lightning", tmp_path / "whole", Play("lightning_run.py", strategy=first))
    assert job(2, "lightning", tmp_path / "parts", Play("lightning_run.py", steps=8, strategy=first)).step == 8
    resumed = job(2, "lightning", tmp_path / "parts", Play("lightning_run.py", strategy=second))
    assert resumed.step == 13
    assert resumed.sums == pytest.approx(whole.sums, abs=0.002)


@pytest.mark.slow
def test_lightnings_sharded_checkpoint_goes_on(tmp_path: Path) -> None:
    assert job(2, "lightning", tmp_path, Play("", strategy="sharded")).step == 6
    assert (tmp_path / "old.ckpt" / "meta.pt").exists()
    assert job(2, "lightning", tmp_path, Play("lightning_old.py", steps=9, strategy="sharded")).step == 9
    assert saved_in(tmp_path) == ["step-8", "step-9"]
    assert job(2, "lightning", tmp_path, Play("lightning_old.py", strategy="sharded")).step == 13
