"""A storage for torch_checkpointing that syncs its writes, as the other libraries do.

The storage works in the writing process: its time and CPU count there.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable import sync
from torch_checkpointing.checkpoint_writer import CallbackArgs
from torch_checkpointing.storage.base_storage import StorageConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorage, LocalFileSystemStorageConfig, WriteStream


class SyncedStream(WriteStream):
    def close(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        super().close()


class SyncedStorage(LocalFileSystemStorage):
    def stream_write(self, path: Path) -> SyncedStream:
        return SyncedStream(path, "wb", self._use_direct_io)

    def write(self, path: Path, data: Any) -> None:
        with self.stream_write(path) as stream:
            stream.write(data)


@dataclass
class SyncedStorageConfig(StorageConfig):
    def create_storage(self) -> SyncedStorage:
        # The library's default, O_DIRECT, fails: torch.save's writes are not aligned.
        return SyncedStorage(LocalFileSystemStorageConfig(use_direct_io=False))


def sync_checkpoint(arguments: CallbackArgs) -> None:
    """Runs as the last step of a save: makes the names of its files durable, and its own name."""
    path = Path(arguments.path)
    sync(path)
    sync(path.parent)
