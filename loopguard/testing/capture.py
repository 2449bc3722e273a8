"""``capture_events``: everything that happens in the runs opened inside, for assertions."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from loopguard import _safety, scope
from loopguard.context import Instead
from loopguard.errors import RunStopped, ToolCallRefused
from loopguard.guard import Guard, Stream
from loopguard.records import Finding
from loopguard.report import Nudge, Reporter
from loopguard.run import Run

Ending = Literal["open", "ok", "failed", "abandoned", "refused", "stopped"]


@dataclass
class CapturedCall:
    """A guarded call, or the attempt of one.

    ``args`` are the arguments by name, ``result`` is what the tool returned (None for a generator), ``error`` what it
    raised or what refused it.
    ``ending`` is ``"ok"``, ``"failed"`` (raised), ``"abandoned"`` (no outcome), ``"refused"`` (not executed, the run
    went on), ``"stopped"`` (not executed, the run is over) or ``"open"``.
    """

    tool: str
    args: dict[str, Any]
    run_name: str
    ending: Ending = "open"
    result: Any = None
    error: BaseException | None = None

    @property
    def executed(self) -> bool:
        """True unless the call was refused or stopped."""
        return self.ending not in ("refused", "stopped")


@dataclass
class Captured:
    """What happened so far, in order, in all runs opened under `capture_events`."""

    findings: list[Finding] = field(default_factory=list)
    calls: list[CapturedCall] = field(default_factory=list)
    nudges: list[Nudge] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @property
    def actions(self) -> list[str]:
        """The actions of the findings as words: ``["warn", "refuse", "stop"]``."""
        return [finding.action.value for finding in self.findings]

    def clear(self) -> None:
        """Forget what happened so far; runs that are open go on being captured."""
        for things in (self.findings, self.calls, self.nudges, self.runs):
            things.clear()


#: Where runs that open now report to.
_listening: list[Captured] = []
_lock = threading.Lock()


@contextmanager
def capture_events() -> Iterator[Captured]:
    """Collect what happens in every run that is opened inside, whoever opens it, and be loud about errors of ours.

    Errors inside loopguard, and of callbacks and predicates that it calls, are raised instead of logged.
    It nests, and holds for the whole process: runs of other threads that open meanwhile are collected too.

    ```python
    from loopguard import guarded_run, guarded_tool
    from loopguard.testing import capture_events

    @guarded_tool
    def search(query: str) -> str:
        return "no results"

    with capture_events() as events, guarded_run("research"):
        for _ in range(3):
            search("x")

    assert events.actions == ["warn"]
    assert [call.args for call in events.calls] == [{"query": "x"}] * 3
    ```
    """
    captured = Captured()
    with _lock:
        _listening.append(captured)
        scope.run_class = ObservedRun
    try:
        with loud_errors():
            yield captured
    finally:
        with _lock:
            # By identity: two that have seen the same are equal.
            _listening[:] = [other for other in _listening if other is not captured]
            if not _listening:
                scope.run_class = Run


class _Loud:
    """How many blocks want errors of ours raised, and what held before the first."""

    depth = 0
    before = False


@contextmanager
def loud_errors() -> Iterator[None]:
    """Raise errors inside loopguard instead of logging them. Nests, in whatever order blocks end."""
    with _lock:
        if not _Loud.depth:
            _Loud.before, _safety.strict = _safety.strict, True
        _Loud.depth += 1
    try:
        yield
    finally:
        with _lock:
            _Loud.depth -= 1
            if not _Loud.depth:
                _safety.strict = _Loud.before


class ObservedReporter(Reporter):
    """Tells of findings and nudges."""

    __slots__ = ()
    run: ObservedRun

    def publish(
        self,
        finding: Finding,
        guard: Guard | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        handle: Any = None,
        spans: bool = True,
    ) -> None:
        """See ``Reporter.publish``."""
        for captured in self.run.heard_by:
            captured.findings.append(finding)
        super().publish(finding, guard, args, kwargs, handle, spans)

    def nudge_for(
        self, finding: Finding, guard: Guard | None, seq: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Nudge:
        """See ``Reporter.nudge_for``."""
        nudge = super().nudge_for(finding, guard, seq, args, kwargs)
        for captured in self.run.heard_by:
            captured.nudges.append(nudge)
        return nudge


class ObservedRun(Run):
    """A run that tells of its calls."""

    reporter: ClassVar[type[Reporter]] = ObservedReporter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with _lock:
            self.heard_by = tuple(_listening)
        self._calls: dict[int, CapturedCall] = {}
        super().__init__(*args, **kwargs)
        for captured in self.heard_by:
            captured.runs.append(self)

    def admit(self, guard: Guard, args: tuple[Any, ...], kwargs: Mapping[str, Any], call_id: str | None = None) -> Any:
        """See ``Run.admit``."""
        call = CapturedCall(guard.tool.name, dict(guard.binder.named(args, dict(kwargs))), self.name)
        try:
            answer = super().admit(guard, args, kwargs, call_id)
        except (ToolCallRefused, RunStopped) as error:
            call.ending = "refused" if isinstance(error, ToolCallRefused) else "stopped"
            call.error = error
            self._heard(call)
            raise
        if answer.__class__ is Instead:
            call.ending, call.result = "refused", answer.value
            self._heard(call)
        elif answer:  # 0 is a call that is not watched, or that a run.call around it stands for
            self._calls[answer] = call
            self._heard(call)
        return answer

    def done(
        self,
        guard: Guard,
        seq: int,
        result: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        handle: Any = None,
    ) -> Any:
        """See ``Run.done``."""
        self._ended(seq, "ok", result=None if type(result) is Stream else result)
        return super().done(guard, seq, result, args, kwargs, handle)

    def failed(
        self,
        guard: Guard,
        seq: int,
        error: BaseException,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        handle: Any = None,
    ) -> None:
        """See ``Run.failed``."""
        self._ended(seq, "failed", error=error)
        super().failed(guard, seq, error, args, kwargs, handle)

    def abandon(self, seq: int) -> None:
        """See ``Run.abandon``."""
        self._ended(seq, "abandoned")
        super().abandon(seq)

    def _heard(self, call: CapturedCall) -> None:
        for captured in self.heard_by:
            captured.calls.append(call)

    def _ended(self, seq: int, ending: Ending, result: Any = None, error: BaseException | None = None) -> None:
        call = self._calls.pop(seq, None)
        if call is not None:
            call.ending, call.result, call.error = ending, result, error
