"""Which ``Spans`` a run uses; asked for when it opens, so it is cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loopguard import _safety
from loopguard.telemetry import otel
from loopguard.telemetry.spans import Spans

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from loopguard.telemetry.settings import Telemetry

#: The Spans made so far, newest last: making a tracer for each run would cost more than the run.
_made: list[tuple[Telemetry, TracerProvider | None, Spans]] = []
MOST_MADE: Final = 8


def spans_for_run(settings: Telemetry) -> Spans | None:
    """What a run traces its calls with; asked for when it opens.

    Returns:
        None where nothing is to be traced: no tracer provider is set, or ``spans="never"``. Findings have
        ``spans_for_findings``.
    """
    try:
        if settings.spans == "never":
            return None
        provider = otel.tracer_provider(settings)
        return None if provider is None else _spans(settings, provider)
    except Exception as error:  # noqa: BLE001 - the guard never breaks the tool
        _safety.report("telemetry.spans", error)
        return None


def spans_for_findings(settings: Telemetry) -> Spans | None:
    """What a finding is reported with where ``spans_for_run`` gave None.

    The span that is current may come from a provider of its own, or a logger provider may be set alone.

    Returns:
        None if the application has not imported OpenTelemetry.
    """
    try:
        if not otel.tracing_imported() and otel.logger_provider(settings) is None:
            return None
        return _spans(settings, None)
    except Exception as error:  # noqa: BLE001 - the guard never breaks the tool
        _safety.report("telemetry.spans", error)
        return None


def _spans(settings: Telemetry, provider: TracerProvider | None) -> Spans:
    for made in _made:
        if made[1] is provider and (made[0] is settings or made[0] == settings):
            return made[2]
    spans = Spans(settings, provider)
    _made.append((settings, provider, spans))
    # Concurrent openings may make one twice, which costs memory only.
    del _made[:-MOST_MADE]
    return spans
