"""Metrics that stay few, and spans that are no longer there."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from loopguard import (
    RunStopped,
    Telemetry,
    ToolCallRefused,
    configure,
    current_run,
    guarded_run,
    guarded_tool,
)

TOOLS = 5


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """An in-memory reader of a meter provider of its own."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with configure(telemetry=Telemetry(meter_provider=provider)):
        yield reader
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Attributes and value of every point by metric."""
    data = reader.get_metrics_data()
    return {
        metric.name: [
            (dict(point.attributes or {}), getattr(point, "value", None)) for point in metric.data.data_points
        ]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


# -- cardinality ------------------------------------------------------------------------------------------------------


def check_cardinality(reader: InMemoryMetricReader, runs: int) -> None:
    """So many runs with random ids and arguments, five tools and every decision."""

    def search(query: str) -> str:
        return "same"

    tools = [guarded_tool(name=f"tool_{n}")(search) for n in range(TOOLS)]
    for n in range(runs):
        query = str(uuid.uuid4())
        with guarded_run(f"kind-{n % 3}", run_id=str(uuid.uuid4()), on_stop="end", agent="helper"):
            for _ in range(11 if n % 10 < TOOLS else 2):
                with suppress(ToolCallRefused, RunStopped):
                    tools[n % TOOLS](query)
    found = points(reader)
    assert {"max_operation_count", "loopguard.loop.detections", "loopguard.calls", "loopguard.runs"} <= set(found)
    rules, actions, decisions = 8, 3, 3
    for name, series in found.items():
        assert len(series) <= TOOLS * decisions * rules * actions, name
        for attributes, _ in series:
            assert set(attributes) <= {
                "gen_ai.tool.name",
                "gen_ai.agent.name",
                "gen_ai.tool.type",
                "rule",
                "action",
                "enforced",
                "outcome",
                "decision",
                "error.type",
                "where",
            }
            assert not [value for value in attributes.values() if "-" in str(value)]
    calls = {(a["gen_ai.tool.name"], a["decision"]): n for a, n in found["loopguard.calls"]}
    assert sum(calls.values()) == sum(11 if n % 10 < TOOLS else 2 for n in range(runs))
    stops = sum(n for a, n in found["loopguard.loop.detections"] if a["action"] == "stop")
    assert stops == sum(n % 10 < TOOLS for n in range(runs))
    assert sum(n for _, n in found["loopguard.runs"]) == runs


@pytest.mark.scenario("ins-metric-cardinality")
def test_many_runs_make_few_series(reader: InMemoryMetricReader) -> None:
    """500 runs with random ids: the series are tools by decisions by rules, and the counts are exact."""
    check_cardinality(reader, 500)


@pytest.mark.slow
@pytest.mark.scenario("ins-metric-cardinality")
def test_ten_thousand_runs_make_few_series(reader: InMemoryMetricReader) -> None:
    """The same with 10,000 runs."""
    check_cardinality(reader, 10_000)


@pytest.mark.scenario("ins-metric-cardinality")
def test_tools_that_a_model_made_up_are_one_value(reader: InMemoryMetricReader) -> None:
    """Names that nobody declared, and that never gave a result, are ``_other``; declared ones have their name."""
    with guarded_run("r", tools={"known": {"primary": "x"}}) as run:
        for n in range(300):
            with pytest.raises(KeyError), run.call(f"made_up_{n}", {"x": 1}):
                raise KeyError(f"made_up_{n}")
        with run.call("known", {"x": 1}) as call:
            call.result = "fine"
    calls = [attributes["gen_ai.tool.name"] for attributes, n in points(reader)["loopguard.calls"] if n]
    assert sorted(calls) == ["_other", "known"]


@pytest.mark.scenario("ins-metric-cardinality")
def test_a_tool_by_name_that_gave_a_result_has_its_name(reader: InMemoryMetricReader) -> None:
    """A dispatcher's own tools need no table: what gave a result exists."""
    with guarded_run("r") as run:
        for n in range(2):
            with run.call("own_tool", {"x": n}) as call:
                call.result = "fine"
    calls = {attributes["gen_ai.tool.name"]: n for attributes, n in points(reader)["loopguard.calls"] if n}
    assert calls == {"own_tool": 2}


@pytest.mark.scenario("ins-metric-cardinality")
def test_there_is_an_end_to_names(reader: InMemoryMetricReader) -> None:
    """However many tools and agents there are, their names on metrics are bounded."""
    for n in range(400):
        tool = guarded_tool(name=f"tool_{n}")(lambda: "x")
        with guarded_run("r", agent=f"agent_{n}"):
            tool()
    found = points(reader)
    tools = {attributes["gen_ai.tool.name"] for attributes, _ in found["loopguard.calls"]}
    assert len(tools) <= 201
    assert "_other" in tools
    assert sum(n for _, n in found["loopguard.calls"]) == 400
    assert all(len(series) < 2_000 for series in found.values())


# -- spans that are gone ----------------------------------------------------------------------------------------------


def provider_of(exporter: InMemorySpanExporter) -> TracerProvider:
    """A tracer provider that hands its spans to the exporter at once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def warned_inside(span: Any, caplog: pytest.LogCaptureFixture, ends: bool = False) -> None:
    """A warning while this span is current (or none): the decision arrives, and nobody complains."""
    caplog.set_level(logging.DEBUG)
    told: list[Any] = []

    @guarded_tool
    def search(query: str) -> str:
        if ends and trace.get_current_span().is_recording():
            trace.get_current_span().end()
        return "same"

    with guarded_run("r", on_finding=told.append, on_warn="queue") as run:
        if span is None:
            for _ in range(3):
                search("x")
        else:
            with trace.use_span(span, end_on_exit=False):
                for _ in range(3):
                    search("x")
        assert [finding.action for finding in run.findings] == ["warn"]
        assert told == list(run.findings)
        assert len(run.pop_nudges()) == 1
    complaints = [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert not complaints, [record.getMessage() for record in complaints]


@pytest.mark.scenario("ins-span-already-ended")
@pytest.mark.parametrize("spans", ["never", "auto", "always"])
@pytest.mark.parametrize("case", ["ended", "ended by the tool", "none", "not recording", "invalid"])
def test_a_finding_without_a_span_to_carry_it(spans: Any, case: str, caplog: pytest.LogCaptureFixture) -> None:
    """The current span has ended, does not record, or is not there: no complaint, and the hooks hear of it."""
    exporter = InMemorySpanExporter()
    provider = provider_of(exporter)
    tracer = provider.get_tracer("app")
    span: Any = tracer.start_span("agent")
    if case == "ended":
        span.end()
    elif case == "none":
        span = None
    elif case == "not recording":
        span = NonRecordingSpan(SpanContext(1 << 100, 1 << 50, is_remote=True, trace_flags=TraceFlags(0)))
    elif case == "invalid":
        span = trace.INVALID_SPAN
    # Where the span of the call is ours, a tool that ends the current span ends ours.
    with configure(telemetry=Telemetry(tracer_provider=provider, spans=spans)):
        warned_inside(span, caplog, ends=case == "ended by the tool")
    provider.shutdown()


@pytest.mark.scenario("ins-span-already-ended")
def test_a_framework_span_that_ended_early(caplog: pytest.LogCaptureFixture) -> None:
    """A framework's own span of the tool was taken over and ended before the tool returned."""
    exporter = InMemorySpanExporter()
    provider = provider_of(exporter)
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    span = provider.get_tracer("framework").start_span("execute_tool search", attributes=attributes)

    @guarded_tool(name="search")
    def search(query: str) -> str:
        span.end()
        return "same"

    caplog.set_level(logging.DEBUG)
    with configure(telemetry=Telemetry(tracer_provider=provider)), guarded_run("r") as run:
        with trace.use_span(span, end_on_exit=False):
            search("x")
            run.note_compaction()
        with trace.use_span(span, end_on_exit=False):
            for _ in range(3):
                search("x")
        assert run.findings
    complaints = [record for record in caplog.records if record.name.startswith("opentelemetry.sdk")]
    # The tool of this test ends its span again and again; that is its own complaint.
    assert {record.getMessage() for record in complaints} <= {"Calling end() on an ended span."}
    provider.shutdown()


@pytest.mark.scenario("ins-span-already-ended")
def test_the_span_around_a_run_ended_before_it(caplog: pytest.LogCaptureFixture) -> None:
    """The span that was current when the run opened has ended when the run does: it is left alone."""
    exporter = InMemorySpanExporter()
    provider = provider_of(exporter)
    caplog.set_level(logging.DEBUG)

    @guarded_tool
    def search(query: str) -> str:
        return "same"

    with configure(telemetry=Telemetry(tracer_provider=provider)):
        with provider.get_tracer("app").start_as_current_span("agent"):
            scope = guarded_run("r")
            run = scope.__enter__()
        for _ in range(3):
            search("x")
        scope.__exit__(None, None, None)
    assert run.findings
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert not current_run().active
    (agent,) = [span for span in exporter.get_finished_spans() if span.name == "agent"]
    assert "loopguard.run.outcome" not in (agent.attributes or {})
    provider.shutdown()


def test_observe_tells_the_span_of_the_call() -> None:
    """What would have been refused and stopped stands on the spans of the calls that went through, in the same words."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @guarded_tool(name="search")
    def search(query: str) -> str:
        return "same"

    with configure(telemetry=Telemetry(tracer_provider=provider)), guarded_run("watched", mode="observe"):
        for _ in range(11):
            search("x")
    events = [
        (span.attributes["loopguard.call.seq"], event)
        for span in exporter.get_finished_spans()
        for event in span.events
    ]

    assert [(seq, event.attributes["loopguard.loop.action"]) for seq, event in events] == [
        (3, "warn"),
        (6, "refuse"),
        (11, "stop"),
    ]
    assert [event.attributes["loopguard.loop.enforced"] for _, event in events] == [False] * 3
    assert "would have been refused" in events[1][1].attributes["loopguard.loop.message"]
    assert "would have been stopped" in events[2][1].attributes["loopguard.loop.message"]
