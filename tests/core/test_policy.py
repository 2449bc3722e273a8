"""Policies: frozen, validated, and what bad settings say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from loopguard.engine import Engine
from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.policy import PRESETS, Plan, Policy, nearest, rules_of
from loopguard.records import Action, Tool
from loopguard.rules import Failing, FailingTally, Limits, Poll, Repeat, RepeatTally, Rule, SameCall
from loopguard.testing.examples import SameTool


class Signature:
    """Thresholds per tool, as loopctl's signature gives them."""

    def tool_thresholds(self) -> dict[str, int]:
        """Two tools with a threshold of their own."""
        return {"b": 4, "a": 2}


def test_the_default_policy() -> None:
    """The rules are in the order in which they speak; the numbers are the documented ones."""
    policy = Policy()

    assert [rule.name for rule in policy.rules] == ["failing", "cycle", "repeat", "poll", "same_error"]
    assert (policy.window, policy.history, policy.nudge_budget, policy.lease_s) == (50, 100, 5, 900.0)
    assert (policy.mode, policy.stop_scope, policy.sensitivity) == ("enforce", "pattern", "normal")
    assert Plan(policy).limits.warn_calls == 1_000


def test_rules_replace_those_of_the_same_name() -> None:
    """A rule given stands in place of the default one; ``off()`` removes it; ``of`` takes exactly what is given."""
    policy = Policy(Repeat(warn_after=4), Poll.off())

    assert [rule.name for rule in policy.rules] == ["failing", "cycle", "repeat", "same_error"]
    assert policy.rules[2].warn_after == 4
    assert [rule.name for rule in Policy.of(Repeat()).rules] == ["repeat"]


def test_replace_copies() -> None:
    """A copy has the other settings; the first stays."""
    first = Policy(window=60)
    second = first.replace(Failing.off(), window=70)

    assert (first.window, second.window) == (60, 70)
    assert [rule.name for rule in second.rules] == ["cycle", "repeat", "poll", "same_error"]
    assert first.replace() == first
    assert hash(first.replace()) == hash(first)


def test_a_policy_is_frozen() -> None:
    """Settings cannot be changed in place."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().window = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "watch"}, "mode='watch'"),
        ({"stop_scope": "agent"}, "stop_scope='agent'"),
        ({"sensitivity": "max"}, "sensitivity='max'"),
        ({"window": 0}, "window=0"),
        ({"window": True}, "window=True"),
        ({"window": 2.5}, "window=2.5"),
        ({"history": 0}, "history=0"),
        ({"history": 10}, "Raise history to 50"),
        ({"nudge_budget": -1}, "nudge_budget=-1"),
        ({"lease_s": 0}, "lease_s=0"),
        ({"lease_s": float("nan")}, "lease_s=nan"),
        ({"lease_s": "900"}, "lease_s='900'"),
        ({"lease_s": True}, "lease_s=True"),
        ({"limits": 200}, "is not a Limits"),
        ({"windw": 3}, "Did you mean 'window'?"),
        ({"xyz": 3}, "Known: endless_refusals"),
    ],
)
def test_bad_settings(settings: dict[str, Any], says: str) -> None:
    """A setting that cannot be meant is a ``PolicyError``, and a ``ValueError``, that names it."""
    with pytest.raises(PolicyError, match=".") as caught:
        Policy(**settings)
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Repeat(warn_after=60), "Repeat(warn_after=60) can never fire: window=50"),
        (Repeat(warn_after=6), "Lower warn_after or raise refuse_after"),
        (Repeat(unknown_warn_after=11), "unknown_warn_after=11"),
        (Repeat(stop_after=0), "refuses without an end"),
        (Repeat(within=0.0), "within=0.0"),
        (Repeat(within=float("nan")), "within=nan"),
        (Failing(final_warn_after=4), "final_warn_after=4"),
        (Failing(transient_stop_after=-1), "transient_stop_after=-1"),
        (Poll(patience=-1.0), "patience=-1.0"),
        (SameCall(), "endless_refusals=True"),
        (RepeatTally(thresholds=(("a", -2),)), "a=-2"),
        (Limits(calls=3), "Limits go into limits="),
        ("repeat", "'repeat' is not a rule."),
        (Repeat, "is not a rule."),
    ],
)
def test_bad_rules(rule: Any, says: str) -> None:
    """A policy that can never fire, refuses without an end or has rungs out of order names the value and the way out."""
    with pytest.raises(PolicyError, match=".") as caught:
        Policy(rule)
    assert says in str(caught.value)


def test_refusals_may_be_ended_in_other_ways() -> None:
    """A limit on refusals, or saying so, takes the place of ``stop_after``."""
    Policy(Repeat(stop_after=0, unknown_stop_after=0), limits=Limits(refusals=9))
    Policy(Repeat(stop_after=0, unknown_stop_after=0), endless_refusals=True)


def test_a_policy_that_guards_nothing() -> None:
    """Without rules and limits it has to be switched off."""
    with pytest.raises(PolicyError, match="guards nothing"):
        Policy.of()
    assert Policy.of(mode="off").rules == ()
    assert Policy.of(limits=Limits(calls=3)).rules == ()


async def coroutine(status: object) -> None:
    """What cannot be called where nothing is awaited."""


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"calls": 0}, "calls=0"),
        ({"calls": True}, "calls=True"),
        ({"refusals": -1}, "refusals=-1"),
        ({"soft_calls": -1}, "soft_calls=-1"),
        ({"soft_calls": 2.5}, "soft_calls=2.5"),
        ({"calls_per_tool": {"a": -1}}, "'a': -1"),
        ({"handoff_at": 1.5}, "handoff_at=1.5"),
        ({"handoff_at": True}, "handoff_at=True"),
        ({"tokens": 1.5}, "tokens=1.5"),
        ({"seconds": 0}, "seconds=0"),
        ({"cost": float("inf")}, "cost=inf"),
        ({"cost": "5"}, "cost='5'"),
        ({"on_handoff": 3}, "on_handoff=3"),
        ({"on_handoff": coroutine}, "is a coroutine function"),
        ({"price": "gpt"}, "price='gpt') is neither 'genai-prices' nor a function"),
    ],
)
def test_bad_limits(limits: dict[str, Any], says: str) -> None:
    """Limits are whole numbers; the text names the one that is not."""
    with pytest.raises(PolicyError, match=".") as caught:
        Limits(**limits)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "warns_at"),
    [
        (Limits(), 1_000),
        (Limits(soft_calls=None), 0),
        (Limits(soft_calls=50), 50),
        (Limits(calls=200), 180),
        (Limits(calls=3), 3),
        (Limits(calls=10, handoff_at=0), 0),
        (Limits(calls=10, handoff_at=1), 10),
    ],
)
def test_when_limits_warn(limits: Limits, warns_at: int) -> None:
    """At nine tenths of a limit, else at the soft one."""
    assert limits.warn_calls == warns_at


def test_limits_do_not_share_a_mapping() -> None:
    """A mapping that is changed later changes no limit."""
    mapping = {"a": 1}
    limits = Limits(calls_per_tool=mapping)
    mapping["a"] = 2

    assert limits.calls_per_tool == {"a": 1}


# -- presets --------------------------------------------------------------------------------------------------------


def test_presets_by_name() -> None:
    """Settings files name them."""
    assert set(PRESETS) == {"default", "loopctl", "rysh", "opendev"}
    assert PRESETS["loopctl"]() == Policy.loopctl()


def test_presets_take_what_their_source_has() -> None:
    """loopctl takes any order of thresholds and raises an empty window."""
    loopctl = Policy.loopctl(warn_after=12, stop_after=3, window=0, history=5)
    own = Policy.loopctl(signature=Signature())

    assert (loopctl.window, loopctl.history, loopctl.stop_scope) == (1, 5, "run")
    assert isinstance(own.rules[0], RepeatTally)
    assert own.rules[0].thresholds == (("a", 2), ("b", 4))
    assert (Policy.rysh(window=30).window, Policy.rysh(window=30).stop_scope) == (30, "pattern")
    assert Policy.opendev(history=40).history == 40
    for policy in (Policy.loopctl(), Policy.rysh(), Policy.opendev()):
        assert (policy.restarts, policy.masking, policy.kinds) == (False, False, False)


# -- rules of a tool ------------------------------------------------------------------------------------------------


def test_rungs_of_a_tool_hold_for_repeat() -> None:
    """They replace both ladders of ``Repeat``, and the one of loopctl's count."""
    rules = Plan(Policy()).rules_for(Tool("a", rungs=(("warn_after", 2), ("refuse_after", 0)))).all
    repeat = next(rule for rule in rules if isinstance(rule, Repeat))
    tally = Plan(Policy.loopctl()).rules_for(Tool("a", rungs=(("warn_after", 2),))).all[0]

    assert (repeat.warn_after, repeat.unknown_warn_after) == (2, 2)
    assert (repeat.refuse_after, repeat.unknown_refuse_after) == (0, 0)
    assert tally.warn_after == 2


@pytest.mark.parametrize(
    ("rungs", "unknown"),
    [
        ({"refuse_after": 4}, (4, 4, 20)),
        ({"stop_after": 8}, (5, 8, 8)),
        ({"warn_after": 4}, (4, 10, 20)),
        ({"stop_after": 0, "refuse_after": 0}, (5, 0, 0)),
        ({"warn_after": 6, "refuse_after": 12, "stop_after": None}, (6, 12, None)),
    ],
)
def test_the_second_ladder_gives_way_to_a_tools_rungs(
    rungs: dict[str, int | None], unknown: tuple[int | None, ...]
) -> None:
    """Whoever names one rung of a tool need not know of the ladder for calls of unknown kind."""
    rules = Plan(Policy(endless_refusals=True)).rules_for(Tool("a", rungs=tuple(rungs.items()))).all
    repeat = next(rule for rule in rules if isinstance(rule, Repeat))

    assert (repeat.unknown_warn_after, repeat.unknown_refuse_after, repeat.unknown_stop_after) == unknown


def test_rules_of_a_tool_are_checked() -> None:
    """A tool's own rule has to fit the window of the policy; in a run it holds as far as it fits."""
    tool = Tool("a", rules=(Repeat(warn_after=99),))
    with pytest.raises(PolicyError, match="can never fire"):
        rules_of(Policy(), tool)
    (repeat,) = (rule for rule in Plan(Policy()).rules_for(tool).all if rule.name == "repeat")

    assert (repeat.warn_after, repeat.refuse_after, repeat.stop_after) == (50, 50, 50)


def test_a_rung_of_one_is_armed_by_every_operation() -> None:
    """What is reached by the first call must be looked at after the first call."""
    plan = Plan(Policy(Repeat(warn_after=1)))

    assert any(rule.name == "repeat" for rule in plan.rules_for(Tool("a")).after[Trigger.ANY])
    assert not any(rule.name == "repeat" for rule in Plan(Policy()).rules_for(Tool("a")).after[Trigger.ANY])


def test_a_rule_of_your_own_is_asked_before_every_call() -> None:
    """Nothing is known about what it counts, so no attempt is let through unseen; unless it never refuses."""
    assert Plan(Policy(SameTool())).rules_for(Tool("a")).floor == 0
    assert Plan(Policy(SameTool(refuse_after=0, stop_after=0))).rules_for(Tool("a")).floor == 3
    with pytest.raises(NotImplementedError):
        Rule().judge((), None)  # type: ignore[arg-type]


def test_tallies_of_one_tool_count_from_the_window() -> None:
    """The presets' rules on a tool work without the counts that only their policies keep."""
    engine = Engine(Plan(Policy()))
    tool = Tool("a", rules=(RepeatTally(warn_after=2, stop_after=4), FailingTally(stop_after=3)))
    bound = engine.bind(tool)
    said = []
    for n in range(4):
        seq = engine.start(None, bound, 1, 1)
        assert isinstance(seq, int)
        said.append(engine.end(None, seq, 0, 10))

    assert [hit is not None for hit in said] == [False, True, False, False]
    for rule in bound.all:
        found = rule.evidence(engine, engine.keys[1], None)
        if found is not None:
            assert rule.still(engine, found, None) in {0, found.done}


def test_nearest_names() -> None:
    """The nearest known name, else all of them."""
    assert nearest("repeet", ["repeat", "poll"]) == " Did you mean 'repeat'?"
    assert nearest("zzz", ["b", "a"]) == " Known: a, b."


def test_actions_are_ordered() -> None:
    """A stop is harder than a refusal, a refusal than a warning."""
    assert sorted(Action, key=lambda action: action.hardness) == [Action.WARN, Action.REFUSE, Action.STOP]


def test_a_tools_patience_is_that_of_its_polls() -> None:
    """``patience=`` of a tool holds for ``Poll`` in place of the policy's, and changes nothing else."""
    plan = Plan(Policy())
    rules = {rule.name: rule for rule in plan.rules_for(Tool("status", patience=30.0)).all}

    assert rules["poll"].patience == 30.0  # type: ignore[attr-defined]
    assert rules["repeat"] == next(rule for rule in plan.policy.rules if rule.name == "repeat")


@pytest.mark.parametrize("window", [1, 2, 8, 20, 49])
def test_the_default_fits_a_small_window(window: int) -> None:
    """Rungs that nobody asked for come down to the window; one that is asked for has to fit."""
    policy = Policy(window=window)

    assert all(rung <= window for rule in policy.rules for rung in (rule.warn_after, rule.refuse_after) if rung)
    with pytest.raises(PolicyError, match="can never fire"):
        Policy(Repeat(warn_after=window + 1, refuse_after=0, stop_after=0), window=window)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Policy(signature=5), "signature=5"),
        (lambda: Policy.loopctl(signature=5), "signature=5"),
        (lambda: Policy.loopctl(warn_after=0, stop_after=0), "never fire"),
        (lambda: Policy.rysh(refuse_after=0), "never fire"),
        (lambda: Policy.opendev(stop_after=0), "never fire"),
        (lambda: Limits(calls_per_tool=None), "not a mapping"),
    ],
    ids=["signature", "loopctl's signature", "loopctl off", "rysh off", "opendev off", "calls per tool"],
)
def test_a_preset_that_is_off_and_values_of_a_wrong_type(make: Any, said: str) -> None:
    """What could never do anything is told where it is written."""
    with pytest.raises(PolicyError, match=said):
        make()


def test_thresholds_of_a_signature_alone_are_a_policy() -> None:
    """loopctl with both rungs off still guards the tools that its signature names."""
    rule = Policy.loopctl(warn_after=0, stop_after=0, signature=Signature()).rules[0]
    assert isinstance(rule, RepeatTally)
    assert rule.thresholds == (("a", 2), ("b", 4))
