"""The ladder: what evidence leads to, decided in one place for all rules.

Before a call: stop if ``done + refused >= stop_after``; else refuse if ``done + flight >= refuse_after``; else go.
After an outcome: warn if ``done >= warn_after`` and the pattern was not warned about.
``done`` are matching operations, ``flight`` admitted calls of the same key without an outcome yet, ``refused`` the
rounds in which an attempt of the pattern was refused.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from loopguard.index import Entry, Index, Row
from loopguard.ledger import Books
from loopguard.policy import Plan
from loopguard.records import Action, Evidence, Hit, Kind, Operation, Tool
from loopguard.rules.base import Rule

_NEVER = 1 << 60
#: Refused attempts that can be siblings of one reply of the model.
MOST_SIBLINGS = 100
_TOTALS = ("refused", "warned", "wasted", "wasted_s", "looped", "abandoned", "failed")


class Bound:
    """A tool in this run: its row, and the rules that hold for it."""

    __slots__ = ("after", "all", "floor", "row", "tool")

    def __init__(self, tool: Tool, row: Row, plan: Plan, refuses: bool = True) -> None:
        rules = plan.rules_for(tool)
        self.tool = tool
        self.row = row
        self.all = rules.all if refuses else ()
        self.after = rules.after
        self.floor = rules.floor if refuses else _NEVER


class Ladder(Index):
    """The index of a run with what was decided from it: books, limits, the latch of a stop."""

    __slots__ = (
        "books",
        "bounds",
        "broken",
        "call_mark",
        "calls",
        "crowd",
        "crowd_round",
        "denied_rounds",
        "joinable",
        "latch",
        "limit_due",
        "limit_warned",
        "over",
        "plan",
        "quiet_rule",
        "quiet_until",
        "round",
        "seq",
        "totals",
        "watchful",
    )

    def __init__(self, plan: Plan) -> None:
        policy = plan.policy
        super().__init__(policy.window, plan.keep_counts, plan.keep_seen, plan.keep_answers)
        self.plan = plan
        self.books = Books()
        self.bounds: dict[str, Bound] = {}
        #: Rules that raised, with what they raised.
        self.broken: list[tuple[Rule, Exception]] = []
        #: Attempts so far; the number of a call.
        self.seq = 0
        self.round = 0
        #: The current round takes in further calls: one of it is in flight and none has ended.
        self.joinable = False
        #: The hit that ended the run, or None.
        self.latch: Hit | None = None
        #: With scope "run": patterns at or above a refuse or stop rung.
        self.over: dict[tuple[Any, ...], tuple[Rule, Evidence]] = {}
        #: Executed calls since the last user message, and the number at which the limits want to be asked.
        self.calls = 0
        self.call_mark = 0
        self.limit_warned = False
        #: The warning of the limits is to be given with the next outcome.
        self.limit_due = False
        self.denied_rounds = 0
        #: Refused attempts that joined the round of calls in flight, and which round that was.
        self.crowd = 0
        self.crowd_round = -1
        self.quiet_until = 0
        self.quiet_rule = ""
        self.totals: dict[str, float] = dict.fromkeys(_TOTALS, 0)
        #: Every attempt is looked at, not only those that repeat something.
        self.watchful = False
        self._rearm()

    def _rearm(self) -> None:
        """Set the marks that keep the usual call from asking what cannot apply."""
        limits = self.plan.limits
        marks = [mark for mark in (0 if self.limit_warned else limits.warn_calls, limits.calls) if mark]
        self.limit_due = not self.limit_warned and self.calls >= self.plan.warn_calls
        self.call_mark = min((mark for mark in marks if mark > self.calls), default=_NEVER)
        full = limits.calls is not None and self.calls >= limits.calls
        self.watchful = bool(self.latch or self.over or full or limits.calls_per_tool or self.books.refused)

    def row_of(self, tool: Tool) -> Row:
        """The row of this tool; one with a limit of its own has its own row, however many names there are."""
        if tool.name in self.plan.limits.calls_per_tool and tool.name not in self.rows:
            self.rows[tool.name] = Row(tool, tool.name)
        return super().row_of(tool)

    def bind(self, tool: Tool, exact: bool = True) -> Bound:
        """The tool as this run knows it; the latest declaration under a name holds.

        With ``exact=False``, for arguments without a canonical form: what rests on them may warn, not refuse.
        """
        if self.history.maxlen == 0:
            self.history = deque(maxlen=self.plan.policy.history)
        if not exact:
            return Bound(tool, self.row_of(tool), self.plan, refuses=False)
        bound = self.bounds.get(tool.name)
        if bound is None or bound.tool != tool:
            row = self.row_of(tool)
            bound = Bound(tool, row, self.plan)
            if row.name == tool.name:
                row.tool = tool
                self.bounds[tool.name] = bound
        return bound

    # -- before a call ----------------------------------------------------------------------------------------------

    def _verdict(self, entry: Entry, bound: Bound, at: float | None, round_: int | None) -> Hit | None:
        """The hardest rung that this attempt meets, entered into the books; None to let it through."""
        tool = entry.row.name
        if self.latch is not None:
            return self._refuse(entry, self.latch._replace(report=False))
        limits = self.plan.limits
        if limits.calls is not None and self.calls >= limits.calls:
            return self._refuse(entry, self._latch(self._limit("calls", self.calls, limits.calls, Action.STOP, tool)))
        allowed = limits.calls_per_tool.get(tool)
        used = entry.row.calls + entry.row.below
        if allowed is not None and used >= allowed:
            hit = self._limit(f"calls_per_tool[{tool}]", used, allowed, Action.REFUSE, tool)
            if self._refusals_used_up(self._refused_round(round_)):
                hit = self._refusals_over(tool)
            return self._refuse(entry, hit)
        if entry.kind == Kind.THINK:
            return None
        met: list[tuple[Action, Rule, Evidence, int]] = []
        # The refusals of its own round are no earlier ones: siblings could not know of them.
        own = self.round if round_ is None and self.joinable else round_
        for rule in bound.all:
            if entry.kind in rule.skips or self.plan.scope_run:
                continue
            evidence = self._asked(rule, entry, at)
            if evidence is not None:
                self._climb(rule, evidence, self._flight(entry) if evidence.in_flight else 0, own, met)
        for rule, before in list(self.over.values()):
            done = rule.still(self, before, at)
            if not done:
                del self.over[before.pattern]
                continue
            self._climb(rule, before._replace(done=done), 0, own, met)
        if not met:
            return None
        met.sort(key=lambda item: (-item[0].hardness, item[1].rank))
        action, rule, evidence, threshold = met[0]
        round_now = self._refused_round(round_)
        if action is Action.REFUSE and self._refusals_used_up(round_now):
            return self._refuse(entry, self._refusals_over(tool))
        ledgers = [self.books.open(item[1], item[2], self.n) for item in met]
        refused = ledgers[0].refused
        report = ledgers[0].tell(action)
        # Siblings of one round could not know of each other's refusal: they do not ignore it.
        again = action is Action.STOP
        if action is Action.REFUSE:
            self.watchful = True
            entry.refused_at = at
            for ledger in ledgers:
                again = ledger.refuse(round_now, self.seq) or again
        also = tuple(item[1].name for item in met[1:])
        hit = Hit(rule.name, action, self._tool_of(evidence, entry), evidence, threshold, refused, report, also)
        if action is Action.STOP:
            self._latch(hit)
        if again:
            self.books.refused_again(entry.key)
        if again and action is Action.REFUSE:
            self.books.follow(rule.name, Action.REFUSE, entry.key)
        return self._refuse(entry, hit)

    def _asked(self, rule: Rule, entry: Entry, at: float | None, operation: Operation | None = None) -> Evidence | None:
        """What the rule sees. One that raises is left out from then on; the others go on."""
        if self.broken and any(rule is other for other, _ in self.broken):
            return None
        try:
            return rule.evidence(self, entry, at, operation)
        except Exception as error:  # noqa: BLE001 - a rule may be the user's
            self.broken.append((rule, error))
            return None

    def _tool_of(self, evidence: Evidence, entry: Entry) -> str:
        """The tool that the evidence is about; with scope "run" that need not be the one that is asked for."""
        about = self.keys.get(evidence.key)
        return entry.row.name if about is None else about.row.name

    def _climb(
        self,
        rule: Rule,
        evidence: Evidence,
        flight: int,
        round_: int | None,
        met: list[tuple[Action, Rule, Evidence, int]],
    ) -> None:
        """Enter the rung that an attempt of this pattern meets in this round (None = a new one), if any."""
        ledger = self.books.find(evidence)
        if ledger is not None and ledger.allowed:
            return
        refused = ledger.refused - (ledger.round == round_) if ledger is not None else 0
        if evidence.stop and evidence.done + refused >= evidence.stop:
            met.append((Action.STOP, rule, evidence, evidence.stop))
        elif evidence.refuse and evidence.done + flight >= evidence.refuse:
            met.append((Action.REFUSE, rule, evidence, evidence.refuse))

    @staticmethod
    def _flight(entry: Entry) -> int:
        """Calls in flight that count: not of samples and polls, nor of a call whose last two outcomes differed."""
        return 0 if entry.flips or entry.kind in (Kind.SAMPLE, Kind.POLL) else entry.flight

    def _latch(self, hit: Hit) -> Hit:
        # With the number of the attempt: only that one can lift the stop again (observe mode).
        hit = hit._replace(seq=self.seq)
        if self.latch is None or self.latch.rule != "stop":  # a stop from outside may come at any moment
            self.latch = hit
        self.watchful = True
        return hit

    def _refused_round(self, round_: int | None) -> int:
        """The round of a refused attempt: the current one while it takes in calls, else one of its own."""
        if round_ is not None:
            self.round = max(self.round, round_)
            return round_
        if self.joinable:
            self.crowd = self.crowd + 1 if self.crowd_round == self.round else 1
            self.crowd_round = self.round
            if self.crowd > MOST_SIBLINGS:  # a call that hangs does not make all later attempts its siblings
                self.joinable = False
        if not self.joinable:
            self.round += 1
        return self.round

    def _refusals_used_up(self, round_: int) -> bool:
        allowed = self.plan.limits.refusals
        if round_ != self.books.denied_round:
            if allowed is not None and self.denied_rounds >= allowed:
                return True
            self.denied_rounds += 1
            self.books.denied_round = round_
        return False

    def _refusals_over(self, tool: str) -> Hit:
        return self._latch(
            self._limit("refusals", self.denied_rounds, self.plan.limits.refusals or 0, Action.STOP, tool)
        )

    def _refuse(self, entry: Entry, hit: Hit) -> Hit:
        if hit.action is Action.STOP:
            entry.row.stopped += 1
        else:
            entry.row.refused += 1
        self.totals["refused"] += 1
        if not entry.flight and entry.op is None:
            self.keys.pop(entry.key, None)
        return hit._replace(seq=self.seq)

    def _limit(self, name: str, used: float, allowed: float, action: Action, tool: str) -> Hit:
        pattern = ("limits", name)
        told = self.books.told_limits
        report = (name, action) not in told
        told.add((name, action))
        evidence = Evidence(pattern, 0, 0, int(used), (), 0, 0, 0, False)
        return Hit("limits", action, tool, evidence, int(allowed), 0, report, (), (name, used, allowed))

    # -- after a call -----------------------------------------------------------------------------------------------

    def _judge(
        self, arms: tuple[Rule, ...], entry: Entry, at: float | None, operation: Operation, bound: Bound
    ) -> Hit | None:
        """What the operation just taken in completes: the most specific warning, the others named beside it."""
        hits: list[tuple[Rule, Evidence]] = []
        looped = wasted = False
        for rule in arms:
            if entry.kind in rule.skips:
                continue
            evidence = self._asked(rule, entry, at, operation)
            if evidence is None:
                continue
            if self.plan.scope_run and bound.all:
                rung = min((r for r in (evidence.refuse, evidence.stop) if r), default=0)
                if rung and evidence.done >= rung:
                    self.over[evidence.pattern] = (rule, evidence)
                    self.watchful = True
            if not evidence.warn or evidence.done < evidence.warn:
                continue
            looped = True
            ledger = self.books.find(evidence)
            if ledger is not None and (ledger.warned or ledger.allowed):
                wasted = wasted or (ledger.warned and entry.key == evidence.key)
                continue
            if self.n <= self.quiet_until and rule.name != self.quiet_rule:
                continue
            hits.append((rule, evidence))
        totals = self.totals
        totals["looped"] += looped
        if wasted:
            totals["wasted"] += 1
            totals["wasted_s"] += operation.took
            entry.row.wasted += 1
        if not hits:
            return None
        for rule, evidence in hits:
            self.books.open(rule, evidence, self.n).warned = True
        hits.sort(key=lambda item: item[0].rank)
        rule, evidence = hits[0]
        totals["warned"] += 1
        if not wasted:
            totals["wasted"] += evidence.done - 1
            entry.row.wasted += evidence.done - 1
            totals["wasted_s"] += evidence.wasted_s
        also = tuple(other.name for other, _ in hits[1:])
        tool = self._tool_of(evidence, entry)
        return Hit(rule.name, Action.WARN, tool, evidence, evidence.warn, 0, True, also)

    def _progress(self, entry: Entry, outcome: int, armed: int) -> None:
        """Follow up what was said, and forget what a different outcome of this call refutes."""
        same = bool(armed & 1)
        self.books.executed(entry.key, same)
        if same and not self.plan.forgets_warned:
            return
        for ledger in self.books.refuted(entry.key, outcome):
            if ledger.warned and getattr(ledger.rule, "forgets_warned", False):
                self.drop_other_outcomes(entry.key, outcome)

    def _limit_warning(self, row: Row) -> Hit | None:
        if self.calls < self.plan.warn_calls or self.limit_warned:
            return None
        self.limit_warned = True
        self._rearm()
        self.totals["warned"] += 1
        allowed = self.plan.limits.calls or self.plan.limits.soft_calls or 0
        return self._limit("calls", self.calls, allowed, Action.WARN, row.name)

    def _restart(self, at: int) -> None:
        """Forget the evidence up to operation ``at``, and the books with it."""
        self.restart(at)
        if self.books.ledgers:
            self.books.restart(at)

    # -- readings ---------------------------------------------------------------------------------------------------

    def max_operation_count(self) -> int:
        """The largest count of ``Repeat`` among live patterns."""
        return max((evidence.done for _, evidence in self.repeats(None)), default=0)

    def repeats(self, at: float | None) -> list[tuple[Rule, Evidence]]:
        """All live patterns of the rule named ``repeat``. O(window)."""
        rule = next((rule for rule in self.plan.policy.rules if rule.name == "repeat"), None)
        if rule is not None and not rule.own_row:
            return [(rule, evidence) for evidence in rule.scan(self, at)]
        found = []
        for entry in list(self.keys.values()):
            rules = self.plan.rules_for(entry.row.tool).all
            own = next((rule for rule in rules if rule.name == "repeat"), None)
            if own is not None and entry.kind not in own.skips:
                evidence = own.evidence(self, entry, at)
                if evidence is not None and evidence.done:
                    found.append((own, evidence))
        return found
