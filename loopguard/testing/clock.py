"""A clock that stands still until it is told to go on."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from loopguard import scope


class FakeClock:
    """A clock for the runs that are opened while its block is open. It starts in 2026 and moves by `advance`.

    Used by rules that look at waits between calls, and for the seconds that a finding reports.

    ```python
    from loopguard import guarded_run, guarded_tool
    from loopguard.testing import fake_clock

    with fake_clock() as clock:

        @guarded_tool
        def search(query: str) -> str:
            clock.advance(5)
            return "no results"

        with guarded_run("research") as run:
            for _ in range(3):
                search("x")

    assert run.findings[0].wasted_s == 10
    ```

    Args:
        start: Seconds since the epoch at which it begins.
    """

    def __init__(self, start: float = 1_767_225_600.0) -> None:
        self.now = float(start)
        self._before: list[Callable[[], float] | None] = []

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds.

        Raises:
            ValueError: The seconds are negative; time in a run never goes back.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds!r}): a clock does not go back.")
        self.now += seconds

    def __enter__(self) -> Self:
        self._before.append(scope.clock)
        scope.clock = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope.clock = self._before.pop()


def fake_clock(start: float = 1_767_225_600.0) -> FakeClock:
    """Make a `FakeClock` to be used as a block.

    Args:
        start: Seconds since the epoch at which it begins.
    """
    return FakeClock(start)
