"""The contract of rules, on every rule that is there: a new one is covered by its line in ``RULES``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

from loopguard.index import Trigger
from loopguard.records import Evidence, Operation
from loopguard.rules import RULES, Attempt, Failing, Poll, Repeat, RepeatTally, Rule, SameCall
from loopguard.testing.contracts import RuleContract


@dataclass(frozen=True, slots=True, kw_only=True)
class SameTool(Rule):
    """A rule as a user writes it: the same tool again and again, whatever the arguments, in a task of its own."""

    name: ClassVar[str] = "same_tool"
    restarts: ClassVar[bool] = False
    forgets_on_change: ClassVar[bool] = False

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        ops = []
        for op in reversed(window):
            if op.tool != call.tool or not op.outcome or (ops and op.outcome != ops[-1].outcome):
                break
            ops.append(op)
        seqs = tuple(op.seq for op in reversed(ops))
        rungs = (self.warn_after or 0, self.refuse_after or 0, self.stop_after or 0)
        return Evidence((self.name, call.tool), 0, 0, len(ops), seqs, *rungs, False)


SMALL_FAILING = Failing(
    warn_after=2,
    refuse_after=3,
    stop_after=5,
    recoverable_warn_after=2,
    recoverable_refuse_after=3,
    recoverable_stop_after=4,
    transient_warn_after=2,
    transient_refuse_after=3,
    transient_stop_after=6,
)
SMALL_REPEAT = Repeat(
    warn_after=2,
    refuse_after=3,
    stop_after=5,
    unknown_warn_after=3,
    unknown_refuse_after=4,
    unknown_stop_after=6,
)
EXAMPLES = [
    *(pytest.param(cls(), id=cls.__name__) for cls in RULES),
    pytest.param(SMALL_REPEAT, id="Repeat-small"),
    pytest.param(SMALL_REPEAT.replace(errors=True), id="Repeat-errors"),
    pytest.param(SMALL_REPEAT.replace(within=9.0), id="Repeat-within"),
    pytest.param(SMALL_FAILING, id="Failing-small"),
    pytest.param(Poll(warn_after=2, refuse_after=4, patience=20), id="Poll-small"),
    pytest.param(SameCall(warn_after=2, refuse_after=3, stop_after=6), id="SameCall-small"),
    pytest.param(RepeatTally(warn_after=3, stop_after=4, thresholds=(("run", 2),)), id="RepeatTally-thresholds"),
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
    assert all(rule.trigger in Trigger for rule in RULES)
    names = [rule.name for rule, default in RULES.items() if default]
    assert len(names) == len(set(names))
