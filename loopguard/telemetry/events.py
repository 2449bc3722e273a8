"""A finding on its span, and the event ``on_loop_detected``, whichever way it travels."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from loopguard import _safety
from loopguard.records import Action
from loopguard.telemetry import names, otel

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.context import Context
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from loopguard.records import Finding
    from loopguard.telemetry.handle import Handle
    from loopguard.telemetry.settings import Telemetry

#: As many call numbers as an event carries; the newest are kept.
MOST_SEQS: Final = 10

_HARDNESS: Final[dict[Any, int]] = {action.value: action.hardness for action in Action}


def loop_attributes(finding: Finding) -> dict[str, AttributeValue]:
    """What a span and an event say about a finding: numbers and names, no argument and no result."""
    return {
        names.LOOP_RULE: names.clean(finding.rule),
        names.LOOP_ACTION: finding.action.value,
        names.LOOP_ENFORCED: finding.enforced,
        names.LOOP_REPETITIONS: finding.repetitions,
        names.LOOP_THRESHOLD: finding.threshold,
        names.LOOP_FIRST_SEQ: finding.first_seq,
        names.LOOP_SEQS: tuple(finding.seqs[-MOST_SEQS:]),
        names.LOOP_FINGERPRINT: finding.fingerprint,
        names.LOOP_WASTED_S: round(float(finding.wasted_s), 6),
        names.LOOP_MESSAGE: names.clean(finding.message),
        **{name: at for name, at in _times(finding) if at is not None},
    }


def _times(finding: Finding) -> tuple[tuple[str, float | None], ...]:
    return (names.LOOP_FIRST_AT, finding.first_at), (names.LOOP_LAST_AT, finding.last_at)


def summarise(span: Span, finding: Finding, handle: Handle | None, more: dict[str, AttributeValue]) -> None:
    """Put the summary attributes on a recording span, unless a harder finding has put its own there.

    Args:
        span: Where to.
        finding: What was found.
        handle: The call of that span, which remembers its hardest finding; None reads it from the span.
        more: Further attributes for the span.
    """
    hardness = finding.action.hardness
    if handle is None:
        present = getattr(span, "attributes", None) or {}
        former = _HARDNESS.get(present.get(names.LOOP_ACTION), 0)
    else:
        former, handle.hardest = handle.hardest, max(handle.hardest, hardness)
    if hardness >= former:
        span.set_attributes({names.LOOP_DETECTED: True, **loop_attributes(finding), **more})


class LoopEvents:
    """Sends ``on_loop_detected`` as a span event, as a log event, as both or not at all.

    A log event needs a logger provider and ``opentelemetry-api`` 1.39. Where one is missing the event goes to
    the span instead, so that it is not lost.
    """

    __slots__ = ("_chosen", "_logger", "_name", "_settings")

    def __init__(self, settings: Telemetry) -> None:
        self._settings = settings
        self._chosen = settings.events
        self._name = settings.event_prefix + names.LOOP_DETECTED_EVENT
        self._logger: Logger | None = None

    def emit(self, finding: Finding, span: Span | None, context: Context | None) -> None:
        """Send the event once.

        Args:
            finding: What was found.
            span: A recording span, or None.
            context: The context whose span the log event belongs to; None is the current one.
        """
        if self._chosen == "none":
            return
        # A row of its own in Honeycomb, which knows nothing of the attributes of its span: so it says tool
        # and run.
        attributes = {
            names.TOOL: names.clean(finding.tool),
            names.RUN_ID: names.clean(finding.run_id),
            **loop_attributes(finding),
        }
        logged = self._chosen != "span" and self._log(finding, attributes, context)
        if span is not None and not (logged and self._chosen == "log"):
            span.add_event(self._name, attributes)

    def _log(self, finding: Finding, attributes: dict[str, Any], context: Context | None) -> bool:
        logger = self._logger or self._find_logger()
        if logger is None:
            return False
        from opentelemetry._logs import SeverityNumber

        try:
            logger.emit(
                timestamp=time.time_ns(),  # the SDK sets the observed time only
                context=context,
                severity_number=SeverityNumber.ERROR if finding.action is Action.STOP else SeverityNumber.WARN,
                body=names.clean(finding.message),
                attributes=attributes,
                event_name=self._name,
            )
        except Exception as error:  # noqa: BLE001 - an older API takes a record of another shape
            _safety.report("telemetry.log_event", error)
            return False
        return True

    def _find_logger(self) -> Logger | None:
        # Asked again at each finding until there is one: the provider may be set after the tracer's.
        provider = otel.logger_provider(self._settings)
        if provider is not None:
            self._logger = provider.get_logger(names.SCOPE, version=otel.version(), schema_url=names.SCHEMA_URL)
        return self._logger
