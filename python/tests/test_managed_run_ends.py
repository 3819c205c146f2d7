"""CheckpointManager: stops and ends of a run that do not go by the book."""

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Gang, free_port

import cairn
from cairn._ranks.group_store import GroupStore


def state_of(step: int) -> dict[str, Any]:
    return {"weight": torch.full((2000,), float(step)), "step": step}


def test_an_exception_of_the_block_is_a_failure_of_the_run(tmp_path: Path) -> None:
    def train(error: BaseException | None) -> int:
        with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
            last = manager.restore(state_of(0)) or 0
            manager.save(last + 1, state_of(last + 1))
            if error is not None:
                raise error
            return manager.report().failures

    ends: list[tuple[BaseException, int]] = [(ZeroDivisionError(), 1), (SystemExit(0), 1), (KeyboardInterrupt(), 1)]
    for error, failures in ends:
        with pytest.raises(type(error)):
            train(error)
        assert train(None) == failures, error


def test_a_stop_is_not_used_up_by_a_question(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path) as manager:
        manager.preempt()
        assert manager.should_save(1)
        assert manager.stops_at(1)
        assert manager.should_save(2)
        assert not manager.preempted
        assert manager.save(3, state_of(3)) is not None
        assert manager.preempted
        assert not manager.should_save(4)
        assert manager.steps() == [3]


def test_large_notes_do_not_fail_a_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    large = {"text": "x" * 65_500}
    with cairn.CheckpointManager(tmp_path) as manager:
        with pytest.raises(cairn.InvalidArgument, match="the notes and metrics of a save are too large"):
            manager.save(1, state_of(1), notes=large, force=True)
        manager.preempt()
        assert manager.save(2, state_of(2), {"loss": 0.5}, notes=large) is not None
        assert manager.metrics(2) == {"loss": 0.5}
    assert "which are left out" in caplog.text


class Interrupted:
    """A Stateful during whose state_dict() a Ctrl-C comes."""

    def state_dict(self) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_ctrl_c_in_a_save_is_no_failed_save(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        with pytest.raises(KeyboardInterrupt):
            manager.save(1, {"state": Interrupted()})
        assert manager.save(2, state_of(2)) is not None
        manager.wait()
        assert (manager.report().saves, manager.report().failed) == (1, 0)


def test_ctrl_c_as_a_stop_raises_nothing(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with cairn.CheckpointManager(tmp_path, preemption_signals=(signal.SIGINT,)) as manager:
        os.kill(os.getpid(), signal.SIGINT)
        step = 1
        while not manager.preempted:
            manager.save(step, state_of(step))
            step += 1
        assert manager.latest_step() == step - 1
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


class Looker:
    """A Stateful that looks for a checkpoint of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "a"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        cairn.open("no-such-checkpoint")


def test_an_error_of_an_entry_is_no_damage(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        for step in (1, 2):
            manager.save(step, {"looker": Looker()})
        manager.wait()
        with pytest.raises(cairn.NotFound, match="no-such-checkpoint"):
            manager.restore({"looker": Looker()})


def test_ctrl_c_leaves_a_root_closed(tmp_path: Path) -> None:
    """The Ctrl-C comes in close(), or soon before or after it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys, threading, time, torch, cairn\n"
        "manager = cairn.CheckpointManager(sys.argv[1], save_every=1, keep_last=1, process=False)\n"
        "for step in range(1, 400):\n"
        "    manager.save(step, {'a': torch.zeros(1)})\n"
        "manager.wait()\n"
        "try:\n"
        "    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    manager.close()\n"
        "    time.sleep(10)\n"
        "except KeyboardInterrupt:\n"
        "    manager.close()\n"
        "    print('interrupted', os.path.exists(os.path.join(sys.argv[1], '.cairn-manager')))\n"
    )
    done = subprocess.run(
        [sys.executable, program, tmp_path / "run"], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == "interrupted False\n", done.stderr


def find_pids(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in children.read_text().split()]


def test_workers_of_a_loader_outlive_a_stop(tmp_path: Path) -> None:
    """As torchrun: the signal goes to all processes of the rank. The workers end with the program."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time, torch, cairn\n"
        "from torch.utils.data import DataLoader\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 10**6\n"
        "    def __getitem__(self, i): return torch.zeros(1)\n"
        "ignore = cairn.ignore_stop_signals\n"
        "loader = DataLoader(Data(), num_workers=2, worker_init_fn=ignore, persistent_workers=True)\n"
        "with cairn.CheckpointManager(sys.argv[1], process=False) as manager:\n"
        "    for step, batch in enumerate(loader):\n"
        "        manager.save(step, {'batch': batch})\n"
        "        if step == 20: print('begun', flush=True)\n"
        "        if manager.preempted: break\n"
        "print('saved', manager.steps() == [step])\n"
    )
    command = [sys.executable, program, tmp_path / "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        workers = find_pids(process.pid)
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "saved True\n"
        assert process.wait(timeout=100) == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def serve(port: int) -> "subprocess.Popen[str]":
    """Starts the server of a TCPStore, which holds a key."""
    program = (
        "import sys, time\n"
        "from torch.distributed import TCPStore\n"
        "store = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True, wait_for_workers=False)\n"
        "store.set('run/key', 'value')\n"
        "print('begun', flush=True)\n"
        "time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", program, str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "begun\n"
    return server


def test_a_store_that_was_gone_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out of the group's own connection is longer than the test waits."""
    port = free_port()
    with serve(port) as server:
        hour = datetime.timedelta(hours=1)
        client = dist.PrefixStore("run", dist.TCPStore("127.0.0.1", port, timeout=hour, wait_for_workers=False))
        monkeypatch.setattr(dist.distributed_c10d, "_get_process_group_store", lambda group: client)
        store = GroupStore("a group", timeout_seconds=1)
        assert store.get(["key"]) == ["value"]
        assert store.get(["key", "no key"]) is None
        server.kill()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            store.get(["key"])
    with serve(port) as server:
        assert store.get(["key"]) == ["value"]
        store.set("other", "text")
        assert store.get(["other"]) == ["text"]
        server.kill()


def fail_and_force(root: str) -> tuple[bool, bool]:
    """The store of rank 1 is out of reach: the stop of rank 1 reaches rank 0 by a forced save."""
    rank = dist.get_rank()
    if rank == 1:
        GroupStore.get = refuse  # type: ignore[method-assign]
    have_failed = torch.zeros(1)
    with cairn.CheckpointManager(root, preemption_signals=(), agreement_seconds=0.2) as manager:
        if rank == 1:
            manager.preempt()
        for step in range(1, 10_000):
            time.sleep(0.01)
            try:
                assert manager.save(step, state_of(step)) is None
            except cairn.Unavailable:
                have_failed += 1
            dist.all_reduce(have_failed)
            if have_failed:
                break
        manager.save(step + 1, state_of(step + 1), force=True)
        return manager.preempted, manager.steps() == [step + 1]


def refuse(self: GroupStore, keys: list[str]) -> list[str] | None:
    raise RuntimeError("out of reach")


def test_a_forced_save_passes_on_a_stop(two: Gang, tmp_path: Path) -> None:
    assert two.run(fail_and_force, str(tmp_path)) == [(True, True)] * 2
    two.close()  # the ranks have another GroupStore
