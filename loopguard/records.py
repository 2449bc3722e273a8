"""The words of the model as data: actions, statuses, kinds, operations, findings.

Nothing here knows a clock, a run or a framework.
What travels between a caller and the engine is made of these types only, so that a live run, a worker and a replay
speak of the same things.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import msgspec

#: An outcome that has no canonical form. It equals nothing, not even itself.
UNKNOWN_OUTCOME = 0
#: The outcome of a call that returned nothing. Two empty outcomes are equal.
EMPTY_OUTCOME = 1


class Action(StrEnum):
    """What a rule asks for.

    ``WARN``: the call went through, the model can be told.
    ``REFUSE``: this call is not executed, the run goes on.
    ``STOP``: the run is over.
    """

    WARN = "warn"
    REFUSE = "refuse"
    STOP = "stop"

    @property
    def hardness(self) -> int:
        """1 for warn, 2 for refuse, 3 for stop."""
        return _HARDNESS[self]


_HARDNESS = {Action.WARN: 1, Action.REFUSE: 2, Action.STOP: 3}


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    FAILED = 1
    REFUSED = 2
    DENIED = 3
    ABANDONED = 4


class ErrorClass(IntEnum):
    """What kind of failure it was; decides how patient the rules are with it."""

    NONE = 0
    OTHER = 1
    FINAL_TOOL = 2
    FINAL_ACCESS = 3
    FINAL_NETWORK = 4
    TRANSIENT = 5
    RECOVERABLE = 6
    DENIED = 7

    @property
    def final(self) -> bool:
        """True for errors that the same call cannot get rid of (unknown tool, missing field, no access, a denial)."""
        return self in _FINAL


_FINAL = frozenset({ErrorClass.FINAL_TOOL, ErrorClass.FINAL_ACCESS, ErrorClass.DENIED})


class Kind(IntEnum):
    """What a call does to the world."""

    UNKNOWN = 0
    READ = 1
    WRITE = 2
    POLL = 3
    SAMPLE = 4
    THINK = 5


@dataclass(frozen=True, slots=True)
class Tool:
    """What a record says about a tool, so that a worker that never imported it folds to the same state.

    ``rules`` replace the policy's rules of the same name for this tool.
    ``patience`` is that of the rule named ``poll``, in seconds; None is the policy's.
    ``rungs`` are field overrides for the rule named ``repeat``, such as ``(("refuse_after", 0),)``.
    """

    name: str
    edits: bool = False
    volatile: bool = False
    rungs: tuple[tuple[str, int | None], ...] = ()
    rules: tuple[Any, ...] = ()
    patience: float | None = None


#: Bits of ``Operation.flags``.
SOFT, FREE, ENDED, AGAIN = 1, 2, 4, 8


class Operation(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One executed call, as the window of a rule shows it.

    ``n`` counts executed operations of the run, ``seq`` counts attempts (it is the call number that findings name).
    ``outcome`` is the digest by which outcomes are compared: of the result, or of the error's template.
    ``soft`` marks a match that rests on masking, ``free`` the one repetition that a compaction grants,
    ``took`` is the duration in seconds (0.0 where the records carry no time), ``masked`` the digest of the outcome
    with volatile text taken out (0 = not taken), ``ended`` that a poll said it is over, ``again`` that the call's
    last operation was in the window and equal, ``since`` when its row of equal outcomes began, ``shape`` the digest of
    a failure's first line without what depends on the arguments (0 = not taken).
    """

    n: int
    seq: int
    tool: str
    key: int
    kind: int
    status: int
    outcome: int
    error_class: int
    round: int
    at: float | None
    took: float
    flags: int
    masked: int
    since: float | None = None
    shape: int = 0

    @property
    def soft(self) -> bool:
        """The match rests on masking."""
        return bool(self.flags & SOFT)

    @property
    def free(self) -> bool:
        """It is the one repetition that a compaction grants."""
        return bool(self.flags & FREE)

    @property
    def ended(self) -> bool:
        """A poll said that it is over."""
        return bool(self.flags & ENDED)

    @property
    def again(self) -> bool:
        """The call's last operation was in the window and equal."""
        return bool(self.flags & AGAIN)


class Evidence(NamedTuple):
    """What a rule sees in the records: a pattern and how often it was matched.

    ``pattern`` names what is warned about once, ``key`` the call that a refusal hits (0 = whatever comes next).
    ``done`` counts matching operations, ``seqs`` holds their call numbers: the first and the last nineteen.
    ``warn`` / ``refuse`` / ``stop`` are the rungs that hold for this evidence; 0 is off.
    ``in_flight`` says whether calls without an outcome yet count towards a refusal.
    """

    pattern: tuple[Any, ...]
    key: int
    outcome: int
    done: int
    seqs: tuple[int, ...]
    warn: int
    refuse: int
    stop: int
    in_flight: bool
    first_at: float | None = None
    last_at: float | None = None
    wasted_s: float = 0.0


class Most(NamedTuple):
    """What repeated most, for the message of a limit: ``tool`` had ``calls`` with ``different`` results.

    ``executed`` calls there were in all; ``of`` is how many of the last were looked at, 0 = all of them.
    ``different`` is 0 where only the number of calls is known, ``tool`` is empty where nothing repeated.
    """

    executed: int
    tool: str = ""
    calls: int = 0
    different: int = 0
    of: int = 0


class Hit(NamedTuple):
    """A rung that was reached: what the engine hands to the run, before it is named and published."""

    rule: str
    action: Action
    tool: str
    evidence: Evidence
    threshold: int
    refused: int
    report: bool
    also: tuple[str, ...] = ()
    limit: tuple[str, float, float] | None = None
    most: Most | None = None
    #: The number of the attempt that met it; 0 after an outcome.
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence of a loop, as everybody may see it: no argument and no result is in it.

    ``repetitions`` is how often, ``threshold`` the rung that was reached, ``seqs`` the numbers of the calls (at most
    the last ten), ``first_seq`` where it began, ``first_at`` / ``last_at`` when (seconds since the epoch or None).
    ``fingerprint`` is eight hex digits, keyed, equal for the same pattern wherever ``LOOPGUARD_KEY`` is the same.
    ``enforced`` is False where the guard only watched. ``wasted_s`` is the time spent in the repeats after the first.
    ``also`` names other rules that saw the same record.
    """

    rule: str
    action: Action
    tool: str
    repetitions: int
    threshold: int
    seqs: tuple[int, ...]
    first_seq: int
    message: str
    fingerprint: str = ""
    enforced: bool = True
    run_name: str = ""
    run_id: str = ""
    refused: int = 0
    wasted_s: float = 0.0
    first_at: float | None = None
    last_at: float | None = None
    also: tuple[str, ...] = ()


class LoopStatus(NamedTuple):
    """The reading that loopctl's ``check_loop`` gives.

    ``repeated_operations`` are all operations tied for the highest count at or above their threshold.
    """

    is_looping: bool
    repeated_operations: tuple[Operation, ...]
    repetition_count: int
    warning: str | None
    should_stop: bool
