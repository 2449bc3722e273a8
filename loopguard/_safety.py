"""The rule that the guard never breaks the tool, in one place.

An error inside loopguard is logged once per place and type, counted, and the call goes through.
Under ``loopguard.testing`` it is raised instead, so that a test of ours cannot pass over it.
"""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("loopguard")

#: True raises internal errors instead of logging them. Only tests set it.
strict = False

#: How often an internal error happened, by (place, name of its type). Read by the metrics, which show it as
#: ``loopguard.internal.errors``. Both parts are names from code, so it stays small.
errors: dict[tuple[str, str], int] = {}

#: Beyond this many different (place, type) pairs further ones are counted under the type ``_other``.
MOST_PAIRS = 200


def report(where: str, error: Exception, said: set[tuple[str, str]] | None = None) -> None:
    """Count an internal error and log it if it is the first of its kind.

    The log names the type of the error and the lines of code, never its message: that may quote an argument.

    Args:
        where: The part of loopguard that failed, such as ``"telemetry.start"``; a constant, never built at
            run time.
        error: What was raised.
        said: What has been logged already in the caller's scope (a run's own set says it once per run).
            Left out: once per process.

    Raises:
        Exception: The error itself, under ``strict``.
    """
    if strict:
        raise error
    pair = (where, type(error).__name__)
    if pair not in errors and len(errors) >= MOST_PAIRS:
        pair = (where, "_other")
    first = pair not in errors
    errors[pair] = errors.get(pair, 0) + 1
    if said is not None:
        first = pair not in said
        said.add(pair)
    if first:
        with suppress(Exception):  # a filter or handler of the user may raise
            _log.warning(
                "loopguard: internal error in %s (%s%s); the call went through, and this is said once.",
                where,
                pair[1],
                _lines_of(error),
            )


def _lines_of(error: Exception) -> str:
    """Where the error came from, innermost last, without any value."""
    frames = traceback.extract_tb(error.__traceback__, limit=-3)
    return "".join(f", {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)


class guarded:  # noqa: N801 - reads as a verb, both as decorator and as block
    """Swallow and report what goes wrong inside, as a decorator or as a block.

    A decorated function returns None where it failed.
    ``BaseException`` that is no ``Exception`` (a cancellation, an interrupt) passes.

    ```python
    with guarded("telemetry.end"):
        span.end()
    ```
    """

    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Wrap a function."""
        where = self.where

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - this is where it is decided
                report(where, error)
                return None

        return call

    def __enter__(self) -> None:
        """Nothing to prepare: one object may be entered again and by many threads."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if strict:
            return False
        report(self.where, error)
        return True
