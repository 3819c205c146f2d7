"""Ctrl-C during a save: KeyboardInterrupt, a whole old checkpoint, and no leftover files."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import stock
import torch
from held_tensor import HeldTensor, held

import cairn

__all__ = ["held"]  # a fixture

TRAINER = """
import signal, sys, time
import torch, cairn

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored

rounds, directory = int(sys.argv[1]), sys.argv[2]
state = {"w": torch.zeros(32 << 20), "step": 0}
cairn.save(state, checkpoint_id=directory)
start = time.perf_counter()
cairn.save(state, checkpoint_id=directory)
print(time.perf_counter() - start, flush=True)
for i in range(rounds):
    sys.stdin.readline()
    state["step"] = i + 1
    state["w"].fill_(i + 1)
    try:
        try:
            print("saving", flush=True)
            cairn.save(state, checkpoint_id=directory)
            outcome = "finished"
        except KeyboardInterrupt:
            outcome = "interrupted"
        while outcome == "finished":
            time.sleep(0.01)  # a signal just before a sleep does not end it
    except KeyboardInterrupt:
        pass
    print(outcome, flush=True)
"""


def step_in(directory: Path) -> int:
    """Returns the step of the loaded state; fails unless the whole state is of that step."""
    state = {"w": torch.full((32 << 20,), -1.0), "step": -1}
    cairn.load(state, checkpoint_id=directory)
    assert bool((state["w"] == float(state["step"])).all())
    return int(state["step"])


def test_ctrl_c_stops_a_save(checkpoint: Path) -> None:
    rounds = 12
    command = [sys.executable, "-c", TRAINER, str(rounds), str(checkpoint)]
    chance = random.Random(5)
    outcomes = []
    kept = 0  # interrupted saves that left the old checkpoint
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        duration = float(trainer.stdout.readline())
        before = step_in(checkpoint)
        assert before == 0
        for new in range(1, rounds + 1):
            trainer.stdin.write("\n")
            trainer.stdin.flush()
            assert trainer.stdout.readline() == "saving\n"
            time.sleep(chance.uniform(0, duration))
            trainer.send_signal(signal.SIGINT)
            sent = time.perf_counter()
            outcomes.append(trainer.stdout.readline().strip())
            assert time.perf_counter() - sent < 5
            after = step_in(checkpoint)
            files = {path.name for path in checkpoint.iterdir()}
            assert files == {".metadata", *cairn.open(checkpoint).files}, f"litter after {outcomes[-1]}"
            assert after in ((new,) if outcomes[-1] == "finished" else (before, new)), outcomes
            kept += after == before
            before = after
    assert trainer.returncode == 0
    assert kept, f"no interrupt has stopped a save: {outcomes}"


def test_handlers_run_and_their_exceptions_arrive(checkpoint: Path) -> None:
    class Stop(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Stop

    state = {"w": torch.zeros(32 << 20)}
    cairn.save({"w": torch.ones(3)}, checkpoint_id=checkpoint)
    previous = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with pytest.raises(Stop):
            timer.start()
            for _ in range(100):
                cairn.save(state, checkpoint_id=checkpoint)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, previous)
    assert {path.name for path in checkpoint.iterdir()} == {".metadata", *cairn.open(checkpoint).files}
    assert cairn.verify(checkpoint)


def test_ctrl_c_ends_a_verification_of_stock_files_too(tmp_path: Path) -> None:
    stock.save({"w": torch.zeros(64 << 20)}, tmp_path / "stock")
    program = f"""
import signal, sys, cairn
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
try:
    print("ready", flush=True)
    while True:
        cairn.verify({os.fspath(tmp_path / "stock")!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as verifier:
        assert verifier.stdout is not None
        assert verifier.stdout.readline() == "ready\n"
        verifier.send_signal(signal.SIGINT)
        assert verifier.communicate(timeout=60)[0] == "interrupted\n"


def test_other_threads_go_on_during_a_save(checkpoint: Path) -> None:
    """The engine works without Python's global interpreter lock."""
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    state = {"w": torch.zeros(32 << 20)}
    cairn.save(state, checkpoint_id=checkpoint)
    ticker.start()
    try:
        start = time.perf_counter()
        ticks = 0
        cairn.save(state, checkpoint_id=checkpoint)
        seen, took = ticks, time.perf_counter() - start
    finally:
        stop.set()
        ticker.join()
    assert seen > took / 0.001 / 20, f"{seen} ticks in {took:.3f} s"


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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiter:
        assert waiter.stdout
        try:
            while not list(checkpoint.glob(".cairn-*/metadata")):  # sealed: the commit is the next step
                assert waiter.poll() is None
                time.sleep(0.01)
            waiter.send_signal(signal.SIGINT)
            assert waiter.stdout.readline() == "interrupted\n"
        finally:
            (checkpoint / ".cairn-lock").unlink()
            os.close(lock)
        waiter.communicate(timeout=60)
    while cairn.saves_in_flight(checkpoint):  # PROCESS: Ctrl-C has ended the wait for the save, not the save
        time.sleep(0.01)
    cairn.load(state, checkpoint_id=checkpoint)
    if name == "save":
        assert torch.equal(state["w"], torch.zeros(3))
