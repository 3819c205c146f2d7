"""Tensors sharded over the ranks of a gang, and the names in a directory of such tensors."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def shard_of_rank(whole: torch.Tensor, dimension: int = 0) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(whole, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(dimension)])


def sharded(whole: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Scalars stay whole."""
    return {key: shard_of_rank(value) if value.dim() else value for key, value in whole.items()}


def assert_whole(found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    """The tensors of `found` may be sharded; all ranks call the function together."""
    for key, tensor in expected.items():
        whole = found[key].full_tensor() if hasattr(found[key], "full_tensor") else found[key]
        assert torch.equal(whole, tensor), key
