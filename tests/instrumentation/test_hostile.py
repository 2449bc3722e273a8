"""Hostile values and odd settings: the tool gives what it gives, and the guard neither fails nor falls silent.

At the end: the short way of a usual call says what the long one says.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

import loopguard
from loopguard import (
    Limits,
    LimitStatus,
    LoopguardError,
    Policy,
    PolicyError,
    Repeat,
    Run,
    RunStopped,
    ToolCallRefused,
    _safety,
    current_run,
    fingerprint,
    guarded_run,
    guarded_tool,
)
from loopguard.kinds import shell_kind
from loopguard.records import Evidence, Operation
from loopguard.rules import Attempt, Rule
from loopguard.rules.base import Words
from loopguard.snapshot import snapshot
from loopguard.testing import FakeClock, fake_clock
from loopguard.testing.examples import SameTool


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Internal errors are swallowed, as in the process of a user."""
    monkeypatch.setattr(_safety, "strict", False)
    monkeypatch.setattr(_safety, "errors", {})


@guarded_tool
def same(x: object) -> str:
    """Always the same."""
    return "nothing new"


def executed(tool: Callable[[int], object], attempts: int = 30) -> int:
    """How many equal calls were executed before the run ended."""
    done = 0
    for _ in range(attempts):
        try:
            tool(1)
            done += 1
        except ToolCallRefused:
            pass
        except RunStopped:
            break
    return done


# -- values -----------------------------------------------------------------------------------------------------------


class Raising:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("a lazy object failed")


class Unhashable:
    @property
    def __class__(self) -> Any:
        return []


class Meta(type):
    def __hash__(cls) -> int:
        raise RuntimeError


class OfMeta(metaclass=Meta): ...


class NoLength(str):
    def __len__(self) -> int:
        raise RuntimeError


class NoItems(str):
    def __getitem__(self, index: Any) -> str:
        raise RuntimeError


HOSTILE = {
    "raising": Raising(),
    "unhashable": Unhashable(),
    "meta": OfMeta(),
    "mock": mock.Mock(spec=str),
    "no length": NoLength("x" * 600),
    "no items": NoItems("x" * 600),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_argument_does_not_harm_the_call(name: str) -> None:
    """A value that lies about its class, or raises when it is looked at, arrives as it is, and the call is watched."""
    value = HOSTILE[name]
    got: list[object] = []

    @guarded_tool
    def tool(x: object) -> str:
        got.append(x)
        return "fine"

    with guarded_run("r") as run:
        tool(0)
        assert tool(value) == "fine"
        assert tool(x=value) == "fine"
        assert (run.mode, run._errors, run.stats.turns_analyzed) == ("enforce", 0, 3)
    assert all(x is value for x in got[1:])


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("how", ["plain", "async"])
def test_a_hostile_result_does_not_harm_the_call(how: str, name: str) -> None:
    """A result that lies about its class, or raises when it is looked at, is what the caller gets; each call ends."""
    value = HOSTILE[name]

    @guarded_tool
    def plain(x: int) -> object:
        return value

    @guarded_tool
    async def coroutine(x: int) -> object:
        return value

    with guarded_run("r") as run:
        for number in range(4):
            assert (plain(number) if how == "plain" else asyncio.run(coroutine(number))) is value
        assert (run.mode, run._errors) == ("enforce", 0)
        assert not run.engine.open
        assert sum(entry.flight for entry in run.engine.keys.values()) == 0


def test_an_exception_of_a_hostile_class_is_the_one_that_is_raised() -> None:
    """An error that raises when its class is asked for reaches the caller unchanged."""

    class Hostile(Exception):
        @property
        def __class__(self) -> Any:
            raise RuntimeError("of the error's class")

    @guarded_tool
    def tool(x: int) -> str:
        raise Hostile("mine")

    kinds = []
    with guarded_run("r"):
        try:
            tool(1)
        except BaseException as error:
            kinds.append(type(error))
    assert kinds == [Hostile]


def test_a_result_that_failed_is_not_read_through_its_properties() -> None:
    """The content of a response is left to the program: reading it may wait, or use it up."""
    reads = []

    class Response:
        ok = False
        status_code = 404

        @property
        def content(self) -> bytes:
            reads.append("content")
            return b"xx"

        @property
        def text(self) -> str:
            reads.append("text")
            return "xx"

    @guarded_tool
    def fetch(x: int) -> Response:
        return Response()

    with guarded_run("r") as run:
        fetch(1)
        assert run.engine.history[-1].status
    assert not reads


def test_what_cannot_be_compared_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list of itself twice, many times over, a bounded number of values is looked at, once with all the others."""
    looks: list[object] = []
    original = fingerprint.canonical

    def counted(value: object) -> bytes | None:
        looks.append(value)
        return original(value)

    monkeypatch.setattr(fingerprint, "canonical", counted)
    shared: list[Any] = [1]
    for _ in range(60):
        shared = [shared, shared]

    @guarded_tool
    def tool(x: object) -> str:
        return "fine"

    with guarded_run("r") as run:
        assert tool(shared) == "fine"
        assert run.stats.turns_analyzed == 1
    assert len(looks) <= 2
    assert original([0] * 100_000) is not None
    assert original([0] * 300_000) is None


def test_a_long_shell_line_is_read_in_no_time() -> None:
    """The time that a line of a model takes grows with its length, not with its square."""
    line = 'python -c "' + "open(," * 3_300 + '"'

    def seconds() -> float:
        begun = time.perf_counter()
        shell_kind(line)
        return time.perf_counter() - begun

    assert min(seconds() for _ in range(3)) < 0.2


def test_a_refused_call_lets_its_arguments_go() -> None:
    """What a refused call was given is free as soon as the exception is handled, without the collector."""

    class Big: ...

    @guarded_tool(ignored="big")
    def tool(x: int, big: Big) -> str:
        return "nothing new"

    gc.collect()
    gc.disable()
    try:
        kept = []
        refused = 0
        with guarded_run("r"):
            for _ in range(7):
                big = Big()
                kept.append(weakref.ref(big))
                try:
                    tool(1, big)
                except ToolCallRefused:
                    refused += 1
            del big
            assert refused == 2
            assert not any(ref() for ref in kept)
    finally:
        gc.enable()


# -- settings -----------------------------------------------------------------------------------------------------------


def test_a_run_id_may_be_a_uuid() -> None:
    """An id that is no text is written as one, and the run is guarded as usual."""
    number = uuid.uuid4()
    with guarded_run("r", run_id=number, on_stop="end") as run:  # type: ignore[arg-type]
        assert run.id == str(number)
        assert executed(same) == 5
        assert run._errors == 0


def test_rungs_of_a_tool_that_do_not_fit_the_policy_of_a_run(quiet: None) -> None:
    """A tool whose rungs lie above those of the run's policy is guarded all the same, and so are the others."""

    @guarded_tool(refuse_after=8)
    def tool(x: int) -> str:
        return "nothing new"

    with guarded_run("r", policy=Policy(Repeat(stop_after=6)), on_stop="end") as run:
        assert executed(tool) <= 8
        assert run.mode == "enforce"
    with guarded_run("r", policy=Policy(Repeat(stop_after=6)), on_stop="end"):
        assert executed(same) == 5


@pytest.mark.usefixtures("quiet")
def test_a_rule_that_raises_leaves_the_others() -> None:
    """An error in a rule of the user is reported when the run ends; the built-in rules go on."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Broken(Rule):
        name: ClassVar[str] = "broken"

        def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
            raise KeyError("a bug in a rule of the user")

    with guarded_run("r", policy=Policy(Broken()), on_stop="end"):
        assert executed(same) == 5
    assert ("rule.broken", "KeyError") in _safety.errors


def test_a_rule_of_the_user_speaks_in_its_words() -> None:
    """The nudge that the model reads says what the rule says of itself."""

    class Terse(SameTool):
        name: ClassVar[str] = "terse"
        words: ClassVar[Words] = Words(perfect="has said little {n} times")

    with guarded_run("r", policy=Policy.of(Terse(warn_after=2, refuse_after=3, stop_after=5))) as run:
        same(1)
        same(1)
        assert [nudge.text for nudge in run.pop_nudges()] == ["Note: `same` has said little 2 times (calls 1, 2)."]


@pytest.mark.usefixtures("quiet")
def test_a_log_filter_that_raises_does_not_harm_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a filter of the ``loopguard`` logger reaches no tool call."""

    class Broken(logging.Filter):
        seen = 0

        def filter(self, record: logging.LogRecord) -> bool:
            Broken.seen += 1
            raise RuntimeError("of the filter")

    broken = Broken()
    log = logging.getLogger("loopguard")
    log.addFilter(broken)
    try:
        with guarded_run("r", on_stop="end") as run:
            assert executed(same) == 5
            assert run.stopped is not None
    finally:
        log.removeFilter(broken)
    assert Broken.seen


def test_a_mode_may_change_while_a_call_is_in_flight() -> None:
    """The warning that the call completes is given."""
    calls: list[int] = []

    @guarded_tool
    def tool(x: int) -> str:
        calls.append(x)
        run = current_run()
        if len(calls) == 3 and run is not None:
            run.set_mode("enforce")
        return "nothing new"

    with guarded_run("r") as run:
        for _ in range(3):
            tool(1)
        assert [finding.rule for finding in run.findings] == ["repeat"]
        assert run._errors == 0


def test_a_mode_that_there_is_not() -> None:
    """A misspelt mode is no way to switch the guard off."""
    with guarded_run("r") as run:
        with pytest.raises(PolicyError, match="enfroce"):
            run.set_mode("enfroce")  # type: ignore[arg-type]
        assert run.mode == "enforce"


@pytest.mark.parametrize("options", [{"once": True}, {"on_stop": "end"}], ids=str)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, Any]) -> None:
    """An option of a tool is either followed, or it is an error."""
    with pytest.raises(PolicyError, match=next(iter(options))):
        guarded_tool(**options)(lambda x: x)


def test_the_patience_of_a_poll_is_kept() -> None:
    """Without patience, a poll that gives equal answers is warned about."""

    def findings(**options: Any) -> int:
        tool = guarded_tool(kind="poll", **options)(lambda x: "running")
        with fake_clock() as clock, guarded_run("r") as run:
            for _ in range(12):
                clock.advance(1)
                tool(1)
        return len(run.findings)

    assert findings(patience=0.0)
    assert not findings(patience=10_000.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Policy.rysh(refuse_after=0),
        lambda: Policy.opendev(stop_after=0),
        lambda: Policy.loopctl(warn_after=0, stop_after=0),
        lambda: Policy(signature=5),
        lambda: Limits(calls_per_tool=None),  # type: ignore[arg-type]
        lambda: Limits(handoff_at="x"),  # type: ignore[arg-type]
        lambda: Policy(Repeat(within="x")),  # type: ignore[arg-type]
        lambda: Policy.loopctl(window="20"),  # type: ignore[arg-type]
        lambda: Policy.loopctl(signature=5),
    ],
    ids=[
        "rysh off",
        "opendev off",
        "loopctl off",
        "signature",
        "calls_per_tool",
        "handoff_at",
        "within",
        "window",
        "loopctl's signature",
    ],
)
def test_settings_that_cannot_be_meant(make: Callable[[], object]) -> None:
    """A preset that guards nothing, and a value of a wrong type, are told where they are written."""
    with pytest.raises(PolicyError):
        make()


@pytest.mark.parametrize("options", [{"limits": Limits(calls=1)}, {"policy": "rysh"}], ids=["limits", "policy"])
def test_a_shared_run_has_no_settings_of_its_own(options: dict[str, Any]) -> None:
    """A run that counts with the one around it takes neither limits nor a policy: they would not be followed."""
    with guarded_run("p"), pytest.raises(PolicyError, match="evidence"), guarded_run("c", evidence="parent", **options):
        pass


def test_a_small_window_is_no_error() -> None:
    """Rungs that nobody has named do not have to fit the window; those that do still hold."""
    with guarded_run("r", policy=Policy(window=20), on_stop="end"):
        assert executed(same) == 5


def test_the_types_are_shipped() -> None:
    """``py.typed`` lies in the package: without it, type checkers see nothing."""
    assert (Path(loopguard.__file__).parent / "py.typed").exists()


# -- the short way ----------------------------------------------------------------------------------------------------


class Text(str): ...


class Broke(Exception): ...


#: What the tools give, by number: usual texts, failures, volatile and empty ones, and what is no text.
RESULTS: tuple[Any, ...] = (
    "nothing new",
    "nothing new",
    "found 3 files",
    "Error: no such table",
    '{"ok": false, "error": "denied"}',
    "",
    "No results found.",
    "done at 2026-01-01 12:00:01, request id ab-1",
    "done at 2026-01-01 12:00:02, request id ab-2",
    "x" * 700,
    "lone \ud800",
    Text("of a subclass"),
    None,
    {"rows": [1, 2]},
    Broke("no such host"),
    Broke("timed out after 3 s"),
)
ARGUMENTS: tuple[Any, ...] = (1, 1, 1, 2, "a", "a", None, 1 << 70, "\ud800", [1, 2], Text("t"), object)


def give(number: int) -> Any:
    """The result of this number, or its exception."""
    result = RESULTS[number]
    if isinstance(result, Exception):
        raise result.with_traceback(None)
    return result


class Shop:
    """Tools of every kind that goes the short way, and of some that do not."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.giving = 0
        shop = self

        @guarded_tool(name="search")
        def search(query: Any, page: int = 0) -> Any:
            shop.clock.advance(0.5)
            return give(shop.giving)

        @guarded_tool(name="reading", kind="read", warn_after=2, refuse_after=3, stop_after=20)
        def reading(query: Any) -> Any:
            return give(shop.giving)

        @guarded_tool(name="write", kind="write")
        def write(query: Any) -> Any:
            return give(shop.giving)

        @guarded_tool(name="answering", on_refuse="return")
        def answering(query: Any) -> Any:
            return give(shop.giving)

        @guarded_tool(name="noisy", volatile=True)
        def noisy(query: Any) -> Any:
            return give(shop.giving)

        @guarded_tool(name="watched", mode="observe")
        def watched(query: Any) -> Any:
            return give(shop.giving)

        self.tools = (search, search, reading, write, answering, noisy, watched, self.method)

    @guarded_tool(name="method")
    def method(self, query: Any) -> Any:
        return give(self.giving)


def run_a_sequence(seed: int, direct: bool, **options: Any) -> dict[str, Any]:
    """A random agent in a run of a fixed key and clock: all that can be told about it."""
    chance = random.Random(seed)
    said: list[Any] = []
    ways: set[bool] = set()
    with ExitStack() as stack:
        clock = stack.enter_context(fake_clock())
        shop = Shop(clock)
        run = stack.enter_context(guarded_run("r", run_id="run-1", on_stop="end", **options))
        for _ in range(60):
            if not direct:
                run.direct = False
            ways.add(run.direct)
            clock.advance(chance.choice((0, 1, 30)))
            # A stretch of equal calls, then another one: else nothing is ever said.
            tool = shop.tools[min(chance.randrange(8), chance.randrange(8))]
            argument = ARGUMENTS[min(chance.randrange(12), chance.randrange(12))]
            giving = min(chance.randrange(16), chance.randrange(16))
            for _ in range(chance.choice((1, 1, 2, 4, 7))):
                shop.giving = giving if chance.random() < 0.9 else chance.randrange(16)
                said.append(_attempt(chance, tool, argument))
            _note(chance, run)
            if chance.random() < 0.2:
                said += run.pop_nudges()
    return {
        "said": said,
        "findings": [(finding, finding.message) for finding in run.findings],
        "stats": run.stats,
        "left": run.pop_nudges(),
        "excerpts": run.excerpts,
        "engine": snapshot(run.engine),
        "errors": run._errors,
        "ways": ways,
    }


def _attempt(chance: random.Random, tool: Any, argument: Any) -> Any:
    try:
        how = chance.random()
        if how < 0.02:
            return tool(argument, query=argument)
        result = tool(query=argument) if how < 0.2 else tool(argument)
    except LoopguardError as error:
        return type(error), str(error)
    except Broke as error:
        return error
    except TypeError:
        return TypeError
    return result


def _note(chance: random.Random, run: Run) -> None:
    """Now and then what lies between the calls of an agent."""
    what = chance.random()
    if what < 0.03:
        run.note_user_message()
    elif what < 0.05:
        run.note_compaction()
    elif what < 0.15:
        run.round()
    elif what < 0.17:
        run.resume("go on")
    elif what < 0.4:
        run.note_usage(100, 20, cost=0.25)


def a_little_more(status: LimitStatus) -> Limits | None:
    """A person who grants half as much again, a few times."""
    more = int(max(status.used, status.allowed) * 1.5) + 1
    if status.limit == "seconds":
        return Limits(seconds=more) if more < 1_500 else None
    return Limits(tokens=more) if status.limit == "tokens" else None


@pytest.fixture
def fixed_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Digests are equal from run to run."""
    monkeypatch.setenv("LOOPGUARD_KEY", "0123456789abcdef0123456789abcdef")
    loopguard.config.reset()
    return


RUNS: dict[str, dict[str, Any]] = {
    "default": {},
    "append": {"on_warn": "append"},
    "limits": {"limits": Limits(calls=80, calls_per_tool={"reading": 9}, refusals=12)},
    "budget": {"limits": Limits(calls=90, refusals=6, seconds=40, tokens=500, cost=4, on_handoff=a_little_more)},
    "endless": {"policy": Policy(Repeat(stop_after=0), endless_refusals=True)},
    "observe": {"mode": "observe"},
    "rysh": {"policy": "rysh"},
    "loopctl": {"policy": "loopctl"},
}


@pytest.mark.usefixtures("fixed_key")
@pytest.mark.parametrize("name", RUNS)
def test_the_short_way_says_what_the_long_one_says(name: str) -> None:
    """Random agents: equal results, numbers, findings, nudges, counts and state, whichever way their calls go."""
    rungs: set[str] = set()
    for seed in range(12):
        short = run_a_sequence(seed, True, **RUNS[name])
        long = run_a_sequence(seed, False, **RUNS[name])
        assert (short.pop("ways"), long.pop("ways")) == ({True}, {False})
        assert short["errors"] == 0
        for what in long:
            assert short[what] == long[what], (seed, what)
        rungs |= {str(finding.action) for finding, _ in long["findings"]}
    assert rungs >= ({"refuse"} if name == "rysh" else {"warn", "stop"} if name == "loopctl" else {"warn", "refuse"})
