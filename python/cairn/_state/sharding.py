"""The boxes of a DTensor on this process, with a mark for boxes that further ranks hold too."""

import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from cairn._state.local_shard import LocalShard
from cairn.errors import InvalidArgument, Unsupported

_Run = tuple[int, int, int]  # first index in the whole dimension, first index in the local dimension, count


def chunks_of_dtensor(key: str, tensor: Any) -> Iterator[LocalShard]:
    """Yields the chunks of the tensor under `key`: a DTensor, or an object with DCP's ``__create_chunk_list__``
    protocol.

    A rank outside of the mesh has no chunks. Raises Unsupported for a Partial placement, whose elements are not reduced
    yet.
    """
    if not isinstance(tensor, DTensor):
        yield from _chunks_of_checkpointable(tensor)
        return
    if any(placement.is_partial() for placement in tensor.placements):
        raise Unsupported(
            f"a DTensor with a Partial placement has no elements to save or fill yet, redistribute it first: '{key}'",
            key=key,
            expected="Shard or Replicate",
            actual=str(tuple(tensor.placements)),
        )
    if tensor.device_mesh.get_coordinate() is None:
        return
    replicated = any(isinstance(placement, Replicate) for placement in tensor.placements)
    if any(isinstance(placement, _StridedShard) for placement in tensor.placements):
        yield from _chunks_of_strided(tensor, replicated)
    else:
        yield from _chunks_by_protocol(tensor, replicated)


def _chunks_by_protocol(tensor: DTensor, replicated: bool) -> Iterator[LocalShard]:
    protocol: Any = tensor
    for chunk in protocol.__create_chunk_list__():
        shard = protocol.__get_tensor_shard__(MetadataIndex("", chunk.offsets))
        yield LocalShard(shard, chunk.offsets, replicated, tensor.size())


def _chunks_of_checkpointable(value: Any) -> Iterator[LocalShard]:
    """Yields the chunks of an object that may be no tensor: then only its write items hold the global size."""
    for item in value.__create_write_items__("", value):
        shard = value.__get_tensor_shard__(item.index)
        yield LocalShard(shard, item.tensor_data.chunk.offsets, False, item.tensor_data.size)


def chunks_of_declared(key: str, tensor: torch.Tensor) -> Iterator[LocalShard]:
    """Yields the shards that a tensor declares by the attributes of torch's ``CheckpointableTensor``.

    `global_shape` is the size of the whole tensor. For each shard, `global_offsets` is its offset in the whole tensor,
    `local_offsets` its offset in the local tensor, and `local_sizes` its size. The rest of the local tensor is padding.
    Raises InvalidArgument if an attribute is missing, or if a shard is not within the whole tensor and within the local
    tensor.

    The shards of all ranks make up the whole tensor. A shard that several ranks declare, with equal offsets and sizes,
    is stored once, as by torch's planner. The save of shards that overlap in part fails on all ranks, with an error
    that names both shards and their ranks. (Of two shards with equal offsets, torch keeps one, whatever their sizes.)
    """
    size, *parts = (_declared(key, tensor, name) for name in _DECLARED)
    (shape,) = _integers(key, _DECLARED[0], [size])
    shards = _of_one_length(key, parts)
    for begin, inside, extent in shards:
        _check_declared(key, "the whole tensor", shape, begin, extent)
        _check_declared(key, "the local tensor", tuple(tensor.shape), inside, extent)
        part = tensor.detach()
        for dimension, (first, count) in enumerate(zip(inside, extent, strict=True)):
            part = part.narrow(dimension, first, count)
        yield LocalShard(part.requires_grad_(tensor.requires_grad), begin, False, torch.Size(shape))


_DECLARED = ("global_shape", "global_offsets", "local_offsets", "local_sizes")


def _declared(key: str, tensor: torch.Tensor, name: str) -> Any:
    value = getattr(tensor, name, None)
    if value is None:
        raise InvalidArgument(
            f"'{key}' declares shards of a larger tensor, but its attribute {name} is missing", key=key
        )
    return value


def _of_one_length(key: str, parts: list[Any]) -> list[tuple[tuple[int, ...], ...]]:
    columns = [_integers(key, name, part) for name, part in zip(_DECLARED[1:], parts, strict=True)]
    if len({len(column) for column in columns}) > 1:
        actual = ", ".join(f"{len(column)} {name}" for name, column in zip(_DECLARED[1:], columns, strict=True))
        raise InvalidArgument(f"the shard attributes of '{key}' differ in length", key=key, actual=actual)
    return list(zip(*columns, strict=True))


def _integers(key: str, name: str, rows: Any) -> list[tuple[int, ...]]:
    try:
        return [tuple(operator.index(number) for number in row) for row in rows]
    except TypeError as error:
        raise InvalidArgument(
            f"{name} of '{key}' are not tuples of integers", key=key, actual=repr(rows)[:200]
        ) from error


def _check_declared(
    key: str, where: str, shape: tuple[int, ...], first: tuple[int, ...], size: tuple[int, ...]
) -> None:
    if len(first) == len(size) == len(shape) and all(
        begin >= 0 and count >= 0 and begin + count <= extent
        for begin, count, extent in zip(first, size, shape, strict=True)
    ):
        return
    raise InvalidArgument(
        f"a shard of '{key}' is not within {where}", key=key, expected=f"within {shape}", actual=f"{size} at {first}"
    )


def _chunks_of_strided(tensor: DTensor, replicated: bool) -> Iterator[LocalShard]:
    """Yields the stripes of a strided shard. DCP takes the local tensor for one box at the first element's place, which
    is wrong for several stripes."""
    local = tensor.to_local()
    for runs in itertools.product(*_runs_by_dimension(tensor)):
        part = local
        for dimension, (_, begin, count) in enumerate(runs):
            part = part.narrow(dimension, begin, count)
        yield LocalShard(part, tuple(first for first, _, _ in runs), replicated, tensor.size())


def _runs_by_dimension(tensor: DTensor) -> list[list[_Run]]:
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    # by dimension of the tensor, in the order of the mesh's dimensions
    cuts: list[list[_Cut]] = [[] for _ in tensor.shape]
    for mesh_dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, (Shard, _StridedShard)):
            blocks = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
            cut = _Cut(blocks, tensor.device_mesh.size(mesh_dimension), coordinate[mesh_dimension])
            cuts[placement.dim].append(cut)
    held = [_held(torch.arange(size, device="cpu"), cuts[i]) for i, size in enumerate(tensor.shape)]
    if [len(indices) for indices in held] != list(tensor.to_local().shape):
        raise Unsupported(
            "the size of a strided shard differs from its placements",
            expected=str([len(indices) for indices in held]),
            actual=str(list(tensor.to_local().shape)),
        )
    return [_runs(indices) for indices in held]


class _Cut(NamedTuple):
    blocks: int  # the split factor of a _StridedShard
    ranks: int
    mine: int


def _held(indices: torch.Tensor, cuts: list[_Cut]) -> torch.Tensor:
    """Returns the indices of a dimension that remain after all cuts."""
    if not cuts:
        return indices
    (blocks, ranks, mine), *later = cuts
    if blocks > 1 and blocks == math.prod(cut.ranks for cut in later):
        # The strides represent the cuts to the right, which FSDP over tensor parallel makes first. With uneven sizes
        # only the order "right cuts first" gives the rank's elements.
        return _split(_held(indices, later), ranks)[mine]
    held = torch.cat([_split(block, ranks)[mine] for block in _split(indices, blocks)])
    return _held(held, later)


def _split(indices: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Splits as a Shard: parts of equal size, the last parts shorter or empty."""
    chunks = list(torch.chunk(indices, parts))
    return chunks + [indices[:0]] * (parts - len(chunks))


def _runs(indices: torch.Tensor) -> list[_Run]:
    """Returns the runs of consecutive indices; a single empty run if `indices` is empty."""
    if len(indices) == 0:
        return [(0, 0, 0)]
    breaks = torch.nonzero(torch.diff(indices) != 1).flatten() + 1
    begins = [0, *breaks.tolist()]
    ends = [*begins[1:], len(indices)]
    return [(int(indices[begin]), begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
