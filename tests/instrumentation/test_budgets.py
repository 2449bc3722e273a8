"""Limits on what the model uses, from the outside: ``note_usage``, prices, handoffs and the runs around."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest

from loopguard import (
    LimitReached,
    LimitRefused,
    Limits,
    LimitStatus,
    PolicyError,
    RunStopped,
    configure,
    current_run,
    guarded_run,
    guarded_tool,
)
from loopguard.run import Run
from loopguard.testing import capture_events

_numbers = iter(range(10**9))


@guarded_tool
def search(query: str) -> str:
    """A tool with something new each time."""
    return f"result {next(_numbers)}"


@guarded_tool
def render(scene: object) -> str:
    """A tool with the same answer each time."""
    return "done"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Internal errors are raised."""
    with capture_events():
        yield


def calls(n: int) -> None:
    """New calls with new results."""
    for _ in range(n):
        search(f"q{next(_numbers)}")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged."""
    return [record.getMessage() for record in caplog.records]


# -- usage and prices -----------------------------------------------------------------------------------------------


def test_a_cost_ends_the_run_and_says_what_repeated() -> None:
    """The sentence names used, allowed, calls and the tool that repeated most."""
    with pytest.raises(LimitReached) as caught, guarded_run("triage", limits=Limits(cost=5)) as run:
        calls(4)
        render("a")
        render("b")
        run.note_usage(1_000, 500, cost=5.02)
        calls(1)
    error = caught.value

    assert str(error) == (
        "run 'triage' was stopped: cost 5.02 of 5.00 after 6 calls; most repeated: render (2 calls, 1 different result)"
    )
    assert (error.limit, error.used, error.allowed) == ("cost", 5.02, 5)
    assert "cost 5.02 of 5.00" in error.for_model()
    assert (run.stats.input_tokens, run.stats.output_tokens, run.stats.cost) == (1_000, 500, 5.02)
    assert not run.stats.unpriced


def test_the_model_and_the_log_are_told_at_nine_tenths(caplog: pytest.LogCaptureFixture) -> None:
    """A warning that a note of usage completes is a finding and a nudge."""
    with guarded_run("r", limits=Limits(tokens=1_000)) as run:
        run.note_usage(900)
        nudges = run.pop_nudges()
        findings = run.findings

    assert [nudge.text for nudge in nudges] == ["Note: run 'r' has used 900 of 1,000 tokens."]
    assert [(f.rule, str(f.action), f.message) for f in findings] == [
        ("limits", "warn", "run 'r' has used 900 of 1,000 tokens")
    ]
    assert "loopguard: run 'r' has used 900 of 1,000 tokens (limits)." in lines(caplog)


def test_a_callable_gets_the_nudge_of_a_limit() -> None:
    """``on_warn`` holds for limits too; the budget of nudges as well."""
    got: list[str] = []
    with guarded_run("r", limits=Limits(tokens=10, cost=1), on_warn=lambda nudge: got.append(nudge.text)) as run:
        run.report.budget = 1
        run.note_usage(9)
        run.note_usage(cost=0.95)

    assert got == ["Note: run 'r' has used 9 of 10 tokens."]


def test_a_function_is_the_price() -> None:
    """It gets model and tokens; None is an unknown model, which is counted apart."""
    asked: list[tuple[str, int, int]] = []

    def price(model: str, input_tokens: int, output_tokens: int) -> float | None:
        asked.append((model, input_tokens, output_tokens))
        return 0.25 if model == "known" else None

    with guarded_run("r", limits=Limits(cost=5, price=price)) as run:
        run.note_usage(10, 20, model="known")
        run.note_usage(10, 20, model="unknown")
        run.note_usage(10, 20)
        run.note_usage(10, 20, cost=1, model="known")

    stats = run.stats
    assert asked == [("known", 10, 20), ("unknown", 10, 20)]
    assert (stats.cost, stats.unpriced_calls, stats.unpriced_tokens, stats.unpriced) == (1.25, 2, 60, True)


def test_a_model_without_a_price_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A cost limit that does not see everything says so."""
    with guarded_run("r", limits=Limits(cost=5)) as run:
        for _ in range(3):
            run.note_usage(1, 1, model="own\nmodel")
        run.note_usage(1, 1)

    said = [line for line in lines(caplog) if "does not count" in line]
    way_out = "it has no price. Say run.note_usage(cost=...), or Limits(price=...) with a function that knows it."
    assert said == [
        f"loopguard: cost limit 5.00 in run 'r' does not count {which}: {way_out}"
        for which in ("model 'own\\\\nmodel'", "usage without a model")
    ]


@pytest.mark.parametrize("bad", [None, -5, "many", float("nan"), object()])
def test_what_is_no_number_of_tokens_counts_as_none(bad: Any) -> None:
    """Bad values never raise out of the guard."""
    with guarded_run("r", limits=Limits(tokens=100)) as run:
        run.note_usage(bad, bad, cost=bad)
        run.note_usage(7, bad, cost=Decimal("0.5"))

    assert (run.stats.input_tokens, run.stats.output_tokens, run.stats.cost) == (7, 0, 0.5)


def test_a_price_function_that_fails_is_an_unknown_price(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is logged, and the usage is counted as unpriced."""
    monkeypatch.setattr("loopguard._safety.strict", False)
    with guarded_run("r", limits=Limits(cost=5, price=lambda *_: 1 / 0)) as run:
        run.note_usage(10, 10, model="m")

    assert run.stats.unpriced_calls == 1
    assert any("internal error in price (ZeroDivisionError" in line for line in lines(caplog))


def test_an_error_of_ours_in_a_note_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere."""
    monkeypatch.setattr("loopguard._safety.strict", False)
    monkeypatch.setattr("loopguard.spending.note_usage", lambda *_: 1 / 0)
    with guarded_run("r") as run:
        run.note_usage(10)


def test_the_price_table() -> None:
    """``genai-prices`` knows the usual models, also with the provider before the name."""
    pytest.importorskip("genai_prices")
    with guarded_run("r", limits=Limits(cost=500, price="genai-prices")) as run:
        run.note_usage(1_000_000, 0, model="gpt-4o")
        first = run.stats.cost
        run.note_usage(1_000_000, 0, model="openai/gpt-4o")
        run.note_usage(1_000_000, 0, model="no such model")

    assert first > 0
    assert run.stats.cost == 2 * first
    assert run.stats.unpriced_tokens == 1_000_000


def test_the_price_table_is_imported_late_and_its_extra_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that asks for it where it is missing does not open."""
    monkeypatch.setattr("loopguard.prices.find_spec", lambda name: None)
    limits = Limits(cost=5, price="genai-prices")

    with pytest.raises(PolicyError, match=r'pip install "loopguard-otel\[prices\]"'), guarded_run("r", limits=limits):
        pass
    assert not current_run()


def test_a_price_table_of_another_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises beside LookupError is an internal error, not a price of 0."""
    table = ModuleType("genai_prices")
    table.Usage = dict  # type: ignore[attr-defined]
    table.calc_price = lambda *_, **__: (_ for _ in ()).throw(TypeError("changed"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "genai_prices", table)
    monkeypatch.setattr("loopguard.prices.find_spec", lambda name: table)
    monkeypatch.setattr("loopguard._safety.strict", False)
    with guarded_run("r", limits=Limits(cost=5, price="genai-prices")) as run:
        run.note_usage(1, 1, model="gpt-4o")

    assert run.stats.unpriced_calls == 1


def test_usage_noted_in_the_middle_of_what_is_locked(caplog: pytest.LogCaptureFixture) -> None:
    """A finaliser may do so at any moment: nothing waits, and nothing is counted in one run but not in the other."""
    with guarded_run("outer") as outer, guarded_run("r") as run:
        for held in (outer, run):
            with held._lock:
                run.note_usage(5)

    assert (outer.stats.input_tokens, run.stats.input_tokens, run.mode) == (0, 0, "enforce")
    said = "loopguard: usage that a signal handler or finaliser noted in run 'r' is not counted."
    assert lines(caplog) == [said, said]


def test_a_limit_that_sees_nothing_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """In the log, not to the model, and it is no finding."""
    with guarded_run("triage", limits=Limits(cost=5)) as run:
        calls(50)

    said = [line for line in lines(caplog) if "no usage" in line]
    assert len(said) == 1
    assert said[0].startswith("loopguard: cost limit 5.00 in run 'triage' has seen no usage in 20 calls. Feed it: ")
    assert run.findings == ()
    assert run.stats.nudges_undelivered == 0


def test_outside_a_run_and_after_it_usage_is_taken_and_dropped() -> None:
    """Nothing is counted where no run is open."""
    current_run().note_usage(10, 10, cost=1, model="m")
    with guarded_run("r", limits=Limits(cost=5)) as run:
        pass
    run.note_usage(10, cost=9)

    assert run.stats.cost == 0


# -- handing off ----------------------------------------------------------------------------------------------------


def test_the_callback_gets_the_whole_status() -> None:
    """Once, outside the lock, with the numbers and the run's counts; None goes on to the stop."""
    told: list[LimitStatus] = []

    def page_me(status: LimitStatus) -> None:
        assert run.stats.calls == 3  # the lock is free
        told.append(status)

    with pytest.raises(LimitReached), guarded_run("r", limits=Limits(tokens=100, on_handoff=page_me)) as run:
        calls(3)
        run.note_usage(90)
        run.note_usage(9)
        calls(1)
        run.note_usage(1)
        calls(1)

    (status,) = told
    assert (status.limit, status.used, status.allowed) == ("tokens", 90, 100)
    assert (status.run_name, status.run_id, status.limits) == ("r", run.id, Limits(tokens=100, on_handoff=page_me))
    assert (status.stats.calls, str(status)) == (3, "run 'r' has used 90 of 100 tokens")


def test_more_is_granted() -> None:
    """Each new number asks again; the outcome of a call can bring it about as well."""
    told: list[tuple[float, float]] = []

    def more(status: LimitStatus) -> Limits:
        told.append((status.used, status.allowed))
        return Limits(calls=int(status.allowed) * 2)

    with guarded_run("r", limits=Limits(calls=10, on_handoff=more)) as run:
        calls(50)

    assert told == [(9, 10), (18, 20), (36, 40)]
    assert [str(finding.action) for finding in run.findings] == ["warn"] * 3


def test_a_person_stops_the_run() -> None:
    """The call that brought it about has its result; the next one is the first that is not executed."""
    with guarded_run("r", limits=Limits(calls=10, on_handoff=lambda _: "stop"), on_stop="end") as run:
        calls(9)
        with pytest.raises(LimitReached, match="calls 9 of 10"):
            calls(1)

    assert [str(finding.action) for finding in run.findings] == ["warn", "stop"]
    assert (run.stats.calls, run.stats.refused) == (9, 1)


@pytest.mark.parametrize("arg", ["b", ["b"]], ids=["short way", "long way"])
@pytest.mark.parametrize("tool", [search, render])
def test_a_limit_that_was_jumped_over_asks_before_it_stops(tool: Any, arg: object) -> None:
    """The call waits for the answer and is executed; it counts once."""
    now = [1_000.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loopguard.scope.clock", lambda: now[0])
        with guarded_run("r", limits=Limits(seconds=10, on_handoff=lambda _: Limits(seconds=100))) as run:
            tool("a")
            now[0] += 50
            tool(arg)

    assert (run.stats.calls, run.stats.refused, run.stats.warned) == (2, 0, 1)
    assert [finding.message for finding in run.findings] == ["run 'r' has used 50 of 10 seconds"]


def test_the_answer_to_a_jump_may_be_no() -> None:
    """Then the call is not executed."""
    answers: list[Any] = []
    now = [1_000.0]
    for answer in (None, "stop", Limits(seconds=20)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("loopguard.scope.clock", lambda: now[0])
            limits = Limits(seconds=10, on_handoff=lambda _, answer=answer: answers.append(answer) or answer)
            with pytest.raises(LimitReached), guarded_run("r", limits=limits) as run:
                calls(1)
                now[0] += 50
                calls(1)
            assert run.stats.calls == 1

    assert answers == [None, "stop", Limits(seconds=20)]


async def question(status: object) -> None:
    """An asynchronous answer."""


@pytest.mark.parametrize("ask", [lambda status: 7, lambda status: question(status), lambda status: "go on"])
def test_an_answer_that_cannot_be_meant(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is named in the log and counts as None."""
    with guarded_run("r", limits=Limits(calls=10, on_handoff=ask)) as run:
        calls(10)

    assert run.stopped is None
    assert any("which is not None, a Limits or 'stop'" in line for line in lines(caplog))


def test_a_callback_that_fails_counts_as_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit stops as if nobody had been asked."""
    monkeypatch.setattr("loopguard._safety.strict", False)
    with pytest.raises(LimitReached), guarded_run("r", limits=Limits(calls=10, on_handoff=lambda _: 1 / 0)):
        calls(11)


def test_nobody_is_asked_while_only_watching() -> None:
    """Observe mode does everything but act."""
    asked: list[object] = []
    with guarded_run("r", mode="observe", limits=Limits(calls=5, tokens=10, on_handoff=asked.append)) as run:
        calls(8)
        run.note_usage(20)
        calls(1)

    assert asked == []
    assert run.stats.calls == 9
    assert all(not finding.enforced for finding in run.findings)
    assert run.pop_nudges() == []


def test_a_run_that_only_watches_stops_nothing_below() -> None:
    """Its limits are found, and the calls of the runs in it go on."""
    limits = (Limits(calls=2), Limits(calls_per_tool={"search": 2}), Limits(tokens=5))
    for number, limit in enumerate(limits):
        with guarded_run("outer", mode="observe", limits=limit) as outer, guarded_run("inner") as inner:
            calls(2)
            inner.note_usage(7)
            calls(2)

        assert (inner.stats.calls, outer.stopped) == (4, None)
        said = [finding for finding in outer.findings if str(finding.action) != "warn"]
        assert [finding.enforced for finding in said] == [False]
        words = ("was stopped: calls 2 of 2", "its 2 calls in this run are used up", "tokens 7 of 5 after 2 calls")
        assert words[number].replace("was stopped", "would have been stopped") in said[0].message


def test_a_stop_by_a_person_holds_for_tools_that_only_watch() -> None:
    """It was in force before their call."""

    @guarded_tool(mode="observe")
    def watched(n: int) -> str:
        return f"answer {n}"

    with guarded_run("r", limits=Limits(tokens=10, on_handoff=lambda _: "stop"), on_stop="end") as run:
        watched(1)
        run.note_usage(9)
        with pytest.raises(LimitReached):
            watched(2)
        assert run.stopped is not None


def test_a_stop_from_outside_is_not_replaced_by_an_answer() -> None:
    """Whoever answers while a person stops the run."""

    def ask(status: LimitStatus) -> str:
        run.stop("a person said so")
        return "stop"

    with guarded_run("r", limits=Limits(tokens=10, on_handoff=ask), on_stop="end") as run:
        run.note_usage(9)
        assert run.stopped is not None
        assert run.stopped.rule == "stop"


def test_other_threads_wait_for_the_answer() -> None:
    """A call that meets the limit while somebody is asked is executed if the answer allows it."""
    asked, answered = threading.Event(), threading.Event()
    count: list[object] = []

    def ask(status: object) -> Limits:
        count.append(status)
        asked.set()
        assert answered.wait(10)
        return Limits(tokens=1_000)

    with guarded_run("r", limits=Limits(tokens=100, on_handoff=ask)) as run:
        calls(1)
        first = threading.Thread(target=run.bind(lambda: run.note_usage(150)))
        first.start()
        assert asked.wait(10)
        second = threading.Thread(target=run.bind(lambda: calls(1)))
        second.start()
        second.join(0.05)
        waiting = second.is_alive()
        answered.set()
        first.join(10)
        second.join(10)

    assert waiting
    assert (len(count), run.stats.calls, run.stats.refused) == (1, 2, 0)


def test_a_callback_that_calls_a_guarded_tool() -> None:
    """It does not ask itself: the limit is used up for that call."""
    seen: list[type[BaseException]] = []

    def ask(status: LimitStatus) -> Limits:
        try:
            calls(1)
        except RunStopped as error:
            seen.append(type(error))
        return Limits(tokens=1_000)

    with guarded_run("r", limits=Limits(tokens=100, on_handoff=ask), on_stop="end") as run:
        run.note_usage(150)
    assert seen == [LimitReached]
    assert run.engine.seq == 1


def test_a_limit_of_one_tool_hands_off() -> None:
    """Parallel calls may use it up before the first outcome: the call over it asks."""
    with guarded_run("r", limits=Limits(calls_per_tool={"search": 2}, on_handoff=lambda s: None)) as run:
        first, second = run.begin("search", {"q": 1}), run.begin("search", {"q": 2})
        with pytest.raises(LimitRefused):
            run.begin("search", {"q": 3})
        first.finish("a")
        second.finish("b")

    assert [str(finding.action) for finding in run.findings] == ["warn", "refuse"]


def test_an_error_of_ours_around_a_handoff_lets_the_call_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere."""
    monkeypatch.setattr("loopguard._safety.strict", False)
    with guarded_run("r", limits=Limits(calls_per_tool={"search": 1}, on_handoff=lambda s: None)) as run:
        open_call = run.begin("search", {"q": 1})
        monkeypatch.setattr("loopguard.spending.warn", lambda *_: 1 / 0)
        calls(1)
        open_call.finish("a")


# -- runs below -----------------------------------------------------------------------------------------------------


def test_usage_of_a_run_below_counts_for_all_around_it() -> None:
    """Each with its own limits; the price of the nearest run that has one holds for all."""
    outer_limits = Limits(cost=10, price=lambda model, i, o: 1.0)
    with guarded_run("outer", limits=outer_limits) as outer, guarded_run("middle") as middle:
        with guarded_run("inner") as inner:
            inner.note_usage(5, 5, model="m")
        middle.note_usage(1, model="m")

    assert [run.stats.cost for run in (outer, middle, inner)] == [2.0, 2.0, 1.0]
    assert outer.stats.input_tokens == 6


def test_a_run_that_counts_together_takes_usage_once() -> None:
    """``evidence="parent"`` shares the state."""
    with guarded_run("outer", limits=Limits(tokens=100)) as outer, guarded_run("in", evidence="parent") as inner:
        inner.note_usage(10)
        calls(1)

    assert (outer.stats.input_tokens, outer.stats.calls) == (10, 1)


def test_calls_below_warn_above() -> None:
    """The warning of the run around comes with the outcome below, as a finding and nudge of that run."""
    with guarded_run("outer", limits=Limits(calls_per_tool={"search": 50})) as outer:
        for _ in range(3):
            with guarded_run("child") as child:
                calls(15)
                assert child.findings == ()

    assert [(f.run_name, f.message) for f in outer.findings] == [
        ("outer", "search has used 45 of its 50 calls in this run")
    ]


def test_failures_below_warn_above_too() -> None:
    """A call that failed was executed."""

    @guarded_tool
    def broken(n: int) -> str:
        raise ValueError(n)

    with guarded_run("outer", limits=Limits(calls=10)) as outer, guarded_run("child"):
        for n in range(9):
            with pytest.raises(ValueError, match=str(n)):
                broken(n)

    assert [finding.message for finding in outer.findings] == ["run 'outer' has used 9 of 10 calls"]


def test_a_call_that_an_outer_run_forbids_is_counted_nowhere() -> None:
    """The run in the middle had counted it already."""
    with guarded_run("outer", limits=Limits(calls=2, handoff_at=0), on_stop="end"):
        with guarded_run("middle", limits=Limits(calls=100)) as middle, guarded_run("inner"):
            calls(2)
            with pytest.raises(LimitReached):
                calls(1)
        assert middle.engine.calls == 2


def test_a_limit_above_asks_before_it_stops_a_call_below() -> None:
    """The answer counts for the call that waits in the run below."""
    outer: Run
    with guarded_run("outer", limits=Limits(tokens=10, on_handoff=lambda s: Limits(tokens=99))) as outer:
        outer.engine.note_usage(None, 50, 0, 0.0)  # warned, and the process ended before anybody was asked
        with guarded_run("inner") as inner:
            calls(1)

    assert (inner.stats.calls, inner.stats.refused, outer.engine.calls) == (1, 0, 1)


def test_a_limit_below_and_one_above_ask_for_the_same_call() -> None:
    """First the run's own, then the one around."""
    asked: list[str] = []

    def ask(status: LimitStatus) -> Limits | None:
        asked.append(status.run_name)
        return Limits(tokens=99) if status.run_name == "inner" else None

    limits = Limits(tokens=10, on_handoff=ask)
    with guarded_run("outer", limits=limits, on_stop="end") as outer:
        outer.engine.note_usage(None, 50, 0, 0.0)
        with pytest.raises(LimitReached), guarded_run("inner", limits=limits) as inner:
            inner.engine.note_usage(None, 50, 0, 0.0)
            calls(1)

    assert asked == ["inner", "outer"]
    assert (inner.stats.calls, outer.engine.calls) == (0, 0)


def test_settings_say_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Settings files and mappings take the new fields, but no functions."""
    (tmp_path / "loopguard.toml").write_text(
        '[limits]\nseconds = 60\ntokens = 1000\ncost = 2.5\nprice = "genai-prices"\nhandoff_at = 0.8\n'
    )
    policy = tmp_path / "policy.toml"
    policy.write_text("[limits]\ncost = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loopguard.prices.find_spec", lambda name: object())
    with guarded_run("r") as run:
        assert run.engine.limits == Limits(seconds=60, tokens=1_000, cost=2.5, price="genai-prices", handoff_at=0.8)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with configure(policy=str(policy)), guarded_run("r") as run:
        assert run.engine.limits == Limits(cost=3)
    with pytest.raises(PolicyError, match="limits cannot hold 'on_handoff': it is an object"):
        configure(limits={"on_handoff": "page_me"})
    with pytest.raises(PolicyError, match=r"limits.price='gpt' is not one of 'genai-prices'"):
        configure(limits={"price": "gpt"})


def test_a_fork_renews_who_asks() -> None:
    """A thread that the child does not have may be asking."""
    from loopguard.run import renew_locks

    with guarded_run("r", limits=Limits(calls=5, on_handoff=lambda s: None)) as run:
        assert run.handoff is not None
        before = run.handoff.lock
        renew_locks()
        assert run.handoff.lock is not before


def test_a_limit_above_that_sees_no_usage_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Calls of runs below are calls; a novel write there restarts the evidence here, as before."""

    @guarded_tool(kind="write")
    def write(text: str) -> str:
        return f"written {next(_numbers)}"

    with guarded_run("outer", limits=Limits(tokens=500)), guarded_run("inner"):
        for n in range(30):
            write(f"text {n}")

    said = [line for line in lines(caplog) if "no usage" in line]
    assert len(said) == 1
    assert said[0].startswith("loopguard: tokens limit 500 in run 'outer' has seen no usage in 20 calls.")
