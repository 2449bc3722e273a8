"""docs/reference/telemetry.md says what is emitted, name by name; what these runs emit is what the page says."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopguard import _safety, config, guarded_run, guarded_tool
from loopguard.errors import RunStopped, ToolCallRefused

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"


def rows(title: str, header: str) -> list[list[str]]:
    """The cells of the table with this first column, in the section with this title."""
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(f"{title}\n")]
    table = re.search(rf"^\| {header} \|.*\n\| --- .*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, (title, header)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()]


def words(cell: str) -> set[str]:
    """What stands in code marks."""
    return set(re.findall(r"`([^`]+)`", cell))


def named(title: str, header: str = "attribute") -> set[str]:
    """The names in the first column."""
    return {name for row in rows(title, header) for name in words(row[0])}


@pytest.fixture
def emitted(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A backend that has seen everything: warnings heeded, ignored and lost, a refusal, a stop, failures, content."""
    monkeypatch.setattr(_safety, "strict", False)

    @guarded_tool
    def search(query: str) -> str:
        return "no results"

    @guarded_tool
    def broken() -> str:
        raise ValueError("no")

    def ask(query: str) -> None:
        with contextlib.suppress(ToolCallRefused):
            search(query)

    def loops(run: Any) -> None:
        with pytest.raises(ValueError, match="no"):
            broken()
        for _ in range(6):
            ask("a")
        run.pop_nudges()
        for number in range(6):
            ask(f"b{number}")
        for _ in range(3):
            ask("c")
        run.pop_nudges()
        for _ in range(3):
            ask("c")
        with run.call("search", {"query": "d"}, id="call-1") as call:
            call.result = "nothing"
        for _ in range(3):
            ask("e")  # this nudge is never given to the model
        for _ in range(20):
            ask("a")

    config.configure(telemetry=backend.settings(capture="content"))
    around = backend.tracer.start_as_current_span("invoke_agent")
    with around, pytest.raises(RunStopped), guarded_run("triage", agent="triage") as run:
        loops(run)
    with guarded_run("nameless"):
        search("a")
    search("outside")
    _safety.report("test", KeyError("x"))
    yield backend
    config.reset()


def test_metrics(emitted: Any) -> None:
    """Each metric of the page is emitted as the instrument, in the unit and with the attributes it says; no other is."""
    said = {
        next(iter(words(row[0]))): (row[1], next(iter(words(row[2]))), words(row[3]))
        for row in rows("Metrics", "metric")
    }
    kinds = {"Gauge": "gauge", "Sum": "counter", "Histogram": "histogram"}
    data = emitted.reader.get_metrics_data()
    found = {
        metric.name: (
            kinds[type(metric.data).__name__],
            metric.unit,
            {key for point in metric.data.data_points for key in point.attributes},
        )
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }

    assert found == said


def test_values_of_metric_attributes(emitted: Any) -> None:
    """The values that the page lists are those of the series."""
    points = emitted.points()
    for attribute, metric, values in rows("Metrics", "attribute"):
        (key,), (name,) = words(attribute), words(metric)
        found = {point.attributes[key] for point in points[name] if key in point.attributes}
        assert found == words(values), (name, key)


def test_every_count_was_moved(emitted: Any) -> None:
    """The run of this file leaves no counter at 0, so that the tests above compare what is there."""
    for (name,) in (words(row[0]) for row in rows("Metrics", "metric") if row[1] == "counter"):
        assert emitted.counts(name), name
    outcomes = {dict(key)["outcome"] for key in emitted.counts("loopguard.interventions")}
    decisions = {dict(key)["decision"] for key in emitted.counts("loopguard.calls")}

    assert outcomes == {"heeded", "ignored", "undelivered"}
    assert decisions == {"allow", "refuse", "stop"}


def test_spans(emitted: Any) -> None:
    """The attributes of the tools' spans, of the events and of the span around the run are those of the page."""
    tools = [span for span in emitted.finished if span.name.startswith("execute_tool ")]
    (around,) = [span for span in emitted.finished if span.name == "invoke_agent"]
    events = [event for span in tools for event in span.events if event.name == "on_loop_detected"]

    assert {key for event in events for key in event.attributes} == named("The event")
    assert {key for span in tools for key in span.attributes} == named("Spans") | named("The event")
    assert set(around.attributes) == named("The span around a run")
    assert {event.name for span in tools for event in span.events} == {"on_loop_detected", "exception"}


def test_errors_of_refused_calls_are_those_of_the_page(emitted: Any) -> None:
    """`error.type` of a refusal and of a stop."""
    types = {span.attributes["error.type"] for span in emitted.finished if "error.type" in span.attributes}

    assert types - {"ValueError"} == {name for name in words(PAGE.read_text(encoding="utf-8")) if name in types}


def test_types_of_attributes(emitted: Any) -> None:
    """The column of types holds for every value."""
    kinds = {"string": str, "int": int, "bool": bool, "double": float, "int[]": tuple}
    said = {
        name: kinds[row[1]]
        for title in ("Spans", "The event", "The span around a run")
        for row in rows(title, "attribute")
        for name in words(row[0])
    }
    for span in emitted.finished:
        for attributes in (span.attributes, *(e.attributes for e in span.events if e.name == "on_loop_detected")):
            assert {key: type(value) for key, value in attributes.items()} == {key: said[key] for key in attributes}
