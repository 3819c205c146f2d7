"""The events of this process as metrics of ``prometheus_client``: install ``cairn-checkpoint[prometheus]``."""

from typing import TYPE_CHECKING, Any

import prometheus_client

from cairn import events
from cairn._torch_names import modules
from cairn.events import Event, Subscription

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)  # the bounds of the histograms
_ENDS = frozenset(("committed", "loaded", "verified", "deleted", "failed"))


def collect(registry: Any = prometheus_client.REGISTRY) -> Subscription:
    """Counts the operations of this process in `registry`, until the subscription ends.

    ``cairn_operations_total`` (labels operation, outcome), ``cairn_bytes_total`` (operation),
    ``cairn_operation_seconds`` (operation) and ``cairn_step_seconds`` (operation, step) as histograms, and
    ``cairn_last_committed_step`` and ``cairn_last_committed_timestamp_seconds``. Call once per registry.
    """
    operations = prometheus_client.Counter(
        "cairn_operations", "Ended operations", ["operation", "outcome"], registry=registry
    )
    size = prometheus_client.Counter("cairn_bytes", "Bytes of ended operations", ["operation"], registry=registry)
    seconds = prometheus_client.Histogram(
        "cairn_operation_seconds", "Operations", ["operation"], registry=registry, buckets=_SECONDS
    )
    step_seconds = prometheus_client.Histogram(
        "cairn_step_seconds", "Steps of operations", ["operation", "step"], registry=registry, buckets=_SECONDS
    )
    last_step = prometheus_client.Gauge("cairn_last_committed_step", "Newest committed step", registry=registry)
    last_time = prometheus_client.Gauge(
        "cairn_last_committed_timestamp_seconds", "Time of the last commit", registry=registry
    )

    def count(event: Event) -> None:
        if event.kind in ("planned", "staged", "written", "committed"):
            step_seconds.labels(event.operation, event.kind).observe(event.seconds)
        if event.kind not in _ENDS:
            return
        operations.labels(event.operation, event.kind).inc()
        size.labels(event.operation).inc(event.bytes)
        if event.kind != "failed":
            seconds.labels(event.operation).observe(event.total_seconds)
        if event.kind == "committed":
            last_time.set(event.started + event.seconds)
            if event.step is not None:
                last_step.set(event.step)

    return events.subscribe(count)


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
