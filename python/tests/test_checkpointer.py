"""Checkpointers of one rank each: every rank saves its own checkpoint and loads equal values."""

import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang, free_port
from same import assert_same, blank
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import cairn
from cairn.checkpointer import (
    Barrier,
    BarrierConfig,
    BarrierTimeout,
    CheckpointerConfig,
    CheckpointWriter,
    CheckpointWriterConfig,
    DistBarrier,
    RankInfo,
    SyncCheckpointer,
    TCPStoreBarrier,
    WriterHook,
    create_barrier_from_config,
    make_sync_checkpointer,
    register_barrier,
    wrap_future,
)
from cairn.checkpointer.checkpoint_reader import CheckpointReader

STATE: dict[str, Any] = {
    "model": {
        "w": torch.arange(6.0).reshape(2, 3),
        "b": torch.zeros(0, 2),
        "half": torch.ones(5, dtype=torch.bfloat16),
    },
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0), "m": torch.full((2, 3), 0.5)}, 1: {"step": torch.tensor(4.0)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}],
    },
    "parts": [torch.ones(2), 5, {"x": "y"}],
    "step": 7,
}


def alone(rank: int = 0, hook: WriterHook | None = None) -> SyncCheckpointer:
    return make_sync_checkpointer(rank_info=RankInfo(global_rank=rank, global_world_size=4), commit_hook=hook)


# --- saving


def test_a_load_returns_the_saved_state(checkpoint: Path) -> None:
    checkpointer = make_sync_checkpointer()
    assert checkpointer.save(str(checkpoint), STATE) is None
    assert sorted(path.name for path in checkpoint.iterdir()) == ["__0.metadata", "__0_0.distcp"]
    assert_same(checkpointer.load(str(checkpoint)), STATE)
    checkpointer.close()


def test_dcp_reads_the_checkpoint_as_saved_without_collectives(checkpoint: Path) -> None:
    alone().save(str(checkpoint), STATE)
    for load in (cairn.load, stock.dcp.load):
        target = blank(STATE)
        load(target, checkpoint_id=checkpoint, no_dist=True)
        assert_same(target, STATE)


def test_the_reader_reads_a_dcp_save_without_collectives(checkpoint: Path) -> None:
    stock.save({"a": {"w": torch.ones(3)}, "l": [{}, torch.ones(1)]}, checkpoint, use_collectives=False)
    assert_same(alone().load(str(checkpoint)), {"a": {"w": torch.ones(3)}, "l": [{}, torch.ones(1)]})


@pytest.mark.parametrize(
    "state",
    [
        {0: torch.ones(1), "0 ": 1, 1.5: 2, None: 3, True: 4, (1, "a"): 5},
        {"optimizer": {"param_groups": [], "state": {}}},
        {"list": [{}, torch.ones(1), {}], "deep": {"empty": {"er": {}}}},
        {},
    ],
)
def test_keys_and_empty_mappings_come_back(state: dict[Any, Any], checkpoint: Path) -> None:
    checkpointer = alone()
    checkpointer.save(str(checkpoint), state)
    assert_same(checkpointer.load(str(checkpoint)), state)


def test_the_two_arguments_come_in_either_order(checkpoint: Path) -> None:
    checkpointer = alone()
    arguments: Any
    for step, arguments in enumerate(((checkpoint, {"step": 0}), ({"step": 1}, str(checkpoint)))):
        checkpointer.save(*arguments)
        assert checkpointer.load(str(checkpoint)) == {"step": step}
    checkpointer.save(state_dict={"step": 2}, path=str(checkpoint))
    assert checkpointer.load(str(checkpoint)) == {"step": 2}
    writer = CheckpointWriter(CheckpointWriterConfig(), RankInfo(0, 1))
    swapped: Any = ({"step": 3}, str(checkpoint))
    writer.write(*swapped)
    assert checkpointer.load(str(checkpoint)) == {"step": 3}
    with pytest.raises(TypeError, match="not a dict"):
        checkpointer.save({}, {})  # type: ignore[arg-type]


def save_and_load_alone(directory: Path) -> None:
    """The ranks have unequal values under equal keys, and each rank has its own key."""
    rank = dist.get_rank()
    state = {"w": torch.full((4,), float(rank)), "only": {str(rank): rank}, "shape": torch.zeros(rank + 1)}
    checkpointer = make_sync_checkpointer(CheckpointerConfig(barrier_config=BarrierConfig("dist_barrier")))
    checkpointer.save(str(directory), state)
    assert_same(checkpointer.load(str(directory)), state)
    for load in (cairn.load, stock.dcp.load):
        target = blank(state)
        load(target, checkpoint_id=directory)
        assert_same(target, state)


def test_each_rank_loads_its_own_state(two: Gang, checkpoint: Path) -> None:
    for _ in range(2):  # the second round overwrites the first
        two.run(save_and_load_alone, checkpoint)
    names = {path.name for path in checkpoint.iterdir()}
    assert {"__0.metadata", "__1.metadata"} <= names
    assert len(names) == 4


def save_shards(directory: Path) -> None:
    mesh = dist.init_device_mesh("cpu", (2,))
    rank = dist.get_rank()
    whole = torch.arange(10.0).reshape(5, 2)
    checkpointer = make_sync_checkpointer()
    checkpointer.save(str(directory), {"w": distribute_tensor(whole, mesh, [Shard(0)])})
    local = whole[:3] if rank == 0 else whole[3:]
    assert_same(checkpointer.load(str(directory)), {"w": local})
    into = torch.zeros_like(local)
    checkpointer.load(str(directory), {"w": into})
    assert_same(into, local)
    sharded = distribute_tensor(torch.zeros(5, 2), mesh, [Shard(0)])
    loaded = checkpointer.load(str(directory), {"w": sharded})
    assert loaded["w"] is sharded
    assert isinstance(sharded, DTensor)
    assert_same(sharded.to_local(), local)


def test_of_a_distributed_tensor_each_rank_has_its_part(two: Gang, checkpoint: Path) -> None:
    two.run(save_shards, checkpoint)


# --- hooks


class Hook(WriterHook):
    """Notes the arguments of each call, and the step on disk at the time of the call."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.found: list[Any] = []
        self.error = error

    def pre_commit(self, path: str, **kwargs: Any) -> None:
        self.calls.append(("pre", path, kwargs))
        self._look(path)
        if self.error is not None:
            raise self.error

    def post_commit(self, path: str, **kwargs: Any) -> None:
        self.calls.append(("post", path, kwargs))
        self._look(path)

    def _look(self, path: str) -> None:
        there = (Path(path) / "__0.metadata").exists()
        self.found.append(alone().load(path)["step"] if there else None)


def test_hooks_stand_on_both_sides_of_the_commit(checkpoint: Path) -> None:
    hook = Hook()
    checkpointer = alone(hook=hook)
    checkpointer.save(str(checkpoint), {"step": 1}, tag="a")
    checkpointer.save(str(checkpoint), {"step": 2})
    assert hook.calls == [(when, str(checkpoint), k) for k in ({"tag": "a"}, {}) for when in ("pre", "post")]
    assert hook.found == [None, 1, 1, 2]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_hook_that_raises_before_the_commit_leaves_the_old_checkpoint(
    kind: type[BaseException], checkpoint: Path
) -> None:
    alone().save(str(checkpoint), {"step": 1})
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    error = kind("no")
    hook = Hook(error)
    with pytest.raises(kind) as caught:
        alone(hook=hook).save(str(checkpoint), {"step": 2})
    assert caught.value is error
    assert [when for when, *_ in hook.calls] == ["pre"]
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before


def save_one_after_the_other(directory: Path) -> None:
    """Rank 1 begins after rank 0's commit: only the barrier keeps rank 0 waiting."""
    both = [directory / f"__{rank}.metadata" for rank in range(2)]
    seen: list[bool] = []

    class Look(WriterHook):
        def pre_commit(self, path: str, **_: Any) -> None:
            pass

        def post_commit(self, path: str, **_: Any) -> None:
            seen.extend(file.exists() for file in both)

    rank = RankInfo(dist.get_rank(), 2)
    if rank.global_rank == 1:
        while not both[0].exists():
            os.sched_yield()
    CheckpointWriter(CheckpointWriterConfig(), rank, DistBarrier(), Look()).write(str(directory), {"x": 1})
    assert seen == [True, True]


def test_after_the_barrier_the_checkpoints_of_all_ranks_are_there(two: Gang, checkpoint: Path) -> None:
    two.run(save_one_after_the_other, checkpoint)


# --- barriers


@pytest.fixture(name="free_port")
def a_free_port() -> int:
    return free_port()


def store_barriers(port: int, count: int = 2, **options: Any) -> list[TCPStoreBarrier]:
    """Makes the barriers of all ranks in one process."""
    arguments = {
        "global_world_size": count,
        "barrier_prefix": "test",
        "timeout_barrier_init_secs": 30,
        "use_checkpoint_barrier_tcpstore_libuv": True,
        "tcpstore_port": port,
        "master_address": "localhost",
        "timeout_secs": 30,
        **options,
    }

    def make(rank: int) -> TCPStoreBarrier:
        barrier = create_barrier_from_config(BarrierConfig("tcp_store", {"global_rank": rank, **arguments}))
        assert isinstance(barrier, TCPStoreBarrier)
        return barrier

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(make, range(count)))


@pytest.mark.parametrize("libuv", [True, False])
def test_ranks_meet_in_a_store(libuv: bool, free_port: int) -> None:
    barriers = store_barriers(free_port, 3, use_checkpoint_barrier_tcpstore_libuv=libuv)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            crossing = [threads.submit(barriers[rank].execute_barrier) for rank in (0, 2)]
            passed, _ = wait(crossing, timeout=0.05)
            crossing.append(threads.submit(barriers[1].execute_barrier))
            for each in crossing:
                each.result()
            assert not passed, "no rank passes before the last rank arrives"


def test_a_rank_that_does_not_come_is_named(free_port: int) -> None:
    barriers = store_barriers(free_port, 3, timeout_secs=5)  # both ranks come within this time
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(barriers[rank].execute_barrier) for rank in (0, 2)]
    for each in waiting:
        with pytest.raises(BarrierTimeout, match=r"^Timed out: 1 of 3 ranks .* within 5 s: 1$") as caught:
            each.result()
        assert isinstance(caught.value, TimeoutError)


def test_the_writer_has_a_deadline_of_its_own(free_port: int, checkpoint: Path) -> None:
    barrier = store_barriers(free_port)[0]
    writer = CheckpointWriter(CheckpointWriterConfig(write_barrier_timeout_secs=1), RankInfo(0, 2), barrier)
    with pytest.raises(BarrierTimeout, match="within 1 s"):
        writer.write(str(checkpoint), {"step": 1})
    assert alone().load(str(checkpoint)) == {"step": 1}, "this rank's own is in place"


def test_a_store_that_no_rank_joins(free_port: int) -> None:
    for rank in range(2):
        with pytest.raises(BarrierTimeout, match=rf"^Timed out: .*localhost:{free_port} within 1 s"):
            TCPStoreBarrier(rank, 2, "test", 1, True, free_port, "localhost", 1)


def wait_in_vain(flag: Path) -> None:
    if dist.get_rank() == 0:
        with pytest.raises(BarrierTimeout, match=r"^Timed out: not all of the 2 ranks"):
            DistBarrier(timeout_secs=0.5).execute_barrier()
        flag.touch()
    else:
        while not flag.exists():
            os.sched_yield()
        DistBarrier().execute_barrier()


def test_a_process_group_that_does_not_come(two: Gang, tmp_path: Path) -> None:
    two.run(wait_in_vain, tmp_path / "flag")


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(cairn.Unavailable, match=rf"localhost:{port}") as caught:
            TCPStoreBarrier(0, 1, "test", 1, True, port, "localhost", 1)
    assert not isinstance(caught.value, TimeoutError)


def test_without_a_process_group() -> None:
    with pytest.raises(ValueError, match="process group"):
        DistBarrier()


def test_a_callers_own_barrier() -> None:
    @register_barrier
    class Mine(Barrier):
        barrier_type = "mine"

        def __init__(self, name: str) -> None:
            self.name = name
            self.executed = 0

        def execute_barrier(self) -> None:
            self.executed += 1

    barrier = create_barrier_from_config(BarrierConfig("mine", {"name": "x"}))
    assert isinstance(barrier, Mine)
    assert barrier.name == "x"
    barrier.execute_within(1)
    assert barrier.executed == 1
    assert create_barrier_from_config(BarrierConfig()) is None
    with pytest.raises(ValueError, match="Unknown barrier type: yours"):
        create_barrier_from_config(BarrierConfig("yours"))


def test_a_barrier_of_torchs_class_is_reached_after_the_commit(checkpoint: Path) -> None:
    barriers = pytest.importorskip("torch.distributed.checkpoint._experimental.barriers")
    seen = []

    class Theirs(barriers.Barrier):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            pass

        def execute_barrier(self) -> None:
            seen.append((checkpoint / "__0.metadata").exists())

    only = RankInfo(global_rank=0, global_world_size=1)
    mock = MagicMock()  # answers every method name
    for barrier in (Theirs(), mock):
        writer = CheckpointWriter(CheckpointWriterConfig(), only, barrier)
        assert writer.write(str(checkpoint), {"step": 1}) is None
    assert seen == [True]
    mock.execute_barrier.assert_called_once_with()
    with pytest.raises(cairn.InvalidArgument, match="execute_barrier"):
        CheckpointWriter(CheckpointWriterConfig(), only, object())


# --- futures


def test_a_wrapped_future_reports_completion_only() -> None:
    original: Future[str] = Future()
    wrapped = wrap_future(original)
    assert not wrapped.done()
    original.set_result("a state")
    assert wrapped.result() is None
    failed: Future[str] = Future()
    wrapped = wrap_future(failed)
    error = ValueError("no")
    failed.set_exception(error)
    assert wrapped.exception() is error
    assert wrap_future("no future").result() is None
    cancelled: Future[str] = Future()
    wrapped = wrap_future(cancelled)
    cancelled.cancel()
    assert wrapped.exception() is not None


def test_a_callers_own_writer_may_return_a_future(checkpoint: Path) -> None:
    class Later(CheckpointWriter):
        def write(self, path: str, state_dict: dict[str, Any], **kwargs: Any) -> Future[None]:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(self._later, path, state_dict)

        def _later(self, path: str, state_dict: dict[str, Any]) -> None:
            super().write(path, state_dict)
            raise ValueError("afterwards")

    rank = RankInfo(0, 1)
    checkpointer = SyncCheckpointer(Later(CheckpointWriterConfig(), rank), CheckpointReader(rank))
    with pytest.raises(ValueError, match="afterwards"):
        checkpointer.save(str(checkpoint), {"step": 1})
