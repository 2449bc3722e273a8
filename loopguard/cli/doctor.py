"""``loopguard doctor``: what is installed, what holds and who said so, and which tools are not guarded."""

from __future__ import annotations

import importlib
import logging
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from loopguard import _clash, config, environment
from loopguard.cli import install_hint
from loopguard.errors import PolicyError
from loopguard.policy import PRESETS, Policy
from loopguard.records import Kind
from loopguard.rules import Limits

#: Packages that are not needed, what each is for, and the extra that brings it.
_OPTIONAL: Final[dict[str, tuple[str, str]]] = {
    "opentelemetry-sdk": ("sends spans and metrics", "otel"),
    "opentelemetry-exporter-otlp-proto-http": ("sends them over OTLP", "otel"),
    "rich": ("colours in the demo", "cli"),
}
_NEEDED: Final = ("msgspec", "opentelemetry-api", "orjson", "wrapt", "xxhash")

#: Variables that decide where OpenTelemetry sends what loopguard tells it.
_OTEL: Final = (
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_LOGS_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_TRACES_SAMPLER",
    "OTEL_PYTHON_TRACER_PROVIDER",
    "OTEL_PYTHON_METER_PROVIDER",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
)
#: Values that may hold credentials.
_SECRET: Final = re.compile(r"HEADERS|_KEY$")
_USER: Final = re.compile(r"(?<=://)[^/@\s]+@")


def run(target: str | None = None) -> int:
    """Print the report.

    Args:
        target: ``module:TOOLS``, or a module whose functions are the tools; None = no tools are looked at.

    Returns:
        0 = all is well, 1 = at least one problem, 2 = ``target`` cannot be found.
    """
    found: tuple[str, dict[str, Any]] | None = None
    if target is not None:
        try:
            found = target, find_tools(target)
        except UsageError as error:
            print(f"loopguard doctor: {error}", file=sys.stderr)
            return 2
    report = Report()
    # The tools come first in time, for importing them may configure, and last on the page.
    with _log_kept_back():
        for section in (_installation, _settings, _packages, _telemetry):
            section(report)
    if found is not None:
        _tools(report, *found)
    report.summary()
    return 1 if report.problems else 0


@contextmanager
def _log_kept_back() -> Iterator[None]:
    """Keep loopguard's own log lines back: what they say of the settings stands in the report."""
    logger = logging.getLogger("loopguard")
    logger.addFilter(_nothing)
    try:
        yield
    finally:
        logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


class UsageError(Exception):
    """The tools cannot be found where they are said to be."""


class Report:
    """Prints rows and counts problems."""

    def __init__(self) -> None:
        self.problems = 0

    def title(self, text: str) -> None:
        """Begin a section."""
        print(f"\n{text}")

    def row(self, name: str, value: str, note: str = "") -> None:
        """Print one fact."""
        print(f"  {name:<18} {value}{'   ' + note if note else ''}".rstrip())

    def problem(self, text: str) -> None:
        """Print what is wrong, and remember it."""
        self.problems += 1
        print(f"  problem: {text}")

    def summary(self) -> None:
        """Print how many problems there were."""
        count = self.problems
        print(f"\n{'no problems' if not count else '1 problem' if count == 1 else f'{count} problems'}")


def _installation(report: Report) -> None:
    print(f"loopguard {_clash.own_version() or '(not installed: this is a clone)'}")
    report.row("folder", str(Path(__file__).parents[1]))
    report.row("python", f"{platform.python_version()}   {sys.executable}")
    others = _clash.other_owners()
    if others:
        report.problem(_clash.describe(others))
    damaged = _clash.damaged_files()
    if damaged:
        listed = ", ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")
        report.problem(
            f"files are not those that {_clash.DISTRIBUTION} installed: {listed}. "
            f"Install again: pip install --force-reinstall --no-deps {_clash.DISTRIBUTION} (in a clone: . in its place)"
        )
    if not others and not damaged:
        report.row("import", "no other distribution installs 'loopguard'")


def _settings(report: Report) -> None:
    report.title("settings")
    try:
        origins = config.origins()
        complaints = config.complaints()
    except PolicyError as error:
        report.problem(str(error))
        return
    now = config.settings()
    for name, value, source in origins:
        # Where nobody gave limits those of the policy hold, or the default.
        holds = now.policy.limits or Limits() if name == "limits" and value is None else value
        report.row(name, _shown(name, holds), f"({source})" if source != "default" else "")
    asked = now.mode or now.policy.mode
    mode = config.effective_mode(asked)
    report.row("mode in force", mode, "" if mode == asked else f"({environment.MODE})")
    if config.deployment_key():
        report.row("fingerprints", "keyed", f"({environment.KEY})")
    else:
        report.row("fingerprints", "a key of its own for each run")
    for complaint in complaints:
        report.problem(str(complaint))


def _packages(report: Report) -> None:
    report.title("packages")
    for name in _NEEDED:
        version = _installed(name)
        if version is None:
            report.problem(f"{name} is not installed. pip install {name}")
        else:
            report.row(name, version)
    missing = []
    for name, (use, extra) in _OPTIONAL.items():
        version = _installed(name)
        report.row(name, version or "not installed", "" if version else f"({use}: the extra {extra!r})")
        if version is None and extra not in missing:
            missing.append(extra)
    if missing:
        print(f"  to add them: {install_hint(','.join(missing))}")


def _telemetry(report: Report) -> None:
    report.title("opentelemetry")
    api = sys.modules.get("opentelemetry.trace")
    provider = type(api.get_tracer_provider()).__name__ if api is not None else "OpenTelemetry is not imported here"
    report.row("tracer provider", provider, "" if api is not None else "(no spans until the application sets one)")
    values = {name: os.environ[name] for name in _OTEL if os.environ.get(name)}
    for name, value in values.items():
        report.row(name, _hidden(name, value))
    if not values:
        report.row("environment", "no OTEL_ variable is set")
    if any("ENDPOINT" in name for name in values) and not _installed("opentelemetry-sdk"):
        report.problem(f"an OTLP endpoint is set and nothing can send there. {install_hint('otel')}")


def _tools(report: Report, target: str, tools: Mapping[str, Any]) -> None:
    report.title(f"tools of {target}")
    if not tools:
        report.problem("there is no tool in it.")
    without_kind = []
    for name, tool in tools.items():
        spec = spec_of(tool)
        if spec is None:
            report.problem(f"{name} is not guarded. Put @guarded_tool on it, or use guard_tools on all of them.")
            continue
        kind = kind_text(spec)
        if not kind:
            without_kind.append(name)
        report.row(name, "guarded", f"({kind or 'kind unknown'})")
        if spec.name in config.settings().tools:
            report.problem(
                f"{name} is decorated: its table [tools.{spec.name}] does nothing. Say it in the options of guarded_tool."
            )
    if without_kind:
        print(
            f'  {", ".join(without_kind)}: say kind="read", "write" or "poll" (or reads=, edits=). A successful '
            "write restarts the evidence, and after a tool of unknown kind the rules are more patient."
        )


def find_tools(target: str) -> dict[str, Any]:
    """The tools at ``module:NAME`` by name.

    A mapping, a list or a module. A module, as ``module`` alone, stands for the functions that it defines and the
    guarded tools that it holds.

    Raises:
        UsageError: There is no such module or name, or what is there is no collection of tools.
    """
    module_name, _, path = target.partition(":")
    # Of an installed command, its own folder is on the path and not the one where people stand.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        missing = getattr(error, "name", None)
        if missing is not None and not f"{module_name}.".startswith(f"{missing}."):
            raise UsageError(f"{module_name} cannot be imported: {error}") from error
        raise UsageError(
            f"there is no module {module_name!r}. Write module:TOOLS, such as my_agent.tools:TOOLS."
        ) from error
    except (Exception, SystemExit) as error:  # a module of the user's may do anything
        raise UsageError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    for name in filter(None, path.split(".")):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(f"{module_name!r} has no {path!r}.") from None
    if isinstance(found, ModuleType):
        return _tools_in(found)
    if isinstance(found, Mapping):
        return {str(name): tool for name, tool in found.items()}
    if isinstance(found, Iterable) and not isinstance(found, str | bytes):
        return {_name_of(tool): tool for tool in found}
    if callable(found):
        return {_name_of(found): found}
    raise UsageError(f"{target} is {type(found).__name__!r}, not a mapping, list or module of tools.")


def spec_of(tool: Any) -> Any:
    """The `ToolSpec` of a guarded tool; None for one that is not guarded.

    A framework's tool object counts as guarded if the function in it is.
    """
    from loopguard.tool import is_guarded

    for one in (tool, *(getattr(tool, name, None) for name in ("func", "coroutine", "function", "fn"))):
        if one is not None and is_guarded(one):
            guarded = getattr(one, "__func__", one) if isinstance(one, staticmethod | classmethod) else one
            # A method that is bound to its instance has its guard on the function it was bound from.
            holder: Any = guarded if hasattr(guarded, "_self_guard") else getattr(guarded, "_self_parent", None)
            return holder._self_guard.spec
    return None


def kind_text(spec: Any) -> str:
    """The kind of a tool in a word or two; empty if it is unknown."""
    kind = getattr(spec, "kind", None)
    if kind is None or kind is Kind.UNKNOWN:
        return ""
    if isinstance(kind, Mapping):
        return f"by {kind.get('by')}"
    if callable(kind):
        return "decided for each call"
    return str(getattr(kind, "name", kind)).lower()


def _tools_in(module: ModuleType) -> dict[str, Any]:
    members = {name: value for name, value in vars(module).items() if not name.startswith("_") and callable(value)}
    return {
        name: value
        for name, value in members.items()
        if spec_of(value) is not None
        or (not isinstance(value, type) and getattr(value, "__module__", None) == module.__name__)
    }


def _name_of(tool: Any) -> str:
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", None) or type(tool).__name__)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _shown(name: str, value: Any) -> str:
    show: Callable[[Any], str] | None = _SHOW.get(name)
    if (value is None and name != "store") or (name == "tools" and not value):
        return "–"
    return show(value) if show is not None else str(value)


def _policy_text(policy: Policy) -> str:
    preset = next((name for name, make in PRESETS.items() if make() == policy), None)
    rules = ", ".join(f"{rule.name} {'/'.join(str(rung or 0) for rung in _rungs(rule))}" for rule in policy.rules)
    return f"{preset or 'own'} · {rules or 'no rules'} · window {policy.window}"


def _rungs(rule: Any) -> tuple[int | None, ...]:
    return rule.warn_after, rule.refuse_after, rule.stop_after


def _limits_text(limits: Limits) -> str:
    names = ("calls", "seconds", "tokens", "cost", "refusals")
    stops = [f"{name} {getattr(limits, name):,}" for name in names if getattr(limits, name) is not None]
    if limits.calls_per_tool:
        stops.append(f"calls of {len(limits.calls_per_tool)} tool{'s' if len(limits.calls_per_tool) != 1 else ''}")
    warning = f"a warning at {limits.warn_calls:,} calls" if limits.warn_calls else "no warning"
    return ", ".join((*stops, warning, *(() if stops else ("no stop",))))


def _hidden(name: str, value: str) -> str:
    return "set" if _SECRET.search(name) else _USER.sub("***@", value)


_SHOW: Final[dict[str, Callable[[Any], str]]] = {
    "policy": _policy_text,
    "tools": lambda tools: ", ".join(sorted(tools)),
    "store": lambda store: f"{store or 'memory://'} · runs are kept in this process",
    "on_finding": lambda function: getattr(function, "__qualname__", type(function).__name__),
    "telemetry": lambda telemetry: f"spans {telemetry.spans}, events {telemetry.events}, capture {telemetry.captures}",
    "limits": _limits_text,
}
