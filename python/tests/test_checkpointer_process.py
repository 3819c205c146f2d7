"""Asynchronous saves of one rank each: by a Python process that runs the caller's writer, and by the native process."""

import contextlib
import errno
import functools
import gc
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Gang
from same import assert_same, blank
from test_checkpointer import STATE, alone

import cairn
from cairn.checkpointer import (
    AsyncCheckpointer,
    CheckpointerConfig,
    CheckpointProcess,
    CheckpointProcessConfig,
    CheckpointReader,
    CheckpointStager,
    CheckpointStagerConfig,
    CheckpointWriter,
    CheckpointWriterConfig,
    DefaultStager,
    RankInfo,
    WriterHook,
    make_async_checkpointer,
    wrap_future,
)
from cairn.checkpointer.builder import default_subprocess_init_fn, default_writer_init_fn
from cairn.checkpointer.process_activity import ProcessActivity
from cairn.checkpointer.worker_messages import SharedState

RANK = RankInfo(global_rank=0, global_world_size=1)

# --- what runs in the process


class Note(WriterHook):
    """Writes the saving process's id beside the checkpoint. Fails or kills its process if ordered."""

    def pre_commit(self, path: str, *, order: str = "", gate: str = "", **kwargs: Any) -> None:
        if gate:
            Path(gate).read_text()  # a pipe: waits until the test writes to it
        if order == "fail":
            raise LookupError("as ordered")
        if order == "no space":
            raise cairn.NoSpace("as ordered", file="x")
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        Path(f"{path}.note").write_text(f"{os.getpid()} {os.environ.get('CAIRN_TEST_NOTE')} {sorted(kwargs)}")

    def post_commit(self, path: str, **kwargs: Any) -> None:
        pass


def noting_writer(rank_info: RankInfo, wants: int) -> CheckpointWriter:
    assert wants == 5
    return CheckpointWriter(CheckpointWriterConfig(), rank_info, commit_hook=Note())


def set_note(text: str) -> None:
    os.environ["CAIRN_TEST_NOTE"] = text


def never_ready() -> None:
    threading.Event().wait()


def refuse() -> None:
    raise LookupError("not today")


class Gate:
    """Blocks the process's writer until the test opens the gate."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        os.mkfifo(path)

    def open(self) -> None:
        """Waits until the writer is at the gate. A writer that never comes fails the test."""
        until = time.monotonic() + 240
        while True:
            try:
                pipe = os.open(self.name, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError as error:  # nobody reads
                assert error.errno == errno.ENXIO and time.monotonic() < until, error
                time.sleep(0.01)
        os.write(pipe, b"go")
        os.close(pipe)


def python_process(init: Callable[..., None] = set_note, arguments: tuple[Any, ...] = ("here",), **config: Any) -> Any:
    return CheckpointProcess(RANK, CheckpointProcessConfig(**config), init, arguments, noting_writer, {"wants": 5})


@pytest.fixture(scope="module")
def process() -> Iterator[CheckpointProcess]:
    """A process shared by the tests that leave it unchanged or replace it: a new Python takes seconds."""
    made: CheckpointProcess = python_process()
    yield made
    made.close()


def result(future: "Future[None] | None") -> None:
    assert future is not None
    future.result()


# --- the Python process


def test_the_callers_writer_runs_in_the_process(process: CheckpointProcess, checkpoint: Path) -> None:
    assert not process.is_native
    result(process.write(STATE, str(checkpoint), answer=42))
    assert_same(alone().load(str(checkpoint)), STATE)
    pid = process.process.pid
    assert pid != os.getpid()
    assert Path(f"{checkpoint}.note").read_text() == f"{pid} here ['answer']"
    staged: Future[dict[str, Any]] = Future()
    written = process.write(staged, str(checkpoint))
    staged.set_result({"step": 8})
    result(written)
    assert alone().load(str(checkpoint)) == {"step": 8}
    assert process.process.pid == pid


def test_a_failed_write_is_reported_and_the_next_write_succeeds(process: CheckpointProcess, checkpoint: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)rank 0 failed.*pre_commit.*LookupError: as ordered") as caught:
        result(process.write({"step": 1}, str(checkpoint), order="fail"))
    assert isinstance(caught.value.__cause__, LookupError)
    assert isinstance(caught.value, cairn.Error)
    pid = process.process.pid
    with pytest.raises(RuntimeError) as caught:
        result(process.write({"step": 1}, str(checkpoint), order="no space"))
    assert isinstance(caught.value.__cause__, cairn.NoSpace)
    assert caught.value.__cause__.file == "x"
    staged: Future[dict[str, Any]] = Future()
    staged.set_exception(ValueError("not staged"))
    with pytest.raises(ValueError, match="not staged"):
        result(process.write(staged, str(checkpoint)))
    result(process.write({"step": 2}, str(checkpoint)))
    assert alone().load(str(checkpoint)) == {"step": 2}
    assert process.process.pid == pid, "the same process"


@pytest.mark.parametrize("is_native", [False, True], ids=["python", "native"])
def test_every_failed_write_is_logged(
    process: CheckpointProcess, is_native: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller may never ask the future."""
    written_by = process
    if is_native:
        written_by = CheckpointProcess(
            RANK, CheckpointProcessConfig(), default_subprocess_init_fn, (), default_writer_init_fn, {}
        )
    staged: Future[dict[str, Any]] = Future()
    staged.set_exception(ValueError("not staged"))
    with pytest.raises(ValueError, match="not staged"):
        result(written_by.write(staged, str(tmp_path / "unstaged")))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match="file"):
        result(written_by.write({"w": torch.ones(3)}, str(tmp_path / "file")))
    if is_native:
        written_by.close()
    logged = [record.getMessage() for record in caplog.records if record.name == "cairn"]
    assert len(logged) == 2, logged
    assert f"the save of rank 0 into '{tmp_path}/unstaged' failed: not staged" in logged[0]
    assert f"the save of rank 0 into '{tmp_path}/file' failed: " in logged[1]


def test_a_dead_process_is_reported_and_replaced(process: CheckpointProcess, checkpoint: Path) -> None:
    process.process_creation_future.result()
    pid = process.process.pid
    with pytest.raises(RuntimeError, match="Child process terminated unexpectedly") as caught:
        result(process.write({"step": 1}, str(checkpoint), order="die"))
    assert getattr(caught.value, "actual") == str(-signal.SIGKILL)  # noqa: B009 - typed as RuntimeError
    result(process.write({"step": 2}, str(checkpoint)))
    assert process.process.pid != pid
    assert alone().load(str(checkpoint)) == {"step": 2}
    os.kill(process.process.pid, signal.SIGKILL)
    process.process.join()
    result(process.write({"step": 3}, str(checkpoint)))


def test_a_process_that_does_not_get_ready(checkpoint: Path) -> None:
    process = python_process(never_ready, (), subprocess_init_timeout_secs=1)
    with pytest.raises(TimeoutError, match=r"^Timed out: .*not ready within 1 s"):
        process.process_creation_future.result()
    with pytest.raises(TimeoutError):
        result(process.write({"step": 1}, str(checkpoint)))
    assert not process.process.is_alive()
    process.close()


def test_a_process_that_cannot_start() -> None:
    process = python_process(refuse, ())
    with pytest.raises(RuntimeError, match="LookupError: not today"):
        process.process_creation_future.result()
    process.close()
    assert not process.process.is_alive()


def test_close_waits_for_the_write(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = python_process()
    gate = Gate(tmp_path / "gate")
    written = process.write({"step": 1}, str(checkpoint), gate=gate.name)
    wait_for_writes = process._thread.shutdown

    def open_and_wait(*arguments: Any, **keywords: Any) -> None:
        if not written.done():
            gate.open()  # the write ends only when close() waits for it
        wait_for_writes(*arguments, **keywords)

    monkeypatch.setattr(process._thread, "shutdown", open_and_wait)
    process.close()
    assert written.done()
    result(written)
    assert process.process.exitcode == 0
    process.close()  # a second close is harmless


def test_a_state_of_many_tensors_goes_in_one_piece() -> None:
    state = {str(i): torch.full((3,), float(i)) for i in range(2000)}
    shared = SharedState.of(state)
    assert len(shared.buffers) == 1
    assert_same(shared.restored(), state)


def test_a_state_on_its_way_keeps_views_and_values() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    in_memory = torch.ones(4).share_memory_()  # type: ignore[no-untyped-call]
    state = {
        "column": base[:, 1],
        "transposed": base.t(),
        "shared": in_memory,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(True),
        "nested": [(torch.ones(1, dtype=torch.int16), "text", None)],
    }
    shared = SharedState.of(state)
    assert len(shared.buffers) == 2, "what is shared already, and a copy of the rest"
    restored = shared.restored()
    assert_same(restored, state)
    assert restored["parameter"].requires_grad
    base.zero_()
    assert restored["column"].sum() > 0


# --- stagers


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_staged_state_is_a_still_copy(asynchronous: bool, shared: bool) -> None:
    live = torch.arange(6.0).reshape(2, 3)
    tied = {"x": live}
    state = {"w": live.t(), "tied": [live, tied], "p": torch.nn.Parameter(live[0]), "plain": {"list": [1, [2]]}}
    expected = {"w": live.t().clone(), "tied": [live.clone(), {"x": live.clone()}], "p": live[0].clone()}
    expected["plain"] = {"list": [1, [2]]}
    stager = DefaultStager(CheckpointStagerConfig(use_async_staging=asynchronous, use_shared_memory=shared))
    staged: Any = stager.stage(state)
    if asynchronous:
        staged = staged.result()
    live.fill_(-1)
    state["plain"]["list"][1].append(3)
    assert_same(staged, expected)
    assert staged["p"].requires_grad
    assert staged["w"].is_shared() == shared
    later: Any = stager.stage(state)
    stager.close()
    assert_same(staged, expected, "an earlier copy")
    assert_same(later.result() if asynchronous else later, state)


def test_a_state_without_tensors_is_staged_too() -> None:
    stager = DefaultStager(CheckpointStagerConfig(use_async_staging=False))
    state = {"a": 1, "e": torch.zeros(0), "q": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)}
    assert_same(stager.stage(state), state)


def test_the_default_stager_works_without_an_accelerator() -> None:
    stager = DefaultStager()
    staged = stager.stage({"w": torch.ones(1)})
    assert isinstance(staged, Future)
    assert_same(staged.result(), {"w": torch.ones(1)})
    stager.close()
    stager.close()


# --- the asynchronous checkpointer


class Doubling(CheckpointStager):
    """A caller's stager: stages twice the given values, which shows in the file."""

    def __init__(self, asynchronous: bool) -> None:
        self.keywords: list[dict[str, Any]] = []
        self.is_closed = False
        self._thread = ThreadPoolExecutor(1) if asynchronous else None

    def stage(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any] | Future[dict[str, Any]]:
        self.keywords.append(kwargs)
        work = functools.partial(lambda state: {key: 2 * value for key, value in state.items()}, state_dict)
        return self._thread.submit(work) if self._thread else work()

    def close(self) -> None:
        if self._thread:
            self._thread.shutdown()
        self.is_closed = True


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_callers_own_stager_before_a_callers_own_process(
    asynchronous: bool, process: CheckpointProcess, checkpoint: Path
) -> None:
    stager = Doubling(asynchronous)
    checkpointer = AsyncCheckpointer(stager, process, CheckpointReader(RANK))
    for step in (1, 2):
        staged, written = checkpointer.save(str(checkpoint), {"w": torch.full((3,), float(step))}, tag=step)
        assert staged.result() is None
        assert written.result() is None
        assert_same(checkpointer.load(str(checkpoint)), {"w": torch.full((3,), 2.0 * step)})
    assert stager.keywords == [{"tag": 1}, {"tag": 2}]
    stager.close()


class Watching(DefaultStager):
    """Notes at each staging whether `first`, an earlier save, is complete."""

    first: Future[Any] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def stage(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any] | Future[dict[str, Any]]:
        if self.first is not None:
            self.seen.append(self.first.done())
        return super().stage(state_dict, **kwargs)


def test_a_save_waits_for_the_one_before(
    process: CheckpointProcess, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stager = Watching()
    checkpointer = AsyncCheckpointer(stager, process, CheckpointReader(RANK))
    gate = Gate(tmp_path / "gate")
    w = torch.ones(3)
    staged, first = checkpointer.save(str(checkpoint), {"w": w}, gate=gate.name)
    staged.result()
    w.fill_(2)  # staged values do not change
    assert not first.done()
    stager.first = first
    wait = first.result

    def open_and_wait(*arguments: Any) -> Any:
        if not first.done():
            gate.open()  # the first save ends only when a caller waits for the first save
        return wait(*arguments)

    monkeypatch.setattr(first, "result", open_and_wait)
    second = checkpointer.save(str(checkpoint) + "-2", {"w": w})
    first.result()
    second[1].result()
    assert stager.seen == [True]
    assert_same(checkpointer.load(str(checkpoint)), {"w": torch.ones(3)})
    assert_same(checkpointer.load(str(checkpoint) + "-2"), {"w": w})


def test_a_failed_save_is_reported_once_by_the_next_save(process: CheckpointProcess, checkpoint: Path) -> None:
    checkpointer = AsyncCheckpointer(DefaultStager(), process, CheckpointReader(RANK))
    checkpointer.save(str(checkpoint), {"step": 1}, order="fail")
    with pytest.raises(RuntimeError, match="as ordered"):
        checkpointer.save(str(checkpoint), {"step": 2})
    with pytest.raises(FileNotFoundError):
        checkpointer.load(str(checkpoint))
    checkpointer.save(str(checkpoint), {"step": 3})[1].result()
    assert checkpointer.load(str(checkpoint)) == {"step": 3}


def test_the_process_runs_a_callers_own_functions(checkpoint: Path) -> None:
    checkpointer = make_async_checkpointer(
        CheckpointerConfig(),
        subprocess_init_fn=set_note,
        subprocess_init_args=("made",),
        checkpoint_writer_init_fn=noting_writer,
        checkpoint_writer_init_args={"wants": 5},
    )
    checkpointer.save(str(checkpoint), {"step": 1})
    checkpointer.close()
    assert " made " in Path(f"{checkpoint}.note").read_text()
    assert checkpointer.load(str(checkpoint)) == {"step": 1}


class Failing(CheckpointProcess):
    """Every write fails."""

    def __init__(self) -> None:
        pass

    def write(self, state_dict: Any, path: str, **kwargs: Any) -> Future[None]:
        failed: Future[None] = Future()
        failed.set_exception(LookupError(path))
        return failed

    def close(self) -> None:
        pass


def test_close_raises_an_unretrieved_failure() -> None:
    checkpointer = AsyncCheckpointer(DefaultStager(), Failing(), CheckpointReader(RANK))
    checkpointer.save("first", {"step": 1})
    with pytest.raises(LookupError, match="first"):
        checkpointer.close()
    checkpointer.close()
    _, written = checkpointer.save("second", {"step": 1})
    with pytest.raises(LookupError, match="second"):
        written.result()
    checkpointer.close()


def test_a_wrapped_future_keeps_no_state() -> None:
    tensor = torch.ones(3)
    watched = weakref.ref(tensor)
    staged: Future[dict[str, Any]] = Future()
    wrapped = wrap_future(staged)
    staged.set_result({"w": tensor})
    del staged, tensor
    gc.collect()
    assert wrapped.done()
    assert watched() is None


def test_storages_of_several_sizes_at_one_address(process: CheckpointProcess, checkpoint: Path) -> None:
    memory = bytearray(range(256))
    state = {
        "head": torch.frombuffer(memory, dtype=torch.uint8, count=16),
        "whole": torch.frombuffer(memory, dtype=torch.uint8),
        "next": torch.zeros(512, dtype=torch.uint8),
    }
    result(process.write(state, str(checkpoint)))
    assert_same(alone().load(str(checkpoint)), state)


@contextlib.contextmanager
def one_second() -> Iterator[None]:
    """Sets the deadlines of blocking saves to one second: for a process that hangs, not for the start of a process."""
    cairn.configure_saves(deadline_seconds=1, sync_deadline_seconds=1, publish_deadline_seconds=1)
    try:
        yield
    finally:
        cairn.configure_saves()


def test_a_writer_that_hangs_is_given_up(process: CheckpointProcess, checkpoint: Path, tmp_path: Path) -> None:
    result(process.write({"step": 0}, str(checkpoint)))
    gate = Gate(tmp_path / "gate")
    words = r"rank 0 used no CPU time and moved no byte for 1 s .*configure_saves"
    with one_second(), pytest.raises(TimeoutError, match=words):
        result(process.write({"step": 1}, str(checkpoint), gate=gate.name))
    assert alone().load(str(checkpoint)) == {"step": 0}
    result(process.write({"step": 2}, str(checkpoint)))
    assert alone().load(str(checkpoint)) == {"step": 2}


def test_a_stopped_process_is_given_up(process: CheckpointProcess, checkpoint: Path) -> None:
    result(process.write({"step": 1}, str(checkpoint)))
    os.kill(process.process.pid, signal.SIGSTOP)
    more_than_a_pipe_holds = "x" * (1 << 22)
    with one_second(), pytest.raises(TimeoutError, match="used no CPU time"):
        result(process.write({"step": 2}, str(checkpoint), answer=more_than_a_pipe_holds))
    assert alone().load(str(checkpoint)) == {"step": 1}


def test_the_work_of_descendants_counts() -> None:
    # The shell waits for a busy child, which runs until the kill.
    busy = subprocess.Popen(["sh", "-c", "(while :; do :; done) & wait"], start_new_session=True)
    try:
        activity = ProcessActivity(busy.pid)
        assert activity.idle_seconds() == 0, "the first look"
        while activity.idle_seconds() > 0:  # until the counters have changed
            time.sleep(0.01)
        os.killpg(busy.pid, signal.SIGSTOP)
        while activity.idle_seconds() < 0.5:
            time.sleep(0.01)
    finally:
        os.killpg(busy.pid, signal.SIGKILL)
        busy.wait()


# --- the native process


@pytest.fixture
def native() -> Iterator[AsyncCheckpointer]:
    checkpointer = make_async_checkpointer()
    yield checkpointer
    checkpointer.close()


def test_by_default_no_python_runs_in_the_process() -> None:
    process = CheckpointProcess(
        RANK, CheckpointProcessConfig(), default_subprocess_init_fn, (), default_writer_init_fn, {}
    )
    assert process.is_native
    assert process.process is None
    process.process_creation_future.result()
    process.close()


def test_the_native_process_writes_the_staged_state(native: AsyncCheckpointer, checkpoint: Path) -> None:
    for step in range(3):
        w = torch.full((1000,), float(step))
        state = {**STATE, "w": w, "n": step}
        expected = {**STATE, "w": w.clone(), "n": step}
        staged, written = native.save(str(checkpoint), state)
        assert written.progress().phase in ("staging", "writing", "waiting", "committing", "ended")  # type: ignore[attr-defined]
        staged.result()
        w.fill_(-1)
        state["n"] = -1
        written.result()
        assert_same(native.load(str(checkpoint)), expected)
        template = blank(expected)
        assert_same(native.load(str(checkpoint), template, strict=True), expected)


def save_beside_others(directory: Path) -> None:
    """Saves and loads the rank's own state, under keys that the second rank uses too."""
    checkpointer = make_async_checkpointer()
    for step in range(2):
        state = {"w": torch.full((100,), dist.get_rank() + 10.0 * step), "only": {dist.get_rank(): step}}
        checkpointer.save(str(directory), state)[1].result()
        assert_same(checkpointer.load(str(directory)), state)
    checkpointer.close()


def test_ranks_save_side_by_side(two: Gang, checkpoint: Path) -> None:
    two.run(save_beside_others, checkpoint)
    names = {path.name for path in checkpoint.iterdir()}
    assert {"__0.metadata", "__1.metadata"} <= names
    assert len(names) == 4, "nothing of what was replaced"


def test_staging_may_block(checkpoint: Path) -> None:
    config = CheckpointerConfig(staging_config=CheckpointStagerConfig(use_async_staging=False))
    checkpointer = make_async_checkpointer(config, rank_info=RankInfo(3, 4))
    staged, written = checkpointer.save(str(checkpoint), STATE)
    assert staged.done()
    written.result()
    assert {path.name for path in checkpoint.iterdir()} == {"__3.metadata", "__3_0.distcp"}
    assert_same(checkpointer.load(str(checkpoint)), STATE)
    checkpointer.close()


def test_a_callers_own_stager_before_the_native_process(checkpoint: Path) -> None:
    process = CheckpointProcess(
        RANK, CheckpointProcessConfig(), default_subprocess_init_fn, (), default_writer_init_fn, {}
    )
    stager = Doubling(asynchronous=True)
    checkpointer = AsyncCheckpointer(stager, process, CheckpointReader(RANK))
    _, written = checkpointer.save(str(checkpoint), {"w": torch.ones(3)})
    written.result()
    assert_same(checkpointer.load(str(checkpoint)), {"w": torch.full((3,), 2.0)})
    checkpointer.close()
    assert stager.is_closed


def test_a_failed_native_save_is_reported_by_the_next_save(native: AsyncCheckpointer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        native.save(str(tmp_path / "file"), {"w": torch.ones(3)})
        native.save(str(tmp_path / "there"), {"w": torch.ones(3)})
    native.save(str(tmp_path / "there"), {"w": torch.ones(3)})[1].result()
    assert_same(native.load(str(tmp_path / "there")), {"w": torch.ones(3)})
