"""A guarded tool that is called outside a run: not guarded, counted, said once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loopguard import config, wording
from loopguard.errors import LoopguardError
from loopguard.telemetry import logs, lookup
from loopguard.telemetry.metrics import metrics

if TYPE_CHECKING:
    from loopguard.guard import Guard
    from loopguard.run import Run


class _Place:
    """What is kept of one tool, so that its calls outside a run cost next to nothing."""

    __slots__ = ("count", "said")

    def __init__(self, tool: str) -> None:
        self.count = metrics.register_tool(tool)
        #: The settings under which it was said, or was to be kept silent.
        self.said: object = None


_places: dict[Guard, _Place] = {}


def outside_run(guard: Guard, run: Run | None) -> Run | Traced | None:
    """Note a call outside a run; ``run`` is the closed run that this context still holds, if any.

    Returns:
        The run around the closed one, if that is open still (a scope may be left where its context is out of reach);
        else what traces the call, where a tracer provider is set.

    Raises:
        RunStopped: The run of this context was stopped; that holds after its end too.
        LoopguardError: ``configure(outside_run="raise")``.
    """
    if run is not None and run.stopped is not None:
        error = run.report.stop_error() or next((r.report.stop_error() for r in run.ancestors() if r.stopped), None)
        if error is not None:
            raise error
    around = next((one for one in run.ancestors() if not one.closed), None) if run is not None else None
    if around is not None:
        return around
    place = _places.get(guard)
    if place is None:
        if len(_places) > 1_000:  # tools made on the fly must not fill the memory
            _places.clear()
        place = _places[guard] = _Place(guard.tool.name)
    place.count.value += 1
    settings = config.known_settings()
    if place.said is not settings:  # not said yet, or the settings changed since
        if settings.outside_run == "raise":
            raise LoopguardError(wording.outside_error(guard.tool.name))
        hint = place.said is None and settings.outside_run == "hint"
        place.said = settings
        if hint:
            logs.warning("loopguard: %s", wording.outside_text(guard.tool.name))
    if "opentelemetry.sdk.trace" in sys.modules:
        spans = lookup.spans_for_run(settings.telemetry)
        if spans is not None:
            return Traced(spans, guard)
    return None


def forget() -> None:
    """Say everything again; for tests."""
    _places.clear()


class Traced:
    """Traces one call outside a run."""

    __slots__ = ("_guard", "_spans")

    def __init__(self, spans: Any, guard: Guard) -> None:
        self._spans = spans
        self._guard = guard

    def call(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call it in a span."""
        handle = self._start(args, kwargs)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            self._end(handle, error)
            raise
        self._end(handle)
        return result

    async def acall(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Await it in a span."""
        handle = self._start(args, kwargs)
        try:
            result = await wrapped(*args, **kwargs)
        except BaseException as error:
            self._end(handle, error)
            raise
        self._end(handle)
        return result

    def _start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        handle = self._spans.start("", self._guard.tool.name, None, 0)
        if handle is not None and self._spans.captures == "content":
            handle.hide = self._guard.hiding(args, kwargs)
        return handle

    def _end(self, handle: Any, error: BaseException | None = None) -> None:
        if handle is not None:
            self._spans.end(handle, error)
