"""The progress of a save; and bars for the calls that take long.

The engine lists its calls, with what they have done so far, while a display is open. The thread of the display waits
for them in the engine, without Python's lock, and draws those that take over two seconds. A call never waits for the
thread. An exception of a drawing ends the bar, and is logged at DEBUG on the logger ``cairn``.
"""

import atexit
import contextlib
import importlib.util
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _engine
from cairn._process import ProcessPart, part
from cairn._progress_bars import STYLES, Amounts, Bar, Bars, Style
from cairn._torch_names import modules
from cairn.errors import InvalidArgument

_FIRST_SECONDS = 2.0  # a call that ends earlier has no bar
_DRAW_SECONDS = 0.2
_IDLE_SECONDS = 60.0  # of one wait for calls
_CLOSE_SECONDS = 1.0
_END_SECONDS = 5.0
_FORK_SECONDS = 1.0
_SHOWN_MAX = 1000
_NAME_MAX = 40  # characters of a directory's name


class Progress(NamedTuple):
    """The progress of one rank's part of a save.

    `phase`: staging, writing, syncing, publishing (files get their final names), waiting (for the remaining ranks),
    committing, or ended.
    """

    phase: str
    bytes_written: int  # of this rank's files
    bytes_total: int  # 0 until the total is known


class _Work(NamedTuple):
    """A call into the engine. The fields are those of the engine's tuple."""

    id: int
    action: str  # "saving" and so on
    unit: Any
    directory: bytes
    rank: int
    succeeded: bool | None  # None: running
    seconds: float
    done: int
    total: int

    @property
    def title(self) -> str:
        name = Path(os.fsdecode(self.directory)).name
        if len(name) > _NAME_MAX:
            name = name[: _NAME_MAX - 1] + "\u2026"
        # A control character would move the cursor of the terminal.
        name = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
        return f"{self.action} '{name}'" if name else self.action

    @property
    def amounts(self) -> Amounts:
        return Amounts(self.done, self.total, self.unit, self.seconds)


class ProgressDisplay:
    """The bars of the calls that begin until the end of the display. A context manager: see :func:`show_progress`."""

    def __init__(self, style: Style) -> None:
        """Use :func:`show_progress`."""
        self._made = Bars(style)
        self._watch = _engine.ProgressWatch()
        self._process = os.getpid()
        self._bars: dict[int, Bar | None] = {}  # by the id of the work; None: is not shown
        self._settled = threading.Event()  # the thread has drawn the ends of all works before close()
        self._gives_up = False
        self._thread = threading.Thread(target=self._run, name="cairn-progress", daemon=True)

    def start(self) -> None:
        """Use :func:`show_progress`."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no thread left: the calls go on without bars
            self._watch.close()
            self._settled.set()
            _note_failure("the calls", error)
            return
        part(_Displays).add(self)

    def close(self) -> None:
        """Shows no call that begins later. A call that is running, an asynchronous save too, keeps its bar to its end.

        Does not wait for running calls, and at most a second for the terminal.
        """
        if os.getpid() != self._process:
            return
        self._watch.close()
        self._settled.wait(_CLOSE_SECONDS)

    def give_up(self, until: float) -> None:
        """Ends all bars, before the interpreter ends."""
        self._gives_up = True
        self._watch.close()
        self._thread.join(max(until - time.monotonic(), 0))

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        running: list[_Work] = []
        while True:
            closed = self._watch.is_closed()
            wait = 0.0 if closed and not self._settled.is_set() else self._wait_seconds(running)
            works = [_Work(*fields) for fields in self._watch.take(round(wait * 1000))]
            running = [work for work in works if work.succeeded is None]
            for work in works:
                self._draw(work)
            if closed:
                self._settled.set()
            if closed and (not running or self._gives_up):
                break
        for work in running:
            self._draw(work._replace(succeeded=False))
        part(_Displays).remove(self)

    def _wait_seconds(self, running: list[_Work]) -> float:
        """Until the next drawing, unless a call begins or ends before."""
        if not running:
            return _IDLE_SECONDS
        if any(self._bars.get(work.id) is not None for work in running):
            return _DRAW_SECONDS
        waits = [_FIRST_SECONDS - work.seconds for work in running if work.id not in self._bars]
        return max(min(waits, default=_IDLE_SECONDS), 0.001)

    def _draw(self, work: _Work) -> None:
        if work.id not in self._bars and (work.succeeded is not None or work.seconds < _FIRST_SECONDS):
            return
        try:
            with part(_Displays).drawing:
                self._draw_bar(work)
        except Exception as error:
            _note_failure(work.title, error)
            bar = self._bars.get(work.id)
            self._bars[work.id] = None
            if bar is not None:
                with contextlib.suppress(Exception):  # a bar of rich has hidden the cursor
                    bar.end(work.amounts, "not shown further")
        if work.succeeded is not None:
            self._bars.pop(work.id, None)

    def _draw_bar(self, work: _Work) -> None:
        if work.id not in self._bars:
            is_shown = _is_shown(work) and part(_Displays).is_first(work.id)
            self._bars[work.id] = self._made.add(work.title, work.amounts) if is_shown else None
        bar = self._bars[work.id]
        if bar is None:
            return
        if work.succeeded is None:
            bar.show(work.amounts)
        else:
            bar.end(work.amounts, "" if work.succeeded else "not finished" if self._gives_up else "failed")


def _note_failure(title: str, error: Exception) -> None:
    import logging  # slow: not for `import cairn`

    logging.getLogger("cairn").debug("%s: the progress can't be shown", title, exc_info=error)


def _is_shown(work: _Work) -> bool:
    """On rank 0 of the job. A job is one of torch.distributed or of a launcher, or the ranks of the call itself."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    rank = os.environ.get("RANK", "")
    return int(rank) == 0 if rank.isdecimal() else work.rank == 0


class _Displays(ProcessPart):
    """The displays of this process whose threads run.

    A fork waits, for a moment, until no thread draws: the child would inherit a lock of tqdm or of stderr that no
    thread of the child releases.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[ProgressDisplay] = []
        self._drawing = threading.Lock()
        self._forking: int | None = None  # the thread that holds `_drawing` while it forks
        self._shown: deque[int] = deque(maxlen=_SHOWN_MAX)  # the last calls that a display has asked for

    def add(self, display: ProgressDisplay) -> None:
        with self._lock:
            self._all.append(display)

    def remove(self, display: ProgressDisplay) -> None:
        with self._lock:
            self._all = [other for other in self._all if other is not display]

    @property
    def drawing(self) -> threading.Lock:
        """Held while a thread draws."""
        return self._drawing

    def is_first(self, work: int) -> bool:
        """Whether no display has asked for the call: of several open displays the first one shows it."""
        if work in self._shown:
            return False
        self._shown.append(work)
        return True

    def before_fork(self) -> None:
        if self._all and self._drawing.acquire(timeout=_FORK_SECONDS):
            self._forking = threading.get_ident()

    def after_fork(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._drawing.release()

    def give_up(self) -> None:
        until = time.monotonic() + _END_SECONDS
        with self._lock:
            left = list(self._all)
        for display in left:
            display.give_up(until)


def show_progress(style: Style = "auto") -> ProgressDisplay:
    """Shows a bar on stderr for each call of this process that takes over two seconds, until the display is closed.

    ::

        with cairn.show_progress():
            cairn.load(state, checkpoint_id="run/step-1000")

    The calls are saves, also asynchronous ones until they are durable, loads, verifications, conversions, comparisons,
    repairs and removals that begin in the block, on any thread. A bar has the bytes of this rank. With the ranks of
    ``torch.distributed`` or of a launcher that sets ``RANK``, only rank 0 has bars.

    `style`: ``"tqdm"`` (also in notebooks), ``"rich"``, ``"lines"`` (a line each ten seconds), or ``"auto"``: the first
    of them that is installed, and lines if stderr is neither a terminal nor a notebook. A bar never delays or
    fails a call. Raises InvalidArgument for an unknown style, and for a library that is not installed.
    """
    if style not in STYLES:
        raise InvalidArgument("no style of bars", expected=", ".join(STYLES), actual=repr(style))
    if style in ("tqdm", "rich") and importlib.util.find_spec(style) is None:
        raise InvalidArgument(f"the package {style} is not installed: install it, or use another style")
    display = ProgressDisplay(style)
    display.start()
    return display


# A thread that draws after the end of the interpreter would end the process with an error.
atexit.register(lambda: part(_Displays).give_up())
os.register_at_fork(before=lambda: part(_Displays).before_fork(), after_in_parent=lambda: part(_Displays).after_fork())


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
