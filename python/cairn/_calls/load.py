"""cairn.load: ``torch.distributed.checkpoint.load``, carried out by the engine."""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner_helpers import _init_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parameter import is_lazy

from cairn import _engine
from cairn._async import preparation
from cairn._calls.arguments import Call, takes_storage_second
from cairn._calls.optimizer_entries import add_saved_entries
from cairn._calls.torch_driver import load_by_protocol
from cairn._directory import metadata_name, open_to_load, restarting, warn_of_damage
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._results.driver_attributes import fill_load_planner, fill_reader
from cairn._results.lazy_metadata import LazyMetadata
from cairn._settings import cast_allowed, links_followed, pickle_allowed
from cairn._state import per_rank
from cairn._state.described import check_state_dict
from cairn._state.flattening import Leaf, Rules, flatten
from cairn._state.ignored_keys import warn_of_ignored
from cairn._state.tensors import (
    TensorTarget,
    add_payload_target,
    fill,
    is_declared_shard,
    is_filled_in_place,
    needs_payload,
    tensor_in_payload,
)
from cairn._state.values import load_value, warn_of_conversions
from cairn._telemetry import dcp_records, engine_use
from cairn._telemetry.ended_calls import Stopwatch
from cairn._torch_names import replacements
from cairn._torch_protocol.planners import load_planner_options, why_load_planner_is_foreign
from cairn._torch_protocol.storages import MODEL_INDEX, model_directory, reads_model, why_reader_is_foreign
from cairn.checkpoint import Verify, check_verify
from cairn.errors import Error, InvalidArgument, MissingKey, NotFound, Unsupported
from cairn.filesystem import load_options

_TRANSFORMED = "the checkpoint has items that went through stream transforms"  # the engine does not undo the transforms


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
) -> None:
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

    With a process group, its ranks load together from one checkpoint, and each rank reads the shards of its own
    tensors. If one rank fails, all ranks fail, and a checkpoint that is replaced during the load is never mixed with
    its successor. The exception is a checkpoint whose items went through stream transforms: torch's protocol reads this
    checkpoint, and a save that replaces it during the load may be mixed in.

    Raises cairn.Error, which is a CheckpointException too, with the failures by rank. All errors that metadata and
    values reveal are raised before anything in `state_dict` changes; if bytes of a tensor are damaged, tensors may be
    partly filled.

    For a checkpoint with stream transforms (compression), torch's driver plans the load, and the registry of
    `storage_reader`, or torch's own registry, undoes the transforms.

    A `planner` of another class than DCP's plans by its own rules, and a `storage_reader` of another class than a file
    system's reads by its own rules, driven by torch's code; tensors may then be partly filled after any failure, and an
    optimizer gets only the entries that its own ``state_dict()`` has.
    """
    call = Call(checkpoint_id, storage_reader, planner, process_group, no_dist, function="load")
    with dcp_records.in_call("load", **call.recorded("storage_reader")):
        entries = _Entries(state_dict)
        _load_states(
            entries.resolve,
            call,
            optimizers=entries.optimizers,
            allow_pickle=allow_pickle,
            allow_cast=allow_cast,
            verify=verify,
            follow_links=follow_links,
        )
        entries.put_back()


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
    _load_states(
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
    _load_states(
        lambda: state_dict,
        Call(None, storage_reader, planner, process_group, no_dist, True, coordinator_rank, "load_state_dict"),
    )


def _load_states(
    make_states: Callable[[], dict[str, Any]],
    call: Call,
    *,
    allow_pickle: bool | None = None,
    allow_cast: bool | None = None,
    verify: Verify = "needed",
    follow_links: bool | None = None,
    optimizers: Mapping[str, torch.optim.Optimizer] = MappingProxyType({}),
) -> None:
    """Fills the state dict that `make_states` returns. If `make_states` raises, the error reaches the remaining ranks.

    `optimizers` is read when `make_states` has returned: the objects whose state dicts are entries.
    """

    def load_states_by_protocol(make: Callable[[], dict[str, Any]]) -> None:
        load_by_protocol(
            make,
            call,
            allow_pickle=pickle_allowed(allow_pickle),
            verify=check_verify(verify),
            allow_cast=cast_allowed(allow_cast),
            follow_links=links_followed(follow_links),
        )

    if why_load_planner_is_foreign(call.planner) or why_reader_is_foreign(call.storage, call.checkpoint_id):
        load_states_by_protocol(make_states)
        return
    watch = Stopwatch("loaded")
    with as_checkpoint_exceptions() as here:
        ranks = Ranks(call.process_group, call.no_dist)
        here.rank = ranks.rank
        with ranks.preparing(_engine.abandon_load):
            flattens, allow_partial = load_planner_options(call.planner)
            directory, options = load_options(call.checkpoint_id, call.storage)
            options |= {
                "verify": check_verify(verify),
                "allow_cast": cast_allowed(allow_cast),
                "follow_links": links_followed(follow_links),
            }
            options["allow_partial"] = allow_partial
            states = make_states()
            check_state_dict(states)
            given = _Given(call.planner, call.storage, (directory, call.process_group), optimizers)
            run = _Load(states, flattens, options, pickle_allowed(allow_pickle), given)
        try:
            conversions = _with_restarts(os.fsencode(directory), run, ranks)
        except Unsupported as error:
            if not _is_transformed(error, ranks):
                raise
            load_states_by_protocol(lambda: states)
            return
    engine_use.note(call.function, directory)
    watch.log(directory, run.size, ranks.rank, ranks.count)
    preparation.note_load(os.fsencode(directory), run.keys, run.size_of_save)
    warn_of_conversions(conversions)


class _Entries:
    """The entries of a caller's state dict; Statefuls are replaced by their state before the load and get it after."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self._state_dict = state_dict
        self._resolved: dict[str, Any] = {}
        self._statefuls: list[str] = []
        self.optimizers: dict[str, torch.optim.Optimizer] = {}

    def resolve(self) -> dict[str, Any]:
        """Returns the entries to fill, in the order of the keys."""
        check_state_dict(self._state_dict)
        for key in sorted(self._state_dict, key=str):
            value = self._state_dict[key]
            if type(self._state_dict) is not dict:
                _check_assignable(self._state_dict, key, str(key))
            if type(value) not in (torch.Tensor, torch.nn.Parameter, dict) and isinstance(value, Stateful):
                self._statefuls.append(key)
                if isinstance(value, torch.optim.Optimizer):
                    self.optimizers[key] = value
                value = value.state_dict()
            self._resolved[key] = value
        return self._resolved

    def put_back(self) -> None:
        """Puts the filled entries back into the caller's state dict."""
        for key in sorted(self._state_dict, key=str):
            if key in self._statefuls:
                self._state_dict[key].load_state_dict(self._resolved[key])
            else:
                self._state_dict[key] = self._resolved[key]


class _Given(NamedTuple):
    """The caller's objects of a load."""

    planner: Any
    reader: Any
    step: tuple[Any, Any]  # for dcp_records: the storage's path and the process group
    optimizers: Mapping[str, torch.optim.Optimizer]  # by the keys of their state dicts in the state


class _Load:
    """A load of a state dict whose Statefuls have been resolved."""

    def __init__(
        self,
        state_dict: dict[str, Any],
        flattens: bool,
        options: dict[str, Any],
        allow_pickle: bool,
        given: _Given,
    ) -> None:
        self._state_dict = state_dict
        self._flattens = flattens
        self._options = options
        self._allow_pickle = allow_pickle
        self._given = given
        self.keys: frozenset[str] = frozenset()  # of the loaded state
        self.size = 0  # bytes that this rank has loaded
        self.size_of_save = 0  # bytes that this rank will write for the loaded tensors

    def run(self, directory: bytes, ranks: Ranks, alone: bool) -> list[tuple[str, int, int]]:
        """Runs the load: reads and decodes values first, then fills tensors, and last puts the values into their
        containers.

        `alone`: each rank reads the checkpoint that it saved alone.
        """
        with contextlib.ExitStack() as until_filled:
            return self._run(directory, ranks, alone, until_filled)

    def _run(
        self, directory: bytes, ranks: Ranks, alone: bool, until_filled: contextlib.ExitStack
    ) -> list[tuple[str, int, int]]:
        fresh: list[tuple[Leaf, Any]] = []  # the new objects in place of values and meta tensors
        step = self._given.step
        with ranks.preparing(_engine.abandon_load), dcp_records.in_step("local_step", *step):
            model = MODEL_INDEX if reads_model(self._given.reader) else None
            checkpoint = open_to_load(directory, ranks.rank if alone else None, model)
            if checkpoint.has_transforms:
                raise Unsupported(_TRANSFORMED)
            if self._flattens:
                add_saved_entries(self._state_dict, self._given.optimizers, checkpoint)
            rules = self._rules(checkpoint)
            partial = self._options["allow_partial"]
            until_filled.enter_context(per_rank.with_sources(self._state_dict, checkpoint, rules, partial))
            whole = functools.partial(_engine.catalog_of, checkpoint)  # decodes the metadata of all ranks
            self._fill_given(whole, rules, ranks.rank, alone)
            state = _engine.StateDict()
            tensors = TensorTarget(
                state,
                to_devices=True,
                saved_form=checkpoint.tensor_form,
                allow_pickle=self._allow_pickle,
                allow_cast=self._options["allow_cast"],
            )
            others: list[Leaf] = []  # all leaves except plain tensors
            payloads: list[Leaf] = []

            def add_other(leaf: Leaf) -> None:
                others.append(leaf)
                value = leaf.value
                if not _is_tensor(value) or needs_payload(value):
                    payloads.append(leaf)
                    return
                if isinstance(value, torch.Tensor) and value.device.type == "meta" and not is_lazy(value):
                    value = _materialized(value)
                    fresh.append((leaf, value))
                tensors.add(leaf.path, value)

            tensors.add_leaves(self._state_dict, rules, add_other)
            try:
                read = self._read_payloads(checkpoint, payloads)
            except MissingKey:  # raised for values; the error must name the missing tensors too
                catalog = whole()
                every = flatten(self._state_dict, rules)
                self._read_payloads(checkpoint, [leaf for leaf in every if leaf.fqn not in catalog])
                raise
            opaque: list[tuple[torch.Tensor, torch.Tensor]] = []  # targets that only torch can fill, and their sources
            for leaf, payload in read:
                if isinstance(leaf.value, torch.Tensor):
                    opaque.append((leaf.value, tensor_in_payload(leaf.fqn, leaf.value, payload, self._allow_pickle)))
                else:
                    fresh.append((leaf, load_value(leaf.fqn, payload, self._allow_pickle)))
            for leaf, _ in fresh:
                _check_assignable(leaf.container, leaf.place, leaf.fqn)
        if ranks.rank == 0 or alone:
            dcp_records.note_step("global_step", *step)
        with dcp_records.in_step("read_data", *step):
            conversions, missing, texts = checkpoint.load(
                state,
                **self._options,
                **ranks.options,
                own_checkpoint=alone,
                take_archive=tensors.take_archive,
            )
            with contextlib.nullcontext() if alone else ranks.all_fail_together("read"):
                absent = set(missing)
                self.size = sum(state.tensor_bytes()) + sum(len(payload) for _, payload in read)
                self.keys = frozenset([*state.fqns(), *(leaf.fqn for leaf in others)])
                self.size_of_save = preparation.size_of_save(state, 1 if alone else ranks.count)
                tensors.finish(absent)
                for target, source in opaque:
                    fill(target, source)
                self._put(fresh, absent)
        self._warn(checkpoint, texts)
        if self._flattens:
            loaded = len(self.keys - absent)
            warn_of_ignored(self._state_dict, checkpoint, loaded, directory, may_be_empty=ranks.rank != 0 and not alone)
        return conversions + tensors.conversions

    def _fill_given(self, whole: Callable[[], _engine.Catalog], rules: Rules, rank: int, alone: bool) -> None:
        """Sets the attributes that a caller's planner and reader have after a load by torch's driver."""
        reader = self._given.reader
        planner = self._given.planner
        metadata = LazyMetadata(whole, getattr(reader, "load_id", None), model_directory(reader))
        leaves = [] if planner is None else flatten(self._state_dict, rules)
        fill_load_planner(planner, self._state_dict, leaves, metadata, rank)
        fill_reader(reader, metadata, rank, use_collectives=not alone)

    @staticmethod
    def _warn(checkpoint: _engine.Checkpoint, texts: list[str]) -> None:
        warn_of_damage(checkpoint)
        for text in texts:
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _rules(self, checkpoint: _engine.Checkpoint) -> Rules:
        """Returns the rules by which the checkpoint's keys are named."""
        if not self._flattens:
            return Rules.TOP_LEVEL
        if not _engine.old_rules_differ(self._state_dict):
            return Rules.TORCH_2_4
        # The checkpoint may come from a torch before 2.4, which named some of the keys differently.
        names = {leaf.fqn for leaf in flatten(self._state_dict)}
        old = (leaf.fqn for leaf in flatten(self._state_dict, Rules.TORCH_2_3))
        others = [fqn for fqn in old if fqn not in names]
        return Rules.TORCH_2_3 if others and checkpoint.holds_any(others) else Rules.TORCH_2_4

    def _read_payloads(self, checkpoint: _engine.Checkpoint, leaves: list[Leaf]) -> list[tuple[Leaf, bytes]]:
        if not leaves:
            return []
        state = _engine.StateDict()
        for leaf in leaves:
            if isinstance(leaf.value, torch.Tensor):
                add_payload_target(state, leaf.path, leaf.value)
            else:
                state.add_serialized_value(leaf.path, b"")
        _, missing, _ = checkpoint.load(state, **self._options)
        absent = set(missing)
        return [(leaf, state.payload(i)) for i, leaf in enumerate(leaves) if state.fqn(i) not in absent]

    @staticmethod
    def _put(fresh: list[tuple[Leaf, Any]], missing: set[str]) -> None:
        for leaf, value in fresh:
            if not missing or leaf.fqn not in missing:
                leaf.container[leaf.place] = value


def _with_restarts(directory: bytes, run: _Load, ranks: Ranks) -> list[tuple[str, int, int]]:
    """Runs the load. All ranks take equal branches at each attempt, because all ranks get equal errors."""
    try:
        return restarting(lambda: run.run(directory, ranks, alone=False))
    except NotFound as missing:
        # As in DCP, the checkpoints that the ranks saved alone are loaded if no joint checkpoint exists.
        if not _is_metadata_missing(missing, ranks, lambda rank: metadata_name(None)):
            raise
        try:
            return restarting(lambda: run.run(directory, ranks, alone=True))
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
        isinstance(failure, Unsupported) and failure.message.startswith(_TRANSFORMED) for failure in failures
    )


def _check_assignable(container: Any, place: Any, fqn: str) -> None:
    """Raises InvalidArgument, before the load changes anything, if `container[place]` can't get a new object."""
    try:
        container[place] = container[place]
    except Exception as error:
        raise InvalidArgument(
            f"'{fqn}' is in a {type(container).__name__} that refuses assignment ({error}): the loaded value can't be "
            "put there; use a dict in the state",
            key=fqn,
        ) from error


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) or is_filled_in_place(value)


def _materialized(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor for the meta tensor, on the device that DCP would choose."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    if alone and not is_declared_shard(tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return torch.empty_like(tensor, device="cpu")
    holder = {"": tensor}
    _init_state_dict(holder)
    return holder[""]
