"""What one guarded call costs, as a ratio to a do-nothing wrapt wrapper around the same function."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import Any

import wrapt
from xxhash import xxh3_64_intdigest

from benchmarks.timing import Ratio, in_turns, in_turns_async
from loopguard import (
    Cycle,
    Failing,
    Limits,
    Policy,
    Poll,
    Repeat,
    Run,
    SameError,
    Telemetry,
    configure,
    guarded_run,
    guarded_tool,
)

#: Without the warning at 1,000 calls, which would be the only thing that happens.
NO_LIMIT = Limits(soft_calls=0)


def do_nothing(function: Callable[..., Any]) -> Any:
    """The measure of all: a wrapt wrapper that only calls."""
    return wrapt.FunctionWrapper(function, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))


def short() -> Callable[[Any], str]:
    """A tool with short, distinct results."""
    numbers = count()

    def search(query: str) -> str:
        return f"result {next(numbers)} of the search"

    return search


def short_async() -> Callable[[Any], Any]:
    """The same as a coroutine function."""
    numbers = count()

    async def search(query: str) -> str:
        return f"result {next(numbers)} of the search"

    return search


def text_of(size: int) -> Callable[[Any], str]:
    """A tool with results of this many characters, each different."""
    rest = "x" * size
    numbers = count()

    def read(path: str) -> str:
        return f"{next(numbers)}{rest}"

    return read


def tree() -> Callable[[Any], dict[str, Any]]:
    """A tool with small structured results."""
    numbers = count()

    def look_up(name: str) -> dict[str, Any]:
        return {"id": next(numbers), "name": name, "tags": ["a", "b"], "active": True}

    return look_up


def in_run(
    make: Callable[[], Callable[[Any], Any]], argument: Callable[[int], Any], rounds: int, **options: Any
) -> Ratio:
    """One guarded function inside a run against the do-nothing wrapper."""
    with guarded_run("bench", **{"limits": NO_LIMIT, **options}):
        return in_turns(do_nothing(make()), guarded_tool(make()), argument, rounds=rounds)


def encoded_and_digested(function: Callable[[Any], str]) -> Callable[[Any], Any]:
    """The floor for large texts: call it, encode once, digest once."""

    def call(argument: Any) -> Any:
        return xxh3_64_intdigest(function(argument).encode())

    return call


def by_hand(function: Callable[[Any], Any], provider: Any, meters: Any) -> Callable[[Any], Any]:
    """The same telemetry written by hand: a span that is current during the call, and one histogram record."""
    from time import time_ns

    from opentelemetry import context, trace

    tracer = trace.get_tracer("by-hand", tracer_provider=provider)
    record = meters.get_meter("by-hand").create_histogram("gen_ai.execute_tool.duration", unit="s").record
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "loopguard.run.id": "0198c2a7-0000-7000-8000-000000000000",
    }
    labels = {"gen_ai.tool.name": "search", "gen_ai.tool.type": "function"}
    numbers = count()

    def call(argument: Any) -> Any:
        started = time_ns()
        span = tracer.start_span(
            "execute_tool search", attributes={**attributes, "loopguard.call.seq": next(numbers)}, start_time=started
        )
        token = context.attach(trace.set_span_in_context(span))
        try:
            return function(argument)
        finally:
            ended = time_ns()
            record((ended - started) / 1e9, labels)
            context.detach(token)
            span.end(ended)

    return call


def with_sdk(rounds: int) -> Ratio:
    """A guarded call with the SDK against the same telemetry written by hand."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Discard(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    meters = MeterProvider([InMemoryMetricReader()])
    with (
        configure(telemetry=Telemetry(tracer_provider=provider, meter_provider=meters)),
        guarded_run("bench", limits=NO_LIMIT),
    ):
        ratio = in_turns(
            by_hand(short(), provider, meters), guarded_tool(short()), lambda i: f"query {i}", batch=200, rounds=rounds
        )
    provider.shutdown()
    return ratio


def rows(quick: bool) -> list[tuple[str, Ratio, str]]:
    """All rows: what, the ratio, and the budget that it has to keep."""
    rounds = 15 if quick else 61
    distinct = lambda i: f"query {i}"  # noqa: E731 - an argument for each call
    same = lambda i: "query"  # noqa: E731
    found: list[tuple[str, Ratio, str]] = []
    found.append(
        ("sync, outside a run", in_turns(do_nothing(short()), guarded_tool(short()), distinct, rounds=rounds), "1.5")
    )
    found.append(("sync, in a run, new arguments", in_run(short, distinct, rounds), "4 (5)"))
    found.append(("sync, in a run, same arguments, new results", in_run(short, same, rounds), "4 (5)"))
    with guarded_run("bench", limits=NO_LIMIT):
        ratio = in_turns_async(do_nothing(short_async()), guarded_tool(short_async()), distinct, rounds)
    found.append(("async, in a run, new arguments", ratio, ""))
    found.append(("dict results", in_run(tree, distinct, rounds), ""))
    found.append(("10 KB results", in_run(lambda: text_of(10_000), distinct, rounds), ""))
    with guarded_run("bench", limits=NO_LIMIT):
        big = in_turns(
            encoded_and_digested(text_of(1_000_000)),
            guarded_tool(text_of(1_000_000)),
            distinct,
            batch=10,
            rounds=rounds,
        )
    found.append(("1 MB results, against one encode and digest", big, "1.5"))
    found.append(("with the SDK, against the same telemetry by hand", with_sdk(rounds), "1.25"))
    return found


def each_rule(rounds: int) -> list[tuple[str, Ratio, str]]:
    """What a rule adds: the default policy and the one without it, measured in turns against each other."""
    added = []
    for rule in (Repeat, Failing, Cycle, SameError, Poll):
        lean = opened("lean", policy=Policy(rule.off()))
        full = opened("full")
        theirs, ours = lean.bind(guarded_tool(short())), full.bind(guarded_tool(short()))
        base = in_turns(do_nothing(short()), theirs, lambda i: f"query {i}", rounds=rounds)
        both = in_turns(theirs, ours, lambda i: f"query {i}", rounds=rounds)
        lean.close()
        full.close()
        difference = (both.median - 1) * base.median
        added.append((f"{rule.__name__} adds", Ratio(difference, difference, difference, 0, 0), "+0.15"))
    return added


def opened(name: str, **options: Any) -> Run:
    """A run beside others, not inside one."""
    return Context().run(guarded_run(name, limits=NO_LIMIT, **options).__enter__)


def table(quick: bool) -> str:
    """The table as Markdown."""
    lines = ["### One call", "", "| what | ratio | budget |", "| --- | --- | --- |"]
    for what, ratio, budget in rows(quick):
        lines.append(f"| {what} | {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) | {budget} |")
    for what, ratio, budget in each_rule(15 if quick else 31):
        lines.append(f"| {what} | {ratio.median:+.2f} | {budget} |")
    return "\n".join(lines)
