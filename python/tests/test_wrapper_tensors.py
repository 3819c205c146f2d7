"""DTensors over tensor subclasses without elements of their own (float8 weights, 8-bit optimizer states): saved as by
stock DCP, and filled from the same class, from plain tensors and from shards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from both_libraries import LIBRARIES, CallersLoadPlanner, CallersSavePlanner, mesh, quietly
from cairn.format_utils import dcp_to_torch_save
from ranks import Gang
from same import bits
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from wrapper_tensors import Codes, UnregisteredWeight, Weight, content_of

import cairn

TABLE = torch.arange(8.0 * 6).reshape(8, 6) + 1
MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"weight": Weight, "codes": Codes.of}


def my_rows(table: torch.Tensor) -> torch.Tensor:
    return table.chunk(dist.get_world_size())[dist.get_rank()].clone()


def over(local: torch.Tensor, placement: Any = None) -> DTensor:
    """A DTensor of the size of the table, with the local tensor."""
    placements = [placement or Shard(0)]
    return DTensor.from_local(local, mesh(), placements, run_check=False, shape=TABLE.size(), stride=TABLE.stride())


def sharded(kind: str, table: torch.Tensor = TABLE) -> DTensor:
    return over(MAKERS[kind](my_rows(table)))


def targets(kind: str) -> dict[str, Any]:
    """Targets for the table: of the class in the same shards and on each rank whole, and of plain tensors. Codes can't
    be cut into columns."""
    blank = torch.full_like(TABLE, 7)
    columns = {"columns": distribute_tensor(blank, mesh(), [Shard(1)])} if kind == "weight" else {}
    return columns | {
        "same": sharded(kind, blank),
        "whole": over(MAKERS[kind](blank.clone()), Replicate()),
        "alone": MAKERS[kind](blank.clone()),
        "shards": distribute_tensor(blank, mesh(), [Shard(0)]),
        "plain": blank.clone(),
        "half": blank.bfloat16(),
    }


def loaded(library: str, folder: Path, kind: str, **options: Any) -> dict[str, list[bytes]]:
    """Returns the bits of every target after a load of its own."""
    results = {}
    for name, target in targets(kind).items():
        with quietly():
            LIBRARIES[library].load({"w": target}, checkpoint_id=folder, **options)
        local = target._local_tensor if isinstance(target, DTensor) else target
        results[name] = [bits(part) for part in content_of(local)]
    return results


def save_and_load(kind: str, root: Path) -> None:
    """All ways to save and to load give what stock's own save and load give."""
    state = {"w": sharded(kind), "n": {"step": 3}}
    with quietly():
        stock.dcp.save(state, checkpoint_id=root / "torch")
        stock.dcp.save({"w": TABLE}, checkpoint_id=root / "plain")
        stock.dcp.save({"w": distribute_tensor(TABLE, mesh(), [Shard(1)])}, checkpoint_id=root / "columns")
        stock.dcp.save(state, storage_writer=cairn.FileSystemWriter(root / "driven"))
    cairn.save(state, checkpoint_id=root / "cairn")
    cairn.save(state, checkpoint_id=root / "planned", planner=CallersSavePlanner())
    with quietly():
        cairn.async_save(state, checkpoint_id=root / "later").result()
    expected = loaded("torch", root / "torch", kind)
    for folder in ("torch", "cairn", "planned", "driven", "later"):
        assert loaded("cairn", root / folder, kind) == expected, folder
        assert loaded("cairn", root / folder, kind, planner=CallersLoadPlanner()) == expected, folder
        assert loaded("torch", root / folder, kind) == expected, folder
    expected = loaded("torch", root / "plain", kind)
    assert loaded("cairn", root / "plain", kind) == expected
    assert loaded("cairn", root / "plain", kind, planner=CallersLoadPlanner()) == expected
    assert loaded("cairn", root / "columns", kind) == expected  # stock DCP can't fill codes in columns


@pytest.mark.parametrize("kind", MAKERS)
def test_a_wrapper_is_saved_and_filled_as_by_torch(two: Gang, kind: str, tmp_path: Path) -> None:
    two.run(save_and_load, kind, tmp_path)
    saved, ours = (stock.metadata_of(tmp_path / folder).state_dict_metadata["w"] for folder in ("torch", "cairn"))
    assert (ours.size, ours.chunks, ours.properties.dtype) == (saved.size, saved.chunks, saved.properties.dtype)


def save_mixed(root: Path) -> None:
    rows = my_rows(TABLE)
    state = {"w": over(Codes.of(rows) if dist.get_rank() == 0 else rows)}
    cairn.save(state, checkpoint_id=root)
    target = {"w": sharded("codes", torch.ones_like(TABLE))}
    cairn.load(target, checkpoint_id=root)
    for actual, expected in zip(content_of(target["w"]._local_tensor), content_of(Codes.of(rows)), strict=True):
        assert torch.equal(actual, expected)


def test_ranks_may_hold_chunks_of_two_classes(two: Gang, tmp_path: Path) -> None:
    """The optimizers of torchao quantise large shards, and keep small shards plain."""
    two.run(save_mixed, tmp_path)
    whole = {"w": torch.zeros_like(TABLE)}
    stock.load(whole, tmp_path)
    assert torch.equal(whole["w"][4:], TABLE[4:])
    assert torch.equal(whole["w"][:4], Codes.of(TABLE[:4]).decoded())
    mixed = {"w": Codes.of(torch.ones_like(TABLE))}
    cairn.load(mixed, checkpoint_id=tmp_path)
    assert torch.allclose(mixed["w"].decoded(), TABLE, atol=0.5)


def save_and_refuse_unregistered(root: Path) -> None:
    state = {"a": torch.zeros(()), "w": over(UnregisteredWeight(my_rows(TABLE)))}
    with pytest.warns(cairn.PickleWarning, match="'w' holds a wrapper_tensors.UnregisteredWeight") as caught:
        cairn.save(state, checkpoint_id=root)
    assert len([it for it in caught if it.category is cairn.PickleWarning]) == 1
    for target in (over(UnregisteredWeight(my_rows(TABLE) * 0)), torch.zeros_like(TABLE)):
        beside = {"a": torch.zeros(()), "w": target}
        with pytest.raises(cairn.UnsafeContent, match="UnregisteredWeight") as refused:
            cairn.load(beside, checkpoint_id=root)
        assert refused.value.key == "w"
        content = content_of(target._local_tensor if isinstance(target, DTensor) else target)
        assert not any(part.any() for part in content)
        cairn.load(beside, checkpoint_id=root, allow_pickle=True)
        assert any(part.any() for part in content)


def test_a_class_that_torch_refuses_warns_at_the_save_and_needs_consent_to_load(two: Gang, tmp_path: Path) -> None:
    two.run(save_and_refuse_unregistered, tmp_path)


def shards_by_torch(table: torch.Tensor, root: Path) -> None:
    with quietly():
        stock.dcp.save({"w": sharded("weight", table), "v": {"step": 1}}, checkpoint_id=root)


def test_a_checkpoint_of_wrappers_is_converted_verified_and_compared(two: Gang, tmp_path: Path) -> None:
    source, negated, copy = (tmp_path / name for name in ("source", "negated", "copy"))
    two.run(shards_by_torch, TABLE, source)
    two.run(shards_by_torch, -TABLE, negated)
    cairn.convert(source, copy, to="dcp")
    for folder in (source, copy):
        assert not cairn.verify(folder).problems
        for load in (stock.load, lambda state, path: cairn.load(state, checkpoint_id=path)):
            state: dict[str, Any] = {"w": torch.zeros_like(TABLE), "v": {"step": 0}}
            load(state, folder)
            assert torch.equal(state["w"], TABLE)
            assert state["v"] == {"step": 1}
    assert not cairn.diff(source, copy)
    assert [it.key for it in cairn.diff(source, negated).differences] == ["w"]
    dcp_to_torch_save(source, tmp_path / "file.pt")
    assert torch.equal(torch.load(tmp_path / "file.pt")["w"], TABLE)
    with pytest.raises(cairn.Unsupported, match="only torch can read"):
        cairn.convert(source, tmp_path / "half", to="dcp", dtype="bfloat16")
    assert not (tmp_path / "half").exists()


def test_a_damaged_wrapper_fails_before_a_target_changes(tmp_path: Path) -> None:
    cairn.save({"a": TABLE, "w": Weight(TABLE)}, checkpoint_id=tmp_path)
    (file,) = tmp_path.glob("*.distcp")
    data = bytearray(file.read_bytes())
    place = data.rindex(bits(TABLE)[:64])
    data[place] ^= 1
    file.write_bytes(data)
    state = {"a": torch.zeros_like(TABLE), "w": Weight(torch.zeros_like(TABLE))}
    with pytest.raises(cairn.Corrupt) as caught:
        cairn.load(state, checkpoint_id=tmp_path)
    assert caught.value.key == "w"
    assert not state["a"].any()
    assert [problem.key for problem in cairn.verify(tmp_path).problems] == ["w"]


def test_a_wrapper_takes_elements_of_another_dtype_with_a_warning(tmp_path: Path) -> None:
    cairn.save({"w": TABLE.double()}, checkpoint_id=tmp_path)
    state = {"w": Weight(torch.zeros_like(TABLE))}
    with pytest.warns(cairn.ConversionWarning, match="from torch.float64 to torch.float32"):
        cairn.load(state, checkpoint_id=tmp_path)
    assert torch.equal(state["w"].inner, TABLE)
    cairn.save({"w": TABLE.long()}, checkpoint_id=tmp_path)
    with pytest.raises(cairn.InvalidArgument, match="allow_cast"):
        cairn.load(state, checkpoint_id=tmp_path)
