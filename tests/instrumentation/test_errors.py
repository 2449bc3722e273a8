"""Errors around the guard: retries, the identity of an error, what an exception keeps alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tenacity

from loopguard import Failing, LoopRefused, Policy, RunStopped, ToolCallRefused, guarded_run, guarded_tool

# -- retries ----------------------------------------------------------------------------------------------------------


def retried(**options: Any) -> Any:
    """tenacity without waits, with its default predicate: any exception, here at most four attempts."""
    options.setdefault("retry", tenacity.retry_if_exception_type(Exception))
    return tenacity.retry(stop=tenacity.stop_after_attempt(4), wait=tenacity.wait_none(), **options)


@pytest.mark.scenario("ins-retry-decorator-order")
def test_a_retry_outside_asks_again_for_a_refused_call() -> None:
    """tenacity outside the guard retries a refusal; no attempt executes, and asking on ends the run."""
    executed = []

    @retried(reraise=True)
    @guarded_tool
    def search(query: str) -> str:
        executed.append(query)
        return "same"

    with pytest.raises(RunStopped), guarded_run("r") as run:
        for _ in range(5):
            search("x")
        with pytest.raises(ToolCallRefused):
            search("x")
        assert (len(executed), run.stats.refused) == (5, 4)
        search("x")
    assert len(executed) == 5
    assert run.stats.refused > 5
    assert run.stopped is not None


@pytest.mark.scenario("ins-retry-decorator-order")
def test_a_predicate_excludes_refusals_from_a_retry() -> None:
    """With ``retry_if_not_exception_type`` a refusal and a stop come through at the first attempt."""
    executed = []

    @retried(retry=tenacity.retry_if_not_exception_type((ToolCallRefused, RunStopped)))
    @guarded_tool
    def search(query: str) -> str:
        executed.append(query)
        return "same"

    with guarded_run("r") as run:
        for _ in range(5):
            search("x")
        with pytest.raises(LoopRefused):
            search("x")
        assert (len(executed), run.stats.refused) == (5, 1)


@pytest.mark.scenario("ins-retry-decorator-order")
def test_a_retry_inside_is_one_guarded_call() -> None:
    """The tool's own retries below the guard are one call, whatever happened in between."""
    attempts = []

    @guarded_tool
    @retried()
    def fetch(url: str) -> str:
        attempts.append(url)
        if len(attempts) % 3:
            raise ConnectionError("try again")
        return f"page {len(attempts)}"

    with guarded_run("r") as run:
        assert fetch("a") == "page 3"
        assert (run.stats.calls, run.stats.failed, len(attempts)) == (1, 0, 3)


@pytest.mark.scenario("ins-retry-decorator-order")
@pytest.mark.asyncio
async def test_the_order_counts_for_coroutines_too() -> None:
    """An async retry outside sees the refusals, one inside is one call."""
    executed = []

    async def search(query: str) -> str:
        executed.append(query)
        return "same"

    outside = retried(reraise=True)(guarded_tool(search))
    inside = guarded_tool(retried()(search))
    with guarded_run("r") as run:
        for _ in range(5):
            await outside("x")
        with pytest.raises(ToolCallRefused):
            await outside("x")
        assert (len(executed), run.stats.refused) == (5, 4)
    with guarded_run("r") as run:
        await inside("x")
        assert run.stats.calls == 1


# -- the identity of an error -----------------------------------------------------------------------------------------


def repetitions(*errors: Exception, calls: int | None = None) -> int:
    """How often the last error counts as repeated, after one call per error."""
    given = iter(errors)

    @guarded_tool
    def check(path: str) -> str:
        raise next(given)

    found: list[int] = []
    policy = Policy(Failing(warn_after=2, final_warn_after=2, transient_warn_after=2))
    with guarded_run("r", policy=policy, on_finding=lambda finding: found.append(finding.repetitions)) as run:
        for error in errors:
            with pytest.raises(type(error)):
                check("a")
        evidence = [e for rule in run.policy.rules if rule.name == "failing" for e in rule.scan(run.engine, None)]
    return max((e.done for e in evidence), default=0)


@pytest.mark.scenario("ins-error-identity-stable")
@pytest.mark.parametrize(
    "texts",
    [
        ("cannot open /tmp/tmpab12/x.log", "cannot open /tmp/tmpzz98/y.log", "cannot open /tmp/a"),
        ("<Conn at 0x7f3e1c00aa10> died", "<Conn at 0x7f3e1c00bb20> died", "<Conn at 0x55d2c3b4a010> died"),
        (
            "job 7c9e6679-7425-40de-944b-e07fc1f90ae7 lost",
            "job 0198c2f4-0000-7000-8000-0123456789ab lost",
            "job 3f2504e0-4f89-11d3-9a0c-0305e82c3301 lost",
        ),
        ("line 12: no", "line 340: no", "line 7: no"),
        ("2026-01-02T03:04:05Z no", "2026-01-02T03:04:06.123Z no", "2025-12-31 23:59:59 no"),
        ("gave up after 1.2 s", "gave up after 37 s", "gave up after 0.4s"),
    ],
    ids=["temp path", "address", "uuid", "line", "time", "duration"],
)
def test_volatile_parts_of_an_error_do_not_count(texts: tuple[str, ...]) -> None:
    """Errors that differ in temp path, address, UUID, line, time or duration are one error."""
    assert repetitions(*map(ValueError, texts)) == 3


@pytest.mark.scenario("ins-error-identity-stable")
def test_the_type_of_an_error_counts() -> None:
    """The same message of another type is another error."""
    assert repetitions(ValueError("no"), KeyError("no"), ValueError("no")) == 1


@pytest.mark.scenario("ins-error-identity-stable")
def test_numbers_that_carry_meaning_count() -> None:
    """An error that says "3 failed" is not one that says "2 failed": the agent gets on."""
    texts = ("3 failed, 1 passed", "2 failed, 2 passed", "1 failed, 3 passed")
    assert repetitions(*map(AssertionError, texts)) == 1
    assert repetitions(*map(AssertionError, [texts[0]] * 3)) == 3


@pytest.mark.scenario("ins-error-identity-stable")
def test_a_stable_message_counts() -> None:
    """Another sentence of the same type is another error."""
    assert repetitions(ValueError("no such table: a"), ValueError("no such column: b")) == 1


@pytest.mark.scenario("ins-error-identity-stable")
def test_an_error_that_cannot_be_printed_is_an_error_like_others() -> None:
    """A ``__str__`` that raises breaks nothing, and the error is counted by its type."""

    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert repetitions(HostileError(), HostileError(), HostileError()) == 3


# -- what an exception keeps alive ------------------------------------------------------------------------------------


class Big:
    """An argument that can be watched."""


class BrokenError(ValueError):
    """An exception that can be watched; a built-in one cannot."""


def _raising(kind: str) -> Callable[[Big], Any]:
    @guarded_tool
    def load(thing: Big) -> str:
        raise BrokenError("broken")

    @guarded_tool
    def stream(thing: Big) -> Any:
        yield "item"
        raise BrokenError("broken")

    if kind == "call":
        return load
    return lambda thing: list(stream(thing))


@pytest.mark.scenario("ins-exception-does-not-keep-arguments")
@pytest.mark.parametrize("kind", ["call", "stream"])
def test_a_raised_error_keeps_no_argument_alive(kind: str) -> None:
    """Once the caller let go of argument and exception, nothing of an open run holds them."""
    load = _raising(kind)
    with guarded_run("r") as run:
        thing = Big()
        watch = weakref.ref(thing)
        for _ in range(4):
            try:
                load(thing)
            except BrokenError as error:
                raised = weakref.ref(error)
        assert run.findings
        del thing
        gc.collect()
        assert watch() is None
        assert raised() is None


@pytest.mark.scenario("ins-exception-does-not-keep-arguments")
def test_a_result_is_not_kept_alive() -> None:
    """The run keeps digests and excerpts, not what a tool returned."""
    results: list[weakref.ref[Any]] = []

    @guarded_tool
    def load(path: str) -> Big:
        result = Big()
        results.append(weakref.ref(result))
        return result

    with guarded_run("r"):
        load("a")
        gc.collect()
        assert results[0]() is None


@pytest.mark.scenario("ins-exception-does-not-keep-arguments")
def test_refusals_and_stops_keep_no_argument_alive() -> None:
    """A refusal, a stop and the error at the end of the block are fresh and hold only texts."""

    @dataclass
    class Named:
        """Has a canonical form, so that its calls may be refused."""

        name: str = "a"

    @guarded_tool
    def look(thing: Named) -> str:
        return "same"

    scope = guarded_run("r", on_stop="end")
    with scope as run:
        thing = Named()
        watch = weakref.ref(thing)
        raised = []
        for _ in range(12):
            try:
                look(thing)
            except (ToolCallRefused, RunStopped) as error:
                raised.append(type(error).__name__)
        assert raised[0] == "LoopRefused"
        assert raised[-1] == "LoopStopped"
        del thing
        gc.collect()
        assert watch() is None
        assert run.stopped is not None


@pytest.mark.scenario("ins-exception-does-not-keep-arguments")
def test_run_call_keeps_no_argument_alive() -> None:
    """The same through ``run.call``: the call object goes with its block."""
    with guarded_run("r") as run:
        thing = Big()
        watch = weakref.ref(thing)
        for _ in range(3):
            with pytest.raises(ValueError, match="broken"), run.call("load", {"thing": thing}):
                raise ValueError("broken")
        del thing
        gc.collect()
        assert watch() is None


@pytest.mark.parametrize("args", [(), (["a"],), ({"k": 1},), ("x",), (2**70,)])
def test_a_failing_tool_is_executed_once(args: tuple[Any, ...]) -> None:
    """What a tool raises is its own, whatever its arguments are: one attempt, one execution, one operation."""
    executed = []

    @guarded_tool
    def tool(*values: Any) -> None:
        executed.append(values)
        raise ValueError("no")

    @guarded_tool
    def one(value: Any = None) -> None:
        executed.append(value)
        raise ValueError("no")

    with guarded_run("r") as run:
        for _ in range(2):  # the first call makes the tool known to the run, the second goes the short way
            for guarded in (tool, one):
                with pytest.raises(ValueError, match="no"):
                    guarded(*args)

    assert len(executed) == 4
    assert run.stats.calls == 4
