"""`loopguard.testing` and its pytest plugin, as users of them see it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

import loopguard
from loopguard import (
    Failing,
    LoopDetected,
    RunStopped,
    ToolCallRefused,
    _safety,
    config,
    configure,
    guarded_run,
    guarded_tool,
    scope,
)
from loopguard.run import Run
from loopguard.testing import (
    Ask,
    Script,
    ScriptedAgent,
    ScriptError,
    always,
    assert_guarded,
    capture_events,
    fake_clock,
)

PACKAGE_PARENT = Path(loopguard.__file__).parents[1]
#: Where loopguard is not installed but on the path, pytest has to be told of its plugin.
PLUGIN = (
    []
    if any(e.value == "loopguard.pytest_plugin" for e in importlib.metadata.entry_points(group="pytest11"))
    else ["-p", "loopguard.pytest_plugin"]
)
pytest_plugins = ["pytester", *PLUGIN[1:]]


@guarded_tool
def search(query: str) -> str:
    """A tool that finds nothing."""
    return "no results"


@guarded_tool
async def fetch(url: str) -> str:
    """An asynchronous tool."""
    await asyncio.sleep(0)
    return f"page of {url}"


def bare(query: str) -> str:
    """A tool that is not guarded."""
    return "no results"


# -- capture_events ------------------------------------------------------------------------------------------------


def test_capture_collects_all_runs_inside() -> None:
    """Findings, actions, calls, nudges and runs of every run that is opened inside, in order, and of no other."""
    with guarded_run("before") as before, capture_events() as events:
        for name in ("one", "two"):
            with guarded_run(name):
                for _ in range(3):
                    search("x")
    with guarded_run("after"):
        search("x")

    assert events.actions == ["warn", "warn"]
    assert [finding.run_name for finding in events.findings] == ["one", "two"]
    assert [nudge.tool for nudge in events.nudges] == ["search", "search"]
    assert [(call.tool, call.args, call.run_name, call.ending) for call in events.calls] == [
        ("search", {"query": "x"}, name, "ok") for name in ("one",) * 3 + ("two",) * 3
    ]
    assert [run.name for run in events.runs] == ["one", "two"]
    assert before not in events.runs


def test_capture_shows_how_calls_ended() -> None:
    """Returned, raised, abandoned, refused and stopped calls are told apart; results and errors are kept."""

    @guarded_tool(rules=[Failing(final_warn_after=1, final_refuse_after=2, final_stop_after=3)])
    def find(path: str) -> str:
        if path == "interrupt":
            raise KeyboardInterrupt
        if path:
            raise PermissionError(path)
        return "found"

    with capture_events() as events, guarded_run("endings", on_stop="end"):
        find("")
        with pytest.raises(KeyboardInterrupt):
            find("interrupt")
        for _ in range(2):
            with pytest.raises(PermissionError):
                find("denied")
        with pytest.raises(ToolCallRefused):
            find("denied")
        with pytest.raises(RunStopped):
            find("denied")

    assert [call.ending for call in events.calls] == [
        "ok",
        "abandoned",
        "failed",
        "failed",
        "refused",
        "stopped",
    ]
    assert [call.executed for call in events.calls] == [True] * 4 + [False] * 2
    assert events.calls[0].result == "found"
    assert [type(call.error) for call in events.calls[2:]] == [
        PermissionError,
        PermissionError,
        loopguard.LoopRefused,
        loopguard.LoopStopped,
    ]


def test_capture_of_calls_that_return_instead() -> None:
    """A refusal that becomes a result is a refused call, and its result what the caller got."""
    with capture_events() as events, guarded_run("instead", on_refuse="return"):
        answers = [search("x") for _ in range(6)]

    assert events.calls[5].ending == "refused"
    assert events.calls[5].result == answers[5]
    assert answers[5].startswith("Not executed")


def test_capture_sees_one_call_where_two_doors_are_used() -> None:
    """A guarded tool inside a `run.call` of its name is one call; a call that never ended is open."""
    with capture_events() as events, guarded_run("doors") as run:
        with run.call("search", {"query": "x"}) as call:
            call.result = search("x")
        run.begin("read", {"path": "a"})

    assert [(call.tool, call.ending) for call in events.calls] == [("search", "ok"), ("read", "open")]


def test_capture_of_generators_and_coroutines() -> None:
    """What a generator yields is not kept; the result of a coroutine function is."""

    @guarded_tool
    def lines(path: str) -> Iterator[str]:
        yield path

    async def main() -> None:
        async with guarded_run("kinds"):
            list(lines("a"))
            await fetch("b")

    with capture_events() as events:
        asyncio.run(main())

    assert [(call.tool, call.ending, call.result) for call in events.calls] == [
        ("lines", "ok", None),
        ("fetch", "ok", "page of b"),
    ]


def test_capture_of_every_way_to_nudge() -> None:
    """Nudges are collected whether they wait, are appended, or go to a callable."""
    for on_warn in ("queue", "append", lambda nudge: None):
        with capture_events() as events, guarded_run("nudges", on_warn=on_warn):
            for _ in range(3):
                search("x")

        assert [nudge.text for nudge in events.nudges] == [
            'Note: `search` with query "x" has now returned the same result 3 times (calls 1, 2, 3).'
        ]


def test_capture_of_a_stop_from_outside() -> None:
    """`run.stop` is a finding too."""
    with capture_events() as events, guarded_run("outside", on_stop="end") as run:
        run.stop("enough")

    assert events.actions == ["stop"]
    assert events.findings[0].rule == "stop"


def test_capture_nests_and_ends_in_any_order() -> None:
    """An inner block hears the runs opened in it, an outer one all; afterwards runs are plain again."""
    outer, inner = capture_events(), capture_events()
    events = outer.__enter__()
    with guarded_run("outer"):
        search("x")
    more = inner.__enter__()
    with guarded_run("both"):
        search("x")
    outer.__exit__(None, None, None)
    with guarded_run("inner"):
        search("x")
    inner.__exit__(None, None, None)

    assert [run.name for run in events.runs] == ["outer", "both"]
    assert [run.name for run in more.runs] == ["both", "inner"]
    assert scope.run_class is Run


def test_capture_can_be_cleared() -> None:
    """After `clear` only what happens from then on is there."""
    with capture_events() as events, guarded_run("clear"):
        search("x")
        events.clear()
        search("y")

    assert [call.args for call in events.calls] == [{"query": "y"}]


def test_capture_raises_errors_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside loopguard is raised inside the block, and logged outside of it."""
    monkeypatch.setattr(_safety, "strict", False)
    monkeypatch.setattr(_safety, "errors", {})
    once: Any = capture_events()
    with guarded_run("quiet", on_finding=lambda finding: 1 / 0):
        for _ in range(3):
            search("x")
    with once, guarded_run("loud", on_finding=lambda finding: 1 / 0):
        search("x")
        search("x")
        with pytest.raises(ZeroDivisionError):
            search("x")

    assert _safety.strict is False
    assert ("callback", "ZeroDivisionError") in _safety.errors


def test_captured_runs_behave_like_others() -> None:
    """Nested runs, shared evidence and a mode that is off work as they do without capturing."""
    with capture_events() as events, guarded_run("outer") as outer:
        for _ in range(3):
            with guarded_run("inner", evidence="parent"):
                search("x")
        with guarded_run("off", mode="off"):
            search("x")

    assert outer.findings == ()
    assert events.actions == ["warn"]
    assert len(events.calls) == 3


# -- assert_guarded ------------------------------------------------------------------------------------------------


class Tool:
    """A framework's tool object: the function is in one of its attributes."""

    def __init__(self, name: str, **functions: Any) -> None:
        self.name = name
        self.__dict__.update(functions)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator above the guard."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Toolbox:
    """Tools as methods."""

    @guarded_tool
    def read(self, path: str) -> str:
        """A method."""
        return path

    @staticmethod
    @guarded_tool
    def write(path: str) -> str:
        """A static method."""
        return path


GUARDED: list[Any] = [
    {"search": search, "fetch": fetch},
    [search, fetch],
    (tool for tool in (search, fetch)),
    search,
    types.SimpleNamespace(search=search),
    Toolbox,
    [Toolbox().read, Toolbox.write],
    [partial(search, "x"), wrapped(search)],
    [
        Tool("a", func=search),
        Tool("b", fn=search),
        Tool("c", function=search),
        Tool("d", _func=fetch),
        Tool("e", func=None, coroutine=fetch),
    ],
]


@pytest.mark.parametrize("tools", GUARDED, ids=lambda tools: type(tools).__name__)
def test_guarded_tools_pass(tools: Any) -> None:
    """Registries of every shape pass if all tools in them are guarded, directly or in a framework's object."""
    assert_guarded(tools)


UNGUARDED: list[tuple[Any, str]] = [
    ({"search": search, "find": bare}, "1 of 2 tools is not guarded: find\\."),
    ([bare, search, wrapped(bare)], "2 of 3 tools are not guarded: bare, bare\\."),
    ([Tool("find", func=bare)], "not guarded: find\\."),
    ([Tool("half", func=search, coroutine=bare)], "not guarded: half\\."),
    ([Tool("closed")], "not guarded: closed\\."),
    (types.SimpleNamespace(find=bare, _inner=bare, word="x"), "1 of 1 tools is not guarded: find\\."),
    ([partial(bare, "x")], "not guarded"),
    ([], "There is no tool in an empty list\\."),
    ({}, "There is no tool in an empty dict\\."),
]


@pytest.mark.parametrize(("tools", "message"), UNGUARDED)
def test_unguarded_tools_are_named(tools: Any, message: str) -> None:
    """The tools without a guard are named; no tools at all are no success."""
    with pytest.raises(AssertionError, match=message):
        assert_guarded(tools)


def test_a_module_of_tools() -> None:
    """Of a module the public functions it defines have to be guarded, and not what it has imported."""
    module = types.ModuleType("my_tools")
    exec("def find(query): return query\ndef _inner(): pass\nclass Thing: pass", vars(module))
    vars(module).update(search=search, os=os, wraps=wraps)

    with pytest.raises(AssertionError, match="1 of 2 tools is not guarded: find"):
        assert_guarded(module)


def test_what_is_no_registry() -> None:
    """A number or a text is a mistake in the test."""
    for thing in (5, "search"):
        with pytest.raises(TypeError, match="takes a mapping, a list or a module"):
            assert_guarded(thing)


# -- Script and ScriptedAgent --------------------------------------------------------------------------------------


def test_a_script_is_a_model() -> None:
    """It gives its calls in order, whatever it is told, then None; `always` never ends."""
    model = Script(("read", {"path": "a"}), "test", Ask("edit", {}, "mine"))

    assert [model("told"), model(), model(), model()] == [
        Ask("read", {"path": "a"}, "call-1"),
        Ask("test", {}, "call-2"),
        Ask("edit", {}, "mine"),
        None,
    ]
    stubborn = always("search", query="x")
    assert [stubborn().args for _ in range(3)] == [{"query": "x"}] * 3  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="needs a call"):
        Script()


def test_an_agent_that_does_not_listen_is_stopped() -> None:
    """The example of the docs: warned, refused, stopped."""
    with capture_events() as events, pytest.raises(LoopDetected), guarded_run("research"):
        ScriptedAgent(always("search", query="x"), tools=[search]).run()

    assert events.actions == ["warn", "refuse", "stop"]
    assert len(events.calls) == 11


def test_an_agent_that_listens_does_something_else() -> None:
    """It does not ask again for what was refused, and goes on with the rest of its script."""
    script = [("search", {"query": "x"})] * 9 + [("search", {"query": "y"})]
    with guarded_run("research") as run:
        agent = ScriptedAgent(script, tools={"search": search}, listens=True)
        told = agent.run()

    assert (run.stats.calls, run.stats.refused) == (6, 1)
    assert run.stopped is None
    assert told is agent.told
    assert [str(text).split(":")[0] for text in told[3:]] == [
        "Note",
        "no results",
        "no results",
        "Not executed",
        "no results",
    ]


def test_an_agent_that_listens_and_has_nothing_else_to_ask_is_done() -> None:
    """Refused the only call of an endless script, it ends."""
    with guarded_run("research") as run:
        ScriptedAgent(always("search", query="x"), tools=[search], listens=True).run()

    assert (run.stats.calls, run.stats.refused) == (5, 1)


def test_an_agent_of_unguarded_tools() -> None:
    """Tools without a guard of their own go through `run.call`; their errors are told to the model."""

    def broken(query: str) -> str:
        raise LookupError("no index")

    with guarded_run("bare") as run:
        told = ScriptedAgent([("bare", {"query": "x"}), ("broken", {"query": "x"})], tools=[bare, broken]).run()

    assert told == ["no results", "LookupError: no index"]
    assert (run.stats.calls, run.stats.failed) == (2, 1)


def test_an_agent_that_gets_a_result_instead() -> None:
    """With `on_refuse="return"` an unguarded tool is not called, and the model is told the refusal."""
    called: list[str] = []

    def find(query: str) -> str:
        called.append(query)
        return "no results"

    with guarded_run("instead", on_refuse="return"):
        told = ScriptedAgent([("find", {"query": "x"})] * 6, tools=[find]).run()

    assert len(called) == 5
    assert str(told[-1]).startswith("Not executed")


def test_an_agent_outside_a_run_comes_to_an_end() -> None:
    """Nothing stops it there, so the test fails instead of going on forever."""
    configure(outside_run="ignore")

    with pytest.raises(AssertionError, match="20 calls and nothing ended it"):
        ScriptedAgent(always("search", query="x"), tools=[search], most=20).run()


def test_mistakes_in_a_script_are_raised() -> None:
    """An unknown tool, and a tool that has to be awaited in `run`, are mistakes of the test."""
    with guarded_run("mistakes"):
        with pytest.raises(ScriptError, match="asks for 'find'; the agent has search"):
            ScriptedAgent(["find"], tools=[search]).run()
        with pytest.raises(ScriptError, match="with other arguments: missing a required argument: 'query'"):
            ScriptedAgent(always("search", q="x"), tools=[search]).run()
        with pytest.raises(ScriptError, match="fetch is asynchronous"):
            ScriptedAgent([("fetch", {"url": "a"})], tools=[fetch]).run()


def test_errors_of_ours_are_not_told_to_the_model() -> None:
    """What loopguard raises so that a test hears of it leaves the agent."""
    with guarded_run("loud", on_finding=lambda finding: 1 / 0), pytest.raises(ZeroDivisionError):
        ScriptedAgent(always("search", query="x"), tools=[search]).run()


@pytest.mark.asyncio
async def test_an_asynchronous_agent() -> None:
    """`arun` calls tools of every kind, guarded or not, and takes errors and refusals as `run` does."""

    async def load(url: str) -> str:
        raise OSError(url)

    @guarded_tool
    async def pages(url: str) -> AsyncIterator[str]:
        yield url

    script = [
        ("fetch", {"url": "a"}),
        ("load", {"url": "b"}),
        ("bare", {"query": "c"}),
        ("pages", {"url": "d"}),
        *[("search", {"query": "x"})] * 7,
    ]
    async with guarded_run("async") as run:
        agent = ScriptedAgent(script, tools=[fetch, load, bare, pages, search], listens=True)
        told = await agent.arun()

    assert told[:4] == ["page of a", "OSError: b", "no results", ["d"]]
    assert str(told[-1]).startswith("Not executed")
    assert (run.stats.calls, run.stats.refused) == (9, 1)

    with pytest.raises(RunStopped):
        async with guarded_run("stopped"):
            await ScriptedAgent(always("search", query="x"), tools=[search]).arun()


def test_generator_tools_are_read_to_the_end() -> None:
    """A model gets what a generator yields as a list."""

    @guarded_tool
    def lines(path: str) -> Iterator[str]:
        yield from ("a", "b")

    with guarded_run("stream"):
        assert ScriptedAgent([("lines", {"path": "x"})], tools={"lines": lines}).run() == [["a", "b"]]


# -- fake_clock ----------------------------------------------------------------------------------------------------


def test_fake_clock_is_the_time_of_runs_inside() -> None:
    """Durations and times of findings come from it; runs opened outside keep the system's clock."""
    with fake_clock(start=1_000) as clock:

        @guarded_tool
        def slow(query: str) -> str:
            clock.advance(5)
            return "no results"

        with guarded_run("inside") as run:
            for _ in range(3):
                slow("x")
    with guarded_run("outside") as other:
        search("x")

    assert run.findings[0].wasted_s == 10
    assert (run.findings[0].first_at, run.findings[0].last_at) == (1_005, 1_015)
    assert other.clock is not clock
    assert clock.now == clock() == 1_015


def test_fake_clock_nests_and_never_goes_back() -> None:
    """An inner clock holds for its block; a negative step is an error."""
    with fake_clock() as outer:
        with fake_clock() as inner:
            assert scope.clock is inner
        assert scope.clock is outer
        with pytest.raises(ValueError, match="does not go back"):
            outer.advance(-1)
    assert scope.clock is None


def test_waits_that_grow_are_left_alone() -> None:
    """With the clock a test plays a polite retry of a busy service: warned about, never refused."""

    @guarded_tool
    def call_api(path: str) -> str:
        raise TimeoutError("503 service unavailable")

    with fake_clock() as clock, capture_events() as events, guarded_run("retry", on_stop="end"):
        for attempt in range(15):
            clock.advance(2**attempt)
            with pytest.raises(TimeoutError):
                call_api("/orders")

    assert events.actions == ["warn"]


# -- the pytest plugin ---------------------------------------------------------------------------------------------


def test_fixture_in_a_users_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture collects, is loud, and takes back what a test configured; a forgotten tool is named."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_PARENT))
    pytester.makepyfile(
        """
        import pytest
        from loopguard import LoopDetected, configure, guarded_run, guarded_tool
        from loopguard.config import settings
        from loopguard.testing import ScriptedAgent, always, assert_guarded

        @guarded_tool
        def search(query):
            return "no results"

        def forgotten(query):
            return "no results"

        def run_agent(model):
            with guarded_run("research"):
                ScriptedAgent(model, tools=[search]).run()

        def test_research_agent_is_guarded(loopguard_events):
            assert_guarded([search])
            with pytest.raises(LoopDetected):
                run_agent(model=always("search", query="x"))
            assert loopguard_events.actions == ["warn", "refuse", "stop"]
            assert [f.tool for f in loopguard_events.findings] == ["search"] * 3
            assert len(loopguard_events.calls) == 11
            assert "3 times" in loopguard_events.nudges[0].text

        def test_forgotten():
            assert_guarded([search, forgotten])

        def test_configures(loopguard_events):
            configure(mode="off", outside_run="ignore")

        def test_is_clean(loopguard_events):
            assert settings().mode is None
            assert loopguard_events.calls == []

        def test_is_loud(loopguard_events):
            with guarded_run("loud", on_finding=lambda finding: 1 / 0):
                for _ in range(3):
                    search("x")
        """
    )

    result = pytester.runpytest_subprocess(*PLUGIN)

    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(["*1 of 2 tools is not guarded: forgotten*", "*ZeroDivisionError*"])


def test_plugin_imports_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a project that does not use the fixture the plugin costs nothing."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_PARENT))
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            assert "loopguard.pytest_plugin" in sys.modules
            heavy = {"wrapt", "opentelemetry", "loopguard.run", "loopguard.testing", "orjson", "xxhash"}
            assert not heavy & set(sys.modules)

        def test_the_package():
            import loopguard
            loaded = {name.partition(".")[0] for name in sys.modules}
            others = {"redis", "rich", "click", "typer", "pydantic", "langchain", "langgraph", "openai", "agents"}
            assert not loaded & (others | {"wrapt", "opentelemetry"})
        """
    )

    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:hypothesispytest", "-p", "no:logfire")

    result.assert_outcomes(passed=2)


def test_fixture_here(loopguard_events: Any) -> None:
    """The fixture is there in this very test run."""
    with guarded_run("here"):
        search("x")

    assert [call.tool for call in loopguard_events.calls] == ["search"]
    assert config.settings().mode is None
    assert "loopguard.pytest_plugin" in sys.modules
