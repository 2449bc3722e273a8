"""The lock of a run: one that gives up instead of waiting for itself."""

from __future__ import annotations

from threading import Lock
from types import TracebackType

from loopguard.errors import LoopguardError

#: Seconds after which whoever waits is waiting for itself: what is locked takes microseconds.
PATIENCE = 5.0


class RunLock:
    """A plain lock, with a limit on waiting.

    A signal handler, or a finaliser that the collector runs, may call a guarded tool while this very thread holds the
    lock. A lock that can be entered twice would let it see a half-made state; one that waits would wait for ever.
    """

    __slots__ = ("acquire", "release")

    def __init__(self) -> None:
        lock = Lock()
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self) -> None:
        if not self.acquire(timeout=PATIENCE):
            raise LoopguardError("The run is in use by the code that was interrupted here.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
