"""Tensors of a type that torch lacks, in a safetensors model: the other tensors stay readable, and a use is refused."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tool import CHECK_FAILED, OK, run, text_of

import cairn

W = torch.arange(4.0)
TYPES = pytest.mark.parametrize("kind", ["F6_E2M3", "F6_E3M2"])


def write_model(file: Path, kind: str, packed: bytes = b"abc", name: str = "x") -> Path:
    """Writes the float32 tensor "w" and a tensor of type `kind` with 4 elements."""
    header = {
        "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        name: {"dtype": kind, "shape": [4], "data_offsets": [16, 16 + len(packed)]},
    }
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + W.numpy().tobytes() + packed)
    return file


def write_directory(directory: Path, kind: str, indexed: bool) -> Path:
    directory.mkdir()
    write_model(directory / "a.safetensors", kind)
    if indexed:
        index = {"weight_map": {"w": "a.safetensors", "x": "a.safetensors"}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


@TYPES
@pytest.mark.parametrize("form", ["file", "directory", "index"])
def test_the_other_tensors_are_read_and_a_use_names_the_key(kind: str, form: str, tmp_path: Path) -> None:
    if form == "file":
        model = write_model(tmp_path / "a.safetensors", kind)
    else:
        model = write_directory(tmp_path / "model", kind, indexed=form == "index")
    opened = cairn.open(model)
    assert sorted(opened) == ["w", "x"]
    assert opened["w"].tolist() == W.tolist()
    assert "w" in text_of("ls", model)
    assert "x" in text_of("ls", model)
    found = {"w": torch.zeros(4)}
    cairn.load(found, checkpoint_id=model)
    assert torch.equal(found["w"], W)

    uses: list[Callable[[], Any]] = [
        lambda: opened["x"],
        lambda: cairn.load({"w": torch.zeros(4), "x": torch.zeros(4)}, checkpoint_id=model),
        lambda: cairn.load({"x": None}, checkpoint_id=model, allow_pickle=True),
    ]
    for use in uses:
        with pytest.raises(cairn.Error) as caught:
            use()
        assert caught.value.key == "x"
    for to, target in (("dcp", "dcp"), ("torch", "b.pt"), ("safetensors", "b.safetensors")):
        for consent in (False, True):
            with pytest.raises(cairn.Unsupported, match=r"\(exclude=\.\.\.\)") as unsupported:
                cairn.convert(model, tmp_path / target, to=to, allow_pickle=consent)  # type: ignore[arg-type]
            assert unsupported.value.key == "x"
            assert kind in str(unsupported.value)
            assert "pickle" not in str(unsupported.value)
        cairn.convert(model, tmp_path / target, to=to, exclude=["x"])  # type: ignore[arg-type]
        assert cairn.open(tmp_path / target)["w"].tolist() == W.tolist()


def test_verify_names_the_tensor(tmp_path: Path) -> None:
    known = cairn.verify(write_model(tmp_path / "a.safetensors", "F6_E3M2"))
    assert known
    assert any("'x'" in warning and "F6_E3M2" in warning for warning in known.warnings)
    # A type that the format lacks, too, is damage.
    with pytest.raises(cairn.Corrupt, match="a type of safetensors"):
        cairn.open(write_model(tmp_path / "b.safetensors", "U9"))
    assert run("verify", tmp_path / "b.safetensors").returncode == CHECK_FAILED


@TYPES
def test_diff_compares_type_and_bytes(kind: str, tmp_path: Path) -> None:
    a = write_model(tmp_path / "a.safetensors", kind)
    same = write_model(tmp_path / "same.safetensors", kind)
    other_bytes = write_model(tmp_path / "bytes.safetensors", kind, b"abd")
    other_type = write_model(tmp_path / "type.safetensors", "F6_E3M2" if kind == "F6_E2M3" else "F6_E2M3")
    plain = write_model(tmp_path / "plain.safetensors", "U8", b"abcd")
    assert not cairn.diff(a, same)
    assert run("diff", a, same).returncode == OK
    for other in (other_bytes, other_type, plain):
        assert [difference.key for difference in cairn.diff(a, other).differences] == ["x"]


def test_the_size_of_a_known_type_is_checked(tmp_path: Path) -> None:
    for packed in (b"ab", b"abcd"):
        with pytest.raises(cairn.Corrupt, match="do not fit") as caught:
            cairn.open(write_model(tmp_path / "a.safetensors", "F6_E2M3", packed))
        assert caught.value.key == "x"


def test_two_files_of_a_model_hold_the_tensor_once(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model", "F6_E2M3", indexed=False)
    write_model(directory / "b.safetensors", "F6_E2M3")
    with pytest.raises(cairn.Corrupt, match="two files of the model"):
        cairn.open(directory)


def test_a_file_of_the_model_may_have_its_suffix_in_capitals(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    write_model(directory / "a.safetensors", "U8", b"abcd", "one")
    file = write_model(directory / "b.SAFETENSORS", "U8", b"abcd", "two")
    file.write_bytes(file.read_bytes().replace(b'"w"', b'"v"'))
    assert sorted(cairn.open(directory)) == ["one", "two", "v", "w"]
    (directory / "a.safetensors").unlink()
    assert sorted(cairn.open(directory)) == ["two", "v"]
