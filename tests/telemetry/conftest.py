"""Providers with in-memory exporters, handed over explicitly: no test touches a global provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopguard import _safety
from loopguard.records import Action, Finding
from loopguard.telemetry import Telemetry, lookup
from loopguard.telemetry.metrics import metrics
from loopguard.telemetry.spans import Spans


@dataclass
class Backend:
    """What an application sets up, and what has arrived there."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    log_exporter: InMemoryLogRecordExporter = field(default_factory=InMemoryLogRecordExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader])
        self.logger_provider = LoggerProvider()
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))
        self.tracer = self.tracer_provider.get_tracer("application")

    def settings(self, **options: Any) -> Telemetry:
        """Settings with these providers."""
        providers: dict[str, Any] = {
            "tracer_provider": self.tracer_provider,
            "meter_provider": self.meter_provider,
            "logger_provider": self.logger_provider,
        }
        return Telemetry(**(providers | options))

    def spans(self, **options: Any) -> Spans:
        """The Spans of a run that opens now."""
        found = lookup.spans_for_run(self.settings(**options))
        assert found is not None
        return found

    @property
    def finished(self) -> list[ReadableSpan]:
        """Spans that have ended, in the order in which they did."""
        return list(self.exporter.get_finished_spans())

    def points(self) -> dict[str, list[Any]]:
        """The data points of one collection by metric name."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def counts(self, name: str) -> dict[tuple[tuple[str, Any], ...], int]:
        """The values of one counter that are not 0, by sorted attributes."""
        return {
            tuple(sorted(point.attributes.items())): point.value for point in self.points().get(name, ()) if point.value
        }


@pytest.fixture
def backend() -> Iterator[Backend]:
    """In-memory exporters behind providers of their own."""
    backend = Backend()
    yield backend
    backend.tracer_provider.shutdown()
    backend.meter_provider.shutdown()
    backend.logger_provider.shutdown()


@pytest.fixture
def make_finding() -> Callable[..., Finding]:
    """A finding of the rule ``repeat`` at ``search``, with what a test wants to be different."""

    def make(action: Action = Action.WARN, **facts: Any) -> Finding:
        usual: dict[str, Any] = {
            "rule": "repeat",
            "tool": "search",
            "repetitions": 3,
            "threshold": 3,
            "seqs": (1, 2, 3),
            "first_seq": 1,
            "message": "search gave the same result 3 times in a row",
            "fingerprint": "3f2a9c1e",
            "run_name": "support-agent",
            "run_id": "run-1",
        }
        return Finding(action=action, **(usual | facts))

    return make


@pytest.fixture(autouse=True)
def loud_and_fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Internal errors are raised, and every test begins with counts of zero and the tool ``search``."""
    monkeypatch.setattr(_safety, "strict", True)
    monkeypatch.setattr(_safety, "errors", {})
    metrics.restart()
    metrics.register_tool("search")
    yield
    metrics.restart()
    assert trace.get_current_span() is trace.INVALID_SPAN, "a call has left its span current"


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Internal errors are logged, as they are in production."""
    monkeypatch.setattr(_safety, "strict", False)
