"""``assert_guarded``: is every tool of an agent under guard?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from loopguard.tool import is_guarded

#: Where agent frameworks keep the function of a tool object. All that are there have to be guarded.
FUNCTIONS = ("func", "coroutine", "fn", "function", "handler", "_func", "_fn", "_function")


def assert_guarded(tools: object) -> None:
    """Check that every tool is guarded; a framework's tool object is, if the function in it is.

    Args:
        tools: A mapping of names to tools, an iterable of tools, a module, class or namespace (its public functions
            and tools), or one tool.

    Raises:
        AssertionError: Names the tools that are not guarded; also raised where there is no tool at all.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    named = tools_of(tools)
    if not named:
        raise AssertionError(f"There is no tool in {_kind(tools)}.")
    missing = [name for name, tool in named if not _guarded(tool, 0)]
    if missing:
        names = ", ".join(missing)
        raise AssertionError(
            f"{len(missing)} of {len(named)} tools {'is' if len(missing) == 1 else 'are'} not guarded: {names}. "
            "Put @guarded_tool next to the function, below a framework's own decorator."
        )


def tools_of(tools: object) -> list[tuple[str, Any]]:
    """The tools in a registry of any shape, with names."""
    if isinstance(tools, Mapping):
        return [(str(name), tool) for name, tool in tools.items()]
    if isinstance(tools, (ModuleType, type, SimpleNamespace)):
        return [(name, tool) for name, tool in vars(tools).items() if _belongs(name, tool, tools)]
    if _is_tool(tools):
        return [(_name(tools), tools)]
    if isinstance(tools, Iterable) and not isinstance(tools, (str, bytes)):
        return [(_name(tool), tool) for tool in tools]
    raise TypeError(f"assert_guarded takes a mapping, a list or a module of tools, not {_kind(tools)}.")


def _belongs(name: str, thing: Any, owner: ModuleType | type | SimpleNamespace) -> bool:
    """A public tool, or function defined there: what a module has imported is no tool of its own."""
    if name.startswith("_") or isinstance(thing, (type, ModuleType)):
        return False
    if is_guarded(thing) or _inside(thing):
        return True
    return callable(thing) and (
        not isinstance(owner, ModuleType) or getattr(thing, "__module__", None) == owner.__name__
    )


def _is_tool(thing: object) -> bool:
    return callable(thing) or bool(_inside(thing))


def _inside(thing: object) -> list[Any]:
    """The functions inside a tool object, or below a wrapper."""
    inner: Any = thing.__func__ if isinstance(thing, (staticmethod, classmethod)) else thing
    if isinstance(inner, partial):
        return [inner.func]
    below = getattr(inner, "__wrapped__", None)
    if callable(below):
        return [below]
    # Functions and methods have no functions inside; where they do have such an attribute, it means something else.
    if hasattr(inner, "__code__"):
        return []
    found = (getattr(inner, name, None) for name in FUNCTIONS)
    return [function for function in found if callable(function)]


def _guarded(tool: Any, depth: int) -> bool:
    if is_guarded(tool):
        return True
    inside = _inside(tool) if depth < 10 else []
    return bool(inside) and all(_guarded(function, depth + 1) for function in inside)


def _name(tool: object) -> str:
    name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
    return str(name) if name else _kind(tool)


def _kind(thing: object) -> str:
    return f"an empty {type(thing).__name__}" if not thing else f"the {type(thing).__name__} {thing!r:.100}"
