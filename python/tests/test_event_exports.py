"""The events as metrics of prometheus_client, and as spans and metrics of OpenTelemetry."""

from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import cairn
import cairn.events_opentelemetry
import cairn.events_prometheus


def _work(folder: Path) -> None:
    cairn.save({"w": torch.ones(100)}, checkpoint_id=folder / "step-4")
    cairn.async_save({"w": torch.ones(100)}, checkpoint_id=folder / "step-5").result()
    cairn.load({"w": torch.ones(100)}, checkpoint_id=folder / "step-5")
    with pytest.raises(cairn.Error):
        cairn.load({"other": torch.ones(1)}, checkpoint_id=folder / "step-5")


def test_the_metrics_of_prometheus(tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    with cairn.events_prometheus.collect(registry):
        _work(tmp_path)

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(name, labels)

    assert value("cairn_operations_total", operation="save", outcome="committed") == 2
    assert value("cairn_operations_total", operation="load", outcome="loaded") == 1
    assert value("cairn_operations_total", operation="load", outcome="failed") == 1
    assert value("cairn_bytes_total", operation="save") > 800
    assert value("cairn_operation_seconds_count", operation="save") == 2
    assert value("cairn_step_seconds_count", operation="save", step="written") == 2
    assert value("cairn_last_committed_step") == 5
    assert value("cairn_last_committed_timestamp_seconds") > 0


def test_the_spans_and_metrics_of_opentelemetry(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    reader = InMemoryMetricReader()
    with cairn.events_opentelemetry.export(tracers, MeterProvider([reader])):
        _work(tmp_path)
    finished = spans.get_finished_spans()
    saves = [span for span in finished if span.name == "cairn.save"]
    assert [span.attributes["cairn.step"] for span in saves if span.attributes] == [4, 5]
    for save in saves:
        children = {span.name for span in finished if span.parent and span.parent.span_id == save.context.span_id}
        assert {"cairn.save.plan", "cairn.save.write", "cairn.save.commit"} <= children
        assert save.start_time is not None and save.end_time is not None and save.start_time < save.end_time
    assert [span.status.is_ok for span in finished if span.name == "cairn.load"] == [True, False]
    data = reader.get_metrics_data()
    assert data is not None
    names = {metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert names == {"cairn.operations", "cairn.bytes", "cairn.operation.duration", "cairn.last_committed_step"}
