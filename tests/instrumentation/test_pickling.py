"""Tools and errors that travel to other processes and back."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import loopguard
from loopguard import (
    Action,
    Finding,
    LimitReached,
    LimitRefused,
    LoopDetected,
    LoopguardError,
    LoopRefused,
    LoopStopped,
    PolicyError,
    RunStopped,
    StoreError,
    ToolCallRefused,
    TraceError,
    guarded_run,
    guarded_tool,
    is_guarded,
)

FINDING = Finding("repeat", Action.STOP, "search", 3, 3, (1, 2, 3), 1, "search gave the same result 3 times")
ERRORS: list[LoopguardError] = [
    LoopguardError("text"),
    ToolCallRefused("text", tool="search", _model_text="for the model"),
    RunStopped("text", _model_text="for the model"),
    LoopDetected("text", finding=FINDING),
    LoopRefused("text", tool="search", finding=FINDING, _model_text="for the model"),
    LoopStopped("text", finding=FINDING, _model_text="for the model"),
    LimitReached("text", limit="calls", used=5, allowed=5),
    LimitRefused("text", tool="search", limit="calls_per_tool[search]", used=2, allowed=2),
    PolicyError("text"),
    StoreError("text"),
    TraceError("text"),
]


@pytest.fixture(scope="module", params=["fork", "spawn"])
def workers(request: pytest.FixtureRequest) -> Iterator[ProcessPoolExecutor]:
    """A pool of one process, started in each way."""
    if request.param not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {request.param} here")
    with (
        pytest.MonkeyPatch.context() as patch,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(request.param)) as pool,
    ):
        patch.syspath_prepend(str(Path(__file__).parent))
        yield pool


@pytest.fixture
def tools(workers: ProcessPoolExecutor) -> Any:
    """The module that worker processes import too."""
    import tools_of_workers

    return tools_of_workers


def same(error: BaseException, other: BaseException) -> None:
    """Assert that two errors say the same in every way."""
    assert type(other) is type(error)
    assert other.args == error.args
    assert str(other) == str(error)
    assert vars(other) == vars(error)
    if isinstance(error, (ToolCallRefused, RunStopped)):
        assert isinstance(other, type(error))
        assert other.for_model() == error.for_model()


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_pickles(error: LoopguardError, protocol: int) -> None:
    """With its facts and its notes, in every protocol."""
    error.add_note("a note")
    same(error, pickle.loads(pickle.dumps(error, protocol)))


def test_every_error_is_in_the_list() -> None:
    """The list above has all error classes of the package."""
    public = {value for name in loopguard.__all__ if isinstance(value := getattr(loopguard, name), type)}

    assert {type(error) for error in ERRORS} == {kind for kind in public if issubclass(kind, BaseException)}
    assert {kind.__module__ for kind in public if issubclass(kind, BaseException)} == {"loopguard"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_comes_back_from_a_process(workers: ProcessPoolExecutor, tools: Any, error: Any) -> None:
    """Sent there and back by the pool."""
    same(error, workers.submit(tools.use, tools.use, str, error).exception() or error)
    same(error, workers.submit(_same, error).result())


def _same(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        ("refuse", LoopRefused, "search was not executed: the same call has given the same result 2 times"),
        ("stop", LoopStopped, "run 'worker' was stopped: search gave the same result 2 times"),
        ("limit", LimitReached, "run 'worker' was stopped: calls 2 of 2"),
        ("tool-limit", LimitRefused, "search was not executed: its 2 calls in this run are used up"),
        ("outside", RunStopped, "run 'worker' was stopped: enough"),
    ],
)
def test_what_a_guard_raises_in_a_process_arrives_here(
    workers: ProcessPoolExecutor, tools: Any, end: str, kind: type[LoopguardError], text: str
) -> None:
    """The error that a run over there raised comes back whole: class, sentence, text for the model, notes."""
    error = workers.submit(tools.looping, end).exception()

    assert type(error) is kind
    assert str(error).startswith(text)
    assert isinstance(error, (ToolCallRefused, RunStopped))
    assert error.for_model()
    assert any(note.startswith("loopguard: ") for note in error.__notes__)
    if isinstance(error, LoopDetected):
        assert error.finding.tool == "search"
        assert error.finding.run_name == "worker"


# -- tools ----------------------------------------------------------------------------------------------------------

TOOLS = {
    "plain": ("search", ("x",), "found x"),
    "options": ("with_options", ("x",), "read x"),
    "class-method": ("Shelf.make", ("x",), "Shelf x"),
    "class-method-inside": ("Shelf.make_inside", ("x",), "Shelf x"),
    "static-method": ("Shelf.weigh", ("x",), "x g"),
    "static-method-inside": ("Shelf.weigh_inside", ("x",), "x g"),
}


def named(tools: Any, name: str) -> Any:
    """What stands under a dotted name."""
    for part in name.split("."):
        tools = getattr(tools, part)
    return tools


@pytest.mark.parametrize("how", ["as-function", "as-argument"])
@pytest.mark.parametrize(("name", "args", "expected"), TOOLS.values(), ids=TOOLS)
def test_a_guarded_tool_runs_in_a_process(
    workers: ProcessPoolExecutor, tools: Any, name: str, args: tuple[str, ...], expected: str, how: str
) -> None:
    """Sent as the function or as an argument, it arrives guarded, by its name."""
    tool = named(tools, name)
    if how == "as-function":
        assert workers.submit(tool, *args).result() == expected
    else:
        assert workers.submit(tools.use, tool, *args).result() == expected
    assert workers.submit(is_guarded, tool).result()


def test_a_bound_method_runs_in_a_process(workers: ProcessPoolExecutor, tools: Any) -> None:
    """Its object travels with it; unbound, it is found by name."""
    assert workers.submit(tools.Shelf("b").look, 3).result() == "bbb"
    assert workers.submit(tools.Shelf.look, tools.Shelf("c"), 2).result() == "cc"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_guarded_tool_pickles_to_itself(tools: Any, protocol: int) -> None:
    """As functions do, of every kind."""
    for tool in (tools.search, tools.with_options, tools.fetch, tools.lines):
        assert pickle.loads(pickle.dumps(tool, protocol)) is tool
    for name in ("Shelf.make", "Shelf.weigh", "Shelf.look", "Shelf.weigh_inside"):
        again = pickle.loads(pickle.dumps(named(tools, name), protocol))
        assert again == named(tools, name)
        assert is_guarded(again)


def test_a_local_tool_does_not_pickle_as_no_local_function_does() -> None:
    """The error is the one that a bare function gives."""

    @guarded_tool
    def tool() -> None:
        pass

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(tool)


def test_a_run_does_not_follow_into_a_process(workers: ProcessPoolExecutor, tools: Any) -> None:
    """A worker that was there before the run is outside it."""
    workers.submit(tools.is_in_a_run).result()
    with guarded_run("here") as run:
        assert workers.submit(tools.is_in_a_run).result() is False
        assert workers.submit(tools.search, "x").result() == "found x"

    assert run.stats.calls == 0
