"""Settings from ``LOOPGUARD_*`` variables.

What cannot be used is a complaint and is left out, never an error: a slip in a deployment must not keep an agent from
starting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from loopguard.errors import PolicyError
from loopguard.policy import MODES, Mode, Policy, nearest
from loopguard.rules import Repeat, Rule
from loopguard.settings_file import policy_of
from loopguard.tables import STORE_NOTE, STORES, hidden_address, mode_of

MODE: Final = "LOOPGUARD_MODE"
POLICY: Final = "LOOPGUARD_POLICY"
SENSITIVITY: Final = "LOOPGUARD_SENSITIVITY"
STORE: Final = "LOOPGUARD_STORE"
KEY: Final = "LOOPGUARD_KEY"
#: The rungs of ``Repeat`` by variable, from the softest to the hardest.
RUNGS: Final = {
    "LOOPGUARD_WARN_AFTER": "warn_after",
    "LOOPGUARD_REFUSE_AFTER": "refuse_after",
    "LOOPGUARD_STOP_AFTER": "stop_after",
}
#: What `snapshot` reads. Mode and key are looked up where they are needed.
NAMES: Final = (POLICY, SENSITIVITY, *RUNGS, STORE)

_SENSITIVITIES: Final = ("low", "normal", "high")


class Complaint(NamedTuple):
    """Why a variable is not used. ``variable`` names it with its value, ``text`` says what is wrong."""

    variable: str
    text: str

    def __str__(self) -> str:
        return f"{self.variable}: {self.text} It is ignored."


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """What the environment says. ``policy`` is None where it says nothing about the policy.

    ``policy_from`` names the variables that made the policy.
    """

    policy: Policy | None = None
    policy_from: tuple[str, ...] = ()
    store: str | None = None
    complaints: tuple[Complaint, ...] = ()


def snapshot() -> tuple[str | None, ...]:
    """The values of ``NAMES`` now; cheap, and equal as long as nothing was changed."""
    get = os.environ.get
    return tuple([get(name) for name in NAMES])


def parse(values: tuple[str | None, ...], base: Policy | None) -> Environment:
    """What these values say.

    Args:
        values: From `snapshot`. An empty value counts as not set.
        base: The policy of the settings file, which sensitivity and thresholds change. None = the default.
    """
    given = {name: value.strip() for name, value in zip(NAMES, values, strict=True) if value and value.strip()}
    complaints: list[Complaint] = []
    policy, policy_from = base, []
    name = given.get(POLICY)
    if name is not None:
        try:
            policy = policy_of(name)
            policy_from.append(POLICY)
        except PolicyError as error:
            complaints.append(Complaint(f"{POLICY}={name!r}", str(error)))
    for change in (_sensitivity, _thresholds):
        changed, variables = change(given, policy, complaints)
        if changed is not None:
            policy = changed
            policy_from += variables
    store = given.get(STORE)
    if store is not None and store not in STORES:
        complaints.append(Complaint(f"{STORE}={hidden_address(store)!r}", STORE_NOTE))
        store = None
    return Environment(
        policy=policy if policy_from else None,
        policy_from=tuple(policy_from),
        store=store,
        complaints=tuple(complaints),
    )


def read_mode(value: str | None) -> Mode | Complaint | None:
    """The mode that ``LOOPGUARD_MODE`` names, in any case; a complaint for what is none."""
    word = (value or "").strip().lower()
    if not word:
        return None
    try:
        return mode_of(word, MODE)
    except PolicyError:
        return Complaint(f"{MODE}={value!r}", f"Not one of {', '.join(map(repr, MODES))}.{_meant(word, MODES)}")


_Change = tuple[Policy | None, list[str]]


def _sensitivity(given: Mapping[str, str], policy: Policy | None, complaints: list[Complaint]) -> _Change:
    value = given.get(SENSITIVITY)
    if value is None:
        return None, []
    word = value.lower()
    if word not in _SENSITIVITIES:
        known = ", ".join(map(repr, _SENSITIVITIES))
        complaints.append(Complaint(f"{SENSITIVITY}={value!r}", f"Not one of {known}.{_meant(word, _SENSITIVITIES)}"))
        return None, []
    return (policy or policy_of(None)).replace(sensitivity=word), [SENSITIVITY]


def _thresholds(given: Mapping[str, str], policy: Policy | None, complaints: list[Complaint]) -> _Change:
    rungs: dict[str, int] = {}
    used: list[str] = []
    for variable, field in RUNGS.items():
        value = given.get(variable)
        if value is None:
            continue
        if value.isascii() and value.isdigit() and len(value) <= 9:
            rungs[field] = int(value)
            used.append(variable)
        else:
            text = "Not a whole number of operations. 0 switches the rung off."
            complaints.append(Complaint(f"{variable}={value!r}", text))
    if not rungs:
        return None, []
    policy = policy or policy_of(None)
    rule = next((rule for rule in policy.rules if rule.name == Repeat.name), None)
    variables = ", ".join(f"{name}={given[name]}" for name in used)
    if rule is None:
        names = ", ".join(rule.name for rule in policy.rules)
        complaints.append(Complaint(variables, f"The policy has no rule 'repeat' (it has: {names or 'none'})."))
        return None, []
    try:
        return policy.replace(with_rungs(rule, rungs)), used
    except PolicyError as error:
        complaints.append(Complaint(variables, str(error)))
        return None, []


def with_rungs(rule: Rule, rungs: Mapping[str, int]) -> Rule:
    """The rule with these rungs. The ladder for calls of unknown kind in between is never below the given rungs.

    A rung that is switched off is off there too: who asks never to be refused means all cases.
    """
    changes: dict[str, int | None] = dict(rungs)
    if isinstance(rule, Repeat):
        least = 0
        for name in RUNGS.values():
            rung: int | None = getattr(rule, f"unknown_{name}")
            if rungs.get(name) == 0:
                rung = 0
            elif rung:
                least = rung = max(rung, rungs.get(name, 0), least)
            changes[f"unknown_{name}"] = rung
    return replace(rule, **changes)


def _meant(word: str, known: tuple[str, ...]) -> str:
    hint = nearest(word, known)
    return hint if "Did you mean" in hint else ""
