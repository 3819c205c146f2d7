"""Every request of cairn.nvrx ends, on every rank: written, failed or aborted. NVRx waits for ever in these tests.

A task of the ranks has a deadline (`ranks.Gang`), and so has each wait of the programs.
"""

import functools
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Gang
from saving_programs import appears, no_commit_in, running
from test_nvrx import holds, planned, save, state
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

import cairn
from cairn.nvrx.async_ckpt import core
from cairn.nvrx.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from cairn.nvrx.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

both = pytest.mark.parametrize("persistent", [True, False])


def on_rank(rank: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result; None on the other ranks."""
    return function(*arguments) if dist.get_rank() == rank else None


def fail(text: str) -> None:
    raise OSError(28, text)


def write(path: Path, tensor: torch.Tensor) -> None:
    path.write_bytes(tensor.numpy().tobytes())


def hang(gate: Path) -> None:
    """Waits until the process is killed, and says so."""
    gate.with_suffix(".reached").touch()
    while True:
        signal.pause()


def failure_of(queue: AsyncCallsQueue) -> CheckpointException:
    """The error of the first request, on this rank."""
    with pytest.raises(CheckpointException) as raised:
        queue.maybe_finalize_async_calls(blocking=True)
    return raised.value


def may_have_children() -> None:
    """The processes of the ranks are daemons, which may have no children. A trainer is not."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def request(function: Callable[..., Any] | None, *arguments: Any, finalizers: Any = ()) -> AsyncRequest:
    return AsyncRequest(function, arguments, list(finalizers))


# --- C1, C2: the function or the preload raises


def raise_in_function(persistent: bool, folder: Path) -> Any:
    may_have_children()
    queue = AsyncCallsQueue(persistent=persistent)
    finalized: list[int] = []
    path = folder / f"{persistent}-{dist.get_rank()}"
    queue.schedule_async_request(
        request(fail, "no space", finalizers=[lambda: finalized.append(0)]) if dist.get_rank() else request(None)
    )
    queue.schedule_async_request(request(write, path, torch.ones(2), finalizers=[lambda: finalized.append(1)]))
    error = failure_of(queue)
    again = queue.maybe_finalize_async_calls(blocking=True)
    queue.close()
    return sorted(error.failures), finalized, again, path.read_bytes() == torch.ones(2).numpy().tobytes(), str(error)


@both
def test_an_error_of_the_function_is_raised_on_every_rank(two: Gang, tmp_path: Path, persistent: bool) -> None:
    for failures, finalized, again, is_written, text in two.run(raise_in_function, persistent, tmp_path):
        assert failures == [1]
        assert finalized == [1]
        assert again == [1]
        assert is_written
        assert "no space" in text


class RefusingPlanner(DefaultSavePlanner):
    def create_local_plan(self) -> SavePlan:
        if dist.get_rank():
            raise LookupError("no plan")
        return super().create_local_plan()


def raise_in_preload(folder: Path) -> Any:
    may_have_children()
    queue = AsyncCallsQueue()

    def preload() -> torch.Tensor:
        return fail("no memory") if dist.get_rank() else torch.ones(2)  # type: ignore[return-value]

    queue.schedule_async_request(AsyncRequest(write, (folder / "file", None), [], preload_fn=preload))
    errors = [failure_of(queue)]
    with pytest.raises(CheckpointException) as raised:
        planned(folder / "refused", state(1), None, RefusingPlanner())
    queue.close()
    return [sorted(error.failures) for error in (*errors, raised.value)]


def test_an_error_of_the_preload_or_of_the_plan_is_raised_on_every_rank(two: Gang, tmp_path: Path) -> None:
    assert two.run(raise_in_preload, tmp_path) == [[[1], [1]]] * 2
    assert (tmp_path / "file").exists()


def save_into_a_file(directory: Path) -> Any:
    queue = AsyncCallsQueue()
    finalized: list[int] = []
    made, _ = planned(directory, state(1), None, None)
    made.add_finalize_fn(lambda: finalized.append(1))
    queue.schedule_async_request(made)
    error = failure_of(queue)
    queue.close()
    with pytest.raises(CheckpointException):
        planned(directory, state(1), None, None)[0].execute_sync()
    return isinstance(error, cairn.Error), finalized


def test_a_write_that_fails_is_raised_on_every_rank(two: Gang, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert two.run(save_into_a_file, tmp_path / "file") == [(True, [])] * 2


# --- C3: the process dies


def kill_function(folder: Path) -> Any:
    may_have_children()
    queue = AsyncCallsQueue()
    gate = folder / f"gate{dist.get_rank()}"
    path = folder / f"{dist.get_rank()}"
    queue.schedule_async_request(request(hang, gate) if dist.get_rank() else request(None))
    if dist.get_rank():
        while not gate.with_suffix(".reached").exists():
            time.sleep(0.01)
        assert queue._process is not None
        os.kill(queue._process._child.process.pid, signal.SIGKILL)
    failures = sorted(failure_of(queue).failures)
    queue.schedule_async_request(request(write, path, torch.ones(2)))
    finalized = queue.maybe_finalize_async_calls(blocking=True)
    queue.close()
    return failures, finalized, path.exists()


def test_a_killed_process_fails_its_request_and_the_next_request_works(two: Gang, tmp_path: Path) -> None:
    assert two.run(kill_function, tmp_path) == [([1], [1], True)] * 2


def kill_writer(directory: Path) -> Any:
    queue = AsyncCallsQueue()
    finalized: list[int] = []
    made, _ = planned(directory, state(1), None, None)
    made.add_finalize_fn(lambda: finalized.append(1))
    queue.schedule_async_request(made)
    assert queue._saver is not None
    killed = queue._saver.writer_pid
    if dist.get_rank():
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
    error = failure_of(queue)
    assert (directory / ".metadata").exists() is False
    return isinstance(error, cairn.Unavailable), finalized


def test_a_killed_writer_fails_the_save_on_every_rank_and_the_next_save_works(two: Gang, checkpoint: Path) -> None:
    with no_commit_in(checkpoint):
        assert two.run(kill_writer, checkpoint) == [(True, [])] * 2
    two.run(save_once, checkpoint, 2)
    holds(checkpoint, 2)


def save_once(directory: Path, step: int) -> None:
    queue = AsyncCallsQueue()
    save(queue, directory, state(step))
    queue.close()


# --- C4: a rank with nothing to write


def write_on_one_rank(folder: Path) -> Any:
    may_have_children()
    queue = AsyncCallsQueue()
    finalized = []
    for number, function in enumerate((write, write if dist.get_rank() else None)):
        queue.schedule_async_request(request(function, folder / f"{number}-{dist.get_rank()}", torch.ones(2)))
        finalized += queue.maybe_finalize_async_calls(blocking=True)
    made, _ = planned(folder / "save", {"b": torch.ones(3)}, None, None)
    queue.schedule_async_request(made)
    finalized += queue.maybe_finalize_async_calls(blocking=True)
    queue.close()
    return finalized


def test_a_rank_without_data_does_not_wait(two: Gang, tmp_path: Path) -> None:
    assert two.run(write_on_one_rank, tmp_path) == [[0, 1, 2]] * 2
    assert {path.name for path in tmp_path.iterdir()} == {"0-0", "0-1", "1-1", "save"}
    assert cairn.open(tmp_path / "save").keys() == {"b"}


# --- C5, C6: two saves under way, and their order


def schedule_two(folder: Path) -> Any:
    queue = AsyncCallsQueue()
    seen: list[tuple[str, bool]] = []
    content = state(1)
    for name in ("held", "free"):
        made, _ = planned(folder / name, content, None, None)
        made.add_finalize_fn(lambda name=name: seen.append((name, (folder / name / ".metadata").exists())))
        queue.schedule_async_request(made)
        content["b"].fill_(2)  # the first save has its copy
        content["step"] = 2
        content["w"] += 100
        for key in content:
            if key.startswith("own"):
                content[key].fill_(2)
    none_yet = queue.maybe_finalize_async_calls()
    waiting = queue.get_num_unfinalized_calls()
    dist.barrier()
    (folder / "scheduled").touch()
    indices = queue.maybe_finalize_async_calls(blocking=True)
    queue.close()
    return none_yet, waiting, indices, seen


def test_a_second_save_does_not_wait_for_the_first_and_finalizers_run_in_order(two: Gang, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        with no_commit_in(tmp_path / "held"):
            results = thread.submit(two.run, schedule_two, tmp_path)
            while not results.done() and not (tmp_path / "scheduled").exists():
                time.sleep(0.01)
        assert results.result() == [([], 2, [0, 1], [("held", True), ("free", True)])] * 2
    holds(tmp_path / "held", 1)
    holds(tmp_path / "free", 2)


def finalize_different_requests() -> Any:
    queue = AsyncCallsQueue()
    for _ in range(3):
        queue.schedule_async_request(request(None))
    alone = queue.maybe_finalize_async_calls(no_dist=True) if dist.get_rank() == 1 else []
    queue.schedule_async_request(request(None))
    others = queue.schedule_async_request(request(None)) if dist.get_rank() == 1 else None
    with pytest.raises(cairn.InvalidArgument, match="different requests"):
        queue.maybe_finalize_async_calls(blocking=True)
    queue.close(abort=True)
    return alone, others


def test_ranks_that_finalize_different_requests_raise(two: Gang) -> None:
    assert two.run(finalize_different_requests) == [([], None), ([0, 1, 2], 4)]


# --- C7, C8: abort


def abort_then_save(directory: Path, folder: Path) -> Any:
    queue = AsyncCallsQueue()
    finalized: list[int] = []
    made, _ = planned(directory, state(1), None, None)
    made.add_finalize_fn(lambda: finalized.append(1))
    queue.schedule_async_request(made)
    call = queue.async_calls[0]
    assert queue._saver is not None
    notes = folder / f"{dist.get_rank()}.tmp"
    notes.write_text(str(queue._saver.writer_pid))
    notes.rename(notes.with_suffix(".pid"))
    core.abort_nvrx_checkpoint()
    assert call.state is core.CallState.ABORTED
    assert call.end.done()
    dist.barrier()
    save(queue, folder / "other", state(2))
    queue.close()
    return finalized


def is_running(pid: str) -> bool:
    """Whether a process of this number works; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_aborted_save_never_commits_and_is_never_finalized(two: Gang, checkpoint: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        with no_commit_in(checkpoint):
            results = thread.submit(two.run, abort_then_save, checkpoint, tmp_path)
            pids = [tmp_path / "0.pid", tmp_path / "1.pid"]
            while not results.done() and not all(pid.exists() for pid in pids):
                time.sleep(0.01)
            while not results.done() and any(is_running(pid.read_text()) for pid in pids):
                time.sleep(0.01)
        assert results.result() == [[], []]
    assert not (checkpoint / ".metadata").exists()
    holds(tmp_path / "other", 2)
    two.run(save_once, checkpoint, 3)
    assert not list(checkpoint.glob(".cairn-*"))
    holds(checkpoint, 3)


class Hanging:
    """Unpickling, in the process that saves, reads a pipe that has no writer."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self.pipe = pipe

    def __reduce__(self) -> Any:
        return Path.read_text, (self.pipe,)


def test_torch_async_checkpoint_saves_copies_and_aborts_at_once(tmp_path: Path) -> None:
    checkpointer = TorchAsyncCheckpoint()
    content = {"w": torch.ones(1000), "more": (torch.zeros(3), [1, "two"])}
    checkpointer.async_save(content, tmp_path / "file")
    content["w"].fill_(7)  # type: ignore[attr-defined]
    checkpointer.finalize_async_save(blocking=True)
    loaded = torch.load(tmp_path / "file")
    assert torch.equal(loaded["w"], torch.ones(1000))
    assert loaded["more"][1] == [1, "two"]
    checkpointer.async_save(Hanging(tmp_path / "pipe"), tmp_path / "file")
    checkpointer.close(abort=True)
    assert torch.equal(torch.load(tmp_path / "file")["w"], torch.ones(1000))
    checkpointer.save({"w": 1}, tmp_path / "file")
    assert torch.load(tmp_path / "file") == {"w": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"file", "pipe"}


def test_torch_async_checkpoint_raises_the_error_of_a_save(tmp_path: Path) -> None:
    checkpointer = TorchAsyncCheckpoint(persistent_queue=False)
    checkpointer.async_save({"w": torch.ones(3)}, tmp_path / "missing" / "file")
    with pytest.raises(cairn.Error, match="missing"):
        checkpointer.finalize_async_save(blocking=True)
    checkpointer.close()


# --- C9: a finalizer raises


def raise_in_finalizer() -> Any:
    queue = AsyncCallsQueue()
    called: list[int] = []
    queue.schedule_async_request(
        request(None, finalizers=[functools.partial(on_rank, 0, fail, "tracker"), lambda: called.append(0)])
    )
    queue.schedule_async_request(request(None, finalizers=[lambda: called.append(1)]))
    first = queue.async_calls[0]
    error = failure_of(queue)
    rest = queue.maybe_finalize_async_calls(blocking=True)
    queue.close()
    return sorted(error.failures), rest, first.state is core.CallState.FAILED, called


def test_an_error_of_a_finalizer_is_raised_on_every_rank_and_the_rest_goes_on(two: Gang) -> None:
    zero, one = two.run(raise_in_finalizer)
    assert zero == ([0], [1], True, [1])
    assert one == ([0], [1], True, [0, 1])


# --- the end of the queue and of the trainer


def drop_queue() -> None:
    queue = AsyncCallsQueue()
    queue.schedule_async_request(request(None))
    if dist.get_rank() == 0:  # the other rank is not in the same call
        del queue
        gc.collect()
        return
    queue.maybe_finalize_async_calls(no_dist=True)


def test_a_dropped_queue_sends_nothing_to_other_ranks(two: Gang) -> None:
    two.run(drop_queue)


KILLED = """
    from cairn.nvrx.async_ckpt.core import AsyncCallsQueue, AsyncRequest
    from cairn.nvrx.async_ckpt.filesystem_async import FileSystemWriterAsync
    from cairn.nvrx.async_ckpt.state_dict_saver import save_state_dict_async_finalize, save_state_dict_async_plan

    AsyncCallsQueue.warmup_persistent_caller(0, cpu_priority=5, io_priority=3)
    queue = AsyncCallsQueue(persistent=True)
    writer = FileSystemWriterAsync(directory, thread_count=2)
    result = save_state_dict_async_plan(state(1), writer)
    write, preload, arguments = writer.get_save_function_and_args()
    queue.schedule_async_request(AsyncRequest(write, arguments, [], preload_fn=preload))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_that_is_killed_after_schedule_leaves_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    with no_commit_in(checkpoint), running(tmp_path, KILLED, checkpoint, "PROCESS") as program:
        assert program.wait() == -signal.SIGKILL, program.errors()
        assert not (checkpoint / ".metadata").exists()
    assert appears(checkpoint, 1)
