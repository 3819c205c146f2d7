"""AsyncRequest and AsyncCallsQueue, with the names of ``nvidia_resiliency_ext.checkpointing.async_ckpt.core``.

A scheduled request has one of the states of :class:`CallState` at any time. Each state but RUNNING is final:

1. RUNNING: the save or the function is under way, in another process. Every wait for it has a deadline.
2. COMMITTED: it has ended well on every rank. The finalizers run now, once, and only now.
3. FAILED: on some rank it has failed or its process has died, or a finalizer has raised. All ranks raise the error.
4. ABORTED: :meth:`AsyncCallsQueue.close` was called with ``abort=True``. The finalizers never run.
"""

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Any, NamedTuple, cast

import torch.distributed as dist

from cairn._async import pending_saves
from cairn._async.async_saver import AsyncSaver, DefaultSavers
from cairn._process import ProcessPart, part
from cairn._ranks.ranks import Ranks
from cairn._settings import IoPriority
from cairn.errors import InvalidArgument
from cairn.nvrx.function_runs import Function, FunctionProcess, Run, run_in_fork
from cairn.nvrx.staged_save import StageSave

_log = logging.getLogger("cairn")

_ABORT_SECONDS = 30.0  # a killed process ends at once, unless the kernel waits for its storage
_STAGED = 1  # the place in a request's arguments for the result of its preload_fn
_IO_PRIORITIES: dict[int | None, IoPriority | None] = {2: "low", 3: "idle"}  # by the class of ionice


class AsyncRequest(NamedTuple):
    """A write, and the functions to call when the write has succeeded on all ranks. As in NVRx.

    `async_fn` writes, None: nothing to write. `preload_fn` runs first, in the trainer; its result replaces the second
    of `async_fn_args`. `finalize_fns` run in the trainer, on all ranks, in their order.
    """

    async_fn: Callable[..., Any] | None
    async_fn_args: tuple[Any, ...] | list[Any]
    finalize_fns: list[Callable[[], Any]]
    async_fn_kwargs: dict[str, Any] | None = None
    preload_fn: Callable[[], Any] | None = None
    is_frozen: bool = False
    call_idx: int = 0

    def add_finalize_fn(self, fn: Callable[[], Any]) -> None:
        """Adds a function to the end of `finalize_fns`. Raises RuntimeError for a frozen request."""
        if self.is_frozen:
            raise RuntimeError("a frozen AsyncRequest takes no further finalize function: it is scheduled already")
        self.finalize_fns.append(fn)

    def execute_sync(self) -> None:
        """Writes and finalizes before the return. All ranks call this; a failure on one rank is raised on all."""
        ranks = Ranks()
        with ranks.all_fail_together("write"):
            arguments = self._arguments_with(None if self.preload_fn is None else self.preload_fn())
            if self.async_fn is not None:
                self.async_fn(*arguments, **(self.async_fn_kwargs or {}))
        with ranks.all_fail_together("finalize"):
            self.execute_finalize_fns(validate_matching_call_idx=False)

    def freeze(self) -> "AsyncRequest":
        """Returns the request with `is_frozen`. Both requests share `finalize_fns`."""
        return self._replace(is_frozen=True)

    def execute_finalize_fns(self, validate_matching_call_idx: bool = True) -> int:
        """Calls all finalize functions, and returns `call_idx`.

        `validate_matching_call_idx`: all ranks compare `call_idx`; InvalidArgument on every rank if it differs.
        """
        for fn in self.finalize_fns:
            fn()
        if validate_matching_call_idx:
            least, negated_greatest = Ranks().smallest([self.call_idx, -self.call_idx])
            _check_range(self.call_idx, least, -negated_greatest)
        return self.call_idx

    def _arguments_with(self, staged: Any) -> tuple[Any, ...]:
        arguments = list(self.async_fn_args)
        if self.preload_fn is not None:
            arguments[_STAGED] = staged
        return tuple(arguments)


class CallState(Enum):
    """The state of a scheduled request; see above."""

    RUNNING = "running"
    COMMITTED = "committed"
    FAILED = "failed"
    ABORTED = "aborted"


class _Call:
    """A scheduled request. `end` is done when this rank's part has ended; it has the error of a failure."""

    def __init__(self, request: AsyncRequest, run: Run) -> None:
        self.request = request
        self.end = run.end
        self.kill = run.kill
        self.state = CallState.RUNNING

    @property
    def index(self) -> int:
        return self.request.call_idx

    def failure(self) -> BaseException | None:
        """The error of this rank's part, which has ended."""
        return self.end.exception()


class AsyncCallsQueue:
    """Scheduled requests, finalized in their order. As in NVRx, with the same arguments.

    Saves of ``FileSystemWriterAsync`` are made by a native writer process of this queue (:class:`cairn.AsyncSaver`),
    which completes staged saves even if the trainer is killed. Functions of other requests run in a Python process:
    spawned once (`persistent`), or forked for each request. `cpu_priority` is the niceness of these processes,
    `io_priority` their class of ``ionice``. `is_daemon`, `sigterm_timeout` and `cpu_shm_mode` have no effect: the
    trainer waits for no process without a deadline, and the staged memory is shared already.
    """

    def __init__(
        self,
        persistent: bool = True,
        is_daemon: bool = True,
        cpu_priority: int = 10,
        io_priority: int | None = None,
        sigterm_timeout: float = 30.0,
        cpu_shm_mode: bool = False,
    ) -> None:
        self.persistent = persistent
        self.call_idx = -1
        self.async_calls: deque[_Call] = deque()
        self._priority = (cpu_priority, _IO_PRIORITIES.get(io_priority))
        self._saver: AsyncSaver | None = None
        self._process: FunctionProcess | None = None
        part(_Queues).live.add(self)

    @classmethod
    def get_instances(cls) -> list["AsyncCallsQueue"]:
        """The queues of this process."""
        return list(part(_Queues).live)

    @classmethod
    def warmup_persistent_caller(
        cls,
        rank: int,
        is_daemon: bool = True,
        cpu_priority: int = 10,
        io_priority: int | None = None,
        sigterm_timeout: float = 30.0,
        cpu_shm_mode: bool = False,
    ) -> None:
        """Starts a native writer process, which the next queue that saves takes over. Raises Unavailable."""
        queues = part(_Queues)
        if queues.warm is None:
            nice, io_class = cpu_priority, _IO_PRIORITIES.get(io_priority)
            queues.warm = _make_saver(nice, io_class)
        queues.warm.start_writer()

    def schedule_async_request(self, async_request: AsyncRequest) -> int:
        """Stages the request and begins its write. Returns its index, counted from 0. All ranks call this.

        The trainer may change its tensors after the return. Waits for an earlier save only if two are under way. A
        failure in staging is a failure of the request: finalizing raises the error, on every rank.
        """
        if not isinstance(async_request, AsyncRequest):  # of NVRx or of Megatron, which may lack fields
            async_request = AsyncRequest(**async_request._asdict())
        request = async_request.freeze()._replace(call_idx=self.call_idx + 1)
        try:
            run = self._begin(request)
        except Exception as error:  # the other ranks have scheduled the request: it must end on all of them
            run = _ended(error)
        self.async_calls.append(_Call(request, run))
        self.call_idx += 1
        return self.call_idx

    def maybe_finalize_async_calls(self, blocking: bool = False, no_dist: bool = False) -> list[int]:
        """Finalizes the requests that have ended on all ranks, in their order, and returns their indices.

        `blocking`: waits for all requests. All ranks call this, unless `no_dist`. A request that failed on any rank is
        dropped, without its finalizers, and its error is raised on every rank; later requests stay in the queue.
        """
        finalized: list[int] = []
        ranks = Ranks(no_dist=no_dist)
        while self.async_calls:
            call = self.async_calls[0]
            if blocking:
                pending_saves.await_end(call.end)
            if not self._has_ended_everywhere(ranks, call):
                break
            self.async_calls.popleft()
            self._finalize(ranks, call)
            finalized.append(call.index)
        return finalized

    def get_num_unfinalized_calls(self) -> int:
        """The number of scheduled requests that were not finalized."""
        return len(self.async_calls)

    def close(self, abort: bool = False) -> None:
        """Finalizes all requests, as a blocking maybe_finalize_async_calls(), and ends the processes.

        `abort`: no rank waits for another. The processes are killed, no finalizer runs, and a save that is not
        committed yet never becomes a checkpoint. The queue can be used again.
        """
        try:
            if abort:
                self._abort()
            else:
                while self.async_calls:
                    self.maybe_finalize_async_calls(blocking=True)
        finally:
            self._end_processes(wait=not abort)
            if not self.async_calls:
                self.call_idx = -1

    def __del__(self) -> None:
        """Sends nothing to other ranks, and waits for nothing: a queue is collected at any moment, on any rank."""
        if getattr(self, "async_calls", None):
            _log.warning(
                "an AsyncCallsQueue with %d requests was dropped without close(): their finalizers do not run",
                len(self.async_calls),
            )

    def _begin(self, request: AsyncRequest) -> Run:
        if isinstance(request.preload_fn, StageSave):
            saver = self._own_saver()
            save = request.preload_fn.start(saver)
            return Run(cast("Future[Any]", save.upload), saver.kill_writer)
        if request.async_fn is None:
            return _ended(None)
        arguments = request._arguments_with(None if request.preload_fn is None else request.preload_fn())
        function = Function(request.async_fn, arguments, dict(request.async_fn_kwargs or {}))
        rank = _rank()
        if not self.persistent:
            return run_in_fork(rank, function)
        if self._process is None:
            ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
            self._process = FunctionProcess(rank, ranks, self._priority[0])
        return self._process.run(function)

    def _own_saver(self) -> AsyncSaver:
        if self._saver is None:
            queues = part(_Queues)
            warm, queues.warm = queues.warm, None
            self._saver = warm or _make_saver(*self._priority)
        return self._saver

    @staticmethod
    def _has_ended_everywhere(ranks: Ranks, call: _Call) -> bool:
        """Whether all ranks' parts have ended. One all-reduce."""
        ended, least, negated_greatest = ranks.smallest([int(call.end.done()), call.index, -call.index])
        _check_range(call.index, least, -negated_greatest)
        return bool(ended)

    @staticmethod
    def _finalize(ranks: Ranks, call: _Call) -> None:
        call.state = CallState.FAILED  # until all has gone well
        with ranks.all_fail_together("write"):
            failure = call.failure()
            if failure is not None:
                raise failure
        call.state = CallState.COMMITTED
        try:
            with ranks.all_fail_together("finalize"):
                call.request.execute_finalize_fns(validate_matching_call_idx=False)
        except BaseException:
            call.state = CallState.FAILED
            raise

    def _abort(self) -> None:
        calls = list(self.async_calls)
        self.async_calls.clear()
        for call in calls:
            call.state = CallState.ABORTED
            if not call.end.done():
                call.kill()
        until = time.monotonic() + _ABORT_SECONDS
        for call in calls:
            call.end.cancel()  # a function that waits for its turn
            if not pending_saves.await_end(call.end, max(until - time.monotonic(), 0)):
                _log.error("request %d: its killed process has not ended after %g s", call.index, _ABORT_SECONDS)
            elif not call.end.cancelled() and call.failure() is None:
                _log.warning("request %d had ended well before it was aborted; its finalizers do not run", call.index)

    def _end_processes(self, *, wait: bool) -> None:
        saver, self._saver = self._saver, None
        process, self._process = self._process, None
        if process is not None:
            process.close(wait=wait)
        if saver is not None:
            saver.close() if wait else saver.leave()


def abort_nvrx_checkpoint() -> None:
    """Aborts all queues of this process: ``close(abort=True)``. Each queue can be used again."""
    for queue in AsyncCallsQueue.get_instances():
        queue.close(abort=True)


class _Queues(ProcessPart):
    """`live`: the queues of this process. `warm`: a saver whose writer is started, for the next queue that saves."""

    def __init__(self) -> None:
        self.live: weakref.WeakSet[AsyncCallsQueue] = weakref.WeakSet()
        self.warm: AsyncSaver | None = None


def _ended(error: Exception | None) -> Run:
    end: Future[None] = Future()
    end.set_running_or_notify_cancel()
    if error is None:
        end.set_result(None)
    else:
        end.set_exception(error)
    return Run(end, lambda: None)


def _make_saver(nice: int, io_priority: IoPriority | None) -> AsyncSaver:
    settings = {**part(DefaultSavers).settings, "nice": min(max(nice, 0), 19), "io_priority": io_priority}
    return AsyncSaver(process=True, **settings)


def _check_range(index: int, least: int, greatest: int) -> None:
    """Raises InvalidArgument if the ranks' indices, from `least` to `greatest`, differ."""
    if least != greatest:
        raise InvalidArgument(
            "the ranks finalize different requests: a rank scheduled or finalized a request that another did not",
            expected=f"the index {index} on every rank",
            actual=f"indices from {least} to {greatest}",
        )


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
