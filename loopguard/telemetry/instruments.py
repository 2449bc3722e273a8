"""The instruments through which a meter provider reads our counts; registered once per provider."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from loopguard import _safety
from loopguard.telemetry import names, otel
from loopguard.telemetry.metrics import Metrics, metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

    from loopguard.telemetry.settings import Telemetry

#: Upper bounds of the duration histogram in seconds, as the utilities of OpenTelemetry for GenAI have them.
DURATION_BUCKETS: Final = tuple(0.01 * 2**n for n in range(14))

_COUNTERS: Final = (
    (names.DETECTIONS, "{detection}", "Loops that were found, by tool, rule and action."),
    (names.RUNS, "{run}", "Guarded runs that ended, by outcome."),
    (names.CALLS, "{call}", "Guarded calls, by tool and decision."),
    (names.WASTED_CALLS, "{call}", "Executed calls that brought nothing new."),
    (names.INTERVENTIONS, "{intervention}", "Warnings and refusals, by what the agent made of them."),
    (names.UNGUARDED_CALLS, "{call}", "Calls of guarded tools outside a run."),
    (names.INTERNAL_ERRORS, "{error}", "Errors inside loopguard; the calls went through."),
)


class Instruments:
    """Registers the observable instruments with every meter provider that comes along, each once."""

    def __init__(self, counts: Metrics) -> None:
        self._counts = counts
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last: weakref.ref[Any] | None = None
        # The global placeholder creates the same instruments again on the real provider, once there is one.
        self._global_done = False

    def offer(self, settings: Telemetry) -> None:
        """Register with the provider of the settings, unless it is registered: then it costs little."""
        given = settings.meter_provider
        if given is None:
            if self._global_done:
                return
        elif self._last is not None and self._last() is given:
            return
        provider = otel.meter_provider(settings)
        if provider is None:
            return
        if given is None:
            self._global_done = True
        self._last = weakref.ref(provider)
        if provider not in self._known:
            self._known.add(provider)
            self._register(meter(provider), settings.event_prefix)

    def _register(self, meter: Meter, prefix: str) -> None:
        from opentelemetry.metrics import Observation

        counts = self._counts

        def highest(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(counts.max_operation_count())]

        def reader(name: str) -> Any:
            def read(_: CallbackOptions) -> Iterable[Observation]:
                return [Observation(n, dict(attributes)) for attributes, n in counts.series(name).items()]

            return read

        meter.create_observable_gauge(
            prefix + names.MAX_OPERATION_COUNT,
            [highest],
            unit="{operation}",
            description="The largest count of one repeated operation over the live runs.",
        )
        for name, unit, description in _COUNTERS:
            meter.create_observable_counter(name, [reader(name)], unit=unit, description=description)


def meter(provider: MeterProvider) -> Meter:
    """Our meter at a provider."""
    return provider.get_meter(names.SCOPE, version=otel.version(), schema_url=names.SCHEMA_URL)


def duration_histogram(settings: Telemetry) -> Histogram | None:
    """The histogram of tool durations, or None if there are no metrics."""
    provider = otel.meter_provider(settings)
    if provider is None:
        return None
    options: dict[str, Any] = {
        "unit": "s",
        "description": "Duration of a tool call.",
    }
    ours = meter(provider)
    try:
        return ours.create_histogram(names.DURATION, explicit_bucket_boundaries_advisory=DURATION_BUCKETS, **options)
    except TypeError:
        # Before opentelemetry-api 1.30 an instrument could not suggest its buckets.
        return ours.create_histogram(names.DURATION, **options)


instruments: Final = Instruments(metrics)

offer_instruments = _safety.guarded("telemetry.instruments")(instruments.offer)
