"""The signatures of Cairn's functions and classes, compared with torch's signatures."""

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from same import assert_same

import cairn
from cairn._torch_names import replacements

#: Parameters that Cairn adds, by the name of the function or class. They come last and have defaults.
ADDED = {
    "save": ["notes"],
    "async_save": ["notes"],
    "load": [
        "allow_pickle",
        "allow_cast",
        "verify",
        "follow_links",
        "strict",
        "renames",
        "keys",
        "base",
        "base_renames",
    ],
    "FileSystemReader": ["thread_count", "keep_cached", "broadcast_replicas"],
    "BroadcastingTorchSaveReader": ["allow_pickle"],
    "dcp_to_torch_save": ["allow_pickle", "follow_links"],
    "torch_save_to_dcp": ["allow_pickle"],
}
#: Defaults in which Cairn differs from torch.
OTHER_DEFAULTS = {("FileSystemWriter", "thread_count")}
OWN = sorted(replacements.OURS)
CLASSES = [key for key in OWN if isinstance(replacements.original(*key), type)]


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def assert_same_parameters(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    expected = parameters_of(theirs)
    got = parameters_of(ours)
    for parameter, wanted in zip(got, expected, strict=False):
        assert (parameter.name, parameter.kind) == (wanted.name, wanted.kind), name
        if (name, parameter.name) not in OTHER_DEFAULTS:
            assert parameter.default == wanted.default, (name, parameter.name)
    added = got[len(expected) :]
    assert [parameter.name for parameter in added] == ADDED.get(name, [])
    assert all(parameter.default is not inspect.Parameter.empty for parameter in added)


@pytest.mark.parametrize("key", OWN, ids=".".join)
def test_replacements_of_torchs_functions_take_equal_arguments(key: tuple[str, str]) -> None:
    assert_same_parameters(key[1], replacements.own(key), replacements.original(*key))


@pytest.mark.parametrize("key", CLASSES, ids=".".join)
def test_methods_take_the_same_arguments(key: tuple[str, str]) -> None:
    ours, theirs = replacements.own(key), replacements.original(*key)
    overridden = [name for name in vars(ours) if not name.startswith("__") and callable(getattr(theirs, name, None))]
    for name in overridden:
        got = inspect.signature(getattr(ours, name)).parameters
        expected = inspect.signature(getattr(theirs, name)).parameters
        assert [(it.name, it.kind) for it in got.values()] == [(it.name, it.kind) for it in expected.values()], name


def state(first: float) -> dict[str, Any]:
    return {"w": torch.arange(6.0) + first, "step": int(first)}


def test_the_storage_may_be_the_second_positional_argument(checkpoint: Path) -> None:
    with pytest.warns(UserWarning, match="storage_writer"):
        cairn.save(state(1), cairn.FileSystemWriter(checkpoint))  # type: ignore[call-arg, misc]
    target = state(0)
    with pytest.warns(UserWarning, match="storage_reader"):
        cairn.load(target, cairn.FileSystemReader(checkpoint))  # type: ignore[call-arg, misc]
    assert_same(target, state(1))
    with pytest.warns(UserWarning, match="storage_reader"):
        cairn.load(target, cairn.FileSystemReader("elsewhere"), checkpoint_id=checkpoint)  # type: ignore[call-arg, misc]


def test_the_state_dict_may_be_a_keyword_and_then_nothing_is_warned_of(checkpoint: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.save(state_dict=state(1), storage_writer=cairn.FileSystemWriter(checkpoint))
        cairn.load(state_dict=state(0), checkpoint_id=checkpoint)


@pytest.mark.filterwarnings("ignore:.*takes the storage as")
def test_two_storages_or_three_positional_arguments_are_refused(checkpoint: Path) -> None:
    writer = cairn.FileSystemWriter(checkpoint)
    with pytest.raises(cairn.InvalidArgument, match="two storages"):
        cairn.save(state(1), writer, storage_writer=writer)  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError):
        cairn.save(state(1), writer, None)  # type: ignore[call-arg, misc]
    assert not checkpoint.exists()
