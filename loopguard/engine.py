"""The fold: records in, verdicts and hits out.

``Engine`` is the state of one run and the only place where the ladder is applied.
It is deterministic and pure: no clock, no lock, no I/O; time comes in with the records.
Each kind of record is one method here.
``start`` and ``end`` are on the path of every call, so the update of the shared index stands in them, not in calls.
"""

from __future__ import annotations

from typing import Any

from loopguard.index import Entry, trim
from loopguard.ladder import Bound, Ladder
from loopguard.policy import Plan
from loopguard.records import Action, ErrorClass, Evidence, Hit, Operation, Status, Tool
from loopguard.rules.base import Rule

#: Calls that can be in flight at once before the oldest count as abandoned; keeps the state bounded.
MAX_OPEN = 10_000

# A NamedTuple's own constructor costs twice as much as this.
_new = tuple.__new__


class Engine(Ladder):
    """The state of one run: records in, verdicts and hits out."""

    __slots__ = ("late", "open")

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        #: Admitted calls without an outcome, by number.
        self.open: dict[int, tuple[Entry, Bound, int, float | None]] = {}
        #: Calls whose lease ran out, in case they end after all.
        self.late: dict[int, tuple[Entry, Bound, int, float | None]] = {}

    # -- before a call ----------------------------------------------------------------------------------------------

    def start(
        self, at: float | None, bound: Bound, kind: int, key: int, target: int = 0, round_: int | None = None
    ) -> int | Hit:
        """An attempt. Returns its number if it may be executed, else the hit that refuses or stops it."""
        seq = self.seq = self.seq + 1
        if self.open and (at is not None or len(self.open) >= MAX_OPEN):
            self._expire(at)
        entry = self.keys.get(key)
        if entry is None:
            if len(self.keys) >= self.sweep_at:
                self.sweep()
            entry = self.keys[key] = Entry(key, bound.row, kind, target)
            ops = None
        else:
            ops = entry.ops
        if self.watchful or entry.flight + (1 if ops is None else len(ops)) >= bound.floor:
            hit = self._verdict(entry, bound, at, round_)
            if hit is not None:
                return hit
        if round_ is not None:
            if round_ != self.round:
                self.round = round_
                self.joinable = True
        elif not self.joinable:
            self.round += 1
            self.joinable = True
        entry.flight += 1
        bound.row.calls += 1
        calls = self.calls = self.calls + 1
        if calls >= self.call_mark:
            self._rearm()
        self.open[seq] = (entry, bound, self.round, at)
        return seq

    def override(
        self, at: float | None, bound: Bound, kind: int, key: int, target: int = 0, round_: int | None = None
    ) -> int:
        """The attempt just refused is executed after all (observe mode, a person's word). Returns its number.

        Its refusal does not count as one: the sum of executed and refused attempts stays what it would have been.
        """
        self.latch = None
        self.books.unrefuse(self.seq)
        self.totals["refused"] -= 1
        bound.row.refused -= 1
        entry = self.keys.get(key)
        if entry is None:
            entry = self.keys[key] = Entry(key, bound.row, kind, target)
        if round_ is not None:
            self.round, self.joinable = round_, True
        elif not self.joinable:
            self.round += 1
            self.joinable = True
        entry.flight += 1
        bound.row.calls += 1
        self.calls += 1
        self._rearm()
        self.open[self.seq] = (entry, bound, self.round, at)
        return self.seq

    # -- after a call -----------------------------------------------------------------------------------------------

    def end(
        self,
        at: float | None,
        seq: int,
        status: int,
        raw: int = 0,
        template: int = 0,
        masked: int = 0,
        prev_masked: int = 0,
        error_class: int = 0,
        changed: bool = True,
        ended: bool = False,
    ) -> Hit | None:
        """The outcome of an admitted call. Returns the warning it completes, if any.

        ``raw`` is the digest of the result or error text, ``template`` of the error's template, ``masked`` and
        ``prev_masked`` of this and the previous outcome of the call with volatile text taken out (0 = not taken),
        ``changed`` False for a write that says it changed nothing, ``ended`` True for a poll that says it is over.
        """
        call = self.open.pop(seq, None)
        if call is None:
            call = self._late(seq, status)
            if call is None:
                return None
        entry, bound, round_, started = call
        entry.flight -= 1
        if round_ == self.round:
            self.joinable = False
        kind = entry.kind
        if status == 4 or kind == 5:
            return self._no_operation(entry, status)
        if status:
            outcome = self._failed(entry, raw, template, error_class)
        else:
            outcome = raw

        # -- the shared index --
        n = self.n = self.n + 1
        old = entry.op
        soft = free = False
        armed = 16  # Trigger.ANY
        if old is not None:
            last = n - self.window
            floor = max(self.restart_at, last)
            if self.cleared and not status:
                floor = max(floor, self.edits_floor(entry))
            if old[0] > last:
                armed = 18  # ANY | SAME_CALL
            if old[0] > floor and outcome and status == old[5]:
                if outcome == old[6]:
                    armed = 19  # ANY | SAME_CALL | SAME_OPERATION
                elif masked and masked == (old[13] or prev_masked):
                    # The raw digests differ, the masked ones do not: a match, but one that may only warn.
                    # It takes the digest of the row, so that all of a row are equal.
                    armed = 19
                    soft = True
                    outcome = old[6]
            if armed == 19:
                entry.flips = False
                if entry.compaction != self.compactions:
                    entry.compaction = self.compactions
                    free = True
                other = self.unknown_n if self.unknown_key != entry.key else self.unknown_other_n
                if other > old[0]:
                    entry.mixed_at = n
            else:
                entry.flips = True
                entry.compaction = self.compactions
        else:
            entry.compaction = self.compactions
        took = at - started if at is not None and started is not None else 0.0
        op = entry.op = _new(
            Operation,
            (
                n,
                seq,
                bound.row.name,
                entry.key,
                kind,
                status,
                outcome,
                error_class,
                round_,
                at,
                took,
                soft,
                free,
                masked,
                ended,
            ),
        )
        self.history.append(op)
        if armed != 19:
            if entry.ops is not None:
                entry.ops = None
                entry.mixed_at = -1
        elif free:
            # A free repetition is no evidence: it takes no place in the row, and no rule speaks because of it.
            armed = 18
            if entry.ops is None and old is not None:
                entry.ops = [old]
        elif old is not None:
            self._append(entry, old, op)
        row = bound.row
        if outcome and row.last == outcome:
            armed |= 8  # SAME_ANSWER
        row.last = outcome
        if kind == 0 and not free:
            if self.unknown_key != entry.key:
                self.unknown_other_n = self.unknown_n
                self.unknown_key = entry.key
            self.unknown_n = n
        elif kind == 3 and not free:
            self.last_poll = n
        if self.keep_counts:
            self.count(op)
        if self.keep_seen:
            seen = self.seen.setdefault(entry.key, [])
            seen.append(op)
            if len(seen) > 2 * self.window:
                trim(seen, n - self.window)

        # -- what it means --
        if self.books.active:
            self._progress(entry, outcome, armed)
        if status:
            armed |= 4  # FAILED
        elif kind == 2 and not armed & 2 and changed and self.plan.restarts:
            self._restart(n - 1)
        rules = bound.after[armed]
        hit = self._judge(rules, entry, at, op) if rules else None
        if self.calls >= self.plan.warn_calls and not self.limit_warned:
            hit = hit or self._limit_warning(bound.row)
        return hit

    def _append(self, entry: Entry, old: Operation, op: Operation) -> None:
        """The row of equal outcomes grows by one."""
        if entry.ops is None:
            entry.ops = [old]
        entry.ops.append(op)
        # A row longer than the window shows nothing more; trimming it in large steps keeps that cheap.
        if len(entry.ops) > 2 * self.window:
            trim(entry.ops, self.n - self.window)

    def _failed(self, entry: Entry, raw: int, template: int, error_class: int) -> int:
        """Bookkeeping of a failure; returns the digest by which it is compared."""
        self.totals["failed"] += 1
        if error_class == ErrorClass.RECOVERABLE and entry.target and entry.row.tool.edits:
            self.clear_edits(entry.target, self.plan.clears_edits)
            self.books.forget_edits(entry.target, self)
        return template if self.plan.policy.masking else raw

    def _no_operation(self, entry: Entry, status: int) -> Hit | None:
        """A call that was abandoned, or that only thinks: nothing to compare."""
        if not entry.flight and entry.op is None:
            self.keys.pop(entry.key, None)
        if status == Status.ABANDONED:
            self.totals["abandoned"] += 1
            return None
        return self._limit_warning(entry.row)

    def _late(self, seq: int, status: int) -> tuple[Entry, Bound, int, float | None] | None:
        """A call that ends after its lease ran out is taken in once."""
        call = self.late.pop(seq, None)
        if call is None or status == Status.ABANDONED:
            return None
        self.totals["abandoned"] -= 1
        entry = self.keys.setdefault(call[0].key, call[0])
        entry.flight += 1
        return entry, call[1], call[2], call[3]

    def _expire(self, at: float | None) -> None:
        """Calls whose lease ran out count as abandoned; their late end is still taken in once."""
        lease = self.plan.policy.lease_s
        for seq, call in list(self.open.items()):
            lasting = at is None or call[3] is None or at - call[3] <= lease
            if len(self.open) < MAX_OPEN and lasting:
                break
            del self.open[seq]
            self.release(call[0])
            self.totals["abandoned"] += 1
            self.late[seq] = call
            if len(self.late) > 100:
                del self.late[next(iter(self.late))]

    # -- notes ------------------------------------------------------------------------------------------------------

    def note_user_message(self) -> None:
        """A real message of the user: a new task. Restarts the evidence and lifts a stop that a loop caused."""
        self.calls = 0
        self.limit_warned = False
        self.books.told_limits.discard(("calls", Action.WARN))
        self.quiet_until = 0
        self.joinable = False
        if self.plan.policy.restarts:
            self._restart(self.n)
        if self.latch is not None and self.latch.limit is None and self.latch.rule != "stop":
            self._anew()
        self._rearm()

    def note_compaction(self) -> None:
        """The model's memory was cut: every call may be repeated once, unless the policy knows no restarts."""
        if self.plan.restarts:
            self.compactions += 1

    def note_round(self, round_: int | None = None) -> int:
        """A new reply of the model begins; its calls are one decision."""
        self.round = self.round + 1 if round_ is None else round_
        self.joinable = True
        return self.round

    def note_nudge(self, rule: str, key: int) -> None:
        """A warning was delivered: follow it up, and let no other rule warn for three executed calls."""
        self.quiet_until = self.n + 3
        self.quiet_rule = rule
        self.books.follow(rule, Action.WARN, key)

    def acknowledge(self, pattern: tuple[Any, ...], rule: Rule, evidence: Evidence) -> None:
        """The pattern counts as warned about."""
        self.books.open(rule, evidence, self.n).warned = True

    def stop(self, reason: str) -> Hit:
        """End the run from outside."""
        evidence = Evidence(("stop", reason), 0, 0, 0, (), 0, 0, 0, False)
        return self._latch(Hit("stop", Action.STOP, "", evidence, 0, 0, True))

    def resume(self) -> None:
        """Lift the stop; evidence and books start anew, totals stay."""
        self._anew()
        self.denied_rounds = 0
        self.books.denied_round = -1
        self.books.told_limits.clear()
        self.calls = 0
        self.limit_warned = False
        self._rearm()

    def _anew(self) -> None:
        """Lift the stop and forget the evidence of all rules, with what was said about it."""
        self.latch = None
        self.over.clear()
        self.books.clear()
        self.reset()

    def tick(self, tool: Tool) -> Hit | None:
        """A call of a run below this one: it counts for the limits. Returns the hit that forbids it, if any."""
        row = self.row_of(tool)
        if self.latch is not None:
            return self.latch._replace(report=False)
        limits = self.plan.limits
        if limits.calls is not None and self.calls >= limits.calls:
            return self._latch(self._limit("calls", self.calls, limits.calls, Action.STOP, row.name))
        allowed = limits.calls_per_tool.get(row.name)
        used = row.calls + row.below
        if allowed is not None and used >= allowed:
            return self._limit(f"calls_per_tool[{row.name}]", used, allowed, Action.REFUSE, row.name)
        self.calls += 1
        row.below += 1
        self._rearm()
        return None

    def note_descendant_write(self) -> None:
        """A run below made a novel write: the evidence starts anew here too."""
        if self.plan.policy.restarts:
            self._restart(self.n)

    def operations(self) -> tuple[Operation, ...]:
        """The operations that are kept, oldest first: what slid out of the window, then the window."""
        return tuple(self.history)
