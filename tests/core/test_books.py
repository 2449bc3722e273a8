"""What was said, and what came of it."""

from __future__ import annotations

import pytest

from loopguard import ledger as ledger_module
from loopguard.engine import Engine
from loopguard.ledger import NO_OUTCOME_YET, Books
from loopguard.policy import Plan, Policy
from loopguard.records import Action, Evidence, Hit, Kind, Tool
from loopguard.rules import Cycle, FailingTally, Repeat, SameCall

REPEAT = Repeat()


def evidence(key: int = 1, outcome: int = 10, done: int = 3) -> Evidence:
    """Evidence of three equal calls."""
    return Evidence(("repeat", key), key, outcome, done, tuple(range(1, done + 1)), 3, 5, 10, True)


def call(engine: Engine, key: int = 1, outcome: int = 10) -> Hit | None:
    """One call; a refused one gives its hit."""
    seq = engine.start(None, engine.bind(Tool("read")), int(Kind.READ), key)
    return seq if isinstance(seq, Hit) else engine.end(None, seq, 0, outcome)


# -- ledgers --------------------------------------------------------------------------------------------------------


def test_a_ledger_is_for_one_outcome() -> None:
    """Another outcome of the call opens another ledger in its place."""
    books = Books()
    first = books.open(REPEAT, evidence(), 3)

    assert books.find(evidence()) is first
    assert books.find(evidence(outcome=11)) is None
    second = books.open(REPEAT, evidence(outcome=11), 4)
    assert second is not first
    assert [ledger for _, ledger in books.items()] == [second]
    assert books.find(evidence(key=2)) is None


def test_a_ledger_of_calls_in_flight_takes_the_first_outcome() -> None:
    """Refused while no call had an outcome: the first outcome is not another one, the second may be."""
    books = Books()
    ledger = books.open(REPEAT, evidence(outcome=0, done=0), 0)
    assert ledger.outcome == NO_OUTCOME_YET

    assert books.find(evidence()) is ledger
    assert books.refuted(1, 10) == []
    assert ledger.outcome == 10
    assert books.refuted(1, 11) == [ledger]
    assert books.items() == []


def test_rules_that_do_not_forget_on_change() -> None:
    """``SameCall`` ignores outcomes: another one refutes nothing."""
    books = Books()
    ledger = books.open(SameCall(), evidence(outcome=0), 3)

    assert books.refuted(1, 11) == []
    assert books.find(evidence(outcome=0)) is ledger


def test_a_restart_forgets_what_was_written_before() -> None:
    """Ledgers touched up to that operation go, for rules that restart."""
    books = Books()
    books.open(REPEAT, evidence(), 3)
    later = books.open(REPEAT, evidence(2), 5)
    lasting = books.open(FailingTally(), evidence(3), 1)
    books.restart(4)

    assert [ledger for _, ledger in books.items()] == [later, lasting]


def test_each_rung_is_told_once() -> None:
    """The first warning, refusal and stop of a pattern are news."""
    ledger = Books().open(REPEAT, evidence(), 3)

    assert [ledger.tell(action) for action in (Action.REFUSE, Action.REFUSE, Action.STOP, Action.WARN)] == [
        True,
        False,
        True,
        True,
    ]


def test_a_refused_round_counts_once() -> None:
    """Siblings are one; what is executed after all does not count."""
    books = Books()
    ledger = books.open(REPEAT, evidence(), 3)

    assert [ledger.refuse(7, 20), ledger.refuse(7, 21), ledger.refuse(8, 22)] == [True, False, True]
    assert ledger.refused == 2
    books.unrefuse(22)
    books.unrefuse(99)
    assert ledger.refused == 1
    assert books.refused
    books.clear()
    assert not books.refused


def test_the_oldest_ledgers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of patterns that are remembered is bounded."""
    monkeypatch.setattr(ledger_module, "MAX_LEDGERS", 3)
    books = Books()
    for key in range(5):
        books.open(REPEAT, evidence(key), key)

    assert [ledger.key for _, ledger in books.items()] == [2, 3, 4]


def test_several_patterns_of_one_call() -> None:
    """Forgetting one pattern of a call leaves the others."""
    books = Books()
    books.open(REPEAT, evidence(), 3)
    other = books.open(SameCall(), evidence(outcome=0)._replace(pattern=("same_call", 1)), 3)

    assert len(books.refuted(1, 11)) == 1
    assert [ledger for _, ledger in books.items()] == [other]


# -- heeded or ignored ----------------------------------------------------------------------------------------------


def test_a_warning_is_heeded_by_five_other_calls() -> None:
    """The same call does not come back within five executed calls."""
    engine = Engine(Plan(Policy()))
    for _ in range(3):
        call(engine)
    engine.note_nudge("repeat", 1)
    for key in range(100, 104):
        call(engine, key)
    assert engine.books.heeded == {}
    call(engine, 104)

    assert engine.books.heeded == {("repeat", "warn"): 1}
    call(engine)
    assert engine.books.ignored == {}


def test_a_warning_is_ignored_by_the_same_call() -> None:
    """The same call with the same outcome is ignoring; with another outcome it is not."""
    engine = Engine(Plan(Policy()))
    for _ in range(3):
        call(engine)
    engine.note_nudge("repeat", 1)
    call(engine)
    assert engine.books.ignored == {("repeat", "warn"): 1}
    engine.note_nudge("repeat", 1)
    call(engine, outcome=11)
    assert engine.books.ignored == {("repeat", "warn"): 1}


def test_who_never_learns_ignores_five_refusals() -> None:
    """Each refusal but the siblings of one round is followed; the stop ends the last."""
    engine = Engine(Plan(Policy()))
    for _ in range(11):
        call(engine)

    assert engine.books.ignored == {("repeat", "refuse"): 5}
    assert engine.books.heeded == {}


def test_a_refusal_is_heeded() -> None:
    """Five other calls after it."""
    engine = Engine(Plan(Policy()))
    for _ in range(6):
        call(engine)
    for key in range(100, 105):
        call(engine, key)

    assert engine.books.heeded == {("repeat", "refuse"): 1}


def test_an_ignored_refusal_of_another_call() -> None:
    """A refused attempt of one call says nothing about what was said of another."""
    engine = Engine(Plan(Policy(Cycle.off())))
    engine.note_nudge("repeat", 77)
    for _ in range(5):
        call(engine, 2)
        call(engine, 1)
    engine.note_nudge("repeat", 88)
    call(engine, 1)
    call(engine, 1)

    assert engine.books.ignored == {("repeat", "refuse"): 1}
    assert ("repeat", "warn") in engine.books.heeded


def test_the_end_of_a_run_heeds() -> None:
    """What was followed by another call and did not come back was heeded; the very last word is open."""
    books = Books()
    books.follow("repeat", Action.WARN, 1)
    books.executed(2, False)
    books.follow("failing", Action.WARN, 3)
    books.close()

    assert books.heeded == {("repeat", "warn"): 1}
    assert books.followed == []


def test_only_the_last_words_are_followed() -> None:
    """The number of warnings that are followed is bounded."""
    books = Books()
    for key in range(30):
        books.follow("repeat", Action.WARN, key)

    assert [item[2] for item in books.followed] == list(range(10, 30))
