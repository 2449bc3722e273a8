"""The guard never breaks the tool, and never passes over an error of its own in a test."""

from __future__ import annotations

import asyncio
import logging

import pytest

from loopguard import _safety
from loopguard._safety import guarded, report


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_internal_error_is_logged_once_and_counted(quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    """The line names place, type and code, never the message."""
    for _ in range(3):
        report("run.begin", _raised(ValueError("password=hunter2")))
    report("run.begin", KeyError("hunter2"))

    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("loopguard: internal error in run.begin (ValueError, ")
    assert "test_safety.py" in first
    assert "KeyError" in second
    assert "hunter2" not in caplog.text
    assert _safety.errors == {("run.begin", "ValueError"): 3, ("run.begin", "KeyError"): 1}


def test_a_run_can_say_it_once_for_itself(quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    """With a set of its own each run logs an error of a kind once."""
    for _ in range(2):
        said: set[tuple[str, str]] = set()
        report("run.begin", ValueError(), said)
        report("run.begin", ValueError(), said)

    assert len(caplog.records) == 2
    assert _safety.errors == {("run.begin", "ValueError"): 4}


def test_kinds_of_errors_are_bounded(
    quiet: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types made at run time do not fill memory."""
    monkeypatch.setattr(_safety, "MOST_PAIRS", 2)
    for n in range(5):
        report("run.begin", type(f"Error{n}", (Exception,), {})())

    assert _safety.errors == {
        ("run.begin", "Error0"): 1,
        ("run.begin", "Error1"): 1,
        ("run.begin", "_other"): 3,
    }


def test_under_test_it_is_loud() -> None:
    """With ``strict`` the error is raised, from the function, the decorator and the block."""

    @guarded("here")
    def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        report("here", KeyError())
    with pytest.raises(KeyError):
        fails()
    with pytest.raises(KeyError), guarded("here"):
        raise KeyError


def test_a_guarded_function_gives_its_result_or_none(quiet: None) -> None:
    """The decorator keeps the name, gives the result, and None where the function failed."""

    @guarded("here")
    def half(n: int) -> float:
        return 1 / n

    assert half(2) == 0.5
    assert half(0) is None
    assert half.__name__ == "half"
    assert _safety.errors == {("here", "ZeroDivisionError"): 1}


def test_a_guarded_block_swallows_errors_only(quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    """A cancellation passes; a block without an error says nothing."""
    block = guarded("here")
    with block:
        pass
    with block:
        raise ValueError
    with pytest.raises(asyncio.CancelledError), block:
        raise asyncio.CancelledError

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
