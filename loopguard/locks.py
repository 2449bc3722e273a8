"""The lock of a run: one that does not wait for itself."""

from __future__ import annotations

from threading import RLock
from types import TracebackType

from loopguard.errors import LoopguardError


class RunLock:
    """A lock that knows whether this very thread holds it, and is then not entered a second time.

    A signal handler, or a finaliser that the collector runs, may call a guarded tool in the middle of what is locked.
    A lock that waits would wait for ever; one that lets it in would show it a half-made state.
    ``owned()`` is asked first, and such a call goes through unwatched.
    """

    __slots__ = ("acquire", "owned", "release")

    def __init__(self) -> None:
        lock = RLock()
        self.acquire = lock.acquire
        self.release = lock.release
        # ``threading.Condition`` asks the same question the same way.
        self.owned = lock._is_owned  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        if self.owned():
            raise LoopguardError("The run is in use by the code that was interrupted here.")
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
