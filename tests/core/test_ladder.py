"""The ladder: what a row of equal calls leads to, by how many, by limits and in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

from loopguard.policy import Policy
from loopguard.records import Action, Evidence, Hit, Kind, Operation, Status, Tool
from loopguard.rules import Attempt, Failing, Limits, Poll, Repeat, SameCall
from loopguard.rules.base import Words
from loopguard.testing.caller import READ, row
from loopguard.testing.caller import Caller as Agent
from loopguard.testing.examples import SameTool
from loopguard.wording import words

POLL, SAMPLE = int(Kind.POLL), int(Kind.SAMPLE)
FAILED = int(Status.FAILED)


# -- the table --------------------------------------------------------------------------------------------------------


def test_an_agent_that_never_learns() -> None:
    """With 3 / 5 / 10: five are executed, the third warns, the sixth to tenth are refused, the eleventh ends the run."""
    assert Agent().calls(12) == row("2run warn 2run 5refuse 2stop")


def test_five_refusals_are_one_event() -> None:
    """The first refusal and the stop are reported, the others only counted."""
    agent = Agent()
    agent.calls(5)
    hits = [agent.start() for _ in range(7)]

    assert all(isinstance(hit, Hit) for hit in hits)
    assert [hit.report for hit in hits if isinstance(hit, Hit)] == [True, False, False, False, False, True, False]
    assert [hit.refused for hit in hits if isinstance(hit, Hit)] == [0, 1, 2, 3, 4, 5, 5]
    assert agent.engine.totals["refused"] == 7


def test_without_a_refusal_ten_run() -> None:
    """Without ``refuse_after`` ten are executed and the eleventh ends the run."""
    policy = Policy(Repeat(refuse_after=0))

    assert Agent(policy).calls(11) == row("2run warn 7run stop")


def test_fifty_gathered_at_once() -> None:
    """Of fifty identical calls in flight five run, 45 are refused in one round, and the run goes on."""
    agent = Agent()
    said = [agent.start() for _ in range(50)]
    admitted = [seq for seq in said if isinstance(seq, int)]
    refused = [hit for hit in said if isinstance(hit, Hit)]

    assert len(admitted) == 5
    assert {hit.action for hit in refused} == {Action.REFUSE}
    assert [hit.report for hit in refused] == [True] + [False] * 44
    assert agent.engine.books.ignored == {}
    assert [agent.engine.end(None, seq, 0, 10) is None for seq in admitted] == [True, True, False, True, True]
    assert agent.engine.latch is None
    # One refused round is remembered: four more, then the stop.
    assert agent.calls(5) == row("4refuse stop")


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        ((1, 2, 3), "warn run refuse stop"),
        ((2, 3, 4), "run warn run refuse stop"),
        ((1, 1, 1), "warn stop"),
        ((1, 1, 2), "warn refuse stop"),
        ((3, 3, 3), "2run warn stop"),
        ((0, 2, 3), "2run refuse stop"),
        ((None, 0, 2), "2run stop"),
        ((2, 0, 0), "run warn 4run"),
        ((0, None, 0), "8run"),
        ((0, 0, 1), "run stop"),
    ],
)
def test_rungs_from_both_sides(rungs: tuple[int | None, int | None, int | None], expected: str) -> None:
    """Each rung acts at its number and not one before; 0 and None are off."""
    warn, refuse, stop = rungs
    repeat = Repeat(
        warn_after=warn,
        refuse_after=refuse,
        stop_after=stop,
        unknown_warn_after=0,
        unknown_refuse_after=0,
        unknown_stop_after=0,
    )
    assert Agent(Policy.of(repeat)).calls(len(row(expected))) == row(expected)


def test_one_rung_for_one_tool() -> None:
    """A tool's own rungs replace the policy's for that tool alone."""
    agent = Agent()
    tool = Tool("look", rungs=(("warn_after", 2), ("refuse_after", 3), ("stop_after", 4)))

    assert agent.calls(5, key=7, tool=tool) == row("run warn run refuse stop")
    # Rungs that do not fit the policy of the run hold as far as they fit: warn at 6, so refuse there at the earliest.
    late = Tool("late", rungs=(("warn_after", 6),))
    assert Agent().calls(7, key=8, tool=late) == row("5run warn refuse")


def test_what_rests_on_inexact_arguments_is_not_refused() -> None:
    """Arguments without a canonical form may warn, and never refuse."""
    agent = Agent()
    bound = agent.engine.bind(Tool("read"), exact=False)
    said = []
    for _ in range(20):
        seq = agent.engine.start(None, bound, READ, 1)
        assert isinstance(seq, int)
        hit = agent.engine.end(None, seq, 0, 10)
        said.append("run" if hit is None else str(hit.action))

    assert said == row("2run warn 17run")


# -- calls in flight and rounds ---------------------------------------------------------------------------------------


def test_flight_does_not_count_for_a_call_that_flips() -> None:
    """A call whose last two outcomes differed may be gathered as often as it likes."""
    agent = Agent()
    agent.call(outcome=10)
    agent.call(outcome=11)

    assert all(isinstance(agent.start(), int) for _ in range(20))


@pytest.mark.parametrize("kind", [POLL, SAMPLE])
def test_flight_does_not_count_for_samples_and_polls(kind: int) -> None:
    """Samples and polls that are in flight are no evidence."""
    agent = Agent()

    assert all(isinstance(agent.start(kind=kind), int) for _ in range(20))


def test_flight_never_stops() -> None:
    """Calls in flight may refuse, they never end a run."""
    agent = Agent(Policy(Repeat(refuse_after=0, stop_after=3)))

    assert all(isinstance(agent.start(), int) for _ in range(20))


def test_refused_attempts_of_one_said_round_count_once() -> None:
    """Siblings of one reply could not know: together they are one refused round."""
    agent = Agent()
    agent.calls(5)
    for round_ in range(100, 105):
        hits = [agent.start(round_=round_) for _ in range(7)]
        assert {hit.action for hit in hits if isinstance(hit, Hit)} == {Action.REFUSE}
    last = agent.start(round_=200)

    assert isinstance(last, Hit)
    assert last.action is Action.STOP


def test_rounds_that_nobody_said() -> None:
    """A call joins the round while one of its calls is in flight and none has ended."""
    agent = Agent()
    first, second = agent.start(1), agent.start(2)
    assert isinstance(first, int)
    assert isinstance(second, int)
    agent.engine.end(None, first, 0, 10)
    third = agent.start(3)
    assert isinstance(third, int)
    agent.engine.end(None, second, 0, 10)
    agent.engine.end(None, third, 0, 10)

    assert [op.round for op in agent.engine.history] == [1, 1, 2]


def test_a_said_round_takes_all_its_calls() -> None:
    """``note_round`` numbers rounds; the caller says the number with each call."""
    agent = Agent()
    assert agent.engine.note_round() == 1
    for key in (1, 2):
        seq = agent.start(key, round_=1)
        assert isinstance(seq, int)
        agent.engine.end(None, seq, 0, 10)
    assert agent.engine.note_round(7) == 7

    assert [op.round for op in agent.engine.history] == [1, 1]


def test_a_round_may_be_said_with_the_call_alone() -> None:
    """A replayed record names its round, without a note before it."""
    agent = Agent()
    for key, round_ in ((1, 5), (2, 5), (3, 8)):
        seq = agent.start(key, round_=round_)
        assert isinstance(seq, int)
        agent.engine.end(None, seq, 0, 10)

    assert [op.round for op in agent.engine.history] == [5, 5, 8]
    assert agent.engine.round == 8


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_of_calls() -> None:
    """A limit warns once at nine tenths and stops the call after the last; the stop sticks."""
    agent = Agent(limits=Limits(calls=20))
    said = [agent.call(n, outcome=n) for n in range(100, 122)]
    latch = agent.engine.latch

    assert said == row("17run warn 2run 2stop")
    assert latch is not None
    assert latch.limit == ("calls", 20, 20)


def test_the_default_warns_at_a_thousand_calls() -> None:
    """Without a number of the user's there is one warning at 1,000 calls and no stop."""
    agent = Agent()
    said = [agent.call(n, outcome=n) for n in range(100, 2_200)]

    assert said == row("999run warn 1100run")


def test_a_user_message_begins_the_count_of_calls_anew() -> None:
    """The limit of calls is per task; the warning may come again."""
    agent = Agent(limits=Limits(calls=10))
    assert [agent.call(n, outcome=n) for n in range(100, 109)] == row("8run warn")
    agent.engine.note_user_message()

    assert [agent.call(n, outcome=n) for n in range(200, 211)] == row("8run warn run stop")


def test_a_limit_of_one_tool() -> None:
    """Calls beyond a tool's limit are refused, with one event; other tools go on."""
    agent = Agent(limits=Limits(calls_per_tool={"search": 2}))
    said = [agent.call(n, tool="search", outcome=n) for n in range(100, 104)]
    hit = agent.start(200, tool="search")

    assert said == row("run warn 2refuse")
    assert isinstance(hit, Hit)
    assert hit.limit == ("calls_per_tool[search]", 2, 2)
    assert not hit.report
    assert agent.call(300) == "run"


def test_a_limit_of_refused_rounds() -> None:
    """The refusal after the last allowed one ends the run, whatever refuses."""
    loop = Agent(limits=Limits(refusals=2))
    tool = Agent(limits=Limits(refusals=2, calls_per_tool={"read": 1}))

    assert loop.calls(8) == row("2run warn 2run 2refuse stop")
    assert tool.calls(4) == row("warn 2refuse stop")


def test_siblings_of_a_refused_round_use_up_one_refusal() -> None:
    """The limit counts rounds, not calls."""
    agent = Agent(limits=Limits(refusals=1))
    agent.calls(5)
    said = [agent.start(round_=50) for _ in range(4)]

    assert {hit.action for hit in said if isinstance(hit, Hit)} == {Action.REFUSE}
    last = agent.start(round_=51)
    assert isinstance(last, Hit)
    assert last.limit == ("refusals", 1, 1)


def test_a_warning_of_a_rule_goes_before_that_of_a_limit() -> None:
    """One record, one verdict: the limit's warning comes with the next outcome."""
    agent = Agent(limits=Limits(calls=4, handoff_at=0.7))

    assert agent.calls(4) == row("2run warn warn")


# -- several rules ----------------------------------------------------------------------------------------------------


def test_the_more_specific_rule_speaks_and_names_the_others() -> None:
    """``Failing`` is more specific than ``Repeat``; the other is named beside it, and both are warned about."""
    agent = Agent(Policy(Repeat(errors=True), SameCall(warn_after=3, refuse_after=5, stop_after=10)))
    agent.calls(2, status=FAILED)
    seq = agent.start()
    assert isinstance(seq, int)
    hit = agent.engine.end(None, seq, FAILED, 10, 10)
    agent.calls(2, status=FAILED)
    refused = agent.start()

    assert hit is not None
    assert (hit.rule, hit.also) == ("failing", ("repeat", "same_call"))
    assert isinstance(refused, Hit)
    assert (refused.rule, refused.also) == ("failing", ("repeat", "same_call"))
    assert agent.engine.totals["warned"] == 1
    # Two repeats before the warning and one with each call after it, however many rules count it.
    assert agent.engine.totals["wasted"] == 4


def test_quiet_after_a_nudge() -> None:
    """For three executed calls after a delivered nudge no other rule warns; the one that spoke may."""
    agent = Agent()
    agent.calls(3)
    agent.engine.note_nudge("repeat", 1)
    failing = agent.calls(4, key=2, status=FAILED)
    assert failing == row("3run warn")
    agent.engine.note_nudge("repeat", 1)

    assert agent.calls(3, key=3) == row("2run warn")


def test_a_tool_can_be_without_a_rule() -> None:
    """``Repeat.off()`` on a tool leaves it out for that tool."""
    agent = Agent()
    tool = Tool("ping", rules=(Repeat.off(), Failing(warn_after=2)))

    assert agent.calls(12, tool=tool) == row("12run")
    assert agent.calls(2, key=2, tool=tool, status=FAILED) == row("run warn")


def test_a_rule_for_one_tool_alone() -> None:
    """``SameCall`` on one tool counts its calls whatever came back, though the policy does not have it."""
    agent = Agent()
    tool = Tool("buy", rules=(SameCall(refuse_after=2, stop_after=4),))

    assert [agent.call(outcome=n, tool=tool) for n in range(10, 15)] == row("2run 2refuse stop")


# -- scope ------------------------------------------------------------------------------------------------------------


def test_loopctl_refuses_whatever_comes_next() -> None:
    """Ten equal calls run with one warning; the eleventh dispatch ends the run though it is another call."""
    agent = Agent(Policy.loopctl())
    assert agent.calls(10) == row("2run warn 7run")

    assert agent.call(2) == "stop"


def test_loopctl_forgets_after_a_warning_only() -> None:
    """Another result drops the older ones of a warned call, and leaves an unwarned one as it was."""
    warned, unwarned = Agent(Policy.loopctl()), Agent(Policy.loopctl())
    warned.calls(3)
    warned.call(outcome=11)
    unwarned.calls(2)
    unwarned.call(outcome=11)

    assert warned.calls(3) == row("2run warn")
    assert unwarned.calls(1) == row("warn")


def test_loopctl_counts_what_lies_apart() -> None:
    """Alternating results are counted each; once warned about, each flip drops the other."""
    agent = Agent(Policy.loopctl(warn_after=2))
    said = [agent.call(outcome=10 + n % 2) for n in range(6)]

    assert said == row("2run 2warn 2run")


def test_opendev_ends_the_run() -> None:
    """After three equal failures within twenty whatever comes next ends the run; successes never do."""
    agent = Agent(Policy.opendev())
    for n in range(3):
        assert agent.call(status=FAILED) == "run"
        agent.calls(2, key=100 + n)

    assert agent.call(555) == "stop"


def test_opendev_forgets_what_slid_out() -> None:
    """Three equal failures further apart than twenty calls are no doom loop."""
    agent = Agent(Policy.opendev())
    for n in range(6):
        assert agent.call(status=FAILED) == "run"
        assert [agent.call(100 + 10 * n + m, outcome=m) for m in range(9)] == row("9run")


def test_rysh_does_not_execute_the_third() -> None:
    """The third identical call in twenty is refused, the agent is told each time, and the run goes on."""
    agent = Agent(Policy.rysh())

    assert [agent.call(outcome=n) for n in range(10, 20)] == row("2run 8refuse")
    for n in range(19):
        assert agent.call(100 + n) == "run"
    assert agent.call() == "run"


def test_scope_run_lets_go_when_the_pattern_slid_out() -> None:
    """With scope "run" a pattern refuses as long as it is in the window."""
    repeat = Repeat(warn_after=0, refuse_after=2, stop_after=5, unknown_warn_after=0, unknown_refuse_after=0)
    policy = Policy.of(repeat.replace(unknown_stop_after=0), stop_scope="run", window=6)
    agent = Agent(policy)
    agent.calls(2)
    held = [agent.start(100 + n) for n in range(2)]
    assert all(isinstance(hit, Hit) and hit.action is Action.REFUSE for hit in held)
    agent.engine.note_descendant_write()

    assert agent.call(300) == "run"
    assert agent.engine.over == {}


def test_scope_run_lets_a_call_in_flight_end() -> None:
    """A call that was admitted before the pattern was over the rung still gets its outcome."""
    agent = Agent(Policy.opendev())
    late = agent.start(9)
    agent.calls(3, status=FAILED)
    assert isinstance(late, int)

    assert agent.engine.end(None, late, 0, 10) is None
    assert agent.call(9) == "stop"


def test_a_warning_about_another_call_names_its_tool() -> None:
    """loopctl reports the highest pattern with whatever call comes; the tool is that of the pattern."""
    agent = Agent(Policy.loopctl(warn_after=3))
    seqs = [agent.start(1, tool="search") for _ in range(3)]
    agent.engine.note_nudge("other", 77)
    for seq in seqs:
        assert isinstance(seq, int)
        assert agent.engine.end(None, seq, 0, 10) is None
    other = agent.start(2, tool="read")
    assert isinstance(other, int)
    hit = agent.engine.end(None, other, 0, 10)

    assert hit is not None
    assert hit.tool == "search"


def test_poll_stop_and_polls_of_another_key() -> None:
    """A poll's rungs hold for its own key."""
    agent = Agent(Policy.of(Poll(warn_after=2, refuse_after=3, stop_after=4)))

    assert agent.calls(5, kind=POLL) == row("run warn run refuse stop")


# -- rules of the user, and stops from outside ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(SameTool):
    """Raises where it is asked."""

    name: ClassVar[str] = "broken"

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        raise KeyError("a bug")


def test_a_rule_that_raises_is_left_out() -> None:
    """It is asked once; the other rules say what they would say without it."""
    agent = Agent(Policy(Broken()))

    assert agent.calls(12) == row("2run warn 2run 5refuse 2stop")
    assert [(rule.name, type(error)) for rule, error in agent.engine.broken] == [("broken", KeyError)]


def test_a_rule_speaks_in_its_own_words() -> None:
    """The phrases of a rule of the user stand in what is said; those of the built-in rules stay."""

    class Talking(SameTool):
        name: ClassVar[str] = "talking"
        words: ClassVar[Words] = Words(perfect="has said little {n} times")

    class Repeating(SameTool):
        name: ClassVar[str] = "repeat"
        words: ClassVar[Words] = Words(perfect="is someone else's")

    repeat = words("repeat")
    Agent(Policy.of(Talking(warn_after=2, refuse_after=3, stop_after=5))).calls(1)
    Agent(Policy.of(Repeating(warn_after=2, refuse_after=3, stop_after=5))).calls(1)

    assert words("talking") == Talking.words
    assert words("repeat") == repeat
    assert words("unheard of") == Words()


def test_a_stop_from_outside_in_the_middle_of_a_decision() -> None:
    """A signal handler says stop while a rule is asked: its stop is the one that holds."""

    class Interrupted(SameTool):
        name: ClassVar[str] = "interrupted"

        def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
            if len(window) == 5 and call.operation is None and agent.engine.latch is None:
                agent.engine.stop("time is up")
            return SameTool.judge(self, window, call)

    agent = Agent(Policy.of(Interrupted(warn_after=2, refuse_after=0, stop_after=5)))

    assert agent.calls(7) == row("run warn 3run 2stop")
    assert agent.engine.latch is not None
    assert agent.engine.latch.rule == "stop"


def test_what_is_wasted_is_counted_once() -> None:
    """A repeat after a warning is wasted; the warning of another rule about the same calls does not count it again."""
    agent = Agent(
        Policy.of(
            Repeat(warn_after=2, refuse_after=0, stop_after=0), SameCall(warn_after=4, refuse_after=0, stop_after=0)
        )
    )

    assert agent.calls(5) == row("run warn run warn run")
    assert agent.engine.totals["wasted"] == 4
