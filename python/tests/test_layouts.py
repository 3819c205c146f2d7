"""Layouts of tensors across ranks: four ranks save; four, three, two and one load, with Cairn and with stock torch."""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from same import assert_same, blank
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import cairn

LIBRARIES = {"cairn": cairn, "torch": stock.dcp}


class Layout(NamedTuple):
    """A tensor over a mesh of ranks."""

    mesh: tuple[int, ...]
    placements: list[Any]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


LAYOUTS = {
    "rows": Layout((4,), [Shard(0)], (12, 5)),
    "columns": Layout((4,), [Shard(1)], (5, 12)),
    "rows, uneven": Layout((4,), [Shard(0)], (7, 3)),
    "columns, uneven": Layout((4,), [Shard(1)], (3, 6)),
    "fewer rows than ranks": Layout((4,), [Shard(0)], (2, 3)),
    "no rows": Layout((4,), [Shard(0)], (0, 3)),
    "one row": Layout((4,), [Shard(0)], (1,)),
    "blocks": Layout((2, 2), [Shard(0), Shard(1)], (6, 8)),
    "blocks, uneven": Layout((2, 2), [Shard(0), Shard(1)], (5, 7)),
    "blocks, columns first": Layout((2, 2), [Shard(1), Shard(0)], (5, 7)),
    "blocks of a cube": Layout((2, 2), [Shard(2), Shard(0)], (3, 4, 5)),
    "rows of rows": Layout((2, 2), [Shard(0), Shard(0)], (12, 3)),
    "rows of rows, uneven": Layout((2, 2), [Shard(0), Shard(0)], (7, 3)),
    "copies": Layout((4,), [Replicate()], (4, 4)),
    "copies of a number": Layout((4,), [Replicate()], ()),
    "copies, large enough to be cut": Layout((4,), [Replicate()], (501, 1024), torch.float64),
    "copies of shards (HSDP)": Layout((2, 2), [Replicate(), Shard(0)], (10, 3)),
    "copies of shards, large enough to be cut": Layout((2, 2), [Replicate(), Shard(0)], (1201, 1024), torch.float64),
    "shards of copies": Layout((2, 2), [Shard(1), Replicate()], (3, 9)),
    "FSDP over TP": Layout((2, 2), [_StridedShard(0, split_factor=2), Shard(0)], (8, 3)),
    "FSDP over TP, columns": Layout((2, 2), [_StridedShard(1, split_factor=2), Shard(1)], (3, 16)),
    "bfloat16": Layout((4,), [Shard(0)], (9, 3), torch.bfloat16),
    "float8": Layout((4,), [Shard(0)], (9, 3), torch.float8_e4m3fn),
    "float8 of the other kind": Layout((2, 2), [Shard(1), Shard(0)], (9, 3), torch.float8_e5m2),
    "complex": Layout((4,), [Shard(1)], (3, 9), torch.complex64),
    "bool": Layout((2, 2), [Shard(0), Shard(1)], (5, 5), torch.bool),
    "int64": Layout((2, 2), [Replicate(), Shard(1)], (5, 5), torch.int64),
}
# Several stripes on a rank. Stock DCP saves all stripes of a rank as one box at the place of the first stripe: the
# checkpoint is wrong.
STRIPES = {
    "stripes of rows": Layout((2, 2), [_StridedShard(0, split_factor=4), Replicate()], (16, 3)),
    "stripes of columns": Layout((4,), [_StridedShard(1, split_factor=2)], (3, 16)),
    "stripes and columns": Layout((2, 2), [_StridedShard(0, split_factor=4), Shard(1)], (16, 5)),
    "stripes of stripes": Layout((2, 2), [_StridedShard(0, split_factor=2), _StridedShard(1, split_factor=2)], (8, 8)),
}
# The layouts of the loading ranks, by the number of ranks.
TARGETS = {
    4: [((2, 2), [Shard(0), Shard(0)]), ((2, 2), [Replicate(), Shard(0)])],
    3: [((3,), [Shard(0)]), ((3,), [Replicate()])],
    2: [((2,), [Shard(0)]), ((1, 2), [Replicate(), Shard(1)])],
}


@functools.cache
def mesh_of(shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh("cpu", shape)


def whole(layout: Layout) -> torch.Tensor:
    """Every element has unique bits, as far as the dtype has enough values."""
    count = math.prod(layout.shape)
    if layout.dtype is torch.bool:
        return (torch.arange(count) % 3 == 0).reshape(layout.shape)
    wide = torch.arange(count, dtype=torch.int64) * 0x9E3779B97F4A7C15
    size = layout.dtype.itemsize
    return wide.view(torch.uint8).reshape(count, 8)[:, 8 - size :].reshape(-1).view(layout.dtype).reshape(layout.shape)


def part_of(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns the elements with the given row-major indices, for any dtype."""
    size = tensor.element_size()
    elements = tensor.reshape(-1).view(torch.uint8).reshape(-1, size)[indices.reshape(-1)]
    return elements.reshape(-1).view(tensor.dtype).reshape(indices.shape)


def spread(tensor: torch.Tensor, mesh: tuple[int, ...], placements: list[Any]) -> DTensor:
    """Returns `tensor` over a mesh. Torch itself decides the place of each element."""
    count = tensor.numel()
    indices = distribute_tensor(torch.arange(count).reshape(tensor.shape), mesh_of(mesh), placements)
    local = part_of(tensor, indices.to_local())
    return DTensor.from_local(
        local, mesh_of(mesh), placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def save_all(library: str, directory: Path) -> None:
    layouts = LAYOUTS | STRIPES if library == "cairn" else LAYOUTS
    state = {name: spread(whole(layout), layout.mesh, layout.placements) for name, layout in layouts.items()}
    LIBRARIES[library].save(state, checkpoint_id=directory)


def load_one(library: str, directory: Path, name: str) -> None:
    """Loads in every layout for the number of ranks, and on four ranks in the saved layout too."""
    layout = (LAYOUTS | STRIPES)[name]
    targets = list(TARGETS[dist.get_world_size()])
    if dist.get_world_size() == 4 and (library == "cairn" or name in LAYOUTS):
        targets.append((layout.mesh, layout.placements))
    for mesh, placements in targets:
        if any(placement.dim >= len(layout.shape) for placement in placements if isinstance(placement, Shard)):
            placements = [Replicate() for _ in placements]  # noqa: PLW2901
        expected = spread(whole(layout), mesh, placements)
        state = {name: spread(blank(whole(layout)), mesh, placements)}
        LIBRARIES[library].load(state, checkpoint_id=directory)
        assert_same(state[name].to_local(), expected.to_local(), f"{name} as {placements}")


@pytest.fixture(scope="module")
def saved(four: Gang, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of four ranks, by library."""
    folder = tmp_path_factory.mktemp("saved")
    for library in LIBRARIES:
        four.run(save_all, library, folder / library)
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout(name: str, saved: Path, four: Gang, three: Gang, two: Gang) -> None:
    for writer, reader in (("cairn", "cairn"), ("cairn", "torch"), ("torch", "cairn")):
        for ranks in (four, three, two):
            ranks.run(load_one, reader, saved / writer, name)
        state = {name: blank(whole(LAYOUTS[name]))}
        LIBRARIES[reader].load(state, checkpoint_id=saved / writer, no_dist=True)
        assert_same(state, {name: whole(LAYOUTS[name])})


@pytest.mark.parametrize("name", STRIPES)
def test_several_stripes_on_a_rank(name: str, saved: Path, four: Gang, three: Gang, two: Gang) -> None:
    for reader, library in LIBRARIES.items():
        for ranks in (four, three, two):
            ranks.run(load_one, reader, saved / "cairn", name)
        state = {name: blank(whole(STRIPES[name]))}
        library.load(state, checkpoint_id=saved / "cairn", no_dist=True)
        assert_same(state, {name: whole(STRIPES[name])})


def test_the_chunks_equal_the_chunks_of_stock_torch(saved: Path) -> None:
    """Chunks are compared for tensors that Cairn does not cut; tensors with stripes are left out."""
    ours, theirs = (stock.metadata_of(saved / library).state_dict_metadata for library in LIBRARIES)
    for name in LAYOUTS:
        mine, other = ours[name], theirs[name]
        assert (mine.size, mine.properties) == (other.size, other.properties), name
        if "cut" not in name:
            key = lambda chunk: (chunk.offsets, chunk.sizes)  # noqa: E731
            assert sorted(map(key, mine.chunks)) == sorted(map(key, other.chunks)), name


def test_large_copies_are_cut(saved: Path) -> None:
    """Cairn cuts large copies to share the work among the ranks that hold copies.

    Without cuts the tests above would not cover cuts.
    """
    ours, theirs = (stock.metadata_of(saved / library).state_dict_metadata for library in LIBRARIES)
    for name in (name for name in LAYOUTS if "cut" in name):
        assert len(ours[name].chunks) > len(theirs[name].chunks), name


def test_every_byte_is_well(saved: Path) -> None:
    assert cairn.verify(saved / "cairn")
