"""Loads that take some keys, take keys by other names, or take them from two checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from same import assert_same
from torch.distributed.checkpoint import DefaultLoadPlanner

import cairn

SAVED = {
    "model": {"a": torch.arange(4.0), "b": torch.arange(6.0).reshape(2, 3)},
    "step": 7,
    "rng": [1, 2],
}


class ForeignPlanner(DefaultLoadPlanner):
    def create_local_plan(self) -> Any:
        return super().create_local_plan()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    cairn.save(SAVED, checkpoint_id=tmp_path / "saved")
    return tmp_path / "saved"


def model() -> dict[str, Any]:
    return {"a": torch.zeros(4), "b": torch.zeros(2, 3)}


def test_a_load_returns_none(checkpoint: Path) -> None:
    state = {"model": model(), "step": 0}
    assert cairn.load(state, checkpoint_id=checkpoint) is None
    assert_same(state, {"model": SAVED["model"], "step": 7})


def test_without_strict_missing_keys_stay_and_are_named(checkpoint: Path) -> None:
    extra = torch.ones(3)
    state = {"model": model() | {"z": extra, "y": "mine"}, "lr": 0.5}
    found = cairn.load(state, checkpoint_id=checkpoint, strict=False)
    assert found is not None
    assert found.missing == ["lr", "model.z", "model.y"]
    assert sorted(found.unexpected) == ["rng", "step"]
    assert state["lr"] == 0.5
    assert state["model"]["y"] == "mine"
    assert state["model"]["z"] is extra
    assert_same(extra, torch.ones(3))
    assert_same(state["model"]["a"], SAVED["model"]["a"])  # type: ignore[index]


def test_with_strict_a_missing_key_changes_nothing(checkpoint: Path) -> None:
    state = {"model": model() | {"z": torch.ones(3)}}
    with pytest.raises(cairn.MissingKey) as raised:
        cairn.load(state, checkpoint_id=checkpoint)
    assert raised.value.keys == ("model.z",)
    assert_same(state["model"]["a"], torch.zeros(4))


def test_values_of_other_ranks_are_not_unexpected(tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(2), "loader": {"__rank_0": 1, "__rank_1": 2}}, checkpoint_id=tmp_path)
    state = {"loader": cairn.PerRank(0)}
    found = cairn.load(state, checkpoint_id=tmp_path, strict=False)
    assert found == ([], ["a"])
    assert state["loader"].value == 1


def test_renames_give_the_keys_the_names_of_the_state(checkpoint: Path) -> None:
    state = {"net": {"first": torch.zeros(4), "b": torch.zeros(2, 3)}, "count": 0}
    cairn.load(state, checkpoint_id=checkpoint, renames={"model.a": "net.first", "model.": "net.", "step": "count"})
    assert_same(state["net"], {"first": SAVED["model"]["a"], "b": SAVED["model"]["b"]})  # type: ignore[index]
    assert state["count"] == 7


def test_renames_with_stars(tmp_path: Path) -> None:
    cairn.save({f"layers.{i}.attn.w": torch.full((2,), float(i)) for i in range(3)}, checkpoint_id=tmp_path)
    state = {f"h.{i}.attention.w": torch.zeros(2) for i in range(3)}
    cairn.load(state, checkpoint_id=tmp_path, renames=[("layers.*.attn.*", "h.*.attention.*")])
    assert [tensor[0].item() for tensor in state.values()] == [0.0, 1.0, 2.0]


def test_a_renamed_key_is_missing_under_its_old_name(checkpoint: Path) -> None:
    state = {"model": model(), "w": torch.zeros(4)}
    with pytest.raises(cairn.MissingKey) as raised:
        cairn.load(state, checkpoint_id=checkpoint, renames={"model.a": "w"})
    assert raised.value.keys == ("model.a",)
    found = cairn.load(state, checkpoint_id=checkpoint, renames={"model.a": "w"}, strict=False)
    assert found is not None
    assert found.missing == ["model.a"]
    assert_same(state["w"], SAVED["model"]["a"])  # type: ignore[index]


@pytest.mark.parametrize(
    ("renames", "error"),
    [
        ({"nothing": "x"}, cairn.MissingKey),
        ({"model.a": "model.b"}, cairn.InvalidArgument),
        ({"model.*": "m"}, cairn.InvalidArgument),
    ],
)
def test_a_wrong_rename_changes_nothing(checkpoint: Path, renames: dict[str, str], error: type[Exception]) -> None:
    state = {"step": 0}
    with pytest.raises(error):
        cairn.load(state, checkpoint_id=checkpoint, renames=renames)
    assert state == {"step": 0}


def test_renamed_sharded_values_of_a_safetensors_file(tmp_path: Path) -> None:
    cairn.save({"model": SAVED["model"]}, checkpoint_id=tmp_path / "dcp")
    cairn.convert(tmp_path / "dcp", tmp_path / "m.safetensors", to="safetensors")
    state = model()
    cairn.load(state, checkpoint_id=tmp_path / "m.safetensors", renames={"model": ""})
    assert_same(state, SAVED["model"])


def test_keys_select_entries_of_the_state(checkpoint: Path) -> None:
    state = {"model": model() | {"new": torch.ones(1)}, "step": 0, "rng": [0, 0]}
    cairn.load(state, checkpoint_id=checkpoint, keys=["model.[ab]", "step"])
    assert_same(state["model"]["a"], SAVED["model"]["a"])  # type: ignore[index]
    assert_same(state["model"]["new"], torch.ones(1))
    assert (state["step"], state["rng"]) == (7, [0, 0])


def test_a_selected_key_must_be_there(checkpoint: Path) -> None:
    state = {"model": model() | {"new": torch.ones(1)}}
    with pytest.raises(cairn.MissingKey, match=r"model\.new"):
        cairn.load(state, checkpoint_id=checkpoint, keys=["model"])
    with pytest.raises(cairn.MissingKey, match="pattern 'modle'"):
        cairn.load(state, checkpoint_id=checkpoint, keys=["model.a", "modle"])
    assert_same(state["model"]["a"], torch.zeros(4))
    with pytest.raises(cairn.InvalidArgument, match="list of patterns"):
        cairn.load(state, checkpoint_id=checkpoint, keys="model")


def test_unexpected_keys_are_those_that_keys_select(checkpoint: Path) -> None:
    state = {"model": {"a": torch.zeros(4)}, "other": 1}
    found = cairn.load(state, checkpoint_id=checkpoint, keys=["model"], strict=False)
    assert found == ([], ["model.b"])


def test_a_stateful_that_is_left_out_is_not_called(tmp_path: Path) -> None:
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    cairn.save({"model": network, "optimizer": optimizer}, checkpoint_id=tmp_path)
    fresh = torch.nn.Linear(2, 2)
    unused = torch.optim.Adam(fresh.parameters())
    cairn.load({"model": fresh, "optimizer": unused}, checkpoint_id=tmp_path, keys=["model"])
    assert_same(fresh.state_dict(), network.state_dict())
    assert not unused.state
    cairn.load({"model": fresh, "optimizer": unused}, checkpoint_id=tmp_path, keys=["optimizer"])
    for parameter, trained_parameter in zip(fresh.parameters(), network.parameters(), strict=True):
        assert_same(unused.state[parameter]["exp_avg"], optimizer.state[trained_parameter]["exp_avg"])


@pytest.mark.parametrize("given", [{"strict": False}, {"keys": ["step"]}, {"renames": {"step": "s"}}])
def test_a_foreign_planner_refuses_the_terms(checkpoint: Path, given: dict[str, Any]) -> None:
    with pytest.raises(cairn.InvalidArgument, match="engine carries out"):
        cairn.load({"step": 0}, checkpoint_id=checkpoint, planner=ForeignPlanner(), **given)


class Adapted(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.base = torch.nn.Linear(3, 3)
        self.adapter = torch.nn.Linear(3, 3, bias=False)
        self.base.requires_grad_(False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(value)


def trained(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def test_frozen_parameters_come_from_the_base(tmp_path: Path) -> None:
    cairn.save({"model": Adapted(1.0)}, checkpoint_id=tmp_path / "base")
    cairn.save({"model": trained(Adapted(2.0)), "step": 9}, checkpoint_id=tmp_path / "delta")
    loaded = Adapted(0.0)
    state = {"model": loaded, "step": 0}
    cairn.load(state, checkpoint_id=tmp_path / "delta", base=tmp_path / "base")
    assert state["step"] == 9
    assert loaded.adapter.weight.unique().tolist() == [2.0]
    assert loaded.base.weight.unique().tolist() == [1.0]
    assert loaded.base.bias.unique().tolist() == [1.0]


def test_the_base_may_have_other_names(tmp_path: Path) -> None:
    cairn.save({"weight": torch.ones(3, 3), "bias": torch.ones(3)}, checkpoint_id=tmp_path / "base")
    cairn.save({"model": trained(Adapted(2.0))}, checkpoint_id=tmp_path / "delta")
    loaded = Adapted(0.0)
    cairn.load(
        {"model": loaded}, checkpoint_id=tmp_path / "delta", base=tmp_path / "base", base_renames={"": "model.base."}
    )
    assert loaded.base.weight.unique().tolist() == [1.0]


def test_keys_that_both_lack_are_named_with_both_directories(tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "base")
    cairn.save({"b": torch.ones(2)}, checkpoint_id=tmp_path / "delta")
    state = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}
    with pytest.raises(cairn.MissingKey) as raised:
        cairn.load(state, checkpoint_id=tmp_path / "delta", base=tmp_path / "base")
    assert raised.value.keys == ("c",)
    assert str(tmp_path / "delta") in str(raised.value)
    assert str(tmp_path / "base") in str(raised.value)
    assert_same(state, {key: torch.zeros(2) for key in "abc"})
    found = cairn.load(state, checkpoint_id=tmp_path / "delta", base=tmp_path / "base", strict=False)
    assert found == (["c"], [])
    assert_same(state, {"a": torch.ones(2), "b": torch.ones(2), "c": torch.zeros(2)})
