"""The files of torch_checkpointing, one for each item and rank, written by the engine.

The files and their names are those of torch_checkpointing's own writer. The directory appears when the files of all
ranks are durable. Every save of a saver with a metadata manager writes ``metadata.pkl``: torch_checkpointing's own code
leaves the file out of blocking saves after the first, and keeps the first metadata when the state changes.
"""

import json
from typing import Any

from torch_checkpointing.checkpoint_base import CheckpointInfo
from torch_checkpointing.checkpoint_layout import (
    JsonSerialization,
    LayoutInfo,
    RawSerialization,
    SafetensorsSerialization,
    TorchSerialization,
    default_torch_layout_info,
)

from cairn._async.pending_saves import PendingSave
from cairn._calls.files_save import begin_files
from cairn._ranks.ranks import Ranks
from cairn._state.described_files import DescribedFiles
from cairn.errors import InvalidArgument, Unsupported
from cairn.torch_checkpointing.metadata_file import METADATA_FILE_NAME, message_of, metadata_of
from cairn.torch_checkpointing.saver_terms import ItemsToSave


def begin_save(save: ItemsToSave, *, asynchronous_staging: bool) -> PendingSave:
    """Begins a save by a writer process. The staging future is done when the state may change, and the upload future
    when the files are durable and in place and ``save.finish()`` has returned. All ranks of torch's default process
    group call this."""
    return _begin(save, "torch_checkpointing.async_save", asynchronous_staging=asynchronous_staging)


def save_now(save: ItemsToSave) -> None:
    """Saves, and returns when the files are durable and in place and ``save.finish()`` has returned. All ranks call
    this."""
    _begin(save, "torch_checkpointing.save", asynchronous_staging=False).upload.result()


def _begin(save: ItemsToSave, function: str, *, asynchronous_staging: bool) -> PendingSave:
    ranks = Ranks()
    manager = save.terms.metadata_manager
    with ranks.all_fail_together("describing the items"):
        save.before()
        info = CheckpointInfo(dict(save.items))  # raises for names that torch_checkpointing refuses
        message = "" if manager is None else message_of(manager, info, ranks.rank)
    metadata = None if manager is None else metadata_of(manager, message, ranks)

    def describe() -> DescribedFiles:
        files = DescribedFiles()
        for key, value in info.state_dict.items():
            layout = info.layout_info_mappings[key] or default_torch_layout_info(key, ranks.rank)
            _add_item(files, key, value, layout)
        if metadata is not None:
            files.add_bytes(METADATA_FILE_NAME, metadata.data)
        return files

    return begin_files(describe, save.path, save.finish, function=function, asynchronous_staging=asynchronous_staging)


def _add_item(files: DescribedFiles, key: str, value: Any, layout: LayoutInfo) -> None:
    name, form = layout.file_path, layout.serialization_format
    if "/" in name:
        raise Unsupported(
            f"the layout of item '{key}' puts its file into a folder, which the engine does not write: choose a file "
            f"path without a folder",
            key=key,
            file=name,
        )
    if isinstance(form, TorchSerialization):
        files.add_torch_save(name, value)
    elif isinstance(form, JsonSerialization):
        files.add_bytes(name, json.dumps(value, sort_keys=True, indent=4).encode())
    elif isinstance(form, RawSerialization):
        if not isinstance(value, bytes):
            raise InvalidArgument(
                f"item '{key}' has the layout RawSerialization, which takes bytes",
                key=key,
                expected="bytes",
                actual=type(value).__name__,
            )
        files.add_bytes(name, value)
    elif isinstance(form, SafetensorsSerialization):
        files.add_safetensors(name, SafetensorsSerialization.prepare_tensors_for_save(value), form.metadata)
    else:
        raise Unsupported(
            f"item '{key}' has a layout of an unknown serialization format", key=key, actual=type(form).__name__
        )
