"""Cairn's calls give DCP's logger the records of stock torch: equal functions, events and keys."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.logger import _dcp_logger
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

import cairn

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:Detected an existing")

CHANGING = {"uuid", "time", "times_spent"}


class Model:
    """A Stateful object."""

    def __init__(self) -> None:
        self.w = torch.arange(4.0)

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.w = state["w"]


def state() -> dict[str, Any]:
    return {"model": Model(), "step": 3}


@contextlib.contextmanager
def heard() -> Iterator[list[dict[str, Any]]]:
    """Collects the records that DCP's logger gets."""
    records: list[dict[str, Any]] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert isinstance(record.msg, dict)
            records.append({**record.msg, "level": record.levelname})

    handler = Keeps()
    _dcp_logger.addHandler(handler)
    try:
        yield records
    finally:
        _dcp_logger.removeHandler(handler)


def comparable(records: list[dict[str, Any]], directory: Path) -> list[dict[str, Any]]:
    """Returns the records by thread and start, without the values that differ from run to run."""
    starts = {record["uuid"]: i for i, record in reversed(list(enumerate(records)))}
    kept = []
    for record in sorted(records, key=lambda record: (thread_of(record), starts[record["uuid"]])):
        for name in CHANGING & record.keys():
            assert int(record[name]) > 0 or name == "times_spent"
        plain = {name: str(value).replace(str(directory), "DIRECTORY") for name, value in record.items()}
        kept.append(plain | dict.fromkeys(CHANGING & record.keys(), "") | {"error": plain.get("error", "")[:10]})
    return kept


def thread_of(record: dict[str, Any]) -> bool:
    """Whether a record comes from the thread that begins an asynchronous save.

    The order between this thread's records and the remaining records is random.
    """
    return record["func_name"] in ("async_save", "maybe_synchronize_staging", "stage_state_dict")


def assert_same_records(call: Callable[[Any, Path], Any], tmp_path: Path) -> list[dict[str, Any]]:
    """Runs `call(module, directory)` with stock's functions and with Cairn's. Returns the records."""
    lists = []
    for name, module in (("stock", stock.dcp), ("cairn", cairn)):
        directory = tmp_path / name
        with heard() as records, contextlib.suppress(BaseException):
            call(module, directory)
        lists.append(comparable(records, directory))
    assert lists[0]
    assert lists[1] == lists[0]
    return lists[1]


def save(module: Any, directory: Path) -> None:
    module.save(state(), checkpoint_id=directory)


def save_by_writer(module: Any, directory: Path) -> None:
    module.save(state(), storage_writer=module.FileSystemWriter(directory), planner=DefaultSavePlanner())


def save_alone(module: Any, directory: Path) -> None:
    module.save(state(), checkpoint_id=directory, use_collectives=False)


def save_by_protocol(module: Any, directory: Path) -> None:
    class Mine(DefaultSavePlanner):
        def finish_plan(self, new_plan: Any) -> Any:
            return super().finish_plan(new_plan)

    module.save(state(), checkpoint_id=directory, planner=Mine())


def load(module: Any, directory: Path) -> None:
    stock.save(state(), directory)
    into = state()
    module.load(into, storage_reader=module.FileSystemReader(directory), planner=DefaultLoadPlanner())
    module.load(into, checkpoint_id=directory)


def older_calls(module: Any, directory: Path) -> None:
    """The older calls are not recorded as calls; only their steps are."""
    saver, loader = module.state_dict_saver, module.state_dict_loader
    plain = {"w": torch.ones(3), "step": 3}
    saver.save_state_dict(plain, module.FileSystemWriter(directory), no_dist=True)
    loader.load_state_dict(plain, module.FileSystemReader(directory), no_dist=True)
    saver._save_state_dict(plain, module.FileSystemWriter(directory), no_dist=True)
    loader._load_state_dict(plain, module.FileSystemReader(directory), no_dist=True)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("call", [save, save_by_writer, save_alone, save_by_protocol, load, older_calls])
def test_calls_are_recorded_as_by_stock_torch(call: Any, tmp_path: Path) -> None:
    records = assert_same_records(call, tmp_path)
    assert {record["event"] for record in records} == {"start", "end"}


def end(result: Any) -> None:
    if isinstance(result, AsyncSaveResponse):
        result.staging_completion.result()
        result.upload_completion.result()
    else:
        result.result()


def async_save(module: Any, directory: Path) -> None:
    end(module.async_save(state(), checkpoint_id=directory))


def async_save_by_writer(module: Any, directory: Path) -> None:
    end(module.async_save(state(), storage_writer=module.FileSystemWriter(directory), planner=DefaultSavePlanner()))


def async_save_by_stager(module: Any, directory: Path) -> None:
    stager = DefaultStager(StagingOptions(False, False, True, False))
    try:
        end(module.async_save(state(), checkpoint_id=directory, async_stager=stager))
    finally:
        stager.close()


def async_save_by_protocol(module: Any, directory: Path) -> None:
    class Mine(DefaultSavePlanner):
        def finish_plan(self, new_plan: Any) -> Any:
            return super().finish_plan(new_plan)

    end(module.async_save(state(), checkpoint_id=directory, planner=Mine()))


@pytest.mark.parametrize("call", [async_save, async_save_by_writer, async_save_by_stager, async_save_by_protocol])
def test_asynchronous_saves_are_recorded_as_by_stock_torch(call: Any, two: Gang, tmp_path: Path) -> None:
    """Runs on the ranks of a group, because stock torch needs a group."""
    two.run(_same_on_each_rank, call, tmp_path)


def _same_on_each_rank(call: Any, folder: Path) -> None:
    records = assert_same_records(call, folder)
    uploads = [record for record in records if record["func_name"] == "save"]
    assert [record["event"] for record in uploads] == ["start", "end"]
    assert uploads[0]["global_rank"] == str(dist.get_rank())


def test_two_ranks_record_as_two_ranks_of_stock_torch(two: Gang, tmp_path: Path) -> None:
    for call in (save, save_by_writer, save_alone):
        two.run(_same, call, tmp_path / call.__name__)


def _same(call: Any, folder: Path) -> None:
    assert_same_records(call, folder)


# --- failures


class Breaks(Model):
    def state_dict(self) -> dict[str, Any]:
        raise OSError("no state today")


def save_that_breaks(module: Any, directory: Path) -> None:
    module.save({"model": Breaks()}, checkpoint_id=directory)


def load_that_lacks_a_key(module: Any, directory: Path) -> None:
    stock.save(state(), directory)
    module.load({"new": torch.ones(3)}, checkpoint_id=directory)


def load_of_nothing(module: Any, directory: Path) -> None:
    module.load({"new": torch.ones(3)})


@pytest.mark.parametrize("call", [save_that_breaks, load_that_lacks_a_key, load_of_nothing])
def test_failures_are_recorded_as_by_stock_torch(call: Any, tmp_path: Path) -> None:
    events: dict[str, list[tuple[str, str, list[str]]]] = {}
    for name, module in (("stock", stock.dcp), ("cairn", cairn)):
        with heard() as records, pytest.raises(BaseException):  # noqa: B017 - each case raises a different class
            call(module, tmp_path / name)
        # A missing key fails local_step in stock torch, but read_data, the engine's call, in Cairn.
        steps = ("local_step", "global_step", "read_data") if call is load_that_lacks_a_key else ()
        events[name] = [(r["func_name"], r["event"], sorted(r)) for r in records if r["func_name"] not in steps]
        failed = [record for record in records if record["event"] == "exception"]
        assert failed
        assert all(record["level"] == "ERROR" and record["error"] for record in failed)
    assert events["cairn"] == events["stock"]


@pytest.mark.parametrize("kind", list(AsyncCheckpointerType))
def test_an_upload_that_fails_is_recorded(kind: AsyncCheckpointerType, checkpoint: Path) -> None:
    stock.save(state(), checkpoint)
    writer = cairn.FileSystemWriter(checkpoint, overwrite=False)
    with heard() as records, pytest.raises(cairn.InvalidArgument, match="already exists"):
        end(cairn.async_save(state(), storage_writer=writer, async_checkpointer_type=kind))
    failed = [record for record in records if record["event"] == "exception"]
    assert failed
    assert "already exists" in failed[-1]["error"]
    assert failed[-1]["storage_writer"] == "FileSystemWriter"


def test_without_a_listener_nothing_is_computed(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def compute(name: str, **_: Any) -> dict[str, Any]:
        computed.append(name)
        return {}

    monkeypatch.setattr("torch.distributed.checkpoint.logger._get_msg_dict", compute)

    def call_each() -> None:
        cairn.save(state(), checkpoint_id=checkpoint)
        cairn.load(state(), checkpoint_id=checkpoint)
        end(cairn.async_save(state(), checkpoint_id=checkpoint))

    with heard():
        call_each()
    assert {"save", "load", "async_save"} <= set(computed), "with a listener"
    computed.clear()
    for handler in list(_dcp_logger.handlers):  # pytest adds a handler
        if not isinstance(handler, logging.NullHandler):
            monkeypatch.setattr(_dcp_logger, "handlers", [logging.NullHandler()])
    call_each()
    assert not computed


def test_a_record_that_can_not_be_made_fails_no_save(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []

    def fail(name: str, **_: Any) -> None:
        failed.append(name)
        raise ValueError("the process group is gone")

    monkeypatch.setattr("torch.distributed.checkpoint.logger._get_msg_dict", fail)
    with heard() as records:
        cairn.save(state(), checkpoint_id=checkpoint)
    assert not records
    assert "save" in failed
    assert (checkpoint / ".metadata").exists()
