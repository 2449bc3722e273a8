"""The options of a tool, checked one by one when they are given: a wrong one is named at once, with the way out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from loopguard.errors import PolicyError
from loopguard.kinds import KIND_NAMES, TEXT_KINDS
from loopguard.records import Kind

#: The rungs of ``Repeat`` that a tool may set, softest first.
RUNGS: Final = ("warn_after", "refuse_after", "stop_after")


#: Arguments that say why or how long, not what; no part of the identity where a tool does not declare ``ignored``.
DEFAULT_IGNORED = frozenset(
    {
        "description",
        "explanation",
        "justification",
        "progress_note",
        "rationale",
        "reasoning",
        "run_in_background",
        "thought",
        "thoughts",
        "timeout",
        "timeout_ms",
    }
)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the nearest known word, or ``""``."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" Did you mean {near[0]!r}?" if near else ""


def checked(tool: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the form that ``ToolSpec`` holds.

    Raises:
        PolicyError: an option is unknown, or its value cannot be meant.
    """
    values: dict[str, Any] = {}
    for option, value in options.items():
        check = CHECKS.get(option)
        if check is None:
            raise PolicyError(
                f"{option!r} is no option of tool {tool!r}.{did_you_mean(str(option), CHECKS)}"
                f" Options are: {', '.join(sorted(CHECKS))}."
            )
        values[option] = check(tool, option, value)
    if values.get("ignored") is None:
        values.pop("ignored", None)
    both = set(values.get("primary", ())) & set(values.get("ignored", ()))
    if both:
        raise PolicyError(f"{min(both)!r} of tool {tool!r} is both primary and ignored: keep one of them.")
    if values.get("kind") is None:
        # A file that is edited makes a write, whatever else is read.
        implied = Kind.WRITE if values.get("edits") else Kind.READ if values.get("reads") else None
        values["kind"] = implied
    for option in ("patience", "running"):
        if values.get(option) is not None and isinstance(values["kind"], Kind | None) and values["kind"] != Kind.POLL:
            raise PolicyError(f'{option} of tool {tool!r} is for polls only: say kind="poll" as well, or leave it out.')
    rungs = [(rung, values[rung]) for rung in RUNGS if values.get(rung)]
    for (low, low_value), (high, high_value) in pairwise(rungs):
        if low_value > high_value:
            raise PolicyError(
                f"tool {tool!r} has {low}={low_value} above {high}={high_value}:"
                " warn, refuse and stop rise in this order."
            )
    return values


_NAMES: Final = "give the name of a parameter, or several"


def names(tool: str, option: str, value: Any, wanted: str = _NAMES) -> tuple[str, ...]:
    """One name or several, in order and each once."""
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        raise _wrong(tool, option, value, wanted)
    values = tuple(dict.fromkeys(sorted(values) if isinstance(values, set | frozenset) else values))
    if not all(isinstance(name, str) and name for name in values):
        raise _wrong(tool, option, value, wanted)
    return values


def _wrong(tool: str, option: str, value: Any, wanted: str) -> PolicyError:
    end = "" if wanted.endswith("?") else "."
    return PolicyError(f"{option}={value!r} of tool {tool!r} cannot be meant: {wanted}{end}")


def _name(tool: str, option: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(tool, option, value, "give a name")
    return value


def _set(tool: str, option: str, value: Any) -> frozenset[str] | None:
    return None if value is None else frozenset(names(tool, option, value))


def _names_or_none(tool: str, option: str, value: Any) -> tuple[str, ...]:
    return () if value is None else names(tool, option, value)


def _normalise(tool: str, option: str, value: Any) -> dict[str, Callable[[Any], Any]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(map(callable, value.values())):
        raise _wrong(tool, option, value, "give a mapping of parameter names to functions")
    return dict(value)


def _one_kind(tool: str, option: str, value: Any, more: Iterable[str] = ()) -> Kind | str:
    if isinstance(value, Kind):
        return value
    if isinstance(value, str):
        if value in KIND_NAMES:
            return KIND_NAMES[value]
        if value in more:
            return value
        known = sorted({*KIND_NAMES, *more})
        wanted = f"it is one of {', '.join(known)}.{did_you_mean(value, known)}".removesuffix(".")
        raise _wrong(tool, option, value, wanted)
    raise _wrong(tool, option, value, "give the name of a kind, a table with 'by', or a function of the arguments")


def _kind(tool: str, option: str, value: Any) -> Any:
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    if isinstance(value, Mapping):
        if not isinstance(value.get("by"), str):
            raise _wrong(tool, option, dict(value), 'a table says by which argument: {by = "command", ...}')
        return {key: kind if key == "by" else _one_kind(tool, option, kind) for key, kind in value.items()}
    return _one_kind(tool, option, value, TEXT_KINDS)


def _file(tool: str, option: str, value: Any) -> Any:
    if value is None or callable(value) or (isinstance(value, str) and value):
        return value
    raise _wrong(tool, option, value, "give the name of a parameter, or a function of the bound arguments")


def _predicate(tool: str, option: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise _wrong(tool, option, value, "give a function")


def _failed(tool: str, option: str, value: Any) -> Any:
    if value is None or value is False or callable(value):
        return value
    raise _wrong(tool, option, value, "give a function of the result, or False where no result is a failure")


def _recoverable(tool: str, option: str, value: Any) -> Any:
    if value is None or value is False:
        return ()
    if value is True:
        return ("",)  # every text contains it
    if isinstance(value, str) or _is_exception(value):
        return (value,)
    if callable(value):
        return value
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        values = tuple(value)
        if all(isinstance(one, str) or _is_exception(one) for one in values):
            return values
    raise _wrong(tool, option, value, "give exception types, texts of errors, or a function of the error")


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _exceptions(tool: str, option: str, value: Any) -> tuple[type[BaseException], ...]:
    values = () if value is None else (value,) if isinstance(value, type) else value
    if isinstance(values, Iterable) and not isinstance(values, str):
        values = tuple(values)
        if all(map(_is_exception, values)):
            return values
    raise _wrong(tool, option, value, "give exception types")


def _volatile(tool: str, option: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    patterns = names(tool, option, value, "give fields or regular expressions as texts, or True or False")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            wanted = f"{pattern!r} is neither a field name nor a regular expression ({error})"
            raise _wrong(tool, option, value, wanted) from error
    return patterns


def _seconds(tool: str, option: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise _wrong(tool, option, value, "give a number of seconds, 0 or more")
    return float(value)


def _text(tool: str, option: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _wrong(tool, option, value, "give a text")
    return value


def _rung(tool: str, option: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise _wrong(tool, option, value, "give a whole number; 0 switches it off")
    return value


def _rules(tool: str, option: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise _wrong(tool, option, value, "give rules, such as (Failing.off(),)")
    return tuple(value)


def _choice(*known: str, or_function: bool = True) -> Callable[[str, str, Any], Any]:
    def check(tool: str, option: str, value: Any) -> Any:
        if value is None or (isinstance(value, str) and value in known) or (or_function and callable(value)):
            return value
        texts = ", ".join(map(repr, known))
        wanted = "it is " + " or ".join(part for part in (texts, "a function" if or_function else "") if part)
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise _wrong(tool, option, value, f"{wanted}{'.' if hint else ''}{hint}")

    return check


#: Every option by name, with its check: ``(tool, option, value) -> value as ToolSpec holds it``.
CHECKS: Final[Mapping[str, Callable[[str, str, Any], Any]]] = {
    "name": _name,
    "primary": _names_or_none,
    "ignored": _set,
    "secret": lambda tool, option, value: _set(tool, option, value) or frozenset(),
    "normalise": _normalise,
    "kind": _kind,
    "reads": _file,
    "edits": _file,
    "failed": _failed,
    "recoverable": _recoverable,
    "control_flow": _exceptions,
    "volatile": _volatile,
    "patience": _seconds,
    "running": _predicate,
    "suggestion": _text,
    "warn_after": _rung,
    "refuse_after": _rung,
    "stop_after": _rung,
    "rules": _rules,
    "mode": _choice("enforce", "observe", "off", or_function=False),
    "on_warn": _choice("queue", "append"),
    "on_refuse": _choice("raise", "return"),
    "on_stop": _choice(),
}
