"""Objects that declare their chunks by the methods of torch's ``_Checkpointable``: the declaration wins over placements
and type. A save goes by the write items, and a load by the chunk list."""

from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from both_libraries import LIBRARIES, CallersLoadPlanner, CallersSavePlanner, mesh, quietly
from ranks import Gang
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper
from torch.distributed.tensor.placement_types import _StridedShard

import cairn

ROW = torch.arange(8.0) + 1
TABLE = torch.arange(12.0).reshape(6, 2) + 1


def write_item(fqn: str, chunk: ChunkStorageMetadata, tensor: torch.Tensor, size: torch.Size) -> WriteItem:
    data = TensorWriteData(chunk, TensorProperties.create_from_tensor(tensor), size)
    return WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def declare(holder: Any, local: torch.Tensor, first: int, size: torch.Size) -> None:
    """Attaches the methods to `holder`: `local` lies at element `first`. As Megatron's FSDP does."""
    chunk = ChunkStorageMetadata(torch.Size([first]), local.size())
    holder.__create_chunk_list__ = lambda: [chunk]
    holder.__create_write_items__ = lambda fqn, _object: [write_item(fqn, chunk, local, size)]


def mine(rows: tuple[int, int], values: torch.Tensor) -> tuple[torch.Tensor, int]:
    first = 0 if dist.get_rank() == 0 else rows[0]
    return values[first : first + rows[dist.get_rank()]].clone(), first


def on_local_tensor(rows: tuple[int, int], values: torch.Tensor) -> DTensor:
    local, first = mine(rows, values)
    placements = [_StridedShard(0, split_factor=2)]
    made = DTensor.from_local(local, mesh(), placements, run_check=False, shape=ROW.size(), stride=(1,))
    declare(made._local_tensor, made._local_tensor, first, ROW.size())
    return made


def on_dtensor(rows: tuple[int, int], values: torch.Tensor) -> DTensor:
    local, first = mine(rows, values)
    placements = [_StridedShard(0, split_factor=2)]
    made: Any = DTensor.from_local(local, mesh(), placements, run_check=False, shape=ROW.size(), stride=(1,))
    declare(made, made._local_tensor, first, ROW.size())
    made.__get_tensor_shard__ = lambda _index: made._local_tensor
    return made


def elements(tensor: Any) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor.as_subclass(torch.Tensor)


def strided(make: Any, rows: tuple[int, int], root: Path) -> None:
    """Every way to save and load gives the declared rows."""
    state = {"x": make(rows, ROW)}
    with quietly():
        stock.dcp.save(state, checkpoint_id=root / "torch")
        stock.dcp.save(state, storage_writer=cairn.FileSystemWriter(root / "driven"))
        stock.dcp.save({"x": ROW}, checkpoint_id=root / "plain")
        cairn.async_save(state, checkpoint_id=root / "later").result()
    cairn.save(state, checkpoint_id=root / "cairn")
    cairn.save(state, checkpoint_id=root / "planned", planner=CallersSavePlanner())
    for folder in ("torch", "driven", "later", "cairn", "planned", "plain"):
        for name, library in LIBRARIES.items():
            whole = {"x": torch.zeros_like(ROW)}
            with quietly():
                library.load(whole, checkpoint_id=root / folder)
            assert torch.equal(whole["x"], ROW), (folder, name)
            for planner in (None, CallersLoadPlanner()):
                target = make(rows, torch.zeros_like(ROW))
                with quietly():
                    library.load({"x": target}, checkpoint_id=root / folder, planner=planner)
                assert torch.equal(elements(target), mine(rows, ROW)[0]), (folder, name)


@pytest.mark.parametrize("rows", [(4, 4), (3, 5)], ids=["even", "uneven"])
@pytest.mark.parametrize("make", [on_local_tensor, on_dtensor])
def test_declared_chunks_win_over_strided_placements(
    two: Gang, make: Any, rows: tuple[int, int], tmp_path: Path
) -> None:
    two.run(strided, make, rows, tmp_path)


def refuse_a_size(root: Path) -> None:
    made = on_local_tensor((4, 4), ROW)
    made._local_tensor.__create_chunk_list__ = lambda: [ChunkStorageMetadata(torch.Size([0]), torch.Size([3]))]
    with quietly():
        stock.dcp.save({"x": ROW}, checkpoint_id=root)
    with pytest.raises(cairn.InvalidArgument, match="the shard of 'x' at"):
        cairn.load({"x": made}, checkpoint_id=root)


def test_a_shard_of_another_size_than_its_chunk_is_refused(two: Gang, tmp_path: Path) -> None:
    two.run(refuse_a_size, tmp_path)


def table_wise(owner: int, values: torch.Tensor) -> DTensor:
    """The table whole on one rank, and a wrapper without shards on the other."""
    has = dist.get_rank() == owner
    wrapper = LocalShardsWrapper([values.clone()], [(0, 0)]) if has else LocalShardsWrapper([], [])
    return DTensor.from_local(wrapper, mesh(), [Shard(0)], run_check=False, shape=TABLE.size(), stride=TABLE.stride())


def tables(root: Path) -> None:
    for name, library in LIBRARIES.items():
        with quietly():
            library.save({"t": table_wise(1, TABLE)}, checkpoint_id=root / name)
    for folder in LIBRARIES:
        for name, library in LIBRARIES.items():
            target = table_wise(0, torch.zeros_like(TABLE))
            with quietly():
                library.load({"t": target}, checkpoint_id=root / folder)
            assert all(torch.equal(shard, TABLE) for shard in target._local_tensor.local_shards()), (folder, name)
    with pytest.raises(cairn.MissingKey):
        cairn.load({"missing": table_wise(0, TABLE)}, checkpoint_id=root / "cairn")


def test_a_rank_may_hold_no_shard_of_a_table(two: Gang, tmp_path: Path) -> None:
    two.run(tables, tmp_path)


class Replica(torch.Tensor):
    """A tensor of which only replica 0 writes."""

    number: int

    @staticmethod
    def __new__(cls, elements: torch.Tensor, number: int) -> "Replica":
        made = elements.as_subclass(cls)
        made.number = number
        return made

    def __create_write_items__(self, fqn: str, _object: Any) -> list[WriteItem]:
        plain = self.as_subclass(torch.Tensor)
        return [] if self.number else [write_item(fqn, self.__create_chunk_list__()[0], plain, plain.size())]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size([0] * self.dim()), self.size())]

    def __get_tensor_shard__(self, _index: MetadataIndex) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


class ReplicaOfNoTensor:
    """No tensor, of unknown size; only replica 0 writes."""

    def __init__(self, local: torch.Tensor, number: int) -> None:
        self.local = local
        self.number = number

    def __create_write_items__(self, fqn: str, _object: Any) -> list[WriteItem]:
        return [] if self.number else [write_item(fqn, self.__create_chunk_list__()[0], self.local, ROW.size())]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size([0]), self.local.size())]

    def __get_tensor_shard__(self, _index: MetadataIndex) -> torch.Tensor:
        return self.local


@pytest.mark.parametrize("saver", LIBRARIES)
@pytest.mark.parametrize("loader", LIBRARIES)
def test_a_replica_that_writes_nothing_is_filled(saver: str, loader: str, tmp_path: Path) -> None:
    with quietly():
        LIBRARIES[saver].save({"x": Replica(ROW.clone(), 0), "y": ROW}, checkpoint_id=tmp_path)
        local = torch.zeros_like(ROW)
        state = {"x": Replica(local, 1), "y": torch.zeros_like(ROW)}
        LIBRARIES[loader].load(state, checkpoint_id=tmp_path)
    assert torch.equal(local, ROW)


def test_a_replica_that_is_no_tensor_is_filled(tmp_path: Path) -> None:
    """Stock DCP plans the object, but looks up only tensors when writing or reading."""
    cairn.save({"x": ReplicaOfNoTensor(ROW.clone(), 0)}, checkpoint_id=tmp_path)
    local = torch.zeros_like(ROW)
    cairn.load({"x": ReplicaOfNoTensor(local, 1)}, checkpoint_id=tmp_path)
    assert torch.equal(local, ROW)


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("saver", LIBRARIES)
@pytest.mark.parametrize("loader", LIBRARIES)
def test_a_plain_tensor_may_declare_its_place_in_a_larger_tensor(
    kind: type, saver: str, loader: str, tmp_path: Path
) -> None:
    """One process: the rest of the tensor is nobody's. A view of the tensor's own memory is saved and filled."""

    def make(value: float) -> Any:
        made = torch.nn.Parameter(torch.full((8,), value)) if kind is torch.nn.Parameter else torch.full((8,), value)
        made.__create_chunk_list__ = lambda: [ChunkStorageMetadata(torch.Size([2]), torch.Size([3]))]
        made.__create_write_items__ = lambda fqn, _object: [
            write_item(fqn, made.__create_chunk_list__()[0], made.detach(), made.size())
        ]
        made.__get_tensor_shard__ = lambda _index: made.detach()[:3]
        return made

    with quietly():
        LIBRARIES[saver].save({"part": make(5.0), "n": {"whole": ROW}}, checkpoint_id=tmp_path)
    (chunk,) = stock.metadata_of(tmp_path).state_dict_metadata["part"].chunks
    assert (tuple(chunk.offsets), tuple(chunk.sizes)) == ((2,), (3,))
    target = make(0.0)
    state = {"part": target, "n": {"whole": torch.zeros_like(ROW)}}
    with quietly():
        LIBRARIES[loader].load(state, checkpoint_id=tmp_path)
    assert target.tolist() == [5, 5, 5, 0, 0, 0, 0, 0]
    assert torch.equal(state["n"]["whole"], ROW)
