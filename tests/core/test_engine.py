"""The fold: what each kind of record does to the state of a run."""

from __future__ import annotations

from typing import Any

import pytest

from loopguard import engine as engine_module
from loopguard import index as index_module
from loopguard.engine import Engine
from loopguard.index import OTHER_TOOLS
from loopguard.policy import Plan, Policy
from loopguard.records import Action, Hit, Kind, Status, Tool
from loopguard.rules import Limits, Repeat, SameCall
from loopguard.snapshot import snapshot

READ = int(Kind.READ)
TOOL = Tool("read")


def run(policy: Policy | None = None, **limits: Any) -> Engine:
    """A fresh run."""
    return Engine(Plan(policy or Policy(), Limits(**limits) if limits else None))


def start(engine: Engine, key: int = 1, at: float | None = None, tool: Tool = TOOL, kind: int = READ) -> int:
    """Ask for a call that is let through."""
    seq = engine.start(at, engine.bind(tool), kind, key)
    assert isinstance(seq, int)
    return seq


def refused(engine: Engine, key: int = 1, at: float | None = None, tool: Tool = TOOL) -> Hit:
    """Ask for a call that is not let through."""
    hit = engine.start(at, engine.bind(tool), READ, key)
    assert isinstance(hit, Hit)
    return hit


def call(engine: Engine, key: int = 1, outcome: int = 10, at: float | None = None, tool: Tool = TOOL) -> Hit | None:
    """Make a call that is let through and succeeds."""
    return engine.end(at, start(engine, key, at, tool), 0, outcome)


# -- what an operation says -----------------------------------------------------------------------------------------


def test_operations_say_what_happened() -> None:
    """An executed call becomes an operation with its numbers, times and outcome."""
    engine = run()
    seq = engine.start(5.0, engine.bind(TOOL), READ, 7, target=3)
    assert isinstance(seq, int)
    engine.end(7.5, seq, int(Status.FAILED), 10, 20, error_class=1)
    [op] = engine.operations()

    assert (op.n, op.seq, op.tool, op.key, op.kind, op.status, op.outcome) == (1, 1, "read", 7, READ, 1, 20)
    assert (op.at, op.took, op.error_class, op.round) == (7.5, 2.5, 1, 1)
    assert (op.soft, op.free, op.masked, op.ended) == (False, False, 0, False)
    assert engine.totals["failed"] == 1


def test_evidence_says_when_and_how_long() -> None:
    """A finding knows when its calls were and what the repeats cost."""
    engine = run()
    for n in range(3):
        seq = start(engine, at=10.0 * n)
        hit = engine.end(10.0 * n + 2, seq, 0, 10)

    assert hit is not None
    assert (hit.evidence.first_at, hit.evidence.last_at, hit.evidence.wasted_s) == (2.0, 22.0, 4.0)
    assert hit.evidence.seqs == (1, 2, 3)


def test_the_history_keeps_more_than_counts() -> None:
    """``history`` operations are kept to explain, ``window`` of them count."""
    engine = run(Policy.of(Repeat(unknown_stop_after=0, unknown_refuse_after=0), window=10, history=12))
    for key in range(20):
        call(engine, key)

    assert [op.key for op in engine.operations()] == list(range(8, 20))
    assert engine.in_window(engine.keys[19])
    assert not engine.in_window(engine.keys[0])


# -- abandoned calls ------------------------------------------------------------------------------------------------


def test_an_abandoned_call_is_no_operation() -> None:
    """It counts for limits, is no evidence, and leaves nothing behind."""
    engine = run(calls=3)
    for _ in range(3):
        assert engine.end(None, start(engine), int(Status.ABANDONED)) is None

    assert engine.totals["abandoned"] == 3
    assert engine.n == 0
    assert engine.keys == {}
    assert refused(engine).limit == ("calls", 3, 3)


def test_an_abandoned_call_does_not_break_a_row() -> None:
    """Evidence goes on where it was."""
    engine = run()
    call(engine)
    engine.end(None, start(engine), int(Status.ABANDONED))
    call(engine)

    hit = call(engine)
    assert hit is not None
    assert hit.action is Action.WARN


def test_a_lease_runs_out() -> None:
    """A call without an outcome counts as abandoned when a later record is more than the lease after it."""
    engine = run(Policy(lease_s=60.0))
    for _ in range(5):
        start(engine, at=0.0)
    assert refused(engine, at=60.0).action is Action.REFUSE
    start(engine, at=60.1)

    assert engine.totals["abandoned"] == 5
    assert len(engine.open) == 1
    assert len(engine.late) == 5


def test_a_late_end_is_taken_in_once() -> None:
    """What ends after its lease is an operation after all; the second time it is nothing."""
    engine = run(Policy(lease_s=60.0))
    seq = start(engine, at=0.0)
    start(engine, 2, at=100.0)
    engine.end(101.0, seq, 0, 10)
    engine.end(102.0, seq, 0, 10)

    assert [op.seq for op in engine.history] == [seq]
    assert engine.totals["abandoned"] == 0
    assert engine.keys[1].flight == 0


def test_a_late_call_that_was_abandoned_stays_so() -> None:
    """Giving up after the lease changes nothing; an end of an unknown number is dropped."""
    engine = run(Policy(lease_s=60.0))
    seq = start(engine, at=0.0)
    start(engine, 2, at=100.0)

    assert engine.end(101.0, seq, int(Status.ABANDONED)) is None
    assert engine.end(101.0, 999, 0, 10) is None
    assert engine.totals["abandoned"] == 1
    assert engine.late == {}


def test_only_so_many_late_calls_are_remembered() -> None:
    """The last hundred calls that outlived their lease may still end."""
    engine = run(Policy(lease_s=60.0))
    for key in range(150):
        start(engine, key, at=0.0)
    start(engine, 999, at=100.0)

    assert list(engine.late) == list(range(51, 151))


def test_only_so_many_calls_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the oldest counts as abandoned, also where records carry no time."""
    monkeypatch.setattr(engine_module, "MAX_OPEN", 10)
    engine = run()
    for key in range(25):
        start(engine, key)

    assert list(engine.open) == list(range(16, 26))
    assert engine.totals["abandoned"] == 15


# -- observe mode ---------------------------------------------------------------------------------------------------


def test_watching_counts_the_same_numbers() -> None:
    """Refused attempts that are executed after all are refused, reported and stopped at the same calls."""
    engine = run()
    said = []
    for _ in range(14):
        hit = engine.start(None, engine.bind(TOOL), READ, 1)
        if isinstance(hit, Hit):
            said.append((str(hit.action), hit.report))
            seq = engine.override(None, engine.bind(TOOL), READ, 1)
        else:
            said.append(("go", False))
            seq = hit
        engine.end(None, seq, 0, 10)

    assert said[:5] == [("go", False)] * 5
    assert said[5:10] == [("refuse", True)] + [("refuse", False)] * 4
    assert said[10:] == [("stop", True)] + [("stop", False)] * 3
    assert engine.totals["refused"] == 0
    assert engine.rows["read"].calls == 14
    assert engine.latch is None


def test_an_overridden_call_may_be_new_to_the_run() -> None:
    """A call refused by a limit is executed in a round of its own where none is in flight."""
    engine = run(calls=1)
    call(engine)
    assert refused(engine, 2).action is Action.STOP
    seq = engine.override(None, engine.bind(TOOL), READ, 2, target=4)
    engine.end(None, seq, 0, 10)
    assert refused(engine, 3).action is Action.STOP
    engine.override(None, engine.bind(TOOL), READ, 3, round_=9)
    assert refused(engine, 4).action is Action.STOP
    engine.override(None, engine.bind(TOOL), READ, 4)

    assert [op.round for op in engine.history] == [1, 2]
    assert engine.round == 9
    assert engine.keys[2].target == 4


# -- stop, resume, limits of children -------------------------------------------------------------------------------


def test_a_stop_sticks() -> None:
    """After a stop every call is refused with the hit that ended the run, and it is reported once."""
    engine = run()
    hit = engine.stop("runaway")

    assert hit.report
    assert refused(engine, 5) == hit._replace(report=False, seq=1)
    assert engine.tick(TOOL) == hit._replace(report=False)
    assert hit.evidence.pattern == ("stop", "runaway")


def test_resume_starts_anew() -> None:
    """Evidence, refusals and counts of limits are forgotten, totals stay."""
    engine = run(calls=5)
    for _ in range(5):
        call(engine)
    assert refused(engine).report
    engine.resume()
    hits = [call(engine) for _ in range(5)]
    again = refused(engine)

    assert [hit is not None for hit in hits] == [False, False, True, False, True]
    assert again.report
    assert again.limit == ("calls", 5, 5)
    assert engine.totals["refused"] == 2


@pytest.mark.parametrize(
    "policy", [Policy.loopctl(stop_after=3), Policy.opendev(), Policy.of(SameCall(stop_after=3))], ids=str
)
def test_resume_forgets_for_every_rule(policy: Policy) -> None:
    """Presets, which know no restarts, do not stop again at the next call."""
    engine = run(policy)
    status = int(Status.FAILED)
    while isinstance(engine.start(None, engine.bind(TOOL), READ, 1), int):
        engine.end(None, engine.seq, status, 10, 10)
    engine.start(None, engine.bind(TOOL), READ, 1)
    engine.resume()

    assert engine.latch is None
    engine.end(None, start(engine), status, 10, 10)
    engine.end(None, start(engine), status, 10, 10)


def test_a_user_message_after_a_stopped_preset_starts_anew() -> None:
    """The user's word lifts loopctl's stop too, and its count with it."""
    engine = run(Policy.loopctl(warn_after=2, stop_after=2))
    call(engine)
    call(engine)
    refused(engine, 2)
    engine.note_user_message()

    assert call(engine) is None
    assert call(engine) is not None


def test_a_child_counts_for_the_limits_of_its_parent() -> None:
    """A call of a run below uses up the limits here, and is no evidence."""
    engine = run(calls=3, calls_per_tool={"search": 1})

    assert engine.tick(Tool("search")) is None
    hit = engine.tick(Tool("search"))
    assert hit is not None
    assert (hit.action, hit.limit) == (Action.REFUSE, ("calls_per_tool[search]", 1, 1))
    assert engine.tick(TOOL) is None
    assert engine.tick(TOOL) is None
    hit = engine.tick(TOOL)
    assert hit is not None
    assert (hit.action, hit.limit) == (Action.STOP, ("calls", 3, 3))
    assert refused(engine).action is Action.STOP
    assert engine.n == 0


def test_a_withdrawn_call_was_refused() -> None:
    """An admitted call that a run above refuses was not executed: it counts as refused, for no limit, and as no evidence."""
    engine = run(calls=2)
    engine.withdraw(start(engine))

    assert (engine.calls, engine.rows["read"].calls, engine.rows["read"].refused) == (0, 0, 1)
    assert engine.keys == {}
    assert [call(engine), call(engine) is not None] == [None, True]
    assert refused(engine).limit == ("calls", 2, 2)


def test_a_call_whose_lease_ran_out_cannot_be_withdrawn() -> None:
    """A run above that refuses too late changes nothing."""
    engine = run()
    seq = start(engine)
    engine.end(None, seq, int(Status.ABANDONED))
    before = snapshot(engine)
    engine.withdraw(seq)

    assert snapshot(engine) == before


# -- acknowledging --------------------------------------------------------------------------------------------------


def test_an_acknowledged_pattern_is_not_warned_about() -> None:
    """Whoever has seen it says so; counting goes on."""
    engine = run()
    call(engine)
    call(engine)
    [(rule, evidence)] = engine.repeats(None)
    engine.acknowledge(evidence.pattern, rule, evidence)

    assert [call(engine) for _ in range(3)] == [None] * 3
    assert refused(engine).action is Action.REFUSE
    assert engine.totals["wasted"] == 3


def test_an_allowed_pattern_is_left_alone() -> None:
    """A ledger that says "allowed" neither warns nor refuses, until progress forgets it."""
    engine = run()
    call(engine)
    [(rule, evidence)] = engine.repeats(None)
    engine.books.open(rule, evidence, engine.n).allowed = True

    assert [call(engine) for _ in range(20)] == [None] * 20
    call(engine, outcome=11)
    assert [call(engine, outcome=11) is not None for _ in range(3)] == [False, True, False]


# -- readings -------------------------------------------------------------------------------------------------------


def test_the_largest_count() -> None:
    """``max_operation_count`` is the largest count of ``Repeat``; 0 in a policy without it."""
    engine = run()
    assert engine.max_operation_count() == 0
    call(engine)
    for _ in range(3):
        call(engine, 2)
    other = run(Policy.opendev())
    call(other)
    tally = run(Policy.loopctl(warn_after=1))
    hit = call(tally)

    assert engine.max_operation_count() == 3
    assert other.max_operation_count() == 0
    assert tally.max_operation_count() == 1
    assert hit is not None


def test_tools_are_bound_once() -> None:
    """The latest declaration under a name holds; the counts of the tool stay."""
    engine = run()
    bound = engine.bind(TOOL)
    assert engine.bind(Tool("read")) is bound
    call(engine)
    changed = engine.bind(Tool("read", edits=True))

    assert changed is not bound
    assert changed.row is bound.row
    assert engine.rows["read"].tool.edits
    assert engine.rows["read"].calls == 1


def test_names_beyond_the_bound_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that invents tool names does not fill the memory, nor escape the limit of a tool that has one."""
    monkeypatch.setattr(index_module, "MAX_TOOLS", 3)
    engine = run(calls_per_tool={"pay": 1})
    for n in range(10):
        call(engine, n, tool=Tool(f"tool {n}"))
    call(engine, 100, tool=Tool("pay"))

    assert set(engine.rows) == {"tool 0", "tool 1", "tool 2", OTHER_TOOLS, "pay"}
    assert engine.rows[OTHER_TOOLS].calls == 7
    assert refused(engine, 101, tool=Tool("pay")).limit == ("calls_per_tool[pay]", 1, 1)


def test_tools_made_on_the_fly_do_not_fill_the_plan() -> None:
    """The rules of tools are kept for a thousand of them, then anew."""
    plan = Plan(Policy())
    for n in range(1_100):
        plan.rules_for(Tool(f"tool {n}"))

    assert len(plan._rules) < 1_010


def test_what_slid_out_is_swept() -> None:
    """Calls that left the window are forgotten, those in flight are not."""
    engine = run(Policy.rysh(window=10))
    held = start(engine, 10_000)
    for key in range(200):
        call(engine, key)

    assert len(engine.keys) <= 10 + 16 + 1
    assert len(engine.seen) <= 10 + 16 + 1
    assert engine.open[held][0] is engine.keys[10_000]
