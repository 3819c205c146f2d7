"""A load warns of keys that it leaves out although the state dict has a place for them, and of a load of nothing."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Gang

import cairn


@pytest.fixture
def saved(checkpoint: Path) -> Iterator[Path]:
    """A model and an optimizer after one step, by their state dicts."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "tags": [{"a": 1}, {"b": 2}], "step": 1}
    cairn.save(state, checkpoint_id=checkpoint)
    yield checkpoint


def new_state() -> dict[str, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_the_state_of_a_new_optimizer_is_counted_and_the_next_step_named(saved: Path) -> None:
    with pytest.warns(cairn.IgnoredKeysWarning) as told:
        cairn.load(new_state(), checkpoint_id=saved)
    assert len(told) == 1
    text = str(told[0].message)
    assert "6 keys" in text and "6 below 'optimizer.state'" in text and str(saved) in text
    assert "{'optimizer': optimizer}" in text and "get_state_dict" in text
    assert told[0].filename == __file__


def test_every_empty_dict_is_named(saved: Path) -> None:
    state = {"model": {}, "optimizer": {"state": {0: {}}}, "tags": [{}, {"b": 0}], "step": 0}
    with pytest.warns(cairn.IgnoredKeysWarning, match="6 keys") as told:
        cairn.load(state, checkpoint_id=saved)
    text = str(told[0].message)
    assert "2 below 'model'" in text and "3 below 'optimizer.state.0'" in text and "1 below 'tags.0'" in text


def test_a_load_of_nothing_warns(saved: Path) -> None:
    with pytest.warns(cairn.IgnoredKeysWarning, match=r"nothing was loaded.*cairn\.read"):
        cairn.load({}, checkpoint_id=saved)
    partly = cairn.DefaultLoadPlanner(allow_partial_load=True)
    with pytest.warns(cairn.IgnoredKeysWarning, match="nothing was loaded"):
        cairn.load({"mode": {"weight": torch.zeros(2, 3)}}, checkpoint_id=saved, planner=partly)


@pytest.mark.parametrize(
    "state",
    [
        {"model": {"weight": torch.zeros(2, 3)}},
        {"step": 0},
        {"step": 0, "optimizer": {"param_groups": [{"lr": 0.0}]}},
        {"step": 0, "extra": {"empty": {}}},  # the checkpoint has no keys there
    ],
    ids=["a part", "a value", "a group", "no keys below"],
)
def test_keys_that_the_caller_leaves_out_give_no_warning(saved: Path, state: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.load(state, checkpoint_id=saved)


def test_a_state_dict_with_all_keys_gives_no_warning(checkpoint: Path) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)  # has no state, also after a step
    cairn.save({"optimizer": optimizer.state_dict(), "none": {}}, checkpoint_id=checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.load({"optimizer": optimizer.state_dict(), "none": {}}, checkpoint_id=checkpoint)


def load_on_one_rank(directory: Path) -> list[str]:
    rank = torch.distributed.get_rank()
    state = {"model": {"weight": torch.zeros(2, 3)}} if rank == 0 else {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cairn.load(state, checkpoint_id=directory)
    return [str(warning.message) for warning in told]


def test_a_rank_without_keys_beside_a_rank_with_keys_is_no_mistake(two: Gang, saved: Path) -> None:
    assert two.run(load_on_one_rank, saved) == [[], []]


class OwnPlanner(cairn.DefaultLoadPlanner):
    """A planner that torch's driver calls."""

    def finish_plan(self, central_plan: Any) -> Any:
        return central_plan


def test_a_load_by_torchs_driver_warns_too(saved: Path) -> None:
    with pytest.warns(cairn.IgnoredKeysWarning, match="6 below 'optimizer.state'") as warned:
        cairn.load(new_state(), checkpoint_id=saved, planner=OwnPlanner())
    text = str([warning.message for warning in warned if warning.category is cairn.IgnoredKeysWarning])
    assert "get_state_dict" in text and "{'optimizer': optimizer}" not in text
