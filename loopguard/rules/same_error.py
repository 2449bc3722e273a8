"""``SameError``: one error under different arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.records import ErrorClass, Evidence, Kind, Operation, Status
from loopguard.rules.base import Attempt, Rule, Words, check_rungs, lowest

if TYPE_CHECKING:
    from loopguard.index import Entry, Index

#: Failures that the row holds.
HELD: Final = 12
#: Classes that count across tools: where access or the network is missing, another tool does not help.
ACROSS: Final = (ErrorClass.FINAL_ACCESS, ErrorClass.FINAL_NETWORK)

_LADDERS: Final = ("", "tool_", "class_")

Pattern = tuple[Any, ...]


class Failure(NamedTuple):
    """A failure in the row; siblings of one round that failed alike are one, the last of them."""

    n: int
    seq: int
    round: int
    key: int
    error_class: int
    shape: int
    tool: str
    took: float
    at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SameError(Rule):
    """One error under different arguments, without a success of the tool that failed.

    Three ladders, for three ways of being the same:

    - ``tool_``: final errors of one tool that are bound to it (unknown tool or parameter, missing field, validation,
      401, 403); refuses any call of that tool;
    - ``class_``: missing access, or a missing network, whichever tools it stopped; refuses a call that failed so;
    - no prefix: the same first line, apart from what depends on the arguments.

    The row outlives changes and user messages, and ends when the tool succeeds.
    Transient failures, failing polls and a person's denial do not count.

    Source: measured on real traces, where a detector without such rows found 66 instead of 78 of 88 loops.
    """

    warn_after: int | None = 6
    refuse_after: int | None = 0
    stop_after: int | None = 0
    tool_warn_after: int | None = 3
    tool_refuse_after: int | None = 10
    tool_stop_after: int | None = 20
    class_warn_after: int | None = 5
    class_refuse_after: int | None = 10
    class_stop_after: int | None = 20

    name: ClassVar[str] = "same_error"
    words: ClassVar[Words] = Words(
        "is one of {n} calls that failed with the same error",
        "have failed {n} times with the same error",
        "{n} calls with the same error",
        "calls like it",
        may_be_a_row=False,
        nudge="{call} has failed{excerpt}. It is one of {n} calls that failed with the same error {calls}. "
        "The error has stayed the same under different arguments.",
        refused="would be the next of {n} calls that failed with the same error{excerpt}.",
        since="It has stayed the same under different arguments.",
    )
    ways: ClassVar[tuple[str, ...]] = (
        "it is no failure: @guarded_tool(failed=False), or an agent gets past it: recoverable=(TheError,)",
        "never refuse or stop this tool for it: @guarded_tool(rules=(SameError.off(),))",
    )
    trigger: ClassVar[Trigger] = Trigger.FAILED | Trigger.RECOVERED
    rank: ClassVar[int] = 55
    restarts: ClassVar[bool] = False
    forgets_on_change: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    # -- the memory: the row of failures ----------------------------------------------------------------------------

    def memory(self) -> list[list[Any]]:
        """The failures, oldest first."""
        return []

    def remembered(self, plain: Any) -> list[list[Any]]:
        """The memory from a snapshot."""
        failures = [Failure(*one) for one in (plain if isinstance(plain, list) else [plain])]
        for one in failures:
            if not all(type(number) is int for number in one[:6]) or type(one.tool) is not str:
                raise TypeError("the memory of SameError holds something that is no failure")
            if type(one.took) not in (int, float) or type(one.at) not in (int, float, type(None)):
                raise TypeError("the memory of SameError holds something that is no time")
        return [list(one) for one in failures]

    def take(self, memory: Any, index: Index, entry: Entry, operation: Operation) -> Iterable[Pattern]:
        """A failure joins the row; a success takes the failures of its tool out."""
        if operation.free:
            return ()
        row = [Failure(*one) for one in memory]
        left = _after(row, operation)
        memory[:] = [list(one) for one in left]
        if operation.status != Status.OK:
            return ()
        ended = {pattern for one in row for pattern in self._patterns(one)}
        return sorted(ended.difference(pattern for one in left for pattern in self._patterns(one)), key=repr)

    # -- evidence ---------------------------------------------------------------------------------------------------

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """From the row of failures."""
        memory = index.memories.get(self.name)
        if not memory:
            return None
        floor = index.floor(self.restarts)
        row = [Failure(*one) for one in memory if one[0] > floor]
        return self._of_row(row, Attempt(entry.row.name, entry.key, entry.kind, at, operation))

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        row: list[Failure] = []
        for op in window:
            row = _after(row, op)
        return self._of_row(row, call)

    def _of_row(self, row: Sequence[Failure], call: Attempt) -> Evidence | None:
        """The hardest evidence that concerns this call."""
        if call.operation is not None:
            concerned = [one for one in row if one.n == call.operation.n]
        else:
            bound = [one for one in row if one.tool == call.tool and one.error_class == ErrorClass.FINAL_TOOL]
            concerned = [*bound[-1:], *[one for one in row if one.key == call.key][-1:]]
        best: tuple[tuple[bool, bool, bool, int], Evidence] | None = None
        for one in concerned:
            for pattern, ladder in self._patterns(one).items():
                alike = [other for other in row if pattern in self._patterns(other)]
                if len({other.key for other in alike}) < 2:
                    continue  # the same call again: Failing counts those
                found = self._found(pattern, ladder, call.key, alike)
                rungs = (found.stop, found.refuse, found.warn)
                reached = [bool(rung) and found.done >= rung for rung in rungs]
                order = (reached[0], reached[1], reached[2], found.done)
                if best is None or order > best[0]:
                    best = order, found
        return best[1] if best else None

    def _patterns(self, one: Failure) -> dict[Pattern, str]:
        """In which ways a failure may be the same as others, each with its ladder."""
        patterns: dict[Pattern, str] = {}
        if one.error_class == ErrorClass.FINAL_TOOL:
            patterns[self.name, "tool", one.error_class, one.tool] = "tool_"
        elif one.error_class in ACROSS:
            patterns[self.name, "class", one.error_class, ""] = "class_"
        if one.shape:
            patterns[self.name, "shape", one.shape, ""] = ""
        return patterns

    def _found(self, pattern: Pattern, ladder: str, key: int, alike: Sequence[Failure]) -> Evidence:
        return Evidence(
            pattern,
            key,
            0,
            len({one.round for one in alike}),
            tuple(one.seq for one in alike),
            *self.rungs(ladder),
            False,
            alike[0].at,
            alike[-1].at,
            float(sum(one.took for one in alike[1:])),
        )

    # -- thresholds -------------------------------------------------------------------------------------------------

    def lowest_rung(self) -> int:
        """The smallest count at which this rule can refuse or stop."""
        return lowest(*(rung for ladder in _LADDERS for rung in self.rungs(ladder)[1:]))

    def check(self, window: int, endless: bool) -> None:
        """All ladders must be in order, within the window, and within what the row holds."""
        for ladder in _LADDERS:
            names = (f"{ladder}warn_after", f"{ladder}refuse_after", f"{ladder}stop_after")
            rungs = (getattr(self, names[0]), getattr(self, names[1]), getattr(self, names[2]))
            check_rungs(self, ladder, rungs, window, endless)
            # Refused attempts count towards a stop: with a refusal below it, any stop can be reached.
            for name, rung in zip(names[: 2 if rungs[1] else 3], rungs, strict=False):
                if rung and rung > HELD:
                    raise PolicyError(
                        f"SameError({name}={rung}) can never fire: the row holds {HELD} failures. "
                        f"Lower {name} to {HELD}."
                    )


def _after(row: Sequence[Failure], op: Operation) -> list[Failure]:
    """The row after one more operation."""
    if op.status == Status.OK:
        return [one for one in row if one.tool != op.tool]
    if (
        op.status != Status.FAILED
        or op.error_class in (ErrorClass.TRANSIENT, ErrorClass.DENIED)
        or op.kind == Kind.POLL
    ):
        return list(row)
    new = Failure(op.n, op.seq, op.round, op.key, op.error_class, op.shape, op.tool, op.took, op.at)
    alike = (new.round, new.tool, new.error_class, new.shape)
    kept = [one for one in row if (one.round, one.tool, one.error_class, one.shape) != alike]
    return [*kept, new][-HELD:]
