"""Settings are checked when they are made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from loopguard.errors import PolicyError
from loopguard.telemetry import Telemetry
from loopguard.telemetry.settings import CAPTURE_VARIABLE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"spans": "allways"}, "Did you mean 'always'?"),
        ({"spans": None}, "is not one of 'auto', 'always', 'never'"),
        ({"events": "xyz"}, "is not one of 'span', 'log', 'both', 'none'"),
        ({"events": ["span"]}, "Telemetry(events=['span'])"),
        ({"capture": True}, "is not one of None, 'none', 'key', 'content'"),
        ({"redact": "x"}, "is not callable"),
        ({"annotate_parent": "no"}, "give True or False"),
        ({"event_prefix": "Acme"}, "Use lower case words that each end with a dot"),
        ({"event_prefix": None}, "makes no valid name"),
        ({"tracer_provider": object()}, "has no get_tracer()"),
        ({"meter_provider": 1}, "Give an OpenTelemetry meter provider"),
        ({"logger_provider": "x"}, "has no get_logger()"),
    ],
)
def test_a_wrong_value_is_named(options: dict[str, Any], said: str) -> None:
    """A ``PolicyError`` names the setting, the value and what can be written."""
    with pytest.raises(PolicyError) as caught:
        Telemetry(**options)

    assert said in str(caught.value)
    assert f"Telemetry({next(iter(options))}=" in str(caught.value)


def test_settings_are_frozen() -> None:
    """They cannot change under a run that uses them."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Telemetry().spans = "never"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("variable", "argument", "captures"),
    [
        (None, None, "none"),
        ("NO_CONTENT", None, "none"),
        ("EVENT_ONLY", None, "none"),
        ("nonsense", None, "none"),
        ("SPAN_ONLY", None, "content"),
        ("span_and_event", None, "content"),
        ("true", None, "content"),
        ("SPAN_ONLY", "none", "none"),
        ("SPAN_ONLY", "key", "key"),
        (None, "content", "content"),
    ],
)
def test_an_argument_beats_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, argument: Any, captures: str
) -> None:
    """The variable of the OpenTelemetry utilities for GenAI is followed where nothing was said."""
    monkeypatch.delenv(CAPTURE_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(CAPTURE_VARIABLE, variable)

    assert Telemetry(capture=argument).captures == captures


def test_valid_settings_are_taken() -> None:
    """A prefix of several words and a redactor are fine."""
    settings = Telemetry(event_prefix="acme.agents_2.", redact=str.lower)

    assert settings.event_prefix == "acme.agents_2."
