"""Values of the known classes are built without unpickling, from the pickles of every Python.

Unknown classes are refused.
"""

import array
import base64
import datetime
import functools
import io
import json
import operator
import pathlib
import pickle
import pickletools
import random
import re
import subprocess
import sys
import types
import uuid
import warnings
import zipfile
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pickled_values import VALUES
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.tensor import Partial, Replicate, Shard

import cairn
from cairn import _engine, _known_objects
from cairn._process import part
from cairn._state import values

RECORDED = json.loads(Path(__file__).with_name("recorded_pickles.json").read_text())

OF_NUMPY = {
    "date": np.datetime64("2024-02-29"),
    "dtype": np.dtype("f4"),
    "dtype of a structure": np.dtype([("a", "<i4"), ("b", ">f8", (2, 3))], align=True),
    "dtype of bytes in the other order": np.dtype(">u2"),
    "dtype of dates": np.dtype("M8[25us]"),
    "dtype of text": np.dtype("U3"),
    "bytes": np.bytes_(b"ab"),
    "empty text": np.str_(""),
    "long double": np.longdouble(1.5),
    "text": np.str_("aβ"),
    "timedelta": np.timedelta64(3, "ns"),
    "array of dates": np.array(["2024-02-29", "NaT"], "M8[s]"),
    "array of structures": np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
    "array of text": np.asfortranarray([["a", "bc"], ["", "def"]]),
    "array in the other byte order": np.arange(6, dtype=">i4").reshape(2, 3),
    "array of nothing": np.empty((0, 3), "U4"),
}

OF_TORCH = {
    "device": (torch.device("cpu"), torch.device("cuda", 1)),
    "dtype": (torch.float32, torch.bfloat16, torch.quint8),
    "enum": (StateDictType.SHARDED_STATE_DICT, ShardingStrategy.HYBRID_SHARD),
    "layout": (torch.strided, torch.sparse_coo),
    "placements": (Shard(1), Replicate(), Partial("avg")),
    "policies": (MixedPrecisionPolicy(param_dtype=torch.bfloat16), CPUOffloadPolicy(), MixedPrecision()),
    "qscheme": (torch.per_tensor_affine,),
    "settings": (StateDictOptions(strict=False), FullStateDictConfig(rank0_only=True)),
    "size": (torch.Size([2, 3]), torch.Size([])),
    "version": torch.__version__,
}


def _archive(pickled: bytes) -> bytes:
    """Wraps a pickle as torch.save does."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def _decode(pickled: bytes) -> tuple[Any, str]:
    return _engine.decode_plain(_archive(pickled), _known_objects.make)


def _plain(value: Any) -> Any:
    """Returns a substitute that compares by value, for classes that compare by identity."""
    if isinstance(value, tuple):
        return type(value), tuple(map(_plain, value))
    if isinstance(value, (io.BytesIO, io.StringIO)):
        return type(value), value.__getstate__()[:-1], vars(value)
    if isinstance(value, random.Random):
        return type(value), value.getstate()
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, deque):
        return type(value), list(value), value.maxlen
    if isinstance(value, defaultdict):
        return type(value), dict(value), value.default_factory
    if isinstance(value, OrderedDict):
        return type(value), list(value.items()), value.__dict__
    if isinstance(value, (datetime.datetime, datetime.time)):
        return type(value), value, value.fold, value.tzinfo, value.tzname()
    if isinstance(value, array.array):
        return type(value), value.typecode, value
    if isinstance(value, (ChainMap, UserDict)):
        return type(value), vars(value)
    return type(value), value


@pytest.mark.parametrize("name", VALUES)
def test_the_pickle_of_every_python_is_built(name: str) -> None:
    seen: set[str] = set()
    for pickled, origins in RECORDED[name].items():
        decoded, foreign = _decode(base64.b64decode(pickled))
        assert not foreign, origins
        assert _plain(decoded) == _plain(VALUES[name]), origins
        seen.update(origins)
    assert len(seen) == 6 * 4, "six versions of Python, four protocols"


@pytest.mark.parametrize("name", OF_NUMPY)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_the_pickle_of_numpy_is_built(name: str, protocol: int) -> None:
    _check_pickle_of_numpy(pickle.dumps(OF_NUMPY[name], protocol), OF_NUMPY[name])


# Protocols 2 and 3 write no length before a name, so the name can be replaced.
NAMED_IN_CORE = [name for name, value in OF_NUMPY.items() if re.search(rb"cnumpy\._?core\.", pickle.dumps(value, 2))]


def test_values_of_numpy_include_arrays_and_scalars_of_core() -> None:
    assert any(isinstance(OF_NUMPY[name], np.ndarray) for name in NAMED_IN_CORE)
    assert any(isinstance(OF_NUMPY[name], np.generic) for name in NAMED_IN_CORE)


@pytest.mark.parametrize("name", NAMED_IN_CORE)
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("module", [b"numpy._core", b"numpy.core"], ids=["numpy 2", "numpy 1"])
def test_the_pickle_of_every_numpy_is_built(name: str, protocol: int, module: bytes) -> None:
    pickled = re.sub(rb"cnumpy\._?core\.", b"c" + module + b".", pickle.dumps(OF_NUMPY[name], protocol))
    assert b"c" + module + b"." in pickled
    _check_pickle_of_numpy(pickled, OF_NUMPY[name])


def _check_pickle_of_numpy(pickled: bytes, value: Any) -> None:
    decoded, foreign = _decode(pickled)
    assert not foreign
    assert _plain(decoded) == _plain(value)
    if isinstance(decoded, np.ndarray):
        assert decoded.flags.writeable


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize("protocol", [2, 4])
def test_the_pickle_of_torch_is_built(name: str, protocol: int) -> None:
    stream = io.BytesIO()
    torch.save(OF_TORCH[name], stream, pickle_protocol=protocol)
    decoded, foreign = _engine.decode_plain(stream.getvalue(), _known_objects.make)
    assert not foreign
    assert _plain(decoded) == _plain(OF_TORCH[name])


@pytest.mark.parametrize("function", [None, len])
def test_a_policy_of_a_later_torch_is_built_if_the_later_field_is_not_set(function: Any) -> None:
    """torch 2.15 added the field."""
    policy = MixedPrecisionPolicy()
    vars(policy)["param_dtype_override_fn"] = function
    decoded, foreign = _decode(pickle.dumps(policy, 4))
    assert bool(foreign) == (function is not None)
    assert foreign or decoded == MixedPrecisionPolicy()


def test_memory_formats_that_protocol_4_can_write() -> None:
    value = (torch.channels_last, torch.contiguous_format)
    assert _decode(pickle.dumps(value, 4)) == (value, "")


def test_a_fold_in_time_is_kept() -> None:
    """Only protocol 4 and later write the fold."""
    value = datetime.datetime(2024, 10, 27, 2, 30, fold=1)
    assert _decode(pickle.dumps(value, 4))[0].fold == 1
    assert _decode(pickle.dumps(value.time(), 4))[0].fold == 1


STATE = {
    "buffer": VALUES["BytesIO"],
    "timestamp": {"wall": datetime.timedelta(seconds=5), "at": VALUES["datetime, UTC"]},
    "history": deque([0.5, 0.25], maxlen=10),
    "shape": torch.Size([2, 3]),
    "torch": torch.__version__,
    "config": types.SimpleNamespace(path=Path("/data"), name=np.str_("run")),
    "w": torch.arange(3.0),
}


@pytest.mark.parametrize("writer", ["cairn", "torch"])
@pytest.mark.parametrize("reader", ["cairn", "torch"])
def test_a_state_of_such_values_goes_both_ways(
    writer: str, reader: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No consent is given, and no warning asks for consent."""
    monkeypatch.setattr(part(values._Warned), "names", set())
    monkeypatch.delenv("CAIRN_ALLOW_PICKLE", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cairn.PickleWarning)
        cairn.save(STATE, checkpoint_id=checkpoint) if writer == "cairn" else stock.save(STATE, checkpoint)
    state: dict[str, Any] = {**dict.fromkeys(STATE), "timestamp": {"wall": None, "at": None}, "w": torch.zeros(3)}
    cairn.load(state, checkpoint_id=checkpoint) if reader == "cairn" else stock.load(state, checkpoint)
    assert torch.equal(state.pop("w"), STATE["w"])
    for key, value in state.items():
        if isinstance(value, dict):
            assert value == STATE[key]
        else:
            assert _plain(value) == _plain(STATE[key]), key
    opened = cairn.open(checkpoint)
    assert opened["history"] == STATE["history"]
    assert opened["buffer"].read() == b"b\xff"
    assert opened["config"] == STATE["config"]
    assert isinstance(opened["shape"], cairn.UnknownObject), "torch's own need torch"
    text = cairn.open(checkpoint)["torch"]
    assert isinstance(text, cairn.UnknownObject)


def test_an_object_held_twice_by_one_value_is_one_object() -> None:
    shared = deque([1])
    stream = io.BytesIO(b"x")
    value = {"a": [shared, stream], "b": (shared, types.SimpleNamespace(shared=shared, stream=stream))}
    for protocol in (2, 4):
        decoded, _ = _decode(pickle.dumps(value, protocol))
        first, second = decoded["a"]
        assert decoded["b"][0] is first
        assert decoded["b"][1].shared is first
        assert decoded["b"][1].stream is second


def test_an_object_that_holds_itself_is_refused(checkpoint: Path) -> None:
    """The error names the key. With consent the object loads unchanged."""
    loop: deque[Any] = deque([1])
    loop.append(loop)
    stock.save({"loop": loop}, checkpoint)
    state: dict[str, Any] = {"loop": None}
    with pytest.raises(cairn.Error, match="contains itself") as caught:
        cairn.load(state, checkpoint_id=checkpoint)
    assert caught.value.key == "loop"
    cairn.load(state, checkpoint_id=checkpoint, allow_pickle=True)
    assert state["loop"][1] is state["loop"]


def test_a_container_of_tensors_is_refused_by_its_own_name(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the container's class, not the class of the tensors inside, which need no code."""
    monkeypatch.setattr(part(values._Warned), "names", set())
    last = deque([Point(torch.ones(2), 1)])
    with pytest.warns(cairn.PickleWarning, match=r"holds a test_known_objects\.Point"):
        cairn.save({"h": {"dtype": torch.half, "last": last}}, checkpoint_id=checkpoint)
    with pytest.raises(cairn.UnsafeContent, match=r"'h\.last' holds a test_known_objects\.Point"):
        cairn.load({"h": {"dtype": None, "last": None}}, checkpoint_id=checkpoint)


def test_the_tool_shows_known_objects(checkpoint: Path) -> None:
    stock.save(STATE, checkpoint)
    command = [Path(sys.executable).with_name("cairn"), "inspect", checkpoint]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "<datetime.datetime 9999-12-31 23:59:59.999999>" in shown
    assert "<collections.deque((), 10), [0.5, 0.25]>" in shown
    assert "<_io.BytesIO(), (<4 bytes>, 2, " in shown


# --- Classes outside the tables, and calls that differ from the tables.

Point = namedtuple("Point", "x y")


class Bucket(dict):
    """A user's subclass."""


FOREIGN = {
    "a named tuple of the user": (Point(1, 2), "test_known_objects.Point"),
    "a subclass": (Bucket(a=1), "test_known_objects.Bucket"),
    "a function": (operator.add, "_operator.add"),
    "a partial function": (functools.partial(print, 1), "builtins.print"),
    "a pattern": (re.compile("a"), "re._compile"),
    "a factory of the user": (defaultdict(Bucket), "test_known_objects.Bucket"),
    "a path inside": ([deque([Point(1, 2)])], "test_known_objects.Point"),
    "an exception": (ValueError("x"), "builtins.ValueError"),
    "UserDict": (UserDict(a=1), "collections.UserDict"),
    "array of objects": (np.array([[1], None], dtype=object), "numpy.dtype"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_everything_else_is_refused_by_name(name: str, protocol: int) -> None:
    value, class_name = FOREIGN[name]
    decoded, foreign = _decode(pickle.dumps(value, protocol))
    assert decoded is None
    python_2 = {"collections.UserDict": "UserDict.IterableUserDict", "builtins.ValueError": "exceptions.ValueError"}
    assert foreign in (class_name, python_2.get(class_name))


class Call:
    """Pickles as a call of `function`, with the given state and items."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None, items: Any = None) -> None:
        self.parts = (function, arguments, state, items)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


MISFITS = [
    Call(datetime.timedelta, 1 << 80, 0, 0),
    Call(datetime.timedelta, 1, 86_400, 0),
    Call(datetime.timedelta, 1.5, 0, 0),
    Call(datetime.timedelta, True, 0, 0),
    Call(datetime.timedelta, 1),
    Call(datetime.date, b"\x00\x00\x01\x01"),
    Call(datetime.date, 2024, 1, 1),
    Call(datetime.datetime, b"\x07\xe8\x0d\x01\x00\x00\x00\x00\x00\x00"),
    Call(datetime.datetime, b"\x07\xe8\x01\x01\x00\x00\x00\x00\x00\x00", "UTC"),
    Call(datetime.time, b"\x17\x3b\x3b\xff\xff\xff"),
    Call(datetime.timezone, datetime.timedelta(days=2)),
    Call(Decimal, "1_0"),
    Call(Decimal, " 1"),
    Call(Decimal, 1.5),
    Call(Decimal, (0, (1,), 2)),
    Call(deque, [1], -1),
    Call(deque, "text"),
    Call(deque, (), 3, state={"a": 1}),
    Call(defaultdict, print),
    Call(defaultdict, type),
    Call(defaultdict, int, state={"a": 1}),
    Call(Counter, [1, 2]),
    Call(frozenset, "text"),
    Call(range, 0, 1, 0),
    Call(range, 3),
    Call(slice, 1),
    Call(bytearray, "text", "utf-8"),
    Call(bytearray, 1 << 40),
    Call(types.SimpleNamespace, state={1: 2}),
    Call(Path, b"bytes"),
    Call(Path, "a", state={"b": 1}),
    Call(array.array, "u", "text"),
    Call(array.array, "B", [256]),
    Call(array.array, "B", 1 << 40),
    Call(random.Random, state=(3, (1, 2), None)),
    Call(random.Random, state=(2, tuple(range(625)), None)),
    Call(uuid.SafeUUID, 7),
    Call(getattr, uuid.SafeUUID, "__class__"),
    Call(getattr, Path, "unlink"),
    Call(type, 1),
    Call(type, "name", (), {}),
    Call(torch.device, "no such device"),
    Call(torch.Size, (1.5,)),
    Call(StateDictType, 17),
    Call(StateDictType, "__class__"),
    Call(np.dtype, "O", False, True),
    Call(np.dtype, "f4", False, True),
]


@pytest.mark.parametrize("call", MISFITS, ids=lambda call: f"{call.parts[0].__name__}{call.parts[1]}"[:60])
def test_arguments_that_no_pickle_of_the_class_has_are_refused(call: Call) -> None:
    for protocol in (2, 4):
        decoded, foreign = _decode(pickle.dumps(call, protocol))
        assert (decoded, foreign != "") == (None, True)


def _new(kind: bytes, state: Any) -> bytes:
    """Returns a pickle of ``kind.__new__(kind)`` and a state."""
    return b"\x80\x02c" + kind + b"\n)\x81" + pickle.dumps(state, 2)[2:-1] + b"b."


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (b"_io\nBytesIO", ("text", 0, None)),
        (b"_io\nBytesIO", (b"ab", -1, None)),
        (b"_io\nBytesIO", (b"ab", 0, {1: 2})),
        (b"_io\nBytesIO", (b"ab",)),
        (b"_io\nStringIO", (b"ab", "\n", 0, None)),
        (b"_io\nStringIO", ("ab", "x", 0, None)),
        (b"uuid\nUUID", {"int": 1 << 128}),
        (b"uuid\nUUID", {"int": -1}),
        (b"uuid\nUUID", {"int": 1, "hex": 2}),
        (b"collections\nChainMap", {"maps": [1]}),
        (b"argparse\nNamespace", [1]),
        (b"torch.distributed.fsdp.api\nCPUOffload", {"offload_params": 1}),
        (b"torch.distributed.fsdp.api\nCPUOffload", {"other": True}),
        (b"torch.distributed.tensor.placement_types\nShard", {"dim": "x"}),
        (b"torch.torch_version\nTorchVersion", {}),
        (b"types\nSimpleNamespace", {}),
    ],
)
def test_a_state_that_no_pickle_of_the_class_has_is_refused(kind: bytes, state: Any) -> None:
    assert _decode(_new(kind, state)) == (None, kind.decode().replace("\n", "."))


def test_no_name_of_a_file_is_imported() -> None:
    """Neither the name of a user's class nor of a standard module outside the tables is imported."""
    for module in ("antigravity", "torch.utils.tensorboard", "numpy.f2py", "zoneinfo"):
        sys.modules.pop(module, None)
        decoded, foreign = _decode(b"\x80\x02c" + module.encode() + b"\nX\n)R.")
        assert (decoded, foreign) == (None, f"{module}.X")
        assert module not in sys.modules


def test_a_path_of_another_system_is_refused() -> None:
    other = "WindowsPath" if pathlib.Path is not pathlib.WindowsPath else "PosixPath"
    assert _decode(f"\x80\x02cpathlib\n{other}\n(X\x01\0\0\0atR.".encode("latin-1"))[1] == f"pathlib.{other}"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_pickles_are_built_as_python_does_or_refused(data: st.DataObject) -> None:
    """A few bytes of a good pickle change: a built value can be pickled again, and only Cairn's errors are raised."""
    name = data.draw(st.sampled_from(sorted(set(VALUES) - {"Random"})))
    pickled = bytearray(pickle.dumps(VALUES[name], data.draw(st.integers(2, 5))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(2, len(pickled) - 1))
        pickled[place] = data.draw(st.integers(0, 255))
    try:
        decoded, foreign = _decode(bytes(pickled))
    except cairn.Error:
        return
    if not foreign:
        pickletools.dis(pickle.dumps(decoded), io.StringIO())
