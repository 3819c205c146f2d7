"""A state in Megatron-core's shards, saved synchronously, by a forked process or by a persistent process.

The importing program decides whether Cairn is installed before the import.
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
    """Returns `tensor` in one part per rank, `both` replicated on all ranks, and this rank's object `own`."""
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
    """Saves into a new directory; synchronously if there is no queue. Returns when the checkpoint is complete."""
    if dist.get_rank() == 0:
        directory.mkdir(parents=True)
    dist.barrier()
    if queue is None:
        dist_checkpointing.save(state, str(directory))
        return
    strategy = get_default_save_sharded_strategy()
    queue.schedule_async_request(dist_checkpointing.save(state, str(directory), strategy, async_sharded_save=True))
    queue.maybe_finalize_async_calls(blocking=True)
