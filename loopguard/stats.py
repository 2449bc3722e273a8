"""What people are told about a run: its counts, and how much of a limit is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loopguard.rules import Limits


@dataclass(frozen=True, slots=True)
class RunStats:
    """Counts of a run.

    ``calls`` were executed, ``refused`` not; ``warned`` counts warnings, ``heeded`` / ``ignored`` what came of
    delivered warnings and refusals within five executed calls; ``wasted_calls`` / ``wasted_seconds`` went into repeats
    after the first of what was warned about; ``abandoned`` calls never came to an outcome.
    ``input_tokens``, ``output_tokens`` and ``cost`` (US dollars) are what ``note_usage`` was told, here and in the runs
    below; ``unpriced_calls`` notes of it, with ``unpriced_tokens``, had no price and are not in ``cost``.
    ``turns_analyzed``, ``loops_detected``, ``convergences_detected`` and ``current_streak`` are loopctl's readings:
    executed operations, of those the ones that looped, 0 until replies are compared, and the largest live count.
    """

    calls: int = 0
    refused: int = 0
    failed: int = 0
    abandoned: int = 0
    warned: int = 0
    heeded: int = 0
    ignored: int = 0
    nudges_undelivered: int = 0
    wasted_calls: int = 0
    wasted_seconds: float = 0.0
    false_refusals: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced_calls: int = 0
    unpriced_tokens: int = 0
    turns_analyzed: int = 0
    loops_detected: int = 0
    convergences_detected: int = 0
    current_streak: int = 0
    by_rule: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def unpriced(self) -> bool:
        """True where some usage has no price: ``cost`` is less than what was spent."""
        return self.unpriced_calls > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """What ``Limits(on_handoff=...)`` is told: ``used`` of ``allowed`` of this ``limit``, in its unit.

    ``limit`` is the name of the field (``"calls_per_tool[search]"`` for one tool), ``message`` says it in a sentence,
    ``limits`` are those that hold, ``stats`` the counts of the run.
    """

    limit: str
    used: float
    allowed: float
    message: str
    run_name: str
    run_id: str
    limits: Limits
    stats: RunStats

    def __str__(self) -> str:
        return self.message
