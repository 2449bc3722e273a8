"""What a run has used of its limits: the sums, when a limit warns, and when it is used up. Pure.

Usage comes in as records and is added up here; nobody writes a total.
A run that has no limit on time, tokens, cost or single tools pays nothing for them: two marks (``call_mark`` and
``limit_due``) and two flags (``watchful`` and ``pressing``) say when there is something to ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import msgspec

from loopguard.index import OTHER_TOOLS, Index, Row
from loopguard.ledger import Books
from loopguard.policy import Plan
from loopguard.records import UNKNOWN_OUTCOME, Action, Evidence, Hit, Most, Tool
from loopguard.rules import Limits, Rule
from loopguard.rules.limits import used_up

NEVER: Final = 1 << 60
#: Executed calls without any usage after which a limit on tokens or cost says that it sees nothing.
UNFED_CALLS: Final = 20
#: The rule of the hit that says so.
UNFED: Final = "unfed"
_TOTALS: Final = ("refused", "warned", "wasted", "wasted_s", "looped", "abandoned", "failed")


class Usage(msgspec.Struct, gc=False, array_like=True):
    """What the model used, as far as it was told; the sums of all notes of usage.

    ``unpriced`` counts notes whose cost is not known, ``unpriced_tokens`` their tokens: they are in no cost.
    ``tokens_before`` and ``cost_before`` were used before the last resume: limits begin anew there, sums do not.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    unpriced_tokens: int = 0
    tokens_before: int = 0
    cost_before: float = 0.0


class Level(NamedTuple):
    """How much of one limit is used. At ``mark`` it warns (0 = never); used up, it does ``then`` (None = nothing)."""

    name: str
    used: float
    allowed: float
    mark: float
    then: Action | None = Action.STOP

    @property
    def full(self) -> bool:
        """Nothing is left, and that has a consequence."""
        return self.then is not None and used_up(self.used, self.allowed)


class Budget(Index):
    """The index of a run with its limits and what was used of them."""

    __slots__ = (
        "began",
        "books",
        "call_mark",
        "calls",
        "denied_rounds",
        "latch",
        "limit_due",
        "limits",
        "over",
        "plan",
        "pressing",
        "seq",
        "totals",
        "usage",
        "watchful",
    )

    def __init__(self, plan: Plan) -> None:
        policy = plan.policy
        super().__init__(policy.window, plan.keep_counts, plan.keep_seen, plan.keep_answers)
        self.plan = plan
        #: The limits that hold now: the plan's, until a handoff is answered with others.
        self.limits: Limits = plan.limits
        self.books = Books()
        #: Attempts so far; the number of a call.
        self.seq = 0
        #: The hit that ended the run, or None.
        self.latch: Hit | None = None
        #: With scope "run": patterns at or above a refuse or stop rung.
        self.over: dict[tuple[Any, ...], tuple[Rule, Evidence]] = {}
        #: Executed calls since the last user message, and the number at which the limits want to be asked.
        self.calls = 0
        self.call_mark = 0
        #: The limits want to be asked with the next outcome.
        self.limit_due = False
        #: A limit of the run, other than on time, is used up or is to warn.
        self.pressing = False
        self.denied_rounds = 0
        #: What the model used; None until it is told.
        self.usage: Usage | None = None
        #: The time of the first record, where a limit counts seconds.
        self.began: float | None = None
        self.totals: dict[str, float] = dict.fromkeys(_TOTALS, 0)
        #: Every attempt is looked at, not only those that repeat something.
        self.watchful = False
        self._rearm()

    def _rearm(self) -> None:
        """Set the marks that keep the usual call from asking what cannot apply."""
        limits = self.limits
        self.call_mark = min(
            (mark for mark in (limits.warn_calls, limits.calls or 0) if mark > self.calls), default=NEVER
        )
        due = full = False
        for level in self._levels(None):
            due = due or self._warns(level)
            full = full or level.full
        per_tool = bool(limits.calls_per_tool)
        timed = limits.seconds is not None
        unwarned = per_tool or (timed and ("seconds", Action.WARN) not in self.books.told_limits)
        self.pressing = due or full
        self.limit_due = due or bool(unwarned and limits.handoff_at) or self._unfed()
        alert = self.alert_until > self.n
        self.watchful = bool(self.latch or self.over or full or per_tool or timed or alert or self.books.refused)

    def row_of(self, tool: Tool) -> Row:
        """The row of this tool; one with a limit of its own has its own row, however many names there are."""
        if tool.name in self.limits.calls_per_tool and tool.name not in self.rows:
            self.rows[tool.name] = Row(tool, tool.name)
        return super().row_of(tool)

    # -- how much is used -------------------------------------------------------------------------------------------

    def _levels(self, row: Row | None, at: float | None = None) -> Iterator[Level]:
        """The limits of the run, and that of this tool."""
        limits, usage = self.limits, self.usage
        if limits.warn_calls or limits.calls:
            allowed = limits.calls or limits.soft_calls or 0
            yield Level("calls", self.calls, allowed, limits.warn_calls, Action.STOP if limits.calls else None)
        if usage is not None and limits.tokens is not None:
            tokens = usage.input_tokens + usage.output_tokens - usage.tokens_before
            yield Level("tokens", tokens, limits.tokens, limits.mark(limits.tokens))
        if usage is not None and limits.cost is not None:
            yield Level("cost", usage.cost - usage.cost_before, limits.cost, limits.mark(limits.cost))
        if limits.seconds is not None and at is not None and self.began is not None:
            yield Level("seconds", at - self.began, limits.seconds, limits.mark(limits.seconds))
        if limits.refusals is not None:
            # The refusal that is one too many stops the run; a call that may be executed is not held up.
            yield Level("refusals", self.denied_rounds, limits.refusals, limits.mark(limits.refusals), None)
        if row is not None and row.name in limits.calls_per_tool:
            allowed = limits.calls_per_tool[row.name]
            used = row.calls + row.below
            yield Level(f"calls_per_tool[{row.name}]", used, allowed, limits.mark(allowed), Action.REFUSE)

    def _warns(self, level: Level) -> bool:
        return bool(level.mark) and level.used >= level.mark and (level.name, Action.WARN) not in self.books.told_limits

    def _unfed(self) -> bool:
        """A limit on tokens or cost has seen no usage so far, and did not say so yet."""
        limits = self.limits
        hungry = limits.tokens is not None or limits.cost is not None
        return hungry and self.usage is None and (UNFED, Action.WARN) not in self.books.told_limits

    def executed(self) -> int:
        """Calls executed in this run and the runs below it."""
        return sum(row.calls + row.below for row in self.rows.values())

    def most_repeated(self) -> Most:
        """What repeated most among the operations that are kept: a stop by a limit says it. O(history)."""
        outcomes: dict[str, list[int]] = {}
        for op in self.history:
            outcomes.setdefault(op.tool, []).append(op.outcome)
        executed = self.executed()
        found = Most(executed)
        again = 0
        for tool, all_of in outcomes.items():
            different = len(set(all_of) - {UNKNOWN_OUTCOME}) + all_of.count(UNKNOWN_OUTCOME)
            if len(all_of) - different > again:
                again = len(all_of) - different
                found = Most(
                    executed, tool, len(all_of), different, len(self.history) if len(self.history) < self.n else 0
                )
        if not again:
            # Nothing repeated here; runs below are known by their counts alone.
            row = max(self.rows.values(), key=lambda row: row.calls + row.below, default=None)
            if row is not None and row.calls + row.below > 1 and row.name != OTHER_TOOLS:
                found = Most(executed, row.name, row.calls + row.below)
        return found

    # -- what follows -----------------------------------------------------------------------------------------------

    def _calm(self, row: Row | None, share: float) -> bool:
        """Less than this share of the tool's own limit is used, and no other limit wants to be asked."""
        if self.pressing or self.limits.seconds is not None:
            return False
        allowed = self.limits.calls_per_tool.get(row.name) if row is not None else None
        return row is None or allowed is None or not used_up(row.calls + row.below, allowed * share)

    def _forbidden(self, row: Row, at: float | None) -> Hit | None:
        """What the limits say to a call of this tool: a stop, a refusal, a handoff that comes first, or None."""
        if self._calm(row, 1):
            return None
        if self.limits.seconds is not None and self.began is None:
            self.began = at
        for level in self._levels(row, at):
            if level.full:
                return self._ask_first(level, row.name) or self._end_of(level, row.name)
        return None

    def _end_of(self, level: Level, tool: str) -> Hit:
        if level.then is Action.REFUSE:
            return self._limit(level, Action.REFUSE, tool)
        return self._latch(self._limit(level, Action.STOP, tool), self.seq)

    def _ask_first(self, level: Level, tool: str) -> Hit | None:
        """A limit that was used up before it could warn is handed off before it acts, where somebody wants to be asked."""
        if self.limits.on_handoff is None or not level.mark:
            return None
        if level.name in self.books.asking:  # somebody is being asked just now
            return self._limit(level, Action.WARN, tool)
        return self._warning(level, tool) if self._warns(level) else None

    def _warning(self, level: Level, tool: str) -> Hit:
        hit = self._limit(level, Action.WARN, tool)
        if self.limits.on_handoff is not None:
            self.books.asking = {**self.books.asking, level.name: (level.used, level.allowed)}
        self.totals["warned"] += 1
        self._rearm()
        return hit

    def limit_warning(self, tool: str, at: float | None) -> Hit | None:
        """The warning of a limit that is due after a call of this tool, or after a note of usage ("")."""
        row = self.rows.get(tool)
        if not self._calm(row, self.limits.handoff_at):
            for level in self._levels(row, at):
                if self._warns(level):
                    return self._warning(level, tool)
        if self._unfed() and self.executed() >= UNFED_CALLS:
            limits = self.limits
            name, allowed = ("cost", limits.cost) if limits.cost is not None else ("tokens", limits.tokens)
            hit = self._limit(Level(UNFED, self.executed(), allowed or 0, 0), Action.WARN, tool)
            self._rearm()
            return hit._replace(rule=UNFED, limit=(name, self.executed(), allowed or 0))
        return None

    def _latch(self, hit: Hit, seq: int) -> Hit:
        # With the number of the attempt: only that one can lift the stop again (observe mode).
        hit = hit._replace(seq=seq)
        if self.latch is None or self.latch.rule != "stop":  # a stop from outside may come at any moment
            self.latch = hit
        self.watchful = True
        return hit

    def _limit(self, level: Level, action: Action, tool: str) -> Hit:
        told = self.books.told_limits
        report = (level.name, action) not in told
        self.books.told_limits = told | {(level.name, action)}
        evidence = Evidence(("limits", level.name), 0, 0, int(level.used), (), 0, 0, 0, False)
        most = self.most_repeated() if action is Action.STOP else None
        limit = (level.name, level.used, level.allowed)
        return Hit("limits", action, tool, evidence, int(level.allowed), 0, report, (), limit, most)

    # -- records ----------------------------------------------------------------------------------------------------

    def note_usage(self, at: float | None, input_tokens: int, output_tokens: int, cost: float | None) -> Hit | None:
        """The model was used, here or in a run below. ``cost`` None = not known. Returns the warning this completes."""
        usage = self.usage
        if usage is None:
            usage = self.usage = Usage()
        if self.limits.seconds is not None and self.began is None:
            self.began = at
        usage.input_tokens += input_tokens
        usage.output_tokens += output_tokens
        if cost is None:
            usage.unpriced += 1
            usage.unpriced_tokens += input_tokens + output_tokens
        else:
            usage.cost += cost
        self._rearm()
        return self.limit_warning("", at) if self.limit_due else None

    def note_handoff(
        self, name: str, answer: Limits | Literal["stop"] | None, at: float | None = None, waited: float = 0.0
    ) -> Hit | None:
        """What was answered when the limit of this name was handed off. Returns the stop, if that was the answer.

        ``waited`` is how long the answer took, in seconds: that is not the run's time.
        """
        if self.began is not None:
            self.began += waited
        asking = dict(self.books.asking)
        used, allowed = asking.pop(name, (0, 0))
        self.books.asking = asking
        if answer is None:
            return None
        if not isinstance(answer, Limits):
            return self._latch(self._limit(Level(name, used, allowed, 0), Action.STOP, ""), 0)
        limits = self.limits.changed_by(answer)
        if limits == self.limits:
            return None
        before = {level.name: level.allowed for level in self._all_levels(at)}
        self.limits = limits
        for level in self._all_levels(at):
            # A new number is a new limit: it warns and asks again, unless it is used up from the start.
            if level.allowed != before.get(level.name) and not used_up(level.used, level.allowed):
                self.books.told_limits -= {(level.name, action) for action in Action}
                if self.latch is not None and self.latch.limit is not None and self.latch.limit[0] == level.name:
                    self.latch = None
        self._rearm()
        return None

    def _all_levels(self, at: float | None) -> Iterator[Level]:
        yield from self._levels(None, at)
        for tool in self.limits.calls_per_tool:
            if tool in self.rows:
                yield list(self._levels(self.rows[tool]))[-1]

    def tick(self, tool: Tool, at: float | None = None) -> Hit | None:
        """A call of a run below this one: it counts for the limits. Returns the hit that forbids it, if any."""
        row = self.row_of(tool)
        if self.latch is not None:
            return self.latch._replace(report=False)
        hit = self._forbidden(row, at) if self.watchful else None
        if hit is None:
            self.count_below(tool)
        return hit

    def count_below(self, tool: Tool) -> None:
        """A call of a run below this one is executed."""
        self.row_of(tool).below += 1
        self.calls += 1
        if self.calls >= self.call_mark:
            self._rearm()

    def untick(self, tool: Tool) -> None:
        """The call of a run below was not executed after all: another run forbids it."""
        self.calls -= 1
        self.row_of(tool).below -= 1
        self._rearm()

    def lift(self) -> None:
        """Take back the stop that ``tick`` has just led to (observe mode); one from outside stays."""
        if self.latch is not None and self.latch.rule != "stop":
            self.latch = None
            self._rearm()

    def _limits_anew(self) -> None:
        """A stop was lifted: limits count from here; the sums go on."""
        self.denied_rounds = 0
        self.calls = 0
        self.began = None
        self.books.told_limits = frozenset()
        self.books.asking = {}
        if self.usage is not None:
            tokens, cost = self.usage.input_tokens + self.usage.output_tokens, self.usage.cost
            self.usage = msgspec.structs.replace(self.usage, tokens_before=tokens, cost_before=cost)
        self._rearm()

    # -- in a snapshot ----------------------------------------------------------------------------------------------

    def plain_budget(self) -> dict[str, Any]:
        """What a snapshot has to know beyond the marks and counts."""
        return {
            "began": self.began,
            "usage": None if self.usage is None else list(msgspec.structs.astuple(self.usage)),
            "limits": None if self.limits is self.plan.limits else self.limits.numbers(),
        }

    def take_budget(self, plain: dict[str, Any]) -> None:
        """Take back what ``plain_budget`` wrote; the functions among the limits are the plan's."""
        self.began = msgspec.convert(plain["began"], float | None)
        self.usage = msgspec.convert(plain["usage"], Usage | None)
        if plain["limits"] is not None:
            self.limits = replace(self.plan.limits, **plain["limits"])
