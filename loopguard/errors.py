"""Errors, on two axes: what happened to the call, and why.

```
LoopguardError
├── ToolCallRefused          the call was not executed, the run goes on
│   ├── LoopRefused          ... because of a loop            (also LoopDetected)
│   └── LimitRefused         ... because of a limit of that tool
├── RunStopped               the run is over
│   ├── LoopStopped          ... because of a loop            (also LoopDetected)
│   └── LimitReached         ... because of a limit of the run
├── LoopDetected             why: a loop; has the finding
├── PolicyError              a setting that cannot be meant (also a ValueError)
├── StoreError               a store that is away or holds what is not ours
└── TraceError               a trace that cannot be read
```

``str()`` of each may reach a model, a span or an error tracker: one factual sentence without arguments or results.
``for_model()`` adds what the model needs. ``__notes__`` tell the developer the rule, its numbers and the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from loopguard.records import Finding


class LoopguardError(Exception):
    """Base of all errors of loopguard."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword facts would be lost by the default, which calls the class with ``args`` alone.
        return _rebuild, (type(self), self.args, self.__dict__.copy())

    @classmethod
    def _from(cls, args: tuple[Any, ...], facts: dict[str, Any]) -> Self:
        error = cls.__new__(cls, *args)
        error.args = args
        error.__dict__.update(facts)
        return error


def _rebuild(cls: type[LoopguardError], args: tuple[Any, ...], facts: dict[str, Any]) -> LoopguardError:
    return cls._from(args, facts)


class _ForModel(LoopguardError):
    """Mix-in of what a model may read."""

    _model_text: str = ""

    def for_model(self) -> str:
        """The text to give the model in place of a result: what was repeated, how often, and what came back.

        It may quote the target of the call and up to 200 characters of the last outcome, never a ``Secret``.
        """
        return self._model_text or f"{self}."


class ToolCallRefused(_ForModel):
    """The tool was not executed; the run goes on. ``tool`` is its name, ``run_id`` that of the run that refused it."""

    tool: str = ""
    run_id: str = ""


class RunStopped(_ForModel):
    """The run is over: no further guarded call is executed in it, or in a run below it. ``run_id`` is that run's."""

    run_id: str = ""


class LoopDetected(LoopguardError):
    """A loop is the reason. ``finding`` says which rule, which calls and how often."""

    finding: Finding


class LoopRefused(LoopDetected, ToolCallRefused):
    """The call repeats what was tried before; it was not executed."""


class LoopStopped(LoopDetected, RunStopped):
    """The run went on repeating itself and is over."""


class LimitReached(RunStopped):
    """A limit of the run is used up. ``limit`` names it, ``used`` and ``allowed`` are in its unit."""

    limit: str = ""
    used: float = 0
    allowed: float = 0


class LimitRefused(ToolCallRefused):
    """The calls allowed for this one tool are used up; the call was not executed."""

    limit: str = ""
    used: float = 0
    allowed: float = 0


class PolicyError(LoopguardError, ValueError):
    """A setting that cannot be meant; the text names the value and the way out."""


class StoreError(LoopguardError):
    """A store cannot be reached, or gave back something that is not ours."""


class TraceError(LoopguardError):
    """A trace cannot be read."""


for _error in (
    LoopguardError,
    ToolCallRefused,
    RunStopped,
    LoopDetected,
    LoopRefused,
    LoopStopped,
    LimitReached,
    LimitRefused,
    PolicyError,
    StoreError,
    TraceError,
):
    # People read and write the short name; where the class is defined is our business.
    _error.__module__ = "loopguard"
