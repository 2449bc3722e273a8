"""Which run is current: the context variable, and the value that stands for a result that was not fetched.

The variable holds the run itself, so that what a thread or a child task records is seen by all.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopguard.run import Run

#: The innermost run of this context; it may be closed, when the context outlived it.
current: ContextVar[Run | None] = ContextVar("loopguard_run", default=None)


class Instead:
    """The value that a refused call gives in place of its result (``on_refuse``)."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value
