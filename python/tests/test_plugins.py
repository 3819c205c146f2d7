"""Cairn's FileSystemWriter and FileSystemReader as plug-ins: stock torch plans and coordinates, the engine does I/O."""

import io
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import warm_python
from ranks import Gang, gang
from same import assert_same, blank
from stock import dcp, metadata_of
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import cairn


def sample(step: int = 1) -> dict[str, Any]:
    return {
        "model": {
            "w": torch.arange(90_000.0).reshape(300, 300) * step,
            "odd": torch.arange(24).reshape(4, 6).t()[1:],
            "none": torch.empty(0, 3),
        },
        "scalar": torch.tensor(float(step)),
        "history": [1, {"t": torch.full((3,), step)}],
        "step": step,
        "words": ("a", b"b", None),
    }


def save(state: dict[str, Any], writer: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dcp.save(state, storage_writer=writer, **options)


def load(state: dict[str, Any], reader: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=reader, **options)


def assert_clean(directory: Path) -> None:
    report = cairn.verify(directory)
    assert not report.problems
    assert report.has_commit_record
    assert report.bytes_unchecked == 0


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def read_all_ways(directory: Path, expected: dict[str, Any]) -> None:
    """Loads by stock torch alone, by stock torch with Cairn's reader, and by Cairn."""
    for read in (
        lambda state: load(state, dcp.FileSystemReader(directory), no_dist=True),
        lambda state: load(state, cairn.FileSystemReader(directory), no_dist=True),
        lambda state: cairn.load(state, checkpoint_id=directory, no_dist=True),
    ):
        state = blank(expected)
        read(state)
        assert_same(state, expected)


@pytest.mark.parametrize("single_file", [True, False])
@pytest.mark.parametrize("flatten", [True, False])
def test_stock_save_writes_natively(single_file: bool, flatten: bool, checkpoint: Path) -> None:
    writer = cairn.FileSystemWriter(checkpoint, single_file_per_rank=single_file)
    state = sample() if flatten else {"w": torch.arange(5.0), "nested": {"t": torch.ones(2), "n": 3}}
    metadata = save(state, writer, planner=DefaultSavePlanner(flatten_state_dict=flatten), no_dist=True)
    assert_clean(checkpoint)
    assert metadata.storage_data == metadata_of(checkpoint).storage_data
    assert metadata.storage_meta.save_id == writer.save_id
    assert (len(names(checkpoint)) == 2) == single_file
    if flatten:
        read_all_ways(checkpoint, state)
    else:
        back = {"w": torch.zeros(5), "nested": None}
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)  # else values are lost
        load(back, cairn.FileSystemReader(checkpoint), planner=planner, no_dist=True)
        assert_same(back, state)


def test_an_overwrite_leaves_one_checkpoint_and_can_be_forbidden(checkpoint: Path) -> None:
    for step in (1, 2):
        save(sample(step), cairn.FileSystemWriter(checkpoint), no_dist=True)
        assert len(names(checkpoint)) == 2
    before = names(checkpoint)
    with pytest.raises(CheckpointException) as caught:
        save(sample(3), cairn.FileSystemWriter(checkpoint, overwrite=False), no_dist=True)
    assert isinstance(caught.value.failures[0][0], cairn.InvalidArgument)
    assert names(checkpoint) == before
    read_all_ways(checkpoint, sample(2))


class Failing(DefaultSavePlanner):
    """Fails on rank `rank` at its last item."""

    def __init__(self, rank: int = 0, error: BaseException | None = None) -> None:
        super().__init__()
        self._rank = rank
        self._error = error or ValueError("no data today")

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        mine = not dist.is_initialized() or dist.get_rank() == self._rank
        if mine and write_item is self.plan.items[-1]:
            raise self._error
        return super().resolve_data(write_item)


def test_a_failed_save_leaves_the_old_checkpoint_and_no_litter(checkpoint: Path) -> None:
    with pytest.raises(CheckpointException) as caught:
        save(sample(), cairn.FileSystemWriter(checkpoint), planner=Failing(), no_dist=True)
    assert str(caught.value.failures[0][0]) == "no data today"
    assert names(checkpoint) == []
    save(sample(1), cairn.FileSystemWriter(checkpoint), no_dist=True)
    before = names(checkpoint)
    writer = cairn.FileSystemWriter(checkpoint)
    with pytest.raises(CheckpointException):
        save(sample(2), writer, planner=Failing(), no_dist=True)
    assert names(checkpoint) == before
    save(sample(3), writer, no_dist=True)  # the writer is reusable
    read_all_ways(checkpoint, sample(3))


def test_an_uncommitted_claim_ends_with_its_writer(checkpoint: Path) -> None:
    class FailsLate(DefaultSavePlanner):
        def finish_plan(self, new_plan: Any) -> Any:
            raise ValueError("late")

    writer = cairn.FileSystemWriter(checkpoint)
    with pytest.raises(CheckpointException):
        save(sample(), writer, planner=FailsLate(), no_dist=True)
    assert any(name.startswith(".cairn-") for name in names(checkpoint))
    writer.reset()
    assert names(checkpoint) == []


@pytest.fixture
def no_cached_plans() -> Iterator[None]:
    caches = [getattr(SavePlanner, name) for name in vars(SavePlanner) if name.startswith("_cached")]
    for cache in caches:
        cache.clear()
    yield
    for cache in caches:
        cache.clear()


@pytest.mark.usefixtures("no_cached_plans")
def test_a_planner_that_caches_plans_saves_each_time_anew(checkpoint: Path) -> None:
    for step in (1, 2, 3):
        writer = cairn.FileSystemWriter(checkpoint / str(step))
        save(sample(step), writer, planner=DefaultSavePlanner(enable_plan_caching=True), no_dist=True)
    for step in (1, 2, 3):
        assert_clean(checkpoint / str(step))
        read_all_ways(checkpoint / str(step), sample(step))


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_an_asynchronous_save(checkpoint: Path) -> None:
    state = sample()
    future = dcp.async_save(state, storage_writer=cairn.FileSystemWriter(checkpoint))
    state["model"]["w"].zero_()  # the state has been staged
    future.result()
    assert_clean(checkpoint)
    read_all_ways(checkpoint, sample())


def test_extensions_and_safetensors_are_torchs_own_affair(checkpoint: Path) -> None:
    writer = cairn.FileSystemWriter(checkpoint, serialization_format=SerializationFormat.SAFETENSORS)
    save({"w": torch.ones(3)}, writer, no_dist=True)
    assert not cairn.open(checkpoint).save_id


def test_a_reader_reads_a_stock_checkpoint(checkpoint: Path) -> None:
    save(sample(4), dcp.FileSystemWriter(checkpoint), no_dist=True)
    read_all_ways(checkpoint, sample(4))


def test_a_flipped_byte_is_found_by_key_and_file(checkpoint: Path) -> None:
    save({"w": torch.zeros(100_000)}, cairn.FileSystemWriter(checkpoint), no_dist=True)
    info = metadata_of(checkpoint).storage_data[MetadataIndex("w", torch.Size([0]))]
    path = checkpoint / info.relative_path
    content = bytearray(path.read_bytes())
    content[info.offset + info.length // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointException) as caught:
        load({"w": torch.ones(100_000)}, cairn.FileSystemReader(checkpoint), no_dist=True)
    error = caught.value.failures[0][0]
    assert isinstance(error, cairn.Corrupt)
    assert (error.key, error.file) == ("w", info.relative_path)


def test_a_cast_equals_the_cast_of_torch_and_warns(checkpoint: Path) -> None:
    save({"w": torch.arange(5)}, cairn.FileSystemWriter(checkpoint), no_dist=True)
    target = {"w": torch.zeros(5)}
    with pytest.warns(cairn.ConversionWarning, match="'w' from torch.int64 to torch.float32"):
        dcp.load(target, storage_reader=cairn.FileSystemReader(checkpoint), no_dist=True)
    assert target["w"].tolist() == [0, 1, 2, 3, 4]


class Renaming(cairn.FileSystemReader):
    """Renames the metadata's keys, as programs do that load old checkpoints into new models."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        metadata = super().read_metadata(*args, **kwargs)
        saved = metadata.state_dict_metadata
        metadata.state_dict_metadata = {f"new.{key}": value for key, value in saved.items()}
        metadata.storage_data = {
            MetadataIndex(f"new.{index.fqn}", index.offset, index.index): info
            for index, info in metadata.storage_data.items()
        }
        metadata.planner_data = {f"new.{key}": ("new", *path) for key, path in metadata.planner_data.items()}
        return metadata


def test_keys_may_be_renamed_in_the_metadata(checkpoint: Path) -> None:
    save(sample(), cairn.FileSystemWriter(checkpoint), no_dist=True)
    state = {"new": blank(sample())}
    load(state, Renaming(checkpoint), no_dist=True)
    assert_same(state["new"], sample())


def test_writers_and_readers_can_be_pickled(checkpoint: Path) -> None:
    writer = pickle.loads(pickle.dumps(cairn.FileSystemWriter(checkpoint)))
    save(sample(), writer, no_dist=True)
    reader = cairn.FileSystemReader(checkpoint)
    reader.read_metadata()
    state = blank(sample())
    load(state, pickle.loads(pickle.dumps(reader)), no_dist=True)
    assert_same(state, sample())


# --- many ranks


@pytest.fixture(scope="module")
def two() -> Iterator[Gang]:
    with gang(2) as ranks:
        yield ranks


def sharded(step: int) -> dict[str, Any]:
    """A DTensor split between the ranks, a replicated tensor and value, and a tensor of each rank."""
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(40_000.0).reshape(200, 200) * step
    rank = dist.get_rank()
    return {
        "shards": distribute_tensor(whole, mesh, [Shard(1)]),
        "both": torch.full((50,), float(step)),
        f"own{rank}": torch.full((7,), rank + step),
        "step": step,
    }


def assert_holds(state: dict[str, Any], step: int) -> None:
    def local(value: Any) -> Any:
        return value.to_local() if isinstance(value, DTensor) else value

    for key, expected in sharded(step).items():
        assert_same(local(state[key]), local(expected), key)


def save_together(directory: Path, step: int, options: dict[str, Any], planner: Any = None) -> None:
    save(sharded(step), cairn.FileSystemWriter(directory, **options), planner=planner)


def load_together(directory: Path, step: int) -> None:
    for reader in (dcp.FileSystemReader, cairn.FileSystemReader):
        state = sharded(0)
        load(state, reader(directory))
        assert_holds(state, step)
    state = sharded(0)
    cairn.load(state, checkpoint_id=directory)
    assert_holds(state, step)


@pytest.mark.parametrize("single_file", [True, False])
def test_two_ranks(single_file: bool, two: Gang, checkpoint: Path) -> None:
    for step in (1, 2):
        two.run(save_together, checkpoint, step, {"single_file_per_rank": single_file})
        assert_clean(checkpoint)
        two.run(load_together, checkpoint, step)
    if single_file:
        assert len(names(checkpoint)) == 3


def save_with_cached_plans(directory: Path) -> None:
    for step in (1, 2, 3):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        save_together(directory / str(step), step, {}, planner)


def test_two_ranks_with_cached_plans(two: Gang, checkpoint: Path) -> None:
    two.run(save_with_cached_plans, checkpoint)
    for step in (1, 2, 3):
        assert_clean(checkpoint / str(step))
        two.run(load_together, checkpoint / str(step), step)


def fail_together(directory: Path, rank: int, error: BaseException) -> tuple[list[int], list[str]]:
    """Returns the failed ranks, and the directory's files while every rank still holds the writer and the exception."""
    writer = cairn.FileSystemWriter(directory)
    try:
        save(sharded(9), writer, planner=Failing(rank, error))
    except CheckpointException as failure:
        assert {type(it) for it, _ in failure.failures.values()} == {type(error)}
        dist.barrier()
        return list(failure.failures), names(directory)
    raise AssertionError("the save did not fail")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", [ValueError("no data today"), cairn.NoSpace("full", error_number=28)])
def test_one_of_two_ranks_fails(rank: int, error: BaseException, two: Gang, checkpoint: Path) -> None:
    assert two.run(fail_together, checkpoint, rank, error) == [([rank], [])] * 2
    two.run(save_together, checkpoint, 1, {})
    before = names(checkpoint)
    assert two.run(fail_together, checkpoint, rank, error) == [([rank], before)] * 2
    assert_clean(checkpoint)
    two.run(load_together, checkpoint, 1)


def save_alone(directory: Path, step: int, planner: Any = None) -> None:
    state = {"mine": torch.full((100,), dist.get_rank() + 10.0 * step), "step": step}
    save(state, cairn.FileSystemWriter(directory), planner=planner, use_collectives=False)


def load_alone(directory: Path, step: int) -> None:
    for reader in (dcp.FileSystemReader, cairn.FileSystemReader):
        state = {"mine": torch.zeros(100), "step": 0}
        load(state, reader(directory))
        assert_same(state, {"mine": torch.full((100,), dist.get_rank() + 10.0 * step), "step": step})


def test_each_rank_alone_without_collectives(two: Gang, checkpoint: Path) -> None:
    for step in (1, 2):
        two.run(save_alone, checkpoint, step)
        assert {"__0.metadata", "__1.metadata"} < set(names(checkpoint))
        assert len(names(checkpoint)) == 4
        two.run(load_alone, checkpoint, step)


FORKING = """
import gc, os, sys
import torch, cairn
from torch.distributed.checkpoint import DefaultSavePlanner

state = {"w": torch.arange(5.0)}
planner = DefaultSavePlanner()
writer = cairn.FileSystemWriter(sys.argv[1])
writer.set_up_storage_writer(True)
planner.set_up_planner(state, writer.storage_meta(), True)
plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
plans = writer.prepare_global_plan(plans)
held = []
for step in ("claimed", "written"):
    child = os.fork()
    if child == 0:
        del writer, plans, held
        gc.collect()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if step == "claimed":
        held.append(writer.write_data(plans[0], planner).wait())
writer.finish(metadata, held)
"""


def test_forked_children_that_drop_a_writer_leave_the_parents_save_alone(checkpoint: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(checkpoint)]
    warm_python.run(command, check=True, timeout=100)  # a regression test: the child hung for ever
    read_all_ways(checkpoint, {"w": torch.arange(5.0)})
