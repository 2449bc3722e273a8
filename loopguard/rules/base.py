"""What a rule is: thresholds, what arms it, and a function from the index to evidence.

A rule never acts and never remembers that it warned: the ladder (``loopguard.engine``) does that once for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.records import Evidence, Kind, Operation

if TYPE_CHECKING:
    from loopguard.index import Entry, Index


#: Said of a rule that restarts: what could have explained the repetition did not come.
NO_CHANGE: Final = "No new change has been seen since."


class Words(NamedTuple):
    """How a count of this rule is put; ``{n}`` is the number of matching calls.

    ``past`` goes on "search ...", ``perfect`` on ``subject``, ``noun`` on "refused in run 'x': ...".
    ``may_be_a_row`` says that "in a row" may follow ``past``.
    ``nudge`` is what a model is told beside a result (left out: the call and ``perfect``), ``refused`` what follows
    "Not executed: `search` with ...", and ``since`` what has not happened since. In these two and in ``nudge`` also
    stand ``{times}`` ("3 times"), ``{excerpt}`` (what came back, in quotes), and in ``nudge`` ``{call}`` and ``{calls}``.
    """

    past: str = "matched {n} times"
    perfect: str = "has matched {n} times"
    noun: str = "{n} matching calls"
    subject: str = "the same call"
    may_be_a_row: bool = True
    nudge: str = ""
    refused: str = "has been run {times} and the result was the same each time{excerpt}."
    since: str = NO_CHANGE


@dataclass(frozen=True, slots=True)
class Off:
    """Stands for "without this rule" in a policy or on a tool: ``Repeat.off()``."""

    rule: type[Rule]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call as ``judge`` sees it: about to be made (``operation`` is None) or just executed.

    ``in_flight`` is the number of admitted calls of the same key without an outcome yet, ``refused_at`` when an attempt
    of it was refused last.
    """

    tool: str
    key: int
    kind: int
    at: float | None = None
    operation: Operation | None = None
    in_flight: int = 0
    refused_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Base of all rules: a frozen dataclass of thresholds.

    ``warn_after`` / ``refuse_after`` / ``stop_after`` are counts of matching operations; 0 or None is off.
    A rule of your own defines ``judge`` and is right by construction; the built-in ones answer the same question
    from the shared index in ``evidence``, and the contract suite holds both equal.
    """

    warn_after: int | None = 3
    refuse_after: int | None = 5
    stop_after: int | None = 10

    #: What findings and telemetry call it.
    name: ClassVar[str] = ""
    #: What arms it after an operation.
    trigger: ClassVar[Trigger] = Trigger.ANY
    #: How a finding is worded: "search ... 5 times".
    words: ClassVar[Words] = Words()
    #: How a tool can be allowed what this rule objects to, a line each.
    ways: ClassVar[tuple[str, ...]] = ()
    #: Among findings of one record with the same action the lower rank is reported.
    rank: ClassVar[int] = 50
    #: Novel writes and user messages restart its evidence.
    restarts: ClassVar[bool] = True
    #: A different outcome of the call forgets what was said about it.
    forgets_on_change: ClassVar[bool] = True
    #: Parts of the index that it reads beside the rows: "counts", "seen".
    reads: ClassVar[frozenset[str]] = frozenset()
    #: A recoverable error of an edit clears what it counted of edits of the same target.
    clears_edits: ClassVar[bool] = False
    #: Before a call it counts nothing but the row of equal outcomes of that call, and calls of it in flight.
    own_row: ClassVar[bool] = False
    #: The smallest rung at which it can see anything.
    least: ClassVar[int] = 1
    #: It has a memory of its own, which :meth:`take` fills.
    remembers: ClassVar[bool] = False
    #: Before a call, attempts that were refused count towards a refusal as they do towards a stop.
    presses: ClassVar[bool] = False
    #: Kinds that it never judges.
    skips: ClassVar[frozenset[int]] = frozenset({Kind.THINK})

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """Evidence from the operations that count (oldest first), or None.

        Called before a call (``call.operation`` is None) and after it (then it is the last of the window).
        """
        raise NotImplementedError

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """The same from the shared index; ``operation`` is None before the call.

        The default shows ``judge`` the window: right, and O(window).
        """
        call = Attempt(entry.row.name, entry.key, entry.kind, at, operation, entry.flight, entry.refused_at)
        return self.judge(self.window(index, entry), call)

    def memory(self) -> Any:
        """An empty memory: lists and dicts with ``str`` keys, of numbers, texts and None. It is in the snapshot.

        A rule that keeps one (``remembers``) reads it in ``index.memories[self.name]``, where it is from the first
        :meth:`take` on.
        """
        return []

    def remembered(self, plain: Any) -> Any:
        """The memory from a snapshot; an error for what cannot be one."""
        if type(plain) is not type(self.memory()):
            raise TypeError(f"{type(self).__name__} cannot have remembered a {type(plain).__name__}")
        return plain

    def take(self, memory: Any, index: Index, entry: Entry, operation: Operation) -> Iterable[tuple[Any, ...]]:
        """Take an operation that armed this rule into its memory, before it is asked for evidence.

        The memory has to stay bounded. Returns the patterns that this operation refutes: what was said about them is
        forgotten.
        """
        return ()

    def window(self, index: Index, entry: Entry) -> list[Operation]:
        """The operations that ``judge`` is shown for this call, oldest first. O(window)."""
        ops = index.since(index.floor(self.restarts))
        cleared = index.edits_floor(entry) if self.clears_edits else 0
        return [op for op in ops if op.key != entry.key or op.status or op.n > cleared] if cleared else ops

    def still(self, index: Index, found: Evidence, at: float | None) -> int:
        """How many operations match this evidence by now; 0 if it was forgotten."""
        entry = index.keys.get(found.key)
        now = self.evidence(index, entry, at) if entry is not None else None
        return now.done if now is not None and (now.pattern, now.outcome) == (found.pattern, found.outcome) else 0

    def rungs(self, ladder: str = "") -> tuple[int, int, int]:
        """Warn, refuse and stop of this ladder, 0 where off; further ladders are fields with a prefix (``final_``)."""
        return (
            getattr(self, f"{ladder}warn_after") or 0,
            getattr(self, f"{ladder}refuse_after") or 0,
            getattr(self, f"{ladder}stop_after") or 0,
        )

    def lowest_rung(self) -> int:
        """The smallest count at which this rule can refuse or stop; 0 if it never does."""
        return lowest(self.refuse_after, self.stop_after)

    def scan(self, index: Index, at: float | None) -> list[Evidence]:
        """All live patterns of this rule, for readings such as ``check_loop``. O(window); never on the call path."""
        entries = [entry for entry in index.keys.values() if entry.kind not in self.skips]
        found = (self.evidence(index, entry, at) for entry in entries)
        return [evidence for evidence in found if evidence is not None and evidence.done]

    def check(self, window: int, endless: bool) -> None:
        """Raise ``PolicyError`` for thresholds that cannot be meant."""
        check_rungs(self, "", (self.warn_after, self.refuse_after, self.stop_after), window, endless)

    def replace(self, **changes: Any) -> Self:
        """A copy with other thresholds."""
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise PolicyError(
                    f"{type(self).__name__} has no threshold {name!r}. It has {', '.join(sorted(known))}."
                )
        return replace(self, **changes)

    @classmethod
    def off(cls) -> Off:
        """Marks this rule as removed."""
        return Off(cls)


def lowest(*rungs: int | None) -> int:
    """The smallest rung that is on; 0 if none is."""
    return min((rung for rung in rungs if rung), default=0)


def check_rungs(
    rule: Rule, which: str, rungs: tuple[int | None, int | None, int | None], window: int, endless: bool
) -> None:
    """Raise ``PolicyError`` unless warn <= refuse <= stop, all reachable, and a refusal comes to an end."""
    title = type(rule).__name__
    names = tuple(f"{which}{name}" for name in ("warn_after", "refuse_after", "stop_after"))
    for name, rung in zip(names, rungs, strict=True):
        if rung is None:
            continue
        if isinstance(rung, bool) or not isinstance(rung, int):
            raise PolicyError(f"{title}({name}={rung!r}) is not a whole number. 0 or None switches the rung off.")
        if rung < 0:
            raise PolicyError(f"{title}({name}={rung}) is negative. 0 or None switches the rung off.")
        if rung > window:
            raise PolicyError(
                f"{title}({name}={rung}) can never fire: window={window} keeps {window} operations. "
                f"Raise window to {rung} or lower {name}."
            )
    on = [(name, rung) for name, rung in zip(names, rungs, strict=True) if rung]
    for (name, rung), (higher, next_rung) in pairwise(on):
        if rung > next_rung:
            raise PolicyError(
                f"{title}({name}={rung}, {higher}={next_rung}) is out of order: "
                f"warn_after <= refuse_after <= stop_after. Lower {name} or raise {higher}."
            )
    if rungs[1] and not rungs[2] and not endless:
        raise PolicyError(
            f"{title}({names[1]}={rungs[1]}) refuses without an end. "
            f"Give it a {names[2]}, set Limits(refusals=...), or say Policy(..., endless_refusals=True)."
        )


#: Operations of a pattern that a finding looks at; more would make a long loop cost more with every call.
SHOWN = 20


def shown(operations: Sequence[Operation]) -> tuple[int, ...]:
    """The call numbers of the first operation and of the last nineteen."""
    if len(operations) <= SHOWN:
        return tuple(op.seq for op in operations)
    return (operations[0].seq, *(op.seq for op in operations[1 - SHOWN :]))


def took(operations: Sequence[Operation]) -> float:
    """Seconds spent in the operations after the first; of many, in the last nineteen."""
    return float(sum(op.took for op in operations[max(1, len(operations) - SHOWN + 1) :]))
