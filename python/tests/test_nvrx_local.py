"""cairn.nvrx.LocalCheckpointManager with NVRx's base class and replication strategy, on ranks of a gloo group.

NVRx's states hold CUDA tensors only; `CpuState` stands in. NVRx sends replicas through CUDA's memory; `through_the_cpu`
sends them through the CPU's.
"""

import contextlib
import enum
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import Gang
from test_nvrx_ends import may_have_children
from torch.distributed.checkpoint import CheckpointException

pytest.importorskip("nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager")
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager import (
    BaseCheckpointManager,
    CheckpointingException,
)
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import CliqueReplicationStrategy

import cairn
from cairn.nvrx import LocalCheckpointManager
from cairn.nvrx.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from cairn.nvrx.local.newest import _newest_complete
from cairn.nvrx.local.parts import Part, held_parts
from cairn.nvrx.local.stored_state import state_of, stored_form

replicated = pytest.mark.parametrize("replicas", [False, True], ids=["alone", "replicated"])


class CpuState(BasicTensorAwareStateDict):
    """NVRx's state, with tensors on the CPU."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """The tensors are where they belong."""


def content(step: int) -> dict[str, Any]:
    """What this rank saves."""
    rank = dist.get_rank()
    weights = torch.arange(3000.0).reshape(30, 100) + 1000 * step + rank
    shared = torch.full((5,), step + rank, dtype=torch.bfloat16)
    return {
        "model": {"w": weights, "tied": [shared, shared], "strided": weights[:, ::2], 7: (torch.tensor(step), None)},
        "rng": {"rank": rank, "step": step, "dtype": torch.float16, "shape": torch.Size((2, 3)), "empty": {}},
    }


def holds(manager: LocalCheckpointManager, step: int) -> Any:
    """Loads, and compares the bits. Returns the state."""
    with through_the_cpu():
        loaded, identity = manager.load()
    assert identity == (step, dist.get_rank(), manager.session_id)
    assert type(loaded) is CpuState
    assert not loaded.is_hollow
    state, wanted = loaded.state_dict, content(step)
    assert state["rng"] == wanted["rng"]
    assert list(state["model"]) == list(wanted["model"])
    for got, expected in zip(tensors(state["model"]), tensors(wanted["model"]), strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
    return loaded


def tensors(model: dict[Any, Any]) -> list[torch.Tensor]:
    return [model["w"], *model["tied"], model["strided"], model[7][0]]


@contextlib.contextmanager
def through_the_cpu() -> Iterator[None]:
    """Replicas travel as tensors of the CPU in place of CUDA's."""
    empty_like = torch.empty_like
    with (
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
        mock.patch.object(torch, "empty_like", lambda tensor, device=None: empty_like(tensor)),
    ):
        yield


def manager_in(folder: Path, replicas: bool = False, **options: Any) -> LocalCheckpointManager:
    strategy = CliqueReplicationStrategy.from_replication_params(1, 2) if replicas else None
    return LocalCheckpointManager(folder, "job", strategy, **options)


def flip(folder: Path, step: int, owner: int, suffix: str) -> None:
    """Flips a bit in the middle of a file of this rank's part of `step` that belongs to rank `owner`."""
    (part,) = [it for it in held_parts(folder) if (it.iteration, it.rank) == (step, owner)]
    (file,) = [it for it in (folder / part.directory).iterdir() if it.name.endswith(suffix)]
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 16
    file.write_bytes(data)


# --- saves and loads


def save_and_load(folder: Path, replicas: bool) -> Any:
    manager = manager_in(folder, replicas)
    assert isinstance(manager, BaseCheckpointManager)
    assert manager.find_latest() == -1
    with pytest.raises(CheckpointingException, match="find_latest"):
        manager.load()
    for step in (1, 2):
        assert manager.save(CpuState(content(step)), step) is None
        assert manager.find_latest() == step
        holds(manager, step)
    with pytest.raises(CheckpointingException, match="already"):
        manager.save(CpuState(content(2)), 2)
    again = manager_in(folder, replicas)
    assert again.find_latest() == 2
    tied = holds(again, 2).state_dict["model"]["tied"]
    assert tied[0] is tied[1]
    other = LocalCheckpointManager(folder, "another job")
    assert other.find_latest() == -1
    return [cairn.verify(again.local_ckpt_dir / it.directory).problems for it in held_parts(again.local_ckpt_dir)]


@replicated
def test_the_newest_iteration_is_loaded_and_older_ones_are_removed(two: Gang, tmp_path: Path, replicas: bool) -> None:
    assert two.run(save_and_load, tmp_path, replicas) == [[()] * (2 if replicas else 1)] * 2


def save_in_the_background(folder: Path, persistent: bool, replicas: bool) -> None:
    may_have_children()
    queue = AsyncCallsQueue(persistent=persistent)
    manager = manager_in(folder, replicas)
    for step in (1, 2):
        state = CpuState(content(step))
        request = manager.save(state, step, is_async=True)
        assert isinstance(request, AsyncRequest)
        index = queue.schedule_async_request(request)
        if not replicas:  # otherwise the state is hollow
            state.state_dict["model"]["w"].zero_()  # the trainer goes on
        assert queue.maybe_finalize_async_calls(blocking=True) == [index]
        assert manager.find_latest() == step
        holds(manager, step)
    queue.close()
    for thread in threading.enumerate():
        if thread.name == "cairn-save":  # removes the older parts
            thread.join(240)
    assert len(held_parts(manager.local_ckpt_dir)) == (2 if replicas else 1)


@pytest.mark.parametrize(("persistent", "replicas"), [(True, False), (False, True)])
def test_asynchronous_saves_by_the_queue(two: Gang, tmp_path: Path, persistent: bool, replicas: bool) -> None:
    two.run(save_in_the_background, tmp_path, persistent, replicas)


def save_megatrons_state(folder: Path) -> None:
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
    from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict

    rank = dist.get_rank()

    def sharded(tensor: torch.Tensor, own: Any) -> dict[str, Any]:
        return {
            "model": {"w": ShardedTensor.from_rank_offsets("w", tensor, (0, rank, 2))},
            "rng": ShardedObject("rng", own, (2,), (rank,)),
        }

    matrix = torch.arange(12.0).reshape(3, 4) + rank
    state = {**sharded(matrix.clone(), {"seed": rank}), "iteration": 4, "args": {"lr": 0.5}}
    manager = manager_in(folder, replicas=True)
    manager.save(MCoreTensorAwareStateDict.from_state_dict(state, algo="atomic")[0], 4)
    if rank == 1:  # its own part is lost: the replica comes from rank 0
        flip(manager.local_ckpt_dir, 4, 1, ".distcp")
    again = manager_in(folder, replicas=True)
    assert again.find_latest() == 4
    with through_the_cpu():
        loaded, _ = again.load()
    assert type(loaded) is MCoreTensorAwareStateDict
    result = loaded.to_state_dict(sharded(torch.zeros(3, 4), None), algo="atomic")
    assert torch.equal(result["model"]["w"], matrix)
    assert (result["rng"], result["iteration"], result["args"]) == ({"seed": rank}, 4, {"lr": 0.5})


def test_the_state_of_megatron_comes_back(two: Gang, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core.dist_checkpointing")
    two.run(save_megatrons_state, tmp_path)


# --- damage


def save_twice_without_clean_up(folder: Path, replicas: bool) -> LocalCheckpointManager:
    """Iterations 1 and 2, as after a kill before the second save was finalized."""
    may_have_children()
    manager, queue = manager_in(folder, replicas), AsyncCallsQueue(persistent=False)
    manager.save(CpuState(content(1)), 1)
    request = manager.save(CpuState(content(2)), 2, is_async=True)
    assert request is not None
    queue.schedule_async_request(request)
    (call,) = queue.async_calls
    call.end.result(240)
    dist.barrier()
    queue.close(abort=True)
    return manager_in(folder, replicas)


def flip_before_the_search(folder: Path, replicas: bool, suffix: str) -> Any:
    manager = save_twice_without_clean_up(folder, replicas)
    if dist.get_rank() == 1:
        flip(manager.local_ckpt_dir, 2, 1, suffix)
    found = manager.find_latest()
    holds(manager, found)
    return found


def flip_after_the_search(folder: Path, replicas: bool, suffix: str) -> Any:
    manager = save_twice_without_clean_up(folder, replicas)
    assert manager.find_latest() == 2
    if dist.get_rank() == 1:
        flip(manager.local_ckpt_dir, 2, 1, suffix)
    holds(manager, 2 if replicas else 1)
    return manager.find_latest()


@replicated
@pytest.mark.parametrize("suffix", [".distcp", ".metadata"])
@pytest.mark.parametrize("flip_a_bit", [flip_before_the_search, flip_after_the_search])
def test_a_flipped_bit_makes_all_ranks_use_the_replica_or_the_iteration_before(
    two: Gang, tmp_path: Path, flip_a_bit: Callable[..., Any], replicas: bool, suffix: str
) -> None:
    assert two.run(flip_a_bit, tmp_path, replicas, suffix) == [2 if replicas else 1] * 2


def damage_part_and_replica(folder: Path) -> Any:
    manager = save_twice_without_clean_up(folder, replicas=True)
    flip(manager.local_ckpt_dir, 2, 1, ".distcp")  # the part of rank 1 and its replica
    found = manager.find_latest()
    holds(manager, found)
    return found


def test_a_damaged_replica_is_not_used(two: Gang, tmp_path: Path) -> None:
    assert two.run(damage_part_and_replica, tmp_path) == [1, 1]


def lose_every_part(folder: Path) -> None:
    manager = manager_in(folder)
    manager.save(CpuState(content(1)), 1)
    assert manager.find_latest() == 1
    dist.barrier()
    if dist.get_rank() == 0:
        flip(manager.local_ckpt_dir, 1, 0, ".distcp")
    dist.barrier()
    with pytest.raises(CheckpointingException, match="no local checkpoint to load"):
        manager.load()
    assert manager.find_latest() == -1


def test_without_an_iteration_that_is_left_every_rank_raises(two: Gang, tmp_path: Path) -> None:
    two.run(lose_every_part, tmp_path)


# --- failed saves, and what they leave


def fail_on_one_rank(folder: Path, is_async: bool) -> None:
    may_have_children()
    manager, queue = manager_in(folder), AsyncCallsQueue(persistent=False)
    manager.save(CpuState(content(1)), 1)
    own = manager.local_ckpt_dir
    if dist.get_rank() == 1:
        own.rename(own.with_suffix(".aside"))
        own.write_bytes(b"in the way")
    with pytest.raises(CheckpointException) as raised:
        request = manager.save(CpuState(content(7)), 2, is_async)
        assert request is not None
        queue.schedule_async_request(request)
        queue.maybe_finalize_async_calls(blocking=True)
    assert sorted(raised.value.failures) == [1]
    if dist.get_rank() == 1:
        own.unlink()
        own.with_suffix(".aside").rename(own)
    dist.barrier()
    again = manager_in(folder)
    Path(again.local_ckpt_dir, f"iter_0000002_{dist.get_rank()}of2_{'0' * 16}").mkdir()  # of a killed save
    assert again.find_latest() == 1
    is_left = len(held_parts(again.local_ckpt_dir)) == 2
    assert is_left == (is_async and dist.get_rank() == 0)
    again.save(CpuState(content(2)), 2)
    assert again.find_latest() == 2
    holds(again, 2)
    assert len(list(again.local_ckpt_dir.iterdir())) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_save_is_no_obstacle_to_the_next_of_the_iteration(two: Gang, tmp_path: Path, is_async: bool) -> None:
    two.run(fail_on_one_rank, tmp_path, is_async)


def test_parts_of_two_attempts_or_of_other_numbers_of_ranks_are_no_checkpoint() -> None:
    first, second = "0" * 16, "1" * 16
    mixed = [{Part(5, 0, 2, first), Part(3, 0, 2, first)}, {Part(5, 1, 2, second), Part(3, 1, 2, first)}]
    assert _newest_complete(mixed) == (3, first)
    assert _newest_complete([{Part(5, 0, 4, first)}, {Part(5, 1, 4, first)}]) is None
    assert Part.of("iter_0000005_0of2_0000000000000000") == Part(5, 0, 2, first)
    for name in ("iter_0000005_2of2_0000000000000000", "iter_5_0of2_0000000000000000", "iter_0000005_0_local.pt"):
        assert Part.of(name) is None


# --- values that are not plain


class Mode(enum.Enum):
    FAST = 1


class Touching:
    """Leaves a file if its pickle runs."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def save_foreign_values(folder: Path, trace: str) -> None:
    manager = manager_in(folder)
    state = {**content(1), "foreign": {"mode": Mode.FAST, "touching": Touching(f"{trace}{dist.get_rank()}")}}
    with pytest.warns(cairn.PickleWarning):
        manager.save(CpuState(state), 1)
    again = manager_in(folder)
    assert again.find_latest() == 1
    with pytest.raises(CheckpointException) as raised:
        again.load()
    assert isinstance(raised.value, cairn.UnsafeContent)
    assert sorted(raised.value.failures) == [0, 1]
    assert "foreign.mode" in str(raised.value)
    assert "Mode" in str(raised.value)
    assert not Path(f"{trace}{dist.get_rank()}").exists()
    trusting = manager_in(folder, allow_pickle=True)
    assert trusting.find_latest() == 1
    loaded, _ = trusting.load()
    assert loaded.state_dict["foreign"]["mode"] is Mode.FAST
    assert Path(f"{trace}{dist.get_rank()}").exists()


def test_a_load_runs_no_pickle_without_consent(two: Gang, tmp_path: Path) -> None:
    two.run(save_foreign_values, tmp_path / "saved", str(tmp_path / "trace"))


def test_states_that_a_local_checkpoint_cannot_hold() -> None:
    class Pickling(CpuState):
        def __getstate__(self) -> Any:
            return {}

    cycle: list[Any] = []
    cycle.append({"again": cycle})
    for state, words in (
        (CpuState({"list": cycle}), "contains itself"),
        (Pickling({}), "__getstate__"),
        (CpuState({"a": {Mode.FAST: 1}}), "a key of the dict"),
    ):
        with pytest.raises(cairn.Unsupported, match=words):
            stored_form(state, (1, 0, 1, "0" * 16))
    del cycle[:]


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Ends an endless block."""

    def end(*_: object) -> None:
        raise TimeoutError(f"no end within {seconds} s")

    previous = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def test_a_structure_from_elsewhere_is_refused() -> None:
    def structure(node: Any) -> Any:
        return {"form": 1, "part": (), "state": node}

    twice: Any = ("list", [])
    for _ in range(60):
        twice = ("list", [twice, twice])
    name = "nvidia_resiliency_ext.checkpointing.local.basic_state_dict:BasicTensorAwareStateDict"
    for node in (
        twice,
        ("list", []),
        ("call", "os.mkdir"),
        ("object", name, ["a"], []),
        ("object", name, ["a"], [("value", "tensors/a")]),
        ("object", name, ["a"], [("tensor", "values/a", False, "cpu")]),
        ("object", name, ["a"], [("dict", [[]], [1])]),
    ):
        with at_most(60), pytest.raises(cairn.Corrupt):
            state_of(structure(node), {}, 10_000)
    with pytest.raises(cairn.InvalidArgument, match=r"subprocess\.Popen"):
        state_of(structure(("object", "subprocess:Popen", [], [])), {}, 10_000)
    gc.collect()
