"""A Python process that runs a CheckpointWriter of the caller's own.

The child is spawned: a fresh interpreter, which imports torch. The child reports a failed write, with its exception,
and is ready for the next write; the next write replaces a dead child. The child ends with its parent.

Every wait for the child has a deadline. Start and end have fixed deadlines. A write runs the caller's code, which
reports no progress: the parent kills the child when the child's process has done no work (:mod:`process_activity`) for
the longest of the deadlines of :func:`cairn.configure_saves`. Inside the child, those deadlines limit each call of
Cairn's own writer into the storage.
"""

import contextlib
import functools
import multiprocessing.connection
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch.multiprocessing as mp

from cairn._settings import configure_saves, save_deadlines
from cairn.checkpointer.process_activity import ProcessActivity
from cairn.checkpointer.rank_info import RankInfo
from cairn.checkpointer.worker_messages import (
    RESPONSE_BYTES_MAX,
    RequestType,
    SharedState,
    WorkerRequest,
    WorkerResponse,
)
from cairn.errors import Error

_LOOK_SECONDS = 1.0  # between checks of a child without an answer
_KILL_SECONDS = 10.0  # a killed process ends at once, unless the kernel waits for its storage


class ProcessFailure(Error, RuntimeError):
    """The checkpoint process has died, or a request to it failed; a known cause is chained."""

    code = "kUnavailable"


class ProcessTimeout(ProcessFailure, TimeoutError):
    """The checkpoint process did not get ready in time, or stopped working on a write, and was killed."""


class WriterChild:
    """The parent's side. One thread at a time."""

    def __init__(self, rank_info: RankInfo, init: tuple[Callable[..., None], tuple[Any, ...]], writer: Any) -> None:
        """`init`: the function that the child calls first, and its arguments. `writer`: the function that makes the
        CheckpointWriter, and its keywords."""
        self._arguments = (rank_info, *init, *writer)
        self._rank = rank_info.global_rank
        self._pipe: Connection | None = None
        self.process: Any = None

    def start(self, timeout_secs: float) -> None:
        """Starts a child unless a live child is ready. Raises ProcessTimeout, ProcessFailure."""
        if self._pipe is not None and self.process.is_alive():
            return
        self._drop()
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self.process.start()
        theirs.close()  # the child's death then ends the pipe
        try:
            self._ask(RequestType.PING, {}, _until(timeout_secs, "was not ready within"))
        except BaseException:
            self._drop()
            raise

    def write(self, state: Any, path: str, kwargs: dict[str, Any]) -> None:
        """Returns when the child's writer has returned. Raises ProcessFailure; ProcessTimeout if the child stopped
        working."""
        self.write_shared(SharedState.of(state), path, kwargs)

    def write_shared(self, shared: SharedState, path: str, kwargs: dict[str, Any]) -> None:
        """As write(), with a state that is shared already."""
        assert self.process is not None
        deadlines = save_deadlines()
        payload = {"state_dict": shared, "path": path, "kwargs": kwargs, "deadlines": deadlines}
        activity = ProcessActivity(self.process.pid)
        expired = functools.partial(_has_stopped, activity, max(deadlines))
        self._ask(RequestType.WRITE_CHECKPOINT, payload, expired)

    def stop(self, timeout_secs: float) -> None:
        """Asks the child to end, and kills the child after `timeout_secs`."""
        if self.process is not None and self.process.is_alive():
            with contextlib.suppress(ProcessFailure):
                self._ask(RequestType.TERMINATE_PROCESS, {}, _until(timeout_secs, "did not end within"))
                self.process.join(timeout_secs)
        self._drop()

    def _ask(self, request: RequestType, payload: dict[str, Any], expired: Callable[[], str]) -> None:
        """Sends a request and waits for the response. `expired` returns the reason to give the child up; empty until
        then."""
        assert self._pipe is not None
        try:
            self._send(self._pipe, WorkerRequest(request, payload))
            while not multiprocessing.connection.wait([self._pipe, self.process.sentinel], _LOOK_SECONDS):
                if reason := expired():
                    self._drop()
                    raise ProcessTimeout(
                        f"Timed out: the checkpoint process of rank {self._rank} {reason} ({request.value})",
                        rank=self._rank,
                    )
            # The pipe still holds the response of a child that has died since.
            response = WorkerResponse.decode(self._pipe.recv_bytes(RESPONSE_BYTES_MAX))
        except ProcessFailure:
            raise
        except (EOFError, ConnectionError) as error:
            self.process.join(_KILL_SECONDS)
            raise ProcessFailure(
                f"Child process terminated unexpectedly (exit code {self.process.exitcode}) during "
                f"'{request.value}' of rank {self._rank}",
                rank=self._rank,
                actual=str(self.process.exitcode),
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._drop()  # the pipe may hold the rest of the answer
            raise ProcessFailure(
                f"the checkpoint process of rank {self._rank} gave an unreadable answer ('{request.value}'): {error}",
                rank=self._rank,
            ) from error
        if not response.success:
            raise ProcessFailure(
                f"the checkpoint process of rank {self._rank} failed at '{request.value}':\n{response.error_msg}",
                rank=self._rank,
            ) from (response.payload or {}).get("exception")

    @staticmethod
    def _send(pipe: Connection, request: WorkerRequest) -> None:
        """Sends `request` in a thread, because a child that does not read blocks the sender. Raises if `request` can't
        be pickled."""
        message = ForkingPickler.dumps(request)

        def send() -> None:
            with contextlib.suppress(OSError, TypeError):  # the child has died or was killed, and the pipe is closed
                pipe.send_bytes(message)

        threading.Thread(target=send, name="cairn-request", daemon=True).start()

    def _drop(self) -> None:
        if self.process is not None:
            if self.process.is_alive():
                self.process.kill()
            self.process.join(_KILL_SECONDS)
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _until(timeout_secs: float, failing: str) -> Callable[[], str]:
    """Returns an `expired` function for WriterChild._ask: expires `timeout_secs` from now."""
    end = time.monotonic() + timeout_secs
    return lambda: f"{failing} {timeout_secs:g} s" if time.monotonic() >= end else ""


def _has_stopped(activity: ProcessActivity, seconds: float) -> str:
    """Returns the reason for WriterChild._ask when the process has done no work for `seconds`; "" before."""
    if activity.idle_seconds() < seconds:
        return ""
    return (
        f"used no CPU time and moved no byte for {seconds:g} s (the longest deadline of cairn.configure_saves) and was "
        f"killed: its writer, or the storage, hangs; the next write starts a new process"
    )


def _serve(
    pipe: Connection,
    rank_info: RankInfo,
    init: Callable[..., None],
    init_args: tuple[Any, ...],
    make_writer: Callable[..., Any],
    writer_args: dict[str, Any],
) -> None:
    """Runs the child's side."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; the child finishes the staged state
    try:
        init(*init_args)
        writer = make_writer(**{"rank_info": rank_info, **writer_args})
    except Exception as error:
        pipe.send_bytes(_failure(RequestType.PING, error))
        return
    with contextlib.suppress(EOFError, ConnectionError), contextlib.closing(writer):  # the parent is gone
        request = RequestType.PING
        while request is not RequestType.TERMINATE_PROCESS:
            received: WorkerRequest = pipe.recv()
            request = received.request_type
            try:
                if request is RequestType.WRITE_CHECKPOINT:
                    _write(writer, **received.payload)
                del received  # frees the memory of the state
                response = WorkerResponse(request, success=True).encode()
            except Exception as error:
                response = _failure(request, error)
            pipe.send_bytes(response)


def _write(
    writer: Any, state_dict: SharedState, path: str, kwargs: dict[str, Any], deadlines: tuple[float, float, float]
) -> None:
    progress, sync, publish = deadlines
    configure_saves(deadline_seconds=progress, sync_deadline_seconds=sync, publish_deadline_seconds=publish)
    written = writer.write(path=path, state_dict=state_dict.restored(), **kwargs)
    if isinstance(written, Future):
        written.result()


def _failure(request: RequestType, error: Exception) -> bytes:
    return WorkerResponse(request, False, traceback.format_exc(), {"exception": error}).encode()
