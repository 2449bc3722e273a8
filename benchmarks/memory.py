"""Memory of runs, by tracemalloc: fresh ones, and after many calls."""

from __future__ import annotations

import gc
import tracemalloc

from benchmarks.calls import NO_LIMIT, short
from loopguard import guarded_run, guarded_tool


def table(quick: bool) -> str:
    """The table as Markdown."""
    live = 1_000 if quick else 10_000
    tool = guarded_tool(short())
    with guarded_run("warm"):
        tool("x")
    gc.collect()
    tracemalloc.start()
    scopes = [guarded_run("bench", limits=NO_LIMIT) for _ in range(live)]
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    runs = []
    for scope in scopes:
        runs.append(scope.__enter__())
        # Each is left as the current one's parent otherwise, and 10,000 runs deep is no use anybody has.
        from loopguard.context import current

        current.set(None)
    gc.collect()
    fresh = (tracemalloc.get_traced_memory()[0] - before) / live
    some = runs[: 20 if quick else 50]
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number, run in enumerate(some):
        call = run.bind(tool)
        for i in range(10_000):
            call(f"query {number} {i}")
        del call
    gc.collect()
    used = (tracemalloc.get_traced_memory()[0] - before) / len(some) + fresh
    tracemalloc.stop()
    for scope in scopes:
        scope.__exit__(None, None, None)
    return "\n".join(
        [
            "### Memory",
            "",
            "| what | bytes | budget |",
            "| --- | --- | --- |",
            f"| a fresh run ({live:,} live) | {fresh:,.0f} | 4,096 |",
            f"| a run after 10,000 calls | {used:,.0f} | 49,152 |",
        ]
    )
