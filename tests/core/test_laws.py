"""The laws of the fold, on random histories of every kind of record, for the default policy and every preset."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard import budget as budget_module
from loopguard import engine as engine_module
from loopguard import index as index_module
from loopguard import ladder as ladder_module
from loopguard import ledger as ledger_module
from loopguard import snapshot as snapshot_module
from loopguard.engine import Engine
from loopguard.index import Entry, Row
from loopguard.ledger import Books, Ledger
from loopguard.policy import Plan, Policy
from loopguard.records import Hit, Tool
from loopguard.rules import Failing, FailingTally, Limits, Poll, SameCall
from loopguard.snapshot import restore, snapshot
from loopguard.testing.examples import SMALL_CYCLE, SMALL_FAILING, SMALL_POLL, SMALL_REPEAT, SMALL_SAME_ERROR, SameTool
from loopguard.testing.histories import NOTES, TOOLS, Fold, Log, Step, attempt_of, call_of, random_step


def nobody(status: object) -> None:
    """Somebody who wants to be asked; histories answer by themselves."""


SMALL = {"window": 6, "history": 9, "lease_s": 60.0}
LIMITS = Limits(calls=60, calls_per_tool={"run": 20, "status": 25}, refusals=9)
BUDGET = Limits(
    calls=9, calls_per_tool={"run": 4}, refusals=4, seconds=90, tokens=300, cost=5, handoff_at=0.5, on_handoff=nobody
)

#: Tools that bring rules and rungs of their own.
PICKY_TOOLS = (
    Tool("read", rungs=(("refuse_after", 4), ("stop_after", 0))),
    Tool("edit", edits=True, rules=(SameCall(warn_after=2, refuse_after=3, stop_after=5), Failing.off())),
    Tool("run", rules=(FailingTally(stop_after=4), SMALL_REPEAT.replace(errors=True))),
    Tool("status", rules=(Poll.off(),)),
    Tool("dice", rungs=(("warn_after", 1),)),
    Tool("plan"),
)

POLICIES: dict[str, tuple[Policy, tuple[Tool, ...]]] = {
    "default": (Policy(), TOOLS),
    "small": (Policy.of(SMALL_REPEAT, SMALL_FAILING, SMALL_POLL, limits=LIMITS, **SMALL), TOOLS),
    "budget": (Policy.of(SMALL_REPEAT, SMALL_FAILING, SMALL_POLL, limits=BUDGET, **SMALL), TOOLS),
    "tools": (
        Policy.of(SMALL_REPEAT, SMALL_FAILING, SMALL_POLL, endless_refusals=True, **SMALL),
        PICKY_TOOLS,
    ),
    "within": (Policy.of(SMALL_REPEAT.replace(within=9.0), SMALL_FAILING, **SMALL), TOOLS),
    "own": (Policy.of(SameTool(warn_after=2, refuse_after=3, stop_after=5), SMALL_REPEAT, **SMALL), TOOLS),
    "run": (
        Policy.of(SMALL_REPEAT, SMALL_FAILING, SameTool(), stop_scope="run", window=10, history=10),
        TOOLS,
    ),
    "memories": (
        Policy.of(SMALL_CYCLE, SMALL_SAME_ERROR, SMALL_REPEAT.replace(refuse_after=0), window=12, history=15),
        TOOLS,
    ),
    "loopctl": (Policy.loopctl(warn_after=2, stop_after=4, window=6), TOOLS),
    "rysh": (Policy.rysh(window=6), TOOLS),
    "opendev": (Policy.opendev(window=6), TOOLS),
    "loopctl-defaults": (Policy.loopctl(), TOOLS),
}

small = st.integers(0, 3)
kinds_of_step = st.sampled_from(["start"] * 10 + ["end"] * 10 + ["resume"] * 3 + list(NOTES))
steps = st.builds(
    Step,
    what=kinds_of_step,
    a=st.integers(0, 5),
    b=small,
    wait=st.sampled_from([0, 1, 1, 5, 30, 100]),
    override=st.sampled_from([False, False, True]),
    status=st.sampled_from([0, 0, 0, 0, 1, 1, 3, 4]),
    raw=st.sampled_from([10, 10, 10, 11, 1, 0]),
    template=st.sampled_from([20, 20, 21, 0]),
    masked=st.sampled_from([0, 0, 30, 31]),
    prev_masked=st.sampled_from([0, 30]),
    error_class=st.integers(0, 7),
    changed=st.booleans(),
    ended=st.sampled_from([False, False, False, True]),
    shape=st.sampled_from([0, 50, 50, 51]),
)
histories = st.lists(steps, max_size=80)
policies = pytest.mark.parametrize("name", POLICIES)
laws = settings(max_examples=25, deadline=None)


def fold_of(name: str, timed: bool) -> Fold:
    """A fresh run under the policy of this name."""
    policy, tools = POLICIES[name]
    return Fold(Engine(Plan(policy)), tools, timed)


def said(value: int | Hit | None) -> Any:
    """What the engine answered, without identities."""
    return value if not isinstance(value, Hit) else (value, value.evidence)


# -- snapshot -------------------------------------------------------------------------------------------------------


@policies
@laws
@given(history=histories, data=st.data(), timed=st.booleans())
def test_snapshot(name: str, history: list[Step], data: st.DataObject, timed: bool) -> None:
    """Cut anywhere, restored from JSON: the rest gives the same answers and the same state."""
    cut = data.draw(st.integers(0, len(history)))
    whole, first = fold_of(name, timed), fold_of(name, timed)
    for step in history[:cut]:
        assert said(whole.take(step)) == said(first.take(step))
    plain = json.loads(json.dumps(snapshot(first.engine)))
    assert plain == snapshot(first.engine)
    policy, tools = POLICIES[name]
    second = Fold(restore(Plan(policy), plain), tools, timed, first.now)
    second.round = first.round

    assert snapshot(second.engine) == plain
    for step in history[cut:]:
        assert said(whole.take(step)) == said(second.take(step))
    assert snapshot(whole.engine) == snapshot(second.engine)
    assert whole.engine.repeats(whole.at) == second.engine.repeats(second.at)
    assert whole.engine.max_operation_count() == second.engine.max_operation_count()
    assert whole.engine.operations() == second.engine.operations()


def test_nothing_is_left_out_of_a_snapshot() -> None:
    """Every attribute of the state is stored, derived, or part of the policy; this test names which."""
    plain = snapshot(Engine(Plan(Policy())))
    stored = {*plain["counters"], *plain["flags"], *plain} - {"operations"}
    derived = {"counts", "repeated", "seen", "bounds", "broken"}
    policy = {"plan", "window", "keep_counts", "keep_seen", "keeps"}
    slots = {
        *Engine.__slots__,
        *ladder_module.Ladder.__slots__,
        *budget_module.Budget.__slots__,
        *index_module.Index.__slots__,
    }

    assert slots - stored == derived | policy | {"books"}
    assert set(Books.__slots__) - set(plain) == {"_by_key"}
    assert set(Entry.__struct_fields__) == {*snapshot_module._ENTRY, "key", "row", "op", "ops", "refused_at"}
    assert set(Row.__slots__) == {*snapshot_module._ROW, "name", "tool"}
    assert set(Ledger.__slots__) == {*snapshot_module._LEDGER, "rule"}


# -- locality -------------------------------------------------------------------------------------------------------


@policies
@laws
@given(history=histories, timed=st.booleans())
def test_locality(name: str, history: list[Step], timed: bool) -> None:
    """Before each attempt and after each end, every rule's evidence is what the last operations say by definition."""
    log = Log(fold_of(name, timed))
    engine = log.fold.engine
    for step in history:
        op = log.take(step)
        for entry in list(engine.keys.values()):
            for rule in engine.bind(entry.row.tool).all:
                if entry.kind in rule.skips:
                    continue
                window = rule.window(engine, entry) if "counts" in rule.reads else log.window(rule, entry)
                assert len(window) <= engine.window
                for operation in {None, op if op is not None and op.key == entry.key else None}:
                    at = log.fold.at
                    found = rule.evidence(engine, entry, at, operation)
                    judged = rule.judge(window, attempt_of(entry, at, operation))
                    if (found and found.done) or (judged and judged.done):
                        assert found == judged


# -- bound ----------------------------------------------------------------------------------------------------------


def size(value: Any) -> int:
    """Numbers and texts in a plain value."""
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    return sum(map(size, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("never_ending", [False, True], ids=["ended", "never-ending"])
@policies
def test_bound(name: str, never_ending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls, tools, targets and patterns there were, the state holds what the policy allows."""
    monkeypatch.setattr(engine_module, "MAX_OPEN", 20)
    monkeypatch.setattr(index_module, "MAX_TOOLS", 15)
    monkeypatch.setattr(ledger_module, "MAX_LEDGERS", 12)
    policy, tools = POLICIES[name]
    engine = Engine(Plan(policy.replace(limits=Limits(soft_calls=0), endless_refusals=True)))
    sizes = []
    for n in range(1, 2_001):
        a, b = n % 7 % len(tools), n // 5
        tool, kind, key, _ = call_of(a, b, tools)
        if n % 3 == 0:
            tool = Tool(f"tool {n}", edits=tool.edits, rules=tool.rules)
        if n % 5 == 0:  # a new target of edits that fail recoverably
            tool, kind, key = tools[1], 2, 10**6 + n
        at = None if never_ending else float(n)
        bound = engine.bind(tool)
        seq = engine.start(at, bound, kind, key, n)
        if isinstance(seq, Hit):
            seq = engine.override(at, bound, kind, key, n)
        if not never_ending or n % 4:
            hit = engine.end(at, seq, n % 5 == 0, 10, 20, error_class=6 if n % 5 == 0 else 0, changed=False)
            if hit is not None:
                engine.note_nudge(hit.rule, key)
        if n in (500, 2_000):
            sizes.append(size(snapshot(engine)))
    window, open_ = policy.window, 20
    waiting = max(16, window // 4)

    assert sizes[1] <= 1.25 * sizes[0]
    assert len(engine.open) <= open_
    assert len(engine.late) <= 100
    assert len(engine.keys) <= window + open_ + waiting
    assert len(engine.history) <= policy.history
    assert len(engine.counted) <= window
    assert len(engine.counts) <= window
    assert len(engine.seen) <= window + waiting + open_
    assert len(engine.cleared) <= window
    assert len(engine.over) <= window + open_
    assert len(engine.rows) <= 16
    assert len(engine.bounds) <= 16
    assert len(engine.books.items()) <= 12
    assert len(engine.books.followed) <= ledger_module.MAX_FOLLOWED
    assert all(len(entry.ops or ()) <= 2 * window for entry in engine.keys.values())
    assert all(len(ops) <= 2 * window for ops in engine.seen.values())


@policies
@settings(max_examples=2, deadline=None)
@given(cycle=st.lists(steps, min_size=30, max_size=60))
def test_bound_of_a_repeated_history(name: str, cycle: list[Step]) -> None:
    """The same history ten times over leaves a state about as large as once."""
    policy, tools = POLICIES[name]
    fold = Fold(Engine(Plan(policy.replace(limits=Limits(soft_calls=0), endless_refusals=True))), tools)
    fold_sizes = []
    for turn in range(40):
        for step in cycle:
            fold.take(step)
        fold.take(Step("resume"))
        if turn in (9, 39):
            fold_sizes.append(size(snapshot(fold.engine)))

    # A full window, history and lists of open calls, in numbers and texts.
    allowed = 20 * (2 * policy.history + 200 + 60)
    assert fold_sizes[1] <= fold_sizes[0] + allowed


# -- a linear history -----------------------------------------------------------------------------------------------


def linear(policy: Policy, key: Callable[[int], int], outcome: Callable[[int], int], data: st.DataObject) -> None:
    """Fold a history in which something is new at each step; nothing may be said about it."""
    engine = Engine(Plan(policy.replace(limits=Limits(soft_calls=0))))
    for n in range(1, 80):
        a = data.draw(st.integers(0, 5))
        status = data.draw(st.sampled_from([0, 0, 1]))
        tool, kind, first, target = call_of(a, 0)
        seq = engine.start(float(n), engine.bind(tool), kind, first + key(n), target)
        assert not isinstance(seq, Hit)
        # Final errors of one class are one error, whatever was asked for.
        error_class = data.draw(st.sampled_from([0, 1, 5, 6, 7]))
        hit = engine.end(float(n), seq, status, outcome(n), outcome(n), error_class=error_class, shape=100 + n)
        assert hit is None


@pytest.mark.parametrize("name", ["default", "small", "within", "loopctl", "rysh", "opendev"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_new_calls_are_never_a_loop(name: str, data: st.DataObject) -> None:
    """Every call is new: whatever comes back, nothing is warned, refused or stopped."""
    linear(POLICIES[name][0], key=lambda n: n, outcome=lambda n: 10, data=data)


@pytest.mark.parametrize("name", ["default", "small", "within", "loopctl", "opendev"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_new_outcomes_are_never_a_loop(name: str, data: st.DataObject) -> None:
    """Every outcome is new: the same call may be made as often as it likes."""
    linear(POLICIES[name][0], key=lambda n: 0, outcome=lambda n: 100 + n, data=data)


def test_these_histories_reach_every_rung() -> None:
    """The laws are not vacuous: random histories warn, refuse and stop under every policy that can."""
    for name, (policy, tools) in POLICIES.items():
        expected = {
            "loopctl": {("repeat", "warn"), ("repeat", "stop")},
            "loopctl-defaults": {("repeat", "warn")},
            "rysh": {("same_call", "refuse")},
            "opendev": {("failing", "stop")},
            "budget": {("repeat", "warn")},
        }.get(name, {("repeat", "warn"), ("repeat", "refuse")})
        seen: set[tuple[str, str]] = set()
        seed = 0
        while not seen >= expected:
            seed += 1
            assert seed < 5_000, name
            chance = random.Random(seed)
            fold = Fold(Engine(Plan(policy)), tools)
            for _ in range(90):
                answer = fold.take(random_step(chance, arguments=2))
                if isinstance(answer, Hit) and answer.rule not in {"stop", "limits"}:
                    seen.add((answer.rule, str(answer.action)))


def test_an_unknown_step_is_an_error() -> None:
    """A history with a misspelt note does not pass as a shorter one."""
    with pytest.raises(ValueError, match="usr"):
        fold_of("default", True).take(Step("usr"))
