"""Counts: what a run leaves behind, what is bounded, what a meter provider reads."""

from __future__ import annotations

import gc
import os
import signal
import threading
import tracemalloc
import uuid
import warnings
from typing import Any

import pytest

from loopguard import _safety
from loopguard.telemetry import names
from loopguard.telemetry.instruments import Instruments, duration_histogram, offer_instruments
from loopguard.telemetry.metrics import GRACE_S, MOST_AGENTS, MOST_TOOLS, Metrics, Snapshot, metrics


class Run:
    """A run as the metrics see it."""

    def __init__(self, highest: int = 0, agent: str | None = None, **calls: int) -> None:
        self.snapshot: Snapshot = {
            "max_operation_count": highest,
            "calls": {("search", decision): n for decision, n in calls.items()},
            "agent": agent,
        }

    def metrics_snapshot(self) -> Snapshot:
        return self.snapshot


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def counts() -> Metrics:
    """Counts of their own, with a clock that stands still."""
    return Metrics(Clock())


def test_the_gauge_is_the_maximum_over_live_runs(counts: Metrics) -> None:
    """A healthy run beside a looping one does not hide it; without a run it is 0."""
    looping, healthy = Run(3), Run(1)
    assert counts.max_operation_count() == 0

    counts.register_run(looping)
    counts.register_run(healthy)

    assert counts.max_operation_count() == 3


def test_a_finished_run_is_shown_for_a_while() -> None:
    """The maximum of a run that ended between two exports is seen, and forgotten after 120 seconds."""
    clock = Clock()
    counts = Metrics(clock)
    for at, highest in ((0, 7), (10, 3), (20, 5), (30, 0)):
        clock.now = at
        run = Run(highest)
        counts.register_run(run)
        counts.run_closed(run)

    seen = []
    for at in (30, GRACE_S + 1, 20 + GRACE_S + 1):
        clock.now = at
        seen.append(counts.max_operation_count())

    assert seen == [7, 5, 0]


def test_calls_are_those_of_live_and_of_finished_runs(counts: Metrics) -> None:
    """A total that never goes back: what a run counted stays when it is closed."""
    counts.register_tool("search")
    first, second = Run(allow=5, refuse=2), Run(allow=1)
    counts.register_run(first)
    counts.register_run(second)
    live = counts.series(names.CALLS)
    counts.run_closed(first, "stopped")
    counts.run_closed(second)
    closed = counts.series(names.CALLS)

    assert live == closed
    assert live[("decision", "allow"), (names.TOOL, "search")] == 6
    assert live[("decision", "refuse"), (names.TOOL, "search")] == 2
    assert live[("decision", "stop"), (names.TOOL, "search")] == 0


def test_runs_are_counted_by_agent_and_outcome(counts: Metrics) -> None:
    """Every outcome of an agent starts at 0 when its first run opens; a second close counts nothing."""
    run = Run(agent="triage")
    counts.register_run(run, agent="triage")
    before = counts.series(names.RUNS)
    for _ in range(2):
        counts.run_closed(run, "stopped")
    after = counts.series(names.RUNS)

    assert set(before.values()) == {0}
    assert len(before) == len(names.OUTCOMES)
    assert {key: n for key, n in after.items() if n} == {((names.AGENT, "triage"), ("outcome", "stopped")): 1}
    assert counts.live_runs() == 0


def test_a_run_that_was_not_registered_is_not_counted(counts: Metrics) -> None:
    """Closing it does nothing."""
    counts.run_closed(Run(3))

    assert counts.series(names.RUNS) == {}


def test_a_run_that_was_dropped_is_abandoned(counts: Metrics) -> None:
    """Its counts are kept if they were given apart from the run; no entry of it is left."""

    class Handle:
        pass

    run, other = Handle(), Run(9, allow=9)
    counts.register_run(run, Run(4, allow=3))
    counts.register_run(other)
    del run, other
    gc.collect()

    assert counts.live_runs() == 0
    assert counts.max_operation_count() == 4
    assert counts.series(names.CALLS)[("decision", "allow"), (names.TOOL, "_other")] == 3
    assert counts.series(names.RUNS)[(("outcome", "abandoned"),)] == 2


def test_a_new_run_at_the_same_address_is_another_run(counts: Metrics) -> None:
    """What the garbage collector reports late does not bury a newer run."""
    run = Run()
    counts.register_run(run)
    stale = counts._live[id(run)]
    counts.register_run(run)
    counts._dropped.append(stale)

    assert counts.live_runs() == 1


def test_a_run_that_fails_to_answer_does_not_hide_others(quiet: None) -> None:
    """A broken snapshot counts as nothing, and is reported."""

    class Broken(Run):
        def metrics_snapshot(self) -> Snapshot:
            raise RuntimeError

    counts = Metrics()
    broken, fine = Broken(), Run(2)
    counts.register_run(broken)
    counts.register_run(fine)

    assert counts.max_operation_count() == 2
    assert _safety.errors == {("telemetry.snapshot", "RuntimeError"): 1}


def test_ten_thousand_runs_make_few_series(backend: Any, make_finding: Any) -> None:
    """Random run ids, five tools, made-up tools, all decisions: as many series as names multiply to."""
    offer_instruments(backend.settings())
    tools = [f"tool_{n}" for n in range(5)]
    for tool in tools:
        metrics.register_tool(tool)
    metrics.expect(frozenset({("repeat", "warn"), ("repeat", "refuse"), ("repeat", "stop")}))

    for n in range(10_000):
        run = Run(n % 7, "triage", allow=3, refuse=1, stop=1)
        run.snapshot["calls"][f"made_up_{uuid.uuid4()}", "allow"] = 1  # type: ignore[index]
        metrics.register_run(run, agent="triage")
        metrics.add(names.DETECTIONS, tool=tools[n % 5], rule="repeat", action="warn", enforced=True)
        metrics.add(names.DETECTIONS, tool=f"made_up_{n}", rule="repeat", action="stop", enforced=False)
        metrics.add(names.WASTED_CALLS, 2, tool=tools[n % 5])
        metrics.add(names.INTERVENTIONS, rule="repeat", action="warn", outcome="heeded")
        metrics.run_closed(run, "stopped")
    points = backend.points()

    assert {name: len(found) for name, found in points.items()} == {
        "max_operation_count": 1,
        # tools, search and _other; three actions that are expected, one that was only watched
        "loopguard.loop.detections": 6 * 3 + 1,
        "loopguard.runs": len(names.OUTCOMES),
        "loopguard.calls": 6 * 3 + 1,
        "loopguard.wasted_calls": 6,
        "loopguard.interventions": 1,
        "loopguard.unguarded_calls": 6,
    }
    attributes = {str(v) for found in points.values() for p in found for v in p.attributes.values()}
    assert attributes == {
        *tools, "search", "_other", "triage", "repeat", "warn", "refuse", "stop", "allow", "heeded",
        "True", "False", *names.OUTCOMES,
    }  # fmt: skip
    assert sum(backend.counts("loopguard.loop.detections").values()) == 20_000


def test_names_beyond_a_limit_are_other(counts: Metrics) -> None:
    """Tools, agents and rules of any number make a bounded number of series."""
    for n in range(400):
        counts.register_tool(f"tool_{n}")
        counts.add(names.DETECTIONS, tool=f"tool_{n}", rule=f"rule_{n}", action="warn", enforced=True)
        counts.add(names.RUNS, agent=f"agent_{n}", outcome="completed")

    labels = {dict(key)[names.TOOL] for key in counts.series(names.DETECTIONS)}
    assert len(labels) == MOST_TOOLS + 1
    assert len({dict(key)[names.AGENT] for key in counts.series(names.RUNS)}) == MOST_AGENTS + 1
    assert len({dict(key)["rule"] for key in counts.series(names.DETECTIONS)}) == 101
    assert counts.register_tool("one_more") is counts.register_tool(names.OTHER)


def test_the_zeros_are_bounded(counts: Metrics) -> None:
    """Many tools and rules do not fill the SDK's 2,000 series with zeros, nor do many policies."""
    for n in range(MOST_TOOLS):
        counts.register_tool(f"tool_{n}")
    for n in range(150):
        counts.expect(frozenset({(f"rule_{n}", "warn")}))
        counts.expect(frozenset({(f"rule_{n}", "warn")}))

    assert len(counts.series(names.DETECTIONS)) == 1000
    assert len(counts._seen_rungs) == 100


def test_series_start_at_zero(counts: Metrics) -> None:
    """A tool that is registered before or after a policy is known has its detections at 0."""
    counts.register_tool("search")
    counts.expect(frozenset({("repeat", "stop")}))
    counts.register_tool("read")

    detections = counts.series(names.DETECTIONS)
    assert set(detections.values()) == {0}
    assert {dict(key)[names.TOOL] for key in detections} == {"search", "read"}
    assert counts.series(names.WASTED_CALLS) == {((names.TOOL, "search"),): 0, ((names.TOOL, "read"),): 0}


def test_an_attribute_that_is_none_is_left_out(counts: Metrics) -> None:
    """A run without an agent has no agent attribute."""
    counts.add(names.RUNS, agent=None, outcome="completed")

    assert counts.series(names.RUNS) == {(("outcome", "completed"),): 1}


def test_an_unknown_metric_does_not_raise(counts: Metrics, quiet: None) -> None:
    """A mistake of ours is counted, not raised."""
    counts.add("loopguard.nonsense")

    assert _safety.errors == {("telemetry.add", "KeyError"): 1}


def test_unguarded_calls_are_counted_by_the_caller(counts: Metrics) -> None:
    """A call outside a run adds one to a number, no more."""
    counter = counts.register_tool("search")
    counter.value += 2

    assert counts.register_tool("search") is counter
    assert counts.series(names.UNGUARDED_CALLS) == {((names.TOOL, "search"),): 2}


def test_a_restart_keeps_the_tools(counts: Metrics) -> None:
    """Counts are gone, the tools' series are at 0 again."""
    counts.register_tool("search").value += 1
    counts.add(names.WASTED_CALLS, 3, tool="search")

    counts.restart()

    assert counts.series(names.WASTED_CALLS) == {((names.TOOL, "search"),): 0}
    assert counts.series(names.UNGUARDED_CALLS) == {((names.TOOL, "search"),): 0}


def test_everything_arrives_at_a_meter_provider(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One collection has the gauge and each counter with its unit."""
    monkeypatch.setattr(_safety, "errors", {("telemetry.end", "KeyError"): 1})
    run = Run(4, "triage", allow=2)
    metrics.register_run(run, agent="triage")
    metrics.add(names.DETECTIONS, tool="search", rule="repeat", action="stop", enforced=True)
    metrics.add(names.INTERVENTIONS, rule="repeat", action="warn", outcome="ignored")
    metrics.register_tool("search").value += 1

    offer_instruments(backend.settings())
    data = backend.reader.get_metrics_data()

    (scope,) = data.resource_metrics[0].scope_metrics
    assert scope.scope.name == "loopguard"
    assert {metric.name: metric.unit for metric in scope.metrics} == {
        "max_operation_count": "{operation}",
        "loopguard.loop.detections": "{detection}",
        "loopguard.runs": "{run}",
        "loopguard.calls": "{call}",
        "loopguard.wasted_calls": "{call}",
        "loopguard.interventions": "{intervention}",
        "loopguard.unguarded_calls": "{call}",
        "loopguard.internal.errors": "{error}",
    }
    assert backend.points()["max_operation_count"][0].value == 4
    assert backend.counts("loopguard.loop.detections") == {
        (("action", "stop"), ("enforced", True), ("gen_ai.tool.name", "search"), ("rule", "repeat")): 1
    }
    assert backend.counts("loopguard.internal.errors") == {(("error.type", "KeyError"), ("where", "telemetry.end")): 1}


def test_a_provider_is_registered_with_once(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Offering again, also after another provider, makes no second instrument."""
    for settings in (backend.settings(), backend.settings(), backend.settings(meter_provider=Other())):
        offer_instruments(settings)
    offer_instruments(backend.settings(event_prefix="acme."))

    assert "acme.max_operation_count" not in backend.points()
    assert not caplog.records


class Other:
    """A meter provider that makes nothing of it."""

    def get_meter(self, *args: Any, **kwargs: Any) -> Any:
        from opentelemetry.metrics import NoOpMeterProvider

        return NoOpMeterProvider().get_meter("other")


def test_the_gauge_can_have_a_prefix(backend: Any) -> None:
    """``event_prefix`` gives the gauge a namespace."""
    offer_instruments(backend.settings(event_prefix="acme."))

    assert "acme.max_operation_count" in backend.points()


def test_without_metrics_nothing_is_registered(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """An application that has not imported metrics is asked again at its next run."""
    monkeypatch.setattr("loopguard.telemetry.otel.meter_provider", lambda _: None)
    instruments = Instruments(metrics)

    instruments.offer(backend.settings(meter_provider=None))

    assert duration_histogram(backend.settings(meter_provider=None)) is None
    assert not instruments._global_done


def test_the_global_provider_is_registered_with_once(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """The placeholder of the API is enough: it makes the instruments again on the provider that comes."""
    asked: list[Any] = []

    def provider(settings: Any) -> Any:
        asked.append(settings)
        return backend.meter_provider

    monkeypatch.setattr("loopguard.telemetry.otel.meter_provider", provider)
    instruments = Instruments(metrics)

    for _ in range(3):
        instruments.offer(backend.settings(meter_provider=None))

    assert len(asked) == 1
    assert "max_operation_count" in backend.points()


def test_an_old_meter_has_no_buckets_to_suggest(backend: Any) -> None:
    """Before opentelemetry-api 1.30 the histogram is made without our buckets."""

    class OldMeter:
        def get_meter(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def create_histogram(self, name: str, unit: str, description: str) -> str:
            return name

    assert duration_histogram(backend.settings(meter_provider=OldMeter())) == names.DURATION


def test_runs_leave_nothing_behind() -> None:
    """50,000 runs, a tenth of them dropped: no live run, no growth."""
    counts = Metrics()
    counts.register_tool("search")

    def some(n: int) -> None:
        for i in range(n):
            run = Run(i % 9, allow=5)
            counts.register_run(run)
            if i % 10:
                counts.run_closed(run, "failed" if i % 10 == 1 else "completed")

    some(1000)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    some(50_000)
    counts.live_runs()
    gc.collect()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()

    ours = [tracemalloc.Filter(inclusive=True, filename_pattern="*loopguard*")]
    grown = sum(
        found.size_diff for found in after.filter_traces(ours).compare_to(before.filter_traces(ours), "filename")
    )
    assert counts.live_runs() == 0
    assert grown < 50_000


def test_counting_from_threads_loses_nothing(counts: Metrics) -> None:
    """Runs open and close while others count and a collection reads."""

    def work() -> None:
        for _ in range(500):
            run = Run(1, allow=1)
            counts.register_run(run)
            counts.add(names.WASTED_CALLS, tool="search")
            counts.series(names.CALLS)
            counts.run_closed(run)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counts.series(names.WASTED_CALLS) == {((names.TOOL, "_other"),): 2000}
    assert counts.series(names.RUNS)[(("outcome", "completed"),)] == 2000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_the_lock_is_held() -> None:
    """A child that was forked in the middle of a count starts at 0 and does not hang."""
    metrics.add(names.WASTED_CALLS, tool="search")
    with warnings.catch_warnings(), metrics._lock:
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            done = threading.Thread(target=metrics.add, args=(names.WASTED_CALLS,), kwargs={"tool": "search"})
            done.start()
            done.join()
            os._exit(sum(metrics.series(names.WASTED_CALLS).values()))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 1
