"""``guarded_tool``: the decorator, for every kind of function.

What kind of function it is is decided here, once; the wrappers in ``wrappers`` are what runs on each call.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

import wrapt

from loopguard.config import known_settings
from loopguard.errors import PolicyError
from loopguard.guard import Guard
from loopguard.policy import rules_of
from loopguard.signature import ToolOptions, spec_from_function
from loopguard.wrappers import async_call, async_stream, call, stream

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

#: Frameworks whose tool objects are called by another door than ``__call__``: what they call, and their decorator.
_FRAMEWORKS: Mapping[str, tuple[str, str, str]] = {
    "langchain": ("LangChain", "invoke()", "@tool"),
    "langchain_core": ("LangChain", "invoke()", "@tool"),
    "pydantic_ai": ("Pydantic AI", "its function", "Tool(...)"),
    "agents": ("OpenAI Agents", "on_invoke_tool()", "@function_tool"),
    "mcp": ("The MCP SDK", "run()", "@server.tool()"),
    "fastmcp": ("FastMCP", "run()", "@server.tool()"),
    "claude_agent_sdk": ("The Claude Agent SDK", "its handler", "@tool"),
    "google": ("Google ADK", "run_async()", "FunctionTool(...)"),
    "strands": ("Strands", "stream()", "@tool"),
    "agent_framework": ("Agent Framework", "invoke()", "@tool"),
    "crewai": ("CrewAI", "run()", "@tool"),
    "llama_index": ("LlamaIndex", "call()", "FunctionTool.from_defaults(...)"),
    "haystack": ("Haystack", "invoke()", "@tool"),
    "autogen_core": ("AutoGen", "run_json()", "FunctionTool(...)"),
    "autogen_agentchat": ("AutoGen", "run_json()", "FunctionTool(...)"),
}


def _by_name(module: str, name: str) -> Any:
    """What has this qualified name; for a method that is bound to nothing."""
    return operator.attrgetter(name)(importlib.import_module(module))


class _BoundTool(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]  # wrapt 1 is not generic at run time
    """A guarded method, bound to its instance."""

    # Read on the class (typing does so for runtime protocols), the C extension would make an empty dict there that
    # hides every wrapper's own annotations. A property in this very class body prevents it; an inherited one does not.
    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return self.__wrapped__.__annotations__

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # As for a bare method: it is bound to the copy of its object.
        instance = self._self_instance
        if instance is None or isinstance(instance, type):
            return self
        return self._self_parent.__get__(copy.deepcopy(instance, memo), type(instance))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._self_instance is None:
            return _by_name, (self.__module__, self.__qualname__)
        return getattr, (self._self_instance, self.__name__)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class GuardedTool(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A tool function under guard: in every other respect the function itself.

    Signature, hints, docstring and kind of function are those of the function; it pickles by its qualified name and
    copies to itself, as functions do.
    """

    __bound_function_wrapper__ = _BoundTool

    def __init__(self, wrapped: Any, wrapper: Callable[..., Any], guard: Guard) -> None:
        super().__init__(wrapped, wrapper)
        self._self_guard = guard

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return self.__wrapped__.__annotations__

    def __repr__(self) -> str:
        return f"<guarded tool {self._self_guard.tool.name!r} over {self.__wrapped__!r}>"

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> str:
        return cast("str", getattr(self, "__qualname__", None) or self.__name__)

    def __reduce_ex__(self, protocol: Any) -> str:
        return self.__reduce__()


@overload
def guarded_tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def guarded_tool(**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...


def guarded_tool(function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Guard a tool function: inside a ``guarded_run``, repeated calls are warned about, refused and stopped.

    Works bare and with options, on plain, coroutine, generator and async generator functions, methods, class and
    static methods (on either side of the built-in decorator), partials and callable objects.
    For a generator the outcome is the digest of what it yielded, and a refused call raises before the first item.
    Put it next to the function, below a framework's own decorator.

    Args:
        function: The function, where used bare.
        **options: What the tool tells about itself; see ``loopguard.signature.ToolSpec``.

    Raises:
        PolicyError: An option cannot be meant, or names a parameter that the function does not have.
        TypeError: This is a framework's tool object, which would be called by another door.

    ```python
    @guarded_tool(edits="path")
    def edit(path: str, old: str, new: str) -> str: ...
    ```
    """
    if function is None:
        return functools.partial(_guard, options=options)
    if isinstance(function, (str, type(None))) or (options and not callable(_inner(function))):
        raise TypeError(f"guarded_tool got {function!r} where it takes a function; options go by keyword.")
    return _guard(function, options=options)


def guard_tools(tools: Any, /, **options: Unpack[ToolOptions]) -> Any:
    """Guard a whole registry at once.

    Args:
        tools: A mapping of names to functions (the names become the tools' names), or an iterable of functions.
        **options: Options for all of them; see ``guarded_tool``.

    Returns:
        A dict for a mapping, else a list. Functions that are guarded already stay as they are.
    """
    if isinstance(tools, Mapping):
        return {name: _guard_once(tool, {"name": str(name), **options}) for name, tool in tools.items()}
    if isinstance(tools, Iterable) and not isinstance(tools, (str, bytes)):
        return [_guard_once(tool, dict(options)) for tool in tools]
    raise TypeError(f"guard_tools takes a mapping or a list of functions, not {type(tools).__name__}.")


def is_guarded(tool: object) -> bool:
    """True for a function, method or bound method under ``guarded_tool``."""
    # Since Python 3.13 a class method over a guard is a plain bound method with the guard as its function.
    inner = tool.__func__ if inspect.ismethod(tool) else _inner(tool)
    return isinstance(tool, (GuardedTool, _BoundTool)) or isinstance(inner, GuardedTool)


def _guard_once(tool: Any, options: Mapping[str, Any]) -> Any:
    return tool if is_guarded(tool) else _guard(tool, options=options)


def _inner(function: Any) -> Any:
    """The function below ``staticmethod`` or ``classmethod``."""
    return function.__func__ if isinstance(function, (staticmethod, classmethod)) else function


def _guard(function: Any, *, options: Mapping[str, Any]) -> Any:
    _check_plain(function)
    if isinstance(function, GuardedTool):
        # Guarded twice would be counted twice: the outer options hold.
        function = function.__wrapped__
    inner = _inner(function)
    if isinstance(inner, GuardedTool):
        inner = inner.__wrapped__
        function = type(function)(inner)
    given = dict(options)
    given.setdefault("name", _name(inner))
    spec = spec_from_function(inner, **cast("ToolOptions", given))
    try:  # a threshold that cannot be meant is told here, not at the first call
        rules_of(known_settings().policy, spec.tool())
    except PolicyError as error:
        raise PolicyError(f"tool {spec.name!r}: {error}") from None
    guard = Guard.of_function(inner, spec, bound=inspect.ismethod(inner))
    return GuardedTool(function, _wrapper(inner, guard), guard)


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]


def _wrapper(function: Any, guard: Guard) -> Callable[..., Any]:
    what = function
    if not inspect.isroutine(what) and not isinstance(what, functools.partial):
        what = type(function).__call__
    if inspect.isasyncgenfunction(what):
        return async_stream(guard)
    if inspect.iscoroutinefunction(what):
        return async_call(guard)
    if inspect.isgeneratorfunction(what):
        return stream(guard)
    return call(guard)


def _check_plain(function: Any) -> None:
    inner = _inner(function)
    if inspect.isroutine(inner) or isinstance(inner, (functools.partial, GuardedTool, _BoundTool)):
        return
    if isinstance(inner, type):
        raise TypeError(f"guarded_tool got the class {inner.__name__!r}; guard its methods, or an instance of it.")
    kind = type(inner)
    framework = _FRAMEWORKS.get(kind.__module__.partition(".")[0])
    if framework is not None and hasattr(inner, "name"):
        title, door, decorator = framework
        own = kind.__module__.partition(".")[0].removesuffix("_core")
        raise TypeError(
            f"guarded_tool got a {own} {kind.__name__} ({getattr(inner, 'name', '')!r}). "
            f"{title} would call {door} and bypass the guard. "
            f"Put @guarded_tool under {decorator}, next to the function."
        )
    if not callable(inner):
        raise TypeError(f"guarded_tool got a {kind.__name__}, which cannot be called; give it the tool's function.")
