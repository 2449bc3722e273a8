"""What holds for the whole process: ``configure``, the environment and the settings file, merged.

The first of these that says something wins: tool, run, ``configure``, environment, settings file, default.
``LOOPGUARD_MODE`` is the exception: it can only weaken what the others say.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from loopguard import environment, flushing, settings_file, tables
from loopguard.errors import PolicyError
from loopguard.policy import Mode, Policy, rules_of
from loopguard.records import Finding
from loopguard.rules import Limits
from loopguard.settings_file import FileSettings, policy_of
from loopguard.tables import OutsideRun, policy_from_mapping
from loopguard.telemetry.settings import Telemetry

if TYPE_CHECKING:
    from loopguard.signature import ToolSpec

_log = logging.getLogger("loopguard")
#: One object, so that what telemetry keeps per settings is found by identity.
_DEFAULT_TELEMETRY: Final = Telemetry()
_STRENGTH: Final[dict[Mode, int]] = {"off": 0, "observe": 1, "enforce": 2}


def default_policy() -> Policy:
    """The policy that holds where nobody named one; the same object each time."""
    return policy_of(None)


def no_tools() -> Mapping[str, ToolSpec]:
    """An empty table of tools."""
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What holds for runs that say nothing themselves.

    Args:
        policy: The policy of runs that name none.
        tools: What is declared about tools by name.
        store: Where the records of a run live. None and ``"memory://"``: in this process, the only place so far.
        mode: None = the policy's. ``LOOPGUARD_MODE`` is not in here, see `effective_mode`.
        outside_run: What to do with a guarded tool that is called outside a run.
        on_finding: Called with every finding of every run.
        telemetry: What OpenTelemetry is told.
        limits: None = the policy's.
    """

    policy: Policy = field(default_factory=default_policy)
    tools: Mapping[str, ToolSpec] = field(default_factory=no_tools)
    store: str | None = None
    mode: Mode | None = None
    outside_run: OutsideRun = "hint"
    on_finding: Callable[[Finding], None] | None = None
    telemetry: Telemetry = _DEFAULT_TELEMETRY
    limits: Limits | None = None

    def with_tools(self, tools: Mapping[str, Any] | str | os.PathLike[str], policy: Policy) -> Settings:
        """A copy with these tools as well, to be guarded by ``policy``; of two with one name the one given here holds.

        Raises:
            PolicyError: A table cannot be meant.
        """
        given = tables.tools_of(tools)
        _check_thresholds(policy, given)
        return replace(self, tools=MappingProxyType({**self.tools, **given}))


def _check_thresholds(policy: Policy, tools: Mapping[str, ToolSpec]) -> None:
    """Raise ``PolicyError`` for thresholds of a tool that cannot be meant under this policy."""
    for name, spec in tools.items():
        try:
            rules_of(policy, spec.tool())
        except PolicyError as error:
            raise PolicyError(f"[tools.{name}]: {error}") from None


class _Merged(NamedTuple):
    """Settings, and what they were merged from: they hold as long as variables and working directory stay."""

    variables: tuple[str | None, ...]
    folder: str
    settings: Settings
    environment: environment.Environment
    file: FileSettings


class _Config:
    """The one mutable object. Everything in it is replaced as a whole under the lock, and read without it."""

    __slots__ = ("given", "files", "lock", "merged", "said")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        self.given: Mapping[str, Any] = {}
        self.files: dict[str, FileSettings] = {}
        self.merged: _Merged | None = None
        self.said: set[str] = set()


_config = _Config()


def _renew_lock() -> None:
    """In a forked child: a thread that the child does not have may have held the lock."""
    _config.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def settings() -> Settings:
    """What holds now. Cheap as long as nothing changes: it compares variables and working directory.

    The settings file is read once per working directory; `reset` makes it be read again.

    Raises:
        PolicyError: The settings file cannot be read or meant. Variables never raise: they are named in the log.
    """
    return _merge().settings


def known_settings() -> Settings:
    """The settings merged last, without a look at environment and folder. Never raises, and costs next to nothing.

    For calls of tools, where `settings` would cost too much and must not raise. A ``configure`` shows at once.
    """
    merged = _config.merged
    if merged is not None:
        return merged.settings
    try:
        return _merge().settings
    except PolicyError as error:  # the next run raises it
        _say(str(error))
        return _settings_from(_config.given, environment.Environment(), FileSettings())


def outside(given: Settings | None = None) -> OutsideRun:
    """What to do with a guarded tool that is called outside a run. Never raises, and costs next to nothing.

    Args:
        given: The settings to look at; None = those merged last.
    """
    return (given if given is not None else known_settings()).outside_run


class Configured:
    """What `configure` returns: used as a block, it restores at its end what the call changed."""

    __slots__ = ("_before", "_names")

    def __init__(self, before: Mapping[str, Any], names: tuple[str, ...]) -> None:
        self._before = before
        self._names = names

    def __enter__(self) -> None:
        """The settings hold since the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _config.lock:
            # Only what this call changed: another thread may have configured something else meanwhile.
            given = {name: value for name, value in _config.given.items() if name not in self._names}
            given.update({name: self._before[name] for name in self._names if name in self._before})
            _config.given = given
            _config.merged = None


class _Unset:
    def __repr__(self) -> str:
        return "..."


#: Stands for a setting that was left out; None takes back what was said.
UNCHANGED: Any = _Unset()


def configure(
    *,
    policy: Policy | str | os.PathLike[str] | Mapping[str, Any] | None = UNCHANGED,
    tools: Mapping[str, Any] | str | os.PathLike[str] | None = UNCHANGED,
    store: str | None = UNCHANGED,
    mode: Mode | None = UNCHANGED,
    outside_run: OutsideRun | None = UNCHANGED,
    on_finding: Callable[[Finding], None] | None = UNCHANGED,
    telemetry: Telemetry | Mapping[str, Any] | None = UNCHANGED,
    limits: Limits | Mapping[str, Any] | None = UNCHANGED,
) -> Configured:
    """Set what holds for all runs of this process that open from now on.

    As a statement it stays in force; as a block it restores what was before, also when nested.
    What is left out stays as it is. None takes back what an earlier call said, so that the environment or the settings
    file speaks again.

    Args:
        policy: A `Policy`, the name of a preset, a TOML file, or a mapping of settings.
        tools: Tools by name: a mapping of `ToolSpec` or tables, or a TOML file.
        store: ``"memory://"``: runs are kept in this process, as they are without it. This version has no other.
        mode: ``"enforce"``, ``"observe"`` (everything but act) or ``"off"``.
        outside_run: ``"hint"`` says once per tool that a call outside a run is not guarded, ``"ignore"`` is silent,
            ``"raise"`` makes it an error.
        on_finding: Called with every finding; what it raises is logged.
        telemetry: A `Telemetry`.
        limits: `Limits` of every run.

    Raises:
        PolicyError: A value cannot be meant; nothing is changed then.

    ```python
    from loopguard import Policy, configure

    with configure(policy=Policy(window=80), outside_run="ignore"):
        ...  # runs in here use them
    ```
    """
    asked = {
        "policy": policy,
        "tools": tools,
        "store": store,
        "mode": mode,
        "outside_run": outside_run,
        "on_finding": on_finding,
        "telemetry": telemetry,
        "limits": limits,
    }
    given = {
        name: None if value is None else _CHECKS[name](value) for name, value in asked.items() if value is not UNCHANGED
    }
    if given_tools := given.get("tools"):
        _check_thresholds(given.get("policy") or settings().policy, given_tools)
    with _config.lock:
        before = _config.given
        merged = {name: value for name, value in {**before, **given}.items() if value is not None}
        _config.given = merged
        _config.merged = None
    return Configured(before, tuple(given))


def effective_mode(*modes: Mode | None) -> Mode:
    """The mode that holds: the first given, weakened by ``LOOPGUARD_MODE``.

    Args:
        modes: From the most specific to the least: tool, run, ``settings().mode``, policy. None = says nothing.
    """
    mode: Mode = next((mode for mode in modes if mode is not None), "enforce")
    value = os.environ.get(environment.MODE)
    if not value:
        return mode
    limit = environment.read_mode(value)
    if isinstance(limit, environment.Complaint):
        _say(str(limit))
        return mode
    return mode if limit is None or _STRENGTH[mode] <= _STRENGTH[limit] else limit


def deployment_key() -> bytes | None:
    """The secret that keys fingerprints, from ``LOOPGUARD_KEY``; None = each run makes its own."""
    value = os.environ.get(environment.KEY)
    return value.encode("utf-8", "surrogateescape") if value else None


def flush(timeout: float = 5.0) -> bool:
    """Send what waits in the OpenTelemetry providers that are configured, or global.

    Args:
        timeout: Seconds after which this returns in any case. A provider that takes longer goes on in the background.

    Returns:
        True if every provider said in time that it has sent everything; also if there is none.
    """
    return flushing.flush(known_settings().telemetry, timeout)


def keep() -> Configured:
    """A block that changes nothing, and at whose end everything configured is as it was. For tests."""
    with _config.lock:
        return Configured(_config.given, tuple(_CHECKS))


def reset() -> None:
    """Take back every ``configure``, and read settings file and environment anew. For tests."""
    with _config.lock:
        _config.forget()
        settings_file.forget_files()


class Origin(NamedTuple):
    """One setting as ``loopguard doctor`` shows it: name, value, and who said so."""

    name: str
    value: Any
    source: str


def origins() -> list[Origin]:
    """Every setting with where it came from.

    Raises:
        PolicyError: As `settings`.
    """
    with _config.lock:
        merged = _merge()
        given = _config.given
    found = []
    for name in _CHECKS:
        said_by = "default"
        if name in given:
            said_by = "configure()"
        elif name == "policy" and merged.environment.policy_from:
            said_by = ", ".join(merged.environment.policy_from)
        elif name == "store" and merged.environment.store is not None:
            said_by = environment.STORE
        elif getattr(merged.file, name, None) is not None:
            said_by = str(merged.file.path)
        found.append(Origin(name, getattr(merged.settings, name), said_by))
    return found


def complaints() -> tuple[environment.Complaint, ...]:
    """What is wrong with the variables as they are; empty if nothing is."""
    mode = environment.read_mode(os.environ.get(environment.MODE))
    return (*_merge().environment.complaints, *([mode] if isinstance(mode, environment.Complaint) else []))


# -- inside -----------------------------------------------------------------------------------------------------------


def _merge() -> _Merged:
    variables, folder = environment.snapshot(), _folder()
    merged = _config.merged
    if merged is not None and merged.variables == variables and merged.folder == folder:
        return merged
    with _config.lock:
        file = _config.files.get(folder)
        if file is None:
            # A file with an error in it is not kept: it is read again, and so can be mended without a restart.
            file = settings_file.read_settings(Path(folder)) if folder else FileSettings()
            if len(_config.files) >= 100:  # a process may walk through many folders
                _config.files.clear()
            _config.files[folder] = file
        said = environment.parse(variables, file.policy)
        merged = _Merged(variables, folder, _settings_from(_config.given, said, file), said, file)
        _config.merged = merged
    for complaint in said.complaints:
        _say(str(complaint))
    return merged


def _settings_from(given: Mapping[str, Any], said: environment.Environment, file: FileSettings) -> Settings:
    layers = (
        {"policy": said.policy, "store": said.store},
        {name: getattr(file, name) for name in settings_file.KEYS},
    )
    values = dict(given)
    for layer in layers:
        for name, value in layer.items():
            if value is not None:
                values.setdefault(name, value)
    return Settings(**values)


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd costs more, and this is on the way of every run
    except OSError:  # the folder was deleted
        return ""


def _say(text: str) -> None:
    """Log a warning, once."""
    if text in _config.said:
        return
    _config.said.add(text)
    _log.warning("loopguard: %s", text)


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "policy": policy_of,
    "tools": tables.tools_of,
    "store": tables.store_of,
    "mode": tables.mode_of,
    "outside_run": tables.outside_run_of,
    "on_finding": tables.callback_of,
    "telemetry": tables.telemetry_of,
    "limits": tables.limits_of,
}

__all__ = [
    "Configured",
    "Origin",
    "OutsideRun",
    "Settings",
    "complaints",
    "configure",
    "deployment_key",
    "effective_mode",
    "flush",
    "keep",
    "known_settings",
    "origins",
    "outside",
    "policy_from_mapping",
    "policy_of",
    "reset",
    "settings",
]
