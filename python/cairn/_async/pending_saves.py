"""The asynchronous saves of this process: saves that have not ended, and failed saves with an unretrieved exception.

Sequence when the interpreter exits:

1. ``threading._shutdown`` waits for the threads that follow the saves. Ctrl-C ends the wait.
2. ``atexit`` calls :func:`_end`, which tells the remaining threads to end, and waits for each thread for some seconds.
3. Each exception that no caller retrieved is logged. If its save, or a save with an unknown end, has ``fails_exit``,
   the engine changes exit status 0 to 1 (``python/bindings/exit_status.cc``). Python continues with its remaining exit
   callbacks, and flushes its streams.
"""

import atexit
import hashlib
import itertools
import logging
import math
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed.checkpoint.metadata import Metadata

from cairn import _engine
from cairn._directory import real_path
from cairn._process import ProcessPart, part
from cairn._ranks.engine_errors import reported_saves, set_reported_save
from cairn._state.torch_codes import current_cuda_streams
from cairn.errors import Error, Unavailable
from cairn.progress import Progress

_PathLike = str | os.PathLike[str]
_log = logging.getLogger("cairn")
_T = TypeVar("_T")

EARLIER = "the previous save"  # in the error of a call that reports an earlier save


class TrackedFuture(Future[_T]):
    """The future of work that cannot be cancelled. `exception_retrieved`: a caller got the exception of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.exception_retrieved = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> _T:
        """As ``concurrent.futures.Future.result``."""
        try:
            return super().result(timeout)
        except BaseException as error:  # a time-out and Ctrl-C are not the exception of the work
            self.exception_retrieved |= self.done() and error is super().exception()
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As ``concurrent.futures.Future.exception``."""
        error = super().exception(timeout)
        self.exception_retrieved |= error is not None
        return error

    @property
    def has_unretrieved_exception(self) -> bool:
        """Whether the work failed and no caller retrieved its exception."""
        return self.done() and not self.exception_retrieved and super().exception() is not None


class SaveFuture(TrackedFuture[Metadata]):
    """The future of an asynchronous save: a ``concurrent.futures.Future`` of the checkpoint's Metadata."""

    def __init__(self, progress: Callable[[], Progress]) -> None:
        super().__init__()
        self._progress = progress
        self._process = os.getpid()

    def progress(self) -> Progress:
        """Returns the progress of this rank's part of the save."""
        return self._progress()

    def result(self, timeout: float | None = None) -> Metadata:
        """As Future.result(). Raises Unavailable in a forked child if the save was in flight at the fork."""
        self._refuse_in_a_fork()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As Future.exception(). Raises Unavailable in a forked child if the save was in flight at the fork."""
        self._refuse_in_a_fork()
        return super().exception(timeout)

    def _refuse_in_a_fork(self) -> None:
        if os.getpid() != self._process and not self.done():
            raise Unavailable("this process is a forked child; the save belongs to its parent: make a new save here")


class Turn(NamedTuple):
    """The place of a save among the saves that the same ranks make together."""

    number: int  # from 1; the same on every rank of the save
    members: tuple[int, ...]  # the ranks of the save, in the order of the group; empty if this process saves alone

    @property
    def identity(self) -> str | None:
        """A text that every rank of the save has for this save, and no other save of the job has. None: saves alone."""
        if not self.members:
            return None
        ranks = hashlib.blake2b(",".join(map(str, self.members)).encode(), digest_size=16)
        return f"{self.number}:{ranks.hexdigest()}"


@dataclass(eq=False)
class PendingSave:
    """An asynchronous save. `staging` is done when the state may change again, `upload` when the checkpoint is durable
    and in place.

    `fails_exit`: the exit status is not 0 if, at the interpreter's exit, no caller has retrieved the save's exception
    or the save has not ended. `make_wait`: the engine's function that makes streams of CUDA devices wait for the copies
    out of the tensors; None if the copies are over. Devices may go on with the copies of a staging that has failed.
    `log`: called with the bytes that this rank wrote, when the save is durable.
    """

    directory: str
    staging: Future[None]
    upload: SaveFuture
    turn: Turn
    fails_exit: bool = False
    make_wait: Callable[[list[tuple[int, int]], float], bool] | None = None
    log: Callable[[int], None] | None = None

    @property
    def title(self) -> str:
        """The name of the save in an error that the ranks of a later save receive."""
        by = f", by {len(self.turn.members)} ranks" if self.turn.members else ""
        return f"{EARLIER} (number {self.turn.number}{by}), into '{self.directory}', failed"


WAIT_SLICE_SECONDS = 0.2  # of a wait: between slices Python handles Ctrl-C
_LEAVING_SECONDS = 5.0
_FAILED_STATUS = 1  # as after an uncaught exception


class PendingSaves(ProcessPart):
    """The pending saves of this process, and the threads that follow them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.saves: list[PendingSave] = []
        self.threads: list[threading.Thread] = []
        #: By the ranks that save together: the numbers of their saves.
        self.numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(lambda: itertools.count(1))
        self.leaving = threading.Event()  # set when the interpreter ends without waiting

    def add(self, save: PendingSave) -> None:
        """Adds a save, and drops those that are not pending any more."""
        with self.lock:
            self.saves = [*filter(is_pending, self.saves), save]

    def snapshot(self) -> Sequence[PendingSave]:
        """The saves at this moment."""
        with self.lock:
            return list(self.saves)


def is_pending(save: PendingSave) -> bool:
    """Whether the save has not ended, or has failed and no caller has retrieved its exception."""
    return not save.upload.done() or save.upload.has_unretrieved_exception


def is_leaving() -> bool:
    """Whether the interpreter ends without waiting."""
    return part(PendingSaves).leaving.is_set()


def in_background(work: Callable[..., None], *arguments: Any) -> None:
    """Runs the work in a non-daemon thread: the interpreter waits for the thread before the process exits.

    If Ctrl-C ends the wait, :func:`is_leaving` is true, and the thread must end soon.
    """
    thread = threading.Thread(target=work, args=arguments, name="cairn-save")
    pending = part(PendingSaves)
    with pending.lock:
        pending.threads = [other for other in pending.threads if other.is_alive()]
        thread.start()
        pending.threads.append(thread)


class Follower:
    """The turn of a save, and a thread that follows the save; both are made before the save begins.

    The turn is taken at the start of a call. All ranks of a group make equal calls in one order, also when calls fail;
    therefore each rank's count of calls gives a number on which the ranks agree.

    A save without a follower never ends; therefore :meth:`start` makes the thread before the save. The thread ends with
    its work, or with the block if the thread was given no work. The block's exit must end the thread in every case: the
    interpreter waits for the thread, and keeps the frames of an uncaught exception with all objects that the frames
    refer to.
    """

    def __init__(self, members: tuple[int, ...] = ()) -> None:
        """Takes the turn. `members`: the ranks that make the save together, in an order that is equal on all ranks;
        empty for a save alone."""
        self.turn = Turn(next(part(PendingSaves).numbers[members]), members)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(None)  # ignored if the queue already holds work

    def start(self) -> None:
        """Starts the thread."""
        in_background(_do_one, self._work)

    def follow(self, save: PendingSave, work: Callable[[], None]) -> None:
        """Makes the thread run `work` once, which completes the save. The save is pending from now on."""
        self._work.put(work)  # first: after a Ctrl-C between the two calls, no caller waits for a save that never ends
        part(PendingSaves).add(save)


def _do_one(given: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    work = given.get()
    if work is not None:
        work()


def wait_for(directory: _PathLike | None = None) -> None:
    """Returns when no save into `directory` (None: anywhere) is in flight. Does not retrieve the saves' errors."""
    wanted = None if directory is None else real_path(directory)
    for save in part(PendingSaves).snapshot():
        if wanted is None or save.directory == wanted:
            await_end(save.upload)


def fence_staging() -> None:
    """Returns when work that the caller starts from now on may change the state of every pending save.

    Work on the CPU, and work on the current streams of CUDA devices: a stream waits on the device for copies that still
    run. Errors stay in the futures.
    """
    for save in part(PendingSaves).snapshot():
        _fence(save)


def _fence(save: PendingSave) -> None:
    stream_of = current_cuda_streams()
    make_wait = save.make_wait  # read once: the thread that follows the save ends the attribute
    if stream_of is None or make_wait is None:
        await_end(save.staging)
        return
    streams = [(ordinal, stream_of(ordinal)) for ordinal in range(torch.cuda.device_count())]
    while not make_wait(streams, WAIT_SLICE_SECONDS):
        pass


class Fence:
    """What a stager of DCP waits for in ``synchronize_staging``, where torch's class has the future of the staging."""

    def __init__(self, save: PendingSave) -> None:
        self._save = save

    def result(self) -> None:
        """Returns as fence_staging() does, for one save. Raises the error of a staging that has failed already."""
        _fence(self._save)
        if self._save.staging.done():
            self._save.staging.result()


def raise_unretrieved() -> None:
    """Raises the exception of the first earlier save whose exception no caller retrieved. Raises each once.

    The exception bears the identity of the save, for :func:`note_report` on the other ranks of this call.
    """
    pending = part(PendingSaves)
    with pending.lock:
        failed = next((save for save in pending.saves if save.upload.has_unretrieved_exception), None)
        if failed is None:
            return
        failed.upload.exception_retrieved = True
        pending.saves.remove(failed)
    error = failed.upload.exception()
    assert error is not None
    report = error
    if isinstance(error, Error):
        report = type(error)(f"{failed.title}: {error}", **error.place)
    set_reported_save(report, failed.turn.identity)
    if report is error:
        raise report
    raise report from error


def note_report(error: BaseException) -> None:
    """Marks the saves as retrieved whose failure `error` reports on behalf of other ranks.

    This rank then does not report these saves again. The ranks know a save by its identity, not by the error's text:
    they may have the directory under different paths. A save that this process makes alone has no identity.
    """
    reported = reported_saves(error)
    for save in part(PendingSaves).snapshot():
        if save.turn.identity in reported:
            save.upload.exception_retrieved = True


def await_end(future: "Future[Any]", seconds: float = math.inf) -> bool:
    """Returns True when the future is done, False after `seconds`. Does not retrieve the future's error."""
    done = threading.Event()
    Future.add_done_callback(future, lambda _: done.set())
    until = time.monotonic() + seconds
    while not done.wait(min(WAIT_SLICE_SECONDS, max(until - time.monotonic(), 0))):
        if time.monotonic() >= until:
            return False
    return True


def _end() -> None:
    pending = part(PendingSaves)
    pending.leaving.set()
    # Ctrl-C ended the wait for the remaining threads. No thread may be in the engine after the interpreter is
    # finalised.
    for thread in pending.threads:
        thread.join(_LEAVING_SECONDS)  # a thread inside foreign plug-in code does not see `leaving`
    saves = pending.snapshot()
    failed = [save for save in saves if save.upload.has_unretrieved_exception]
    if any(save.fails_exit for save in failed) or any(save.fails_exit and not save.upload.done() for save in saves):
        _engine.fail_exit(_FAILED_STATUS)
    for save in failed:
        _log.error("an asynchronous save into '%s' failed: %s", save.directory, save.upload.exception())


atexit.register(_end)
