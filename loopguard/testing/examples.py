"""Rules to try things on: one as a user writes it, and built-in ones with thresholds that short histories reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from loopguard.records import Evidence, Operation
from loopguard.rules import Attempt, Cycle, Failing, Poll, Repeat, Rule, SameError


@dataclass(frozen=True, slots=True, kw_only=True)
class SameTool(Rule):
    """One tool with equal results, whatever the arguments: all that a rule of your own has to define is ``judge``."""

    name: ClassVar[str] = "same_tool"
    restarts: ClassVar[bool] = False
    forgets_on_change: ClassVar[bool] = False

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """The last operations of the run, as long as they are of this tool and gave the same."""
        ops: list[Operation] = []
        for op in reversed(window):
            if op.tool != call.tool or not op.outcome or (ops and op.outcome != ops[-1].outcome):
                break
            ops.append(op)
        seqs = tuple(op.seq for op in reversed(ops))
        rungs = (self.warn_after or 0, self.refuse_after or 0, self.stop_after or 0)
        return Evidence((self.name, call.tool), 0, 0, len(ops), seqs, *rungs, False)


SMALL_REPEAT = Repeat(
    warn_after=2,
    refuse_after=3,
    stop_after=5,
    unknown_warn_after=3,
    unknown_refuse_after=4,
    unknown_stop_after=6,
)
SMALL_FAILING = Failing(
    warn_after=2,
    refuse_after=3,
    stop_after=5,
    recoverable_warn_after=2,
    recoverable_refuse_after=3,
    recoverable_stop_after=4,
    transient_warn_after=2,
    transient_refuse_after=3,
    transient_stop_after=6,
    unknown_warn_after=3,
    unknown_refuse_after=4,
    unknown_stop_after=6,
)
SMALL_CYCLE = Cycle(
    warn_after=3,
    refuse_after=3,
    stop_after=4,
    unknown_warn_after=3,
    unknown_refuse_after=4,
    unknown_stop_after=5,
)
SMALL_SAME_ERROR = SameError(
    warn_after=2,
    refuse_after=3,
    stop_after=4,
    tool_warn_after=2,
    tool_refuse_after=3,
    tool_stop_after=5,
    class_warn_after=2,
    class_refuse_after=2,
    class_stop_after=4,
)
SMALL_POLL = Poll(warn_after=2, refuse_after=3, stop_after=5, patience=20)
