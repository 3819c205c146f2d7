"""The configuration of a checkpointer."""

from dataclasses import dataclass, field

from cairn.checkpointer.barriers import BarrierConfig
from cairn.checkpointer.checkpoint_process import CheckpointProcessConfig
from cairn.checkpointer.checkpoint_writer import CheckpointWriterConfig
from cairn.checkpointer.staging import CheckpointStagerConfig


@dataclass
class CheckpointerConfig:
    """The configurations of a checkpointer's parts, each with defaults.

    `writer_config` and `barrier_config` are for :func:`make_sync_checkpointer`, `staging_config` and `process_config`
    for :func:`make_async_checkpointer`.
    """

    writer_config: CheckpointWriterConfig = field(default_factory=CheckpointWriterConfig)
    barrier_config: BarrierConfig = field(default_factory=BarrierConfig)
    staging_config: CheckpointStagerConfig = field(default_factory=CheckpointStagerConfig)
    process_config: CheckpointProcessConfig = field(default_factory=CheckpointProcessConfig)
