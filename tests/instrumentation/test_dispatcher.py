"""Hand-written agents: one place for all tools, called by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopguard import (
    Limits,
    LoopRefused,
    Nudge,
    Policy,
    RunStopped,
    ToolCallRefused,
    current_run,
    guarded_run,
    guarded_tool,
)


def dispatch(name: str, args: dict[str, Any]) -> str:
    """What executes the tools of this agent."""
    if name == "broken":
        raise OSError("disk full")
    return f"{name} {sorted(args)}"


def test_a_dispatcher_is_guarded_by_one_block(three: Policy) -> None:
    """Three equal calls are executed, the fourth raises when the block is entered."""
    executed: list[str] = []
    refused: list[str] = []
    with guarded_run("dispatcher", policy=three) as run:
        for n in range(5):
            try:
                with run.call("search", {"query": "x"}, id=f"call_{n}") as call:
                    executed.append(call.id or "")
                    call.result = dispatch("search", {"query": "x"})
            except LoopRefused as error:
                refused.append(error.tool)
        with run.call("search", {"query": "y"}) as call:
            call.result = dispatch("search", {"query": "y"})

    assert executed == ["call_0", "call_1", "call_2"]
    assert refused == ["search", "search"]
    assert call.seq == 6
    assert (run.stats.calls, run.stats.refused) == (4, 2)


@pytest.mark.asyncio
async def test_an_async_dispatcher_is_guarded_by_one_block(three: Policy) -> None:
    """The same with ``async with``, gathered: siblings in flight count."""
    executed: list[str] = []

    async def one(run: Any, name: str) -> str:
        try:
            async with run.call(name, {"query": "x"}) as call:
                executed.append(name)
                await asyncio.sleep(0)
                call.result = dispatch(name, {"query": "x"})
        except LoopRefused as refused:
            return refused.for_model()
        return str(call.result)

    async with guarded_run("dispatcher", policy=three) as run:
        results = await asyncio.gather(*(one(run, "search") for _ in range(6)), one(run, "other"))

    assert executed == ["search"] * 3 + ["other"]
    assert sum(result.startswith("Not executed: `search`") for result in results) == 3
    assert (run.stats.calls, run.stats.refused) == (4, 3)


def test_the_order_of_keys_is_no_part_of_the_call(three: Policy) -> None:
    """Equal mappings are the same call; None is a call without arguments."""
    with guarded_run("keys", policy=three) as run:
        for args in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2}):
            run.begin("search", args).finish("same")
        with pytest.raises(LoopRefused):
            run.begin("search", {"b": 2, "a": 1})
        for args in (None, {}, None):
            run.begin("status", args).finish("same")
        with pytest.raises(LoopRefused):
            run.begin("status")


def test_begin_is_ended_by_hand(three: Policy) -> None:
    """``finish`` gives the result, ``fail`` is a failure, ``abandon`` no outcome; only the first end counts."""
    with guarded_run("by hand", policy=three) as run:
        assert run.begin("search", {"q": 1}).finish("text") == "text"
        run.begin("search", {"q": 2}).fail(OSError("disk full"))
        run.begin("search", {"q": 3}).abandon()
        call = run.begin("search", {"q": 4})
        call.abandon()
        call.finish("late")
        call.fail(OSError())
        run.begin("search", {"q": 5}).fail(asyncio.CancelledError())

    assert (run.stats.calls, run.stats.failed, run.stats.abandoned) == (5, 1, 3)
    assert call.result is None


def test_an_exception_that_leaves_the_block_is_a_failure() -> None:
    """It passes, and its repetition is refused."""
    with guarded_run("failing") as run:
        for _ in range(5):
            with pytest.raises(OSError, match="disk full"), run.call("broken", {}) as call:
                call.result = dispatch("broken", {})
        with pytest.raises(LoopRefused), run.call("broken", {}):
            pytest.fail("executed")

    assert (run.stats.failed, run.stats.refused) == (5, 1)
    assert [finding.rule for finding in run.findings] == ["failing", "failing"]


@pytest.mark.asyncio
async def test_a_cancelled_block_is_abandoned() -> None:
    """A cancellation is no failure."""
    started = asyncio.Event()

    async def one(run: Any) -> None:
        async with run.call("slow", {}):
            started.set()
            await asyncio.Event().wait()

    async with guarded_run("cancelled") as run:
        task = asyncio.create_task(one(run))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert (run.stats.failed, run.stats.abandoned) == (0, 1)


@pytest.mark.parametrize("how", ["raise", "return", "callable"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refused_block_is_not_entered(three: Policy, how: str, asynchronous: bool) -> None:
    """A block cannot be skipped from within: it raises, whatever ``on_refuse`` says, and the tool does not run."""
    on_refuse: Any = how if how != "callable" else lambda refused: {"error": refused.tool}
    executed = refused = 0

    async def once(run: Any) -> None:
        nonlocal executed
        if asynchronous:
            async with run.call("search", {"query": "x"}) as call:
                executed += 1
                call.result = "same"
            return
        with run.call("search", {"query": "x"}) as call:
            executed += 1
            call.result = "same"

    with guarded_run("refused", policy=three, on_refuse=on_refuse) as run:
        for _ in range(4):
            try:
                asyncio.run(once(run))
            except ToolCallRefused:
                refused += 1
        with pytest.raises(ToolCallRefused):
            run.begin("search", {"query": "x"})

    assert (executed, refused) == (3, 1)
    assert (run.stats.calls, run.stats.refused) == (3, 2)


def test_a_block_without_a_result_has_an_unknown_outcome(three: Policy) -> None:
    """Who forgot to set ``call.result`` is not told of a loop: an unknown outcome equals nothing."""
    with guarded_run("forgotten", policy=three) as run:
        for _ in range(9):
            with run.call("search", {"query": "x"}):
                pass

    assert (run.stats.calls, run.stats.refused, run.findings) == (9, 0, ())


def test_a_nudge_carries_the_id_of_its_call() -> None:
    """``id`` of the call that completed the pattern, in the queue and for a callable; None where none was given."""
    heard: list[Nudge] = []
    for on_warn in ("queue", heard.append):
        with guarded_run("ids", on_warn=on_warn) as run:  # type: ignore[arg-type]
            for n in range(3):
                run.begin("search", {"query": "x"}, id=f"call_{n}").finish("same")
            for _ in range(3):
                with run.call("other", {"query": "x"}) as call:
                    call.result = "same"
            heard += run.pop_nudges()

    assert [(nudge.tool, nudge.call_id) for nudge in heard] == [("search", "call_2"), ("other", None)] * 2


def test_a_nudge_can_be_appended_to_the_result() -> None:
    """With ``on_warn="append"`` ``finish`` and the block's result carry it."""
    with guarded_run("append", on_warn="append") as run:
        texts = [run.begin("search", {"query": "x"}).finish("same") for _ in range(3)]
        for _ in range(3):
            with run.call("other", {}) as call:
                call.result = "same"

    assert texts[:2] == ["same", "same"]
    assert texts[2].startswith("same\n\n[Note: `search`")
    assert call.result.startswith("same\n\n[Note: `other`")


def test_a_declared_tool_is_called_by_name(three: Policy) -> None:
    """The table says what the key is, what is ignored and what changes something."""
    tools = {"edit": {"primary": "path", "kind": "read", "ignored": ["note"]}}
    with guarded_run("declared", policy=three, tools=tools) as run:
        for n in range(3):
            run.begin("edit", {"path": "a.py", "note": str(n), "more": n}).finish("same")
        with pytest.raises(LoopRefused) as refused:
            run.begin("edit", {"path": "a.py"})

    assert 'path "a.py"' in refused.value.for_model()


# -- guarded tools inside a block -----------------------------------------------------------------------------------


def test_a_guarded_tool_inside_its_block_is_that_call(three: Policy) -> None:
    """Counted once, by the block's arguments; a second call inside the block counts for itself."""
    ran: list[str] = []

    @guarded_tool
    def search(query: str) -> str:
        ran.append(query)
        return "same"

    @guarded_tool
    def other(query: str) -> str:
        return search(query)

    with guarded_run("inside", policy=three) as run:
        for _ in range(3):
            with run.call("search", {"query": "x"}) as call:
                call.result = search("x")
        assert run.stats.calls == 3
        with pytest.raises(LoopRefused), run.call("search", {"query": "x"}):
            pytest.fail("executed")
        with run.call("search", {"query": "y"}) as call:
            call.result = search("y") + search("z")
        assert run.stats.calls == 5
        with run.call("other", {"query": "w"}) as call:
            call.result = other("w")
        assert run.stats.calls == 7
        with run.call("search", {"query": "v"}) as call:
            call.result = other("v")
        assert run.stats.calls == 9

    assert ran == ["x"] * 3 + ["y", "z", "w", "v"]


@pytest.mark.asyncio
async def test_guarded_tools_inside_gathered_blocks_are_those_calls(lenient: Policy) -> None:
    """Blocks that run side by side, in tasks and threads, each claim their own tool."""

    @guarded_tool
    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        return "same"

    @guarded_tool
    def read(path: str) -> str:
        return "same"

    async def one(run: Any, n: int) -> None:
        async with run.call("fetch", {"url": n}) as call:
            call.result = await asyncio.create_task(fetch(str(n)))
        async with run.call("read", {"path": n}) as call:
            call.result = await asyncio.to_thread(read, str(n))
        async with run.call("read", {"path": -n}) as call:
            call.result = await asyncio.get_running_loop().run_in_executor(None, run.bind(read), str(n))

    async with guarded_run("gathered", policy=lenient) as run:
        await asyncio.gather(*(one(run, n) for n in range(1, 6)))

    assert run.stats.calls == 15
    assert run.dispatching == 0


def test_a_guarded_tool_in_a_block_is_one_span(exporter: InMemorySpanExporter) -> None:
    """The call has one span, the block's, with the model's id."""

    @guarded_tool
    def search(query: str) -> str:
        return "same"

    with guarded_run("span") as run, run.call("search", {"query": "x"}, id="call_7") as call:
        call.result = search("x")

    (span,) = exporter.get_finished_spans()
    assert span.name == "execute_tool search"
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.call.id"] == "call_7"


def test_a_tool_that_fails_inside_its_block_is_one_failure() -> None:
    """Counted once where it passes through both."""

    @guarded_tool
    def search(query: str) -> str:
        raise OSError("disk full")

    with guarded_run("failing") as run:
        for _ in range(3):
            with pytest.raises(OSError, match="disk full"), run.call("search", {"query": "x"}):
                search("x")

    assert (run.stats.calls, run.stats.failed) == (3, 3)
    assert [finding.action for finding in run.findings] == ["warn"]


# -- limits, rounds, stops ------------------------------------------------------------------------------------------


def test_rounds_said_by_the_caller_make_one_decision() -> None:
    """Siblings of one reply that are refused are one refusal; the sixth round of them ends the run."""
    with pytest.raises(RunStopped), guarded_run("rounds") as run:
        for _ in range(5):
            run.round()
            run.begin("search", {"query": "x"}).finish("same")
        for siblings in (4, 4, 4, 4, 1):
            run.round()
            for _ in range(siblings):
                with pytest.raises(LoopRefused):
                    run.begin("search", {"query": "x"})
        run.round()
        run.begin("search", {"query": "x"})

    assert run.stats.refused == 18


def test_limits_hold_for_calls_by_name() -> None:
    """The third call of two allowed ones ends the run."""
    with pytest.raises(RunStopped), guarded_run("limits", limits=Limits(calls=2)) as run:
        for n in range(3):
            run.begin("search", {"n": n}).finish(str(n))

    assert run.stats.calls == 2


def test_without_a_run_the_same_code_works() -> None:
    """``current_run()`` outside a run takes everything: the dispatcher needs no second path."""
    run = current_run()
    with run.call("search", {"query": "x"}) as call:
        call.result = "text"
    begun = run.begin("search", {"query": "x"}, id="call_1")

    async def asynchronous() -> Any:
        async with run.call("search") as call:
            call.result = "text"
        return call.result

    assert not run
    assert not run.active
    assert call.result == "text"
    assert begun.finish("text") == begun.result == "text"
    assert asyncio.run(asynchronous()) == "text"
    begun.fail(OSError())
    begun.abandon()
    assert run.round() == 0
    assert run.pop_nudges() == []
    assert run.stats.calls == 0


# -- run.bind -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "coroutine", "generator", "async-generator", "async-callable"])
def test_bind_makes_the_run_current_for_every_kind_of_function(kind: str) -> None:
    """In another thread, without its context, the body sees the run; afterwards that thread does not."""

    def plain() -> str:
        return current_run().name

    async def coroutine() -> str:
        await asyncio.sleep(0)
        return current_run().name

    def generator() -> Any:
        yield current_run().name
        yield current_run().name

    async def async_generator() -> Any:
        yield current_run().name
        await asyncio.sleep(0)
        yield current_run().name

    class Callable_:
        async def __call__(self) -> str:
            return await coroutine()

    async def collect(items: Any) -> list[str]:
        found = []
        async for item in items:
            assert not current_run()
            found.append(item)
        return found

    def use(bound: Any) -> tuple[Any, bool]:
        if kind == "plain":
            seen = bound()
        elif kind in ("coroutine", "async-callable"):
            seen = asyncio.run(bound())
        elif kind == "generator":
            seen = []
            for item in bound():
                assert not current_run()
                seen.append(item)
        else:
            seen = asyncio.run(collect(bound()))
        return seen, bool(current_run())

    function: Callable[..., Any] = {
        "plain": plain,
        "coroutine": coroutine,
        "generator": generator,
        "async-generator": async_generator,
        "async-callable": Callable_(),
    }[kind]
    with guarded_run("bound") as run, ThreadPoolExecutor(1) as pool:
        seen, current_after = pool.submit(use, run.bind(function)).result()

    assert seen in ("bound", ["bound", "bound"])
    assert current_after is False


@pytest.mark.asyncio
async def test_bind_wins_over_the_run_around_the_call() -> None:
    """Called inside another run, the bound function is in its own; the other is current again afterwards."""

    async def coroutine() -> str:
        return current_run().name

    async with guarded_run("first") as first:
        bound = first.bind(coroutine)
        bound_plain = first.bind(lambda: current_run().name)
    async with guarded_run("second") as second, guarded_run("third") as third:
        over = second.bind(coroutine)
        assert await over() == "second"
        assert second.bind(lambda: current_run().name)() == "second"
        assert current_run() is third
        assert not await bound()
        assert not bound_plain()


def test_bind_keeps_name_and_raises_what_the_function_raises() -> None:
    """A bound function looks like the function."""

    def named(x: int) -> float:
        """Docstring."""
        return 1 / x

    with guarded_run("bound") as run:
        bound = run.bind(named)
        with pytest.raises(ZeroDivisionError):
            bound(0)

    assert (bound.__name__, bound.__doc__) == ("named", "Docstring.")
    assert bound(2) == 0.5
