"""What ``current_run()`` gives where no run is open: it takes everything and does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from loopguard.records import Finding, LoopStatus
from loopguard.report import Nudge
from loopguard.stats import RunStats

P = ParamSpec("P")
R = TypeVar("R")


class NoCall:
    """A call that nobody watches."""

    seq = 0

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def finish(self, result: Any) -> Any:
        """Takes the result and gives it back."""
        self.result = result
        return result

    def fail(self, error: BaseException) -> None:
        """Takes the error."""

    def abandon(self, error: BaseException | None = None) -> None:
        """Takes the end."""

    def begin(self) -> NoCall:
        """Begins nothing."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class NoRun:
    """Stands for a run where none is open. ``active`` is False, and so is the object itself."""

    active = False
    closed = True
    stopped: Finding | None = None
    name = ""
    id = ""
    agent: str | None = None
    parent = None
    mode = "off"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<no run>"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Nothing is found where nothing is watched."""
        return ()

    @property
    def children(self) -> list[Any]:
        """No run is open below."""
        return []

    @property
    def stats(self) -> RunStats:
        """All zero."""
        return RunStats()

    def ancestors(self) -> Iterator[Any]:
        """No run is open around."""
        return iter(())

    def call(self, tool: str, args: object = None, *, id: str | None = None) -> NoCall:
        """A block that watches nothing."""
        return NoCall()

    def begin(self, tool: str, args: object = None, *, id: str | None = None) -> NoCall:
        """A call that nobody watches."""
        return NoCall()

    def round(self) -> int:
        """0: there are no rounds."""
        return 0

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function as it is."""
        return function

    @contextmanager
    def allow(self, *tools: str) -> Iterator[None]:
        """Everything is allowed."""
        yield

    def pop_nudges(self) -> list[Nudge]:
        """No nudges."""
        return []

    def check_loop(self) -> LoopStatus:
        """No loop."""
        return LoopStatus(False, (), 0, None, False)

    def max_operation_count(self) -> int:
        """0: nothing is counted."""
        return 0

    def acknowledge_loop_warning(self, operations: Any) -> None:
        """Takes it."""

    def add_observer(self, observer: object) -> None:
        """Takes it."""

    def note_user_message(self) -> None:
        """Takes it."""

    def note_compaction(self) -> None:
        """Takes it."""

    def note_usage(
        self,
        input_tokens: int | None = 0,
        output_tokens: int | None = 0,
        cost: float | None = None,
        model: str | None = None,
    ) -> None:
        """Takes it."""

    def set_mode(self, mode: str) -> None:
        """Takes it."""

    def stop(self, reason: str) -> None:
        """Takes it."""

    def resume(self, reason: str) -> None:
        """Takes it."""

    def close(self) -> None:
        """Takes it."""


NO_RUN = NoRun()
