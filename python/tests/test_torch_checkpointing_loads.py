"""Loads of cairn.torch_checkpointing: containers filled in place, keys that are missing, and bad input."""

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpointing_managers import SHARDED, manager, ours, save
from safetensors.torch import save_file
from torch.distributed.tensor import Shard
from torch_checkpointing.checkpoint_base import CheckpointInfo
from torch_checkpointing.checkpoint_layout import (
    JsonSerialization,
    LayoutInfo,
    RawSerialization,
    SafetensorsSerialization,
)
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
from torch_checkpointing_files import layout, mesh_of, write_metadata, write_sharded

import cairn
from cairn._process import part
from cairn._settings import Installation
from cairn.checkpointer import Mismatch, MissingKeys
from cairn.torch_checkpointing import checkpoint_reader

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Settings:
    """A class that a file may name."""


def write(directory: Path, files: str, payload: dict[str, Any]) -> None:
    with_manager = manager(files, asynchronous=False, items={})
    save(with_manager, directory, payload)
    with_manager.close()


@pytest.fixture(params=["ours", "theirs"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of a nested state, in both kinds of files."""
    directory = tmp_path / "checkpoint"
    payload = {
        "state": {
            "tensor": torch.arange(4.0),
            "values": [1, 2, 3],
            "tensors": [torch.ones(2), torch.zeros(2)],
            "pair": (torch.arange(2.0), 5),
            "ordered": OrderedDict(a=1),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "numbers": np.arange(3),
            "set": {1, 2},
            "none": None,
        },
        "step": 9,
        "tensor": torch.ones(3),
    }
    write(directory, request.param, payload)
    return directory


def load(directory: Path, into: Any = None, **options: Any) -> Any:
    return manager("theirs", asynchronous=False, items=options.pop("items", {})).load(directory, into=into, **options)


# --- Filling ----------------------------------------------------------------------------------------------------------


def test_none_gives_new_objects(saved: Path) -> None:
    loaded = load(saved, {"state": None, "step": None, "tensor": None})
    state = loaded["state"]
    assert torch.equal(state["tensor"], torch.arange(4.0)) and state["values"] == [1, 2, 3]
    assert state["pair"][1] == 5 and torch.equal(state["pair"][0], torch.arange(2.0))
    assert [tensor.sum().item() for tensor in state["tensors"]] == [2, 0]
    assert state["numbers"].tolist() == [0, 1, 2] and state["set"] == {1, 2} and state["none"] is None
    assert loaded["step"] == 9 and torch.equal(loaded["tensor"], torch.ones(3))


def test_only_keys_of_the_target_are_loaded(saved: Path) -> None:
    into = {"state": {"tensor": torch.zeros(4)}}
    target = into["state"]["tensor"]
    loaded = load(saved, into)
    assert loaded["state"] is into["state"] and loaded["state"]["tensor"] is target
    assert set(loaded) == {"state"} and set(loaded["state"]) == {"tensor"}
    assert torch.equal(target, torch.arange(4.0))


def test_lists_are_filled_in_place_and_tuples_made_anew(saved: Path) -> None:
    first, second = torch.full((2,), 5.0), torch.full((2,), 6.0)
    inner = torch.full((2,), 7.0)
    state: dict[str, Any] = {"values": [0, 0], "tensors": [first, second], "pair": (inner, 0), "ordered": {"a": 0}}
    values, tensors, pair = state["values"], state["tensors"], state["pair"]
    loaded = load(saved, {"state": state})["state"]
    assert loaded["values"] is values and values == [1, 2]
    assert loaded["tensors"] is tensors and tensors[0] is first and torch.equal(first, torch.ones(2))
    assert torch.equal(second, torch.zeros(2))
    assert loaded["pair"] is not pair and loaded["pair"][0] is inner and torch.equal(inner, torch.arange(2.0))
    assert loaded["pair"][1] == 5 and loaded["ordered"] == {"a": 1}


def test_an_empty_list_takes_all_items(saved: Path) -> None:
    state: dict[str, Any] = {"values": [], "tensors": []}
    values = state["values"]
    loaded = load(saved, {"state": state})["state"]
    assert loaded["values"] is values and values == [1, 2, 3]
    assert torch.equal(loaded["tensors"][0], torch.ones(2))


def test_parameters_are_filled(saved: Path) -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    assert load(saved, {"state": {"tensor": parameter}})["state"]["tensor"] is parameter
    assert torch.equal(parameter.detach(), torch.arange(4.0)) and parameter.requires_grad


def test_floats_are_converted_and_other_casts_refused(saved: Path) -> None:
    wide = torch.zeros(2, dtype=torch.float32)
    load(saved, {"state": {"half": wide}})
    assert torch.equal(wide, torch.ones(2))
    with pytest.raises(Mismatch, match=r"state::half.*allow_cast"):
        load(saved, {"state": {"half": torch.zeros(2, dtype=torch.int32)}})


def test_other_casts_are_made_with_consent(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part(Installation), "allow_cast", True)
    whole = torch.zeros(2, dtype=torch.int32)
    assert load(saved, {"state": {"half": whole}})["state"]["half"] is whole
    assert torch.equal(whole, torch.ones(2, dtype=torch.int32))


def test_map_location_places_new_tensors(saved: Path) -> None:
    moved = load(saved, {"tensor": None}, map_location="meta")["tensor"]
    assert moved.device.type == "meta" and moved.shape == (3,)


def test_into_none_reads_the_declared_items(saved: Path) -> None:
    items = {"step": ours.ItemSpec()}
    assert load(saved, items=items) == {"step": 9}
    with pytest.raises(ValueError, match="load requires into="):
        load(saved)


# --- Missing keys, and other types ------------------------------------------------------------------------------------


def test_missing_keys_are_left_or_raised_before_a_change(saved: Path) -> None:
    into = {"state": {"tensor": torch.zeros(4), "new": {"a": 1}, "values": [0] * 5}}
    with pytest.raises(MissingKeys) as raised:
        load(saved, into, strict=True)
    assert set(raised.value.keys) == {"state::new", "state::values.3", "state::values.4"}
    assert isinstance(raised.value, RuntimeError) and isinstance(raised.value, cairn.MissingKey)
    assert str(saved) in str(raised.value)
    assert torch.equal(into["state"]["tensor"], torch.zeros(4)) and into["state"]["values"] == [0] * 5
    loaded = load(saved, into)["state"]
    assert torch.equal(loaded["tensor"], torch.arange(4.0)) and loaded["new"] == {"a": 1}
    assert loaded["values"] == [1, 2, 3, 0, 0]


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ({"state": {"tensor": torch.zeros(5)}}, "state::tensor"),
        ({"state": {"tensor": 1}}, "state::tensor"),
        ({"state": {"tensors": {"a": 1}}}, "state::tensors"),
        ({"state": {"values": {"a": 1}}}, "state::values"),
        ({"state": {"pair": (torch.zeros(3), 1)}}, "state::pair.0"),
        ({"state": [1]}, "state"),
        ({"step": "text"}, "step"),
        ({"step": torch.zeros(1)}, "step"),
    ],
)
def test_another_type_or_shape_changes_nothing(saved: Path, target: Any, place: str) -> None:
    untouched = torch.zeros(3)
    with pytest.raises(Mismatch) as raised:
        load(saved, {"tensor": untouched, **target})
    assert raised.value.key == place and raised.value.expected and raised.value.actual
    assert isinstance(raised.value, RuntimeError)
    assert torch.equal(untouched, torch.zeros(3))


def test_an_empty_dict_of_the_caller_takes_nothing_and_warns(saved: Path) -> None:
    with pytest.warns(cairn.IgnoredKeysWarning, match=r"state::ordered"):
        assert load(saved, {"state": {"ordered": {}}}) == {"state": {"ordered": {}}}


def test_an_object_in_the_place_of_its_state_is_refused(saved: Path) -> None:
    with pytest.raises(Mismatch, match=r"state_dict\(\)"):
        load(saved, {"state": torch.nn.Linear(1, 1)})


def test_a_load_is_logged_with_its_bytes(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="cairn"):
        load(saved, {"state": {"tensor": torch.zeros(4)}})
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loaded")]
    assert "16 bytes" in line


def test_a_missing_item_is_a_missing_file(saved: Path) -> None:
    untouched = torch.zeros(3)
    with pytest.raises(FileNotFoundError) as raised:
        load(saved, {"tensor": untouched, "other": {"a": 1}})
    assert isinstance(raised.value, cairn.NotFound) and raised.value.key == "other"
    assert torch.equal(untouched, torch.zeros(3))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(saved / "nowhere", {"step": 0})


def test_a_reader_takes_items_without_targets(tmp_path: Path) -> None:
    write(tmp_path / "c", "theirs", {"state": {"w": torch.ones(3)}})
    reader = ours.CheckpointReader(ours.RankInfo(0, 1, 0, 1), LocalFileSystemStorageConfig())
    info = CheckpointInfo(checkpoint_items={"state": ours.CheckpointItem()})
    loaded, missing = reader.read(tmp_path / "c", info)
    assert torch.equal(loaded["state"]["w"], torch.ones(3)) and missing == []


def test_a_load_beside_an_overwrite_is_of_one_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"item{i}" for i in range(4)]
    write(tmp_path / "c", "theirs", {name: {"w": torch.full((2,), 1.0)} for name in names})
    opened = []
    item_in_file = checkpoint_reader.item_in_file

    def overwriting(*arguments: Any) -> Any:
        opened.append(arguments)
        if len(opened) == 3:
            write(tmp_path / "c", "theirs", {name: {"w": torch.full((2,), 2.0)} for name in names})
        return item_in_file(*arguments)

    monkeypatch.setattr(checkpoint_reader, "item_in_file", overwriting)
    loaded = load(tmp_path / "c", dict.fromkeys(names))
    assert {loaded[name]["w"].sum().item() for name in names} == {4.0} and len(opened) == 8


def test_a_missing_file_of_a_rank_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    write_sharded(tmp_path / "c", torch.arange(8.0), mesh_of((2,), [0, 1]), (Shard(0),))
    (tmp_path / "c/model_0.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"model_0\.pt") as raised:
        load(tmp_path / "c", {"model": {"w": torch.zeros(8)}}, items={"model": SHARDED})
    assert isinstance(raised.value, cairn.NotFound)


# --- Bad input --------------------------------------------------------------------------------------------------------


def test_code_in_a_file_needs_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"settings": Settings()}, tmp_path / "state_0.pt")
    with pytest.raises(cairn.UnsafeContent, match=r"Settings.*allow_pickle"):
        load(tmp_path, {"state": None})
    with_consent = manager("theirs", asynchronous=False, items={}, allow_pickle=True)
    assert isinstance(with_consent.load(tmp_path, into={"state": None})["state"]["settings"], Settings)
    monkeypatch.setenv("CAIRN_ALLOW_PICKLE", "1")
    assert isinstance(load(tmp_path, {"state": None})["state"]["settings"], Settings)


def test_data_files_that_are_links_need_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", "ours", {"state": {"w": torch.ones(1000)}})
    [file] = (tmp_path / "c").glob("*.distcp")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(cairn.UnsafeContent):
        load(tmp_path / "c", {"state": None})
    monkeypatch.setenv("CAIRN_FOLLOW_LINKS", "1")
    assert torch.equal(load(tmp_path / "c", {"state": None})["state"]["w"], torch.ones(1000))


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    write(tmp_path / "c", "theirs", {"state": {"w": torch.full((1000,), 3.0)}})
    file = tmp_path / "c/state_0.pt"
    content = bytearray(file.read_bytes())
    content[content.index(torch.full((4,), 3.0).numpy().tobytes()) + 40] ^= 1
    file.write_bytes(content)
    for target in (None, {"w": torch.zeros(1000)}):
        with pytest.raises(cairn.Corrupt):
            load(tmp_path / "c", {"state": target})


def test_a_torn_file_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "c", "theirs", {"state": {"w": torch.ones(1000)}})
    file = tmp_path / "c/state_0.pt"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(cairn.Error) as raised:
        load(tmp_path / "c", {"state": None})
    assert "state_0.pt" in str(raised.value)


@pytest.mark.parametrize("path", ["../state_0.pt", "/etc/hostname"])
def test_a_path_out_of_the_directory_is_refused(path: str, tmp_path: Path) -> None:
    items = {"state": ours.ItemSpec(layout=LayoutInfo(path, RawSerialization()))}
    with pytest.raises(cairn.UnsafeContent, match="leads out"):
        load(tmp_path, {"state": None}, items=items)


def test_a_link_is_followed_with_consent_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").write_bytes(b"bytes")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/raw").symlink_to(tmp_path / "elsewhere")
    items = {"state": ours.ItemSpec(layout=LayoutInfo("raw", RawSerialization()))}
    with pytest.raises(cairn.UnsafeContent, match="symbolic link"):
        load(tmp_path / "c", {"state": None}, items=items)
    monkeypatch.setenv("CAIRN_FOLLOW_LINKS", "1")
    assert load(tmp_path / "c", {"state": None}, items=items) == {"state": b"bytes"}


class Runs:
    """An object whose pickle runs code."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("code-has-run",)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (pickle.dumps(Runs()), cairn.UnsafeContent),
        (b"\x80\x04.", cairn.Corrupt),
        (pickle.dumps([1]), cairn.Corrupt),
        (pickle.dumps({"version": "2.0", "metadata": {"state": 1}}), cairn.Corrupt),
    ],
    ids=["code", "torn", "a list", "another form"],
)
def test_hostile_metadata_runs_no_code(
    content: bytes, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(2)}, tmp_path / "state_0.pt")
    (tmp_path / "metadata.pkl").write_bytes(content)
    with pytest.raises(error) as raised:
        load(tmp_path, {"state": {"w": torch.zeros(2)}}, items={"state": SHARDED})
    assert raised.value.file == "metadata.pkl"  # type: ignore[attr-defined]
    assert not (tmp_path / "code-has-run").exists()


# --- Other forms of items ---------------------------------------------------------------------------------------------


def test_items_of_json_raw_bytes_and_safetensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": [1, 2], "b": {"c": 1.5}}))
    (tmp_path / "raw").write_bytes(b"bytes")
    save_file({"layer.w": torch.ones(2), "b": torch.zeros(1)}, tmp_path / "model.safetensors")
    forms = {
        "config": LayoutInfo("config.json", JsonSerialization()),
        "raw": LayoutInfo("raw", RawSerialization()),
        "weights": LayoutInfo("model.safetensors", SafetensorsSerialization()),
    }
    items = {name: ours.ItemSpec(layout=form) for name, form in forms.items()}
    weight = torch.zeros(2)
    into = {"config": {"a": [0], "b": {"c": 0.0}}, "raw": b"", "weights": {"layer": {"w": weight}}}
    loaded = load(tmp_path, into, items=items, strict=True)
    assert loaded["config"] == {"a": [1], "b": {"c": 1.5}} and loaded["raw"] == b"bytes"
    assert loaded["weights"]["layer"]["w"] is weight and torch.equal(weight, torch.ones(2))
    new = load(tmp_path, dict.fromkeys(forms), items=items)
    assert new["config"] == {"a": [1, 2], "b": {"c": 1.5}} and set(new["weights"]) == {"layer.w", "b"}


def test_a_class_that_metadata_names_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    torch.save({"w": torch.ones(2)}, tmp_path / "model_0.pt")
    named = layout("c.json", "JsonSerialization", cls="antigravity.Class")
    write_metadata(tmp_path, {"model": {}, "config": {}}, 1, {"config": {0: named}})
    items = {"model": SHARDED, "config": ours.ItemSpec()}
    into = {"model": {"w": torch.zeros(2)}, "config": None}
    with pytest.raises(cairn.UnsafeContent, match=r"antigravity\.Class.*JsonSerialization"):
        load(tmp_path, into, items=items)


@pytest.mark.parametrize(
    "damaged", [1, {"file_path": "x"}, layout("x", "OtherSerialization"), layout("x", 5), {"serialization_format": {}}]
)
def test_a_damaged_layout_is_named(damaged: Any, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model_0.pt")
    write_metadata(tmp_path, {"model": {}}, 1, {"model": {0: damaged}})
    with pytest.raises(cairn.Corrupt, match=r"metadata\.pkl has no (layout|sharding) of item 'model'"):
        load(tmp_path, {"model": {"w": torch.zeros(2)}}, items={"model": SHARDED})


def test_a_sharding_that_contains_itself_is_damage(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    torch.save({"w": torch.ones(2)}, tmp_path / "model_0.pt")
    write_metadata(tmp_path, {"model": {("w",): [{"sharding_metadata": endless, "ranks": (0,)}]}}, 1)
    with pytest.raises(cairn.Corrupt, match=r"metadata\.pkl"):
        load(tmp_path, {"model": {"w": torch.zeros(2)}}, items={"model": SHARDED})


def test_a_recorded_layout_names_the_file(tmp_path: Path) -> None:
    torch.save({"w": torch.full((2,), 4.0)}, tmp_path / "elsewhere.pt")
    named = layout("elsewhere.pt", "TorchSerialization")
    write_metadata(tmp_path, {"model": {}}, 1, {"model": {0: named}})
    target = torch.zeros(2)
    load(tmp_path, {"model": {"w": target}}, items={"model": SHARDED})
    assert torch.equal(target, torch.full((2,), 4.0))


# --- Stock's path -----------------------------------------------------------------------------------------------------


def test_a_foreign_resharder_and_a_format_take_stock_code(tmp_path: Path, fresh_report: None) -> None:
    from torch_checkpointing.metadata_serialization import TorchDistributedMetadataFormat

    class Loading(type(SHARDED.resharder)):  # type: ignore[misc]
        def load(self, **arguments: Any) -> Any:
            return super().load(**arguments)

    with_manager = manager("theirs", asynchronous=False)
    save(with_manager, tmp_path / "c", {"model": {"w": torch.ones(2)}})
    target = torch.zeros(2)
    with_manager.load(tmp_path / "c", into={"model": {"w": target}}, metadata_format=TorchDistributedMetadataFormat)
    assert torch.equal(target, torch.ones(2))
    foreign = manager("theirs", asynchronous=False, items={"model": ours.ItemSpec(resharder=Loading())})
    into = {"model": {"w": torch.zeros(2), "more": torch.zeros(1)}}
    with pytest.raises(MissingKeys):
        foreign.load(tmp_path / "c", into=into, strict=True)
    reasons = [count.how for count in cairn.report().calls if count.call.endswith("load")]
    assert reasons[0] == "metadata_format is given" and "the resharder of item 'model'" in reasons[1]
