"""The Hugging Face storages of ``torch.distributed.checkpoint``, which stand for native saves and loads of models.

These are torch's ``HuggingFaceStorageWriter`` and ``HuggingFaceStorageReader`` and Cairn's own, in a directory of a
local file system. A subclass that overrides a hook stores by its own rules. Each function here that returns a reason
returns "" for no reason.
"""

import os
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as StockModelReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as StockModelWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager as StockBlockingStager

from cairn._mirror import replacements
from cairn._native.hooks import hooks_of, why_not_native

_PathLike = str | os.PathLike[str]

#: Opens the safetensors model of a directory, in the place of a metadata file's name.
MODEL_INDEX = "model.safetensors.index.json"

_OTHER_HOOKS = hooks_of(StockBlockingStager) | {"validate_checkpoint_id"}
_WRITER_HOOKS = hooks_of(StockModelWriter) - _OTHER_HOOKS
_READER_HOOKS = hooks_of(StockModelReader) - _OTHER_HOOKS


def writes_model(writer: Any) -> bool:
    """Returns whether `writer` is a Hugging Face writer whose hooks the engine can replace."""
    return isinstance(writer, StockModelWriter) and not why_model_writer_is_foreign(writer)


def reads_model(reader: Any) -> bool:
    """Returns whether `reader` is a Hugging Face reader whose hooks the engine can replace."""
    return isinstance(reader, StockModelReader) and not why_model_reader_is_foreign(reader)


def native_model_writers() -> tuple[type, ...]:
    """Returns Cairn's writer of models and torch's."""
    return replacements.own(("hf_storage", "HuggingFaceStorageWriter")), StockModelWriter


def native_model_readers() -> tuple[type, ...]:
    """Returns Cairn's reader of models and torch's."""
    return replacements.own(("hf_storage", "HuggingFaceStorageReader")), StockModelReader


def why_model_writer_is_foreign(writer: Any) -> str:
    """Returns why the engine can't save for the Hugging Face writer: an overridden hook."""
    return why_not_native(writer, _WRITER_HOOKS, native_model_writers())


def why_model_reader_is_foreign(reader: Any) -> str:
    """Returns why the engine can't load for the Hugging Face reader: an overridden hook."""
    return why_not_native(reader, _READER_HOOKS, native_model_readers())


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
