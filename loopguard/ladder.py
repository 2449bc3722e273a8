"""The ladder: what evidence leads to, decided in one place for all rules.

Before a call: stop if ``done + refused >= stop_after``; else refuse if ``done + flight >= refuse_after``; else go.
After an outcome: warn if ``done >= warn_after`` and the pattern was not warned about.
``done`` are matching operations, ``flight`` admitted calls of the same key without an outcome yet, ``refused`` the
rounds in which an attempt of the pattern was refused.
"""

from __future__ import annotations

from collections import deque

from loopguard.budget import NEVER, Budget, Level
from loopguard.index import Entry, Row
from loopguard.policy import Plan
from loopguard.records import Action, Evidence, Hit, Kind, Operation, Tool
from loopguard.rules.base import Rule

#: Refused attempts that can be siblings of one reply of the model.
MOST_SIBLINGS = 100


class Bound:
    """A tool in this run: its row, and the rules that hold for it."""

    __slots__ = ("after", "all", "floor", "row", "tool")

    def __init__(self, tool: Tool, row: Row, plan: Plan, refuses: bool = True) -> None:
        rules = plan.rules_for(tool)
        self.tool = tool
        self.row = row
        self.all = rules.all if refuses else ()
        self.after = rules.after
        self.floor = rules.floor if refuses else NEVER


class Ladder(Budget):
    """The index of a run with what was decided from it: books, limits, the latch of a stop."""

    __slots__ = (
        "bounds",
        "broken",
        "crowd",
        "crowd_round",
        "joinable",
        "quiet_rule",
        "quiet_until",
        "round",
    )

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.bounds: dict[str, Bound] = {}
        #: Rules that raised, with what they raised.
        self.broken: list[tuple[Rule, Exception]] = []
        self.round = 0
        #: The current round takes in further calls: one of it is in flight and none has ended.
        self.joinable = False
        #: Refused attempts that joined the round of calls in flight, and which round that was.
        self.crowd = 0
        self.crowd_round = -1
        self.quiet_until = 0
        self.quiet_rule = ""

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
        hit = self._forbidden(entry.row, at)
        if hit is not None:
            if hit.action is Action.REFUSE and self._refusals_used_up(self._refused_round(round_)):
                hit = self._refusals_over(tool)
            return self._not_asked(entry, hit) if hit.action is Action.WARN else self._refuse(entry, hit)
        if self.alert_until and self.alert_until <= self.n:
            self.alert_until = 0
            self._rearm()
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
            hit = self._refusals_over(tool)
            return self._not_asked(entry, hit) if hit.action is Action.WARN else self._refuse(entry, hit)
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
            self._latch(hit, self.seq)
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
        elif evidence.refuse and evidence.done + flight + (refused if rule.presses else 0) >= evidence.refuse:
            rung = min(evidence.refuse, evidence.done) if rule.presses else evidence.refuse
            met.append((Action.REFUSE, rule, evidence, rung))

    @staticmethod
    def _flight(entry: Entry) -> int:
        """Calls in flight that count: not of samples and polls, nor of a call whose last two outcomes differed."""
        return 0 if entry.flips or entry.kind in (Kind.SAMPLE, Kind.POLL) else entry.flight

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
        allowed = self.limits.refusals
        if round_ != self.books.denied_round:
            if allowed is not None and self.denied_rounds >= allowed:
                return True
            self.denied_rounds += 1
            self.books.denied_round = round_
            if allowed is not None:
                self._rearm()
        return False

    def _refusals_over(self, tool: str) -> Hit:
        allowed = self.limits.refusals or 0
        level = Level("refusals", self.denied_rounds, allowed, self.limits.mark(allowed))
        return self._ask_first(level, tool) or self._end_of(level, tool)

    def _refuse(self, entry: Entry, hit: Hit) -> Hit:
        if hit.action is Action.STOP:
            entry.row.stopped += 1
        else:
            entry.row.refused += 1
        self.totals["refused"] += 1
        if not entry.flight and entry.op is None:
            self.keys.pop(entry.key, None)
        return hit._replace(seq=self.seq)

    def _not_asked(self, entry: Entry, hit: Hit) -> Hit:
        """A handoff comes first: this attempt is none, and is made again when there is an answer."""
        self.seq -= 1
        if not entry.flight and entry.op is None:
            self.keys.pop(entry.key, None)
        return hit

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
            if rule.remembers:
                self._take_in(rule, entry, operation)
            evidence = self._asked(rule, entry, at, operation)
            if evidence is None:
                continue
            if rule.remembers:
                rung = min((r for r in (evidence.refuse, evidence.stop) if r), default=0)
                if rung and evidence.done >= rung:
                    self.alert_until = self.n + self.window
                    self.watchful = True
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
                if rule.remembers:
                    self.books.went_on(rule.name)
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

    def _take_in(self, rule: Rule, entry: Entry, operation: Operation) -> None:
        """Let the rule remember the operation, and forget what it refutes."""
        memory = self.memories.get(rule.name)
        if memory is None:
            memory = self.memories[rule.name] = rule.memory()
        for pattern in rule.take(memory, self, entry, operation):
            self.books.forget(pattern)

    def _progress(self, entry: Entry, outcome: int, armed: int) -> None:
        """Follow up what was said, and forget what a different outcome of this call refutes."""
        same = bool(armed & 1)
        self.books.executed(entry.key, same)
        if same and not self.plan.forgets_warned:
            return
        for ledger in self.books.refuted(entry.key, outcome):
            if ledger.warned and getattr(ledger.rule, "forgets_warned", False):
                self.drop_other_outcomes(entry.key, outcome)

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
