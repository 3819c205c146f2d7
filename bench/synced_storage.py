"""A storage for torch_checkpointing that syncs what it writes, as the other libraries do.

It works in the process that writes, so its time and its CPU count where they arise.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable import sync
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
        # O_DIRECT is the library's default, and fails: what torch.save writes is not aligned.
        return SyncedStorage(LocalFileSystemStorageConfig(use_direct_io=False))


def sync_checkpoint(path: str, _: Any) -> None:
    """The last step of a save: the names of its files, and its own."""
    sync(Path(path))
    sync(Path(path).parent)
