"""What a parameter says about itself in its annotation: part of the key, ignored, secret, or filled by a framework.

Annotations may be text, may name what cannot be imported at run time, and may belong to frameworks that read them
too: nothing here raises, and what cannot be read says nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class _ShortRepr(type):
    """Frameworks print signatures into the description of a tool; a marker must not put a path or an address there."""

    def __repr__(cls) -> str:
        return cls.__name__


class Primary(metaclass=_ShortRepr):
    """Marks a parameter as part of the key of a call: ``path: Annotated[str, Primary]``.

    Several primary parameters form the key in the order of the parameters; the first is the target that messages name.
    Class and instance mean the same.

    Args:
        normalise: applied to the value before it is compared, for instance ``os.path.normpath``; a value for which it
            raises is compared as it is.
    """

    __slots__ = ("normalise",)

    def __init__(self, normalise: Callable[[Any], Any] | None = None) -> None:
        self.normalise = normalise

    def __repr__(self) -> str:
        return "Primary"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Primary) and self.normalise == other.normalise

    def __hash__(self) -> int:
        return hash((Primary, self.normalise))


class _Plain(metaclass=_ShortRepr):
    __slots__ = ()

    def __repr__(self) -> str:
        return type(self).__name__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class Ignored(_Plain):
    """Marks a parameter that is no part of a call's identity: a nonce, a description, a time-out."""

    __slots__ = ()


class Secret(_Plain):
    """Marks a parameter whose value never leaves the process.

    It enters digests as a keyed hash and stands in no message, span or store.
    A parameter annotated as ``pydantic.SecretStr`` is secret without a mark.
    """

    __slots__ = ()


class _Unresolved(str):
    """A name in an annotation that cannot be resolved at run time; a plain text there is a description."""

    __slots__ = ()


class ParameterFacts(NamedTuple):
    """What an annotation said about one parameter."""

    primary: bool = False
    ignored: bool = False
    secret: bool = False
    injected: bool = False
    normalise: Callable[[Any], Any] | None = None


# Types that frameworks fill in themselves; the model never sees such a parameter. By name, nothing is imported.
_INJECTED = frozenset(
    {
        "RunContext",
        "RunContextWrapper",
        "ToolContext",
        "ToolRuntime",
        "CallbackContext",
        "InvocationContext",
        "ReadonlyContext",
        "FunctionInvocationContext",
        "InjectedState",
        "InjectedStore",
        "InjectedToolArg",
        "InjectedToolCallId",
        "RunnableConfig",
        "CancellationToken",
        "CurrentContext",
    }
)
# This name is a user's own word as well: such a type counts as injected unless a model could fill it in.
_PERHAPS_INJECTED = "Context"
_FRAMEWORKS = frozenset(
    {"agent_framework", "agents", "autogen_core", "crewai", "fastmcp", "google", "haystack", "langchain_core"}
    | {"langgraph", "llama_index", "mcp", "pydantic_ai", "strands", "workflows"}
)
_SECRET_TYPES = frozenset({"SecretStr", "SecretBytes", "Secret"})


def signature_of(func: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of ``func``, or None where it has none (some built-in functions)."""
    try:
        return inspect.signature(func)
    except Exception:  # noqa: BLE001 - whatever a callable does when it is looked at, the tool must stay usable
        return None


def facts_of(func: Callable[..., Any], signature: inspect.Signature) -> Mapping[str, ParameterFacts]:
    """What the annotations of ``func`` say, for each parameter that says something."""
    scope = _scope_of(func)
    facts = {
        name: _facts(list(_told(parameter.annotation, scope)))
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not inspect.Parameter.empty
    }
    return {name: fact for name, fact in facts.items() if fact != ParameterFacts()}


def _scope_of(func: Any) -> dict[str, Any]:
    """The names that annotations written as text refer to."""
    while True:
        if isinstance(func, functools.partial):
            func = func.func
        elif hasattr(func, "__wrapped__"):
            func = func.__wrapped__
        else:
            break
    func = getattr(func, "__func__", func)
    if not hasattr(func, "__globals__"):
        func = getattr(type(func).__call__, "__wrapped__", type(func).__call__)
    return dict(getattr(func, "__globals__", {}))


def _facts(told: list[Any]) -> ParameterFacts:
    primary = [mark for mark in told if mark is Primary or isinstance(mark, Primary)]
    return ParameterFacts(
        primary=bool(primary),
        ignored=any(mark is Ignored or isinstance(mark, Ignored) for mark in told),
        secret=any(mark is Secret or isinstance(mark, Secret) or _is_secret_type(mark) for mark in told),
        injected=any(map(_is_injected, told)),
        normalise=next((mark.normalise for mark in primary if isinstance(mark, Primary)), None),
    )


def _told(annotation: Any, scope: dict[str, Any]) -> Iterator[Any]:
    """The types and marks in an annotation; a name that cannot be resolved comes as text."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            node = ast.parse(annotation.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            return
        yield from _told_in_text(node, scope)
        return
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from annotation.__metadata__
        yield from _told(annotation.__origin__, scope)
    elif origin is typing.Union or origin is types.UnionType:
        for member in typing.get_args(annotation):
            yield from _told(member, scope)
    else:
        yield annotation
        if origin is not None:
            yield origin


def _told_in_text(node: ast.expr, scope: dict[str, Any]) -> Iterator[Any]:
    # The whole first, so that `X[...]` of any kind works; then its parts, as far as they can be resolved.
    resolved = _resolved(node, scope)
    if resolved is not None:
        yield from () if isinstance(resolved, str) else _told(resolved, scope)
        return
    if isinstance(node, ast.BinOp):
        yield from _told_in_text(node.left, scope)
        yield from _told_in_text(node.right, scope)
    elif isinstance(node, ast.Subscript):
        name = _last_name(node.value)
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in ("Annotated", "Optional", "Union"):
            for part in inside:
                yield from _told_in_text(part, scope)
        else:
            yield _Unresolved(name)
    else:
        yield _Unresolved(_last_name(node))


def _resolved(node: ast.expr, scope: dict[str, Any]) -> Any:
    try:
        code = compile(ast.Expression(node), "<annotation>", "eval")
        return eval(code, scope)  # noqa: S307 - the annotation is part of the program
    except Exception:  # noqa: BLE001 - a name that only type checkers can import
        return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _class_of(mark: Any) -> Any:
    return mark if isinstance(mark, type) else type(mark)


def _is_injected(mark: Any) -> bool:
    if isinstance(mark, _Unresolved):
        return mark in _INJECTED
    cls = _class_of(mark)
    if cls.__name__ in _INJECTED or getattr(mark, "__name__", None) in _INJECTED:
        return True
    if cls.__name__ != _PERHAPS_INJECTED:
        return False
    fillable = any(hasattr(cls, name) for name in ("model_fields", "__dataclass_fields__", "__required_keys__"))
    return not fillable or str(cls.__module__).split(".", 1)[0] in _FRAMEWORKS


def _is_secret_type(mark: Any) -> bool:
    cls = _class_of(mark)
    return any(
        base.__name__ in _SECRET_TYPES and str(base.__module__).split(".", 1)[0] == "pydantic" for base in cls.__mro__
    )
