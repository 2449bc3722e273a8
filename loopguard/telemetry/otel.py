"""Finds the application's OpenTelemetry, and imports nothing where there is none.

Importing the API costs 35 to 40 ms. An application that never imported it, sets no provider in the
environment and hands none over has nobody to tell, so it does not pay for it.
"""

from __future__ import annotations

import contextvars
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from loopguard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from loopguard.telemetry.settings import Telemetry


def tracer_provider(settings: Telemetry) -> TracerProvider | None:
    """The provider that spans go to, or None if nobody set one."""
    if settings.tracer_provider is not None:
        given: TracerProvider = settings.tracer_provider
        return given
    if not _wanted("opentelemetry.trace", "OTEL_PYTHON_TRACER_PROVIDER"):
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return provider


def meter_provider(settings: Telemetry) -> MeterProvider | None:
    """The provider that metrics go to, or None if the application has not imported metrics.

    The global placeholder counts: what is registered there starts to work when a provider is set.
    """
    if settings.meter_provider is not None:
        given: MeterProvider = settings.meter_provider
        return given
    if not _wanted("opentelemetry.metrics", "OTEL_PYTHON_METER_PROVIDER"):
        return None
    from opentelemetry import metrics

    return metrics.get_meter_provider()


def logger_provider(settings: Telemetry) -> LoggerProvider | None:
    """The provider that log events go to, or None if nobody set one or this version has no Logs API."""
    if settings.logger_provider is not None:
        given: LoggerProvider = settings.logger_provider
        return given
    if not _wanted("opentelemetry._logs", "OTEL_PYTHON_LOGGER_PROVIDER"):
        return None
    # The module's underscore says that its name may change.
    try:
        from opentelemetry import _logs
    except ImportError:
        return None
    provider = _logs.get_logger_provider()
    return None if type(provider).__name__ == "ProxyLoggerProvider" else provider


def _wanted(module: str, variable: str) -> bool:
    # A module that is being imported by another thread is in sys.modules already; the import statement that
    # follows waits for it.
    return module in sys.modules or variable in os.environ


@cache
def version() -> str:
    """The version of loopguard, for the instrumentation scope."""
    return VERSION


class ContextFunctions(NamedTuple):
    """How the current OpenTelemetry context is read, set and put back; ``detach`` raises where it cannot."""

    get: Callable[[], Context]
    attach: Callable[[Context], Any]
    detach: Callable[[Any], None]


def context_functions() -> ContextFunctions:
    """The context variable's own methods where OpenTelemetry keeps its context in one, else its functions.

    ``opentelemetry.context.detach`` logs an error with a traceback when a generator is closed in another task
    than it was opened in. There is nothing to be done about it and nobody did anything wrong, so we ask the
    variable itself, which raises instead. It is also faster by two calls.
    """
    from opentelemetry import context

    token: object = context.attach(context.get_current())
    context.detach(cast("Any", token))
    if isinstance(token, contextvars.Token):
        variable = token.var
        return ContextFunctions(variable.get, variable.set, variable.reset)
    return ContextFunctions(context.get_current, context.attach, context.detach)


def span_key() -> tuple[str, type[Context]]:
    """The key of a context under which its span is, and the type of a context.

    A context is an immutable dict. Building it ourselves saves five calls for each span; the public function
    is asked once where it puts a span.
    """
    from opentelemetry import trace
    from opentelemetry.context import Context

    (key,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())
    return key, Context


def suppression_keys() -> tuple[str, str]:
    """The keys of the context under which an application says that it wants no telemetry."""
    from opentelemetry import context

    # The contrib helper sets both, openinference only the private one.
    plain = "suppress_instrumentation"
    return plain, getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", plain)


def tracing_imported() -> bool:
    """Whether the application has OpenTelemetry's tracing imported, and so may have a current span."""
    return "opentelemetry.trace" in sys.modules
