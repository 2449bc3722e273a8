"""In a fresh process: what is imported, and what an application without OpenTelemetry pays for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

from loopguard.version import VERSION

PRELUDE = """
import sys
from loopguard import _safety
from loopguard.records import Action, Finding
_safety.strict = True
from loopguard.telemetry import Telemetry, lookup, names
from loopguard.telemetry.instruments import offer_instruments
from loopguard.telemetry.logs import log_finding
from loopguard.telemetry.metrics import metrics
settings = Telemetry()
finding = Finding(rule="repeat", action=Action.WARN, tool="search", repetitions=3, threshold=3, seqs=(1, 2, 3),
                  first_seq=1, message="search gave the same result 3 times in a row", run_name="a", run_id="r")
"""


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(code)],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nothing_is_imported_where_nobody_listens() -> None:
    """Without OpenTelemetry in the application a whole run imports nothing of it; the log line is written."""
    done = _run("""
        import threading
        metrics.register_tool("search")
        assert lookup.spans_for_run(settings) is None
        assert lookup.spans_for_findings(settings) is None
        offer_instruments(settings)
        metrics.add(names.DETECTIONS, tool="search", rule="repeat", action="warn", enforced=True)
        log_finding(finding)
        loaded = [name for name in sys.modules if name.startswith("opentelemetry")]
        assert not loaded, loaded
        assert threading.active_count() == 1
    """)

    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "loopguard: search gave the same result 3 times in a row in run 'a' (calls 1-3; repeat, warn_after=3).\n"
    )


def test_the_api_without_a_provider_gives_no_spans() -> None:
    """An application, or a library of its, that imports the API alone is not traced; no SDK is imported."""
    done = _run("""
        import opentelemetry.trace as trace
        import opentelemetry.metrics
        import opentelemetry._logs
        assert lookup.spans_for_run(settings) is None
        trace.set_tracer_provider(trace.NoOpTracerProvider())
        assert lookup.spans_for_run(settings) is None
        spans = lookup.spans_for_findings(Telemetry(events="log"))
        spans.finding(None, finding)
        offer_instruments(settings)
        assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
    """)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_global_providers_are_found_when_a_run_opens() -> None:
    """Providers set after loopguard was imported, and metrics set after the first run, are used."""
    done = _run("""
        from opentelemetry import trace, metrics as otel_metrics, _logs
        assert lookup.spans_for_run(settings) is None
        offer_instruments(settings)
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
        exporter, reader, logs = InMemorySpanExporter(), InMemoryMetricReader(), InMemoryLogRecordExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        settings = Telemetry(events="both")
        spans = lookup.spans_for_run(settings)
        handle = spans.start("r", "search", None, 1)
        spans.finding(handle, finding)
        otel_metrics.set_meter_provider(MeterProvider([reader]))
        offer_instruments(settings)
        spans.end(handle)
        logger_provider = LoggerProvider()
        logger_provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
        _logs.set_logger_provider(logger_provider)
        handle = spans.start("r", "search", None, 2)
        spans.finding(handle, finding)
        spans.end(handle)
        assert [len(span.events) for span in exporter.get_finished_spans()] == [1, 1]
        assert len(logs.get_finished_logs()) == 1
        names_seen = [m.name for r in reader.get_metrics_data().resource_metrics
                      for s in r.scope_metrics for m in s.metrics]
        assert sorted(names_seen) == sorted(set(names_seen)), names_seen
        assert "max_operation_count" in names_seen
        assert "gen_ai.execute_tool.duration" in names_seen
    """)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_provider_named_in_the_environment_is_loaded() -> None:
    """``OTEL_PYTHON_TRACER_PROVIDER`` is enough: the application need not import anything."""
    done = _run(
        """
        spans = lookup.spans_for_run(settings)
        assert spans is not None
        spans.end(spans.start("r", "search", None, 1))
        assert "opentelemetry.sdk.trace" in sys.modules
        """,
        OTEL_PYTHON_TRACER_PROVIDER="sdk_tracer_provider",
    )

    assert done.returncode == 0, done.stderr


def test_an_api_without_logs_is_tolerated() -> None:
    """Where the Logs API has another name, or none, log events are not sent."""
    done = _run("""
        import opentelemetry.trace
        sys.modules["opentelemetry._logs"] = None
        from loopguard.telemetry import otel
        assert otel.logger_provider(settings) is None
    """)

    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_the_project() -> None:
    """The scope version is the one in pyproject.toml."""
    table = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))

    assert table["project"]["version"] == VERSION
