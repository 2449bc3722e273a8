"""Guarded async generator functions: the same protocol as unguarded ones, whatever becomes of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopguard import LoopRefused, guarded_run, guarded_tool


async def echo(first: str) -> AsyncGenerator[Any, Any]:
    """Yields what it is sent, answers a ``KeyError``, and ends on ``stop``."""
    got: Any = first
    while got != "stop":
        await asyncio.sleep(0)
        try:
            got = yield got
        except KeyError as error:
            got = f"caught {error.args[0]}"


SCRIPTS: dict[str, list[Callable[[Any], Any]]] = {
    "asend": [
        lambda g: g.asend(None),
        lambda g: g.asend("go"),
        lambda g: g.asend(0),
        lambda g: g.asend("stop"),
    ],
    "anext": [lambda g: g.__anext__(), lambda g: g.__anext__()],
    "asend-value-first": [lambda g: g.asend("go"), lambda g: g.__anext__()],
    "athrow-caught": [lambda g: g.asend(None), lambda g: g.athrow(KeyError("k")), lambda g: g.asend("b")],
    "athrow-passes": [lambda g: g.asend(None), lambda g: g.athrow(OSError("o")), lambda g: g.__anext__()],
    "athrow-first": [lambda g: g.athrow(KeyError("k")), lambda g: g.__anext__()],
    "athrow-stop": [lambda g: g.asend(None), lambda g: g.athrow(StopAsyncIteration())],
    "aclose": [lambda g: g.asend(None), lambda g: g.aclose(), lambda g: g.aclose(), lambda g: g.__anext__()],
    "aclose-first": [lambda g: g.aclose(), lambda g: g.__anext__()],
    "over": [
        lambda g: g.asend(None),
        lambda g: g.asend("stop"),
        lambda g: g.__anext__(),
        lambda g: g.aclose(),
    ],
}


async def played(generator: Any, script: list[Callable[[Any], Any]]) -> list[Any]:
    """What each step gives or raises, in a form that can be compared."""
    outcomes: list[Any] = []
    for step in script:
        try:
            outcomes.append(await step(generator))
        except BaseException as error:
            outcomes.append((type(error), str(error)))
    return outcomes


@pytest.mark.scenario("ins-asyncgen-protocol")
@pytest.mark.asyncio
@pytest.mark.parametrize("inside", [True, False], ids=["in-a-run", "outside"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_the_protocol_is_that_of_the_bare_generator(script: list[Callable[[Any], Any]], inside: bool) -> None:
    """``asend``, ``athrow`` and ``aclose`` give and raise what they do undecorated, step by step."""
    expected = await played(echo("first"), script)
    async with guarded_run("script") as run:
        if not inside:
            run.close()
        actual = await played(guarded_tool(echo)("first"), script)

    assert actual == expected


@pytest.mark.scenario("ins-asyncgen-early-break")
def test_breaking_out_of_a_tool_and_ending_the_loop_is_silent(
    exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, unraisable: list[Any]
) -> None:
    """``break``, then the end of ``asyncio.run``: closed early, nothing raised, nothing logged, nothing in flight."""
    cleaned: list[str] = []
    reported: list[Any] = []

    @guarded_tool
    async def tool(query: str) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            cleaned.append(query)

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with guarded_run("early") as run:
            async for _ in tool("x"):
                break
        return run

    run = asyncio.run(main())

    assert reported == unraisable == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert run.stats.abandoned == 1
    assert run.findings == ()
    assert run.max_operation_count() == 0


@pytest.mark.scenario("ins-asyncgen-early-break")
@pytest.mark.asyncio
async def test_tools_left_early_are_abandoned_and_release_their_place(three: Any) -> None:
    """Ten uses left after one item, by ``break`` or ``aclose``: the call is still admitted, nothing is found."""

    @guarded_tool
    async def tool(query: str) -> AsyncIterator[int]:
        yield 1
        yield 2

    async with guarded_run("early", policy=three) as run:
        for _ in range(5):
            async for _item in tool("x"):
                break
            await asyncio.sleep(0)
            items = tool("x")
            await anext(items)
            await items.aclose()
        await asyncio.sleep(0)
        assert [item async for item in tool("x")] == [1, 2]

    assert run.stats.abandoned == 10
    assert run.findings == ()


@pytest.mark.scenario("ins-asyncgen-garbage-collected")
def test_a_tool_never_finished_when_the_loop_ends_is_silent(
    exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, unraisable: list[Any]
) -> None:
    """Still referenced when the loop shuts down: it is closed by the loop, and nothing is said."""
    kept: list[Any] = []
    reported: list[Any] = []

    @guarded_tool
    async def tool(query: str) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with guarded_run("kept") as run:
            kept.append(tool("x"))
            await anext(kept[0])
        return run

    run = asyncio.run(main())
    kept.clear()

    assert reported == unraisable == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert run.findings == ()
    assert len(exporter.get_finished_spans()) == 1


@pytest.mark.asyncio
async def test_a_loop_of_async_generators_stops_before_the_first_item(three: Any) -> None:
    """The digest of what was yielded is the outcome; a refused call raises before its body begins."""
    ran: list[str] = []

    @guarded_tool
    async def tool(query: str) -> AsyncIterator[str]:
        ran.append(query)
        yield "a"
        yield "b"

    async with guarded_run("loop", policy=three):
        for _ in range(3):
            assert [item async for item in tool("x")] == ["a", "b"]
        with pytest.raises(LoopRefused):
            await anext(tool("x"))

    assert len(ran) == 3


@pytest.mark.asyncio
async def test_a_refused_async_generator_can_give_a_text_instead(three: Any) -> None:
    """With ``on_refuse="return"`` the refusal is the only item."""

    @guarded_tool
    async def tool(query: str) -> AsyncIterator[str]:
        yield "a"

    async with guarded_run("told", policy=three, on_refuse="return"):
        for _ in range(3):
            assert [item async for item in tool("x")] == ["a"]
        (item,) = [item async for item in tool("x")]

    assert item.startswith("Not executed: `tool`")


@pytest.mark.asyncio
async def test_cancelling_a_reader_abandons_the_call() -> None:
    """A cancellation while the tool waits for its next item is no outcome and no failure."""
    started = asyncio.Event()

    @guarded_tool
    async def tool(query: str) -> AsyncIterator[int]:
        yield 1
        started.set()
        await asyncio.Event().wait()
        yield 2

    async def read() -> None:
        async for _ in tool("x"):
            pass

    async with guarded_run("cancelled") as run:
        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert (run.stats.abandoned, run.stats.failed) == (1, 0)


@pytest.mark.asyncio
async def test_the_span_of_an_async_generator_is_current_only_in_its_body(
    exporter: InMemorySpanExporter,
) -> None:
    """Between two items the consumer's span is current, also where another task closes the generator."""
    inside: list[trace.Span] = []

    @guarded_tool
    async def tool() -> AsyncIterator[int]:
        for n in range(2):
            inside.append(trace.get_current_span())
            yield n

    async with guarded_run("traced"):
        async for _ in tool():
            assert trace.get_current_span() is trace.INVALID_SPAN
        items = tool()
        await asyncio.create_task(anext(items))
        await items.aclose()

    assert trace.get_current_span() is trace.INVALID_SPAN
    assert len(exporter.get_finished_spans()) == 2
    assert inside[0] is inside[1]
