"""That the cost of a call does not grow: with the window, and with the number of calls made."""

from __future__ import annotations

from benchmarks.calls import NO_LIMIT, do_nothing, short
from benchmarks.timing import in_turns
from loopguard import Policy, guarded_run, guarded_tool


def table(quick: bool) -> str:
    """The table as Markdown."""
    rounds = 15 if quick else 41
    lines = ["### Growth", "", "| what | ratio | to the first row |", "| --- | --- | --- |"]
    first = 0.0
    for window in (10, 100, 1_000, 10_000):
        policy = Policy(window=window, history=2 * window)
        with guarded_run("bench", policy=policy, limits=NO_LIMIT):
            tool = guarded_tool(short())
            for i in range(window):
                tool(f"before {i}")
            ratio = in_turns(do_nothing(short()), tool, lambda i: f"query {i}", rounds=rounds).median
        first = first or ratio
        lines.append(f"| window {window:,} | {ratio:.2f} | {ratio / first:.2f} |")
    first = 0.0
    with guarded_run("bench", limits=NO_LIMIT):
        tool = guarded_tool(short())
        done = 0
        for calls in (100, 10_000, 100_000 if quick else 1_000_000):
            for i in range(done, calls):
                tool(f"before {i}")
            done = calls
            ratio = in_turns(do_nothing(short()), tool, lambda i: f"query {i}", rounds=rounds).median
            first = first or ratio
            lines.append(f"| after {calls:,} calls | {ratio:.2f} | {ratio / first:.2f} |")
    return "\n".join(lines)
