"""LocalShard: a box of a distributed tensor that this process holds."""

from typing import Any, NamedTuple

import torch


class LocalShard(NamedTuple):
    """The elements of `local` are those from `offsets` on of a tensor of `size`."""

    local: torch.Tensor
    offsets: Any  # of the first element, in the whole tensor
    replicated: bool  # further ranks hold the same elements
    size: Any  # of the whole tensor
