"""Safetensors models that lack files, whose index decides, or whose files are not what their names say."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tool import CHECK_FAILED, OK, UNREADABLE, run

import cairn

A, B = torch.arange(3.0), torch.arange(4.0) + 10

# Every call that reads a model, and the target of a conversion.
CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "open": lambda model, _: cairn.open(model),
    "load": lambda model, _: cairn.load({"a": torch.zeros(3)}, checkpoint_id=model),
    "verify": lambda model, _: cairn.verify(model),
    "diff": lambda model, _: cairn.diff(model, model),
    "to dcp": lambda model, target: cairn.convert(model, target, to="dcp"),
    "to torch": lambda model, target: cairn.convert(model, target, to="torch"),
}


def refusal(model: Path, target: Path, expected: type[cairn.Error]) -> cairn.Error:
    """Returns the error of all calls."""
    errors = []
    for call in CALLS.values():
        with pytest.raises(expected) as caught:
            call(model, target)
        errors.append(caught.value)
    assert not target.exists()
    assert len({error.file for error in errors}) == 1
    assert run("ls", model).returncode == UNREADABLE
    return errors[0]


def write_index(model: Path, weight_map: dict[str, str], name: str = "model.safetensors.index.json") -> None:
    (model / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["model-00001-of-00002.safetensors"], "model-00002-of-00002.safetensors"),
        (
            ["model-00001-of-00002.safetensors", "model-00003-of-00002.safetensors"],
            "model-00002-of-00002.safetensors",
        ),
        (["model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"], "model-00001-of-00003.safetensors"),
        (["weights-0-of-3.safetensors", "weights-2-of-3.safetensors"], "weights-1-of-3.safetensors"),
        (["model-00001-of-00002.fp16.safetensors", "other.safetensors"], "model-00002-of-00002.fp16.safetensors"),
        (["shard-00001-model-00001-of-00002.safetensors"], "model-00002-of-00002.safetensors"),
    ],
)
def test_a_part_of_a_model_is_refused_with_the_missing_file(names: list[str], missing: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for i, name in enumerate(names):
        save_file({f"k{i}": A}, model / name)
    error = refusal(model, tmp_path / "target", cairn.Corrupt)
    assert error.file == missing
    # A file alone is read, with a warning of what its name says.
    assert list(cairn.open(model / names[0])) == ["k0"]
    report = cairn.verify(model / names[0])
    assert report
    assert "one of" in report.warnings[0]
    assert "one of" in cairn.convert(model / names[0], tmp_path / "target", to="dcp").warnings[0]


@pytest.mark.parametrize("first", [0, 1])
def test_all_files_of_a_count_are_a_model(first: int, tmp_path: Path) -> None:
    for i, tensor in enumerate((A, B)):
        save_file({f"k{i}": tensor}, tmp_path / f"model-{i + first:05}-of-00002.safetensors")
    assert len(cairn.open(tmp_path)) == 2


def test_the_shipped_case(tmp_path: Path) -> None:
    """One file of two, as left by a download that was cut."""
    save_file({"a": A}, tmp_path / "model-00001-of-00002.safetensors")
    done = run("verify", tmp_path)
    assert done.returncode != OK
    assert b"model-00002-of-00002.safetensors" in done.stdout + done.stderr


INDEXES = [
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "model.safetensors.index.fp16.json",
]


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_of_any_name_decides(index: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": A}, model / "first.safetensors")
    save_file({"b": B}, model / "second.safetensors")
    save_file({"c": B}, model / "third.safetensors")
    write_index(model, {"a": "first.safetensors", "b": "second.safetensors"}, index)
    assert set(cairn.open(model)) == {"a", "b"}
    (model / "second.safetensors").unlink()
    error = refusal(model, tmp_path / "target", cairn.NotFound)
    assert error.file == "second.safetensors"
    assert index in str(error)


def test_several_indexes_of_other_names(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": A}, model / "x.safetensors")
    save_file({"b": B}, model / "y.safetensors")
    write_index(model, {"a": "x.safetensors"}, "x.safetensors.index.json")
    write_index(model, {"b": "y.safetensors"}, "x.safetensors.index.fp16.json")
    assert list(cairn.open(model)) == ["a"]  # the index without a variant
    write_index(model, {"b": "y.safetensors"}, "y.safetensors.index.json")
    assert "several indexes" in str(refusal(model, tmp_path / "target", cairn.Corrupt))
    save_file({"m": B}, model / "model.safetensors")
    assert list(cairn.open(model)) == ["m"]


def test_the_index_decides_between_two_files_with_one_tensor(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": A, "b": B}, model / "model-00001-of-00002.safetensors")
    save_file({"b": B + 1}, model / "model-overlay-00001.safetensors")
    write_index(model, {"a": "model-00001-of-00002.safetensors", "b": "model-overlay-00001.safetensors"})
    state = {"a": torch.zeros(3), "b": torch.zeros(4)}
    cairn.load(state, checkpoint_id=model)
    assert torch.equal(state["a"], A)
    assert torch.equal(state["b"], B + 1)
    report = cairn.verify(model)
    assert report
    assert "'b'" in report.warnings[0]
    assert any("'b'" in text for text in cairn.convert(model, tmp_path / "a.pt", to="torch").warnings)
    assert torch.equal(torch.load(tmp_path / "a.pt")["b"], B + 1)
    assert not cairn.diff(model, tmp_path / "a.pt")
    save_file({"c": B}, model / "model-overlay-00001.safetensors")
    with pytest.raises(cairn.Corrupt, match="lacks a tensor that the index names") as caught:
        cairn.open(model)
    assert caught.value.key == "b"


def test_an_index_with_nan_and_dots_and_a_header_with_null_are_read(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "x.safetensors")
    (tmp_path / "part").mkdir()
    header = json.dumps({"__metadata__": None, "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (tmp_path / "part" / "y.safetensors").write_bytes(content)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"metadata": {"total_size": NaN, "loss": -Infinity}, "epoch": Infinity, '
        '"weight_map": {"a": "./x.safetensors", "b": "part//./y.safetensors"}}'
    )
    assert cairn.open(tmp_path).files == ("part/y.safetensors", "x.safetensors")
    assert cairn.verify(tmp_path)
    target = tmp_path / "target"
    cairn.convert(tmp_path, target, to="safetensors", max_shard_bytes=8)
    assert json.loads((target / "model.safetensors.index.json").read_text())["metadata"]["loss"] == float("-inf")
    with pytest.raises(cairn.InvalidArgument, match="would replace a file of the source"):
        cairn.convert(tmp_path, tmp_path / "part" / "y.safetensors", to="safetensors", overwrite=True)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": ".//../x.safetensors"}}')
    with pytest.raises(cairn.UnsafeContent, match="outside the directory"):
        cairn.open(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": NaN}}')
    with pytest.raises(cairn.Corrupt):
        cairn.open(tmp_path)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 4976698672\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "x.pt", "model.safetensors.index.json", ".metadata"]
)
def test_a_pointer_of_git_lfs_is_named(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / name).write_text(POINTER)
    is_file = name.endswith((".bin", ".pt", "model.safetensors"))
    for place in [source / name] * is_file + [source] * (not name.endswith((".bin", ".pt"))):
        for call in CALLS.values():
            with pytest.raises(cairn.Corrupt, match=r"Git LFS pointer.* run 'git lfs pull'") as caught:
                call(place, tmp_path / "target")
            assert caught.value.file == name
        if not name.endswith(".json"):
            done = run("ls", place)
            assert done.returncode == UNREADABLE
            assert b"git lfs pull" in done.stderr


def test_a_pointer_of_git_lfs_among_the_data_files(tmp_path: Path) -> None:
    cairn.save({"a": A}, checkpoint_id=tmp_path / "dcp")
    (tmp_path / "dcp" / "__0_0.distcp").write_text(POINTER)
    with pytest.raises(cairn.Corrupt, match="git lfs pull"):
        cairn.load({"a": torch.zeros(3)}, checkpoint_id=tmp_path / "dcp")
    (problem,) = cairn.verify(tmp_path / "dcp").problems
    assert "git lfs pull" in str(problem)


def test_a_pipe_and_a_directory_are_no_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for make, what in ((os.mkfifo, "pipe"), (os.mkdir, "directory")):
        place = model / "x.safetensors"
        make(place)
        write_index(model, {"a": "x.safetensors"})
        with pytest.raises(cairn.UnsafeContent, match=f"not a regular file.*{what}"):
            cairn.open(model)
        (model / "model.safetensors.index.json").unlink()
        with pytest.raises(cairn.Error) as caught:
            cairn.open(place)
        assert "index" not in str(caught.value)
        with pytest.raises(cairn.Error) as caught:
            cairn.open(model)
        assert "index" not in str(caught.value)
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    os.mkfifo(model / "sub.safetensors")
    (model / "part").mkdir()
    os.mkfifo(model / "part" / "y.safetensors")
    write_index(model, {"a": "part/y.safetensors"})
    with pytest.raises(cairn.UnsafeContent, match="not a regular file"):
        cairn.open(model)


@pytest.mark.parametrize("to", ["dcp", "torch", "safetensors"])
def test_nothing_is_converted_to_nothing(to: Any, tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "a.safetensors")
    torch.save({"a": A, "e": {}}, tmp_path / "a.pt")
    for source in ("a.safetensors", "a.pt"):
        for options in ({"exclude": ["*"]}, {"keys": ["a"], "exclude": ["a"]}):
            with pytest.raises(cairn.InvalidArgument, match="leave out every key"):
                cairn.convert(tmp_path / source, tmp_path / "target", to=to, **options)
    assert not (tmp_path / "target").exists()
    done = run("convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--exclude", "*")
    assert done.returncode not in (OK, CHECK_FAILED)
    torch.save({}, tmp_path / "empty.pt")
    cairn.convert(tmp_path / "empty.pt", tmp_path / "empty", to=to)
    if to != "safetensors":
        report = cairn.convert(tmp_path / "a.pt", tmp_path / "only empty", to=to, exclude=["a"])
        assert report.tensors == 0


def test_a_suffix_in_capitals_means_a_file(tmp_path: Path) -> None:
    torch.save({"a": A}, tmp_path / "a.pt")
    target = tmp_path / "X.SAFETENSORS"
    cairn.convert(tmp_path / "a.pt", target, to="safetensors")
    assert target.is_file()
    assert list(cairn.open(target)) == ["a"]
    assert cairn.verify(target)
    assert run("ls", target).returncode == OK
    with pytest.raises(cairn.InvalidArgument, match="already exists"):
        cairn.convert(tmp_path / "a.pt", target, to="safetensors")
    with pytest.raises(cairn.InvalidArgument, match="means safetensors"):
        cairn.convert(tmp_path / "a.pt", tmp_path / "Y.Safetensors", to="torch")
    assert run("convert", tmp_path / "a.pt", tmp_path / "Z.SafeTensors").returncode == OK
    assert (tmp_path / "Z.SafeTensors").is_file()


@pytest.mark.parametrize("is_there", [True, False])
def test_an_index_that_names_a_part_of_the_numbered_files_gives_a_warning(is_there: bool, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": A}, model / "model-00001-of-00002.safetensors")
    if is_there:
        save_file({"b": B}, model / "model-00002-of-00002.safetensors")
    write_index(model, {"a": "model-00001-of-00002.safetensors"})
    assert list(cairn.open(model)) == ["a"]  # the index decides
    for report in (cairn.verify(model), cairn.convert(model, tmp_path / "target", to="dcp")):
        assert any("'model-00002-of-00002.safetensors'" in warning for warning in report.warnings)
    assert b"model-00002-of-00002" in run("verify", model).stdout
    write_index(model, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    if is_there:
        assert cairn.verify(model).warnings == ()
