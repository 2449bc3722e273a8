"""Functions with a run current around them, for each kind of function.

A generator shares the context of whoever takes its items: there the run is current while the body runs, and what was
current before while the consumer does.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
import types
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from loopguard.context import current

if TYPE_CHECKING:
    from loopguard.run import Run

P = ParamSpec("P")
R = TypeVar("R")

#: Makes what is entered around one call, and gives its run.
Scope = Callable[[], "AbstractContextManager[Run]"]


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def is_plain(function: Callable[..., Any]) -> bool:
    """True for a function whose work is done when the call returns."""
    what = _body(function)
    lasting = (inspect.isasyncgenfunction, inspect.iscoroutinefunction, inspect.isgeneratorfunction)
    return not any(is_kind(what) for is_kind in lasting)


def _body(function: Any) -> Any:
    """What tells the kind of a function; for a callable object its ``__call__``."""
    if isinstance(function, (*_FUNCTIONS, functools.partial)):
        return function
    return type(function).__call__


def within(function: Callable[P, R], scope: Scope) -> Callable[P, R]:
    """The function, each call of it inside a scope of its own; what kind of function it is stays."""
    what = _body(function)
    if inspect.isasyncgenfunction(what):
        wrapper: Any = _async_generator(function, scope)
    elif inspect.iscoroutinefunction(what):
        wrapper = _coroutine(function, scope)
    elif inspect.isgeneratorfunction(what):
        wrapper = _generator(function, scope)
    else:
        wrapper = _plain(function, scope)
    return cast("Callable[P, R]", functools.wraps(function)(wrapper))


def _plain(function: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = current.get()
        try:
            with scope() as run:
                current.set(run)
                return function(*args, **kwargs)
        finally:
            current.set(before)

    return wrapper


def _coroutine(function: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = current.get()
        try:
            with scope() as run:
                current.set(run)
                return await function(*args, **kwargs)
        finally:
            current.set(before)

    return wrapper


def _generator(function: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        consumer = current.get()
        try:
            with scope() as run:
                current.set(run)
                inner = function(*args, **kwargs)
                step, value = inner.send, None
                while True:
                    try:
                        item = step(value)
                    except StopIteration as stop:
                        return stop.value
                    current.set(consumer)
                    try:
                        step, value = inner.send, (yield item)
                    except GeneratorExit:
                        consumer = _enter(run)
                        inner.close()
                        raise
                    except BaseException as error:  # noqa: BLE001 - it is the generator that is to see it
                        step, value = inner.throw, error
                    consumer = _enter(run)
        finally:
            current.set(consumer)

    return wrapper


def _async_generator(function: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        consumer = current.get()
        try:
            with scope() as run:
                current.set(run)
                inner = function(*args, **kwargs)
                step: Any = first_item(inner)
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    current.set(consumer)
                    try:
                        sent = yield item
                    except GeneratorExit:
                        consumer = _enter(run)
                        await inner.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001 - it is the generator that is to see it
                        step = inner.athrow(error)
                    else:
                        step = inner.asend(sent)
                    consumer = _enter(run)
        finally:
            current.set(consumer)

    return wrapper


def _enter(run: Run) -> Run | None:
    """Make the run current; returns what was."""
    before = current.get()
    current.set(run)
    return before


def first_item(generator: Any) -> Awaitable[Any]:
    """The first step of an async generator that only the caller closes.

    The event loop closes the generators that it has seen, all at once, when it ends.
    One that is read by another one would be closed by both at the same time, which Python reports as an error.
    The hooks are read in the very call of ``__anext__``, and are the thread's own.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return cast("Awaitable[Any]", generator.__anext__())
    finally:
        sys.set_asyncgen_hooks(*hooks)


def bind(run: Run, function: Callable[P, R]) -> Callable[P, R]:
    """The function, to be called anywhere, in a copy of this context with the run current."""
    if not is_plain(function):
        return within(function, lambda: nullcontext(run))
    context = contextvars.copy_context()
    context.run(current.set, run)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        # A context can be entered once at a time; each call gets its own copy.
        result = context.copy().run(function, *args, **kwargs)
        if type(result) is types.CoroutineType:  # it did not look like a coroutine function: its work is still to come
            return cast("R", _later(run, result))
        return result

    return wrapper


async def _later(run: Run, coroutine: Any) -> Any:
    before = current.get()
    try:
        current.set(run)
        return await coroutine
    finally:
        current.set(before)
