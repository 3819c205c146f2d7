"""cairn.save: ``torch.distributed.checkpoint.save``, carried out by the engine."""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from cairn import _engine
from cairn._async import pending_saves
from cairn._calls.arguments import Call, takes_storage_second
from cairn._calls.consolidation import consolidate_saved
from cairn._calls.torch_driver import save_by_protocol
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._results.driver_attributes import fill_save_planner, fill_writer
from cairn._results.lazy_metadata import LazyMetadata, catalog_of_save
from cairn._settings import is_single_writer, save_deadlines
from cairn._state.described import DescribedState, states_of
from cairn._state.notes import notes_text
from cairn._telemetry import dcp_records, engine_use
from cairn._telemetry.ended_calls import Stopwatch
from cairn._torch_names import replacements
from cairn._torch_protocol.planners import save_planning, takes_raw_values, why_save_planner_is_foreign
from cairn._torch_protocol.storages import why_writer_is_foreign
from cairn.errors import Error
from cairn.filesystem import save_options

_Before = Callable[[str | os.PathLike[str]], None]


@takes_storage_second
def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
    notes: Mapping[str, Any] | None = None,
) -> Metadata:
    """Saves `state_dict` as the checkpoint in directory `checkpoint_id`, in the files of DCP.

    The signature is that of ``torch.distributed.checkpoint.save``, which also takes `storage_writer` as the second
    positional argument, with a warning. `state_dict` may be nested. For entries that have ``state_dict()`` and
    ``load_state_dict()``, the result of ``state_dict()`` is saved; all remaining entries are stored unchanged. An old
    checkpoint in the directory stays whole until the new one is durable, and is then removed; files in the directory
    that belong to no checkpoint are left alone. Ctrl-C keeps the old checkpoint.

    With a process group, its ranks save one state together, and each rank contributes its own part. The shards of a
    tensor must cover the tensor. Data that several ranks hold is written once, distributed over the ranks by bytes. A
    failure on one rank fails the save on all ranks. With ``use_collectives=False`` each rank plans and saves alone,
    under its own metadata file, as in DCP.

    A call into the storage that hangs fails the save on every rank, within the deadlines of
    :func:`cairn.configure_saves`.

    Returns DCP's Metadata, filled at the first access. If the metadata file is larger than 1 MiB, a rank that has not
    laid out all files of this save then reads the file, and the access raises cairn.Replaced if a later save has
    replaced the checkpoint. A process alone lays all files out, and rank 0 does in the first save of a state of which
    the ranks have many items in common. Warns (PickleWarning) about values that can be loaded only with
    ``allow_pickle=True``. Raises cairn.Error, which is a CheckpointException too, with the failures by rank.

    `notes` is a dict of JSON values, of at most 64 KiB as JSON, that is committed with the checkpoint:
    ``cairn.open(directory).notes``. Its entry ``"metrics"``, if any, maps names to finite numbers. A value that JSON
    has no form for, such as a tensor, raises InvalidArgument with the value's place; a tuple comes back as a list. The
    notes of rank 0 count, and every rank's are checked. With ``use_collectives=False`` each rank's file has its own.
    Raises Unsupported for a safetensors model, which has no place for notes, and InvalidArgument if torch's code
    drives the save.

    A `planner` of another class than DCP's plans by its own rules, and a `storage_writer` of another class than a file
    system's stores by its own rules: torch's code drives the save.
    """
    call = Call(checkpoint_id, storage_writer, planner, process_group, no_dist, use_collectives, notes=notes)
    try:
        return save_now(state_dict, call, wait_for_earlier_saves)
    except Error as error:
        pending_saves.note_report(error)
        raise


def wait_for_earlier_saves(directory: str | os.PathLike[str]) -> None:
    """Returns when no save into `directory` is in flight. Raises the error of an earlier save that no caller has
    retrieved."""
    pending_saves.raise_unretrieved()
    pending_saves.wait_for(directory)  # saves into one directory commit in their order


def save_now(state_dict: dict[str, Any], call: Call, before: _Before | None = None, reason: str = "") -> Metadata:
    """As save(), with the arguments of save_states(). Only `before` makes this function wait for asynchronous saves."""
    with dcp_records.in_call("save", **call.recorded("storage_writer")):
        return save_states(lambda: states_of(state_dict), call, before, reason)


def _save_state_dict(
    state_dict: dict[str, Any],
    storage_writer: Any,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: Any = None,
    use_collectives: bool = True,
) -> Metadata:
    """The save that torch's modules call: saves the entries unchanged, Statefuls too.

    The engine's coordinator is always rank 0; `coordinator_rank` does not change the checkpoint. A call from torch's
    own ``save`` runs torch's function.
    """
    if replacements.is_called_by_torchs("state_dict_saver"):
        theirs = replacements.original("state_dict_saver", "_save_state_dict")
        more = {} if use_collectives else {"use_collectives": False}
        saved: Metadata = theirs(state_dict, storage_writer, process_group, coordinator_rank, no_dist, planner, **more)
        return saved
    return _save_as_it_is(
        state_dict,
        Call(
            None, storage_writer, planner, process_group, no_dist, use_collectives, coordinator_rank, "_save_state_dict"
        ),
    )


def save_state_dict(
    state_dict: dict[str, Any],
    storage_writer: Any,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: Any = None,
) -> Metadata:
    """DCP's older save: saves the entries unchanged, Statefuls too. Deprecated, as in DCP."""
    warnings.warn("`save_state_dict` is deprecated, use `save` instead", FutureWarning, stacklevel=2)
    storage_writer.reset()
    return _save_as_it_is(
        state_dict,
        Call(None, storage_writer, planner, process_group, no_dist, True, coordinator_rank, "save_state_dict"),
    )


def _save_as_it_is(state_dict: dict[str, Any], call: Call) -> Metadata:
    """Saves the entries unchanged."""
    try:
        return save_states(lambda: state_dict, call, wait_for_earlier_saves)
    except Error as error:
        pending_saves.note_report(error)
        raise


def save_states(
    make_states: Callable[[], dict[str, Any]], call: Call, before: _Before | None = None, reason: str = ""
) -> Metadata:
    """Saves the state dict that `make_states` returns, whose Statefuls are resolved. If `make_states` raises, the error
    reaches the remaining ranks.

    `before` is called with the directory of a native save. `reason` is for engine_use: why the call is not carried out
    as its caller expects.
    """
    if why_save_planner_is_foreign(call.planner) or why_writer_is_foreign(call.storage, call.checkpoint_id):
        return save_by_protocol(make_states, call, reason)
    planner, use_collectives = call.planner, call.use_collectives
    watch = Stopwatch("saved")
    with as_checkpoint_exceptions() as here, contextlib.ExitStack() as at_the_end:
        ranks = Ranks(call.process_group, call.no_dist)
        here.rank = ranks.rank
        together = ranks.options if use_collectives else {"alone_as_rank": ranks.rank}
        if not use_collectives:
            at_the_end.callback(ranks.meet)  # as at the end of DCP's save, also if only this rank has failed
        with ranks.preparing(_engine.abandon_save if use_collectives else None):
            planning = save_planning(planner)
            directory, options = save_options(call.checkpoint_id, call.storage)
            if before is not None:
                before(directory)
            text = notes_text(call.notes)
            states = make_states()
            step = (directory, call.process_group)
            with dcp_records.in_step("local_step", *step):
                described = DescribedState(
                    states,
                    record_paths=planning["record_paths"],
                    raw_values=takes_raw_values(planner),
                    from_devices=True,
                )
        coordinates = ranks.rank == 0 or not use_collectives
        if coordinates:
            dcp_records.note_step("global_step", *step)
        with dcp_records.in_step("write_data", *step):
            options = {**planning, **options, **together, "deadlines": save_deadlines(), "notes": text}
            options["single_writer"] = is_single_writer()
            catalog, save_id, size, texts = _engine.save(os.fsencode(directory), described.native, **options)
            texts += consolidate_saved(call.storage, ranks)
        if coordinates:
            dcp_records.note_step("finish_checkpoint", *step)
    engine_use.note(call.function, directory, reason, expected=not reason)
    watch.log(directory, size, ranks.rank, ranks.count)
    for text in texts:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    # `catalog` is None if the engine did not keep it in memory.
    later = functools.partial(catalog_of_save, Path(directory).absolute(), save_id)
    metadata = LazyMetadata(later if catalog is None else catalog)
    fill_save_planner(planner, metadata, ranks.rank, states)
    fill_writer(call.storage, save_id, ranks.rank, use_collectives=use_collectives)
    return metadata
