"""Saves and loads with a foreign planner or storage: by torch's own driver, with Cairn's native hooks where possible.

``cairn.save`` and ``cairn.load`` plan natively. If the planner or the storage overrides hooks, or has a class that the
engine does not know, torch's driver calls the hooks in torch's order. Cairn replaces the hooks that a storage inherits
from torch (:mod:`cairn._torch_protocol.hooks`): with a caller's planner the engine still moves the data.
"""

import contextlib
import importlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader as StockReader
from torch.distributed.checkpoint.filesystem import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as StockModelWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from cairn import _engine
from cairn._calls.arguments import Call
from cairn._directory import local_directory
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions, with_failures
from cairn._ranks.ranks import Ranks
from cairn._settings import pickle_allowed
from cairn._state.ignored_keys import warn_of_ignored_by_torch
from cairn._state.tensor_memory import check_memory_of_all
from cairn._telemetry import engine_use
from cairn._telemetry.ended_calls import Stopwatch
from cairn._torch_names import replacements
from cairn._torch_protocol.hooks import with_native_hooks
from cairn._torch_protocol.planners import why_load_planner_is_foreign, why_save_planner_is_foreign
from cairn._torch_protocol.storages import (
    why_reader_is_foreign,
    why_torch_reads,
    why_torch_writes,
    why_writer_is_foreign,
)
from cairn.errors import Error, InvalidArgument
from cairn.filesystem import FileSystemReader, FileSystemWriter, MissingCheckpointId, reading

_PathLike = str | os.PathLike[str]
_NAMED_KEYS_MAX = 8  # keys that a warning lists


def save_by_protocol(make_states: Callable[[], dict[str, Any]], call: Call, reason: str = "") -> Metadata:
    """Saves, by torch's driver, the state dict that `make_states` returns: for Statefuls their ``state_dict()``.

    A failure on one rank fails all ranks, also before and after the driver's work: in `make_states`, in the writer's
    ``reset``, or if the writer's ``finish`` does not commit. In these places torch's own call leaves the remaining
    ranks waiting, or lets them report success.

    `reason` is for engine_use: why the call is not carried out as its caller expects.

    Raises the exception of torch's driver, a CheckpointException with the failures by rank; if the first failure is a
    cairn.Error, the exception is a cairn.Error too. With Cairn's writer a failure leaves the old checkpoint whole and
    no files behind.
    """
    planner, alone = call.planner, _is_alone(call.no_dist)
    reasons = [reason, _planned(why_save_planner_is_foreign(planner))]
    reasons.append(_stored(why_writer_is_foreign(call.storage, call.checkpoint_id)))
    watch = Stopwatch("saved")
    ranks = Ranks(call.process_group, call.no_dist or not call.use_collectives)
    with ranks.all_or_none("prepare"):
        if call.notes is not None:
            raise InvalidArgument("notes can't be stored by torch's driver", actual=" and ".join(filter(None, reasons)))
        state_dict = make_states()
        check_memory_of_all(state_dict)
        if planner is None or getattr(planner, "flatten_state_dict", False):
            _engine.refuse_equal_texts(state_dict)  # torch's planner would merge what lies below such keys
        writer = _writer(call.storage, call.checkpoint_id)
    place = call.checkpoint_id or getattr(writer, "path", "")
    keywords: dict[str, Any] = {} if call.use_collectives else {"use_collectives": False}
    driver = replacements.original("state_dict_saver", "_save_state_dict")
    try:
        with engine_use.driving(call.function, place, reasons), _as_torch_raises():
            saved: Metadata = driver(
                state_dict, writer, call.process_group, call.coordinator_rank, alone, planner, **keywords
            )
            with ranks.all_or_none("finish"):
                if _is_cairns(writer, FileSystemWriter):
                    FileSystemWriter.check_committed(writer)
            if ranks.count == 1 and call.use_collectives and isinstance(saved, Metadata):
                _warn_of_parts(saved)
            watch.log(str(place), None, ranks.rank, ranks.count)
            return saved
    finally:
        if _is_cairns(writer, FileSystemWriter):
            FileSystemWriter.give_up(writer)  # FileSystemWriter's method, never a caller's override


def _warn_of_parts(saved: Metadata) -> None:
    """Warns, as the engine does, if the save of a process alone holds only parts of tensors."""
    keys = [
        repr(key)
        for key, entry in saved.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
        and sum(math.prod(chunk.sizes) for chunk in entry.chunks) < math.prod(entry.size)
    ]
    if keys:
        more = f" and {len(keys) - _NAMED_KEYS_MAX} more" if len(keys) > _NAMED_KEYS_MAX else ""
        warnings.warn(
            "this process saved alone and holds only parts of tensors, so that only these parts can be loaded: "
            f"{', '.join(keys[:_NAMED_KEYS_MAX])}{more}; let all ranks save together (with a process group)",
            RuntimeWarning,
            stacklevel=2,
        )


def load_by_protocol(
    make_states: Callable[[], dict[str, Any]], call: Call, *, allow_pickle: bool, **options: Any
) -> None:
    """Fills, by torch's driver, the state dict that `make_states` returns, whose Statefuls are resolved.

    A failure on one rank fails all ranks, as in save_by_protocol(). `allow_pickle` and `options` (verify, allow_cast,
    follow_links) are as in ``cairn.load``. A planner that overrides ``load_bytes`` gets the stored bytes. Foreign
    storages ignore `allow_pickle` and `options`. Raises as save_by_protocol().
    """
    planner, alone = call.planner, _is_alone(call.no_dist)
    # Cairn's own callers pass torch's planner: no user expects a native plan.
    ours = type(planner) is _EmptyStateDictLoadPlanner
    reasons = ["" if ours else _planned(why_load_planner_is_foreign(planner))]
    reasons.append(_stored(why_reader_is_foreign(call.storage, call.checkpoint_id)))
    watch = Stopwatch("loaded")
    ranks = Ranks(call.process_group, call.no_dist)
    with ranks.all_or_none("prepare"):
        state_dict = make_states()
        check_memory_of_all(state_dict)
        reader = _reader(call.storage, call.checkpoint_id)
    place = call.checkpoint_id or getattr(reader, "path", "")
    rules: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if _is_cairns(reader, FileSystemReader):
        rules = reading(reader, allow_pickle, options)
    driver = replacements.original("state_dict_loader", "_load_state_dict")
    with rules, engine_use.driving(call.function, place, reasons), _as_torch_raises():
        driver(state_dict, reader, call.process_group, call.coordinator_rank, alone, planner)
    warn_of_ignored_by_torch(state_dict, reader, planner, place)
    watch.log(str(place), None, ranks.rank, ranks.count)


def _load_state_dict_from_keys(
    keys: set[str] | str | None = None,
    *,
    checkpoint_id: _PathLike | None = None,
    storage_reader: Any = None,
    process_group: Any = None,
) -> dict[str, Any]:
    """Returns a new state dict with the entries that the checkpoint has under `keys`, whole and on the CPU; None: all
    entries.

    A key selects its own entry and all entries below: "model" selects "model.layer.weight".
    """
    state_dict: dict[str, Any] = {}
    make_planner: Any = _EmptyStateDictLoadPlanner
    planner = make_planner(keys={keys} if isinstance(keys, str) else keys)
    call = Call(checkpoint_id, storage_reader, planner, process_group, function="_load_state_dict_from_keys")
    load_by_protocol(lambda: state_dict, call, allow_pickle=pickle_allowed(None))
    return state_dict


def _is_alone(no_dist: bool) -> bool:
    return no_dist or not dist.is_available() or not dist.is_initialized()


def _writer(storage: Any, checkpoint_id: _PathLike | None) -> Any:
    """Returns the writer for torch's driver: the given writer, or torch's writer for the id, with Cairn's native
    hooks."""
    if storage is None and checkpoint_id and (directory := local_directory(checkpoint_id)) is not None:
        return FileSystemWriter(directory)
    storage = _set_up(storage, checkpoint_id, reader=False)
    if not isinstance(storage, StockWriter):
        return storage
    if isinstance(storage, StockModelWriter):
        kind = replacements.own(("hf_storage", "HuggingFaceStorageWriter"))
        ours = with_native_hooks(storage, StockModelWriter, kind)
    else:
        ours = with_native_hooks(storage, StockWriter, FileSystemWriter)
    return storage if why_torch_writes(ours) else ours


def _reader(storage: Any, checkpoint_id: _PathLike | None) -> Any:
    """As _writer()."""
    if storage is None and checkpoint_id and (directory := local_directory(checkpoint_id)) is not None:
        return FileSystemReader(directory)
    storage = _set_up(storage, checkpoint_id, reader=True)
    if not isinstance(storage, StockReader):
        return storage
    ours = with_native_hooks(storage, StockReader, FileSystemReader)
    return storage if why_torch_reads(ours) else ours


def _is_cairns(storage: Any, ours: type) -> bool:
    """Returns whether the storage's class is `ours` or derives from `ours`. isinstance() would accept torch's class
    too."""
    return ours in type(storage).__mro__


def _set_up(storage: Any, checkpoint_id: _PathLike | None, *, reader: bool) -> Any:
    if storage is None and not checkpoint_id:
        raise MissingCheckpointId("`checkpoint_id` must be specified if there is no storage reader or writer")
    set_up = importlib.import_module(f"{replacements.TORCH}._storage_utils")._storage_setup
    return set_up(storage, checkpoint_id, reader=reader)


def _planned(reason: str) -> str:
    return f"planned by torch's code: {reason}" if reason else ""


def _stored(reason: str) -> str:
    return f"storage: {reason}" if reason else ""


@contextlib.contextmanager
def _as_torch_raises() -> Iterator[None]:
    try:
        with as_checkpoint_exceptions():
            yield
    except CheckpointException as error:
        if isinstance(error, Error):
            raise
        first = next((failure for _, (failure, _) in sorted(error.failures.items())), None)
        if not isinstance(first, Error):
            raise
        raise with_failures(first, error.failures) from error
