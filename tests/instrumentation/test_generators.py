"""Guarded generator functions: lazy, transparent, counted once, and abandoned where they are left early."""

from __future__ import annotations

import gc
import inspect
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopguard import Limits, LoopRefused, guarded_run, guarded_tool


def echo(first: str) -> Generator[Any, Any, str]:
    """Yields what it is sent, answers a ``KeyError``, and returns ``end``."""
    got: Any = first
    while got != "stop":
        try:
            got = yield got
        except KeyError as error:
            got = f"caught {error.args[0]}"
    return "end"


@pytest.mark.scenario("ins-generator-tool-return-value")
def test_a_generator_tool_is_lazy_and_counted_when_first_advanced() -> None:
    """Making the generator executes and counts nothing; the first item does, once."""
    ran: list[str] = []

    @guarded_tool
    def tool(query: str) -> Generator[int, None, str]:
        ran.append(query)
        yield from (1, 2, 3)
        return "end"

    with guarded_run("lazy") as run:
        items = tool("x")
        assert (ran, run.stats.calls) == ([], 0)
        assert next(items) == 1
        assert (ran, run.stats.calls) == (["x"], 1)
        assert [next(items), next(items)] == [2, 3]
        with pytest.raises(StopIteration) as stop:
            next(items)
        assert run.stats.calls == 1

    assert stop.value.value == "end"
    assert run.stats.abandoned == 0


@pytest.mark.scenario("ins-generator-tool-return-value")
def test_a_generator_tool_returns_its_value_through_yield_from() -> None:
    """``yield from`` gives the return value."""

    @guarded_tool
    def tool() -> Generator[int, None, str]:
        yield from (1, 2, 3)
        return "end"

    def consumer() -> Generator[int, None, str]:
        return (yield from tool())

    with guarded_run("delegated"):
        items = consumer()
        assert [next(items) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(StopIteration) as stop:
            next(items)

    assert stop.value.value == "end"


def outcome_of(action: Callable[[], Any]) -> Any:
    """What an action gives or raises, in a form that can be compared."""
    try:
        return action()
    except BaseException as error:
        return type(error), str(error), getattr(error, "value", None)


SCRIPTS: dict[str, list[Callable[[Any], Any]]] = {
    "send": [lambda g: next(g), lambda g: g.send("a"), lambda g: g.send(0), lambda g: g.send("stop")],
    "send-none-first": [lambda g: g.send(None), lambda g: g.send(None), lambda g: next(g)],
    "send-value-first": [lambda g: g.send("a"), lambda g: next(g)],
    "throw-caught": [lambda g: next(g), lambda g: g.throw(KeyError("k")), lambda g: g.send("b")],
    "throw-passes": [lambda g: next(g), lambda g: g.throw(OSError("o")), lambda g: next(g)],
    "throw-first": [lambda g: g.throw(KeyError("k")), lambda g: next(g)],
    "throw-stop": [lambda g: next(g), lambda g: g.throw(StopIteration(5))],
    "throw-interrupt": [lambda g: next(g), lambda g: g.throw(KeyboardInterrupt()), lambda g: next(g)],
    "close": [lambda g: next(g), lambda g: g.close(), lambda g: g.close(), lambda g: next(g)],
    "close-first": [lambda g: g.close(), lambda g: next(g)],
    "over": [lambda g: next(g), lambda g: g.send("stop"), lambda g: next(g), lambda g: g.close()],
}


@pytest.mark.scenario("ins-generator-tool-return-value")
@pytest.mark.parametrize("inside", [True, False], ids=["in-a-run", "outside"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_send_throw_and_close_pass_through(script: list[Callable[[Any], Any]], inside: bool) -> None:
    """The guarded generator gives and raises what the bare one does, step by step."""
    bare = echo("first")
    expected = [outcome_of(lambda step=step: step(bare)) for step in script]
    with guarded_run("script") as run:
        if not inside:
            run.close()
        guarded = guarded_tool(echo)("first")
        actual = [outcome_of(lambda step=step: step(guarded)) for step in script]

    assert actual == expected


def test_a_generator_that_does_not_obey_close_is_an_error_as_ever() -> None:
    """A generator that yields on ``close`` raises the usual ``RuntimeError``."""

    @guarded_tool
    def stubborn() -> Iterator[int]:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    with guarded_run("stubborn"):
        items = stubborn()
        next(items)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            items.close()


def test_cleaning_up_in_the_tool_happens_before_close_returns() -> None:
    """``finally`` blocks of the tool are executed by ``close``, not later."""
    cleaned: list[int] = []

    @guarded_tool
    def tool() -> Iterator[int]:
        try:
            yield 1
        finally:
            cleaned.append(1)

    with guarded_run("clean"):
        items = tool()
        next(items)
        items.close()
        assert cleaned == [1]


def test_a_loop_of_generators_stops_before_the_first_item(three: Any) -> None:
    """The digest of what was yielded is the outcome; a refused call raises before its body begins."""
    ran: list[str] = []

    @guarded_tool
    def tool(query: str) -> Iterator[str]:
        ran.append(query)
        yield "a"
        yield "b"

    with guarded_run("loop", policy=three) as run:
        for _ in range(3):
            assert list(tool("x")) == ["a", "b"]
        with pytest.raises(LoopRefused):
            next(iter(tool("x")))

    assert len(ran) == 3
    assert run.findings[0].action == "warn"


def test_generators_that_yield_something_else_each_time_are_no_loop(three: Any) -> None:
    """A different item, another order, or one item more, is another outcome."""
    results = iter([["a", "b"], ["b", "a"], ["a", "b", "c"], ["a"], [], ["ab"]])

    @guarded_tool
    def tool(query: str) -> Iterator[str]:
        yield from next(results)

    with guarded_run("progress", policy=three) as run:
        for _ in range(6):
            list(tool("x"))

    assert run.findings == ()


def test_a_refused_generator_can_give_a_text_instead(three: Any) -> None:
    """With ``on_refuse="return"`` the refusal is the only item and the return value."""

    @guarded_tool
    def tool(query: str) -> Iterator[str]:
        yield "a"

    with guarded_run("told", policy=three, on_refuse="return"):
        for _ in range(3):
            list(tool("x"))
        (item,) = tool("x")

    assert item.startswith("Not executed: `tool`")


def test_a_generator_that_fails_is_a_failure() -> None:
    """An exception after some items is a failed call, and its repetition is seen."""

    @guarded_tool
    def tool(query: str) -> Iterator[int]:
        yield 1
        raise OSError("disk full")

    with guarded_run("failing") as run:
        for _ in range(3):
            with pytest.raises(OSError, match="disk full"):
                list(tool("x"))

    assert run.stats.failed == 3
    assert [finding.rule for finding in run.findings] == ["failing"]


def by_close(items: Iterator[int]) -> None:
    """Leave by ``close``."""
    next(items)
    items.close()  # type: ignore[attr-defined]


def by_break(items: Iterator[int]) -> None:
    """Leave by ``break``."""
    for _ in items:
        break


def by_dropping(items: Iterator[int]) -> None:
    """Leave by forgetting it."""
    next(items)


@pytest.mark.scenario("ins-generator-stopped-early")
@pytest.mark.parametrize("leave", [by_close, by_break, by_dropping])
def test_generators_left_early_leave_nothing_behind(leave: Callable[[Iterator[int]], None]) -> None:
    """Thousands of uses, each left after one item: nothing in flight, no memory, abandoned and no repetition."""

    @guarded_tool
    def tool(query: str) -> Iterator[int]:
        yield 1
        yield 2

    with guarded_run("early", limits=Limits(soft_calls=0)) as run:
        for _ in range(100):
            leave(tool("x"))
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(3_300):
                leave(tool("x"))
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert list(tool("x")) == [1, 2]

    assert grown < 10_000
    assert run.stats.abandoned == 3_400
    assert run.stats.calls == 3_401
    assert run.findings == ()
    assert run.max_operation_count() == 1


def test_generators_that_are_open_count_as_in_flight(three: Any) -> None:
    """Three are being read: a fourth is refused, and admitted again when one was left."""

    @guarded_tool
    def tool(query: str) -> Iterator[int]:
        yield 1
        yield 2

    with guarded_run("open", policy=three):
        items = [tool("x") for _ in range(3)]
        for one in items:
            next(one)
        with pytest.raises(LoopRefused):
            next(tool("x"))
        items.pop().close()
        assert next(tool("x")) == 1
        for one in items:
            one.close()


def test_the_span_of_a_generator_is_current_only_in_its_body(exporter: InMemorySpanExporter) -> None:
    """Between two items the consumer's span is current; one span covers the whole call."""
    inside: list[trace.Span] = []

    @guarded_tool
    def tool() -> Iterator[int]:
        for n in range(2):
            inside.append(trace.get_current_span())
            yield n

    with guarded_run("traced"):
        for _ in tool():
            assert trace.get_current_span() is trace.INVALID_SPAN
        closed_early = tool()
        next(closed_early)
        closed_early.close()

    assert trace.get_current_span() is trace.INVALID_SPAN
    assert [span.name for span in exporter.get_finished_spans()] == ["execute_tool tool"] * 2
    assert inside[0] is inside[1]
    assert inside[0].get_span_context() == exporter.get_finished_spans()[0].get_span_context()


def test_a_generator_read_after_the_run_raises_nothing() -> None:
    """The rest of the items can be had when the run is closed; the late end is dropped."""

    @guarded_tool
    def tool() -> Iterator[int]:
        yield from (1, 2, 3)

    with guarded_run("over") as run:
        items = tool()
        assert next(items) == 1

    assert list(items) == [2, 3]
    assert run.findings == ()
    assert inspect.getgeneratorstate(items) == inspect.GEN_CLOSED
