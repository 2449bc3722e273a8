"""The shared index: what all rules read, updated once per record.

Every rule answers from here in O(1).
The index keeps the last ``window`` executed operations and, for each call among them, its unbroken row of equal
outcomes.
A row is trimmed when it is looked at: operations that slid out of the window, or that lie before the last restart,
do not count.
"""

from __future__ import annotations

from collections import deque
from enum import IntFlag
from typing import Any, Final

import msgspec

from loopguard.records import Operation, Tool

#: More tools than this share one row: names may come from a model, and the state must stay bounded.
MAX_TOOLS: Final = 1_000
OTHER_TOOLS: Final = "_other"


# Shared, and never added to: most runs need neither.
_NO_OPERATIONS: Final[deque[Operation]] = deque(maxlen=0)
_NO_PAIRS: Final[set[tuple[int, int]]] = set()


class Trigger(IntFlag):
    """What arms a rule after an operation. On an operation that arms nothing no rule runs."""

    NONE = 0
    #: The call came before in the window with an equal outcome.
    SAME_OPERATION = 1
    #: The call came before in the window, whatever came back.
    SAME_CALL = 2
    #: The call failed.
    FAILED = 4
    #: The tool's last outcome was the same, whatever the arguments.
    SAME_ANSWER = 8
    #: Every operation.
    ANY = 16
    #: The call succeeded, and the last one of this tool did not.
    RECOVERED = 32


class Row:
    """What is known about one tool: its last outcome, and totals for limits."""

    __slots__ = ("below", "calls", "failing", "last", "name", "refused", "stopped", "tool", "wasted")

    def __init__(self, tool: Tool, name: str) -> None:
        self.tool = tool
        self.name = name
        #: The outcome of its last operation.
        self.last = 0
        #: 1 after a failure, until a call of it succeeds.
        self.failing = 0
        #: Calls executed in this run, and in the runs below it.
        self.calls = 0
        self.below = 0
        #: Attempts that were refused, and attempts after which the run was over.
        self.refused = 0
        self.stopped = 0
        #: Executed calls that repeated what was warned about.
        self.wasted = 0


class Entry(msgspec.Struct, gc=False):
    """What is known about one call (tool and key): its row of equal outcomes, and attempts without an outcome yet.

    A struct, because one is made for every call that was not seen before.
    """

    key: int
    row: Row
    kind: int
    target: int
    #: Admitted calls without an outcome yet.
    flight: int = 0
    #: The last operation of this call.
    op: Operation | None = None
    #: The operations of its row of equal outcomes, oldest first; None where the last one stands alone.
    ops: list[Operation] | None = None
    #: How many outcomes in a row each differed from the one before.
    flips: int = 0
    #: ``n`` of the latest match before which another call of unknown kind was executed.
    mixed_at: int = -1
    #: ``n`` of the latest match that rests on masking.
    soft_at: int = -1
    #: The compaction after which this call used its free repetition.
    compaction: int = 0
    #: When an attempt of it was refused last.
    refused_at: float | None = None


class Index:
    """The evidence of one run. ``counts`` and ``seen`` are kept only where a rule of the policy asks for them.

    An operation is in the window while its ``n`` is above ``self.n - self.window``.
    """

    __slots__ = (
        "alert_until",
        "cleared",
        "compactions",
        "counted",
        "counts",
        "history",
        "keep_counts",
        "keep_seen",
        "keeps",
        "keys",
        "last_poll",
        "last_new_unknown",
        "last_unknown",
        "memories",
        "n",
        "repeated",
        "reset_at",
        "restart_at",
        "rows",
        "seen",
        "sweep_at",
        "window",
    )

    def __init__(
        self, window: int, keep_counts: bool = False, keep_seen: bool = False, keep_answers: bool = False
    ) -> None:
        self.window = window
        self.keep_counts = keep_counts
        self.keep_seen = keep_seen
        self.keeps = keep_counts or keep_seen or keep_answers
        #: Executed operations so far.
        self.n = 0
        self.keys: dict[int, Entry] = {}
        self.rows: dict[str, Row] = {}
        #: The last operations: those that count, and older ones that are kept to explain.
        #: Made with the first tool: a run that is opened and left costs little.
        self.history: deque[Operation] = _NO_OPERATIONS
        #: Operations up to this one are forgotten (a novel write, a user message).
        self.restart_at = 0
        #: Operations up to this one are forgotten by every rule (a stop was lifted).
        self.reset_at = 0
        #: Calls that slid out of the window are swept when there are this many.
        self.sweep_at = window + max(16, window // 4)
        self.compactions = 0
        #: Operations of this (key, outcome) in the window, in whatever order, and the window they are counted in.
        self.counts: dict[tuple[int, int], list[Operation]] = {}
        self.counted: deque[Operation] = deque() if keep_counts else _NO_OPERATIONS
        #: Those of them that occur at least twice.
        self.repeated: set[tuple[int, int]] = set() if keep_counts else _NO_PAIRS
        #: Operations of this key in the window, whatever came back.
        self.seen: dict[int, list[Operation]] = {}
        #: Edits of this target up to this operation are forgotten (a recoverable error).
        self.cleared: dict[int, int] = {}
        self.last_poll = 0
        #: The latest operation of unknown kind, which may have changed anything; and the latest that does not recur.
        self.last_unknown = 0
        self.last_new_unknown = 0
        #: What rules remember beyond the rows, by the name of the rule: plain containers, made when first needed.
        self.memories: dict[str, Any] = {}
        #: A rule with a memory could refuse: attempts are looked at up to this operation.
        self.alert_until = 0

    # -- what rules read --------------------------------------------------------------------------------------------

    def floor(self, restarts: bool = True) -> int:
        """Operations up to this one do not count any more, for a rule that restarts or one that does not."""
        floor = self.n - self.window
        since = self.restart_at if restarts else self.reset_at
        return max(floor, since)

    def edits_floor(self, entry: Entry) -> int:
        """Successful operations of this call up to this one were cleared by a recoverable error; 0 = none."""
        return self.cleared.get(entry.target, 0) if self.cleared and entry.row.tool.edits else 0

    def row_ops(self, entry: Entry) -> list[Operation]:
        """The operations of the unbroken row of this call, oldest first, trimmed to what counts."""
        op = entry.op
        if op is None:
            return []
        floor = self.floor()
        if self.cleared and not op.status:
            floor = max(floor, self.edits_floor(entry))
        if op.n <= floor:
            return []
        ops = entry.ops
        if ops is None:
            return [op]
        # Empty where the row slid out and only a free repetition is left.
        if ops and ops[0].n <= floor:
            trim(ops, floor)
        return ops

    def in_window(self, entry: Entry) -> bool:
        """True if an operation of this call is in the window."""
        return entry.op is not None and entry.op.n > self.n - self.window

    def since(self, floor: int) -> list[Operation]:
        """The operations after ``floor`` that count, oldest first. O(window)."""
        return [op for op in self.history if op.n > floor and not op.free]

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def row_of(self, tool: Tool) -> Row:
        """The row of this tool; tools beyond the bound share one."""
        row = self.rows.get(tool.name)
        if row is None:
            name = tool.name if len(self.rows) < MAX_TOOLS else OTHER_TOOLS
            row = self.rows.get(name)
            if row is None:
                row = self.rows[name] = Row(tool, name)
        return row

    def sweep(self) -> None:
        """Forget calls that slid out of the window. Costs O(1) per call, since it waits for a quarter of a window."""
        last = self.n - self.window
        # A new dict: deleting from the old one would leave its gaps in memory.
        self.keys = keys = {
            key: entry
            for key, entry in self.keys.items()
            if entry.flight or (entry.op is not None and entry.op.n > last)
        }
        if self.seen:
            for key, ops in list(self.seen.items()):
                trim(ops, last)
                if not ops:
                    del self.seen[key]
        if self.cleared:
            self.cleared = {target: at for target, at in self.cleared.items() if at > last}
        # Calls in flight cannot be swept: look again only after as many new ones.
        self.sweep_at = max(self.window, len(keys)) + max(16, self.window // 4)

    def count(self, op: Operation) -> None:
        """Take the operation into the counts, and what slid out of their window out."""
        counted = self.counted
        if len(counted) >= self.window:
            old = counted.popleft()
            pair = (old.key, old.outcome)
            left = self.counts.get(pair)
            if left and left[0] is old:
                del left[0]
                self._recounted(pair, left)
        counted.append(op)
        if op.outcome and not op.free:
            pair = (op.key, op.outcome)
            count = self.counts.setdefault(pair, [])
            count.append(op)
            if len(count) == 2:
                self.repeated.add(pair)

    def _recounted(self, pair: tuple[int, int], left: list[Operation]) -> None:
        if len(left) < 2:
            self.repeated.discard(pair)
        if not left:
            self.counts.pop(pair, None)

    # -- forgetting -------------------------------------------------------------------------------------------------

    def release(self, entry: Entry) -> None:
        """An attempt of this call ended without an operation; a call that never was one is forgotten."""
        entry.flight -= 1
        if not entry.flight and entry.op is None:
            self.keys.pop(entry.key, None)

    def restart(self, at: int) -> None:
        """Forget the operations up to ``at``."""
        if at > self.restart_at:
            self.restart_at = at

    def reset(self) -> None:
        """Forget all operations so far, also for rules that do not restart."""
        self.restart_at = self.reset_at = self.n
        self.counts.clear()
        self.counted.clear()
        self.repeated.clear()

    def clear_edits(self, target: int, uncount: bool) -> None:
        """Forget the successful edits of this target so far; in the counts, with ``uncount``, the failed ones too."""
        self.cleared[target] = self.n
        if len(self.cleared) > self.window:
            self.cleared = {target: at for target, at in self.cleared.items() if at > self.n - self.window}
        if uncount and self.keep_counts:
            edits = {key for key, entry in self.keys.items() if entry.target == target and entry.row.tool.edits}
            self._uncount({op.n for op in self.counted if op.key in edits})

    def drop_other_outcomes(self, key: int, outcome: int) -> None:
        """Take the operations of this call that had another outcome out of the counts (loopctl's forgetting)."""
        self._uncount({op.n for op in self.counted if op.key == key and op.outcome != outcome})

    def _uncount(self, gone: set[int]) -> None:
        for op in [op for op in self.counted if op.n in gone]:
            pair = (op.key, op.outcome)
            left = self.counts.get(pair, [])
            left[:] = [kept for kept in left if kept.n not in gone]
            self._recounted(pair, left)
        if gone:
            self.counted = deque(op for op in self.counted if op.n not in gone)


def trim(ops: list[Operation], floor: int) -> None:
    """Take the operations up to ``floor`` off the front."""
    cut = 0
    for op in ops:
        if op.n > floor:
            break
        cut += 1
    del ops[:cut]
