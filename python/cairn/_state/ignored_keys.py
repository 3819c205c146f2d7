"""The warning about keys of a checkpoint that a load leaves out although the caller's state has a place for them.

A caller may leave out keys: a load of the model alone is no mistake. An empty dict in the state is a place for keys,
and most likely a mistake if the checkpoint has keys below: the state of a new optimizer is such a dict. A state without
any key loads nothing, and is a mistake too.
"""

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from cairn._state.flattening import saved_keys
from cairn._state.key_terms import OpenCheckpoint
from cairn._state.per_rank import PerRank
from cairn._state.values import level_of_the_caller
from cairn.warnings import IgnoredKeysWarning

_NAMED_MAX = 4  # dicts that the warning names
_NEW_OPTIMIZER = "The state_dict() of a new optimizer has no state: give "
_DICTS = "the dicts of cairn.state_dict.get_state_dict(model, optimizer)"


def warn_of_ignored(
    state_dict: Mapping[Any, Any], checkpoint: OpenCheckpoint, loaded: int, directory: bytes, *, may_be_empty: bool
) -> None:
    """Issues one IgnoredKeysWarning for Cairn's caller, or none. `loaded` is the number of loaded keys.

    `may_be_empty`: a state without keys is no mistake, because other ranks of the load may have the keys.
    """
    if loaded >= len(checkpoint):
        return
    where = os.fsdecode(directory)
    counts = _keys_below(_empty_places(state_dict), (key for key, *_ in saved_keys(checkpoint)))
    if counts:
        text = (
            f"{_counted(counts, where)}. {_NEW_OPTIMIZER}the optimizer itself, {{'optimizer': optimizer}}, or {_DICTS}"
        )
    elif not loaded and not may_be_empty:
        text = (
            f"nothing was loaded: the state dict has none of the {len(checkpoint)} keys of the checkpoint in '{where}'"
            ". A load fills the keys of its state dict; cairn.read() returns a whole checkpoint without a state dict"
        )
    else:
        return
    warnings.warn(text, IgnoredKeysWarning, stacklevel=level_of_the_caller())


def warn_of_ignored_by_torch(state_dict: Mapping[Any, Any], reader: Any, planner: Any, place: Any) -> None:
    """As warn_of_ignored(), after a load by torch's driver. Does nothing if the reader keeps no table of the keys."""
    places = _empty_places(state_dict) if getattr(planner, "flatten_state_dict", True) else []
    table = getattr(reader, "storage_data", None) if places else None
    if isinstance(table, Mapping):
        counts = _keys_below(places, {str(getattr(index, "fqn", "")) for index in table})
        if counts:
            text = f"{_counted(counts, str(place))}. {_NEW_OPTIMIZER}{_DICTS}"
            warnings.warn(text, IgnoredKeysWarning, stacklevel=level_of_the_caller())


def warn_of_ignored_by_template(counts: dict[str, int], place: str) -> None:
    """As warn_of_ignored(), for a template in which None takes all that is saved. `counts`: by the place of an empty
    mapping in the template, "" for the template itself, the number of keys below."""
    if counts:
        named = {below or "the top": count for below, count in counts.items()}
        text = f"{_counted(named, place)}. None in place of the dict takes all that is saved there"
        warnings.warn(text, IgnoredKeysWarning, stacklevel=level_of_the_caller())


def _counted(counts: dict[str, int], where: str) -> str:
    named = [f"{count} below '{place}'" for place, count in list(counts.items())[:_NAMED_MAX]]
    rest = len(counts) - len(named)
    more = f" and below {rest} more" if rest else ""
    return (
        f"{sum(counts.values())} keys of the checkpoint in '{where}' were not loaded: {', '.join(named)}{more}, where "
        "the state dict has an empty dict"
    )


def _empty_places(state_dict: Mapping[Any, Any]) -> list[str]:
    """Returns the places of the empty mappings in a nested state, by the flat names of their keys."""
    places = []
    waiting: list[tuple[str, Any]] = [("", state_dict)]
    while waiting:
        place, container = waiting.pop()
        items = enumerate(container) if isinstance(container, list) else container.items()
        for key, value in items:
            if isinstance(value, PerRank) and not value:  # the load keeps the rank's value
                continue
            if isinstance(value, torch.Tensor) or not isinstance(value, Mapping | list):
                continue
            if value:
                waiting.append((f"{place}{key}.", value))
            elif isinstance(value, Mapping):
                places.append(f"{place}{key}")
    return places


def _keys_below(places: list[str], keys: Iterable[str]) -> dict[str, int]:
    """Returns the number of keys below each place that has keys. Without places looks at no key."""
    counts: dict[str, int] = {}
    known = frozenset(places)
    for key in keys if known else ():
        place = next((above for above in _above(key) if above in known), None)
        if place is not None:
            counts[place] = counts.get(place, 0) + 1
    return counts


def _above(key: str) -> list[str]:
    """Returns the prefixes of a key that end before a dot."""
    return [key[:position] for position, character in enumerate(key) if character == "."]
