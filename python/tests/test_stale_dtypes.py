"""Checkpoints of stock torch whose files have other dtypes than `.metadata` names: the files count."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import torch
from same import assert_same
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

import cairn

STATE = {"w": torch.randn(40, 30, generator=torch.Generator().manual_seed(1)), "n": {"v": torch.arange(5.0) / 3}}
WHOLE = {"i": torch.arange(3), "text": "kept"}


class Transforms(DefaultSavePlanner):
    """Casts where torch's documentation shows it."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        return _halved(super().transform_object(write_item, object))


class Resolves(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        return _halved(super().resolve_data(write_item))


def _halved(data: Any) -> Any:
    is_float = isinstance(data, torch.Tensor) and data.is_floating_point()
    return data.to(torch.bfloat16) if is_float else data


def halves(state: dict[str, Any]) -> dict[str, Any]:
    return {key: halves(value) if isinstance(value, dict) else _halved(value) for key, value in state.items()}


def blank(dtype: torch.dtype) -> dict[str, Any]:
    return {"w": torch.zeros(40, 30, dtype=dtype), "n": {"v": torch.zeros(5, dtype=dtype)}, "i": torch.zeros(3).long()}


@pytest.fixture(params=[Transforms, Resolves])
def cast(request: pytest.FixtureRequest, checkpoint: Path) -> Path:
    stock.save({**STATE, **WHOLE}, checkpoint, planner=request.param())
    assert stock.metadata_of(checkpoint).state_dict_metadata["w"].properties.dtype is torch.float32
    return checkpoint


@pytest.mark.filterwarnings("ignore::cairn.ConversionWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_load_goes_by_the_files(dtype: torch.dtype, cast: Path) -> None:
    expected, state = blank(dtype), blank(dtype)
    stock.load(expected, cast)
    with pytest.warns(RuntimeWarning, match=r"2 tensors have another dtype in the files.*'w', 'n\.v'|'n\.v', 'w'"):
        cairn.load(state, checkpoint_id=cast)
    assert_same(state, expected)


def test_a_load_reports_the_conversion_from_the_dtype_in_the_file(cast: Path) -> None:
    with pytest.warns(cairn.ConversionWarning, match="bfloat16"), pytest.warns(RuntimeWarning, match="files count"):
        cairn.load(blank(torch.float32), checkpoint_id=cast)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="another dtype"):
            cairn.load(blank(torch.bfloat16), checkpoint_id=cast)  # no conversion
        cairn.load({"i": torch.zeros(3).long()}, checkpoint_id=cast)


def test_read_goes_by_the_files(cast: Path) -> None:
    with pytest.warns(RuntimeWarning, match="2 tensors have another dtype in the files"):
        state = cairn.read(cast)
    assert_same(state, {**halves(STATE), **WHOLE})


@pytest.mark.parametrize("second", [torch.tensor([1.5, 2.5]), torch.tensor([1 + 2j, 3]), torch.tensor([True, False])])
def test_chunks_of_dtypes_that_do_not_fit_together_are_refused(second: torch.Tensor, checkpoint: Path) -> None:
    first = torch.tensor([2**30 + 1, 5], dtype=torch.int32)
    stock.save({"a": first, "b": second}, checkpoint)
    metadata = stock.metadata_of(checkpoint)
    both = metadata.state_dict_metadata["a"]
    both.size = torch.Size([4])  # type: ignore[union-attr]
    both.chunks.append(ChunkStorageMetadata(torch.Size([2]), torch.Size([2])))  # type: ignore[union-attr]
    places = {index.fqn: place for index, place in metadata.storage_data.items()}
    metadata.storage_data = {MetadataIndex("a", torch.Size([at])): places[key] for at, key in ((0, "a"), (2, "b"))}
    del metadata.state_dict_metadata["b"]
    stock.rewrite_metadata(checkpoint, metadata)
    for call in (
        lambda: cairn.convert(checkpoint, checkpoint.with_suffix(".pt"), to="torch"),
        lambda: cairn.diff(checkpoint, checkpoint),
        lambda: cairn.read(checkpoint),
        lambda: cairn.open(checkpoint)["a"],
    ):
        with pytest.raises(cairn.Corrupt, match="chunks of a tensor have different dtypes") as caught:
            call()
        assert caught.value.key == "a"


def test_open_goes_by_the_files(cast: Path) -> None:
    opened = cairn.open(cast, tensors="torch")
    with pytest.warns(RuntimeWarning, match=r"'w' has dtype bfloat16 in the files and float32") as told:
        info = opened.info("w")
        assert (info.dtype, info.nbytes) == ("bfloat16", 2400)
        assert_same(opened["w"], _halved(STATE["w"]))
        assert_same(opened.read("n.v", slice(1, 3)), _halved(STATE["n"]["v"][1:3]))
    assert len(told) == 1
    assert_same(opened["i"], WHOLE["i"])


def test_verify_and_diff_go_by_the_files(cast: Path, tmp_path: Path) -> None:
    report = cairn.verify(cast)
    assert report
    assert any("2 tensors have another dtype" in text for text in report.warnings)
    stock.save({**halves(STATE), **WHOLE}, tmp_path / "plain")
    assert not cairn.diff(cast, tmp_path / "plain")
    content = bytearray((cast / "__0_0.distcp").read_bytes())
    place = content.index(STATE["w"].to(torch.bfloat16).view(torch.uint8).numpy().tobytes())
    content[place + 100] ^= 1
    (cast / "__0_0.distcp").write_bytes(content)
    assert not cairn.verify(cast)


@pytest.mark.parametrize("to", ["dcp", "torch", "safetensors"])
def test_a_conversion_goes_by_the_files(to: Any, cast: Path, tmp_path: Path) -> None:
    report = cairn.convert(cast, tmp_path / "target", to=to, exclude=["text"])
    assert any("2 tensors have another dtype" in text for text in report.warnings)
    assert not report.conversions
    assert report.tensor_bytes == 2400 + 10 + 24
    found = cairn.open(tmp_path / "target", tensors="torch")
    assert_same(found["w"], _halved(STATE["w"]))
    assert_same(found["n.v"], _halved(STATE["n"]["v"]))
    report = cairn.convert(cast, tmp_path / "float", to=to, exclude=["text"], dtype="float32")
    assert dict(report.conversions) == {"w": ("bfloat16", "float32"), "n.v": ("bfloat16", "float32")}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_a_cached_plan_keeps_the_dtype_of_the_first_save(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.arange(2000).reshape(50, 40) / 7
    for step, of_step in enumerate((torch.float32, dtype)):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        stock.save({"w": tensor.to(of_step)}, tmp_path / str(step), planner=planner)
    second = tmp_path / "1"
    if stock.metadata_of(second).state_dict_metadata["w"].properties.dtype is dtype:
        pytest.skip("this torch plans anew")
    state = {"w": torch.zeros(50, 40, dtype=dtype)}
    with pytest.warns(RuntimeWarning, match="a tensor has another dtype"):
        cairn.load(state, checkpoint_id=second)
    assert_same(state["w"], tensor.to(dtype))
    with pytest.warns(RuntimeWarning, match="'w' has dtype"):
        array = cairn.open(second, tensors="integers")["w"]
    assert array.nbytes == tensor.to(dtype).nbytes
    if dtype is not torch.bfloat16:
        np.testing.assert_array_equal(array, tensor.to(dtype).numpy())
    assert cairn.verify(second)
    cairn.convert(second, tmp_path / "a.pt", to="torch")
    assert_same(torch.load(tmp_path / "a.pt")["w"], tensor.to(dtype))


def test_an_integer_file_is_no_float_target_without_a_cast(tmp_path: Path) -> None:
    for step, dtype in enumerate((torch.float32, torch.int32)):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        stock.save({"k": torch.arange(4).to(dtype)}, tmp_path / str(step), planner=planner)
    if stock.metadata_of(tmp_path / "1").state_dict_metadata["k"].properties.dtype is torch.int32:
        pytest.skip("this torch plans anew")
    with pytest.raises(cairn.InvalidArgument, match="allow_cast=True"):
        cairn.load({"k": torch.zeros(4)}, checkpoint_id=tmp_path / "1")
    state = {"k": torch.zeros(4)}
    with pytest.warns(RuntimeWarning):
        cairn.load(state, checkpoint_id=tmp_path / "1", allow_cast=True)
    assert state["k"].tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore::cairn.ConversionWarning")
def test_other_calls_with_a_planner_of_the_caller(cast: Path) -> None:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Mine(DefaultLoadPlanner):
        def finish_plan(self, new_plan: Any) -> Any:
            return super().finish_plan(new_plan)

    expected, state = blank(torch.float32), blank(torch.float32)
    stock.load(expected, cast)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cairn.load(state, checkpoint_id=cast, planner=Mine())
    assert_same(state, expected)
