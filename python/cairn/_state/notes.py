"""The notes of a checkpoint as the engine takes them: JSON text."""

import json
import math
from collections.abc import Mapping
from typing import Any

from cairn.errors import InvalidArgument

_KINDS = "a dict, list, str, int, float, bool or None"


def notes_text(notes: Mapping[str, Any] | None) -> str:
    """Returns the JSON text of `notes`; an empty text for None.

    Raises InvalidArgument, with the place of the value, for anything that JSON has no form for: a value of another
    type, such as a tensor or a NumPy number; a key that is no text; NaN and infinities; a container inside itself. The
    engine checks the rest.
    """
    plain = plain_notes(notes)
    return "" if plain is None else json.dumps(plain, ensure_ascii=False, allow_nan=False)


def plain_notes(notes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns a copy of `notes` of plain dicts and lists. Raises as notes_text()."""
    if notes is None:
        return None
    if not isinstance(notes, Mapping):
        raise _refused("notes", "a dict", type(notes).__name__)
    plain: dict[str, Any] = _plain(notes, "notes", ())
    return plain


def _plain(value: Any, place: str, outer: tuple[int, ...]) -> Any:
    """Returns `value` with plain dicts and lists. `outer`: the ids of the containers around it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(place, "a finite number", repr(value))
        return float(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refused(place, "text without lone surrogates", repr(value)) from None
        return value
    if not isinstance(value, Mapping | list | tuple):
        hint = "; call its item() for a plain number" if callable(getattr(value, "item", None)) else ""
        raise _refused(place, _KINDS, f"{type(value).__module__}.{type(value).__qualname__}{hint}")
    if id(value) in outer:
        raise _refused(place, "a container that does not hold itself", type(value).__name__)
    outer = (*outer, id(value))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _refused(place, "texts as keys", repr(key))
            _plain(key, place, outer)
        return {key: _plain(inner, f"{place}[{key!r}]", outer) for key, inner in value.items()}
    return [_plain(inner, f"{place}[{i}]", outer) for i, inner in enumerate(value)]


def _refused(place: str, expected: str, actual: str) -> InvalidArgument:
    return InvalidArgument(f"{place} can't be stored as JSON", expected=expected, actual=actual)
