"""Ctrl-C during a save: KeyboardInterrupt, a whole old checkpoint, and no leftover files."""

import fcntl
import functools
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import hanging
import pytest
import stock
import torch
import warm_python
from held_tensor import HeldTensor, held
from kills import Killer, go_on

import cairn

__all__ = ["held"]  # a fixture

STATES = [{"w": torch.full((2 << 20,), float(step)), "step": step} for step in range(3)]


def step_in(directory: Path) -> int:
    """Returns the step of the loaded state; fails unless the whole state is of that step."""
    state = {"w": torch.full((2 << 20,), -1.0), "step": -1}
    cairn.load(state, checkpoint_id=directory)
    assert bool((state["w"] == float(state["step"])).all())
    return int(state["step"])


def files_are_those_of_the_checkpoint(directory: Path) -> bool:
    return {path.name for path in directory.iterdir()} == {".metadata", *cairn.open(directory).files}


def save_until_ctrl_c(directory: Path, outcome: Path) -> None:
    """Ctrl-C arrives during a call of the save, which waits for the handler. Then saves again, elsewhere."""

    def press(*_: object) -> None:
        go_on()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        cairn.save(STATES[1], checkpoint_id=directory)
        outcome.write_text("finished")
    except KeyboardInterrupt:
        outcome.write_text("interrupted")
    cairn.save(STATES[2], checkpoint_id=outcome.with_name("again"))


PUBLISH = r"renameat2 .* -> __0_ID\.distcp"


def test_ctrl_c_stops_a_save(checkpoint: Path, tmp_path: Path, killer: Killer) -> None:
    """Ctrl-C at each call that changes a file: the handler runs during the call, on the thread that called save()."""
    outcome = tmp_path / "outcome"
    found = []  # the step that is in place after each interruption
    for number in itertools.count(1):
        cairn.save(STATES[0], checkpoint_id=checkpoint)
        run = killer.run(functools.partial(save_until_ctrl_c, checkpoint, outcome), checkpoint, number, signal.SIGINT)
        if len(run.calls) < number:
            break
        where = f"before {run.calls[number - 1]}"
        assert outcome.read_text() == "interrupted", where
        assert files_are_those_of_the_checkpoint(checkpoint), where
        assert step_in(tmp_path / "again") == 2, where
        found.append(step_in(checkpoint))
    assert outcome.read_text() == "finished"
    assert step_in(checkpoint) == 1
    (publish,) = (number for number, call in enumerate(run.calls) if re.fullmatch(PUBLISH, call))
    assert found[:publish] == [0] * publish, "an interrupted write is not committed"
    assert set(found[publish:]) <= {0, 1}, "a commit that has begun may be completed"


def test_handlers_run_and_their_exceptions_arrive(checkpoint: Path, held: HeldTensor) -> None:
    class Stop(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        held.release()
        raise Stop

    def press() -> None:
        held.wait_until_reached()  # the save now waits for the handler
        os.kill(os.getpid(), signal.SIGUSR1)

    cairn.save({"w": torch.ones(3)}, checkpoint_id=checkpoint)
    previous = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=press)
    try:
        thread.start()
        with pytest.raises(Stop):
            cairn.save({"held": held.tensor, "w": torch.zeros(1 << 20)}, checkpoint_id=checkpoint)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, previous)
    assert files_are_those_of_the_checkpoint(checkpoint)
    assert cairn.open(checkpoint).keys() == {"w"}
    assert cairn.verify(checkpoint)


VERIFIER = """
import signal, sys, cairn
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
try:
    cairn.verify(sys.argv[1])
    print("verified")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_verification_of_stock_files_too(tmp_path: Path) -> None:
    stock.save({"w": torch.zeros(1000)}, tmp_path / "stock")
    block = tmp_path / "hang"
    block.touch()
    environment = {**os.environ, "LD_PRELOAD": str(hanging.library(tmp_path)), "HANG": f"pread:{block}"}
    command = [sys.executable, "-c", VERIFIER, str(tmp_path / "stock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as verifier:
        try:
            while not (tmp_path / "hang.reached").exists():
                assert verifier.poll() is None
                time.sleep(0.01)
            verifier.send_signal(signal.SIGINT)
            assert verifier.communicate(timeout=240)[0] == "interrupted\n"
        finally:
            verifier.kill()


# The save waits for the held tensor, which only the second thread releases.
SECOND_THREAD = """
import sys, threading, torch, cairn
from held_tensor import HeldTensor

held = HeldTensor()

def work():
    held.wait_until_reached()
    held.release()

thread = threading.Thread(target=work)
thread.start()
cairn.save({"held": held.tensor, "w": torch.zeros(1 << 20)}, checkpoint_id=sys.argv[1])
thread.join()
"""


@pytest.mark.usefixtures("held")  # skips where a process can't hold a tensor
def test_other_threads_go_on_during_a_save(checkpoint: Path) -> None:
    """The engine works without Python's global interpreter lock."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", SECOND_THREAD, checkpoint], check=True, timeout=240, env=environment)
    assert cairn.verify(checkpoint)


def test_a_save_in_another_thread_is_not_interrupted(checkpoint: Path, held: HeldTensor) -> None:
    done: list[object] = []

    def work() -> None:
        done.append(cairn.save({"held": held.tensor, "w": torch.zeros(1 << 20)}, checkpoint_id=checkpoint))

    thread = threading.Thread(target=work)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        held.wait_until_reached()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
        held.release()
        thread.join()
    assert len(done) == 1
    assert cairn.verify(checkpoint)


WAITER_FOR_LOCK = """
import signal, sys
import torch, cairn

signal.signal(signal.SIGINT, signal.default_int_handler)
name, directory = sys.argv[1:]
state = {"w": torch.ones(3)}
try:
    if name == "save":
        cairn.save(state, checkpoint_id=directory)
    else:
        future = cairn.async_save(
            state, checkpoint_id=directory, async_checkpointer_type=cairn.AsyncCheckpointerType[name]
        )
        future.result()
    print("saved", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("name", ["save", "THREAD", "PROCESS"])
def test_ctrl_c_ends_the_wait_for_the_lock_of_the_directory(name: str, checkpoint: Path) -> None:
    """A foreign process holds the lock for longer than the test lasts. A save would wait even longer for the lock."""
    state = {"w": torch.zeros(3)}
    cairn.save(state, checkpoint_id=checkpoint)
    lock = os.open(checkpoint / ".cairn-lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = [sys.executable, "-c", WAITER_FOR_LOCK, name, str(checkpoint)]
    with warm_python.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiter:
        assert waiter.stdout
        try:
            while not list(checkpoint.glob(".cairn-*/metadata")):  # sealed: the commit is the next step
                assert waiter.poll() is None
                time.sleep(0.01)
            waiter.send_signal(signal.SIGINT)
            assert waiter.stdout.readline() == "interrupted\n"
            if name == "save":  # the save is withdrawn before the exception
                assert not cairn.saves_in_flight(checkpoint)
        finally:
            (checkpoint / ".cairn-lock").unlink()
            os.close(lock)
        waiter.communicate(timeout=240)
    give_up_at = time.monotonic() + 240
    # Ctrl-C has ended the wait for an asynchronous save, not the save.
    while saves := cairn.saves_in_flight(checkpoint):
        assert time.monotonic() < give_up_at, saves
        time.sleep(0.01)
    cairn.load(state, checkpoint_id=checkpoint)
    if name == "save":
        assert torch.equal(state["w"], torch.zeros(3))
