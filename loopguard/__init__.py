"""Guards the tools of an LLM agent: a call that keeps giving the same result is warned about, refused and stopped.

Everything public is here, and nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopguard.config import Settings as Settings
    from loopguard.config import configure as configure
    from loopguard.config import flush as flush
    from loopguard.errors import LimitReached as LimitReached
    from loopguard.errors import LimitRefused as LimitRefused
    from loopguard.errors import LoopDetected as LoopDetected
    from loopguard.errors import LoopguardError as LoopguardError
    from loopguard.errors import LoopRefused as LoopRefused
    from loopguard.errors import LoopStopped as LoopStopped
    from loopguard.errors import PolicyError as PolicyError
    from loopguard.errors import RunStopped as RunStopped
    from loopguard.errors import StoreError as StoreError
    from loopguard.errors import ToolCallRefused as ToolCallRefused
    from loopguard.errors import TraceError as TraceError
    from loopguard.policy import Policy as Policy
    from loopguard.records import Action as Action
    from loopguard.records import Evidence as Evidence
    from loopguard.records import Finding as Finding
    from loopguard.records import LoopStatus as LoopStatus
    from loopguard.records import Operation as Operation
    from loopguard.report import Nudge as Nudge
    from loopguard.rules import Attempt as Attempt
    from loopguard.rules import Cycle as Cycle
    from loopguard.rules import Failing as Failing
    from loopguard.rules import Limits as Limits
    from loopguard.rules import Poll as Poll
    from loopguard.rules import Repeat as Repeat
    from loopguard.rules import Rule as Rule
    from loopguard.rules import SameCall as SameCall
    from loopguard.rules import SameError as SameError
    from loopguard.run import Run as Run
    from loopguard.scope import current_run as current_run
    from loopguard.scope import guarded_run as guarded_run
    from loopguard.signature import Ignored as Ignored
    from loopguard.signature import Primary as Primary
    from loopguard.signature import Secret as Secret
    from loopguard.signature import ToolSignature as ToolSignature
    from loopguard.signature import ToolSpec as ToolSpec
    from loopguard.signature import tools_from_toml as tools_from_toml
    from loopguard.stats import LimitStatus as LimitStatus
    from loopguard.stats import RunStats as RunStats
    from loopguard.telemetry import Telemetry as Telemetry
    from loopguard.tool import guard_tools as guard_tools
    from loopguard.tool import guarded_tool as guarded_tool
    from loopguard.tool import is_guarded as is_guarded

_WHERE = {
    "config": ("Settings", "configure", "flush"),
    "errors": (
        "LimitReached",
        "LimitRefused",
        "LoopDetected",
        "LoopRefused",
        "LoopStopped",
        "LoopguardError",
        "PolicyError",
        "RunStopped",
        "StoreError",
        "ToolCallRefused",
        "TraceError",
    ),
    "policy": ("Policy",),
    "records": ("Action", "Evidence", "Finding", "LoopStatus", "Operation"),
    "report": ("Nudge",),
    "rules": ("Attempt", "Cycle", "Failing", "Limits", "Poll", "Repeat", "Rule", "SameCall", "SameError"),
    "run": ("Run",),
    "scope": ("current_run", "guarded_run"),
    "signature": ("Ignored", "Primary", "Secret", "ToolSignature", "ToolSpec", "tools_from_toml"),
    "stats": ("LimitStatus", "RunStats"),
    "telemetry": ("Telemetry",),
    "tool": ("guard_tools", "guarded_tool", "is_guarded"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}


__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from loopguard.version import VERSION

        return VERSION
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'loopguard' has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(f"loopguard.{module}"), name)
    except ImportError as error:
        # Two distributions that share this folder overwrite each other's files; say so instead of the riddle.
        from loopguard import _clash

        raise _clash.wrap(error)  # noqa: B904 - it says itself where it came from
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
