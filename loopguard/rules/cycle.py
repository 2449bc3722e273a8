"""``Cycle``: a few calls that take turns and give the same each time, such as A-B-A-B."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from loopguard.errors import PolicyError
from loopguard.index import Trigger
from loopguard.records import ErrorClass, Evidence, Kind, Operation, Status
from loopguard.rules.base import Attempt, Rule, Words, check_rungs, lowest

if TYPE_CHECKING:
    from loopguard.index import Entry, Index

#: Lengths of a lap, in rounds.
PERIODS: Final = (2, 3, 4, 5, 6)
#: The first lap holds nothing that came before, and one lap is no cycle.
FIRST_LAP: Final = 3
#: Rounds of a cycle that a finding lists.
SHOWN: Final = 60

_MASK: Final = (1 << 64) - 1

# Of a round in the memory: its number, the sum of its different operations, the first one, all, and the different ...
_ROUND, _SUM, _FIRST, _OPS, _DIFFERENT = range(5)
# ... of which each is: what the operation says, and how many masked ones there were before.
_N, _SEQ, _KEY, _SOFT, _AT, _TOOK, _OUTCOME = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle(Rule):
    """Laps of two to six steps over operations that occurred before, whichever of them came first.

    A step is a round: a reply with three calls is one step, in whatever order its calls end.
    What comes for the first time drops out, and so do polls, samples, transient failures and a person's denial.
    At ``refuse_after`` laps the call that the next lap begins with is refused; once the agent was told so, the others
    of the lap are too.
    Where calls of unknown kind came for the first time between the laps, they may have changed something:
    ``unknown_warn_after`` and its relatives hold.

    Source: Rysh names such cycles as what its breaker does not see.
    """

    warn_after: int | None = 3
    refuse_after: int | None = 4
    stop_after: int | None = 6
    unknown_warn_after: int | None = 5
    unknown_refuse_after: int | None = 10
    unknown_stop_after: int | None = 20

    name: ClassVar[str] = "cycle"
    words: ClassVar[Words] = Words(
        "was part of the same cycle {n} times",
        "has been part of the same cycle {n} times",
        "{n} laps of the same cycle",
        may_be_a_row=False,
        nudge="{call} is part of a cycle of calls that has now run {times} with the same results {calls}.",
        refused="is the next step of a cycle that has run {times}, with the same results each time{excerpt}.",
    )
    ways: ClassVar[tuple[str, ...]] = (
        'it waits for something: @guarded_tool(kind="poll")',
        "never refuse or stop this tool for it: @guarded_tool(rules=(Cycle.off(),))",
    )
    trigger: ClassVar[Trigger] = Trigger.SAME_OPERATION
    rank: ClassVar[int] = 30
    # A pattern holds its outcomes: with another outcome it is another pattern.
    forgets_on_change: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    presses: ClassVar[bool] = True
    least: ClassVar[int] = FIRST_LAP
    skips: ClassVar[frozenset[int]] = frozenset({Kind.THINK, Kind.SAMPLE, Kind.POLL})

    # -- the memory: the rounds of recurring operations, and for each period how long they repeat already ------------

    def memory(self) -> dict[str, Any]:
        """Rounds, oldest first; the streaks of all but the last one; and sums that tell what lay between."""
        return {"rounds": [], "streaks": [0] * len(PERIODS), "ops": 0, "soft": 0}

    def remembered(self, plain: Any) -> dict[str, Any]:
        """The memory from a snapshot."""
        memory = {name: plain[name] for name in self.memory()}
        rounds = [(*lap[:_OPS], *(number for op in lap[_OPS] for number in op[:_AT])) for lap in memory["rounds"]]
        times = [time for lap in memory["rounds"] for op in lap[_OPS] for time in op[_AT:_OUTCOME] if time is not None]
        outcomes = [op[_OUTCOME] for lap in memory["rounds"] for op in lap[_OPS]]
        streaks = memory["streaks"][: len(PERIODS)]
        names = [name for lap in memory["rounds"] for name in lap[_DIFFERENT].items()]
        numbers = [
            memory["ops"],
            memory["soft"],
            *streaks,
            *outcomes,
            *(n for lap in rounds for n in lap),
        ]
        if any(type(number) is not int for number in numbers) or len(streaks) < len(PERIODS):
            raise TypeError("the memory of Cycle holds something that is no number")
        if any(type(name) is not str or n != 1 for name, n in names):
            raise TypeError("the memory of Cycle holds something that is no operation")
        if any(type(time) not in (int, float) for time in times) or not all(lap[_OPS] for lap in memory["rounds"]):
            raise TypeError("the memory of Cycle holds something that is no time")
        return memory

    def take(self, memory: Any, index: Index, entry: Entry, operation: Operation) -> Iterable[tuple[Any, ...]]:
        """A recurring operation joins its round, or begins the next one."""
        op = operation
        if not _recurs(op):
            return ()
        rounds = memory["rounds"]
        if not rounds or rounds[-1][_ROUND] != op.round:
            if rounds:
                memory["streaks"] = _streaks(rounds, memory["streaks"])
            rounds.append([op.round, 0, op.n, [], {}])
        lap = rounds[-1]
        name = f"{op.key} {op.outcome}"
        if name not in lap[_DIFFERENT]:
            lap[_DIFFERENT][name] = 1
            lap[_SUM] = (lap[_SUM] + _mix(op.key, op.outcome)) & _MASK
        lap[_OPS].append([op.n, op.seq, op.key, memory["soft"], op.at, op.took, op.outcome])
        memory["soft"] += op.soft
        memory["ops"] += 1
        if memory["ops"] > 2 * index.window:
            self._trim(memory, index.n - index.window)
        return ()

    @staticmethod
    def _trim(memory: dict[str, Any], floor: int) -> None:
        """Let go of what slid out of the window, and of the oldest round what slid out of it."""
        rounds = memory["rounds"]
        del rounds[: _slid_out(rounds, floor)]
        for lap in rounds:
            if lap[_FIRST] > floor:
                break
            lap[_OPS] = [op for op in lap[_OPS] if op[_N] > floor]
            # Its sum is not asked for any more; see _pairs.
            lap[_DIFFERENT] = {f"{op[_KEY]} {op[_OUTCOME]}": 1 for op in lap[_OPS]}
        memory["ops"] = sum(len(lap[_OPS]) for lap in rounds)

    # -- evidence ---------------------------------------------------------------------------------------------------

    def evidence(
        self, index: Index, entry: Entry, at: float | None, operation: Operation | None = None
    ) -> Evidence | None:
        """From the streaks of the rounds."""
        memory = index.memories.get(self.name)
        if not memory or not memory["rounds"]:
            return None
        rounds = memory["rounds"]
        if operation is not None and rounds[-1][_OPS][-1][_N] != operation.n:
            return None
        floor = index.floor()
        live = len(rounds) - _slid_out(rounds, floor)
        for period, streak in zip(PERIODS, _streaks(rounds, memory["streaks"]), strict=True):
            pairs = self._pairs(rounds, period, streak, live, floor)
            if pairs < period:
                continue
            lap = rounds[-period:]
            sums = [round_[_SUM] for round_ in lap]
            expected = {op[_KEY] for op in lap[0][_OPS]}
            keys = expected.union(op[_KEY] for round_ in lap[1:] for op in round_[_OPS])
            if len(keys) < 2 or len(set(sums)) < 2:
                continue
            if entry.key not in keys:
                return None
            first = next(op for op in rounds[-pairs - period][_OPS] if op[_N] > floor)
            mixed = index.last_new_unknown > first[_N]
            soft = memory["soft"] > first[_SOFT]
            shown = [op for round_ in rounds[-min(SHOWN, pairs + period) :] for op in round_[_OPS] if op[_N] > floor]
            facts = [(op[_SEQ], op[_AT], op[_TOOK]) for op in shown]
            due = operation is not None or entry.key in expected
            return self._found(entry.key, sums, pairs, facts, mixed, soft, due)
        return None

    @staticmethod
    def _pairs(rounds: list[Any], period: int, streak: int, live: int, floor: int) -> int:
        """How many of the last rounds equal the one a lap before, as far as both are in the window."""
        most = live - period
        if most < 1 or rounds[-live][_FIRST] > floor:
            return min(streak, most)
        # Only a part of the oldest round is left; what it equals has to be seen anew.
        pairs = min(streak, most - 1)
        if pairs == most - 1:
            left = {(op[_KEY], op[_OUTCOME]) for op in rounds[-live][_OPS] if op[_N] > floor}
            pairs += sum(_mix(*one) for one in left) & _MASK == rounds[-live + period][_SUM]
        return pairs

    def judge(self, window: Sequence[Operation], call: Attempt) -> Evidence | None:
        """From the window, by its definition."""
        if call.operation is not None and not _recurs(call.operation):
            return None
        rounds: list[list[Operation]] = []
        for op in window:
            if not _recurs(op) or op.kind in self.skips:
                continue
            if rounds and rounds[-1][-1].round == op.round:
                rounds[-1].append(op)
            else:
                rounds.append([op])
        symbols = [frozenset((op.key, op.outcome) for op in round_) for round_ in rounds]
        for period in PERIODS:
            pairs = _equal_ends(symbols, period)
            lap = symbols[-period:]
            keys = {key for symbol in lap for key, _ in symbol}
            if pairs < period or len(keys) < 2 or len(set(lap)) < 2:
                continue
            if call.key not in keys:
                return None
            ops = [op for round_ in rounds[-pairs - period :] for op in round_]
            between = [op for op in window if op.n > ops[0].n and not op.free]
            mixed = any(op.kind == Kind.UNKNOWN and not _recurs(op) for op in between)
            sums = [sum(_mix(*one) for one in symbol) & _MASK for symbol in lap]
            shown = [op for round_ in rounds[-min(SHOWN, pairs + period) :] for op in round_]
            facts = [(op.seq, op.at, op.took) for op in shown]
            due = call.operation is not None or call.key in {key for key, _ in lap[0]}
            return self._found(call.key, sums, pairs, facts, mixed, any(op.soft for op in ops), due)
        return None

    def _found(
        self,
        key: int,
        lap: Sequence[int],
        pairs: int,
        facts: Sequence[tuple[int, float | None, float]],
        mixed: bool,
        soft: bool,
        due: bool,
    ) -> Evidence:
        """``due`` False: a call of the lap out of turn, which is refused only once one in turn was."""
        period = len(lap)
        laps = (pairs + period) // period + 1
        warn, refuse, stop = self.rungs("unknown_" if mixed else "")
        if soft:
            refuse = stop = 0
        elif not due:
            refuse, stop = (max(rung, laps + 1) if rung else 0 for rung in (refuse, stop))
        # The same wherever the lap begins.
        number = sum(_mix(*step) for step in zip(lap, [*lap[1:], lap[0]], strict=True)) & _MASK
        return Evidence(
            (self.name, number),
            key,
            0,
            laps,
            tuple(seq for seq, _, _ in facts),
            warn,
            refuse,
            stop,
            False,
            facts[0][1],
            facts[-1][1],
            float(sum(took for _, _, took in facts)),
        )

    # -- thresholds -------------------------------------------------------------------------------------------------

    def lowest_rung(self) -> int:
        """The smallest count at which this rule can refuse or stop."""
        return lowest(*self.rungs("")[1:], *self.rungs("unknown_")[1:])

    def check(self, window: int, endless: bool) -> None:
        """Both ladders must be in order and within the window, and begin where a lap can be known."""
        for ladder in ("", "unknown_"):
            names = (f"{ladder}warn_after", f"{ladder}refuse_after", f"{ladder}stop_after")
            rungs = (getattr(self, names[0]), getattr(self, names[1]), getattr(self, names[2]))
            check_rungs(self, ladder, rungs, window, endless)
            for name, rung in zip(names, rungs, strict=True):
                if rung and rung < FIRST_LAP:
                    raise PolicyError(
                        f"Cycle({name}={rung}) cannot be seen: that calls take turns is known from lap {FIRST_LAP} on. "
                        f"Raise {name} to {FIRST_LAP}."
                    )


def _recurs(op: Operation) -> bool:
    """True if the operation occurred before and may be a step of a lap."""
    return op.again and op.status in (Status.OK, Status.FAILED) and op.error_class != ErrorClass.TRANSIENT


def _streaks(rounds: list[Any], before: list[int]) -> list[int]:
    """For each period the number of rounds in a row, the last one included, that equal the one a lap before."""
    last = rounds[-1][_SUM]
    return [
        streak + 1 if len(rounds) > period and rounds[-1 - period][_SUM] == last else 0
        for period, streak in zip(PERIODS, before, strict=True)
    ]


def _equal_ends(symbols: Sequence[frozenset[tuple[int, int]]], period: int) -> int:
    pairs = 0
    while pairs + period < len(symbols) and symbols[-1 - pairs] == symbols[-1 - pairs - period]:
        pairs += 1
    return pairs


def _slid_out(rounds: list[Any], floor: int) -> int:
    """How many rounds lie before the window altogether."""
    return bisect_right(rounds, floor, key=lambda round_: round_[_OPS][-1][_N])


def _mix(one: int, other: int) -> int:
    """A number for two, such that sums of them differ where the pairs do. The same in every process."""
    mixed = (one * 0x9E3779B97F4A7C15 + other * 0xC2B2AE3D27D4EB4F + 0x165667B19E3779F9) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    return mixed ^ (mixed >> 32)
