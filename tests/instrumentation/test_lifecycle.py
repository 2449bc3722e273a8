"""Runs over time: many of them, switched off and on, stopped and opened again, and what is said once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import importlib
import logging
import pkgutil
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import loopguard
from loopguard import (
    LoopRefused,
    LoopStopped,
    Policy,
    Repeat,
    RunStopped,
    Telemetry,
    ToolCallRefused,
    _safety,
    configure,
    current_run,
    guarded_run,
    guarded_tool,
)
from loopguard.run import _live
from loopguard.telemetry.metrics import metrics


@guarded_tool
def search(query: str) -> str:
    """Never finds anything else."""
    return "same"


def agent(times: int, call: Callable[[], Any] = lambda: search("x")) -> list[str]:
    """An agent that never learns: what became of each attempt."""
    said = []
    for _ in range(times):
        try:
            call()
            said.append("ok")
        except ToolCallRefused:
            said.append("refused")
        except RunStopped:
            said.append("stopped")
    return said


# -- many runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[None]:
    """Nothing is logged: pytest would keep every line."""
    logger = logging.getLogger("loopguard")
    logger.disabled = True
    yield
    logger.disabled = False


def containers() -> Iterator[tuple[str, Any]]:
    """Every module-level container of the package that could keep something."""
    for module in pkgutil.walk_packages(loopguard.__path__, "loopguard."):
        if module.name in sys.modules or "." not in module.name.removeprefix("loopguard."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, (dict, list, set)) and not name.startswith("__"):
                    yield f"{module.name}.{name}", value


def many_runs(count: int, first: int = 0) -> list[str]:
    """So many runs of five calls; one tenth ends by an exception, one tenth is dropped without being closed."""
    ids = []
    for n in range(first, first + count):
        run_id = f"unique-id-{n}"
        ids.append(run_id)
        scope = guarded_run("many", run_id=run_id)
        if n % 10 == 1:
            contextvars.copy_context().run(lambda scope=scope: (scope.__enter__(), agent(5)))  # type: ignore[misc]
            continue
        try:
            with scope:
                agent(5)
                if n % 10 == 2:
                    raise KeyError("the agent's own")
        except KeyError:
            pass
    return ids


def check_many_runs(count: int) -> None:
    """No run is left, memory does not grow, and nothing is keyed by a run id."""
    live = len(_live)
    many_runs(500)
    gc.collect()
    assert len(_live) == live
    assert metrics.live_runs() == 0
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ids = many_runs(count, 500)
    del ids[:-50]
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(_live) == live
    assert metrics.live_runs() == 0
    assert grown < 200_000, f"{grown} bytes more after {count} runs"
    assert not [name for name, value in containers() for run_id in ids if run_id in str(value)]
    assert not current_run().active


@pytest.mark.scenario("ins-many-runs-no-leak")
@pytest.mark.usefixtures("silent")
def test_many_runs_leave_nothing() -> None:
    """1,000 runs, some ended by exceptions and some dropped: nothing of them is left."""
    check_many_runs(1_000)


@pytest.mark.slow
@pytest.mark.scenario("ins-many-runs-no-leak")
@pytest.mark.usefixtures("silent")
def test_fifty_thousand_runs_leave_nothing() -> None:
    """The same with 50,000 runs."""
    check_many_runs(50_000)


@pytest.mark.scenario("ins-many-runs-no-leak")
def test_a_dropped_run_is_counted_as_abandoned() -> None:
    """A run that nobody closed is told apart in the metrics once it is collected."""
    contextvars.copy_context().run(lambda: (guarded_run("dropped").__enter__(), agent(2)))
    gc.collect()
    assert metrics.live_runs() == 0
    assert outcomes() == {"abandoned": 1}
    assert sum(metrics.series("loopguard.calls").values()) == 2


def outcomes() -> dict[str, int]:
    """How the runs so far ended, as the metrics have it."""
    counted = {dict(key)["outcome"]: n for key, n in metrics.series("loopguard.runs").items()}
    return {outcome: n for outcome, n in counted.items() if n}


def ended_by(error: BaseException | None) -> None:
    """A run whose block is left by this error, or by its end."""
    with contextlib.suppress(BaseException), guarded_run("r"):
        agent(1)
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "completed"),
        (GeneratorExit(), "completed"),
        (ValueError(), "failed"),
        (KeyboardInterrupt(), "failed"),
        (asyncio.CancelledError(), "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_how_a_run_ended_is_counted_once(error: BaseException | None, outcome: str) -> None:
    """What leaves the block of a run that was not stopped is what it ended by."""
    ended_by(error)
    assert outcomes() == {outcome: 1}


def test_a_rule_that_raised_is_no_failure_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is left by nothing."""
    monkeypatch.setattr(_safety, "strict", False)
    with guarded_run("r") as run:
        run.engine.broken.append((run.policy.rules[0], KeyError("a rule of the user")))
    assert outcomes() == {"completed": 1}


def test_a_stopped_run_is_counted_as_stopped() -> None:
    """Whatever leaves its block."""
    with contextlib.suppress(ValueError), guarded_run("r") as run:
        run.stop("enough")
        raise ValueError
    assert outcomes() == {"stopped": 1}


def test_a_run_that_is_closed_by_hand_is_counted_once() -> None:
    """Inside its block and again by its end."""
    with guarded_run("r") as run:
        agent(1)
        run.close()
        run.close()
    gc.collect()
    assert outcomes() == {"completed": 1}
    assert metrics.live_runs() == 0


@pytest.mark.scenario("ins-many-runs-no-leak")
@pytest.mark.asyncio
async def test_runs_in_tasks_leave_nothing() -> None:
    """Runs in tasks, some of them cancelled, are gone when their tasks are."""
    live = len(_live)

    async def work(n: int) -> None:
        async with guarded_run("task"):
            agent(3)
            if n % 3 == 0:
                await asyncio.sleep(3_600)

    tasks = [asyncio.create_task(work(n)) for n in range(60)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
    gc.collect()
    assert len(_live) == live


@pytest.mark.scenario("ins-many-runs-no-leak")
@pytest.mark.usefixtures("silent")
def test_sub_agents_leave_nothing() -> None:
    """A long-lived run with many runs below it does not grow with their number."""
    with guarded_run("parent"):
        for _ in range(200):
            with guarded_run("child"):
                agent(2)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_000):
            with guarded_run("child"):
                agent(2)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert grown < 1_000_000, f"{grown} bytes more after 1,000 runs below"


# -- off and on again -------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-off-switch-wins")
def test_off_lets_the_very_next_call_through() -> None:
    """A run that refuses executes the next call once it is off, and refuses again once it is on: off counts nothing."""
    with guarded_run("r", on_stop="end") as run:
        assert agent(6)[-1] == "refused"
        run.set_mode("off")
        assert not run.active
        assert agent(20) == ["ok"] * 20
        run.set_mode("enforce")
        assert run.active
        assert agent(1) == ["refused"]
        assert run.stats.calls == 5


@pytest.mark.scenario("ins-off-switch-wins")
def test_observe_lets_through_and_records() -> None:
    """In observe mode the next call executes; what would have been done is recorded with ``enforced=False``."""
    with guarded_run("r", on_stop="end") as run:
        assert agent(6)[-1] == "refused"
        run.set_mode("observe")
        assert agent(20) == ["ok"] * 20
        would = [finding for finding in run.findings if not finding.enforced]
        assert [finding.action for finding in would] == ["refuse", "stop"]
        assert run.stopped is None
        assert run.stats.calls == 25


@pytest.mark.scenario("ins-off-switch-wins")
def test_on_again_starts_with_what_was_observed() -> None:
    """Calls that observe mode let through count: the rung that is reached by then holds."""
    with guarded_run("r", on_stop="end") as run:
        agent(2)
        run.set_mode("observe")
        agent(3)
        run.set_mode("enforce")
        assert agent(1) == ["refused"]
        run.set_mode("observe")
        agent(6)
        run.set_mode("enforce")
        assert agent(1) == ["stopped"]


@pytest.mark.scenario("ins-off-switch-wins")
def test_observe_from_the_start_tells_each_rung_once() -> None:
    """A run that only watches reports warn, refuse and stop, and executes everything."""
    with guarded_run("r", mode="observe") as run:
        assert agent(20) == ["ok"] * 20
        assert [(str(finding.action), finding.enforced) for finding in run.findings] == [
            ("warn", False),
            ("refuse", False),
            ("stop", False),
        ]
        assert run.stopped is None
        assert run.stats.refused == 0
        assert not run.pop_nudges()


@pytest.mark.scenario("ins-off-switch-wins")
def test_a_stopped_run_can_be_switched_off() -> None:
    """After a stop, off executes the next call; the stop still holds once it is on again, until it is lifted."""
    with guarded_run("r", on_stop="end") as run:
        assert agent(11)[-1] == "stopped"
        run.set_mode("off")
        assert agent(3) == ["ok"] * 3
        run.set_mode("enforce")
        assert agent(1) == ["stopped"]
        run.resume("looked at it")
        assert agent(1) == ["ok"]


@pytest.mark.scenario("ins-off-switch-wins")
def test_one_tool_is_allowed_for_a_while() -> None:
    """``run.allow`` lets one tool through and no other, and after the block the count goes on."""

    @guarded_tool(kind="read")
    def other() -> str:
        return "same"

    with guarded_run("r", on_stop="end") as run:
        agent(6)
        agent(6, other)
        with run.allow("search"):
            assert agent(3) == ["ok"] * 3
            assert agent(1, other) == ["refused"]
        assert agent(1)[0] in ("refused", "stopped")


@pytest.mark.scenario("ins-off-switch-wins")
@pytest.mark.parametrize("mode", ["observe", "off"])
def test_one_tool_can_be_off(mode: Any) -> None:
    """``mode=`` on a tool holds for it alone."""

    @guarded_tool(mode=mode)
    def free() -> str:
        return "same"

    with guarded_run("r", on_stop="end") as run:
        assert agent(20, free) == ["ok"] * 20
        assert {finding.enforced for finding in run.findings} <= {False}
        assert agent(6)[-1] == "refused"


@pytest.mark.scenario("ins-off-switch-wins")
@pytest.mark.parametrize("mode", ["observe", "off"])
def test_the_environment_wins_over_all(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``LOOPGUARD_MODE`` weakens whatever code says, also ``set_mode``."""
    monkeypatch.setenv("LOOPGUARD_MODE", mode)
    with guarded_run("r", mode="enforce", policy=Policy(mode="enforce")) as run:
        assert agent(20) == ["ok"] * 20
        run.set_mode("enforce")
        assert agent(20) == ["ok"] * 20
        assert run.mode == mode


# -- a stop and what comes after --------------------------------------------------------------------------------------


def one_after_another() -> None:
    """Run A is stopped; run B in the same place is clean; A lives on after a reset."""
    scope = guarded_run("a", on_stop="end")
    with scope as first:
        agent(11)
        assert first.stopped is not None
        waiting = first.report._nudges
        assert waiting
    history = [operation.seq for operation in first.engine.operations()]
    with guarded_run("b") as second:
        assert second.stopped is None
        assert second.pop_nudges() == []
        assert second.findings == ()
        assert agent(2) == ["ok"] * 2
        assert second.pop_nudges() == []
        assert agent(3) == ["ok"] * 3
        assert [nudge.finding.run_id for nudge in second.pop_nudges()] == [second.id]
    assert [finding.action for finding in first.findings] == ["warn", "refuse", "stop"]
    assert [operation.seq for operation in first.engine.operations()] == history
    assert first.stats.refused == 6


@pytest.mark.scenario("ins-stop-does-not-poison")
def test_the_next_run_in_a_thread_is_clean() -> None:
    """In a long-lived thread the run after a stopped one starts with nothing."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(one_after_another).result()


@pytest.mark.scenario("ins-stop-does-not-poison")
@pytest.mark.asyncio
async def test_the_next_run_in_a_task_is_clean() -> None:
    """In a long-lived task as well, also with awaits between."""

    async def work() -> None:
        for _ in range(3):
            one_after_another()
            await asyncio.sleep(0)

    await asyncio.create_task(work())


@pytest.mark.scenario("ins-stop-does-not-poison")
def test_a_run_works_after_a_reset() -> None:
    """``resume`` starts evidence anew; findings, operations and totals of before stay readable."""
    with guarded_run("r") as run:
        agent(12)
        before = run.stats
        assert run.stopped is not None
        run.resume("a person looked at it")
        assert run.stopped is None
        assert agent(6) == ["ok"] * 5 + ["refused"]
        assert [finding.action for finding in run.findings] == ["warn", "refuse", "stop", "warn", "refuse"]
        assert run.stats.calls == before.calls + 5
        assert run.stats.refused == before.refused + 1
        assert len(run.engine.operations()) == 10


@pytest.mark.scenario("ins-stop-does-not-poison")
def test_a_user_message_lifts_a_stop_for_a_loop() -> None:
    """A real message of the user is a new task: the loop's stop is lifted, a stop from outside is not."""
    with guarded_run("r", on_stop="end") as run:
        assert agent(11)[-1] == "stopped"
        run.note_user_message()
        assert agent(1) == ["ok"]
        run.stop("a person said so")
        run.note_user_message()
        assert agent(1) == ["stopped"]


@pytest.mark.scenario("ins-stop-does-not-poison")
def test_a_stop_of_a_child_leaves_its_parent_clean() -> None:
    """A sub-agent that was stopped does not stop the run around it, nor the next sub-agent."""
    with guarded_run("parent") as parent:
        for _ in range(2):
            with guarded_run("child", on_stop="end") as child:
                assert agent(11)[-1] == "stopped"
                assert child.stopped is not None
            assert parent.stopped is None
            assert parent.pop_nudges() == []
        assert agent(1) == ["ok"]


@pytest.mark.scenario("ins-stop-does-not-poison")
def test_a_stopped_block_raises_once_and_the_place_is_free() -> None:
    """The error that leaves a stopped block is raised once; the same code opens a new run after it."""
    for _ in range(3):
        with pytest.raises(LoopStopped), guarded_run("r"):
            assert agent(12)[-1] == "stopped"
        assert not current_run().active
    assert search("x") == "same"


# -- each level once --------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-escalation-events-once")
def test_each_level_is_told_once_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    """20 equal calls with 3 / 5 / 8: one event per level in log, hook, span and metric; a counter for the rest."""
    caplog.set_level(logging.DEBUG, "loopguard")
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    traces, meters = TracerProvider(), MeterProvider([reader])
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    heard: list[Any] = []
    results: list[str] = []
    policy = Policy(Repeat(warn_after=3, refuse_after=5, stop_after=8))
    with (
        configure(telemetry=Telemetry(tracer_provider=traces, meter_provider=meters)),
        guarded_run("r", policy=policy, on_warn="append", on_stop="end", on_finding=heard.append) as run,
    ):
        said = agent(20, lambda: results.append(search("x")))
        levels = ["warn", "refuse", "stop"]
        assert said == ["ok"] * 5 + ["refused"] * 3 + ["stopped"] * 12
        assert [str(finding.action) for finding in run.findings] == levels
        assert heard == list(run.findings)
        assert run.stats.refused == 15
    # What the model sees.
    assert [n for n, result in enumerate(results, 1) if "has now returned the same result 3 times" in result] == [3]
    # The log, in order.
    lines = [record for record in caplog.records if hasattr(record, "loopguard_action")]
    assert [record.loopguard_action for record in lines] == levels
    # The spans.
    spans = [span for span in exporter.get_finished_spans() if span.name.startswith("execute_tool")]
    events = [event for span in spans for event in span.events if event.name == "on_loop_detected"]
    assert len(spans) == 20
    assert [event.attributes["loopguard.loop.action"] for event in events] == levels
    # The metrics.
    counted = {dict(key)["action"]: n for key, n in metrics.series("loopguard.loop.detections").items() if n}
    assert counted == dict.fromkeys(levels, 1)
    calls = {dict(key)["decision"]: n for key, n in metrics.series("loopguard.calls").items() if n}
    assert calls["allow"] == 5
    assert sum(calls.values()) == 20
    # What each of them names.
    for finding, event, threshold, count in zip(run.findings, events, (3, 5, 8), (3, 5, 5), strict=True):
        assert (finding.rule, finding.tool, finding.first_seq) == ("repeat", "search", 1)
        assert (finding.threshold, finding.repetitions) == (threshold, count)
        assert event.attributes is not None
        assert event.attributes["loopguard.loop.rule"] == "repeat"
        assert event.attributes["loopguard.loop.threshold"] == threshold
        assert event.attributes["loopguard.loop.repetitions"] == count
        assert event.attributes["loopguard.loop.first_seq"] == 1
        assert "search" in str(event.attributes["loopguard.loop.message"])
    traces.shutdown()
    meters.shutdown()


@pytest.mark.scenario("ins-escalation-events-once")
def test_each_pattern_has_its_own_levels() -> None:
    """Two patterns are told of apart, each level once."""

    @guarded_tool(kind="read")
    def read(path: str) -> str:
        return "same"

    with guarded_run("r", on_stop="end") as run:
        for path in ("a", "b"):
            assert agent(8, lambda path=path: read(path)) == ["ok"] * 5 + ["refused"] * 3  # type: ignore[misc]
        assert [(str(finding.action), finding.first_seq) for finding in run.findings] == [
            ("warn", 1),
            ("refuse", 1),
            ("warn", 9),
            ("refuse", 9),
        ]


@pytest.mark.scenario("ins-escalation-events-once")
def test_progress_makes_room_for_the_same_levels_again() -> None:
    """After a different result the levels may be told again: it is a new pattern."""
    state = ["one"]

    @guarded_tool(kind="read")
    def read() -> str:
        return state[0]

    with guarded_run("r", on_stop="end") as run:
        agent(4, read)
        state[0] = "two"
        agent(4, read)
        assert [finding.seqs for finding in run.findings] == [(1, 2, 3), (5, 6, 7)]


@pytest.mark.scenario("ins-escalation-events-once")
def test_refusals_say_what_they_refused() -> None:
    """Every refused attempt gets its own error with the numbers, although the event is told once."""
    with guarded_run("r"):
        agent(5)
        errors = []
        for _ in range(3):
            with pytest.raises(LoopRefused) as refused:
                search("x")
            errors.append(refused.value)
        assert len({id(error) for error in errors}) == 3
        assert {error.finding.repetitions for error in errors} == {5}
