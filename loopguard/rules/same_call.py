"""``SameCall``: the same arguments, whatever came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from loopguard.index import Trigger
from loopguard.records import Evidence, Operation
from loopguard.rules.base import Attempt, Rule, Words, shown, took

if TYPE_CHECKING:
    from loopguard.index import Entry, Index


@dataclass(frozen=True, slots=True, kw_only=True)
class SameCall(Rule):
    """The same arguments in the window, the outcome ignored.

    Never in the default policy, where a new outcome is progress.
    Source: Rysh's breaker, which does not execute the third identical call in twenty.
    """

    warn_after: int | None = 0
    refuse_after: int | None = 2
    stop_after: int | None = 0

    name: ClassVar[str] = "same_call"
    words: ClassVar[Words] = Words(
        "was called {n} times with the same arguments",
        "has been made {n} times",
        "{n} times the same arguments",
        refused="has been run {times} with the same arguments.",
        since="Repeating it has not been useful so far.",
    )
    ways: ClassVar[tuple[str, ...]] = ("never refuse this tool for it: @guarded_tool(rules=(SameCall.off(),))",)
    trigger: ClassVar[Trigger] = Trigger.SAME_CALL
    rank: ClassVar[int] = 60
    forgets_on_change: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset({"seen"})

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """From the operations of this key in the window."""
        floor = index.floor()
        # Given to a single tool, the policy did not ask the index for it: look at the window instead.
        ops = index.seen.get(entry.key, ()) if index.keep_seen else index.history
        return self._found(entry.key, [op for op in ops if op.key == entry.key and op.n > floor and not op.free])

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        return self._found(call.key, [op for op in window if op.key == call.key])

    def _found(self, key: int, ops: Sequence[Operation]) -> Evidence:
        return Evidence(
            (self.name, key),
            key,
            0,
            len(ops),
            shown(ops),
            self.warn_after or 0,
            self.refuse_after or 0,
            self.stop_after or 0,
            True,
            ops[0].at if ops else None,
            ops[-1].at if ops else None,
            took(ops),
        )
