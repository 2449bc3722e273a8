"""Stops and limits hold: whatever only watches, whatever shares, and whoever speaks at the same moment."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from loopguard import (
    Finding,
    Limits,
    Run,
    RunStopped,
    Secret,
    ToolCallRefused,
    _safety,
    guarded_run,
    guarded_tool,
)
from loopguard.context import current


@guarded_tool
def same(x: object) -> str:
    """Always the same."""
    return "nothing new"


@guarded_tool
def other(x: object) -> str:
    """Another answer for each argument."""
    return f"answer {x}"


@guarded_tool(mode="observe")
def watched(x: object) -> str:
    """Only watched."""
    return "watched"


def attempts(tool: Callable[[int], object], n: int) -> list[str]:
    """What became of ``n`` different calls: "ok", "refused", and "stopped" as the last."""
    said = []
    for number in range(n):
        try:
            tool(number)
            said.append("ok")
        except ToolCallRefused:
            said.append("refused")
        except RunStopped:
            return [*said, "stopped"]
    return said


def loop_until_stopped(run: Run) -> None:
    """An agent that never learns."""
    for _ in range(11):
        with contextlib.suppress(ToolCallRefused, RunStopped):
            same(1)
    assert run.stopped is not None


def in_between(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[threading.Thread]:
    """Let another thread act in the moment in which a refused attempt is let through."""
    threads: list[threading.Thread] = []
    enforces = Run._enforces

    def interrupted(self: Run, *args: Any) -> bool:
        if not threads:
            threads.append(threading.Thread(target=action))
            threads[0].start()
            threads[0].join(0.1)
        return enforces(self, *args)

    monkeypatch.setattr(Run, "_enforces", interrupted)
    return threads


# -- stops ------------------------------------------------------------------------------------------------------------


def test_a_tool_that_only_watches_does_not_lift_the_stop_of_the_run() -> None:
    """A tool in observe mode is stopped with its run, and leaves the stop in force."""
    with guarded_run("r", on_stop="end") as run:
        loop_until_stopped(run)
        with pytest.raises(RunStopped):
            watched(1)
        assert run.stopped is not None
        with pytest.raises(RunStopped):
            other(1)


def test_a_child_that_only_watches_is_stopped_with_its_parent() -> None:
    """A run in observe mode inside a stopped run executes nothing more."""
    with guarded_run("p", on_stop="end") as run:
        loop_until_stopped(run)
        with guarded_run("c", mode="observe"), pytest.raises(RunStopped):
            other(1)


def test_a_child_that_only_watches_keeps_the_limits_of_its_parent() -> None:
    """The limits of an enforcing run hold for a run in observe mode below it."""
    with guarded_run("p", limits=Limits(calls=2), on_stop="end"), guarded_run("c", mode="observe", on_stop="end"):
        assert attempts(other, 6) == ["ok", "ok", "stopped"]


def test_a_stop_in_the_moment_of_letting_through_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """``run.stop()`` of another thread, while a watching run lets a refused attempt through, stays in force."""
    with guarded_run("r", mode="observe", on_stop="end") as run:
        for _ in range(5):
            same(1)
        threads = in_between(monkeypatch, lambda: run.stop("a person said so"))
        same(1)
        threads[0].join()
        assert run.stopped is not None
        assert run.stopped.rule == "stop"
        with pytest.raises(RunStopped):
            other(1)


def test_a_stop_from_another_thread_reaches_a_run_that_only_watches() -> None:
    """Whenever another thread says stop, the very next call of a watching run is stopped."""
    lost = 0
    for _ in range(20):
        with guarded_run("r", mode="observe", on_stop="end") as run:
            go, said = threading.Event(), threading.Event()

            def stopper(run: Run = run, go: threading.Event = go, said: threading.Event = said) -> None:
                go.wait()
                run.stop("now")
                said.set()

            thread = threading.Thread(target=stopper)
            thread.start()
            calls = 0
            try:
                while not said.is_set():
                    same(1)
                    calls += 1
                    if calls == 10:
                        go.set()
                same(1)
                lost += 1
            except RunStopped:
                pass
            finally:
                go.set()
                thread.join()
    assert lost == 0


def test_internal_errors_do_not_lift_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that only watches after errors of ours stays stopped."""
    monkeypatch.setattr(_safety, "strict", False)
    with guarded_run("p", on_stop="end") as run:
        loop_until_stopped(run)
        for _ in range(3):
            run.internal("test", ValueError("of ours"))
        assert run.mode == "observe"
        for _ in range(2):
            with pytest.raises(RunStopped):
                other(1)


def test_a_hook_may_stop_the_run_it_hears_of() -> None:
    """``on_finding`` that stops the run is told of the warning and of its own stop, and no more."""
    runs: list[Run] = []
    told: list[Finding] = []

    def hook(finding: Finding) -> None:
        told.append(finding)
        if len(told) < 10:
            runs[0].stop("any loop ends it")

    with guarded_run("p", on_stop="end", on_finding=hook) as run:
        runs.append(run)
        for _ in range(5):
            same(1)
    assert [str(finding.action) for finding in told] == ["warn", "stop"]
    assert run.stats.calls == 3


def test_a_second_stop_changes_nothing() -> None:
    """The reason of the first stop stays, and one finding tells it."""
    with guarded_run("r", on_stop="end") as run:
        run.stop("first")
        run.stop("second")
        assert len(run.findings) == 1


def test_a_run_that_was_closed_by_hand_does_not_outlive_its_block() -> None:
    """A stop around it does not reach what is called after the blocks."""
    with guarded_run("p", on_stop="end") as run, guarded_run("c", on_stop="end") as child:
        child.close()
        run.stop("enough")
    assert current.get() is None
    assert other(1) == "answer 1"


# -- limits -----------------------------------------------------------------------------------------------------------


def test_allow_does_not_lift_the_limit_of_a_tool() -> None:
    """``run.allow()`` lets loops through, not more calls than a tool may have."""
    with guarded_run("r", limits=Limits(calls_per_tool={"other": 2})) as run, run.allow("other"):
        assert attempts(other, 4) == ["ok", "ok", "refused", "refused"]


def test_allow_in_a_child_does_not_lift_the_limit_of_its_parent() -> None:
    """``run.allow()`` of a run inside leaves the limits of the runs around it."""
    with (
        guarded_run("p", limits=Limits(calls_per_tool={"other": 2})),
        guarded_run("c") as child,
        child.allow(),
    ):
        assert attempts(other, 4) == ["ok", "ok", "refused", "refused"]


def test_a_call_that_a_run_above_refuses_is_charged_to_none() -> None:
    """The run between is not used up by calls that never ran."""
    with (
        guarded_run("g", limits=Limits(calls_per_tool={"other": 1})),
        guarded_run("p", limits=Limits(calls=5), on_stop="end"),
        guarded_run("c", on_stop="end"),
    ):
        assert attempts(other, 9) == ["ok"] + ["refused"] * 8


def test_a_call_below_a_shared_run_is_charged_once() -> None:
    """A run with ``evidence="parent"`` and its parent have one count."""
    with (
        guarded_run("p", limits=Limits(calls=6), on_stop="end"),
        guarded_run("s", evidence="parent", on_stop="end"),
        guarded_run("c", on_stop="end"),
    ):
        assert attempts(other, 7) == ["ok"] * 6 + ["stopped"]


# -- shared evidence --------------------------------------------------------------------------------------------------


def test_a_secret_argument_is_the_same_in_a_shared_run() -> None:
    """A call with a secret counts together with the same call in the run around it."""

    @guarded_tool
    def login(token: Annotated[str, Secret]) -> str:
        return "nothing new"

    with guarded_run("p") as run:
        login("tok-abc-123456")
        login("tok-abc-123456")
        with guarded_run("s", evidence="parent"):
            login("tok-abc-123456")
        assert run.max_operation_count() == 3


def test_a_shared_run_that_ends_settles_nothing() -> None:
    """What a warning led to is not decided before the run that counts has ended or gone on."""
    with guarded_run("p", on_warn=lambda nudge: None) as run:
        for _ in range(3):
            same(1)
        other(1)
        with guarded_run("c", evidence="parent"):
            pass
        same(1)
        assert (run.stats.heeded, run.stats.ignored) == (0, 1)


# -- a call that is not watched -----------------------------------------------------------------------------------------


def test_a_coroutine_of_a_plain_wrapper_is_awaited() -> None:
    """An async function behind a plain decorator is guarded by what it gives when it is awaited."""

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: function(*args)

    @guarded_tool
    @plain
    async def tool(x: object) -> str:
        return "nothing new"

    async def main() -> list[str]:
        async with guarded_run("r") as run:
            for _ in range(4):
                assert await tool(1) == "nothing new"
            return [finding.rule for finding in run.findings]

    assert asyncio.run(main()) == ["repeat"]
