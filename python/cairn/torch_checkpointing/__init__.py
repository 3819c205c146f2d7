"""Meta's ``torch_checkpointing``, the successor of DCP, by its names, on Cairn's engine.

The package has every name of ``torch_checkpointing``, which must be installed. ``CheckpointManager``, the savers, their
``make_`` functions, ``CheckpointLoader`` and ``CheckpointReader`` are Cairn's, derived from those of the same names.
All other names give the package's own objects. :func:`install` switches programs that import ``torch_checkpointing``.

    manager = CheckpointManager(CheckpointManager.Config(files="ours"))
    future = manager.save("run/step-1000", {"model": model.state_dict(), "step": 1000})
    manager.load("run/step-1000", into={"model": model.state_dict(), "step": 0})
"""

import cairn.torch_checkpointing.required_package  # noqa: F401 - raises if the package is missing

# isort: split

from typing import TYPE_CHECKING

from torch_checkpointing.barriers import (
    Barrier,
    BarrierConfig,
    DefaultStoreBarrier,
    DefaultStoreBarrierConfig,
    TCPStoreBarrier,
    TCPStoreBarrierConfig,
)
from torch_checkpointing.checkpoint_base import CheckpointBase, CheckpointItem
from torch_checkpointing.checkpoint_saver import CheckpointSaver
from torch_checkpointing.checkpoint_writer import CheckpointWriter, CheckpointWriterConfig
from torch_checkpointing.config import (
    AsyncCheckpointSaverConfig,
    CheckpointLoaderConfig,
    CheckpointSaverConfig,
    SyncCheckpointSaverConfig,
)
from torch_checkpointing.default_metadata import DefaultShardingMetadata
from torch_checkpointing.distributed_metadata import (
    CheckpointMetadata,
    DistributedItemMetadata,
    DistributedMetadata,
    GlobalObjectMetadata,
    ItemMetadata,
    ShardingMetadata,
)
from torch_checkpointing.dtensor_metadata import (
    DeviceMeshSpec,
    DTensorShardingMetadata,
    ReplicateSpec,
    ShardSpec,
    StridedShardSpec,
    _PlacementSpec,
    get_device_mesh_spec,
)
from torch_checkpointing.metadata_manager import DefaultMetadataManager, MetadataManager
from torch_checkpointing.resharding import LoadPlan, Resharder, ReshardingInfo
from torch_checkpointing.schema import ItemSpec
from torch_checkpointing.staging import CheckpointStager, CheckpointStagerConfig, DefaultStager
from torch_checkpointing.state_transformations import optimizer_transform_post, optimizer_transform_pre
from torch_checkpointing.types import STATE_DICT, RankInfo
from torch_checkpointing.utils import wrap_future
from torch_checkpointing.version import Version, __version__, get_version

from cairn._torch_names import modules
from cairn.torch_checkpointing.builder import make_async_checkpoint_saver, make_sync_checkpoint_saver
from cairn.torch_checkpointing.checkpoint_loader import CheckpointLoader
from cairn.torch_checkpointing.checkpoint_reader import CheckpointReader
from cairn.torch_checkpointing.file_choice import Files
from cairn.torch_checkpointing.installing import install, uninstall
from cairn.torch_checkpointing.managed_checkpoints import CheckpointManager
from cairn.torch_checkpointing.savers import AsyncCheckpointSaver, SyncCheckpointSaver, WaitTimeout

__all__ = [
    "STATE_DICT",
    "AsyncCheckpointSaver",
    "AsyncCheckpointSaverConfig",
    "Barrier",
    "BarrierConfig",
    "CheckpointBase",
    "CheckpointItem",
    "CheckpointLoader",
    "CheckpointLoaderConfig",
    "CheckpointManager",
    "CheckpointMetadata",
    "CheckpointReader",
    "CheckpointSaver",
    "CheckpointSaverConfig",
    "CheckpointStager",
    "CheckpointStagerConfig",
    "CheckpointWriter",
    "CheckpointWriterConfig",
    "DTensorShardingMetadata",
    "DefaultMetadataManager",
    "DefaultShardingMetadata",
    "DefaultStager",
    "DefaultStoreBarrier",
    "DefaultStoreBarrierConfig",
    "DeviceMeshSpec",
    "DistributedItemMetadata",
    "DistributedMetadata",
    "Files",
    "GlobalObjectMetadata",
    "ItemMetadata",
    "ItemSpec",
    "LoadPlan",
    "MetadataManager",
    "RankInfo",
    "ReplicateSpec",
    "Resharder",
    "ReshardingInfo",
    "ShardSpec",
    "ShardingMetadata",
    "StridedShardSpec",
    "SyncCheckpointSaver",
    "SyncCheckpointSaverConfig",
    "TCPStoreBarrier",
    "TCPStoreBarrierConfig",
    "Version",
    "WaitTimeout",
    "_PlacementSpec",
    "__version__",
    "get_device_mesh_spec",
    "get_version",
    "install",
    "make_async_checkpoint_saver",
    "make_sync_checkpoint_saver",
    "optimizer_transform_post",
    "optimizer_transform_pre",
    "uninstall",
    "wrap_future",
]

if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
