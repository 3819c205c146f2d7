"""Cairn saves and loads the state of distributed training.

``save`` and ``load`` take the place of their namesakes in ``torch.distributed.checkpoint`` and use the same files.
``open`` and ``verify`` look at a checkpoint; they, and ``import cairn``, need no torch.

Every error is a :class:`cairn.Error` that says which key, file and offset it is about, and also the built-in exception
that one would expect (``FileNotFoundError``, ``ValueError``, ...).
"""

from typing import TYPE_CHECKING, Any

from cairn._engine import __version__
from cairn.checkpoint import (
    Checkpoint,
    Chunk,
    TensorInfo,
    UnknownObject,
    ValueInfo,
    VerifyReport,
    open,
    verify,
)
from cairn.errors import (
    Cancelled,
    Corrupt,
    Error,
    InternalError,
    InvalidArgument,
    MissingKey,
    NoSpace,
    NotFound,
    Superseded,
    Unavailable,
    UnsafeContent,
    Unsupported,
)

if TYPE_CHECKING:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import Metadata

    from cairn.filesystem import FileSystemReader, FileSystemWriter
    from cairn.loading import load
    from cairn.objects import ConversionWarning, PickleWarning
    from cairn.saving import save

__all__ = [
    "Cancelled",
    "Checkpoint",
    "Chunk",
    "ConversionWarning",
    "Corrupt",
    "DefaultLoadPlanner",
    "DefaultSavePlanner",
    "Error",
    "FileSystemReader",
    "FileSystemWriter",
    "InternalError",
    "InvalidArgument",
    "Metadata",
    "MissingKey",
    "NoSpace",
    "NotFound",
    "PickleWarning",
    "Superseded",
    "TensorInfo",
    "Unavailable",
    "UnknownObject",
    "UnsafeContent",
    "Unsupported",
    "ValueInfo",
    "VerifyReport",
    "__version__",
    "load",
    "open",
    "save",
    "verify",
]

# What needs torch is imported when it is first asked for.
_LATE = {
    "ConversionWarning": "cairn.objects",
    "DefaultLoadPlanner": "torch.distributed.checkpoint.default_planner",
    "DefaultSavePlanner": "torch.distributed.checkpoint.default_planner",
    "FileSystemReader": "cairn.filesystem",
    "FileSystemWriter": "cairn.filesystem",
    "Metadata": "torch.distributed.checkpoint.metadata",
    "PickleWarning": "cairn.objects",
    "load": "cairn.loading",
    "save": "cairn.saving",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'cairn' has no attribute '{name}'")
    import importlib

    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise ModuleNotFoundError(f"cairn.{name} needs torch, which is not installed", name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
