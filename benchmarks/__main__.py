"""``python -m benchmarks [--quick] [--write FILE]``: print the tables, or put them between the marks of a page."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import calls, growth, memory, start
from loopguard import configure

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def machine() -> str:
    """What the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = re.findall(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))
        cpu = names[0].strip() if names else cpu
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("wrapt", "xxhash", "orjson", "msgspec", "opentelemetry-sdk")
    )
    return (
        f"{cpu}, {os.cpu_count()} cores, {platform.system()}; CPython {platform.python_version()}; {packages}. "
        "Ratios are medians of batches measured in turns, with the range between the quartiles in brackets."
    )


def main() -> int:
    """Measure everything and print or write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first look")
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the tables into this page, between the marks")
    parser.add_argument("--only", choices=("calls", "growth", "memory", "start"), help="one table")
    given = parser.parse_args()
    parts = {"calls": calls.table, "growth": growth.table, "memory": memory.table, "start": start.table}
    with configure(outside_run="ignore"):
        text = (
            machine()
            + "\n\n"
            + "\n\n".join(table(given.quick) for name, table in parts.items() if given.only in (None, name))
        )
    if given.write is None:
        print(text)
        return 0
    page = given.write.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        print(f"{given.write} has no marks {BEGIN} and {END}.", file=sys.stderr)
        return 2
    head, rest = page.split(BEGIN, 1)
    given.write.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
