"""Cairn saves and loads the state of distributed training.

``import cairn as dcp`` replaces ``import torch.distributed.checkpoint as dcp``: the package has every name of DCP and
of DCP's modules, as Cairn's own object or as torch's, and reads and writes the files of DCP. :func:`install` replaces
DCP in programs that must not be changed; :func:`report` lists the calls that used the engine. ``open`` and ``verify``
examine a checkpoint, ``read`` returns its state, ``diff`` compares two, and ``convert`` copies one into another format;
``latest``, ``checkpoints`` and ``saves_in_flight`` find the checkpoints from which a job can resume; ``prune`` and
``remove_checkpoint`` remove checkpoints, ``pin`` protects a checkpoint from both, ``clean`` removes the files of dead
saves, and ``repair`` rebuilds lost metadata; ``simulate_run`` shows how often a run should save. These functions, and
``import cairn``, need no torch.

Every error is a :class:`cairn.Error` that names key, file and offset, and also the matching built-in exception
(``FileNotFoundError``, ``ValueError``, ...).
"""

import importlib
from typing import Any

from cairn._engine import __version__
from cairn._torch_names.modules import find_modules as _find_modules
from cairn._torch_names.modules import has_torch as _has_torch
from cairn._torch_names.modules import later_exports as _later_exports
from cairn._torch_names.modules import names_of as _names_of
from cairn._whole_state import read
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
from cairn.cleaning import CleanedSave, CleanReport, clean
from cairn.conversion import ConvertReport, TiedTensors, convert
from cairn.difference import DiffReport, ElementDifference, KeyDifference, NumberDifference, diff
from cairn.errors import (
    Cancelled,
    Corrupt,
    Error,
    InternalError,
    InvalidArgument,
    MissingKey,
    NoSpace,
    NotFound,
    Replaced,
    Superseded,
    Unavailable,
    UnsafeContent,
    Unsupported,
    UnusableDirectory,
)
from cairn.in_flight import (
    ListedCheckpoint,
    SaveInFlight,
    SaveInFlightWriter,
    checkpoints,
    latest,
    saves_in_flight,
)
from cairn.progress import Progress, ProgressDisplay, show_progress
from cairn.repairing import FoundSave, LostElements, RepairReport, repair
from cairn.retention import (
    KeptCheckpoint,
    PruneReport,
    RemovedCheckpoint,
    pin,
    pin_note,
    prune,
    remove_checkpoint,
    unpin,
)
from cairn.run_cost import SimulatedRun, simulate_run
from cairn.stop_signals import ignore_stop_signals

__all__ = [
    "AsyncCheckpointerType",
    "AsyncLoad",
    "AsyncSaver",
    "BytesStorageMetadata",
    "Cancelled",
    "Checkpoint",
    "CheckpointException",
    "CheckpointManager",
    "Chunk",
    "ChunkStorageMetadata",
    "CleanReport",
    "CleanedSave",
    "ConversionWarning",
    "ConvertReport",
    "Corrupt",
    "DamageWarning",
    "DefaultLoadPlanner",
    "DefaultSavePlanner",
    "DeviceWarning",
    "DiffReport",
    "ElementDifference",
    "Error",
    "FileSystemReader",
    "FileSystemWriter",
    "FoundSave",
    "HuggingFaceStorageReader",
    "HuggingFaceStorageWriter",
    "IgnoredKeysWarning",
    "InternalError",
    "InvalidArgument",
    "KeptCheckpoint",
    "KeyDifference",
    "ListedCheckpoint",
    "LoadPlan",
    "LoadPlanner",
    "LoadedKeys",
    "LostElements",
    "Metadata",
    "MissingKey",
    "NoSpace",
    "NotFound",
    "NumberDifference",
    "PerRank",
    "PickleWarning",
    "Progress",
    "ProgressDisplay",
    "PruneReport",
    "QuantizedHuggingFaceStorageReader",
    "ReadItem",
    "RemovedCheckpoint",
    "RepairReport",
    "Replaced",
    "RunReport",
    "SaveFuture",
    "SaveInFlight",
    "SaveInFlightWriter",
    "SavePlan",
    "SavePlanner",
    "SimulatedRun",
    "Stateful",
    "StorageReader",
    "StorageWriter",
    "Superseded",
    "TensorInfo",
    "TensorStorageMetadata",
    "TiedTensors",
    "Unavailable",
    "UnknownObject",
    "UnsafeContent",
    "Unsupported",
    "UnusableDirectory",
    "ValueInfo",
    "VerifyReport",
    "WriteItem",
    "__version__",
    "async_save",
    "checkpoints",
    "clean",
    "configure_async_saves",
    "configure_saves",
    "convert",
    "diff",
    "ignore_stop_signals",
    "install",
    "latest",
    "load",
    "load_async",
    "load_model",
    "load_sharded_optimizer_state_dict",
    "load_state_dict",
    "open",
    "pin",
    "pin_note",
    "prepare_async_saves",
    "prune",
    "random_states",
    "read",
    "remove_checkpoint",
    "repair",
    "report",
    "save",
    "save_state_dict",
    "saves_in_flight",
    "set_random_states",
    "show_progress",
    "simulate_run",
    "staging_fence",
    "uninstall",
    "unpin",
    "verify",
]

# Names that torch's package lacks. Their modules are imported at the first access.
_LATE = {
    "AsyncCheckpointerType": "cairn._torch_names.torch_floor",
    "AsyncLoad": "cairn._calls.load_async",
    "AsyncSaver": "cairn._async.async_saver",
    "CheckpointManager": "cairn.managed_run",
    "ConversionWarning": "cairn.warnings",
    "DamageWarning": "cairn.warnings",
    "DeviceWarning": "cairn.warnings",
    "IgnoredKeysWarning": "cairn.warnings",
    "LoadedKeys": "cairn._state.key_terms",
    "PerRank": "cairn._state.per_rank",
    "PickleWarning": "cairn.warnings",
    "RunReport": "cairn.managed_run",
    "SaveFuture": "cairn._async.pending_saves",
    "Stateful": "torch.distributed.checkpoint.stateful",
    "configure_async_saves": "cairn._calls.async_save",
    "configure_saves": "cairn._settings",
    "install": "cairn._calls.installing",
    "load_async": "cairn._calls.load_async",
    "load_model": "cairn._calls.load_model",
    "prepare_async_saves": "cairn._calls.async_save",
    "random_states": "cairn._state.random_states",
    "report": "cairn._telemetry.engine_use",
    "set_random_states": "cairn._state.random_states",
    "staging_fence": "cairn.staging",
    "uninstall": "cairn._calls.installing",
}

__all__.extend(_later_exports())
_NEED_TORCH = frozenset(__all__).difference(globals())

_find_modules()
_name_of_torch, _names = _names_of(__name__)
if not _has_torch():
    __all__ = [name for name in __all__ if name not in _NEED_TORCH]  # for ``from cairn import *``


def __dir__() -> list[str]:
    return sorted({*_names(), *_NEED_TORCH})


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        _refuse_older_torch()
    try:
        if name == "_experimental":  # Cairn's own module, also with a torch that lacks the name
            return importlib.import_module("cairn._experimental")
        if name not in _LATE:
            return _name_of_torch(name)
        return getattr(importlib.import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        if name not in _NEED_TORCH:
            raise AttributeError(f"module 'cairn' has no attribute '{name}'") from None
        # no ModuleNotFoundError: hasattr() and help() expect an AttributeError
        raise AttributeError(f"cairn.{name} needs torch, which is not installed") from error


def _refuse_older_torch() -> None:
    """Raises ImportError if torch is too old. A missing torch is no error here: not every name needs torch."""
    try:
        importlib.import_module("cairn._torch_names.torch_floor")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
