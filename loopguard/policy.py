"""``Policy``: which rules hold, how far they may go, and the presets of other products."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, cast

from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.records import Tool
from loopguard.rules import RULES, FailingTally, Limits, Off, RepeatTally, Rule, SameCall
from loopguard.rules.poll import Poll
from loopguard.rules.repeat import Repeat
from loopguard.wording import learn

Mode = Literal["enforce", "observe", "off"]
Scope = Literal["pattern", "run"]
Sensitivity = Literal["low", "normal", "high"]

MODES: tuple[Mode, ...] = ("enforce", "observe", "off")


@dataclass(frozen=True, init=False)
class Policy:
    """What is watched in a run and what is done about it. Frozen; validated when made.

    Args:
        rules: Rules that replace those of the same name in the default policy; ``Repeat.off()`` removes one.
        sensitivity: ``"low"``, ``"normal"`` or ``"high"``; it is for rules that weigh evidence. Those of this version
            count, and none of them reads it.
        mode: ``"enforce"``, ``"observe"`` (everything but act) or ``"off"``.
        limits: Limits of every run; None = the default, which warns at 1,000 calls and never stops.
        stop_scope: ``"pattern"`` refuses the call that repeats, ``"run"`` whatever comes next.
        window: How many executed operations count (default 50).
        history: How many are kept to explain (default 100; at least ``window``).
        nudge_budget: Nudges given in one run (default 5).
        endless_refusals: Allow a rule that refuses and never stops.
        lease_s: Seconds after which a call without an outcome counts as abandoned (default 900).
        restarts: Novel writes and user messages restart the evidence.
        masking: Errors are compared as templates, volatile text is masked.
        kinds: Kinds of tools are used (a write is identified by its whole input).
        text_parts: Results of several parts are compared by their text alone.
        signature: A ``ToolSignature`` for tools that cannot be decorated.

    Raises:
        PolicyError: For a policy that can never fire, refuses without an end, or has rungs out of order.
    """

    rules: tuple[Rule, ...]
    sensitivity: Sensitivity = "normal"
    mode: Mode = "enforce"
    limits: Limits | None = None
    stop_scope: Scope = "pattern"
    window: int = 50
    history: int = 100
    nudge_budget: int = 5
    endless_refusals: bool = False
    lease_s: float = 900.0
    restarts: bool = True
    masking: bool = True
    kinds: bool = True
    text_parts: bool = False
    signature: Any = field(default=None, compare=False)

    def __init__(self, *rules: Rule | Off, **settings: Any) -> None:
        self._set(_merge(_defaults(settings.get("window", _SETTINGS["window"])), rules), settings)

    @classmethod
    def of(cls, *rules: Rule, **settings: Any) -> Self:
        """A policy of exactly these rules."""
        policy = cls.__new__(cls)
        policy._set(_merge((), rules), settings)
        return policy

    def replace(self, *rules: Rule | Off, **settings: Any) -> Self:
        """A copy in which these rules and settings replace the present ones."""
        merged: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        return type(self).of(*_merge(self.rules, rules), **{**merged, **settings})

    def _set(self, rules: tuple[Rule, ...], settings: dict[str, Any]) -> None:
        for name in settings:
            if name not in _SETTINGS:
                raise PolicyError(f"Policy has no setting {name!r}.{nearest(name, _SETTINGS)}")
        for name, default in _SETTINGS.items():
            object.__setattr__(self, name, settings.get(name, default))
        object.__setattr__(self, "rules", rules)
        self._check()

    def _check(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("stop_scope", self.stop_scope, ("pattern", "run"))
        _one_of("sensitivity", self.sensitivity, ("low", "normal", "high"))
        for name in ("window", "history", "nudge_budget"):
            value = getattr(self, name)
            least = 0 if name == "nudge_budget" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise PolicyError(f"Policy({name}={value!r}) must be a whole number of at least {least}.")
        if self.history < self.window:
            raise PolicyError(
                f"Policy(history={self.history}) is smaller than window={self.window}; it keeps what counts and more. "
                f"Raise history to {self.window}."
            )
        if isinstance(self.lease_s, bool) or not isinstance(self.lease_s, (int, float)) or not self.lease_s > 0:
            raise PolicyError(f"Policy(lease_s={self.lease_s!r}) must be seconds above 0.")
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise PolicyError(f"Policy(limits={self.limits!r}) is not a Limits.")
        if self.signature is not None and not callable(getattr(self.signature, "tool_thresholds", None)):
            raise PolicyError(f"Policy(signature={self.signature!r}) is not a ToolSignature.")
        endless = self.endless_refusals or (self.limits is not None and self.limits.refusals is not None)
        for rule in self.rules:
            rule.check(self.window, endless)
        if not self.rules and self.limits is None and self.mode != "off":
            raise PolicyError('This policy guards nothing. Give it a rule, or switch it off: Policy(mode="off").')

    # -- presets ----------------------------------------------------------------------------------------------------

    @classmethod
    def loopctl(
        cls,
        *,
        warn_after: int = 3,
        stop_after: int = 10,
        window: int = 100,
        history: int | None = None,
        signature: Any = None,
    ) -> Self:
        """loopctl's loop detector: warn at 3, refuse the eleventh dispatch whatever it is, window 100.

        There is no refusal rung; ``stop_after=0`` switches stops off.
        Restarts, masking and kinds are off: loopctl has none.
        """
        if signature is not None and not callable(getattr(signature, "tool_thresholds", None)):
            raise PolicyError(f"Policy.loopctl(signature={signature!r}) is not a ToolSignature.")
        thresholds: dict[str, int] = dict(signature.tool_thresholds()) if signature is not None else {}
        if not (warn_after or stop_after or any(thresholds.values())):
            raise PolicyError(
                "Policy.loopctl(warn_after=0, stop_after=0) can never fire: neither warning nor stop is left."
            )
        window = 1 if window == 0 else window  # as its source does
        return cls.of(
            RepeatTally(warn_after=warn_after, stop_after=stop_after, thresholds=tuple(sorted(thresholds.items()))),
            **_BARE,
            window=window,
            history=_history(window, history),
            text_parts=True,
            signature=signature,
        )

    @classmethod
    def rysh(cls, *, refuse_after: int = 2, window: int = 20, history: int | None = None) -> Self:
        """Rysh's breaker: the third identical call in twenty is not executed, the agent is told, the run goes on."""
        if not refuse_after:
            raise PolicyError("Policy.rysh(refuse_after=0) can never fire: the refusal is all that it does.")
        settings = {**_BARE, "stop_scope": "pattern"}
        return cls.of(
            SameCall(refuse_after=refuse_after),
            **settings,
            window=window,
            history=_history(window, history),
            endless_refusals=True,
        )

    @classmethod
    def opendev(cls, *, stop_after: int = 3, window: int = 20, history: int | None = None) -> Self:
        """OPENDEV's doom loop: three identical failing calls within twenty end the run, whatever comes next."""
        if not stop_after:
            raise PolicyError("Policy.opendev(stop_after=0) can never fire: the stop is all that it does.")
        return cls.of(FailingTally(stop_after=stop_after), **_BARE, window=window, history=_history(window, history))


def _history(window: Any, history: int | None) -> Any:
    """The history of a preset: as asked for, at least the window. What is no number is told by the policy's check."""
    return max(window, history or window) if isinstance(window, int) and isinstance(history, int | None) else window


_BARE: dict[str, Any] = {"restarts": False, "masking": False, "kinds": False, "stop_scope": "run"}
_SETTINGS: dict[str, Any] = {item.name: item.default for item in fields(Policy) if item.name != "rules"}

#: Presets by the name that settings files and ``LOOPGUARD_POLICY`` use.
PRESETS: dict[str, Callable[[], Policy]] = {
    "default": Policy,
    "loopctl": Policy.loopctl,
    "rysh": Policy.rysh,
    "opendev": Policy.opendev,
}


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names what may have been meant: the nearest known name, else all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(names)}."


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PolicyError(f"Policy({name}={value!r}) is not one of {', '.join(map(repr, known))}.")


def _defaults(window: object) -> tuple[Rule, ...]:
    """The default rules; in a small window their rungs come down to it, since nobody asked for the higher ones."""
    rules = tuple(rule() for rule, default in RULES.items() if default)
    if not isinstance(window, int) or window < 1:
        return rules
    return tuple(_fitted(rule, window) for rule in rules if rule.least <= window)


def _fitted(rule: Rule, window: int) -> Rule:
    rungs = {item.name: getattr(rule, item.name) for item in fields(rule) if item.name.endswith("_after")}
    too_high = {name: window for name, rung in rungs.items() if rung is not None and rung > window}
    return replace(rule, **too_high) if too_high else rule


def _merge(rules: Iterable[Rule], changes: Iterable[Rule | Off]) -> tuple[Rule, ...]:
    merged = {rule.name: rule for rule in rules}
    for change in changes:
        if isinstance(change, Off):
            merged.pop(change.rule.name, None)
        elif isinstance(change, Rule):
            merged[change.name] = change
        else:
            hint = " Limits go into limits=." if isinstance(change, Limits) else ""
            raise PolicyError(f"{change!r} is not a rule.{hint}")
    return tuple(sorted(merged.values(), key=lambda rule: rule.rank))


class ToolRules:
    """The rules that hold for one tool, sorted by what calls for them."""

    __slots__ = ("after", "all", "floor")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        for rule in rules:
            learn(rule.name, rule.words)
        self.all = rules
        #: An attempt with fewer operations in its row and calls in flight than this is let through unseen.
        #: Rules with a memory of their own say so themselves when an attempt has to be looked at.
        floors = (
            rule.lowest_rung() if rule.own_row else 0 for rule in rules if rule.lowest_rung() and not rule.remembers
        )
        self.floor = min(floors, default=1 << 60)
        #: For each combination of ``Trigger`` bits the rules that it arms.
        self.after = tuple(tuple(rule for rule in rules if _arms(rule) & bits) for bits in range(64))


def _arms(rule: Rule) -> Trigger:
    """What arms the rule; a rung of 1 is reached before anything repeats."""
    rungs = (getattr(rule, item.name) for item in fields(rule) if item.name.endswith("_after"))
    return Trigger.ANY if 1 in rungs else rule.trigger


class Plan:
    """A policy made ready for the engine: rules per tool, limits, features of the index. Shared by all runs of it."""

    __slots__ = (
        "_rules",
        "clears_edits",
        "forgets_warned",
        "expected",
        "keep_answers",
        "keep_counts",
        "keep_seen",
        "limits",
        "policy",
        "restarts",
        "scope_run",
        "simple",
    )

    def __init__(self, policy: Policy, limits: Limits | None = None) -> None:
        self.policy = policy
        self.limits = limits or policy.limits or Limits()
        self.keep_counts = any("counts" in rule.reads for rule in policy.rules)
        self.keep_answers = any(rule.trigger & Trigger.SAME_ANSWER for rule in policy.rules)
        self.keep_seen = any("seen" in rule.reads for rule in policy.rules)
        self.forgets_warned = any(getattr(rule, "forgets_warned", False) for rule in policy.rules)
        self.clears_edits = any(rule.clears_edits and "counts" in rule.reads for rule in policy.rules)
        self.scope_run = policy.stop_scope == "run"
        self.restarts = policy.restarts
        #: Results are compared as they are usually.
        self.simple = policy.masking and not policy.text_parts
        self._rules: dict[Tool, ToolRules] = {}
        #: The (rule, action) pairs that can be found, for series that start at 0.
        self.expected = frozenset(
            (rule.name, action)
            for rule in policy.rules
            for action, rung in (("warn", rule.warn_after), ("refuse", rule.refuse_after), ("stop", rule.stop_after))
            if rung
        )

    def rules_for(self, tool: Tool) -> ToolRules:
        """The rules of the policy with this tool's own in place of theirs."""
        found = self._rules.get(tool)
        if found is None:
            if len(self._rules) > 1_000:  # tools made on the fly must not fill the memory
                self._rules.clear()
            try:
                rules = rules_of(self.policy, tool)
            except PolicyError:
                # Decoration knew another policy than this run has; what the tool asked for holds as far as it fits.
                rules = tuple(_reconciled(rule, self.policy.window) for rule in _own_rules(self.policy, tool))
            found = self._rules[tool] = ToolRules(rules)
        return found


def _with_rungs(rule: Rule, rungs: dict[str, int | None]) -> Rule:
    """The rule with a tool's own rungs, which hold whether or not calls of unknown kind lie between.

    Rungs of that second ladder which the tool did not name give way to those it named.
    """
    changes = dict(rungs)
    if isinstance(rule, Repeat):
        most = 0
        for name in ("stop_after", "refuse_after", "warn_after"):
            rung = rungs[name] if name in rungs else getattr(rule, f"unknown_{name}")
            if rung and most and name not in rungs:
                rung = min(rung, most)
            changes[f"unknown_{name}"] = rung
            most = rung or most
    return replace(rule, **changes)


def _reconciled(rule: Rule, window: int) -> Rule:
    """The rule with its rungs inside the window and in order: a later one gives way to an earlier one."""
    names = [item.name for item in fields(rule) if item.name.endswith("_after")]
    changes: dict[str, int] = {}
    for ladder in {name.rpartition("warn_after")[0] for name in names if name.endswith("warn_after")}:
        least = 0
        for name in (f"{ladder}warn_after", f"{ladder}refuse_after", f"{ladder}stop_after"):
            rung = getattr(rule, name) or 0
            if rung:
                changes[name] = least = min(max(rung, least), window)
    return replace(rule, **changes)


def _own_rules(policy: Policy, tool: Tool) -> tuple[Rule, ...]:
    rules = _merge(policy.rules, cast("tuple[Rule | Off, ...]", tool.rules))
    if tool.rungs:
        rungs = dict(tool.rungs)
        rules = tuple(_with_rungs(rule, rungs) if rule.name == Repeat.name else rule for rule in rules)
    if tool.patience is not None:
        rules = tuple(replace(rule, patience=tool.patience) if isinstance(rule, Poll) else rule for rule in rules)
    return rules


def rules_of(policy: Policy, tool: Tool) -> tuple[Rule, ...]:
    """The rules for one tool. Raises ``PolicyError`` where the tool's own thresholds cannot be meant."""
    rules = _own_rules(policy, tool)
    endless = policy.endless_refusals or (policy.limits is not None and policy.limits.refusals is not None)
    for rule in rules:
        rule.check(policy.window, endless)
    return rules


__all__ = ["MODES", "PRESETS", "Mode", "Plan", "Policy", "Scope", "Sensitivity", "ToolRules", "Trigger", "nearest"]
