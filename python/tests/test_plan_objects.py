"""Plans that foreign writers keep in the metadata load as torch's objects. No code of the checkpoint runs."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.filesystem import _StoragePrefix
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.planner import SavePlan

import cairn

RECORDS = "strides" in TensorProperties.__dataclass_fields__


class RunsCode:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def with_attribute(directory: Path, name: str, value: Any) -> None:
    """Adds an attribute to the metadata of a stock checkpoint, as NVRx does."""
    metadata = stock.metadata_of(directory)
    setattr(metadata, name, value)
    stock.rewrite_metadata(directory, metadata)


def plans() -> list[SavePlan]:
    state = {
        "w": torch.ones(3, 4, dtype=torch.bfloat16),
        "b": torch.ones(2).requires_grad_(),
        "step": 3,
        "s": torch.ones(()),
    }
    plan = create_default_local_save_plan(state, True)
    mapped = SavePlan(plan.items, _StoragePrefix("__0_"), {"w": ("w",)})
    return [mapped, SavePlan([], usable=False)]


def test_the_plans_of_all_ranks_are_kept(checkpoint: Path) -> None:
    stock.save({"w": torch.ones(3), "step": 3}, checkpoint)
    with_attribute(checkpoint, "all_local_plans", plans())
    metadata: Any = cairn.FileSystemReader(checkpoint).read_metadata()
    assert metadata.all_local_plans == plans()
    assert metadata.state_dict_metadata == stock.metadata_of(checkpoint).state_dict_metadata
    again = pickle.loads(pickle.dumps(metadata)).all_local_plans
    assert again == plans()
    assert again[0].items[0].tensor_data.properties == plans()[0].items[0].tensor_data.properties


@pytest.mark.parametrize("strides", [(), (None,), ((4, 1),)], ids=["five fields", "no strides", "strides"])
def test_the_properties_of_every_torch_are_kept(
    strides: tuple[Any, ...], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has recorded strides since 2.15: the state of the properties then has six fields."""
    stock.save({"w": torch.ones(3)}, checkpoint)
    plain = TensorProperties.__getstate__
    with monkeypatch.context() as patch:
        patch.setattr(TensorProperties, "__getstate__", lambda self: (*plain(self)[:5], *strides))
        with_attribute(checkpoint, "all_local_plans", plans())
    metadata: Any = cairn.FileSystemReader(checkpoint).read_metadata()
    properties = metadata.all_local_plans[0].items[0].tensor_data.properties
    assert properties.dtype is torch.bfloat16
    assert getattr(properties, "strides", None) == (strides[0] if RECORDS and strides else None)


def test_strides_that_are_no_numbers_are_left_out(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock.save({"w": torch.ones(3)}, checkpoint)
    made = plans()
    plain = TensorProperties.__getstate__

    def with_text(self: TensorProperties) -> Any:
        odd = any(self is item.tensor_data.properties for item in made[0].items if item.tensor_data is not None)
        return (*plain(self)[:5], ("4", 1)) if odd else plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(TensorProperties, "__getstate__", with_text)
        with_attribute(checkpoint, "all_local_plans", made)
    assert not hasattr(cairn.FileSystemReader(checkpoint).read_metadata(), "all_local_plans")


@pytest.mark.parametrize("where", ["alone", "in a plan", "in a field"])
def test_values_that_need_code_are_left_out(where: str, checkpoint: Path, tmp_path: Path) -> None:
    stock.save({"w": torch.ones(3)}, checkpoint)
    code = RunsCode(tmp_path / "ran")
    values: dict[str, Any] = {
        "alone": code,
        "in a plan": [SavePlan([code])],  # type: ignore[list-item]
        "in a field": [SavePlan([], planner_data=code)],
    }
    with_attribute(checkpoint, "all_local_plans", values[where])
    metadata = cairn.FileSystemReader(checkpoint).read_metadata()
    assert not hasattr(metadata, "all_local_plans")
    assert list(metadata.state_dict_metadata) == ["w"]
    assert not (tmp_path / "ran").exists()


def test_fields_that_a_class_does_not_have_are_left_out(checkpoint: Path) -> None:
    stock.save({"w": torch.ones(3)}, checkpoint)
    plan = SavePlan([])
    plan.__dict__["__class__"] = 3
    with_attribute(checkpoint, "all_local_plans", [plan])
    with_attribute(checkpoint, "more", {"of": ("plain", 1)})
    metadata: Any = cairn.FileSystemReader(checkpoint).read_metadata()
    assert not hasattr(metadata, "all_local_plans")
    assert metadata.more == {"of": ("plain", 1)}
