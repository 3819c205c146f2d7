"""Checkpointers of a single rank: every rank gets its own saved state back, without merging or resharding.

The names are those of ``torch.distributed.checkpoint._experimental``, in modules of equal names. The files are DCP's
for ranks that save alone: ``__{rank}.metadata`` and ``__{rank}_{n}.distcp``. DCP reads these files, and this package
reads the files of torch's own checkpointers, ``checkpoint_{rank}.pt``.

    checkpointer = make_sync_checkpointer()
    checkpointer.save(path, state_dict)
    state_dict = checkpointer.load(path)

For states that several ranks make up together, use ``cairn.save`` and ``cairn.load``.
"""

import sys
from typing import TYPE_CHECKING

from cairn._torch_names import modules
from cairn.checkpointer import completion, rank_info
from cairn.checkpointer.barriers import (
    BARRIER_REGISTRY,
    Barrier,
    BarrierConfig,
    BarrierTimeout,
    DistBarrier,
    TCPStoreBarrier,
    create_barrier_from_config,
    register_barrier,
)
from cairn.checkpointer.builder import make_async_checkpointer, make_sync_checkpointer
from cairn.checkpointer.checkpoint_process import (
    CheckpointProcess,
    CheckpointProcessConfig,
    ProcessFailure,
    ProcessTimeout,
    RequestType,
    WorkerRequest,
    WorkerResponse,
)
from cairn.checkpointer.checkpoint_reader import CheckpointReader
from cairn.checkpointer.checkpoint_writer import CheckpointWriter, CheckpointWriterConfig, WriterHook
from cairn.checkpointer.checkpointer import AsyncCheckpointer, Checkpointer, MissingKeys, SyncCheckpointer
from cairn.checkpointer.completion import wrap_future
from cairn.checkpointer.config import CheckpointerConfig
from cairn.checkpointer.rank_info import STATE_DICT, RankInfo
from cairn.checkpointer.selection import Mismatch
from cairn.checkpointer.staging import CheckpointStager, CheckpointStagerConfig, DefaultStager

__all__ = [
    "BARRIER_REGISTRY",
    "STATE_DICT",
    "AsyncCheckpointer",
    "Barrier",
    "BarrierConfig",
    "BarrierTimeout",
    "CheckpointProcess",
    "CheckpointProcessConfig",
    "CheckpointReader",
    "CheckpointStager",
    "CheckpointStagerConfig",
    "CheckpointWriter",
    "CheckpointWriterConfig",
    "Checkpointer",
    "CheckpointerConfig",
    "DefaultStager",
    "DistBarrier",
    "Mismatch",
    "MissingKeys",
    "ProcessFailure",
    "ProcessTimeout",
    "RankInfo",
    "RequestType",
    "SyncCheckpointer",
    "TCPStoreBarrier",
    "WorkerRequest",
    "WorkerResponse",
    "WriterHook",
    "create_barrier_from_config",
    "make_async_checkpointer",
    "make_sync_checkpointer",
    "register_barrier",
    "wrap_future",
]

# torch's names for two of the modules.
types = rank_info
utils = completion
sys.modules[f"{__name__}.types"] = types
sys.modules[f"{__name__}.utils"] = utils

if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
