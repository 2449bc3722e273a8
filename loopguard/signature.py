"""What a tool tells about itself, whichever way it says it: options, annotations, tables, a class.

All ways end in one frozen ``ToolSpec``; how a call is read with it is in ``binding``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from loopguard.errors import PolicyError
from loopguard.kinds import KindRule, kind_of
from loopguard.markers import Ignored, Primary, Secret, facts_of, signature_of
from loopguard.options import DEFAULT_IGNORED, RUNGS, checked, did_you_mean, names
from loopguard.records import Tool

__all__ = [
    "DEFAULT_IGNORED",
    "Ignored",
    "Primary",
    "Secret",
    "ToolOptions",
    "ToolSignature",
    "ToolSpec",
    "is_recoverable",
    "kind_of",
    "spec_from_function",
    "spec_from_options",
    "tools_from_toml",
]

#: The value of this parameter, or what a function of the bound arguments returns, is the path of a file.
FileRule = str | Callable[[Mapping[str, Any]], Any] | None


class ToolOptions(TypedDict, total=False):
    """The options that ``guarded_tool``, ``guard_tools`` and the tables take; ``ToolSpec`` says what each means."""

    name: str
    primary: str | Iterable[str]
    ignored: str | Iterable[str]
    secret: str | Iterable[str]
    normalise: Mapping[str, Callable[[Any], Any]]
    kind: KindRule
    reads: FileRule
    edits: FileRule
    failed: Callable[[Any], Any] | bool | None
    recoverable: Any
    control_flow: type[BaseException] | Iterable[type[BaseException]]
    volatile: str | Iterable[str] | bool | None
    patience: float | None
    running: Callable[[Any], Any] | None
    suggestion: str | None
    warn_after: int | None
    refuse_after: int | None
    stop_after: int | None
    rules: Iterable[Any]
    mode: str | None
    on_warn: str | Callable[..., Any] | None
    on_refuse: str | Callable[..., Any] | None
    on_stop: Callable[..., Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What is known about a tool. Made by ``spec_from_function``, ``spec_from_options`` or ``tools_from_toml``.

    Attributes:
        name: the tool's name.
        primary: the parameters that form the key, in order; the first is the target. Empty: the whole input is the key.
        ignored: parameters that are no part of the identity; ``DEFAULT_IGNORED`` where nothing was declared.
        secret: parameters whose values never leave the process.
        injected: parameters that a framework fills in; never part of the identity.
        normalise: for a parameter, a function applied to its value before it is compared.
        kind: a ``Kind``, ``"shell"``, ``"sql"``, a table, a function of the bound arguments, or None (unknown).
        reads: the parameter with the path of a file that is read (or a function of the bound arguments).
        edits: the same for a file that is changed.
        failed: decides whether a result is a failure; False: a returned result never is; None: the usual signs decide.
        recoverable: exception types, texts (part of the error, in any case), or a predicate of the error.
        control_flow: exceptions that are no outcome of the tool.
        volatile: fields and regular expressions to mask in results; True: the usual volatile text; False: nothing;
            None: the usual volatile text, but what then matches is only warned about.
        patience: seconds that a poll may give equal answers; None: the policy's.
        running: says of a poll's result whether it still runs.
        suggestion: added to nudges about this tool.
        warn_after: rung of ``Repeat`` for this tool; 0: never; None: the policy's.
        refuse_after: likewise.
        stop_after: likewise.
        rules: replace the policy's rules of the same class for this tool.
        mode: ``"enforce"``, ``"observe"`` or ``"off"``; None: the run's.
        on_warn: ``"queue"``, ``"append"`` or a function; None: the run's.
        on_refuse: ``"raise"``, ``"return"`` or a function; None: the run's.
        on_stop: a function that hears of the stop before it is raised, after the run's own; None: none.
    """

    name: str
    primary: tuple[str, ...] = ()
    ignored: frozenset[str] = DEFAULT_IGNORED
    secret: frozenset[str] = frozenset()
    injected: frozenset[str] = frozenset()
    normalise: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    kind: KindRule = None
    reads: FileRule = None
    edits: FileRule = None
    failed: Callable[[Any], Any] | bool | None = None
    recoverable: tuple[Any, ...] | Callable[[Any], Any] = ()
    control_flow: tuple[type[BaseException], ...] = ()
    volatile: tuple[str, ...] | bool | None = None
    patience: float | None = None
    running: Callable[[Any], Any] | None = None
    suggestion: str | None = None
    warn_after: int | None = None
    refuse_after: int | None = None
    stop_after: int | None = None
    rules: tuple[Any, ...] = ()
    mode: str | None = None
    on_warn: str | Callable[..., Any] | None = None
    on_refuse: str | Callable[..., Any] | None = None
    on_stop: Callable[..., Any] | None = None

    @property
    def rungs(self) -> tuple[tuple[str, int | None], ...]:
        """The rungs of ``Repeat`` that this tool sets itself, as a record carries them."""
        named = {name: getattr(self, name) for name in RUNGS}
        return tuple((name, rung) for name, rung in named.items() if rung is not None)

    @property
    def without(self) -> frozenset[str]:
        """The parameters that are no part of the identity: ignored and injected, never a primary one."""
        return (self.ignored | self.injected) - frozenset(self.primary)

    def tool(self) -> Tool:
        """What a record says about this tool."""
        return Tool(
            name=self.name,
            edits=self.edits is not None,
            volatile=bool(self.volatile),
            rungs=self.rungs,
            rules=self.rules,
            patience=self.patience,
        )


class ToolSignature:
    """Describes tools that cannot be decorated: override what applies, the rest does nothing.

    The names are those of loopctl.
    ``tool`` is a tool's name, ``args`` its arguments as a mapping, ``param`` what ``extract_primary_param`` returned.
    """

    def extract_primary_param(self, tool: str, args: Mapping[str, Any]) -> str:
        """The text that identifies the call; ``""``: the whole input does."""
        return ""

    def normalize_param_for_comparison(self, tool: str, param: str) -> str:
        """The form in which files are matched (never keys), for instance without an anchor."""
        return param

    def is_recoverable_error(self, tool: str, error: str) -> bool:
        """True for an error that a model can be expected to get past, such as a missing match of an edit."""
        return False

    def tool_thresholds(self) -> dict[str, int]:
        """For tools by name, how many repetitions are reported in place of the general number."""
        return {}

    def get_suggestion(self, tool: str, param: str) -> str | None:
        """What a warning about this call should suggest."""
        return None

    def is_file_read_tool(self, tool: str) -> bool:
        """True if the tool reads a file."""
        return False

    def is_file_edit_tool(self, tool: str) -> bool:
        """True if the tool changes a file."""
        return False

    def file_path_for_reset(self, tool: str, args: Mapping[str, Any]) -> str | None:
        """The path of the file that this call reads or changes."""
        return None


def spec_from_function(func: Callable[..., Any], **options: Unpack[ToolOptions]) -> ToolSpec:
    """What ``func`` says by its annotations and what ``options`` add.

    Where both speak of the key, the option holds; ignored and secret parameters add up.
    Parameters that a framework fills in are found by their type, ``pydantic.SecretStr`` counts as ``Secret``.

    Raises:
        PolicyError: an option is unknown or cannot be meant, or names a parameter that ``func`` does not have.
    """
    signature = signature_of(func)
    given: dict[str, Any] = dict(options)
    name = given.pop("name", None) or getattr(func, "__name__", None) or type(func).__name__
    if signature is None:
        return spec_from_options(name, given)
    facts = facts_of(func, signature)
    marked = {
        what: [p for p, fact in facts.items() if getattr(fact, what)] for what in ("primary", "ignored", "secret")
    }
    if marked["primary"]:
        given.setdefault("primary", tuple(marked["primary"]))
    for what in ("ignored", "secret"):
        if marked[what]:
            given[what] = (*names(name, what, given.get(what) or ()), *marked[what])
    normalise = {p: fact.normalise for p, fact in facts.items() if fact.normalise is not None}
    if normalise:
        given["normalise"] = {**normalise, **(given.get("normalise") or {})}
    spec = spec_from_options(name, given)
    parameters = signature.parameters
    check_parameters(spec, parameters, given)
    injected = {p for p, fact in facts.items() if fact.injected}
    first = next(iter(parameters), None)
    if first in ("self", "cls"):
        injected.add(first)
    return replace(spec, injected=frozenset(injected))


def check_parameters(spec: ToolSpec, parameters: Mapping[str, inspect.Parameter], declared: Mapping[str, Any]) -> None:
    """Raises ``PolicyError`` if ``declared`` names a parameter that is not there."""
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    named = {
        "primary": spec.primary,
        "ignored": spec.ignored if "ignored" in declared else (),
        "secret": spec.secret,
        "normalise": spec.normalise,
        "reads": (spec.reads,) if isinstance(spec.reads, str) else (),
        "edits": (spec.edits,) if isinstance(spec.edits, str) else (),
        "kind": (str(spec.kind["by"]),) if isinstance(spec.kind, Mapping) else (),
    }
    for option, mentioned in named.items():
        for name in mentioned:
            if name not in parameters:
                known = ", ".join(map(repr, parameters)) or "none"
                message = f"{option}={name!r} of tool {spec.name!r} names no parameter of it (it has: {known})"
                raise PolicyError(f"{message}.{did_you_mean(name, parameters)}")


def spec_from_options(name: str, options: Mapping[str, Any]) -> ToolSpec:
    """A ``ToolSpec`` from the options of a decorator or a table.

    Raises:
        PolicyError: an option is unknown, or its value cannot be meant; the text names tool, option and way out.
    """
    values = checked(name, options)
    return ToolSpec(name=values.pop("name", name), **values)


def is_recoverable(spec: ToolSpec, error: BaseException | None, text: str) -> bool:
    """True if the tool declared this failure as one that a model can be expected to get past.

    ``error`` is what was raised (None for a returned failure), ``text`` what it says.
    A predicate of the user that raises counts as False.
    """
    declared = spec.recoverable
    if callable(declared):
        try:
            return bool(declared(text if error is None else error))
        except Exception:  # noqa: BLE001 - a predicate of the user must not break the call
            return False
    return any(
        one.lower() in text.lower() if isinstance(one, str) else error is not None and isinstance(error, one)
        for one in declared
    )


def tools_from_toml(source: str | Path | Mapping[str, Any]) -> dict[str, ToolSpec]:
    """The tools described in a table: ``[tools.Bash] primary = "command"``.

    Args:
        source: TOML text, the path of a file (a ``Path``, or a text that ends in ``.toml``), or a mapping that was
            read already. A mapping without a table ``tools`` is the table of tools itself; its values may be
            ``ToolSpec`` objects too.

    Raises:
        PolicyError: a table has an unknown key or an impossible value, or the text is not TOML.
    """
    if not isinstance(source, Mapping):
        import tomllib  # here, because a hook's process without tables should not pay for it

        if isinstance(source, Path) or (source.endswith(".toml") and "\n" not in source):
            source = Path(source).read_text(encoding="utf-8")
        try:
            source = {"tools": {}, **tomllib.loads(source)}
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(f"the table of tools is not TOML: {error}") from error
    tables = source.get("tools", source)
    if not isinstance(tables, Mapping):
        raise PolicyError(f"'tools' holds one table per tool, not {type(tables).__name__}.")
    specs = {}
    for name, table in tables.items():
        if isinstance(table, ToolSpec):
            specs[name] = table
        elif isinstance(table, Mapping):
            specs[name] = spec_from_options(str(name), table)
        else:
            raise PolicyError(f"tool {name!r} is described by a table, not by {type(table).__name__} {table!r}.")
    return specs
