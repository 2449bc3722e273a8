"""A run scope held open across the yields of a generator: closed late, elsewhere, or by the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopguard import current_run, guarded_run, guarded_tool
from loopguard.telemetry.metrics import metrics


@guarded_tool
async def lookup(query: str) -> str:
    """A tool that the agents below call."""
    return "found"


@guarded_tool
async def lookups(query: str) -> AsyncIterator[str]:
    """A tool that streams."""
    for n in range(3):
        yield f"{query} {n}"


async def agent(runs: list[Any]) -> AsyncIterator[str]:
    """An agent that yields its events inside its run."""
    async with guarded_run("agent") as run:
        runs.append(run)
        for n in range(3):
            yield await lookup(str(n))


async def streaming_agent(runs: list[Any]) -> AsyncIterator[str]:
    """An agent that passes on what its tool streams, and has some cleaning up to do."""
    async with guarded_run("agent") as run:
        runs.append(run)
        try:
            async for item in lookups("x"):
                yield item
        finally:
            await asyncio.sleep(0)


AGENTS = pytest.mark.parametrize("make", [agent, streaming_agent])


def run_recording(main: Callable[[], Awaitable[object]]) -> list[dict[str, Any]]:
    """Run to the end of a loop; returns what reached the loop's exception handler."""
    reported: list[dict[str, Any]] = []

    async def recorded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        await main()

    asyncio.run(recorded())
    return reported


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of level ERROR and above, of any logger."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@AGENTS
@pytest.mark.scenario("ins-asyncgen-closed-in-other-task")
def test_an_async_generator_can_be_closed_in_another_task(
    make: Any,
    exporter: InMemorySpanExporter,
    live_runs: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
    unraisable: list[Any],
) -> None:
    """One item here, ``aclose`` there: nothing raised or logged, the run closed, no live run left."""
    runs: list[Any] = []
    before = metrics.live_runs()

    async def main() -> None:
        events = make(runs)
        await anext(events)
        await asyncio.create_task(events.aclose())

    assert run_recording(main) == []
    assert errors_in(caplog) == []
    assert unraisable == []
    assert runs[0].closed
    assert live_runs() == 0
    assert metrics.live_runs() == before
    assert len(exporter.get_finished_spans()) == 1


@AGENTS
@pytest.mark.scenario("ins-asyncgen-closed-in-other-task")
def test_an_async_generator_can_be_advanced_by_several_tasks(make: Any, live_runs: Callable[[], int]) -> None:
    """Each item is taken by a task of its own; the calls count to one run, and nothing is raised."""
    runs: list[Any] = []

    async def main() -> None:
        events = make(runs)
        items = [await asyncio.create_task(anext(events)) for _ in range(3)]
        assert len(items) == 3
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(anext(events))
        assert not current_run()

    assert run_recording(main) == []
    assert runs[0].closed
    assert live_runs() == 0


@AGENTS
@pytest.mark.scenario("ins-asyncgen-early-break")
def test_breaking_out_and_ending_the_loop_is_silent(
    make: Any,
    exporter: InMemorySpanExporter,
    live_runs: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
    unraisable: list[Any],
) -> None:
    """``break`` and the end of ``asyncio.run``: the finaliser works in another context, and says nothing."""
    runs: list[Any] = []

    async def main() -> None:
        async for _ in make(runs):
            break

    assert run_recording(main) == []
    assert errors_in(caplog) == []
    assert unraisable == []
    assert runs[0].closed
    assert live_runs() == 0


@AGENTS
@pytest.mark.scenario("ins-asyncgen-garbage-collected")
def test_a_dropped_async_generator_is_finalised_in_silence(
    make: Any, live_runs: Callable[[], int], unraisable: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The only reference goes: both hooks stay silent, no run is left."""
    runs: list[Any] = []

    async def main() -> None:
        events = make(runs)
        await anext(events)
        del events
        for _ in range(5):
            live_runs()
            await asyncio.sleep(0)
        assert runs[0].closed

    assert run_recording(main) == []
    assert unraisable == []
    assert errors_in(caplog) == []
    assert live_runs() == 0


@pytest.mark.scenario("ins-asyncgen-garbage-collected")
def test_a_dropped_generator_is_finalised_in_silence(live_runs: Callable[[], int], unraisable: list[Any]) -> None:
    """The same for a plain generator; afterwards no run is current."""

    def plain_agent() -> Iterator[int]:
        with guarded_run("agent"):
            yield 1
            yield 2

    events = plain_agent()
    assert next(events) == 1
    assert live_runs() == 1
    del events

    assert live_runs() == 0
    assert unraisable == []
    assert not current_run()


@pytest.mark.scenario("ins-asyncgen-garbage-collected")
def test_a_generator_dropped_in_another_thread_is_finalised_in_silence(
    live_runs: Callable[[], int], unraisable: list[Any]
) -> None:
    """Advanced in a worker thread, closed here: the thread's context is out of reach, the run closes all the same."""
    from concurrent.futures import ThreadPoolExecutor

    def plain_agent() -> Iterator[int]:
        with guarded_run("agent"):
            yield 1

    events = plain_agent()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(next, events).result()
        events.close()

        assert pool.submit(lambda: bool(current_run())).result() is False
    assert live_runs() == 0
    assert unraisable == []


@pytest.mark.asyncio
async def test_an_exit_stack_in_another_task_can_leave_the_scope(live_runs: Callable[[], int]) -> None:
    """A life-span object opens the run in one task and closes it in another."""
    stack = contextlib.AsyncExitStack()
    run = await asyncio.create_task(stack.enter_async_context(guarded_run("service")))
    assert await run.bind(lookup)("x") == "found"
    await asyncio.create_task(stack.aclose())

    assert run.closed
    assert run.stats.calls == 1
    assert live_runs() == 0
