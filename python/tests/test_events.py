"""`cairn.events`: the events of saves, loads, verifications and removals; their log; and the traces of CAIRN_TRACE."""

import json
import logging
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
import ranks
import tool
import torch

import cairn
import cairn.events
from cairn.events import Event

_LONG_SECONDS = 120


@pytest.fixture
def heard() -> Iterator["Heard"]:
    """Subscribed to all events during the test."""
    heard = Heard()
    yield heard
    heard.subscription.end()


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.subscription = cairn.events.subscribe(self.events.append)

    def kinds(self) -> list[str]:
        """Ends the subscription, and returns the kinds of its events in their order."""
        assert self.subscription.end(_LONG_SECONDS)
        return [event.kind for event in self.events]


def _state() -> dict[str, Any]:
    return {"w": torch.ones(1000), "step": 1}


def test_the_events_of_a_save_have_place_bytes_and_times(tmp_path: Path, heard: Heard) -> None:
    cairn.save(_state(), checkpoint_id=tmp_path / "step-7")
    assert heard.kinds() == ["begun", "planned", "written", "committed"]
    begun, planned, written, committed = heard.events
    for event in heard.events:
        assert (event.operation, event.asynchronous, event.id) == ("save", False, begun.id)
        assert (event.directory, event.step) == (str(tmp_path / "step-7"), 7)
        assert (event.rank, event.ranks, event.process_id) == (0, 1, os.getpid())
        assert event.cause is None
    assert written.bytes == (tmp_path / "step-7" / "__0_0.distcp").stat().st_size
    assert committed.bytes > written.bytes
    assert committed.total_seconds == pytest.approx(planned.seconds + written.seconds + committed.seconds)
    assert written.started == pytest.approx(planned.started + planned.seconds)
    assert str(committed).startswith(f"save committed: '{tmp_path}/step-7', step 7, {committed.bytes} bytes, ")


@pytest.mark.parametrize("kind", ["THREAD", "PROCESS"])
def test_the_events_of_an_asynchronous_save(tmp_path: Path, heard: Heard, kind: str) -> None:
    cairn.async_save(
        _state(),
        checkpoint_id=tmp_path / "step-7",
        async_checkpointer_type=cairn.AsyncCheckpointerType[kind],
    ).result()
    assert heard.kinds() == ["begun", "planned", "staged", "written", "committed"]
    written = heard.events[3]
    assert written.bytes == (tmp_path / "step-7" / "__0_0.distcp").stat().st_size
    assert (written.process_id == os.getpid()) == (kind == "THREAD")
    assert all(event.asynchronous for event in heard.events)


def test_a_killed_writer_process_is_a_failure(tmp_path: Path, heard: Heard) -> None:
    kind = cairn.AsyncCheckpointerType.PROCESS
    cairn.async_save(_state(), checkpoint_id=tmp_path / "1", async_checkpointer_type=kind).result()
    while len(heard.events) < len(("begun", "planned", "staged", "written", "committed")):
        pass
    writer = heard.events[3].process_id
    os.kill(writer, signal.SIGSTOP)  # the save waits for the writer's claim
    threading.Timer(0.2, os.kill, (writer, signal.SIGKILL)).start()
    with pytest.raises(cairn.Unavailable, match="was killed by signal 9"):
        cairn.async_save(_state(), checkpoint_id=tmp_path / "2", async_checkpointer_type=kind).result()
    assert heard.kinds()[5] == "begun" and heard.events[-1].kind == "failed"
    assert isinstance(heard.events[-1].cause, cairn.Unavailable)
    assert heard.events[-1].directory == str(tmp_path / "2")


def test_the_events_of_failures(tmp_path: Path, heard: Heard) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(cairn.Error):
        cairn.save(_state(), checkpoint_id=tmp_path / "file" / "step-1")
    cairn.save(_state(), checkpoint_id=tmp_path / "step-2")
    with pytest.raises(cairn.CheckpointException):
        cairn.load({"other": torch.ones(3)}, checkpoint_id=tmp_path / "step-2")
    kinds = heard.kinds()
    failed = [event for event in heard.events if event.kind == "failed"]
    assert [event.operation for event in failed] == ["save", "load"]
    assert all(isinstance(event.cause, cairn.Error) for event in failed)
    assert kinds.count("committed") == 1


@pytest.mark.parametrize("damage", ["missing", "empty", "no pickle", "a file"])
@pytest.mark.parametrize("load", [cairn.load, cairn.load_async])
def test_the_events_of_a_load_without_a_readable_checkpoint(
    tmp_path: Path, heard: Heard, damage: str, load: Callable[..., Any]
) -> None:
    directory = tmp_path / "step-9"
    if damage == "a file":
        directory.touch()
    elif damage != "missing":
        directory.mkdir()
    if damage == "no pickle":
        (directory / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(cairn.Error) as raised:
        load({"w": torch.ones(3), "n": 1}, checkpoint_id=directory)
    assert heard.kinds() == ["begun", "failed"]
    begun, failed = heard.events
    assert (begun.operation, begun.id, begun.step) == ("load", failed.id, 9)
    assert failed.directory == str(directory)
    assert type(failed.cause) in type(raised.value).__mro__
    assert failed.cause.place == raised.value.place
    words = [sorted(re.findall(r"[^\s;()]+", str(error))) for error in (failed.cause, raised.value)]
    assert words[0] == words[1]  # the parts may be in another order


LOADS = [cairn.load, lambda *of, **options: cairn.load_async(*of, **options).result()]


@pytest.mark.parametrize("load", LOADS)
def test_the_values_and_tensors_of_a_load_are_one_load(tmp_path: Path, heard: Heard, load: Callable[..., Any]) -> None:
    cairn.save({"w": torch.ones(3), "n": 1}, checkpoint_id=tmp_path / "step-1")
    load({"w": torch.zeros(3), "n": 0}, checkpoint_id=tmp_path / "step-1")
    assert heard.kinds()[4:] == ["begun", "planned", "loaded"]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("state", [{"w": torch.ones(4), "n": 1}, {"w": torch.ones(3), "m": 1}], ids=["shape", "key"])
def test_a_failed_load_of_values_and_tensors_is_one_load(
    tmp_path: Path, heard: Heard, load: Callable[..., Any], state: dict[str, Any]
) -> None:
    cairn.save({"w": torch.ones(3), "n": 1}, checkpoint_id=tmp_path / "step-1")
    with pytest.raises(cairn.Error):
        load(state, checkpoint_id=tmp_path / "step-1")
    assert heard.kinds()[4:] == ["begun", "failed"]


def test_the_events_of_a_conversion(tmp_path: Path, heard: Heard) -> None:
    cairn.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "step-1")
    report = cairn.convert(tmp_path / "step-1", tmp_path / "step-2", to="dcp")
    with pytest.raises(cairn.Error):
        cairn.convert(tmp_path / "none", tmp_path / "step-3", to="dcp")
    assert heard.kinds()[4:] == ["begun", "planned", "written", "committed", "begun", "failed"]
    events = heard.events[4:]
    assert {event.operation for event in events} == {"convert"}
    assert [event.step for event in events] == [2] * 4 + [3] * 2
    assert events[3].bytes == report.bytes_written
    assert isinstance(events[5].cause, cairn.NotFound)


def test_the_events_of_a_verification_without_a_checkpoint(tmp_path: Path, heard: Heard) -> None:
    with pytest.raises(cairn.NotFound):
        cairn.verify(tmp_path)
    assert heard.kinds() == ["begun", "failed"]
    assert isinstance(heard.events[1].cause, cairn.NotFound)


def test_the_events_of_loads_verifications_and_removals(tmp_path: Path, heard: Heard) -> None:
    for step in (1, 2):
        cairn.save(_state(), checkpoint_id=tmp_path / f"step-{step}")
    cairn.load({"w": torch.zeros(1000)}, checkpoint_id=tmp_path / "step-2")
    cairn.verify(tmp_path / "step-2")
    cairn.prune(tmp_path, keep_last=1)
    cairn.remove_checkpoint(tmp_path / "step-2")
    assert heard.kinds()[8:] == ["begun", "planned", "loaded", "begun", "verified", "deleted", "deleted"]
    assert [event.step for event in heard.events if event.kind == "deleted"] == [1, 2]
    assert all(event.bytes > 0 for event in heard.events if event.kind in ("loaded", "verified", "deleted"))


def test_the_removals_of_a_managed_run_are_events(tmp_path: Path, heard: Heard) -> None:
    with cairn.CheckpointManager(tmp_path, save_every=1, keep_last=1, preemption_signals=()) as manager:
        for step in range(3):
            future = manager.save(step, _state())
            assert future is not None
            future.result()
    heard.kinds()
    assert {event.step for event in heard.events if event.kind == "deleted"} <= {0, 1}
    assert [event.step for event in heard.events if event.kind == "committed"] == [0, 1, 2]
    assert any(event.kind == "deleted" for event in heard.events)


def test_only_the_wanted_kinds_arrive(tmp_path: Path) -> None:
    events: list[Event] = []
    with cairn.events.subscribe(events.append, ["committed", "failed"]):
        cairn.save(_state(), checkpoint_id=tmp_path)
    assert [event.kind for event in events] == ["committed"]
    with pytest.raises(cairn.InvalidArgument, match="comitted"):
        cairn.events.subscribe(events.append, ["comitted"])  # type: ignore[list-item]


def test_a_callback_that_raises_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(event: Event) -> None:
        raise RuntimeError("a fault of the callback")

    with caplog.at_level(logging.ERROR, "cairn.events"), cairn.events.subscribe(refuse):
        cairn.save(_state(), checkpoint_id=tmp_path)
    assert len([record for record in caplog.records if record.exc_info]) == 4


def test_a_callback_that_blocks_delays_no_save(tmp_path: Path) -> None:
    released = threading.Event()
    subscription = cairn.events.subscribe(lambda event: released.wait(_LONG_SECONDS), capacity=2)
    for step in range(3):
        cairn.save(_state(), checkpoint_id=tmp_path / str(step))
    assert subscription.dropped >= 12 - 3 - 2  # at most three in the thread, two in the queue
    released.set()
    assert subscription.end(_LONG_SECONDS)


def test_a_callback_may_end_its_subscription(tmp_path: Path) -> None:
    events: list[Event] = []

    def end_at_once(event: Event) -> None:
        events.append(event)
        subscription.end()

    subscription = cairn.events.subscribe(end_at_once, ["begun"])
    for step in range(3):
        cairn.save(_state(), checkpoint_id=tmp_path / str(step))
    assert subscription.end(_LONG_SECONDS)
    assert events[0].kind == "begun"


def test_the_log_has_text_or_json_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cairn.events"), cairn.events.log(kinds=["committed", "failed"]):
        cairn.save(_state(), checkpoint_id=tmp_path / "step-3")
        with pytest.raises(cairn.Error):
            cairn.load({"other": torch.ones(3)}, checkpoint_id=tmp_path / "step-3")
    committed, failed = (record for record in caplog.records if record.name == "cairn.events")
    assert committed.levelno == logging.INFO and failed.levelno == logging.ERROR
    assert committed.getMessage().startswith(f"save committed: '{tmp_path}/step-3', step 3")
    line = json.loads(cairn.events.JsonFormatter().format(committed))
    assert line["event"]["kind"] == "committed" and line["event"]["step"] == 3
    assert line["message"] == committed.getMessage()
    assert json.loads(cairn.events.JsonFormatter().format(failed))["event"]["cause"] == str(failed.event.cause)  # type: ignore[attr-defined]


def test_a_program_with_subscriptions_ends_in_order(tmp_path: Path) -> None:
    program = """
        import sys, time, torch, cairn, cairn.events
        heard = []
        cairn.events.subscribe(lambda event: (time.sleep(0.01), heard.append(event.kind)))
        cairn.events.subscribe(lambda event: None)
        cairn.async_save({"w": torch.ones(1000)}, checkpoint_id=sys.argv[1])
        print("end")
    """
    assert programs.run_after_torch(program, tmp_path) == "end"


def test_a_forked_child_has_no_subscriptions(tmp_path: Path) -> None:
    program = """
        import os, sys, torch, cairn, cairn.events
        heard = []
        subscription = cairn.events.subscribe(heard.append)
        cairn.save({"w": torch.ones(10)}, checkpoint_id=sys.argv[1])
        child = os.fork()
        if child == 0:
            cairn.save({"w": torch.ones(10)}, checkpoint_id=sys.argv[1])
            assert subscription.end()
            own = []
            with cairn.events.subscribe(own.append):
                cairn.save({"w": torch.ones(10)}, checkpoint_id=sys.argv[1])
            del subscription
            os._exit(len(own))
        _, status = os.waitpid(child, 0)
        subscription.end()
        print(os.waitstatus_to_exitcode(status), len(heard))
    """
    assert programs.run_after_torch(program, tmp_path) == "4 4"


# --- traces

TRACED = """
    import os, sys, torch, cairn
    os.environ["CAIRN_TRACE"] = sys.argv[2]
    kind = cairn.AsyncCheckpointerType.PROCESS
    state = {"w": torch.ones(1000)}
    cairn.save(state, checkpoint_id=sys.argv[1] + "/step-1")
    futures = [cairn.async_save(state, checkpoint_id=f"{sys.argv[1]}/step-{step}", async_checkpointer_type=kind)
               for step in (2, 3)]
    for future in futures: future.result()
    cairn.load(state, checkpoint_id=sys.argv[1] + "/step-3")
    cairn.verify(sys.argv[1] + "/step-3")
"""


def _check_trace(events: list[dict[str, Any]]) -> None:
    """Checks the events against the trace event format that Perfetto reads."""
    last = -1.0
    ends: dict[tuple[int, int], list[float]] = defaultdict(list)
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {event["pid"] for event in events} == {e["pid"] for e in events if e["name"] == "process_name"}
    for event in events:
        assert event["ph"] in ("X", "i", "M")
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert all(isinstance(event[field], int) for field in ("pid", "tid"))
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            continue
        assert event["ts"] >= last
        last = event["ts"]
        track = (event["pid"], event["tid"])
        assert track in threads
        if event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
            continue
        assert event["dur"] >= 0
        open_spans = ends[track]
        while open_spans and open_spans[-1] <= event["ts"] + 5e-4:
            open_spans.pop()
        end = event["ts"] + event["dur"]
        assert not open_spans or end <= open_spans[-1] + 5e-4, f"{event} is not nested"
        open_spans.append(end)


def test_the_trace_of_trainer_and_writer_process(tmp_path: Path) -> None:
    programs.run_after_torch(TRACED, tmp_path / "run", tmp_path / "trace")
    merged = tmp_path / "trace.json"
    said = tool.text_of("trace", tmp_path / "trace", "-o", merged)
    trace = json.loads(merged.read_text())
    events = trace["traceEvents"]
    _check_trace(events)
    assert said == f"{merged}: {sum(event['ph'] != 'M' for event in events)} events of 2 processes\n"
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names.count("save") == 3 + 2  # two also in the writer process
    assert names.count("write") == 3 and names.count("stage") == 2
    assert names.count("load") == names.count("verify") == 1
    tracks = {event["args"]["name"].split(",")[0] for event in events if event["name"] == "thread_name"}
    assert {"trainer: calls", "writer: writing"} <= tracks
    assert tool.run("trace", tmp_path / "trace", "-o", merged).returncode == tool.USAGE
    assert tool.run("trace", tmp_path / "trace", "-o", merged, "--overwrite").returncode == tool.OK
    assert json.loads(tool.text_of("trace", tmp_path / "trace")) == trace
    assert tool.run("trace", tmp_path / "run").returncode == tool.UNREADABLE


def _save_traced(rank: int, size: int, folder: Path) -> None:
    os.environ["CAIRN_TRACE"] = str(folder / "trace")
    ranks.init(rank, size, folder)
    state = {"w": torch.full((100,), float(rank)), "rank": rank}
    cairn.save({f"of-{rank}": state}, checkpoint_id=folder / "run" / "step-5")
    cairn.async_save({f"of-{rank}": state}, checkpoint_id=folder / "run" / "step-6").result()
    torch.distributed.destroy_process_group()


def test_the_trace_of_several_ranks(tmp_path: Path) -> None:
    ranks.start(_save_traced, 3, tmp_path)
    events = json.loads(tool.text_of("trace", tmp_path / "trace"))["traceEvents"]
    _check_trace(events)
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1", "rank 2"}
    for rank in range(3):
        mine = [event["name"] for event in events if event["pid"] == rank and event["ph"] == "X"]
        assert mine.count("write") == 2 and "stage" in mine


@pytest.mark.parametrize(("call", "kind"), [("save", "begun"), ("async_save", "written")])
def test_a_trace_of_a_killed_program_shows_the_save(tmp_path: Path, call: str, kind: str) -> None:
    program = """
        import os, signal, sys, torch, cairn, cairn.events
        os.environ["CAIRN_TRACE"] = sys.argv[2]
        cairn.events.subscribe(lambda event: os.kill(os.getpid(), signal.SIGKILL), [sys.argv[4]])
        saved = getattr(cairn, sys.argv[3])({"w": torch.ones(10)}, checkpoint_id=sys.argv[1] + "/step-8")
        saved.result()
    """
    with pytest.raises(AssertionError):
        programs.run_after_torch(program, tmp_path / "run", tmp_path / "trace", call, kind)
    (path,) = (tmp_path / "trace").iterdir()
    lines = path.read_text().splitlines()
    assert lines[0] == "[" and all(line.endswith("},") for line in lines[1:])
    events = json.loads(tool.text_of("trace", tmp_path / "trace"))["traceEvents"]
    _check_trace(events)
    begun = [event for event in events if event["name"] == "begun"]
    assert [event["args"]["step"] for event in begun] == [8]


@pytest.mark.parametrize("call", ["load", "load_async", "verify", "open"])
def test_a_trace_without_a_folder_is_one_warning_of_a_job_that_only_reads(tmp_path: Path, call: str) -> None:
    program = """
        import os, sys, warnings, torch, cairn
        os.environ["CAIRN_TRACE"] = sys.argv[2]
        state = {"w": torch.ones(10), "n": 1}
        call = {
            "load": lambda: cairn.load(state, checkpoint_id=sys.argv[1]),
            "load_async": lambda: cairn.load_async(state, checkpoint_id=sys.argv[1]).result(),
            "verify": lambda: [warnings.warn(text, RuntimeWarning) for text in cairn.verify(sys.argv[1]).warnings],
            "open": lambda: cairn.read(sys.argv[1]),
        }[sys.argv[3]]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                call()
        print(*(str(warning.message) for warning in caught if "CAIRN_TRACE" in str(warning.message)), sep="\\n")
    """
    cairn.save({"w": torch.ones(10), "n": 1}, checkpoint_id=tmp_path / "step-1")
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "trace", Path("/proc/trace")):
        said = programs.run_after_torch(program, tmp_path / "step-1", folder, call)
        assert len(said.splitlines()) == 1 and "no trace is written into" in said, said


def test_a_trace_without_a_folder_is_one_warning(tmp_path: Path) -> None:
    program = """
        import os, sys, warnings, torch, cairn
        os.environ["CAIRN_TRACE"] = sys.argv[2]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(3):
                cairn.save({"w": torch.ones(10)}, checkpoint_id=f"{sys.argv[1]}/step-{step}")
        print(*(str(warning.message) for warning in caught if "CAIRN_TRACE" in str(warning.message)), sep="\\n")
        assert cairn.latest(sys.argv[1]).endswith("step-2")
    """
    (tmp_path / "file").touch()
    said = programs.run_after_torch(program, tmp_path / "run", tmp_path / "file" / "trace")
    assert len(said.splitlines()) == 1 and "no trace is written into" in said
