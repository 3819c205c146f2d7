"""LocalShard: a box of a distributed tensor that this process holds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

# The methods by which an object declares its chunks (torch's ``_Checkpointable``).
WRITE_ITEMS = "__create_write_items__"  # for a save
CHUNK_LIST = "__create_chunk_list__"  # for a load
SHARD_GETTER = "__get_tensor_shard__"


class LocalShard(NamedTuple):
    """The elements of `local` are those from `offsets` on of a tensor of `size`."""

    local: torch.Tensor
    offsets: Any  # of the first element, in the whole tensor
    replicated: bool  # other ranks hold the same elements
    size: Any  # of the whole tensor; None: the object knows only its chunks
    strides: Any  # for the metadata: those that torch 2.15 records for the chunk; None: none


def part_of(tensor: torch.Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Returns the view of the box at `offsets` of `tensor`. Cuts no dimension that the box covers: many tensor
    subclasses can't be cut."""
    for dimension, (first, length) in enumerate(zip(offsets, sizes, strict=True)):
        if tensor.shape[dimension] != length:
            tensor = tensor.narrow(dimension, first, length)
    return tensor
