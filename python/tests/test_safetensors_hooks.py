"""Readers of safetensors models that override torch's hooks, and the computation of quantised tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.quantized_hf_storage import QuantizedHuggingFaceStorageReader
from safetensors.torch import save_file
from torch.distributed.checkpoint._hf_utils import _HFStorageInfo
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as StockReader
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan

import cairn
from cairn.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

Load = Callable[..., Any]

both_loads = pytest.mark.parametrize("load", [cairn.load, dcp.load])
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

CODES = torch.arange(24, dtype=torch.int8).reshape(4, 6)


def halved(self: Any, file: Any, item: Any, planner: Any) -> None:
    """``_process_read_request`` of a reader of int8 codes with the scale 0.5."""
    box = tuple(slice(first, first + length) for first, length in zip(item.storage_offsets, item.lengths, strict=True))
    target = planner.resolve_tensor(item).detach()
    target.copy_(file.get_slice(item.storage_index.fqn)[box].float() * 0.5)
    planner.commit_tensor(item, target)


def queue_read(self: Any, files: Any, results: Any, planner: Any) -> None:
    """``_read_files_from_queue`` of a reader that fills the tensors with a number."""
    while not files.empty():
        _, items = files.get_nowait()
        for item in items:
            planner.commit_tensor(item, planner.resolve_tensor(item).detach().fill_(7.0))
        results.put(True)


@both_loads
@pytest.mark.parametrize("base", [HuggingFaceStorageReader, StockReader])
def test_an_overridden_read_request_is_called(tmp_path: Path, load: Load, base: Any) -> None:
    save_file({"codes": CODES}, tmp_path / "model.safetensors")
    kind: Any = type("Int8Reader", (base,), {"_process_read_request": halved})
    target = {"codes": torch.zeros(4, 6)}
    load(target, storage_reader=kind(str(tmp_path)))
    assert torch.equal(target["codes"], CODES * 0.5)


@both_loads
@pytest.mark.parametrize("base", [HuggingFaceStorageReader, QuantizedHuggingFaceStorageReader])
def test_an_overridden_read_of_a_queue_is_called(tmp_path: Path, load: Load, base: Any) -> None:
    state = {"a": torch.ones(2), "b": torch.ones(3)}
    cairn.save(state, storage_writer=HuggingFaceStorageWriter(tmp_path, {"a": 1, "b": 2}))
    kind: Any = type("QueueReader", (base,), {"_read_files_from_queue": queue_read})
    target = {key: torch.zeros_like(value) for key, value in state.items()}
    load(target, storage_reader=kind(str(tmp_path), thread_count=2))
    assert torch.equal(target["a"], torch.full((2,), 7.0))
    assert torch.equal(target["b"], torch.full((3,), 7.0))


@pytest.mark.usefixtures("fresh_report")
def test_the_report_names_the_overridden_hook(tmp_path: Path) -> None:
    save_file({"codes": CODES}, tmp_path / "model.safetensors")
    kind: Any = type("Int8Reader", (HuggingFaceStorageReader,), {"_process_read_request": halved})
    cairn.load({"codes": torch.zeros(4, 6)}, storage_reader=kind(tmp_path))
    (entry,) = cairn.report().calls
    assert not entry.engine
    assert entry.how.endswith("Int8Reader overrides _process_read_request")


@pytest.mark.parametrize("load", [None, cairn.load, dcp.load])
def test_places_are_described_by_torchs_class(tmp_path: Path, load: Load | None) -> None:
    state = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
    save_file(state, tmp_path / "model.safetensors")
    expected = StockReader(str(tmp_path)).read_metadata().storage_data
    reader = HuggingFaceStorageReader(tmp_path)
    if load is None:
        found = reader.read_metadata().storage_data
    else:
        load({key: torch.zeros_like(value) for key, value in state.items()}, storage_reader=reader)
        found = reader.storage_data
    assert expected is not None
    assert dict(found) == expected
    place = found[MetadataIndex("w", [0, 0])]
    assert type(place) is _HFStorageInfo
    assert place.relative_path == str(tmp_path / "model.safetensors")
    assert (place.shape, place.dtype) == (torch.Size([2, 3]), torch.float32)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def values_of(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The values of a tensor in MXFP4, computed from its definition."""
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).long()
    return (FP4[codes] * torch.exp2(scales.double() - 127)[..., None]).flatten(-2).float()


def blocks_and_scales() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    blocks = torch.randint(0, 256, (2, 6, 4, 16), dtype=torch.uint8)
    return blocks, torch.randint(120, 130, (2, 6, 4), dtype=torch.uint8)


@both_loads
@pytest.mark.parametrize("target_dtype", [torch.float32, torch.bfloat16])
def test_all_values_of_mxfp4_are_loaded(tmp_path: Path, load: Load, target_dtype: torch.dtype) -> None:
    blocks, scales = blocks_and_scales()
    state = {"e_blocks": blocks, "e_scales": scales}
    cairn.save(state, storage_writer=HuggingFaceStorageWriter(tmp_path, {"e_blocks": 1, "e_scales": 2}))
    target = {"e_blocks": torch.full((2, 6, 128), -7.0, dtype=target_dtype)}
    load(target, storage_reader=QuantizedHuggingFaceStorageReader(str(tmp_path), target_dtype=target_dtype))
    assert torch.equal(target["e_blocks"], values_of(blocks, scales).to(target_dtype))


class HalfPlanner(DefaultLoadPlanner):
    """Loads the second half of the last dimension, as a rank with the second of two shards."""

    def create_local_plan(self) -> LoadPlan:
        plan = super().create_local_plan()
        for item in plan.items:
            assert item.lengths[-1] == 128
            object.__setattr__(item, "lengths", torch.Size([*item.lengths[:-1], 50]))
            object.__setattr__(item, "dest_offsets", torch.Size([*item.dest_offsets[:-1], 78]))
            object.__setattr__(item, "storage_offsets", torch.Size([*item.storage_offsets[:-1], 78]))
        return plan


@both_loads
def test_a_box_of_mxfp4_is_loaded(tmp_path: Path, load: Load) -> None:
    blocks, scales = blocks_and_scales()
    save_file({"e_blocks": blocks, "e_scales": scales}, tmp_path / "model.safetensors")
    target = {"e_blocks": torch.full((2, 6, 128), -7.0)}
    load(target, storage_reader=QuantizedHuggingFaceStorageReader(str(tmp_path)), planner=HalfPlanner())
    assert torch.equal(target["e_blocks"][..., 78:], values_of(blocks, scales)[..., 78:])
    assert (target["e_blocks"][..., :78] == -7.0).all()


def test_blocks_without_scales_are_a_plain_tensor(tmp_path: Path) -> None:
    state = {"x_blocks": torch.arange(6, dtype=torch.uint8), "y_blocks": torch.arange(8.0).reshape(2, 4)}
    save_file(state, tmp_path / "model.safetensors")
    target = {key: torch.zeros_like(value) for key, value in state.items()}
    cairn.load(target, storage_reader=QuantizedHuggingFaceStorageReader(str(tmp_path)))
    assert all(torch.equal(target[key], state[key]) for key in state)


@both_loads
@pytest.mark.parametrize(
    ("tensors", "key"),
    [
        ({"e_blocks": torch.zeros(2, 2, 16, dtype=torch.uint8), "e_scales": torch.zeros(2, 2)}, "e_blocks"),
        ({"a.weight": torch.zeros(5).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(1)}, "a.weight"),
        ({"a.weight": torch.zeros(200, 9), "a.weight_scale_inv": torch.ones(4, 1)}, "a.weight"),
    ],
)
def test_quantised_tensors_beyond_torch_are_refused_with_the_key(
    tmp_path: Path, load: Load, tensors: dict[str, torch.Tensor], key: str
) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    target = {key: torch.zeros(tensors[key].shape)}
    with pytest.raises((cairn.Error, CheckpointException), match=rf"'{key}'.*(quantised|block_size)"):
        load(target, storage_reader=QuantizedHuggingFaceStorageReader(str(tmp_path)))
    assert not target[key].any()


def test_chunks_of_plain_tensors_are_loaded_beside_quantised_tensors(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    for number, rows in enumerate((whole[:2], whole[2:])):
        info = {"plain": {"saved_offsets": [2 * number, 0]}}
        name = f"shard-0000{number + 1}-model-00001-of-00001.safetensors"
        save_file({"plain": rows.contiguous()}, tmp_path / name, {"DCP_SHARDING_INFO": json.dumps(info)})
    target = {"plain": torch.zeros(4, 3)}
    cairn.load(target, storage_reader=QuantizedHuggingFaceStorageReader(str(tmp_path)))
    assert torch.equal(target["plain"], whole)
