"""Values of the standard library. `recorded_pickles.json` holds their pickles from several versions of Python.

Running `python/tests/pickled_values.py` with a new version of Python adds the pickles of the new version. The file must
therefore run on Python 3.8 without installed packages.
"""

import argparse
import array
import base64
import collections
import datetime
import decimal
import fractions
import io
import json
import pathlib
import pickle
import random
import sys
import time
import types
import uuid


def _bytes_io():
    stream = io.BytesIO(b"\x00ab\xff")
    stream.seek(2)
    return stream


def _string_io(newline):
    stream = io.StringIO("one\r\ntwo\n", newline=newline)
    stream.seek(3)
    return stream


def _random():
    source = random.Random(7)
    source.gauss(0, 1)
    return source


def _ordered():
    ordered = collections.OrderedDict(b=1, a=2)
    ordered._metadata = {"": {"version": 1}}
    return ordered


_EAST = datetime.timezone(datetime.timedelta(hours=2), "east")

VALUES = {
    "array": array.array("d", [1.5, -2.0]),
    "array of bytes": array.array("B", b"\x00\xff"),
    "array of integers": array.array("q", [-1, 1 << 40]),
    "bytearray": bytearray(b"\x00\xff"),
    "bytearray, empty": bytearray(),
    "BytesIO": _bytes_io(),
    "ChainMap": collections.ChainMap({"a": 1}, {"b": 2}),
    "complex": 1.5 - 2j,
    "Counter": collections.Counter("abba"),
    "date": datetime.date(2024, 2, 29),
    "datetime": datetime.datetime(1, 2, 3, 4, 5, 6, 789),
    "datetime, UTC": datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, datetime.timezone.utc),
    "datetime, zone": datetime.datetime(2024, 10, 27, 2, 30, tzinfo=_EAST),
    "Decimal": decimal.Decimal("-1.50E+7"),
    "Decimal, special": (decimal.Decimal("-Infinity"), decimal.Decimal("0"), decimal.Decimal("1E-999")),
    "defaultdict": collections.defaultdict(list, {"a": [1]}),
    "defaultdict of int": collections.defaultdict(int, {"a": 1}),
    "defaultdict of nothing": collections.defaultdict(None, {"a": 1}),
    "defaultdict of str": collections.defaultdict(str),
    "deque": collections.deque([1, "two", (3,)]),
    "deque, bounded": collections.deque([1, 2, 3], maxlen=3),
    "deque, empty": collections.deque(maxlen=0),
    "Ellipsis": (...,),
    "Fraction": fractions.Fraction(-1, 3),
    "frozenset": frozenset([1, "two", (3,)]),
    "frozenset, empty": frozenset(),
    "member of an enum": (uuid.SafeUUID.safe, uuid.SafeUUID.unknown),
    "Namespace": argparse.Namespace(lr=0.1, layers=[1, 2]),
    "OrderedDict with attributes": _ordered(),
    "Path": pathlib.Path("/data/run 1/../x.txt"),
    "Path, relative": pathlib.Path("a"),
    "Path, here": pathlib.Path(),
    "Random": _random(),
    "PurePosixPath": pathlib.PurePosixPath("a/b"),
    "PureWindowsPath": pathlib.PureWindowsPath("c:\\a\\b"),
    "range": range(0, -10, -2),
    "range, huge": range(1 << 70),
    "SimpleNamespace": types.SimpleNamespace(a=1, b=types.SimpleNamespace()),
    "slice": slice(None, 3, None),
    "StringIO": _string_io("\n"),
    "StringIO, translating": _string_io(None),
    "StringIO, universal": _string_io(""),
    "struct_time": time.gmtime(0),
    "time": datetime.time(23, 59, 59, 999_999, datetime.timezone.utc),
    "timedelta": datetime.timedelta(-1, 2, 3),
    "timezone": _EAST,
    "type": (int, str, dict, type(None)),
    "UUID": uuid.UUID("12345678-1234-5678-1234-567812345678"),
}


def _record(file):
    """Adds this Python's pickles of the values. Pickles recorded earlier by the same version must be removed first."""
    recorded = json.loads(file.read_text()) if file.exists() else {}
    for name, value in VALUES.items():
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            pickled = base64.b64encode(pickle.dumps(value, protocol)).decode()
            origin = "{}.{}, protocol {}".format(*sys.version_info[:2], protocol)
            recorded.setdefault(name, {}).setdefault(pickled, []).append(origin)
    file.write_text(json.dumps(recorded, indent=0))


if __name__ == "__main__":
    _record(pathlib.Path(__file__).with_name("recorded_pickles.json"))
