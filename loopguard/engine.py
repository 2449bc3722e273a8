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
from loopguard.records import Action, ErrorClass, Evidence, Hit, Operation, Status
from loopguard.rules.base import Rule

#: Calls that can be in flight at once before the oldest count as abandoned; keeps the state bounded.
MAX_OPEN = 10_000

#: An admitted call without an outcome: its entry, its tool, its round, when it began.
Open = tuple[Entry, Bound, int, float | None]

# Seconds below which a duration is not kept.
_INSTANT = 0.001

# Beside the bits of Trigger: the match rests on masking; it is the repetition that a compaction grants.
_FREE = 64
_SOFT = 128


class Engine(Ladder):
    """The state of one run: records in, verdicts and hits out."""

    __slots__ = ("late", "open")

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        #: Admitted calls without an outcome, by number.
        self.open: dict[int, Open] = {}
        #: Calls whose lease ran out, in case they end after all.
        self.late: dict[int, Open] = {}

    # -- before a call ----------------------------------------------------------------------------------------------

    def start(
        self, at: float | None, bound: Bound, kind: int, key: int, target: int = 0, round_: int | None = None
    ) -> int | Hit:
        """An attempt. Returns its number if it may be executed, else the hit that refuses or stops it."""
        seq = self.seq = self.seq + 1
        if self.open and (at is not None or len(self.open) >= MAX_OPEN):
            self._expire(at)
        keys = self.keys
        row = bound.row
        entry = keys.get(key)
        if entry is None:
            if len(keys) >= self.sweep_at:
                self.sweep()
                keys = self.keys
            if self.watchful or bound.floor <= 1:
                entry = keys[key] = Entry(key, row, kind, target)
                hit = self._verdict(entry, bound, at, round_)
                if hit is not None:
                    return hit
                entry.flight = 1
            else:
                entry = keys[key] = Entry(key, row, kind, target, 1)
        else:
            if self.watchful or entry.flight + (1 if entry.ops is None else len(entry.ops)) >= bound.floor:
                hit = self._verdict(entry, bound, at, round_)
                if hit is not None:
                    return hit
            entry.flight += 1
        if round_ is not None:
            if round_ != self.round:
                self.round = round_
                self.joinable = True
        elif not self.joinable:
            round_ = self.round + 1
            self.round = seq if round_ == seq else round_  # one number in memory instead of two equal ones
            self.joinable = True
        row.calls += 1
        calls = self.calls = self.calls + 1
        if calls >= self.call_mark:
            self._rearm()
        self.open[seq] = (entry, bound, self.round, at)
        return seq

    def override(
        self,
        at: float | None,
        bound: Bound,
        kind: int,
        key: int,
        target: int = 0,
        round_: int | None = None,
        seq: int | None = None,
    ) -> int:
        """A refused attempt is executed after all (observe mode, a person's word). Returns its number.

        ``seq`` is the number of the attempt; None is the last one.

        Its refusal does not count as one: the sum of executed and refused attempts stays what it would have been.
        """
        if seq is None:
            seq = self.seq
        if self.latch is not None and self.latch.seq == seq:
            self.latch = None
            bound.row.stopped -= 1
        else:
            bound.row.refused -= 1
        self.books.unrefuse(seq)
        self.totals["refused"] -= 1
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
        self.open[seq] = (entry, bound, self.round, at)
        return seq

    def withdraw(self, seq: int, action: Action = Action.REFUSE) -> None:
        """An admitted call is refused or stopped after all, by a run above: it was not executed."""
        call = self.open.pop(seq, None)
        if call is None:  # its lease ran out meanwhile
            return
        entry, bound, round_, _ = call
        self.release(entry)
        if round_ == self.round:
            self.joinable = False
        self.calls -= 1
        bound.row.calls -= 1
        if action is Action.STOP:
            bound.row.stopped += 1
        else:
            bound.row.refused += 1
        self.totals["refused"] += 1
        self._rearm()

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
        shape: int = 0,
    ) -> Hit | None:
        """The outcome of an admitted call. Returns the warning it completes, if any.

        ``raw`` is the digest of the result or error text, ``template`` of the error's template, ``masked`` and
        ``prev_masked`` of this and the previous outcome of the call with volatile text taken out (0 = not taken),
        ``changed`` False for a write that says it changed nothing, ``ended`` True for a poll that says it is over,
        ``shape`` the digest of an error's first line without what depends on the arguments.
        """
        return self.close(
            self.open.pop(seq, None),
            at,
            seq,
            status,
            raw,
            template,
            masked,
            prev_masked,
            error_class,
            changed,
            ended,
            shape,
        )

    def close(
        self,
        call: Open | None,
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
        shape: int = 0,
    ) -> Hit | None:
        """``end`` for a caller that took the call out of ``open`` itself, to look at it."""
        if call is None:
            call = self._late(seq, status)
            if call is None:
                return None
        entry, bound, round_, started = call
        entry.flight -= 1
        if round_ == self.round:
            self.joinable = False
        kind = entry.kind
        outcome = raw
        if status or kind == 5:
            if status == 4 or kind == 5:
                return self._no_operation(entry, status, at)
            outcome = self._failed(entry, raw, template, error_class)

        # -- the shared index --
        n = self.n + 1
        if n == seq:
            n = seq  # one number in memory instead of two equal ones
        self.n = n
        old = entry.op
        free = False
        flags = 4 if ended else 0  # ENDED
        since = at
        armed = 16  # Trigger.ANY
        if old is not None:
            if outcome != old.outcome and not masked:
                armed = 18 if old.n > n - self.window else 16  # ANY | SAME_CALL
                entry.flips += 1
                # To set a field of a struct costs twice what it costs to look at it.
                if entry.mixed_at >= 0:
                    entry.mixed_at = -1
                if entry.soft_at >= 0:
                    entry.soft_at = -1
                if entry.compaction != self.compactions:
                    entry.compaction = self.compactions
            else:
                armed = self._compare(entry, old, n, status, outcome, masked, prev_masked)
                if armed >= _SOFT:
                    armed -= _SOFT
                    flags |= 1  # SOFT
                    outcome = old.outcome
                if armed >= _FREE:
                    armed -= _FREE
                    free = True
                    flags |= 2  # FREE
                    since = old.since
                elif armed == 19:
                    if flags & 1:
                        entry.soft_at = n
                    flags |= 8  # AGAIN
                    since = old.since
        elif self.compactions:
            entry.compaction = self.compactions
        row = bound.row
        took = at - started if at is not None and started is not None else 0.0
        entry.op = op = Operation(
            n,
            seq,
            row.name,
            entry.key,
            kind,
            status,
            outcome,
            error_class,
            round_,
            at,
            took if took > _INSTANT else 0.0,
            flags,
            masked,
            since,
            shape,
        )
        self.history.append(op)
        if old is not None:
            if armed != 19:
                if free:
                    if entry.ops is None:
                        entry.ops = [old]
                elif entry.ops is not None:
                    entry.ops = None
            else:
                self._append(entry, old, op)
        if not free:
            if kind == 0:
                self.last_unknown = n
                if armed != 19 or status == 3 or error_class == 5:  # DENIED, TRANSIENT
                    self.last_new_unknown = n
            elif kind == 3:
                self.last_poll = n
        if self.keeps:
            armed |= self._keep(entry, op)

        # -- what it means --
        if self.books.spoken:
            self._progress(entry, outcome, armed)
        if status:
            armed |= 4  # FAILED
        else:
            if kind == 2 and not armed & 2 and changed and self.plan.restarts:
                self._restart(n - 1)
            if row.failing and not free:
                row.failing = 0
                armed |= 32  # RECOVERED
        rules = bound.after[armed]
        if self.limit_due:
            hit = self._judge(rules, entry, at, op, bound)
            return self.limit_warning(row.name, at) if hit is None else hit
        return self._judge(rules, entry, at, op, bound) if rules else None

    def _compare(
        self, entry: Entry, old: Operation, n: int, status: int, outcome: int, masked: int, prev_masked: int
    ) -> int:
        """What an outcome arms beside the last one of its call, with ``_SOFT`` and ``_FREE`` where they apply."""
        last = n - self.window
        floor = max(self.restart_at, last)
        if self.cleared and not status:
            floor = max(floor, self.edits_floor(entry))
        armed = 18 if old.n > last else 16  # ANY | SAME_CALL
        if old.n > floor and outcome and status == old.status:
            if outcome == old.outcome:
                armed = 19  # ANY | SAME_CALL | SAME_OPERATION
            elif masked and old.outcome and masked == (old.masked or prev_masked):
                # The raw digests differ, the masked ones do not: a match, but one that may only warn.
                # It takes the digest of the row, so that all of a row are equal.
                armed = 19 + _SOFT
        if armed < 19:
            entry.flips += 1
            entry.mixed_at = entry.soft_at = -1
            entry.compaction = self.compactions
            return armed
        entry.flips = 0
        if entry.compaction != self.compactions:
            # A free repetition is no evidence: it takes no place in the row, and no rule speaks because of it.
            entry.compaction = self.compactions
            return armed + _FREE - 1
        # What lies before a free repetition lies between the operations of the row around it.
        if self.last_unknown > (entry.ops[-1].n if old.free and entry.ops else old.n):
            entry.mixed_at = n
        return armed

    def _keep(self, entry: Entry, op: Operation) -> int:
        """The parts of the index that only some rules ask for. Returns ``SAME_ANSWER`` where it applies."""
        if self.keep_counts:
            self.count(op)
        if self.keep_seen:
            seen = self.seen.setdefault(entry.key, [])
            seen.append(op)
            if len(seen) > 2 * self.window:
                trim(seen, op.n - self.window)
        row = entry.row
        if row.last == op.outcome and op.outcome:
            return 8
        row.last = op.outcome
        return 0

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
        entry.row.failing = 1
        if error_class == ErrorClass.RECOVERABLE and entry.target and entry.row.tool.edits:
            self.clear_edits(entry.target, self.plan.clears_edits)
            self.books.forget_edits(entry.target, self)
        return template if self.plan.policy.masking else raw

    def _no_operation(self, entry: Entry, status: int, at: float | None) -> Hit | None:
        """A call that was abandoned, or that only thinks: nothing to compare."""
        if not entry.flight and entry.op is None:
            self.keys.pop(entry.key, None)
        if status == Status.ABANDONED:
            self.totals["abandoned"] += 1
            return None
        return self.limit_warning(entry.row.name, at) if self.limit_due else None

    def _late(self, seq: int, status: int) -> Open | None:
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
        while self.open:
            seq, call = next(iter(self.open.items()))
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
        self.books.told_limits -= {("calls", Action.WARN)}
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
        self.latch = Hit("stop", Action.STOP, "", evidence, 0, 0, True)
        self.watchful = True
        return self.latch

    def resume(self) -> None:
        """Lift the stop; evidence and books start anew, totals stay."""
        self._anew()
        self.books.denied_round = -1
        self._limits_anew()

    def _anew(self) -> None:
        """Lift the stop and forget the evidence of all rules, with what was said about it."""
        self.latch = None
        self.over.clear()
        self.books.clear()
        self.reset()

    def note_descendant_write(self) -> None:
        """A run below made a novel write: the evidence starts anew here too."""
        if self.plan.policy.restarts:
            self._restart(self.n)

    def operations(self) -> tuple[Operation, ...]:
        """The operations that are kept, oldest first: what slid out of the window, then the window."""
        return tuple(self.history)
