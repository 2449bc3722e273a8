"""Limits in the fold: what uses them up, when they warn and hand off, when they stop, and what their stop says."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from loopguard.budget import UNFED, UNFED_CALLS, Usage
from loopguard.engine import Engine
from loopguard.errors import StoreError
from loopguard.index import OTHER_TOOLS
from loopguard.policy import Plan, Policy
from loopguard.records import Action, Hit, Most, Tool
from loopguard.rules import Limits
from loopguard.snapshot import restore, snapshot
from loopguard.testing.examples import SMALL_FAILING, SMALL_POLL, SMALL_REPEAT
from loopguard.testing.histories import TOOLS, Fold, random_step
from loopguard.wording import sentence, unfed_sentence

READ = Tool("read")


def nobody(status: object) -> None:
    """Somebody who wants to be asked; these tests answer by themselves."""


class Steps:
    """An engine and a counter of new calls; every call takes a second, if time is told at all."""

    def __init__(self, timed: bool = False, policy: Policy | None = None, **limits: Any) -> None:
        self.engine = Engine(Plan(policy or Policy(), Limits(**limits)))
        self.now = 0.0 if timed else None
        self.n = 0

    def start(self, tool: Tool = READ) -> int | Hit:
        self.n += 1
        return self.engine.start(self.now, self.engine.bind(tool), 1, 1_000 + self.n)

    def call(self, tool: Tool = READ) -> Hit | None:
        seq = self.start(tool)
        if isinstance(seq, Hit):
            return seq
        if self.now is not None:
            self.now += 1
        return self.engine.end(self.now, seq, 0, self.n)

    def use(self, tokens: int = 0, cost: float | None = 0.0) -> Hit | None:
        return self.engine.note_usage(self.now, tokens, 0, cost)


def hit_of(said: object, action: Action, limit: tuple[str, float, float]) -> Hit:
    """What was said, held to be this action of this limit."""
    assert isinstance(said, Hit)
    assert (said.rule, said.action) == ("limits", action)
    assert said.limit == limit
    return said


# -- each limit -----------------------------------------------------------------------------------------------------


def test_cost_warns_and_stops() -> None:
    """Ten uses of 2.00 of 20.00: warned at 18.00, and the call after the tenth is the first that is not executed."""
    run = Steps(cost=20)
    for n in range(1, 11):
        assert run.call() is None
        said = run.use(cost=2.0)
        assert (said is not None) == (n == 9)
        if said is not None:
            hit_of(said, Action.WARN, ("cost", 18.0, 20))
    stop = hit_of(run.start(), Action.STOP, ("cost", 20.0, 20))

    assert (
        sentence(stop, "r") == "run 'r' was stopped: cost 20.00 of 20.00 after 10 calls; most called: read (10 calls)"
    )
    assert run.engine.totals["warned"] == 1


def test_a_sum_of_cents_comes_to_its_limit() -> None:
    """0.1 added fifty times is a little less than 5, and counts as 5."""
    run = Steps(cost=5)
    for _ in range(50):
        run.use(cost=0.1)

    assert run.engine.usage is not None
    assert run.engine.usage.cost < 5
    assert isinstance(run.start(), Hit)


def test_tokens_of_both_directions_count() -> None:
    """Input and output tokens are one sum."""
    run = Steps(tokens=1_000)
    assert run.engine.note_usage(None, 500, 300, None) is None
    hit_of(run.engine.note_usage(None, 0, 100, None), Action.WARN, ("tokens", 900, 1_000))
    assert run.use(99) is None
    assert run.call() is None
    run.use(1)
    stop = hit_of(run.call(), Action.STOP, ("tokens", 1_000, 1_000))

    assert sentence(stop, "r") == "run 'r' was stopped: tokens 1,000 of 1,000 after 1 call"


def test_usage_without_a_price_is_counted_apart() -> None:
    """It is in no cost, not even as zero."""
    run = Steps(cost=5)
    run.use(10, cost=1.5)
    run.use(20, cost=None)
    run.use(30, cost=None)

    assert run.engine.usage == Usage(60, 0, 1.5, 2, 50)


def test_seconds_run_from_the_first_record() -> None:
    """Judged by the records: warned with the outcome at nine tenths, stopped before the call at the limit."""
    run = Steps(timed=True, seconds=10)
    run.now = 500.0
    said = [run.call() for _ in range(11)]

    assert said[:8] == [None] * 8
    hit_of(said[8], Action.WARN, ("seconds", 9.0, 10))
    assert said[9] is None
    hit_of(said[10], Action.STOP, ("seconds", 10.0, 10))


def test_seconds_may_begin_with_usage() -> None:
    """The first record is the first, whatever it is; a wait between two calls counts."""
    run = Steps(timed=True, seconds=10, handoff_at=0)
    run.use(1)
    run.now = 10.0

    hit_of(run.start(), Action.STOP, ("seconds", 10.0, 10))


def test_without_times_seconds_are_off() -> None:
    """Records without time switch the limit off, and nothing else."""
    run = Steps(seconds=1)

    assert [run.call() for _ in range(30)] == [None] * 30
    assert run.engine.began is None


def test_calls_of_one_tool_warn() -> None:
    """At nine tenths of fifty, then refused; the run goes on."""
    run = Steps(calls_per_tool={"spawn": 50})
    said = [run.call(Tool("spawn")) for _ in range(51)]

    assert [n for n, hit in enumerate(said, 1) if hit is not None] == [45, 51]
    assert sentence(hit_of(said[44], Action.WARN, ("calls_per_tool[spawn]", 45, 50)), "r") == (
        "spawn has used 45 of its 50 calls in this run"
    )
    hit_of(said[50], Action.REFUSE, ("calls_per_tool[spawn]", 50, 50))
    assert run.call() is None


def test_a_tool_that_is_not_allowed_at_all_does_not_warn() -> None:
    """There is nothing to use up."""
    run = Steps(calls_per_tool={"spawn": 0})

    hit_of(run.call(Tool("spawn")), Action.REFUSE, ("calls_per_tool[spawn]", 0, 0))
    assert run.call() is None


def test_refusals_warn_with_the_next_outcome() -> None:
    """A refused round has no outcome of its own to warn with."""
    run = Steps(refusals=2, calls_per_tool={"pay": 0})
    assert [run.call(Tool("pay")).action for _ in range(2)] == [Action.REFUSE] * 2  # type: ignore[union-attr]
    warning = hit_of(run.call(), Action.WARN, ("refusals", 2, 2))

    assert sentence(warning, "r") == "run 'r' has used 2 of 2 refusals"
    hit_of(run.call(Tool("pay")), Action.STOP, ("refusals", 2, 2))


def test_a_thinking_call_can_bring_the_warning() -> None:
    """It counts for limits, and ends without an operation."""
    engine = Engine(Plan(Policy(), Limits(calls=1)))
    seq = engine.start(None, engine.bind(Tool("plan")), 5, 7)
    assert isinstance(seq, int)

    hit_of(engine.end(None, seq, 0, 1), Action.WARN, ("calls", 1, 1))


def test_no_share_no_warning() -> None:
    """``handoff_at=0`` switches all warnings of limits off; they stop all the same."""
    run = Steps(handoff_at=0, cost=1, calls_per_tool={"read": 3}, on_handoff=nobody)
    assert run.use(cost=0.99) is None
    assert [run.call() for _ in range(3)] == [None] * 3
    hit_of(run.call(), Action.REFUSE, ("calls_per_tool[read]", 3, 3))
    run.use(cost=0.01)
    hit_of(run.call(), Action.STOP, ("cost", 1.0, 1))


# -- a limit that sees nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (
            {"cost": 5},
            (
                "cost limit 5.00 in run 'r' has seen no usage in 20 calls. "
                "Feed it: run.note_usage(...), or an adapter, or Limits(price=...)."
            ),
        ),
        (
            {"tokens": 400_000},
            (
                "tokens limit 400,000 in run 'r' has seen no usage in 20 calls. "
                "Feed it: run.note_usage(...), or an adapter."
            ),
        ),
    ],
)
def test_a_limit_that_sees_no_usage_says_so_once(limits: dict[str, Any], says: str) -> None:
    """After twenty executed calls without any usage, and never again."""
    run = Steps(**limits)
    said = [run.call() for _ in range(60)]
    found = [(n, hit) for n, hit in enumerate(said, 1) if hit is not None]

    assert [n for n, _ in found] == [UNFED_CALLS]
    assert found[0][1].rule == UNFED
    assert unfed_sentence(found[0][1], "r") == says
    assert run.engine.totals["warned"] == 0
    assert not run.engine.limit_due


def test_a_limit_that_is_fed_is_silent() -> None:
    """One note of usage is enough."""
    run = Steps(tokens=400_000)
    run.use(10)

    assert [run.call() for _ in range(60)] == [None] * 60


# -- handing off ----------------------------------------------------------------------------------------------------


def test_a_warning_asks_and_is_answered_with_more() -> None:
    """A new number is a new limit: it warns and asks at its own nine tenths; what the answer leaves out stays."""
    run = Steps(cost=10, tokens=100, on_handoff=nobody)
    hit_of(run.use(cost=9.0), Action.WARN, ("cost", 9.0, 10))
    assert run.engine.books.asking == {"cost": (9.0, 10)}
    assert run.engine.note_handoff("cost", Limits(cost=20)) is None

    assert run.engine.limits == Limits(cost=20, tokens=100, on_handoff=nobody)
    assert run.use(cost=8.0) is None
    hit_of(run.use(cost=1.0), Action.WARN, ("cost", 18.0, 20))
    assert run.engine.note_handoff("cost", None) is None
    run.use(cost=2.0)
    hit_of(run.call(), Action.STOP, ("cost", 20.0, 20))


def test_an_answer_may_stop() -> None:
    """The stop names the limit and what was used when it was asked."""
    run = Steps(cost=10, on_handoff=nobody)
    run.use(cost=9.5)
    stop = hit_of(run.engine.note_handoff("cost", "stop"), Action.STOP, ("cost", 9.5, 10))

    assert stop.report
    assert run.engine.latch is stop
    assert sentence(stop, "r") == "run 'r' was stopped: cost 9.50 of 10.00"


def test_a_limit_that_was_jumped_over_asks_before_it_stops() -> None:
    """The attempt is none: no number, no refusal; it is made again when there is an answer."""
    run = Steps(cost=10, on_handoff=nobody)
    run.engine.usage = Usage(cost=11.0)
    run.engine._rearm()
    first = hit_of(run.start(), Action.WARN, ("cost", 11.0, 10))
    again = hit_of(run.start(), Action.WARN, ("cost", 11.0, 10))

    assert (first.report, again.report) == (True, False)
    assert (run.engine.seq, run.engine.totals["refused"], len(run.engine.keys)) == (0, 0, 0)
    run.engine.note_handoff("cost", Limits(cost=30))
    assert run.start() == 1


def test_an_answer_that_is_not_enough_stops() -> None:
    """The limit that was asked about is used up all the same: it does not ask again."""
    run = Steps(cost=10, on_handoff=nobody)
    run.engine.usage = Usage(cost=11.0)
    run.engine._rearm()
    run.start()
    run.engine.note_handoff("cost", Limits(cost=10.5))

    hit_of(run.start(), Action.STOP, ("cost", 11.0, 10.5))


def test_an_answer_with_nothing_new_changes_nothing() -> None:
    """The limits that hold are kept."""
    run = Steps(cost=10, on_handoff=nobody)
    run.use(cost=9.5)
    before = run.engine.limits
    run.engine.note_handoff("cost", Limits(cost=10))

    assert run.engine.limits is before


def test_refusals_ask_before_they_stop() -> None:
    """Whoever refuses: a limit of a tool, or a rule."""
    run = Steps(refusals=1, calls_per_tool={"pay": 0}, on_handoff=nobody)
    hit_of(run.call(Tool("pay")), Action.REFUSE, ("calls_per_tool[pay]", 0, 0))
    hit_of(run.call(Tool("pay")), Action.WARN, ("refusals", 1, 1))
    run.engine.note_handoff("refusals", Limits(refusals=2))
    hit_of(run.call(Tool("pay")), Action.REFUSE, ("calls_per_tool[pay]", 0, 0))

    loop = Engine(Plan(Policy(), Limits(refusals=1, on_handoff=nobody)))
    said = []
    for _ in range(8):
        answer = loop.start(None, loop.bind(READ), 1, 7)
        said.append(answer if isinstance(answer, int) else answer.action)
        if isinstance(answer, int):
            loop.end(None, answer, 0, 3)
    assert said == [1, 2, 3, 4, 5, Action.REFUSE, Action.WARN, Action.WARN]
    loop.note_handoff("refusals", None)
    assert isinstance(loop.start(None, loop.bind(READ), 1, 7), Hit)
    assert loop.latch is not None


def test_more_calls_for_one_tool() -> None:
    """The answer names the tool; the limits of other tools stay."""
    run = Steps(calls_per_tool={"pay": 2, "read": 5}, on_handoff=nobody)
    pay = Tool("pay")
    assert run.call(pay) is None
    hit_of(run.call(pay), Action.WARN, ("calls_per_tool[pay]", 2, 2))
    run.engine.note_handoff("calls_per_tool[pay]", Limits(calls_per_tool={"pay": 4}))

    assert run.engine.limits.calls_per_tool == {"pay": 4, "read": 5}
    assert run.call(pay) is None
    hit_of(run.call(pay), Action.WARN, ("calls_per_tool[pay]", 4, 4))


def test_an_answer_lifts_the_stop_of_its_limit_alone() -> None:
    """A late answer is still an answer; a stop from outside is none of its business."""
    run = Steps(cost=10, tokens=10)
    run.use(cost=10.0)
    assert isinstance(run.start(), Hit)
    run.engine.note_handoff("cost", Limits(tokens=20))
    assert run.engine.latch is not None
    run.engine.note_handoff("cost", Limits(cost=20))
    assert run.engine.latch is None
    run.engine.stop("enough")
    run.engine.note_handoff("cost", Limits(cost=30))

    assert run.engine.latch is not None


def test_waiting_for_an_answer_is_not_the_run_s_time() -> None:
    """A person who takes an hour does not use up the seconds."""
    run = Steps(timed=True, seconds=100, on_handoff=nobody)
    run.call()
    run.now = 95.0
    assert isinstance(run.call(), Hit)
    run.now += 3_600
    run.engine.note_handoff("seconds", None, run.now, 3_600.0)

    assert run.call() is None
    run.now += 4
    hit_of(run.call(), Action.STOP, ("seconds", 101.0, 100))


# -- resume, and runs below -----------------------------------------------------------------------------------------


def test_a_resumed_run_may_use_as_much_again() -> None:
    """Limits begin anew, sums go on."""
    run = Steps(timed=True, cost=10, tokens=50, seconds=100)
    run.use(20, cost=10.0)
    assert isinstance(run.start(), Hit)
    run.engine.resume()
    run.now = 99.0

    assert run.call() is None
    hit_of(run.use(10, cost=9.0), Action.WARN, ("cost", 9.0, 10))
    run.use(20, cost=1.0)
    hit_of(run.start(), Action.STOP, ("cost", 10.0, 10))
    assert run.engine.usage is not None
    assert (run.engine.usage.cost, run.engine.usage.input_tokens) == (20.0, 50)


def test_a_run_below_uses_up_the_limits_here() -> None:
    """Its calls warn and stop here; one that was not executed after all is given back."""
    engine = Engine(Plan(Policy(), Limits(calls=10, seconds=100, calls_per_tool={"read": 2})))
    assert engine.tick(READ, 0.0) is None
    assert engine.began == 0.0
    engine.untick(READ)
    assert (engine.calls, engine.rows["read"].below) == (0, 0)
    assert [engine.tick(READ, 1.0) for _ in range(2)] == [None, None]
    hit_of(engine.limit_warning("read", 1.0), Action.WARN, ("calls_per_tool[read]", 2, 2))
    hit_of(engine.tick(READ, 1.0), Action.REFUSE, ("calls_per_tool[read]", 2, 2))
    hit_of(engine.tick(Tool("edit"), 100.0), Action.STOP, ("seconds", 100.0, 100))


# -- what a stop says -----------------------------------------------------------------------------------------------


def test_a_stop_says_what_repeated_most() -> None:
    """The tool with the most repeated results, and how many different ones there were."""
    engine = Engine(Plan(Policy.of(limits=Limits(cost=5)), None))
    for n in range(143):
        tool = "search" if n % 7 in (1, 3) else "read"
        seq = engine.start(None, engine.bind(Tool(tool)), 1, n)
        assert isinstance(seq, int)
        engine.end(None, seq, 0, n % 3 + 1 if tool == "search" else 0 if n % 2 else 100 + n)
    engine.note_usage(None, 1, 1, 5.02)
    stop = engine.start(None, engine.bind(READ), 1, 999)

    assert isinstance(stop, Hit)
    assert stop.most == Most(143, "search", 29, 3, 100)
    assert sentence(stop, "triage") == (
        "run 'triage' was stopped: cost 5.02 of 5.00 after 143 calls; "
        "most repeated: search (29 of the last 100 calls, 3 different results)"
    )
    assert sentence(stop._replace(most=Most(143, "search", 41, 1)), "t").endswith(
        "after 143 calls; most repeated: search (41 calls, 1 different result)"
    )


def test_a_stop_before_any_call_has_nothing_to_say() -> None:
    """Nor has one after a single call, or where the tools were too many to tell apart."""
    engine = Engine(Plan(Policy(), Limits(cost=0.05)))
    engine.note_usage(None, 1, 1, 0.06)
    stop = engine.start(None, engine.bind(READ), 1, 1)
    assert isinstance(stop, Hit)
    assert sentence(stop, "r") == "run 'r' was stopped: cost 0.0600 of 0.0500"

    engine.rows[OTHER_TOOLS] = engine.rows.pop("read")
    engine.rows[OTHER_TOOLS].name = OTHER_TOOLS
    engine.rows[OTHER_TOOLS].below = 5
    assert engine.most_repeated() == Most(5)


def test_the_sentence_of_one_tool_s_stop() -> None:
    """A person who was asked about a tool may stop the run."""
    run = Steps(calls_per_tool={"pay": 2}, on_handoff=nobody)
    run.call(Tool("pay"))
    run.call(Tool("pay"))
    stop = run.engine.note_handoff("calls_per_tool[pay]", "stop")

    assert stop is not None
    assert sentence(stop, "r") == ("run 'r' was stopped: calls of pay 2 of 2 after 2 calls; most called: pay (2 calls)")


# -- snapshot -------------------------------------------------------------------------------------------------------


def test_a_snapshot_holds_usage_handoffs_and_raised_limits() -> None:
    """The functions come from the plan."""
    limits = Limits(cost=10, seconds=50, on_handoff=nobody)
    engine = Engine(Plan(Policy(), limits))
    engine.note_usage(3.0, 10, 20, 9.5)
    engine.note_handoff("cost", Limits(cost=10.4, calls_per_tool={"pay": 3}))
    engine.note_usage(4.0, 1, 1, None)
    again = restore(Plan(Policy(), limits), json.loads(json.dumps(snapshot(engine))))

    assert again.usage == engine.usage
    assert again.limits == engine.limits
    assert again.limits.on_handoff is nobody
    assert (again.began, again.books.asking) == (3.0, engine.books.asking)
    assert engine.books.asking


@pytest.mark.parametrize(
    "wrong",
    [
        {"usage": 3},
        {"usage": ["x"] * 7},
        {"began": "now"},
        {"limits": {"cost": -1}},
        {"limits": {"cast": 1}},
        {"asking": {"cost": [1]}},
    ],
)
def test_a_wrong_budget_in_a_snapshot(wrong: dict[str, Any]) -> None:
    """It is an error like any other garbage."""
    plain = {**snapshot(Engine(Plan(Policy()))), **wrong}

    with pytest.raises(StoreError):
        restore(Plan(Policy()), plain)


@pytest.mark.parametrize(
    "limits",
    [{"calls": 9}, {"calls_per_tool": {"run": 4}}, {"refusals": 1}, {"seconds": 90}, {"tokens": 300}, {"cost": 5}],
    ids=lambda limits: next(iter(limits)),
)
def test_histories_reach_every_limit(limits: dict[str, Any]) -> None:
    """The laws are not vacuous: random histories warn about each limit, hand it off and are stopped by it."""
    plan = Plan(
        Policy.of(SMALL_REPEAT, SMALL_FAILING, SMALL_POLL, window=6, history=9),
        Limits(**limits, handoff_at=0.5, on_handoff=nobody),
    )
    seen: set[str] = set()
    for seed in range(300):
        chance = random.Random(seed)
        fold = Fold(Engine(plan), TOOLS)
        for _ in range(150):
            step = random_step(chance)
            if chance.random() < 0.2:
                step = step._replace(what=chance.choice(("usage", "handoff")))
            answer = fold.take(step)
            if isinstance(answer, Hit) and answer.limit is not None:
                seen.add(str(answer.action))
        if seen >= {"warn", "stop"}:
            break

    assert seen >= {"warn", "stop"}


def test_no_limit_at_all() -> None:
    """Nothing is ever due."""
    run = Steps(soft_calls=0)

    assert [run.call() for _ in range(30)] == [None] * 30
    assert not run.engine.limit_due


def test_a_round_that_the_caller_names() -> None:
    """An admitted call begins it."""
    engine = Engine(Plan(Policy()))
    engine.start(None, engine.bind(READ), 1, 7, 0, 12)

    assert (engine.round, engine.joinable) == (12, True)


def test_a_snapshot_of_a_policy_that_counts() -> None:
    """An unknown outcome is in the window and in no count."""
    plan = Plan(Policy.loopctl())
    engine = Engine(plan)
    for n, outcome in enumerate((0, 5, 5)):
        seq = engine.start(None, engine.bind(READ), 0, 7)
        assert seq == n + 1
        engine.end(None, seq, 0, outcome)
    again = restore(plan, snapshot(engine))

    assert {pair: len(ops) for pair, ops in again.counts.items()} == {(7, 5): 2}
    assert len(again.counted) == 3


def test_cleared_edits_are_bounded() -> None:
    """Recoverable errors on more files than the window holds leave the latest."""
    engine = Engine(Plan(Policy.of(SMALL_REPEAT, SMALL_FAILING, window=6, history=6)))
    edit = Tool("edit", edits=True)
    for n in range(1, 9):
        engine.clear_edits(n, uncount=False)
        engine.n += 1
    assert len(engine.cleared) <= 7
    assert engine.bind(edit).tool is edit
