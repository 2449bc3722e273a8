"""Settings files: ``loopguard.toml``, ``pyproject.toml``, and files that hold one policy."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from loopguard.errors import PolicyError
from loopguard.policy import PRESETS, Mode, Policy, nearest
from loopguard.rules import Limits
from loopguard.signature import ToolSpec
from loopguard.tables import (
    OutsideRun,
    check_keys,
    limits_of,
    mode_of,
    outside_run_of,
    policy_from_mapping,
    preset,
    store_of,
    table_of,
    telemetry_of,
    tools_of,
)
from loopguard.telemetry.settings import Telemetry

#: The tables and values of a settings file.
KEYS: Final = ("limits", "mode", "outside_run", "policy", "store", "telemetry", "tools")
#: Keys by which a file is known to be a settings file and not the table of one policy.
_ONLY_IN_SETTINGS: Final = ("outside_run", "policy", "store", "telemetry", "tools")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSettings:
    """What a settings file says. None where it says nothing; ``path`` is None where there is no file."""

    path: Path | None = None
    policy: Policy | None = None
    tools: Mapping[str, ToolSpec] | None = None
    store: str | None = None
    mode: Mode | None = None
    outside_run: OutsideRun | None = None
    limits: Limits | None = None
    telemetry: Telemetry | None = None


def read_settings(folder: Path) -> FileSettings:
    """The settings of this folder: ``loopguard.toml``, else ``[tool.loopguard]`` of ``pyproject.toml``.

    Raises:
        PolicyError: The file cannot be read, or something in it cannot be meant.
    """
    path = folder / "loopguard.toml"
    if path.is_file():
        return _settings_from(_load(path), path, "")
    path = folder / "pyproject.toml"
    if not path.is_file():
        return FileSettings()
    table = _pyproject_table(path)
    return FileSettings() if table is None else _settings_from(table, path, "tool.loopguard.")


def policy_of(value: Policy | str | os.PathLike[str] | Mapping[str, Any] | None) -> Policy:
    """A policy from what people write where one is wanted.

    Args:
        value: A policy, the name of a preset (``"default"``, ``"loopctl"``, ``"rysh"``, ``"opendev"``), a TOML file
            (a path, or a text that ends in ``.toml`` or has a slash in it), a table as in such a file, or None for
            the default policy. A file is read again when it has changed.

    Raises:
        PolicyError: No such preset or file, an unknown key, or a policy that cannot be meant.
    """
    if value is None:
        return preset("default")
    if isinstance(value, Policy):
        return value
    if isinstance(value, Mapping):
        return policy_from_mapping(value)
    if isinstance(value, str):
        return _named_policy(value, Path(), ())
    if isinstance(value, os.PathLike):
        return _policy_from_file(Path(value), ())
    raise PolicyError(
        f"policy={value!r} is not a policy. Give a Policy, the name of a preset ({', '.join(PRESETS)}), "
        "a path of a TOML file, or a mapping of settings."
    )


# -- files ------------------------------------------------------------------------------------------------------------


def _settings_from(table: Mapping[str, Any], path: Path, prefix: str, chain: tuple[Path, ...] = ()) -> FileSettings:
    try:
        check_keys(table, KEYS, prefix.rstrip(".") or "The file")
        found: dict[str, Any] = {"path": path}
        for name, value in table.items():
            where = prefix + name
            if name == "policy":
                found[name] = _policy_in_file(value, path, where, chain)
            elif name == "limits":
                found[name] = limits_of(value, where)
            elif name == "telemetry":
                found[name] = telemetry_of(value, where)
            elif name == "tools":
                found[name] = tools_of({"tools": table_of(value, where)})
            elif name == "mode":
                found[name] = mode_of(value, where)
            elif name == "outside_run":
                found[name] = outside_run_of(value, where)
            else:
                found[name] = store_of(value, where)
    except PolicyError as error:
        raise _in_file(path, error) from None
    return FileSettings(**found)


class _Read(NamedTuple):
    """A policy file as it was read; one with the same time stamp and size is not read again."""

    stamp: tuple[int, int]
    policy: Policy


_policy_files: dict[Path, _Read] = {}


def forget_files() -> None:
    """Read policy files anew when they are next asked for."""
    _policy_files.clear()


def _named_policy(value: str, folder: Path, chain: tuple[Path, ...]) -> Policy:
    if value in PRESETS:
        return preset(value)
    if value.endswith(".toml") or "/" in value or os.sep in value:
        return _policy_from_file(folder / value, chain)
    raise PolicyError(
        f"{value!r} is not a preset.{nearest(value, PRESETS)} A file of your own is named by a path that ends in .toml."
    )


def _policy_from_file(path: Path, chain: tuple[Path, ...]) -> Policy:
    absolute = path.resolve()
    try:
        status = absolute.stat()
    except OSError as error:
        raise PolicyError(f"The policy file {str(path)!r} cannot be read: {error.strerror or error}.") from None
    stamp = (status.st_mtime_ns, status.st_size)
    known = _policy_files.get(absolute)
    if known is not None and known.stamp == stamp:
        return known.policy
    if absolute in chain:
        raise PolicyError(f"The policy file {str(path)!r} names itself as its policy. Name a preset or another file.")
    pyproject = absolute.name == "pyproject.toml"
    table = _pyproject_table(absolute) if pyproject else _load(absolute)
    if table is None:
        raise PolicyError(f"{absolute}: there is no table [tool.loopguard] in it.")
    if pyproject or any(key in table for key in _ONLY_IN_SETTINGS):
        # The rest of a settings file is not taken here, but a slip in it is still one.
        prefix = "tool.loopguard." if pyproject else ""
        policy = _settings_from(table, absolute, prefix, (*chain, absolute)).policy or preset("default")
    else:
        try:
            policy = policy_from_mapping(table)
        except PolicyError as error:
            raise _in_file(absolute, error) from None
    if len(_policy_files) >= 100:  # paths made on the fly must not fill the memory
        _policy_files.clear()
    if not isinstance(table.get("policy"), str):  # else it depends on another file as well
        _policy_files[absolute] = _Read(stamp, policy)
    return policy


def _policy_in_file(value: object, path: Path, where: str, chain: tuple[Path, ...]) -> Policy:
    if isinstance(value, str):
        return _named_policy(value, path.parent, (*chain, path.resolve()))
    return policy_from_mapping(table_of(value, where), where)


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"{path}: the file cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise PolicyError(f"{path}: this is not TOML: {error}") from None


def _pyproject_table(path: Path) -> Mapping[str, Any] | None:
    """``[tool.loopguard]``, or None. A file that is broken elsewhere is the business of others."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if "loopguard" not in text:
        return None
    try:
        tool = tomllib.loads(text).get("tool")
    except ValueError as error:
        if "[tool.loopguard" in text:
            raise PolicyError(f"{path}: this is not TOML: {error}") from None
        return None
    table = tool.get("loopguard") if isinstance(tool, dict) else None
    if table is None:
        return None
    try:
        return table_of(table, "tool.loopguard")
    except PolicyError as error:
        raise _in_file(path, error) from None


def _in_file(path: Path, error: PolicyError) -> PolicyError:
    text = str(error)
    # An error in a file that this one names has its own path in front already.
    return error if ".toml: " in text else PolicyError(f"{path}: {text}")
