"""Counting as other products do it: equal operations anywhere in the window, whatever lies between.

The default policy does not use these; they carry the presets ``Policy.loopctl()`` and ``Policy.opendev()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.records import Evidence, Operation, Status
from loopguard.rules.base import Attempt, Rule, Words, shown, took
from loopguard.rules.failing import Failing
from loopguard.rules.repeat import Repeat

if TYPE_CHECKING:
    from loopguard.index import Entry, Index


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatTally(Rule):
    """loopctl's count: the same tool, parameter and output anywhere in the window, errors included.

    Only the pattern with the highest count at or above its own threshold is reported; of a tie, the first by tool and
    by first appearance. A pattern is forgotten on a different output only after it was warned about.

    Args:
        thresholds: ``(tool, warn_after)`` pairs that replace ``warn_after`` for a tool; they may delay a stop, never
            bring it forward.

    Source: the loop detector of the Rust crate loopctl.
    """

    refuse_after: int | None = 0
    thresholds: tuple[tuple[str, int], ...] = ()

    name: ClassVar[str] = "repeat"
    words: ClassVar[Words] = Repeat.words
    trigger: ClassVar[Trigger] = Trigger.ANY
    rank: ClassVar[int] = 40
    restarts: ClassVar[bool] = False
    clears_edits: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"counts"})
    #: Forget the other outcomes of a call only once one of them was warned about.
    forgets_warned: ClassVar[bool] = True

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """The pattern that loopctl would report now, whichever call it belongs to."""
        if not index.keep_counts:
            return Rule.evidence(self, index, entry, at, operation)
        best: tuple[tuple[int, str, int], tuple[int, int]] | None = None
        for pair in index.counts if self._counts_single() else index.repeated:
            ops = index.counts[pair]
            least = self._least(ops[0].tool)
            if least and len(ops) >= least:
                order = (-len(ops), ops[0].tool, ops[0].n)
                if best is None or order < best[0]:
                    best = order, pair
        return self._found(best[1], index.counts[best[1]]) if best else None

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        counts: dict[tuple[int, int], list[Operation]] = {}
        for op in window:
            if op.outcome:
                counts.setdefault((op.key, op.outcome), []).append(op)
        flagged = [
            ((-len(ops), ops[0].tool, ops[0].n), pair)
            for pair, ops in counts.items()
            if self._least(ops[0].tool) and len(ops) >= self._least(ops[0].tool)
        ]
        if not flagged:
            return None
        pair = min(flagged)[1]
        return self._found(pair, counts[pair])

    def window(self, index: Index, entry: Entry) -> list[Operation]:
        """The operations that are counted: the last ones, without those that were forgotten."""
        return [op for op in index.counted if not op.free] if index.keep_counts else Rule.window(self, index, entry)

    def still(self, index: Index, found: Evidence, at: float | None) -> int:
        """How many operations of this pattern are in the window."""
        return len(index.counts.get((found.key, found.outcome), ()))

    def scan(self, index: Index, at: float | None) -> list[Evidence]:
        """All patterns in the window."""
        return [self._found(pair, ops) for pair, ops in index.counts.items()]

    def check(self, window: int, endless: bool) -> None:
        """loopctl takes any order of thresholds, and a stop beyond the window, without complaint; so does this."""
        pairs = (("warn_after", self.warn_after), ("stop_after", self.stop_after), *self.thresholds)
        check_not_negative(self, pairs)

    def _warn(self, tool: str) -> int:
        for name, warn_after in self.thresholds:
            if name == tool:
                return warn_after
        return self.warn_after or 0

    def _least(self, tool: str) -> int:
        """From how many on a pattern is reported; without a warning that is the stop."""
        return self._warn(tool) or self.stop_after or 0

    def _counts_single(self) -> bool:
        return 1 in (self._least(""), *(self._least(tool) for tool, _ in self.thresholds))

    def _found(self, pair: tuple[int, int], ops: Sequence[Operation]) -> Evidence:
        warn = self._warn(ops[0].tool)
        stop = max(warn, self.stop_after) if self.stop_after else 0
        return tally_evidence(self.name, pair, ops, warn, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTally(Rule):
    """OPENDEV's doom loop: the same call failed with the same error, anywhere in the window.

    Source: OPENDEV's doom-loop detection as described (call and error); three within twenty end the run.
    """

    warn_after: int | None = 0
    refuse_after: int | None = 0
    stop_after: int | None = 3

    name: ClassVar[str] = "failing"
    words: ClassVar[Words] = Failing.words
    trigger: ClassVar[Trigger] = Trigger.FAILED
    rank: ClassVar[int] = 20
    restarts: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset({"counts"})

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """From the operations in the window that equal the last one of this call."""
        if not index.keep_counts:
            return Rule.evidence(self, index, entry, at, operation)
        if entry.op is None:
            return None
        pair = (entry.key, entry.op.outcome)
        return self._found(pair, index.counts.get(pair, ()))

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        mine = [op for op in window if op.key == call.key]
        if not mine or not mine[-1].outcome:
            return None
        return self._found((call.key, mine[-1].outcome), [op for op in mine if op.outcome == mine[-1].outcome])

    def window(self, index: Index, entry: Entry) -> list[Operation]:
        """The operations that are counted: the last ones, without those that were forgotten."""
        return [op for op in index.counted if not op.free] if index.keep_counts else Rule.window(self, index, entry)

    def still(self, index: Index, found: Evidence, at: float | None) -> int:
        """How many operations of this pattern are in the window."""
        return len(index.counts.get((found.key, found.outcome), ()))

    def _found(self, pair: tuple[int, int], ops: Sequence[Operation]) -> Evidence | None:
        failed = [op for op in ops if op.status != Status.OK]
        if not failed:
            return None
        return tally_evidence(self.name, pair, failed, self.warn_after or 0, self.stop_after or 0)


def tally_evidence(name: str, pair: tuple[int, int], ops: Sequence[Operation], warn: int, stop: int) -> Evidence:
    """Evidence for operations counted by (key, outcome)."""
    return Evidence(
        (name, *pair),
        pair[0],
        pair[1],
        len(ops),
        shown(ops),
        warn,
        0,
        stop,
        False,
        ops[0].at,
        ops[-1].at,
        took(ops),
    )


def check_not_negative(rule: Rule, pairs: Sequence[tuple[str, int | None]]) -> None:
    """Raise ``PolicyError`` for a negative threshold."""
    for name, rung in pairs:
        if rung is not None and (isinstance(rung, bool) or not isinstance(rung, int) or rung < 0):
            raise PolicyError(f"{type(rule).__name__}({name}={rung!r}) must be a whole number of at least 0.")
