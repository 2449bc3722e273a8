"""A real Arize Phoenix for the tests of this folder.

`PHOENIX_ENDPOINT` names one that runs already, `PHOENIX_BIN` the program to start.
Without either the tests are skipped, except where `CI` is `true`: there they fail.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "phoenix_demo.py"


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """The module `examples/phoenix_demo.py`, which knows how to start Phoenix and how to ask it."""
    spec = importlib.util.spec_from_file_location("phoenix_demo", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def phoenix(example: ModuleType) -> Iterator[Any]:
    """A client of a running Phoenix: `.endpoint`, `.spans(trace_id)`, `.wait_for_events(project=...)`."""
    if endpoint := os.environ.get("PHOENIX_ENDPOINT"):
        yield example.Phoenix(endpoint.rstrip("/"))
        return
    binary = os.environ.get("PHOENIX_BIN")
    if not binary:
        reason = "set PHOENIX_BIN to the phoenix program, or PHOENIX_ENDPOINT to a running one"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with example.started(binary) as running:
        yield running
