"""FileSystemWriter and FileSystemReader: DCP's, with the same arguments and attributes, carried out by the engine.

Each is one of torch's own, so that code which asks ``isinstance``, or hands them to ``torch.distributed.checkpoint``,
goes on working.
"""

import os
from collections.abc import Sequence
from typing import Any

from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
from torch.distributed.checkpoint.filesystem import FileSystem, SerializationFormat
from torch.distributed.checkpoint.filesystem import FileSystemReader as StockReader
from torch.distributed.checkpoint.filesystem import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.metadata import Metadata

from cairn import _engine, mirror
from cairn.errors import InvalidArgument, Unsupported
from cairn.metadata import LazyMetadata

_PathLike = str | os.PathLike[str]
_THREADS = 4  # requests in flight; torch's default of 1 would leave the device idle


class MissingCheckpointId(InvalidArgument, RuntimeError):
    """Neither a checkpoint_id nor a storage was given. DCP raises RuntimeError."""


@mirror.stands_for_base
class FileSystemWriter(StockWriter):
    """Where and how ``cairn.save`` writes. The arguments are those of DCP's class:

    `path`, a directory; `single_file_per_rank`, False for one file per entry; `sync_files`, False to let the kernel
    write when it likes (a power cut may then lose the checkpoint); `thread_count`, writes in flight (it does not change
    how many files there are); `overwrite`, False to raise if there is a checkpoint already. The others have no effect
    yet.
    """

    def __init__(
        self,
        path: _PathLike,
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = _THREADS,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        _extensions: Sequence[StreamTransformExtension] | None = None,
        serialization_format: SerializationFormat = SerializationFormat.TORCH_SAVE,
    ) -> None:
        super().__init__(
            path,
            single_file_per_rank,
            sync_files,
            thread_count,
            per_thread_copy_ahead,
            cache_staged_state_dict,
            overwrite,
            _extensions,
            serialization_format,
        )


@mirror.stands_for_base
class FileSystemReader(StockReader):
    """Where ``cairn.load`` reads: `path`, a directory; `thread_count`, reads in flight.

    :meth:`read_metadata` decodes natively and runs no code from the checkpoint.
    """

    def __init__(
        self, path: _PathLike, _extension_registry: ExtensionRegistry | None = None, thread_count: int = _THREADS
    ) -> None:
        super().__init__(path, _extension_registry)
        self.thread_count = thread_count

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata, as torch's class; `rank` asks for what that rank saved alone. Filled when it is looked at."""
        if type(self.fs) is not FileSystem:  # a subclass reads from elsewhere
            return super().read_metadata(*args, **kwargs)
        rank = kwargs.get("rank")
        name = ".metadata" if rank is None else f"__{rank}.metadata"
        opened = _engine.open(os.fsencode(self.path), name)
        return LazyMetadata(_engine.catalog_of(opened), self.load_id)


def save_options(checkpoint_id: _PathLike | None, writer: object | None) -> tuple[_PathLike, dict[str, Any]]:
    """The directory and the engine's options for a save. Raises Unsupported for writers that are not file systems'."""
    if writer is None:
        directory = _directory(checkpoint_id, "storage_writer")
        return directory, {"checkpoint_id": os.fspath(directory)}
    if type(writer) not in (FileSystemWriter, StockWriter):
        raise Unsupported(f"storage writers of class {_name(writer)} are not supported yet")
    assert isinstance(writer, StockWriter)
    if writer.transforms.extensions or writer.serialization_format is not SerializationFormat.TORCH_SAVE:
        raise Unsupported("stream extensions and other serialization formats are not supported yet")
    if checkpoint_id is not None:
        writer.reset(checkpoint_id)
    return writer.path, {
        "checkpoint_id": os.fspath(writer.path),
        "file_per_item": not writer.single_file_per_rank,
        "durable": writer.sync_files,
        "overwrite": writer.overwrite,
        "thread_count": max(writer.thread_count, 1 if type(writer) is FileSystemWriter else _THREADS),
    }


def load_options(checkpoint_id: _PathLike | None, reader: object | None) -> tuple[_PathLike, dict[str, Any]]:
    """The directory and the engine's options for a load. Raises Unsupported for readers that are not file systems'."""
    if reader is None:
        return _directory(checkpoint_id, "storage_reader"), {}
    if type(reader) not in (FileSystemReader, StockReader):
        raise Unsupported(f"storage readers of class {_name(reader)} are not supported yet")
    assert isinstance(reader, StockReader)
    if reader.transforms.extension_registry.extensions.keys() != ExtensionRegistry().extensions.keys():
        raise Unsupported("stream extensions are not supported yet")
    if checkpoint_id is not None:
        reader.reset(checkpoint_id)
    return reader.path, {"thread_count": getattr(reader, "thread_count", _THREADS)}


def _directory(checkpoint_id: _PathLike | None, storage: str) -> _PathLike:
    if not checkpoint_id:
        raise MissingCheckpointId(f"`checkpoint_id` must be specified if `{storage}` is None")
    if isinstance(checkpoint_id, str) and "://" in checkpoint_id:
        raise Unsupported("only directories are supported yet", actual=checkpoint_id)
    return checkpoint_id


def _name(instance: object) -> str:
    return f"{type(instance).__module__}.{type(instance).__qualname__}"


__getattr__, __dir__ = mirror.names_of(__name__)
