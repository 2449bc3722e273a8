"""``SameError``: its law, what counts as one error, and the shape of an error's first line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard.engine import Engine
from loopguard.errors import PolicyError, StoreError
from loopguard.masking import SHAPE, shape
from loopguard.policy import Plan, Policy
from loopguard.records import Action, ErrorClass, Hit, Kind, Status, Tool
from loopguard.rules import SameError
from loopguard.snapshot import restore, snapshot

POLICY = Policy.of(SameError())


class Agent:
    """Makes calls of an engine, each with new arguments unless a key is given."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.engine = Engine(Plan(policy))
        self.new = 0

    def call(
        self,
        tool: str,
        key: int = 0,
        kind: Kind = Kind.READ,
        error_class: ErrorClass | None = None,
        shape: int = 0,
        status: Status = Status.OK,
        round_: int | None = None,
    ) -> Hit | None:
        """One call; it fails if a class is given. Gives what was said."""
        self.new += 1
        seq = self.engine.start(None, self.engine.bind(Tool(tool)), int(kind), key or 10_000 + self.new, 0, round_)
        if isinstance(seq, Hit):
            return seq
        if error_class is None:
            return self.engine.end(None, seq, int(status), 10_000 + self.new)
        failed = int(status or Status.FAILED)
        return self.engine.end(None, seq, failed, self.new, self.new, error_class=int(error_class), shape=shape)

    def fail(self, tool: str, error_class: ErrorClass = ErrorClass.FINAL_TOOL, **more: Any) -> Hit | None:
        """A call that fails."""
        return self.call(tool, error_class=error_class, **more)


def actions(hits: Sequence[Hit | None]) -> list[str]:
    """What was said at each call."""
    return ["run" if hit is None else str(hit.action) for hit in hits]


between = st.lists(
    st.sampled_from(["write", "user", "other succeeds", "other fails", "transient", "denied", "poll"]), max_size=4
)


@settings(max_examples=100, deadline=None)
@given(gaps=st.lists(between, min_size=3, max_size=3))
def test_a_row_ends_only_when_the_tool_succeeds(gaps: list[list[str]]) -> None:
    """The third failure warns, whatever lies between, unless the tool itself succeeded."""
    agent = Agent()
    for n, gap in enumerate(gaps, 1):
        for what in gap:
            if what == "write":
                agent.call("edit", kind=Kind.WRITE)
            elif what == "user":
                agent.engine.note_user_message()
            elif what == "other succeeds":
                agent.call("look")
            elif what == "other fails":
                agent.fail("look", ErrorClass.OTHER)
            elif what == "transient":
                agent.fail("search", ErrorClass.TRANSIENT)
            elif what == "denied":
                agent.fail("search", ErrorClass.DENIED, status=Status.DENIED)
            else:
                agent.fail("search", kind=Kind.POLL)
        assert actions([agent.fail("search")]) == ["warn" if n == 3 else "run"]
    agent.call("search")
    assert actions([agent.fail("search") for _ in range(3)]) == ["run", "run", "warn"]


def test_final_errors_of_one_tool() -> None:
    """3 warn, 10 refuse whatever the tool is asked for; another tool is left alone, and one success lifts it."""
    agent = Agent()

    assert actions([agent.fail("search") for _ in range(10)]) == ["run", "run", "warn", *["run"] * 7]
    refused = agent.call("search")
    assert refused is not None
    assert (refused.action, refused.threshold, refused.evidence.done) == (Action.REFUSE, 10, 10)
    assert agent.call("look") is None
    assert actions([agent.call("search") for _ in range(10)]) == [*["refuse"] * 9, "stop"]


def test_a_success_lifts_it() -> None:
    """A call that was under way while the tool was refused, and succeeds, ends the row."""
    agent = Agent()
    seq = agent.engine.start(None, agent.engine.bind(Tool("search")), int(Kind.READ), 5)
    assert isinstance(seq, int)
    for _ in range(10):
        agent.fail("search")
    assert actions([agent.call("search")]) == ["refuse"]
    agent.engine.end(None, seq, 0, 77)

    assert agent.call("search") is None


def test_final_errors_of_one_class_across_tools() -> None:
    """Without access, or without a network, another tool does not help: 5 warn, and a call that failed so is refused."""
    for error_class in (ErrorClass.FINAL_ACCESS, ErrorClass.FINAL_NETWORK):
        agent = Agent()
        said = [agent.fail(f"tool {n % 4}", error_class, key=n) for n in range(1, 11)]
        assert actions(said) == [*["run"] * 4, "warn", *["run"] * 5]
        assert agent.call("tool 1") is None
        # The failures of tool 1 are gone: seven are left.
        assert actions([agent.fail("tool 2", error_class) for _ in range(3)]) == ["run"] * 3
        assert actions([agent.call("tool 2", key=2), agent.call("tool 2")]) == ["refuse", "run"]


def test_classes_are_kept_apart() -> None:
    """Errors of different classes are different errors."""
    agent = Agent()
    classes = [ErrorClass.FINAL_TOOL, ErrorClass.FINAL_ACCESS, ErrorClass.FINAL_NETWORK, ErrorClass.OTHER]

    assert actions([agent.fail("search", classes[n % 4]) for n in range(8)]) == ["run"] * 8


def test_one_first_line() -> None:
    """6 warn, across tools and classes, and nothing is refused."""
    agent = Agent()

    said = actions([agent.fail(f"tool {n % 2}", ErrorClass.OTHER, shape=70) for n in range(12)])

    assert said == [*["run"] * 5, "warn", *["run"] * 6]
    assert actions([Agent().fail("search", ErrorClass.OTHER, shape=n) for n in range(1, 12)]) == ["run"] * 11
    agent = Agent()
    assert actions([agent.fail("search", ErrorClass.OTHER, shape=0) for _ in range(12)]) == ["run"] * 12


def test_the_nearest_rung_speaks() -> None:
    """Final errors of many tools with one first line: the line is what they share."""
    agent = Agent()
    said = [agent.fail(f"tool {n}", shape=70) for n in range(6)]

    assert actions(said) == [*["run"] * 5, "warn"]
    assert said[-1] is not None
    assert said[-1].evidence.pattern[1] == "shape"


def test_siblings_count_once() -> None:
    """Calls of one reply that fail alike are one failure."""
    agent = Agent()
    said = [agent.fail("search", round_=n) for n in range(3) for _ in range(4)]

    assert actions(said) == [*["run"] * 8, "warn", *["run"] * 3]


def test_the_same_call_is_for_failing() -> None:
    """One error under *different* arguments."""
    agent = Agent()

    assert actions([agent.fail("search", key=1) for _ in range(9)]) == ["run"] * 9
    assert actions([agent.fail("search", key=2)]) == ["warn"]


def test_what_ended_is_said_again() -> None:
    """A warning comes again after the row ended; what other tools share lives as long as one of them fails."""
    agent = Agent()
    for n in range(6):
        agent.fail("ab"[n % 2], ErrorClass.FINAL_ACCESS, shape=70)
    assert len(agent.engine.books.ledgers) == 1
    agent.call("a")
    assert len(agent.engine.books.ledgers) == 1
    agent.call("b")
    assert agent.engine.books.ledgers == {}
    assert agent.engine.memories["same_error"] == []


def test_a_free_repetition_is_nothing() -> None:
    """What a call gave before a compaction it may give once more, and the row does not see it."""
    agent = Agent()
    agent.fail("search", key=1)
    agent.engine.note_compaction()
    seq = agent.engine.start(None, agent.engine.bind(Tool("search")), int(Kind.READ), 1)
    assert isinstance(seq, int)
    agent.engine.end(None, seq, 1, 1, 1, error_class=int(ErrorClass.FINAL_TOOL))

    assert len(agent.engine.memories["same_error"]) == 1


def test_the_row_is_bounded() -> None:
    """It holds twelve failures."""
    agent = Agent(Policy.of(SameError(tool_refuse_after=0, tool_stop_after=0)))
    for _ in range(40):
        agent.fail("search")

    assert len(agent.engine.memories["same_error"]) == 12


def test_a_snapshot_holds_the_row() -> None:
    """Anything that is no row of failures is a ``StoreError``."""
    agent = Agent()
    agent.fail("search")
    agent.fail("search")
    agent.engine = restore(Plan(POLICY), snapshot(agent.engine))
    assert actions([agent.fail("search")]) == ["warn"]

    for place, wrong in ((0, "1"), (6, 3), (7, None), (8, "noon")):
        broken = snapshot(agent.engine)
        broken["memories"]["same_error"][0][place] = wrong
        with pytest.raises(StoreError):
            restore(Plan(POLICY), broken)
    for memory in (None, {}, [[1]]):
        broken = snapshot(agent.engine)
        broken["memories"]["same_error"] = memory
        with pytest.raises(StoreError):
            restore(Plan(POLICY), broken)


@pytest.mark.parametrize(
    "changes",
    [{"warn_after": 13}, {"tool_refuse_after": 13}, {"class_refuse_after": 0, "class_stop_after": 13}],
    ids=str,
)
def test_more_than_the_row_holds(changes: dict[str, int]) -> None:
    """A rung above twelve can never be reached, except by refused attempts."""
    with pytest.raises(PolicyError, match="the row holds 12"):
        Policy(SameError(**changes))
    Policy(SameError(tool_stop_after=30))


# -- the shape of a first line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("FileNotFoundError: No such file: src/conf.py", ["src/conf.py"], "FileNotFoundError: No such file: A"),
        ("no file src/a.py in src/a.py.bak", ["src/a.py", "src/a.py.bak"], "no file A in A"),
        ("key 'abc' not among 'x', 'y', 'z'", ["abc"], "key Q not among Q"),
        ("it doesn't match [3, 4] (see `help`)", [], "it doesn't match Q"),
        ("HTTP 404 after 12.5s (request id 7f33c1)", [], "HTTP N after Q"),
        ("12 of 30 rows", [], "N of N rows"),
        ("exit code 1\nmake: *** No rule", [], "make: *** No rule"),
        ("RuntimeError: exit code: -9\n\nKilled", [], "Killed"),
        ("Error:\nfatal: not a repository", [], "fatal: not a repository"),
        ("Traceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'q'", [], "KeyError: Q"),
        ("exit code 1", [], "exit code N"),
        ("", ["something"], ""),
        ("x" * 300, [], "x" * SHAPE),
    ],
)
def test_shape(text: str, values: list[str], expected: str) -> None:
    """The first line without what depends on the arguments."""
    assert shape(text, values) == expected


def test_short_arguments_stay() -> None:
    """Values of fewer than six characters are words that may stand anywhere."""
    assert shape("cannot open file a", ["a", "file", "open"]) == "cannot open file a"
