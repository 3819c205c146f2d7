"""PerRank: a value that each rank keeps for itself, in a state that the ranks save together.

A PerRank is a dict with one entry, whose name ends in the number of the rank: ``{"rng": PerRank(value)}`` is stored
under ``rng.__rank_3`` by rank 3. Stock torch flattens and copies a PerRank like any dict: torch has no other class for
nested states, and its load replaces other mappings by None.

The methods are those of MutableMapping. The memory of the dict itself stays empty: the name of the entry follows the
rank at the time of the call.
"""

import contextlib
import copy
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import torch.distributed as dist
from torch.distributed.checkpoint.stateful import Stateful

from cairn._state.flattening import Rules, flatten, saved_keys
from cairn._state.key_terms import KeyTerms, OpenCheckpoint
from cairn.errors import InvalidArgument, MissingKey

Otherwise = Literal["error", "modulo", "first", "keep"]

_NAME = "__rank_"
_ENTRY = re.compile(r"\.__rank_(0|[1-9][0-9]{0,8})(?![^.])")  # the part of a flat key that names a rank
_NO_RANK = -1
_NAMED_RANKS_MAX = 8  # ranks that an error lists


class PerRank(MutableMapping[str, Any], dict[str, Any]):  # type: ignore[misc, metaclass]
    """A value of a state dict that differs from rank to rank: a random state, a counter, a position in the data.

    A save keeps the value of every rank. Without PerRank a value that all ranks have under one key is stored once, from
    one rank. `value` is a tensor, a value or a nested container; its form may differ from rank to rank. A load
    fills tensors in place and replaces `value`, or the values in its containers::

        state = {"model": model.state_dict(), "loader": cairn.PerRank(loader.state_dict())}
        cairn.load(state, checkpoint_id="run/step-1000")
        loader.load_state_dict(state["loader"].value)

    The key of the rank's value is the key of the PerRank with ``.__rank_<rank>`` behind it, for example
    ``loader.__rank_3``. The rank is that of torch's default process group, whatever group the call has; 0 without a
    process group. The other ranks' values are ordinary entries of the checkpoint, also for stock torch.

    `otherwise` says whose value a load takes for a rank that has none in the checkpoint, because the job had fewer
    ranks: "error" raises MissingKey; "modulo" takes the value of the rank's number modulo the number of ranks in the
    checkpoint; "first" the value of the lowest rank; "keep" leaves `value` unchanged. The rule works in calls that the
    engine carries out; with a planner or a storage of the caller's own class, and with stock torch, a load takes the
    rank's own value only.

    A PerRank belongs into a dict or a list. A save refuses a PerRank inside of a value that is stored whole, such as a
    tuple. Raises InvalidArgument for a Stateful, whose ``state_dict()`` is the value, for a PerRank in a PerRank, and
    for an unknown rule.
    """

    def __init__(self, value: Any, otherwise: Otherwise = "error") -> None:
        if isinstance(value, PerRank):
            raise InvalidArgument("a PerRank can't hold a PerRank")
        if not isinstance(value, type) and isinstance(value, Stateful):
            name = type(value).__name__
            raise InvalidArgument(
                f"PerRank takes a value, not a {name}: give it what the {name}'s state_dict() returns"
            )
        if otherwise not in get_args(Otherwise):
            rules = ", ".join(map(repr, get_args(Otherwise)))
            raise InvalidArgument("PerRank has no such rule", expected=f"one of {rules}", actual=repr(otherwise))
        self.value = value
        self.otherwise = otherwise
        self._source: int | None = None  # during a load: the rank whose value is loaded; _NO_RANK for none

    @property
    def key(self) -> str:
        """The name of the entry: ``__rank_<rank>``."""
        return _NAME + str(_this_rank() if self._source is None else self._source)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self.value

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            raise InvalidArgument(f"a PerRank has the entry '{self.key}' and no other", key=str(key))
        self.value = value

    def __delitem__(self, key: str) -> NoReturn:
        raise InvalidArgument("the entry of a PerRank can't be deleted", key=str(key))

    def __iter__(self) -> Iterator[str]:
        return iter(() if self._source == _NO_RANK else (self.key,))

    def __len__(self) -> int:
        return 0 if self._source == _NO_RANK else 1

    def __contains__(self, key: object) -> bool:
        return key == self.key and self._source != _NO_RANK

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"PerRank({self.value!r}, otherwise={self.otherwise!r})"

    def __copy__(self) -> "PerRank":
        return PerRank(self.value, self.otherwise)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PerRank":
        return PerRank(copy.deepcopy(self.value, memo), self.otherwise)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidArgument("a PerRank can't be stored inside of a value: put the PerRank into a dict of the state")


class _Place(NamedTuple):
    """A PerRank of a state, and its flat key."""

    key: str
    per_rank: PerRank


@contextlib.contextmanager
def with_sources(
    state_dict: Mapping[Any, Any], checkpoint: OpenCheckpoint, rules: Rules, allow_partial: bool, terms: KeyTerms
) -> Iterator[None]:
    """Within the block, each PerRank of the state has the entry of the rank whose value the load takes.

    Raises MissingKey if the checkpoint has no such value, unless the rule is "keep" or the load is partial. A PerRank
    that `terms` leave out stays as it is.
    """
    places = [place for place in _places_in(state_dict) if not terms.selects or _is_taken(place, terms)]
    try:
        sources = _sources_of(places, checkpoint, rules, allow_partial) if places else {}
        for place in places:
            place.per_rank._source = sources[id(place.per_rank)]
        yield
    finally:
        for place in places:
            place.per_rank._source = None


def keys_of(state_dict: Mapping[Any, Any]) -> list[str]:
    """Returns the flat keys of the PerRanks in a state."""
    return [place.key for place in _places_in(state_dict)]


def is_of_a_rank(key: str, places: Iterable[str]) -> bool:
    """Returns whether `key` belongs to a rank's value of a PerRank; `places`: keys_of() the state."""
    return any(key[: match.start()] in places for match in _ENTRY.finditer(key))


def _is_taken(place: _Place, terms: KeyTerms) -> bool:
    values = flatten({f"{place.key}.{place.per_rank.key}": place.per_rank.value})
    return any(terms.take(leaf.fqn) for leaf in values)


def _this_rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _places_in(state_dict: Mapping[Any, Any]) -> list[_Place]:
    """Returns the PerRanks in the dicts and lists of a state, each once."""
    found: list[_Place] = []
    seen: set[int] = set()
    pending: list[tuple[str, Any]] = [("", state_dict)]
    for prefix, container in pending:  # grows meanwhile
        if id(container) in seen:
            continue
        seen.add(id(container))
        entries: Iterable[tuple[Any, Any]]
        entries = container.items() if isinstance(container, Mapping) else enumerate(container)
        for key, value in entries:
            if not isinstance(value, (Mapping, list)):
                continue
            fqn = f"{prefix}{key}"
            if isinstance(value, PerRank):
                found.append(_Place(fqn, value))
            pending.append((f"{fqn}.", value))
    return found


def _sources_of(places: list[_Place], checkpoint: OpenCheckpoint, rules: Rules, allow_partial: bool) -> dict[int, int]:
    """Returns for each PerRank, by its id, the rank whose value is loaded; _NO_RANK if the value stays."""
    own = _this_rank()
    lacking = [place for place in places if not _holds_own(place, checkpoint, rules)]
    sources = dict.fromkeys((id(place.per_rank) for place in places), own)
    if not lacking:
        return sources
    ranks_of: dict[str, set[int]] = {place.key: set() for place in lacking}
    for fqn, *_ in saved_keys(checkpoint):
        for match in _ENTRY.finditer(fqn):
            if (ranks := ranks_of.get(fqn[: match.start()])) is not None:
                ranks.add(int(match[1]))
    for place in lacking:
        sources[id(place.per_rank)] = _source_of(place, own, sorted(ranks_of[place.key]), allow_partial)
    return sources


def _holds_own(place: _Place, checkpoint: OpenCheckpoint, rules: Rules) -> bool:
    """Returns whether the checkpoint has an entry that the PerRank loads for this rank, or the PerRank loads none."""
    per_rank = place.per_rank
    keys = [leaf.fqn for leaf in flatten({f"{place.key}.{per_rank.key}": per_rank.value}, rules)]
    return not keys or checkpoint.holds_any(keys)


def _source_of(place: _Place, own: int, ranks: list[int], allow_partial: bool) -> int:
    rule = place.per_rank.otherwise
    if ranks and own not in ranks:
        if rule == "modulo":
            return ranks[own % len(ranks)]
        if rule == "first":
            return ranks[0]
    if own in ranks:  # with other keys: the load names the keys that are missing
        return own
    if rule == "keep" or allow_partial:
        return _NO_RANK
    key = f"{place.key}.{_NAME}{own}"
    if not ranks:
        raise MissingKey(
            f"Missing key in checkpoint state_dict: {key}; no rank has a value under '{place.key}'. If the checkpoint "
            f"is older than the PerRank, load '{place.key}' without PerRank, or with PerRank(value, otherwise='keep')",
            key=key,
        )
    named = ", ".join(map(str, ranks[:_NAMED_RANKS_MAX])) + (", ..." if len(ranks) > _NAMED_RANKS_MAX else "")
    raise MissingKey(
        f"Missing key in checkpoint state_dict: {key}; the checkpoint has the values of {len(ranks)} ranks ({named}). "
        f"Name a rule for the other ranks: PerRank(value, otherwise='modulo'), 'first' or 'keep'",
        key=key,
    )
