"""The demo: what it prints is what happened, and its spans arrive where the environment says."""

from __future__ import annotations

import io
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import loopguard
from loopguard.cli import demo, sending
from loopguard.config import settings


@pytest.fixture(autouse=True)
def _no_otel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test has an empty folder and no OpenTelemetry variables."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def play(capsys: pytest.CaptureFixture[str]) -> str:
    """What the demo prints."""
    assert demo.run(plain=True) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


# -- what it shows -------------------------------------------------------------------------------------------------


def test_four_scenes(capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy run, a loop that listens, one that does not and one of two calls, with the numbers of the default."""
    out = play(capsys)

    assert re.match(r"loopguard 0\.\d+ · demo · no key, no network · \d\.\d\d s\n", out)
    for pattern in (
        r" 1  healthy: edit, test, edit, test +nothing to say\n",
        r"#2 pytest  3 failed    #3 edit a\.py  applied    #4 pytest  1 failed    …\n",
        r"    #10 pytest  all passed\n",
        r"✓ 10 calls, 0 refused",
        r" 2  a loop that listens +warned, refused, went on\n",
        r'#1-#3 search "refund 2019"  no results ×3\n',
        r"⚠ nudge: `search` .* has now returned the same result 3 times \(calls 1, 2, 3\)\.\n",
        r'#4-#5 search "refund 2019"  no results ×2    #6 ✋ refused    #7 ask_user "which year\?"',
        r"✓ heeded after 1 refusal\n",
        r" 3  a loop that does not +stopped at the 11th attempt\n",
        r"5 executed · 5 refused · run over\n",
        r"Without loopguard: the framework's limit, e\.g\. LangChain 4,999 calls\n",
        r" 4  A-B-A-B +warned at lap 3, refused at lap 4\n",
        r"8 executed · 1 refused · the agent answers\n",
        r" spans +none sent; set OTEL_EXPORTER_OTLP_ENDPOINT",
        r" next +guard yours: @guarded_tool",
    ):
        assert re.search(pattern, out), pattern


def test_it_is_live(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other thresholds in the environment, other numbers."""
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "2")
    monkeypatch.setenv("LOOPGUARD_REFUSE_AFTER", "4")
    monkeypatch.setenv("LOOPGUARD_STOP_AFTER", "6")

    out = play(capsys)

    assert "the same result 2 times (calls 1, 2)" in out
    assert "#3-#4 search" in out
    assert "#5 ✋ refused    #6 ask_user" in out
    assert "stopped at the 7th attempt" in out
    assert "4 executed · 2 refused · run over" in out


def test_without_refusals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the refusal switched off ten calls run, and the run is over for the listener too."""
    monkeypatch.setenv("LOOPGUARD_REFUSE_AFTER", "0")

    out = play(capsys)

    assert out.count("stopped at the 11th attempt") == 2
    assert "10 executed · 0 refused · run over" in out
    assert "ask_user" not in out


def test_a_warning_about_healthy_work_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the settings make the guard speak about the healthy run, the demo says so."""
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "1")

    out = play(capsys)

    assert re.search(r" 1  healthy: edit, test, edit, test +warned, went on\n", out)
    assert re.search(r"#1 edit a\.py  applied\n    ⚠ nudge: .* \(call 1\)\.\n", out)


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [("observe", "only watching: would have warned, refused, stopped"), ("off", "loopguard is off")],
)
def test_it_ends_where_nothing_is_enforced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mode: str, verdict: str
) -> None:
    """In observe mode and switched off the loops go on until the demo ends them, and it says so."""
    monkeypatch.setenv("LOOPGUARD_MODE", mode)

    out = play(capsys)

    assert out.count(verdict) >= 2
    assert "60 executed · 0 refused · nothing ended it, so the demo did" in out


def test_log_lines_do_not_garble_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Findings are logged nowhere, a complaint about a variable becomes a note, and the logger is as before."""
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "three")
    logger = logging.getLogger("loopguard")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        out = play(capsys)
        assert handler in logger.handlers
    finally:
        logger.removeHandler(handler)

    assert caplog.records == []
    assert logger.propagate
    assert re.search(r" note +LOOPGUARD_WARN_AFTER='three': .* It is ignored\.\n", out)


def test_a_broken_settings_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo uses the settings of the folder; where they cannot be used it says why and gives 2."""
    Path("loopguard.toml").write_text("windw = 3\n", encoding="utf-8")

    assert demo.run(plain=True) == 2
    assert "windw" in capsys.readouterr().err


def test_long_lines_are_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of calls is wider than the page."""
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "0")
    monkeypatch.setattr(demo, "WIDTH", 60)

    out = play(capsys)

    lines = [line for line in out.splitlines() if line.startswith("    #")]
    assert len(lines) >= 4
    assert max(map(len, lines)) <= 70


def test_ordinals() -> None:
    """First to twenty-second."""
    expected = "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 111th"

    assert " ".join(demo._ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 111)) == expected


# -- how it is printed ---------------------------------------------------------------------------------------------


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        """A terminal."""
        return True

    @property
    def text(self) -> str:
        """What was written."""
        self.flush()
        raw: Any = self.buffer
        return str(raw.getvalue().decode(self.encoding))


@pytest.mark.parametrize(
    ("plain", "variables", "colours"),
    [
        (False, {"TERM": "xterm-256color"}, True),
        (True, {"TERM": "xterm-256color"}, False),
        (False, {"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        (False, {"TERM": "dumb"}, False),
    ],
)
def test_colours(monkeypatch: pytest.MonkeyPatch, plain: bool, variables: dict[str, str], colours: bool) -> None:
    """Rich is used on a terminal, unless --plain, NO_COLOR or the terminal says no; the words stay the same."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    demo.run(plain=plain)

    assert ("\x1b[" in terminal.text) is colours
    assert "stopped at the 11th attempt" in terminal.text


def test_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the text is plain on a terminal too."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    demo.run(plain=False)

    assert "\x1b[" not in terminal.text
    assert "stopped at the 11th attempt" in terminal.text


def test_a_terminal_without_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the encoding of the terminal lacks is put in other words instead of failing."""
    terminal = Terminal("ascii")
    monkeypatch.setattr(sys, "stdout", terminal)

    demo.run(plain=True)

    assert "5 executed - 5 refused - run over" in terminal.text
    assert "?" not in terminal.text.replace('"which year?"', "")


def test_as_a_command() -> None:
    """`python -m loopguard` alone is the demo; it needs no set-up and takes well under a second."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOOPGUARD_")}
    environment |= {"PYTHONPATH": str(Path(loopguard.__file__).parents[1]), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "loopguard"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=60, env=environment,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "stopped at the 11th attempt" in done.stdout
    seconds = re.search(r"(\d+\.\d+) s\n", done.stdout)
    assert seconds is not None
    assert float(seconds[1]) < 0.5


# -- where its spans go --------------------------------------------------------------------------------------------


@dataclass
class Collector:
    """An OTLP endpoint that keeps what it gets."""

    address: str = ""
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    status: dict[str, int] = field(default_factory=dict)

    @property
    def spans(self) -> list[Any]:
        """All spans that arrived."""
        requests = [ExportTraceServiceRequest.FromString(b) for path, b in self.bodies if path == "/v1/traces"]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> set[str]:
        """The names of all metrics that arrived."""
        requests = [ExportMetricsServiceRequest.FromString(b) for path, b in self.bodies if path == "/v1/metrics"]
        return {
            metric.name
            for request in requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def services(self) -> set[str]:
        """The names of the services that sent spans."""
        requests = [ExportTraceServiceRequest.FromString(b) for path, b in self.bodies if path == "/v1/traces"]
        return {
            attribute.value.string_value
            for request in requests
            for resource in request.resource_spans
            for attribute in resource.resource.attributes
            if attribute.key == "service.name"
        }


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector on this machine, named by the environment."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.bodies.append((self.path, body))
            self.send_response(collector.status.get(self.path, 200))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    collector.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield collector
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_and_metrics_are_sent(capsys: pytest.CaptureFixture[str], collector: Collector) -> None:
    """Three traces with their loop events, and the metrics, arrive; the demo says where."""
    before = settings()
    out = play(capsys)

    assert f"4 traces sent to {collector.address}/v1/traces\n" in out
    assert f"sent to {collector.address}/v1/metrics\n" in out
    assert len({span.trace_id for span in collector.spans}) == 4
    assert sorted(span.name for span in collector.spans if not span.parent_span_id) == [
        "invoke_agent alternating",
        "invoke_agent coder",
        "invoke_agent listener",
        "invoke_agent stubborn",
    ]
    events = [event for span in collector.spans for event in span.events]
    assert {event.name for event in events} == {"on_loop_detected"}
    actions = [a.value.string_value for e in events for a in e.attributes if a.key == "loopguard.loop.action"]
    assert sorted(actions) == ["refuse", "refuse", "refuse", "stop", "warn", "warn", "warn"]
    assert {
        "max_operation_count",
        "loopguard.loop.detections",
        "gen_ai.execute_tool.duration",
    } <= collector.metrics
    assert collector.services == {"loopguard-demo"}
    assert settings().telemetry is before.telemetry


def test_no_argument_is_sent(capsys: pytest.CaptureFixture[str], collector: Collector) -> None:
    """What the agents searched for and what they got stays in the process."""
    play(capsys)

    sent = b"".join(body for _, body in collector.bodies)
    assert b"refund" not in sent
    assert b"no results" not in sent


def test_the_environment_names_the_service(
    capsys: pytest.CaptureFixture[str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_SERVICE_NAME comes before the name that the demo has for itself."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")

    play(capsys)

    assert collector.services == {"mine"}


def test_a_server_that_takes_no_metrics(capsys: pytest.CaptureFixture[str], collector: Collector) -> None:
    """Phoenix takes spans only; the demo says so and nothing else is printed."""
    collector.status["/v1/metrics"] = 405

    out = play(capsys)

    assert "4 traces sent to" in out
    assert re.search(r" metrics +not taken by http://\S+/v1/metrics \(.*405", out)


def test_only_traces_are_asked_for(
    capsys: pytest.CaptureFixture[str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an endpoint for traces alone no metrics are sent."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.address}/v1/traces")

    out = play(capsys)

    assert "4 traces sent to" in out
    assert " metrics " not in out
    assert {path for path, _ in collector.bodies} == {"/v1/traces"}


def test_a_server_that_refuses(capsys: pytest.CaptureFixture[str], collector: Collector) -> None:
    """Where the spans are not taken the demo says why, and does not wait for the metrics as well."""
    collector.status["/v1/traces"] = 401

    out = play(capsys)

    assert re.search(r" spans +could not be sent to http://\S+/v1/traces \(.*401", out)
    assert {path for path, _ in collector.bodies} == {"/v1/traces"}


def test_a_password_in_the_address_is_not_shown(
    capsys: pytest.CaptureFixture[str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed address has stars for user and password."""
    address = collector.address.replace("http://", "http://user:secret@")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)

    out = play(capsys)

    assert "4 traces sent to http://***@127.0.0.1" in out
    assert "secret" not in out


def test_spans_that_are_kept_back(
    capsys: pytest.CaptureFixture[str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that takes nothing is no failure, but it is said."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")

    assert re.search(r" spans +none were made: the sampler", play(capsys))


def test_without_the_extra(
    capsys: pytest.CaptureFixture[str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint without an SDK: the demo plays, and names the package that is missing."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    out = play(capsys)

    assert (
        "none sent; sending needs an extra: pip install 'loopguard-otel[otel]' (in a clone: pip install '.[otel]')"
        in out
    )
    assert "stopped at the 11th attempt" in out
    assert collector.bodies == []


def test_nobody_listens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint at which nothing runs is said in one short line."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # with less it may give up before it says why

    assert f" spans     could not be sent to {address}/v1/traces (nothing listens there)\n" in play(capsys)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["Transient error HTTPSConnectionPool(...): Max retries exceeded (Caused by NameResolutionError(...)"], "no such host"),
        (["Failed to export span batch due to timeout, max retries or shutdown."], "not reached in time"),
        (["Read timed out. (read timeout=3)"], "no answer in time"),
        (["('Connection aborted.', RemoteDisconnected('...'))"], "no connection"),
        (["SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]"], "the secure connection failed"),
        (["Failed to export span batch code: 401, reason: "], "it answered 401: OTEL_EXPORTER_OTLP_HEADERS holds the key"),
        (["Failed to export span batch code: 500, reason: oh"], "it answered 500"),
        (["x" * 300 + "\nmore", "gave up"], "x" * 57 + "..."),
        (["short", "gave up"], "short"),
        (["Transient error Service Unavailable 503", "... due to timeout, max retries or shutdown."], "it answered 503"),
        ([], ""),
    ],
)  # fmt: skip
def test_reasons_are_short(said: list[str], reason: str) -> None:
    """What an exporter logs becomes a few words; of what is not known the beginning is shown."""
    assert sending.reason_of(said) == reason
