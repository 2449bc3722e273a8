"""What an application may decide about telemetry."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from loopguard.errors import PolicyError

CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

_CHOICES: Final[dict[str, tuple[str | None, ...]]] = {
    "spans": ("auto", "always", "never"),
    "events": ("span", "log", "both", "none"),
    "capture": (None, "none", "key", "content"),
}
_PREFIX = re.compile(r"([a-z][a-z0-9_]*\.)+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """Settings of what loopguard tells OpenTelemetry: ``configure(telemetry=Telemetry(...))``.

    Without a tracer provider no span is started, whatever stands here. Loop detection does not depend on any
    of it.

    Args:
        spans: ``"auto"`` opens a span ``execute_tool {tool}`` for each call, or uses the current span if a
            framework has opened one for this tool already. ``"always"`` opens one in any case, ``"never"``
            none: a finding is then put on the span that is current.
        events: Where ``on_loop_detected`` goes: ``"span"`` as an event of the span, ``"log"`` as an event of
            the Logs API (needs a logger provider), ``"both"``, ``"none"``. The summary attributes
            ``loopguard.loop.*`` are on the span in any case.
        capture: What may leave the process of a call's content: ``"none"`` nothing, ``"key"`` the key of the
            call, ``"content"`` arguments, results and error messages as well. None (the default) follows the
            variable ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``; where that is not set: nothing.
        redact: Called with every captured text, returns what may be exported. Where it fails the text is left
            out.
        annotate_parent: Put the result of a run (outcome, calls, findings, wasted calls) on the span that was
            current when it opened.
        tracer_provider: Used instead of the global one.
        meter_provider: Used instead of the global one.
        logger_provider: Used instead of the global one.
        event_prefix: Put before the names ``on_loop_detected`` and ``max_operation_count``, such as
            ``"acme."``.

    Raises:
        PolicyError: A value is not one of the choices, or of the wrong type.
    """

    spans: Literal["auto", "always", "never"] = "auto"
    events: Literal["span", "log", "both", "none"] = "span"
    capture: Literal["none", "key", "content"] | None = None
    redact: Callable[[str], str] | None = None
    annotate_parent: bool = True
    tracer_provider: Any = None
    meter_provider: Any = None
    logger_provider: Any = None
    event_prefix: str = ""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        if self.redact is not None and not callable(self.redact):
            raise PolicyError(f"Telemetry(redact={self.redact!r}) is not callable. Give a function of a text, or None.")
        if not isinstance(self.annotate_parent, bool):
            raise PolicyError(f"Telemetry(annotate_parent={self.annotate_parent!r}): give True or False.")
        prefix: object = self.event_prefix
        if not isinstance(prefix, str) or (prefix and not _PREFIX.fullmatch(prefix)):
            raise PolicyError(
                f"Telemetry(event_prefix={self.event_prefix!r}) makes no valid name. "
                "Use lower case words that each end with a dot, such as 'acme.'."
            )
        for name, method in (
            ("tracer_provider", "get_tracer"),
            ("meter_provider", "get_meter"),
            ("logger_provider", "get_logger"),
        ):
            provider = getattr(self, name)
            if provider is not None and not callable(getattr(provider, method, None)):
                raise PolicyError(
                    f"Telemetry({name}={type(provider).__name__}) has no {method}(). "
                    f"Give an OpenTelemetry {name.replace('_', ' ')}, or None for the global one."
                )

    @property
    def captures(self) -> Literal["none", "key", "content"]:
        """What is captured, with the environment taken into account."""
        if self.capture is not None:
            return self.capture
        value = os.environ.get(CAPTURE_VARIABLE, "").strip().upper()
        # EVENT_ONLY is about events of the inference; ours carry no content, so nothing is captured for it.
        return "content" if value in {"SPAN_ONLY", "SPAN_AND_EVENT", "TRUE"} else "none"


def _check_choice(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if (value is None or isinstance(value, str)) and value in choices:
        return
    words = [choice for choice in choices if choice is not None]
    near = get_close_matches(value, words, n=1) if isinstance(value, str) else []
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise PolicyError(f"Telemetry({name}={value!r}) is not one of {', '.join(map(repr, choices))}.{hint}")
