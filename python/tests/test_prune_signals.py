"""`cairn.prune` and `cairn prune` that hang in a removal: other threads, pins, Ctrl-C and kills meanwhile."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hanging
import pytest
from runs import pruned, root, saved, steps_in
from tool import tool

import cairn

__all__ = ["root", "saved"]  # fixtures


@pytest.fixture(scope="module")
def hang_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanging.library(tmp_path_factory.mktemp("hanging"))


PRUNE = """
import os, signal, sys, threading, time
from pathlib import Path
import cairn

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
block = Path(os.environ["HANG"].partition(":")[2])

def go_on():  # runs only if prune() has released Python's lock
    while not block.with_name(block.name + ".reached").exists():
        time.sleep(0.01)
    if sys.argv[2] == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    block.unlink()

thread = threading.Thread(target=go_on)
thread.start()
try:
    print(len(cairn.prune(sys.argv[1], keep_last=1).removed))
except KeyboardInterrupt:
    print("interrupted")
thread.join()
"""


@pytest.mark.parametrize("action", ["go on", "interrupt"])
def test_other_threads_go_on_and_ctrl_c_ends_between_two_checkpoints(
    action: str, root: Path, hang_library: Path
) -> None:
    block = root.parent / "hang"
    block.touch()
    environment = {**os.environ, "LD_PRELOAD": str(hang_library), "HANG": f"unlinkat:{block}"}
    command = [sys.executable, "-c", PRUNE, root, action]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    if action == "go on":
        assert (done.stdout, steps_in(root)) == ("9\n", [10])
    else:
        assert (done.stdout, steps_in(root)) == ("interrupted\n", list(range(2, 11)))
        assert not (root / "step-1").exists()


@contextmanager
def hanging_in_the_first_removal(root: Path, hang_library: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`cairn prune` that waits in the removal of the data file of step-1, and the file that holds it."""
    block = root.parent / "hang"
    block.touch()
    environment = {**os.environ, "LD_PRELOAD": str(hang_library), "HANG": f"unlinkat:{block}"}
    command = [tool(), "prune", str(root), "--keep-last", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as pruning:
        try:
            until = time.monotonic() + 240
            while not block.with_name("hang.reached").exists():
                assert pruning.poll() is None and time.monotonic() < until
                time.sleep(0.01)
            yield pruning, block
        finally:
            pruning.kill()


def test_a_pin_during_prune_protects_a_later_checkpoint_of_the_call(root: Path, hang_library: Path) -> None:
    late: list[object] = []

    def pin_late() -> None:
        try:
            cairn.pin(root / "step-1")  # waits for the lock of the directory
        except cairn.Error as error:
            late.append(error)

    with hanging_in_the_first_removal(root, hang_library) as (pruning, block):
        thread = threading.Thread(target=pin_late)
        thread.start()
        cairn.pin(root / "step-2", "just in time")
        block.unlink()
        told, messages = pruning.communicate(timeout=240)
        thread.join()
    assert steps_in(root) == [2, 10]
    assert f"{root}/step-2: step 2, kept: pinned: just in time" in told.splitlines()
    assert (messages, pruning.returncode) == ("", 0)
    (error,) = late
    assert isinstance(error, cairn.NotFound)
    assert not (root / "step-1").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_removal_that_a_signal_ends_is_finished_by_the_next(number: int, root: Path, hang_library: Path) -> None:
    with hanging_in_the_first_removal(root, hang_library) as (pruning, _):
        assert not (root / "step-1" / ".metadata").exists()
        assert len(list((root / "step-1").glob("*.distcp"))) == 1
        pruning.send_signal(number)
        pruning.communicate(timeout=240)
        assert pruning.returncode == -number
    assert steps_in(root) == list(range(2, 11))
    report = pruned(root, keep_last=9)
    assert [(entry.step, entry.was_interrupted) for entry in report.removed] == [(1, True)]
    assert not (root / "step-1").exists()
