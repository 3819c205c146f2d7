"""Users' planners and storages with cairn.save and cairn.load, compared with stock torch's results."""

import dataclasses
import io
import logging
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang, gang
from same import assert_same
from stock import dcp
from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    _EmptyStateDictLoadPlanner,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import Shard, distribute_tensor
from torch.futures import Future

import cairn

pytest.importorskip("fsspec")


def sample() -> dict[str, Any]:
    return {"model": {"w": torch.arange(2_000.0).reshape(40, 50), "b": torch.arange(7)}, "step": 3, "name": "first"}


def blank() -> dict[str, Any]:
    return {"model": {"w": torch.ones(40, 50), "b": torch.ones(7, dtype=torch.int64)}, "step": 0, "name": ""}


def contents(directory: Path) -> dict[str, Any]:
    """Returns the whole state that stock torch finds in the directory."""
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(state, dcp.FileSystemReader(directory), no_dist=True, planner=planner)
    return state


# --- save planners: each changes one fact that is visible in the checkpoint


class RenamesKeys(DefaultSavePlanner):
    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        renamed = {f"new_{key}": value for key, value in state_dict.items()}
        super().set_up_planner(renamed, storage_meta, is_coordinator)


class LeavesOut(DefaultSavePlanner):
    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        return dataclasses.replace(plan, items=[item for item in plan.items if item.index.fqn != "model.b"])


class AddsToMetadata(DefaultSavePlanner):
    def create_global_plan(self, all_plans: Any) -> Any:
        plans, metadata = super().create_global_plan(all_plans)
        return plans, dataclasses.replace(metadata, planner_data={**metadata.planner_data, "extra": ("of", "mine")})


class TurnsAround(DefaultSavePlanner):
    def finish_plan(self, new_plan: Any) -> Any:
        return super().finish_plan(dataclasses.replace(new_plan, items=new_plan.items[::-1]))


class Negates(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        data = super().resolve_data(write_item)
        return data if write_item.type is WriteItemType.BYTE_IO else -data


class LooksElsewhere(DefaultSavePlanner):
    def lookup_object(self, index: Any) -> Any:
        return torch.full((40, 50), 9.0) if index.fqn == "model.w" else super().lookup_object(index)


class WrapsValues(DefaultSavePlanner):
    def transform_object(self, write_item: Any, object: Any) -> Any:
        wrapped = ("wrapped", object) if write_item.type is WriteItemType.BYTE_IO else object
        return super().transform_object(write_item, wrapped)


CHANGE_CONTENTS = [RenamesKeys, LeavesOut, Negates, LooksElsewhere, WrapsValues]

Save = Callable[[dict[str, Any], Path, Any], Any]


def save_by_cairn(state: dict[str, Any], directory: Path, planner: Any) -> Any:
    return cairn.save(state, checkpoint_id=directory, planner=planner)


def save_by_plugin(state: dict[str, Any], directory: Path, planner: Any) -> Any:
    return stock.dcp.save(state, storage_writer=cairn.FileSystemWriter(directory), planner=planner, no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("save", [save_by_cairn, save_by_plugin])
@pytest.mark.parametrize("planner", [DefaultSavePlanner, AddsToMetadata, TurnsAround, *CHANGE_CONTENTS])
def test_save_planners(planner: type[DefaultSavePlanner], save: Save, checkpoint: Path, tmp_path: Path) -> None:
    stock.save(sample(), tmp_path / "stock", planner=planner())
    expected = contents(tmp_path / "stock")
    metadata = save(sample(), checkpoint, planner())
    assert_same(contents(checkpoint), expected)
    if planner in CHANGE_CONTENTS:
        stock.save(sample(), tmp_path / "plain")
        assert str(expected) != str(contents(tmp_path / "plain"))
    report = cairn.verify(checkpoint)
    assert not report.problems
    assert report.has_commit_record
    theirs = stock.metadata_of(tmp_path / "stock")
    assert set(metadata.state_dict_metadata) == set(theirs.state_dict_metadata)
    assert metadata.planner_data == theirs.planner_data
    assert set(metadata.storage_data) == set(theirs.storage_data)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("save", [save_by_cairn, save_by_plugin])
def test_a_save_planner_that_converts(save: Save, checkpoint: Path) -> None:
    class Halves(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            data = super().transform_object(write_item, object)
            return data.to(torch.bfloat16) if write_item.index.fqn == "model.w" else data

    save(sample(), checkpoint, Halves())
    assert not cairn.verify(checkpoint).problems
    saved = stock.metadata_of(checkpoint).state_dict_metadata["model.w"]
    assert saved.properties.dtype is torch.bfloat16  # the metadata names the converted dtype
    expected = sample()
    expected["model"]["w"] = expected["model"]["w"].to(torch.bfloat16).float()
    for load in (stock.load, cairn.load):
        state = blank()
        if load is cairn.load:
            with pytest.warns(cairn.ConversionWarning):
                cairn.load(state, checkpoint_id=checkpoint)
        else:
            stock.load(state, checkpoint)
        assert_same(state, expected)


@pytest.mark.parametrize(
    ("result", "word"), [(torch.ones(3), "differs from its plan"), (io.BytesIO(), "no tensor"), (None, "no tensor")]
)
def test_an_inconsistent_save_planner_gets_an_error_with_the_key(result: Any, word: str, checkpoint: Path) -> None:
    class Breaks(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return result if write_item.index.fqn == "model.w" else super().resolve_data(write_item)

    with pytest.raises(cairn.InvalidArgument, match=word) as caught:
        cairn.save(sample(), checkpoint_id=checkpoint, planner=Breaks())
    assert caught.value.key == "model.w"
    assert isinstance(caught.value, CheckpointException)
    assert list(checkpoint.iterdir()) == []


@pytest.mark.parametrize("hook", ["create_local_plan", "create_global_plan", "finish_plan", "resolve_data"])
def test_a_hook_that_raises_leaves_the_old_checkpoint(hook: str, checkpoint: Path) -> None:
    def refuse(*_arguments: Any) -> Any:
        raise ValueError("not today")

    refusing = type("Refusing", (DefaultSavePlanner,), {hook: refuse})
    cairn.save(sample(), checkpoint_id=checkpoint)
    before = sorted(checkpoint.iterdir())
    writer = cairn.FileSystemWriter(checkpoint)
    with pytest.raises(CheckpointException) as caught:
        cairn.save({"other": torch.ones(1)}, storage_writer=writer, planner=refusing())
    assert str(caught.value.failures[0][0]) == "not today"
    assert sorted(checkpoint.iterdir()) == before
    state = blank()
    cairn.load(state, checkpoint_id=checkpoint)
    assert_same(state, sample())


# --- load planners: each changes one fact that is visible in the state


class FillsRenamed(DefaultLoadPlanner):
    def set_up_planner(self, state_dict: Any, *arguments: Any, **keywords: Any) -> None:
        super().set_up_planner({"model": state_dict["model"], "name": "gone"}, *arguments, **keywords)


class SkipsSome(DefaultLoadPlanner):
    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        plan.items = [item for item in plan.items if item.dest_index.fqn != "model.b"]
        return plan


class SkipsForAll(DefaultLoadPlanner):
    def create_global_plan(self, global_plan: Any) -> Any:
        for plan in global_plan:
            plan.items = plan.items[1:]
        return super().create_global_plan(global_plan)


class SkipsAtLast(DefaultLoadPlanner):
    def finish_plan(self, new_plan: Any) -> Any:
        return super().finish_plan(dataclasses.replace(new_plan, items=new_plan.items[:-1]))


class HasOneBuffer(DefaultLoadPlanner):
    """All reads go through one buffer."""

    buffer = torch.empty(4_000, dtype=torch.float64)

    def resolve_tensor(self, read_item: Any) -> Any:
        target = super().resolve_tensor(read_item)
        return self.buffer.view(target.dtype)[: target.numel()].view(target.shape)

    def commit_tensor(self, read_item: Any, tensor: Any) -> None:
        super().resolve_tensor(read_item).copy_(tensor)


class NegatesAtLast(DefaultLoadPlanner):
    def commit_tensor(self, read_item: Any, tensor: Any) -> None:
        tensor.neg_()


class WrapsWhatItLoads(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        super().load_bytes(read_item, value)
        self.original_state_dict[read_item.dest_index.fqn] = ("loaded", len(value.getvalue()) > 0)


class FillsElsewhere(DefaultLoadPlanner):
    def lookup_tensor(self, index: Any) -> Any:
        return torch.empty(7, dtype=torch.int64) if index.fqn == "model.b" else super().lookup_tensor(index)


class FillsTransposed(DefaultLoadPlanner):
    def transform_tensor(self, read_item: Any, tensor: Any) -> Any:
        part = super().transform_tensor(read_item, tensor)
        return part.reshape(-1).view(50, 40).t() if part.dim() == 2 else part


LOAD_PLANNERS = [
    FillsRenamed,
    SkipsSome,
    SkipsForAll,
    SkipsAtLast,
    HasOneBuffer,
    NegatesAtLast,
    WrapsWhatItLoads,
    FillsElsewhere,
    FillsTransposed,
]


def load_by_cairn(state: dict[str, Any], directory: Path, planner: Any) -> None:
    cairn.load(state, checkpoint_id=directory, planner=planner)


def load_by_plugin(state: dict[str, Any], directory: Path, planner: Any) -> None:
    stock.dcp.load(state, storage_reader=cairn.FileSystemReader(directory), planner=planner, no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("load", [load_by_cairn, load_by_plugin])
@pytest.mark.parametrize("save", [cairn.save, stock.dcp.save])
@pytest.mark.parametrize("planner", [DefaultLoadPlanner, *LOAD_PLANNERS])
def test_load_planners(planner: type[DefaultLoadPlanner], save: Any, load: Any, checkpoint: Path) -> None:
    save(sample(), checkpoint_id=checkpoint, no_dist=True)
    expected = blank()
    stock.load(expected, checkpoint, planner=planner())
    assert planner in (DefaultLoadPlanner, HasOneBuffer) or str(expected) != str(sample())
    state = blank()
    load(state, checkpoint, planner())
    assert_same(state, expected)


def test_an_inconsistent_load_planner_gets_an_error_with_the_key(checkpoint: Path) -> None:
    class Breaks(DefaultLoadPlanner):
        def resolve_tensor(self, read_item: Any) -> Any:
            return torch.empty(2, 2)

    cairn.save(sample(), checkpoint_id=checkpoint)
    with pytest.raises(cairn.InvalidArgument, match="differs from its plan") as caught:
        cairn.load(blank(), checkpoint_id=checkpoint, planner=Breaks())
    assert caught.value.key in ("model.w", "model.b")


class Mine:
    """A class with a pickle that is not plain data."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Mine

    __hash__ = None  # type: ignore[assignment]


class Inherits(DefaultLoadPlanner):
    """A planner that torch's driver has to call. The planner plans as torch's planner does."""

    def finish_plan(self, new_plan: Any) -> Any:
        return super().finish_plan(new_plan)


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
def test_a_callers_planner_runs_no_pickle_without_consent(checkpoint: Path) -> None:
    cairn.save({"odd": Mine()}, checkpoint_id=checkpoint)
    state: dict[str, Any] = {"odd": None}
    with pytest.raises(cairn.UnsafeContent) as caught:
        cairn.load(state, checkpoint_id=checkpoint, planner=Inherits())
    assert caught.value.key == "odd"
    assert state == {"odd": None}
    cairn.load(state, checkpoint_id=checkpoint, planner=Inherits(), allow_pickle=True)
    assert state == {"odd": Mine()}


def test_options_of_a_load_reach_the_reader(checkpoint: Path) -> None:
    cairn.save({"w": torch.arange(5)}, checkpoint_id=checkpoint)
    with pytest.raises(cairn.InvalidArgument, match="dtype"):
        cairn.load({"w": torch.zeros(5)}, checkpoint_id=checkpoint, planner=Inherits())
    target = {"w": torch.zeros(5)}
    with pytest.warns(cairn.ConversionWarning):
        cairn.load(target, checkpoint_id=checkpoint, planner=Inherits(), allow_cast=True)
    assert target["w"].tolist() == [0, 1, 2, 3, 4]


# --- storages of users


class InMemory(StorageWriter, StorageReader):
    """The smallest storage that follows the protocol."""

    def __init__(self) -> None:
        self.items: dict[Any, bytes] = {}
        self.metadata: Metadata | None = None
        self.resets: list[Any] = []

    def reset(self, checkpoint_id: Any = None) -> None:
        self.resets.append(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        pass

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    def write_data(self, plan: Any, planner: Any) -> Any:
        results = []
        for item in plan.items:
            data = planner.resolve_data(item)
            self.items[item.index] = data.getvalue() if isinstance(data, io.BytesIO) else pickle.dumps(data)
            results.append(WriteResult(item.index, len(self.items[item.index]), None))
        return done(results)

    def finish(self, metadata: Metadata, results: Any) -> None:
        self.metadata = metadata

    def read_metadata(self) -> Any:
        return self.metadata

    def read_data(self, plan: Any, planner: Any) -> Any:
        for item in plan.items:
            data = self.items[item.storage_index]
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(data))
            else:
                target = planner.resolve_tensor(item)
                target.copy_(pickle.loads(data))
                planner.commit_tensor(item, target)
        return done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def done(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Counts:
    """A Stateful object."""

    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": torch.tensor(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])


@pytest.mark.usefixtures("fresh_report")
def test_a_callers_own_storage(caplog: pytest.LogCaptureFixture) -> None:
    storage = InMemory()
    with caplog.at_level(logging.WARNING, "cairn"):
        saved = cairn.save({**sample(), "counts": Counts(5)}, storage_writer=storage, checkpoint_id="anywhere")
    assert saved is storage.metadata
    assert storage.resets == ["anywhere"]
    (line,) = [record.message for record in caplog.records if record.name == "cairn"]
    assert "storage" in line and "InMemory" in line
    state = {**blank(), "counts": Counts(0)}
    cairn.load(state, storage_reader=storage)
    assert state.pop("counts").count == 5
    assert_same(state, sample())


@pytest.mark.usefixtures("fresh_report")
def test_a_callers_own_planner_is_named_as_the_reason(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cairn"):
        cairn.save(sample(), checkpoint_id=checkpoint)
        cairn.load(blank(), checkpoint_id=checkpoint)
        assert not [record for record in caplog.records if record.name == "cairn"]
        cairn.save(sample(), checkpoint_id=checkpoint, planner=TurnsAround())
        cairn.load(blank(), checkpoint_id=checkpoint, planner=SkipsSome())
    first, second = [record.message for record in caplog.records if record.name == "cairn"]
    assert "TurnsAround" in first and "SkipsSome" in second


def test_stock_storage_with_a_callers_own_planner_becomes_cairns(checkpoint: Path) -> None:
    writer = dcp.FileSystemWriter("elsewhere", single_file_per_rank=False)
    cairn.save(sample(), storage_writer=writer, checkpoint_id=checkpoint, planner=TurnsAround())
    assert cairn.open(checkpoint).save_id is not None
    assert len(list(checkpoint.glob("*.distcp"))) == 4
    state = blank()
    cairn.load(state, storage_reader=dcp.FileSystemReader("elsewhere"), checkpoint_id=checkpoint, planner=Inherits())
    assert_same(state, sample())


class Deflate(StreamTransformExtension):
    """Compresses: the stored lengths are unknown in advance."""

    @staticmethod
    def registry_name() -> str:
        return "test.deflate"

    @staticmethod
    def from_descriptor(version: str) -> "Deflate":
        return Deflate()

    def get_descriptor(self) -> str:
        return "test.deflate/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        class Writer(io.BytesIO):
            def close(self) -> None:
                if not self.closed:
                    output.write(zlib.compress(self.getvalue()))
                super().close()

        return Writer()

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        return io.BytesIO(zlib.decompress(input.read()))


@pytest.mark.parametrize("writer", [cairn.FileSystemWriter, dcp.FileSystemWriter])
def test_stream_extensions_are_torchs_own_affair(writer: Any, checkpoint: Path) -> None:
    cairn.save(sample(), storage_writer=writer(checkpoint, _extensions=[Deflate()]))
    registry = ExtensionRegistry()
    registry.register(Deflate)
    for reader in (cairn.FileSystemReader, dcp.FileSystemReader):
        state = blank()
        cairn.load(state, storage_reader=reader(checkpoint, registry))
        assert_same(state, sample())


def test_fsspec() -> None:
    cairn.save(sample(), checkpoint_id="memory://cairn/by_id")
    cairn.save(sample(), storage_writer=FsspecWriter("memory://cairn/by_writer"))
    for place in ("by_id", "by_writer"):
        state = blank()
        cairn.load(state, checkpoint_id=f"memory://cairn/{place}")
        assert_same(state, sample())
    state = blank()
    cairn.load(state, storage_reader=FsspecReader("memory://cairn/by_id"))
    assert_same(state, sample())


def test_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4)}
    cairn.save(tensors, storage_writer=cairn.HuggingFaceStorageWriter(path=str(tmp_path)))
    assert list(tmp_path.glob("*.safetensors"))
    state = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.int64)}
    cairn.load(state, storage_reader=cairn.HuggingFaceStorageReader(path=str(tmp_path)))
    assert_same(state, tensors)


# --- the older calls


def test_the_older_calls_are_deprecated_and_native(checkpoint: Path) -> None:
    with pytest.warns(FutureWarning, match="save_state_dict"):
        cairn.save_state_dict(sample(), dcp.FileSystemWriter(checkpoint), no_dist=True)
    assert cairn.open(checkpoint).save_id is not None
    state = blank()
    with pytest.warns(FutureWarning, match="load_state_dict"):
        cairn.load_state_dict(state, dcp.FileSystemReader(checkpoint), no_dist=True)
    assert_same(state, sample())


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (None, sample()),
        ("model", {"model": sample()["model"]}),
        ({"model.b", "step"}, {"model": {"b": torch.arange(7)}, "step": 3}),
    ],
)
def test_some_keys_make_a_state_of_their_own(keys: Any, expected: dict[str, Any], checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    load_keys = cairn.state_dict_loader._load_state_dict_from_keys
    assert load_keys.__module__ == "cairn._calls.torch_driver"
    assert_same(load_keys(keys, checkpoint_id=checkpoint), expected)


# --- many ranks


@pytest.fixture(scope="module")
def two() -> Iterator[Gang]:
    with gang(2) as ranks:
        yield ranks


def shards(step: int) -> dict[str, Any]:
    mesh = dist.init_device_mesh("cpu", (2,))
    return {"w": distribute_tensor(torch.arange(10_000.0).reshape(100, 100) * step, mesh, [Shard(0)]), "step": step}


def save_and_load(directory: Path) -> None:
    cairn.save(shards(2), checkpoint_id=directory, planner=Negates())
    state = shards(0)
    cairn.load(state, checkpoint_id=directory, planner=Inherits())
    expected = shards(2)
    assert_same(state["w"].to_local(), -expected["w"].to_local())
    assert state["step"] == 2


def test_two_ranks(two: Gang, checkpoint: Path) -> None:
    two.run(save_and_load, checkpoint)
    assert not cairn.verify(checkpoint).problems


class Refuses(DefaultSavePlanner):
    """Rank 1 fails in the given hook."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self._hook = hook

    def _act(self, hook: str) -> None:
        if hook == self._hook and dist.get_rank() == 1:
            raise ValueError(f"not today: {hook}")

    def create_local_plan(self) -> Any:
        self._act("create_local_plan")
        return super().create_local_plan()

    def finish_plan(self, new_plan: Any) -> Any:
        self._act("finish_plan")
        return super().finish_plan(new_plan)

    def resolve_data(self, write_item: Any) -> Any:
        self._act("resolve_data")
        return super().resolve_data(write_item)


def fail(directory: Path, hook: str) -> tuple[list[int], list[str]]:
    try:
        cairn.save(shards(9), checkpoint_id=directory, planner=Refuses(hook))
    except CheckpointException as error:
        dist.barrier()
        return list(error.failures), sorted(path.name for path in directory.iterdir())
    raise AssertionError("the save did not fail")


@pytest.mark.parametrize("hook", ["create_local_plan", "finish_plan", "resolve_data"])
def test_a_hook_that_raises_on_one_of_two_ranks(hook: str, two: Gang, checkpoint: Path) -> None:
    two.run(save_and_load, checkpoint)
    before = sorted(path.name for path in checkpoint.iterdir())
    assert two.run(fail, checkpoint, hook) == [([1], before)] * 2
    assert not cairn.verify(checkpoint).problems
