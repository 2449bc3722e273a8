"""Variables: what they change, and that a slip in them is said and never raised."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopguard import config
from loopguard.config import (
    Settings,
    configure,
    effective_mode,
    settings,
)
from loopguard.policy import Policy
from loopguard.rules import Repeat


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test has an empty folder, no variables, and leaves nothing configured."""
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    config.reset()
    yield
    config.reset()


def repeat_of(policy: Policy) -> Any:
    """The policy's rule named repeat."""
    return next(rule for rule in policy.rules if rule.name == "repeat")


def write(text: str, name: str = "loopguard.toml") -> Path:
    """A file in the working directory."""
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged."""
    return [record.getMessage() for record in caplog.records if record.name == "loopguard"]


def test_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rungs of Repeat; the ladder for unknown kinds in between is raised where it would be lower."""
    for name, value in (("WARN", "6"), ("REFUSE", "12"), ("STOP", "25")):
        monkeypatch.setenv(f"LOOPGUARD_{name}_AFTER", value)

    assert repeat_of(settings().policy) == Repeat(
        warn_after=6, refuse_after=12, stop_after=25,
        unknown_warn_after=6, unknown_refuse_after=12, unknown_stop_after=25,
    )  # fmt: skip
    assert [rule for rule in settings().policy.rules if rule.name != "repeat"] == [
        rule for rule in Policy().rules if rule.name != "repeat"
    ]


@pytest.mark.parametrize(
    ("values", "unknown"),
    [
        ({"WARN": "2", "REFUSE": "3", "STOP": "5"}, (5, 10, 20)),
        ({"WARN": "11", "REFUSE": "11", "STOP": "11"}, (11, 11, 20)),
        ({"REFUSE": "0"}, (5, 0, 20)),
        ({"STOP": "30"}, (5, 10, 30)),
        ({"WARN": "0"}, (0, 10, 20)),
    ],
)
def test_unknown_rungs_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], unknown: tuple[int, int, int]
) -> None:
    """The rungs for unknown kinds are never below the given ones, and off where those are off."""
    for name, value in values.items():
        monkeypatch.setenv(f"LOOPGUARD_{name}_AFTER", value)
    rule = repeat_of(settings().policy)

    assert (rule.unknown_warn_after, rule.unknown_refuse_after, rule.unknown_stop_after) == unknown


def test_rungs_that_are_off_stay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rung for unknown kinds that the settings file switches off is not switched on."""
    write("[policy.repeat]\nunknown_refuse_after = 0")
    monkeypatch.setenv("LOOPGUARD_REFUSE_AFTER", "7")

    assert repeat_of(settings().policy).unknown_refuse_after == 0
    assert repeat_of(settings().policy).refuse_after == 7


def test_thresholds_change_the_resulting_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """They apply on top of LOOPGUARD_POLICY, whose rule named repeat may be of another class."""
    monkeypatch.setenv("LOOPGUARD_POLICY", "loopctl")
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "4")

    assert settings().policy == Policy.loopctl(warn_after=4)


def test_policy_and_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset or a file by name, and a sensitivity in any case."""
    write("window = 80", "own.toml")
    monkeypatch.setenv("LOOPGUARD_POLICY", "own.toml")
    monkeypatch.setenv("LOOPGUARD_SENSITIVITY", " High ")

    assert settings().policy == Policy(window=80, sensitivity="high")


def test_store_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that there is, and the key as bytes."""
    assert config.deployment_key() is None
    monkeypatch.setenv("LOOPGUARD_STORE", "memory://")
    monkeypatch.setenv("LOOPGUARD_KEY", "schlüssel")

    assert settings().store == "memory://"
    assert config.deployment_key() == "schlüssel".encode()


def test_changes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reading after a change of a variable has it; without one it is the same object."""
    first = settings()
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "2")
    assert repeat_of(settings().policy).warn_after == 2
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "")
    assert settings() == first


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WARN_AFTER": "three"}, "LOOPGUARD_WARN_AFTER='three': Not a whole number of operations"),
        ({"STOP_AFTER": "-1"}, "LOOPGUARD_STOP_AFTER='-1': Not a whole number"),
        ({"STOP_AFTER": "9" * 5000}, "Not a whole number"),
        (
            {"SENSITIVITY": "hihg"},
            "LOOPGUARD_SENSITIVITY='hihg': Not one of 'low', 'normal', 'high'. Did you mean 'high'?",
        ),
        (
            {"POLICY": "loopctll"},
            "LOOPGUARD_POLICY='loopctll': 'loopctll' is not a preset. Did you mean 'loopctl'?",
        ),
        ({"POLICY": "gone.toml"}, "LOOPGUARD_POLICY='gone.toml': The policy file 'gone.toml' cannot be read"),
        (
            {"WARN_AFTER": "8"},
            "LOOPGUARD_WARN_AFTER=8: Repeat(warn_after=8, refuse_after=5) is out of order: warn_after <= refuse_after",
        ),
        (
            {"WARN_AFTER": "60", "REFUSE_AFTER": "60", "STOP_AFTER": "60"},
            "Repeat(warn_after=60) can never fire: window=50 keeps 50 operations. Raise window to 60 or lower",
        ),
        ({"STOP_AFTER": "0"}, "Repeat(refuse_after=5) refuses without an end"),
    ],
)
def test_unusable_variables(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variables: dict[str, str], said: str
) -> None:
    """What cannot be used is logged once, with what a PolicyError would say, and is as if it were not set."""
    for name, value in variables.items():
        monkeypatch.setenv(f"LOOPGUARD_{name}", value)
    with caplog.at_level(logging.WARNING, "loopguard"):
        assert settings() == Settings()
        configure(mode=None)  # merges again
        assert settings() == Settings()

    (line,) = warnings_of(caplog)
    assert line.startswith("loopguard: LOOPGUARD_")
    assert said in line
    assert line.endswith("It is ignored.")
    assert [str(complaint) for complaint in config.complaints()] == [line.removeprefix("loopguard: ")]


def test_the_usable_rest_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable that cannot be read does not take the others with it."""
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "x")
    monkeypatch.setenv("LOOPGUARD_STOP_AFTER", "9")

    assert repeat_of(settings().policy).stop_after == 9


def test_thresholds_without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy without a rule named repeat cannot take its rungs, which is said."""
    monkeypatch.setenv("LOOPGUARD_POLICY", "rysh")
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "2")

    assert settings().policy == Policy.rysh()
    assert "has no rule 'repeat' (it has: same_call)" in str(config.complaints()[0])


@pytest.mark.parametrize(
    ("modes", "variable", "expected"),
    [
        ((), None, "enforce"),
        ((None, None), None, "enforce"),
        ((None, "observe", "off"), None, "observe"),
        (("enforce", "off"), None, "enforce"),
        (("enforce",), "observe", "observe"),
        (("enforce",), "off", "off"),
        (("observe",), "enforce", "observe"),
        (("off",), "observe", "off"),
        ((None, "observe"), " OFF ", "off"),
        (("enforce",), " ", "enforce"),
    ],
)
def test_effective_mode(
    monkeypatch: pytest.MonkeyPatch, modes: tuple[Any, ...], variable: str | None, expected: str
) -> None:
    """The most specific given wins; LOOPGUARD_MODE can only weaken it."""
    if variable is not None:
        monkeypatch.setenv("LOOPGUARD_MODE", variable)

    assert effective_mode(*modes) == expected


def test_unusable_mode(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A mode that does not exist changes nothing and is said once."""
    monkeypatch.setenv("LOOPGUARD_MODE", "watch")
    with caplog.at_level(logging.WARNING, "loopguard"):
        assert (effective_mode("observe"), effective_mode(None)) == ("observe", "enforce")

    assert len(warnings_of(caplog)) == 1
    assert "LOOPGUARD_MODE='watch'" in str(config.complaints()[0])
