"""Subclasses of torch's planners, storages and stagers: Cairn carries out the hooks that the subclass inherits."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from same import assert_same
from stock import dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StoragePrefix
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import WriteResult

import cairn

pytest.importorskip("fsspec")


pytestmark = [
    pytest.mark.usefixtures("fresh_report"),
    pytest.mark.filterwarnings("ignore:(torch.distributed is|Detected an existing)"),
]


def sample(step: int = 1) -> dict[str, Any]:
    return {"model": {"w": torch.arange(600.0).reshape(20, 30) * step, "b": torch.arange(7)}, "step": step}


def blank() -> dict[str, Any]:
    return {"model": {"w": torch.zeros(20, 30), "b": torch.zeros(7, dtype=torch.int64)}, "step": 0}


def how() -> list[tuple[str, bool, str]]:
    return [(entry.call, entry.engine, entry.how) for entry in cairn.report().calls]


def is_cairns(directory: Path) -> bool:
    return cairn.open(directory).save_id is not None


# --- subclasses that override nothing


class OwnSavePlanner(DefaultSavePlanner):
    """Overrides only __init__, as NeMo's planner does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.mine = 1


class OwnLoadPlanner(DefaultLoadPlanner):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.mine = 1

    def another_method(self) -> None:
        pass


class OwnStockWriter(dcp.FileSystemWriter):
    def __init__(self, path: Any) -> None:
        super().__init__(path, single_file_per_rank=False)


class OwnWriter(cairn.FileSystemWriter):
    mine = 1


class OwnStockReader(dcp.FileSystemReader):
    mine = 1


class OwnReader(cairn.FileSystemReader):
    mine = 1


@pytest.mark.parametrize("writer", [OwnStockWriter, OwnWriter, FsspecWriter])
@pytest.mark.parametrize("reader", [OwnStockReader, OwnReader, FsspecReader])
def test_a_subclass_without_hooks_of_its_own_is_native(writer: Any, reader: Any, checkpoint: Path) -> None:
    cairn.save(sample(), storage_writer=writer(str(checkpoint)), planner=OwnSavePlanner())
    assert is_cairns(checkpoint)
    state = blank()
    cairn.load(state, storage_reader=reader(str(checkpoint)), planner=OwnLoadPlanner())
    assert_same(state, sample())
    assert how() == [("save", True, ""), ("load", True, "")]


def test_attributes_set_by_init_have_effect(checkpoint: Path) -> None:
    cairn.save(sample(), storage_writer=OwnStockWriter(checkpoint))
    assert len(list(checkpoint.glob("*.distcp"))) == 3
    state = {**blank(), "more": torch.full((2,), 5.0)}
    cairn.load(state, checkpoint_id=checkpoint, planner=OwnLoadPlanner(allow_partial_load=True))
    assert_same(state, {**sample(), "more": torch.full((2,), 5.0)})


class OwnBlockingStager(BlockingAsyncStager):
    mine = 1


class OwnStager(DefaultStager):
    def __init__(self) -> None:
        super().__init__(StagingOptions(False, False, False, False))


@pytest.mark.parametrize("stager", [OwnBlockingStager, OwnStager])
def test_a_stager_without_hooks_of_its_own_is_native(stager: Any, checkpoint: Path) -> None:
    cairn.async_save(sample(), checkpoint_id=checkpoint, async_stager=stager()).result()  # type: ignore[union-attr]
    assert how() == [("async_save", True, "threads")]


class StagesNothing(AsyncStager):
    """As abstract as torch's class."""


def test_a_stager_of_the_bare_protocol_fails_as_torchs_does(checkpoint: Path) -> None:
    with pytest.raises(NotImplementedError, match="must implement stage"):
        cairn.async_save(sample(), checkpoint_id=checkpoint, async_stager=StagesNothing())
    assert cairn.report().calls == ()


def test_a_function_set_on_the_instance_overrides_its_class(checkpoint: Path) -> None:
    planner = OwnSavePlanner()
    planner.transform_object = lambda item, it: (
        -it if isinstance(it, torch.Tensor) else DefaultSavePlanner.transform_object(planner, item, it)
    )  # type: ignore[method-assign]
    cairn.save(sample(), checkpoint_id=checkpoint, planner=planner)
    state = blank()
    cairn.load(state, checkpoint_id=checkpoint)
    assert torch.equal(state["model"]["w"], -sample()["model"]["w"])


# --- local paths that fsspec understands


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "url", ["file://{}/checkpoint", "local://{}/checkpoint", "file://checkpoint", "file://~/checkpoint"]
)
def test_a_file_url_names_the_directory_that_fsspec_means(url: str, home: Path) -> None:
    place = url.format(home)
    stock.dcp.save(sample(1), storage_writer=FsspecWriter(place), no_dist=True)
    cairn.save(sample(2), checkpoint_id=place)
    assert is_cairns(home / "checkpoint")
    for load in (
        lambda state: cairn.load(state, checkpoint_id=place),
        lambda state: cairn.load(state, storage_reader=FsspecReader(place)),
        lambda state: stock.dcp.load(state, storage_reader=FsspecReader(place), no_dist=True),
    ):
        state = blank()
        load(state)
        assert_same(state, sample(2))
    assert all(entry.engine for entry in cairn.report().calls)
    assert cairn.open(place)["step"] == cairn.open(home / "checkpoint")["step"] == 2
    assert cairn.verify(place)
    assert (home / "checkpoint").samefile(cairn.latest(place) or "")
    assert cairn.saves_in_flight(place) == ()


def test_a_writer_that_is_reset_to_another_storage_goes_there(checkpoint: Path) -> None:
    cairn.save(sample(), storage_writer=FsspecWriter("memory://cairn/first"), checkpoint_id=str(checkpoint))
    assert is_cairns(checkpoint)
    cairn.save(sample(2), storage_writer=FsspecWriter(str(checkpoint)), checkpoint_id="memory://cairn/second")
    state = blank()
    cairn.load(state, storage_reader=FsspecReader(str(checkpoint)), checkpoint_id="memory://cairn/second")
    assert_same(state, sample(2))
    assert [entry.engine for entry in cairn.report().calls] == [True, False, False]


@pytest.mark.parametrize("call", [cairn.open, cairn.verify, cairn.latest, cairn.saves_in_flight])
def test_a_reader_of_directories_refuses_a_url_with_the_reason(call: Any) -> None:
    with pytest.raises(cairn.Unsupported, match=r"memory://cairn/x.*fsspec"):
        call("memory://cairn/x")


# --- writers that override hooks


class StoresItself(cairn.FileSystemWriter):
    """Never calls prepare_global_plan(), as the writers of Megatron and NVRx under ``cairn.install()``."""

    def prepare_local_plan(self, plan: Any) -> Any:
        super().prepare_local_plan(plan)
        return plan

    def write_data(self, plan: Any, planner: Any) -> Any:
        raise NotImplementedError

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)

    def save(self, state: dict[str, Any]) -> None:
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=True)
        self.set_up_storage_writer(True)
        plan = self.prepare_local_plan(planner.create_local_plan())
        (plan,), metadata = planner.create_global_plan([plan])
        plan = planner.finish_plan(dataclasses.replace(plan, storage_data=_StoragePrefix("__0_")))
        results = self._store(plan, planner)
        self.finish(metadata, [results])

    def _store(self, plan: Any, planner: Any) -> list[WriteResult]:
        return dcp.FileSystemWriter.write_data(self, plan, planner).wait()


class Checks(StoresItself):
    """A writer for which torch's driver calls prepare_global_plan()."""

    def save(self, state: dict[str, Any]) -> None:
        stock.dcp.save(state, storage_writer=self, no_dist=True)

    def write_data(self, plan: Any, planner: Any) -> Any:
        assert plan.storage_data.prefix == "__0_"
        return dcp.FileSystemWriter.write_data(self, plan, planner)


@pytest.mark.parametrize("kind", [StoresItself, Checks])
def test_a_writer_that_writes_by_itself_works_as_with_torchs_class(
    kind: type[StoresItself], checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        kind(checkpoint / "new").save(sample(step))
        for load in (stock.load, lambda state, directory: cairn.load(state, checkpoint_id=directory)):
            state = blank()
            load(state, checkpoint / "new")
            assert_same(state, sample(step))
    assert not is_cairns(checkpoint / "new")
    first, *_ = cairn.report().calls
    assert (first.call, first.engine, first.count) == (kind.__name__, False, 2)
    assert "write_data" in first.how
    (message,) = [record.getMessage() for record in caplog.records if record.name == "cairn"]
    assert kind.__name__ in message and "does not use Cairn's engine" in message


class Finishes(cairn.FileSystemWriter):
    """Overrides finish and calls super()."""

    finished = 0

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        self.finished += 1


class StockFinishes(dcp.FileSystemWriter):
    """`Finishes`, defined before ``cairn.install()``."""

    finished = 0

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        self.finished += 1


@pytest.mark.parametrize("kind", [Finishes, StockFinishes])
def test_a_writer_that_overrides_one_hook_is_native_for_the_others(kind: Any, checkpoint: Path) -> None:
    writer = kind(checkpoint)
    for step in (1, 2):
        cairn.save(sample(step), storage_writer=writer)
    assert writer.finished == 2
    report = cairn.verify(checkpoint)
    assert report.has_commit_record
    assert not report.problems
    assert len(list(checkpoint.iterdir())) == 2
    ((call, engine, reason),) = how()
    assert (call, engine) == ("save", True)
    assert f"{kind.__name__} overrides finish" in reason
    assert pickle.loads(pickle.dumps(writer)).path == checkpoint


class RemembersMetadata(cairn.FileSystemReader):
    """Counts its reads of the metadata, as Megatron's reader does."""

    reads = 0

    def read_metadata(self, *arguments: Any, **keywords: Any) -> Any:
        self.reads += 1
        return super().read_metadata(*arguments, **keywords)


class StockRemembersMetadata(dcp.FileSystemReader):
    reads = 0

    def read_metadata(self, *arguments: Any, **keywords: Any) -> Any:
        self.reads += 1
        return super().read_metadata(*arguments, **keywords)


@pytest.mark.parametrize("kind", [RemembersMetadata, StockRemembersMetadata])
def test_a_reader_that_overrides_one_hook_is_native_for_the_others(kind: Any, checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    reader = kind(checkpoint)
    state = blank()
    cairn.load(state, storage_reader=reader)
    assert_same(state, sample())
    assert reader.reads == 1
    call, engine, reason = how()[-1]
    assert (call, engine) == ("load", True)
    assert f"{kind.__name__} overrides read_metadata" in reason
    assert vars(reader).keys() - {"reads"} == vars(kind(checkpoint)).keys(), "Cairn adds no attribute"
    assert pickle.loads(pickle.dumps(reader)).path == checkpoint


class MetadataFromElsewhere(dcp.FileSystemReader):
    def read_metadata(self, *arguments: Any, **keywords: Any) -> Any:
        return pickle.loads((Path(self.path) / "elsewhere").read_bytes())


def test_a_reader_with_metadata_from_elsewhere_reads_as_torchs(checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    (checkpoint / ".metadata").rename(checkpoint / "elsewhere")
    state = blank()
    cairn.load(state, storage_reader=MetadataFromElsewhere(checkpoint))
    assert_same(state, sample())
    assert not cairn.report().calls[-1].engine


# --- overrides outside the reach of Cairn's code, and classes that Cairn's classes can't be combined with


class StockOwnFinish(dcp.FileSystemWriter):
    """Writes the metadata by torch's code, not by super()."""

    def finish(self, metadata: Any, results: Any) -> None:
        dcp.FileSystemWriter.finish(self, metadata, results)


class OwnFinish(cairn.FileSystemWriter):
    def finish(self, metadata: Any, results: Any) -> None:
        dcp.FileSystemWriter.finish(self, metadata, results)


@pytest.mark.parametrize("kind", [StockOwnFinish, OwnFinish])
@pytest.mark.parametrize("driver", ["cairn", "torch"])
def test_a_finish_without_super_leaves_the_data_files_in_place(kind: Any, driver: str, checkpoint: Path) -> None:
    writer = kind(checkpoint)
    for step in (1, 2):
        if driver == "cairn":
            cairn.save(sample(step), storage_writer=writer)
        else:
            stock.dcp.save(sample(step), storage_writer=writer, no_dist=True)
        state = blank()
        stock.load(state, checkpoint)
        assert_same(state, sample(step))
    writer.reset(checkpoint.parent / "another")
    state = blank()
    stock.load(state, checkpoint)
    assert_same(state, sample(2))


class SometimesFinishes(cairn.FileSystemWriter):
    def finish(self, metadata: Any, results: Any) -> None:
        if metadata is None:
            super().finish(metadata, results)


def test_a_finish_that_does_not_reach_super_fails_the_save(checkpoint: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match=r"SometimesFinishes.finish\(\) returned without"):
        cairn.save(sample(), storage_writer=SometimesFinishes(checkpoint))
    assert not list(checkpoint.glob("*"))


class Slotted(StockFinishes):
    __slots__ = ("log",)

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.log: list[int] = []

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        self.log.append(len(results))


def test_attributes_in_slots_are_seen(checkpoint: Path) -> None:
    writer = Slotted(checkpoint)
    cairn.save(sample(), storage_writer=writer)
    assert writer.log == [1]


class Registered(dcp.FileSystemWriter):
    """A framework's writer that registers its subclasses by name."""

    known: dict[str, type] = {}  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        if cls.__name__ in Registered.known:
            raise ValueError(cls.__name__)
        Registered.known[cls.__name__] = cls


class Pickles(Registered):
    copied = b""

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        self.copied = pickle.dumps(self)


def test_a_combined_class_is_not_seen_by_registries_and_pickles(checkpoint: Path) -> None:
    writer = Pickles(checkpoint)
    cairn.save(sample(), storage_writer=writer)
    assert Registered.known["Pickles"] is Pickles
    copied = pickle.loads(writer.copied)
    assert type(copied) is Pickles
    assert copied.path == checkpoint
    assert "_cairn_claim" in vars(writer)
    assert not [name for name in vars(copied) if name.startswith("_cairn_")]


class WriterWithNamesOfCairn(dcp.FileSystemWriter):
    """Some attributes have the names of methods of Cairn's class, and can't be called."""

    give_up = check_committed = "of my own"

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)


def test_a_writers_own_attributes_are_not_called(checkpoint: Path) -> None:
    added = vars(cairn.FileSystemWriter).keys() - dir(dcp.FileSystemWriter)
    assert {name for name in added if not name.startswith("_")} == {"give_up", "check_committed"}
    cairn.save(sample(), storage_writer=WriterWithNamesOfCairn(checkpoint))
    assert [engine for _, engine, _ in how()] == [True]
    state = blank()
    stock.load(state, checkpoint)
    assert_same(state, sample())


class ReaderWithOwnAttributes(dcp.FileSystemReader):
    """Some attributes have the names of options of Cairn's class, and are no options."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.thread_count = "three"
        self.keep_cached = Path("cache")
        self.broadcast_replicas = ("replica",)

    def read_data(self, plan: Any, planner: Any) -> Any:
        return super().read_data(plan, planner)


def test_a_readers_own_attributes_are_no_options(checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    state = blank()
    cairn.load(state, storage_reader=ReaderWithOwnAttributes(checkpoint))
    assert_same(state, sample())


class Intercepts(DefaultSavePlanner):
    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name != "resolve_data":
            return found
        return lambda item: found(item) if item.tensor_data is None else -found(item)


def test_a_planner_that_intercepts_its_attributes_is_asked(checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint, planner=Intercepts())
    state = blank()
    cairn.load(state, checkpoint_id=checkpoint)
    assert torch.equal(state["model"]["w"], -sample()["model"]["w"])


def test_a_method_that_replaces_one_of_torchs_class_is_called(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = DefaultSavePlanner.resolve_data

    def resolve(self: Any, item: Any) -> Any:
        return native(self, item) if item.tensor_data is None else -native(self, item)  # type: ignore[operator]

    monkeypatch.setattr(DefaultSavePlanner, "resolve_data", resolve)
    cairn.save(sample(), checkpoint_id=checkpoint, planner=OwnSavePlanner())
    state = blank()
    cairn.load(state, checkpoint_id=checkpoint)
    assert torch.equal(state["model"]["w"], -sample()["model"]["w"])


# --- the report


def test_a_report_counts_calls_and_names_the_last_checkpoint(checkpoint: Path) -> None:
    assert "no save or load" in str(cairn.report())
    for step in (1, 2):
        cairn.save(sample(step), checkpoint_id=checkpoint / str(step))
    cairn.save(sample(), checkpoint_id="memory://cairn/report")
    report = cairn.report()
    assert (report.engine_calls, report.other_calls) == (2, 1)
    native, other = report.calls
    assert (native.call, native.count, native.last) == ("save", 2, str(checkpoint / "2"))
    assert (other.call, other.engine, other.last) == ("save", False, "memory://cairn/report")
    assert "2 x save: engine" in str(report)
    assert "1 x save: NOT the engine" in str(report)


def test_a_call_that_fails_is_not_counted(tmp_path: Path) -> None:
    with pytest.raises(cairn.NotFound):
        cairn.load(blank(), checkpoint_id=tmp_path / "nowhere")
    assert cairn.report().calls == ()


def test_older_calls_are_counted_under_their_own_names(checkpoint: Path) -> None:
    state = blank()["model"]
    with pytest.warns(FutureWarning):
        cairn.save_state_dict(sample()["model"], dcp.FileSystemWriter(checkpoint), no_dist=True)
    with pytest.warns(FutureWarning):
        cairn.load_state_dict(state, dcp.FileSystemReader(checkpoint), no_dist=True)
    assert how() == [("save_state_dict", True, ""), ("load_state_dict", True, "")]


class MovesOneItem(cairn.FileSystemReader):
    """Reads "b" from a file that the checkpoint's metadata does not name."""

    def read_data(self, plan: Any, planner: Any) -> Any:
        for index, info in self.storage_data.items():
            if index.fqn == "model.b":
                self.storage_data[index] = dataclasses.replace(info, relative_path="moved")
        return super().read_data(plan, planner)


def test_a_load_of_which_torchs_code_reads_a_part_is_not_the_engines(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    file = next(info.relative_path for info in stock.metadata_of(checkpoint).storage_data.values())
    (checkpoint / "moved").write_bytes((checkpoint / file).read_bytes())
    state = blank()
    cairn.load(state, storage_reader=MovesOneItem(checkpoint))
    assert_same(state, sample())
    load = cairn.report().calls[-1]
    assert (load.call, load.engine) == ("load", False)
    assert "MovesOneItem overrides read_data; torch's code reads items that are not where" in load.how
    assert "torch's code reads items that are not where" in caplog.text


def test_a_load_that_fails_in_torchs_driver_is_not_counted(checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    with pytest.raises(dcp.CheckpointException, match="moved"):
        dcp.load(blank(), storage_reader=MovesOneItem(checkpoint))
    assert [entry.call for entry in cairn.report().calls] == ["save"]


def test_a_call_outside_the_engine_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        cairn.save(sample(step), checkpoint_id="memory://cairn/twice")
    (record,) = [record for record in caplog.records if record.name == "cairn"]
    assert record.levelname == "WARNING"
    assert "memory://" in record.getMessage()
    assert "does not use Cairn's engine" in record.getMessage()


class Negates(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        data = super().resolve_data(write_item)
        return -data if isinstance(data, torch.Tensor) else data


def test_a_process_that_becomes_threads_is_warned_of(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = cairn.AsyncCheckpointerType.PROCESS
    cairn.async_save(  # type: ignore[union-attr]
        sample(), checkpoint_id=checkpoint, planner=Negates(), async_checkpointer_type=process
    ).result()
    ((call, engine, reason),) = how()
    assert (call, engine) == ("async_save", True)
    assert "threads write in place of the requested writer process" in reason
    assert "Negates overrides resolve_data" in reason
    assert [record.levelname for record in caplog.records if record.name == "cairn"] == ["WARNING"]
