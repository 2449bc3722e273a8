"""Which run a call belongs to: threads, tasks, pools, nested runs, scopes that are left elsewhere."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from loopguard import (
    LimitReached,
    LimitRefused,
    Limits,
    LoopguardError,
    LoopRefused,
    Policy,
    configure,
    current_run,
    guarded_run,
    guarded_tool,
)


def counted(name: str = "search") -> tuple[Callable[[str], str], list[str]]:
    """A guarded tool that always gives the same, and the list of what it was called with."""
    ran: list[str] = []

    @guarded_tool(name=name)
    def tool(query: str) -> str:
        ran.append(query)
        return "found"

    return tool, ran


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that say that a tool was called outside a run."""
    return [record.getMessage() for record in caplog.records if "outside a run" in record.getMessage()]


# -- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-pool-submit-no-context")
def test_a_bare_pool_thread_is_outside_the_run(three: Policy, caplog: pytest.LogCaptureFixture) -> None:
    """Without the context the call is executed, said once per tool, and counted to no run."""
    tool, ran = counted()
    other, _ = counted("other")
    with guarded_run("pool", policy=three) as run, ThreadPoolExecutor(1) as pool:
        results = [pool.submit(tool, "x").result() for _ in range(5)]
        pool.submit(other, "x").result()

    assert results == ["found"] * 5
    assert len(ran) == 5
    assert run.stats.calls == 0
    assert [line.split()[1] for line in hints(caplog)] == ["search", "other"]


@pytest.mark.scenario("ins-pool-submit-no-context")
def test_a_bare_pool_thread_raises_where_that_is_configured(three: Policy) -> None:
    """``outside_run="raise"`` makes the lost context an error, each time."""
    tool, ran = counted()
    with configure(outside_run="raise"), guarded_run("pool", policy=three), ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            with pytest.raises(LoopguardError, match="search was called outside a run"):
                pool.submit(tool, "x").result()

    assert ran == []


@pytest.mark.scenario("ins-pool-submit-no-context")
def test_the_hint_can_be_silenced(three: Policy, caplog: pytest.LogCaptureFixture) -> None:
    """``outside_run="ignore"`` executes without a word."""
    tool, ran = counted()
    with configure(outside_run="ignore"), ThreadPoolExecutor(1) as pool:
        pool.submit(tool, "x").result()

    assert len(ran) == 1
    assert hints(caplog) == []


@pytest.mark.scenario("ins-pool-submit-no-context")
def test_a_bound_tool_keeps_its_run_in_a_pool(three: Policy) -> None:
    """Through ``run.bind`` the fourth and fifth call are refused, in whatever thread."""
    tool, ran = counted()
    with guarded_run("pool", policy=three) as run, ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run.bind(tool), "x") for _ in range(5)]
        errors = [future.exception() for future in futures]

    assert len(ran) == 3
    assert sum(isinstance(error, LoopRefused) for error in errors) == 2
    assert (run.stats.calls, run.stats.refused) == (3, 2)


@pytest.mark.scenario("ins-pool-submit-no-context")
@pytest.mark.asyncio
async def test_a_bound_tool_keeps_its_run_in_the_loops_executor(three: Policy) -> None:
    """``run_in_executor`` loses the context too; the bound tool does not."""
    tool, ran = counted()
    loop = asyncio.get_running_loop()
    async with guarded_run("pool", policy=three, on_refuse="return") as run:
        bare = await loop.run_in_executor(None, tool, "x")
        results = [await loop.run_in_executor(None, run.bind(tool), "x") for _ in range(4)]

    assert bare == "found"
    assert len(ran) == 4
    assert [text.startswith("Not executed") for text in results] == [False, False, False, True]


def test_a_bound_function_can_be_called_many_times_at_once(three: Policy) -> None:
    """One binding serves several threads at a time: each call has a context of its own."""
    barrier = threading.Barrier(3, timeout=10)

    def body() -> str:
        barrier.wait()
        return current_run().name

    with guarded_run("pool", policy=three) as run, ThreadPoolExecutor(3) as pool:
        bound = run.bind(body)
        futures = [pool.submit(bound) for _ in range(3)]

    assert [future.result() for future in futures] == ["pool"] * 3


@pytest.mark.scenario("ins-to-thread-shared-counts")
@pytest.mark.asyncio
async def test_calls_in_to_thread_count_for_the_task(three: Policy) -> None:
    """The worker thread sees the run, and the task sees what the thread recorded."""
    tool, ran = counted()
    async with guarded_run("threads", policy=three) as run:
        for expected in (1, 2, 3):
            await asyncio.to_thread(tool, "x")
            assert run.stats.calls == run.max_operation_count() == expected
        with pytest.raises(LoopRefused):
            await asyncio.to_thread(tool, "x")

    assert len(ran) == 3


@pytest.mark.scenario("ins-thread-reuse-clean")
def test_a_reused_thread_starts_clean(three: Policy) -> None:
    """The second run in the same worker thread begins at zero; nothing sticks to thread or function."""
    tool, _ = counted()
    attributes = dict(vars(tool))

    def work(name: str, times: int) -> Any:
        with guarded_run(name, policy=three) as run:
            for _ in range(times):
                tool("x")
        return run

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(work, "a", 3).result()
        second = pool.submit(work, "b", 1).result()
        left = pool.submit(current_run).result()

    assert first.max_operation_count() == 3
    assert len(first.findings) == 1
    assert second.stats.calls == second.max_operation_count() == 1
    assert second.findings == ()
    assert not left
    assert dict(vars(tool)) == attributes


def in_a_pool(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's decorator: runs the function in a pool of its own, with a time-out."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, *args, **kwargs).result(timeout=10)

    return wrapper


@pytest.mark.scenario("ins-timeout-decorator-thread")
def test_the_guard_above_a_pool_decorator_counts(three: Policy) -> None:
    """With the guard outermost it does not matter where the tool is executed."""
    ran: list[str] = []

    @guarded_tool
    @in_a_pool
    def tool(query: str) -> str:
        ran.append(query)
        return "found"

    with guarded_run("outermost", policy=three, on_refuse="return") as run:
        for _ in range(5):
            tool("x")

    assert len(ran) == 3
    assert (run.stats.calls, run.stats.refused) == (3, 2)


@pytest.mark.scenario("ins-timeout-decorator-thread")
def test_the_guard_below_a_pool_decorator_is_outside(three: Policy, caplog: pytest.LogCaptureFixture) -> None:
    """With the guard inside, its calls are outside the run: executed, and said once."""
    ran: list[str] = []

    @in_a_pool
    @guarded_tool
    def tool(query: str) -> str:
        ran.append(query)
        return "found"

    with guarded_run("inside", policy=three) as run:
        for _ in range(5):
            tool("x")

    assert len(ran) == 5
    assert run.stats.calls == 0
    assert len(hints(caplog)) == 1


# -- tasks ----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-child-tasks-share-run")
@pytest.mark.asyncio
async def test_child_tasks_share_the_run(lenient: Policy) -> None:
    """Calls from ``gather``, a ``TaskGroup`` and ``wait_for`` all count to the run around them."""

    @guarded_tool
    async def tool(query: str) -> str:
        await asyncio.sleep(0)
        return "found"

    async with guarded_run("tasks", policy=lenient) as run:
        await asyncio.gather(*(tool("x") for _ in range(10)))
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(tool("x"))
        await asyncio.wait_for(tool("x"), 10)

    assert run.stats.calls == run.max_operation_count() == 21


@pytest.mark.asyncio
async def test_of_fifty_identical_gathered_calls_five_run() -> None:
    """Calls in flight count: five are executed, 45 refused, one warning and one refusal told, the run goes on."""
    ran: list[str] = []

    @guarded_tool
    async def tool(query: str) -> str:
        ran.append(query)
        await asyncio.sleep(0)
        return "found"

    async with guarded_run("gather") as run:
        results = await asyncio.gather(*(tool("x") for _ in range(50)), return_exceptions=True)
        assert await tool("another") == "found"

    assert ran == ["x"] * 5 + ["another"]
    assert results.count("found") == 5
    assert sum(isinstance(result, LoopRefused) for result in results) == 45
    assert sorted(str(finding.action) for finding in run.findings) == ["refuse", "warn"]
    assert run.stopped is None


@pytest.mark.asyncio
async def test_runs_side_by_side_share_nothing(three: Policy) -> None:
    """Two runs that interleave in one loop count for themselves."""

    @guarded_tool
    async def tool(query: str) -> str:
        await asyncio.sleep(0)
        return "found"

    async def agent(name: str, times: int) -> Any:
        async with guarded_run(name, policy=three) as run:
            for _ in range(times):
                await tool("x")
            assert current_run() is run
        return run

    first, second = await asyncio.gather(agent("a", 3), agent("b", 1))

    assert (first.stats.calls, second.stats.calls) == (3, 1)
    assert second.findings == ()
    assert first.parent is second.parent is None


# -- nested runs ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-nested-runs")
@pytest.mark.asyncio
async def test_sub_agents_have_their_own_evidence() -> None:
    """Three concurrent inner runs of two calls each warn nobody, and the outer count stays two."""

    @guarded_tool
    async def tool(query: str) -> str:
        await asyncio.sleep(0)
        return "found"

    async def sub_agent() -> Any:
        async with guarded_run("sub") as run:
            await tool("x")
            await tool("x")
        return run

    async with guarded_run("outer") as outer:
        await tool("x")
        await tool("x")
        inner = await asyncio.gather(*(sub_agent() for _ in range(3)))

        assert current_run() is outer
        assert outer.max_operation_count() == 2
        assert await tool("x") == "found"

    assert [run.findings for run in inner] == [()] * 3
    assert [run.stats.calls for run in inner] == [2] * 3
    assert outer.children == inner
    assert [finding.action for finding in outer.findings] == ["warn"]


@pytest.mark.scenario("ins-nested-runs")
@pytest.mark.parametrize("evidence", ["own", "parent"])
def test_evidence_of_a_sub_agent_can_count_in_the_parent(lenient: Policy, evidence: Any) -> None:
    """With ``evidence="parent"`` the parent's total is eight, and is two without."""
    tool, _ = counted()
    with guarded_run("outer", policy=lenient) as outer:
        tool("x")
        tool("x")
        for _ in range(3):
            with guarded_run("sub", evidence=evidence) as inner:
                tool("x")
                tool("x")
            assert inner.parent is outer
        assert current_run() is outer

        assert outer.max_operation_count() == (8 if evidence == "parent" else 2)


def test_a_loop_over_parent_and_child_is_refused_with_shared_evidence(three: Policy) -> None:
    """With ``evidence="parent"`` two calls outside and one inside use up the three allowed ones."""
    tool, ran = counted()
    with guarded_run("outer", policy=three):
        tool("x")
        tool("x")
        with guarded_run("sub", evidence="parent"):
            tool("x")
            with pytest.raises(LoopRefused):
                tool("x")
        with pytest.raises(LoopRefused):
            tool("x")

    assert len(ran) == 3


def test_evidence_parent_without_a_parent_is_an_ordinary_run(three: Policy) -> None:
    """Outermost, ``evidence="parent"`` has nobody to share with."""
    tool, _ = counted()
    with guarded_run("alone", policy=three, evidence="parent") as run:
        tool("x")

        assert run.max_operation_count() == 1
    assert run.stats.calls == 1


def test_calls_of_sub_agents_charge_the_limits_of_all_runs_above() -> None:
    """The call limit of the outermost run ends it and all below, whoever makes the calls."""
    tool, ran = counted()
    stopped = []
    with pytest.raises(LimitReached), guarded_run("outer", limits=Limits(calls=3)) as outer:
        for n in range(2):
            with guarded_run("middle") as middle, guarded_run("inner") as inner:
                tool(f"{n} a")
                try:
                    tool(f"{n} b")
                except LimitReached as error:
                    stopped.append(error)
                else:
                    continue
                assert inner.stopped is not None
                assert middle.stopped is not None
                with pytest.raises(LimitReached):
                    tool("again")

    assert len(ran) == 3
    assert [(error.limit, error.used, error.allowed) for error in stopped] == [("calls", 3, 3)]
    assert outer.stopped is not None


def test_a_tool_limit_above_refuses_below() -> None:
    """Calls of one tool are limited over all sub-agents together; other tools go on."""
    tool, ran = counted()
    other, _ = counted("other")
    with guarded_run("outer", limits=Limits(calls_per_tool={"search": 2})) as outer:
        for n in range(2):
            with guarded_run("sub"):
                tool(str(n))
        with guarded_run("sub") as run:
            with pytest.raises(LimitRefused):
                tool("3")
            assert other("x") == "found"
        with pytest.raises(LimitRefused):
            tool("4")

    assert ran == ["0", "1"]
    assert run.stopped is outer.stopped is None


def test_a_call_that_a_limit_above_refuses_is_no_call_of_the_run() -> None:
    """What was not executed is counted as refused, not as a call."""
    tool, _ = counted()
    with guarded_run("outer", limits=Limits(calls_per_tool={"search": 1})), guarded_run("sub") as run:
        tool("1")
        with pytest.raises(LimitRefused):
            tool("2")

    assert (run.stats.calls, run.stats.refused, run.stats.abandoned) == (1, 1, 0)


# -- scopes that are left elsewhere ---------------------------------------------------------------------------------


@pytest.mark.scenario("ins-fastapi-sync-dependency")
@pytest.mark.parametrize("copied_after", [False, True], ids=["left-in-a-foreign-context", "left-in-a-copy"])
def test_a_scope_can_be_left_in_another_context(
    three: Policy, live_runs: Callable[[], int], copied_after: bool
) -> None:
    """Entered in one thread's context, used in a second, left in a third: closed, freed, nothing raised."""
    tool, _ = counted()
    entering = contextvars.copy_context()
    scope = guarded_run("request", policy=three)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(entering.run, scope.__enter__).result()
    leaving = entering.run(contextvars.copy_context) if copied_after else contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run.bind(tool), "x").result() == "found"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(leaving.run, scope.__exit__, None, None, None).result()

    assert run.closed
    assert run.stats.calls == 1
    assert not leaving.run(current_run)
    assert not entering.run(current_run)
    assert live_runs() == 0

    gone = weakref.ref(run)
    del run, scope, entering, leaving
    live_runs()
    assert gone() is None


@pytest.mark.scenario("ins-scope-exit-order")
def test_scopes_may_be_left_in_any_order() -> None:
    """The outer scope is left first: the inner one stays current, and afterwards none is."""
    tool, _ = counted()
    outer_scope, inner_scope = guarded_run("a"), guarded_run("b")
    outer = outer_scope.__enter__()
    inner = inner_scope.__enter__()

    outer_scope.__exit__(None, None, None)
    assert outer.closed
    assert current_run() is inner
    tool("x")
    inner_scope.__exit__(None, None, None)

    assert not current_run()
    assert (outer.stats.calls, inner.stats.calls) == (0, 1)


@pytest.mark.scenario("ins-scope-exit-order")
@pytest.mark.parametrize("order", ["012", "021", "102", "120", "201", "210"])
def test_no_closed_run_is_ever_current(order: str) -> None:
    """In every order of leaving three scopes the current run is the innermost one that is open."""
    scopes = [guarded_run(str(n)) for n in range(3)]
    runs = [scope.__enter__() for scope in scopes]
    for n in map(int, order):
        scopes[n].__exit__(None, None, None)
        still_open = [run for run in runs if not run.closed]

        assert current_run() is still_open[-1] if still_open else not current_run()


@pytest.mark.scenario("ins-scope-exit-order")
def test_a_scope_is_for_one_block_at_a_time() -> None:
    """Entering an open scope again is an error; leaving twice is none; a left one may be entered anew."""
    scope = guarded_run("a")
    first = scope.__enter__()
    with pytest.raises(RuntimeError, match="open already"):
        scope.__enter__()
    scope.__exit__(None, None, None)
    scope.__exit__(None, None, None)
    with scope as second:
        assert current_run() is second

    assert first is not second
    assert first.id != second.id
    assert not current_run()


def test_closing_a_run_ends_its_being_current(caplog: pytest.LogCaptureFixture) -> None:
    """After ``run.close()`` inside the block its tools are outside, and leaving the block says nothing."""
    tool, _ = counted()
    with guarded_run("outer") as outer:
        with guarded_run("inner") as inner:
            inner.close()
            assert current_run() is outer
            tool("x")

        assert (outer.stats.calls, inner.stats.calls) == (1, 0)


def test_nothing_is_logged_on_the_usual_path(caplog: pytest.LogCaptureFixture) -> None:
    """A healthy run is silent."""
    tool, _ = counted()
    with caplog.at_level(logging.DEBUG), guarded_run("quiet"):
        tool("x")
        tool("y")

    assert [record for record in caplog.records if record.name.startswith("loopguard")] == []
