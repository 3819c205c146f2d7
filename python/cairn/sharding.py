"""Which boxes of a DTensor this process holds, and which of them others hold too."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from cairn.errors import Unsupported
from cairn.tensors import ShardOfMine

_Run = tuple[int, int, int]  # first index in the whole dimension, first in the local one, how many


def chunks_of_dtensor(key: str, tensor: Any) -> Iterator[ShardOfMine]:
    """The chunks of the tensor under `key`: a DTensor, or what has DCP's ``__create_chunk_list__`` and its companions.

    A rank outside of the mesh has none. Raises Unsupported for a Partial placement: its elements are not known yet.
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


def _chunks_by_protocol(tensor: DTensor, replicated: bool) -> Iterator[ShardOfMine]:
    protocol: Any = tensor
    for chunk in protocol.__create_chunk_list__():
        shard = protocol.__get_tensor_shard__(MetadataIndex("", chunk.offsets))
        yield ShardOfMine(shard, chunk.offsets, replicated, tensor.size())


def _chunks_of_checkpointable(value: Any) -> Iterator[ShardOfMine]:
    """The size of the whole is in its write items alone, if it is no tensor."""
    for item in value.__create_write_items__("", value):
        shard = value.__get_tensor_shard__(item.index)
        yield ShardOfMine(shard, item.tensor_data.chunk.offsets, False, item.tensor_data.size)


def _chunks_of_strided(tensor: DTensor, replicated: bool) -> Iterator[ShardOfMine]:
    """DCP takes the local tensor for one box at the first element's place, which is wrong if it is several stripes."""
    local = tensor.to_local()
    for runs in itertools.product(*_runs_by_dimension(tensor)):
        part = local
        for dimension, (_, begin, count) in enumerate(runs):
            part = part.narrow(dimension, begin, count)
        yield ShardOfMine(part, tuple(first for first, _, _ in runs), replicated, tensor.size())


def _runs_by_dimension(tensor: DTensor) -> list[list[_Run]]:
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    cuts: list[list[_Cut]] = [[] for _ in tensor.shape]  # of each dimension, in the order of the mesh's
    for mesh_dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, (Shard, _StridedShard)):
            blocks = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
            cut = _Cut(blocks, tensor.device_mesh.size(mesh_dimension), coordinate[mesh_dimension])
            cuts[placement.dim].append(cut)
    held = [_held(torch.arange(size, device="cpu"), cuts[i]) for i, size in enumerate(tensor.shape)]
    if [len(indices) for indices in held] != list(tensor.to_local().shape):
        raise Unsupported(
            "a strided shard of another size than its placements say",
            expected=str([len(indices) for indices in held]),
            actual=str(list(tensor.to_local().shape)),
        )
    return [_runs(indices) for indices in held]


class _Cut(NamedTuple):
    blocks: int  # of a _StridedShard: its split factor
    ranks: int
    mine: int


def _held(indices: torch.Tensor, cuts: list[_Cut]) -> torch.Tensor:
    """What is left of a dimension after all cuts."""
    if not cuts:
        return indices
    (blocks, ranks, mine), *later = cuts
    if blocks > 1 and blocks == math.prod(cut.ranks for cut in later):
        # The strides stand for the cuts to the right, which in truth were made first (FSDP over tensor parallel). With
        # uneven sizes only that order gives what the rank holds.
        return _split(_held(indices, later), ranks)[mine]
    held = torch.cat([_split(block, ranks)[mine] for block in _split(indices, blocks)])
    return _held(held, later)


def _split(indices: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """As a Shard splits: parts of one size, the last ones shorter or empty."""
    chunks = list(torch.chunk(indices, parts))
    return chunks + [indices[:0]] * (parts - len(chunks))


def _runs(indices: torch.Tensor) -> list[_Run]:
    """Stretches of consecutive indices; one that is empty if there are none."""
    if len(indices) == 0:
        return [(0, 0, 0)]
    breaks = torch.nonzero(torch.diff(indices) != 1).flatten() + 1
    begins = [0, *breaks.tolist()]
    ends = [*begins[1:], len(indices)]
    return [(int(indices[begin]), begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
