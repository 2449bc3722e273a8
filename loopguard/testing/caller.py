"""An agent without a model: makes calls in an engine and says in one word what became of each."""

from __future__ import annotations

from typing import Any

from loopguard.engine import Engine
from loopguard.policy import Plan, Policy
from loopguard.records import Hit, Kind, Tool
from loopguard.rules import Limits

READ = int(Kind.READ)
WRITE = int(Kind.WRITE)


class Caller:
    """Makes calls in a run and writes down what became of them."""

    def __init__(self, policy: Policy | None = None, limits: Limits | None = None) -> None:
        self.engine = Engine(Plan(policy or Policy(), limits))

    def start(self, key: int = 1, kind: int = READ, tool: Tool | str = "read", **more: Any) -> int | Hit:
        """Ask for a call."""
        tool = Tool(tool) if isinstance(tool, str) else tool
        return self.engine.start(more.pop("at", None), self.engine.bind(tool), kind, key, **more)

    def call(
        self,
        key: int = 1,
        outcome: int = 10,
        kind: int = READ,
        tool: Tool | str = "read",
        at: float | None = None,
        **more: Any,
    ) -> str:
        """Make a call. Returns "run", or the action that came of it: "warn", "refuse", "stop"."""
        target = more.pop("target", 0)
        said = self.start(key, kind, tool, at=at, target=target)
        if isinstance(said, Hit):
            return str(said.action)
        hit = self.engine.end(at, said, more.pop("status", 0), outcome, more.pop("template", outcome), **more)
        return "run" if hit is None else str(hit.action)

    def calls(self, n: int, **more: Any) -> list[str]:
        """Make the same call ``n`` times."""
        return [self.call(**more) for _ in range(n)]

    def write(self, key: int = 99, **more: Any) -> str:
        """A write that succeeds."""
        return self.call(key, kind=WRITE, tool="write", **more)


def row(text: str) -> list[str]:
    """``"3run warn"`` as a list."""
    result = []
    for word in text.split():
        count = int(word.rstrip("abcdefghijklmnopqrstuvwxyz") or 1)
        result += [word.lstrip("0123456789")] * count
    return result
