"""A state in Megatron-core's shards, and its ways to save one: synchronously, by a forked or a persistent process.

Imported when Cairn is installed, or not, as the program likes.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue


def sharded(tensor: torch.Tensor, axis: int, both: torch.Tensor, own: Any) -> dict[str, Any]:
    """`tensor` in as many parts as there are ranks, `both` as all ranks have it, and an object of this rank's own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = tensor.chunk(ranks, axis)[rank].contiguous()
    return {
        "model": {
            "w": ShardedTensor.from_rank_offsets("w", part, (axis, rank, ranks)),
            "b": ShardedTensor.from_rank_offsets("b", both, replica_id=rank),
        },
        "rng": ShardedObject("rng", own, (ranks,), (rank,)),
    }


def save_by(queue: AsyncCallsQueue | None, state: dict[str, Any], directory: Path) -> None:
    """Saves into a new directory; without a queue synchronously. Returns when the checkpoint is complete."""
    if dist.get_rank() == 0:
        directory.mkdir(parents=True)
    dist.barrier()
    if queue is None:
        dist_checkpointing.save(state, str(directory))
        return
    strategy = get_default_save_sharded_strategy()
    queue.schedule_async_request(dist_checkpointing.save(state, str(directory), strategy, async_sharded_save=True))
    queue.maybe_finalize_async_calls(blocking=True)
