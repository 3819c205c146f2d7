"""The asynchronous saves of this process: which are under way, and which have failed without anybody being told."""

import atexit
import itertools
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata

from cairn.errors import Error, Unavailable
from cairn.told_future import ToldFuture

_PathLike = str | os.PathLike[str]
_log = logging.getLogger("cairn")

EARLIER = "the save before this one"  # in the error of a call that reports an earlier save


class Progress(NamedTuple):
    """How far a save is. `phase`: staging, writing, waiting (for other ranks), committing, or ended."""

    phase: str
    bytes_written: int  # of this rank's files
    bytes_total: int  # 0 until it is known


class SaveFuture(ToldFuture[Metadata]):
    """The end of a save. ``progress()`` says how far it is."""

    def __init__(self, progress: Callable[[], Progress]) -> None:
        super().__init__()
        self.progress = progress
        self._process = os.getpid()

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


@dataclass(eq=False)
class PendingSave:
    """An asynchronous save. `staging`: the state may change again. `upload`: the checkpoint is durable and in place."""

    directory: str
    staging: Future[None]
    upload: SaveFuture
    number: int = field(default_factory=itertools.count(1).__next__)  # the same on all ranks, which call in one order


_lock = threading.Lock()
_saves: list[PendingSave] = []  # under way, or failed with nobody told
_threads: list[threading.Thread] = []  # that follow them

_LEAVING_SECONDS = 5.0

leaving = threading.Event()  # the interpreter ends, and waits for nothing


def add(save: PendingSave) -> None:
    """From when it has begun."""
    with _lock:
        _saves[:] = [known for known in _saves if not known.upload.done() or known.upload.has_untold_error]
        _saves.append(save)


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
    """A thread that will follow a save. It is there before the save begins: a save that nobody follows has no end.

    It ends when its work is done, or when this object goes without having given it any.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        in_background(_do_one, self._work)

    def __del__(self) -> None:
        self._work.put(None)

    def follow(self, work: Callable[[], None]) -> None:
        """Does the work, once."""
        self._work.put(work)


def _do_one(given: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    work = given.get()
    if work is not None:
        work()


def wait_for(directory: _PathLike | None = None) -> None:
    """Returns when no save into `directory` (None: anywhere) is under way any more. How they ended is not told."""
    wanted = None if directory is None else place_of(directory)
    for save in _snapshot():
        if wanted is None or save.directory == wanted:
            await_end(save.upload)


def wait_for_staging() -> None:
    """Returns when what is to be saved may change again. What failed is in the futures."""
    for save in _snapshot():
        await_end(save.staging)


def raise_untold() -> None:
    """Raises the error of an earlier save, if nobody was told of it: the first of them; each is raised once."""
    with _lock:
        failed = next((save for save in _saves if save.upload.has_untold_error), None)
        if failed is None:
            return
        failed.upload.was_told = True
        _saves.remove(failed)
    error = failed.upload.exception()
    assert error is not None
    if isinstance(error, Error):
        told = f"{EARLIER} (number {failed.number}), into '{failed.directory}', failed: {error}"
        raise type(error)(told, **error.place) from error
    raise error


def note_told(error: BaseException) -> None:
    """If `error` reports an earlier save on behalf of another rank, then this rank need not report it once more."""
    numbers = {int(number) for number in re.findall(rf"{EARLIER} \(number (\d+)\)", str(error))}
    for save in _snapshot():
        if save.number in numbers:
            save.upload.was_told = True


def place_of(directory: _PathLike) -> str:
    """What two names of one directory have in common."""
    return os.path.realpath(os.fspath(directory))


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
    for save in _snapshot():
        if save.upload.has_untold_error:
            _log.error("an asynchronous save into '%s' failed: %s", save.directory, save.upload.exception())


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
