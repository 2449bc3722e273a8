"""``guarded_run`` as a decorator, on every kind of function."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from loopguard import LoopStopped, Policy, Repeat, RunStopped, current_run, guarded_run, guarded_tool


@guarded_tool
def search(query: str) -> str:
    """A tool that gives the same again and again."""
    return "same"


@guarded_run("agent", agent="a")
def plain(runs: list[Any], times: int = 1) -> str:
    """Plain."""
    runs.append(current_run())
    return [search("x") for _ in range(times)][-1]


@guarded_run("agent", agent="a")
async def coroutine(runs: list[Any], times: int = 1) -> str:
    """Coroutine."""
    await asyncio.sleep(0)
    return plain.__wrapped__(runs, times)  # type: ignore[attr-defined, no-any-return]


@guarded_run("agent", agent="a")
def generator(runs: list[Any], times: int = 1) -> Iterator[str]:
    """Generator."""
    yield "first"
    yield plain.__wrapped__(runs, times)  # type: ignore[attr-defined]


@guarded_run("agent", agent="a")
async def async_generator(runs: list[Any], times: int = 1) -> AsyncIterator[str]:
    """Async generator."""
    yield "first"
    await asyncio.sleep(0)
    yield plain.__wrapped__(runs, times)  # type: ignore[attr-defined]


async def collected(items: AsyncIterator[Any]) -> list[Any]:
    """All items."""
    return [item async for item in items]


USE: dict[str, Callable[..., Any]] = {
    "plain": plain,
    "coroutine": lambda *args: asyncio.run(coroutine(*args)),
    "generator": lambda *args: list(generator(*args))[-1],
    "async-generator": lambda *args: asyncio.run(collected(async_generator(*args)))[-1],
}
KINDS = pytest.mark.parametrize("use", USE.values(), ids=USE)


@KINDS
def test_each_call_has_a_run_of_its_own(use: Callable[..., Any]) -> None:
    """Opened with the call and closed with it; nothing carries over to the next."""
    runs: list[Any] = []
    assert use(runs, 2) == "same"
    assert use(runs, 2) == "same"

    first, second = runs
    assert first is not second
    assert (first.name, first.agent) == ("agent", "a")
    assert first.closed
    assert second.closed
    assert first.stats.calls == second.stats.calls == 2
    assert first.findings == ()
    assert not current_run()


@KINDS
def test_inside_a_run_it_is_a_sub_agent(use: Callable[..., Any]) -> None:
    """The run around the call is the parent, and current again afterwards."""
    runs: list[Any] = []
    with guarded_run("outer") as outer:
        use(runs)
        assert current_run() is outer

    assert runs[0].parent is outer
    assert outer.children == runs


@KINDS
def test_a_stop_leaves_the_function(use: Callable[..., Any]) -> None:
    """The agent that never learns is ended, and the next call begins clean."""
    with pytest.raises(RunStopped, match="run 'agent' was stopped: enough"):
        use_until_stopped(use)
    assert use([], 1) == "same"


def use_until_stopped(use: Callable[..., Any]) -> None:
    """Stop the run from inside."""
    runs: list[Any] = []

    class Stopping(list[Any]):
        def append(self, run: Any) -> None:
            runs.append(run)
            run.stop("enough")

    use(Stopping(), 1)


@pytest.mark.parametrize("function", [plain, coroutine, generator, async_generator])
def test_the_function_looks_as_before(function: Any) -> None:
    """Name, docstring, signature and kind are kept."""
    bare = function.__wrapped__

    assert (function.__name__, function.__doc__) == (bare.__name__, bare.__doc__)
    assert inspect.signature(function) == inspect.signature(bare)
    for ask in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        assert ask(function) == ask(bare)


@pytest.mark.parametrize("kind", ["plain", "coroutine", "generator", "async-generator"])
def test_a_decorated_function_can_end_with_its_stop(kind: str) -> None:
    """With ``on_stop="end"`` a stopped function gives None, or no further item."""
    scope = guarded_run("ends", policy=Policy(Repeat(warn_after=1, refuse_after=0, stop_after=2)), on_stop="end")

    @scope
    def plain() -> str:
        return [search("x") for _ in range(5)][-1]

    @scope
    async def coroutine() -> str:
        return [search("x") for _ in range(5)][-1]

    @scope
    def generator() -> Iterator[str]:
        for _ in range(5):
            yield search("x")

    @scope
    async def async_generator() -> AsyncIterator[str]:
        for _ in range(5):
            yield search("x")

    got = {
        "plain": plain,
        "coroutine": lambda: asyncio.run(coroutine()),
        "generator": lambda: list(generator()),
        "async-generator": lambda: asyncio.run(collected(async_generator())),
    }[kind]()

    assert got == (None if kind in ("plain", "coroutine") else ["same", "same"])
    assert not current_run()


@pytest.mark.asyncio
async def test_concurrent_calls_of_a_decorated_function_share_nothing() -> None:
    """Each has its own run, also where one scope object decorates several functions."""
    runs: list[Any] = []
    await asyncio.gather(*(coroutine(runs, 2) for _ in range(5)))

    assert len(set(map(id, runs))) == 5
    assert {run.stats.calls for run in runs} == {2}
    assert {run.parent for run in runs} == {None}


def test_the_consumer_of_a_decorated_generator_is_not_in_its_run() -> None:
    """Between two items the caller is where it was; two generators that alternate are no parent and child."""
    runs: list[Any] = []

    @guarded_run("stream")
    def stream(name: str) -> Iterator[Any]:
        runs.append(current_run())
        for _ in range(2):
            search(name)
            yield current_run()

    first, second = stream("a"), stream("b")
    for _ in range(2):
        assert next(first) is runs[0]
        assert not current_run()
        assert next(second) is runs[1]
        assert not current_run()
    with guarded_run("elsewhere") as elsewhere:
        assert list(first) == list(second) == []
        assert current_run() is elsewhere

    assert [run.parent for run in runs] == [None, None]
    assert [run.stats.calls for run in runs] == [2, 2]
    assert elsewhere.stats.calls == 0


@pytest.mark.asyncio
async def test_the_consumer_of_a_decorated_async_generator_is_not_in_its_run() -> None:
    """The same for async generators, also where several tasks take the items."""
    runs: list[Any] = []

    @guarded_run("stream")
    async def stream(name: str) -> AsyncIterator[Any]:
        runs.append(current_run())
        for _ in range(2):
            await asyncio.sleep(0)
            search(name)
            yield current_run()

    first, second = stream("a"), stream("b")
    for _ in range(2):
        assert await anext(first) is runs[0]
        assert not current_run()
        assert await asyncio.create_task(anext(second)) is runs[1]
        assert not current_run()
    async with guarded_run("elsewhere") as elsewhere:
        assert [item async for item in first] == [item async for item in second] == []
        assert current_run() is elsewhere

    assert [run.parent for run in runs] == [None, None]
    assert [run.stats.calls for run in runs] == [2, 2]


def echo(got: Any) -> Any:
    """Yields what it is sent, answers a ``KeyError``, returns ``end``."""
    while got != "stop":
        try:
            got = yield got
        except KeyError:
            got = "caught"
    return "end"


def test_a_decorated_generator_passes_send_throw_and_close() -> None:
    """The whole protocol reaches the function, and the run ends with it."""
    items = guarded_run("protocol")(echo)("first")
    assert next(items) == "first"
    assert items.send("a") == "a"
    assert items.throw(KeyError("k")) == "caught"
    with pytest.raises(StopIteration) as stop:
        items.send("stop")
    assert stop.value.value == "end"

    items = guarded_run("protocol")(echo)("first")
    next(items)
    with pytest.raises(OSError, match="o"):
        items.throw(OSError("o"))
    items = guarded_run("protocol")(echo)("first")
    next(items)
    items.close()
    assert not current_run()


@pytest.mark.asyncio
async def test_a_decorated_async_generator_passes_asend_athrow_and_aclose() -> None:
    """The whole protocol reaches the function; it has cleaned up inside its run when ``aclose`` returns."""
    cleaned: list[str] = []

    @guarded_run("protocol")
    async def stream(got: Any) -> Any:
        try:
            while got != "stop":
                try:
                    got = yield got
                except KeyError:
                    got = "caught"
        finally:
            await asyncio.sleep(0)
            cleaned.append(current_run().name)

    items = stream("first")
    assert await items.asend(None) == "first"
    assert await items.asend("a") == "a"
    assert await items.athrow(KeyError("k")) == "caught"
    with pytest.raises(StopAsyncIteration):
        await items.asend("stop")
    items = stream("first")
    await anext(items)
    with pytest.raises(OSError, match="o"):
        await items.athrow(OSError("o"))
    items = stream("first")
    await anext(items)
    await asyncio.create_task(items.aclose())

    assert cleaned == ["protocol"] * 3
    assert not current_run()


def test_a_decorated_async_generator_left_early_is_silent(unraisable: list[Any]) -> None:
    """``break`` and the end of the loop: nothing is reported, the run is closed."""
    runs: list[Any] = []
    reported: list[Any] = []
    kept: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async for _ in async_generator(runs):
            break
        kept.append(async_generator(runs))
        await anext(kept[0])

    asyncio.run(main())
    kept.clear()

    assert reported == unraisable == []
    assert not current_run()


def test_methods_can_be_decorated() -> None:
    """A method of an agent class opens a run for each call."""

    class Agent:
        @guarded_run("method")
        def work(self, times: int) -> str:
            """Work."""
            return f"{current_run().name} {times} {type(self).__name__}"

        @classmethod
        @guarded_run("class method")
        def of(cls) -> str:
            """Work."""
            return current_run().name

    assert Agent().work(2) == "method 2 Agent"
    assert Agent.of() == "class method"


@pytest.mark.asyncio
async def test_an_object_with_an_async_call_is_inside_its_run() -> None:
    """The body of the coroutine is what the run is around, not its making."""

    class Agent:
        async def __call__(self) -> str:
            await asyncio.sleep(0)
            return current_run().name

    assert await guarded_run("object")(Agent())() == "object"


def test_guarded_run_needs_a_name() -> None:
    """Used bare, it says what to write."""
    with pytest.raises(TypeError, match=r'@guarded_run\("my-agent"\)'):
        guarded_run(plain)  # type: ignore[arg-type]


def test_an_agent_that_swallows_its_stop_is_ended_all_the_same() -> None:
    """The decorated function is left with the stop, once."""

    @guarded_run("swallows", policy=Policy(Repeat(warn_after=1, refuse_after=0, stop_after=2)))
    def agent() -> str:
        for _ in range(5):
            with contextlib.suppress(Exception):
                search("x")
        return "done"

    with pytest.raises(LoopStopped):
        agent()
