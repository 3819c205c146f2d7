"""The exit status of a program whose last background save failed, while no code retrieved the failure."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import commands
import pytest
import stock
import torch
from saving_programs import SAYS_WHEN_IT_WAITS, Program, no_commit_in, running

import cairn

# The last save of these programs fails while the interpreter waits: a stock checkpoint replaces the directory's
# content.
both = pytest.mark.parametrize("kind", ["THREAD", "PROCESS"])
ON = "cairn.configure_async_saves(fail_at_exit=True)"
FAILING_PLANNER = """
    class Planner(cairn.DefaultSavePlanner):
        def resolve_data(self, item):
            raise ValueError("of the planner")
"""
SAVES = f"{SAYS_WHEN_IT_WAITS}\nsave(2)"


def ends_after_a_failed_save(program: Program, checkpoint: Path) -> int:
    """Returns the status of a program whose save over step 1 fails while the interpreter waits for the save."""
    with no_commit_in(checkpoint):
        assert program.said() == "waits", program.errors()
        stock.save({"step": 3}, checkpoint)
    status = program.wait()
    assert cairn.open(checkpoint)["step"] == 3
    return status


@pytest.fixture
def replaced(checkpoint: Path) -> Path:
    stock.save({"step": 1}, checkpoint)
    return checkpoint


ENDS = [
    ("THREAD", "", 1),
    ("PROCESS", "", 1),
    ("THREAD", "sys.exit(3)", 3),
    ("PROCESS", "raise RuntimeError('of the training loop')", 1),
]


@pytest.mark.parametrize(("kind", "last", "status"), ENDS)
def test_an_unretrieved_failure_changes_the_exit_status_from_0_to_1(
    replaced: Path, tmp_path: Path, kind: str, last: str, status: int
) -> None:
    with running(tmp_path, f"{ON}\n{SAVES}\n{last}", replaced, kind) as program:
        assert ends_after_a_failed_save(program, replaced) == status
        *before, line = program.errors().splitlines()
        assert line.startswith(f"an asynchronous save into '{replaced}' failed: ")
        assert before[-1:] == (["RuntimeError: of the training loop"] if "raise" in last else [])


def test_all_exit_callbacks_run_and_all_streams_are_flushed(replaced: Path, tmp_path: Path) -> None:
    """Python callbacks run before and after Cairn's callback, and a C callback runs last.

    Forked children keep their status.
    """
    functions = f"""
    import atexit, ctypes
    {FAILING_PLANNER}
    def status_of_a_child(saves):
        child = os.fork()
        if child == 0:
            if saves:
                cairn.async_save(state(7), checkpoint_id=directory.with_name("of-a-child"), planner=Planner())
            sys.exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def at_exit(when, parent):
        "The text stays in Python's buffer, as the output is a pipe."
        if os.getpid() == parent:
            print(when, status_of_a_child(saves=False), end=" ")
    """
    body = f"""
    atexit.unregister(cairn._async.pending_saves._end)
    atexit.register(at_exit, "after", os.getpid())
    atexit.register(cairn._async.pending_saves._end)
    atexit.register(at_exit, "before", os.getpid())
    C = ctypes.CDLL(None)
    C.strdup.restype = ctypes.c_void_p  # a copy of the text, as the interpreter frees its own texts before the callback
    text = ctypes.c_void_p(C.strdup(b"of C"))
    C.on_exit(C.dprintf, text)  # calls dprintf(status, text), and a status of 1 is the descriptor of the output
    {ON}
    assert status_of_a_child(saves=True) == 0
    {SAYS_WHEN_IT_WAITS}
    save(2)
    """
    with running(tmp_path, body, replaced, "THREAD", functions=functions) as program:
        assert ends_after_a_failed_save(program, replaced) == 1, program.errors()
        assert program.process.stdout is not None
        assert program.process.stdout.read() == "before 0 after 0 of C"
        assert "of the planner" in program.errors()


def test_ctrl_c_that_ends_the_waiting_fails_the_program(replaced: Path, tmp_path: Path) -> None:
    with running(tmp_path, f"{ON}\n{SAVES}", replaced, "THREAD") as program, no_commit_in(replaced):
        assert program.said() == "waits"
        program.press_ctrl_c()
        assert program.wait() == 1
        assert "the program ends during its save" in program.errors()
    cairn.save({"step": 3}, checkpoint_id=replaced)  # removes the leftovers of the interrupted save


def test_the_exit_status_is_0_if_the_program_retrieved_the_failure(replaced: Path, tmp_path: Path) -> None:
    body = f"""
    {ON}
    future = save(2)
    say("waits")
    say(type(future.exception()).__name__)
    """
    with running(tmp_path, body, replaced, "THREAD") as program:
        assert ends_after_a_failed_save(program, replaced) == 0
        assert program.said() == "Superseded"
        assert program.errors() == ""


def test_torchrun_reports_the_rank_of_the_failed_last_save(tmp_path: Path) -> None:
    """A planner of the caller's saves by torch's driver, in a thread."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, sys
import torch
import cairn
{textwrap.dedent(FAILING_PLANNER)}
cairn.configure_async_saves(fail_at_exit=True)
if os.environ["RANK"] == "1":
    cairn.async_save({{"w": torch.ones(1)}}, checkpoint_id=sys.argv[1], planner=Planner())
""")
    job = [*commands.launcher(2), program, tmp_path / "checkpoint"]
    done = subprocess.run(job, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "exitcode  : 1" in done.stderr, done.stderr
    assert "rank      : 1 (local_rank: 1)" in done.stderr, done.stderr


# --- AsyncSaver as a context manager


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((8,), float(step)), "step": step}


def save_that_fails(saver: cairn.AsyncSaver, checkpoint: Path) -> Any:
    with no_commit_in(checkpoint):
        pending = saver.save(state(2), checkpoint)
        stock.save({"step": 3}, checkpoint)
    return pending.upload


def test_the_block_of_a_saver_waits_for_its_saves(checkpoint: Path) -> None:
    with cairn.AsyncSaver(process=False) as saver:
        upload = saver.save(state(1), checkpoint).upload
    assert upload.done()
    assert cairn.open(checkpoint)["step"] == 1


@both
def test_the_block_of_a_saver_raises_an_unretrieved_failure(replaced: Path, kind: str) -> None:
    with pytest.raises(cairn.Superseded) as caught, cairn.AsyncSaver(process=kind == "PROCESS") as saver:
        upload = save_that_fails(saver, replaced)
    assert upload.exception() is caught.value
    cairn.async_save(state(4), checkpoint_id=replaced).result()  # type: ignore[union-attr]


def test_the_block_of_a_saver_does_not_raise_a_retrieved_failure(replaced: Path) -> None:
    with cairn.AsyncSaver(process=False) as saver:
        assert save_that_fails(saver, replaced).exception() is not None


def test_an_exception_of_the_block_goes_on_with_a_note(replaced: Path) -> None:
    with pytest.raises(KeyError, match="of the loop") as caught, cairn.AsyncSaver(process=False) as saver:
        upload = save_that_fails(saver, replaced)
        raise KeyError("of the loop")
    if sys.version_info >= (3, 11):
        (note,) = caught.value.__notes__
        assert f"'{replaced}' failed as well: " in note
    with pytest.raises(cairn.Error, match="the previous save"):
        cairn.async_save(state(4), checkpoint_id=replaced)
    assert upload.exception_retrieved


def test_an_exit_in_the_block_of_a_saver_does_not_hide_the_failure(replaced: Path, tmp_path: Path) -> None:
    body = """
    with cairn.AsyncSaver(process=False) as saver:
        saver.save(state(2), directory)
        say("waits")
        sys.exit(0)
    """
    with running(tmp_path, body, replaced, "THREAD") as program:
        assert ends_after_a_failed_save(program, replaced) == 1
        assert program.errors().startswith(f"an asynchronous save into '{replaced}' failed: ")


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_the_setting_is_a_bool(wrong: Any) -> None:
    for set_up in (cairn.configure_async_saves, cairn.AsyncSaver):
        with pytest.raises(cairn.InvalidArgument, match="fail_at_exit"):
            set_up(fail_at_exit=wrong)
