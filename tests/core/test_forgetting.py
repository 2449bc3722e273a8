"""What is evidence, and when it is forgotten: progress, restarts, compaction, kinds, failures, masking."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loopguard.policy import Policy
from loopguard.records import ErrorClass, Kind, Status, Tool
from loopguard.rules import Limits, Repeat
from loopguard.testing.caller import WRITE, row
from loopguard.testing.caller import Caller as Agent

UNKNOWN, POLL, SAMPLE, THINK = (int(kind) for kind in (Kind.UNKNOWN, Kind.POLL, Kind.SAMPLE, Kind.THINK))
FAILED = int(Status.FAILED)


# -- forgetting -------------------------------------------------------------------------------------------------------


def test_a_new_outcome_forgets() -> None:
    """Another result of the same call is progress: count, warning and refusals start anew."""
    agent = Agent()
    agent.calls(4)

    assert agent.call(outcome=11) == "run"
    assert agent.calls(5, outcome=11)[:4] == row("run warn 2run")
    assert agent.engine.max_operation_count() == 5


def test_refusals_are_forgotten_with_the_count() -> None:
    """After a novel write the same call is executed five times again, and the stop is ten away."""
    agent = Agent()
    agent.calls(9)
    agent.write()

    assert agent.calls(11) == row("2run warn 2run 5refuse stop")


def test_an_unknown_outcome_equals_nothing() -> None:
    """Results without a canonical form never repeat."""
    assert Agent().calls(20, outcome=0) == row("20run")


def test_empty_outcomes_are_equal() -> None:
    """Two empty results are the same result."""
    assert Agent().calls(3, outcome=1) == row("2run warn")


def test_an_unknown_outcome_refutes_a_warning_about_another() -> None:
    """With ``warn_after=1`` every unknown outcome is a pattern of its own."""
    policy = Policy(Repeat(warn_after=1))

    assert Agent(policy).calls(3, outcome=0) == row("3warn")


def test_a_slow_loop_slides_out() -> None:
    """Matches further apart than the window do not add up, and a warned pattern that returns is not warned about again."""
    agent = Agent(Policy.of(Repeat(unknown_stop_after=0, unknown_refuse_after=0), window=10, history=10))
    for n in range(12):
        assert agent.call() == "run"
        for other in range(6):
            assert agent.call(1_000 + 10 * n + other) == "run"

    assert agent.calls(2)[-1] == "warn"
    for other in range(12):
        agent.call(5_000 + other)
    assert agent.calls(4) == row("4run")


def test_a_novel_write_restarts() -> None:
    """A write that is not in the window forgets the counts."""
    agent = Agent()
    for n in range(6):
        assert agent.calls(2) == row("2run")
        assert agent.write(100 + n) == "run"


@pytest.mark.parametrize(
    "more",
    [{"status": FAILED}, {"changed": False}, {"outcome": 11}],
    ids=["failed", "changed nothing", "repeated"],
)
def test_other_writes_restart_nothing(more: dict[str, Any]) -> None:
    """A write that failed, that says nothing changed, or that was made before, forgets nothing."""
    agent = Agent()
    if "outcome" in more:
        agent.write()
    agent.calls(2)
    agent.write(**more)

    assert agent.call() == "warn"


def test_a_user_message_restarts() -> None:
    """A real message of the user forgets counts and lifts a stop that a loop caused."""
    agent = Agent()
    agent.calls(2)
    agent.engine.note_user_message()
    assert agent.calls(11) == row("2run warn 2run 5refuse stop")
    agent.engine.note_user_message()

    assert agent.engine.latch is None
    assert agent.calls(2) == row("2run")


def test_a_user_message_lifts_no_other_stop() -> None:
    """A stop from outside, or by a limit, stays after a user message."""
    stopped = Agent()
    stopped.engine.stop("enough")
    stopped.engine.note_user_message()
    limited = Agent(limits=Limits(calls=1))
    limited.calls(2)
    limited.engine.note_user_message()

    assert stopped.call() == "stop"
    assert limited.call() == "stop"


def test_a_descendants_write_restarts() -> None:
    """A novel write of a run below forgets the counts here; policies without restarts keep them."""
    agent = Agent()
    agent.calls(2)
    agent.engine.note_descendant_write()
    assert agent.call() == "run"
    other = Agent(Policy.of(Repeat(), restarts=False))
    other.calls(2)
    other.engine.note_descendant_write()
    other.engine.note_user_message()
    other.write()

    assert other.call() == "warn"


# -- compaction -------------------------------------------------------------------------------------------------------


def test_a_compaction_grants_one_repetition() -> None:
    """After the memory was cut a call of before may be repeated once without counting."""
    agent = Agent()
    agent.calls(2)
    agent.engine.note_compaction()

    assert agent.calls(2) == row("run warn")


def test_a_free_repetition_is_no_evidence() -> None:
    """It neither counts as ignoring a warning, nor as waste, nor is it in the evidence."""
    agent = Agent()
    agent.calls(3)
    agent.engine.note_nudge("repeat", 1)
    before = agent.engine.totals["wasted"]
    agent.engine.note_compaction()
    agent.call()
    [(_, evidence)] = agent.engine.repeats(None)

    assert evidence.seqs == (1, 2, 3)
    assert agent.engine.totals["wasted"] == before
    assert agent.engine.books.ignored == {}


def test_a_call_made_since_the_compaction_has_no_free_repetition() -> None:
    """Only what was called before the memory was cut was forgotten."""
    agent = Agent()
    agent.engine.note_compaction()
    agent.call(2)

    assert agent.calls(3) == row("2run warn")


def test_a_free_repetition_that_outlives_its_row() -> None:
    """When the row slid out and only the free repetition is in the window, the count starts with the next call."""
    agent = Agent(Policy.of(Repeat(unknown_stop_after=0, unknown_refuse_after=0), window=10, history=10))
    agent.calls(2)
    agent.engine.note_compaction()
    agent.call()
    for n in range(9):
        agent.call(100 + n)

    assert [evidence.key for _, evidence in agent.engine.repeats(None)] == list(range(100, 109))
    assert agent.calls(3) == row("2run warn")


def test_what_lies_before_a_free_repetition_counts_with_the_next_match() -> None:
    """A call of unknown kind between: the row is as it was until another operation stands on its other side."""
    agent = Agent()
    agent.calls(2)
    agent.call(9, outcome=11, kind=UNKNOWN, tool="run")
    agent.engine.note_compaction()
    agent.call()
    [before] = [evidence for _, evidence in agent.engine.repeats(None) if evidence.key == 1]

    assert (before.done, before.warn) == (2, 3)
    assert agent.calls(3) == row("2run warn")


def test_presets_know_no_compaction() -> None:
    """loopctl has no free repetition."""
    agent = Agent(Policy.loopctl())
    agent.calls(2)
    agent.engine.note_compaction()

    assert agent.call() == "warn"


# -- unknown kinds between --------------------------------------------------------------------------------------------


def test_calls_of_unknown_kind_between_make_it_patient() -> None:
    """If a call that may have changed the world lies between two matches the rungs are 5 / 10 / 20."""
    agent = Agent()
    agent.call()
    agent.call(500, kind=UNKNOWN, tool="run", outcome=0)

    assert agent.calls(20) == row("3run warn 5run 10refuse stop")


def test_a_call_of_unknown_kind_is_not_between_itself() -> None:
    """The repeated call itself may be of unknown kind: nothing lies between."""
    assert Agent().calls(6, kind=UNKNOWN) == row("2run warn 2run refuse")


def test_the_call_between_slides_out() -> None:
    """Once the match before it left the window the call of unknown kind does not lie between two matches any more."""
    policy = Policy.of(
        Repeat(warn_after=2, refuse_after=3, stop_after=4, unknown_refuse_after=0, unknown_stop_after=0), window=6
    )
    agent = Agent(policy)
    agent.call()
    agent.call(500, kind=UNKNOWN, tool="run")
    agent.calls(3)
    for n in range(3):
        agent.call(600 + n)

    assert agent.call() == "refuse"


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error_class", "expected"),
    [
        (ErrorClass.OTHER, "2run warn 2run 5refuse stop"),
        (ErrorClass.NONE, "2run warn 2run 5refuse stop"),
        (ErrorClass.FINAL_NETWORK, "2run warn 2run 5refuse stop"),
        (ErrorClass.FINAL_TOOL, "run warn run 2refuse stop"),
        (ErrorClass.FINAL_ACCESS, "run warn run 2refuse stop"),
        (ErrorClass.DENIED, "run warn run 2refuse stop"),
        (ErrorClass.RECOVERABLE, "3run warn 2run 4refuse stop"),
        (ErrorClass.TRANSIENT, "4run warn 5run 10refuse stop"),
    ],
)
def test_failures_by_class(error_class: ErrorClass, expected: str) -> None:
    """How patient the guard is with the same error depends on what kind of error it is."""
    agent = Agent()

    assert agent.calls(len(row(expected)), status=FAILED, error_class=int(error_class)) == row(expected)


def test_failures_are_compared_by_their_template() -> None:
    """Errors that differ in volatile text alone are the same error; without masking they are not."""
    same, literal = Agent(), Agent(Policy(masking=False))
    for n in range(2):
        same.call(outcome=100 + n, template=20, status=FAILED)
        literal.call(outcome=100 + n, template=20, status=FAILED)

    assert same.call(outcome=102, template=20, status=FAILED) == "warn"
    assert literal.call(outcome=102, template=20, status=FAILED) == "run"


def test_a_success_between_ends_the_row() -> None:
    """The same error after a success is a new row; success and failure with one text are not the same."""
    agent = Agent()
    agent.calls(2, status=FAILED)
    agent.call(outcome=10)
    agent.call(outcome=10)

    assert agent.calls(3, status=FAILED) == row("2run warn")


def test_transient_failures_with_growing_waits() -> None:
    """Who waits longer each time is neither refused nor stopped; who waits evenly is."""
    patient, hasty = Agent(), Agent()
    transient = {"status": FAILED, "error_class": int(ErrorClass.TRANSIENT)}
    longer = [patient.call(at=float(2**n), **transient) for n in range(24)]
    evenly = [hasty.call(at=float(n), **transient) for n in range(11)]

    assert longer == row("4run warn 19run")
    assert evenly == row("4run warn 5run refuse")


def test_refusals_are_no_waits() -> None:
    """Who asks on at the same pace is refused each time: the time that refusals take is no wait that grows."""
    agent = Agent()
    transient = {"status": FAILED, "error_class": int(ErrorClass.TRANSIENT)}
    said = [agent.call(at=5.0 * n, **transient) for n in range(21)]

    assert said == row("4run warn 5run 10refuse stop")


def test_who_waits_after_a_refusal_may_try_again() -> None:
    """A clearly longer wait is what the nudge asks for."""
    agent = Agent()
    transient = {"status": FAILED, "error_class": int(ErrorClass.TRANSIENT)}
    said = [agent.call(at=at, **transient) for at in (*range(10), 10, 20, 21, 40)]

    assert said == row("4run warn 5run refuse run refuse run")


@pytest.mark.parametrize("growth", [0.001, 0.4])
def test_waits_that_hardly_grow(growth: float) -> None:
    """A model that answers more slowly each time is not waiting."""
    agent = Agent()
    transient = {"status": FAILED, "error_class": int(ErrorClass.TRANSIENT)}
    said = [agent.call(at=5.0 * n + growth * n * n / 2, **transient) for n in range(11)]

    assert said == row("4run warn 5run refuse")


def test_calls_without_a_wait_are_not_waiting() -> None:
    """Microseconds that grow are no waits."""
    agent = Agent()
    transient = {"status": FAILED, "error_class": int(ErrorClass.TRANSIENT)}
    said = [agent.call(at=1e-6 * 2**n, **transient) for n in range(11)]

    assert said == row("4run warn 5run refuse")


def test_transient_failures_with_a_poll_between() -> None:
    """A poll between two attempts shows that the agent waits for something."""
    agent = Agent()
    said = []
    for n in range(24):
        said.append(agent.call(status=FAILED, error_class=int(ErrorClass.TRANSIENT)))
        agent.call(800, kind=POLL, tool="status", outcome=100 + n)

    assert said == row("4run warn 19run")


def test_failing_polls_are_transient() -> None:
    """A poll that fails has the patience of transient errors."""
    assert Agent().calls(5, kind=POLL, status=FAILED) == row("4run warn")


# -- recoverable errors of edits --------------------------------------------------------------------------------------

EDIT = Tool("edit", edits=True)


def edit(agent: Agent, key: int, recoverable: bool = False, target: int = 5) -> str:
    """One edit of the file; it succeeds without a change, or fails in a way that the tool calls recoverable."""
    failed = {"status": FAILED, "error_class": int(ErrorClass.RECOVERABLE)} if recoverable else {"changed": False}
    return agent.call(key, kind=WRITE, tool=EDIT, target=target, **failed)


def test_a_recoverable_error_clears_the_edits_of_its_file() -> None:
    """Counts and warnings about edits of that file start anew; edits of another file keep theirs."""
    agent = Agent()
    for _ in range(3):
        last = edit(agent, 1)
        edit(agent, 2, target=6)
    assert last == "warn"
    edit(agent, 3, recoverable=True)

    assert [edit(agent, 1) for _ in range(3)] == row("2run warn")
    assert edit(agent, 2, target=6) == "run"
    assert edit(agent, 2, target=6) == "run"
    assert edit(agent, 2, target=6) == "refuse"


def test_a_row_of_recoverable_errors_is_a_loop_all_the_same() -> None:
    """An unbroken row of them is warned about, refused and stopped, later than other errors."""
    agent = Agent()

    assert [edit(agent, 1, recoverable=True) for _ in range(11)] == row("3run warn 2run 4refuse stop")


def test_loopctl_forgets_failed_edits_too() -> None:
    """In loopctl's count a row of recoverable edit errors never grows; OPENDEV knows no such thing."""
    loopctl, opendev = Agent(Policy.loopctl()), Agent(Policy.opendev())

    assert [edit(loopctl, 1, recoverable=True) for _ in range(9)] == row("9run")
    assert [edit(opendev, 1, recoverable=True) for _ in range(4)] == row("3run stop")


def test_only_files_in_the_window_are_remembered_as_cleared() -> None:
    """However many files have recoverable errors, the state stays small."""
    agent = Agent(Policy.of(Repeat(unknown_stop_after=0, unknown_refuse_after=0), window=10, history=10))
    for n in range(40):
        edit(agent, 100 + n, recoverable=True, target=200 + n)

    assert len(agent.engine.cleared) <= 11


# -- masking ----------------------------------------------------------------------------------------------------------


def test_a_masked_match_may_only_warn() -> None:
    """Results that differ in volatile text alone are warned about once, and never refused."""
    agent = Agent()
    said = [agent.call(outcome=100 + n, masked=30) for n in range(15)]

    assert said == row("2run warn 12run")


def test_the_previous_masked_digest_may_come_from_the_caller() -> None:
    """The first outcome was not masked when it came; the caller masks it with the second one."""
    agent = Agent()
    agent.call(outcome=100)
    agent.call(outcome=101, masked=30, prev_masked=30)

    assert agent.call(outcome=102, masked=30) == "warn"
    assert agent.call(outcome=103, masked=31) == "run"
    assert agent.engine.max_operation_count() == 1


def test_an_unknown_outcome_is_not_masked_either() -> None:
    """What has no digest equals nothing, whatever the masked text says."""
    agent = Agent()
    agent.call(outcome=0, masked=30)
    agent.calls(2, outcome=10, masked=30)

    assert agent.engine.max_operation_count() == 2


# -- kinds ------------------------------------------------------------------------------------------------------------


def test_thoughts_are_no_evidence() -> None:
    """A tool to think with is skipped by all rules, and counts for limits."""
    agent = Agent(limits=Limits(calls=20))

    assert agent.calls(21, kind=THINK) == row("17run warn 2run stop")
    assert agent.engine.n == 0
    assert agent.engine.keys == {}


def test_samples_are_no_evidence() -> None:
    """Dice may show the same number again."""
    agent = Agent()

    assert agent.calls(30, kind=SAMPLE) == row("30run")
    assert agent.engine.max_operation_count() == 0


@pytest.mark.parametrize("step", [5.0, 6.0, 7.0])
def test_a_poll_is_warned_about_before_it_is_refused(step: float) -> None:
    """Also where the patience ends between two calls that are many enough for both."""
    agent = Agent()
    said = [agent.call(at=step * n, kind=POLL, tool="status") for n in range(125)]
    until = math.ceil(600 / step)

    assert said == row(f"{until}run warn {124 - until}refuse")


def test_polls_have_patience() -> None:
    """Equal answers of a poll are said after ten, and refused after forty."""
    agent = Agent()

    assert agent.calls(41, kind=POLL) == row("9run warn 30run refuse")


def test_polls_wait_for_the_time_as_well() -> None:
    """With times, nothing is said before ten minutes have passed."""
    agent = Agent()
    said = [agent.call(kind=POLL, at=30.0 * n) for n in range(22)]

    assert said == row("20run warn run")


def test_a_poll_that_ended_is_a_repeat() -> None:
    """Once the answer says that it is over, asking again is a loop like any other."""
    agent = Agent()

    assert agent.calls(4, kind=POLL, ended=True) == row("2run warn run")


def test_failures_with_attempts_to_mend_them_in_between() -> None:
    """A call of unknown kind may have changed what fails; a read has not."""
    mending, reading = Agent(), Agent()
    said: dict[str, list[str]] = {"mending": [], "reading": []}
    for n in range(11):
        said["mending"].append(mending.call(status=FAILED))
        mending.call(100 + n, outcome=200 + n, kind=int(Kind.UNKNOWN), tool="edit")
        said["reading"].append(reading.call(status=FAILED))
        reading.call(100 + n, outcome=200 + n, tool="look")

    assert said["mending"] == row("4run warn 5run refuse")
    assert said["reading"] == row("2run warn 2run 5refuse stop")
