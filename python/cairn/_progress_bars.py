"""Bars: the progress of calls on stderr, by tqdm, by rich, or as lines.

tqdm and rich are imported when the first bar is made, and only then.
"""

import functools
import importlib
import os
import select
import sys
import time
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

Style = Literal["auto", "tqdm", "rich", "lines"]
STYLES = ("auto", "tqdm", "rich", "lines")

_LINE_SECONDS = 10.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNIT_STEP = 1024


class Amounts(NamedTuple):
    """How far a call is."""

    done: int
    total: int  # 0 while unknown
    unit: Literal["bytes", "files", "directories"]
    seconds: float  # since the begin


class Bar(Protocol):
    """The bar of one call. Used by one thread."""

    def show(self, amounts: Amounts) -> None:
        """Draws, if it is time to."""

    def end(self, amounts: Amounts, note: str) -> None:
        """Draws for the last time, with a `note` unless it is empty. Then the bar stays, or goes away below others."""


class Bars:
    """The bars of a display, all of one style. Used by one thread at a time."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._rich = _RichTable()

    def add(self, title: str, amounts: Amounts) -> Bar:
        """A new bar. Raises ImportError if the style names a library that is not installed."""
        if self._style == "lines" or (self._style == "auto" and not (_is_notebook() or sys.stderr.isatty())):
            return _Lines(title)
        if self._style == "tqdm":
            return _TqdmBar(title, amounts)
        if self._style == "rich":
            return _RichBar(self._rich, title, amounts)
        for make in (_TqdmBar, functools.partial(_RichBar, self._rich)):
            try:
                return make(title, amounts)
            except ImportError:
                continue
        return _Lines(title)


def _is_notebook() -> bool:
    interactive = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", ())


class _TqdmBar:
    """A bar of tqdm, below the caller's own bars.

    The last text of a bar stays, as a line above all bars. Below a bar of the caller only the text of a failure stays.
    """

    _rows: ClassVar[set[int]] = set()  # of the open bars of this class

    def __init__(self, title: str, amounts: Amounts) -> None:
        is_bytes = amounts.unit == "bytes"
        self._bar = _tqdm_class()(
            desc=title,
            total=amounts.total or None,
            unit="B" if is_bytes else f" {amounts.unit}",
            unit_scale=is_bytes,
            unit_divisor=_UNIT_STEP,
            smoothing=0,  # the mean rate
            leave=False,
            dynamic_ncols=True,
            file=sys.stderr,
        )
        self._is_widget = hasattr(self._bar, "container")
        if self._is_widget:
            self._bar.leave = True
        self._row = abs(getattr(self._bar, "pos", 0))
        self._is_below_others = any(row not in self._rows for row in range(self._row))
        self._rows.add(self._row)
        self.show(amounts)

    def show(self, amounts: Amounts) -> None:
        bar = self._bar
        if (amounts.total or None) != bar.total:
            if self._is_widget:
                bar.reset(amounts.total)
            bar.total = amounts.total or None
        bar.start_t = time.time() - amounts.seconds
        bar.n = amounts.done
        bar.refresh()

    def end(self, amounts: Amounts, note: str) -> None:
        try:
            self.show(amounts)
            if note:
                self._bar.set_postfix_str(note)
        finally:
            self._rows.discard(self._row)
            text = str(self._bar)
            self._bar.close()
        if not self._is_widget and (note or not self._is_below_others):
            self._bar.write(text, file=sys.stderr)


def _tqdm_class() -> Any:
    auto = importlib.import_module("tqdm.auto")
    importlib.import_module("tqdm").tqdm.get_lock()  # the lock of all bars; a subclass would make one of its own
    # Without tqdm's thread, which would outlive the bar.
    return type("tqdm", (auto.tqdm,), {"monitor_interval": 0})


class _RichTable:
    """The running bars of rich, in one table: two tables would be drawn on the same rows.

    Without rich's thread. The caller's own output is not redirected. A bar that has ended stays.
    """

    def __init__(self) -> None:
        self._progress: Any = None
        self._running = 0

    def add(self, title: str, amounts: Amounts) -> tuple[Any, Any]:
        """The table of a new bar, and its number in the table."""
        if self._progress is None:
            self._progress = self._new()
            self._progress.start()
        self._running += 1
        return self._progress, self._progress.add_task(title, total=amounts.total or None, amounts=amounts)

    def end(self) -> None:
        """One of the bars has ended."""
        self._running -= 1
        if self._running == 0:
            self._progress.stop()
            self._progress = None

    @staticmethod
    def _new() -> Any:
        progress = importlib.import_module("rich.progress")
        text = importlib.import_module("rich.text").Text

        def render(_: Any, task: Any) -> Any:
            return text(_text_of(task.fields["amounts"]), no_wrap=True)

        return progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            type("AmountsColumn", (progress.ProgressColumn,), {"render": render})(),
            console=importlib.import_module("rich.console").Console(stderr=True),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )


class _RichBar:
    """A bar of rich."""

    def __init__(self, table: _RichTable, title: str, amounts: Amounts) -> None:
        self._table = table
        self._title = title
        self._has_ended = False
        self._progress, self._task = table.add(title, amounts)
        self.show(amounts)

    def show(self, amounts: Amounts) -> None:
        total = amounts.total or None
        self._progress.update(self._task, completed=amounts.done, total=total, amounts=amounts, refresh=True)

    def end(self, amounts: Amounts, note: str) -> None:
        try:
            if note:
                self._progress.update(self._task, description=f"{self._title}, {note}")
            self.show(amounts)
        finally:
            if not self._has_ended:  # a second call follows a failure of the first
                self._has_ended = True
                self._table.end()


class _Lines:
    """A line each ten seconds. On stderr, since a log has no handler for its level unless the caller sets one.

    A line is dropped if stderr takes none: a write that blocks would hold the lock that the end of the program needs.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._next = _LINE_SECONDS  # since the begin of the call

    def show(self, amounts: Amounts) -> None:
        if amounts.seconds < self._next:
            return
        self._next = amounts.seconds + _LINE_SECONDS
        self._print(_text_of(amounts))

    def end(self, amounts: Amounts, note: str) -> None:
        if self._next > _LINE_SECONDS:  # after a first line
            amount = _amount(amounts.done, amounts.unit)
            self._print(f"{note + ', ' if note else ''}{amount} in {amounts.seconds:.1f} s")

    def _print(self, text: str) -> None:
        line = f"cairn: {self._title}: {text}\n"
        try:
            stream = sys.stderr.fileno()
        except (OSError, ValueError):  # no file: a notebook, or a capture in memory
            sys.stderr.write(line)
            return
        # One write: lines of several processes do not mix.
        if select.select([], [stream], [], 0)[1]:
            os.write(stream, line.encode(errors="backslashreplace"))


def _text_of(amounts: Amounts) -> str:
    if not amounts.total:
        return f"{_amount(amounts.done, amounts.unit)}, {_clock(amounts.seconds)}"
    text = f"{amounts.done / amounts.total:.0%}, {_amount(amounts.done, amounts.unit)}"
    text += f" of {_amount(amounts.total, amounts.unit)}"
    if not amounts.done:
        return text
    rate = amounts.done / amounts.seconds
    return f"{text}, {_amount(rate, amounts.unit)}/s, {_clock((amounts.total - amounts.done) / rate)} left"


def _amount(amount: float, unit: str) -> str:
    if unit != "bytes":
        return f"{amount:.4g} {unit}"
    power = 0
    while amount >= _UNIT_STEP and power < len(_UNITS) - 1:
        amount /= _UNIT_STEP
        power += 1
    return f"{amount:.1f} {_UNITS[power]}" if power else f"{amount:.0f} B"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
