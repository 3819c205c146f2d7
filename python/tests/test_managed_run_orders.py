"""CheckpointManager in programs that call in unusual orders, pass other arguments, or lose access to their storage."""

import datetime
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import hanging
import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Gang

import cairn
from cairn import managed_run
from cairn._async.async_saver import DefaultSavers
from cairn._process import part
from cairn._ranks.checkpoint_exceptions import failure_of, with_failures


def state_of(step: int) -> dict[str, Any]:
    return {"weight": torch.full((100,), float(step)), "step": step}


def save_steps(manager: cairn.CheckpointManager, *steps: int) -> None:
    for step in steps:
        manager.save(step, state_of(step), force=True)
        manager.wait()


def fill(root: Path, *steps: int) -> None:
    with cairn.CheckpointManager(root) as manager:
        save_steps(manager, *steps)


def test_a_restore_after_a_failed_one_begins_anew(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path) as manager:
        save_steps(manager, 1, 2, 3)
        for _ in range(4):
            with pytest.raises(cairn.MissingKey):
                manager.restore({"other": torch.zeros(3)})
        state = state_of(0)
        assert manager.restore(state) == 3
        assert state["step"] == 3


def test_a_restore_after_a_raised_warning_begins_anew(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path) as manager:
        save_steps(manager, 1, 2, 3)
        (tmp_path / "step-3" / ".metadata").write_bytes(b"nonsense")
        with warnings.catch_warnings():
            warnings.simplefilter("error", cairn.DamageWarning)
            with pytest.raises(cairn.DamageWarning):
                manager.restore(state_of(0))
        with pytest.warns(cairn.DamageWarning, match="step-3"):
            assert manager.restore(state_of(0)) == 2


KILLED = """
import os, signal, sys, torch, cairn
manager = cairn.CheckpointManager(sys.argv[1])
manager.save(1, {"weight": torch.ones(100), "step": 1}, force=True)
manager.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_goes_back_counts_a_failure_once(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, timeout=600)
    with cairn.CheckpointManager(tmp_path) as manager:
        assert manager.restore(state_of(0)) == 1
        save_steps(manager, 2)
        assert manager.restore(state_of(0)) == 2
        assert (manager.report().failures, manager.report().saves) == (1, 2)


def test_a_relative_root_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with cairn.CheckpointManager("run", keep_last=1) as manager:
        save_steps(manager, 1)
        monkeypatch.chdir(tmp_path / "elsewhere")
        save_steps(manager, 2)
        assert manager.restore(state_of(0)) == 2
        assert manager.directory_of(2) == str(tmp_path / "run" / "step-2")
    assert manager.steps() == [2]
    assert sorted(path.name for path in tmp_path.rglob("step-*")) == ["step-2"]


def test_a_file_url_is_its_directory(tmp_path: Path) -> None:
    fill(tmp_path / "run", 1)
    with cairn.CheckpointManager(f"file://{tmp_path}/run") as manager:
        assert manager.restore(state_of(0)) == 1
        save_steps(manager, 2)
        assert manager.steps() == [1, 2]


def test_the_url_of_another_storage_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cairn.Unsupported, match="s3://bucket/run"):
        cairn.CheckpointManager("s3://bucket/run")
    assert not list(tmp_path.iterdir())


def test_a_lost_metadata_file_is_damage(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3)
    (tmp_path / "step-3" / ".metadata").unlink()
    (tmp_path / "step-1" / ".metadata").unlink()
    with cairn.CheckpointManager(tmp_path) as manager:
        with pytest.warns(cairn.DamageWarning) as caught:
            assert manager.restore(state_of(0)) == 2
        assert [("step-3' holds data files without .metadata" in str(it.message)) for it in caught] == [True]
        (tmp_path / "step-2" / ".metadata").unlink()
        with pytest.raises(cairn.Corrupt, match=r"step-2' holds data files.*cairn repair"):
            manager.restore(state_of(0))


def test_an_interrupted_first_save_is_no_checkpoint(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "step-1" / ".metadata").unlink()
    (tmp_path / "step-1" / (".cairn-" + "0" * 32)).mkdir()
    with cairn.CheckpointManager(tmp_path, wait_seconds=0) as manager, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert manager.restore(state_of(0)) is None


@pytest.mark.parametrize("step", [-1, True, 10**18])
def test_a_wrong_step_is_refused(tmp_path: Path, step: int) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        with pytest.raises(cairn.InvalidArgument, match="step"):
            manager.save(step, state_of(1))
        save_steps(manager, 0)
        assert manager.steps() == [0]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor], ids=lambda kind: kind.__name__)
def test_whole_numbers_of_other_types_are_steps(tmp_path: Path, kind: Callable[[int], Any]) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        assert manager.should_save(kind(7))
        save_steps(manager, kind(7))
        assert manager.steps() == [7]
        assert manager.metrics(kind(7)) == {}
        assert manager.directory_of(kind(7)) == str(tmp_path / "step-7")


@pytest.mark.parametrize("value", [None, "high", torch.zeros(2), 10**400], ids=lambda value: type(value).__name__)
def test_a_metric_that_is_no_number_is_named(tmp_path: Path, value: Any) -> None:
    with (
        cairn.CheckpointManager(tmp_path) as manager,
        pytest.raises(cairn.InvalidArgument, match="the metric 'loss' is no number"),
    ):
        manager.save(1, state_of(1), {"accuracy": 1.0, "loss": value}, force=True)


def test_a_loss_with_a_graph_is_a_metric(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path) as manager, warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.save(1, state_of(1), {"loss": torch.tensor(2.0, requires_grad=True)}, force=True)
        manager.wait()
        assert manager.metrics(1) == {"loss": 2.0}


@pytest.mark.parametrize(
    "state", [None, lambda: None, [1], torch.nn.Linear(2, 2)], ids=["none", "returned none", "list", "module"]
)
def test_a_state_of_another_type_is_refused(tmp_path: Path, state: Any) -> None:
    with (
        cairn.CheckpointManager(tmp_path) as manager,
        pytest.raises(cairn.InvalidArgument, match="the state is no state dict"),
    ):
        manager.save(1, state, force=True)


def test_a_stop_whose_save_fails_is_a_stop(tmp_path: Path) -> None:
    def fails() -> dict[str, Any]:
        raise KeyError("no state here")

    with cairn.CheckpointManager(tmp_path, preemption_signals=()) as manager:
        manager.preempt()
        with pytest.raises(KeyError):
            manager.save(1, fails)
        assert manager.preempted


def test_the_save_of_a_stop_is_tried_after_failures(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1, failures_in_a_row=1, preemption_signals=()) as manager:
        (tmp_path / "step-1").write_text("a file in the place of the directory")
        future = manager.save(1, state_of(1))
        assert future is not None
        assert future.exception() is not None
        manager.preempt()
        manager.save(2, state_of(2))
        assert manager.preempted
        assert manager.steps() == [2]


def fail() -> dict[str, Any]:
    raise KeyError("no state here")


def test_a_save_by_the_clock_is_due_again_after_a_failed_state(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=datetime.timedelta(seconds=0.1)) as manager:
        time.sleep(0.2)
        with pytest.raises(KeyError, match="no state here"):
            manager.save(1, fail)
        assert manager.save(2, state_of(2)) is not None
        manager.wait()
        assert (manager.steps(), manager.report().failed) == ([2], 0)


def test_an_empty_lease_file_locks_no_root(tmp_path: Path) -> None:
    """A process died between the creation of the file and its content."""
    (tmp_path / ".cairn-manager").touch()
    with cairn.CheckpointManager(tmp_path) as manager:
        assert manager.restore(state_of(0)) is None


def test_a_nameless_checkpoint_is_passed_over(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    (tmp_path / "step-2").rename(tmp_path / "last.ckpt")
    with cairn.CheckpointManager(tmp_path) as manager, pytest.warns(cairn.DamageWarning, match="has no step"):
        assert manager.restore(state_of(0)) == 1


def test_a_pinned_checkpoint_is_not_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1, 2)
    cairn.pin(tmp_path / "step-2", "of the paper")
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        future = manager.save(2, state_of(7))
        assert future is not None
        assert isinstance(future.exception(), cairn.Unavailable)
        assert manager.save(3, state_of(3)) is not None
        state = state_of(0)
        cairn.load(state, checkpoint_id=tmp_path / "step-2")
        assert state["step"] == 2
    assert "pinned: of the paper" in caplog.text


def test_damage_is_judged_by_all_ranks() -> None:
    def error_of(*failures: Exception) -> Exception:
        return with_failures(cairn.Corrupt("a byte"), dict(enumerate(map(failure_of, failures))))

    assert managed_run._is_damage(error_of(cairn.Corrupt("a byte"), cairn.NotFound("a file")))
    assert not managed_run._is_damage(error_of(cairn.Corrupt("a byte"), cairn.MissingKey("a key")))
    assert not managed_run._is_lasting(error_of(RuntimeError("a collective"), cairn.Unavailable("a disk")))
    assert managed_run._is_lasting(error_of(RuntimeError("a collective"), cairn.Unsupported("a type")))


def test_a_fork_leaves_the_save_to_its_parent(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path) as manager:
        future = manager.save(1, {"weight": torch.ones(30_000_000)}, force=True)
        child = os.fork()
        if child == 0:
            manager.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert future is not None
        future.result(60)
        assert manager.steps() == [1]


def test_a_root_that_is_a_checkpoint_has_no_steps(tmp_path: Path) -> None:
    root = tmp_path / "run-7"
    cairn.save(state_of(1), checkpoint_id=root)
    with cairn.CheckpointManager(root) as manager:
        assert (manager.steps(), manager.latest_step()) == ([], None)
        with pytest.raises(cairn.Corrupt, match="is itself a checkpoint"):
            manager.restore(state_of(0))


def test_threads_ask_while_the_training_waits(tmp_path: Path) -> None:
    """A listing in another thread does not take the interruption of a wait."""
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            manager.steps()
            manager.report()

    with cairn.CheckpointManager(tmp_path, save_every=1, keep_last=2) as manager:
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for step in range(1, 50):
                manager.save(step, state_of(step))
            assert manager.restore(state_of(0)) == 49
        finally:
            ends.set()
            thread.join()


@pytest.mark.parametrize("process", [True, False])
def test_a_save_outlives_its_manager(tmp_path: Path, process: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    manager = cairn.CheckpointManager(tmp_path, process=process)
    future = manager.save(1, {"weight": torch.ones(5_000_000)}, force=True)
    del manager
    assert future is not None
    future.result(60)
    fill(tmp_path, 2)
    assert cairn.CheckpointManager(tmp_path).steps() == [1, 2]
    assert not caplog.records


DENIED = """
import os, pathlib, tempfile, torch, cairn
from cairn._calls import async_save
if os.getuid() == 0:
    os.setuid(65534)  # root is denied nothing
root = pathlib.Path(tempfile.mkdtemp())
state = lambda step: {"weight": torch.full((100,), float(step))}
with cairn.CheckpointManager(root, save_every=1, process=False) as manager:
    manager.save(1, state(1))
    manager.wait()
    root.chmod(0)
    print(type(manager.save(2, state(2)).exception()).__name__)
    root.chmod(0o700)
    manager.save(3, state(3))
    manager.wait()
    print(manager.steps(), manager.report().failed)
    root.chmod(0)
    try:
        manager.restore(state(0))
    except cairn.Unavailable:
        print("no restore")
    root.chmod(0o700)
    print(manager.restore(state(0)))
    far = pathlib.Path(tempfile.mkdtemp())
    cairn.save(state(9), checkpoint_id=far / "step-9")
    (root / "latest").symlink_to(far / "step-9")
    print(manager.restore(state(0)))
    far.chmod(0)
    try:
        manager.restore(state(0))
    except cairn.Unavailable:
        print("no older one for a link out of reach")
    far.chmod(0o700)
"""


def test_a_root_that_denies_access_for_a_while_fails_saves(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", DENIED], capture_output=True, text=True, check=True, timeout=600)
    assert ran.stdout.splitlines() == [
        "Unavailable",
        "[1, 3] 1",
        "no restore",
        "3",
        "9",
        "no older one for a link out of reach",
    ]


def test_a_removed_root_is_named(tmp_path: Path) -> None:
    manager = cairn.CheckpointManager(tmp_path / "run", save_every=1)
    (tmp_path / "run" / ".cairn-manager").unlink()
    with pytest.raises(cairn.Unavailable, match="its lease, or the directory, was removed"):
        manager.save(1, state_of(1))
    manager.close()


HANGS = """
import pathlib, sys, torch, cairn
root, block = map(pathlib.Path, sys.argv[1:])
with cairn.CheckpointManager(root, save_every=1) as manager:
    block.touch()
    manager.save(1, {"weight": torch.ones(100)})
    manager.wait()
    assert block.with_suffix(".reached").exists()
    block.unlink()
"""


def test_a_lease_on_storage_that_hangs_does_not_hold_the_training(tmp_path: Path) -> None:
    block = tmp_path / "block"
    environment = {**os.environ, "LD_PRELOAD": str(hanging.library(tmp_path)), "HANG": f"lease:{block}"}
    program: list[str | Path] = [sys.executable, "-c", HANGS, tmp_path / "run", block]
    subprocess.run(program, env=environment, check=True, timeout=600)
    assert cairn.CheckpointManager(tmp_path / "run").steps() == [1]


# Many ranks.


def test_a_rank_without_a_group_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(cairn.InvalidArgument, match=r"after torch\.distributed\.init_process_group"):
        cairn.CheckpointManager(tmp_path)
    cairn.CheckpointManager(tmp_path, no_dist=True).close()


def manage_before_the_group(root: str) -> None:
    with mock.patch.object(dist, "is_initialized", return_value=False):
        manager = cairn.CheckpointManager(f"{root}/{dist.get_rank()}", save_every=1)
    for call in (lambda: manager.restore(state_of(0)), lambda: manager.save(1, state_of(1))):
        with pytest.raises(cairn.InvalidArgument, match="was made before"):
            call()
    manager.close()


def test_a_group_made_after_the_manager_is_refused(two: Gang, tmp_path: Path) -> None:
    two.run(manage_before_the_group, str(tmp_path))


def save_nothing_on_one_rank(root: str) -> list[int]:
    with cairn.CheckpointManager(root, save_every=1) as manager:
        with pytest.raises(cairn.InvalidArgument, match="the state is no state dict"):
            manager.save(1, lambda: None if dist.get_rank() == 1 else state_of(1))  # type: ignore[return-value,arg-type]
        manager.save(2, state_of(2))
        manager.wait()
        return manager.steps()


def test_a_state_of_another_type_on_one_rank_fails_all(two: Gang, tmp_path: Path) -> None:
    assert two.run(save_nothing_on_one_rank, str(tmp_path)) == [[2], [2]]


def restore_twice(root: str) -> list[int | None]:
    with cairn.CheckpointManager(root) as manager:
        for step in (1, 2):
            manager.save(step, state_of(step), force=True)
        manager.wait()
        state = state_of(0)
        if dist.get_rank() == 1:
            state["other"] = torch.zeros(3)
        with pytest.raises(cairn.MissingKey):
            manager.restore(state)
        return [manager.restore(state_of(0)), manager.restore(state_of(0))]


def test_a_missing_key_of_one_rank_fails_all_and_changes_nothing(two: Gang, tmp_path: Path) -> None:
    assert two.run(restore_twice, str(tmp_path)) == [[2, 2], [2, 2]]


def lose_the_lease(root: str) -> list[int]:
    """Rank 0 alone can't begin. The state needs a collective of all ranks."""

    def make() -> dict[str, Any]:
        dist.barrier()
        return state_of(2)

    with cairn.CheckpointManager(root, save_every=1) as manager:
        manager.save(1, state_of(1))
        manager.wait()
        if dist.get_rank() == 0:
            Path(root, ".cairn-manager").unlink()
        dist.barrier()
        with pytest.raises(cairn.Unavailable, match="manages the directory no longer"):
            manager.save(2, make)
        return manager.steps()


def test_a_rank_that_can_not_begin_fails_all(two: Gang, tmp_path: Path) -> None:
    assert two.run(lose_the_lease, str(tmp_path)) == [[1], [1]]


class Faulty:
    """A Stateful whose state is not there on rank 1."""

    def state_dict(self) -> dict[str, Any]:
        if dist.get_rank() == 1:
            raise RuntimeError("out of memory for the state")
        return {"weight": torch.ones(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def save_a_faulty_state(root: str) -> list[int]:
    with cairn.CheckpointManager(root, save_every=1) as manager:
        future = manager.save(1, {"faulty": Faulty()})
        assert future is not None
        assert "out of memory for the state" in str(future.exception())
        assert manager.save(2, state_of(2)) is not None
        manager.wait()
        assert manager.report().failed == 1
        return manager.steps()


def test_a_stateful_that_fails_on_one_rank_is_a_failed_save(two: Gang, tmp_path: Path) -> None:
    assert two.run(save_a_faulty_state, str(tmp_path)) == [[2], [2]]


def stop_beside_a_save_that_hangs(root: str) -> tuple[int, str, bool, list[int]]:
    rank = dist.get_rank()
    large = {f"weight-{rank}": torch.ones(30_000_000)}
    with cairn.CheckpointManager(root, preemption_signals=(), grace_seconds=1.0) as manager:
        manager.save(1, {f"weight-{rank}": torch.ones(3)}, force=True)
        manager.wait()
        writer = part(DefaultSavers).by_process[True].writer_pid
        assert writer is not None
        saved = manager.save(2, large, force=True)
        if rank == 1:
            os.kill(writer, signal.SIGSTOP)
        assert saved is not None
        step = 3
        try:
            manager.preempt()
            began = time.monotonic()
            while not manager.preempted:
                stopped = manager.save(step, large)
                step += 1
            assert stopped is not None
            error = stopped.exception()
            was_done = saved.done()
            manager.close()  # the grace is over
            assert time.monotonic() - began < 60
        finally:
            if rank == 1:
                os.kill(writer, signal.SIGCONT)
        saved.result(60)
        return step, str(error), was_done, manager.steps()


def test_a_stop_ends_beside_a_save_that_hangs(two: Gang, tmp_path: Path) -> None:
    first, second = two.run(stop_beside_a_save_that_hangs, str(tmp_path))
    assert first[0] == second[0]
    assert "has not ended within the grace of 1.0 s on all ranks" in first[1]
    assert "has not ended within the grace of 1.0 s on all ranks" in second[1]
    assert (first[2], first[3], second[3]) == (False, [1, 2], [1, 2])
