"""What runs on each call of a guarded tool, once for each kind of function.

The order is the same in all: find the run, ask, execute, tell.
A function here gets ``(wrapped, instance, args, kwargs)`` from wrapt; ``args`` are without ``self``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any

from loopguard.errors import LoopguardError
from loopguard.guard import Guard, Stream
from loopguard.outside import outside_run
from loopguard.run import Instead, Run, _current
from loopguard.within import first_item

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


def call(function_guard: Guard) -> Wrapper:
    """For plain functions."""
    method_guard = function_guard.for_method()

    def guarded(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = _current.get()
        guard = function_guard if instance is None else method_guard
        if run is None or run.closed:
            outside = outside_run(guard, run)
            if not isinstance(outside, Run):
                return wrapped(*args, **kwargs) if outside is None else outside.call(wrapped, args, kwargs)
            run = outside
        seq = run.admit(guard, args, kwargs)
        if seq.__class__ is Instead:
            return seq.value
        handle = run.spans and _span(run, guard, seq, args, kwargs)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            _raised(run, guard, seq, error, args, kwargs, handle)
            raise
        if seq:
            result = run.done(guard, seq, result, args, kwargs, handle)
        if handle is not None:
            run.spans.end(handle, result=result)  # type: ignore[union-attr]  # there is no handle without spans
        return result

    return guarded


def async_call(function_guard: Guard) -> Wrapper:
    """For coroutine functions."""
    method_guard = function_guard.for_method()

    async def guarded(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        run = _current.get()
        guard = function_guard if instance is None else method_guard
        if run is None or run.closed:
            outside = outside_run(guard, run)
            if not isinstance(outside, Run):
                return await (wrapped(*args, **kwargs) if outside is None else outside.acall(wrapped, args, kwargs))
            run = outside
        seq = run.admit(guard, args, kwargs)
        if seq.__class__ is Instead:
            return seq.value
        handle = run.spans and _span(run, guard, seq, args, kwargs)
        try:
            result = await wrapped(*args, **kwargs)
        except BaseException as error:
            _raised(run, guard, seq, error, args, kwargs, handle)
            raise
        if seq:
            result = run.done(guard, seq, result, args, kwargs, handle)
        if handle is not None:
            run.spans.end(handle, result=result)  # type: ignore[union-attr]
        return result

    return guarded


def stream(function_guard: Guard) -> Wrapper:
    """For generator functions: the call begins with the first item and ends with the last."""
    method_guard = function_guard.for_method()

    def guarded(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Generator[Any, Any, Any]:
        run = _current.get()
        guard = function_guard if instance is None else method_guard
        if run is None or run.closed:
            outside = outside_run(guard, run)
            if not isinstance(outside, Run):
                return (yield from wrapped(*args, **kwargs))
            run = outside
        seq = run.admit(guard, args, kwargs)
        if seq.__class__ is Instead:
            yield seq.value
            return seq.value
        handle = run.spans and _span(run, guard, seq, args, kwargs)
        seen = Stream(run.seed)
        inner = wrapped(*args, **kwargs)
        sent: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    if thrown is not None:
                        thrown, error = None, thrown
                        item = inner.throw(error)
                    else:
                        item = next(inner) if sent is None else inner.send(sent)
                except StopIteration as stop:
                    result = stop.value
                    break
                seen.add(item)
                if handle is not None:
                    run.spans.suspend(handle)  # type: ignore[union-attr]
                try:
                    sent = yield item
                except GeneratorExit:
                    inner.close()
                    raise
                except BaseException as error:
                    thrown = error
                if handle is not None:
                    run.spans.resume(handle)  # type: ignore[union-attr]
        except BaseException as error:
            _raised(run, guard, seq, error, args, kwargs, handle)
            raise
        if seq:
            run.done(guard, seq, seen, args, kwargs, handle)
        if handle is not None:
            run.spans.end(handle)  # type: ignore[union-attr]
        return result

    return guarded


def async_stream(function_guard: Guard) -> Wrapper:
    """For async generator functions."""
    method_guard = function_guard.for_method()

    async def guarded(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncGenerator[Any, Any]:
        run = _current.get()
        guard = function_guard if instance is None else method_guard
        seq: Any = 0
        handle: Any = None
        if run is None or run.closed:
            outside = outside_run(guard, run)
            run = outside if isinstance(outside, Run) else None
        if run is not None:
            seq = run.admit(guard, args, kwargs)
            if seq.__class__ is Instead:
                yield seq.value
                return
            handle = run.spans and _span(run, guard, seq, args, kwargs)
        seen = Stream(run.seed if run is not None else 0)
        inner = wrapped(*args, **kwargs)
        first: Any = first_item(inner)
        sent: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    if first is not None:
                        step, first = first, None
                        item = await step
                    elif thrown is not None:
                        thrown, error = None, thrown
                        item = await inner.athrow(error)
                    else:
                        item = await (inner.__anext__() if sent is None else inner.asend(sent))
                except StopAsyncIteration:
                    break
                if run is not None:
                    seen.add(item)
                if handle is not None:
                    run.spans.suspend(handle)  # type: ignore[union-attr]
                try:
                    sent = yield item
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:
                    thrown = error
                if handle is not None:
                    run.spans.resume(handle)  # type: ignore[union-attr]
        except BaseException as error:
            if run is not None:
                _raised(run, guard, seq, error, args, kwargs, handle)
            raise
        if seq and run is not None:
            run.done(guard, seq, seen, args, kwargs, handle)
        if handle is not None:
            run.spans.end(handle)  # type: ignore[union-attr]

    return guarded


def _span(run: Run, guard: Guard, seq: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The span of an admitted call; None for one that is not watched."""
    if not seq or run.spans is None:
        return None
    if run.spans.captures != "none":
        return guard.span_with_content(run, seq, None, args, kwargs)
    return run.spans.start(run.id, guard.tool.name, run.agent, seq)


def _raised(
    run: Run,
    guard: Guard,
    seq: int,
    error: BaseException,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    handle: Any,
) -> None:
    """An exception leaves the tool: a failure, or no outcome at all."""
    if seq:
        control_flow = guard.spec.control_flow
        if (
            not isinstance(error, Exception)
            # An error of ours speaks of another call, which was refused; for this one it is no outcome.
            or isinstance(error, LoopguardError)
            or (control_flow and isinstance(error, control_flow))
        ):
            run.abandon(seq)
        else:
            run.failed(guard, seq, error, args, kwargs, handle)
    if handle is not None and run.spans is not None:
        run.spans.end(handle, error)
