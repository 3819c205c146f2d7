"""Plain tensors that declare by attributes the shards of a larger tensor that they hold (torch 2.14)."""

from pathlib import Path
from typing import Any

import pytest
import stock
import torch

import cairn
from cairn._state import tensors

TABLE = torch.arange(6.0 * 4).reshape(6, 4)
SHARDS = {
    "global_shape": (6, 4),
    "global_offsets": ((4, 0), (0, 0)),
    "local_offsets": ((0, 0), (3, 1)),
    "local_sizes": ((2, 4), (4, 4)),
}


@pytest.fixture(autouse=True)
def with_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_TORCH_HAS_DECLARED_SHARDS", True)


def holding(value: float, kind: type = torch.Tensor, **changes: Any) -> torch.Tensor:
    """A tensor with room for the last rows at the top, and for the first rows, surrounded by padding, below."""
    tensor = torch.full((8, 6), value)
    if kind is torch.nn.Parameter:
        tensor = torch.nn.Parameter(tensor)
    for name, attribute in {**SHARDS, **changes}.items():
        if attribute is not None:
            setattr(tensor, name, attribute)
    return tensor


def filled(kind: type = torch.Tensor) -> torch.Tensor:
    tensor = holding(-1.0, kind)
    with torch.no_grad():
        tensor[:2, :4] = TABLE[4:]
        tensor[3:7, 1:5] = TABLE[:4]
    return tensor


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_its_shards_are_saved_as_parts_of_the_whole(kind: type, checkpoint: Path) -> None:
    cairn.save({"nested": {"table": filled(kind)}}, checkpoint_id=checkpoint)
    info = cairn.open(checkpoint).info("nested.table")
    assert (info.shape, info.requires_grad) == ((6, 4), kind is torch.nn.Parameter)
    assert {(chunk.offsets, chunk.sizes) for chunk in info.chunks} == {((4, 0), (2, 4)), ((0, 0), (4, 4))}
    for load in (stock.load, lambda state, path: cairn.load(state, checkpoint_id=path)):
        state: dict[str, Any] = {"nested": {"table": torch.zeros(6, 4)}}
        load(state, checkpoint)
        assert torch.equal(state["nested"]["table"], TABLE)


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("save", [stock.save, lambda state, path: cairn.save(state, checkpoint_id=path)])
def test_its_shards_are_filled_and_its_padding_is_not(kind: type, save: Any, checkpoint: Path) -> None:
    save({"table": TABLE}, checkpoint)
    state = {"table": holding(-1.0, kind)}
    version = state["table"]._version
    cairn.load(state, checkpoint_id=checkpoint)
    assert torch.equal(state["table"], filled())
    assert state["table"]._version > version


def test_a_rank_may_hold_no_shard(checkpoint: Path) -> None:
    none = holding(-1.0, global_offsets=(), local_offsets=(), local_sizes=())
    cairn.save({"table": TABLE}, checkpoint_id=checkpoint)
    cairn.load({"table": none}, checkpoint_id=checkpoint)
    assert torch.equal(none, torch.full((8, 6), -1.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"global_offsets": ((4, 1), (0, 0))},
        {"global_offsets": ((-1, 0), (0, 0))},
        {"global_offsets": ((4,), (0, 0))},
        {"global_offsets": ((4, 0),)},
        {"global_offsets": ((4.0, 0), (0, 0))},
        {"global_offsets": 4},
        {"local_offsets": ((7, 0), (3, 1))},
        {"local_offsets": ((0, 0), (3, -1))},
        {"local_offsets": ((), ())},
        {"local_sizes": ((2, 4), (4, 5))},
        {"local_sizes": ((2, 4, 1), (4, 4, 1))},
        {"local_sizes": None},
        {"global_offsets": None},
        {"global_shape": (6, 4, 1)},
        {"global_shape": (5, 4)},
    ],
    ids=str,
)
def test_a_wrong_declaration_is_refused(changes: dict[str, Any], checkpoint: Path) -> None:
    tensor = holding(-1.0, **changes)
    with pytest.raises(cairn.InvalidArgument, match="table") as caught:
        cairn.save({"table": tensor}, checkpoint_id=checkpoint)
    assert caught.value.key == "table"
    assert not checkpoint.exists()
    stock.save({"table": TABLE}, checkpoint)
    with pytest.raises(cairn.InvalidArgument, match="table"):
        cairn.load({"table": tensor}, checkpoint_id=checkpoint)
    assert torch.equal(tensor, torch.full((8, 6), -1.0))


def test_a_torch_without_the_protocol_saves_the_tensor_undivided(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch without the protocol ignores the attributes and saves the whole tensor."""
    monkeypatch.setattr(tensors, "_TORCH_HAS_DECLARED_SHARDS", False)
    cairn.save({"table": filled()}, checkpoint_id=checkpoint)
    assert cairn.open(checkpoint).info("table").shape == (8, 6)
