"""The asynchronous saves of this process: which are under way, and which have failed without anybody being told.

What happens to them when the interpreter exits:

1. ``threading._shutdown`` waits for the threads that follow the saves. Ctrl-C ends that waiting.
2. ``atexit`` calls :func:`_end`. It tells threads that are left to end, and waits for them for some seconds.
3. Each save whose error was not told is logged. If it, or a save whose end is not known, has ``fails_exit``, the engine
   is told to make the exit status 1 where it would be 0 (``python/bindings/exit_status.cc``). Python goes on with its
   other exit callbacks, and flushes its streams.
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

EARLIER = "the save before this one"  # in the error of a call that reports an earlier save


class SaveFuture(ToldFuture[Metadata]):
    """The end of an asynchronous save: a ``concurrent.futures.Future`` of the checkpoint's Metadata."""

    def __init__(self, progress: Callable[[], Progress]) -> None:
        super().__init__()
        self._progress = progress
        self._process = os.getpid()

    def progress(self) -> Progress:
        """How far this rank's part of the save is."""
        return self._progress()

    def result(self, timeout: float | None = None) -> Metadata:
        """As of every Future."""
        self._refuse_in_a_fork()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of every Future."""
        self._refuse_in_a_fork()
        return super().exception(timeout)

    def _refuse_in_a_fork(self) -> None:
        if os.getpid() != self._process and not self.done():
            raise Unavailable("a save of another process: this one was made by fork")


class Turn(NamedTuple):
    """Which save it is of those that the same ranks make together: all of them say the same of one save."""

    number: int  # from 1
    ranks: int  # 0: this process alone, and other ranks have nothing to do with it


@dataclass(eq=False)
class PendingSave:
    """An asynchronous save. `staging`: the state may change again. `upload`: the checkpoint is durable and in place.

    `fails_exit`: if its error is not told, or its end not known, when the interpreter exits, the exit status is not 0.
    """

    directory: str
    staging: Future[None]
    upload: SaveFuture
    turn: Turn
    fails_exit: bool = False

    @property
    def title(self) -> str:
        """How an error names it to the ranks of a later save."""
        by = f", by {self.turn.ranks} ranks" if self.turn.ranks else ""
        return f"{EARLIER} (number {self.turn.number}{by}), into '{self.directory}', failed"


_lock = threading.Lock()
_saves: list[PendingSave] = []  # under way, or failed with nobody told
_threads: list[threading.Thread] = []  # that follow them
_numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(lambda: itertools.count(1))  # by who saves together

_LEAVING_SECONDS = 5.0
_FAILED_STATUS = 1  # as after an uncaught exception

leaving = threading.Event()  # the interpreter ends, and waits for nothing


def _add(save: PendingSave) -> None:
    with _lock:
        _saves[:] = [*filter(is_of_interest, _saves), save]


def is_of_interest(save: PendingSave) -> bool:
    """Whether the save is under way, or has failed and no caller was told."""
    return not save.upload.done() or save.upload.has_untold_error


def in_background(work: Callable[..., None], *arguments: Any) -> None:
    """Does the work in a thread, which is not a daemon: the interpreter waits for it before it goes.

    If Ctrl-C ends that waiting, ``leaving`` is set, and the thread is to end soon.
    """
    thread = threading.Thread(target=work, args=arguments, name="cairn-save")
    with _lock:
        _threads[:] = [other for other in _threads if other.is_alive()]
        thread.start()
        _threads.append(thread)


class Follower:
    """The turn of a save, and a thread that will follow it, both there before the save begins.

    The turn is taken first of all in a call: the same ranks make the same calls in one order, whatever becomes of each,
    so counting their calls gives a number on which they agree. A save that nobody follows has no end, hence the thread,
    which :meth:`start` makes. It ends with its work, or with the block, if it was given none. Nothing less will do: the
    interpreter waits for the thread, and keeps the frames of an uncaught exception with all that they refer to.
    """

    def __init__(self, members: tuple[int, ...] = ()) -> None:
        """`members`: the ranks that make the save together, if they are many; the same in the same order on all."""
        self.turn = Turn(next(_numbers[members]), len(members))
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(None)  # heard by nobody if there is work before it

    def start(self) -> None:
        """Makes the thread."""
        in_background(_do_one, self._work)

    def follow(self, save: PendingSave, work: Callable[[], None]) -> None:
        """Does the work, once, which brings the save to its end; from now on it is under way."""
        self._work.put(work)  # first: if Ctrl-C comes between the two, nobody waits for a save without an end
        _add(save)


def _do_one(given: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    work = given.get()
    if work is not None:
        work()


def wait_for(directory: _PathLike | None = None) -> None:
    """Returns when no save into `directory` (None: anywhere) is under way any more. How they ended is not told."""
    wanted = None if directory is None else real_path(directory)
    for save in _snapshot():
        if wanted is None or save.directory == wanted:
            await_end(save.upload)


def wait_for_staging() -> None:
    """Returns when what is to be saved may change again. What failed is in the futures."""
    for save in _snapshot():
        await_end(save.staging)


def raise_untold() -> None:
    """Raises the error of the first earlier save whose error no caller was told. Each error is raised once."""
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
    """If `error` reports earlier saves on behalf of other ranks, then this rank need not report them once more.

    What this process saves alone is never among them, whatever another process saves under the same number. Of two
    joint saves that a rank takes part in, directory, number and count of ranks are the same only if two groups of one
    size save into one directory.
    """
    texts = [str(error), *(str(failure) for failure, _ in getattr(error, "failures", {}).values())]
    for save in _snapshot():
        if save.turn.ranks and any(save.title in text for text in texts):
            save.upload.was_told = True


def _snapshot() -> Sequence[PendingSave]:
    with _lock:
        return list(_saves)


def await_end(future: "Future[Any]") -> None:
    """Returns when it is done, which tells nobody how it ended."""
    done = threading.Event()
    Future.add_done_callback(future, lambda _: done.set())
    while not done.wait(0.2):  # in slices, so that Ctrl-C is heard
        pass


def _forget() -> None:  # in a forked child: none of them is its own
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _saves.clear()
    _threads.clear()


def _end() -> None:
    leaving.set()
    # Those that are left were waited for, until Ctrl-C. They must not be in the engine when the interpreter is gone.
    for thread in _threads:
        thread.join(_LEAVING_SECONDS)  # one that is in a plug-in of somebody else's does not hear of it
    saves = _snapshot()
    failed = [save for save in saves if save.upload.has_untold_error]
    if any(save.fails_exit for save in failed) or any(save.fails_exit and not save.upload.done() for save in saves):
        _engine.fail_exit(_FAILED_STATUS)
    for save in failed:
        _log.error("an asynchronous save into '%s' failed: %s", save.directory, save.upload.exception())


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
