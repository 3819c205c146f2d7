"""What a checkpointer is made of, in one place."""

from dataclasses import dataclass, field

from cairn.checkpointer.barriers import BarrierConfig
from cairn.checkpointer.checkpoint_process import CheckpointProcessConfig
from cairn.checkpointer.checkpoint_writer import CheckpointWriterConfig
from cairn.checkpointer.staging import CheckpointStagerConfig


@dataclass
class CheckpointerConfig:
    """The parts' own configurations; each may be left as it is.

    `writer_config` and `barrier_config` are for :func:`make_sync_checkpointer`, the other two for
    :func:`make_async_checkpointer`.
    """

    writer_config: CheckpointWriterConfig = field(default_factory=CheckpointWriterConfig)
    barrier_config: BarrierConfig = field(default_factory=BarrierConfig)
    staging_config: CheckpointStagerConfig = field(default_factory=CheckpointStagerConfig)
    process_config: CheckpointProcessConfig = field(default_factory=CheckpointProcessConfig)
