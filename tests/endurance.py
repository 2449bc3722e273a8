"""Memory does not grow: a million calls in one run, a hundred thousand runs one after the other.

A program of its own, without coverage and without pytest's bookkeeping: ``python tests/endurance.py``.
It ends with 1 if the resident memory grew by more than 2 MB after the first 100,000 calls.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

from loopguard import Limits, guarded_run, guarded_tool

CALLS = 1_000_000
RUNS = 100_000
WARM = 100_000
ALLOWED = 2 << 20


@guarded_tool(name="search")
def search(query: int) -> str:
    """A tool with short results."""
    return f"result for {query}"


def resident() -> int:
    """The resident memory of this process in bytes."""
    gc.collect()
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def one_run(calls: int) -> None:
    """Many calls in the run that is open."""
    for query in range(calls):
        search(query)


def many_runs(runs: int) -> None:
    """Runs of three calls each, closed and forgotten."""
    for _ in range(runs):
        with guarded_run("endurance"):
            for query in range(3):
                search(query)


def grown(title: str, before: int, started: float) -> bool:
    """Print a line; True if the memory grew by more than is allowed."""
    growth = resident() - before
    print(f"{title}: {growth / 1024:+,.0f} KiB, {time.perf_counter() - started:.1f} s", flush=True)
    return growth > ALLOWED


def main() -> int:
    """Both at once, and the verdict."""
    failed = 0
    with guarded_run("endurance", limits=Limits(soft_calls=0)):
        one_run(WARM)
        before, started = resident(), time.perf_counter()
        one_run(CALLS - WARM)
        failed += grown(f"{CALLS:,} calls in one run, after the first {WARM:,}", before, started)
    many_runs(WARM // 10)
    before, started = resident(), time.perf_counter()
    many_runs(RUNS - WARM // 10)
    failed += grown(f"{RUNS:,} runs one after the other, after the first {WARM // 10:,}", before, started)
    print(f"{2 - failed} passed, {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
