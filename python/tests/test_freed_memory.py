"""Tensors without their elements: freed and shrunk storages, lazy parameters, fake tensors; containers that can't be
assigned to. Each save and each load refuses such a state with the key, before anything changes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Gang
from sharded_states import shard_of_rank
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import return_and_correct_aliasing

import cairn
from cairn.checkpointer.worker_messages import SharedState


class Doubled(torch.Tensor):
    """A wrapper subclass: the elements are those of a tensor inside."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Doubled":
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], *_: Any) -> "Doubled":
        return Doubled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = torch.utils._pytree.tree_map_only(Doubled, lambda it: it.inner, args)
        result = function(*plain, **(kwargs or {}))
        wrapped = torch.utils._pytree.tree_map_only(torch.Tensor, Doubled, result)
        return return_and_correct_aliasing(function, args, kwargs or {}, wrapped)


class Labelled(torch.Tensor):
    pass


def resized(tensor: torch.Tensor, size: int = 0) -> torch.Tensor:
    """The tensor, whose storage has `size` bytes left."""
    tensor.untyped_storage().resize_(size)
    return tensor


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(8), 0.5, 0, torch.qint8)


# Each makes a tensor of 8 elements without memory for all of them.
FREED: dict[str, Callable[[], torch.Tensor]] = {
    "freed": lambda: resized(torch.ones(8)),
    "shrunk": lambda: resized(torch.ones(8), 16),
    "one byte short": lambda: resized(torch.ones(8), 31),
    "a view that begins later": lambda: resized(torch.ones(16)[4:12], 16),
    "a freed view that begins later": lambda: resized(torch.ones(16)[4:12]),
    "a strided view": lambda: resized(torch.ones(16)[::2], 32),
    "Parameter": lambda: resized(torch.nn.Parameter(torch.ones(8))),
    "without a code in DLPack": lambda: resized(torch.ones(8, dtype=torch.uint8).view(torch.bits8)),
    "conjugate": lambda: resized(torch.ones(8, dtype=torch.complex64).conj(), 8),
    "negative": lambda: resized(torch._neg_view(torch.ones(8))),
    "plain subclass": lambda: resized(torch.ones(8).as_subclass(Labelled)),
    "wrapper subclass": lambda: Doubled(resized(torch.ones(8))),
}
SAVED_ONLY: dict[str, Callable[[], torch.Tensor]] = {"quantised": lambda: resized(quantized(), 4)}


def save(state: dict[str, Any], directory: Path) -> None:
    cairn.save(state, checkpoint_id=directory)


def async_save(state: dict[str, Any], directory: Path) -> None:
    future: Any = cairn.async_save(state, checkpoint_id=directory)
    future.result()


def installed_save(state: dict[str, Any], directory: Path) -> None:
    cairn.install()
    try:
        dcp.save(state, checkpoint_id=directory)
    finally:
        cairn.uninstall()


def planned_save(state: dict[str, Any], directory: Path) -> None:
    """By torch's driver, with Cairn's storage."""

    class OwnPlanner(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return super().resolve_data(write_item)

    cairn.save(state, storage_writer=cairn.FileSystemWriter(directory), planner=OwnPlanner())


SAVES = [save, async_save, installed_save, planned_save]


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("way", SAVES)
@pytest.mark.parametrize("kind", [*FREED, *SAVED_ONLY])
def test_a_save_names_the_tensor_without_memory(
    kind: str, way: Callable[[dict[str, Any], Path], None], checkpoint: Path
) -> None:
    state = {"a": torch.ones(2), "model": {"w": {**FREED, **SAVED_ONLY}[kind]()}}
    with pytest.raises(cairn.errors.InvalidArgument, match="resize_") as raised:
        way(state, checkpoint)
    assert raised.value.key == "model.w"
    assert "bytes" in str(raised.value.expected)
    assert "bytes" in str(raised.value.actual)
    assert not (checkpoint / ".metadata").exists()


def test_the_needed_and_the_present_bytes_are_given(checkpoint: Path) -> None:
    with pytest.raises(cairn.errors.InvalidArgument) as raised:
        cairn.save({"w": resized(torch.ones(4, 6).t()[2:], 40)}, checkpoint_id=checkpoint)
    assert (raised.value.expected, raised.value.actual) == ("96 bytes", "40 bytes in the storage")


@pytest.mark.parametrize("kind", FREED)
def test_a_load_refuses_the_target_and_fills_no_other(kind: str, checkpoint: Path) -> None:
    target = FREED[kind]()
    saved = torch.zeros(target.numel() * target.itemsize, dtype=torch.uint8).view(target.dtype)
    cairn.save({"a": torch.ones(2), "w": saved}, checkpoint_id=checkpoint)
    state = {"a": torch.zeros(2), "w": target}
    with pytest.raises(cairn.errors.InvalidArgument, match="resize_") as raised:
        cairn.load(state, checkpoint_id=checkpoint)
    assert raised.value.key == "w"
    assert not state["a"].any()


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_quantised_target_without_memory_is_refused(checkpoint: Path) -> None:
    cairn.save({"w": quantized()}, checkpoint_id=checkpoint)
    with pytest.raises(cairn.errors.InvalidArgument, match="resize_"):
        cairn.load({"w": resized(quantized(), 4)}, checkpoint_id=checkpoint)


def test_storages_with_room_are_saved_and_filled(checkpoint: Path) -> None:
    base = torch.arange(24.0)
    state = {"all": base, "end": base[20:], "none": resized(torch.ones(4))[:0], "rows": base.view(4, 6)[1:, ::5]}
    cairn.save(state, checkpoint_id=checkpoint)
    loaded = {"all": torch.zeros(24), "end": torch.zeros(30)[26:], "none": state["none"], "rows": torch.zeros(3, 2)}
    cairn.load(loaded, checkpoint_id=checkpoint)
    assert all(torch.equal(loaded[key], state[key]) for key in state)


@pytest.mark.parametrize("way", [save, async_save])
@pytest.mark.parametrize("make", [FREED["shrunk"], SAVED_ONLY["quantised"], FREED["wrapper subclass"]])
def test_a_tensor_inside_a_value_is_looked_at(
    make: Callable[[], torch.Tensor], way: Callable[[dict[str, Any], Path], None], checkpoint: Path
) -> None:
    with pytest.raises(cairn.errors.InvalidArgument, match="resize_") as raised:
        way({"a": torch.ones(2), "extra": ("text", [make()])}, checkpoint)
    assert raised.value.key == "extra"


def test_torch_files_of_nvrx_are_looked_at(tmp_path: Path) -> None:
    from cairn.nvrx.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

    with pytest.raises(cairn.errors.InvalidArgument, match="resize_") as raised:
        TorchAsyncCheckpoint(persistent_queue=False).save({"model": [FREED["shrunk"]()]}, tmp_path / "state.pt")
    assert raised.value.key == "model.0"
    assert not (tmp_path / "state.pt").exists()


def test_a_state_for_a_checkpoint_process_is_looked_at() -> None:
    for kind, make in {**FREED, **SAVED_ONLY}.items():
        with pytest.raises(cairn.errors.InvalidArgument, match="resize_") as raised:
            SharedState.of({"a": torch.ones(2), "model": {"w": make()}})
        assert raised.value.key == "model.w", kind


# --- no elements at all


@pytest.mark.parametrize("way", [save, async_save, installed_save])
@pytest.mark.parametrize("nested", [False, True], ids=["an entry", "inside a value"])
def test_lazy_parameters_are_refused(
    nested: bool, way: Callable[[dict[str, Any], Path], None], checkpoint: Path
) -> None:
    model = torch.nn.ModuleDict({"head": torch.nn.LazyLinear(3), "norm": torch.nn.LazyBatchNorm1d()})
    for key, value in model.state_dict().items():
        if not torch.nn.parameter.is_lazy(value):
            continue
        state = {"extra": (value,)} if nested else {key: value}
        with pytest.raises(cairn.errors.InvalidArgument, match="run the module") as raised:
            way(state, checkpoint)
        assert raised.value.key == next(iter(state))
    assert not (checkpoint / ".metadata").exists()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_load_refuses_a_lazy_target(device: str, checkpoint: Path) -> None:
    cairn.save({"a": torch.ones(2), "weight": torch.ones(3, 2)}, checkpoint_id=checkpoint)
    state = {"a": torch.zeros(2), "weight": torch.nn.LazyLinear(3, device=device).weight}
    with pytest.raises(cairn.errors.InvalidArgument, match="run the module") as raised:
        cairn.load(state, checkpoint_id=checkpoint)
    assert raised.value.key == "weight"
    assert not state["a"].any()


def test_a_lazy_module_that_has_run_is_saved(checkpoint: Path) -> None:
    module = torch.nn.LazyLinear(3)
    module(torch.ones(1, 2))
    cairn.save(module.state_dict(), checkpoint_id=checkpoint)
    loaded = {key: torch.zeros_like(value) for key, value in module.state_dict().items()}
    cairn.load(loaded, checkpoint_id=checkpoint)
    assert torch.equal(loaded["weight"], module.weight)


def test_fake_tensors_are_refused(checkpoint: Path) -> None:
    with FakeTensorMode():
        fake = torch.ones(3)
    for state in ({"w": fake}, {"w": (fake,)}):
        with pytest.raises(cairn.errors.Unsupported, match="FakeTensor") as raised:
            cairn.save(state, checkpoint_id=checkpoint)
        assert raised.value.key == "w"
    cairn.save({"w": torch.ones(3)}, checkpoint_id=checkpoint)
    with pytest.raises(cairn.errors.Unsupported, match="FakeTensor"):
        cairn.load({"w": fake}, checkpoint_id=checkpoint)


def test_tensors_of_transformations_are_refused(checkpoint: Path) -> None:
    functional = torch._to_functional_tensor(torch.ones(8))  # type: ignore[attr-defined]
    for tensor in (functional, functional[4:]):
        with pytest.raises(cairn.errors.Unsupported, match="no memory") as raised:
            cairn.save({"w": tensor}, checkpoint_id=checkpoint)
        assert raised.value.key == "w"

    def save_inside(tensor: torch.Tensor) -> torch.Tensor:
        with pytest.raises(cairn.errors.Unsupported, match="no memory"):
            cairn.save({"w": tensor}, checkpoint_id=checkpoint)
        return tensor

    torch.func.vmap(save_inside)(torch.ones(2, 3))


# --- containers that can't be assigned to


class Sealed(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise ValueError("sealed")


@pytest.mark.parametrize("seal", [MappingProxyType, Sealed])
def test_values_in_a_sealed_mapping_fail_before_tensors_change(
    seal: Callable[[dict[str, Any]], Mapping[str, Any]], checkpoint: Path
) -> None:
    cairn.save({"a": torch.ones(2), "extra": {"w": torch.ones(2), "step": 3}}, checkpoint_id=checkpoint)
    state = {"a": torch.zeros(2), "extra": seal({"w": torch.zeros(2), "step": 0})}
    with pytest.raises(cairn.errors.InvalidArgument, match="refuses assignment") as raised:
        cairn.load(state, checkpoint_id=checkpoint)
    assert raised.value.key == "extra.step"
    assert not state["a"].any()

    whole: Any = seal({"a": state["a"]})
    with pytest.raises(cairn.errors.InvalidArgument, match="refuses assignment"):
        cairn.load(whole, checkpoint_id=checkpoint)
    assert not state["a"].any()


def test_tensors_in_a_sealed_mapping_are_filled(checkpoint: Path) -> None:
    cairn.save({"extra": {"w": torch.ones(2)}}, checkpoint_id=checkpoint)
    state = {"extra": MappingProxyType({"w": torch.zeros(2)})}
    cairn.load(state, checkpoint_id=checkpoint)
    assert state["extra"]["w"].all()


# --- ranks


def run_freed_shards(directory: Path) -> None:
    shard = shard_of_rank(torch.arange(8.0))
    cairn.save({"w": shard}, checkpoint_id=directory)
    if dist.get_rank() == 1:
        shard.to_local().untyped_storage().resize_(4)
    for call in (cairn.save, cairn.load):
        with pytest.raises(cairn.errors.InvalidArgument, match="resize_") as raised:
            call({"w": shard}, checkpoint_id=directory)
        assert raised.value.key == "w"
    if dist.get_rank() == 0:
        assert torch.equal(shard.to_local(), torch.arange(4.0)[: len(shard.to_local())])


def test_a_freed_shard_fails_on_every_rank(two: Gang, checkpoint: Path) -> None:
    two.run(run_freed_shards, checkpoint)
