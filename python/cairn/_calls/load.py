"""cairn.load: ``torch.distributed.checkpoint.load``, carried out by the engine."""

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed.checkpoint.stateful import Stateful

from cairn import _engine
from cairn._async import preparation
from cairn._calls.arguments import Call, takes_storage_second
from cairn._calls.split_keys import SplitKeys
from cairn._calls.state_load import (
    TRANSFORMED,
    Given,
    StateLoad,
    check_assignable,
    new_tensor,
    tell_failed_load,
)
from cairn._calls.torch_driver import load_by_protocol
from cairn._directory import metadata_name, restarting
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._settings import cast_allowed, links_followed, pickle_allowed
from cairn._state.described import check_state_dict
from cairn._state.key_terms import KeyTerms, LoadedKeys, Renames
from cairn._state.values import warn_of_conversions
from cairn._telemetry import dcp_records, engine_use
from cairn._telemetry.ended_calls import Stopwatch
from cairn._torch_names import replacements
from cairn._torch_protocol.planners import load_planner_options, why_load_planner_is_foreign
from cairn._torch_protocol.storages import why_reader_is_foreign
from cairn.checkpoint import Verify, check_verify
from cairn.errors import Error, InvalidArgument, NotFound, Unsupported
from cairn.filesystem import load_options

_Path = str | os.PathLike[str]
_Result = TypeVar("_Result")


@takes_storage_second
def load(  # noqa: PLR0913 - DCP has six of them
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    allow_pickle: bool | None = None,
    allow_cast: bool | None = None,
    verify: Verify = "needed",
    follow_links: bool | None = None,
    strict: bool = True,
    renames: Renames = (),
    keys: Iterable[str] = (),
    base: _Path | None = None,
    base_renames: Renames = (),
) -> LoadedKeys | None:
    """Fills `state_dict` from the checkpoint in directory `checkpoint_id`, written by Cairn or by DCP.

    The signature is DCP's, up to `no_dist`. `storage_reader` may be the second positional argument, with a warning.
    Tensors are filled in place; values are replaced in their containers. For an entry with ``state_dict()`` and
    ``load_state_dict()``, load() calls the former before the load and the latter after. A ``torch.optim.Optimizer``
    among these entries gets all that the checkpoint has below its key, also if the optimizer is new and its own
    ``state_dict()`` has no state yet. Keys that only the checkpoint has are ignored; an IgnoredKeysWarning counts the
    keys below a dict that is empty in `state_dict`, and names a load that loads nothing. Keys that the checkpoint lacks
    are an error, unless `planner` is a ``DefaultLoadPlanner(allow_partial_load=True)``.

    `allow_pickle` lets values run the code that their pickles name. None takes the setting of ``cairn.install``, or
    without that setting allows pickle only if the environment variable CAIRN_ALLOW_PICKLE is 1. Without `allow_pickle`
    no code from the checkpoint runs, with two exceptions: a `storage_reader` of the caller's or of torch's for another
    file system, and a planner that overrides ``load_bytes``, unpickle by their own rules (SECURITY.md). `allow_cast`
    allows any change of dtype, with a ConversionWarning; False allows only float to float. None means False, and True
    under ``cairn.install`` unless its `allow_cast` is False. `verify`: "needed" checks the bytes read where checksums
    cover these bytes, "full" also reads items whole if only the whole item has a checksum, "none" trusts the storage.
    `follow_links` allows data files that are symbolic links; None takes the setting of ``cairn.install``, or without
    that setting allows links only if the environment variable CAIRN_FOLLOW_LINKS is 1.

    `strict`: False leaves the entries unchanged whose keys the checkpoint lacks; the call then returns a
    :class:`cairn.LoadedKeys` with the missing keys and with those that only the checkpoint has. With True, the
    default, it returns None, as in DCP. `renames` are pairs of an old and a new name, as in ``cairn.convert``: the
    state dict has the new names. An old name without a star is a prefix that ends at a dot; with stars it is a pattern
    of the whole key. The first rename that matches a key counts. `keys` are patterns (``*``, ``?``, ``[a-z]``) of the
    keys of the state dict to load, each also with all keys below it; all keys if empty. The other entries stay
    unchanged and may be missing. A Stateful of which no key is loaded gets no ``load_state_dict()``.

    `base` is the directory of a second checkpoint. Keys that the checkpoint lacks come from the base, by their names
    after `base_renames`: the trained parameters of a model from the first, and the frozen ones from the base. The two
    are loaded one after the other; keys that both lack are an error before anything changes.

    With a process group, its ranks load together from one checkpoint, and each rank reads the shards of its own
    tensors. If one rank fails, all ranks fail, and a checkpoint that is replaced during the load is never mixed with
    its successor. The exception is a checkpoint whose items went through stream transforms: torch's protocol reads this
    checkpoint, and a save that replaces it during the load may be mixed in.

    Raises cairn.Error, which is a CheckpointException too, with the failures by rank: MissingKey also if a rename
    matches no key of the checkpoint, or a pattern of `keys` no key at all; InvalidArgument also if two keys of the
    checkpoint get the same name, and for the arguments from `strict` on with a planner or a storage that the engine
    does not know. All errors that metadata and values reveal are raised before anything in `state_dict` changes; if
    bytes of a tensor are damaged, tensors may be partly filled.

    For a checkpoint with stream transforms (compression), torch's driver plans the load, and the registry of
    `storage_reader`, or torch's own registry, undoes the transforms.

    A `planner` of another class than DCP's plans by its own rules, and a `storage_reader` of another class than a file
    system's reads by its own rules, driven by torch's code; tensors may then be partly filled after any failure, and an
    optimizer gets only the entries that its own ``state_dict()`` has.
    """
    call = Call(checkpoint_id, storage_reader, planner, process_group, no_dist, function="load")
    terms = KeyTerms(strict=strict, renames=renames, keys=keys)
    with dcp_records.in_call("load", **call.recorded("storage_reader")):
        entries = Entries(state_dict)
        rules = LoadRules(allow_pickle, allow_cast, verify, follow_links)
        split = None if base is None else SplitKeys(terms, base, base_renames)
        found = load_from_all(entries.resolve, call, rules, entries=entries, terms=terms, split=split)
        entries.put_back()
    return None if strict else found


def load_from_all(
    make_states: Callable[[], dict[str, Any]],
    call: Call,
    rules: "LoadRules",
    *,
    terms: KeyTerms,
    split: SplitKeys | None,
    entries: "Entries | None" = None,
    make_tensor: Callable[[torch.Tensor], torch.Tensor] = new_tensor,
) -> LoadedKeys:
    """As load_states(); with `split`, then loads from the base what the checkpoint lacks."""
    if split is None:
        return load_states(make_states, call, rules, entries=entries, terms=terms, make_tensor=make_tensor)
    made: list[dict[str, Any]] = []  # the states that both loads fill

    def make_and_divide() -> dict[str, Any]:
        made.append(make_states())
        _, flattens = _planner_options(call)
        split.divide(made[0], flattens, load_options(call.checkpoint_id, call.storage)[0])
        return made[0]

    first = load_states(make_and_divide, call, rules, entries=entries, terms=split.terms, make_tensor=make_tensor)
    loaded = None if entries is None else entries.loaded
    of_base = call._replace(checkpoint_id=split.base, storage=None)
    second = load_states(
        lambda: made[0], of_base, rules, entries=entries, terms=split.base_terms, make_tensor=make_tensor
    )
    if entries is not None and loaded is not None and entries.loaded is not None:
        entries.loaded |= loaded
    return split.join(first, second)


def _planner_options(call: Call) -> tuple[bool, bool]:
    flattens, allow_partial = load_planner_options(call.planner)
    return allow_partial, flattens


def _load_state_dict(
    state_dict: dict[str, Any],
    storage_reader: Any,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: Any = None,
) -> None:
    """The load that torch's modules call: fills the entries directly, without calling Statefuls.

    The engine's coordinator is always rank 0; `coordinator_rank` does not change the loaded state. Values run code only
    if the environment variable CAIRN_ALLOW_PICKLE or ``cairn.install`` allows it. A call from torch's own ``load`` runs
    torch's function.
    """
    if replacements.is_called_by_torchs("state_dict_loader"):
        theirs = replacements.original("state_dict_loader", "_load_state_dict")
        theirs(state_dict, storage_reader, process_group, coordinator_rank, no_dist, planner)
        return
    load_states(
        lambda: state_dict,
        Call(None, storage_reader, planner, process_group, no_dist, True, coordinator_rank, "_load_state_dict"),
    )


def load_state_dict(
    state_dict: dict[str, Any],
    storage_reader: Any,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: Any = None,
) -> None:
    """DCP's older load: fills the entries directly, without calling Statefuls. Deprecated, as in DCP."""
    warnings.warn("`load_state_dict` is deprecated, use `load` instead", FutureWarning, stacklevel=2)
    storage_reader.reset()
    load_states(
        lambda: state_dict,
        Call(None, storage_reader, planner, process_group, no_dist, True, coordinator_rank, "load_state_dict"),
    )


class LoadRules(NamedTuple):
    """The arguments of a load that say what it accepts and checks, as of :func:`load`."""

    allow_pickle: bool | None = None
    allow_cast: bool | None = None
    verify: Verify = "needed"
    follow_links: bool | None = None

    def options(self) -> dict[str, Any]:
        """Returns the options for the engine. Raises InvalidArgument."""
        return {
            "verify": check_verify(self.verify),
            "allow_cast": cast_allowed(self.allow_cast),
            "follow_links": links_followed(self.follow_links),
        }


_DCPS = KeyTerms()
_DEFAULTS = LoadRules()


def load_states(
    make_states: Callable[[], dict[str, Any]],
    call: Call,
    rules: LoadRules = _DEFAULTS,
    *,
    entries: "Entries | None" = None,
    terms: KeyTerms = _DCPS,
    make_tensor: Callable[[torch.Tensor], torch.Tensor] = new_tensor,
) -> LoadedKeys:
    """Fills the state dict that `make_states` returns. If `make_states` raises, the error reaches the remaining ranks.

    `entries` gets the keys that were loaded. `make_tensor` makes the tensors in place of meta tensors.
    """

    def load_states_by_protocol(make: Callable[[], dict[str, Any]]) -> LoadedKeys:
        _refuse_terms(terms)
        load_by_protocol(make, call, allow_pickle=pickle_allowed(rules.allow_pickle), **rules.options())
        return LoadedKeys([], [])

    if why_load_planner_is_foreign(call.planner) or why_reader_is_foreign(call.storage, call.checkpoint_id):
        return load_states_by_protocol(make_states)
    watch = Stopwatch("loaded")
    with as_checkpoint_exceptions() as here:
        ranks = Ranks(call.process_group, call.no_dist)
        here.rank = ranks.rank
        directory, run = prepare_load(make_states, call, rules, ranks, entries, (terms, make_tensor))
        try:
            conversions = with_restarts(os.fsencode(directory), run.run, ranks)
        except BaseException as error:
            if isinstance(error, Unsupported) and _is_transformed(error, ranks):
                return load_states_by_protocol(lambda: run.state_dict)
            run.tell_failure(os.fsencode(directory), error, ranks)
            raise
    engine_use.note(call.function, directory)
    watch.log(directory, run.size, ranks.rank, ranks.count)
    preparation.note_load(os.fsencode(directory), run.keys, run.size_of_save)
    warn_of_conversions(conversions)
    if entries is not None:
        entries.loaded = run.loaded if terms.selects else None
    return run.found


def prepare_load(
    make_states: Callable[[], dict[str, Any]],
    call: Call,
    rules: LoadRules,
    ranks: Ranks,
    entries: "Entries | None",
    how: tuple[KeyTerms, Callable[[torch.Tensor], torch.Tensor]],
) -> tuple[_Path, StateLoad]:
    """Returns the directory and the load of the states, which has not begun. `how`: as the last two arguments of
    load_states()."""
    terms, make_tensor = how
    with ranks.preparing(_engine.abandon_load):
        allow_partial, flattens = _planner_options(call)
        directory, options = load_options(call.checkpoint_id, call.storage)
        options |= rules.options()
        options["allow_partial"] = allow_partial or not terms.strict
        options["renames"] = terms.renames
        try:
            states = make_states()
        except BaseException as error:
            tell_failed_load(os.fsencode(directory), error, ranks)
            raise
        check_state_dict(states)
        if not flattens:
            _refuse_terms(terms)
        optimizers = {} if entries is None else entries.optimizers
        step = (directory, call.process_group)
        given = Given(call.planner, call.storage, step, optimizers, terms, make_tensor)
        return directory, StateLoad(states, flattens, options, pickle_allowed(rules.allow_pickle), given)


def refuse_foreign(call: Call) -> None:
    """Raises InvalidArgument for a storage whose loads the engine does not carry out."""
    if why_load_planner_is_foreign(call.planner) or why_reader_is_foreign(call.storage, call.checkpoint_id):
        raise InvalidArgument(f"{call.function}() is for loads that the engine carries out: not with this storage")


def _refuse_terms(terms: KeyTerms) -> None:
    if not terms.are_dcps:
        raise InvalidArgument(
            "strict=False, renames, keys and base are for loads that the engine carries out and flattens: not with a "
            "planner, a storage or stream transforms of another library, nor without flattening"
        )


class Entries:
    """The entries of a caller's state dict; Statefuls are replaced by their state before the load and get it after."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self._state_dict = state_dict
        self.resolved: dict[str, Any] = {}
        self._statefuls: list[str] = []
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.loaded: frozenset[str] | None = None  # the keys of a load that leaves out others; None: all

    def resolve(self) -> dict[str, Any]:
        """Returns the entries to fill, in the order of the keys."""
        check_state_dict(self._state_dict)
        for key in sorted(self._state_dict, key=str):
            value = self._state_dict[key]
            if type(self._state_dict) is not dict:
                check_assignable(self._state_dict, key, str(key))
            if type(value) not in (torch.Tensor, torch.nn.Parameter, dict) and isinstance(value, Stateful):
                self._statefuls.append(key)
                if isinstance(value, torch.optim.Optimizer):
                    self.optimizers[key] = value
                value = value.state_dict()
            self.resolved[key] = value
        return self.resolved

    def put_back(self, *, statefuls: bool = True) -> None:
        """Puts the filled entries back into the caller's state dict; with `statefuls` also into the Statefuls."""
        for key in sorted(self._state_dict, key=str):
            if key not in self._statefuls:
                self._state_dict[key] = self.resolved[key]
            elif statefuls and self._has_loaded(str(key)):
                try:
                    self._state_dict[key].load_state_dict(self.resolved[key])
                except Error as error:
                    error._is_of_entry = True
                    raise

    def _has_loaded(self, key: str) -> bool:
        return self.loaded is None or any(name == key or name.startswith(f"{key}.") for name in self.loaded)


def with_restarts(directory: bytes, run: Callable[[bytes, Ranks, bool], _Result], ranks: Ranks) -> _Result:
    """Runs the load, or the plan of a load: ``run(directory, ranks, alone)``. All ranks take equal branches at each
    attempt, because all ranks get equal errors."""
    try:
        return restarting(lambda: run(directory, ranks, False))
    except NotFound as missing:
        # As in DCP, the checkpoints that the ranks saved alone are loaded if no joint checkpoint exists.
        if not _is_metadata_missing(missing, ranks, lambda rank: metadata_name(None)):
            raise
        try:
            return restarting(lambda: run(directory, ranks, True))
        except NotFound as own:
            if _is_metadata_missing(own, ranks, metadata_name):
                raise missing from None  # the error names the file that every checkpoint has
            raise


def _is_metadata_missing(error: Error, ranks: Ranks, name_of: Callable[[int], str]) -> bool:
    """Returns whether every rank lacks its metadata file. `name_of` gives the file's name on a rank."""
    failures = [cause for cause, _ in error.causes] or [error]
    return len(failures) == ranks.count and all(
        isinstance(failure, NotFound) and failure.file == name_of(ranks.rank if failure.rank is None else failure.rank)
        for failure in failures
    )


def _is_transformed(error: Error, ranks: Ranks) -> bool:
    """Returns whether every rank found stream transforms in the metadata. No data has been read or changed in this
    case."""
    failures = [cause for cause, _ in error.causes] or [error]
    return len(failures) == ranks.count and all(
        isinstance(failure, Unsupported) and failure.message.startswith(TRANSFORMED) for failure in failures
    )
