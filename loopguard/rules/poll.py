"""``Poll``: a declared poll that keeps giving the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.records import Evidence, Kind, Operation, Status
from loopguard.rules.base import Attempt, Rule, Words, check_rungs, shown, took

if TYPE_CHECKING:
    from loopguard.index import Entry, Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Rule):
    """Equal answers of a poll while what it asks about is running.

    Where the records carry time the warning waits for ``patience`` as well, and so does the refusal. Both are measured
    at the last answer, so that a warning comes before the refusal.
    Once the answer says that it ended, ``Repeat`` applies.

    Args:
        patience: Seconds of equal answers before anything is said (default 600).
    """

    warn_after: int | None = 10
    refuse_after: int | None = 40
    stop_after: int | None = 0
    patience: float = 600.0

    name: ClassVar[str] = "poll"
    words: ClassVar[Words] = Words(
        "gave the same answer {n} times",
        "has given the same answer {n} times",
        "{n} times the same answer",
        nudge="{call} still gives the same answer{excerpt} after {n} calls. "
        "Waiting longer between calls gives the same information.",
    )
    ways: ClassVar[tuple[str, ...]] = (
        'it takes longer: @guarded_tool(kind="poll", patience=1800)',
        "never refuse this tool for it: @guarded_tool(rules=(Poll.off(),))",
    )
    trigger: ClassVar[Trigger] = Trigger.SAME_OPERATION
    rank: ClassVar[int] = 45
    own_row: ClassVar[bool] = True

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """From the row of equal outcomes of this call."""
        if entry.kind != Kind.POLL:
            return None
        ops = index.row_ops(entry)
        if ops and (ops[-1].ended or ops[-1].status != Status.OK):
            return None
        return self._found(entry.key, ops)

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        if call.kind != Kind.POLL:
            return None
        ops: list[Operation] = []
        for op in reversed([op for op in window if op.key == call.key]):
            if op.status != Status.OK or (ops and (not op.outcome or op.outcome != ops[-1].outcome)):
                break
            ops.append(op)
        ops.reverse()
        if ops and ops[-1].ended:
            return None
        return self._found(call.key, ops)

    def _found(self, key: int, ops: Sequence[Operation]) -> Evidence | None:
        if not ops:
            return None
        first, last = ops[-1].since, ops[-1].at
        patient = first is not None and last is not None and last - first < self.patience
        return Evidence(
            (self.name, key),
            key,
            ops[-1].outcome,
            len(ops),
            shown(ops),
            0 if patient else self.warn_after or 0,
            0 if patient else self.refuse_after or 0,
            0 if patient else self.stop_after or 0,
            False,
            first,
            last,
            took(ops),
        )

    def check(self, window: int, endless: bool) -> None:
        """A poll may be refused without an end: what it waits for decides."""
        check_rungs(self, "", (self.warn_after, self.refuse_after, self.stop_after), window, True)
        if not self.patience >= 0:
            raise PolicyError(f"Poll(patience={self.patience!r}) must be seconds of at least 0.")
