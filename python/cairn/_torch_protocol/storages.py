"""The storages of ``torch.distributed.checkpoint`` that the engine can replace, and their directories.

These are torch's ``FileSystemWriter`` and ``FileSystemReader``, Cairn's own, and ``FsspecWriter`` and ``FsspecReader``,
in a directory of a local file system and in torch's plain format; and torch's ``HuggingFaceStorageWriter`` and
``HuggingFaceStorageReader`` and Cairn's own, for models of safetensors. Of subclasses, the engine replaces the hooks
that the subclass does not override (:mod:`cairn._torch_protocol.hooks`); a subclass of a Hugging Face storage that
overrides a hook stores by its own rules. Each function here that returns a reason returns "" for no reason.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.filesystem import FileSystemReader as StockReader
from torch.distributed.checkpoint.filesystem import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as StockModelReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as StockModelWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager as StockBlockingStager

from cairn._directory import local_directory, readable_place
from cairn._torch_names import replacements
from cairn._torch_names.torch_floor import FSSPEC_FILE_SYSTEM, FSSPEC_MODULE, ExtensionRegistry, SerializationFormat
from cairn._torch_protocol.hooks import extends, hooks_of, name_of, overridden, why_not_native

_PathLike = str | os.PathLike[str]

#: Opens the safetensors model of a directory, in the place of a metadata file's name.
MODEL_INDEX = "model.safetensors.index.json"

# Hooks that do not affect the stored bytes: a writer is a stager too.
_OTHER_HOOKS = hooks_of(StockBlockingStager) | {"validate_checkpoint_id"}
_WRITER_HOOKS = hooks_of(StockWriter) - _OTHER_HOOKS
_READER_HOOKS = hooks_of(StockReader) - _OTHER_HOOKS
_MODEL_WRITER_HOOKS = hooks_of(StockModelWriter) - _OTHER_HOOKS
_MODEL_READER_HOOKS = hooks_of(StockModelReader) - _OTHER_HOOKS

# If a subclass overrides a hook of these lists, torch's code carries out the hooks that the subclass inherits from
# Cairn's class. The steps of a writer (claim, write, commit) depend on one another: a subclass that overrides one of
# the first two, as in Megatron and NVRx, stores by its own rules. A subclass whose finish() does not call
# super().finish() does too: such a subclass writes its own metadata, or has torch's class write metadata, and Cairn's
# claim would never be committed. A reader's hooks are independent of each other.
_WRITING_HOOKS = ("_get_metadata_path", "_metadata_exists", "_write_data", "prepare_global_plan", "write_data")
_MODEL_WRITING_HOOKS = ("_split_by_storage_plan", "_write_data", "metadata_path", "prepare_global_plan", "write_data")
_READING_HOOKS = ("_get_metadata_path", "_slice_file")
_MODEL_READING_HOOKS = ("_process_read_request", "_read_files_from_queue")


def why_writer_is_foreign(writer: Any, checkpoint_id: _PathLike | None) -> str:
    """Returns why the engine can't carry out a whole save for `writer`, reset to `checkpoint_id` unless None.

    Without a writer: why the id is no directory.
    """
    if writer is None:
        return _why_unreachable(checkpoint_id, local_directory)
    if isinstance(writer, StockModelWriter):
        reason = _why_model_writer_is_foreign(writer)
        return reason or ("" if _is_local(writer, checkpoint_id) else _elsewhere(writer))
    return why_not_native(writer, _WRITER_HOOKS, _native_writers()) or _why_not_plain(writer, checkpoint_id)


def why_reader_is_foreign(reader: Any, checkpoint_id: _PathLike | None) -> str:
    """Returns why the engine can't carry out a whole load for `reader`: as why_writer_is_foreign()."""
    if reader is None:
        return _why_unreachable(checkpoint_id, readable_place)
    if isinstance(reader, StockModelReader):
        reason = _why_model_reader_is_foreign(reader)
        return reason or ("" if _is_local(reader, checkpoint_id) else _elsewhere(reader))
    if reason := why_not_native(reader, _READER_HOOKS, _native_readers()):
        return reason
    if not _is_local(reader, checkpoint_id):
        return _elsewhere(reader)
    known = reader.transforms.extension_registry.extensions.keys() == ExtensionRegistry().extensions.keys()
    return "" if known else f"{name_of(type(reader))} has stream extensions"


def why_torch_writes(writer: Any) -> str:
    """Returns why torch's code, not the engine, carries out the hooks that `writer` inherits from Cairn's
    FileSystemWriter or HuggingFaceStorageWriter."""
    is_model = isinstance(writer, StockModelWriter)
    native = _native_model_writers() if is_model else _native_writers()
    if reason := _of_its_own(writer, _MODEL_WRITING_HOOKS if is_model else _WRITING_HOOKS, native):
        return reason
    if not extends(writer, "finish", native):
        return f"{name_of(type(writer))} overrides finish without super().finish()"
    if is_model:
        return "" if _is_local(writer, None) else _elsewhere(writer)
    return _why_not_plain(writer, None)


def why_torch_reads(reader: Any) -> str:
    """As why_torch_writes(), for a FileSystemReader."""
    if reason := _of_its_own(reader, _READING_HOOKS, _native_readers()):
        return reason
    return "" if _is_local(reader, None) else _elsewhere(reader)


def model_directory(reader: Any) -> _PathLike | None:
    """Returns the directory of a Hugging Face reader; None for another reader."""
    return directory_of(reader) if isinstance(reader, StockModelReader) else None


def directory_of(storage: Any) -> _PathLike:
    """Returns the directory of a local storage."""
    local = _local_fsspec(storage.fs)
    directory: _PathLike = storage.path if local is None else local._strip_protocol(os.fspath(storage.path))
    return directory


def _native_writers() -> tuple[type, ...]:
    fsspec = _fsspec_module()
    ours = replacements.own(("filesystem", "FileSystemWriter"))
    return (ours, StockWriter, *(() if fsspec is None else (fsspec.FsspecWriter,)))


def _native_readers() -> tuple[type, ...]:
    fsspec = _fsspec_module()
    ours = replacements.own(("filesystem", "FileSystemReader"))
    return (ours, StockReader, *(() if fsspec is None else (fsspec.FsspecReader,)))


def _fsspec_module() -> ModuleType | None:
    """Returns torch's module of fsspec storages; None if the module was never imported and its classes have no
    instances."""
    return sys.modules.get(FSSPEC_MODULE)


def why_torch_reads_model_data(reader: Any) -> str:
    """As why_torch_reads(), for the data of a HuggingFaceStorageReader. The engine may read the metadata all the same.

    Cairn's QuantizedHuggingFaceStorageReader calls ``_process_read_request`` itself.
    """
    quantised = replacements.own(("quantized_hf_storage", "QuantizedHuggingFaceStorageReader"))
    hooks = _MODEL_READING_HOOKS[1:] if quantised in type(reader).__mro__ else _MODEL_READING_HOOKS
    return why_torch_reads(reader) or _of_its_own(reader, hooks, _native_model_readers())


def _of_its_own(storage: Any, hooks: tuple[str, ...], native: tuple[type, ...]) -> str:
    names = overridden(storage, hooks, native)
    return f"{name_of(type(storage))} overrides {', '.join(names)}" if names else ""


def _why_not_plain(writer: Any, checkpoint_id: _PathLike | None) -> str:
    if not _is_local(writer, checkpoint_id):
        return _elsewhere(writer)
    if writer.transforms.extensions:
        return f"{name_of(type(writer))} has stream extensions"
    if writer.serialization_format is not SerializationFormat.TORCH_SAVE:
        return f"{name_of(type(writer))} has the serialization format {writer.serialization_format.name}"
    return ""


def _elsewhere(storage: Any) -> str:
    return f"{name_of(type(storage))} does not store in a local directory"


def _why_unreachable(checkpoint_id: _PathLike | None, place_of: Callable[[_PathLike], _PathLike | None]) -> str:
    if not checkpoint_id or place_of(checkpoint_id) is not None:
        return ""
    return f"{str(checkpoint_id).partition('://')[0]}:// is not a local directory"


def _is_local(storage: Any, checkpoint_id: _PathLike | None) -> bool:
    if type(storage.fs) is FileSystem:
        return True
    if checkpoint_id is None:
        return _local_fsspec(storage.fs) is not None
    fsspec = _fsspec_module()  # reset() of its storages changes the file system by the id
    is_fsspec = fsspec is not None and type(storage.fs) is getattr(fsspec, FSSPEC_FILE_SYSTEM)
    return is_fsspec and "::" not in str(checkpoint_id) and local_directory(checkpoint_id) is not None


def _local_fsspec(fs: Any) -> Any:
    """Returns fsspec's object for local files if `fs` uses that object; None otherwise."""
    torchs, local = _fsspec_module(), sys.modules.get("fsspec.implementations.local")
    if torchs is None or local is None or type(fs) is not getattr(torchs, FSSPEC_FILE_SYSTEM):
        return None
    return fs.fs if type(fs.fs) is local.LocalFileSystem else None


def writes_model(writer: Any) -> bool:
    """Returns whether `writer` is a Hugging Face writer whose hooks the engine can replace."""
    return isinstance(writer, StockModelWriter) and not _why_model_writer_is_foreign(writer)


def reads_model(reader: Any) -> bool:
    """Returns whether `reader` is a Hugging Face reader whose hooks the engine can replace."""
    return isinstance(reader, StockModelReader) and not _why_model_reader_is_foreign(reader)


def _native_model_writers() -> tuple[type, ...]:
    """Returns Cairn's writer of models and torch's."""
    return replacements.own(("hf_storage", "HuggingFaceStorageWriter")), StockModelWriter


def _native_model_readers() -> tuple[type, ...]:
    """Returns Cairn's reader of models and torch's."""
    return replacements.own(("hf_storage", "HuggingFaceStorageReader")), StockModelReader


def _why_model_writer_is_foreign(writer: Any) -> str:
    """Returns why the engine can't save for the Hugging Face writer: an overridden hook."""
    return why_not_native(writer, _MODEL_WRITER_HOOKS, _native_model_writers())


def _why_model_reader_is_foreign(reader: Any) -> str:
    """Returns why the engine can't load for the Hugging Face reader: an overridden hook."""
    return why_not_native(reader, _MODEL_READER_HOOKS, _native_model_readers())


def model_form(writer: Any) -> tuple[dict[str, int], bool, bool]:
    """Returns the engine's option ``safetensors`` for a Hugging Face writer.

    The shards that are consolidated afterwards may replace older shards: the model is the consolidated one.
    """
    return dict(writer.fqn_to_index_mapping or {}), bool(writer.save_distributed), bool(writer.enable_consolidation)


def consolidated_directory(writer: Any) -> Path | None:
    """Returns the directory for the consolidated model; None if `writer` does not consolidate."""
    if not writes_model(writer) or not (writer.save_distributed and writer.enable_consolidation):
        return None
    return Path(writer.consolidated_output_path)
