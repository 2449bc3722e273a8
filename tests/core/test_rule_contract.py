"""The contract of rules, on every rule that is there: a new one is covered by its line in ``RULES``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from loopguard.engine import Engine
from loopguard.errors import StoreError
from loopguard.index import Entry, Index, Trigger
from loopguard.policy import Plan, Policy
from loopguard.records import Evidence, Hit, Operation, Tool
from loopguard.rules import RULES, Poll, RepeatTally, Rule, SameCall
from loopguard.snapshot import restore, snapshot
from loopguard.testing.contracts import RuleContract, Unread
from loopguard.testing.examples import SMALL_CYCLE, SMALL_FAILING, SMALL_POLL, SMALL_REPEAT, SMALL_SAME_ERROR, SameTool

EXAMPLES = [
    *(pytest.param(cls(), id=cls.__name__) for cls in RULES),
    pytest.param(SMALL_REPEAT, id="Repeat-small"),
    pytest.param(SMALL_REPEAT.replace(errors=True), id="Repeat-errors"),
    pytest.param(SMALL_REPEAT.replace(within=9.0), id="Repeat-within"),
    pytest.param(SMALL_FAILING, id="Failing-small"),
    pytest.param(SMALL_POLL, id="Poll-small"),
    pytest.param(SameCall(warn_after=2, refuse_after=3, stop_after=6), id="SameCall-small"),
    pytest.param(RepeatTally(warn_after=3, stop_after=4, thresholds=(("run", 2),)), id="RepeatTally-thresholds"),
    pytest.param(SMALL_CYCLE, id="Cycle-small"),
    pytest.param(SMALL_SAME_ERROR, id="SameError-small"),
    pytest.param(SameTool(), id="SameTool"),
]


class TestEveryRule(RuleContract):
    """The suite on the rules of the package."""

    @pytest.fixture(params=EXAMPLES)
    def rule(self, request: pytest.FixtureRequest) -> Rule:
        """A rule with its default thresholds, or with small ones that random histories reach often."""
        rule: Rule = request.param
        return rule

    @pytest.fixture(autouse=True)
    def _exceptions(self, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
        """Presets take what their source takes; a poll waits for something outside."""
        monkeypatch.setattr(type(self), "lenient", isinstance(rule, RepeatTally))
        monkeypatch.setattr(type(self), "may_refuse_endlessly", isinstance(rule, (Poll, RepeatTally)))


def test_rules_have_names_ranks_and_triggers_of_their_own() -> None:
    """Every rule says what arms it; rules that share a name replace each other."""
    assert all(isinstance(rule.trigger, Trigger) and rule.trigger for rule in RULES)
    names = [rule.name for rule, default in RULES.items() if default]
    assert len(names) == len(set(names))


def test_a_rule_that_looks_into_the_window_is_found_out() -> None:
    """The stand-in for the history refuses to be iterated, measured or indexed."""
    unread = Unread("the history")
    for look in (iter, len, lambda container: container[0]):
        with pytest.raises(AssertionError, match="the history"):
            look(unread)


def test_a_rule_that_can_be_changed_is_found_out() -> None:
    """The duty to be frozen is really checked."""

    class Loose(Rule):
        """Every attribute can be set."""

        name = "loose"
        warn_after = 3

        def __init__(self) -> None:
            """Leave the dataclass out."""

        def __setattr__(self, name: str, value: object) -> None:
            """Take anything."""

    with pytest.raises(AssertionError, match="not frozen"):
        RuleContract().test_has_a_name_and_is_frozen(Loose())


@dataclass(frozen=True, slots=True, kw_only=True)
class Third(Rule):
    """A rule with a memory of its own: it warns at the third failure, and forgets at a success of that tool."""

    name: ClassVar[str] = "third"
    trigger: ClassVar[Trigger] = Trigger.FAILED | Trigger.RECOVERED
    remembers: ClassVar[bool] = True

    def take(self, memory: Any, index: Index, entry: Entry, operation: Operation) -> Iterable[tuple[Any, ...]]:
        """Keep the numbers of failures."""
        assert Rule.take(self, memory, index, entry, operation) == ()
        if operation.status:
            memory.append(operation.seq)
            return ()
        memory.clear()
        return [(self.name,), ("never said",)]

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """All failures so far."""
        seqs = tuple(index.memories.get(self.name, ()))
        return Evidence((self.name,), entry.key, 0, len(seqs), seqs, 3, 0, 0, False) if operation else None


def test_a_rule_of_your_own_may_remember() -> None:
    """What it keeps is in the snapshot, and what it says was refuted is said again."""
    plan = Plan(Policy.of(Third(refuse_after=0, stop_after=0)))
    engine = Engine(plan)

    def call(key: int, status: int) -> Hit | None:
        seq = engine.start(None, engine.bind(Tool("read")), 1, key)
        assert isinstance(seq, int)
        return engine.end(None, seq, status, key, key)

    assert [call(key, 1) is not None for key in range(1, 5)] == [False, False, True, False]
    engine = restore(plan, snapshot(engine))
    assert engine.memories == {"third": [1, 2, 3, 4]}
    assert call(5, 0) is None
    assert [call(key, 1) is not None for key in range(6, 10)] == [False, False, True, False]

    broken = snapshot(engine)
    broken["memories"]["third"] = {}
    with pytest.raises(StoreError, match="TypeError"):
        restore(plan, broken)
    broken["memories"] = {"unknown": [1, {"a": [None, "b", 2.5]}]}
    assert restore(plan, broken).memories == broken["memories"]
