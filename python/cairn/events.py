"""The events of the saves, loads, verifications, conversions and removals of this process, to callbacks and to the log.

Each subscription has a thread of its own, which takes the events from a bounded queue and calls the callback. A
callback never delays a save or a load, however slow it is: events beyond the queue's capacity are counted and dropped.

A child made by fork has no subscriptions. When the interpreter ends, the subscriptions end, and wait some seconds for
their callbacks.
"""

import atexit
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cairn import _engine
from cairn._process import ProcessPart, part
from cairn._torch_names import modules
from cairn.errors import InvalidArgument

Kind = Literal["begun", "planned", "staged", "written", "committed", "failed", "deleted", "loaded", "verified"]

CAPACITY = 4096  # events in the queue of a subscription
_TAKE_MILLISECONDS = 60_000  # of one wait for events
_END_SECONDS = 5.0
_NANOSECONDS = 1e-9

_log = logging.getLogger("cairn.events")


class Event(NamedTuple):
    """An event of an operation: a save, a load, a verification, a conversion, or a removal.

    An operation has one event "begun" and ends with one of "committed", "failed", "loaded", "verified" and "deleted".
    A removal has no "begun". Between come, in a save or load, "planned" (the ranks have agreed on who writes or reads
    what), "staged" (of an asynchronous save: the tensors may change) and "written" (this rank's files have their final
    names); in a conversion, "planned" (the source is open) and "written" (the target's files are written).
    """

    kind: Kind
    operation: Literal["save", "load", "verify", "remove", "convert"]
    asynchronous: bool  # of `async_save`
    id: int  # of the operation, unique in the process
    directory: str  # of a conversion: the target
    rank: int
    ranks: int  # of the operation; 0: unknown, in a save under torch's driver
    step: int | None  # in the directory's name, as for :func:`cairn.latest`
    bytes: int  # staged, written, committed (with the metadata), loaded, verified or deleted, by this rank; else 0
    started: float  # the begin of the step that ends with the event, in seconds since 1970
    seconds: float  # of that step
    total_seconds: float  # from the begin of the operation to the event
    cause: Exception | None  # of "failed"; of "verified" the first problem
    process_id: int  # of the process that carried the step out: this process, or its writer process

    def __str__(self) -> str:
        place = f"'{self.directory}'" + ("" if self.step is None else f", step {self.step}")
        rank = f", rank {self.rank} of {self.ranks}" if self.ranks > 1 else ""
        size = f", {self.bytes} bytes" if self.bytes else ""
        cause = f": {self.cause}" if self.cause else ""
        return f"{self.operation} {self.kind}: {place}{rank}{size}, {self.total_seconds:.3f} s{cause}"


class Subscription:
    """The calls of a callback. A context manager: the subscription ends with the block."""

    def __init__(self, callback: Callable[[Event], object], kinds: Iterable[Kind] | None, capacity: int) -> None:
        """Use :func:`subscribe`."""
        self._callback = callback
        self._queue = _engine.EventQueue(capacity, [] if kinds is None else _numbers_of(kinds))
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="cairn-events", daemon=True)

    def start(self) -> None:
        """Use :func:`subscribe`."""
        self._thread.start()

    @property
    def dropped(self) -> int:
        """The number of events that were dropped, because the callback was too slow for the queue."""
        return self._queue.dropped()

    def end(self, seconds: float = _END_SECONDS) -> bool:
        """Ends the subscription: no later event reaches the callback.

        Waits up to `seconds` until the callback has had the events in the queue. Returns whether it has. The callback
        itself may call this; then the call does not wait.
        """
        if os.getpid() != self._process:
            return True
        self._queue.close()
        part(_Subscriptions).remove(self)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _run(self) -> None:
        while True:
            closed = self._queue.is_closed()
            for fields in self._queue.take(_TAKE_MILLISECONDS):
                self._call(_event_of(fields))
            if closed:
                return

    def _call(self, event: Event) -> None:
        try:
            self._callback(event)
        except Exception:
            _log.exception("a callback raised for the event '%s'", event)


class _Subscriptions(ProcessPart):
    """The subscriptions of this process that have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Subscription] = []

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            self._all.append(subscription)

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            self._all = [other for other in self._all if other is not subscription]

    def end(self) -> None:
        until = time.monotonic() + _END_SECONDS
        with self._lock:
            left = list(self._all)
        for subscription in left:
            subscription.end(max(until - time.monotonic(), 0))


def subscribe(
    callback: Callable[[Event], object], kinds: Iterable[Kind] | None = None, *, capacity: int = CAPACITY
) -> Subscription:
    """Calls `callback` for the events of `kinds` (None: all) of operations that begin from now on.

    The calls come one after the other, on a thread of the subscription. An exception of the callback is logged on the
    logger ``cairn.events``. The subscription lasts until :meth:`Subscription.end`, also if the caller drops the
    object. Raises InvalidArgument for an unknown kind.
    """
    if capacity < 1:
        raise InvalidArgument("capacity must be a number of events", expected="at least 1", actual=repr(capacity))
    subscription = Subscription(callback, kinds, capacity)
    part(_Subscriptions).add(subscription)
    subscription.start()
    return subscription


def log(level: int = logging.INFO, kinds: Iterable[Kind] | None = None) -> Subscription:
    """Logs the events of `kinds` (None: all) on the logger ``cairn.events``, at `level`; "failed" at ERROR.

    The records have the attribute `event`. :class:`JsonFormatter` makes JSON lines of them.
    """

    def write(event: Event) -> None:
        is_failure = event.kind == "failed" or event.cause is not None
        _log.log(max(level, logging.ERROR) if is_failure else level, "%s", event, extra={"event": event})

    return subscribe(write, kinds)


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON objects, one a line: time, level, logger, message, and the fields of an event."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            fields["event"] = event._asdict() | {"cause": None if event.cause is None else str(event.cause)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _numbers_of(kinds: Iterable[Kind]) -> list[int]:
    numbers = []
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _engine.EVENT_KINDS:
            raise InvalidArgument("no kind of events", expected=", ".join(_engine.EVENT_KINDS), actual=repr(kind))
        numbers.append(_engine.EVENT_KINDS.index(kind))
    if not numbers:
        raise InvalidArgument("kinds must name at least one kind of events", actual="none")
    return numbers


def _event_of(fields: Any) -> Event:
    kind, operation, asynchronous, number, directory, rank, ranks, step, size, started, length, total, cause, pid = (
        fields
    )
    return Event(
        kind,
        operation,
        asynchronous,
        number,
        os.fsdecode(directory),
        rank,
        ranks,
        step,
        size,
        started * _NANOSECONDS,
        length * _NANOSECONDS,
        total * _NANOSECONDS,
        cause,
        pid,
    )


# A thread that still takes events when the interpreter is gone would end the process with an error.
atexit.register(lambda: part(_Subscriptions).end())


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
