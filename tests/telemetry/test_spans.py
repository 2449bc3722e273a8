"""The span of a call: its names, its place in the trace, its status."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from loopguard import _safety
from loopguard.telemetry import Telemetry, lookup
from loopguard.telemetry.metrics import metrics


def test_a_span_is_named_after_its_tool(backend: Any) -> None:
    """A call is a span ``execute_tool X`` of kind INTERNAL with the attributes of the conventions and ours."""
    spans = backend.spans()

    spans.end(spans.start("run-1", "search", "triage", 7, call_id="call_9"))

    (span,) = backend.finished
    assert span.name == "execute_tool search"
    assert span.kind is SpanKind.INTERNAL
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "triage",
        "gen_ai.tool.call.id": "call_9",
        "loopguard.run.id": "run-1",
        "loopguard.call.seq": 7,
    }
    assert span.instrumentation_scope.name == "loopguard"
    assert span.status.status_code is StatusCode.UNSET


def test_attributes_are_there_at_creation() -> None:
    """A sampler sees operation, tool, agent, run and call number."""
    seen: dict[str, Any] = {}

    class Look(type(ALWAYS_OFF)):  # type: ignore[misc]
        def should_sample(self, *args: Any, **kwargs: Any) -> Any:
            seen.update(args[4])
            return super().should_sample(*args, **kwargs)

    provider = TracerProvider(sampler=Look(ALWAYS_OFF._decision))
    spans = lookup.spans_for_run(Telemetry(tracer_provider=provider))
    assert spans is not None

    spans.end(spans.start("run-1", "search", "triage", 1))

    assert {"gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.agent.name"} <= set(seen)
    assert {"loopguard.run.id", "loopguard.call.seq"} <= set(seen)


def test_the_span_is_current_inside_the_call(backend: Any) -> None:
    """Spans of the tool's own work are children of its span; after the call the former span is current."""
    spans = backend.spans()

    with backend.tracer.start_as_current_span("agent") as agent:
        handle = spans.start("run-1", "search", None, 1)
        backend.tracer.start_span("http").end()
        spans.end(handle)
        after = trace.get_current_span()

    http, call, _ = backend.finished
    assert http.parent.span_id == call.context.span_id
    assert call.parent.span_id == agent.get_span_context().span_id
    assert after is agent


def test_a_sampled_out_span_is_current_all_the_same() -> None:
    """A span that is not recorded is attached, so that the spans below it keep the decision."""
    provider = TracerProvider(sampler=ALWAYS_OFF)
    spans = lookup.spans_for_run(Telemetry(tracer_provider=provider))
    assert spans is not None

    handle = spans.start("run-1", "search", None, 1)
    inside = trace.get_current_span().get_span_context()
    spans.end(handle)

    assert handle is not None
    assert inside.is_valid
    assert inside == handle.span.get_span_context()
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_tracer_that_is_switched_off_leaves_the_current_span(backend: Any) -> None:
    """A provider that gives back the parent's identity does not hide the application's recording span."""

    class Off(trace.TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def start_span(self, name: str, context: Any = None, **kwargs: Any) -> trace.Span:
            return trace.NonRecordingSpan(trace.get_current_span(context).get_span_context())

    spans = backend.spans(tracer_provider=Off())

    with backend.tracer.start_as_current_span("agent") as agent:
        handle = spans.start("run-1", "search", None, 1)
        inside = trace.get_current_span()
        spans.end(handle)

    assert inside is agent


def test_an_exception_is_an_error_without_its_message(backend: Any) -> None:
    """The status is ERROR with the type's qualified name; message and stack trace stay in the process."""
    spans = backend.spans()

    spans.end(spans.start("run-1", "search", None, 1), ValueError("password=hunter2"))
    spans.end(spans.start("run-1", "search", None, 2), _OwnError("x"))

    builtin, own = backend.finished
    assert builtin.status.status_code is StatusCode.ERROR
    assert builtin.status.description is None
    assert builtin.attributes["error.type"] == "ValueError"
    assert own.attributes["error.type"].endswith("._OwnError")
    assert not builtin.events


class _OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit()])
def test_a_cancellation_is_no_error(backend: Any, error: BaseException) -> None:
    """What is no ``Exception`` leaves the status unset."""
    spans = backend.spans()

    spans.end(spans.start("run-1", "search", None, 1), error)

    (span,) = backend.finished
    assert span.status.status_code is StatusCode.UNSET
    assert "error.type" not in span.attributes


def test_a_returned_failure_is_an_error(backend: Any) -> None:
    """A tool that returns its failure has a span with status ERROR and the type ``tool_error``."""
    spans = backend.spans()

    spans.end(spans.start("run-1", "search", None, 1), failed=True)

    (span,) = backend.finished
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "tool_error"


def test_an_end_counts_once(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A second end does nothing and logs nothing."""
    spans = backend.spans()
    handle = spans.start("run-1", "search", None, 1)

    spans.end(handle)
    spans.end(handle, ValueError("late"))

    assert len(backend.finished) == 1
    assert not caplog.records


def test_the_duration_is_recorded(backend: Any) -> None:
    """``gen_ai.execute_tool.duration`` is the span's duration in seconds, with tool, agent and error type."""
    spans = backend.spans()

    spans.end(spans.start("run-1", "search", "triage", 1))
    spans.end(spans.start("run-1", "search", None, 2), ValueError("x"))

    fine, failed = backend.points()["gen_ai.execute_tool.duration"]
    span = backend.finished[0]
    assert fine.sum == pytest.approx((span.end_time - span.start_time) / 1e9)
    assert fine.explicit_bounds[0] == 0.01
    assert fine.explicit_bounds[-1] == 81.92
    assert fine.attributes == {
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "triage",
    }
    assert failed.attributes["error.type"] == "ValueError"
    assert fine.exemplars[0].span_id == span.context.span_id


def test_a_clock_that_is_set_back_gives_no_negative_duration(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The histogram gets 0 where the wall clock went back during the call."""
    spans = backend.spans()
    handle = spans.start("run-1", "search", None, 1)
    monkeypatch.setattr("loopguard.telemetry.spans.time_ns", lambda: handle.started - 1)

    spans.end(handle)

    (point,) = backend.points()["gen_ai.execute_tool.duration"]
    assert point.sum == 0


def test_a_tool_that_a_model_made_up_is_other_on_the_metric(backend: Any) -> None:
    """The span keeps the name; the metric says ``_other`` until somebody registers the tool."""
    spans = backend.spans()

    spans.end(spans.start("run-1", "invented_7f3c", None, 1))
    metrics.register_tool("invented_7f3c")
    spans.end(spans.start("run-1", "invented_7f3c", None, 2))

    labels = [p.attributes["gen_ai.tool.name"] for p in backend.points()["gen_ai.execute_tool.duration"]]
    assert labels == ["_other", "invented_7f3c"]
    assert {span.name for span in backend.finished} == {"execute_tool invented_7f3c"}


def test_a_framework_s_span_of_the_tool_is_used(backend: Any) -> None:
    """In ``auto`` an ``execute_tool`` span of the same tool is enriched: no twin, no end, no duration of ours."""
    spans = backend.spans()
    given = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}

    with backend.tracer.start_as_current_span("execute_tool search", attributes=given) as framework:
        handle = spans.start("run-1", "search", "triage", 4, call_id="c1")
        inside = trace.get_current_span()
        spans.end(handle, failed=True)
        assert framework.is_recording()

    (span,) = backend.finished
    assert inside is framework
    assert span.attributes["loopguard.run.id"] == "run-1"
    assert span.attributes["loopguard.call.seq"] == 4
    assert span.attributes["gen_ai.agent.name"] == "triage"
    assert span.attributes["gen_ai.tool.call.id"] == "c1"
    assert span.status.status_code is StatusCode.UNSET
    assert "gen_ai.execute_tool.duration" not in backend.points()


def test_a_framework_s_own_values_stay(backend: Any) -> None:
    """Agent and call id that a framework has set are not overwritten."""
    spans = backend.spans()
    given = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.agent.name": "theirs",
        "gen_ai.tool.call.id": "theirs",
    }

    with backend.tracer.start_as_current_span("execute_tool search", attributes=given):
        spans.end(spans.start("run-1", "search", "ours", 1, call_id="ours"))

    (span,) = backend.finished
    assert span.attributes["gen_ai.agent.name"] == "theirs"
    assert span.attributes["gen_ai.tool.call.id"] == "theirs"


@pytest.mark.parametrize(
    "given",
    [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "other"},
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.tool.name": "search"},
        {},
    ],
)
def test_another_span_is_not_used(backend: Any, given: dict[str, str]) -> None:
    """A span of another tool or operation is the parent, as often as it is met."""
    spans = backend.spans()

    with backend.tracer.start_as_current_span("outer", attributes=given) as outer:
        for seq in (1, 2):
            spans.end(spans.start("run-1", "search", None, seq))

    first, second, _ = backend.finished
    assert first.parent.span_id == second.parent.span_id == outer.get_span_context().span_id


def test_always_opens_a_span_inside_a_framework_s(backend: Any) -> None:
    """``spans="always"`` nests a span of ours."""
    spans = backend.spans(spans="always")
    given = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}

    with backend.tracer.start_as_current_span("execute_tool search", attributes=given):
        spans.end(spans.start("run-1", "search", None, 1))

    assert [span.name for span in backend.finished] == ["execute_tool search"] * 2


def test_a_tool_that_calls_itself_has_a_span_for_each_call(backend: Any) -> None:
    """A span of ours is not mistaken for a framework's."""
    spans = backend.spans()

    outer = spans.start("run-1", "search", None, 1)
    inner = spans.start("run-1", "search", None, 2)
    spans.end(inner)
    spans.end(outer)

    child, parent = backend.finished
    assert child.parent.span_id == parent.context.span_id
    assert child.attributes["loopguard.call.seq"] == 2


def test_a_span_that_ended_is_not_used(backend: Any) -> None:
    """A current span that has ended already is a parent only."""
    spans = backend.spans()
    given = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    ended = backend.tracer.start_span("execute_tool search", attributes=given)
    ended.end()

    with trace.use_span(ended):
        handle = spans.start("run-1", "search", None, 1)
        spans.end(handle)

    assert handle.span is not ended
    assert len(backend.finished) == 2


def test_never_means_no_span(backend: Any) -> None:
    """``spans="never"`` gives a run nothing to trace with."""
    assert lookup.spans_for_run(backend.settings(spans="never")) is None


@pytest.mark.parametrize(
    "key", ["suppress_instrumentation", otel_context._SUPPRESS_INSTRUMENTATION_KEY], ids=["by name", "by key"]
)
def test_suppression_is_honoured(backend: Any, make_finding: Any, key: str) -> None:
    """Under either of the two keys no span is opened and no finding is exported."""
    spans = backend.spans()
    token = otel_context.attach(otel_context.set_value(key, True))
    try:
        handle = spans.start("run-1", "search", None, 1)
        spans.finding(handle, make_finding())
        spans.refused("run-1", "search", None, 2, make_finding(), ValueError("x"))
    finally:
        otel_context.detach(token)

    assert handle is None
    assert not backend.finished


def test_a_call_that_is_reported_from_elsewhere_is_not_current(backend: Any) -> None:
    """With ``attach=False`` the current span stays what it was."""
    spans = backend.spans()

    handle = spans.start("run-1", "search", None, 1, attach=False)
    inside = trace.get_current_span()
    spans.end(handle)

    assert inside is trace.INVALID_SPAN
    assert len(backend.finished) == 1


def test_lone_surrogates_can_be_exported(backend: Any) -> None:
    """A name or id cut in the middle of a sign does not make an exporter drop its batch."""
    spans = backend.spans()

    spans.end(spans.start("run-\ud83d", "to\ud83dol", "ag\ud83dent", 1, call_id="c\ud83d"))

    (span,) = backend.finished
    span.name.encode()
    for value in span.attributes.values():
        str(value).encode()


def test_a_broken_tracer_does_not_break_the_call(backend: Any, quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the SDK is logged once, without its message, and the call goes on without a span."""

    class Broken(trace.TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def start_span(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("secret-argument")

    spans = backend.spans(tracer_provider=Broken())

    handles = [spans.start("run-1", "search", None, seq) for seq in (1, 2)]

    assert handles == [None, None]
    assert len(caplog.records) == 1
    assert "telemetry.start (ValueError" in caplog.text
    assert "secret-argument" not in caplog.text
    assert _safety.errors == {("telemetry.start", "ValueError"): 2}


def test_a_broken_span_does_not_break_the_call(backend: Any, make_finding: Any, quiet: None) -> None:
    """Errors of a span are swallowed wherever we touch it."""

    class Broken(trace.NonRecordingSpan):
        def is_recording(self) -> bool:
            return True

        def _raise(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("broken")

        end = set_attribute = set_attributes = set_status = add_event = _raise

    class Provider(trace.TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def start_span(self, *args: Any, **kwargs: Any) -> Any:
            return Broken(trace.INVALID_SPAN_CONTEXT)

    spans = backend.spans(tracer_provider=Provider())

    handle = spans.start("run-1", "search", None, 1)
    assert handle is not None
    spans.finding(handle, make_finding())
    spans.run_end(handle.span, "completed", 1, 0, 0)
    spans.refused("run-1", "search", None, 2, make_finding(), ValueError("x"))
    spans.end(handle)

    assert trace.get_current_span() is trace.INVALID_SPAN
    assert set(_safety.errors) == {
        ("telemetry.finding", "RuntimeError"),
        ("telemetry.run_end", "RuntimeError"),
        ("telemetry.refused", "RuntimeError"),
        ("telemetry.end", "RuntimeError"),
    }


def test_names_without_end_are_not_kept(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is prepared per tool is bounded."""
    monkeypatch.setattr("loopguard.telemetry.spans.MOST_PREPARED", 1)
    spans = backend.spans()
    metrics.register_tool("read")

    for tool in ("search", "read", "made_up_1", "made_up_2"):
        spans.end(spans.start("run-1", tool, None, 1))

    assert len(spans._prepared) == 1
    assert len(backend.finished) == 4


def test_the_parent_span_says_how_the_run_ended(backend: Any) -> None:
    """Outcome and counts are written on the span that was current when the run opened."""
    spans = backend.spans()

    with backend.tracer.start_as_current_span("invoke_agent"):
        parent = spans.parent()
        spans.run_end(parent, "stopped", 11, 3, 4)

    (span,) = backend.finished
    assert dict(span.attributes) == {
        "loopguard.run.outcome": "stopped",
        "loopguard.run.calls": 11,
        "loopguard.run.findings": 3,
        "loopguard.run.wasted_calls": 4,
    }


def test_a_parent_that_ended_is_left_alone(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A run that outlives its parent span logs nothing; without a parent there is nothing to write on."""
    spans = backend.spans()
    with backend.tracer.start_as_current_span("invoke_agent"):
        parent = spans.parent()

    spans.run_end(parent, "completed", 1, 0, 0)
    spans.run_end(spans.parent(), "completed", 1, 0, 0)

    assert not backend.finished[0].attributes
    assert not caplog.records


def test_the_parent_can_be_left_alone(backend: Any) -> None:
    """``annotate_parent=False`` leaves the application's span as it is."""
    spans = backend.spans(annotate_parent=False)

    with backend.tracer.start_as_current_span("invoke_agent"):
        assert spans.parent() is None


def test_runs_share_their_spans(backend: Any) -> None:
    """Equal settings give the same object, and only a few are kept."""
    first = backend.spans()
    again = backend.spans()
    for n in range(lookup.MOST_MADE):
        backend.spans(event_prefix=f"p{n}.")

    assert first is again
    assert backend.spans() is not first
    assert len(lookup._made) == lookup.MOST_MADE


def test_a_tracer_without_metrics_records_no_duration(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans work where the application has no metrics."""
    monkeypatch.setattr("loopguard.telemetry.otel.meter_provider", lambda _: None)
    spans = backend.spans(event_prefix="nometrics.")

    spans.end(spans.start("run-1", "search", None, 1))

    assert len(backend.finished) == 1
    assert "gen_ai.execute_tool.duration" not in backend.points()
