"""``configure``, what it merges with, and what wins."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopguard import config, guarded_run
from loopguard.config import (
    Settings,
    configure,
    outside,
    settings,
)
from loopguard.errors import PolicyError
from loopguard.policy import Policy
from loopguard.records import Kind
from loopguard.rules import Failing, Limits
from loopguard.signature import ToolSpec
from loopguard.telemetry.settings import Telemetry

PACKAGE_PARENT = Path(config.__file__).parents[1]


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


def test_defaults() -> None:
    """Where nobody says anything, the default policy holds."""
    now = settings()

    assert now.policy == Policy()
    assert (dict(now.tools), now.store, now.mode, now.outside_run) == ({}, None, None, "hint")
    assert (now.on_finding, now.telemetry, now.limits) == (None, Telemetry(), None)
    assert settings() is now


def test_statement_stays_in_force() -> None:
    """Used as a statement it holds from then on, and what is left out stays."""
    configure(mode="observe")
    configure(store="memory://")

    assert (settings().mode, settings().store) == ("observe", "memory://")


def test_block_restores_and_nests() -> None:
    """Each block puts back what was before, set or not."""
    configure(outside_run="ignore")
    with configure(outside_run="raise", mode="off"):
        assert (settings().outside_run, settings().mode) == ("raise", "off")
        with configure(mode="observe"):
            assert (settings().outside_run, settings().mode) == ("raise", "observe")
        assert settings().mode == "off"
    assert (settings().outside_run, settings().mode) == ("ignore", None)


def test_block_restores_after_an_error() -> None:
    """An error in the block passes, and the settings are put back."""
    with pytest.raises(KeyError), configure(mode="off"):
        raise KeyError
    assert settings().mode is None


def test_block_leaves_other_settings_alone() -> None:
    """A block that ends does not take back what was configured meanwhile by another name."""
    with configure(mode="off"):
        configure(store="memory://")

    assert (settings().mode, settings().store) == (None, "memory://")


def test_none_takes_back() -> None:
    """None lets the environment or the file speak again, and a block restores that too."""
    configure(mode="observe")
    with configure(mode=None):
        assert settings().mode is None
    assert settings().mode == "observe"


def test_threads() -> None:
    """Blocks of many threads end in what was before."""

    def work(name: str) -> None:
        for _ in range(50):
            with configure(**{name: {"mode": "observe", "store": "memory://", "outside_run": "ignore"}[name]}):  # type: ignore[arg-type]
                settings()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("mode", "store", "outside_run")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert settings() == Settings()


def test_help_is_readable() -> None:
    """A keyword that may be left out is shown as such."""
    assert str(inspect.signature(configure).parameters["mode"]) == "mode: 'Mode | None' = ..."


def test_unknown_keyword() -> None:
    """A keyword that does not exist is a TypeError, as anywhere."""
    with pytest.raises(TypeError, match="polcy"):
        configure(polcy=Policy())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"policy": "loopctll"}, "'loopctll' is not a preset. Did you mean 'loopctl'?"),
        ({"policy": 3}, "policy=3 is not a policy"),
        (
            {"mode": "obsrve"},
            "mode='obsrve' is not one of 'enforce', 'observe', 'off'. Did you mean 'observe'?",
        ),
        ({"mode": ["off"]}, "mode=\\['off'\\] is not one of"),
        ({"outside_run": "warn"}, "outside_run='warn' is not one of 'hint', 'ignore', 'raise'"),
        ({"store": 5}, "store=5 is not known. This version keeps runs in the process: 'memory://' is all there is"),
        ({"store": " "}, "store=' ' is not known"),
        ({"store": "redis://me:secret@host/0"}, "store='redis://…' is not known. .* share are not in it"),
        ({"on_finding": "print"}, "on_finding='print' is not callable"),
        ({"telemetry": "log"}, "telemetry='log' is not a Telemetry"),
        ({"limits": 200}, r"limits=200 is not a Limits. Write limits=Limits\(calls=200\)"),
        ({"limits": {"cals": 200}}, "limits has no key 'cals'. Did you mean 'calls'?"),
        ({"tools": 7}, "tools=7 is neither"),
        ({"tools": {"Bash": {"primry": "command"}}}, "primry"),
        ({"tools": "gone.toml"}, "The file of tools 'gone.toml' cannot be read: No such file"),
    ],
)
def test_bad_values(keywords: dict[str, Any], said: str) -> None:
    """A value that cannot be meant is named at once, and nothing is changed."""
    with pytest.raises(PolicyError, match=said):
        configure(**{"mode": "off", **keywords})
    assert settings() == Settings()


def test_values_are_made_ready() -> None:
    """Names, mappings and tables become the objects that they stand for."""

    def told(finding: object) -> None: ...

    configure(
        policy="rysh",
        tools={"Bash": {"kind": "shell", "primary": "command"}, "mine": ToolSpec(name="mine")},
        on_finding=told,
        telemetry={"spans": "never"},
        limits={"calls": 7},
    )
    now = settings()

    assert now.policy == Policy.rysh()
    assert now.tools["Bash"].primary == ("command",)
    assert now.tools["mine"] == ToolSpec(name="mine")
    assert (now.on_finding, now.telemetry.spans, now.limits) == (told, "never", Limits(calls=7))


def test_with_tools() -> None:
    """Tools of one run are added to a copy; of two with one name the run's holds."""
    configure(tools={"a": {"kind": "read"}, "b": {"kind": "read"}})
    more = settings().with_tools({"b": {"kind": "write"}}, Policy())

    assert (more.tools["a"].kind, more.tools["b"].kind) == (Kind.READ, Kind.WRITE)
    assert settings().tools["b"].kind == Kind.READ


def test_outside() -> None:
    """It follows configure at once, and a given Settings comes first."""
    assert outside() == outside() == "hint"
    with configure(outside_run="ignore"):
        assert outside() == "ignore"
        assert outside(Settings(outside_run="raise")) == "raise"
    assert outside() == "hint"


def test_outside_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    """With a settings file that cannot be meant a call outside a run goes through, and the log says why, once."""
    write("outside_rum = 'ignore'")
    with caplog.at_level(logging.WARNING, "loopguard"):
        assert (outside(), outside()) == ("hint", "hint")
    with pytest.raises(PolicyError, match="outside_rum"):
        settings()
    assert len(warnings_of(caplog)) == 1


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure before environment before file before default, setting by setting."""
    write("outside_run = 'ignore'\nmode = 'observe'\n[policy]\nwindow = 60")
    assert (settings().outside_run, settings().policy.window) == ("ignore", 60)

    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "2")
    assert settings().policy == Policy(repeat_of(settings().policy), window=60)
    assert repeat_of(settings().policy).warn_after == 2

    configure(outside_run="raise", policy=Policy(Failing.off()))
    assert settings().outside_run == "raise"
    assert settings().policy == Policy(Failing.off())
    assert settings().mode == "observe"


def test_origins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each setting says who said it."""
    write("mode = 'observe'\noutside_run = 'ignore'\n[policy]\nwindow = 60")
    monkeypatch.setenv("LOOPGUARD_STORE", "memory://")
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "2")
    monkeypatch.setenv("LOOPGUARD_SENSITIVITY", "low")
    configure(mode="off", limits=Limits(calls=3))

    assert {origin.name: origin.source for origin in config.origins()} == {
        "policy": "LOOPGUARD_SENSITIVITY, LOOPGUARD_WARN_AFTER",
        "tools": "default",
        "store": "LOOPGUARD_STORE",
        "mode": "configure()",
        "outside_run": str(tmp_path / "loopguard.toml"),
        "on_finding": "default",
        "telemetry": "default",
        "limits": "configure()",
    }


def test_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is taken back."""
    configure(mode="off", policy="rysh", outside_run="raise")
    config.reset()

    assert settings() == Settings()


class Provider:
    """Stands for any of the three providers."""

    def __init__(self, send: Callable[[], object]) -> None:
        self.send = send
        self.asked: list[int] = []

    def get_tracer(self) -> None: ...

    get_meter = get_logger = get_tracer

    def force_flush(self, timeout_millis: int) -> object:
        """What the provider does when flushed."""
        self.asked.append(timeout_millis)
        return self.send()


def fail() -> object:
    """An exporter that fails."""
    raise ConnectionError


@pytest.mark.parametrize(
    ("send", "expected"), [(lambda: True, True), (lambda: None, True), (lambda: False, False), (fail, False)]
)
def test_flush(send: Callable[[], object], expected: bool) -> None:
    """Each provider is asked once, and one that fails is told by the return value."""
    failing, fine = Provider(send), Provider(lambda: True)
    configure(telemetry=Telemetry(tracer_provider=failing, meter_provider=fine, logger_provider=fine))

    assert config.flush(2) is expected
    assert (failing.asked, fine.asked) == ([2000], [2000, 2000])


def test_flush_keeps_to_its_time() -> None:
    """A provider that hangs does not hold the program."""
    hang = threading.Event()
    configure(telemetry=Telemetry(tracer_provider=Provider(hang.wait)))
    began = time.monotonic()

    assert config.flush(0.05) is False
    assert time.monotonic() - began < 2
    hang.set()


def test_flush_with_nothing_to_send() -> None:
    """Without a provider there is nothing to wait for; a broken settings file is no obstacle."""
    write("mod = 'off'")

    assert config.flush(5) is True


def test_imports_little() -> None:
    """Reading settings and flushing import neither wrapt nor OpenTelemetry nor a CLI library."""
    program = (
        "import sys, loopguard.config as c\nc.settings(); c.flush(1)\n"
        "print([m for m in ('wrapt', 'opentelemetry', 'rich', 'asyncio') if m in sys.modules])"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "COV", "COVERAGE"))
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        env=environment | {"PYTHONPATH": str(PACKAGE_PARENT)},
    )  # fmt: skip

    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"warn_after": 9}, "out of order"),
        ({"stop_after": 0}, "refuses without an end"),
        ({"warn_after": 60, "refuse_after": 0, "stop_after": 0}, "can never fire"),
    ],
)
def test_thresholds_of_tables_that_cannot_be_meant(table: dict[str, int], message: str) -> None:
    """A table is held to the policy, as the options of a decorator are."""
    with pytest.raises(PolicyError, match=rf"\[tools.search\]: .*{message}"):
        configure(tools={"search": table})
    with pytest.raises(PolicyError, match=message), guarded_run("r", tools={"search": table}):
        pass
