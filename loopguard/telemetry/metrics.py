"""Counts, kept as plain numbers on our side and read by OpenTelemetry when it collects.

Nothing of this is on the path of a call: a run keeps its own counts and offers them as a snapshot.
An attribute of a metric is a name of few values: tool, agent, rule, action, decision, outcome. Never a run
id, a fingerprint or an argument: the SDK folds everything beyond 2,000 series into one, which makes counts
useless.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, cast

from loopguard import _safety
from loopguard.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: How long the largest count of a finished run is still shown, in seconds: twice the usual export interval,
#: so that a short run is not missed.
GRACE_S: Final = 120.0

#: Names beyond these are counted as ``_other``. They keep every metric below the 2,000 series of the SDK.
MOST_TOOLS: Final = 200
MOST_AGENTS: Final = 50
MOST_VALUES: Final = 100
#: Series of ``loopguard.loop.detections`` that start at 0; further ones start with their first detection.
MOST_SEEDS: Final = 1000

Attributes = tuple[tuple[str, str | bool], ...]
Series = dict[Attributes, int]

_KEYS: Final = {"tool": names.TOOL, "agent": names.AGENT, "error_type": names.ERROR_TYPE}


class Snapshot(TypedDict):
    """What a run says about itself when metrics are collected.

    ``calls`` counts by (tool, decision), a decision being ``allow``, ``refuse`` or ``stop``.
    """

    max_operation_count: int
    calls: Mapping[tuple[str, str], int]
    agent: str | None


class Source(Protocol):
    """Gives a snapshot; called from the thread that exports metrics."""

    def metrics_snapshot(self) -> Snapshot:
        """The counts so far. They never become smaller, ``max_operation_count`` excepted."""
        ...


class UnguardedCalls:
    """How often one tool was called outside a run. ``value += 1`` is all that such a call pays for."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class _LiveRun(weakref.ref[Any]):
    """A weak reference to a run that also knows where the run's counts are once it is gone."""

    __slots__ = ("key", "source")
    key: int
    source: Source | None


class Metrics:
    """The counts of this process.

    There is one, ``metrics``; tests make their own. Thread-safe. After a fork the child starts at zero,
    because what it inherited is reported by its parent.

    Args:
        clock: Seconds that never go back; only the grace of a finished run depends on it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start()

    def _start(self) -> None:
        # Re-entrant: a run may be collected, and close itself, while this very thread holds the lock.
        self._lock = threading.RLock()
        self._series: dict[str, Series] = {
            name: {} for name in (names.DETECTIONS, names.RUNS, names.CALLS, names.WASTED_CALLS, names.INTERVENTIONS)
        }
        self._live: dict[int, _LiveRun] = {}
        # Filled by the garbage collector at any moment, so without the lock; emptied under it.
        self._dropped: deque[_LiveRun] = deque()
        # Newest last, values falling: the first one that is young enough is the maximum.
        self._finished: deque[tuple[float, int]] = deque()
        self._rungs: set[tuple[str, str]] = set()
        self._seen_rungs: set[frozenset[tuple[str, str]]] = set()
        self._agents: set[str] = set()
        self._values: dict[str, set[str]] = {}
        if not hasattr(self, "_unguarded"):
            self._unguarded: dict[str, UnguardedCalls] = {}

    def restart(self) -> None:
        """Forget counts and live runs, take a new lock, keep the tools: for a forked child and for tests."""
        self._start()
        for counter in self._unguarded.values():
            counter.value = 0
        for tool in self._unguarded:
            self._seed_tool(tool)

    # Names.

    def register_tool(self, tool: str) -> UnguardedCalls:
        """Make a tool known, when it is decorated or declared; its series start at 0.

        Returns:
            The tool's counter of calls outside a run. One for all tools beyond the first 200 names.
        """
        counter = self._unguarded.get(tool)
        if counter is not None:
            return counter
        with self._lock:
            if len(self._unguarded) >= MOST_TOOLS and tool != names.OTHER:
                return self.register_tool(names.OTHER)
            counter = self._unguarded.setdefault(tool, UnguardedCalls())
            self._seed_tool(tool)
        return counter

    def tool_label(self, tool: str) -> str:
        """The tool's name on a metric: ``_other`` if nobody registered it; a model may have made it up."""
        return names.clean(tool) if tool in self._unguarded else names.OTHER

    def agent_label(self, agent: str | None) -> str | None:
        """The agent's name on a metric; ``_other`` beyond the first 50 names."""
        if agent is None or agent in self._agents:
            return agent
        with self._lock:
            if len(self._agents) >= MOST_AGENTS:
                return names.OTHER
            self._agents.add(agent)
        return agent

    def expect(self, rungs: frozenset[tuple[str, str]]) -> None:
        """Say which detections a policy can give, as (rule, action); their series start at 0 for every tool.

        Without that an alert on ``increase(...)`` misses the first one. Called when a run opens; the same set
        again costs one look-up.
        """
        if rungs in self._seen_rungs:
            return
        with self._lock:
            if len(self._seen_rungs) < MOST_VALUES:
                self._seen_rungs.add(rungs)
            self._rungs |= rungs
            for tool in self._unguarded:
                self._seed_detections(tool)

    # Counts.

    def add(self, name: str, n: int = 1, **attributes: str | bool | None) -> None:
        """Count something.

        Args:
            name: A metric of ``names``.
            n: How many.
            attributes: ``tool``, ``agent`` and ``error_type`` stand for their full names; others are taken as
                they are. One that is None is left out.
        """
        try:
            key = self._key(attributes)
            with self._lock:
                series = self._series[name]
                series[key] = series.get(key, 0) + n
        except Exception as error:  # noqa: BLE001 - counting never breaks a call
            _safety.report("telemetry.add", error)

    def _key(self, attributes: Mapping[str, str | bool | None]) -> Attributes:
        pairs: list[tuple[str, str | bool]] = []
        for name, value in attributes.items():
            if value is None:
                continue
            if name == "tool":
                label: str | bool = self.tool_label(str(value))
            elif name == "agent":
                label = names.clean(self.agent_label(str(value)))
            else:
                label = value if isinstance(value, bool) else self._bounded(name, names.clean(value))
            pairs.append((_KEYS.get(name, name), label))
        return tuple(sorted(pairs))

    def _bounded(self, name: str, value: str) -> str:
        # A rule of the user's own has a name that we do not control.
        seen = self._values.setdefault(name, set())
        if value not in seen:
            if len(seen) >= MOST_VALUES:
                return names.OTHER
            seen.add(value)
        return value

    # Runs.

    def register_run(self, run: object, source: Source | None = None, agent: str | None = None) -> None:
        """A run opened.

        Args:
            run: Kept by a weak reference only.
            source: Where its counts are. Given apart from the run (and without a reference to it) they are
                not lost if the run is dropped without being closed. Left out: ``run.metrics_snapshot()``.
            agent: The agent's name, so that its ``loopguard.runs`` start at 0.
        """
        reference = _LiveRun(run, self._dropped.append)
        reference.key = id(run)
        reference.source = source
        label = self.agent_label(agent)
        with self._lock:
            self._bury()
            self._live[reference.key] = reference
            runs = self._series[names.RUNS]
            if self._runs_key(label, names.OUTCOMES[0]) not in runs:
                for outcome in names.OUTCOMES:
                    runs.setdefault(self._runs_key(label, outcome), 0)

    def run_closed(self, run: object, outcome: str = names.OUTCOMES[0]) -> None:
        """A run ended: its counts go to the totals. One that is not registered (any more) is left alone.

        Args:
            run: The run.
            outcome: ``completed``, ``failed`` or ``stopped``.
        """
        with self._lock:
            reference = self._live.get(id(run))
            if reference is None or reference() is not run:
                return
            del self._live[id(run)]
            self._merge(reference.source or cast("Source", run), outcome)

    def live_runs(self) -> int:
        """How many runs are open."""
        with self._lock:
            self._bury()
            return len(self._live)

    def _bury(self) -> None:
        """Take over the counts of runs that were dropped without being closed. Under the lock."""
        while self._dropped:
            reference = self._dropped.popleft()
            if self._live.get(reference.key) is reference:
                del self._live[reference.key]
                self._merge(reference.source, names.OUTCOMES[3])

    def _merge(self, source: Source | None, outcome: str) -> None:
        snapshot = self._snapshot(source)
        key = self._runs_key(self.agent_label(snapshot["agent"]), outcome)
        self._series[names.RUNS][key] = self._series[names.RUNS].get(key, 0) + 1
        self._take_calls(self._series[names.CALLS], snapshot)
        highest = snapshot["max_operation_count"]
        if highest > 0:
            while self._finished and self._finished[-1][1] <= highest:
                self._finished.pop()
            self._finished.append((self._clock(), highest))

    def _snapshot(self, source: Source | None) -> Snapshot:
        if source is not None:
            try:
                return source.metrics_snapshot()
            except Exception as error:  # noqa: BLE001 - one broken run must not hide the others
                _safety.report("telemetry.snapshot", error)
        return {"max_operation_count": 0, "calls": {}, "agent": None}

    def _take_calls(self, series: Series, snapshot: Snapshot) -> None:
        for (tool, decision), n in snapshot["calls"].items():
            key = self._calls_key(tool, decision)
            series[key] = series.get(key, 0) + n

    # What a collection reads.

    def max_operation_count(self) -> int:
        """The largest count of one repeated operation, over live runs and those that ended lately."""
        with self._lock:
            self._bury()
            young = self._clock() - GRACE_S
            while self._finished and self._finished[0][0] < young:
                self._finished.popleft()
            highest = self._finished[0][1] if self._finished else 0
            for source in self._live_sources():
                highest = max(highest, self._snapshot(source)["max_operation_count"])
        return highest

    def series(self, name: str) -> Series:
        """A copy of one metric's counts by attributes, those of live runs included."""
        if name == names.UNGUARDED_CALLS:
            return {((names.TOOL, names.clean(tool)),): c.value for tool, c in list(self._unguarded.items())}
        if name == names.INTERNAL_ERRORS:
            pairs = _safety.errors.copy().items()
            return {((names.ERROR_TYPE, kind), ("where", where)): n for (where, kind), n in pairs}
        with self._lock:
            self._bury()
            series = self._series[name].copy()
            if name == names.CALLS:
                for source in self._live_sources():
                    self._take_calls(series, self._snapshot(source))
        return series

    def _live_sources(self) -> Iterable[Source | None]:
        # A copy, because a run may be collected and close itself while we go through it.
        return [reference.source or reference() for reference in self._live.copy().values()]

    # Series that start at 0.

    def _seed_tool(self, tool: str) -> None:
        calls = self._series[names.CALLS]
        for decision in names.DECISIONS:
            calls.setdefault(self._calls_key(tool, decision), 0)
        self._series[names.WASTED_CALLS].setdefault(((names.TOOL, names.clean(tool)),), 0)
        self._seed_detections(tool)

    def _seed_detections(self, tool: str) -> None:
        series = self._series[names.DETECTIONS]
        for rule, action in self._rungs:
            if len(series) >= MOST_SEEDS:
                return
            series.setdefault(self._key({"tool": tool, "rule": rule, "action": action, "enforced": True}), 0)

    def _calls_key(self, tool: str, decision: str) -> Attributes:
        return (("decision", self._bounded("decision", decision)), (names.TOOL, self.tool_label(tool)))

    def _runs_key(self, agent: str | None, outcome: str) -> Attributes:
        pair = ("outcome", self._bounded("outcome", outcome))
        return (pair,) if agent is None else ((names.AGENT, names.clean(agent)), pair)


#: The counts of this process.
metrics: Final = Metrics()

if hasattr(os, "register_at_fork"):
    # A child that is forked while another thread holds the lock would wait for ever.
    os.register_at_fork(after_in_child=metrics.restart)
