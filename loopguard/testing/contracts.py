"""What every rule has to keep to, as a suite that runs on yours too.

```python
import pytest
from loopguard.testing.contracts import RuleContract

class TestMyRule(RuleContract):
    @pytest.fixture
    def rule(self):
        return MyRule()
```

It needs nothing but the standard library and a test runner that passes ``rule`` to the methods.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from loopguard.engine import Engine
from loopguard.errors import PolicyError
from loopguard.index import Entry, Row
from loopguard.policy import Plan, Policy
from loopguard.records import Action, Evidence, Hit, Operation
from loopguard.rules import Off, Rule
from loopguard.testing.histories import TOOLS, Fold, Log, attempt_of, call_of, random_step


class Unread:
    """Stands in for a container that a rule must not touch: whoever looks into it gets an ``AssertionError``."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError(f"the rule reads {self.what}: that costs O(window) on every call")

    def __len__(self) -> int:
        raise AssertionError(f"the rule measures {self.what}")

    def __getitem__(self, item: Any) -> Any:
        raise AssertionError(f"the rule reads {self.what}[{item!r}]")


class RuleContract:
    """The duties of a rule. Subclass it and give it a fixture ``rule``; each method is one duty."""

    #: Histories that each duty is checked on, and steps in each.
    histories: ClassVar[int] = 8
    steps: ClassVar[int] = 120
    #: The window of these histories; a rule whose rungs do not fit gets the smallest window that takes them.
    window: ClassVar[int] = 12
    #: The rule takes rungs in any order and beyond the window (a preset that follows its source).
    lenient: ClassVar[bool] = False
    #: The rule may refuse without an end: something outside the run decides when it is over.
    may_refuse_endlessly: ClassVar[bool] = False

    # -- what it is -------------------------------------------------------------------------------------------------

    def test_has_a_name_and_is_frozen(self, rule: Rule) -> None:
        """A rule has a name for telemetry, and its thresholds cannot be changed in place."""
        assert rule.name.isidentifier()
        assert rule.name == rule.name.lower()
        try:
            rule.warn_after = 1  # type: ignore[misc]
        except (dataclasses.FrozenInstanceError, AttributeError, TypeError):
            return
        raise AssertionError(f"{type(rule).__name__} is not frozen")

    def test_equal_thresholds_are_equal_rules(self, rule: Rule) -> None:
        """Rules compare and hash by their thresholds: policies are shared by what they say."""
        twin = rule.replace()
        assert twin == rule
        assert hash(twin) == hash(rule)
        assert rule.replace(warn_after=(rule.warn_after or 0) + 1) != rule

    def test_replace_changes_a_copy(self, rule: Rule) -> None:
        """``replace`` gives a rule of the same class with another threshold and leaves the first alone."""
        before = rule.warn_after
        changed = rule.replace(warn_after=7)
        assert type(changed) is type(rule)
        assert changed.warn_after == 7
        assert rule.warn_after == before
        assert _error(lambda: rule.replace(warm_after=3)), "replace() took a threshold that does not exist"

    def test_off_removes_it_from_a_policy(self, rule: Rule) -> None:
        """``off()`` in a policy leaves the rule out."""
        off = type(rule).off()
        assert off == Off(type(rule))
        wide = {"window": 200, "history": 200}
        policy = Policy(rule, **{**self._settings(rule), **wide})
        assert rule.name in {kept.name for kept in policy.rules}
        assert rule.name not in {kept.name for kept in policy.replace(off).rules}

    # -- thresholds -------------------------------------------------------------------------------------------------

    def test_thresholds_are_whole_and_not_negative(self, rule: Rule) -> None:
        """A negative threshold, a fraction or a bool is a ``PolicyError`` that names it."""
        for bad in (-1, 2.5, True, "3"):
            error = _error(lambda bad=bad: rule.replace(warn_after=bad).check(50, True))
            assert error, f"warn_after={bad!r} was taken"
            assert "warn_after" in error
            assert repr(bad) in error

    def test_zero_and_none_switch_a_rung_off(self, rule: Rule) -> None:
        """0 and None are the same: the rung is off."""
        for off in (0, None):
            quiet = _all_rungs(rule, off)
            quiet.check(50, False)
            assert quiet.lowest_rung() == 0
            assert not self._said(quiet)

    def test_thresholds_beyond_the_window_are_refused(self, rule: Rule) -> None:
        """A rung that the window can never reach is a ``PolicyError``."""
        if not self.lenient:
            high = _all_rungs(rule, 0).replace(warn_after=60)
            assert "window=50" in _error(lambda: high.check(50, True))

    def test_thresholds_out_of_order_are_refused(self, rule: Rule) -> None:
        """warn <= refuse <= stop, or it is a ``PolicyError``."""
        if not self.lenient:
            for rungs in ((6, 5, 10), (3, 8, 7), (9, 0, 8)):
                changed = dict(zip(("warn_after", "refuse_after", "stop_after"), rungs, strict=True))
                assert "out of order" in _error(lambda changed=changed: rule.replace(**changed).check(50, True))

    def test_a_refusal_comes_to_an_end(self, rule: Rule) -> None:
        """A rule that refuses and never stops is a ``PolicyError``, unless endless refusals are wished for."""
        endless = _all_rungs(rule, 0).replace(refuse_after=5)
        endless.check(50, True)
        if not (self.lenient or self.may_refuse_endlessly):
            assert "without an end" in _error(lambda: endless.check(50, False))

    # -- evidence ---------------------------------------------------------------------------------------------------

    def test_evidence_equals_judge(self, rule: Rule) -> None:
        """At every point of random histories the index and the window give the same evidence."""
        for entry, at, operation, log in self._points(rule):
            window = rule.window(log.fold.engine, entry)
            self._agree(rule, window, log.fold.engine, entry, at, operation)

    def test_evidence_is_local(self, rule: Rule) -> None:
        """Evidence depends on nothing but the last ``window`` operations since the last restart."""
        if "counts" in rule.reads:
            return  # such a rule forgets single operations: what is left may be older
        for entry, at, operation, log in self._points(rule):
            self._agree(rule, log.window(rule, entry), log.fold.engine, entry, at, operation)

    def test_evidence_is_bounded(self, rule: Rule) -> None:
        """Counts are at most the window, and every call number is one that was given."""
        for entry, at, operation, log in self._points(rule):
            engine = log.fold.engine
            found = rule.evidence(engine, entry, at, operation)
            if found is not None:
                assert 0 <= found.done <= engine.window
                # In the order in which they ended, which is not that of their numbers where calls overlap.
                assert len(found.seqs) == len(set(found.seqs))
                assert all(0 < seq <= engine.seq for seq in found.seqs)

    def test_evidence_does_not_change_the_state(self, rule: Rule) -> None:
        """Asking twice gives the same answer: a rule only looks."""
        for entry, at, operation, log in self._points(rule):
            first = rule.evidence(log.fold.engine, entry, at, operation)
            assert rule.evidence(log.fold.engine, entry, at, operation) == first

    def test_evidence_costs_the_same_whatever_the_window(self, rule: Rule) -> None:
        """A rule with its own ``evidence`` reads the index, never the window itself."""
        if type(rule).evidence is Rule.evidence:
            return
        for entry, at, operation, log in self._points(rule):
            engine = log.fold.engine
            kept, engine.history = engine.history, Unread("the history")  # type: ignore[assignment]
            try:
                rule.evidence(engine, entry, at, operation)
            finally:
                engine.history = kept

    # -- with the engine --------------------------------------------------------------------------------------------

    def test_warns_once(self, rule: Rule) -> None:
        """A pattern is warned about once; the same call again is no new warning."""
        for hits in self._loops(rule):
            warned = [hit.evidence.pattern for hit in hits if hit.action is Action.WARN]
            assert len(warned) == len(set(warned))

    def test_reports_each_rung_once(self, rule: Rule) -> None:
        """However often a pattern is refused, there is one event for it."""
        for hits in self._loops(rule):
            refused = [hit for hit in hits if hit.action is Action.REFUSE]
            assert sum(hit.report for hit in refused) <= len({hit.evidence.pattern for hit in refused})

    def test_new_calls_are_no_loop(self, rule: Rule) -> None:
        """A run in which no call and no outcome comes twice is never spoken about."""
        rule = self._loop_rungs(rule)
        engine = Engine(Plan(Policy.of(rule, **self._settings(rule))))
        for n in range(1, 200):
            tool, kind, key, target = call_of(n, n)
            seq = engine.start(float(n), engine.bind(tool), kind, key, target)
            assert not isinstance(seq, Hit)
            assert engine.end(float(n), seq, 0, 100 + n) is None

    # -- underneath -------------------------------------------------------------------------------------------------

    def _settings(self, rule: Rule) -> dict[str, Any]:
        windows = (window for window in range(self.window, 1_000) if not _error(partial(rule.check, window, True)))
        window = next(windows, 1_000)
        return {"window": window, "history": window + 3, "endless_refusals": True}

    def _points(self, rule: Rule) -> Iterator[tuple[Entry, float | None, Operation | None, Log]]:
        """Every call at every moment of random histories: before it, and the one that just ended after it."""
        for seed in range(self.histories):
            chance = random.Random(seed)
            engine = Engine(Plan(Policy.of(rule, **self._settings(rule))))
            fold = Fold(engine, TOOLS, timed=seed % 4 != 3)
            log = Log(fold)
            for _ in range(self.steps):
                op = log.take(random_step(chance, arguments=3))
                if engine.latch is not None and chance.random() < 0.5:
                    log.take(random_step(chance)._replace(what="resume"))
                    op = None
                if op is not None and engine.keys[op.key].kind not in rule.skips:
                    yield engine.keys[op.key], op.at, op, log
                for entry in list(engine.keys.values()):
                    if entry.kind not in rule.skips:
                        yield entry, fold.at, None, log
                tool, kind, key, target = call_of(0, 99)
                yield (
                    Entry(key, engine.rows.get(tool.name) or Row(tool, tool.name), kind, target),
                    fold.at,
                    None,
                    log,
                )

    def _agree(
        self,
        rule: Rule,
        window: list[Operation],
        engine: Engine,
        entry: Entry,
        at: float | None,
        operation: Operation | None,
    ) -> None:
        found = rule.evidence(engine, entry, at, operation)
        judged = rule.judge(window, attempt_of(entry, at, operation))
        when = "before the call" if operation is None else "after it"
        assert _counting(found) == _counting(judged), f"{when} the index gives {found}, the window {judged}"

    def _loops(self, rule: Rule) -> Iterator[list[Hit]]:
        """What is said about one call that comes again and again, with the same result and with the same error."""
        rule = self._loop_rungs(rule)
        for status in (0, 1):
            for a in range(len(TOOLS) - 1):
                engine = Engine(Plan(Policy.of(rule, **self._settings(rule))))
                tool, kind, key, target = call_of(a, 0)
                hits: list[Hit] = []
                for n in range(1, 40):
                    said = engine.start(float(n), engine.bind(tool), kind, key, target)
                    if isinstance(said, Hit):
                        hits.append(said)
                        continue
                    warning = engine.end(float(n), said, status, 10, 20)
                    hits += [warning] if warning is not None else []
                yield hits

    def _loop_rungs(self, rule: Rule) -> Rule:
        return rule

    def _said(self, rule: Rule) -> list[Hit]:
        return [hit for hits in self._loops(rule) for hit in hits]


def _counting(evidence: Evidence | None) -> Evidence | None:
    """Evidence of nothing is no evidence."""
    return evidence if evidence is not None and evidence.done else None


def _error(call: Any) -> str:
    """The text of the ``PolicyError`` that the call raises; empty if it does not."""
    try:
        call()
    except PolicyError as error:
        return str(error)
    return ""


def _all_rungs(rule: Rule, value: int | None) -> Rule:
    """A rule of this class with every rung set to this value."""
    names = [field.name for field in dataclasses.fields(rule) if field.name.endswith("_after")]
    return type(rule)(**dict.fromkeys(names, value))
