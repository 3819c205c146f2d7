"""The events of this process as spans and metrics of OpenTelemetry: install ``cairn-checkpoint[opentelemetry]``."""

from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

from cairn import events
from cairn._engine import __version__
from cairn._torch_names import modules
from cairn.events import Event, Subscription

_NANOSECONDS = 1_000_000_000
_STEPS = {"planned": "plan", "staged": "stage", "written": "write", "committed": "commit"}
_ENDS = frozenset(("committed", "loaded", "verified", "deleted", "failed"))


class _Exporter:
    """Makes a span of each operation, with a child for each step. The subscription's thread calls the methods."""

    def __init__(self, tracer: Any, meter: Any) -> None:
        self._tracer = tracer
        self._spans: dict[int, Any] = {}  # by the operation's id
        self._operations = meter.create_counter("cairn.operations", description="Ended operations")
        self._bytes = meter.create_counter("cairn.bytes", unit="By", description="Bytes of ended operations")
        self._seconds = meter.create_histogram("cairn.operation.duration", unit="s", description="Operations")
        self._last_step = meter.create_gauge("cairn.last_committed_step", description="Newest committed step")

    def __call__(self, event: Event) -> None:
        end = int((event.started + event.seconds) * _NANOSECONDS)
        span = self._spans.get(event.id)
        if span is None:
            begin = int((event.started + event.seconds - event.total_seconds) * _NANOSECONDS)
            span = self._tracer.start_span(f"cairn.{event.operation}", start_time=begin, attributes=_attributes(event))
            self._spans[event.id] = span
        if event.kind in _STEPS:
            child = self._tracer.start_span(
                f"cairn.{event.operation}.{_STEPS[event.kind]}",
                context=trace.set_span_in_context(span),
                start_time=int(event.started * _NANOSECONDS),
                attributes={"cairn.bytes": event.bytes},
            )
            child.end(end)
        if event.kind in _ENDS:
            self._end(event, end)

    def _end(self, event: Event, end: int) -> None:
        span = self._spans.pop(event.id)
        span.set_attribute("cairn.bytes", event.bytes)
        if event.cause is not None:
            span.record_exception(event.cause, timestamp=end)
            span.set_status(trace.StatusCode.ERROR, str(event.cause))
        span.end(end)
        labels = {"cairn.operation": event.operation, "cairn.outcome": event.kind}
        self._operations.add(1, labels)
        self._bytes.add(event.bytes, labels)
        self._seconds.record(event.total_seconds, labels)
        if event.kind == "committed" and event.step is not None:
            self._last_step.set(event.step)


def export(tracer_provider: Any = None, meter_provider: Any = None) -> Subscription:
    """Exports the operations of this process, until the subscription ends. None: the program's global providers."""
    tracer = trace.get_tracer("cairn", __version__, tracer_provider)
    meter = metrics.get_meter("cairn", __version__, meter_provider)
    return events.subscribe(_Exporter(tracer, meter))


def _attributes(event: Event) -> dict[str, Any]:
    step = {} if event.step is None else {"cairn.step": event.step}
    return {"cairn.directory": event.directory, "cairn.rank": event.rank, "cairn.ranks": event.ranks, **step}


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
