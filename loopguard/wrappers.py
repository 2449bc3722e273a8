"""What runs on each call of a guarded tool, once for each kind of function.

The order is the same in all: find the run, ask, execute, tell.
A function here gets ``(wrapped, instance, args, kwargs)`` from wrapt; ``args`` are without ``self``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from types import CoroutineType
from typing import Any

from xxhash import xxh3_64_intdigest

from loopguard.canonical import SCALARS
from loopguard.context import Instead, current
from loopguard.fingerprint import dumps
from loopguard.guard import EXCERPT, Guard, Stream, worth_masking
from loopguard.outcome import HEADS
from loopguard.outside import Traced, outside_run
from loopguard.run import Run
from loopguard.within import first_item

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


def call(function_guard: Guard) -> Wrapper:
    """For plain functions.

    What ``Run.admit`` and ``Run.done`` say about the usual call stands here once more, without the two calls: they
    cost a fifth of everything. Whatever is not usual goes to them.
    """
    method_guard = function_guard.for_method()

    def guarded(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = current.get()
        guard = function_guard if instance is None else method_guard
        if run is None:
            outside = outside_run(guard, None)
            return (
                wrapped(*args, **kwargs) if outside is None else _watched(None, guard, wrapped, args, kwargs, outside)
            )
        if not run.direct:
            return _watched(run, guard, wrapped, args, kwargs)
        live = run.tools.get(guard)
        if live is None or not live.plain:
            return _watched(run, guard, wrapped, args, kwargs)
        if run.owned():  # a signal handler or a finaliser, in the middle of what is locked
            return wrapped(*args, **kwargs)
        engine = run.engine
        try:
            values = args if len(args) == live.arity and not kwargs else live.key_of(args, kwargs)
            for value in values:
                if type(value) not in SCALARS:
                    key = None
                    break
            else:
                key = xxh3_64_intdigest(dumps(values), live.seed)
                at = run.clock()
        except Exception:
            # Lone surrogates, integers beyond 64 bits, hostile types: ``admit`` knows what to do.
            key = None
        if key is None:  # outside of the ``try``: what the tool raises is its own
            return _watched(run, guard, wrapped, args, kwargs)
        try:
            run.acquire()
            try:
                seq: Any = engine.start(at, live.bound, live.kind, key, 0, run.reply)
            finally:
                run.release()
        except Exception as error:
            run.internal("wrappers.call", error)
            return wrapped(*args, **kwargs)
        if seq.__class__ is not int:
            seq = run.refused(live, seq, run, True, args, kwargs)
            if seq.__class__ is Instead:
                return seq.value
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            _raised(run, guard, seq, error, args, kwargs, None)
            raise
        if type(result) is str and guard.simple and run.simple and result and result[0] not in HEADS:
            opened = engine.open.get(seq)
            try:
                data = result.encode()
                if opened is not None and len(data) <= EXCERPT:
                    before = opened[0].op
                    raw = xxh3_64_intdigest(data, run.seed)
                    if (
                        before is None
                        or before.outcome == raw
                        or (seq & 3 and opened[0].flips >= 3)  # the first that ``worth_masking`` asks
                        or not worth_masking(opened[0], seq, result)
                    ):
                        run.excerpts[seq & 31] = (seq, result)
                        run.acquire()
                        try:
                            hit = engine.close(engine.open.pop(seq, None), run.clock(), seq, 0, raw)
                        finally:
                            run.release()
                        if hit is None and not run.would:
                            return result
                        return run.told(guard, hit, seq, result, args, kwargs)
            except UnicodeEncodeError:
                pass
            except Exception as error:
                return run.internal("wrappers.call", error, result)
        if type(result) is CoroutineType:
            return _later(run, guard, seq, result, args, kwargs, None)
        return run.done(guard, seq, result, args, kwargs) if seq else result

    return guarded


def _watched(
    run: Run | None,
    guard: Guard,
    wrapped: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outside: Run | Traced | None = None,
) -> Any:
    """One call of a plain function, the long way; ``outside`` is what was found where no run is open."""
    if run is None or run.closed:
        if outside is None:
            outside = outside_run(guard, run)
        if outside is None:
            return wrapped(*args, **kwargs)
        if isinstance(outside, Traced):
            return outside.call(wrapped, args, kwargs)
        run = outside
    seq = run.admit(guard, args, kwargs)
    if seq.__class__ is Instead:
        return seq.value
    handle = _span(run, guard, seq, args, kwargs)
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        _raised(run, guard, seq, error, args, kwargs, handle)
        raise
    if type(result) is CoroutineType:
        return _later(run, guard, seq, result, args, kwargs, handle)
    if seq:
        result = run.done(guard, seq, result, args, kwargs, handle)
    _end(run, handle, result)
    return result


async def _later(
    run: Run, guard: Guard, seq: int, coroutine: Any, args: tuple[Any, ...], kwargs: dict[str, Any], handle: Any
) -> Any:
    """The rest of a call that gave a coroutine: another decorator hid that the function is one."""
    try:
        result = await coroutine
    except BaseException as error:
        _raised(run, guard, seq, error, args, kwargs, handle)
        raise
    if seq:
        result = run.done(guard, seq, result, args, kwargs, handle)
    _end(run, handle, result)
    return result


def async_call(function_guard: Guard) -> Wrapper:
    """For coroutine functions."""
    method_guard = function_guard.for_method()

    async def guarded(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = current.get()
        guard = function_guard if instance is None else method_guard
        if run is None or run.closed:
            outside = outside_run(guard, run)
            if outside is None:
                return await wrapped(*args, **kwargs)
            if isinstance(outside, Traced):
                return await outside.acall(wrapped, args, kwargs)
            run = outside
        seq = run.admit(guard, args, kwargs)
        if seq.__class__ is Instead:
            return seq.value
        handle = _span(run, guard, seq, args, kwargs)
        try:
            result = await wrapped(*args, **kwargs)
        except BaseException as error:
            _raised(run, guard, seq, error, args, kwargs, handle)
            raise
        if seq:
            result = run.done(guard, seq, result, args, kwargs, handle)
        _end(run, handle, result)
        return result

    return guarded


def stream(function_guard: Guard) -> Wrapper:
    """For generator functions: the call begins with the first item and ends with the last."""
    method_guard = function_guard.for_method()

    def guarded(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Generator[Any, Any, Any]:
        run = current.get()
        guard = function_guard if instance is None else method_guard
        if run is None or run.closed:
            outside = outside_run(guard, run)
            if not isinstance(outside, Run):
                return (yield from wrapped(*args, **kwargs))
            run = outside
        seq = run.admit(guard, args, kwargs)
        if seq.__class__ is Instead:
            value = seq.value
            yield value
            return value
        handle = _span(run, guard, seq, args, kwargs)
        seen = Stream(run.seed)
        inner = wrapped(*args, **kwargs)
        sent: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    if thrown is not None:
                        raised, thrown = thrown, None
                        item = inner.throw(raised)
                    else:
                        item = next(inner) if sent is None else inner.send(sent)
                except StopIteration as stop:
                    result = stop.value
                    break
                seen.add(item)
                _suspend(run, handle)
                try:
                    sent = yield item
                except GeneratorExit:
                    inner.close()
                    raise
                except BaseException as error:
                    thrown = error
                _resume(run, handle)
        except BaseException as error:
            _raised(run, guard, seq, error, args, kwargs, handle)
            raise
        if seq:
            run.done(guard, seq, seen, args, kwargs, handle)
        _end(run, handle)
        return result

    return guarded


def async_stream(function_guard: Guard) -> Wrapper:
    """For async generator functions."""
    method_guard = function_guard.for_method()

    async def guarded(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncGenerator[Any, Any]:
        run = current.get()
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
            handle = _span(run, guard, seq, args, kwargs)
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
                        raised, thrown = thrown, None
                        item = await inner.athrow(raised)
                    else:
                        item = await (inner.__anext__() if sent is None else inner.asend(sent))
                except StopAsyncIteration:
                    break
                if run is not None:
                    seen.add(item)
                _suspend(run, handle)
                try:
                    sent = yield item
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:
                    thrown = error
                _resume(run, handle)
        except BaseException as error:
            if run is not None:
                _raised(run, guard, seq, error, args, kwargs, handle)
            raise
        if seq and run is not None:
            run.done(guard, seq, seen, args, kwargs, handle)
        _end(run, handle)

    return guarded


def _span(run: Run, guard: Guard, seq: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The span of an admitted call; None for one that is not watched."""
    if not seq or run.spans is None:
        return None
    if run.spans.captures != "none":
        handle = guard.span_with_content(run, seq, None, args, kwargs)
    else:
        handle = run.spans.start(run.id, guard.tool.name, run.agent, seq)
    if run.untold:
        run.tell_span(seq, handle)
    return handle


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
            # By type: ``isinstance`` may run code of a hostile ``__class__``.
            not issubclass(type(error), Exception)
            or run.speaks_of(error)
            or (control_flow and issubclass(type(error), control_flow))
        ):
            run.abandon(seq)
        else:
            run.failed(guard, seq, error, args, kwargs, handle)
    if handle is not None and run.spans is not None:
        run.spans.end(handle, error)


def _end(run: Run | None, handle: Any, result: Any = None) -> None:
    """The span of a call that came to its end."""
    if handle is not None and run is not None and run.spans is not None:
        run.spans.end(handle, result=result)


def _suspend(run: Run | None, handle: Any) -> None:
    """Between two items the consumer's span is current."""
    if handle is not None and run is not None and run.spans is not None:
        run.spans.suspend(handle)


def _resume(run: Run | None, handle: Any) -> None:
    """The generator's span is current again."""
    if handle is not None and run is not None and run.spans is not None:
        run.spans.resume(handle)
