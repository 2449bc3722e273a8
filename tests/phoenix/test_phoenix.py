"""The demo against a real Arize Phoenix: what a user finds there, read through its REST API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from typing import Any

import pytest

pytestmark = pytest.mark.phoenix


@pytest.fixture(scope="module")
def project() -> str:
    """A project of its own in Phoenix, so that a server with other data does no harm."""
    return f"loopguard-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def printed(example: Any, phoenix: Any, project: str) -> str:
    """What the demo printed when it was played against Phoenix."""
    return example.play_demo(phoenix, project=project)


@pytest.fixture(scope="module")
def spans(example: Any, phoenix: Any, project: str, printed: str) -> list[dict[str, Any]]:
    """The spans that Phoenix stored of the demo."""
    return phoenix.wait_for_events(project=project)


def test_demo_names_the_endpoint(phoenix: Any, printed: str) -> None:
    """The demo says where it sent its spans."""
    assert f"{phoenix.endpoint}/v1/traces" in printed


def test_events_are_found_by_rest(example: Any, spans: list[dict[str, Any]]) -> None:
    """Phoenix holds `on_loop_detected` for a warning, a refusal and a stop, each with rule, count and sentence."""
    events = [event for span in spans for event in example.loop_events(span)]

    assert {event["loopguard.loop.action"] for event in events} == {"warn", "refuse", "stop"}
    assert "repeat" in {event["loopguard.loop.rule"] for event in events}
    assert all(event["loopguard.loop.repetitions"] >= 2 for event in events)
    assert all(event["loopguard.loop.message"] for event in events)


def test_events_stand_on_tool_spans(example: Any, spans: list[dict[str, Any]]) -> None:
    """An event is on the span of its tool, which Phoenix shows as a tool, and the span itself can be searched."""
    with_events = [span for span in spans if example.loop_events(span)]

    assert {span["span_kind"] for span in with_events} == {"TOOL"}
    for span in with_events:
        assert span["name"] == f"execute_tool {span['attributes']['gen_ai.tool.name']}"
        assert span["attributes"]["loopguard.loop.detected"] is True


def test_refused_calls_are_errors(spans: list[dict[str, Any]]) -> None:
    """A refused and a stopped call are spans with status ERROR and the error's type."""
    failed = {span["attributes"].get("error.type") for span in spans if span["status_code"] == "ERROR"}

    assert {"loopguard.LoopRefused", "loopguard.LoopStopped"} <= failed


def test_healthy_run_is_silent(spans: list[dict[str, Any]], example: Any) -> None:
    """The demo's healthy run is stored too, in a trace without any loop event."""
    traces: dict[str, int] = {}
    for span in spans:
        trace = span["context"]["trace_id"]
        traces[trace] = traces.get(trace, 0) + len(example.loop_events(span))

    assert len(traces) >= 3
    assert 0 in traces.values()


def test_one_trace_can_be_asked_for(phoenix: Any, project: str, spans: list[dict[str, Any]]) -> None:
    """The spans of one trace carry one run id and call numbers in order."""
    trace_id = spans[0]["context"]["trace_id"]
    of_trace = [
        span
        for span in phoenix.spans(trace_id, project=project)
        if span["attributes"].get("gen_ai.operation.name") == "execute_tool"
    ]

    assert len({span["attributes"]["loopguard.run.id"] for span in of_trace}) == 1
    ordered = sorted(of_trace, key=lambda span: span["start_time"])
    numbers = [span["attributes"]["loopguard.call.seq"] for span in ordered]
    assert numbers == sorted(set(numbers))


def test_no_argument_left_the_process(spans: list[dict[str, Any]]) -> None:
    """What the demo's agent searched for, and what it found, is nowhere in the tool spans that Phoenix stored."""
    stored = json.dumps([s for s in spans if s["attributes"].get("gen_ai.operation.name") == "execute_tool"])

    assert "refund" not in stored
    assert "no results" not in stored


def test_example_for_users(example: Any, phoenix: Any) -> None:
    """`examples/phoenix_demo.py` prints the events that it found in a running Phoenix."""
    done = subprocess.run(
        [
            sys.executable,
            example.__file__,
            "--endpoint",
            phoenix.endpoint,
            "--project",
            f"example-{os.getpid()}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env=os.environ | {"PYTHONUTF8": "1"},
    )

    assert done.returncode == 0, done.stderr
    found = done.stdout.split("stored of it:")[1].split()
    assert {"warn", "refuse", "stop"} <= set(found)
