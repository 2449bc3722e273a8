"""Snapshots: what garbage, other policies and other versions lead to. That they lose nothing is a law beside this."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from loopguard.engine import Engine
from loopguard.errors import StoreError
from loopguard.policy import Plan, Policy
from loopguard.records import Kind, Operation, Tool
from loopguard.rules import Attempt, Failing, Limits, Repeat, Rule, SameCall
from loopguard.snapshot import SCHEMA, restore, snapshot
from loopguard.testing.examples import SameTool
from loopguard.testing.histories import Fold, random_step

TOOLS = (
    Tool("read", rungs=(("refuse_after", 4), ("stop_after", 8))),
    Tool("edit", edits=True, rules=(SameCall(warn_after=2, refuse_after=3, stop_after=5), Failing.off())),
    Tool("run", rules=(SameTool(warn_after=2),)),
    Tool("status"),
    Tool("dice"),
    Tool("plan"),
)
POLICY = Policy(limits=Limits(calls=400, refusals=50))


def lived(seed: int = 1, steps: int = 400, policy: Policy = POLICY) -> Engine:
    """A run in which much has happened."""
    chance = random.Random(seed)
    fold = Fold(Engine(Plan(policy)), TOOLS)
    for _ in range(steps):
        step = random_step(chance)
        if step.what not in {"stop", "resume"}:
            fold.take(step)
    return fold.engine


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value in a plain value."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for name, value in items:
        yield (*path, name)
        yield from places(value, (*path, name))


def test_a_snapshot_is_plain() -> None:
    """Any JSON library writes it, and what it reads gives the same run."""
    engine = lived()
    plain = snapshot(engine)
    engine.stop("enough")
    stopped = snapshot(engine)

    assert plain["schema"] == SCHEMA
    for state in (plain, stopped):
        assert json.loads(json.dumps(state, allow_nan=False)) == state
        assert snapshot(restore(Plan(POLICY), state)) == state
    latch = restore(Plan(POLICY), stopped).latch
    assert latch == engine.latch


def test_a_stop_by_a_limit_survives() -> None:
    """The numbers of the limit are in the snapshot."""
    engine = Engine(Plan(Policy(), Limits(calls=1)))
    bound = engine.bind(Tool("read"))
    engine.start(None, bound, int(Kind.READ), 1)
    engine.start(None, bound, int(Kind.READ), 1)
    again = restore(Plan(Policy(), Limits(calls=1)), json.loads(json.dumps(snapshot(engine))))

    assert again.latch == engine.latch
    assert again.latch is not None
    assert again.latch.limit == ("calls", 1, 1)


@pytest.mark.parametrize("garbage", [None, 3, "snapshot", [], {}, {"schema": 0}, {"schema": SCHEMA}, {"schema": "1"}])
def test_what_is_no_snapshot(garbage: Any) -> None:
    """Anything else is a ``StoreError`` that says what to do."""
    with pytest.raises(StoreError, match="Fold the records again"):
        restore(Plan(Policy()), garbage)


@pytest.mark.parametrize(
    "policy", [Policy(window=60), Policy(history=120), Policy.loopctl(), Policy(SameCall(stop_after=9))]
)
def test_another_policy(policy: Policy) -> None:
    """A snapshot made under another window, history or index is refused, not misread."""
    with pytest.raises(StoreError, match="another policy"):
        restore(Plan(policy), snapshot(lived()))


@pytest.mark.parametrize("garbage", [None, "x", -1.5, [], {}, [[[]]], True, object()], ids=lambda value: str(value)[:7])
def test_garbage_anywhere(garbage: Any) -> None:
    """One wrong value in the middle is a ``StoreError`` or no difference in kind; never another error."""
    text = json.dumps(snapshot(lived(steps=120)))
    paths = list(places(json.loads(text)))
    chance = random.Random(repr(type(garbage)))
    refused = 0
    for path in chance.sample(paths, 100):
        plain = json.loads(text)
        spot = plain
        for name in path[:-1]:
            spot = spot[name]
        spot[path[-1]] = garbage
        try:
            restore(Plan(POLICY), plain)
        except StoreError:
            refused += 1

    assert refused > 50


def test_a_pattern_of_something_else() -> None:
    """A pattern is numbers and texts, however deep."""
    plain = next(one for one in (snapshot(lived(seed, 120)) for seed in range(99)) if one["ledgers"])
    plain["ledgers"][0][0] = ["repeat", [{}]]
    with pytest.raises(StoreError, match="holds a dict"):
        restore(Plan(POLICY), plain)


def test_missing_parts() -> None:
    """A part that is not there is a ``StoreError``."""
    plain = snapshot(lived(steps=60))
    for name in plain:
        rest = {key: value for key, value in plain.items() if key != name}
        with pytest.raises(StoreError):
            restore(Plan(POLICY), rest)


def test_numbers_that_lead_nowhere() -> None:
    """References are checked: a negative one does not count from the end."""
    plain = snapshot(lived(steps=60))
    with pytest.raises(StoreError):
        restore(Plan(POLICY), {**plain, "keys": [-1]})
    with pytest.raises(StoreError):
        restore(Plan(POLICY), {**plain, "history": [10**9]})


def test_unknown_outcomes_are_counted_for_nothing() -> None:
    """What equals nothing stands in the window of the counts, and in no count."""
    plan = Plan(Policy.loopctl())
    engine = Engine(plan)
    for outcome in (0, 10, 0):
        seq = engine.start(None, engine.bind(Tool("read")), int(Kind.READ), 1)
        engine.end(None, seq if isinstance(seq, int) else 0, 0, outcome)
    again = restore(plan, snapshot(engine))

    assert len(again.counted) == 3
    assert again.counts == engine.counts
    assert {pair: len(ops) for pair, ops in again.counts.items()} == {(1, 10): 1}


# -- rules of your own ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd(Rule):
    """A rule with a field that cannot be written down."""

    what: Any = None

    name: ClassVar[str] = "odd"

    def judge(self, window: Sequence[Operation], call: Attempt) -> None:
        """Nothing is ever found."""


class NoRule:
    """Not a rule."""


def ledger_of(rule: Rule, policy: Policy) -> dict[str, Any]:
    """The snapshot of a run in which something was said about this rule."""
    engine = Engine(Plan(policy))
    engine.start(None, engine.bind(Tool("read")), int(Kind.READ), 1)
    engine.end(None, 1, 0, 10)
    [(_, evidence)] = engine.repeats(None)
    engine.acknowledge(evidence.pattern, rule, evidence)
    return snapshot(engine)


def test_rules_of_your_own_are_found_again() -> None:
    """By the policy, or by the module that defines them, if it is imported."""
    rule = SameTool(warn_after=2)
    for policy in (Policy(rule), Policy()):
        again = restore(Plan(policy), ledger_of(rule, policy))
        assert [ledger.rule for _, ledger in again.books.items()] == [rule]


def test_fields_of_rules_are_numbers_and_texts() -> None:
    """A field that is none cannot be written down; tuples come back as tuples."""
    again = restore(Plan(Policy()), ledger_of(SameCall(), Policy()))
    assert [ledger.rule for _, ledger in again.books.items()] == [SameCall()]
    with pytest.raises(StoreError, match="object"):
        ledger_of(Odd(what=object()), Policy())
    policy = Policy(Odd(what=(1, ("a", None, 2.5, True))))
    again = restore(Plan(policy), ledger_of(policy.rules[-1], policy))
    assert [ledger.rule for _, ledger in again.books.items()] == [policy.rules[-1]]


@pytest.mark.parametrize("name", ["Nothing", "loopguard.rules:Nothing", "nowhere:Rule", "loopguard.records:Tool", 3])
def test_unknown_rules(name: Any) -> None:
    """A rule that is not there, or no rule, is a ``StoreError``."""
    plain = ledger_of(Repeat(), Policy())
    plain["ledgers"][0][1][0] = name
    with pytest.raises(StoreError):
        restore(Plan(Policy()), plain)
