"""Each example runs by itself, without a key, a network or a server, and shows what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import loopguard

EXAMPLES = Path(__file__).parents[1] / "examples"
#: These start or need a server; tests/phoenix runs them.
WITH_SERVER = {"phoenix_demo.py"}

#: Lines that an example has to print.
SHOWN = {
    "agent_loop.py": [
        "it listens:",
        "  call_5  read('config.py')  ->  No such file: config.py",
        "  call_7  listing()  ->  ['src/config.py']",
        "  7 calls executed, 1 refused, 2 findings",
        "  answer: DEBUG is off; the file is src/config.py.",
        "it does not:",
        "  5 calls executed, 6 refused, 3 findings",
        (
            "  answer: (ended) run 'agent-loop' was stopped: "
            "read gave the same result 5 times and was asked for 5 more times"
        ),
    ],
    "parallel_tools.py": [
        "three pages at once: 3 results, 0 refused",
        "fifty equal calls at once: 5 executed, 45 refused, nudges: 1",
        "the run goes on: 2 more pages, stopped: None",
        "findings: ['refuse', 'warn']",
    ],
}


def names() -> list[str]:
    """The examples that need nothing."""
    return sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in WITH_SERVER)


@pytest.mark.parametrize("name", names())
def test_example(name: str, tmp_path: Path) -> None:
    """It ends with exit code 0 and prints its key lines."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LOOPGUARD_", "OTEL_"))}
    environment |= {"PYTHONPATH": str(Path(loopguard.__file__).parents[1]), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=60,
        cwd=tmp_path, env=environment,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert SHOWN.get(name), f"name lines that {name} has to print"
    lines = iter(done.stdout.splitlines())
    missing = [line for line in SHOWN[name] if line not in lines]  # in this order
    assert missing == []
    assert "Traceback" not in done.stderr
    assert "never reached the model" not in done.stderr


@pytest.mark.parametrize("name", names())
def test_header(name: str) -> None:
    """It begins with what it shows and how to run it."""
    header = (EXAMPLES / name).read_text(encoding="utf-8").split('"""')[1]

    assert f"python examples/{name}" in header
    assert "Shows" in header
