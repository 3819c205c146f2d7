"""How many bytes of a safetensors model a rank reads: only those of its own boxes, up to whole checksum blocks."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Gang

import cairn
from cairn.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

SHAPE = (64, 65536)  # float32: the quarter of a row has 64 KiB, the size of a checksum block
KINDS = ("rows", "columns")


def whole(kind: str) -> torch.Tensor:
    return torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float32).reshape(SHAPE) + (kind == "rows")


def shard_of_rank(tensor: torch.Tensor, kind: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(tensor, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(KINDS.index(kind))])


def save_shards(directory: Path) -> None:
    state = {kind: shard_of_rank(whole(kind), kind) for kind in KINDS}
    cairn.save(state, storage_writer=HuggingFaceStorageWriter(directory, save_distributed=True))


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def load(call: str, directory: Path, state: dict[str, Any]) -> None:
    if call == "cairn.load":
        cairn.load(state, checkpoint_id=directory)
    elif call == "cairn.load with a reader":
        cairn.load(state, storage_reader=HuggingFaceStorageReader(directory))
    else:
        dcp.load(state, storage_reader=HuggingFaceStorageReader(directory))


def load_shards(call: str, directory: Path, kinds: dict[str, str]) -> float:
    """Loads each tensor of `kinds` sharded by its kind. Returns the bytes read for each byte needed."""
    for _ in range(2):  # the first load also imports modules
        state = {key: shard_of_rank(torch.zeros(SHAPE), kind) for key, kind in kinds.items()}
        before = bytes_read()
        load(call, directory, state)
        read = bytes_read() - before
    for key, tensor in state.items():
        assert torch.equal(tensor.to_local(), shard_of_rank(whole(key), kinds[key]).to_local()), key
    return read / sum(tensor.to_local().nbytes for tensor in state.values())


@pytest.fixture(scope="module")
def sharded_by_four(four: Gang, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    four.run(save_shards, directory)
    assert len(list(directory.glob("shard-*"))) == 4
    return directory


@pytest.mark.parametrize("call", ["cairn.load", "cairn.load with a reader", "dcp.load with a reader"])
@pytest.mark.parametrize("kinds", [("rows", "columns"), ("columns", "rows")])
def test_two_ranks_read_their_own_boxes_of_shards_of_four(
    call: str, kinds: tuple[str, str], sharded_by_four: Path, two: Gang
) -> None:
    """The tensors of four ranks are sharded alike by two ranks, or by the other dimension."""
    for ratio in two.run(load_shards, call, sharded_by_four, dict(zip(KINDS, kinds, strict=True))):
        assert 1.0 <= ratio <= 1.1
