"""Import time, in fresh processes, beside a bare interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

_CASES = (
    ("bare interpreter", "pass"),
    ("import loopguard", "import loopguard"),
    ("... and guarded_run", "from loopguard import guarded_run"),
    ("... and guarded_tool", "from loopguard import guarded_run, guarded_tool"),
    (
        "... and the OpenTelemetry API",
        "from loopguard import guarded_tool; import opentelemetry.trace, opentelemetry.metrics",
    ),
)


def table(quick: bool) -> str:
    """The table as Markdown."""
    rounds = 3 if quick else 15
    times: dict[str, list[float]] = {name: [] for name, _ in _CASES}
    for _ in range(rounds):
        for name, code in _CASES:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times[name].append(time.perf_counter() - start)
    bare = statistics.median(times[_CASES[0][0]])
    lines = ["### Start", "", "| what | times a bare interpreter |", "| --- | --- |"]
    lines += [f"| {name} | {statistics.median(measured) / bare:.2f} |" for name, measured in times.items()]
    return "\n".join(lines)
