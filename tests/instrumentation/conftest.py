"""What the scenarios share: a tool that counts itself, runs that are alive, and a recording tracer provider."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopguard import Policy, Repeat, Telemetry, configure
from loopguard.run import _live


@pytest.fixture
def three() -> Policy:
    """A policy under which three executions of one call with one result are allowed."""
    return _repeat(warn_after=2, refuse_after=3, stop_after=20)


@pytest.fixture
def lenient() -> Policy:
    """A policy under which forty executions of one call go through without a word."""
    return _repeat(warn_after=40, refuse_after=45, stop_after=50)


def _repeat(**rungs: Any) -> Policy:
    """The same rungs whatever lies between the calls."""
    return Policy(Repeat(**rungs, **{f"unknown_{rung}": value for rung, value in rungs.items()}))


@pytest.fixture
def live_runs() -> Callable[[], int]:
    """How many runs are open and reachable that were not when the test began."""
    gc.collect()
    before = len(_live)

    def count() -> int:
        gc.collect()
        return len(_live) - before

    return count


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python could not raise, from finalisers say."""
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: found.append(what.exc_value))
    return found


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Spans of the test; a tracer provider of its own is configured, no global one is touched."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with configure(telemetry=Telemetry(tracer_provider=provider)):
        yield exporter
    provider.shutdown()
