"""Policies, limits, telemetry and tools from tables and plain values.

Everything is read strictly: an unknown key is a `PolicyError` that names the nearest known one, for
a threshold with a slip in its name would otherwise guard nothing and say nothing.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from loopguard.errors import PolicyError
from loopguard.policy import MODES, PRESETS, Mode, Policy, nearest
from loopguard.records import Finding
from loopguard.rules import RULES, Limits, Off, Rule
from loopguard.signature import ToolSpec, tools_from_toml
from loopguard.telemetry.settings import Telemetry

OutsideRun = Literal["hint", "ignore", "raise"]
OUTSIDE_RUN: Final[tuple[OutsideRun, ...]] = ("hint", "ignore", "raise")

#: The stores of this version: every run is kept in the process it was opened in.
STORES: Final = ("memory://",)
STORE_NOTE: Final = (
    "This version keeps runs in the process: 'memory://' is all there is. Stores that processes share are not in it."
)

_RUNGS: Final = ("warn_after", "refuse_after", "stop_after")
#: What a text cannot say: objects and functions.
_CODE_ONLY: Final = ("signature", "on_handoff", "redact", "tracer_provider", "meter_provider", "logger_provider")


def policy_from_mapping(table: Mapping[str, Any], where: str = "policy") -> Policy:
    """A policy from a table.

    Args:
        table: ``preset`` (default ``"default"``), the settings of `Policy`, what the preset takes,
            ``limits`` as a table, and thresholds by rule: ``rules = {"repeat": {"warn_after": 4}, "failing": False}``
            or, shorter, ``repeat = {"warn_after": 4}``. False removes a rule, True takes it with its own defaults.
        where: How the table is called in errors.

    Raises:
        PolicyError: An unknown key, a value of the wrong type, or a policy that cannot be meant.
    """
    hints = _settings_hints()
    name = table.get("preset", "default")
    if not isinstance(name, str) or name not in PRESETS:
        raise PolicyError(f"{where}.preset={name!r} is not a preset.{nearest(str(name), PRESETS)}")
    taken = _taken_by(name)
    rule_types = _rule_types()
    check_keys(table, {"preset", "rules", *hints, *taken, *rule_types}, where)

    for_preset: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for key, value in table.items():
        if key in taken:
            for_preset[key] = _checked(value, taken[key], f"{where}.{key}")
        elif key == "limits":
            given[key] = None if value is None else limits_of(value, f"{where}.limits")
        elif key in hints:
            given[key] = _checked(value, hints[key], f"{where}.{key}")
    base = PRESETS[name](**for_preset) if for_preset else preset(name)
    changes = [_rule_change(base, rule, value, path) for rule, value, path in _rules_in(table, where)]
    return base.replace(*changes, **given) if changes or given else base


def limits_of(value: Limits | Mapping[str, Any], where: str = "limits") -> Limits:
    """Limits from a table with the fields of `Limits`, or the object itself."""
    if isinstance(value, Limits):
        return value
    if not isinstance(value, Mapping):
        raise PolicyError(f"{where}={value!r} is not a Limits. Write limits=Limits(calls=200), or a table.")
    return Limits(**_fields_from(value, Limits, where))


def telemetry_of(value: Telemetry | Mapping[str, Any], where: str = "telemetry") -> Telemetry:
    """Telemetry settings from a table; providers and ``redact`` are objects and go through ``configure``."""
    if isinstance(value, Telemetry):
        return value
    if not isinstance(value, Mapping):
        raise PolicyError(f"{where}={value!r} is not a Telemetry, nor a table of its settings.")
    return Telemetry(**_fields_from(value, Telemetry, where))


def tools_of(value: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, ToolSpec]:
    """Tools by name: a TOML file or text, or a mapping of names to tables or ready `ToolSpec`.

    Raises:
        PolicyError: The file cannot be read, or a table cannot be meant.
    """
    if not isinstance(value, Mapping | str | os.PathLike):
        raise PolicyError(f"tools={value!r} is neither a mapping of tools by name nor a TOML file.")
    try:
        tools = tools_from_toml(value if isinstance(value, Mapping | str) else Path(value))
    except OSError as error:
        raise PolicyError(f"The file of tools {str(value)!r} cannot be read: {error.strerror or error}.") from None
    return MappingProxyType(tools)


def callback_of(value: object) -> Callable[[Finding], None]:
    """What is called with findings, checked to be callable."""
    if not callable(value):
        raise PolicyError(f"on_finding={value!r} is not callable. Give a function of a Finding, or None.")
    return cast("Callable[[Finding], None]", value)


def mode_of(value: object, where: str = "mode") -> Mode:
    """A mode that is one of the three.

    Raises:
        PolicyError: It is not.
    """
    return cast("Mode", _choice(value, MODES, where))


def outside_run_of(value: object, where: str = "outside_run") -> OutsideRun:
    """What to do with calls outside a run, checked.

    Raises:
        PolicyError: It is not one of the three.
    """
    return cast("OutsideRun", _choice(value, OUTSIDE_RUN, where))


def store_of(value: object, where: str = "store") -> str:
    """The address of a store, checked to be one that this version has.

    Raises:
        PolicyError: It is not. Of an address no more than its scheme is quoted: the rest may hold a password.
    """
    if isinstance(value, str) and value in STORES:
        return value
    raise PolicyError(f"{where}={hidden_address(value)!r} is not known. {STORE_NOTE}")


def hidden_address(value: object) -> object:
    """An address without what may be secret in it; what is none, as it is."""
    scheme, sign, _ = value.partition("://") if isinstance(value, str) else ("", "", "")
    return f"{scheme}://…" if sign else value


@cache
def preset(name: str) -> Policy:
    """The policy of this preset; the same object each time."""
    return PRESETS[name]()


@cache
def _settings_hints() -> dict[str, Any]:
    hints = get_type_hints(Policy)
    return {item.name: hints[item.name] for item in fields(Policy) if item.name not in ("rules", "signature")}


@cache
def _taken_by(preset: str) -> dict[str, Any]:
    """What this preset takes beside the settings of every policy, with the types."""
    make = PRESETS[preset]
    hints = get_type_hints(make.__func__) if inspect.ismethod(make) else {}
    parameters = inspect.signature(make).parameters.values()
    return {
        item.name: hints[item.name]
        for item in parameters
        if item.kind is item.KEYWORD_ONLY and item.name not in _CODE_ONLY
    }


@cache
def _rule_types() -> dict[str, type[Rule]]:
    types: dict[str, type[Rule]] = {}
    for rule in RULES:
        types.setdefault(rule.name, rule)  # of two with one name the first is the one of the default policy
    return types


def _rules_in(table: Mapping[str, Any], where: str) -> list[tuple[str, Any, str]]:
    """(name, value, path for errors) of every rule the table speaks of, in ``rules`` or beside it."""
    nested = table_of(table.get("rules", {}), f"{where}.rules")
    check_keys(nested, _rule_types(), f"{where}.rules")
    found = [(name, value, f"{where}.rules.{name}") for name, value in nested.items()]
    for name in _rule_types():
        if name in table and name in nested:
            raise PolicyError(f"{where}.{name} and {where}.rules.{name} speak of the same rule. Keep one of them.")
        if name in table:
            found.append((name, table[name], f"{where}.{name}"))
    return found


def _rule_change(base: Policy, name: str, value: Any, where: str) -> Rule | Off:
    present = next((rule for rule in base.rules if rule.name == name), None)
    if value is False:
        return Off(_rule_types()[name])
    rule = present or _rule_types()[name]()
    if value is True:
        return rule
    if isinstance(value, Rule) and value.name == name:
        return value
    if not isinstance(value, Mapping):
        raise PolicyError(f"{where}={value!r} is not a table of thresholds. false removes the rule, true takes it.")
    return rule.replace(**_fields_from(value, type(rule), where))


def _fields_from(table: object, cls: type[Any], where: str) -> dict[str, Any]:
    """Arguments for a dataclass from a table, with names and types checked."""
    table = table_of(table, where)
    known = [item.name for item in fields(cls) if item.init and item.name not in _CODE_ONLY]
    check_keys(table, known, where)
    hints = get_type_hints(cls)
    return {name: _checked(value, hints[name], f"{where}.{name}") for name, value in table.items()}


def table_of(value: object, where: str) -> Mapping[str, Any]:
    """The value, checked to be a table."""
    if not isinstance(value, Mapping):
        raise PolicyError(f"{where}={value!r} is not a table.")
    return value


def check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise `PolicyError` for a key that is not known."""
    names = set(known)
    for key in table:
        if key in names:
            continue
        if key in _CODE_ONLY:
            raise PolicyError(f"{where} cannot hold {key!r}: it is an object. Give it in code.")
        if key in _RUNGS and "rules" in names:
            raise PolicyError(f"{where} has no key {key!r}. Rungs belong to a rule: {where}.rules.repeat.{key}.")
        raise PolicyError(f"{where} has no key {key!r}.{nearest(key, names)}")


def _choice(value: object, known: tuple[str, ...], where: str) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise PolicyError(f"{where}={value!r} is not one of {', '.join(map(repr, known))}.{_meant(value, known)}")


def _meant(value: object, known: Iterable[str]) -> str:
    hint = nearest(value, known) if isinstance(value, str) else ""
    return hint if "Did you mean" in hint else ""


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value, if it is of the type of this field; tables become the pairs or mappings that the field holds."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = tuple(word for option in options if get_origin(option) is Literal for word in get_args(option))
    if choices:
        return None if value is None and NoneType in options else _choice(value, choices, where)
    if not any(_fits(value, option) for option in options):
        raise PolicyError(f"{where}={value!r} is of the wrong type: give {_described(options)}.")
    if get_origin(hint) is tuple and isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return value


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is not None:  # a mapping, or pairs that a table stands for
        return isinstance(value, Mapping)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _described(options: tuple[Any, ...]) -> str:
    words: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return " or ".join(words.get(option, "a table") for option in options if option is not NoneType)
