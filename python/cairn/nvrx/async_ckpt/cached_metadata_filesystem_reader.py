"""CachedMetadataFileSystemReader, with the name of NVRx's module ``async_ckpt.cached_metadata_filesystem_reader``."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata

from cairn._directory import metadata_name, real_path
from cairn._process import ProcessPart, part
from cairn._torch_protocol.storages import directory_of
from cairn.filesystem import FileSystemReader

_PathLike = str | os.PathLike[str]


class _FileIdentity(NamedTuple):
    """A file as stat() sees it: a replaced or rewritten file differs."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class _MetadataOfDirectories(ProcessPart):
    """By directory, the metadata that was read, and the identity of its file at that time."""

    def __init__(self) -> None:
        self.by_directory: dict[str, tuple[_FileIdentity, Metadata]] = {}


class CachedMetadataFileSystemReader(FileSystemReader):
    """A FileSystemReader that reads the metadata of a directory once per process. As in NVRx.

    The metadata is read again when the file ``.metadata`` has been replaced; NVRx gives the old metadata for ever.
    `cache_metadata`: False reads the file at every call.
    """

    def __init__(self, path: _PathLike, cache_metadata: bool = True) -> None:
        super().__init__(path)
        self._cache_metadata = cache_metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the metadata; `rank` selects the checkpoint that the rank saved alone, which is not kept."""
        if not self._cache_metadata or args or kwargs.get("rank") is not None:
            return super().read_metadata(*args, **kwargs)
        directory = directory_of(self)
        key = real_path(directory)
        known = part(_MetadataOfDirectories).by_directory
        before = _identity_of(directory)
        kept = known.get(key)
        if kept is not None and kept[0] == before:
            return kept[1]
        metadata = super().read_metadata()
        if before is not None and before == _identity_of(directory):  # not replaced meanwhile
            known[key] = (before, metadata)
        return metadata

    @classmethod
    def clear_metadata_cache(cls, path: _PathLike | None = None) -> None:
        """Forgets the metadata of a directory; of all directories if `path` is None."""
        known = part(_MetadataOfDirectories).by_directory
        if path is None:
            known.clear()
        else:
            known.pop(real_path(path), None)


def clear_metadata_cache(path: _PathLike | None = None) -> None:
    """As CachedMetadataFileSystemReader.clear_metadata_cache()."""
    CachedMetadataFileSystemReader.clear_metadata_cache(path)


def _identity_of(directory: _PathLike) -> _FileIdentity | None:
    try:
        status = (Path(directory) / metadata_name(None)).stat()
    except OSError:
        return None
    return _FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
