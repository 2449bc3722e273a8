"""``Limits``: how much a run may use, whatever it does."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal

from loopguard.errors import PolicyError

#: What ``price=`` may be: the name of a table, or a function of model, input tokens and output tokens.
Price = Literal["genai-prices"] | Callable[[str, int, int], float | None]
PRICE_TABLE: Final = "genai-prices"

#: Sums of floats come to a limit a little early or late: 0.1 + 0.2 is not 0.3.
_NEARLY: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run; a number that you set stops, the default only warns.

    Every limit warns when ``handoff_at`` of it is used, and stops the next call when all of it is used.
    What runs below a run use counts for it too.

    Args:
        calls: Executed calls since the last user message. None = no limit, here and below.
        soft_calls: Executed calls since the last user message after which a warning is given, and nothing more.
            Default 1,000 where ``calls`` is not set. 0 or None is off.
        calls_per_tool: Executed calls allowed per tool name in the run; further calls of that tool are refused.
        seconds: Seconds from the run's first call, judged by the times of its records.
        tokens: Input and output tokens together, as told by ``run.note_usage``.
        cost: US dollars, as told by ``run.note_usage`` or reckoned from tokens by ``price``.
        refusals: Refused rounds allowed in the run; the next refusal stops it.
        handoff_at: The share of each limit at which a warning is given and ``on_handoff`` is asked. 0 is off.
        on_handoff: A plain function, called once for each limit, when ``handoff_at`` of it is used, with a
            ``LimitStatus``. It returns None (go on), ``"stop"``, or a ``Limits`` whose numbers take
            the place of those that hold; what that one leaves out stays.
        price: What tokens cost: ``"genai-prices"`` (the table of that package, extra ``prices``), or a function of
            model, input tokens and output tokens that returns US dollars, or None for a model that it does not know.

    Source: the iteration caps of agent frameworks; the warning at 90 % is Rysh's.
    """

    calls: int | None = None
    soft_calls: int | None = 1_000
    calls_per_tool: Mapping[str, int] = field(default_factory=dict)
    seconds: float | None = None
    tokens: int | None = None
    cost: float | None = None
    refusals: int | None = None
    handoff_at: float = 0.9
    on_handoff: Callable[..., Any] | None = None
    price: Price | None = None

    name: ClassVar[str] = "limits"
    rank: ClassVar[int] = 10

    def __post_init__(self) -> None:
        for name in ("calls", "tokens", "refusals"):
            value = getattr(self, name)
            if value is not None and (not _whole(value) or value < 1):
                raise PolicyError(f"Limits({name}={value!r}) must be a whole number of at least 1. None = no limit.")
        for name in ("seconds", "cost"):
            value = getattr(self, name)
            if value is not None and (not _number(value) or not 0 < value < math.inf):
                raise PolicyError(f"Limits({name}={value!r}) must be a number above 0. None = no limit.")
        if self.soft_calls is not None and (not _whole(self.soft_calls) or self.soft_calls < 0):
            raise PolicyError(f"Limits(soft_calls={self.soft_calls!r}) must be a whole number of at least 0.")
        if not isinstance(self.calls_per_tool, Mapping):
            raise PolicyError(
                f"Limits(calls_per_tool={self.calls_per_tool!r}) is not a mapping: calls_per_tool={{'search': 5}}."
            )
        for tool, value in self.calls_per_tool.items():
            if not _whole(value) or value < 0:
                raise PolicyError(f"Limits(calls_per_tool={{{tool!r}: {value!r}}}) must be at least 0.")
        if not _number(self.handoff_at) or not 0 <= self.handoff_at <= 1:
            raise PolicyError(f"Limits(handoff_at={self.handoff_at!r}) is a share from 0 to 1.")
        if self.on_handoff is not None:
            if not callable(self.on_handoff):
                raise PolicyError(f"Limits(on_handoff={self.on_handoff!r}) is not callable.")
            if inspect.iscoroutinefunction(self.on_handoff):
                raise PolicyError(
                    "Limits(on_handoff=...) is a coroutine function, and is called where nothing can be awaited. "
                    "Give a plain function; it may start a task."
                )
        if self.price is not None and self.price != PRICE_TABLE and not callable(self.price):
            raise PolicyError(
                f"Limits(price={self.price!r}) is neither {PRICE_TABLE!r} nor a function of model, input tokens and "
                "output tokens."
            )
        object.__setattr__(self, "calls_per_tool", dict(self.calls_per_tool))

    @property
    def warn_calls(self) -> int:
        """The number of executed calls after which a warning is given; 0 = never."""
        if self.calls is not None:
            return math.ceil(self.mark(self.calls))
        return self.soft_calls or 0

    def mark(self, allowed: float) -> float:
        """How much of a limit is used when it warns; 0 = it does not."""
        return allowed * self.handoff_at * (1 - _NEARLY)

    def numbers(self) -> dict[str, Any]:
        """The fields that are numbers, for a snapshot: all but the functions."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _FUNCTIONS}

    def changed_by(self, answer: Limits) -> Limits:
        """These limits with what ``answer`` sets in place of theirs; what it leaves at its default stays."""
        default = Limits()
        said = {item.name: getattr(answer, item.name) for item in fields(answer)}
        changes = {name: value for name, value in said.items() if value != getattr(default, name)}
        if "calls_per_tool" in changes:
            changes["calls_per_tool"] = {**self.calls_per_tool, **changes["calls_per_tool"]}
        return replace(self, **changes)


_FUNCTIONS: Final = ("on_handoff", "price")


def used_up(used: float, allowed: float) -> bool:
    """True where nothing is left."""
    return used >= allowed * (1 - _NEARLY)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
