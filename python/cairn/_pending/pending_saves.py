"""The asynchronous saves of this process: the saves under way, and the failed saves whose error no caller retrieved.

Sequence when the interpreter exits:

1. ``threading._shutdown`` waits for the threads that follow the saves. Ctrl-C ends the wait.
2. ``atexit`` calls :func:`_end`, which tells the remaining threads to end, and waits for each thread for some seconds.
3. Each error that no caller retrieved is logged. If its save, or a save with an unknown end, has ``fails_exit``, the
   engine changes exit status 0 to 1 (``python/bindings/exit_status.cc``). Python continues with its remaining exit
   callbacks, and flushes its streams.
"""

import atexit
import itertools
import logging
import os
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata

from cairn import _engine
from cairn._directory.real_path import real_path
from cairn._pending.tracked_future import ToldFuture
from cairn.errors import Error, Unavailable
from cairn.progress import Progress

_PathLike = str | os.PathLike[str]
_log = logging.getLogger("cairn")

EARLIER = "the previous save"  # in the error of a call that reports an earlier save


class SaveFuture(ToldFuture[Metadata]):
    """The future of an asynchronous save: a ``concurrent.futures.Future`` of the checkpoint's Metadata."""

    def __init__(self, progress: Callable[[], Progress]) -> None:
        super().__init__()
        self._progress = progress
        self._process = os.getpid()

    def progress(self) -> Progress:
        """Returns the progress of this rank's part of the save."""
        return self._progress()

    def result(self, timeout: float | None = None) -> Metadata:
        """As Future.result(). Raises Unavailable in a forked child if the save was under way at the fork."""
        self._refuse_in_a_fork()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As Future.exception(). Raises Unavailable in a forked child if the save was under way at the fork."""
        self._refuse_in_a_fork()
        return super().exception(timeout)

    def _refuse_in_a_fork(self) -> None:
        if os.getpid() != self._process and not self.done():
            raise Unavailable("this process is a forked child; the save belongs to its parent: make a new save here")


class Turn(NamedTuple):
    """The number of a save among the saves of one set of ranks; equal on all ranks of the save."""

    number: int  # from 1
    ranks: int  # 0: this process saves alone, without a connection to any rank


@dataclass(eq=False)
class PendingSave:
    """An asynchronous save. `staging` is done when the state may change again, `upload` when the checkpoint is durable
    and in place.

    `fails_exit`: the exit status is not 0 if, at the interpreter's exit, no caller has retrieved the save's error or
    the save has not ended.
    """

    directory: str
    staging: Future[None]
    upload: SaveFuture
    turn: Turn
    fails_exit: bool = False

    @property
    def title(self) -> str:
        """The name of the save in an error that the ranks of a later save receive."""
        by = f", by {self.turn.ranks} ranks" if self.turn.ranks else ""
        return f"{EARLIER} (number {self.turn.number}{by}), into '{self.directory}', failed"


_lock = threading.Lock()
_saves: list[PendingSave] = []  # under way, or failed with an error that no caller retrieved
_threads: list[threading.Thread] = []  # the threads that follow the saves
# by the ranks that save together
_numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(lambda: itertools.count(1))

_LEAVING_SECONDS = 5.0
_FAILED_STATUS = 1  # as after an uncaught exception

leaving = threading.Event()  # set when the interpreter ends without waiting


def _add(save: PendingSave) -> None:
    with _lock:
        _saves[:] = [*filter(is_of_interest, _saves), save]


def is_of_interest(save: PendingSave) -> bool:
    """Returns whether the save is under way, or has failed with an error that no caller retrieved."""
    return not save.upload.done() or save.upload.has_untold_error


def in_background(work: Callable[..., None], *arguments: Any) -> None:
    """Runs the work in a non-daemon thread: the interpreter waits for the thread before the process exits.

    If Ctrl-C ends the wait, ``leaving`` is set, and the thread must end soon.
    """
    thread = threading.Thread(target=work, args=arguments, name="cairn-save")
    with _lock:
        _threads[:] = [other for other in _threads if other.is_alive()]
        thread.start()
        _threads.append(thread)


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
        self.turn = Turn(next(_numbers[members]), len(members))
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
        """Makes the thread run `work` once, which completes the save. The save counts as under way from now on."""
        self._work.put(work)  # first: after a Ctrl-C between the two calls, no caller waits for a save that never ends
        _add(save)


def _do_one(given: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    work = given.get()
    if work is not None:
        work()


def wait_for(directory: _PathLike | None = None) -> None:
    """Returns when no save into `directory` (None: anywhere) is under way. Does not retrieve the saves' errors."""
    wanted = None if directory is None else real_path(directory)
    for save in _snapshot():
        if wanted is None or save.directory == wanted:
            await_end(save.upload)


def wait_for_staging() -> None:
    """Returns when the state of every pending save may change again. Errors stay in the futures."""
    for save in _snapshot():
        await_end(save.staging)


def raise_untold() -> None:
    """Raises the error of the first earlier save whose error no caller retrieved. Each error is raised once."""
    with _lock:
        failed = next((save for save in _saves if save.upload.has_untold_error), None)
        if failed is None:
            return
        failed.upload.was_told = True
        _saves.remove(failed)
    error = failed.upload.exception()
    assert error is not None
    if isinstance(error, Error):
        raise type(error)(f"{failed.title}: {error}", **error.place) from error
    raise error


def note_told(error: BaseException) -> None:
    """Marks as retrieved the errors of earlier saves that `error` reports for this or another rank.

    A save that this process makes alone is never marked, also if another process saves alone under an equal number. Two
    joint saves of a rank agree in directory, number and count of ranks only if two groups of one size save into one
    directory.
    """
    texts = [str(error), *(str(failure) for failure, _ in getattr(error, "failures", {}).values())]
    for save in _snapshot():
        if save.turn.ranks and any(save.title in text for text in texts):
            save.upload.was_told = True


def _snapshot() -> Sequence[PendingSave]:
    with _lock:
        return list(_saves)


def await_end(future: "Future[Any]") -> None:
    """Returns when the future is done. Does not retrieve the future's error."""
    done = threading.Event()
    Future.add_done_callback(future, lambda _: done.set())
    while not done.wait(0.2):  # in slices, for Python to handle Ctrl-C
        pass


def _forget() -> None:  # in a forked child: the saves belong to the parent
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _saves.clear()
    _threads.clear()


def _end() -> None:
    leaving.set()
    # Ctrl-C ended the wait for the remaining threads. No thread may be in the engine after the interpreter is
    # finalised.
    for thread in _threads:
        thread.join(_LEAVING_SECONDS)  # a thread inside foreign plug-in code does not see `leaving`
    saves = _snapshot()
    failed = [save for save in saves if save.upload.has_untold_error]
    if any(save.fails_exit for save in failed) or any(save.fails_exit and not save.upload.done() for save in saves):
        _engine.fail_exit(_FAILED_STATUS)
    for save in failed:
        _log.error("an asynchronous save into '%s' failed: %s", save.directory, save.upload.exception())


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
