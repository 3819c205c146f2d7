"""Values of classes: what may be read, who is told, and that nothing runs without consent."""

import datetime
import io
import os
import warnings
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn import objects


@dataclass
class Config:
    """A class of the user's."""

    depth: int = 3


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_warned", set())


def test_a_class_is_announced_once(checkpoint: Path) -> None:
    with pytest.warns(cairn.PickleWarning) as caught:
        cairn.save({"outer": {"config": Config(), "again": Config()}}, checkpoint_id=checkpoint)
        cairn.save({"config": Config()}, checkpoint_id=checkpoint)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "'outer.config'" in text
    assert "test_objects.Config" in text
    assert "allow_pickle" in text
    assert caught[0].filename == __file__


def test_what_can_be_loaded_is_not_announced(checkpoint: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.save({"a": torch.Size([1]), "b": (torch.ones(1),), "c": torch.float16}, checkpoint_id=checkpoint)
        with torch.serialization.safe_globals([Config]):
            cairn.save({"config": Config()}, checkpoint_id=checkpoint)


FOREIGN = {
    "dataclass": (Config(5), "test_objects.Config"),
    "in_a_list": ([1, {"x": Config(5)}], "test_objects.Config"),
    "datetime": (datetime.timedelta(1), "datetime.timedelta"),
    "defaultdict": ((defaultdict(int, a=1),), "collections.defaultdict"),
}


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
@pytest.mark.parametrize("writer", ["cairn", "torch"])
@pytest.mark.parametrize("name", FOREIGN)
def test_loading_a_class_needs_consent(
    name: str, writer: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, class_name = FOREIGN[name]
    planner = cairn.DefaultSavePlanner(flatten_state_dict=False)
    saved = {"w": torch.ones(2), "v": value}
    if writer == "cairn":
        cairn.save(saved, checkpoint_id=checkpoint, planner=planner)
    else:
        stock.save(saved, checkpoint, planner=planner)
    state: dict[str, Any] = {"w": torch.zeros(2), "v": "kept"}
    options: dict[str, Any] = {
        "checkpoint_id": checkpoint,
        "planner": cairn.DefaultLoadPlanner(flatten_state_dict=False),
    }
    with pytest.raises(CheckpointException) as caught:
        cairn.load(state, **options)
    error = caught.value
    assert isinstance(error, cairn.UnsafeContent)
    assert error.key == "v"
    assert class_name in str(error)
    assert "allow_pickle=True" in str(error)
    assert "CAIRN_ALLOW_PICKLE=1" in str(error)
    assert state["v"] == "kept"
    assert state["w"].tolist() == [0, 0], "a tensor changed although the load failed"

    cairn.load(state, allow_pickle=True, **options)
    assert state["v"] == value
    state["v"] = None
    monkeypatch.setenv("CAIRN_ALLOW_PICKLE", "1")
    with pytest.raises(cairn.UnsafeContent):
        cairn.load(state, allow_pickle=False, **options)
    cairn.load(state, **options)
    assert state["v"] == value


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
def test_safe_globals_count(checkpoint: Path) -> None:
    cairn.save({"v": Config(8)}, checkpoint_id=checkpoint)
    state: dict[str, Any] = {"v": None}
    with torch.serialization.safe_globals([Config]):
        cairn.load(state, checkpoint_id=checkpoint)
    assert state["v"] == Config(8)


class Trap:
    """Pickles as a call that leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
@pytest.mark.parametrize("writer", ["cairn", "torch"])
def test_a_trap_does_not_spring(writer: str, checkpoint: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    if writer == "cairn":
        cairn.save({"v": Trap(mark), "w": torch.ones(1)}, checkpoint_id=checkpoint)
    else:
        stock.save({"v": Trap(mark), "w": torch.ones(1)}, checkpoint)
    assert not mark.exists(), "saving ran it"
    with pytest.raises(cairn.UnsafeContent, match="system"):
        cairn.load({"v": None}, checkpoint_id=checkpoint)
    seen = cairn.open(checkpoint)["v"]
    assert isinstance(seen, cairn.UnknownObject)
    assert (seen.module, seen.name) == (os.system.__module__, "system")
    assert cairn.verify(checkpoint)
    cairn.load({"w": torch.zeros(1)}, checkpoint_id=checkpoint)
    assert not mark.exists()


def test_a_trap_in_the_metadata_does_not_spring(checkpoint: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    stock.save({"w": torch.ones(1)}, checkpoint)
    metadata = stock.metadata_of(checkpoint)
    metadata.planner_data = Trap(mark)
    stock.rewrite_metadata(checkpoint, metadata)
    state = {"w": torch.zeros(1)}
    cairn.load(state, checkpoint_id=checkpoint)
    assert state["w"].item() == 1
    stock.rewrite_metadata(checkpoint, Trap(mark))  # type: ignore[arg-type]
    with pytest.raises(cairn.Error):
        cairn.load(state, checkpoint_id=checkpoint)
    assert not mark.exists()


def test_what_cannot_be_pickled_is_named(checkpoint: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match="function") as caught:
        cairn.save({"a": {"f": lambda: None}}, checkpoint_id=checkpoint)
    assert caught.value.key == "a.f"
    assert not checkpoint.exists()


def test_raw_bytes_of_other_planners_are_an_error_that_names_the_key(checkpoint: Path) -> None:
    stock.save({"v": 1, "w": torch.ones(1)}, checkpoint)
    metadata = stock.metadata_of(checkpoint)
    (checkpoint / "raw").write_bytes(b"not an archive")
    index = stock.dcp.metadata.MetadataIndex("v")
    metadata.storage_data[index] = stock.dcp.filesystem._StorageInfo("raw", 0, 14)
    stock.rewrite_metadata(checkpoint, metadata)
    with pytest.raises(cairn.Error) as caught:
        cairn.load({"v": 0}, checkpoint_id=checkpoint)
    assert caught.value.key == "v"


def test_a_dict_that_no_pickler_writes(checkpoint: Path) -> None:
    """A dict with a list as a key: an error that names the key, not Python's bare TypeError."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}]K\x01s.")
        archive.writestr("archive/version", "3\n")

    class Planner(dcp.DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> io.BytesIO:
            return io.BytesIO(stream.getvalue())

    dcp.save({"value": 1}, checkpoint_id=checkpoint, planner=Planner(), no_dist=True)
    with pytest.raises(cairn.Corrupt, match="value"):
        cairn.load({"value": 0}, checkpoint_id=checkpoint)
