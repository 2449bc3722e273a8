"""``Limits``: how much a run may use, whatever it does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from loopguard.errors import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run; a number that you set stops, the default only warns.

    Args:
        calls: Executed calls since the last user message; the next one stops the run. None = no limit.
        soft_calls: Executed calls since the last user message after which a warning is given, and nothing more.
            Default 1,000 where ``calls`` is not set. 0 or None is off.
        calls_per_tool: Executed calls allowed per tool name in the run; further calls of that tool are refused.
        refusals: Refused rounds allowed in the run; the next refusal stops it. None = no limit.
        handoff_at: The share of ``calls`` at which a warning is given (default 0.9). 0 is off.

    Source: the iteration caps of agent frameworks; the warning at 90 % is Rysh's.
    """

    calls: int | None = None
    soft_calls: int | None = 1_000
    calls_per_tool: Mapping[str, int] = field(default_factory=dict)
    refusals: int | None = None
    handoff_at: float = 0.9

    name: ClassVar[str] = "limits"
    rank: ClassVar[int] = 10

    def __post_init__(self) -> None:
        for name, value in (("calls", self.calls), ("refusals", self.refusals)):
            if value is not None and (not _whole(value) or value < 1):
                raise PolicyError(f"Limits({name}={value!r}) must be a whole number of at least 1. None = no limit.")
        if self.soft_calls is not None and (not _whole(self.soft_calls) or self.soft_calls < 0):
            raise PolicyError(f"Limits(soft_calls={self.soft_calls!r}) must be a whole number of at least 0.")
        if not isinstance(self.calls_per_tool, Mapping):
            raise PolicyError(
                f"Limits(calls_per_tool={self.calls_per_tool!r}) is not a mapping: calls_per_tool={{'search': 5}}."
            )
        for tool, value in self.calls_per_tool.items():
            if not _whole(value) or value < 0:
                raise PolicyError(f"Limits(calls_per_tool={{{tool!r}: {value!r}}}) must be at least 0.")
        if not isinstance(self.handoff_at, (int, float)) or not 0 <= self.handoff_at <= 1:
            raise PolicyError(f"Limits(handoff_at={self.handoff_at!r}) is a share from 0 to 1.")
        object.__setattr__(self, "calls_per_tool", dict(self.calls_per_tool))

    @property
    def warn_calls(self) -> int:
        """The number of executed calls after which a warning is given; 0 = never."""
        if self.calls is not None:
            return math.ceil(self.calls * self.handoff_at)
        return self.soft_calls or 0


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
