"""``Failing``: the same call fails with the same error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from loopguard.index import Trigger
from loopguard.records import ErrorClass, Evidence, Kind, Operation, Status
from loopguard.rules.base import Attempt, Rule, Words, check_rungs, lowest, shown, took

if TYPE_CHECKING:
    from loopguard.index import Entry, Index

#: A wait between attempts grows if it is this many times as long as the one before ...
GROWTH: Final = 1.1
#: ... and not shorter than this: below it is the time that a call takes, not a wait. Seconds.
NOTICEABLE: Final = 0.1

_LADDERS = ("", "unknown_", "final_", "recoverable_", "transient_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing(Rule):
    """The same call with the same error (compared as template), no other outcome in between.

    How patient it is depends on the class of the error:

    - final (unknown tool or parameter, missing field, validation, 401, 403, access denied, a person's denial);
    - recoverable (declared by the tool);
    - transient (429, 5xx, time-out, busy, locked) and failing polls: neither refused nor stopped while the waits
      between the attempts grow, or while a poll lies between them;
    - everything else: ``warn_after`` / ``refuse_after`` / ``stop_after``, and the ``unknown_*`` rungs where between two
      of the failures a call of another key and of unknown kind was executed: it may have been the attempt to mend it.

    Source: OPENDEV's doom-loop detection; the classes are ours.
    """

    final_warn_after: int | None = 2
    final_refuse_after: int | None = 3
    final_stop_after: int | None = 5
    recoverable_warn_after: int | None = 4
    recoverable_refuse_after: int | None = 6
    recoverable_stop_after: int | None = 10
    transient_warn_after: int | None = 5
    transient_refuse_after: int | None = 10
    transient_stop_after: int | None = 20
    unknown_warn_after: int | None = 5
    unknown_refuse_after: int | None = 10
    unknown_stop_after: int | None = 20

    name: ClassVar[str] = "failing"
    words: ClassVar[Words] = Words(
        "failed {n} times with the same error",
        "has failed {n} times with the same error",
        "{n} times the same error",
        nudge="{call} has failed {times} with the same error{excerpt} {calls}. "
        "The error has not changed between the attempts.",
        refused="has failed {times} with the same error{excerpt}.",
        since="The error has not changed between the attempts.",
    )
    ways: ClassVar[tuple[str, ...]] = (
        "an agent gets past this error: @guarded_tool(recoverable=(TheError,))",
        "never refuse or stop this tool for it: @guarded_tool(rules=(Failing.off(),))",
    )
    trigger: ClassVar[Trigger] = Trigger.FAILED
    rank: ClassVar[int] = 20
    own_row: ClassVar[bool] = True

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """From the row of equal outcomes of this call."""
        ops = index.row_ops(entry)
        if not ops or ops[-1].status == Status.OK:
            return None
        waiting = index.last_poll > ops[-1].n if operation is None else len(ops) > 1 and index.last_poll > ops[-2].n
        tries = (entry.refused_at, at) if operation is None else ()
        return self._found(entry.key, ops, entry.kind, tries, waiting, entry.mixed_at > ops[0].n)

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        ops: list[Operation] = []
        last_poll = max((op.n for op in window if op.kind == Kind.POLL), default=0)
        mixed = between = False
        for op in reversed(window):
            if op.key != call.key:
                between = between or op.kind == Kind.UNKNOWN
                continue
            if op.status == Status.OK or not (
                not ops or (op.outcome and op.outcome == ops[-1].outcome and op.status == ops[-1].status)
            ):
                break
            mixed = mixed or (bool(ops) and between)
            between = False
            ops.append(op)
        if not ops:
            return None
        ops.reverse()
        before = call.operation is None
        waiting = last_poll > ops[-1].n if before else len(ops) > 1 and last_poll > ops[-2].n
        return self._found(call.key, ops, call.kind, (call.refused_at, call.at) if before else (), waiting, mixed)

    def _found(
        self, key: int, ops: Sequence[Operation], kind: int, tries: tuple[float | None, ...], waiting: bool, mixed: bool
    ) -> Evidence:
        ladder = self._ladder(ops[-1].error_class, kind)
        if mixed and ladder in ("", "recoverable_"):
            ladder = "unknown_"
        warn, refuse, stop = self.rungs(ladder)
        if ladder == "transient_" and (waiting or _waits_grow(ops, tries)):
            refuse = stop = 0
        return Evidence(
            (self.name, key),
            key,
            ops[-1].outcome,
            len(ops),
            shown(ops),
            warn,
            refuse,
            stop,
            True,
            ops[0].at,
            ops[-1].at,
            took(ops),
        )

    @staticmethod
    def _ladder(error_class: int, kind: int) -> str:
        if ErrorClass(error_class).final:
            return "final_"
        if error_class == ErrorClass.RECOVERABLE:
            return "recoverable_"
        if error_class == ErrorClass.TRANSIENT or kind == Kind.POLL:
            return "transient_"
        return ""

    def lowest_rung(self) -> int:
        """The smallest count at which this rule can refuse or stop."""
        return lowest(*(rung for ladder in _LADDERS for rung in self.rungs(ladder)[1:]))

    def check(self, window: int, endless: bool) -> None:
        """All ladders must be in order and within the window."""
        for ladder in _LADDERS:
            names = (f"{ladder}warn_after", f"{ladder}refuse_after", f"{ladder}stop_after")
            rungs = (getattr(self, names[0]), getattr(self, names[1]), getattr(self, names[2]))
            check_rungs(self, ladder, rungs, window, endless)


def _waits_grow(ops: Sequence[Operation], tries: tuple[float | None, ...]) -> bool:
    """True if the last wait between attempts, refused ones included, was clearly longer than the one before."""
    last = ops[-1].at
    if last is None:
        return False
    times = [op.at for op in ops[-3:] if op.at is not None]
    times += [at for at in tries if at is not None and at >= last]
    if len(times) < 3:
        return False
    before, wait = times[-2] - times[-3], times[-1] - times[-2]
    return before > 0 and wait >= NOTICEABLE and wait >= GROWTH * before
