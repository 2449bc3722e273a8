"""`Policy.loopctl()` held to its source: 43 conformance cases, played through the public API."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopguard import (
    Action,
    Policy,
    PolicyError,
    Run,
    RunStopped,
    ToolCallRefused,
    ToolSignature,
    guarded_run,
)

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "cases" / "loopctl.json").read_text(encoding="utf-8")
)


class CaseSignature(ToolSignature):
    """What a case declares about its tools."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def extract_primary_param(self, tool: str, args: Any) -> str:
        """The path or the command where the case says so, else nothing: the whole input is the key."""
        name = self.config["signature"]
        return "" if name == "none" else str(args.get(name, ""))

    def normalize_param_for_comparison(self, tool: str, param: str) -> str:
        """Everything from `#` on is dropped where the case says so."""
        return param.partition("#")[0] if self.config.get("normalize") == "strip_anchor" else param

    def is_recoverable_error(self, tool: str, error: str) -> bool:
        """The errors that the case marks."""
        return any(mark["tool"] == tool and mark["contains"] in error for mark in self.config.get("recoverable", ()))

    def is_file_edit_tool(self, tool: str) -> bool:
        """The tools that the case marks."""
        return tool in self.config.get("edit_tools", ())

    def tool_thresholds(self) -> dict[str, int]:
        """The repetition thresholds that the case has for single tools."""
        return dict(self.config["tool_thresholds"])


def policy_of(case: dict[str, Any]) -> Policy:
    """The preset with the settings of the case; the manager's window is its ``max_history``."""
    config = case["config"]
    window = config["max_history"] if case["level"] == "engine" else config["window_size"]
    return Policy.loopctl(
        warn_after=config["repetition_threshold"],
        stop_after=config["stop_threshold"],
        window=window,
        history=window,
        signature=CaseSignature(config),
    )


@dataclass
class Played:
    """What came of the calls of a case."""

    first_warning_at: int | None = None
    refused_at: int | None = None
    warnings: int = 0
    executed: int = 0


def play(policy: Policy, calls: list[dict[str, Any]]) -> Played:
    """Make the calls until the run is over."""
    played = Played()
    with guarded_run("conformance", policy=policy, on_stop="end") as run:
        for number, asked in enumerate(calls, start=1):
            call = run.call(asked["tool"], asked["args"])
            try:
                call.begin()
            except RunStopped:
                played.refused_at = number
                break
            played.executed += 1
            if "error" in asked:
                call.fail(RuntimeError(asked["error"]))
            else:
                call.finish(asked["result"])
            played.warnings = sum(finding.action is Action.WARN for finding in run.findings)
            if played.warnings and played.first_warning_at is None:
                played.first_warning_at = number
    return played


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    """The preset warns and refuses at the calls that the case expects, and executes everything before."""
    played = play(policy_of(case), case["calls"])

    assert {
        "first_warning_at": played.first_warning_at,
        "refused_at": played.refused_at,
        "warnings": played.warnings,
    } == case["expect"]
    assert played.executed == (case["expect"]["refused_at"] or len(case["calls"]) + 1) - 1


def test_all_cases_are_there() -> None:
    """Forty-three cases, each under a name of its own."""
    assert len(CASES) == len({case["id"] for case in CASES}) == 43


#: Cases whose raw form differs because a warning that was delivered counts as acknowledged.
ACKNOWLEDGED = {"warn-002", "warn-003", "warn-005", "rec-009"}


RAW = [case for case in CASES if case["id"] not in ACKNOWLEDGED]


@pytest.mark.parametrize("case", RAW, ids=[case["id"] for case in RAW])
def test_readings(case: dict[str, Any]) -> None:
    """`loops_detected` counts the recordings made while looping, `max_operation_count` the highest live count."""
    raw = case["expect_raw"]
    with guarded_run("conformance", policy=policy_of(case), on_stop="end") as run:
        for asked in case["calls"]:
            call = run.begin(asked["tool"], asked["args"])
            if "error" in asked:
                call.fail(RuntimeError(asked["error"]))
            else:
                call.finish(asked["result"])

    assert run.stats.loops_detected == raw["loop_verdicts"]
    assert run.stats.turns_analyzed == run.stats.calls
    # The source clears its window with the refusal; here the count stays readable.
    assert run.stopped or run.max_operation_count() == raw["live_max_at_end"]


def repeat(run: Run, times: int, tool: str = "read", result: object = "same", **args: object) -> None:
    """Make the same call several times, with the same result."""
    for _ in range(times):
        with run.call(tool, args) as call:
            call.result = result


def test_defaults() -> None:
    """Warn at 3, refuse the eleventh dispatch, a window of 100."""
    policy = Policy.loopctl()
    (rule,) = policy.rules

    assert (rule.warn_after, rule.refuse_after, rule.stop_after) == (3, 0, 10)
    assert (policy.window, policy.stop_scope) == (100, "run")


def test_ties_go_by_tool_then_first_appearance() -> None:
    """The documented deviation: a record holds no text, so a tie cannot go by the parameter.

    The source would report the read of `/a` as well, because it comes before `/b` and was not warned about.
    """
    with guarded_run("tie", policy=Policy.loopctl()) as run:
        repeat(run, 3, path="/b")
        repeat(run, 3, path="/a")
        assert len(run.findings) == 1
        assert len(run.check_loop().repeated_operations) == 2
        repeat(run, 3, tool="list", path="/c")

    assert [(finding.tool, finding.seqs) for finding in run.findings] == [
        ("read", (1, 2, 3)),
        ("list", (7, 8, 9)),
    ]


def test_check_loop() -> None:
    """The reading names the operation and its count, and says when the next dispatch is going to be refused."""
    with guarded_run("check", policy=Policy.loopctl(warn_after=2, stop_after=4), on_stop="end") as run:
        repeat(run, 1, path="/a")
        assert run.check_loop() == (False, (), 0, None, False)
        repeat(run, 1, path="/a")
        looping = run.check_loop()
        repeat(run, 2, path="/a")
        stopping = run.check_loop()

    assert (looping.is_looping, looping.repetition_count, looping.should_stop) == (True, 2, False)
    assert looping.repeated_operations[0].tool == "read"
    assert (stopping.repetition_count, stopping.should_stop) == (4, True)


def test_acknowledged_by_hand() -> None:
    """A pattern that the host acknowledged before its warning is not warned about."""
    with guarded_run("acknowledge", policy=Policy.loopctl()) as run:
        repeat(run, 2, path="/a")
        run.acknowledge_loop_warning([run.engine.history[-1]])
        repeat(run, 3, path="/a")

    assert run.findings == ()


# -- where it differs from the default policy ----------------------------------------------------------------------


def test_a_stop_hits_whatever_comes_next() -> None:
    """After ten equal operations loopctl refuses a call never seen before; the default leaves it alone."""
    with guarded_run("preset", policy=Policy.loopctl(), on_stop="end") as preset:
        repeat(preset, 10, path="/a")
        repeat(preset, 1, tool="make", target="test")
    with guarded_run("default") as default:
        for _ in range(10):
            with contextlib.suppress(ToolCallRefused):
                repeat(default, 1, path="/a")
        repeat(default, 1, tool="make", target="test")

    assert (preset.stats.calls, preset.stats.refused) == (10, 1)
    assert preset.stopped is not None
    assert (default.stats.calls, default.stats.refused) == (6, 5)
    assert default.stopped is None


def test_failures_count_like_results() -> None:
    """An error and a result of the same text are one operation in loopctl; the default never mixes them."""

    def play_mixed(policy: Policy) -> int:
        with guarded_run("mixed", policy=policy) as run:
            repeat(run, 2, tool="build", result="broken")
            run.begin("build", {}).fail(RuntimeError("broken"))
        return len(run.findings)

    assert (play_mixed(Policy.loopctl()), play_mixed(Policy())) == (1, 0)


def test_another_result_forgets_only_after_the_warning() -> None:
    """Two equal results, another, and the first again: loopctl still counts three, the default begins anew."""

    def play_changed(policy: Policy) -> int:
        with guarded_run("changed", policy=policy) as run:
            repeat(run, 2, result="one")
            repeat(run, 1, result="two")
            repeat(run, 1, result="one")
        return len(run.findings)

    assert (play_changed(Policy.loopctl()), play_changed(Policy())) == (1, 0)


def test_a_warned_result_is_forgotten_whatever_came_last() -> None:
    """Forgetting looks at what was warned about, not at the last result of the call."""
    with guarded_run("r", policy=Policy.loopctl(stop_after=0)) as run:
        repeat(run, 4, "edit", "x", path="/b")
        repeat(run, 3, "read", "x", path="/a")
        repeat(run, 1, "read", "y", path="/a")
        repeat(run, 1, "edit", "z", path="/b")
        assert run.check_loop().is_looping
        repeat(run, 1, "read", "y", path="/a")
        assert not run.check_loop().is_looping
        assert run.max_operation_count() == 2


def test_a_stop_without_a_warning() -> None:
    """The stop threshold is the larger of the two, and 0 is the smaller one."""
    with guarded_run("r", policy=Policy.loopctl(warn_after=0, stop_after=4), on_stop="end") as run:
        repeat(run, 4)
        assert not run.findings
        with contextlib.suppress(RunStopped):
            repeat(run, 1)
    assert run.stopped is not None
    assert run.stats.calls == 4


def test_nothing_restarts_the_count() -> None:
    """A novel write and a user message restart the default, loopctl knows neither."""

    def play_work(policy: Policy) -> int:
        with guarded_run("work", policy=policy, tools={"edit": {"edits": "path"}}) as run:
            for number in range(3):
                repeat(run, 1, path="/a")
                repeat(run, 1, tool="edit", path="/a", text=str(number))
                run.note_user_message()
        return len(run.findings)

    assert (play_work(Policy.loopctl()), play_work(Policy())) == (1, 0)


def test_nothing_is_masked() -> None:
    """Results that differ in a time stamp are one operation by default, and three in loopctl."""

    def play_clock(policy: Policy) -> int:
        with guarded_run("clock", policy=policy) as run:
            for minute in range(5):
                repeat(run, 1, result=f"2026-01-05T10:0{minute}:00Z nothing to do")
        return len(run.findings)

    assert (play_clock(Policy.loopctl()), play_clock(Policy())) == (0, 1)


def test_any_order_of_thresholds_is_taken() -> None:
    """A stop below the warning or beyond the window is no complaint here, as in the source."""
    for options in ({"warn_after": 5, "stop_after": 3}, {"stop_after": 60, "window": 50}, {"window": 0}):
        Policy.loopctl(**options)
    with pytest.raises(PolicyError, match="stop_after=-1"):
        Policy.loopctl(stop_after=-1)
