"""A save by NVIDIA's resiliency extension: plan, write in a second process, finalize.

The importing program decides whether Cairn is installed before the import.
"""

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    CheckpointMetadataCache,
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)


def save_by(queue: AsyncCallsQueue, cache: CheckpointMetadataCache, state: dict[str, Any], directory: Path) -> None:
    """Saves with the cache of plans and metadata. Returns when the checkpoint is complete."""
    writer = FileSystemWriterAsync(directory, thread_count=2)
    planned = save_state_dict_async_plan(
        state, writer, None, 0, planner=dcp.DefaultSavePlanner(), enable_cache=True, metadata_cache=cache
    )
    write, preload, arguments = writer.get_save_function_and_args()
    finish = [lambda: save_state_dict_async_finalize(*planned)]
    queue.schedule_async_request(AsyncRequest(write, arguments, finish, preload_fn=preload))
    queue.maybe_finalize_async_calls(blocking=True)
