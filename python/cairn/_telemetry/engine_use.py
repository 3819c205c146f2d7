"""Which calls of this process Cairn's engine carried out, and why it did not carry out the others.

Every save and load that reaches Cairn is counted, by function and by how it was carried out. A way that the caller may
not expect is logged at WARNING, once per process: another storage than a local directory, a planner of the caller's,
threads instead of a writer process.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

_log = logging.getLogger("cairn")


@dataclass(frozen=True)
class CallCount:
    """Calls of one function that were carried out in one way.

    `call` is "save", "async_save", "load" or an older call of DCP, or the class of the storage that another driver than
    Cairn's called. `engine`: Cairn's engine wrote or read all of the data; a load of which torch's code read a part is
    not the engine's. `how` says more; `last` is the checkpoint of the last such call. Only calls that succeeded, or for
    async_save began, are counted.
    """

    call: str
    engine: bool
    how: str
    count: int
    last: str


@dataclass(frozen=True)
class Report:
    """What :func:`report` found. ``print(report)`` shows a line per entry of `calls`."""

    calls: tuple[CallCount, ...]

    @property
    def engine_calls(self) -> int:
        """How many calls the engine carried out."""
        return sum(entry.count for entry in self.calls if entry.engine)

    @property
    def other_calls(self) -> int:
        """How many it did not carry out."""
        return sum(entry.count for entry in self.calls if not entry.engine)

    def __str__(self) -> str:
        if not self.calls:
            return "cairn: no save or load of this process has reached Cairn"
        lines = [f"cairn: the engine carried out {self.engine_calls} calls, and {self.other_calls} went past it"]
        for entry in self.calls:
            by = "engine" if entry.engine else "NOT the engine"
            how = f" ({entry.how})" if entry.how else ""
            lines.append(f"  {entry.count} x {entry.call}: {by}{how}, last '{entry.last}'")
        return "\n".join(lines)


_lock = threading.Lock()
_counts: dict[tuple[str, bool, str], tuple[int, str]] = {}  # by call, engine and how: count and last checkpoint


def report() -> Report:
    """The saves and loads of this process so far. See :class:`Report`.

    A program that is switched by ``cairn.install()`` shows here whether its checkpoints go through Cairn's engine.
    """
    with _lock:
        return Report(tuple(CallCount(*key, *value) for key, value in _counts.items()))


def note(call: str, place: object, how: str = "", *, engine: bool = True, expected: bool = True) -> None:
    """Counts a call for the checkpoint `place`. If the way is not the `expected` one, a first such call is logged."""
    key = (call, engine, how)
    with _lock:
        is_new = key not in _counts
        count, _ = _counts.get(key, (0, ""))
        _counts[key] = (count + 1, str(place))
    if not is_new or expected:
        return
    if engine:
        _log.warning("%s(), checkpoint '%s': %s (said once; cairn.report() counts such calls)", call, place, how)
        return
    _log.warning(
        "%s() does not use Cairn's engine for checkpoint '%s': %s. It lacks what the engine promises: an old "
        "checkpoint that stays whole until the new one is durable, checks of every byte, no code run from files "
        "(said once; cairn.report() counts such calls)",
        call,
        place,
        how,
    )


class _DrivenCall:
    """A call that torch's driver carries out. Storages of Cairn say here which code moves the data."""

    def __init__(self) -> None:
        self.engine = False
        self.reason = ""
        self.remark = ""


_driven: ContextVar[_DrivenCall | None] = ContextVar("cairn_driven_call", default=None)


@contextlib.contextmanager
def driving(call: str, place: object, reasons: list[str]) -> Iterator[None]:
    """For Cairn's calls of torch's driver: counts one call when the block has succeeded.

    `reasons` say why torch's driver is used, as far as they are not empty.
    """
    current = _DrivenCall()
    token = _driven.set(current)
    try:
        yield
    finally:
        _driven.reset(token)
    said = [reason for reason in reasons if reason]
    if not any(current.reason in reason for reason in said):  # a reason may be known before and while the data moves
        said.append(current.reason)
    why = "; ".join(reason for reason in said if reason)
    note(call, place, why or current.remark, engine=current.engine, expected=not why)


def storage_moves_data(storage: object, place: object, reason: str = "", *, remark: str = "") -> None:
    """For a storage of Cairn: the engine moves the data of a save or load, or torch's code does, for a `reason`.

    `remark` says how the engine does it.
    """
    current = _driven.get()
    if current is None:
        note(type(storage).__name__, place, reason or remark, engine=not reason, expected=not reason)
        return
    current.engine = not reason
    current.reason = reason
    current.remark = remark


def _forget() -> None:  # in a forked child, whose calls are its own
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _counts.clear()


os.register_at_fork(after_in_child=_forget)
