"""The contract of rules, on every rule that is there: a new one is covered by its line in ``RULES``."""

from __future__ import annotations

import pytest

from loopguard.index import Trigger
from loopguard.rules import RULES, Poll, RepeatTally, Rule, SameCall
from loopguard.testing.contracts import RuleContract, Unread
from loopguard.testing.examples import SMALL_FAILING, SMALL_POLL, SMALL_REPEAT, SameTool

EXAMPLES = [
    *(pytest.param(cls(), id=cls.__name__) for cls in RULES),
    pytest.param(SMALL_REPEAT, id="Repeat-small"),
    pytest.param(SMALL_REPEAT.replace(errors=True), id="Repeat-errors"),
    pytest.param(SMALL_REPEAT.replace(within=9.0), id="Repeat-within"),
    pytest.param(SMALL_FAILING, id="Failing-small"),
    pytest.param(SMALL_POLL, id="Poll-small"),
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
