"""Cairn's traversal gives the names of torch's traversal, in the order of torch's."""

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import _version
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

import cairn
from cairn import _engine
from cairn._state.flattening import Leaf, Rules, flatten

TENSOR = torch.zeros(1)

leaves = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.just(TENSOR),
    st.just(torch.nn.Parameter(TENSOR)),
    st.tuples(st.integers(), st.just(TENSOR)),
    st.just((1, {"in": "tuple"})),
)
keys = st.one_of(st.text("ab.é", max_size=3), st.integers(0, 3), st.booleans())
nests = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(MappingProxyType),
    ),
    max_leaves=20,
)
states = st.dictionaries(keys, nests, max_size=5)
often = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def torch_flattens(state: dict[Any, Any], version: str | None) -> list[tuple[str, tuple[Any, ...], int]] | None:
    """Returns torch's flat names, paths and values; None if torch finds a duplicate name."""
    _version._derived_version = version
    try:
        values, paths = flatten_state_dict(state)
    except ValueError:
        return None
    finally:
        _version._derived_version = None
    return [(fqn, paths[fqn], id(value)) for fqn, value in values.items()]


def ours(flat: list[Leaf]) -> list[tuple[str, tuple[Any, ...], int]] | None:
    named = [(leaf.fqn, leaf.path, id(leaf.value)) for leaf in flat]
    return named if len({fqn for fqn, _, _ in named}) == len(named) else None


def ours_in_full(rules: Rules, state: dict[Any, Any]) -> list[tuple[tuple[Any, ...], int]]:
    return [(leaf.path, id(leaf.value)) for leaf in flatten(state, rules)]


@often
@given(states)
def test_flattens_like_torch(state: dict[Any, Any]) -> None:
    assert ours(flatten(state)) == torch_flattens(state, None)


@often
@given(states)
def test_flattens_like_torch_before_2_4(state: dict[Any, Any]) -> None:
    assert ours(flatten(state, Rules.TORCH_2_3)) == torch_flattens(state, "2_3")


@often
@given(states)
def test_the_engine_finds_states_whose_old_leaves_differ(state: dict[Any, Any]) -> None:
    assert _engine.old_rules_differ(state) == (
        ours_in_full(Rules.TORCH_2_3, state) != ours_in_full(Rules.TORCH_2_4, state)
    )


@often
@given(states)
def test_a_leaf_names_its_container_and_place(state: dict[Any, Any]) -> None:
    for leaf in [*flatten(state), *flatten(state, Rules.TORCH_2_3), *flatten(state, Rules.TOP_LEVEL)]:
        assert leaf.container[leaf.place] is leaf.value


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with pytest.raises(cairn.InvalidArgument, match="contains itself"):
        flatten(state)
