"""Any nest of plain values and tensors goes to stock torch and back unchanged."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same import assert_same, blank

import cairn

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2, torch.uint16]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (*shape, size), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).squeeze(-1)
    return tensor.t() if tensor.dim() == 2 and draw(st.booleans()) else tensor


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
)
hashable = st.one_of(st.booleans(), st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text()))
# A tuple is one value, whatever the tuple holds; a list without tensors and mappings is one value too.
wholes = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashable, max_size=4),
        st.tuples(st.dictionaries(hashable, inner, max_size=4)),
    ),
    max_leaves=12,
)
names = st.text(st.characters(exclude_characters="."), max_size=6)
nests = st.recursive(
    st.one_of(wholes, tensors()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, min_size=1, max_size=4)),
    max_leaves=15,
)
states = st.dictionaries(names, nests, max_size=5)
often = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def has_unique_names(state: dict[str, Any]) -> bool:
    try:
        stock.dcp.default_planner.flatten_state_dict(state)
    except ValueError:
        return False
    return True


@often
@given(states.filter(has_unique_names))
def test_torch_reads_the_checkpoints_of_cairn(state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cairn.save(state, checkpoint_id=directory)
        loaded = blank(state)
        stock.load(loaded, directory)
        assert_same(loaded, state)
        assert cairn.verify(directory)


@often
@given(states.filter(has_unique_names))
def test_cairn_reads_the_checkpoints_of_torch(state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stock.save(state, directory)
        loaded = blank(state)
        cairn.load(loaded, checkpoint_id=directory)
        assert_same(loaded, state)


@often
@given(wholes)
def test_plain_values_survive_the_native_encoding(value: Any) -> None:
    payload = cairn._engine.encode_plain(value)
    if payload is None:
        pytest.fail(f"not plain: {value!r}") if not shares(value) else None
        return
    decoded, foreign = cairn._engine.decode_plain(payload, cairn._known_objects.make)
    assert foreign == ""
    assert_same(decoded, value)


def shares(value: Any, seen: set[int] | None = None) -> bool:
    """Whether a container occurs twice in the value."""
    seen = set() if seen is None else seen
    if isinstance(value, (list, dict, set)):
        if id(value) in seen:
            return True
        seen.add(id(value))
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(shares(item, seen) for item in items)


def test_a_value_may_hold_a_container_twice_or_itself(tmp_path: Path) -> None:
    inner = [1]
    outer: list[Any] = [2]
    outer.append(outer)
    cairn.save({"v": (inner, inner), "w": (outer,)}, checkpoint_id=tmp_path)
    loaded: dict[str, Any] = {"v": None, "w": None}
    cairn.load(loaded, checkpoint_id=tmp_path)
    assert loaded["v"] == ([1], [1])
    assert loaded["w"][0][1] is loaded["w"][0]
