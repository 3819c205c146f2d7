"""Runs of a request's own function, such as ``torch.save``, in another process.

Saves of :class:`cairn.nvrx.async_ckpt.filesystem_async.FileSystemWriterAsync` don't come here: Cairn's native writer
makes them. A run copies the function's arguments before the call returns: the caller may change its tensors at once.
Every run ends: the future gets the function's exception, ProcessFailure if the process died, or ProcessTimeout if the
process did no work for the longest of the deadlines of :func:`cairn.configure_saves`.
"""

import contextlib
import functools
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from cairn._async import pending_saves
from cairn._settings import save_deadlines
from cairn.checkpointer.process_activity import ProcessActivity
from cairn.checkpointer.rank_info import RankInfo
from cairn.checkpointer.worker_messages import RESPONSE_BYTES_MAX, RequestType, SharedState, WorkerResponse
from cairn.checkpointer.writer_child import ProcessFailure, ProcessTimeout, WriterChild

_START_SECONDS = 300  # a new interpreter imports torch, on a busy machine and from network storage
_STOP_SECONDS = 60
_LOOK_SECONDS = 1.0


class Function(NamedTuple):
    """A function with its arguments."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Run(NamedTuple):
    """A function's run. `end` is done when the run has ended. `kill` ends the run soon; `end` then gets an error."""

    end: "Future[Any]"
    kill: Callable[[], None]


class FunctionProcess:
    """A spawned Python process that runs functions, one after the other. A dead process is replaced at the next run.

    Functions and arguments must be picklable, as for ``multiprocessing``.
    """

    def __init__(self, rank: int, ranks: int, nice: int) -> None:
        writer: Any = (_FunctionWriter, {})
        self._child = WriterChild(RankInfo(rank, ranks), (_raise_niceness, (nice,)), writer)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cairn-function")

    def start(self) -> "Future[None]":
        """Starts the process in the background."""
        return self._thread.submit(self._child.start, _START_SECONDS)

    def run(self, function: Function) -> Run:
        """Runs `function` after the functions of earlier calls. Raises if the function can't be pickled."""
        shared = SharedState.of(tuple(function), copy_shared=True)
        return Run(self._thread.submit(self._run, shared), self.kill)

    def kill(self) -> None:
        """Kills the process: the running function fails, and the next function starts a new process."""
        process = self._child.process
        if process is not None and process.is_alive():
            process.kill()

    def close(self, *, wait: bool) -> None:
        """Ends the process; if `wait`, after all functions. Otherwise functions that run or wait fail."""
        if wait:
            self._thread.submit(self._child.stop, _STOP_SECONDS).result()
        else:
            self.kill()
        self._thread.shutdown(wait=wait, cancel_futures=not wait)

    def _run(self, shared: SharedState) -> None:
        self._child.start(_START_SECONDS)
        self._child.write_shared(shared, "", {})


def run_in_fork(rank: int, function: Function) -> Run:
    """Runs `function` in a forked process, which sees the memory as it is now. The function needs no pickling."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function))
    process.start()
    theirs.close()  # the child's death then ends the pipe
    end: Future[None] = Future()
    end.set_running_or_notify_cancel()
    pending_saves.in_background(functools.partial(_follow, rank, process, ours, end))
    return Run(end, functools.partial(_kill, process))


def _kill(process: Any) -> None:
    with contextlib.suppress(ValueError):  # the process has ended and is closed
        process.kill()


def _follow(rank: int, process: Any, pipe: Connection, end: "Future[None]") -> None:
    try:
        answer = _await_answer(rank, process, pipe)
        if not answer.success:
            cause = (answer.payload or {}).get("exception")
            raise ProcessFailure(f"the function of rank {rank} failed:\n{answer.error_msg}", rank=rank) from cause
    except BaseException as error:
        end.set_exception(error)
    else:
        end.set_result(None)
    finally:
        pipe.close()
        process.kill()
        process.join()


def _await_answer(rank: int, process: Any, pipe: Connection) -> WorkerResponse:
    activity = ProcessActivity(process.pid)
    limit = max(save_deadlines())
    while not wait([pipe], _LOOK_SECONDS):
        if activity.idle_seconds() >= limit or pending_saves.is_leaving():
            raise ProcessTimeout(
                f"Timed out: the forked process of rank {rank} used no CPU time and moved no byte for {limit:g} s",
                rank=rank,
            )
    try:
        return WorkerResponse.decode(pipe.recv_bytes(RESPONSE_BYTES_MAX))
    except (EOFError, ConnectionError) as error:
        process.join(_STOP_SECONDS)
        raise ProcessFailure(
            f"the forked process of rank {rank} ended without an answer (exit code {process.exitcode})",
            rank=rank,
            actual=str(process.exitcode),
        ) from error


def _answer(pipe: Connection, function: Function) -> None:
    """Runs in the forked process."""
    try:
        function.call(*function.arguments, **function.keywords)
        answer = WorkerResponse(RequestType.WRITE_CHECKPOINT, success=True)
    except Exception as error:
        text = traceback.format_exc()
        answer = WorkerResponse(RequestType.WRITE_CHECKPOINT, False, text, {"exception": error})
    pipe.send_bytes(answer.encode())


class _FunctionWriter:
    """The writer of a WriterChild: the state is a Function."""

    def __init__(self, rank_info: RankInfo) -> None:
        threading.current_thread().name = f"rank {rank_info.global_rank}"

    def write(self, path: str, state_dict: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> None:
        """Calls the function."""
        call, arguments, keywords = state_dict
        call(*arguments, **keywords)

    def close(self) -> None:
        """Holds nothing."""


def _raise_niceness(nice: int) -> None:
    os.nice(max(nice - os.nice(0), 0))
