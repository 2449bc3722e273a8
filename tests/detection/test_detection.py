"""The default policy on the cases of ``tests/cases/detection.json``: loops that were reported, and honest work.

Each case is played through the public API in observe mode: every call is executed, and what would have been refused is
known.
The numbers below are what is reached today; they may only get better.
``pytest tests/detection -s`` prints what is missed, by kind.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loopguard import Finding, Limits, ToolSpec, guarded_run, scope, tools_from_toml
from loopguard.records import Action
from loopguard.run import Run

CASES = Path(__file__).parents[1] / "cases"
#: Loops warned about by ``loop_visible_by`` (of 85), legitimate cases warned about that should not be (of 75).
IN_TIME = 58
FALSE_ALARMS = 2
#: Cases about a limit whose warning does not come in time: the limit or its note is not there yet.
BUDGETS_MISSED: frozenset[str] = frozenset()

_START = dt.datetime(2026, 3, 1, 8, tzinfo=dt.UTC)
#: Names that stand for a fresh value at each place, as in ``{uuid}``.
FRESH: dict[str, Callable[[int], str]] = {
    "uuid": lambda n: str(uuid.UUID(int=(n * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128, version=4)),
    "timestamp": lambda n: (_START + dt.timedelta(seconds=37 * n)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "hexaddr": lambda n: f"0x7f{n * 0x9E3779B1 % 2**32:08x}",
    "duration": lambda n: f"{n * 0.137 % 9 + 0.1:.3f}s",
}


class ToolError(Exception):
    """A tool of a case failed."""


@dataclass
class Played:
    """What the guard said about a case, by the number of the call."""

    case: dict[str, Any]
    warned: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    @property
    def in_time(self) -> bool:
        """Something was said by the call at which a careful engineer would want it."""
        return min([*self.warned, *self.refused], default=10**9) <= self.case["loop_visible_by"]

    @property
    def wrongly_refused(self) -> list[int]:
        """Calls that have to be executed and would not have been."""
        return sorted(set(self.refused) & set(self.case["must_not_block"]))


class Clock:
    """The time of a case, or no time at all: rules about time are off then."""

    def __init__(self) -> None:
        self.now: float | None = None

    def __call__(self) -> float | None:
        """Seconds since the epoch, if the case knows them."""
        return self.now


def expanded(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The calls and events of a case, one after the other, with what stands for something filled in."""
    fresh = 0

    def filled(value: Any, i: int) -> Any:
        nonlocal fresh
        if isinstance(value, dict):
            return {name: filled(item, i) for name, item in value.items()}
        if isinstance(value, list):
            return [filled(item, i) for item in value]
        if not isinstance(value, str):
            return value
        value = value.replace("{i}", str(i))
        for name, make in FRESH.items():
            while f"{{{name}}}" in value:
                fresh += 1
                value = value.replace(f"{{{name}}}", make(fresh), 1)
        return value

    for item in case["calls"]:
        for i in range(1, item.get("repeat", 1) + 1):
            for call in item.get("calls", [item]):
                yield filled(call, i)


def play(case: dict[str, Any], tools: dict[str, ToolSpec]) -> Played:
    """Play a case: an agent of its own is a run inside the main one."""
    played = Played(case)
    number = 0

    def found(finding: Finding) -> None:
        (played.warned if finding.action is Action.WARN else played.refused).append(number)

    clock = Clock()
    limits = dict(case.get("limits", {}))
    if "cost_usd" in limits:
        limits["cost"] = limits.pop("cost_usd")
    known = {name: value for name, value in limits.items() if name in Limits.__dataclass_fields__}
    runs: dict[str, Run] = {}
    rounds: dict[str, Any] = {}
    with ExitStack() as stack:
        before = scope.clock
        stack.callback(setattr, scope, "clock", before)
        scope.clock = clock  # type: ignore[assignment]
        settings: dict[str, Any] = {"mode": "observe", "tools": tools, "on_finding": found}
        main = stack.enter_context(guarded_run("main", limits=Limits(**known) if known else None, **settings))
        runs["main"] = main
        for number, call in enumerate(expanded(case), 1):
            agent = call.get("agent", "main")
            if agent not in runs:
                runs[agent] = stack.enter_context(guarded_run("child", agent=agent, **settings))
            run = runs[agent]
            if "at" in call:
                clock.now = 1_767_225_600.0 + call["at"]
            if call["tool"].startswith("_"):
                event(run, runs, call)
                continue
            if "round" in call or rounds:
                if call.get("round") is None or rounds.get(agent) != call["round"]:
                    run.round()
                rounds[agent] = call.get("round")
            made = run.begin(call["tool"], call["args"])
            if made.seq in run.would:
                played.refused.append(number)
            if "error" in call:
                made.fail(ToolError(call["error"]))
            else:
                made.finish(call["result"])
                note_cost(run, call["result"])
    return played


def event(run: Run, runs: dict[str, Run], call: dict[str, Any]) -> None:
    """What happens between calls."""
    text = call["args"].get("text", "")
    if call["tool"] == "_user" and not text.startswith("[automatic]"):
        for one in runs.values():
            one.note_user_message()
    elif call["tool"] == "_compaction":
        run.note_compaction()
    elif call["tool"] == "_assistant_text":
        noted = getattr(run, "note_reply", None)
        if noted is not None:
            noted(text)


def note_cost(run: Run, result: Any) -> None:
    """Some tools tell what they cost."""
    noted = getattr(run, "note_usage", None)
    if noted is not None and isinstance(result, str) and '"cost_usd"' in result:
        noted(cost=json.loads(result)["cost_usd"])


@pytest.fixture(scope="module")
def all_played() -> list[Played]:
    """Every case, played once."""
    tools = tools_from_toml(CASES / "tools.toml")
    cases = json.loads((CASES / "detection.json").read_text(encoding="utf-8"))
    return [play(case, tools) for case in cases]


def test_no_call_is_wrongly_refused(all_played: list[Played]) -> None:
    """What has to be executed is executed, in every case."""
    assert {one.case["id"]: one.wrongly_refused for one in all_played if one.wrongly_refused} == {}


def test_loops_are_warned_about_in_time(all_played: list[Played]) -> None:
    """As many loops as today, at least."""
    loops = [one for one in all_played if one.case["is_loop"]]
    missed = [one for one in loops if not one.in_time]
    by_kind = Counter(one.case["kind"] for one in missed)
    print(f"\n{len(loops) - len(missed)} of {len(loops)} loops in time; missed:")
    for kind, n in by_kind.most_common():
        print(f"  {n:2} of {sum(one.case['kind'] == kind for one in loops):2} {kind}")
        for one in missed:
            if one.case["kind"] == kind:
                late = f"late, at {min([*one.warned, *one.refused])}" if one.warned or one.refused else "never"
                print(f"       {one.case['id']} (due {one.case['loop_visible_by']}, {late})")
    assert len(loops) == 85
    assert len(loops) - len(missed) >= IN_TIME


def test_honest_work_is_left_alone(all_played: list[Played]) -> None:
    """No more false alarms than today."""
    honest = [one for one in all_played if not one.case["is_loop"] and one.case["kind"] != "budget"]
    strict = [one for one in honest if not one.case.get("warning_tolerable")]
    warned = [one for one in strict if one.warned or one.refused]
    print(f"\n{len(warned)} of {len(strict)} legitimate cases warned about:")
    for one in warned:
        print(f"       {one.case['id']} (at {[*one.warned, *one.refused][:5]})")
    assert len(warned) <= FALSE_ALARMS


def test_limits_warn_in_time(all_played: list[Played]) -> None:
    """Cases about a limit are warned about by the call at which somebody wants to know."""
    budgets = [one for one in all_played if one.case["kind"] == "budget"]
    assert len(budgets) == 4
    assert {one.case["id"] for one in budgets if not one.in_time} <= BUDGETS_MISSED
