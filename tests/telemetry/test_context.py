"""The current span across generators, tasks and threads; nothing is ever logged about it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.context import contextvars_context

from loopguard import _safety
from loopguard.telemetry import otel


def test_a_generator_s_span_is_current_only_while_it_runs(backend: Any) -> None:
    """Between two items the consumer's span is current, inside the generator its own."""
    spans = backend.spans()
    seen: list[Any] = []

    def guarded() -> Iterator[int]:
        handle = spans.start("run-1", "search", None, 1, attach=False)
        for item in range(2):
            spans.resume(handle)
            seen.append(trace.get_current_span() is handle.span)
            spans.suspend(handle)
            yield item
        spans.end(handle)

    with backend.tracer.start_as_current_span("consumer") as consumer:
        seen_outside = [trace.get_current_span() is consumer for _ in guarded()]

    assert seen == seen_outside == [True, True]
    assert [span.name for span in backend.finished] == ["execute_tool search", "consumer"]


def test_resuming_keeps_what_the_consumer_has_set(backend: Any) -> None:
    """Baggage that was set between two items is seen by the generator's next step."""
    spans = backend.spans()
    handle = spans.start("run-1", "search", None, 1, attach=False)
    token = otel_context.attach(baggage.set_baggage("tenant", "a"))

    spans.resume(handle)
    spans.resume(handle)
    inside = (baggage.get_baggage("tenant"), trace.get_current_span())
    spans.suspend(handle)
    spans.suspend(handle)
    after = (baggage.get_baggage("tenant"), trace.get_current_span())
    otel_context.detach(token)
    spans.end(handle)
    spans.resume(handle)

    assert inside == ("a", handle.span)
    assert after == ("a", trace.INVALID_SPAN)
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_framework_s_span_is_not_suspended(backend: Any) -> None:
    """Suspending a call on a framework's span leaves that span current."""
    spans = backend.spans()
    given = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}

    with backend.tracer.start_as_current_span("execute_tool search", attributes=given) as framework:
        handle = spans.start("run-1", "search", None, 1)
        spans.suspend(handle)
        spans.resume(handle)
        inside = trace.get_current_span()
        spans.end(handle)

    assert inside is framework


@pytest.mark.parametrize("debug", [False, True])
def test_closing_in_another_task_logs_nothing(backend: Any, caplog: pytest.LogCaptureFixture, debug: bool) -> None:
    """An async generator that holds a call open is closed by another task: no error, no log, a clean context."""
    spans = backend.spans()
    after: list[Any] = []

    async def stream() -> AsyncIterator[int]:
        handle = spans.start("run-1", "search", None, 1)
        try:
            yield 1
        finally:
            spans.end(handle)
            after.append(trace.get_current_span())

    async def main() -> None:
        items = stream()
        await anext(items)
        await asyncio.create_task(items.aclose())

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main(), debug=debug)

    assert not [record for record in caplog.records if record.name != "asyncio"]
    assert after == [trace.INVALID_SPAN]
    assert len(backend.finished) == 1


def test_an_end_in_another_context_puts_back_what_was_there(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A copied context has the parent's span current again, once the call was ended in it."""
    spans = backend.spans()

    with backend.tracer.start_as_current_span("agent") as agent:
        first = contextvars.copy_context()
        handle = first.run(spans.start, "run-1", "search", None, 1)
        second = first.copy()
        second.run(spans.end, handle)
        inside = second.run(trace.get_current_span)

    assert inside is agent
    assert not caplog.records


def test_a_suspension_in_another_context_logs_nothing(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Where the span is not current at all there is nothing to put back."""
    spans = backend.spans()
    handle = contextvars.copy_context().run(spans.start, "run-1", "search", None, 1)
    empty = contextvars.Context()

    empty.run(spans.suspend, handle)
    inside = empty.run(trace.get_current_span)

    assert inside is trace.INVALID_SPAN
    assert not caplog.records


def test_an_end_in_another_thread_logs_nothing(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A call may be ended by a thread that did not start it."""
    spans = backend.spans()
    handle = contextvars.copy_context().run(spans.start, "run-1", "search", None, 1)

    thread = threading.Thread(target=spans.end, args=(handle,))
    thread.start()
    thread.join()

    assert len(backend.finished) == 1
    assert not caplog.records


def test_tasks_side_by_side_have_their_own_span(backend: Any) -> None:
    """Two gathered calls do not become each other's parents."""
    spans = backend.spans()

    async def call(seq: int) -> None:
        handle = spans.start("run-1", "search", None, seq)
        await asyncio.sleep(0)
        spans.end(handle)

    async def main() -> None:
        await asyncio.gather(call(1), call(2))

    asyncio.run(main())

    assert [span.parent for span in backend.finished] == [None, None]


def test_a_context_that_is_kept_elsewhere_is_used_through_its_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a runtime context that hands out no context variable's token the public functions are taken."""

    class Elsewhere(contextvars_context.ContextVarsRuntimeContext):
        def attach(self, context: Any) -> Any:
            return [super().attach(context)]

        def detach(self, token: Any) -> None:
            super().detach(token[0])

    monkeypatch.setattr(otel_context, "_RUNTIME_CONTEXT", Elsewhere())

    functions = otel.context_functions()

    assert functions == (otel_context.get_current, otel_context.attach, otel_context.detach)


def test_an_error_around_an_item_does_not_break_the_generator(backend: Any, quiet: None) -> None:
    """Suspending and resuming report what goes wrong, and go on."""
    spans = backend.spans()

    spans.suspend(None)  # type: ignore[arg-type]
    spans.resume(None)  # type: ignore[arg-type]

    assert set(_safety.errors) == {
        ("telemetry.suspend", "AttributeError"),
        ("telemetry.resume", "AttributeError"),
    }
