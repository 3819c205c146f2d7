"""NumPy's dtypes, and the arrays and scalars that the engine's decoder does not build: of text, of dates, of
structures.

Arrays of dtype `object` would need pickles inside the pickle and are refused.
"""

import math
import re
from typing import Any

import numpy as np

from cairn._known_objects import Description, Table, called_with, expect, of_numpy_random, of_types

_Dtype = np.dtype[Any]
_PLAIN = re.compile(r"[biufcSUV]\d{1,9}", re.ASCII)
_DATES = ("M8", "m8")
_UNITS = frozenset(("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic"))
_BYTE_ORDERS = ("<", ">", "=", "|")
_NONE = type(None)


def _dtype(description: Description) -> _Dtype:
    """``dtype("f4", False, True)`` and a state.

    The state is version, byte order, sub-array, names, fields, size, alignment, flags, and in version 4 a date's unit.
    """
    expect(not description.by_new and description.items is None)
    name, align, copy = of_types(description.arguments, str, (bool, int), (bool, int))
    expect(not align and bool(copy) and type(description.state) is tuple)
    version, *state = description.state
    expect((version, len(state)) in ((3, 7), (4, 8)))
    order, subarray, names, fields, item_bytes, alignment, _ = of_types(
        tuple(state[:7]), str, (tuple, _NONE), (tuple, _NONE), (dict, _NONE), int, int, int
    )
    expect(order in _BYTE_ORDERS)
    further = state[7] if version == 4 else None
    if name in _DATES:
        expect(subarray is None and names is None)
        return _plain(f"{order}{name}{_unit(further)}")
    expect(further is None and _PLAIN.fullmatch(name) is not None)
    if subarray is not None:
        return _of_subarray(subarray)
    if names is not None:
        return _structure(names, fields, item_bytes, alignment)
    return _plain(name if order == "|" else order + name)


def _plain(name: str) -> _Dtype:
    made: _Dtype = np.dtype(name)
    return made


def _unit(further: Any) -> str:
    metadata, (unit, count, base, event) = of_types(further, (dict, _NONE), tuple)
    expect(not metadata and type(unit) is bytes and unit.decode("ascii") in _UNITS)
    expect(type(count) is int and 0 < count < 1 << 31 and base == event == 1)
    return "" if unit == b"generic" else f"[{count}{unit.decode('ascii')}]"


def _of_subarray(subarray: tuple[Any, ...]) -> _Dtype:
    expect(len(subarray) == 2)
    element, shape = subarray
    made: Any = np.dtype
    return _checked(made((_checked(element), _sizes(shape))))


def _structure(names: tuple[Any, ...], fields: Any, item_bytes: int, alignment: int) -> _Dtype:
    expect(type(fields) is dict and all(type(name) is str for name in names) and set(fields) == set(names))
    # Each field is (dtype, offset); a field with a title has three parts.
    expect(all(type(field) is tuple and len(field) == 2 and type(field[1]) is int for field in fields.values()))
    description: Any = {
        "names": list(names),
        "formats": [_checked(fields[name][0]) for name in names],
        "offsets": [fields[name][1] for name in names],
        "itemsize": item_bytes,
    }
    return _checked(np.dtype(description, align=alignment > 1))


def _checked(dtype: Any) -> _Dtype:
    expect(isinstance(dtype, np.dtype) and not dtype.hasobject)
    checked: _Dtype = dtype
    return checked


def _sizes(shape: Any) -> tuple[int, ...]:
    expect(type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape))
    sizes: tuple[int, ...] = shape
    return sizes


def _scalar(description: Description) -> Any:
    """``scalar(dtype, data)``"""
    expect(len(description.arguments) == 2)
    dtype, data = called_with(description, type(description.arguments[0]), bytes)
    return _filled(dtype, (), data, "C")[()]


def _reconstruct(description: Description) -> Any:
    """``_reconstruct(ndarray, (0,), b"b")`` with the state version, shape, dtype, is column-major, data."""
    expect(not description.by_new and description.items is None)
    expect(description.arguments == (np.ndarray, (0,), b"b"))
    version, shape, dtype, column_major, data = description.state
    expect(version == 1 and type(column_major) is bool and type(data) is bytes)
    return _filled(dtype, shape, data, "F" if column_major else "C")


def _from_buffer(description: Description) -> Any:
    """``_frombuffer(data, dtype, shape, order)``, of protocol 5."""
    expect(len(description.arguments) == 4)
    data, dtype, shape, order = called_with(description, (bytes, bytearray), type(description.arguments[1]), tuple, str)
    return _filled(dtype, shape, data, order)


def _filled(dtype: Any, shape: Any, data: bytes | bytearray, order: str) -> Any:
    """Returns an array that owns its memory, with the elements in `data`."""
    count = math.prod(_sizes(shape))
    expect(_checked(dtype).subdtype is None and count * dtype.itemsize == len(data) and order in ("C", "F"))
    if not data:
        expect(count <= 1)  # elements of zero bytes
        return np.zeros(shape, dtype)
    flat: Any = np.frombuffer(bytearray(data), dtype)
    return flat.reshape(shape, order=order)


_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
_NUMERIC = ("numpy._core.numeric", "numpy.core.numeric")

TABLE = Table(
    constants={("numpy", "ndarray"): np.ndarray, **of_numpy_random.CONSTANTS},
    builders={
        **of_numpy_random.BUILDERS,
        ("numpy", "dtype"): _dtype,
        **{(module, "_reconstruct"): _reconstruct for module in _MODULES},
        **{(module, "scalar"): _scalar for module in _MODULES},
        **{(module, "_frombuffer"): _from_buffer for module in _NUMERIC},
    },
)
