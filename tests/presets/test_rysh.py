"""`Policy.rysh()`: the third identical call in twenty is not executed, the agent is told, the run goes on."""

from __future__ import annotations

import contextlib

import pytest

from loopguard import LoopRefused, Policy, PolicyError, Run, ToolCallRefused, guarded_run


def make(run: Run, tool: str, result: object = "same", **args: object) -> bool:
    """Make a call; False if it was refused."""
    try:
        with run.call(tool, args) as call:
            call.result = result
    except ToolCallRefused:
        return False
    return True


def test_third_identical_call_is_not_executed() -> None:
    """Two run, the third does not, and the run goes on."""
    with guarded_run("rysh", policy=Policy.rysh()) as run:
        done = [make(run, "grep", pattern="x") for _ in range(3)]
        went_on = make(run, "grep", pattern="y")

    assert done == [True, True, False]
    assert went_on
    assert run.stopped is None


def test_agent_is_told() -> None:
    """The refusal names the call and how often it was made, for the model to read."""
    with guarded_run("rysh", policy=Policy.rysh()) as run:
        make(run, "grep", pattern="x")
        make(run, "grep", pattern="x")
        with pytest.raises(LoopRefused) as refused:
            run.begin("grep", {"pattern": "x"})

    assert refused.value.finding.rule == "same_call"
    assert refused.value.for_model().startswith("Not executed: `grep`")
    assert "2 times" in refused.value.for_model()


def test_never_stops() -> None:
    """However often it is asked again, the run is not ended; one finding, the rest is counted."""
    with guarded_run("rysh", policy=Policy.rysh()) as run:
        done = [make(run, "grep", pattern="x") for _ in range(100)]

    assert done == [True] * 2 + [False] * 98
    assert (run.stats.calls, run.stats.refused, len(run.findings)) == (2, 98, 1)


def test_outcome_is_ignored() -> None:
    """Other results, and failures, make no difference: the arguments are the same."""
    with guarded_run("rysh", policy=Policy.rysh()) as run:
        make(run, "status", result="queued")
        with contextlib.suppress(OSError), run.call("status", {}):
            raise OSError("away")
        third = make(run, "status", result="done")

    assert not third


@pytest.mark.parametrize(("between", "executed"), [(17, False), (18, False), (19, True)])
def test_window_of_twenty(between: int, executed: bool) -> None:
    """The two calls before are counted as long as both are among the last twenty."""
    with guarded_run("rysh", policy=Policy.rysh()) as run:
        make(run, "grep", pattern="x")
        make(run, "grep", pattern="x")
        for number in range(between):
            make(run, "read", path=str(number))

        assert make(run, "grep", pattern="x") is executed


def test_refused_attempts_take_no_place_in_the_window() -> None:
    """Asking again does not make the call free: it has to wait for others that are executed."""
    with guarded_run("rysh", policy=Policy.rysh()) as run:
        make(run, "grep", pattern="x")
        make(run, "grep", pattern="x")
        asked = [make(run, "grep", pattern="x") for _ in range(30)]
        for number in range(19):
            make(run, "read", path=str(number))
        again = make(run, "grep", pattern="x")

    assert not any(asked)
    assert again


def test_default_differs() -> None:
    """The default lets a call with new results go on for as long as they are new."""
    with guarded_run("preset", policy=Policy.rysh()) as preset:
        results = [make(preset, "status", result=f"{step} %") for step in range(10)]
    with guarded_run("default") as default:
        free = [make(default, "status", result=f"{step} %") for step in range(10)]

    assert results.count(True) == 2
    assert all(free)


def test_thresholds() -> None:
    """Another rung and window are taken; one that can never be reached is not."""
    with guarded_run("rysh", policy=Policy.rysh(refuse_after=4, window=30)) as run:
        done = [make(run, "grep", pattern="x") for _ in range(5)]

    assert done == [True] * 4 + [False]
    with pytest.raises(PolicyError, match="refuse_after=21"):
        Policy.rysh(refuse_after=21)
