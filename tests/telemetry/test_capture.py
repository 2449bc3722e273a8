"""Content leaves the process only where it was asked for, and through the redactor."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from loopguard import _safety
from loopguard.errors import LoopRefused
from loopguard.records import Action
from loopguard.telemetry.capture import MOST_CHARACTERS, exportable

SECRET = "sk-live-4f9a"
ARGUMENTS = {"query": "x", "headers": {"Authorization": f"Bearer {SECRET}"}}


def _drive(spans: Any, make_finding: Any) -> None:
    """A call that succeeds, one that fails, a warning, a refusal, a stop; the secret in every place."""
    key = f"api_key={SECRET}"
    handle = spans.start("run-1", "search", None, 1, key_text=key, arguments=ARGUMENTS)
    spans.finding(handle, make_finding(), key_text=key)
    spans.end(handle, result={"echo": SECRET})
    handle = spans.start("run-1", "search", None, 2, key_text=key, arguments=ARGUMENTS)
    spans.end(handle, ValueError(f"401 for {SECRET}"))
    for action in (Action.REFUSE, Action.STOP):
        spans.refused(
            "run-1",
            "search",
            None,
            3,
            make_finding(action),
            LoopRefused("x"),
            key_text=key,
            arguments=ARGUMENTS,
        )


def _everything(backend: Any) -> str:
    spans: list[ReadableSpan] = backend.finished
    logs = [record.to_json() for record in backend.log_exporter.get_finished_logs()]
    metrics = backend.reader.get_metrics_data()
    return "\n".join([*(span.to_json() for span in spans), *logs, metrics.to_json()])


def test_nothing_private_is_exported_by_default(
    backend: Any, make_finding: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, results and messages with a secret are in no span, event, metric or log."""
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)

    with caplog.at_level("DEBUG"):
        _drive(backend.spans(events="both"), make_finding)

    everything = _everything(backend) + caplog.text
    assert len(backend.finished) == 4
    assert "on_loop_detected" in everything
    assert SECRET not in everything
    assert "Authorization" not in everything


def test_the_key_can_be_captured(backend: Any, make_finding: Any) -> None:
    """``capture="key"`` exports the key of the call and nothing else."""
    _drive(backend.spans(capture="key", redact=lambda text: text.replace(SECRET, "***")), make_finding)

    assert {span.attributes["loopguard.call.key"] for span in backend.finished} == {"api_key=***"}
    assert "gen_ai.tool.call" not in _everything(backend)


def test_content_can_be_captured(backend: Any, make_finding: Any) -> None:
    """``capture="content"`` exports arguments, result and error message, each redacted."""
    _drive(backend.spans(capture="content", redact=lambda text: text.replace(SECRET, "***")), make_finding)

    fine, failed, *_ = backend.finished
    assert json.loads(fine.attributes["gen_ai.tool.call.arguments"])["headers"] == {"Authorization": "Bearer ***"}
    assert fine.attributes["gen_ai.tool.call.result"] == '{"echo": "***"}'
    assert failed.status.description == "401 for ***"
    assert failed.events[0].name == "exception"
    assert dict(failed.events[0].attributes) == {
        "exception.type": "ValueError",
        "exception.message": "401 for ***",
    }
    assert SECRET not in _everything(backend)


def test_a_returned_failure_has_its_result(backend: Any) -> None:
    """A failure that was returned is exported as result, without an exception event."""
    spans = backend.spans(capture="content")

    spans.end(spans.start("run-1", "search", None, 1), failed=True, result="error: no")

    (span,) = backend.finished
    assert span.attributes["gen_ai.tool.call.result"] == "error: no"
    assert not span.events


def test_content_goes_on_a_framework_s_span_where_it_is_missing(backend: Any) -> None:
    """Arguments that the framework has set stay; the result is added."""
    spans = backend.spans(capture="content")
    given = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": "theirs",
    }

    with backend.tracer.start_as_current_span("execute_tool search", attributes=given):
        spans.end(spans.start("run-1", "search", None, 1, arguments={"q": 1}), result="found")

    (span,) = backend.finished
    assert span.attributes["gen_ai.tool.call.arguments"] == "theirs"
    assert span.attributes["gen_ai.tool.call.result"] == "found"


@pytest.mark.parametrize("answer", [None, 7])
def test_a_redactor_that_gives_no_text_lets_nothing_out(answer: Any, quiet: None) -> None:
    """What is no text is not exported."""
    assert exportable("secret", lambda _: answer) is None
    assert _safety.errors == {("telemetry.redact", "TypeError"): 1}


def test_a_redactor_that_fails_lets_nothing_out(quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    """A failing redactor exports nothing, and its message is not logged."""

    def fails(text: str) -> str:
        raise ValueError(text)

    assert exportable("secret", fails) is None
    assert "secret" not in caplog.text


def test_the_redactor_sees_the_whole_text() -> None:
    """The text is cut after it was redacted."""
    text = "x" * MOST_CHARACTERS + "secret"

    found = exportable(text, lambda whole: str(len(whole)))

    assert found == str(len(text))


def test_long_texts_are_cut() -> None:
    """A captured text has at most 1,024 characters."""
    found = exportable("x" * 5000, None)

    assert found is not None
    assert len(found) == MOST_CHARACTERS
    assert found.endswith("…")


def test_foreign_values_are_shown_by_their_type() -> None:
    """An object without a JSON form is its type; a cycle does not raise; a lone surrogate is escaped."""
    cycle: list[Any] = []
    cycle.append(cycle)

    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "Hostile>" in str(exportable({"a": Hostile()}, None))
    assert exportable(cycle, None) == "<list>"
    assert exportable("\ud83d", None) == "\\ud83d"
    assert exportable(None, None) is None


def test_a_message_that_cannot_be_read_is_left_out(backend: Any) -> None:
    """An exception with a hostile ``__str__`` is exported by its type alone."""

    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    spans = backend.spans(capture="content")

    spans.end(spans.start("run-1", "search", None, 1), Hostile())

    (span,) = backend.finished
    assert span.attributes["error.type"].endswith("Hostile")
    assert not span.events
