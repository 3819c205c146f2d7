"""The classes of Python's standard library that a pickle may describe.

Left out: ``zoneinfo.ZoneInfo``, which would read files that the checkpoint names; ``functools.partial``, compiled
regular expressions and other objects that represent code.
"""

import argparse
import array
import datetime
import io
import ipaddress
import pathlib
import random
import re
import time
import types
import uuid
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from enum import Enum, EnumMeta
from fractions import Fraction
from typing import Any

from cairn import _engine
from cairn._known_objects import Builder, Description, Table, Unfit, attributes, called_with, expect, of_types

# --- Dates and times: their state is a byte string.

_YEAR_AND_MONTH = 4  # bytes of a date
_FOLD = 0x80  # in the first byte with a free bit


def _timedelta(description: Description) -> datetime.timedelta:
    days, seconds, microseconds = called_with(description, int, int, int)
    expect(0 <= seconds < 86_400 and 0 <= microseconds < 1_000_000)
    return datetime.timedelta(days, seconds, microseconds)


def _date(description: Description) -> datetime.date:
    (state,) = called_with(description, bytes)
    expect(len(state) == _YEAR_AND_MONTH)
    return datetime.date(state[0] << 8 | state[1], state[2], state[3])


def _datetime(description: Description) -> datetime.datetime:
    state, zone = _state_and_zone(description, 10)
    fold, month = divmod(state[2], _FOLD)
    year = state[0] << 8 | state[1]
    microsecond = int.from_bytes(state[7:], "big")
    return datetime.datetime(year, month, state[3], state[4], state[5], state[6], microsecond, zone, fold=fold)


def _time(description: Description) -> datetime.time:
    state, zone = _state_and_zone(description, 6)
    fold, hour = divmod(state[0], _FOLD)
    return datetime.time(hour, state[1], state[2], int.from_bytes(state[3:], "big"), zone, fold=fold)


def _state_and_zone(description: Description, state_bytes: int) -> tuple[bytes, datetime.timezone | None]:
    if len(description.arguments) == 1:
        (state,), zone = called_with(description, bytes), None
    else:
        state, zone = called_with(description, bytes, datetime.timezone)
    expect(len(state) == state_bytes)
    return state, zone


def _timezone(description: Description) -> datetime.timezone:
    if len(description.arguments) == 1:
        (offset,) = called_with(description, datetime.timedelta)
        return datetime.timezone.utc if not offset else datetime.timezone(offset)
    return datetime.timezone(*called_with(description, datetime.timedelta, str))


def _struct_time(description: Description) -> time.struct_time:
    fields, further = called_with(description, tuple, dict)
    expect(len(fields) == 9 and all(type(field) is int for field in fields))
    kinds = {"tm_zone": (str, type(None)), "tm_gmtoff": (int, type(None))}
    expect(all(name in kinds and type(value) in kinds[name] for name, value in further.items()))
    return time.struct_time(fields, further)


# --- Numbers.

_DECIMAL = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|inf(inity)?|s?nan\d*)", re.IGNORECASE | re.ASCII)
_FRACTION = re.compile(r"[-+]?\d+(/\d+)?", re.ASCII)
_FRACTION_BITS_MAX = 1 << 15  # of each part: the time for the greatest common divisor grows with the square of the bits


def _decimal(description: Description) -> Decimal:
    (text,) = called_with(description, str)
    expect(_DECIMAL.fullmatch(text) is not None)
    return Decimal(text)


def _fraction(description: Description) -> Fraction:
    if len(description.arguments) == 1:  # before Python 3.12
        (text,) = called_with(description, str)
        expect(len(text) < _FRACTION_BITS_MAX // 4 and _FRACTION.fullmatch(text) is not None)
        numerator, _, denominator = text.partition("/")
        return Fraction(int(numerator), int(denominator or "1"))
    parts = called_with(description, int, int)
    expect(all(part.bit_length() <= _FRACTION_BITS_MAX for part in parts))
    return Fraction(*parts)


_ARRAY_CODES = frozenset("bBhHiIlLqQfd")
# The formats of array's pickles since protocol 3, least significant byte first: bytes of an element and type codes.
_ARRAY_FORMATS = {
    0: (1, "B"),
    1: (1, "b"),
    2: (2, "HIL"),
    4: (2, "hil"),
    6: (4, "IL"),
    8: (4, "il"),
    10: (8, "QL"),
    12: (8, "ql"),
    14: (4, "f"),
    16: (8, "d"),
}


def _array(description: Description) -> "array.array[Any]":
    code, elements = called_with(description, str, list)
    expect(code in _ARRAY_CODES and all(type(element) in (int, float) for element in elements))
    return array.array(code, elements)


def _array_of_bytes(description: Description) -> "array.array[Any]":
    kind, code, file_format, data = called_with(description, type, str, int, bytes)
    expect(kind is array.array and code in _ARRAY_CODES and file_format in _ARRAY_FORMATS)
    element_bytes, codes = _ARRAY_FORMATS[file_format]
    made = array.array(code)
    # An L has 8 bytes on some machines and 4 on the rest.
    expect(code in codes and made.itemsize == element_bytes and len(data) % element_bytes == 0)
    made.frombytes(data)
    return made


def _random(description: Description) -> random.Random:
    expect(not description.by_new and description.arguments == () and description.items is None)
    version, internal, gauss = of_types(description.state, int, tuple, (float, type(None)))
    expect(version == 3 and all(type(word) is int for word in internal))
    made = random.Random(0)
    made.setstate((version, internal, gauss))
    return made


# --- Containers.


def _bytearray(description: Description) -> bytearray:
    if description.arguments == ():
        called_with(description)
        return bytearray()
    if len(description.arguments) == 1:
        return bytearray(*called_with(description, bytes))
    text, encoding = called_with(description, str, str)  # protocol 2
    expect(encoding == "latin-1")
    return bytearray(text, "latin-1")


def _frozenset(description: Description) -> frozenset[Any]:
    (members,) = called_with(description, list)
    _engine.check_key_hashes(members)
    return frozenset(members)


def _range(description: Description) -> range:
    return range(*called_with(description, int, int, int))


def _slice(description: Description) -> slice:
    expect(len(description.arguments) == 3)
    return slice(*called_with(description, *map(type, description.arguments)))


def _deque(description: Description) -> deque[Any]:
    expect(not description.by_new and description.state is None)
    first: Any = ()
    maximum = None
    if len(description.arguments) == 1:
        (first,) = of_types(description.arguments, list)
    elif description.arguments:
        first, maximum = of_types(description.arguments, (list, tuple), (int, type(None)))
    made = deque(first, maximum)
    made.extend(_put_in(description, list))
    return made


def _defaultdict(description: Description) -> defaultdict[Any, Any]:
    expect(not description.by_new and description.state is None and len(description.arguments) <= 1)
    factory = description.arguments[0] if description.arguments else None
    expect(factory is None or any(factory is harmless for harmless in _FACTORIES))
    return defaultdict(factory, _put_in(description, dict))


def _ordered_dict(description: Description) -> OrderedDict[Any, Any]:
    """Builds an OrderedDict with attributes of its own; the decoder builds an OrderedDict without attributes."""
    expect(not description.by_new and description.arguments == ())
    made = OrderedDict(_put_in(description, dict))
    made.__dict__.update(attributes(description.state))
    return made


def _counter(description: Description) -> Counter[Any]:
    (counts,) = called_with(description, dict)
    made: Counter[Any] = Counter()
    dict.update(made, counts)
    return made


def _chain_map(description: Description) -> ChainMap[Any, Any]:
    expect(description.by_new and description.arguments == () and description.items is None)
    state = attributes(description.state)
    maps = state.get("maps")
    expect(len(state) == 1 and type(maps) is list and all(isinstance(part, dict) for part in maps or [None]))
    made: ChainMap[Any, Any] = ChainMap()
    made.maps = maps or []
    return made


def _put_in(description: Description, kind: type) -> Any:
    """Returns the items of type `kind`; an empty `kind` without items."""
    if description.items is None:
        return kind()
    expect(type(description.items) is kind)
    return description.items


# --- Attributes under names.


def _simple_namespace(description: Description) -> types.SimpleNamespace:
    expect(not description.by_new and description.arguments == () and description.items is None)
    return types.SimpleNamespace(**(attributes(description.state) if description.state is not None else {}))


def _namespace(description: Description) -> argparse.Namespace:
    expect(description.by_new and description.arguments == () and description.items is None)
    made = argparse.Namespace()
    if description.state is not None:
        made.__dict__.update(attributes(description.state))
    return made


# --- Streams in memory.


def _bytes_io(description: Description) -> io.BytesIO:
    expect(description.by_new and description.arguments == () and description.items is None)
    content, position, further = of_types(description.state, bytes, int, (dict, type(None)))
    made = io.BytesIO(content)
    _set_up(made, position, further)
    return made


def _string_io(description: Description) -> io.StringIO:
    expect(description.by_new and description.arguments == () and description.items is None)
    none = type(None)
    content, newline, position, further = of_types(description.state, (str, none), (str, none), int, (dict, none))
    made = io.StringIO(newline=newline)
    # As in StringIO's own __setstate__: the content has its final line ends, and writing must not translate them.
    made.__setstate__((content or "", newline, 0, None))  # type: ignore[attr-defined]
    _set_up(made, position, further)
    return made


def _set_up(stream: Any, position: int, further: dict[Any, Any] | None) -> None:
    expect(position >= 0)
    stream.seek(position)
    if further:
        stream.__dict__.update(attributes(further))


# --- Names.


def _path_builder(kind: type[pathlib.PurePath]) -> Builder:
    def build(description: Description) -> pathlib.PurePath:
        expect(not description.by_new and description.state is None and description.items is None)
        expect(all(type(part) is str for part in description.arguments))
        try:
            return kind(*description.arguments)
        except NotImplementedError as error:  # a path of another operating system
            raise Unfit from error

    return build


_ADDRESS_TEXT_MAX = 256  # including the name of a zone
_ADDRESSES = (ipaddress.IPv4Address, ipaddress.IPv6Address)
_NETWORKS = (ipaddress.IPv4Interface, ipaddress.IPv4Network, ipaddress.IPv6Interface, ipaddress.IPv6Network)


def _address_builder(kind: Any, *kinds: type) -> Builder:
    def build(description: Description) -> Any:
        (address,) = called_with(description, kinds)
        expect(type(address) is int or len(address) <= _ADDRESS_TEXT_MAX)
        return kind(address)

    return build


_IS_SAFE = {kind.value: kind for kind in uuid.SafeUUID}


def _uuid(description: Description) -> uuid.UUID:
    expect(description.by_new and description.arguments == () and description.items is None)
    state = attributes(description.state)
    number, is_safe = state.get("int"), state.get("is_safe", uuid.SafeUUID.unknown)
    expect(set(state) <= {"int", "is_safe"} and type(number) is int)
    if not isinstance(is_safe, uuid.SafeUUID):
        expect(type(is_safe) is int or is_safe is None)
        is_safe = _IS_SAFE[is_safe]
    return uuid.UUID(int=number, is_safe=is_safe)


def _safe_uuid(description: Description) -> uuid.SafeUUID:
    (value,) = called_with(description, (int, type(None)))
    return _IS_SAFE[value]


# --- Singletons, types and members of enums.


def _type_of(description: Description) -> type:
    """``type(None)`` and ``type(...)``: these types have no name that a pickle could hold."""
    (value,) = called_with(description, (type(None), type(Ellipsis)))
    return type(value)


def _member(description: Description) -> Enum:
    """``getattr(kind, name)``: Python 3.11's form of an enum's member. `kind` can only come from the tables."""
    kind, name = called_with(description, EnumMeta, str)
    member: Enum = kind.__members__[name]
    return member


# The allowed factories of a defaultdict for missing keys.
_FACTORIES = (
    bool,
    bytearray,
    bytes,
    complex,
    dict,
    float,
    frozenset,
    int,
    list,
    set,
    str,
    tuple,
    Counter,
    OrderedDict,
    deque,
)

TABLE = Table(
    constants={
        **{(kind.__module__, kind.__qualname__): kind for kind in (*_FACTORIES, object, range, slice)},
        ("array", "array"): array.array,
        ("builtins", "Ellipsis"): Ellipsis,
        ("collections", "defaultdict"): defaultdict,
        ("datetime", "timezone.utc"): datetime.timezone.utc,
        ("uuid", "SafeUUID"): uuid.SafeUUID,
    },
    builders={
        ("_io", "BytesIO"): _bytes_io,
        ("_io", "StringIO"): _string_io,
        ("argparse", "Namespace"): _namespace,
        ("array", "_array_reconstructor"): _array_of_bytes,
        ("array", "array"): _array,
        ("builtins", "bytearray"): _bytearray,
        ("builtins", "frozenset"): _frozenset,
        ("builtins", "getattr"): _member,
        ("builtins", "range"): _range,
        ("builtins", "slice"): _slice,
        ("builtins", "type"): _type_of,
        ("collections", "ChainMap"): _chain_map,
        ("collections", "Counter"): _counter,
        ("collections", "OrderedDict"): _ordered_dict,
        ("collections", "defaultdict"): _defaultdict,
        ("collections", "deque"): _deque,
        ("datetime", "date"): _date,
        ("datetime", "datetime"): _datetime,
        ("datetime", "time"): _time,
        ("datetime", "timedelta"): _timedelta,
        ("datetime", "timezone"): _timezone,
        ("decimal", "Decimal"): _decimal,
        ("fractions", "Fraction"): _fraction,
        **{
            (module, kind.__qualname__): _path_builder(kind)
            for module in ("pathlib", "pathlib._local")  # the latter: Python 3.13
            for kind in (
                pathlib.PosixPath,
                pathlib.PurePosixPath,
                pathlib.PureWindowsPath,
                pathlib.WindowsPath,
            )
        },
        **{("ipaddress", kind.__name__): _address_builder(kind, int, str) for kind in _ADDRESSES},
        **{("ipaddress", kind.__name__): _address_builder(kind, str) for kind in _NETWORKS},
        ("random", "Random"): _random,
        ("time", "struct_time"): _struct_time,
        ("types", "SimpleNamespace"): _simple_namespace,
        ("uuid", "SafeUUID"): _safe_uuid,
        ("uuid", "UUID"): _uuid,
    },
)
