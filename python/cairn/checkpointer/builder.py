"""Functions that assemble checkpointers."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from cairn.checkpointer.barriers import create_barrier_from_config
from cairn.checkpointer.checkpoint_process import (
    CheckpointProcess,
    default_subprocess_init_fn,
    default_writer_init_fn,
)
from cairn.checkpointer.checkpoint_reader import CheckpointReader
from cairn.checkpointer.checkpoint_writer import CheckpointWriter, WriterHook
from cairn.checkpointer.checkpointer import AsyncCheckpointer, SyncCheckpointer
from cairn.checkpointer.config import CheckpointerConfig
from cairn.checkpointer.rank_info import RankInfo
from cairn.checkpointer.staging import DefaultStager

__all__ = ["default_subprocess_init_fn", "default_writer_init_fn", "make_async_checkpointer", "make_sync_checkpointer"]


def make_sync_checkpointer(
    config: CheckpointerConfig | None = None,
    rank_info: RankInfo | None = None,
    commit_hook: WriterHook | None = None,
) -> SyncCheckpointer:
    """Returns a SyncCheckpointer with the barrier in `config`.

    `rank_info` None: the rank in the default process group, or the only rank without a process group.
    """
    config = config or CheckpointerConfig()
    rank_info = rank_info or _this_rank()
    barrier = create_barrier_from_config(config.barrier_config)
    writer = CheckpointWriter(config.writer_config, rank_info, barrier, commit_hook)
    return SyncCheckpointer(writer, CheckpointReader(rank_info))


def make_async_checkpointer(
    config: CheckpointerConfig | None = None,
    rank_info: RankInfo | None = None,
    subprocess_init_fn: Callable[..., None] = default_subprocess_init_fn,
    subprocess_init_args: tuple[Any, ...] = (),
    checkpoint_writer_init_fn: Callable[..., CheckpointWriter] = default_writer_init_fn,
    checkpoint_writer_init_args: dict[str, Any] | None = None,
) -> AsyncCheckpointer:
    """Returns an AsyncCheckpointer with a DefaultStager.

    Cairn's native process writes; with functions of the caller's own, a Python process runs these functions and writes.
    Only a writer of the caller's own can have a barrier.
    """
    config = config or CheckpointerConfig()
    rank_info = rank_info or _this_rank()
    process = CheckpointProcess(
        rank_info,
        config.process_config,
        subprocess_init_fn,
        subprocess_init_args,
        checkpoint_writer_init_fn,
        checkpoint_writer_init_args or {},
    )
    return AsyncCheckpointer(DefaultStager(config.staging_config), process, CheckpointReader(rank_info))


def _this_rank() -> RankInfo:
    if dist.is_available() and dist.is_initialized():
        return RankInfo(global_rank=dist.get_rank(), global_world_size=dist.get_world_size())
    return RankInfo(global_rank=0, global_world_size=1)
