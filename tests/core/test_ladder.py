"""The ladder: what a row of equal calls leads to, and when it is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from loopguard.engine import Engine
from loopguard.errors import PolicyError
from loopguard.policy import Plan, Policy
from loopguard.records import Action, ErrorClass, Hit, Kind, Status, Tool
from loopguard.rules import Failing, Limits, Poll, Repeat, SameCall

READ, WRITE, UNKNOWN, POLL, SAMPLE = (
    int(kind) for kind in (Kind.READ, Kind.WRITE, Kind.UNKNOWN, Kind.POLL, Kind.SAMPLE)
)
THINK = int(Kind.THINK)
FAILED = int(Status.FAILED)


class Agent:
    """Makes calls in a run and writes down what became of them."""

    def __init__(self, policy: Policy | None = None, limits: Limits | None = None) -> None:
        self.engine = Engine(Plan(policy or Policy(), limits))

    def start(self, key: int = 1, kind: int = READ, tool: Tool | str = "read", **more: Any) -> int | Hit:
        """Ask for a call."""
        tool = Tool(tool) if isinstance(tool, str) else tool
        return self.engine.start(more.pop("at", None), self.engine.bind(tool), kind, key, **more)

    def call(
        self,
        key: int = 1,
        outcome: int = 10,
        kind: int = READ,
        tool: Tool | str = "read",
        at: float | None = None,
        **more: Any,
    ) -> str:
        """Make a call. Returns "run", or the action that came of it: "warn", "refuse", "stop"."""
        target = more.pop("target", 0)
        said = self.start(key, kind, tool, at=at, target=target)
        if isinstance(said, Hit):
            return str(said.action)
        hit = self.engine.end(at, said, more.pop("status", 0), outcome, more.pop("template", outcome), **more)
        return "run" if hit is None else str(hit.action)

    def calls(self, n: int, **more: Any) -> list[str]:
        """Make the same call ``n`` times."""
        return [self.call(**more) for _ in range(n)]

    def write(self, key: int = 99, **more: Any) -> str:
        """A write that succeeds."""
        return self.call(key, kind=WRITE, tool="write", **more)


def row(text: str) -> list[str]:
    """``"3run warn"`` as a list."""
    result = []
    for word in text.split():
        count = int(word.rstrip("abcdefghijklmnopqrstuvwxyz") or 1)
        result += [word.lstrip("0123456789")] * count
    return result


# -- the table ------------------------------------------------------------------------------------------------------


def test_an_agent_that_never_learns() -> None:
    """With 3 / 5 / 10: five are executed, the third warns, the sixth to tenth are refused, the eleventh ends the run."""
    assert Agent().calls(12) == row("2run warn 2run 5refuse 2stop")


def test_five_refusals_are_one_event() -> None:
    """The first refusal and the stop are reported, the others only counted."""
    agent = Agent()
    agent.calls(5)
    hits = [agent.start() for _ in range(7)]

    assert all(isinstance(hit, Hit) for hit in hits)
    assert [hit.report for hit in hits if isinstance(hit, Hit)] == [True, False, False, False, False, True, False]
    assert [hit.refused for hit in hits if isinstance(hit, Hit)] == [0, 1, 2, 3, 4, 5, 5]
    assert agent.engine.totals["refused"] == 7


def test_without_a_refusal_ten_run() -> None:
    """Without ``refuse_after`` ten are executed and the eleventh ends the run."""
    policy = Policy(Repeat(refuse_after=0))

    assert Agent(policy).calls(11) == row("2run warn 7run stop")


def test_fifty_gathered_at_once() -> None:
    """Of fifty identical calls in flight five run, 45 are refused in one round, and the run goes on."""
    agent = Agent()
    said = [agent.start() for _ in range(50)]
    admitted = [seq for seq in said if isinstance(seq, int)]
    refused = [hit for hit in said if isinstance(hit, Hit)]

    assert len(admitted) == 5
    assert {hit.action for hit in refused} == {Action.REFUSE}
    assert [hit.report for hit in refused] == [True] + [False] * 44
    assert agent.engine.books.ignored == {}
    assert [agent.engine.end(None, seq, 0, 10) is None for seq in admitted] == [True, True, False, True, True]
    assert agent.engine.latch is None
    # One refused round is remembered: four more, then the stop.
    assert agent.calls(5) == row("4refuse stop")


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        ((1, 2, 3), "warn run refuse stop"),
        ((2, 3, 4), "run warn run refuse stop"),
        ((1, 1, 1), "warn stop"),
        ((1, 1, 2), "warn refuse stop"),
        ((3, 3, 3), "2run warn stop"),
        ((0, 2, 3), "2run refuse stop"),
        ((None, 0, 2), "2run stop"),
        ((2, 0, 0), "run warn 4run"),
        ((0, None, 0), "8run"),
        ((0, 0, 1), "run stop"),
    ],
)
def test_rungs_from_both_sides(rungs: tuple[int | None, int | None, int | None], expected: str) -> None:
    """Each rung acts at its number and not one before; 0 and None are off."""
    warn, refuse, stop = rungs
    repeat = Repeat(
        warn_after=warn,
        refuse_after=refuse,
        stop_after=stop,
        unknown_warn_after=0,
        unknown_refuse_after=0,
        unknown_stop_after=0,
    )
    assert Agent(Policy.of(repeat)).calls(len(row(expected))) == row(expected)


def test_one_rung_for_one_tool() -> None:
    """A tool's own rungs replace the policy's for that tool alone."""
    agent = Agent()
    tool = Tool("look", rungs=(("warn_after", 2), ("refuse_after", 3), ("stop_after", 4)))

    assert agent.calls(5, key=7, tool=tool) == row("run warn run refuse stop")
    with pytest.raises(PolicyError, match="out of order"):
        agent.engine.bind(Tool("bad", rungs=(("warn_after", 6),)))


def test_what_rests_on_inexact_arguments_is_not_refused() -> None:
    """Arguments without a canonical form may warn, and never refuse."""
    agent = Agent()
    bound = agent.engine.bind(Tool("read"), exact=False)
    said = []
    for _ in range(20):
        seq = agent.engine.start(None, bound, READ, 1)
        assert isinstance(seq, int)
        hit = agent.engine.end(None, seq, 0, 10)
        said.append("run" if hit is None else str(hit.action))

    assert said == row("2run warn 17run")


# -- forgetting -----------------------------------------------------------------------------------------------------


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


# -- compaction -----------------------------------------------------------------------------------------------------


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


def test_presets_know_no_compaction() -> None:
    """loopctl has no free repetition."""
    agent = Agent(Policy.loopctl())
    agent.calls(2)
    agent.engine.note_compaction()

    assert agent.call() == "warn"


# -- calls in flight and rounds -------------------------------------------------------------------------------------


def test_flight_does_not_count_for_a_call_that_flips() -> None:
    """A call whose last two outcomes differed may be gathered as often as it likes."""
    agent = Agent()
    agent.call(outcome=10)
    agent.call(outcome=11)

    assert all(isinstance(agent.start(), int) for _ in range(20))


@pytest.mark.parametrize("kind", [POLL, SAMPLE])
def test_flight_does_not_count_for_samples_and_polls(kind: int) -> None:
    """Samples and polls that are in flight are no evidence."""
    agent = Agent()

    assert all(isinstance(agent.start(kind=kind), int) for _ in range(20))


def test_flight_never_stops() -> None:
    """Calls in flight may refuse, they never end a run."""
    agent = Agent(Policy(Repeat(refuse_after=0, stop_after=3)))

    assert all(isinstance(agent.start(), int) for _ in range(20))


def test_refused_attempts_of_one_said_round_count_once() -> None:
    """Siblings of one reply could not know: together they are one refused round."""
    agent = Agent()
    agent.calls(5)
    for round_ in range(100, 105):
        hits = [agent.start(round_=round_) for _ in range(7)]
        assert {hit.action for hit in hits if isinstance(hit, Hit)} == {Action.REFUSE}
    last = agent.start(round_=200)

    assert isinstance(last, Hit)
    assert last.action is Action.STOP


def test_rounds_that_nobody_said() -> None:
    """A call joins the round while one of its calls is in flight and none has ended."""
    agent = Agent()
    first, second = agent.start(1), agent.start(2)
    assert isinstance(first, int)
    assert isinstance(second, int)
    agent.engine.end(None, first, 0, 10)
    third = agent.start(3)
    assert isinstance(third, int)
    agent.engine.end(None, second, 0, 10)
    agent.engine.end(None, third, 0, 10)

    assert [op.round for op in agent.engine.history] == [1, 1, 2]


def test_a_said_round_takes_all_its_calls() -> None:
    """``note_round`` numbers rounds; the caller says the number with each call."""
    agent = Agent()
    assert agent.engine.note_round() == 1
    for key in (1, 2):
        seq = agent.start(key, round_=1)
        assert isinstance(seq, int)
        agent.engine.end(None, seq, 0, 10)
    assert agent.engine.note_round(7) == 7

    assert [op.round for op in agent.engine.history] == [1, 1]


def test_a_round_may_be_said_with_the_call_alone() -> None:
    """A replayed record names its round, without a note before it."""
    agent = Agent()
    for key, round_ in ((1, 5), (2, 5), (3, 8)):
        seq = agent.start(key, round_=round_)
        assert isinstance(seq, int)
        agent.engine.end(None, seq, 0, 10)

    assert [op.round for op in agent.engine.history] == [5, 5, 8]
    assert agent.engine.round == 8


# -- unknown kinds between ------------------------------------------------------------------------------------------


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


# -- failures -------------------------------------------------------------------------------------------------------


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


# -- recoverable errors of edits ------------------------------------------------------------------------------------

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


# -- masking --------------------------------------------------------------------------------------------------------


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


# -- kinds ----------------------------------------------------------------------------------------------------------


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


# -- limits ---------------------------------------------------------------------------------------------------------


def test_a_limit_of_calls() -> None:
    """A limit warns once at nine tenths and stops the call after the last; the stop sticks."""
    agent = Agent(limits=Limits(calls=20))
    said = [agent.call(n, outcome=n) for n in range(100, 122)]
    latch = agent.engine.latch

    assert said == row("17run warn 2run 2stop")
    assert latch is not None
    assert latch.limit == ("calls", 20, 20)


def test_the_default_warns_at_a_thousand_calls() -> None:
    """Without a number of the user's there is one warning at 1,000 calls and no stop."""
    agent = Agent()
    said = [agent.call(n, outcome=n) for n in range(100, 2_200)]

    assert said == row("999run warn 1100run")


def test_a_user_message_begins_the_count_of_calls_anew() -> None:
    """The limit of calls is per task; the warning may come again."""
    agent = Agent(limits=Limits(calls=10))
    assert [agent.call(n, outcome=n) for n in range(100, 109)] == row("8run warn")
    agent.engine.note_user_message()

    assert [agent.call(n, outcome=n) for n in range(200, 211)] == row("8run warn run stop")


def test_a_limit_of_one_tool() -> None:
    """Calls beyond a tool's limit are refused, with one event; other tools go on."""
    agent = Agent(limits=Limits(calls_per_tool={"search": 2}))
    said = [agent.call(n, tool="search", outcome=n) for n in range(100, 104)]
    hit = agent.start(200, tool="search")

    assert said == row("2run 2refuse")
    assert isinstance(hit, Hit)
    assert hit.limit == ("calls_per_tool[search]", 2, 2)
    assert not hit.report
    assert agent.call(300) == "run"


def test_a_limit_of_refused_rounds() -> None:
    """The refusal after the last allowed one ends the run, whatever refuses."""
    loop = Agent(limits=Limits(refusals=2))
    tool = Agent(limits=Limits(refusals=2, calls_per_tool={"read": 1}))

    assert loop.calls(8) == row("2run warn 2run 2refuse stop")
    assert tool.calls(4) == row("run 2refuse stop")


def test_siblings_of_a_refused_round_use_up_one_refusal() -> None:
    """The limit counts rounds, not calls."""
    agent = Agent(limits=Limits(refusals=1))
    agent.calls(5)
    said = [agent.start(round_=50) for _ in range(4)]

    assert {hit.action for hit in said if isinstance(hit, Hit)} == {Action.REFUSE}
    last = agent.start(round_=51)
    assert isinstance(last, Hit)
    assert last.limit == ("refusals", 1, 1)


def test_a_warning_of_a_rule_goes_before_that_of_a_limit() -> None:
    """One record, one verdict: the limit's warning comes with the next outcome."""
    agent = Agent(limits=Limits(calls=4, handoff_at=0.7))

    assert agent.calls(4) == row("2run warn warn")


# -- several rules --------------------------------------------------------------------------------------------------


def test_the_more_specific_rule_speaks_and_names_the_others() -> None:
    """``Failing`` is more specific than ``Repeat``; the other is named beside it, and both are warned about."""
    agent = Agent(Policy(Repeat(errors=True), SameCall(warn_after=3, refuse_after=5, stop_after=10)))
    agent.calls(2, status=FAILED)
    seq = agent.start()
    assert isinstance(seq, int)
    hit = agent.engine.end(None, seq, FAILED, 10, 10)
    agent.calls(2, status=FAILED)
    refused = agent.start()

    assert hit is not None
    assert (hit.rule, hit.also) == ("failing", ("repeat", "same_call"))
    assert isinstance(refused, Hit)
    assert (refused.rule, refused.also) == ("failing", ("repeat", "same_call"))
    assert agent.engine.totals["warned"] == 1
    # Two repeats before the warning and one with each call after it, however many rules count it.
    assert agent.engine.totals["wasted"] == 4


def test_quiet_after_a_nudge() -> None:
    """For three executed calls after a delivered nudge no other rule warns; the one that spoke may."""
    agent = Agent()
    agent.calls(3)
    agent.engine.note_nudge("repeat", 1)
    failing = agent.calls(4, key=2, status=FAILED)
    assert failing == row("3run warn")
    agent.engine.note_nudge("repeat", 1)

    assert agent.calls(3, key=3) == row("2run warn")


def test_a_tool_can_be_without_a_rule() -> None:
    """``Repeat.off()`` on a tool leaves it out for that tool."""
    agent = Agent()
    tool = Tool("ping", rules=(Repeat.off(), Failing(warn_after=2)))

    assert agent.calls(12, tool=tool) == row("12run")
    assert agent.calls(2, key=2, tool=tool, status=FAILED) == row("run warn")


def test_a_rule_for_one_tool_alone() -> None:
    """``SameCall`` on one tool counts its calls whatever came back, though the policy does not have it."""
    agent = Agent()
    tool = Tool("buy", rules=(SameCall(refuse_after=2, stop_after=4),))

    assert [agent.call(outcome=n, tool=tool) for n in range(10, 15)] == row("2run 2refuse stop")


# -- scope ----------------------------------------------------------------------------------------------------------


def test_loopctl_refuses_whatever_comes_next() -> None:
    """Ten equal calls run with one warning; the eleventh dispatch ends the run though it is another call."""
    agent = Agent(Policy.loopctl())
    assert agent.calls(10) == row("2run warn 7run")

    assert agent.call(2) == "stop"


def test_loopctl_forgets_after_a_warning_only() -> None:
    """Another result drops the older ones of a warned call, and leaves an unwarned one as it was."""
    warned, unwarned = Agent(Policy.loopctl()), Agent(Policy.loopctl())
    warned.calls(3)
    warned.call(outcome=11)
    unwarned.calls(2)
    unwarned.call(outcome=11)

    assert warned.calls(3) == row("2run warn")
    assert unwarned.calls(1) == row("warn")


def test_loopctl_counts_what_lies_apart() -> None:
    """Alternating results are counted each; once warned about, each flip drops the other."""
    agent = Agent(Policy.loopctl(warn_after=2))
    said = [agent.call(outcome=10 + n % 2) for n in range(6)]

    assert said == row("2run 2warn 2run")


def test_opendev_ends_the_run() -> None:
    """After three equal failures within twenty whatever comes next ends the run; successes never do."""
    agent = Agent(Policy.opendev())
    for n in range(3):
        assert agent.call(status=FAILED) == "run"
        agent.calls(2, key=100 + n)

    assert agent.call(555) == "stop"


def test_opendev_forgets_what_slid_out() -> None:
    """Three equal failures further apart than twenty calls are no doom loop."""
    agent = Agent(Policy.opendev())
    for n in range(6):
        assert agent.call(status=FAILED) == "run"
        assert [agent.call(100 + 10 * n + m, outcome=m) for m in range(9)] == row("9run")


def test_rysh_does_not_execute_the_third() -> None:
    """The third identical call in twenty is refused, the agent is told each time, and the run goes on."""
    agent = Agent(Policy.rysh())

    assert [agent.call(outcome=n) for n in range(10, 20)] == row("2run 8refuse")
    for n in range(19):
        assert agent.call(100 + n) == "run"
    assert agent.call() == "run"


def test_scope_run_lets_go_when_the_pattern_slid_out() -> None:
    """With scope "run" a pattern refuses as long as it is in the window."""
    repeat = Repeat(warn_after=0, refuse_after=2, stop_after=5, unknown_warn_after=0, unknown_refuse_after=0)
    policy = Policy.of(repeat.replace(unknown_stop_after=0), stop_scope="run", window=6)
    agent = Agent(policy)
    agent.calls(2)
    held = [agent.start(100 + n) for n in range(2)]
    assert all(isinstance(hit, Hit) and hit.action is Action.REFUSE for hit in held)
    agent.engine.note_descendant_write()

    assert agent.call(300) == "run"
    assert agent.engine.over == {}


def test_scope_run_lets_a_call_in_flight_end() -> None:
    """A call that was admitted before the pattern was over the rung still gets its outcome."""
    agent = Agent(Policy.opendev())
    late = agent.start(9)
    agent.calls(3, status=FAILED)
    assert isinstance(late, int)

    assert agent.engine.end(None, late, 0, 10) is None
    assert agent.call(9) == "stop"


def test_a_warning_about_another_call_names_its_tool() -> None:
    """loopctl reports the highest pattern with whatever call comes; the tool is that of the pattern."""
    agent = Agent(Policy.loopctl(warn_after=3))
    seqs = [agent.start(1, tool="search") for _ in range(3)]
    agent.engine.note_nudge("other", 77)
    for seq in seqs:
        assert isinstance(seq, int)
        assert agent.engine.end(None, seq, 0, 10) is None
    other = agent.start(2, tool="read")
    assert isinstance(other, int)
    hit = agent.engine.end(None, other, 0, 10)

    assert hit is not None
    assert hit.tool == "search"


def test_poll_stop_and_polls_of_another_key() -> None:
    """A poll's rungs hold for its own key."""
    agent = Agent(Policy.of(Poll(warn_after=2, refuse_after=3, stop_after=4)))

    assert agent.calls(5, kind=POLL) == row("run warn run refuse stop")
