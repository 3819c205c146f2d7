"""The parts of a nested state that DCP's flat keys lose: keys that are not strings, and empty mappings.

An optimizer numbers its parameters, and has an empty state before its first step. Therefore a rank-local checkpoint of
such a state has an additional value under `SHAPE`: a list of places with the key at each place, and a list of the
places of empty mappings. A place is the keys from the top, as text, and the indices of lists. Readers with a template,
DCP among them, do not need the value.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cairn._state.flattening import Path
from cairn.errors import Corrupt, InvalidArgument

SHAPE = "__cairn_shape__"


class NestedShape(NamedTuple):
    """`names`: keys that are not strings, by place. `empty`: the places of empty mappings."""

    names: dict[Path, Any]
    empty: list[Path]


def with_shape(state_dict: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns `state_dict` with an entry for the lost parts, if any. Copies no values."""
    if SHAPE in state_dict:
        raise InvalidArgument(f"the key '{SHAPE}' is reserved for Cairn: rename the entry", key=SHAPE)
    shape = _shape_of(state_dict)
    if not shape.names and not shape.empty:
        return state_dict
    return {**state_dict, SHAPE: (list(shape.names.items()), shape.empty)}


def shape_in(saved: Any) -> NestedShape:
    """Returns the NestedShape of the value under `SHAPE`. Raises Corrupt."""
    try:
        names, empty, *_ = saved  # a conversion adds the positions of the empty mappings
        shape = NestedShape({_place(place): key for place, key in names}, [_place(place) for place in empty])
        hash(tuple(shape.names.values()))
    except (TypeError, ValueError) as error:
        raise Corrupt(f"the value under '{SHAPE}' is not what Cairn writes there", key=SHAPE) from error
    return shape


def _place(saved: Any) -> Path:
    place = tuple(saved)
    if not place or any(type(step) not in (str, int) for step in place):
        raise ValueError("no place")
    return place


def _shape_of(state_dict: Mapping[Any, Any]) -> NestedShape:
    shape = NestedShape({}, [])
    waiting: list[tuple[Path, Any, frozenset[int]]] = [((), state_dict, frozenset())]
    while waiting:
        place, container, above = waiting.pop()
        if id(container) in above:
            continue  # the save refuses a state that contains itself
        is_list = isinstance(container, list)
        for key, value in enumerate(container) if is_list else container.items():
            is_odd = not is_list and type(key) is not str and _is_plain(key)
            is_nested = isinstance(value, (Mapping, list))
            if not is_odd and not is_nested:
                continue
            here = (*place, key if is_list else str(key))
            if is_odd:
                shape.names[here] = key
            if is_nested and value:
                waiting.append((here, value, above | {id(container)}))
            elif isinstance(value, Mapping):
                shape.empty.append(here)
    return shape


def _is_plain(key: Any) -> bool:
    """Returns whether a key can be read back without running code. All remaining keys are read back as text."""
    if isinstance(key, tuple):
        return type(key) is tuple and all(type(part) is str or _is_plain(part) for part in key)
    return key is None or type(key) in (bool, int, float)
