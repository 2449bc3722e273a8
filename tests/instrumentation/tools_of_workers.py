"""Tools that worker processes import by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopguard import Policy, Repeat, current_run, guarded_run, guarded_tool


@guarded_tool
def search(query: str) -> str:
    """Plain."""
    return f"found {query}"


@guarded_tool(name="renamed", kind="read")
def with_options(query: str) -> str:
    """Under another name."""
    return f"read {query}"


@guarded_tool
async def fetch(url: str) -> str:
    """Coroutine."""
    return url


@guarded_tool
def lines(path: str) -> Iterator[str]:
    """Generator."""
    yield path


class Shelf:
    """Methods of each kind."""

    def __init__(self, item: str = "a") -> None:
        self.item = item

    @guarded_tool
    def look(self, at: int) -> str:
        """Method."""
        return self.item * at

    @guarded_tool
    @classmethod
    def make(cls, item: str) -> str:
        """Class method."""
        return f"{cls.__name__} {item}"

    @classmethod
    @guarded_tool
    def make_inside(cls, item: str) -> str:
        """Class method, guard below."""
        return f"{cls.__name__} {item}"

    @guarded_tool
    @staticmethod
    def weigh(item: str) -> str:
        """Static method."""
        return f"{item} g"

    @staticmethod
    @guarded_tool
    def weigh_inside(item: str) -> str:
        """Static method, guard below."""
        return f"{item} g"


def use(tool: Any, *args: Any) -> Any:
    """Call a tool that was sent here."""
    return tool(*args)


def looping(end: str) -> Any:
    """Loop in a run of this process until it is refused or stopped; raises."""
    if end == "limit":
        from loopguard import Limits

        scope = guarded_run("worker", limits=Limits(calls=2))
    elif end == "tool-limit":
        from loopguard import Limits

        scope = guarded_run("worker", limits=Limits(calls_per_tool={"search": 2}))
    else:
        rungs = {"refuse": (1, 2, 5), "stop": (1, 0, 2), "outside": (0, 0, 0)}[end]
        warn, refuse, stop = rungs
        scope = guarded_run("worker", policy=Policy(Repeat(warn_after=warn, refuse_after=refuse, stop_after=stop)))
    with scope as run:
        if end == "outside":
            run.stop("enough")
        for _ in range(3):
            search("x")
    return None


def is_in_a_run() -> bool:
    """Is a run open here?"""
    return bool(current_run())
