"""`cairn cat`: values, summaries of tensors, tensors as .npy files."""

import datetime
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from test_safetensors import bits, of_every_dtype
from tool import CHECK_FAILED, OK, UNREADABLE, USAGE, json_of, run, text_of, tool

import cairn

EXPORTED_AS = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def exported_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if "float8" in str(dtype) else EXPORTED_AS.get(dtype, dtype)


def test_a_value(tmp_path: Path) -> None:
    cairn.save({"betas": (0.9, 0.99), "w": torch.ones(2)}, checkpoint_id=tmp_path / "c", no_dist=True)
    assert text_of("cat", tmp_path / "c", "betas") == "(0.9, 0.99)\n"
    expected = {"key": "betas", "kind": "value", "type": "tuple", "value": [0.9, 0.99], "text": "(0.9, 0.99)"}
    assert json_of("cat", tmp_path / "c", "betas") == expected


def test_values_as_json(tmp_path: Path) -> None:
    plain = {"none": None, "flag": True, "n": -3, "half": 0.5, "text": 'a "b"\n', "list": [1, [2]], "empty": {}}
    others: list[tuple[Any, str, str]] = [
        (math.inf, "float", "inf"),
        (1 << 70, "int", "0x400000000000000000"),
        (2 + 1j, "complex", "(2.0+1.0j)"),
        (b"ab", "bytes", "<2 bytes>"),
        ({3}, "set", "{3}"),
        ({1: "a"}, "dict", "{1: 'a'}"),
        (np.ones(2), "numpy.ndarray", "<array float64 [2]>"),
        (datetime.date(2026, 1, 31), "datetime.date", "<datetime.date 2026-01-31>"),
    ]
    cairn.save({"v": ("plain", plain, [value for value, _, _ in others])}, checkpoint_id=tmp_path / "c", no_dist=True)
    told = json_of("cat", tmp_path / "c", "v")
    assert (told["type"], told["value"][:2]) == ("tuple", ["plain", plain])
    assert told["value"][2] == [{"type": name, "text": text} for _, name, text in others]


def test_complex_numbers_have_no_order(tmp_path: Path) -> None:
    tensors = {
        "c": torch.tensor([1j, complex("nan"), complex("inf")]),
        "f4": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    }
    cairn.save(tensors, checkpoint_id=tmp_path / "c", no_dist=True)
    told = json_of("cat", tmp_path / "c", "c")
    assert (told["numbers"], told["elements"], told["nan"], told["infinite"]) == ("complex", 3, 1, 1)
    assert (told["min"], told["max"], told["mean"]) == (None, None, None)
    assert "complex numbers: no min, max and mean\n  3 elements, 1 NaN, 1 infinite" in text_of(
        "cat", tmp_path / "c", "c"
    )
    told = json_of("cat", tmp_path / "c", "f4")
    assert (told["numbers"], told["nan"], told["infinite"], told["min"]) == ("none", None, None, None)
    assert "no numbers: no min, max and mean\n  2 elements\n" in text_of("cat", tmp_path / "c", "f4")


def test_the_summary_of_a_tensor(tmp_path: Path) -> None:
    tensor = torch.tensor([[1.0, float("nan"), -3.0], [float("inf"), 4.0, float("-inf")]])
    state = {"w": tensor, "i": torch.arange(3_000_000), "empty": torch.zeros(0)}
    cairn.save(state, checkpoint_id=tmp_path / "c", no_dist=True)
    told = json_of("cat", tmp_path / "c", "w")
    assert (told["dtype"], told["shape"], told["elements"], told["numbers"]) == ("float32", [2, 3], 6, "real")
    assert (told["min"], told["max"], told["mean"]) == (-3, 4, pytest.approx(2 / 3))
    assert (told["nan"], told["infinite"]) == (1, 2)
    assert json_of("cat", tmp_path / "c", "i")["mean"] == (3_000_000 - 1) / 2
    assert json_of("cat", tmp_path / "c", "empty")["min"] is None
    assert text_of("cat", tmp_path / "c", "w").startswith("w  float32 [2, 3]\n  min -3, max 4, mean 0.66")


@pytest.mark.parametrize("writer", ["cairn", "stock", "safetensors"])
def test_every_dtype_as_npy(tmp_path: Path, writer: str) -> None:
    tensors = of_every_dtype()
    place = tmp_path / "c"
    if writer == "safetensors":
        place = tmp_path / "c.safetensors"
        save_file(tensors, place)
    else:
        {"cairn": cairn, "stock": dcp}[writer].save(dict(tensors), checkpoint_id=place, no_dist=True)
    for key, tensor in tensors.items():
        done = run("cat", place, key, "--npy", tmp_path / "t.npy", "--overwrite")
        assert (done.returncode, done.stdout, done.stderr) == (OK, b"", b""), key
        array = np.load(tmp_path / "t.npy")
        expected = tensor.to(exported_dtype(tensor.dtype))
        assert array.shape == tuple(expected.shape), key
        if expected.dtype == tensor.dtype:
            assert array.tobytes() == bits(expected), key
        else:
            np.testing.assert_array_equal(array, expected.numpy())
    assert [file.name for file in tmp_path.iterdir() if ".partial" in file.name] == []


def test_a_tensor_of_several_windows_as_npy(tmp_path: Path) -> None:
    tensor = torch.arange(3_000_000.0).reshape(1000, 3000)
    dcp.save({"w": tensor}, checkpoint_id=tmp_path / "c", no_dist=True)
    assert run("cat", tmp_path / "c", "w", "--npy", tmp_path / "w.npy").returncode == OK
    assert np.load(tmp_path / "w.npy").tobytes() == bits(tensor)


def test_a_wrong_key_and_damage(tmp_path: Path) -> None:
    cairn.save({"model": {"weight": torch.ones(64)}}, checkpoint_id=tmp_path / "c", no_dist=True)
    done = run("cat", tmp_path / "c", "model.wieght")
    assert done.returncode == CHECK_FAILED
    assert b"model.weight" in done.stderr
    data = tmp_path / "c" / "__0_0.distcp"
    stored = bytearray(data.read_bytes())
    stored[stored.find(torch.ones(64).numpy().tobytes()) + 9] ^= 1
    data.write_bytes(stored)
    for words in [[], ["--npy", tmp_path / "w.npy"]]:
        done = run("cat", tmp_path / "c", "model.weight", *words)
        assert (done.returncode, done.stdout) == (CHECK_FAILED, b"")
        assert b"model.weight" in done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c"]


def test_integers_beyond_doubles_are_exact(tmp_path: Path) -> None:
    state = {
        "i": torch.tensor([-(2**63), 1234567891, 2**53 + 1]),
        "u": torch.tensor([3, 2**64 - 1], dtype=torch.uint64),
        "b": torch.tensor([True, False]),
    }
    cairn.save(state, checkpoint_id=tmp_path / "c", no_dist=True)
    told = json_of("cat", tmp_path / "c", "i")
    assert (told["min"], told["max"]) == (-(2**63), 2**53 + 1)
    assert "min -9223372036854775808, max 9007199254740993, mean" in text_of("cat", tmp_path / "c", "i")
    assert json_of("cat", tmp_path / "c", "u")["max"] == 2**64 - 1
    told = json_of("cat", tmp_path / "c", "b")
    assert (told["min"], told["max"], told["mean"]) == (0, 1, 0.5)


def test_npy_replaces_a_file_only_on_request(tmp_path: Path) -> None:
    cairn.save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "c", no_dist=True)
    file = tmp_path / "w.npy"
    file.write_bytes(b"mine")
    done = run("cat", tmp_path / "c", "w", "--npy", file)
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert b"--overwrite" in done.stderr
    assert file.read_bytes() == b"mine"
    assert run("cat", tmp_path / "c", "w", "--npy", file, "--overwrite").returncode == OK
    assert np.load(file).tolist() == [1, 1, 1, 1]
    assert run("cat", tmp_path / "c", "w", "--overwrite").returncode == USAGE
    for of_checkpoint in (".metadata", "__0_0.distcp"):
        done = run("cat", tmp_path / "c", "w", "--npy", tmp_path / "c" / of_checkpoint, "--overwrite")
        assert done.returncode == USAGE, of_checkpoint
    assert cairn.verify(tmp_path / "c")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["c", "w.npy"]


def test_a_full_disk_leaves_no_part_of_an_npy_file(tmp_path: Path) -> None:
    cairn.save({"w": torch.ones(1 << 20)}, checkpoint_id=tmp_path / "c", no_dist=True)
    (tmp_path / "out").mkdir()
    limited = 'ulimit -f 8; trap \'\' XFSZ; exec "$0" cat "$1" w --npy "$2"'
    words = ["bash", "-c", limited, tool(), str(tmp_path / "c"), str(tmp_path / "out" / "w.npy")]
    done = subprocess.run(words, capture_output=True, check=False, timeout=240)
    assert done.returncode == UNREADABLE, done.stderr
    assert [*(tmp_path / "out").iterdir()] == []
