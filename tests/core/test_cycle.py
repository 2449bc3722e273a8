"""``Cycle``: its law, and what is no step of a lap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard.engine import Engine
from loopguard.errors import PolicyError, StoreError
from loopguard.policy import Plan, Policy
from loopguard.records import Action, ErrorClass, Hit, Kind, Status, Tool
from loopguard.rules import Cycle
from loopguard.snapshot import restore, snapshot
from loopguard.testing.examples import SMALL_CYCLE
from loopguard.testing.histories import TOOLS, Fold, Log, attempt_of, random_step

POLICY = Policy.of(Cycle())


class Agent:
    """Makes calls of an engine: a call is a number, and gives the same each time unless told otherwise."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.engine = Engine(Plan(policy))
        self.new = 1_000

    def call(
        self, key: int, kind: int = Kind.READ, outcome: int | None = None, round_: int | None = None, **end: Any
    ) -> Hit | None:
        """One call, executed unless it is refused. Gives what was said."""
        seq = self.engine.start(None, self.engine.bind(Tool(f"tool {key}")), int(kind), key, 0, round_)
        if isinstance(seq, Hit):
            return seq
        return self.engine.end(None, seq, end.pop("status", 0), outcome or 100 + key, 100 + key, **end)

    def first_time(self, kind: int = Kind.READ) -> None:
        """A call that was not made before."""
        self.new += 1
        assert self.call(self.new, kind) is None

    def laps(self, lap: Sequence[int], n: int) -> list[Hit | None]:
        """So many laps."""
        return [self.call(key) for _ in range(n) for key in lap]


def actions(hits: Sequence[Hit | None]) -> list[str]:
    """What was said at each call."""
    return ["run" if hit is None else str(hit.action) for hit in hits]


@settings(max_examples=150, deadline=None)
@given(period=st.integers(2, 6), data=st.data())
def test_a_cycle_is_found_at_the_same_lap_whatever_its_rotation(period: int, data: st.DataObject) -> None:
    """The warning comes as lap 3 ends, the refusal after lap 4; calls that come for the first time change nothing."""
    rotation = data.draw(st.integers(0, period - 1))
    lap = [*range(1, period + 1)][rotation:] + [*range(1, period + 1)][:rotation]
    agent = Agent()
    said: list[Hit | None] = []
    for _ in range(4):
        for key in lap:
            if agent.new < 1_010:
                for _ in range(data.draw(st.integers(0, 2))):
                    agent.first_time()
            said.append(agent.call(key))
    next_one = agent.call(lap[0])

    assert actions(said) == [*["run"] * (3 * period - 1), "warn", *["run"] * period]
    warning = said[3 * period - 1]
    assert warning is not None
    assert next_one is not None
    assert (next_one.action, next_one.evidence.done, next_one.threshold) == (Action.REFUSE, 4, 4)
    assert next_one.evidence.pattern == warning.evidence.pattern
    # The name of a pattern does not depend on where it begins.
    assert warning.evidence.pattern == found(range(1, period + 1))
    assert warning.evidence.pattern != found([*range(1, period), 99])


def found(lap: Sequence[int]) -> tuple[Any, ...]:
    """The pattern of this cycle."""
    hit = Agent().laps(lap, 3)[-1]
    assert hit is not None
    return hit.evidence.pattern


def test_an_agent_that_ignores_everything() -> None:
    """A-B-A-B: eight calls are executed, then each of the two is refused, and the next attempt ends the run."""
    agent = Agent()

    said = actions(agent.laps([1, 2], 7))

    assert said == [*["run"] * 5, "warn", "run", "run", "refuse", "refuse", "stop", "stop", "stop", "stop"]
    assert agent.engine.latch is not None
    assert agent.engine.latch.rule == "cycle"


def test_an_agent_that_heeds() -> None:
    """After the refusal other calls are free, and so is the lap once it gives something else."""
    agent = Agent()
    agent.laps([1, 2], 4)
    refused = agent.call(1)
    assert refused is not None
    agent.first_time()
    agent.first_time()

    again = agent.call(1)
    assert again is not None
    assert again.action is Action.REFUSE
    agent.engine.note_user_message()
    assert actions(agent.laps([1, 2], 2)) == ["run"] * 4


def test_a_warning_about_a_pattern_is_ignored_by_any_of_its_calls() -> None:
    """The next step is another call than the one that was warned about, and still the same cycle."""
    agent = Agent()
    agent.laps([1, 2, 3], 3)
    agent.engine.note_nudge("repeat", 77)
    agent.engine.note_nudge("cycle", 3)
    agent.call(1)

    assert agent.engine.books.ignored == {("cycle", "warn"): 1}
    assert [item[0] for item in agent.engine.books.followed] == ["repeat"]


def test_another_loop() -> None:
    """An agent that leaves one cycle for another begins at the first lap."""
    agent = Agent()
    agent.laps([1, 2], 4)
    assert agent.call(1) is not None

    assert actions(agent.laps([3, 4, 5], 3)) == [*["run"] * 8, "warn"]


def test_out_of_turn() -> None:
    """A call of the lap that is not the next one is let through, until the agent was refused once."""
    agent = Agent()
    agent.laps([1, 2, 3], 4)

    assert agent.call(2) is None  # breaks the row
    assert agent.call(1) is None

    agent = Agent()
    agent.laps([1, 2, 3], 4)
    first = agent.call(1)
    second = agent.call(3)
    assert first is not None
    assert second is not None
    assert (second.action, second.evidence.done, second.threshold) == (Action.REFUSE, 4, 4)


def test_without_a_refusal() -> None:
    """The stop alone: six laps run, and whatever the lap expects next ends the run."""
    agent = Agent(Policy.of(Cycle(refuse_after=0)))

    assert actions(agent.laps([1, 2], 6)) == [*["run"] * 5, "warn", *["run"] * 6]
    assert agent.call(9) is None
    stop = agent.call(1)
    assert stop is not None
    assert stop.action is Action.STOP


@pytest.mark.parametrize("lap", [[1], [1, 1], [1, 1, 1]])
def test_one_call_again_and_again_is_no_cycle(lap: list[int]) -> None:
    """That is for Repeat."""
    assert actions(Agent().laps(lap, 20)) == ["run"] * 20 * len(lap)


def test_one_call_with_two_results_is_no_cycle() -> None:
    """A state that goes to and fro is no lap of calls."""
    agent = Agent()
    for _ in range(8):
        for outcome in (1, 1, 2, 2):
            assert agent.call(7, outcome=10 + outcome) is None


def test_a_longer_cycle_with_a_row_in_it() -> None:
    """A-B-B-B is a cycle of four, though its end looks like a row."""
    said = actions(Agent().laps([1, 2, 2, 2], 4))

    assert "warn" in said
    assert said.index("warn") >= 9


def test_a_round_is_one_step() -> None:
    """Calls of one reply are a set: the order in which they end is no difference, and one reply is no lap."""
    agent = Agent()
    said: list[str] = []
    for n, (first, second) in enumerate([(1, 2), (2, 1), (1, 2), (2, 1)]):
        said += actions([agent.call(key, round_=2 * n) for key in (first, second, first)])
        said += actions([agent.call(3, round_=2 * n + 1)])

    assert said == [*["run"] * 11, "warn", *["run"] * 4]
    siblings = [agent.call(key, round_=8) for key in (1, 2)]
    assert actions(siblings) == ["refuse", "refuse"]


def test_siblings_that_turn_up_again_are_no_lap() -> None:
    """The same reply three times over repeats, but nothing takes turns in it."""
    agent = Agent()
    for n in range(8):
        assert actions([agent.call(key, round_=n) for key in (1, 2, 3)]) == ["run"] * 3


def test_restarts() -> None:
    """A novel write and a user's message begin anew; the same write again does not."""
    agent = Agent()
    agent.laps([1, 2], 2)
    agent.first_time(Kind.WRITE)
    assert actions(agent.laps([1, 2], 2)) == ["run"] * 4
    agent.engine.note_user_message()
    assert actions(agent.laps([1, 2], 2)) == ["run"] * 4

    agent = Agent()
    said = []
    for _ in range(3):
        said.append(agent.call(1, Kind.WRITE))
        said.append(agent.call(2))
    assert actions(said) == [*["run"] * 5, "warn"]


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (Kind.POLL, {}),
        (Kind.SAMPLE, {}),
        (Kind.THINK, {}),
        (Kind.READ, {"status": int(Status.FAILED), "error_class": int(ErrorClass.TRANSIENT)}),
        (Kind.READ, {"status": int(Status.DENIED), "error_class": int(ErrorClass.DENIED)}),
    ],
    ids=["poll", "sample", "think", "transient", "denied"],
)
def test_what_takes_no_part(kind: Kind, end: dict[str, Any]) -> None:
    """With one of two calls left out nothing takes turns; other failures are steps like results."""
    agent = Agent()
    for _ in range(8):
        assert agent.call(1) is None
        assert agent.call(2, kind, **end) is None

    agent = Agent()
    other = {"status": int(Status.FAILED), "error_class": int(ErrorClass.OTHER)}
    said = [agent.call(key, **(other if key == 2 else {})) for _ in range(3) for key in (1, 2)]
    assert actions(said) == [*["run"] * 5, "warn"]


def test_new_calls_of_unknown_kind() -> None:
    """They may have changed something, so the guard waits longer; those that are steps of the lap are known."""
    agent = Agent()
    said: list[Hit | None] = []
    for _ in range(5):
        said += agent.laps([1, 2], 1)
        agent.first_time(Kind.UNKNOWN)
    assert actions(said) == [*["run"] * 9, "warn"]

    agent = Agent()
    said = [agent.call(key, Kind.UNKNOWN) for _ in range(3) for key in (1, 2)]
    assert actions(said) == [*["run"] * 5, "warn"]


def test_masking_may_warn_and_not_refuse() -> None:
    """Results that are equal only with volatile text taken out."""
    agent = Agent()
    said = []
    for n in range(12):
        said.append(agent.call(1))
        said.append(agent.call(2, outcome=500 + n, masked=30, prev_masked=30))

    assert actions(said) == [*["run"] * 5, "warn", *["run"] * 18]


def test_attempts_are_looked_at_no_longer_than_needed() -> None:
    """Once the laps slid out of the window, nobody asks any more."""
    agent = Agent(Policy.of(Cycle(), window=20, history=20))
    agent.laps([1, 2], 4)
    assert agent.engine.watchful
    for _ in range(22):
        agent.first_time()

    assert not agent.engine.watchful
    assert agent.engine.alert_until == 0


def test_the_memory_is_bounded() -> None:
    """However long a cycle goes on, or a round without an end."""
    agent = Agent(Policy.of(Cycle(warn_after=0, refuse_after=0, stop_after=0), window=20, history=20))
    for _ in range(200):
        agent.laps([1, 2, 3], 1)
    assert agent.engine.memories["cycle"]["ops"] <= 40
    agent.engine.note_round(5_000)
    for _ in range(200):
        for key in (1, 2, 3):
            agent.call(key, round_=5_000)
    memory = agent.engine.memories["cycle"]
    assert memory["ops"] <= 40
    assert sum(len(lap[3]) for lap in memory["rounds"]) <= 40
    assert len(memory["rounds"][0][4]) == 3


def test_a_snapshot_holds_the_memory() -> None:
    """Anything that is no memory of laps is a ``StoreError``."""
    agent = Agent()
    agent.laps([1, 2], 3)
    plain = snapshot(agent.engine)
    agent.engine = restore(Plan(POLICY), plain)
    assert actions(agent.laps([1, 2], 2)) == ["run", "run", "refuse", "refuse"]

    for path, wrong in (
        (("ops",), "8"),
        (("streaks",), [0]),
        (("rounds", 0, 3, 0, 5), "noon"),
        (("rounds", 0, 3), []),
        (("rounds", 0, 4), {"1 2": "x"}),
        (("rounds", 0, 4), {1: 1}),
        (("rounds",), None),
    ):
        broken = snapshot(agent.engine)
        spot = broken["memories"]["cycle"]
        for step in path[:-1]:
            spot = spot[step]
        spot[path[-1]] = wrong
        with pytest.raises(StoreError):
            restore(Plan(POLICY), broken)


@pytest.mark.parametrize("name", ["warn_after", "refuse_after", "unknown_warn_after"])
def test_two_laps_are_none(name: str) -> None:
    """The first lap holds nothing that came before, so a rung below 3 could never be meant."""
    rule = Cycle(warn_after=0, unknown_warn_after=0).replace(**{name: 2})
    with pytest.raises(PolicyError, match=rf"{name}=2.* lap 3"):
        Policy(rule)


@pytest.mark.parametrize(
    "rule", [SMALL_CYCLE, SMALL_CYCLE.replace(refuse_after=0, stop_after=0)], ids=["acts", "warns"]
)
def test_evidence_equals_judge_in_histories_that_go_round(rule: Cycle) -> None:
    """The contract suite's histories seldom go round; these do, with rounds, failures, restarts and new calls."""
    reached = 0
    for seed in range(40):
        chance = random.Random(seed)
        window = chance.choice((12, 14, 20))
        engine = Engine(Plan(Policy.of(rule, window=window, history=window, endless_refusals=True)))
        fold = Fold(engine, TOOLS, timed=seed % 4 != 3)
        log = Log(fold)
        lap = [(chance.randrange(3), chance.randrange(3)) for _ in range(chance.randrange(2, 5))]
        calls = 0
        for _ in range(120):
            step = random_step(chance, 3)
            if chance.random() < 0.85 and step.what == "start":
                a, b = lap[calls % len(lap)]
                calls += 1
                step = step._replace(a=a, b=b, override=True)
            elif chance.random() < 0.85 and step.what == "end":
                status = 0 if chance.random() < 0.9 else step.status
                step = step._replace(status=status, raw=10, masked=0, changed=False)
            op = log.take(step)
            for entry in list(engine.keys.values()):
                if entry.kind in rule.skips:
                    continue
                for operation in {None, op if op is not None and op.key == entry.key else None}:
                    found = rule.evidence(engine, entry, fold.at, operation)
                    assert found == rule.judge(log.window(rule, entry), attempt_of(entry, fold.at, operation))
                    reached += found is not None

    assert reached > 200
