"""Objects of a fixed list of classes, built from what a pickle says of them without running the pickle.

The engine's decoder reads a pickle as plain values and inert descriptions: "the call ``module.name(*arguments)``, these
items put into its result, this state set on it". Here such a description becomes an object if `module` and `name` stand
in a table, and arguments, items and state have the types and ranges that this class's own pickles have. The function in
the table then builds the object. Nothing is imported, looked up or called because a file names it: names of a file are
keys of dictionaries and nothing else.

The shapes are those of pickle protocols 2 to 5 as Python 3.8 to 3.14, NumPy 1 and 2 and torch write them.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Description(NamedTuple):
    """What a pickle says of an object; arguments, items and state have been built already."""

    by_new: bool  # the call is name.__new__(name, *arguments)
    arguments: tuple[Any, ...]
    state: Any  # None if none was set
    items: Any  # a list, set or dict; None if nothing was put in


class Unfit(Exception):
    """The description is not the one that the pickles of this class have."""


Builder = Callable[[Description], Any]


class Table(NamedTuple):
    """What is known of one library, by module and name."""

    constants: Mapping[tuple[str, str], Any]  # classes and singletons that a pickle names without a call
    builders: Mapping[tuple[str, str], Builder]


# The tables by the first part of a module's name; all other modules are looked up in the standard library's.
_LIBRARIES = {"numpy": "of_numpy", "torch": "of_torch"}


def make(module: str, name: str, by_new: bool, arguments: Any, state: Any, items: Any) -> Any:
    """The object that is described; NotImplemented if it is none of the tables', or not described as these are.

    `arguments` None: the class, function or constant of that name itself.
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
    """As make(), but torch's own classes are not known, and torch is not imported."""
    if _library_of(module) == "torch":
        return NotImplemented
    return make(module, name, by_new, arguments, state, items)


def build(builder: Builder, description: Description) -> Any:
    """What `builder` makes; NotImplemented if the description does not fit."""
    try:
        return builder(description)
    except (Unfit, TypeError, ValueError, ArithmeticError, LookupError):
        return NotImplemented


def expect(condition: bool) -> None:
    """Raises Unfit unless the condition holds."""
    if not condition:
        raise Unfit


def called_with(description: Description, *kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """The arguments of a plain call with nothing set on its result; each of exactly these types, or of one of them."""
    expect(not description.by_new and description.state is None and description.items is None)
    return of_types(description.arguments, *kinds)


def of_types(values: Any, *kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """`values` if it is a tuple of exactly these types. A bool is no int here."""
    expect(type(values) is tuple and len(values) == len(kinds))
    for value, kind in zip(values, kinds, strict=True):
        expect(type(value) in (kind if isinstance(kind, tuple) else (kind,)))
    checked: tuple[Any, ...] = values
    return checked


def attributes(state: Any) -> dict[str, Any]:
    """A state that is a dict of attributes."""
    expect(type(state) is dict and all(type(name) is str for name in state))
    checked: dict[str, Any] = state
    return checked


def _library_of(module: str) -> str:
    return module.partition(".")[0]


def _table_of(module: str) -> Table | None:
    name = _LIBRARIES.get(_library_of(module), "standard_library")
    try:
        table: Table = importlib.import_module(f"{__name__}.{name}").TABLE
    except ModuleNotFoundError:  # of NumPy or torch, where they are not installed
        return None
    return table
