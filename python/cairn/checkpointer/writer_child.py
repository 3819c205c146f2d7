"""A Python process that runs somebody's CheckpointWriter, for programs that bring their own.

It is spawned: a fresh interpreter, which imports torch. A write that fails is reported, with its exception, and the
child is ready for the next; a child that died is replaced by a new one at the next write. It ends with its parent.
"""

import contextlib
import multiprocessing.connection
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import torch.multiprocessing as mp

from cairn.checkpointer.rank_info import RankInfo
from cairn.checkpointer.worker_messages import (
    RESPONSE_BYTES_MAX,
    RequestType,
    SharedState,
    WorkerRequest,
    WorkerResponse,
)
from cairn.errors import Error


class ProcessFailure(Error, RuntimeError):
    """The checkpoint process has died, or could not do what it was asked to; the cause, if it is known, is chained."""

    code = "kUnavailable"


class ProcessTimeout(ProcessFailure, TimeoutError):
    """The checkpoint process did not get ready in time."""


class WriterChild:
    """The parent's side. One thread at a time."""

    def __init__(self, rank_info: RankInfo, init: tuple[Callable[..., None], tuple[Any, ...]], writer: Any) -> None:
        """`init` is called first, with its arguments; `writer` is what makes the CheckpointWriter, with keywords."""
        self._arguments = (rank_info, *init, *writer)
        self._rank = rank_info.global_rank
        self._pipe: Connection | None = None
        self.process: Any = None

    def start(self, timeout_secs: float) -> None:
        """Makes sure that a child is there and ready. Raises ProcessTimeout, ProcessFailure."""
        if self._pipe is not None and self.process.is_alive():
            return
        self._drop()
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self.process.start()
        theirs.close()  # so that the child's death ends what comes through the pipe
        try:
            self._ask(RequestType.PING, {}, timeout_secs)
        except BaseException:
            self._drop()
            raise

    def write(self, state: Any, path: str, kwargs: dict[str, Any]) -> None:
        """Returns when the child's writer has. Raises ProcessFailure."""
        shared = SharedState.of(state)  # lives until the child is done with it
        self._ask(RequestType.WRITE_CHECKPOINT, {"state_dict": shared, "path": path, "kwargs": kwargs}, None)

    def stop(self, timeout_secs: float) -> None:
        """Lets the child end, and kills it if that takes longer."""
        if self.process is not None and self.process.is_alive():
            with contextlib.suppress(ProcessFailure):
                self._ask(RequestType.TERMINATE_PROCESS, {}, timeout_secs)
                self.process.join(timeout_secs)
        self._drop()

    def _ask(self, request: RequestType, payload: dict[str, Any], timeout_secs: float | None) -> None:
        assert self._pipe is not None
        try:
            self._pipe.send(WorkerRequest(request, payload))
            ready = multiprocessing.connection.wait([self._pipe, self.process.sentinel], timeout_secs)
            if not ready:
                raise ProcessTimeout(
                    f"Timed out: the checkpoint process was not ready within {timeout_secs:g} s ({request.value})",
                    rank=self._rank,
                )
            # What it said before it died is there still.
            response = WorkerResponse.decode(self._pipe.recv_bytes(RESPONSE_BYTES_MAX))
        except (EOFError, ConnectionError) as error:
            self.process.join()
            raise ProcessFailure(
                f"Child process terminated unexpectedly (exit code {self.process.exitcode}) during "
                f"'{request.value}' of rank {self._rank}",
                rank=self._rank,
                actual=str(self.process.exitcode),
            ) from error
        if not response.success:
            raise ProcessFailure(
                f"the checkpoint process of rank {self._rank} failed at '{request.value}':\n{response.error_msg}",
                rank=self._rank,
            ) from (response.payload or {}).get("exception")

    def _drop(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self.process is not None:
            if self.process.is_alive():
                self.process.kill()
            self.process.join()


def _serve(
    pipe: Connection,
    rank_info: RankInfo,
    init: Callable[..., None],
    init_args: tuple[Any, ...],
    make_writer: Callable[..., Any],
    writer_args: dict[str, Any],
) -> None:
    """The child's side."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; what is staged is written
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
                del received  # with the memory of the state
                response = WorkerResponse(request, success=True).encode()
            except Exception as error:
                response = _failure(request, error)
            pipe.send_bytes(response)


def _write(writer: Any, state_dict: SharedState, path: str, kwargs: dict[str, Any]) -> None:
    written = writer.write(path=path, state_dict=state_dict.restored(), **kwargs)
    if isinstance(written, Future):
        written.result()


def _failure(request: RequestType, error: Exception) -> bytes:
    return WorkerResponse(request, False, traceback.format_exc(), {"exception": error}).encode()
