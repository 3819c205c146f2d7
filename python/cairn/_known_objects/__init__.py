"""Objects of a fixed list of classes, built from the content of a pickle without running the pickle.

The engine's decoder reads a pickle as plain values and inert descriptions: "the call ``module.name(*arguments)``, the
items put into the result, the state set on the result". This package turns a description into an object if a table
holds `module` and `name`, and if arguments, items and state have the types and ranges of the class's own pickles. The
function in the table then builds the object. A name in a file never causes an import, a look-up or a call: names from a
file serve only as keys of dictionaries.

The forms are those of pickle protocols 2 to 5 as Python 3.8 to 3.14, NumPy 1 and 2 and torch write them.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Description(NamedTuple):
    """The content of a pickle for an object; arguments, items and state have been built already."""

    by_new: bool  # the call is name.__new__(name, *arguments)
    arguments: tuple[Any, ...]
    state: Any  # None: the pickle sets no state
    items: Any  # a list, set or dict; None: the pickle puts no items in


class Unfit(Exception):
    """Raised for a description that the pickles of the class never have."""


Builder = Callable[[Description], Any]


class Table(NamedTuple):
    """The known names of a library, by module and name."""

    constants: Mapping[tuple[str, str], Any]  # classes and singletons that a pickle names without a call
    builders: Mapping[tuple[str, str], Builder]


# The tables by the first part of a module's name; all remaining modules belong to the standard library's table.
_LIBRARIES = {"numpy": "of_numpy", "torch": "of_torch"}


def make(module: str, name: str, by_new: bool, arguments: Any, state: Any, items: Any) -> Any:
    """Returns the described object; NotImplemented if no table has the name, or if the description differs from the
    table's form.

    `arguments` None: returns the class, function or constant itself.
    """
    table = _table_of(module)
    if table is None:
        return NotImplemented
    if arguments is None:
        return table.constants.get((module, name), NotImplemented)
    builder = table.builders.get((module, name))
    if builder is None or type(arguments) is not tuple:
        return NotImplemented
    return build(builder, Description(by_new, arguments, state, items))


def make_without_torch(module: str, name: str, by_new: bool, arguments: Any, state: Any, items: Any) -> Any:
    """As make(), without torch's classes and without importing torch."""
    if _library_of(module) == "torch":
        return NotImplemented
    return make(module, name, by_new, arguments, state, items)


def build(builder: Builder, description: Description) -> Any:
    """Returns the result of `builder`; NotImplemented if the description does not fit."""
    try:
        return builder(description)
    except (Unfit, TypeError, ValueError, ArithmeticError, LookupError):
        return NotImplemented


def expect(condition: bool) -> None:
    """Raises Unfit unless the condition holds."""
    if not condition:
        raise Unfit


def called_with(description: Description, *kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """Returns the arguments of a plain call without state and items; each must have exactly the given type, or a type
    of the tuple."""
    expect(not description.by_new and description.state is None and description.items is None)
    return of_types(description.arguments, *kinds)


def of_types(values: Any, *kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """Returns `values` if the tuple has exactly the types `kinds`. A bool is no int here."""
    expect(type(values) is tuple and len(values) == len(kinds))
    for value, kind in zip(values, kinds, strict=True):
        expect(type(value) in (kind if isinstance(kind, tuple) else (kind,)))
    checked: tuple[Any, ...] = values
    return checked


def attributes(state: Any) -> dict[str, Any]:
    """Returns the state if the state is a dict of attributes."""
    expect(type(state) is dict and all(type(name) is str for name in state))
    checked: dict[str, Any] = state
    return checked


def _library_of(module: str) -> str:
    return module.partition(".")[0]


def _table_of(module: str) -> Table | None:
    name = _LIBRARIES.get(_library_of(module), "standard_library")
    try:
        table: Table = importlib.import_module(f"{__name__}.{name}").TABLE
    except ModuleNotFoundError:  # raised for NumPy or torch if not installed
        return None
    return table
