"""Policies as tables: keys, types, and what cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from loopguard.config import (
    policy_from_mapping,
)
from loopguard.errors import PolicyError
from loopguard.policy import Policy
from loopguard.rules import Limits, Repeat, RepeatTally, SameCall


def repeat_of(policy: Policy) -> Any:
    """The policy's rule named repeat."""
    return next(rule for rule in policy.rules if rule.name == "repeat")


def test_rules_in_a_table() -> None:
    """Thresholds change a rule, false removes it, true takes it with its own defaults."""
    table = {
        "rules": {"repeat": {"warn_after": 4}, "failing": False, "same_call": True},
        "endless_refusals": True,
    }
    policy = policy_from_mapping(table)

    assert repeat_of(policy) == Repeat(warn_after=4)
    assert {rule.name for rule in policy.rules} == {rule.name for rule in Policy().rules} - {"failing"} | {"same_call"}
    assert SameCall() in policy.rules
    assert policy_from_mapping({"repeat": {"warn_after": 4}}) == Policy(Repeat(warn_after=4))
    assert policy_from_mapping({"repeat": Repeat(warn_after=4)}) == Policy(Repeat(warn_after=4))


def test_what_a_preset_takes() -> None:
    """Keywords of a preset stand beside it, and a rule of a preset keeps its class."""
    assert policy_from_mapping({"preset": "loopctl", "window": 200}) == Policy.loopctl(window=200)
    assert policy_from_mapping({"preset": "rysh", "refuse_after": 4}) == Policy.rysh(refuse_after=4)
    counted = policy_from_mapping({"preset": "loopctl", "repeat": {"warn_after": 7, "thresholds": {"b": 2, "a": 3}}})
    assert repeat_of(counted) == RepeatTally(warn_after=7, thresholds=(("a", 3), ("b", 2)))


def test_settings_in_a_table() -> None:
    """Every plain setting of a policy has its key."""
    table = {
        "sensitivity": "high", "mode": "observe", "window": 60, "history": 70, "stop_scope": "run", "nudge_budget": 1,
        "endless_refusals": True, "lease_s": 60, "restarts": False, "masking": False, "kinds": False,
        "text_parts": True, "limits": {"calls": 200, "calls_per_tool": {"x": 2}},
    }  # fmt: skip
    limits = Limits(calls=200, calls_per_tool={"x": 2})

    assert policy_from_mapping(table) == Policy(**{**table, "limits": limits})
    assert policy_from_mapping({"limits": limits}) == Policy(limits=limits)
    assert policy_from_mapping({"limits": None}) == Policy()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"windw": 5}, r"policy has no key 'windw'. Did you mean 'window'\?"),
        ({"zzz": 5}, "policy has no key 'zzz'. Known: "),
        ({"preset": "rish"}, r"policy.preset='rish' is not a preset. Did you mean 'rysh'\?"),
        ({"preset": 5}, "policy.preset=5 is not a preset"),
        ({"warn_after": 4}, "Rungs belong to a rule: policy.rules.repeat.warn_after"),
        ({"signature": "x"}, "policy cannot hold 'signature': it is an object. Give it in code"),
        ({"window": "50"}, "policy.window='50' is of the wrong type: give a whole number"),
        ({"window": True}, "policy.window=True is of the wrong type"),
        ({"masking": 1}, "policy.masking=1 is of the wrong type: give true or false"),
        ({"lease_s": "1h"}, "policy.lease_s='1h' is of the wrong type: give a number"),
        ({"mode": "of"}, r"policy.mode='of' is not one of 'enforce', 'observe', 'off'. Did you mean 'off'\?"),
        ({"sensitivity": 3}, "policy.sensitivity=3 is not one of"),
        ({"rules": {"repat": {}}}, r"policy.rules has no key 'repat'. Did you mean 'repeat'\?"),
        ({"rules": []}, r"policy.rules=\[\] is not a table"),
        (
            {"rules": {"repeat": {"warn_aftr": 3}}},
            r"policy.rules.repeat has no key 'warn_aftr'. Did you mean 'warn_after'\?",
        ),
        (
            {"repeat": {"warn_after": "3"}},
            "policy.repeat.warn_after='3' is of the wrong type: give a whole number",
        ),
        ({"repeat": 3}, "policy.repeat=3 is not a table of thresholds. false removes the rule"),
        ({"repeat": {"warn_after": 6}}, r"Repeat\(warn_after=6, refuse_after=5\) is out of order"),
        ({"repeat": {"warn_after": -1}}, "negative"),
        ({"repeat": {}, "rules": {"repeat": {}}}, "speak of the same rule"),
        (
            {"preset": "loopctl", "repeat": {"thresholds": 3}},
            "thresholds=3 is of the wrong type: give a table",
        ),
        ({"limits": 5}, "policy.limits=5 is not a Limits"),
        ({"limits": {"calls": 0}}, r"Limits\(calls=0\)"),
        ({"limits": {"handoff_at": "x"}}, "policy.limits.handoff_at='x' is of the wrong type: give a number"),
        ({"window": 60, "history": 55}, "Raise history to 60"),
    ],
)
def test_bad_tables(table: dict[str, Any], said: str) -> None:
    """Unknown keys name the nearest, wrong types what is wanted, impossible policies what the code would say."""
    with pytest.raises(PolicyError, match=said):
        policy_from_mapping(table)
