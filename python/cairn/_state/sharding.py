"""The chunks of a distributed tensor on this process, with a mark for chunks that other ranks hold too.

Declared chunks win over computed chunks, as in torch: a save goes by ``__create_write_items__``, a load by
``__create_chunk_list__``, and ``__get_tensor_shard__`` gives the elements. A tensor, a DTensor's local tensor, or an
object that is no tensor declares chunks by these methods, of its class or its own. The placements of a DTensor count
only if neither the DTensor nor its local tensor declares chunks.
"""

import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from cairn._state.local_shard import CHUNK_LIST, SHARD_GETTER, WRITE_ITEMS, LocalShard
from cairn._state.recorded_strides import strides_to_record
from cairn.errors import InvalidArgument, Unsupported

_Run = tuple[int, int, int]  # first index in the whole dimension, first index in the local dimension, count


def chunks_to_save(key: str, value: Any) -> Iterator[LocalShard]:
    """Yields the chunks that this process holds of the DTensor, or of the object with DCP's protocol, under `key`.

    A rank outside of the mesh has no chunks. Raises Unsupported for a Partial placement, whose elements are not reduced
    yet, and for a write item that is no tensor; InvalidArgument for a shard of another size than its chunk.
    """
    if isinstance(value, DTensor) and not _is_declared(key, value):
        yield from _chunks_by_placements(key, value)
    elif hasattr(value, WRITE_ITEMS):
        yield from _chunks_by_write_items(key, value)
    else:  # only the elements are declared
        yield _shard_of(key, value, _whole_of(value), 0, False)


def chunks_to_load(key: str, value: Any) -> Iterator[LocalShard]:
    """As chunks_to_save(), of the chunks that a load fills, without the declared chunks that have no elements. The size
    of the whole tensor is None if the object does not know it."""
    if isinstance(value, DTensor) and not _is_declared(key, value):
        yield from _chunks_by_placements(key, value)
    elif hasattr(value, CHUNK_LIST):
        yield from _chunks_by_list(key, value)
    elif isinstance(value, torch.Tensor):
        yield _shard_of(key, value, _whole_of(value), 0, False)
    else:
        yield from _chunks_by_write_items(key, value)


def _is_declared(key: str, tensor: DTensor) -> bool:
    """Returns whether a DTensor or its local tensor declares chunks. Raises Unsupported for a Partial placement."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise Unsupported(
            f"a DTensor with a Partial placement has no elements to save or fill yet, redistribute it first: '{key}'",
            key=key,
            expected="Shard or Replicate",
            actual=str(tuple(tensor.placements)),
        )
    kind, own, local = type(tensor), vars(tensor), tensor._local_tensor
    return any(
        hasattr(local, name) or name in own or getattr(kind, name, None) is not getattr(DTensor, name, None)
        for name in (WRITE_ITEMS, CHUNK_LIST, SHARD_GETTER)
    )


def _chunks_by_placements(key: str, tensor: DTensor) -> Iterator[LocalShard]:
    if tensor.device_mesh.get_coordinate() is None:
        return
    replicated = _is_replicated(tensor)
    if any(isinstance(placement, _StridedShard) for placement in tensor.placements):
        yield from _chunks_of_strided(key, tensor, replicated)
        return
    protocol: Any = tensor
    for number, chunk in enumerate(protocol.__create_chunk_list__()):
        yield _shard_of(key, tensor, chunk, number, replicated)


def _chunks_by_write_items(key: str, value: Any) -> Iterator[LocalShard]:
    replicated = _is_replicated(value)
    for item in value.__create_write_items__(key, value):
        data = item.tensor_data
        if item.type is WriteItemType.BYTE_IO or data is None:
            raise Unsupported(f"a write item of '{key}' is no tensor", key=key, actual=str(item.type))
        shard = _elements_of(key, value, item.index, data.chunk)
        strides = getattr(data.properties, "strides", None)  # since torch 2.15
        yield LocalShard(shard, data.chunk.offsets, replicated, data.size, strides)


def _chunks_by_list(key: str, value: Any) -> Iterator[LocalShard]:
    replicated = _is_replicated(value)
    for number, chunk in enumerate(value.__create_chunk_list__()):
        if 0 not in chunk.sizes:
            yield _shard_of(key, value, chunk, number, replicated)


def _shard_of(key: str, value: Any, chunk: ChunkStorageMetadata, number: int, replicated: bool) -> LocalShard:
    shard = _elements_of(key, value, MetadataIndex(key, chunk.offsets, number), chunk)
    size = value.size() if callable(getattr(value, "size", None)) else None
    return LocalShard(shard, chunk.offsets, replicated, size, strides_to_record(shard))


def _elements_of(key: str, value: Any, index: MetadataIndex, chunk: ChunkStorageMetadata) -> torch.Tensor:
    has_shards = hasattr(value, SHARD_GETTER)
    shard: torch.Tensor = value.__get_tensor_shard__(index) if has_shards else value
    if tuple(shard.shape) != tuple(chunk.sizes):
        raise InvalidArgument(
            f"the shard of '{key}' at {tuple(chunk.offsets)} differs in size from its chunk",
            key=key,
            expected=str(tuple(chunk.sizes)),
            actual=str(tuple(shard.shape)),
        )
    return shard


def _whole_of(tensor: torch.Tensor) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size([0] * tensor.dim()), tensor.size())


def _is_replicated(value: Any) -> bool:
    return isinstance(value, DTensor) and any(isinstance(placement, Replicate) for placement in value.placements)


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
        part.requires_grad_(tensor.requires_grad)
        yield LocalShard(part, begin, False, torch.Size(shape), strides_to_record(tensor))


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


def _chunks_of_strided(key: str, tensor: DTensor, replicated: bool) -> Iterator[LocalShard]:
    """Yields the stripes of a strided shard. DCP takes the local tensor for one box at the first element's place, which
    is wrong for several stripes."""
    local = tensor.to_local()
    for runs in itertools.product(*_runs_by_dimension(key, tensor)):
        part = local
        for dimension, (_, begin, count) in enumerate(runs):
            part = part.narrow(dimension, begin, count)
        offsets = tuple(first for first, _, _ in runs)
        yield LocalShard(part, offsets, replicated, tensor.size(), strides_to_record(local))


def _runs_by_dimension(key: str, tensor: DTensor) -> list[list[_Run]]:
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
            f"the size of the strided shard '{key}' differs from its placements",
            key=key,
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
