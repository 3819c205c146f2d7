"""Two ranks whose tensors declare by attributes the shards that they hold (torch 2.14's CheckpointableTensor)."""

from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn._state import tensors

WHOLE = torch.arange(8.0 * 6).reshape(8, 6)
Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes in the whole

ROWS: list[list[Box]] = [[((0, 0), (3, 6))], [((3, 0), (5, 6))]]
# Rank 0 has two shards, and the sizes of the four quarters differ.
QUARTERS: list[list[Box]] = [[((0, 0), (5, 2)), ((5, 2), (3, 4))], [((0, 2), (5, 4)), ((5, 0), (3, 2))]]
ALL_ON_RANK_1: list[list[Box]] = [[], [((0, 0), (8, 6))]]
LAYOUTS = {"rows": ROWS, "quarters": QUARTERS, "all on rank 1": ALL_ON_RANK_1}


def declaring(boxes: list[Box]) -> torch.Tensor:
    """A tensor with room for the shards, stacked by rows. A row and a column of padding precede each shard."""
    rows = sum(sizes[0] + 1 for _, sizes in boxes)
    tensor: Any = torch.full((rows, 7), -1.0)
    tensor.global_shape = tuple(WHOLE.shape)
    tensor.global_offsets = tuple(offsets for offsets, _ in boxes)
    tensor.local_sizes = tuple(sizes for _, sizes in boxes)
    first = 0
    local = []
    for _, sizes in boxes:
        local.append((first + 1, 1))
        first += sizes[0] + 1
    tensor.local_offsets = tuple(local)
    return tensor  # type: ignore[no-any-return]


def windows(tensor: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of each shard and the equal part of the whole."""
    return [
        (
            tensor[tuple(slice(at, at + count) for at, count in zip(inside, sizes, strict=True))],
            WHOLE[tuple(slice(at, at + count) for at, count in zip(offsets, sizes, strict=True))],
        )
        for offsets, inside, sizes in zip(tensor.global_offsets, tensor.local_offsets, tensor.local_sizes, strict=True)
    ]


def filled(boxes: list[Box], marks: float = 0.0) -> torch.Tensor:
    tensor = declaring(boxes)
    for shard, part in windows(tensor):
        shard.copy_(part + marks)
    return tensor


def mine(layout: list[list[Box]]) -> list[Box]:
    tensors._TORCH_HAS_DECLARED_SHARDS = True  # as with torch 2.14
    return layout[dist.get_rank()]


def save(directory: Path, layout: list[list[Box]], asynchronous: bool = False) -> None:
    state = {"table": filled(mine(layout)), "step": 3}
    if asynchronous:
        cairn.async_save(state, checkpoint_id=directory).result()  # type: ignore[union-attr]
    else:
        cairn.save(state, checkpoint_id=directory)


def load(directory: Path, layout: list[list[Box]]) -> bool:
    """Whether the load filled all shards of this rank and left the padding unchanged."""
    table = declaring(mine(layout))
    cairn.load({"table": table}, checkpoint_id=directory)
    return torch.equal(table, filled(mine(layout)))


@pytest.mark.parametrize("saved", LAYOUTS)
def test_shards_of_two_ranks_are_one_tensor(saved: str, two: Gang, checkpoint: Path) -> None:
    two.run(save, checkpoint, LAYOUTS[saved], saved == "quarters")
    info = cairn.open(checkpoint).info("table")
    assert info.shape == (8, 6)
    boxes = {box for of_rank in LAYOUTS[saved] for box in of_rank}
    assert {(chunk.offsets, chunk.sizes) for chunk in info.chunks} == boxes
    whole = torch.zeros(8, 6)
    stock.load({"table": whole}, checkpoint)
    assert torch.equal(whole, WHOLE)
    for layout in LAYOUTS.values():
        assert two.run(load, checkpoint, layout) == [True, True]


def test_a_stock_checkpoint_fills_the_shards_of_two_ranks(two: Gang, checkpoint: Path) -> None:
    stock.save({"table": WHOLE}, checkpoint)
    for layout in LAYOUTS.values():
        assert two.run(load, checkpoint, layout) == [True, True]


REPLICATED: list[list[Box]] = [[((0, 0), (3, 6)), ((3, 0), (5, 6))], [((3, 0), (5, 6))]]


def test_a_box_that_both_ranks_declare_is_stored_once(two: Gang, checkpoint: Path) -> None:
    """As in torch: torch's planner keeps only the first of the items with equal key and offsets."""
    two.run(save, checkpoint, REPLICATED)
    chunks = cairn.open(checkpoint).info("table").chunks
    assert len(chunks) == 2
    whole = torch.zeros(8, 6)
    stock.load({"table": whole}, checkpoint)
    assert torch.equal(whole, WHOLE)
    assert two.run(load, checkpoint, REPLICATED) == [True, True]


OVERLAPS: dict[str, list[list[Box]]] = {
    "in part": [[((0, 0), (4, 6))], [((3, 0), (5, 6))]],
    "of one place and two sizes": [[((0, 0), (3, 6)), ((3, 0), (5, 6))], [((0, 0), (4, 6))]],
    "on one rank": [[((0, 0), (4, 6)), ((3, 0), (5, 6))], []],
}


def failing_save(directory: Path, layout: list[list[Box]]) -> str:
    try:
        cairn.save({"table": filled(mine(layout)), "step": 3}, checkpoint_id=directory)
    except CheckpointException as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


@pytest.mark.parametrize("name", OVERLAPS)
def test_boxes_that_overlap_in_part_are_refused_on_all_ranks(name: str, two: Gang, checkpoint: Path) -> None:
    """The error names both boxes and the ranks that declare them."""
    told = two.run(failing_save, checkpoint, OVERLAPS[name])
    ranks = (0, 0) if name == "on one rank" else (0, 1)
    for text in told:
        assert text.startswith("InvalidArgument: "), text
        assert "table" in text
        for rank in ranks:
            assert f"rank {rank}" in text
    assert not list(checkpoint.glob("*"))


GAP: list[list[Box]] = [[((0, 0), (3, 6))], [((4, 0), (4, 6))]]


def test_shards_that_leave_a_gap_are_refused_on_all_ranks(two: Gang, checkpoint: Path) -> None:
    for text in two.run(failing_save, checkpoint, GAP):
        assert text.startswith("InvalidArgument: ")
        assert "table" in text
    assert not list(checkpoint.glob("*"))
