"""Saves and loads by many ranks: the parts of each rank, the errors on each rank, and joint success or failure."""

import functools
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from same import assert_same
from torch.distributed._shard import sharded_tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

import cairn
from cairn import _engine
from cairn._ranks.process_group import collectives_of

LIBRARIES = {"cairn": cairn, "torch": stock.dcp}
TABLE = torch.arange(24.0 * 5).reshape(24, 5)


def tree(directory: Path) -> dict[str, bytes]:
    """Returns every file by name. Fails if the directory holds a folder."""
    assert [path.name for path in directory.iterdir() if path.is_dir()] == []
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# --- states of which each rank has a part


class Rows:
    """Not a tensor, but follows DCP's protocol for tensors: `local` lies at row `first` of a tensor of size `size`."""

    def __init__(self, local: torch.Tensor, first: int, size: torch.Size) -> None:
        self.local = local
        self.whole = size
        self.chunk = ChunkStorageMetadata(torch.Size([first, 0]), local.size())

    def __create_write_items__(self, fqn: str, _object: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.local)
        data = TensorWriteData(chunk=self.chunk, properties=properties, size=self.whole)
        return [WriteItem(MetadataIndex(fqn, self.chunk.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self.chunk]

    def __get_tensor_shard__(self, _index: MetadataIndex) -> torch.Tensor:
        return self.local


def my_rows(table: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns this rank's part of the rows, and the first row's index."""
    step = len(table) // dist.get_world_size()
    first = step * dist.get_rank()
    return table[first : first + step].clone(), first


@functools.cache
def mesh_of(*ranks: int) -> DeviceMesh:
    return DeviceMesh("cpu", list(ranks))


def everybody() -> DeviceMesh:
    return mesh_of(*range(dist.get_world_size()))


def pipeline() -> dict[str, Any]:
    """Each rank has its own layers; all ranks have the name."""
    mine = range(dist.get_rank(), 8, dist.get_world_size())
    layers = {i: {"weight": TABLE + i, "kind": f"layer {i}"} for i in mine}
    return {"layers": layers, "name": "a pipeline"}


def experts() -> dict[str, Any]:
    """Each expert lies on a mesh of half of the ranks. On the second half its tensors are DTensors without elements."""
    half = dist.get_world_size() // 2
    meshes = [mesh_of(*range(half)), mesh_of(*range(half, 2 * half))]
    state: dict[str, Any] = {"router": distribute_tensor(TABLE, everybody(), [Replicate()])}
    for i, mesh in enumerate(meshes):
        expert = distribute_tensor(TABLE + i, mesh, [Shard(0)])
        state[f"seen by all {i}"] = expert
        if mesh.get_coordinate() is not None:
            state[f"seen by its own {i}"] = expert + 1
    return state


def sharded_tensors() -> dict[str, Any]:
    local, first = my_rows(TABLE)
    rank, shard = dist.get_rank(), sharded_tensor.Shard.from_tensor_and_offsets
    halves = [local[:, :2].contiguous(), local[:, 2:].contiguous()]
    return {
        "one": sharded_tensor.init_from_local_shards([shard(local, [first, 0], rank)], *TABLE.shape),
        "two": sharded_tensor.init_from_local_shards(
            [shard(halves[0], [first, 0], rank), shard(halves[1], [first, 2], rank)], *TABLE.shape
        ),
    }


def objects() -> dict[str, Any]:
    local, first = my_rows(TABLE)
    return {"rows": Rows(local, first, TABLE.size()), "nested": [{"rows": Rows(local * 2, first, TABLE.size())}]}


def wrapped_shards() -> dict[str, Any]:
    """A DTensor with a local tensor of a subclass that holds two chunks."""
    local, first = my_rows(TABLE)
    parts = [local[:, :2].contiguous(), local[:, 2:].contiguous()]
    wrapper = LocalShardsWrapper(parts, [(first, 0), (first, 2)])
    tensor = DTensor.from_local(
        wrapper, everybody(), [Shard(0)], run_check=False, shape=TABLE.size(), stride=TABLE.stride()
    )
    return {"table": tensor}


def whole_on_one() -> dict[str, Any]:
    """A plain tensor on the last of the saving ranks; shards on the loading ranks."""
    if dist.get_world_size() == 4:
        return {"table": TABLE.clone()} if dist.get_rank() == 3 else {}
    return {"table": distribute_tensor(TABLE, everybody(), [Shard(1)])}


def shards_to_whole() -> dict[str, Any]:
    """Shards on the saving ranks; a plain tensor on the last of the loading ranks."""
    if dist.get_world_size() == 4:
        return {"table": distribute_tensor(TABLE, everybody(), [Shard(1)])}
    return {"table": TABLE.clone()} if dist.get_rank() == 1 else {}


STATES = (pipeline, experts, sharded_tensors, wrapped_shards, whole_on_one, shards_to_whole)


def parts_of(value: Any) -> list[torch.Tensor]:
    """Returns the memory behind a value of a state; no memory for a plain value."""
    if isinstance(value, dict):
        return [part for item in value.values() for part in parts_of(item)]
    if isinstance(value, list):
        return [part for item in value for part in parts_of(item)]
    if isinstance(value, sharded_tensor.ShardedTensor):
        return [shard.tensor for shard in value.local_shards()]
    if isinstance(value, DTensor):
        return parts_of(value.to_local())
    if isinstance(value, LocalShardsWrapper):
        return value.local_shards()
    if isinstance(value, Rows):
        return [value.local]
    return [value] if isinstance(value, torch.Tensor) else []


def save_state(library: str, make: Callable[[], dict[str, Any]], directory: Path) -> None:
    LIBRARIES[library].save(make(), checkpoint_id=directory)


def load_state(library: str, make: Callable[[], dict[str, Any]], directory: Path) -> None:
    state, expected = make(), make()
    for part in parts_of(state):
        part.fill_(-1)
    LIBRARIES[library].load(state, checkpoint_id=directory)
    assert_same(parts_of(state), parts_of(expected), make.__name__)


@pytest.mark.parametrize("make", STATES, ids=lambda make: make.__name__)
def test_distributions_of_a_state_over_ranks(
    make: Callable[[], dict[str, Any]], four: Gang, two: Gang, tmp_path: Path
) -> None:
    for library in LIBRARIES:
        four.run(save_state, library, make, tmp_path / library)
    assert cairn.verify(tmp_path / "cairn")
    for writer, reader in (("cairn", "cairn"), ("cairn", "torch"), ("torch", "cairn")):
        two.run(load_state, reader, make, tmp_path / writer)
        if make not in (whole_on_one, shards_to_whole):
            four.run(load_state, reader, make, tmp_path / writer)


def test_objects_that_are_no_tensors(four: Gang, two: Gang, checkpoint: Path) -> None:
    """Stock DCP plans the objects, but looks up only tensors when writing or reading.

    In the files the objects are tensors.
    """
    four.run(save_state, "cairn", objects, checkpoint)
    two.run(load_state, "cairn", objects, checkpoint)
    state = {"rows": torch.zeros_like(TABLE), "nested": [{"rows": torch.zeros_like(TABLE)}]}
    stock.load(state, checkpoint)
    assert_same(state, {"rows": TABLE, "nested": [{"rows": TABLE * 2}]})


# --- values, planners, groups


def save_disagreeing(directory: Path) -> None:
    rank = dist.get_rank()
    state = {"w": torch.full((1 << 20,), float(rank)), "step": [rank] * 100, "nested": {"w": torch.full((7,), rank)}}
    cairn.save(state, checkpoint_id=directory)


def test_of_values_that_differ_under_one_key_one_is_saved_whole(four: Gang, checkpoint: Path) -> None:
    four.run(save_disagreeing, checkpoint)
    opened = cairn.open(checkpoint)
    assert len(set(opened["w"].tolist())) == 1
    assert len(set(opened["nested.w"].tolist())) == 1
    assert opened["step"] in [[rank] * 100 for rank in range(4)]


def save_to_lowest(directory: Path) -> None:
    state = {f"w{i}": distribute_tensor(TABLE, everybody(), [Replicate()]) for i in range(8)}
    planner = cairn.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    cairn.save(state, checkpoint_id=directory, planner=planner)


def test_duplicates_go_to_the_lowest_rank_on_request(four: Gang, checkpoint: Path) -> None:
    four.run(save_to_lowest, checkpoint)
    places = stock.metadata_of(checkpoint).storage_data.values()
    assert {place.relative_path for place in places} == {"__0_0.distcp"}


def save_unflattened(directory: Path) -> None:
    state = {"deep": {"w": TABLE, "n": 5}, "table": distribute_tensor(TABLE, everybody(), [Shard(0)])}
    planner = cairn.DefaultSavePlanner(flatten_state_dict=False)
    cairn.save(state, checkpoint_id=directory, planner=planner)


def load_unflattened(directory: Path) -> None:
    for library in LIBRARIES.values():
        state: dict[str, Any] = {"deep": None, "table": distribute_tensor(TABLE * 0, everybody(), [Shard(1)])}
        planner = stock.dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        extra = {"allow_pickle": True} if library is cairn else {}
        library.load(state, checkpoint_id=directory, planner=planner, **extra)
        assert_same(state["deep"], {"w": TABLE, "n": 5})
        assert_same(state["table"].full_tensor(), TABLE)


def test_an_unflattened_state(four: Gang, two: Gang, checkpoint: Path) -> None:
    four.run(save_unflattened, checkpoint)
    assert list(cairn.open(checkpoint)) == ["deep", "table"]
    two.run(load_unflattened, checkpoint)


def save_in_groups(directory: Path) -> None:
    groups = [dist.new_group([1, 3]), dist.new_group([0, 2])]
    rank = dist.get_rank()
    group = groups[0] if rank in (1, 3) else groups[1]
    half = 12 * (rank // 2)
    state = {"rows": Rows(TABLE[half : half + 12], half, TABLE.size()), "parity": rank % 2}
    name = directory / str(rank % 2)
    cairn.save(state, checkpoint_id=name, process_group=group)
    target: dict[str, Any] = {"rows": Rows(torch.zeros(12, 5), half, TABLE.size()), "parity": None}
    cairn.load(target, checkpoint_id=name, process_group=group)
    assert_same(target["rows"].local, TABLE[half : half + 12])
    assert target["parity"] == rank % 2
    others = groups[1 - groups.index(group)]
    with pytest.raises(cairn.InvalidArgument, match="not a rank of the process group"):
        cairn.save(state, checkpoint_id=name, process_group=others)


def test_groups_save_side_by_side(four: Gang, tmp_path: Path) -> None:
    four.run(save_in_groups, tmp_path)
    for parity in range(2):
        opened = cairn.open(tmp_path / str(parity))
        assert opened.files == ("__0_0.distcp", "__1_0.distcp")
        assert (opened["rows"] == TABLE.numpy()).all()
        assert opened["parity"] == parity


def save_with_another_coordinator(directory: Path) -> None:
    state = _engine.StateDict()
    local, first = my_rows(TABLE)
    state.add_chunk(("w",), local.data_ptr(), 0, local.shape, local.stride(), False, TABLE.shape, (first, 0), False)
    together = {"collectives": collectives_of(), "coordinator_rank": 2}
    _engine.save(os.fsencode(directory), state, checkpoint_id=os.fspath(directory), **together)


def fail_with_different_coordinators(directory: Path) -> None:
    state = _engine.StateDict()
    state.add_value((f"of {dist.get_rank()}",), 1)
    together = {"collectives": collectives_of(), "coordinator_rank": dist.get_rank() % 2}
    with pytest.raises(cairn.InvalidArgument, match=r"disagree about the coordinator; rank 1; .*rank 0.*rank 1"):
        _engine.save(os.fsencode(directory), state, checkpoint_id=os.fspath(directory), **together)


def save_alone(library: str, directory: Path) -> None:
    """Every rank has equal keys and a different state."""
    rank = dist.get_rank()
    state = {"w": torch.full((5,), float(rank)), "only": {str(rank): rank}}
    LIBRARIES[library].save(state, checkpoint_id=directory, use_collectives=False)
    dist.barrier()
    for reader in LIBRARIES.values():
        target: dict[str, Any] = {"w": torch.zeros(5), "only": {str(rank): None}}
        reader.load(target, checkpoint_id=directory)
        assert_same(target, state)
    dist.barrier()


def test_without_collectives(four: Gang, tmp_path: Path) -> None:
    for library in LIBRARIES:
        four.run(save_alone, library, tmp_path / library)
        assert sorted(tree(tmp_path / library)) == sorted(
            name for rank in range(4) for name in (f"__{rank}.metadata", f"__{rank}_0.distcp")
        )
    four.run(save_alone, "cairn", tmp_path / "torch")
    four.run(save_alone, "cairn", tmp_path / "torch")
    assert len(tree(tmp_path / "torch")) == 8, "what was replaced is gone"


# --- failures


class OddError(Exception):
    """A class of a trainer."""


class Broken:
    """A Stateful whose state_dict raises."""

    def state_dict(self) -> dict[str, Any]:
        raise OddError("no state today")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nothing was loaded")


def fails_with(kind: type[cairn.Error], failures: dict[int, type], call: Callable[[], Any]) -> cairn.Error:
    """Returns the error that `call` raises on this rank and on every rank."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert isinstance(error, CheckpointException)
    found = {rank: failure for rank, (failure, _) in error.failures.items()}
    assert {rank: type(failure) for rank, failure in found.items()} == failures, error
    return error


def save_with_a_broken_state(directory: Path) -> None:
    rank = dist.get_rank()
    state = {"w": TABLE, "odd": Broken() if rank in (1, 2) else {}}
    failures = {1: RuntimeError, 2: RuntimeError}  # OddError is not in the table of classes that travel
    for call in (cairn.save, cairn.load):
        error = fails_with(cairn.InvalidArgument, failures, lambda call=call: call(state, checkpoint_id=directory))
        assert "no state today" in str(error)
        assert isinstance(error.__cause__, OddError) == (rank in (1, 2))


def save_partial(directory: Path) -> None:
    tensor = DTensor.from_local(TABLE, everybody(), [Partial()])
    state = {"fine": TABLE, "deep": {"odd": tensor}}
    failures = dict.fromkeys(range(4), cairn.Unsupported)
    for call in (cairn.save, cairn.load):
        error = fails_with(cairn.Unsupported, failures, lambda call=call: call(state, checkpoint_id=directory))
        assert "deep.odd" in str(error)
        assert "Partial" in str(error)


def save_with_a_hole(directory: Path) -> None:
    local, first = my_rows(TABLE)
    state = {"fine": TABLE, "holed": Rows(local, first, TABLE.size())}
    if dist.get_rank() == 1:
        del state["holed"]
    error = fails_with(
        cairn.InvalidArgument, {0: cairn.InvalidArgument}, lambda: cairn.save(state, checkpoint_id=directory)
    )
    assert error.key == "holed"
    assert "rank" in str(error)


def save_with_an_overlap(directory: Path) -> None:
    local, first = my_rows(TABLE)
    state = {"twice": Rows(local, first - (dist.get_rank() == 2), TABLE.size())}
    error = fails_with(
        cairn.InvalidArgument, {2: cairn.InvalidArgument}, lambda: cairn.save(state, checkpoint_id=directory)
    )
    assert (error.key, error.rank) == ("twice", 2)
    assert "of rank 1" in str(error)


def save_shapes_that_differ(directory: Path) -> None:
    state = {"w": TABLE[: 10 + (dist.get_rank() == 3)]}
    error = fails_with(
        cairn.InvalidArgument, {3: cairn.InvalidArgument}, lambda: cairn.save(state, checkpoint_id=directory)
    )
    assert (error.key, error.rank) == ("w", 3)
    assert "as on rank 0" in str(error)


def save_over_a_limit(directory: Path) -> None:
    """Rank 3 can't write files of more than 1 MiB; Python ignores the SIGXFSZ signal."""
    state = {f"w{dist.get_rank()}": torch.zeros(1 << 20)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        error = fails_with(cairn.NoSpace, {3: cairn.NoSpace}, lambda: cairn.save(state, checkpoint_id=directory))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.rank == 3
    assert "__3_" in str(error)


def load_what_is_missing(directory: Path) -> None:
    table = torch.full_like(TABLE, -1)
    state: dict[str, Any] = {"w": table, "step": None}
    if dist.get_rank() == 1:
        state["absent"] = torch.zeros(3)
    error = fails_with(cairn.MissingKey, {1: cairn.MissingKey}, lambda: cairn.load(state, checkpoint_id=directory))
    assert (error.key, error.rank) == ("absent", 1)
    assert table.eq(-1).all(), "nobody's tensors have changed"
    assert state["step"] is None


def load_of_another_shape(directory: Path) -> None:
    table = torch.full_like(TABLE, -1) if dist.get_rank() else torch.zeros(2, 2)
    error = fails_with(
        cairn.InvalidArgument, {0: cairn.InvalidArgument}, lambda: cairn.load({"w": table}, checkpoint_id=directory)
    )
    assert error.key == "w"
    assert not dist.get_rank() or table.eq(-1).all()


def save_good(directory: Path) -> None:
    cairn.save({"w": TABLE, "step": 7}, checkpoint_id=directory)


FAILURES = (
    save_with_a_broken_state,
    save_partial,
    save_with_a_hole,
    save_with_an_overlap,
    save_shapes_that_differ,
    save_over_a_limit,
    load_what_is_missing,
    load_of_another_shape,
)


@pytest.mark.parametrize("fail", FAILURES, ids=lambda fail: fail.__name__)
def test_all_fail_together(fail: Callable[[Path], None], four: Gang, checkpoint: Path) -> None:
    """The old checkpoint stays, and the group is ready for the next call."""
    four.run(save_good, checkpoint)
    before = tree(checkpoint)
    four.run(fail, checkpoint)
    assert tree(checkpoint) == before
    four.run(save_good, checkpoint)
    assert cairn.open(checkpoint)["step"] == 7


def test_another_coordinator(four: Gang, checkpoint: Path) -> None:
    four.run(save_with_another_coordinator, checkpoint)
    assert (cairn.open(checkpoint)["w"] == TABLE.numpy()).all()


def test_different_coordinators(four: Gang, checkpoint: Path) -> None:
    """Without an early error each coordinator would gather, and wait for the other ranks."""
    four.run(fail_with_different_coordinators, checkpoint)
    assert tree(checkpoint) == {}


def save_many_tensors(directory: Path) -> None:
    """The metadata is so large that no rank gets it with the result: each rank's tensors are its own."""
    state = {f"tensor {dist.get_rank()}.{i}": torch.ones(1) for i in range(8000)}
    os.chdir(directory.parent)
    replaced = cairn.save(state, checkpoint_id=directory.name)
    newest = cairn.save(state, checkpoint_id=directory.name)
    os.chdir("/")
    with pytest.raises(cairn.Replaced, match="a later save replaced this checkpoint"):
        _ = replaced.state_dict_metadata
    assert len(newest.state_dict_metadata) == 16_000
    assert newest.planner_data == {key: (key,) for key in newest.state_dict_metadata}


def test_ranks_read_a_large_metadata_at_its_first_access(two: Gang, checkpoint: Path) -> None:
    two.run(save_many_tensors, checkpoint)
    assert (checkpoint / ".metadata").stat().st_size > 1 << 20


def save_as(job: int, directory: Path) -> str:
    rank = dist.get_rank()
    state = {f"w{rank}": torch.full((1 << 18,), float(job)), "job": job}
    try:
        cairn.save(state, checkpoint_id=directory)
    except cairn.Superseded as error:
        assert isinstance(error, CheckpointException)
        return "superseded"
    return "saved"


def test_two_jobs_in_one_directory(four: Gang, two: Gang, checkpoint: Path) -> None:
    """After each round the directory holds a whole state, and each job either saved or raised Superseded."""
    jobs = (four, two)
    with ThreadPoolExecutor(2) as both:
        for _ in range(10):
            told = list(both.map(lambda gang: gang.run(save_as, gang.size, checkpoint), jobs))
            assert all(len(set(outcomes)) == 1 for outcomes in told)
            assert any(outcomes[0] == "saved" for outcomes in told)
            opened = cairn.open(checkpoint)
            job = opened["job"]
            assert told[[gang.size for gang in jobs].index(job)][0] == "saved"
            assert len(opened) == job + 1
            assert all((opened[f"w{rank}"] == job).all() for rank in range(job))
            assert sorted(tree(checkpoint)) == sorted([".metadata", *opened.files])
