"""Two checkpoints compared, by `cairn.diff` and by `cairn diff`: formats, shardings, damage."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Gang
from safetensors.torch import save_file
from test_safetensors import of_every_dtype
from tool import CHECK_FAILED, OK, json_of, run, text_of

import cairn

TROUBLE = 2  # as diff(1)


def save_both(tmp_path: Path, a: dict[str, Any], b: dict[str, Any]) -> tuple[Path, Path]:
    for name, state in (("a", a), ("b", b)):
        cairn.save(state, checkpoint_id=tmp_path / name, no_dist=True)
    return tmp_path / "a", tmp_path / "b"


def nested() -> dict[str, Any]:
    return {
        "model": {"w": torch.arange(12.0).reshape(3, 4), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)},
        "optimizer": {"lr": 0.1, "betas": (0.9, 0.99), "nan": math.nan},
        "step": 7,
    }


def test_every_format_of_a_state_is_equal_to_every_other(tmp_path: Path) -> None:
    tensors = of_every_dtype()
    cairn.save(tensors, checkpoint_id=tmp_path / "ours", no_dist=True)
    dcp.save(dict(tensors), checkpoint_id=tmp_path / "stock", no_dist=True)
    save_file(tensors, tmp_path / "model.safetensors")
    places = [tmp_path / "ours", tmp_path / "stock", tmp_path / "model.safetensors"]
    for a in places:
        for b in places:
            report = cairn.diff(a, b)
            assert not report, report.differences
            assert report.tensors == len(tensors)


def test_values_of_stock_and_of_cairn_are_equal(tmp_path: Path) -> None:
    cairn.save(nested(), checkpoint_id=tmp_path / "ours", no_dist=True)
    dcp.save(nested(), checkpoint_id=tmp_path / "stock", no_dist=True)
    report = cairn.diff(tmp_path / "ours", tmp_path / "stock")
    assert not report, report.differences
    assert report.values == 4


def test_kinds_of_differences(tmp_path: Path) -> None:
    other = nested()
    other["model"]["w"][2, 3] = 11.5
    other["model"]["scalar"] = torch.tensor(2.5, dtype=torch.bfloat16)
    other["model"]["empty"] = torch.zeros(1, 3)
    other["optimizer"] = {"lr": 0.1, "betas": (0.9, 0.999)}
    other["new"] = "text"
    a, b = save_both(tmp_path, nested(), other)
    found = {difference.key: difference for difference in cairn.diff(a, b).differences}
    kinds = {key: difference.kind for key, difference in found.items()}
    assert kinds == {
        "model.w": "elements",
        "model.scalar": "dtype",
        "model.empty": "shape",
        "optimizer.betas": "value",
        "new": "only_in_b",
        "optimizer.nan": "only_in_a",
    }
    betas = found["optimizer.betas"]
    assert (betas.place, betas.a, betas.b) == ("[1]", "0.99", "0.999")
    elements = found["model.w"].elements
    assert elements is not None
    assert elements[:4] == (12, 1, 1, (2, 3))
    assert elements.numbers == (0, 0.5, 0.5 / 11.5, (2, 3))
    of_scalar = found["model.scalar"].elements
    assert of_scalar is not None
    assert of_scalar.unequal == 0
    assert (found["model.empty"].a, found["model.empty"].b) == ("float32 [0, 3]", "float32 [1, 3]")
    assert found["optimizer.nan"].b is None


def test_a_copy_in_another_dtype_is_checked_with_ignore_dtype(tmp_path: Path) -> None:
    numbers = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    base = {"w": numbers, "empty": torch.zeros(0), "count": torch.arange(3)}
    copy = {"w": numbers.bfloat16(), "empty": torch.zeros(0).bfloat16(), "count": torch.arange(3)}
    a, b = save_both(tmp_path, base, copy)
    assert [difference.kind for difference in cairn.diff(a, b, tolerance=0.004).differences] == ["dtype", "dtype"]
    report = cairn.diff(a, b, tolerance=0.004, ignore_dtype=True)
    assert not report
    assert [difference.key for difference in report.tolerated] == ["w", "empty"]
    assert [difference.key for difference in cairn.diff(a, b, ignore_dtype=True).differences] == ["w"]
    assert [d.key for d in cairn.diff(a, b, tolerance=0.001, ignore_dtype=True).differences] == ["w"]
    assert run("diff", a, b, "--tolerance", "0.004", "--ignore-dtype").returncode == 0
    copy["count"] = torch.arange(3, dtype=torch.int32)
    c, _ = save_both(tmp_path / "other", copy, copy)
    assert [d.key for d in cairn.diff(a, c, tolerance=0.004, ignore_dtype=True).differences] == ["count"]


def test_tolerance_and_keys(tmp_path: Path) -> None:
    base = {"w": torch.tensor([1.0, 1000.0, math.nan, math.inf]), "i": torch.tensor([1, 2])}
    near = {"w": torch.tensor([1.0005, 1000.5, math.nan, math.inf]), "i": torch.tensor([1, 3])}
    a, b = save_both(tmp_path, base, near)
    assert [difference.key for difference in cairn.diff(a, b).differences] == ["w", "i"]
    report = cairn.diff(a, b, tolerance=1e-3)
    assert [difference.key for difference in report.differences] == ["i"]
    assert [difference.key for difference in report.tolerated] == ["w"]
    assert not cairn.diff(a, b, tolerance=1e-3, keys=["w"])
    with pytest.raises(cairn.MissingKey):
        cairn.diff(a, b, keys=["nothing"])
    for tolerance in (-1, 1, math.nan):
        with pytest.raises(cairn.InvalidArgument):
            cairn.diff(a, b, tolerance=tolerance)
    with pytest.raises(cairn.InvalidArgument):
        cairn.diff(a, b, keys="w")
    with pytest.raises(cairn.NotFound):
        cairn.diff(a, tmp_path / "missing")


def save_sharded(directory: Path, dimension: int, changed: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = torch.arange(64.0 * 48).reshape(64, 48)
    if changed:
        whole[63, 47] = -1
    mesh = init_device_mesh("cpu", (2,))
    state = {"w": distribute_tensor(whole, mesh, [Shard(dimension)])}
    cairn.save(state, checkpoint_id=directory)


def test_shards_of_rows_and_of_columns_are_equal(two: Gang, tmp_path: Path) -> None:
    two.run(save_sharded, tmp_path / "rows", 0, False)
    two.run(save_sharded, tmp_path / "columns", 1, False)
    two.run(save_sharded, tmp_path / "changed", 1, True)
    save_file({"w": torch.arange(64.0 * 48).reshape(64, 48)}, tmp_path / "model.safetensors")
    assert not cairn.diff(tmp_path / "rows", tmp_path / "columns")
    assert not cairn.diff(tmp_path / "columns", tmp_path / "model.safetensors")
    (difference,) = cairn.diff(tmp_path / "rows", tmp_path / "changed").differences
    assert difference.elements is not None
    assert difference.elements.first_differing == (63, 47)


@pytest.mark.parametrize("writer", [cairn, dcp])
@pytest.mark.parametrize("side", [0, 1])
def test_a_flipped_byte_is_an_error_that_names_the_key(tmp_path: Path, writer: Any, side: int) -> None:
    state = {"w": torch.ones(1 << 21), "other": torch.zeros(3)}  # 8 MiB: two windows
    for name in ("a", "b"):
        writer.save(dict(state), checkpoint_id=tmp_path / name, no_dist=True)
    places = [tmp_path / "a", tmp_path / "b"]
    damaged = places[side] / "__0_0.distcp"
    data = bytearray(damaged.read_bytes())
    data[data.find(torch.ones(64).numpy().tobytes()) + (7 << 20)] ^= 1  # in the second window
    damaged.write_bytes(data)
    with pytest.raises(cairn.Corrupt) as caught:
        cairn.diff(*places)
    assert caught.value.key == "w"
    assert caught.value.file == "__0_0.distcp"
    done = run("diff", *places)
    assert (done.returncode, done.stdout) == (TROUBLE, b"")
    assert b"'w'" in done.stderr
    assert not cairn.diff(*places, keys=["other"])


def test_exit_codes_and_output_of_the_tool(tmp_path: Path) -> None:
    other = nested()
    other["model"]["w"][0, 1] = math.inf
    other["step"] = 8
    a, b = save_both(tmp_path, nested(), other)
    assert run("diff", a, a).returncode == OK
    assert text_of("diff", a, a).startswith("equal: 3 tensors")
    done = run("diff", a, b)
    assert (done.returncode, done.stderr) == (CHECK_FAILED, b"")
    lines = done.stdout.decode().splitlines()
    assert "elements: model.w  float32 [3, 4]: 1 of 12 elements differ; largest difference inf at [0, 1]" in lines[0]
    assert "value: step  7 | 8" in lines
    assert lines[-1].startswith("different: 2 keys")
    assert run("diff", a, b, "--keys", "model.s*", "--keys", "optimizer").returncode == OK
    assert run("diff", a).returncode == TROUBLE
    assert run("diff", a, tmp_path / "missing").returncode == TROUBLE
    assert run("diff", a, b, "--tolerance", "x").returncode == TROUBLE


def test_json_of_the_tool(tmp_path: Path) -> None:
    other = nested()
    other["model"]["w"][0, 1] = math.inf
    a, b = save_both(tmp_path, nested(), other)
    assert json_of("diff", a, a)["equal"] is True
    done = run("diff", a, b, "--json")
    assert done.returncode == CHECK_FAILED
    told = json.loads(done.stdout)
    (difference,) = told["differences"]
    assert difference["key"] == "model.w"
    assert difference["largest_absolute"] == "inf"
    assert difference["largest_at"] == [0, 1]
