"""Counts of the calls of this process: carried out by Cairn's engine or not, and the reasons.

Every save and load that reaches Cairn is counted, by function and by the way of execution. A way that the caller may
not expect is logged at WARNING, once per process: another storage than a local directory, a planner of the caller's,
threads instead of a writer process.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from cairn._process import ProcessPart, part

_log = logging.getLogger("cairn")


@dataclass(frozen=True)
class CallCount:
    """The calls of a function that were carried out in one way.

    `call` is "save", "async_save", "load" or an older call of DCP, or the storage's class if a driver outside Cairn
    called the storage. `engine`: Cairn's engine wrote or read all of the data; a load partly read by torch's code
    counts as False. `how` describes the way; `last` is the checkpoint of the last call. Only successful calls are
    counted; of async_save, calls that began a save.
    """

    call: str
    engine: bool
    how: str
    count: int
    last: str


@dataclass(frozen=True)
class Report:
    """The result of :func:`report`. ``print(report)`` shows a line per entry of `calls`."""

    calls: tuple[CallCount, ...]

    @property
    def engine_calls(self) -> int:
        """The number of calls that the engine carried out."""
        return sum(entry.count for entry in self.calls if entry.engine)

    @property
    def other_calls(self) -> int:
        """The number of calls that the engine did not carry out."""
        return sum(entry.count for entry in self.calls if not entry.engine)

    def __str__(self) -> str:
        if not self.calls:
            return "cairn: no save or load of this process has reached Cairn"
        lines = [f"cairn: {self.engine_calls} calls used the engine, {self.other_calls} did not"]
        for entry in self.calls:
            by = "engine" if entry.engine else "NOT the engine"
            how = f" ({entry.how})" if entry.how else ""
            lines.append(f"  {entry.count} x {entry.call}: {by}{how}, last '{entry.last}'")
        return "\n".join(lines)


class CallCounts(ProcessPart):
    """The calls of this process. `counts`: by call, engine and how, the count and the last checkpoint."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[tuple[str, bool, str], tuple[int, str]] = {}


def report() -> Report:
    """Returns the counts of the saves and loads of this process until now. See :class:`Report`.

    In a program switched by ``cairn.install()``, the counts show whether checkpoints go through Cairn's engine.
    """
    calls = part(CallCounts)
    with calls.lock:
        return Report(tuple(CallCount(*key, *value) for key, value in calls.counts.items()))


def note(call: str, place: object, how: str = "", *, engine: bool = True, expected: bool = True) -> None:
    """Counts a call for the checkpoint `place`. The first call of an unexpected way (not `expected`) is logged."""
    key = (call, engine, how)
    calls = part(CallCounts)
    with calls.lock:
        is_new = key not in calls.counts
        count, _ = calls.counts.get(key, (0, ""))
        calls.counts[key] = (count + 1, str(place))
    if not is_new or expected:
        return
    if engine:
        _log.warning("%s(), checkpoint '%s': %s (logged once; cairn.report() counts these calls)", call, place, how)
        return
    _log.warning(
        "%s() does not use Cairn's engine for checkpoint '%s': %s. The engine's promises do not hold: the old "
        "checkpoint stays whole until the new checkpoint is durable, every byte is checked, no code from files runs "
        "(logged once; cairn.report() counts these calls)",
        call,
        place,
        how,
    )


class _DrivenCall:
    """A call under torch's driver. Cairn's storages record here whether the engine or torch's code moves the data."""

    def __init__(self) -> None:
        self.engine = False
        self.reason = ""
        self.way = ""


_driven: ContextVar[_DrivenCall | None] = ContextVar("cairn_driven_call", default=None)


@contextlib.contextmanager
def driving(call: str, place: object, reasons: list[str]) -> Iterator[None]:
    """For Cairn's calls of torch's driver: counts a call when the block has succeeded.

    `reasons` are the reasons for torch's driver; empty strings are ignored.
    """
    current = _DrivenCall()
    token = _driven.set(current)
    try:
        yield
    finally:
        _driven.reset(token)
    said = [reason for reason in reasons if reason]
    # a reason may be given before the call and again while the data moves
    if not any(current.reason in reason for reason in said):
        said.append(current.reason)
    why = "; ".join(reason for reason in said if reason)
    note(call, place, why or current.way, engine=current.engine, expected=not why)


def storage_moves_data(storage: object, place: object, reason: str = "", *, way: str = "") -> None:
    """For a storage of Cairn: records that the engine moves the data of a save or load, or torch's code, for a
    `reason`.

    `way` describes how the engine moves the data.
    """
    current = _driven.get()
    if current is None:
        note(type(storage).__name__, place, reason or way, engine=not reason, expected=not reason)
        return
    current.engine = not reason
    current.reason = reason
    current.way = way
