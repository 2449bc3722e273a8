"""Histories of a run: steps as plain data, and the fold that takes them.

They drive an engine without a clock, a thread or a tool, so that a law about rules can be checked on many runs.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from loopguard.engine import Engine
from loopguard.index import Entry
from loopguard.records import Action, ErrorClass, Hit, Kind, Operation, Status, Tool
from loopguard.rules import Attempt, Limits, Rule
from loopguard.tables import limits_of


class Step(NamedTuple):
    """One record: ``what`` is "start", "end", or the name of a note; the numbers choose among what is possible.

    ``a`` and ``b`` choose tool and argument of a start, the open call of an end, the tool of a tick.
    ``wait`` is the time in seconds since the step before. The other fields are those of ``Engine.end``.
    """

    what: str
    a: int = 0
    b: int = 0
    wait: int = 1
    override: bool = False
    status: int = 0
    raw: int = 0
    template: int = 0
    masked: int = 0
    prev_masked: int = 0
    error_class: int = 0
    changed: bool = True
    ended: bool = False
    shape: int = 0


#: The notes, by the name that a step carries.
NOTES = (
    "user",
    "compaction",
    "nudge",
    "round",
    "no_round",
    "stop",
    "resume",
    "tick",
    "descendant",
    "acknowledge",
    "withdraw",
    "untick",
    "usage",
    "handoff",
)

#: Tools of every kind; the fourth argument of the third one is a read.
TOOLS = (
    Tool("read"),
    Tool("edit", edits=True),
    Tool("run"),
    Tool("status"),
    Tool("dice"),
    Tool("plan"),
)
_KINDS = (Kind.READ, Kind.WRITE, Kind.UNKNOWN, Kind.POLL, Kind.SAMPLE, Kind.THINK)


def call_of(a: int, b: int, tools: tuple[Tool, ...] = TOOLS) -> tuple[Tool, int, int, int]:
    """Tool, kind, key and target of the call that two numbers choose."""
    number = a % len(tools)
    tool, kind = tools[number], _KINDS[number % len(_KINDS)]
    if kind == Kind.UNKNOWN and b % 4 == 3:
        kind = Kind.READ
    target = 1 + b % 2 if tool.edits else 0
    return tool, int(kind), 1_000 * (number + 1) + b, target


def random_step(chance: random.Random, arguments: int = 4) -> Step:
    """A step as real runs have them: many repeats, some failures, few notes."""
    note = chance.choice(NOTES)
    if note == "stop" and chance.random() < 0.7:
        note = "resume"  # a stop holds until then: else little would happen in most histories
    what = chance.choices(("start", "end", note), (48, 48, 4))[0]
    failed = chance.random() < 0.3
    status = chance.choice((Status.FAILED, Status.FAILED, Status.DENIED, Status.ABANDONED)) if failed else Status.OK
    return Step(
        what,
        # A few calls come often, so that rows grow.
        a=min(chance.randrange(6), chance.randrange(6)),
        b=min(chance.randrange(arguments), chance.randrange(arguments)),
        wait=chance.choice((0, 1, 1, 5, 30, 1_000)),
        override=chance.random() < 0.2,
        status=int(status),
        raw=chance.choice((0, 1, 10, 10, 10, 11)),
        template=chance.choice((20, 20, 21)),
        masked=chance.choice((0, 0, 30, 31)),
        prev_masked=chance.choice((0, 30)),
        error_class=int(chance.choice(list(ErrorClass))) if failed else 0,
        changed=chance.random() < 0.8,
        ended=chance.random() < 0.1,
        shape=chance.choice((0, 50, 50, 51)) if failed else 0,
    )


class Fold:
    """An engine, a clock and what the caller of an engine remembers; takes one step after the other.

    ``timed=False`` leaves the time out of all records.
    """

    def __init__(self, engine: Engine, tools: tuple[Tool, ...] = TOOLS, timed: bool = True, now: int = 0) -> None:
        self.engine = engine
        self.tools = tools
        self.timed = timed
        self.now = now
        self.round: int | None = None

    @property
    def at(self) -> float | None:
        """The time of a record made now."""
        return float(self.now) if self.timed else None

    def take(self, step: Step) -> int | Hit | None:
        """Fold one step. Returns what the engine said."""
        self.now += step.wait
        if step.what == "start":
            return self._start(step)
        if step.what == "end":
            return self._end(step)
        return self._note(step)

    def _start(self, step: Step) -> int | Hit:
        engine = self.engine
        tool, kind, key, target = call_of(step.a, step.b, self.tools)
        bound = engine.bind(tool)
        said = engine.start(self.at, bound, kind, key, target, self.round)
        # A warning here is a handoff that comes first: the attempt was not taken in.
        refused = isinstance(said, Hit) and said.action is not Action.WARN
        # A stop that was in force before is not overridden, as in a run.
        if refused and step.override and (engine.latch is None or engine.latch.seq == engine.seq):
            engine.override(self.at, bound, kind, key, target, self.round)
        return said

    def _end(self, step: Step) -> Hit | None:
        engine = self.engine
        calls = [*engine.open, *engine.late]
        seq = calls[(step.a + step.b) % len(calls)] if calls else 0
        outcome = (
            step.raw,
            step.template,
            step.masked,
            step.prev_masked,
            step.error_class,
            step.changed,
            step.ended,
            step.shape,
        )
        return engine.end(self.at, seq, step.status, *outcome)

    def _note(self, step: Step) -> Hit | None:
        engine = self.engine
        tool, _, key, _ = call_of(step.a, step.b, self.tools)
        if step.what == "user":
            engine.note_user_message()
            self.round = None
        elif step.what == "compaction":
            engine.note_compaction()
        elif step.what == "nudge":
            engine.note_nudge("repeat", key)
        elif step.what == "round":
            self.round = engine.note_round()
        elif step.what == "no_round":
            self.round = None
        elif step.what == "stop":
            return engine.stop("asked from outside")
        elif step.what == "resume":
            engine.resume()
        elif step.what == "tick":
            return engine.tick(tool, self.at)
        elif step.what == "untick":
            if engine.row_of(tool).below:
                engine.untick(tool)
        elif step.what == "usage":
            cost = None if step.masked else step.raw / 8  # eighths: their sum is exact
            return engine.note_usage(self.at, 10 * step.raw, step.template, cost)
        elif step.what == "handoff":
            return self._handoff(step)
        elif step.what == "descendant":
            engine.note_descendant_write()
        elif step.what == "acknowledge":
            for rule, evidence in engine.repeats(self.at)[:1]:
                engine.acknowledge(evidence.pattern, rule, evidence)
        elif step.what == "withdraw":
            for seq in list(engine.open)[:1]:
                engine.withdraw(seq)
        else:
            raise ValueError(f"unknown step {step.what!r}")
        return None

    def _handoff(self, step: Step) -> Hit | None:
        """Answer the oldest handoff: go on, stop, or half as much again."""
        for name, (_, allowed) in list(self.engine.books.asking.items())[:1]:
            answer: Limits | Literal["stop"] | None = None
            if step.override:
                answer = "stop"
            elif step.changed:
                more = int(allowed * 1.5) + 1
                field, _, tool = name.rstrip("]").partition("[")
                answer = limits_of({field: {tool: more} if tool else more})
            return self.engine.note_handoff(name, answer, self.at, float(step.wait))
        return None


class Log:
    """What happened, by the definitions alone: the operations, and up to which of them each rule has forgotten.

    It watches a ``Fold`` from outside and shares nothing with the index, which it is there to check.
    """

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.operations: list[Operation] = []
        self.restarted = 0
        self.reset = 0
        self.cleared: dict[int, int] = {}

    def take(self, step: Step) -> Operation | None:
        """Fold one step. Returns the operation that it ended, if any."""
        engine, policy = self.fold.engine, self.fold.engine.plan.policy
        latch, before, targets = (
            engine.latch,
            engine.n,
            {s: c[0].target for s, c in (engine.open | engine.late).items()},
        )
        self.fold.take(step)
        lifted = step.what == "user" and latch is not None and latch.limit is None and latch.rule != "stop"
        if step.what == "resume" or lifted:
            self.restarted = self.reset = before
        elif step.what in {"user", "descendant"} and policy.restarts:
            self.restarted = before
        if engine.n == before:
            return None
        op = engine.history[-1]
        known = any(old.key == op.key and old.n > op.n - policy.window for old in self.operations)
        self.operations.append(op)
        if op.kind == Kind.WRITE and op.status == Status.OK and step.changed and not known and policy.restarts:
            self.restarted = before
        tool = next(tool for tool in self.fold.tools if tool.name == op.tool)
        if op.status and op.error_class == ErrorClass.RECOVERABLE and tool.edits and targets[op.seq]:
            self.cleared[targets[op.seq]] = before
        return op

    def window(self, rule: Rule, entry: Entry) -> list[Operation]:
        """The last ``window`` operations since the rule's last restart, without free repetitions."""
        engine = self.fold.engine
        floor = max(engine.n - engine.window, self.restarted if rule.restarts else self.reset)
        ops = [op for op in self.operations[-engine.window :] if op.n > floor and not op.free]
        if rule.clears_edits and entry.row.tool.edits:
            cleared = self.cleared.get(entry.target, 0)
            ops = [op for op in ops if op.key != entry.key or op.status or op.n > cleared]
        return ops


def attempt_of(entry: Entry, at: float | None, operation: Operation | None = None) -> Attempt:
    """The call of this entry, as ``judge`` sees it."""
    return Attempt(entry.row.name, entry.key, entry.kind, at, operation, entry.flight, entry.refused_at)
