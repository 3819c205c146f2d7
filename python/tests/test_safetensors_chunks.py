"""Safetensors models of ranks that hold several chunks of one tensor.

A safetensors file has one tensor of a name. torch's writer keeps the last chunk of a rank and loses the others.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn._consolidate_hf_safetensors import consolidate_safetensors_files
from ranks import Gang
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed._shard import sharded_tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as StockReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as StockWriter
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import cairn
from cairn.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

TABLE = torch.arange(16 * 6, dtype=torch.float32).reshape(16, 6)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def mesh(*shape: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape)


def striped(whole: torch.Tensor) -> Any:
    """Four stripes of rows on each half of the mesh, as of FSDP over tensor parallelism; each on two ranks."""
    local = distribute_tensor(whole, mesh(2, 2), [Replicate(), Replicate()]).redistribute(
        placements=[_StridedShard(0, split_factor=4), Replicate()]
    )
    assert isinstance(local, DTensor)
    return local


def two_local_shards(whole: torch.Tensor) -> Any:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rows = len(whole) // ranks
    local = whole[rank * rows : (rank + 1) * rows]
    shard = sharded_tensor.Shard.from_tensor_and_offsets
    shards = [
        shard(local[:, :2].contiguous(), [rank * rows, 0], rank),
        shard(local[:, 2:].contiguous(), [rank * rows, 2], rank),
    ]
    return sharded_tensor.init_from_local_shards(shards, *whole.shape)


def rows_of_rank(whole: torch.Tensor) -> Any:
    return distribute_tensor(whole, mesh(dist.get_world_size()), [Shard(0)])


def state_of(names: tuple[str, ...]) -> dict[str, Any]:
    makers = {"striped": striped, "halves": two_local_shards, "rows": rows_of_rank}
    return {name: makers[name](TABLE + i) for i, name in enumerate(names)}


def save(
    function: Callable[..., Any], writer: type[StockWriter], directory: Path, names: tuple[str, ...], distributed: bool
) -> None:
    function(state_of(names), storage_writer=writer(str(directory), save_distributed=distributed))


def assert_whole(directory: Path, names: tuple[str, ...]) -> None:
    for load, reader in [
        (cairn.load, HuggingFaceStorageReader(directory)),
        (dcp.load, HuggingFaceStorageReader(directory)),
        (dcp.load, StockReader(str(directory))),
    ]:
        target = {name: torch.zeros_like(TABLE) for name in names}
        load(target, storage_reader=reader, no_dist=True)
        for i, name in enumerate(names):
            assert torch.equal(target[name], TABLE + i), (load, type(reader), name)


def load_striped(directory: Path) -> None:
    target = {"striped": striped(torch.zeros_like(TABLE))}
    cairn.load(target, storage_reader=HuggingFaceStorageReader(directory))
    assert torch.equal(target["striped"].full_tensor(), TABLE)


def test_stripes_of_a_dtensor(four: Gang, tmp_path: Path) -> None:
    names = ("striped", "halves", "rows")
    four.run(save, cairn.save, HuggingFaceStorageWriter, tmp_path / "shards", names, True)
    for file in (tmp_path / "shards").iterdir():
        with safe_open(file, "pt") as opened:
            assert opened.keys(), "no file without a tensor"
    shards = {int(file.name.split("-")[1]) for file in (tmp_path / "shards").iterdir()}
    assert shards == set(range(1, len(shards) + 1)), "each file has the number of a shard of its own"
    assert_whole(tmp_path / "shards", names)
    four.run(load_striped, tmp_path / "shards")
    consolidate_safetensors_files(str(tmp_path / "shards"), str(tmp_path / "whole"), {})
    found = load_file(tmp_path / "whole" / "model-00001-of-00001.safetensors")
    assert all(torch.equal(found[name], TABLE + i) for i, name in enumerate(names))


def test_several_local_shards_under_torchs_driver(two: Gang, tmp_path: Path) -> None:
    names = ("halves", "rows")
    two.run(save, dcp.save, StockWriter, tmp_path / "stock", names, True)
    held = []
    for file in (tmp_path / "stock").iterdir():
        with safe_open(file, "pt") as opened:
            held.append(opened.get_tensor("halves").numel())
    assert sum(held) < TABLE.numel(), "torch's writer loses a chunk of each rank"
    two.run(save, dcp.save, HuggingFaceStorageWriter, tmp_path / "ours", names, True)
    assert len(list((tmp_path / "ours").iterdir())) == 4
    assert_whole(tmp_path / "ours", names)


@pytest.mark.parametrize("function", [cairn.save, dcp.save])
def test_chunks_are_refused_with_the_key_where_each_file_has_one_writer(
    two: Gang, tmp_path: Path, function: Callable[..., Any]
) -> None:
    with pytest.raises(AssertionError, match=r"no rank holds all tensors of the file whole.*halves"):
        two.run(save, function, HuggingFaceStorageWriter, tmp_path / "model", ("halves",), False)
    assert not (tmp_path / "model").exists() or not list((tmp_path / "model").iterdir())


def striped_by_torchs_planner(directory: Path) -> str:
    with pytest.raises((CheckpointException, cairn.Error)) as caught:
        save(dcp.save, HuggingFaceStorageWriter, directory, ("striped",), True)
    return str(caught.value)


def test_stripes_that_torchs_planner_misplaces_are_refused(four: Gang, tmp_path: Path) -> None:
    """torch plans one box for all stripes of a rank."""
    assert all("striped" in text for text in four.run(striped_by_torchs_planner, tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.name != ".cairn-lock"] == []
