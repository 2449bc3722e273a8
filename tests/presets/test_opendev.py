"""`Policy.opendev()`: the same call failing with the same error three times within twenty ends the run."""

from __future__ import annotations

import contextlib

import pytest

from loopguard import Action, LoopStopped, Policy, Run, RunStopped, ToolCallRefused, guarded_run


def make(run: Run, tool: str, **args: object) -> None:
    """Make a call that succeeds."""
    with run.call(tool, args) as call:
        call.result = f"result of {tool} {args}"


def fail(run: Run, tool: str, error: str = "ModuleNotFoundError: yaml", **args: object) -> None:
    """Make a call that fails."""
    with contextlib.suppress(RuntimeError), run.call(tool, args):
        raise RuntimeError(error)


def test_third_failure_ends_the_run_whatever_comes_next() -> None:
    """With other calls in between: the next call is another one, and it is not executed."""
    executed = []
    with guarded_run("opendev", policy=Policy.opendev(), on_stop="end") as run:
        for number in range(2):
            fail(run, "test", path="a.py")
            make(run, "read", path=str(number))
            executed.append(number)
        fail(run, "test", path="a.py")
        with pytest.raises(LoopStopped) as stopped:
            make(run, "read", path="2")

    assert executed == [0, 1]
    assert stopped.value.finding.rule == "failing"
    assert stopped.value.finding.seqs == (1, 3, 5)
    assert [finding.action for finding in run.findings] == [Action.STOP]


def test_nothing_is_executed_after_the_stop() -> None:
    """The stop holds for every further call of the run."""
    with guarded_run("opendev", policy=Policy.opendev(), on_stop="end") as run:
        for _ in range(3):
            fail(run, "test")
        for tool in ("read", "search", "test"):
            with pytest.raises(RunStopped):
                run.begin(tool, {})

    assert (run.stats.calls, run.stats.refused) == (3, 3)


@pytest.mark.parametrize(("between", "ended"), [(17, True), (18, False)])
def test_window_of_twenty(between: int, ended: bool) -> None:
    """The three failures have to lie within the last twenty calls."""
    with guarded_run("opendev", policy=Policy.opendev(), on_stop="end") as run:
        fail(run, "test")
        fail(run, "test")
        for number in range(between):
            make(run, "read", path=str(number))
        fail(run, "test")
        make(run, "read", path="next")

    assert (run.stopped is not None) is ended


def test_another_error_does_not_count() -> None:
    """Errors are compared as they are: a different text is a different failure."""
    with guarded_run("opendev", policy=Policy.opendev()) as run:
        for number in range(10):
            fail(run, "test", error=f"line {number}: failed")
        make(run, "read", path="a")

    assert run.findings == ()


def test_other_arguments_do_not_count() -> None:
    """The same error of three different calls is no doom loop."""
    with guarded_run("opendev", policy=Policy.opendev()) as run:
        for number in range(10):
            fail(run, "test", path=str(number))
        make(run, "read", path="a")

    assert run.findings == ()


def test_successes_are_left_alone() -> None:
    """The same result again and again is none of its business."""
    with guarded_run("opendev", policy=Policy.opendev()) as run:
        for _ in range(30):
            make(run, "read", path="a")

    assert run.findings == ()


def test_success_in_between_does_not_help() -> None:
    """The failures are counted within the window, not in a row; the default would begin anew."""

    def play(policy: Policy) -> bool:
        with guarded_run("flaky", policy=policy, on_stop="end") as run:
            for _ in range(3):
                fail(run, "test")
                make(run, "test")
            make(run, "read", path="a")
        return run.stopped is not None

    assert play(Policy.opendev())
    assert not play(Policy())


def test_default_refuses_before_it_stops_and_only_the_pattern() -> None:
    """The default warns, then refuses this one call; another call goes on."""
    with guarded_run("default") as run:
        for _ in range(6):
            with contextlib.suppress(ToolCallRefused):
                fail(run, "test")
        make(run, "read", path="a")

    assert [finding.action for finding in run.findings] == [Action.WARN, Action.REFUSE]
    assert run.stats.calls == 6


def test_rung() -> None:
    """Another number of failures is taken."""
    with guarded_run("opendev", policy=Policy.opendev(stop_after=5), on_stop="end") as run:
        for _ in range(5):
            fail(run, "test")
        assert run.stopped is None
        make(run, "read", path="a")

    assert run.stats.calls == 5
