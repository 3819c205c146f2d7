"""StateLoad: the load of a state dict whose Statefuls are resolved, in steps: prepare, fill, put values in place.

:meth:`StateLoad.run` makes all steps; :meth:`StateLoad.plan` the first, for a load that fills the targets later.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner_helpers import _init_state_dict
from torch.nn.parameter import is_lazy

from cairn import _engine
from cairn._async import preparation
from cairn._calls.optimizer_entries import add_saved_entries
from cairn._directory import open_to_load, warn_of_damage
from cairn._ranks.ranks import Ranks, reason_of
from cairn._results.driver_attributes import fill_load_planner, fill_reader
from cairn._results.lazy_metadata import LazyMetadata
from cairn._state import per_rank
from cairn._state.flattening import Leaf, Rules, flatten
from cairn._state.ignored_keys import warn_of_ignored
from cairn._state.key_terms import KeyTerms, LoadedKeys, OpenCheckpoint, RenamedCheckpoint, holder_of, unexpected_keys
from cairn._state.tensors import (
    TensorTarget,
    add_payload_target,
    fill,
    is_declared_shard,
    is_filled_in_place,
    needs_payload,
    tensor_in_payload,
)
from cairn._state.values import load_value
from cairn._telemetry import dcp_records
from cairn._torch_protocol.storages import MODEL_INDEX, model_directory, reads_model
from cairn.errors import InvalidArgument, MissingKey, Unsupported

#: The message of an error: the engine does not undo stream transforms.
TRANSFORMED = "the checkpoint has items that went through stream transforms"

Conversions = list[tuple[str, int, int]]


class Given(NamedTuple):
    """The caller's objects of a load."""

    planner: Any
    reader: Any
    step: tuple[Any, Any]  # for dcp_records: the storage's path and the process group
    optimizers: Mapping[str, torch.optim.Optimizer]  # by the keys of their state dicts in the state
    terms: KeyTerms
    new_tensor: Callable[[torch.Tensor], torch.Tensor]  # with memory, in place of a meta tensor


class _Prepared:
    """A load that has read its values, and has changed nothing yet."""

    def __init__(
        self, native: _engine.Checkpoint, checkpoint: OpenCheckpoint, rules: Rules, tensors: TensorTarget
    ) -> None:
        self.native = native
        self.rules = rules
        self.checkpoint = checkpoint
        self.tensors = tensors
        self.others: list[Leaf] = []  # all leaves except plain tensors
        self.payloads: list[Leaf] = []
        self.fresh: list[tuple[Leaf, Any]] = []  # the new objects in place of values and meta tensors
        self.opaque: list[tuple[torch.Tensor, torch.Tensor]] = []  # targets that only torch can fill, and their sources
        self.read: list[tuple[Leaf, bytes]] = []

    def missing_values(self) -> list[str]:
        """Returns the keys of the values that the checkpoint lacks."""
        found = {leaf.fqn for leaf, _ in self.read}
        return [leaf.fqn for leaf in self.payloads if leaf.fqn not in found]


class PlannedState(NamedTuple):
    """The result of :meth:`StateLoad.plan`. All objects stay alive as long as the engine may write to the targets."""

    native: _engine.PlannedLoad
    state: _engine.StateDict
    tensors: TensorTarget
    checkpoint: _engine.Checkpoint
    values: dict[str, Any]  # by key: the tensor to fill, or the value


class StateLoad:
    """A load of a state dict whose Statefuls have been resolved."""

    def __init__(
        self,
        state_dict: dict[str, Any],
        flattens: bool,
        options: dict[str, Any],
        allow_pickle: bool,
        given: Given,
    ) -> None:
        self.state_dict = state_dict
        self._flattens = flattens
        self._options = options
        self._allow_pickle = allow_pickle
        self._given = given
        self._terms = given.terms
        self.keys: frozenset[str] = frozenset()  # of the loaded state
        self.loaded: frozenset[str] = frozenset()  # of these keys those that the checkpoint has
        self.found = LoadedKeys([], [])  # with terms that are not strict
        self.size = 0  # bytes that this rank has loaded
        self.size_of_save = 0  # bytes that this rank will write for the loaded tensors
        self._has_events = False  # of the engine, with the end of the load

    @property
    def is_strict(self) -> bool:
        """Whether a key that the checkpoint lacks is an error."""
        return self._terms.strict

    def run(self, directory: bytes, ranks: Ranks, alone: bool) -> Conversions:
        """Runs the load: reads and decodes values first, then fills tensors, and last puts the values into their
        containers.

        `alone`: each rank reads the checkpoint that it saved alone.
        """
        with contextlib.ExitStack() as until_filled:
            state = _engine.StateDict()
            prepared = self._prepare_all(directory, ranks, alone, (until_filled, state))
            with dcp_records.in_step("read_data", *self._given.step):
                self._has_events = True
                conversions, missing = prepared.native.load(
                    state,
                    **self._options,
                    **ranks.options,
                    own_checkpoint=alone,
                    take_archive=prepared.tensors.take_archive,
                )
                with contextlib.nullcontext() if alone else ranks.all_fail_together("read"):
                    self._note(state, prepared, missing, 1 if alone else ranks.count)
                    prepared.tensors.finish(set(missing))
                    self._put_values(prepared, set(missing))
            self._warn(prepared, directory, may_be_empty=ranks.rank != 0 and not alone)
        return conversions + prepared.tensors.conversions

    def plan(self, directory: bytes, ranks: Ranks, alone: bool) -> PlannedState:
        """Reads the values and puts them into their containers, and plans the reads of the tensors. Meta tensors are
        replaced by tensors that are not filled yet. As run(), a failure of one rank is one of all ranks until the
        values are put."""
        with contextlib.ExitStack() as until_put:
            state = _engine.StateDict()
            prepared = self._prepare_all(directory, ranks, alone, (until_put, state))
            self._has_events = True
            planned = _engine.plan_load(
                prepared.native,
                state,
                **self._options,
                **ranks.options,
                own_checkpoint=alone,
                take_archive=prepared.tensors.take_archive,
            )
            self._note(state, prepared, planned.missing, 1 if alone else ranks.count)
            self._put_values(prepared, set(planned.missing))
            values = {leaf.fqn: leaf.value for leaf in flatten(self.state_dict, prepared.rules)}
            self._warn(prepared, directory, may_be_empty=ranks.rank != 0 and not alone)
        return PlannedState(planned, state, prepared.tensors, prepared.native, values)

    def tell_failure(self, directory: bytes, error: BaseException, ranks: Ranks) -> None:
        """Makes the events of the failed load, unless the engine has made its "failed"."""
        if not self._has_events:
            tell_failed_load(directory, error, ranks)

    def _prepare_all(
        self,
        directory: bytes,
        ranks: Ranks,
        alone: bool,
        into: tuple[contextlib.ExitStack, _engine.StateDict],
    ) -> _Prepared:
        step = self._given.step
        with ranks.preparing(_engine.abandon_load), dcp_records.in_step("local_step", *step):
            prepared = self._prepare(directory, ranks, alone, into)
        if ranks.rank == 0 or alone:
            dcp_records.note_step("global_step", *step)
        return prepared

    def _prepare(
        self,
        directory: bytes,
        ranks: Ranks,
        alone: bool,
        into: tuple[contextlib.ExitStack, _engine.StateDict],
    ) -> _Prepared:
        """Reads and decodes the values, and describes the tensors in the StateDict of `into`."""
        until_filled, state = into
        self._has_events = False
        model = MODEL_INDEX if reads_model(self._given.reader) else None
        native = open_to_load(directory, ranks.rank if alone else None, model)
        if native.has_transforms:
            raise Unsupported(TRANSFORMED)
        renames = self._terms.renames
        checkpoint = RenamedCheckpoint(native, renames) if renames else native
        if self._flattens:
            add_saved_entries(self.state_dict, self._given.optimizers, checkpoint, self._terms.take)
        rules = self._rules(checkpoint)
        partial = self._options["allow_partial"]
        until_filled.enter_context(per_rank.with_sources(self.state_dict, checkpoint, rules, partial, self._terms))
        selected = self._terms.selected(self.state_dict, rules, checkpoint)
        self._fill_given(functools.partial(_engine.catalog_of, native), rules, ranks.rank, alone)
        tensors = TensorTarget(
            state,
            to_devices=True,
            saved_form=checkpoint.tensor_form,
            allow_pickle=self._allow_pickle,
            allow_cast=self._options["allow_cast"],
        )
        prepared = _Prepared(native, checkpoint, rules, tensors)
        tensors.add_leaves(self.state_dict, rules, lambda leaf: self._add_other(leaf, prepared), selected)
        try:
            prepared.read = self._read_payloads(native, prepared.payloads)
        except MissingKey:  # raised for values; the error must name the missing tensors too
            holds = holder_of(checkpoint)
            every = [leaf for leaf in flatten(self.state_dict, rules) if selected is None or leaf.fqn in selected]
            self._read_payloads(native, [leaf for leaf in every if not holds(leaf.fqn)])
            raise
        for leaf, payload in prepared.read:
            if isinstance(leaf.value, torch.Tensor):
                source = tensor_in_payload(leaf.fqn, leaf.value, payload, self._allow_pickle)
                prepared.opaque.append((leaf.value, source))
            else:
                prepared.fresh.append((leaf, load_value(leaf.fqn, payload, self._allow_pickle)))
        for leaf, _ in prepared.fresh:
            check_assignable(leaf.container, leaf.place, leaf.fqn)
        return prepared

    def _add_other(self, leaf: Leaf, prepared: _Prepared) -> None:
        prepared.others.append(leaf)
        value = leaf.value
        if not _is_tensor(value) or needs_payload(value):
            prepared.payloads.append(leaf)
            return
        if isinstance(value, torch.Tensor) and value.device.type == "meta" and not is_lazy(value):
            value = self._given.new_tensor(value)
            prepared.fresh.append((leaf, value))
        prepared.tensors.add(leaf.path, value)

    def _note(self, state: _engine.StateDict, prepared: _Prepared, missing: list[str], ranks: int) -> None:
        """Notes what is known after the engine's plan: `missing` are its missing keys."""
        absent = dict.fromkeys([*missing, *prepared.missing_values()])
        self.size = sum(state.tensor_bytes()) + sum(len(payload) for _, payload in prepared.read)
        self.keys = frozenset([*state.fqns(), *(leaf.fqn for leaf in prepared.others)])
        self.loaded = self.keys.difference(absent)
        self.size_of_save = preparation.size_of_save(state, ranks)
        if not self._terms.strict:
            places = per_rank.keys_of(self.state_dict)
            unexpected = unexpected_keys(prepared.checkpoint, self.keys, self._terms)
            order = [leaf.fqn for leaf in flatten(self.state_dict) if leaf.fqn in absent] if absent else []
            rest = [key for key in absent if key not in set(order)]
            self.found = LoadedKeys(order + rest, [key for key in unexpected if not per_rank.is_of_a_rank(key, places)])

    def _put_values(self, prepared: _Prepared, missing: set[str]) -> None:
        for target, source in prepared.opaque:
            fill(target, source)
        for leaf, value in prepared.fresh:
            if not missing or leaf.fqn not in missing:
                leaf.container[leaf.place] = value

    def _fill_given(self, whole: Callable[[], _engine.Catalog], rules: Rules, rank: int, alone: bool) -> None:
        """Sets the attributes that a caller's planner and reader have after a load by torch's driver."""
        reader = self._given.reader
        planner = self._given.planner
        metadata = LazyMetadata(whole, getattr(reader, "load_id", None), model_directory(reader))
        leaves = [] if planner is None else flatten(self.state_dict, rules)
        fill_load_planner(planner, self.state_dict, leaves, metadata, rank)
        fill_reader(reader, metadata, rank, use_collectives=not alone)

    def _warn(self, prepared: _Prepared, directory: bytes, *, may_be_empty: bool) -> None:
        warn_of_damage(prepared.native)
        if self._flattens and not self._terms.selects:
            checkpoint = prepared.checkpoint
            warn_of_ignored(self.state_dict, checkpoint, len(self.loaded), directory, may_be_empty=may_be_empty)

    def _rules(self, checkpoint: OpenCheckpoint) -> Rules:
        """Returns the rules by which the checkpoint's keys are named."""
        if not self._flattens:
            return Rules.TOP_LEVEL
        if not _engine.old_rules_differ(self.state_dict):
            return Rules.TORCH_2_4
        # The checkpoint may come from a torch before 2.4, which named some of the keys differently.
        names = {leaf.fqn for leaf in flatten(self.state_dict)}
        old = (leaf.fqn for leaf in flatten(self.state_dict, Rules.TORCH_2_3))
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
        _, missing = checkpoint.load(state, **self._options, silent=True)
        absent = set(missing)
        return [(leaf, state.payload(i)) for i, leaf in enumerate(leaves) if state.fqn(i) not in absent]


def tell_failed_load(directory: bytes, error: BaseException, ranks: Ranks) -> None:
    """Makes the events of a load that has failed before the engine's load."""
    _engine.tell_failed_load(directory, reason_of(error), **ranks.options)


def check_assignable(container: Any, place: Any, fqn: str) -> None:
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


def new_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor for the meta tensor, on the device that DCP would choose."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    if alone and not is_declared_shard(tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return torch.empty_like(tensor, device="cpu")
    holder = {"": tensor}
    _init_state_dict(holder)
    return holder[""]
