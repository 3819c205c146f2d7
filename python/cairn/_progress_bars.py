"""Bars: the progress of one call on stderr, by tqdm, by rich, or as lines.

tqdm and rich are imported when the first bar is made, and only then.
"""

import importlib
import sys
import time
from typing import Any, Literal, NamedTuple, Protocol

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


def bar_of(style: Style, title: str, amounts: Amounts) -> Bar:
    """A new bar. Raises ImportError if `style` names a library that is not installed."""
    if style == "tqdm":
        return _TqdmBar(title, amounts)
    if style == "rich":
        return _RichBar(title, amounts)
    if style == "auto" and (_is_notebook() or sys.stderr.isatty()):
        for make in (_TqdmBar, _RichBar):
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
    """A bar of tqdm, below the caller's own bars."""

    def __init__(self, title: str, amounts: Amounts) -> None:
        is_bytes = amounts.unit == "bytes"
        self._bar = _tqdm_class()(
            desc=title,
            total=amounts.total or None,
            unit="B" if is_bytes else f" {amounts.unit}",
            unit_scale=is_bytes,
            unit_divisor=_UNIT_STEP,
            smoothing=0,  # the mean rate
            leave=None,  # stays only if no other bar is above
            dynamic_ncols=True,
            file=sys.stderr,
        )
        self.show(amounts)

    def show(self, amounts: Amounts) -> None:
        bar = self._bar
        if amounts.total and amounts.total != bar.total:
            bar.reset(amounts.total)
        bar.start_t = time.time() - amounts.seconds
        bar.n = amounts.done
        bar.refresh()

    def end(self, amounts: Amounts, note: str) -> None:
        try:
            self.show(amounts)
            if note:
                self._bar.set_postfix_str(note)
        finally:
            self._bar.close()


def _tqdm_class() -> Any:
    auto = importlib.import_module("tqdm.auto")
    importlib.import_module("tqdm").tqdm.get_lock()  # the lock of all bars; a subclass would make one of its own
    # Without tqdm's thread, which would outlive the bar.
    return type("tqdm", (auto.tqdm,), {"monitor_interval": 0})


class _RichBar:
    """A bar of rich, without rich's thread. The caller's own output is left alone."""

    def __init__(self, title: str, amounts: Amounts) -> None:
        progress = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console").Console(stderr=True)
        is_bytes = amounts.unit == "bytes"
        counts = (
            (progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn())
            if is_bytes
            else (progress.MofNCompleteColumn(), progress.TextColumn(amounts.unit))
        )
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            *counts,
            progress.TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(title, total=amounts.total or None)
        self._progress.start()
        self.show(amounts)

    def show(self, amounts: Amounts) -> None:
        self._progress.update(self._task, completed=amounts.done, total=amounts.total or None, refresh=True)

    def end(self, amounts: Amounts, note: str) -> None:
        try:
            if note:
                title = self._progress.tasks[0].description
                self._progress.update(self._task, description=f"{title}, {note}")
            self.show(amounts)
        finally:
            self._progress.stop()


class _Lines:
    """A line each ten seconds. On stderr, since a log has no handler for its level unless the caller sets one."""

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
        # One write: lines of several processes do not mix.
        sys.stderr.write(f"cairn: {self._title}: {text}\n")
        sys.stderr.flush()


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
