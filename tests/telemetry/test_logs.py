"""The log lines of a finding."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from loopguard.records import Action
from loopguard.telemetry.logs import line_of, log_finding


def test_a_warning_says_what_repeats_and_where(make_finding: Any) -> None:
    """Tool, count, run, calls, rule and rung."""
    assert line_of(make_finding()) == (
        "loopguard: search gave the same result 3 times in a row in run 'support-agent' "
        "(calls 1-3; repeat, warn_after=3)."
    )


def test_a_refusal_says_what_was_counted(make_finding: Any) -> None:
    """The sentence of a refusal begins with the tool."""
    found = make_finding(Action.REFUSE, repetitions=5, threshold=5, seqs=(1, 2, 3, 4, 5))

    assert line_of(found) == (
        "loopguard: search refused in run 'support-agent': 5 times the same result (calls 1-5; repeat, refuse_after=5)."
    )


def test_a_stop_is_the_sentence_of_the_error(make_finding: Any) -> None:
    """A stop, a rule without wording of its own and a limit are quoted."""
    sentence = "run 'support-agent' was stopped: search gave the same result 5 times and was asked for 5 more times"
    stop = make_finding(Action.STOP, repetitions=5, threshold=10, seqs=(1, 2, 3, 4, 5), message=sentence)
    limit = make_finding(Action.STOP, rule="limits", seqs=(), message="run 'a' was stopped: 200 calls of 200")

    assert line_of(stop) == f"loopguard: {sentence} (calls 1-5; repeat, stop_after=10)."
    assert line_of(limit) == "loopguard: run 'a' was stopped: 200 calls of 200 (limits)."


def test_watching_only_says_what_would_have_been(make_finding: Any) -> None:
    """In observe mode the lines do not claim that something was refused or stopped."""
    refuse = make_finding(Action.REFUSE, enforced=False, repetitions=5, threshold=5)
    stop = make_finding(Action.STOP, enforced=False, message="run 'a' was stopped: search")

    assert "search would have been refused in run" in line_of(refuse)
    assert line_of(stop).startswith("loopguard: only watching: run 'a'")


@pytest.mark.parametrize(
    ("facts", "calls"),
    [
        ({"seqs": (4, 7, 9), "first_seq": 4}, "(calls 4, 7, 9; "),
        ({"seqs": (4,), "first_seq": 4, "repetitions": 1}, "(call 4; "),
        ({"seqs": (), "first_seq": 0}, "(repeat, "),
        ({"seqs": tuple(range(11, 21)), "first_seq": 1, "repetitions": 20}, "(calls 1-20; "),
        ({"seqs": (18, 19), "first_seq": 2, "repetitions": 9}, "(calls 2, …, 18, 19; "),
        ({"seqs": (1, 2, 3), "first_seq": 0}, "(calls 1-3; "),
    ],
)
def test_calls_are_named_shortly(make_finding: Any, facts: dict[str, Any], calls: str) -> None:
    """A row is its ends, a few calls are listed, older ones than the finding keeps are hinted at."""
    assert calls in line_of(make_finding(**facts))


def test_the_run_is_named_once(make_finding: Any) -> None:
    """A sentence that names the run, or speaks of this run, is not given another."""
    named = line_of(make_finding(message="search has run long in run 'support-agent'"))
    spoken = line_of(make_finding(message="search gave the same result 3 times in this run"))

    assert named.count("support-agent") == 1
    assert "in this run" not in spoken


def test_a_tool_that_seems_to_wait_is_shown_the_way_out(make_finding: Any) -> None:
    """The usual false alarm says what to write."""
    line = line_of(make_finding(tool="deploy_status", message="deploy_status gave the same result 3 times"))

    assert line.endswith('If deploy_status waits for something, say so: @guarded_tool(kind="poll").')


@pytest.mark.parametrize(
    ("action", "enforced", "level"),
    [
        (Action.WARN, True, logging.WARNING),
        (Action.REFUSE, True, logging.WARNING),
        (Action.STOP, True, logging.ERROR),
        (Action.STOP, False, logging.WARNING),
    ],
)
def test_only_a_stop_is_an_error(
    make_finding: Any, caplog: pytest.LogCaptureFixture, action: Action, enforced: bool, level: int
) -> None:
    """The record has the level and carries the facts for structured logs."""
    log_finding(make_finding(action, enforced=enforced))

    (record,) = caplog.records
    assert record.name == "loopguard"
    assert record.levelno == level
    assert record.loopguard_rule == "repeat"  # type: ignore[attr-defined]
    assert record.loopguard_action == action.value  # type: ignore[attr-defined]


def test_a_name_cannot_write_lines_of_its_own(make_finding: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Line breaks and lone surrogates in a tool's name are escaped."""
    log_finding(make_finding(Action.REFUSE, tool="x\nERROR fake\ud83d", run_name="a"))

    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    record.getMessage().encode()
    assert record.loopguard_tool == "x\\nERROR fake\\ud83d"  # type: ignore[attr-defined]


def test_a_silenced_logger_writes_nothing(make_finding: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The standard way to switch the lines off works."""
    with caplog.at_level(logging.CRITICAL, logger="loopguard"):
        log_finding(make_finding())

    assert not caplog.records
