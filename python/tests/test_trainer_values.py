"""Trainers' values that are not tensors: saved by stock torch, each loads without consent or is refused by name."""

import dataclasses
import datetime
import enum
import functools
import io
import ipaddress
import random
import types
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import torch

import cairn
from cairn._process import part
from cairn._state import values

T = torch.arange(6.0).reshape(2, 3)
VIEWS = torch.arange(12.0)


@dataclasses.dataclass
class Config:
    """A class of the user's."""

    rate: Any = 0.1


class Phase(enum.Enum):
    WARM = 1


Batch = namedtuple("Batch", "x y")


def seeds() -> np.random.SeedSequence:
    made = np.random.SeedSequence([3, 4], spawn_key=(1,))
    made.spawn(2)
    return made


def drawn(kind: Any) -> Any:
    """Returns a generator in the middle of its stream."""
    made = np.random.Generator(kind(seeds()))
    made.random(3)
    made.integers(5, dtype=np.uint32)
    return made


def torch_generator() -> torch.Generator:
    made = torch.Generator().manual_seed(7)
    torch.rand(3, generator=made)
    return made


def random_state() -> np.random.RandomState:
    made = np.random.RandomState(5)
    made.standard_normal()  # the generator caches the second value of the pair
    return made


LOADED: dict[str, Callable[[], Any]] = {
    "Counter": lambda: (Counter("aab"),),
    "Counter of tensors": lambda: (Counter({"a": T}),),
    "OrderedDict of tensors": lambda: (OrderedDict(a=T, b=[T]),),
    "Parameter": lambda: (torch.nn.Parameter(T),),
    "Parameter without gradient, in a deque": lambda: deque([torch.nn.Parameter(T, requires_grad=False)]),
    "Size, device, dtype, layout": lambda: (torch.Size([2]), torch.device("cuda", 1), torch.bfloat16, torch.strided, T),
    "array beside a tensor": lambda: (np.arange(3), T),
    "array of text beside a tensor": lambda: (np.array(["a", "bc"]), T),
    "bytes, bytearray, complex, large integers": lambda: (b"a", bytearray(b"b"), 1 + 2j, 1 << 200, -(1 << 200), None),
    "datetime beside a tensor": lambda: (datetime.timedelta(1), datetime.datetime(2024, 2, 29, 1), T),
    "defaultdict of lists of tensors": lambda: (defaultdict(list, loss=[T, T]),),
    "deque of tensors": lambda: deque([T, T + 1], maxlen=5),
    "dtypes of late": lambda: deque([torch.tensor([1, 2], dtype=torch.uint16), T.to(torch.float8_e4m3fn)]),
    "empty tensors": lambda: deque([torch.empty(0), torch.empty(3, 0, dtype=torch.int8), torch.tensor(2.5)]),
    "generators of NumPy": lambda: (
        [drawn(kind) for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)],
        drawn(np.random.MT19937).bit_generator,
        seeds(),
        random_state(),
    ),
    "generator of torch": lambda: {"sampler": (torch_generator(),)},
    "ipaddress": lambda: (
        *map(ipaddress.ip_address, ("1.2.3.4", "::1", "fe80::1%eth0")),
        *map(ipaddress.ip_network, ("10.0.0.0/8", "2001:db8::/32")),
        *map(ipaddress.ip_interface, ("10.0.0.1/8", "2001:db8::1/32")),
    ),
    "namespace of tensors": lambda: (types.SimpleNamespace(ema=T, path=Path("a")),),
    "return types of torch": lambda: (torch.max(T, 1), torch.sort(T)),
    "states of generators": lambda: {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "numpy, as a dict": np.random.get_state(legacy=False),
        "bit generator": np.random.default_rng(3).bit_generator.state,
        "torch": torch.get_rng_state(),
        "all": (random.getstate(), np.random.get_state(), torch.get_rng_state()),
    },
    "strides": lambda: deque([T.t(), VIEWS[3:9:2], VIEWS[:1].expand(4), torch.tensor([1j, 2])]),
    "wants a gradient": lambda: deque([torch.ones(2, requires_grad=True)]),
}


def with_attribute(tensor: torch.Tensor, value: object) -> torch.Tensor:
    tensor.note = value  # type: ignore[attr-defined]
    return tensor


REFUSED: dict[str, tuple[Any, str]] = {
    "class of NumPy": (np.float32, "numpy.float32"),
    "dataclass": ([Config(T)], "test_trainer_values.Config"),
    "enum": (Phase.WARM, "test_trainer_values.Phase"),
    "function": (torch.nn.functional.relu, "torch.nn.functional.relu"),
    "lambda's stand-in": (functools.partial(int, base=2), "functools.partial"),
    "named tuple": ((Batch(T, 1),), "test_trainer_values.Batch"),
    "class": (deque([Config]), "test_trainer_values.Config"),
    "tensor with an attribute": (deque([with_attribute(T.clone(), Config(T))]), "torch._utils._rebuild_tensor_v2"),
}


def assert_alike(loaded: Any, saved: Any) -> None:
    assert type(loaded) is type(saved)
    if isinstance(saved, torch.Tensor):
        assert (loaded.dtype, loaded.stride(), loaded.requires_grad) == (
            saved.dtype,
            saved.stride(),
            saved.requires_grad,
        )
        assert torch.equal(loaded.to(torch.complex64), saved.to(torch.complex64))
    elif isinstance(saved, np.ndarray):
        assert np.array_equal(loaded, saved)
    elif isinstance(saved, np.random.BitGenerator):
        assert np.array_equal(loaded.random_raw(700), saved.random_raw(700))
        assert_alike(loaded.seed_seq, saved.seed_seq)
    elif isinstance(saved, np.random.Generator):
        assert np.array_equal(loaded.random(9, np.float32), saved.random(9, np.float32))
        assert_alike(loaded.bit_generator, saved.bit_generator)
    elif isinstance(saved, np.random.RandomState):
        assert np.array_equal(loaded.standard_normal(700), saved.standard_normal(700))
    elif isinstance(saved, np.random.SeedSequence):
        assert str(loaded) == str(saved)
        assert [str(child) for child in loaded.spawn(2)] == [str(child) for child in saved.spawn(2)]
    elif isinstance(saved, torch.Generator):
        assert loaded.initial_seed() == saved.initial_seed()
        assert torch.equal(torch.rand(700, generator=loaded), torch.rand(700, generator=saved))
    elif isinstance(saved, types.SimpleNamespace):
        assert_alike(vars(loaded), vars(saved))
    elif isinstance(saved, dict):
        assert list(loaded) == list(saved)
        for key, part in saved.items():
            assert_alike(loaded[key], part)
    elif isinstance(saved, (list, tuple, deque)):
        assert len(loaded) == len(saved)
        for one, other in zip(loaded, saved, strict=True):
            assert_alike(one, other)
    else:
        assert loaded == saved


@pytest.mark.parametrize("name", LOADED)
def test_values_of_trainers_load_without_consent(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cairn's save does not warn about the value either."""
    monkeypatch.setattr(part(values._Warned), "names", set())
    stock.save({"v": LOADED[name]()}, tmp_path / "stock")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.save({"v": LOADED[name]()}, checkpoint_id=tmp_path / "cairn")
        for directory in (tmp_path / "stock", tmp_path / "cairn"):
            template = LOADED[name]()
            state = {"v": dict.fromkeys(template) if type(template) is dict else None}
            if name == "states of generators":
                state["v"] = {**template, "all": None}
            cairn.load(state, checkpoint_id=directory)
            assert_alike(state["v"], LOADED[name]())


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_key_class_and_line(name: str, checkpoint: Path) -> None:
    value, kind = REFUSED[name]
    stock.save({"model": {"w": T}, "v": value}, checkpoint)
    state: dict[str, Any] = {"model": {"w": torch.zeros(2, 3)}, "v": "kept"}
    with pytest.raises(cairn.UnsafeContent) as caught:
        cairn.load(state, checkpoint_id=checkpoint)
    assert caught.value.key == "v"
    assert f"'v' holds a {kind}, " in str(caught.value)
    assert "allow_pickle=True" in str(caught.value)
    assert (state["v"], state["model"]["w"].sum()) == ("kept", 0)


def test_tensors_that_share_a_storage_share_one_after_a_load(checkpoint: Path) -> None:
    shared = torch.arange(8.0)
    stock.save({"v": deque([shared, shared[2:4], shared])}, checkpoint)
    state: dict[str, Any] = {"v": None}
    cairn.load(state, checkpoint_id=checkpoint)
    first, view, third = state["v"]
    assert first is third
    first[2] = -1.0
    assert view.tolist() == [-1.0, 3.0]


class Call:
    """Pickles as a call of `function`, with the given state."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


def tensor_call(offset: Any, sizes: Any, strides: Any, hooks: Any = None) -> Call:
    storage = torch.storage.TypedStorage(wrap_storage=T.untyped_storage(), dtype=torch.float32, _internal=True)
    arguments = (storage, offset, sizes, strides, False, OrderedDict() if hooks is None else hooks)
    return Call(torch._utils._rebuild_tensor_v2, *arguments)


def bit_generator_call(kind: Any, **changes: Any) -> Call:
    state = kind(1).state
    return Call(kind(1).__reduce__()[0], kind, state={**state, "state": {**state["state"], **changes}, **changes})


MISFITS = [
    tensor_call(1, (2, 3), (3, 1)),
    tensor_call(-1, (2,), (1,)),
    tensor_call(0, (2, 3), (1 << 62, 1)),
    tensor_call(0, (1 << 62,), (1,)),
    tensor_call(0, (2,), (-1,)),
    tensor_call(0, (2, 3), (3,)),
    tensor_call(0, (2.0,), (1,)),
    tensor_call(0, (6,), (1,), hooks=OrderedDict(a=1)),
    bit_generator_call(np.random.MT19937, pos=625),
    bit_generator_call(np.random.MT19937, pos=-1),
    bit_generator_call(np.random.MT19937, key=np.zeros(3, np.uint32)),
    bit_generator_call(np.random.Philox, buffer_pos=-1),
    bit_generator_call(np.random.Philox, buffer_pos=5),
    bit_generator_call(np.random.Philox, buffer=np.zeros(3, np.uint64)),
    bit_generator_call(np.random.PCG64, inc=1 << 128),
    Call(torch.Generator, torch.device("cpu"), state=(1, None, torch.zeros(3, dtype=torch.uint8))),
    Call(torch.return_types.max, (T,), {}),
    Call(ipaddress.IPv4Address, 1 << 32),
    Call(ipaddress.IPv4Address, "1.2.3.4" * 100),
    Call(ipaddress.IPv4Network, 5),
]


@pytest.mark.parametrize("number", range(len(MISFITS)))
def test_arguments_outside_the_pickles_of_the_class_are_refused(number: int, checkpoint: Path) -> None:
    stock.save({"v": deque([MISFITS[number]])}, checkpoint)
    with pytest.raises((cairn.UnsafeContent, cairn.Corrupt)):
        cairn.load({"v": None}, checkpoint_id=checkpoint)
    stream = io.BytesIO()
    torch.save(deque([MISFITS[number]]), stream)
    assert values._described(stream.getvalue(), "foreign", None)[1], "what builds the tensors refuses it too"
