"""Values of classes: the values that load, the warnings at saving, and no code without consent."""

import io
import os
import re
import warnings
import zipfile
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from same import assert_same
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn import _engine, _known_objects
from cairn._process import part
from cairn._state import values


@dataclass
class Config:
    """A class of the user's."""

    depth: int = 3


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part(values._Warned), "names", set())


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


def test_loadable_values_cause_no_warning(checkpoint: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.save({"a": torch.Size([1]), "b": (torch.ones(1),), "c": torch.float16}, checkpoint_id=checkpoint)
        with torch.serialization.safe_globals([Config]):
            cairn.save({"config": Config()}, checkpoint_id=checkpoint)


FOREIGN = {
    "dataclass": (Config(5), "test_objects.Config"),
    "in_a_list": ([1, {"x": Config(5)}], "test_objects.Config"),
    "pattern": (re.compile("a"), "re._compile"),
    "defaultdict": ((defaultdict(Config, a=1),), "test_objects.Config"),
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
    """Pickles as a call that makes the file `mark`."""

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


def test_an_unpicklable_value_is_named(checkpoint: Path) -> None:
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


def _archive(pickled: bytes) -> bytes:
    """Wraps a pickle as torch.save does."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def _save_payloads(payloads: dict[str, bytes], directory: Path) -> None:
    """Saves a checkpoint by stock torch. The given bytes replace its values."""

    class Planner(dcp.DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> io.BytesIO:
            return io.BytesIO(payloads[write_item.index.fqn])

    stock.save(dict.fromkeys(payloads, 1), directory, planner=Planner())


def test_a_dict_that_no_pickler_writes(checkpoint: Path) -> None:
    """A dict with a list as a key: an error that names the key, not Python's bare TypeError."""
    _save_payloads({"value": _archive(b"\x80\x02}]K\x01s.")}, checkpoint)
    with pytest.raises(cairn.Corrupt, match="value"):
        cairn.load({"value": 0}, checkpoint_id=checkpoint)


def test_looking_at_a_dict_that_no_pickler_writes(checkpoint: Path) -> None:
    """cairn.open raises an error too, for a key of a dict and for a member of a set."""
    payloads = {"dict": b"}]K\x01s.", "set": b"c__builtin__\nset\n](]K\x01ae\x85R."}
    _save_payloads({key: _archive(b"\x80\x02" + opcodes) for key, opcodes in payloads.items()}, checkpoint)
    for key in payloads:
        with pytest.raises(cairn.Corrupt, match="hashed") as caught:
            cairn.open(checkpoint)[key]
        assert caught.value.key == key


def test_looking_at_damage_names_the_key(checkpoint: Path) -> None:
    _save_payloads({"value": _archive(b"\x80\x02(.")}, checkpoint)
    with pytest.raises(cairn.Corrupt) as caught:
        cairn.open(checkpoint)["value"]
    assert caught.value.key == "value"


def test_looking_at_a_dict_by_tensor(checkpoint: Path) -> None:
    """Only torch's tensors have a hash: cairn.open can't build the dict, but the checkpoint is not damaged."""
    tensor = torch.ones(1)
    stock.save({"value": ({tensor: 1},)}, checkpoint)
    state: dict[str, Any] = {"value": None}
    cairn.load(state, checkpoint_id=checkpoint)
    ((loaded, one),) = state["value"][0].items()
    assert one == 1
    assert torch.equal(loaded, tensor)
    with pytest.raises(cairn.Unsupported) as caught:
        cairn.open(checkpoint)["value"]
    assert caught.value.key == "value"


class Elsewhere:
    """A device that torch knows only while `present`: storages keep their memory and get the device's name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.present = True
        self.received = 0
        monkeypatch.setattr(torch.serialization, "_package_registry", list(torch.serialization._package_registry))
        torch.serialization.register_package(0, lambda storage: "elsewhere:3" if self.present else None, self._restore)

    def _restore(self, storage: Any, location: str) -> Any:
        if not self.present or location != "elsewhere:3":
            return None
        self.received += storage.nbytes()
        return storage


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return Elsewhere(monkeypatch)


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
@pytest.mark.parametrize("value", [(torch.arange(4.0),), (torch.arange(4.0), Config())], ids=["plain", "pickle"])
def test_tensors_in_values_return_to_their_device(value: Any, elsewhere: Elsewhere, checkpoint: Path) -> None:
    cairn.save({"v": value}, checkpoint_id=checkpoint)
    elsewhere.received = 0
    state: dict[str, Any] = {"v": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error", cairn.DeviceWarning)
        cairn.load(state, checkpoint_id=checkpoint, allow_pickle=True)
    assert elsewhere.received >= 16
    assert torch.equal(state["v"][0], value[0])


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
@pytest.mark.parametrize("value", [(torch.arange(4.0),), (torch.arange(4.0), Config())], ids=["plain", "pickle"])
def test_tensors_of_a_device_that_is_not_here_come_on_the_cpu(
    value: Any, elsewhere: Elsewhere, checkpoint: Path
) -> None:
    cairn.save({"a": value, "b": value}, checkpoint_id=checkpoint)
    elsewhere.present = False
    state: dict[str, Any] = {"a": None, "b": None}
    with pytest.raises(CheckpointException, match="elsewhere:3"):
        stock.load({"a": None, "b": None}, checkpoint)
    with pytest.warns(cairn.DeviceWarning) as caught:
        cairn.load(state, checkpoint_id=checkpoint, allow_pickle=True)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "'a'" in text
    assert "elsewhere:3" in text
    assert caught[0].filename == __file__
    for loaded in state.values():
        assert loaded[0].device.type == "cpu"
        assert torch.equal(loaded[0], value[0])


def test_meta_tensors_in_values_stay_meta(checkpoint: Path) -> None:
    stock.save({"v": (torch.empty(3, device="meta"),)}, checkpoint)
    state: dict[str, Any] = {"v": None}
    cairn.load(state, checkpoint_id=checkpoint)
    assert state["v"][0].is_meta


def test_no_cuda_is_no_failure(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload with a storage on cuda:0, loaded by a torch without CUDA."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stream = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save((torch.arange(4.0),), stream)
    _save_payloads({"v": stream.getvalue()}, checkpoint)
    state: dict[str, Any] = {"v": None}
    with pytest.warns(cairn.DeviceWarning, match="'v' .* cuda:0"):
        cairn.load(state, checkpoint_id=checkpoint)
    assert torch.equal(state["v"][0], torch.arange(4.0))


def test_memory_that_runs_out_is_not_damage(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock.save({"v": (torch.ones(1),)}, checkpoint)

    def load(*args: Any, **options: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        cairn.load({"v": None}, checkpoint_id=checkpoint, allow_pickle=True)


SHARED_LIST, SHARED_DICT = [1, 2], {"a": [3]}
SHARED = {
    "list": [SHARED_LIST, SHARED_LIST],
    "in_tuples": ((SHARED_LIST,), {"x": SHARED_LIST}),
    "dict": {1: SHARED_DICT, 2: SHARED_DICT, 3: SHARED_DICT["a"]},
    "ordered": [OrderedDict(a=1)] * 2,
    "set": [{1, 2}] * 2,
    "array": [np.arange(3)] * 2,
    "bytearray": [bytearray(b"ab")] * 2,
    "array_and_list": [np.arange(3), SHARED_LIST, SHARED_LIST],
    "equal_but_two": [[1, 2], [1, 2], {}, {}],
}


def _sharing(value: Any) -> list[int]:
    """Returns, for each container depth first, the position of its first occurrence."""
    found: list[Any] = []

    def visit(part: Any) -> Any:
        if isinstance(part, (list, dict, set, bytearray, np.ndarray)):
            first = next((i for i, other in enumerate(found) if other is part), len(found))
            found.append(part)
            yield first
        if isinstance(part, (list, tuple)):
            for item in part:
                yield from visit(item)
        if isinstance(part, dict):
            yield from visit(list(part.values()))

    return list(visit(value))


@pytest.mark.parametrize("save", [stock.save, lambda state, path: cairn.save(state, checkpoint_id=path)])
@pytest.mark.parametrize("name", SHARED)
def test_an_object_that_a_value_holds_twice_comes_back_as_one(name: str, save: Any, checkpoint: Path) -> None:
    value = (SHARED[name],)
    save({"v": value}, checkpoint)
    state: dict[str, Any] = {"v": None}
    cairn.load(state, checkpoint_id=checkpoint)
    assert _sharing(state["v"]) == _sharing(value)
    assert_same(state["v"], value)
    assert _sharing(cairn.open(checkpoint)["v"]) == _sharing(value)


@given(st.data())
def test_sharing_is_that_of_torch(data: st.DataObject) -> None:
    """Builds containers of earlier containers. Some containers occur several times."""
    made: list[Any] = [1, "text", np.arange(2)]
    for _ in range(data.draw(st.integers(1, 6))):
        items = [made[i] for i in data.draw(st.lists(st.integers(0, len(made) - 1), max_size=4))]
        make = data.draw(st.sampled_from([list, tuple, dict, OrderedDict]))
        made.append(make(items) if make in (list, tuple) else make(enumerate(items)))
    stream = io.BytesIO()
    torch.save(made[-1], stream)
    loaded, foreign = _engine.decode_plain(stream.getvalue(), _known_objects.make)
    assert not foreign
    assert _sharing(loaded) == _sharing(torch.load(io.BytesIO(stream.getvalue()), weights_only=False))
    assert_same(loaded, made[-1])
