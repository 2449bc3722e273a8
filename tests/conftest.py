"""What every test begins with: loud internal errors, no settings of the machine, nothing left over."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from loopguard import _safety, config, outside
from loopguard.telemetry.metrics import metrics


@pytest.fixture(autouse=True)
def loud_and_clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Internal errors are raised, ``LOOPGUARD_*`` is unset, and nothing that a test configured or said stays."""
    monkeypatch.setattr(_safety, "strict", True)
    # Tools that another test has called are not known here: their series would be counted too.
    monkeypatch.setattr(metrics, "_unguarded", {})
    metrics.restart()
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    config.reset()
    outside.forget()
    yield
    config.reset()
    outside.forget()
