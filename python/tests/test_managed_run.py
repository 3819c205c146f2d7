"""CheckpointManager: when it saves, what stays, what a restart resumes from, and how a signal stops the ranks."""

import datetime
import logging
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Gang

import cairn

SIZE = 2000


def state_of(step: int) -> dict[str, Any]:
    return {"weight": torch.full((SIZE,), float(step)), "step": step}


def run_steps(manager: cairn.CheckpointManager, steps: range, **options: Any) -> list[int]:
    """Ends the steps; returns those that were saved."""
    saved = [step for step in steps if manager.save(step, state_of(step), **options) is not None]
    manager.wait()
    return saved


def flip_a_byte(file: Path, place: str) -> None:
    """In the elements of the tensor, or in the file's trailer."""
    content = bytearray(file.read_bytes())
    sample = content.index(struct.pack("<f", float(file.parent.name[5:])) * 8) if place == "data" else -10
    content[sample] ^= 1
    file.write_bytes(content)


def data_file(root: Path, step: int) -> Path:
    return next((root / f"step-{step}").glob("*.distcp"))


def wait_until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_saves_at_multiples_and_by_force(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=4) as manager:
        assert run_steps(manager, range(1, 10)) == [4, 8]
        assert manager.should_save(10) is False
        assert manager.save(10, lambda: state_of(10), force=True) is not None
        manager.wait()
        assert manager.steps() == [4, 8, 10]
        assert manager.latest_step() == 10
        assert manager.report().saves == 3


def test_a_state_is_made_only_for_a_save(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, Any]:
        made.append(1)
        return state_of(2)

    with cairn.CheckpointManager(tmp_path, save_every=2) as manager:
        for step in range(1, 4):
            manager.save(step, make)
    assert len(made) == 1


def test_metrics_and_notes_are_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        for step, loss in enumerate([3.0, 1.0, 1.0, float("nan")], 1):
            manager.save(step, state_of(step), metrics={"loss": loss, "lr": 0.5}, notes={"epoch": step, "tags": ["a"]})
        manager.wait()
        assert manager.best_step("loss") == 3  # of equal values the newer
        assert manager.best_step("loss", "max") == 1
        assert manager.best_step("accuracy") is None
        assert manager.metrics(2) == {"loss": 1.0, "lr": 0.5}
        assert manager.metrics(4) == {"lr": 0.5}
        with pytest.raises(cairn.NotFound):
            manager.metrics(5)
    assert "metric 'loss' of step 4 is no finite number" in caplog.text
    notes = cairn.open(tmp_path / "step-2").notes
    assert notes is not None
    assert notes["epoch"] == 2
    assert notes["tags"] == ["a"]
    assert notes["metrics"] == {"loss": 1.0, "lr": 0.5}
    with cairn.CheckpointManager(tmp_path / "other") as manager, pytest.raises(cairn.InvalidArgument, match="'run'"):
        manager.save(1, state_of(1), notes={"run": 1}, force=True)


@pytest.mark.parametrize("name", ["step_{step:08d}", "e1-s{step}", "{step}", "step-{step}-of-9"])
def test_names_hold_the_step(tmp_path: Path, name: str) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=5, name=name) as manager:
        run_steps(manager, range(1, 11))
        assert manager.directory_of(10) == str(tmp_path / name.format(step=10))
        assert manager.steps() == [5, 10]


@pytest.mark.parametrize("name", ["last", "{step}-of-9", "a/{step}", "{epoch}", "step-{step", ""])
def test_a_name_without_the_step_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(cairn.InvalidArgument, match="name"):
        cairn.CheckpointManager(tmp_path, name=name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"save_every": 0},
        {"save_every": "often"},
        {"save_every": [5, 1.5]},
        {"save_every": [100, 250]},
        {"save_every": datetime.timedelta(0)},
        {"keep_last": 0},
        {"keep_best": ("loss", "least")},
        {"grace_seconds": -1.0},
        {"failures_in_a_row": 0},
        {"interval_bounds": (5.0, 1.0)},
        {"preemption_signals": (signal.SIGKILL,)},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(cairn.InvalidArgument):
        cairn.CheckpointManager(tmp_path, **wrong)
    cairn.CheckpointManager(tmp_path).close()  # the refused manager has left nothing behind


def test_saves_by_the_clock(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=datetime.timedelta(seconds=0.2)) as manager:
        assert manager.save(1, state_of(1)) is None
        time.sleep(0.3)
        assert manager.save(2, state_of(2)) is not None
        manager.wait()
        assert manager.steps() == [2]


def test_the_automatic_interval_stays_in_its_bounds(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every="auto", interval_bounds=(0.05, 7.0)) as manager:
        assert manager.report().interval == 0.05  # the first save comes early
        time.sleep(0.1)
        assert manager.save(1, state_of(1)) is not None
        manager.wait()
        # A save costs milliseconds, and a failure is expected once a day: the best interval is longer than 0.05 s.
        assert 0.05 < manager.report().interval <= 7.0


def test_a_new_root_starts_anew(tmp_path: Path) -> None:
    state = state_of(7)
    with cairn.CheckpointManager(tmp_path / "new") as manager:
        assert manager.restore(state) is None
    assert state["step"] == 7


def test_the_newest_is_restored(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=5) as manager:
        run_steps(manager, range(1, 18))
    state = state_of(0)
    with cairn.CheckpointManager(tmp_path) as manager:
        assert manager.restore(state) == 15
    assert state["step"] == 15
    assert (state["weight"] == 15).all()


@pytest.mark.parametrize("place", ["data", "trailer"])
def test_damage_leads_to_an_older_checkpoint(tmp_path: Path, place: str) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=5) as manager:
        run_steps(manager, range(1, 16))
    flip_a_byte(data_file(tmp_path, 15), place)
    data_file(tmp_path, 10).unlink()
    state = state_of(0)
    with cairn.CheckpointManager(tmp_path) as manager, pytest.warns(cairn.DamageWarning) as caught:
        assert manager.restore(state) == 5
    assert state["step"] == 5
    assert (state["weight"] == 5).all()
    texts = " ".join(str(warning.message) for warning in caught)
    assert "step-15" in texts
    assert "step-10" in texts
    assert "step-5' takes its place" in texts


def test_damaged_checkpoints_alone_are_an_error(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=5) as manager:
        run_steps(manager, range(1, 11))
    flip_a_byte(data_file(tmp_path, 5), "trailer")
    (tmp_path / "step-10" / ".metadata").write_bytes(b"nonsense")
    with cairn.CheckpointManager(tmp_path) as manager, warnings.catch_warnings():
        warnings.simplefilter("ignore", cairn.DamageWarning)
        with pytest.raises(cairn.Corrupt, match="does not start anew by itself"):
            manager.restore(state_of(0))


def test_only_damage_leads_to_an_older_checkpoint(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=5) as manager:
        run_steps(manager, range(1, 11))
        with pytest.raises(cairn.MissingKey):
            manager.restore({"bias": torch.zeros(3)})
        with pytest.raises(cairn.InvalidArgument):
            manager.restore({"weight": torch.zeros(SIZE + 1)})


def test_a_root_of_stock_torch_is_taken_over(tmp_path: Path) -> None:
    for step in (100, 200):
        dcp.save(state_of(step), checkpoint_id=tmp_path / f"checkpoint-{step}")
    state = state_of(0)
    with cairn.CheckpointManager(tmp_path, save_every=100, keep_last=1) as manager:
        assert manager.restore(state) == 200
        run_steps(manager, range(201, 401))
        wait_until(lambda: not (tmp_path / "step-300").exists())
        assert manager.steps() == [100, 200, 400]  # those of stock torch stay
    with cairn.CheckpointManager(tmp_path, keep_last=1, adopt=True) as manager:
        assert manager.restore(state) == 400
        manager.save(401, state_of(401), force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-401"]


def test_the_rule_and_pins_keep(tmp_path: Path) -> None:
    with cairn.CheckpointManager(
        tmp_path, save_every=1, keep_last=2, keep_every=5, keep_best=("loss", "min")
    ) as manager:
        for step in range(1, 13):
            manager.save(step, state_of(step), metrics={"loss": abs(step - 3)})
            manager.wait()
            if step == 4:
                cairn.pin(tmp_path / "step-4")
    assert cairn.CheckpointManager(tmp_path).steps() == [3, 4, 5, 10, 11, 12]


def test_a_root_has_one_manager(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path), pytest.raises(cairn.Unavailable, match="another CheckpointManager"):
        cairn.CheckpointManager(tmp_path)
    cairn.CheckpointManager(tmp_path).close()


def test_a_closed_manager_lists_the_root(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=2) as manager:
        for step in range(1, 7):
            manager.save(step, state_of(step), metrics={"loss": torch.tensor(abs(step - 4.0))})
    assert manager.steps() == [2, 4, 6]
    assert manager.latest_step() == 6
    assert manager.best_step("loss") == 4
    assert manager.metrics(6) == {"loss": 2.0}
    assert manager.directory_of(6) == str(tmp_path / "step-6")
    for call in (lambda: manager.save(7, state_of(7)), lambda: manager.restore({}), manager.preempt):
        with pytest.raises(cairn.InvalidArgument, match="closed"):
            call()
    cairn.CheckpointManager(tmp_path).close()


KILLED = """
import os, signal, sys, torch, cairn
manager = cairn.CheckpointManager(sys.argv[1], save_every=5)
for step in range(1, 8):
    manager.save(step, {"weight": torch.full((2000,), float(step)), "step": step})
manager.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_manager_is_followed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, timeout=600)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / ".cairn-manager").exists()
    state = state_of(0)
    with cairn.CheckpointManager(tmp_path) as manager:
        assert manager.restore(state) == 5
        manager.save(6, state)
        report = manager.report()
    assert (report.saves, report.failures) == (1, 1)
    assert report.restarts > 0
    assert 0 <= report.good_share < 1
    assert not (tmp_path / ".cairn-manager").exists()


def test_the_lease_of_another_host_is_outlasted(tmp_path: Path) -> None:
    """A living process of another host is found at the first save; a dead one is taken for dead after 20 seconds."""
    lease = tmp_path / ".cairn-manager"
    identity = "cairn-lease 1\nsave {0}\njob {0}\nnumber 0\nhost elsewhere\nboot b\nnamespace n\npid 7\nstart 1\n"
    lease.write_text(identity.format("0123456789abcdef" * 2))
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        assert manager.restore(state_of(0)) is None  # does not wait
        lease.touch()
        time.sleep(0.5)
        os.utime(lease, (1, 1))  # a heartbeat, whatever its time
        with pytest.raises(cairn.Unavailable, match="host elsewhere, pid 7"):
            manager.save(1, state_of(1))
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        assert manager.save(1, state_of(1)) is not None
        manager.wait()
        assert manager.steps() == [1]
    assert not lease.exists()


def test_a_manager_that_was_replaced_saves_no_more(tmp_path: Path) -> None:
    manager = cairn.CheckpointManager(tmp_path, save_every=1)
    run_steps(manager, range(1, 2))
    (tmp_path / ".cairn-manager").unlink()
    with cairn.CheckpointManager(tmp_path), pytest.raises(cairn.Unavailable, match="another CheckpointManager"):
        manager.save(2, state_of(2))
    manager.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1"]


@contextmanager
def full_files() -> Iterator[None]:
    """Writes of this process beyond 4 KiB of a file fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_failed_saves_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1, process=False, failures_in_a_row=2) as manager:
        run_steps(manager, range(1, 2))
        with full_files():
            future = manager.save(2, state_of(2))
            assert future is not None
            assert isinstance(future.exception(), cairn.Error)
        assert manager.save(3, state_of(3)) is not None  # the training goes on
        manager.wait()
        with full_files():
            manager.save(4, state_of(4))
            manager.save(5, state_of(5))
            with pytest.raises(cairn.Error, match="2 saves in a row have failed"):
                manager.save(6, state_of(6))
        assert manager.save(7, state_of(7)) is not None
        manager.wait()
        assert manager.steps() == [1, 3, 7]
        assert (manager.report().saves, manager.report().failed) == (3, 3)
    assert caplog.text.count("step-") >= 3


def test_a_wrong_state_fails_at_once(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager, pytest.raises(cairn.InvalidArgument):
        manager.save(1, {"a": torch.zeros(2), "b": {"a": torch.zeros(2)}, "b.a": torch.zeros(3)})


def test_the_failure_of_the_last_save_is_raised(tmp_path: Path) -> None:
    manager = cairn.CheckpointManager(tmp_path, save_every=1, process=False)
    with full_files():
        manager.save(1, state_of(1))
        with pytest.raises(cairn.Error):
            manager.close()
    cairn.CheckpointManager(tmp_path).close()


def test_a_signal_stops_with_a_checkpoint(tmp_path: Path) -> None:
    called = []
    before = signal.signal(signal.SIGUSR1, lambda *_: called.append(1))
    try:
        with cairn.CheckpointManager(tmp_path, preemption_signals=(signal.SIGUSR1, signal.SIGTERM)) as manager:
            assert manager.save(1, state_of(1)) is None
            assert not manager.preempted
            os.kill(os.getpid(), signal.SIGUSR1)
            for step in range(2, 10_000):
                future = manager.save(step, state_of(step))
                if manager.preempted:
                    break
                time.sleep(0.001)
            assert future is not None
            assert future.done()
            assert manager.latest_step() == step
            assert called == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_forked_child_leaves_the_run(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1) as manager:
        run_steps(manager, range(1, 2))
        child = os.fork()
        if child == 0:
            manager.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert run_steps(manager, range(2, 3)) == [2]


def test_preempt_stops_without_a_signal(tmp_path: Path) -> None:
    with cairn.CheckpointManager(tmp_path, preemption_signals=()) as manager:
        manager.preempt()
        assert manager.save(1, state_of(1)) is not None
        assert manager.preempted


def test_a_closed_manager_refuses(tmp_path: Path) -> None:
    manager = cairn.CheckpointManager(tmp_path)
    manager.close()
    manager.close()
    with pytest.raises(cairn.InvalidArgument, match="closed"):
        manager.save(1, state_of(1), force=True)
    assert manager.report().saves == 0


def test_an_exception_of_the_block_passes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        cairn.CheckpointManager(tmp_path, save_every=1, process=False) as manager,
        full_files(),
    ):
        manager.save(1, state_of(1))
        manager._finish()
        raise ZeroDivisionError
    assert "closing the manager" in caplog.text


# Many ranks.


def sharded(step: int) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    local = torch.full((4,), float(step * 10 + rank))
    return {"weight": dist.tensor.DTensor.from_local(local, mesh, [dist.tensor.Shard(0)]), "step": step}


def stop_at_random(root: str, seed: int, series: int) -> list[tuple[int, list[int], int]]:
    """Trains `series` times up to a stop that some ranks ask for; returns step, steps on disk and failures of each."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = []
    for number in range(series):
        dice = random.Random(seed * 1000 + number)
        stops = {dice.randrange(size): dice.randrange(1, 30) for _ in range(dice.choice([1, 1, size]))}
        pauses = [dice.random() * 0.002 for _ in range(size)]
        with cairn.CheckpointManager(f"{root}/{number}", preemption_signals=(), keep_last=2) as manager:
            for step in range(1, 10_000):
                time.sleep(pauses[rank])
                if stops.get(rank) == step:
                    manager.preempt()
                manager.save(step, lambda step=step: sharded(step))  # type: ignore[misc]
                if manager.preempted:
                    break
                if step > 60 or step % 3 == 0:  # ranks may be some steps apart
                    dist.barrier()
            ends.append((step, manager.steps(), manager.report().failed))
    return ends


@pytest.mark.parametrize("size", ["two", "three"])
def test_all_ranks_stop_at_one_step(size: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    gang: Gang = request.getfixturevalue(size)
    results = gang.run(stop_at_random, str(tmp_path), gang.size, 8)
    assert all(result == results[0] for result in results)
    for step, steps, failed in results[0]:
        assert steps == [step]
        assert failed == 0


def restore_together(root: str) -> tuple[int | None, float, list[str]]:
    state = sharded(0)
    with warnings.catch_warnings(record=True) as caught, cairn.CheckpointManager(root) as manager:
        warnings.simplefilter("always")
        step = manager.restore(state)
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, cairn.DamageWarning)]
    return step, float(state["weight"].to_local()[0]), texts


def save_together(root: str, steps: list[int]) -> int:
    with cairn.CheckpointManager(root, save_every=1, keep_last=3) as manager:
        for step in steps:
            manager.save(step, sharded(step), metrics={"loss": 1 / step})
        manager.wait()
        return manager.report().saves


def test_ranks_fall_back_together(two: Gang, tmp_path: Path) -> None:
    assert two.run(save_together, str(tmp_path), [1, 2, 3]) == [3, 3]
    flip_a_byte(tmp_path / "step-3" / "__1_0.distcp", "trailer")
    (first, second) = two.run(restore_together, str(tmp_path))
    assert (first[0], second[0]) == (2, 2)
    assert (first[1], second[1]) == (20.0, 21.0)
    assert first[2] == second[2]
    assert "step-3" in first[2][0]


def save_by_clock(root: str) -> list[int]:
    """Steps are by no clock in step: rank 1 is slower."""
    rank = dist.get_rank()
    saved = []
    with cairn.CheckpointManager(root, save_every=datetime.timedelta(seconds=0.1)) as manager:
        for step in range(1, 10_000):
            time.sleep(0.002 * (1 + rank))
            if manager.save(step, sharded(step)) is not None:
                saved.append(step)
            if step % 2 == 0:
                dist.barrier()
            if len(saved) == 4:
                break
        dist.barrier()
    return saved


def test_the_clock_of_rank_0_is_announced(two: Gang, tmp_path: Path) -> None:
    first, second = two.run(save_by_clock, str(tmp_path))
    assert first == second
    assert len(first) == 4


def fail_on_one_rank(root: str) -> str:
    with cairn.CheckpointManager(root, save_every=1) as manager:
        manager.save(1, sharded(1))

        def make() -> dict[str, Any]:
            if dist.get_rank() == 1:
                raise KeyError("no state here")
            return sharded(2)

        with pytest.raises(BaseException, match="no state here") as caught:
            manager.save(2, make)
        manager.save(3, sharded(3))
        manager.wait()
        assert manager.steps() == [1, 3]
    return type(caught.value).__name__


def test_a_state_that_fails_on_one_rank_fails_all(two: Gang, tmp_path: Path) -> None:
    two.run(fail_on_one_rank, str(tmp_path))


def manage_twice(root: str) -> list[str]:
    with cairn.CheckpointManager(root), pytest.raises(cairn.Unavailable) as caught:
        cairn.CheckpointManager(root)
    return [str(caught.value)]


def test_a_second_manager_is_refused_on_all_ranks(two: Gang, tmp_path: Path) -> None:
    for (text,) in two.run(manage_twice, str(tmp_path)):
        assert "another CheckpointManager manages this directory" in text


def test_warnings_of_threads_go_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "cairn")
    with cairn.CheckpointManager(tmp_path, save_every=1, keep_last=1) as manager:
        run_steps(manager, range(1, 3))
        wait_until(lambda: manager.steps() == [2])
        (tmp_path / "step-2" / ".metadata").write_bytes(b"nonsense")
        run_steps(manager, range(3, 4))
        assert manager.steps() == [3]
