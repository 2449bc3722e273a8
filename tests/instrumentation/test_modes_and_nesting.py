"""Modes, runs inside runs, and calls inside calls: what only watches never acts, and numbers are counted once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopguard import (
    Failing,
    Limits,
    LoopRefused,
    Policy,
    Repeat,
    RunStopped,
    ToolCallRefused,
    _safety,
    configure,
    current_run,
    guarded_run,
    guarded_tool,
)
from loopguard.call import MOST_IDS
from loopguard.ladder import MOST_SIBLINGS
from loopguard.telemetry.metrics import metrics


@guarded_tool
def same(x: object) -> str:
    """Always the same."""
    return "nothing new"


@guarded_tool
def other(x: object) -> str:
    """Another answer for each argument."""
    return f"answer {x}"


@guarded_tool(mode="enforce")
def strict(x: object) -> str:
    """Enforced wherever it is called."""
    return "nothing new"


def said(tool: Callable[[Any], object], arguments: Iterator[Any] | range | list[Any]) -> list[str]:
    """What became of each call."""
    words = []
    for argument in arguments:
        try:
            tool(argument)
            words.append("ok")
        except ToolCallRefused:
            words.append("refused")
        except RunStopped:
            words.append("stopped")
    return words


# -- what only watches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", ["observe", "off"])
def test_a_limit_around_that_only_watches_lets_through(outer: Any) -> None:
    """And it counts on, and says what it would have done, once."""
    with guarded_run("outer", limits=Limits(calls=3), mode=outer) as run:
        with guarded_run("inner", mode="observe"):
            assert said(other, range(6)) == ["ok"] * 6
        assert said(other, range(2)) == ["ok"] * 2
    assert run.stopped is None
    assert [(finding.rule, finding.enforced) for finding in run.findings if finding.action == "stop"] == (
        [("limits", False)] if outer == "observe" else []
    )


def test_a_stop_from_outside_holds_where_the_run_around_only_watches() -> None:
    """A word of a person is no detection."""
    with guarded_run("outer", mode="observe", on_stop="end") as run, guarded_run("inner"):
        run.stop("enough")
        assert said(other, [1]) == ["stopped"]


def test_limits_are_no_false_refusals() -> None:
    """A limit in observe mode says nothing about outcomes."""
    with guarded_run("r", limits=Limits(calls=2), mode="observe") as run:
        assert said(other, range(6)) == ["ok"] * 6
    assert run.stats.false_refusals == 0


@pytest.mark.parametrize("around", ["observe", "off"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_tool_that_is_enforced_in_a_run_that_is_not(around: Any, nested: bool) -> None:
    """The tool's own mode wins, by the short way and by the long one."""
    with contextlib.ExitStack() as stack:
        if nested:
            stack.enter_context(guarded_run("outer"))
        stack.enter_context(guarded_run("r", mode=around))
        assert said(strict, [1] * 7) == ["ok"] * 5 + ["refused"] * 2


def test_a_run_with_internal_errors_only_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also tools that are always enforced."""
    monkeypatch.setattr(_safety, "strict", False)
    with guarded_run("r") as run:
        assert said(strict, [1] * 6)[-1] == "refused"
        for _ in range(3):
            run.internal("a test", ValueError())
        assert said(strict, [1] * 3) == ["ok"] * 3


def test_a_change_of_mode_tells_anew() -> None:
    """What would have been refused is a finding of its own after what was refused."""
    with guarded_run("r") as run:
        assert said(same, [1] * 7)[-1] == "refused"
        run.set_mode("observe")
        assert said(same, [1] * 2) == ["ok"] * 2
        assert [(finding.action, finding.enforced) for finding in run.findings] == [
            ("warn", True),
            ("refuse", True),
            ("refuse", False),
        ]
        run.set_mode("enforce")
        assert said(same, [1]) == ["refused"]


def test_the_mode_of_a_runs_own_policy_comes_before_that_of_configure() -> None:
    """From the most specific to the least."""
    with configure(mode="enforce"), guarded_run("r", policy=Policy(mode="observe")) as run:
        assert run.mode == "observe"
    with configure(mode="observe"), guarded_run("r", policy=Policy()) as run:
        assert run.mode == "observe"
    with configure(mode="observe"), guarded_run("r", policy=Policy(mode="off"), mode="enforce") as run:
        assert run.mode == "enforce"


# -- runs inside runs -------------------------------------------------------------------------------------------------


def test_a_run_that_shares_evidence_shares_policy_and_mode() -> None:
    """It counts together with the run around it, so it acts as that does."""
    policy = Policy(Repeat(warn_after=2, refuse_after=2, stop_after=9))
    with guarded_run("outer", policy=policy, mode="observe") as run, guarded_run("inner", evidence="parent") as inner:
        assert inner.plan is run.plan
        assert inner.mode == "observe"
        assert said(same, [1] * 4) == ["ok"] * 4
    with guarded_run("outer", policy=policy), guarded_run("inner", evidence="parent"):
        assert said(same, [1] * 4) == ["ok"] * 2 + ["refused"] * 2


def test_a_run_that_shares_evidence_with_none_counts_for_itself() -> None:
    """Where no run is around, it is a run like others, in the metrics too."""
    with guarded_run("alone", evidence="parent"):
        assert said(same, [1] * 6)[-1] == "refused"
    calls = {dict(key).get("decision"): n for key, n in metrics.series("loopguard.calls").items() if n}
    assert calls == {"allow": 5, "refuse": 1}


def test_shared_runs_tell_interventions_once() -> None:
    """They belong to the run that counts."""
    with guarded_run("outer", on_warn="append") as run:
        said(same, [1] * 4)
        for _ in range(3):
            with guarded_run("inner", evidence="parent"):
                pass
    assert run.stats.ignored == 1
    assert sum(metrics.series("loopguard.interventions").values()) == 1


def test_a_stop_of_the_run_around_is_a_stop_inside() -> None:
    """In the numbers of the tools and in how the inner run ended."""
    with (
        guarded_run("outer", limits=Limits(calls=2), on_stop="end"),
        contextlib.suppress(RunStopped),
        guarded_run("inner"),
    ):
        assert said(other, range(3)) == ["ok", "ok", "stopped"]
    decisions = {dict(key)["decision"]: n for key, n in metrics.series("loopguard.calls").items() if n}
    ended = {dict(key)["outcome"]: n for key, n in metrics.series("loopguard.runs").items() if n}
    assert decisions == {"allow": 2, "stop": 1}
    assert ended == {"stopped": 2}


def test_a_sub_agent_that_is_stopped_is_a_failure_of_the_call() -> None:
    """A tool that opens a run and is stopped in it fails; ten times the same is a loop of the run around."""

    @guarded_tool
    def delegate(task: str) -> None:
        with guarded_run("sub-agent"):
            while True:
                with contextlib.suppress(ToolCallRefused):
                    same(1)

    with guarded_run("outer", on_stop="end") as run:
        for _ in range(20):
            with contextlib.suppress(RunStopped, ToolCallRefused):
                delegate("x")
    assert run.stopped is not None
    assert run.stopped.rule == "failing"
    assert run.stats.abandoned == 0


def test_a_refusal_of_this_run_is_no_failure_of_the_call_it_passes() -> None:
    """A tool that calls another one, which is refused."""

    @guarded_tool(kind="read")
    def around(x: object) -> str:
        return same("fixed")

    with guarded_run("r") as run:
        for n in range(9):
            with contextlib.suppress(ToolCallRefused):
                around(n)
    assert run.stats.abandoned == 4


# -- stops ------------------------------------------------------------------------------------------------------------


def test_a_run_that_was_closed_by_hand_still_says_that_it_was_stopped() -> None:
    """A stop leaves the block, whoever closed the run."""
    with pytest.raises(RunStopped, match="enough"), guarded_run("r") as run:
        run.stop("enough")
        run.close()


def test_everybody_hears_of_each_stop_once() -> None:
    """The run, each tool that meets it, the run inside; and again for the next stop."""
    told: list[str] = []

    def hears(who: str) -> Callable[[RunStopped], None]:
        return lambda stop: told.append(who)

    @guarded_tool(on_stop=hears("first"))
    def first(x: object) -> str:
        return "nothing new"

    @guarded_tool(on_stop=hears("second"))
    def second(x: object) -> str:
        return "nothing new"

    policy = Policy(Repeat(warn_after=1, refuse_after=1, stop_after=2))
    with guarded_run("outer", policy=policy, on_stop=hears("outer")) as run:
        said(first, [1] * 4)
        said(second, [1] * 2)
        assert told == ["outer", "first", "second"]
        run.note_user_message()
        said(first, [1] * 4)
        assert told == ["outer", "first", "second", "outer", "first"]
        with guarded_run("inner", on_stop=hears("inner")):
            said(other, [1, 2])
        assert told[5:] == ["inner"]


def test_a_call_that_hangs_does_not_keep_the_run_going() -> None:
    """Attempts that overlap with it are siblings, up to a number that no reply of a model reaches."""
    with guarded_run("r", on_stop="end") as run:
        said(same, [1] * 5)
        hanging = run.begin("background", {})
        words = said(same, [1] * (MOST_SIBLINGS + 10))
        hanging.finish("done")
    assert words == ["refused"] * (MOST_SIBLINGS + 4) + ["stopped"] * 6


# -- calls by name ----------------------------------------------------------------------------------------------------


def test_a_call_that_was_begun_is_not_begun_again_by_its_block() -> None:
    """``with run.begin(...)`` is the same as ``with run.call(...)``."""
    with guarded_run("r") as run:
        words = []
        for _ in range(6):
            try:
                with run.begin("search", {"q": 1}) as call:
                    call.result = "nothing new"
                words.append("ok")
            except LoopRefused:
                words.append("refused")
    assert words == ["ok"] * 5 + ["refused"]
    assert run.stats.calls == 5


@pytest.mark.asyncio
async def test_a_call_that_has_ended_hands_out_no_claim() -> None:
    """A task that outlives its block is a call of its own."""
    entered = asyncio.Event()

    async def later() -> str:
        await entered.wait()
        return other("late")

    with guarded_run("r", limits=Limits(calls_per_tool={"other": 1})) as run:
        with run.call("other", {"x": 1}) as call:
            task = asyncio.create_task(later())
            call.result = "now"
        with run.call("something", {}):
            entered.set()
            with pytest.raises(ToolCallRefused):
                await task


@pytest.mark.asyncio
async def test_a_bound_function_that_gives_a_coroutine_is_bound_for_all_of_it() -> None:
    """A lambda around a coroutine function does not look like one."""

    @guarded_tool
    async def search(query: str) -> str:
        return "nothing new"

    with guarded_run("r") as run:
        bound = run.bind(lambda: search("x"))
        with guarded_run("another"):
            for _ in range(5):
                await bound()
            with pytest.raises(ToolCallRefused):
                await bound()
    assert run.stats.calls == 5


def test_ids_of_calls_are_bounded() -> None:
    """Calls that never end leave no more than so many ids, and none after the run."""
    with guarded_run("r") as run:
        for n in range(MOST_IDS + 50):
            run.begin("search", {"q": n}, id=f"call {n}")
        assert len(run.report.call_ids or ()) == MOST_IDS
    assert not run.report.call_ids


def test_no_run_has_what_a_run_has() -> None:
    """Code that asks the current run need not ask whether there is one."""
    assert list(current_run().ancestors()) == []
    assert current_run().mode == "off"


def test_an_allowed_tool_goes_on_where_a_run_refuses_whatever_comes_next() -> None:
    """With ``stop_scope="run"`` as well it is the tool that is called that was allowed."""
    with guarded_run("r", policy=Policy(Failing.off(), stop_scope="run"), on_stop="end") as run:
        said(same, [1] * 6)
        with run.allow("other"):
            assert said(other, range(2)) == ["ok"] * 2
            assert said(same, [1]) != ["ok"]
