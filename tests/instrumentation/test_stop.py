"""Stops that stick, and exceptions that are not the guard's: interrupts, cancellations, control flow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopguard import (
    Finding,
    Limits,
    LoopDetected,
    LoopRefused,
    LoopStopped,
    Policy,
    PolicyError,
    Repeat,
    RunStopped,
    ToolCallRefused,
    current_run,
    guarded_run,
    guarded_tool,
)


@pytest.fixture
def fourth_stops() -> Policy:
    """Three executions of one call, the fourth attempt ends the run."""
    return Policy(Repeat(warn_after=2, refuse_after=0, stop_after=3))


def framework(tool: Callable[[str], str], query: str) -> str:
    """A framework's tool runner: every exception becomes a text for the model."""
    try:
        return tool(query)
    except Exception as error:
        return f"Tool failed: {error}"


# -- a framework swallows the stop ----------------------------------------------------------------------------------


@pytest.mark.scenario("ins-stop-swallowed-by-framework")
def test_a_swallowed_stop_sticks(fourth_stops: Policy) -> None:
    """Every later call of any tool is stopped unexecuted, the hook heard once, the block is left with the stop."""
    ran: list[str] = []
    told: list[Finding] = []
    texts: list[str] = []

    @guarded_tool
    def search(query: str) -> str:
        ran.append(query)
        return "nothing new"

    @guarded_tool
    def other(query: str) -> str:
        ran.append(query)
        return "other"

    with (
        pytest.raises(LoopStopped) as left,
        guarded_run("swallowed", policy=fourth_stops, on_finding=told.append) as run,
    ):
        texts += [framework(search, "x") for _ in range(4)]
        assert run.stopped is not None
        texts += [framework((search, other)[n % 2], str(n)) for n in range(20)]

    assert ran == ["x"] * 3
    assert texts[:3] == ["nothing new"] * 3
    assert all(text.startswith("Tool failed: run 'swallowed' was stopped: search") for text in texts[3:])
    assert [str(finding.action) for finding in told] == ["warn", "stop"]
    assert run.stopped is not None
    assert run.stopped.tool == "search"
    assert run.stopped.rule == "repeat"
    assert left.value.finding.fingerprint == told[1].fingerprint
    assert (run.stats.calls, run.stats.refused) == (3, 21)


@pytest.mark.scenario("ins-stop-swallowed-by-framework")
def test_the_default_policy_stops_an_agent_that_never_learns() -> None:
    """1 to 5 are executed, 6 to 10 refused, the 11th ends the run; a second run begins clean."""
    ran: list[str] = []
    seen: list[type[Exception] | None] = []

    @guarded_tool
    def search(query: str) -> str:
        ran.append(query)
        return "nothing new"

    with pytest.raises(LoopStopped), guarded_run("stubborn") as run:
        for _ in range(15):
            try:
                search("x")
            except (ToolCallRefused, RunStopped) as error:
                seen.append(type(error))
            else:
                seen.append(None)
    with guarded_run("stubborn"):
        assert search("x") == "nothing new"

    assert seen == [None] * 5 + [LoopRefused] * 5 + [LoopStopped] * 5
    assert len(ran) == 6
    assert [str(finding.action) for finding in run.findings] == ["warn", "refuse", "stop"]


@pytest.mark.scenario("ins-stop-swallowed-by-framework")
def test_a_stop_never_hides_another_exception(fourth_stops: Policy) -> None:
    """Where the block is left by something else, that is what is raised."""
    tool = guarded_tool(lambda query: "same")
    with pytest.raises(ZeroDivisionError), guarded_run("other", policy=fourth_stops):
        for _ in range(5):
            framework(tool, "x")
        _ = 1 / 0


@pytest.mark.scenario("ins-stop-swallowed-by-framework")
@pytest.mark.parametrize("swallowed", [True, False], ids=["swallowed", "raised"])
@pytest.mark.parametrize("how", ["end", "callable"])
def test_a_block_can_end_with_its_stop(fourth_stops: Policy, how: str, swallowed: bool) -> None:
    """With ``on_stop="end"`` or a callable the program goes on below; the callable hears of it once."""
    heard: list[RunStopped] = []
    tool = guarded_tool(lambda query: "same")
    below = False
    with guarded_run("ends", policy=fourth_stops, on_stop="end" if how == "end" else heard.append) as run:
        for _ in range(6):
            if swallowed:
                framework(tool, "x")
            else:
                tool("x")
    below = True

    assert below
    assert run.stopped is not None
    assert [type(error) for error in heard] == ([LoopStopped] if how == "callable" else [])


def test_a_stop_of_an_inner_run_is_not_swallowed_by_the_outer_block(fourth_stops: Policy) -> None:
    """``on_stop="end"`` swallows the block's own stop only."""
    tool = guarded_tool(lambda query: "same")
    with (
        pytest.raises(LoopStopped),
        guarded_run("outer", on_stop="end") as outer,
        guarded_run("inner", policy=fourth_stops) as inner,
    ):
        for _ in range(4):
            tool("x")

    assert outer.stopped is None
    assert inner.stopped is not None


def test_a_stop_from_outside_holds_for_all_below() -> None:
    """``run.stop`` ends the run and its sub-agents, and ``resume`` lifts it."""
    tool = guarded_tool(lambda query: "same")
    with guarded_run("outer") as outer, guarded_run("inner") as inner:
        outer.stop("the user left")
        with pytest.raises(RunStopped, match="run 'outer' was stopped: the user left") as stopped:
            tool("x")
        assert not isinstance(stopped.value, LoopDetected)
        assert inner.stopped == outer.stopped
        outer.resume("back again")
        assert tool("x") == "same"

    assert outer.stopped is inner.stopped is None


def test_a_task_that_outlives_a_stopped_run_cannot_reopen_it(fourth_stops: Policy) -> None:
    """After the block the stop holds for whoever still has the run, by any door."""
    tool = guarded_tool(lambda query: "same")
    with guarded_run("over", policy=fourth_stops, on_stop="end") as run:
        bound = run.bind(tool)
        for _ in range(4):
            tool("x")
    with pytest.raises(LoopStopped):
        bound("y")
    with pytest.raises(LoopStopped):
        run.begin("tool", {"query": "y"})
    with pytest.raises(LoopStopped), run.call("tool", {"query": "y"}):
        pytest.fail("executed in a run that is over")

    assert run.stats.calls == 3
    assert not current_run()
    assert tool("y") == "same"


def test_a_task_that_outlives_a_healthy_run_is_outside_it() -> None:
    """After the block calls go through, and count for nothing."""
    tool = guarded_tool(lambda query: "same")
    with guarded_run("over") as run:
        bound = run.bind(tool)
        tool("x")
    for _ in range(12):
        assert bound("x") == "same"
        with run.call("tool", {"query": "x"}) as call:
            call.result = "same"

    assert run.stats.calls == run.max_operation_count() == 1
    assert run.findings == ()


# -- task groups ----------------------------------------------------------------------------------------------------


async def looping(tool: Callable[[str], Any]) -> None:
    """An agent that does not listen."""
    for _ in range(20):
        await tool("x")


@pytest.mark.asyncio
@pytest.mark.parametrize("agents", [1, 3])
async def test_a_stop_inside_a_task_group(fourth_stops: Policy, agents: int) -> None:
    """The group's exception contains the stop, the siblings are cancelled, the block raises that very group."""

    @guarded_tool
    async def tool(query: str) -> str:
        await asyncio.sleep(0)
        return "same"

    waiting = asyncio.Event()
    cancelled: list[bool] = []

    async def bystander() -> None:
        try:
            await waiting.wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(ExceptionGroup) as caught:
        async with guarded_run("group", policy=fourth_stops) as run, asyncio.TaskGroup() as group:
            group.create_task(bystander())
            for _ in range(agents):
                group.create_task(looping(tool))

    stops, rest = caught.value.split(LoopStopped)
    assert stops is not None
    assert rest is None
    assert cancelled == [True]
    assert run.stopped is not None
    assert run.closed
    assert run.stats.calls >= 3
    assert not current_run()


@pytest.mark.asyncio
async def test_a_stop_inside_a_task_group_can_end_the_block(fourth_stops: Policy) -> None:
    """With ``on_stop="end"`` a group of nothing but stops is swallowed; with anything else in it it is not."""

    @guarded_tool
    async def tool(query: str) -> str:
        await asyncio.sleep(0)
        return "same"

    async with guarded_run("group", policy=fourth_stops, on_stop="end") as run, asyncio.TaskGroup() as group:
        group.create_task(looping(tool))
    assert run.stopped is not None

    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        async with guarded_run("group", policy=fourth_stops, on_stop="end"), asyncio.TaskGroup() as group:
            group.create_task(broken())
            group.create_task(looping(tool))
    assert {type(error) for error in caught.value.exceptions} == {LoopStopped, OSError}


@pytest.mark.asyncio
async def test_a_stop_through_gather_and_except_star(fourth_stops: Policy) -> None:
    """``except*`` finds the stop; the block raises it again for the program around."""

    @guarded_tool
    async def tool(query: str) -> str:
        await asyncio.sleep(0)
        return "same"

    found: list[BaseException] = []
    with pytest.raises(LoopStopped):
        async with guarded_run("star", policy=fourth_stops):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(looping(tool))
            except* RunStopped as stops:
                found.extend(stops.exceptions)
    assert [type(error) for error in found] == [LoopStopped]


# -- exceptions that are no outcome ---------------------------------------------------------------------------------


class Interrupt(Exception):
    """A framework's way to hand over to a person."""


class BaseInterrupt(BaseException):
    """The same, past ``except Exception``."""


def kinds_of(error: BaseException) -> dict[str, Callable[[], Any]]:
    """A tool of each kind that raises this object; each gives a function that drives it once."""
    options: dict[str, Any] = {"control_flow": (Interrupt, BaseInterrupt)}

    @guarded_tool(**options)
    def plain(query: str) -> str:
        raise error

    @guarded_tool(**options)
    async def coroutine(query: str) -> str:
        raise error

    @guarded_tool(**options)
    def generator(query: str) -> Iterator[int]:
        yield 1
        raise error

    @guarded_tool(**options)
    async def async_generator(query: str) -> Any:
        yield 1
        raise error

    def step(awaitable: Any) -> None:
        # Not by asyncio.run: it treats interrupts in its own way.
        awaitable.__await__().send(None) if hasattr(awaitable, "__await__") else awaitable.send(None)

    def stream() -> None:
        items = async_generator("x")
        with pytest.raises(StopIteration):
            step(items.__anext__())
        step(items.__anext__())

    return {
        "plain": lambda: plain("x"),
        "coroutine": lambda: step(coroutine("x")),
        "generator": lambda: list(generator("x")),
        "async-generator": stream,
    }


KINDS = ["plain", "coroutine", "generator", "async-generator"]


@pytest.mark.scenario("ins-foreign-control-flow-passes")
@pytest.mark.parametrize("error", [Interrupt("ask"), BaseInterrupt("ask")], ids=["exception", "base-exception"])
@pytest.mark.parametrize("kind", KINDS)
def test_control_flow_of_a_framework_passes(kind: str, error: BaseException) -> None:
    """The very object arrives each time; it is no failure, no repetition, and nothing is refused."""
    use = kinds_of(error)[kind]
    with guarded_run("interrupts") as run:
        for _ in range(12):
            with pytest.raises(type(error)) as caught:
                use()
            assert caught.value is error

    assert run.findings == ()
    assert (run.stats.failed, run.stats.abandoned, run.stats.refused) == (0, 12, 0)


@pytest.mark.scenario("ins-foreign-control-flow-passes")
def test_the_same_exception_not_declared_is_a_failure() -> None:
    """Without ``control_flow`` it is an error like any other, and its repetition is refused."""

    @guarded_tool
    def tool(query: str) -> str:
        raise Interrupt("ask")

    with guarded_run("failures") as run:
        for _ in range(5):
            with pytest.raises(Interrupt):
                tool("x")
        with pytest.raises(LoopRefused):
            tool("x")

    assert run.stats.failed == 5


@pytest.mark.scenario("ins-foreign-control-flow-passes")
def test_control_flow_passes_through_a_dispatcher() -> None:
    """``run.call`` of a tool in the table knows its control flow too."""
    tools = {"ask": {"control_flow": (Interrupt,)}}
    with guarded_run("dispatched", tools=tools) as run:
        for _ in range(12):
            with pytest.raises(Interrupt), run.call("ask", {"what": "x"}):
                raise Interrupt("ask")

    assert (run.stats.failed, run.stats.abandoned) == (0, 12)


@pytest.mark.scenario("ins-base-exceptions-pass")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("kind", KINDS)
def test_base_exceptions_pass_unchanged(kind: str, error: type[BaseException]) -> None:
    """They arrive as they were raised, and the call's place is free again: it is admitted as often as one likes."""
    raised = error("now")
    use = kinds_of(raised)[kind]
    with guarded_run("bases") as run:
        for _ in range(12):
            with pytest.raises(error) as caught:
                use()
            assert caught.value is raised

    assert run.findings == ()
    assert (run.stats.failed, run.stats.abandoned) == (0, 12)


@pytest.mark.asyncio
async def test_cancelled_calls_release_their_place(three: Policy) -> None:
    """Twelve calls that were cancelled in flight leave room for three."""
    started = asyncio.Event()

    @guarded_tool
    async def tool(query: str, wait: bool) -> str:
        if wait:
            started.set()
            await asyncio.Event().wait()
        return "same"

    async with guarded_run("cancelled", policy=three) as run:
        for _ in range(12):
            started.clear()
            task = asyncio.create_task(tool("x", True))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        for _ in range(3):
            assert await tool("x", False) == "same"

    assert (run.stats.abandoned, run.stats.refused) == (12, 0)


# -- calls that end when nobody waits any more ----------------------------------------------------------------------


@pytest.mark.scenario("ins-timeout-thread-finishes-later")
@pytest.mark.asyncio
async def test_a_timed_out_thread_that_finishes_later_changes_nothing(three: Policy) -> None:
    """The run is closed meanwhile: the late record raises nothing, reopens nothing and counts to no other run."""
    started, release, finished = threading.Event(), threading.Event(), threading.Event()
    failures: list[BaseException] = []
    slow = [False]

    @guarded_tool
    def tool(query: str) -> str:
        if slow[0]:
            started.set()
            assert release.wait(10)
        return "same"

    def work() -> None:
        try:
            tool("x")
        except BaseException as error:
            failures.append(error)
        finally:
            finished.set()

    async with guarded_run("first", policy=three) as first:
        tool("x")
        slow[0] = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                task = asyncio.create_task(asyncio.to_thread(work))
                await asyncio.to_thread(started.wait, 10)
                limit.reschedule(asyncio.get_running_loop().time())
                await task
        assert first.stats.calls == 2
    closed_stats, closed_count = first.stats, first.max_operation_count()

    async with guarded_run("second", policy=three) as second:
        release.set()
        await asyncio.to_thread(finished.wait, 10)

    assert failures == []
    assert first.closed
    assert first.findings == ()
    assert (first.stats, first.max_operation_count()) == (closed_stats, closed_count)
    assert (first.stats.abandoned, closed_count) == (1, 1)
    assert second.stats.calls == 0
    assert second.findings == ()


@pytest.mark.scenario("ins-timeout-thread-finishes-later")
@pytest.mark.parametrize("fails", [False, True], ids=["result", "error"])
def test_a_late_end_after_the_run_is_dropped(fails: bool) -> None:
    """Five calls in flight when the block ends: what they bring afterwards is no evidence, and is said to nobody."""
    heard: list[Any] = []
    with guarded_run("late", on_finding=heard.append, on_warn=heard.append) as run:
        calls = [run.begin("search", {"query": "x"}) for _ in range(5)]
    before = run.stats
    for call in calls:
        if fails:
            call.fail(OSError("disk full"))
        else:
            assert call.finish("same") == "same"

    assert heard == []
    assert run.findings == ()
    assert run.stats == before
    assert (before.calls, before.abandoned) == (5, 5)
    assert run.max_operation_count() == 0
    assert run.check_loop().is_looping is False


@pytest.mark.scenario("ins-timeout-thread-finishes-later")
def test_a_late_end_within_the_run_is_folded_once(three: Policy) -> None:
    """A call that ends after others is an operation like any other; ending it again does nothing."""
    with guarded_run("late", policy=three) as run:
        slow = run.begin("search", {"query": "x"})
        for _ in range(2):
            run.begin("search", {"query": "x"}).finish("same")
        slow.finish("same")
        slow.finish("other")
        slow.fail(OSError())
        slow.abandon()
        with pytest.raises(LoopRefused):
            run.begin("search", {"query": "x"})

    assert run.stats.calls == 3


@pytest.mark.scenario("ins-timeout-thread-finishes-later")
def test_a_call_whose_lease_ran_out_is_abandoned_and_its_late_end_is_taken_in() -> None:
    """A record later than the lease counts it as abandoned; when it ends after all it is an operation."""
    now = [1_000.0]
    with guarded_run("lease", policy=Policy(lease_s=60), limits=Limits(soft_calls=0)) as run:
        run.clock = lambda: now[0]
        slow = run.begin("search", {"query": "x"})
        now[0] += 61
        run.begin("other", {}).finish("y")
        assert run.stats.abandoned == 1
        assert slow.finish("late") == "late"

        assert run.stats.abandoned == 0
        assert run.max_operation_count() == 1
    assert run.stats.calls == 2


@pytest.mark.parametrize("preset", ["opendev", "loopctl"])
def test_a_stop_of_whatever_comes_next_names_the_tool_that_looped(preset: str) -> None:
    """With scope "run" the next call is refused whatever it is, but it is not the one that is blamed."""
    policy = Policy.opendev() if preset == "opendev" else Policy.loopctl(warn_after=2, stop_after=3)
    with guarded_run("r", policy=policy, on_stop="end") as run:
        for _ in range(3):
            run.begin("search", {"q": "x"}).fail(ValueError("no")) if preset == "opendev" else run.begin(
                "search", {"q": "x"}
            ).finish("same")
        with pytest.raises(RunStopped) as stopped:
            run.begin("innocent", {})

    assert "search" in str(stopped.value)
    assert "innocent" not in str(stopped.value)
    assert run.findings[-1].tool == "search"


def test_allow_holds_against_a_stop_and_below() -> None:
    """Inside ``allow`` a loop of that tool neither is refused nor ends the run, in a run below either."""

    @guarded_tool(name="status")
    def status(x: str) -> str:
        return "queued"

    with guarded_run("outer") as outer, outer.allow("status"):
        for _ in range(30):
            status("a")
        with guarded_run("inner"):
            for _ in range(30):
                status("b")
    with guarded_run("after", on_stop="end") as run, pytest.raises(RunStopped):
        for _ in range(30):
            try:
                status("a")
            except ToolCallRefused:
                continue
    assert run.stats.calls == 5
    assert outer.stats.calls == 30


@pytest.mark.parametrize("mode", ["bad", 3, "Observe", None])
def test_a_mode_that_does_not_exist_is_an_error(mode: Any) -> None:
    """``set_mode`` says what there is, and the run stays as it was."""
    with guarded_run("r") as run:
        with pytest.raises(PolicyError, match="enforce"):
            run.set_mode(mode)
        assert run.mode == "enforce"
