"""``run.call`` and ``run.begin``: one place for all tools of a hand-written agent."""

from __future__ import annotations

import asyncio
import contextvars
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from loopguard.context import Instead
from loopguard.guard import ByName, guard_for
from loopguard.outcome import classify
from loopguard.outside import Traced, outside_run
from loopguard.telemetry.metrics import metrics

if TYPE_CHECKING:
    from loopguard.run import Run

#: The block of ``run.call`` around this code, so that a guarded tool inside knows that it is that call.
_around: contextvars.ContextVar[Call | None] = contextvars.ContextVar("loopguard_call", default=None)


#: The model's ids of so many calls are kept until they end.
MOST_IDS = 1_000

#: Stands for a result that was never set: an object of its own kind, so its outcome is unknown.
_NOTHING_SET = object()


class Call:
    """One call of a tool, asked for by name.

    As a block, sync or async, it ends with the block; ``begin`` starts it without one.
    ``result`` is what the tool gave; set it inside the block.
    ``seq`` is the call's number in the run.
    A block cannot be skipped from within: a refused call raises on entering it, whatever the run's ``on_refuse`` says.
    A block that ends without a ``result`` has an unknown outcome, which equals nothing.
    """

    __slots__ = (
        "_args",
        "_before",
        "_begun",
        "_ended",
        "_result",
        "_guard",
        "_handle",
        "claimed",
        "id",
        "run",
        "seq",
        "tool",
    )

    def __init__(self, run: Run, tool: str, args: object, id: str | None) -> None:
        self.run = run
        self.tool = str(tool)
        self.id = id
        self._result: Any = _NOTHING_SET
        self.seq = 0
        self.claimed = False
        self._args: tuple[Any, ...] = ({} if args is None else args,)
        self._guard = guard_for(run, self.tool)
        self._handle: Any = None
        self._begun = False
        self._ended = False
        self._before: Call | None = None

    @property
    def result(self) -> Any:
        """What the tool gave; None until it is set."""
        return None if self._result is _NOTHING_SET else self._result

    @result.setter
    def result(self, result: Any) -> None:
        self._result = result

    def begin(self) -> Call:
        """Ask for the call.

        Raises:
            ToolCallRefused: It must not be executed.
            RunStopped: The run is over.
        """
        self._begun = True
        run = self.run
        if run.closed:
            around = outside_run(self._guard, run)
            if around is None or isinstance(around, Traced):
                return self
            run = self.run = around
        seq = run.admit(self._guard, self._args, {}, self.id)
        if seq.__class__ is Instead:
            self._ended = True
            raise seq.error
        self.seq = seq
        if self.id is not None and seq:
            if run.report.call_ids is None:
                run.report.call_ids = {}
            run.report.call_ids[seq] = self.id
            if len(run.report.call_ids) > MOST_IDS:
                del run.report.call_ids[next(iter(run.report.call_ids))]
        if run.spans is not None and seq:
            if run.spans.captures != "none":
                self._handle = self._guard.span_with_content(run, seq, self.id, self._args, {})
            else:
                self._handle = run.spans.start(run.id, self.tool, run.agent, seq, self.id)
            if run.untold:
                run.tell_span(seq, self._handle)
        return self

    def finish(self, result: Any) -> Any:
        """The tool returned this. Returns it, with a nudge appended where the run says so."""
        if self._ended:
            return result
        self._ended = True
        self._result = result
        binder = self._guard.binder
        if isinstance(binder, ByName) and not binder.declared and not classify(result)[0]:
            binder.declared = True  # what gives a result exists, whoever named it
            metrics.register_tool(self.tool)
        if self.seq:
            self._result = self.run.done(self._guard, self.seq, result, self._args, {}, self._handle)
        self._end_span(None, self.result)
        return self.result

    def fail(self, error: BaseException) -> None:
        """The tool raised this."""
        if self._ended:
            return
        if not isinstance(error, Exception) or self.run.speaks_of(error):
            self.abandon(error)
            return
        self._ended = True
        if self.seq:
            if self._guard.spec.control_flow and isinstance(error, self._guard.spec.control_flow):
                self.run.abandon(self.seq)
            else:
                self.run.failed(self._guard, self.seq, error, self._args, {}, self._handle)
        self._end_span(error)

    def abandon(self, error: BaseException | None = None) -> None:
        """The call came to no outcome."""
        if self._ended:
            return
        self._ended = True
        if self.seq:
            self.run.abandon(self.seq)
        self._end_span(error)

    def _end_span(self, error: BaseException | None, result: Any = None) -> None:
        if self.run.report.call_ids:
            self.run.report.call_ids.pop(self.seq, None)
        if self._handle is not None and self.run.spans is not None:
            self.run.spans.end(self._handle, error, result=result)

    def __enter__(self) -> Self:
        if not self._begun:
            self.begin()
        self._before = _around.get()
        self.run.dispatching += 1
        self.run.set_direct()
        _around.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _around.get() is self:
            _around.set(self._before)
        self._before = None
        self.run.dispatching -= 1
        self.run.set_direct()
        if error is None:
            self.finish(self._result)
        elif isinstance(error, asyncio.CancelledError):
            self.abandon(error)
        else:
            self.fail(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def claim(run: Run, tool: str) -> bool:
    """True for the first guarded tool of this name inside a ``run.call`` of its name: it is that call."""
    call = _around.get()
    if call is None or call.run is not run or call.claimed or call._ended or call.tool != tool:
        return False
    call.claimed = True
    return True
