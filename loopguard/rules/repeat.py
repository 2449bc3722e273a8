"""``Repeat``: the same call gave the same result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.records import Evidence, Kind, Operation, Status
from loopguard.rules.base import Attempt, Rule, Words, check_rungs, lowest, shown, took

if TYPE_CHECKING:
    from loopguard.index import Entry, Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat(Rule):
    """The same successful operation (tool, key and result) in the window, not only in a row.

    A different result is progress: it forgets the count.
    If between two of the matches a call of another key and of unknown kind was executed, that call may have changed
    the world, and the ``unknown_*`` rungs hold.

    Args:
        warn_after: Matching operations before the warning (default 3).
        refuse_after: ... before the same call is refused (default 5).
        stop_after: ... together with refused rounds, before the run is over (default 10).
        unknown_warn_after: The warning rung with calls of unknown kind in between (default 5).
        unknown_refuse_after: The refusal rung likewise (default 10).
        unknown_stop_after: The stop rung likewise (default 20).
        errors: Count failures too.
        within: Only operations not older than this many seconds count; None = all in the window.

    Source: loopctl's loop detector (thresholds 3 and 10); the refusal and the rungs for unknown kinds are ours.
    """

    unknown_warn_after: int | None = 5
    unknown_refuse_after: int | None = 10
    unknown_stop_after: int | None = 20
    errors: bool = False
    within: float | None = None

    name: ClassVar[str] = "repeat"
    words: ClassVar[Words] = Words(
        "gave the same result {n} times",
        "has given the same result {n} times",
        "{n} times the same result",
        nudge="{call} has now returned the same result {times} {calls}.",
    )
    ways: ClassVar[tuple[str, ...]] = (
        'it waits for something: @guarded_tool(kind="poll")',
        "never refuse or stop this tool: @guarded_tool(refuse_after=0, stop_after=0)",
    )
    trigger: ClassVar[Trigger] = Trigger.SAME_OPERATION
    rank: ClassVar[int] = 40
    clears_edits: ClassVar[bool] = True
    own_row: ClassVar[bool] = True
    skips: ClassVar[frozenset[int]] = frozenset({Kind.THINK, Kind.SAMPLE})

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """From the row of equal outcomes of this call."""
        ops = index.row_ops(entry)
        if ops and ops[-1].status and not self.errors:
            return None
        if entry.kind == Kind.POLL and not (ops and ops[-1].ended):
            return None
        if self.within is not None and ops:
            ops = recent(ops, at, self.within)
        mixed = bool(ops) and entry.mixed_at > ops[0].n
        soft = bool(ops) and entry.soft_at > ops[0].n
        return self._found(entry.key, ops[-1].outcome if ops else 0, ops, mixed, soft)

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        now = call.operation.at if call.operation is not None else call.at
        if self.within is not None:
            window = recent(window, now, self.within)
        ops: list[Operation] = []
        mixed = between = False
        for op in reversed(window):
            if op.key != call.key:
                between = between or op.kind == Kind.UNKNOWN
                continue
            if not ops or (op.outcome and op.outcome == ops[-1].outcome and op.status == ops[-1].status):
                mixed = mixed or (bool(ops) and between)
                between = False
                ops.append(op)
                continue
            break
        ops.reverse()
        if ops and ops[-1].status != Status.OK and not self.errors:
            return None
        if call.kind == Kind.POLL and not (ops and ops[-1].ended):
            return None
        return self._found(call.key, ops[-1].outcome if ops else 0, ops, mixed, any_soft(ops))

    def _found(self, key: int, outcome: int, ops: Sequence[Operation], mixed: bool, soft: bool) -> Evidence:
        warn, refuse, stop = self.rungs("unknown_" if mixed else "")
        return Evidence(
            (self.name, key),
            key,
            outcome,
            len(ops),
            shown(ops),
            warn,
            0 if soft else refuse,
            0 if soft else stop,
            True,
            ops[0].at if ops else None,
            ops[-1].at if ops else None,
            took(ops),
        )

    def lowest_rung(self) -> int:
        """The smallest count at which this rule can refuse or stop."""
        return lowest(self.refuse_after, self.stop_after, self.unknown_refuse_after, self.unknown_stop_after)

    def check(self, window: int, endless: bool) -> None:
        """Both ladders must be in order and within the window."""
        check_rungs(self, "", (self.warn_after, self.refuse_after, self.stop_after), window, endless)
        unknown = (self.unknown_warn_after, self.unknown_refuse_after, self.unknown_stop_after)
        check_rungs(self, "unknown_", unknown, window, endless)
        if self.within is not None and not (isinstance(self.within, (int, float)) and self.within > 0):
            raise PolicyError(f"Repeat(within={self.within!r}) must be seconds above 0. None counts the whole window.")


def recent(ops: Sequence[Operation], now: float | None, within: float) -> list[Operation]:
    """The operations not older than ``within`` seconds; all of them where the records carry no time."""
    if now is None:
        return list(ops)
    return [op for op in ops if op.at is None or op.at >= now - within]


def any_soft(ops: Sequence[Operation]) -> bool:
    """True if a match rests on masking; the first operation of a row rests on nothing."""
    return any(op.soft for op in ops[1:])
