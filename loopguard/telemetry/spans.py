"""Spans of tool calls: ``execute_tool {tool}``.

This is what a guarded call pays for where a tracer provider is set, so it is written for speed: names and
attributes are prepared once per tool, a span gets its attributes when it is created, the context is set and
put back by hand.
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Final, cast

from loopguard import _safety
from loopguard.telemetry import names, otel
from loopguard.telemetry.capture import Capture, type_name
from loopguard.telemetry.events import LoopEvents, summarise
from loopguard.telemetry.handle import Handle, Prepared
from loopguard.telemetry.instruments import duration_histogram
from loopguard.telemetry.names import CALL_SEQ, RUN_ID  # a look-up less on the path of a call

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from loopguard.records import Finding
    from loopguard.telemetry.settings import Telemetry

#: As many (tool, agent) pairs are prepared ahead; a model can make up names without end.
MOST_PREPARED: Final = 500


class Spans:
    """Opens and ends the spans of calls, and puts findings on them. Made by ``lookup.spans_for_run``.

    No method raises, or logs for an application's mistakes: a span that has ended is left alone.
    Thread-safe; runs with equal settings share one.
    """

    __slots__ = (
        "_adopts",
        "_annotates",
        "_attach",
        "_capture",
        "_context_type",
        "_current_span",
        "_detach",
        "_error",
        "_events",
        "_get",
        "_key",
        "_no_tool",
        "_prepared",
        "_record",
        "_start_span",
        "_suppression",
        "captures",
    )

    def __init__(self, settings: Telemetry, provider: TracerProvider | None) -> None:
        from opentelemetry import trace

        self._capture = Capture(settings)
        #: ``"none"``, ``"key"`` or ``"content"``: what a caller need prepare.
        self.captures = self._capture.level
        self._annotates = settings.annotate_parent
        self._adopts = settings.spans != "always"
        self._no_tool: Span | None = None
        self._events = LoopEvents(settings)
        self._get, self._attach, self._detach = otel.context_functions()
        self._suppression = otel.suppression_keys()
        self._key, self._context_type = otel.span_key()
        self._current_span = trace.get_current_span
        self._error = trace.StatusCode.ERROR
        self._prepared: dict[tuple[str, str | None], Prepared] = {}
        self._start_span: Callable[..., Span] | None = None
        self._record: Callable[..., None] | None = None
        if provider is not None and settings.spans != "never":
            # The third positional argument of trace.get_tracer is something else: ask the provider, by
            # keyword.
            tracer = provider.get_tracer(names.SCOPE, otel.version(), schema_url=names.SCHEMA_URL)
            self._start_span = tracer.start_span
            histogram = duration_histogram(settings)
            self._record = histogram.record if histogram is not None else None

    # A call.

    def start(
        self,
        run_id: str,
        tool: str,
        agent: str | None,
        seq: int,
        call_id: str | None = None,
        key_text: str | None = None,
        arguments: object = None,
        attach: bool = True,
    ) -> Handle | None:
        """Open the span of a call, or take a framework's span of the same call.

        Args:
            run_id: The run.
            tool: The tool's name.
            agent: The agent's name, or None.
            seq: The number of the call in the run.
            call_id: The model's id of the call.
            key_text: The key as text; exported with ``capture="key"`` or ``"content"`` only.
            arguments: The arguments, secrets replaced; exported with ``capture="content"`` only.
            attach: Make the span current. False for a generator, which calls ``resume`` and ``suspend``
                around each item, and for a call whose end is reported from elsewhere.

        Returns:
            None where there is to be no span: the application suppresses telemetry, or ``spans="never"``.
        """
        try:
            context = self._get()
            if context:
                if context.get(self._suppression[0]) or context.get(self._suppression[1]):
                    return None
                current = context.get(self._key)
                # Most calls have the same parent, and reading the attributes of a span costs a microsecond.
                if self._adopts and current is not None and current is not self._no_tool:
                    handle = self._adopt(cast("Span", current), run_id, tool, agent, seq, call_id, key_text, arguments)
                    if handle is not None:
                        return handle
            if self._start_span is None:
                return None
            prepared = self._prepared.get((tool, agent)) or self._prepare(tool, agent)
            attributes = prepared.attributes.copy()
            attributes[RUN_ID] = run_id if run_id.isascii() else names.clean(run_id)
            attributes[CALL_SEQ] = seq
            if call_id is not None:
                attributes[names.CALL_ID] = names.clean(call_id)
            if self.captures != "none":
                self._capture.at_start(attributes, key_text, arguments)
            started = time_ns()
            # The context is handed over because looking it up again costs more.
            span = self._start_span(prepared.name, context, attributes=attributes, start_time=started)
            inner = token = None
            # A span that is not recorded, because it was sampled out, has to be current all the same, or the
            # spans below it would decide anew. Where tracing is switched off it has no identity of its own.
            if span.is_recording() or self._is_new(span, context):
                inner = self._context_type({**context, self._key: span})
                if attach:
                    token = self._attach(inner)
            return Handle(span, prepared.labels, started, inner, token)
        except Exception as error:  # noqa: BLE001 - the guard never breaks the tool
            _safety.report("telemetry.start", error)
            return None

    def end(
        self,
        handle: Handle,
        error: BaseException | None = None,
        failed: bool = False,
        result: object = None,
    ) -> None:
        """End the span of a call. A second time does nothing.

        An ``Exception`` makes the status ERROR with its type in ``error.type`` and no description; its
        message may quote arguments and is exported with ``capture="content"`` only. A cancellation leaves the
        status alone.

        Args:
            handle: From ``start``.
            error: What the tool raised.
            failed: The tool returned a failure: ERROR with the type ``tool_error``.
            result: What it returned; exported with ``capture="content"`` only, and without the secrets that
                ``handle.hide`` takes out.
        """
        try:
            token = handle.token
            if token is not None:
                handle.token = None
                try:
                    self._detach(token)
                except (ValueError, RuntimeError):
                    self._leave_elsewhere(handle, token)
            if not handle.owned:
                # Status and end are the framework's. The content is not, or it would be missing there.
                if self.captures == "content" and handle.span.is_recording():
                    self._capture.at_end(handle.span, None, result, handle.hide)
                return
            handle.owned = False
            labels = handle.labels
            if error is None and not failed:
                if self.captures == "content":
                    self._capture.at_end(handle.span, None, result, handle.hide)
            elif error is None or isinstance(error, Exception):
                kind = names.TOOL_ERROR if error is None else type_name(error)
                labels = self._fail(handle, kind, error, result)
            ended = time_ns()
            span = handle.span
            if span.is_recording():  # the tool may have ended it, and the SDK logs a second end
                span.end(ended)
            if self._record is not None:
                took = (ended - handle.started) / 1e9
                # The context gives the measurement its exemplar: the way from a slow bucket to this trace.
                # A clock that was set back must not make it negative.
                self._record(took if took > 0 else 0.0, labels, handle.context)
        except Exception as failure:  # noqa: BLE001 - the guard never breaks the tool
            _safety.report("telemetry.end", failure)

    def suspend(self, handle: Handle) -> None:
        """Make the span no longer current, between two items of a generator."""
        try:
            token, handle.token = handle.token, None
            if token is not None:
                try:
                    self._detach(token)
                except (ValueError, RuntimeError):
                    self._leave_elsewhere(handle, token)
        except Exception as error:  # noqa: BLE001 - the guard never breaks the tool
            _safety.report("telemetry.suspend", error)

    def resume(self, handle: Handle) -> None:
        """Make the span current again, before the next item of a generator."""
        try:
            if handle.context is not None and handle.owned and handle.token is None:
                # What the consumer has set since, such as baggage, stays: only the span is ours.
                handle.context = self._context_type({**self._get(), self._key: handle.span})
                handle.token = self._attach(handle.context)
        except Exception as error:  # noqa: BLE001 - the guard never breaks the tool
            _safety.report("telemetry.resume", error)

    def _leave_elsewhere(self, handle: Handle, token: object) -> None:
        """Put the context back where the token cannot: an async generator is closed in another task, say.

        The context in which the span was made current is out of reach; this one may have it as a copy.
        """
        if self._get() is handle.context:
            previous = getattr(token, "old_value", None)
            self._attach(previous if isinstance(previous, self._context_type) else self._context_type())

    def _suppressed(self, context: Context) -> bool:
        first, second = self._suppression
        return bool(context.get(first) or context.get(second))

    def _is_new(self, span: Span, context: Context) -> bool:
        identity = span.get_span_context()
        return identity.is_valid and identity.span_id != self._current_span(context).get_span_context().span_id

    # A framework's span.

    def _adopt(
        self,
        span: Span,
        run_id: str,
        tool: str,
        agent: str | None,
        seq: int,
        call_id: str | None,
        key_text: str | None,
        arguments: object,
    ) -> Handle | None:
        """Use the current span if a framework has opened it for this very call."""
        if not span.is_recording():
            return None
        present = getattr(span, "attributes", None)  # of the SDK; the API has no way to read them
        if not present or present.get(names.OPERATION) != names.EXECUTE_TOOL:
            self._no_tool = span
            return None
        # A span of ours with this name is the call around this one: a tool that calls itself.
        if present.get(names.TOOL) != tool or CALL_SEQ in present:
            return None
        attributes: dict[str, AttributeValue] = {RUN_ID: names.clean(run_id), CALL_SEQ: seq}
        if agent is not None and names.AGENT not in present:
            attributes[names.AGENT] = names.clean(agent)
        if call_id is not None and names.CALL_ID not in present:
            attributes[names.CALL_ID] = names.clean(call_id)
        self._capture.at_start(attributes, key_text, None if names.ARGUMENTS in present else arguments)
        span.set_attributes(attributes)
        return Handle(span)

    # Attributes.

    def _prepare(self, tool: str, agent: str | None) -> Prepared:
        prepared = Prepared(tool, agent)
        # A tool that is not registered yet may be so later, and is then no longer ``_other``.
        if len(self._prepared) < MOST_PREPARED and prepared.registered:
            self._prepared[tool, agent] = prepared
        return prepared

    def _fail(
        self, handle: Handle, kind: str, error: BaseException | None, result: object
    ) -> dict[str, AttributeValue]:
        span = handle.span
        if span.is_recording():
            message = self._capture.at_end(span, error, result, handle.hide)
            span.set_attribute(names.ERROR_TYPE, kind)
            span.set_status(self._error, message)
        return {**(handle.labels or {}), names.ERROR_TYPE: kind}

    # Findings.

    @_safety.guarded("telemetry.finding")
    def finding(self, handle: Handle | None, finding: Finding, key_text: str | None = None) -> None:
        """Report a finding: the event ``on_loop_detected`` and the summary attributes of the span.

        Args:
            handle: The call that completed the pattern; None takes the current span.
            finding: What was found.
            key_text: The key as text, for a span that was started without it.
        """
        context = self._get()
        if self._suppressed(context):
            return
        if handle is not None:
            self._report(handle.span, handle.context or context, finding, handle, key_text, event=True)
        else:
            self._report(self._current_span(context), context, finding, None, key_text, event=True)

    @_safety.guarded("telemetry.refused")
    def refused(
        self,
        run_id: str,
        tool: str,
        agent: str | None,
        seq: int,
        finding: Finding | None,
        error: BaseException,
        event: bool = True,
        call_id: str | None = None,
        key_text: str | None = None,
        arguments: object = None,
    ) -> None:
        """Report a call that was not executed: a span with status ERROR and the sentence of the refusal.

        It is not in the duration histogram: nothing ran.

        Args:
            run_id: The run.
            tool: The tool's name.
            agent: The agent's name, or None.
            seq: The number of the attempt in the run.
            finding: Why; None for a stop from outside.
            error: The refusal. Its ``str()`` becomes the status's description: it never quotes an argument.
            event: Whether the event is sent: once per pattern and rung, not for further refusals of it.
            call_id: As for ``start``.
            key_text: As for ``start``.
            arguments: As for ``start``.
        """
        handle = self.start(run_id, tool, agent, seq, call_id, key_text, arguments, attach=False)
        if handle is None:
            if finding is not None and event:
                self.finding(None, finding, key_text)
            return
        span = handle.span
        if finding is not None:
            self._report(span, handle.context, finding, handle, None, event=event)
        if span.is_recording():
            span.set_attribute(names.ERROR_TYPE, type_name(error))
            span.set_status(self._error, names.clean(error))
        if handle.owned:
            span.end()

    def _report(
        self,
        span: Span,
        context: Context | None,
        finding: Finding,
        handle: Handle | None,
        key_text: str | None,
        *,
        event: bool,
    ) -> None:
        # The SDK logs a warning for an event or an attribute on a span that has ended.
        recording = span if span.is_recording() else None
        if recording is not None:
            more: dict[str, AttributeValue] = {}
            self._capture.at_start(more, key_text)
            summarise(recording, finding, handle, more)
        if event:
            self._events.emit(finding, recording, context)

    # A run.

    @_safety.guarded("telemetry.parent")
    def parent(self) -> Span | None:
        """The span that the end of a run may be written on: the current one, when the run opens."""
        span = self._current_span()
        return span if self._annotates and span.is_recording() else None

    @_safety.guarded("telemetry.run_end")
    def run_end(self, parent: Span | None, outcome: str, calls: int, findings: int, wasted_calls: int) -> None:
        """Write how a run ended on the span from ``parent``, if that has not ended itself."""
        if parent is not None and parent.is_recording():
            parent.set_attributes(
                {
                    names.RUN_OUTCOME: outcome,
                    names.RUN_CALLS: calls,
                    names.RUN_FINDINGS: findings,
                    names.RUN_WASTED_CALLS: wasted_calls,
                }
            )
