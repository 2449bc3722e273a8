"""The state of a run as plain containers, and back.

A store keeps records; a snapshot lets it forget the oldest of them.
``restore(plan, snapshot(engine))`` and the rest of the records give the same verdicts as all records did.
What is here are lists, dicts with ``str`` keys, numbers, strings and None: any JSON library writes it.
What can be derived (which operations are equal, what a tool's rules are) is not stored.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

import msgspec

from loopguard.engine import Engine
from loopguard.errors import StoreError
from loopguard.index import Entry, Row
from loopguard.ladder import Bound
from loopguard.ledger import Ledger
from loopguard.policy import Plan
from loopguard.records import Action, Evidence, Hit, Most, Operation, Tool
from loopguard.rules import RULES, Off, Rule

#: The version of the form. Another one is refused: the records can be folded again.
SCHEMA = 1

T = TypeVar("T")

_COUNTERS = (
    "n",
    "restart_at",
    "reset_at",
    "sweep_at",
    "compactions",
    "last_poll",
    "last_unknown",
    "last_new_unknown",
    "seq",
    "round",
    "calls",
    "call_mark",
    "denied_rounds",
    "crowd",
    "crowd_round",
    "quiet_until",
    "alert_until",
)
_FLAGS = ("joinable", "limit_due", "pressing", "watchful")
_LEDGER = ("key", "outcome", "n", "warned", "allowed", "refused", "round", "last_seq", "told")
_ENTRY = ("kind", "target", "flight", "flips", "mixed_at", "compaction", "soft_at")
_ROW = ("last", "failing", "calls", "below", "refused", "stopped", "wasted")


def snapshot(engine: Engine) -> dict[str, Any]:
    """The whole state of a run, in plain containers.

    Its size is bounded by the policy, however long the run is.

    Raises:
        StoreError: For a rule of your own with a field that is no number, string, None or sequence of these.
    """
    return _Writer(engine).write()


def restore(plan: Plan, plain: Any) -> Engine:
    """The run that ``snapshot`` wrote down, under the same policy.

    Args:
        plan: The policy of the run, made ready. Bind tools anew: a ``Bound`` of the old engine belongs to that one.
        plain: What ``snapshot`` returned, perhaps after a way through JSON.

    Raises:
        StoreError: If it is no snapshot, of another version, or made under another window.
    """
    try:
        return _Reader(plan, plain).read()
    except StoreError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
        raise StoreError(f"The snapshot cannot be read: {type(error).__name__}. Fold the records again.") from error


def _shape(engine: Engine) -> list[Any]:
    """What a snapshot and the policy it is restored under must agree on."""
    return [engine.window, engine.plan.policy.history, engine.keep_counts, engine.keep_seen]


class _Writer:
    """Writes operations, calls and tools once each, and refers to them by number."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ops: dict[int, list[Any]] = {}
        self.entries: list[list[Any]] = []
        self.tools: list[Any] = []
        self._entry_numbers: dict[int, int] = {}
        self._tool_numbers: dict[Tool, int] = {}

    def write(self) -> dict[str, Any]:
        engine, books = self.engine, self.engine.books
        return {
            "schema": SCHEMA,
            "shape": _shape(engine),
            "counters": {name: getattr(engine, name) for name in _COUNTERS},
            "flags": {name: getattr(engine, name) for name in _FLAGS},
            "quiet_rule": engine.quiet_rule,
            "totals": dict(engine.totals),
            "rows": [self.row(row) for row in engine.rows.values()],
            "keys": [self.entry(entry) for entry in engine.keys.values()],
            "open": [self.call(seq, call) for seq, call in engine.open.items()],
            "late": [self.call(seq, call) for seq, call in engine.late.items()],
            "history": [self.op(op) for op in engine.history],
            "counted": [self.op(op) for op in engine.counted],
            "pairs": [list(pair) for pair in engine.counts],
            "cleared": [list(item) for item in engine.cleared.items()],
            "latch": None if engine.latch is None else self.hit(engine.latch),
            "memories": {name: _plain_memory(memory) for name, memory in engine.memories.items()},
            "over": [[self.rule(rule), _plain(evidence)] for rule, evidence in engine.over.values()],
            "ledgers": [self.ledger(pattern, ledger) for pattern, ledger in books.items()],
            "followed": _plain(books.followed),
            "heeded": [[*pair, n] for pair, n in books.heeded.items()],
            "ignored": [[*pair, n] for pair, n in books.ignored.items()],
            "told_limits": _plain(sorted(books.told_limits)),
            "asking": {name: list(level) for name, level in books.asking.items()},
            **engine.plain_budget(),
            "denied_round": books.denied_round,
            "spoken": books.spoken,
            # Written last: what stands above fills these.
            "tools": self.tools,
            "entries": self.entries,
            "operations": [self.ops[n] for n in sorted(self.ops)],
        }

    def op(self, op: Operation) -> int:
        if op.n not in self.ops:
            self.ops[op.n] = _plain(msgspec.structs.astuple(op))
        return op.n

    def row(self, row: Row) -> list[Any]:
        return [row.name, self.tool(row.tool), *(getattr(row, name) for name in _ROW)]

    def entry(self, entry: Entry) -> int:
        """The number of the entry. Calls that are open may belong to an entry that is no longer among the keys."""
        number = self._entry_numbers.get(id(entry))
        if number is None:
            number = self._entry_numbers[id(entry)] = len(self.entries)
            floor = self.engine.floor()
            row = None if entry.ops is None else [self.op(op) for op in entry.ops if op.n > floor]
            last = None if entry.op is None else self.op(entry.op)
            facts = [int(getattr(entry, name)) for name in _ENTRY]
            self.entries.append([entry.key, entry.row.name, last, row, entry.refused_at, *facts])
        return number

    def call(self, seq: int, call: tuple[Entry, Bound, int, float | None]) -> list[Any]:
        entry, bound, round_, at = call
        return [seq, self.entry(entry), self.tool(bound.tool), bound.row.name, round_, at]

    def tool(self, tool: Tool) -> int:
        number = self._tool_numbers.get(tool)
        if number is None:
            number = self._tool_numbers[tool] = len(self.tools)
            rules = [self.rule(rule) for rule in tool.rules]
            self.tools.append([tool.name, tool.edits, tool.volatile, _plain(tool.rungs), rules, tool.patience])
        return number

    def rule(self, rule: Rule | Off) -> list[Any]:
        """Its class and its values; None for values that stands for "without this rule"."""
        if isinstance(rule, Off):
            return [_class_name(rule.rule), None]
        return [
            _class_name(type(rule)),
            {item.name: _plain(getattr(rule, item.name)) for item in fields(rule)},
        ]

    def ledger(self, pattern: tuple[Any, ...], ledger: Ledger) -> list[Any]:
        return [_plain(pattern), self.rule(ledger.rule), *(getattr(ledger, name) for name in _LEDGER)]

    @staticmethod
    def hit(hit: Hit) -> list[Any]:
        return [_plain(value) for value in hit]


class _Reader:
    """Builds the engine from what ``_Writer`` wrote; anything unexpected is an error."""

    def __init__(self, plan: Plan, plain: Any) -> None:
        if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
            raise StoreError(f"This is no snapshot of version {SCHEMA}. Fold the records again.")
        self.plan = plan
        self.plain = plain
        self.engine = Engine(plan)
        self.ops: dict[int, Operation] = {}
        self.entries: list[Entry] = []
        self.tools: list[Tool] = []

    def read(self) -> Engine:
        engine, plain = self.engine, self.plain
        if plain["shape"] != _shape(engine):
            raise StoreError(
                f"The snapshot was made under another policy (window, history, counts: {plain['shape']!r}, "
                f"here {_shape(engine)!r}). Fold the records again, or give the run the policy it began with."
            )
        for names, of_type in ((_COUNTERS, int), (_FLAGS, bool)):
            for name in names:
                setattr(engine, name, _is(of_type, plain["counters" if of_type is int else "flags"][name]))
        engine.quiet_rule = _is(str, plain["quiet_rule"])
        engine.totals = {name: _number(plain["totals"][name]) for name in engine.totals}
        self.ops = {op.n: op for op in map(_operation, plain["operations"])}
        self.tools = [self.tool(item) for item in plain["tools"]]
        engine.rows = {row.name: row for row in map(self.row, plain["rows"])}
        self.entries = [self.entry(item) for item in plain["entries"]]
        self.index()
        self.books()
        engine.take_budget(plain)
        engine.memories = self.memories(plain["memories"])
        engine.latch = None if plain["latch"] is None else _hit(plain["latch"])
        over = [(self.rule(rule), _evidence(evidence)) for rule, evidence in plain["over"]]
        engine.over = {evidence.pattern: (rule, evidence) for rule, evidence in over}
        return engine

    def index(self) -> None:
        engine, plain = self.engine, self.plain
        engine.keys = {entry.key: entry for entry in map(self.numbered, plain["keys"])}
        engine.open = dict(self.call(item) for item in plain["open"])
        engine.late = dict(self.call(item) for item in plain["late"])
        engine.history = deque((self.ops[n] for n in plain["history"]), maxlen=engine.plan.policy.history)
        engine.counted = deque(self.ops[n] for n in plain["counted"])
        engine.counts = {(_is(int, key), _is(int, outcome)): [] for key, outcome in plain["pairs"]}
        for op in engine.counted:
            if op.outcome and not op.free:
                engine.counts[op.key, op.outcome].append(op)
        engine.repeated = {pair for pair, ops in engine.counts.items() if len(ops) > 1}
        if engine.keep_seen:
            for op in engine.history:
                engine.seen.setdefault(op.key, []).append(op)
        engine.cleared = {_is(int, target): _is(int, at) for target, at in plain["cleared"]}

    def books(self) -> None:
        books, plain = self.engine.books, self.plain
        for pattern, rule, *facts in plain["ledgers"]:
            key, outcome, n, warned, allowed, *counts = facts
            ledger = Ledger(self.rule(rule), *(_is(int, value) for value in (key, outcome, n)))
            ledger.warned, ledger.allowed = _is(bool, warned), _is(bool, allowed)
            ledger.refused, ledger.round, ledger.last_seq, ledger.told = (_is(int, value) for value in counts)
            books.put(_pattern(pattern), ledger)
        books.followed = [[_is(str, r), str(Action(a)), _is(int, k), _is(int, n)] for r, a, k, n in plain["followed"]]
        books.heeded = {(_is(str, rule), str(Action(a))): _is(int, n) for rule, a, n in plain["heeded"]}
        books.ignored = {(_is(str, rule), str(Action(a))): _is(int, n) for rule, a, n in plain["ignored"]}
        books.told_limits = frozenset((_is(str, name), Action(action)) for name, action in plain["told_limits"])
        books.asking = {_is(str, name): (_number(a), _number(b)) for name, (a, b) in plain["asking"].items()}
        books.denied_round = _is(int, plain["denied_round"])
        books.spoken = _is(bool, plain["spoken"])

    def memories(self, plain: Any) -> dict[str, Any]:
        """What the rules remember; each rule checks what it is given back."""
        rules = {rule.name: rule for rule in (*(cls() for cls in RULES), *self.plan.policy.rules)}
        memories = {_is(str, name): _plain_memory(memory) for name, memory in _is(dict, plain).items()}
        return {name: rules[name].remembered(memory) if name in rules else memory for name, memory in memories.items()}

    def numbered(self, number: Any) -> Entry:
        # A negative number would be read from the end.
        return self.entries[number if _is(int, number) >= 0 else len(self.entries)]

    def tool(self, plain: Any) -> Tool:
        name, edits, volatile, rungs, rules, patience = plain
        pairs = tuple((_is(str, rung), None if value is None else _is(int, value)) for rung, value in rungs)
        own = tuple(self.off(rule[0]) if rule[1] is None else self.rule(rule) for rule in rules)
        return Tool(_is(str, name), _is(bool, edits), _is(bool, volatile), pairs, own, _time(patience))

    def row(self, plain: Any) -> Row:
        name, tool, *facts = plain
        row = Row(self.tools[_is(int, tool)], _is(str, name))
        for attribute, value in zip(_ROW, facts, strict=True):
            setattr(row, attribute, _is(int, value))
        return row

    def entry(self, plain: Any) -> Entry:
        key, row, last, ops, refused_at, *facts = plain
        numbers = dict(zip(_ENTRY, (_is(int, value) for value in facts), strict=True))
        entry = Entry(_is(int, key), self.engine.rows[row], numbers["kind"], numbers["target"])
        entry.op = None if last is None else self.ops[last]
        entry.ops = None if ops is None else [self.ops[n] for n in ops]
        entry.flight, entry.flips = numbers["flight"], numbers["flips"]
        entry.mixed_at, entry.soft_at = numbers["mixed_at"], numbers["soft_at"]
        entry.compaction, entry.refused_at = numbers["compaction"], _time(refused_at)
        return entry

    def call(self, plain: Any) -> tuple[int, tuple[Entry, Bound, int, float | None]]:
        seq, entry, tool, row, round_, at = plain
        bound = Bound(self.tools[_is(int, tool)], self.engine.rows[row], self.plan)
        return _is(int, seq), (self.numbered(entry), bound, _is(int, round_), _time(at))

    def rule(self, plain: Any) -> Rule:
        name, values = plain
        return self.off(name).rule(**{field: _pattern_part(value) for field, value in values.items()})

    def off(self, name: Any) -> Off:
        """The class of this name: one of ours, one of the policy, or one of a module that is imported."""
        known = {_class_name(cls): cls for cls in (*RULES, *map(type, self.plan.policy.rules))}
        module, _, path = _is(str, name).partition(":")
        found = known.get(name) or operator.attrgetter(path)(sys.modules[module])
        if not isinstance(found, type) or not issubclass(found, Rule):
            raise StoreError(f"The snapshot names {name!r}, which is not a rule here.")
        return Off(found)


def _class_name(cls: type[Rule]) -> str:
    return cls.__name__ if cls in RULES else f"{cls.__module__}:{cls.__qualname__}"


def _plain(value: Any) -> Any:
    """The value without enums and tuples."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    raise StoreError(f"A {type(value).__name__} cannot be part of a snapshot; use numbers, strings, None and tuples.")


def _plain_memory(value: Any) -> Any:
    """A copy of what a rule remembers: lists and dicts with ``str`` keys, of what :func:`_plain` takes."""
    if isinstance(value, dict):
        return {_is(str, name): _plain_memory(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain_memory(item) for item in value]
    return _plain(value)


def _pattern_part(value: Any) -> Any:
    """Back from ``_plain``: lists are tuples."""
    if isinstance(value, list):
        return tuple(map(_pattern_part, value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise StoreError(f"The snapshot holds a {type(value).__name__} where a number or text belongs.")


def _pattern(value: Any) -> tuple[Any, ...]:
    return _is(tuple, _pattern_part(value))


def _is(of_type: type[T], value: Any) -> T:
    # ``type() is``, not isinstance: True is no number here.
    if type(value) is not of_type:
        wrong, right = type(value).__name__, of_type.__name__
        raise StoreError(f"The snapshot holds {wrong} where {right} belongs. Fold the records again.")
    return value


def _number(value: Any) -> float:
    return value if type(value) is float else _is(int, value)


def _time(value: Any) -> float | None:
    return None if value is None else _number(value)


def _operation(plain: Any) -> Operation:
    op = Operation(*plain)
    for value in (
        op.n,
        op.seq,
        op.key,
        op.kind,
        op.status,
        op.outcome,
        op.error_class,
        op.round,
        op.flags,
        op.masked,
        op.shape,
    ):
        _is(int, value)
    _is(str, op.tool)
    _time(op.at)
    _number(op.took)
    _time(op.since)
    return op


def _evidence(plain: Any) -> Evidence:
    pattern, key, outcome, done, seqs, warn, refuse, stop, in_flight, *rest = plain
    first_at, last_at, wasted_s = rest
    return Evidence(
        _pattern(pattern),
        _is(int, key),
        _is(int, outcome),
        _is(int, done),
        tuple(_is(int, seq) for seq in seqs),
        _is(int, warn),
        _is(int, refuse),
        _is(int, stop),
        _is(bool, in_flight),
        _time(first_at),
        _time(last_at),
        _number(wasted_s),
    )


def _hit(plain: Any) -> Hit:
    rule, action, tool, evidence, threshold, refused, report, also, limit, most, seq = plain
    if limit is not None:
        name, used, allowed = limit
        limit = (_is(str, name), _number(used), _number(allowed))
    if most is not None:
        executed, repeated, *counts = most
        most = Most(_is(int, executed), _is(str, repeated), *(_is(int, count) for count in counts))
    return Hit(
        _is(str, rule),
        Action(action),
        _is(str, tool),
        _evidence(evidence),
        _is(int, threshold),
        _is(int, refused),
        _is(bool, report),
        tuple(_is(str, name) for name in also),
        limit,
        most,
        _is(int, seq),
    )
