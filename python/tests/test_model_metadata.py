"""The metadata of safetensors models through conversions, and sources that leave tensors or files open."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tool import OK, USAGE, json_of, run, text_of

import cairn


def metadata_of(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:  # type: ignore[no-untyped-call]
        return dict(opened.metadata())


def foreign(file: Path) -> dict[str, str]:
    return {name: value for name, value in metadata_of(file).items() if not name.startswith("cairn_")}


def of_two_files(directory: Path, **metadata: Any) -> Path:
    directory.mkdir()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({"a": torch.ones(3)}, directory / names[0], {"format": "mlx", "author": "a", "note": "same"})
    save_file({"b": torch.ones(5)}, directory / names[1], {"format": "mlx", "author": "b", "note": "same"})
    index = {"metadata": {"total_size": 7, **metadata}, "weight_map": {"a": names[0], "b": names[1]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_entries_of_other_programs_are_copied_and_those_of_a_save_are_not(tmp_path: Path) -> None:
    stale = {"DCP_SHARDING_INFO": "{}", "DCP_VERSION": "1.0", "cairn_save_id": "0" * 32}
    lora = {"ss_base_model": "sd", "modelspec.title": 'a "title"', "format": "np"}
    save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors", lora | stale)
    report = cairn.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", to="safetensors", dtype="bfloat16")
    assert report.warnings == ()
    assert foreign(tmp_path / "b.safetensors") == lora
    assert metadata_of(tmp_path / "b.safetensors")["cairn_save_id"] != "0" * 32
    assert cairn.verify(tmp_path / "b.safetensors")
    again = cairn.convert(tmp_path / "b.safetensors", tmp_path / "c", to="safetensors")
    assert again.warnings == ()
    assert foreign(tmp_path / "c" / "model.safetensors") == lora


def test_a_source_without_a_format_becomes_pt(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors")
    cairn.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", to="safetensors")
    assert foreign(tmp_path / "b.safetensors") == {"format": "pt"}


def test_shards_with_different_entries_and_the_members_of_an_index(tmp_path: Path) -> None:
    source = of_two_files(tmp_path / "a", total_parameters=8, tool={"name": "x", "versions": [1, 2.5, None]})
    report = cairn.convert(source, tmp_path / "b", to="safetensors", max_shard_bytes=12)
    assert len(report.warnings) == 1
    assert "'author'" in report.warnings[0]
    for file in report.files[:-1]:
        assert foreign(tmp_path / "b" / file) == {"format": "mlx", "author": "a", "note": "same"}
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    tool = {"name": "x", "versions": [1, 2.5, None]}
    assert index["metadata"] == {"total_size": 32, "total_parameters": 8, "tool": tool}
    assert cairn.verify(tmp_path / "b")
    part = cairn.convert(source, tmp_path / "part", to="safetensors", max_shard_bytes=4, keys=["a"])
    assert part.files == ("model.safetensors",)
    assert ["'tool'" in warning for warning in part.warnings].count(True) == 1


@pytest.mark.parametrize(("to", "target"), [("dcp", "d"), ("torch", "d.pt")])
def test_other_targets_have_no_place_for_metadata(tmp_path: Path, to: Any, target: str) -> None:
    source = of_two_files(tmp_path / "a", tool="x")
    (warning,) = cairn.convert(source, tmp_path / target, to=to).warnings
    assert "'author', 'note', 'tool'" in warning
    assert "format" not in warning


@pytest.mark.parametrize("metadata", ["null", "[]", "7", '"text"'])
def test_metadata_of_an_index_that_is_no_object_does_not_count(tmp_path: Path, metadata: str) -> None:
    source = of_two_files(tmp_path / "a")
    index = json.loads((source / "model.safetensors.index.json").read_text())
    index["metadata"] = json.loads(metadata)
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(cairn.open(source)) == ["a", "b"]


def test_a_tensor_that_the_index_leaves_out_is_left_out(tmp_path: Path) -> None:
    source = of_two_files(tmp_path / "a")
    extra = {"b": torch.ones(5), "rotary.inv_freq": torch.ones(2), "c": torch.ones(1)}
    save_file(extra, source / "model-00002-of-00002.safetensors", {"format": "pt"})
    assert sorted(cairn.open(source)) == ["a", "b"]
    report = cairn.verify(source)
    assert report
    assert any("'rotary.inv_freq'" in warning for warning in report.warnings)
    assert "warning: the index does not name" in text_of("verify", source)
    converted = cairn.convert(source, tmp_path / "b", to="dcp")
    assert any("'rotary.inv_freq'" in warning for warning in converted.warnings)
    assert sorted(cairn.open(tmp_path / "b")) == ["a", "b"]


def test_an_index_of_cairn_names_every_tensor_of_its_files(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.ones(1), "c": torch.ones(5)}, tmp_path / "a.safetensors")
    report = cairn.convert(tmp_path / "a.safetensors", tmp_path / "b", to="safetensors", max_shard_bytes=20)
    assert len(report.files) == 3
    place = tmp_path / "b" / "model.safetensors.index.json"
    index = json.loads(place.read_text())
    names = list(index["weight_map"].values())
    del index["weight_map"][next(key for key, name in index["weight_map"].items() if names.count(name) == 2)]
    place.write_text(json.dumps(index))
    with pytest.raises(cairn.Corrupt, match="the index does not name"):
        cairn.open(tmp_path / "b")


def torch_shards(directory: Path, count: int) -> Path:
    """Files as torch's writer leaves them on `count` ranks: each with a box of the tensor and its offsets."""
    directory.mkdir()
    for rank in range(count):
        info = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [4 * rank]}}), "DCP_VERSION": "1.0"}
        file = directory / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"
        save_file({"w": torch.arange(4.0) + 4 * rank}, file, info)
    return directory


def test_the_number_of_shards_that_torch_wrote_is_unknown(tmp_path: Path) -> None:
    source = torch_shards(tmp_path / "a", 4)
    (source / "shard-00004-model-00001-of-00001.safetensors").unlink()
    report = cairn.verify(source)
    assert report
    assert any("number of the model's shards is unknown" in warning for warning in report.warnings)
    assert json_of("verify", source)["warnings"] == list(report.warnings)
    converted = cairn.convert(source, tmp_path / "b.safetensors", to="safetensors")
    assert any("number of the model's shards is unknown" in warning for warning in converted.warnings)
    assert cairn.verify(tmp_path / "b.safetensors").warnings == ()


@pytest.mark.parametrize("target", ["b.safetensors", "b.pt"])
def test_plain_output_is_reproducible(tmp_path: Path, target: str) -> None:
    state = {"w": torch.randn(7000, 3), "h": torch.randn(5).half(), "scalar": torch.tensor(3)}
    cairn.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    written = []
    for run_number, threads in enumerate((1, 4)):
        place = tmp_path / str(run_number)
        place.mkdir()
        to: Any = "torch" if target.endswith(".pt") else "safetensors"
        cairn.convert(tmp_path / "a", place / target, to=to, plain=True, thread_count=threads)
        written.append((place / target).read_bytes())
        assert cairn.verify(place / target)
        assert not cairn.diff(tmp_path / "a", place / target)
    assert written[0] == written[1]
    assert b"cairn" not in written[0]
    assert run("convert", tmp_path / "a", tmp_path / target, "--plain").returncode == OK
    assert (tmp_path / target).read_bytes() == written[0]


def test_plain_output_equals_a_copy_of_the_library(tmp_path: Path) -> None:
    state = {"a": torch.randn(70, 3), "b": torch.randn(5)}
    save_file(state, tmp_path / "a.safetensors", {"format": "pt"})
    cairn.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", to="safetensors", plain=True)
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_plain_output_is_one_file(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    for words in (["--to", "dcp"], ["--to", "safetensors"]):
        done = run("convert", tmp_path / "a.safetensors", tmp_path / "d", *words, "--plain")
        assert done.returncode == USAGE
        assert b"name a file as the target" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_files_of_torch_save_in_a_directory_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "hub"
    directory.mkdir()
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    torch.save({"a": torch.ones(3)}, directory / names[0])
    torch.save({"b": torch.ones(5)}, directory / names[1])
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1]}}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (directory / "tokens.bin").write_bytes(b"no file of torch")
    with pytest.raises(cairn.NotFound, match=r"files of torch\.save") as caught:
        cairn.open(directory)
    assert all(name in str(caught.value) for name in names)
    assert "tokens.bin" not in str(caught.value)
    assert b"convert each file" in run("convert", directory, tmp_path / "m", "--to", "safetensors").stderr
    for name in names:  # the next step of the error
        cairn.convert(directory / name, tmp_path / "parts" / f"{name}.safetensors", to="safetensors")
    cairn.convert(tmp_path / "parts", tmp_path / "model", to="safetensors")
    assert {key: tensor.tolist() for key, tensor in cairn.open(tmp_path / "model").items()} == {
        "a": [1, 1, 1],
        "b": [1, 1, 1, 1, 1],
    }


def test_renames_of_keys_with_an_equals_sign(tmp_path: Path) -> None:
    save_file({"a=b.w": torch.ones(3), "c": torch.ones(2)}, tmp_path / "a.safetensors")
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    assert run("convert", source, target, "--rename", r"a\=b=x", "--rename", r"c=d\=e").returncode == OK
    assert sorted(cairn.open(target)) == ["d=e", "x.w"]


@pytest.mark.parametrize("to", ["dcp", "torch"])
def test_a_rename_into_the_place_of_a_tensor_is_refused_before_anything_is_written(tmp_path: Path, to: Any) -> None:
    cairn.save({"m": {"x": torch.ones(2)}, "w": torch.ones(3)}, checkpoint_id=tmp_path / "a", no_dist=True)
    with pytest.raises(cairn.InvalidArgument, match="choose a name outside"):
        cairn.convert(tmp_path / "a", tmp_path / "b.pt", to=to, renames={"m": "w"})
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
