"""A finding on its span, as an event, as a log record."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.trace import StatusCode

from loopguard import _safety
from loopguard.errors import LoopRefused, LoopStopped
from loopguard.records import Action
from loopguard.telemetry import Telemetry, lookup

SUMMARY = {
    "loopguard.loop.rule": "repeat",
    "loopguard.loop.action": "warn",
    "loopguard.loop.enforced": True,
    "loopguard.loop.repetitions": 3,
    "loopguard.loop.threshold": 3,
    "loopguard.loop.first_seq": 1,
    "loopguard.loop.seqs": (1, 2, 3),
    "loopguard.loop.fingerprint": "3f2a9c1e",
    "loopguard.loop.wasted_s": 1.25,
    "loopguard.loop.message": "search gave the same result 3 times in a row",
}


def test_a_warning_is_an_event_and_a_summary(backend: Any, make_finding: Any) -> None:
    """The event names tool, run, rule and numbers; the span says the same and that a loop was found."""
    spans = backend.spans()
    handle = spans.start("run-1", "search", None, 3)

    spans.finding(handle, make_finding(wasted_s=1.25))
    spans.end(handle)

    (span,) = backend.finished
    (event,) = span.events
    assert event.name == "on_loop_detected"
    assert dict(event.attributes) == SUMMARY | {"gen_ai.tool.name": "search", "loopguard.run.id": "run-1"}
    assert SUMMARY.items() <= dict(span.attributes).items()
    assert span.attributes["loopguard.loop.detected"] is True
    assert span.status.status_code is StatusCode.UNSET


def test_a_span_without_a_finding_says_nothing_about_loops(backend: Any) -> None:
    """``loopguard.loop.detected`` is true or absent."""
    spans = backend.spans()

    spans.end(spans.start("run-1", "search", None, 1))

    assert not [key for key in backend.finished[0].attributes if key.startswith("loopguard.loop.")]


def test_the_newest_ten_call_numbers_are_exported(backend: Any, make_finding: Any) -> None:
    """A long pattern does not make a long attribute."""
    spans = backend.spans()
    handle = spans.start("run-1", "search", None, 40)

    spans.finding(handle, make_finding(seqs=tuple(range(1, 41)), repetitions=40))
    spans.end(handle)

    assert backend.finished[0].attributes["loopguard.loop.seqs"] == tuple(range(31, 41))


def test_the_hardest_finding_stays_on_the_span(backend: Any, make_finding: Any) -> None:
    """Each finding is an event; the summary is that of the hardest, whatever came last."""
    spans = backend.spans()
    handle = spans.start("run-1", "search", None, 3)

    for action in (Action.WARN, Action.REFUSE, Action.WARN):
        spans.finding(handle, make_finding(action))
    spans.end(handle)

    (span,) = backend.finished
    assert [e.attributes["loopguard.loop.action"] for e in span.events] == ["warn", "refuse", "warn"]
    assert span.attributes["loopguard.loop.action"] == "refuse"


def test_without_a_call_the_current_span_is_marked(backend: Any, make_finding: Any) -> None:
    """With ``spans="never"`` the application's own span has event and summary, the hardest stays."""
    spans = lookup.spans_for_findings(backend.settings(spans="never"))
    assert spans is not None

    with backend.tracer.start_as_current_span("step"):
        for action in (Action.STOP, Action.WARN):
            spans.finding(None, make_finding(action))

    (span,) = backend.finished
    assert len(span.events) == 2
    assert span.attributes["loopguard.loop.action"] == "stop"


def test_an_ended_span_is_left_alone(backend: Any, make_finding: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Current span ended, no current span, a non-recording span: nothing is logged, nothing raised."""
    spans = lookup.spans_for_findings(backend.settings())
    assert spans is not None
    ended = backend.tracer.start_span("step")
    ended.end()
    own = backend.spans()
    handle = own.start("run-1", "search", None, 1)
    own.end(handle)

    with caplog.at_level(logging.DEBUG):
        with trace.use_span(ended):
            spans.finding(None, make_finding())
        spans.finding(None, make_finding())
        with trace.use_span(trace.NonRecordingSpan(ended.get_span_context())):
            spans.finding(None, make_finding())
        own.finding(handle, make_finding())

    assert not caplog.records
    assert not [event for span in backend.finished for event in span.events]


def test_a_refusal_is_a_failed_span(backend: Any, make_finding: Any) -> None:
    """Status ERROR with the sentence of the refusal and its type, the event, and no duration."""
    spans = backend.spans()
    sentence = "search was not executed: the same call has given the same result 5 times in this run"

    spans.refused("run-1", "search", "triage", 6, make_finding(Action.REFUSE), LoopRefused(sentence))

    (span,) = backend.finished
    assert span.name == "execute_tool search"
    assert span.attributes["loopguard.call.seq"] == 6
    assert span.attributes["gen_ai.agent.name"] == "triage"
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == sentence
    assert span.attributes["error.type"] == "loopguard.LoopRefused"
    assert [event.name for event in span.events] == ["on_loop_detected"]
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert "gen_ai.execute_tool.duration" not in backend.points()


def test_further_refusals_have_the_summary_without_the_event(backend: Any, make_finding: Any) -> None:
    """One event per pattern and rung; the spans of the others can still be searched for."""
    spans = backend.spans()
    found = make_finding(Action.REFUSE)

    for seq in (6, 7, 8):
        spans.refused("run-1", "search", None, seq, found, LoopRefused("x"), event=seq == 6)

    assert [len(span.events) for span in backend.finished] == [1, 0, 0]
    assert all(span.attributes["loopguard.loop.detected"] for span in backend.finished)


def test_escalation_is_one_event_per_level_in_order(backend: Any, make_finding: Any) -> None:
    """Warn, refuse, stop: three events in that order, each with tool, rule, count, threshold, first call."""
    spans = backend.spans()

    handle = spans.start("run-1", "search", None, 3)
    spans.finding(handle, make_finding())
    spans.end(handle)
    for seq in range(6, 9):
        found = make_finding(Action.REFUSE, repetitions=5, threshold=5)
        spans.refused("run-1", "search", None, seq, found, LoopRefused("x"), event=seq == 6)
    found = make_finding(Action.STOP, repetitions=5, threshold=8)
    spans.refused("run-1", "search", None, 9, found, LoopStopped("run 'support-agent' was stopped"))

    events = [event for span in backend.finished for event in span.events]
    assert [event.attributes["loopguard.loop.action"] for event in events] == ["warn", "refuse", "stop"]
    for event in events:
        assert event.attributes["gen_ai.tool.name"] == "search"
        assert event.attributes["loopguard.loop.rule"] == "repeat"
        assert event.attributes["loopguard.loop.repetitions"] in (3, 5)
        assert event.attributes["loopguard.loop.threshold"] in (3, 5, 8)
        assert event.attributes["loopguard.loop.first_seq"] == 1
    assert backend.finished[-1].attributes["error.type"] == "loopguard.LoopStopped"


def test_a_stop_from_outside_has_no_loop(backend: Any) -> None:
    """A refusal without a finding is a failed span without ``loopguard.loop.*``."""
    spans = backend.spans()

    spans.refused("run-1", "search", None, 2, None, ValueError("run 'a' was stopped: asked to"))

    (span,) = backend.finished
    assert span.status.status_code is StatusCode.ERROR
    assert "loopguard.loop.detected" not in span.attributes


def test_a_refusal_on_a_framework_s_span_does_not_end_it(backend: Any, make_finding: Any) -> None:
    """The framework's span gets status, type and event, and is ended by the framework."""
    spans = backend.spans()
    given = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}

    with backend.tracer.start_as_current_span("execute_tool search", attributes=given) as framework:
        spans.refused("run-1", "search", None, 6, make_finding(Action.REFUSE), LoopRefused("no"))
        assert framework.is_recording()

    (span,) = backend.finished
    assert span.status.description == "no"
    assert len(span.events) == 1


def test_a_refusal_without_spans_marks_the_current_one(backend: Any, make_finding: Any) -> None:
    """With ``spans="never"`` the event goes to the current span, once."""
    spans = lookup.spans_for_findings(backend.settings(spans="never"))
    assert spans is not None

    with backend.tracer.start_as_current_span("step"):
        spans.refused("run-1", "search", None, 6, make_finding(Action.REFUSE), LoopRefused("x"))
        spans.refused("run-1", "search", None, 7, make_finding(Action.REFUSE), LoopRefused("x"), event=False)

    (span,) = backend.finished
    assert len(span.events) == 1
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("events", "on_span", "in_log"),
    [("span", 1, 0), ("log", 0, 1), ("both", 1, 1), ("none", 0, 0)],
)
def test_events_go_where_they_are_wanted(
    backend: Any, make_finding: Any, events: str, on_span: int, in_log: int
) -> None:
    """As span event, as log record, as both, or not at all; the summary is on the span in any case."""
    spans = backend.spans(events=events)
    handle = spans.start("run-1", "search", None, 3)

    spans.finding(handle, make_finding())
    spans.end(handle)

    (span,) = backend.finished
    assert len(span.events) == on_span
    assert len(backend.log_exporter.get_finished_logs()) == in_log
    assert span.attributes["loopguard.loop.detected"] is True


@pytest.mark.parametrize(("action", "severity"), [(Action.WARN, 13), (Action.REFUSE, 13), (Action.STOP, 17)])
def test_a_log_event_stands_alone(backend: Any, make_finding: Any, action: Action, severity: int) -> None:
    """It has a name, a time, a severity, the sentence as body, tool and run, and belongs to the tool's span."""
    spans = backend.spans(events="log")
    handle = spans.start("run-1", "search", None, 3, attach=False)

    spans.finding(handle, make_finding(action))
    spans.finding(handle, make_finding(action))
    spans.end(handle)

    record = backend.log_exporter.get_finished_logs()[0].log_record
    assert record.event_name == "on_loop_detected"
    assert record.severity_number.value == severity
    assert record.timestamp
    assert record.body == "search gave the same result 3 times in a row"
    assert record.attributes["gen_ai.tool.name"] == "search"
    assert record.attributes["loopguard.run.id"] == "run-1"
    assert record.span_id == handle.span.get_span_context().span_id


def test_a_log_event_without_a_provider_goes_to_the_span(backend: Any, make_finding: Any) -> None:
    """Where log events are wanted but nobody takes them the span has the event."""
    spans = backend.spans(events="log", logger_provider=None)
    handle = spans.start("run-1", "search", None, 3)

    spans.finding(handle, make_finding())
    spans.end(handle)

    assert len(backend.finished[0].events) == 1


def test_a_log_event_that_fails_goes_to_the_span(backend: Any, make_finding: Any, quiet: None) -> None:
    """An older Logs API refuses our arguments; the event is not lost and the failure is counted."""

    class Old(LoggerProvider):
        def get_logger(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def emit(self, record: Any) -> None:
            raise AssertionError

    spans = backend.spans(events="log", logger_provider=Old())
    handle = spans.start("run-1", "search", None, 3)

    spans.finding(handle, make_finding())
    spans.end(handle)

    assert len(backend.finished[0].events) == 1
    assert _safety.errors == {("telemetry.log_event", "TypeError"): 1}


def test_log_events_need_no_tracer(backend: Any, make_finding: Any) -> None:
    """With a logger provider alone a finding is still reported."""
    settings = Telemetry(events="log", logger_provider=backend.logger_provider)
    assert lookup.spans_for_run(settings) is None
    spans = lookup.spans_for_findings(settings)
    assert spans is not None

    spans.finding(None, make_finding())

    assert len(backend.log_exporter.get_finished_logs()) == 1


def test_names_can_have_a_prefix(backend: Any, make_finding: Any) -> None:
    """``event_prefix`` gives the event a namespace."""
    spans = backend.spans(event_prefix="acme.")
    handle = spans.start("run-1", "search", None, 3)

    spans.finding(handle, make_finding())
    spans.end(handle)

    assert backend.finished[0].events[0].name == "acme.on_loop_detected"


def test_a_failing_look_up_means_no_telemetry(backend: Any, quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while looking for providers means no telemetry, not a broken run."""

    def broken(*_: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr("loopguard.telemetry.otel.tracer_provider", broken)
    monkeypatch.setattr("loopguard.telemetry.otel.tracing_imported", broken)

    assert lookup.spans_for_run(backend.settings()) is None
    assert lookup.spans_for_findings(backend.settings()) is None
    assert _safety.errors == {("telemetry.spans", "RuntimeError"): 2}
