"""Which run is current: the context variable, and the value that stands for a result that was not fetched.

The variable holds the run itself, so that what a thread or a child task records is seen by all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopguard.errors import ToolCallRefused
    from loopguard.run import Run

#: The innermost run of this context; it may be closed, when the context outlived it.
current: ContextVar[Run | None] = ContextVar("loopguard_run", default=None)


class Instead:
    """Stands for the result of a refused call (``on_refuse``): the error, and what makes a value of it."""

    __slots__ = ("_how", "error")

    def __init__(self, error: ToolCallRefused, how: Callable[[ToolCallRefused], object] | None) -> None:
        self.error = error
        self._how = how

    @property
    def value(self) -> object:
        """What the caller of the tool gets in place of a result."""
        return self.error.for_model() if self._how is None else self._how(self.error)
