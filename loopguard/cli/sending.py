"""Where the demo's spans and metrics go: to the OTLP endpoint of the environment, if there is one."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from loopguard.cli import install_hint
from loopguard.config import configure
from loopguard.telemetry.settings import Telemetry

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
#: Seconds to wait for an endpoint, unless the environment says how long.
TIMEOUT: Final = 3.0


class Sender:
    """Makes traces, and says at the end where they went. This one sends nothing."""

    def __init__(self, *report: tuple[str, str]) -> None:
        #: What to print: name and text of each line.
        self.report: list[tuple[str, str]] = list(report)

    def trace(self, agent: str) -> AbstractContextManager[object]:
        """A block whose spans form one trace."""
        return nullcontext()

    def finish(self) -> None:
        """Send what waits."""


@contextmanager
def sender() -> Iterator[Sender]:
    """The sender that the environment asks for. At the end of the block everything is sent and reported."""
    if endpoint("traces") is None:
        yield Sender(("spans", f"none sent; set {ENDPOINT} to see them, e.g. http://localhost:6006"))
        return
    with _quiet() as said:
        try:
            to: Sender = OtlpSender(said)
        except ImportError:
            to = Sender(("spans", f"none sent; sending needs an extra: {install_hint('otel')}"))
        yield to
        to.finish()


def endpoint(signal: str) -> str | None:
    """The address that the environment names for ``traces`` or ``metrics``, as the exporters read it."""
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    if own:
        return own
    base = os.environ.get(ENDPOINT)
    return f"{base.rstrip('/')}/v1/{signal}" if base else None


class OtlpSender(Sender):
    """Sends by OTLP over HTTP.

    Args:
        said: What OpenTelemetry logs, to name the reason of a failure.

    Raises:
        ImportError: The SDK or the exporter is not installed.
    """

    def __init__(self, said: list[str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        super().__init__()
        self._said = said
        # What the environment says about the resource comes first.
        named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or "OTEL_SERVICE_NAME" in os.environ
        resource = Resource.create({} if named else {"service.name": "loopguard-demo"})
        waits = any(name in os.environ for name in (f"{ENDPOINT[:-8]}TIMEOUT", f"{ENDPOINT[:-8]}TRACES_TIMEOUT"))
        options: dict[str, Any] = {} if waits else {"timeout": TIMEOUT}
        self._spans = Counting(OTLPSpanExporter(**options))
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(BatchSpanProcessor(self._spans))  # type: ignore[arg-type]
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader], resource=resource, shutdown_on_exit=False)
        self._metrics = OTLPMetricExporter(**options) if endpoint("metrics") else None
        self._configured = configure(telemetry=Telemetry(tracer_provider=self._tracers, meter_provider=self._meters))
        self._tracer = self._tracers.get_tracer("loopguard.demo")

    def trace(self, agent: str) -> AbstractContextManager[object]:
        """A span for the agent, as frameworks make one; those of its tools are below."""
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
        return self._tracer.start_as_current_span(f"invoke_agent {agent}", attributes=attributes)

    def finish(self) -> None:
        """Send what waits and write down what came of it."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        with self._configured:
            self._tracers.force_flush()
        self._tracers.shutdown()
        address = _shown(endpoint("traces"))
        count = len(self._spans.traces)
        if self._spans.failed:
            self.report.append(("spans", f"could not be sent to {address}{self._reason()}"))
        elif count:
            self.report.append(("spans", f"{count} trace{'s' if count != 1 else ''} sent to {address}"))
        else:
            self.report.append(("spans", "none were made: the sampler or OTEL_SDK_DISABLED keeps them back"))
        data = self._reader.get_metrics_data()
        # An endpoint that did not take the spans would only be waited for once more.
        if self._metrics is not None and data is not None and not self._spans.failed:
            self._said.clear()
            address = _shown(endpoint("metrics"))
            taken = self._metrics.export(data) is MetricExportResult.SUCCESS
            self.report.append(
                ("metrics", f"sent to {address}" if taken else f"not taken by {address}{self._reason()}")
            )
        if self._metrics is not None:
            self._metrics.shutdown()
        self._meters.shutdown()

    def _reason(self) -> str:
        """Why it failed, in brackets and in a few words, from what OpenTelemetry logged."""
        reason = reason_of(self._said)
        return f" ({reason})" if reason else ""


def reason_of(said: Sequence[str]) -> str:
    """A few words for what an exporter logged; "" for nothing.

    The first line says most: the later ones say that it gave up.
    """
    for line in said:
        for sign, words in _REASONS:
            if sign.search(line):
                return words
        answered = _ANSWERED.search(line)
        if answered is not None:
            return f"it answered {answered[1]}{_HINTS.get(answered[1], '')}"
    first = said[0].strip().splitlines()[0] if said and said[0].strip() else ""
    return f"{first[:57]}..." if len(first) > 60 else first


#: What exporters log when they come to no answer, and how to say it.
_REASONS: Final = (
    (re.compile(r"NameResolution|Name or service not known|nodename nor servname|getaddrinfo"), "no such host"),
    (re.compile(r"Connection refused|actively refused|NewConnectionError"), "nothing listens there"),
    (re.compile(r"CERTIFICATE|SSLError|WRONG_VERSION_NUMBER"), "the secure connection failed"),
    (re.compile(r"timed out|TimeoutError"), "no answer in time"),
    (re.compile(r"due to timeout, max retries"), "not reached in time"),
    (re.compile(r"Max retries exceeded|Connection(Error| aborted)|RemoteDisconnected"), "no connection"),
)
_ANSWERED: Final = re.compile(r"\b([345]\d\d)\b")
_HINTS: Final = {
    "401": ": OTEL_EXPORTER_OTLP_HEADERS holds the key",
    "403": ": OTEL_EXPORTER_OTLP_HEADERS holds the key",
    "404": ": is it the address of an OTLP endpoint?",
    "405": ": it takes no such data",
}


class Counting:
    """An exporter that remembers which traces arrived."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.traces: set[int] = set()
        self.failed = False

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Send spans."""
        result = self._exporter.export(spans)
        if result.name == "SUCCESS":
            self.traces.update(span.context.trace_id for span in spans)
        else:
            self.failed = True
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return True


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Keep what the exporters log off the screen. Gives their lines."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    kept = [logging.getLogger(name) for name in ("opentelemetry", "urllib3")]
    before = [(logger.handlers, logger.propagate) for logger in kept]
    for logger in kept:
        logger.handlers, logger.propagate = [Keep()], False
    try:
        yield lines
    finally:
        for logger, (handlers, propagate) in zip(kept, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate


def _shown(address: str | None) -> str:
    """An address without the password in it."""
    return re.sub(r"//[^/@]*@", "//***@", address or "")
