"""Policy files and settings files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopguard import config
from loopguard.config import (
    Settings,
    configure,
    policy_from_mapping,
    policy_of,
    settings,
)
from loopguard.errors import PolicyError
from loopguard.policy import PRESETS, Policy
from loopguard.rules import Limits, Repeat
from loopguard.telemetry.settings import Telemetry


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


def test_policy_of() -> None:
    """Policy, preset, mapping, None, and files as text or path."""
    own = Policy(window=60)
    path = write("window = 70", "own.toml")

    assert policy_of(own) is own
    assert policy_of(None) == Policy()
    assert policy_of("loopctl") == Policy.loopctl()
    assert policy_of("loopctl") is policy_of("loopctl")
    assert policy_of({"window": 80}).window == 80
    assert policy_of("own.toml").window == policy_of(path).window == policy_of(str(path.absolute())).window == 70


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_by_name(name: str) -> None:
    """Each preset can be named alone and in a table."""
    assert policy_of(name) == policy_from_mapping({"preset": name}) == PRESETS[name]()


def test_policy_file_is_read_again_when_it_changed() -> None:
    """A file is read once until its size or time changes."""
    path = write("window = 70", "own.toml")
    first = policy_of(path)
    assert policy_of(path) is first
    write("window = 8", "own.toml")
    os.utime(path, ns=(1, 1))
    with pytest.raises(PolicyError, match="window=8"):
        policy_of(path)


def test_many_policy_files() -> None:
    """Files made on the fly are forgotten, not kept."""
    for number in range(205):
        assert policy_of(write(f"window = {number + 50}\nhistory = 400", f"p{number}.toml")).window == number + 50
    from loopguard import settings_file

    assert len(settings_file._policy_files) <= 100


def test_policy_from_a_settings_file() -> None:
    """A settings file gives its policy; its other tables are checked and not taken."""
    write("mode = 'off'\n[policy]\nwindow = 60\n[tools.x]\nkind = 'read'", "other.toml")
    write("outside_run = 'raise'", "none.toml")
    write("[tool.loopguard.policy]\nwindow = 61", "pyproject.toml")

    assert (policy_of("other.toml").window, policy_of("other.toml").mode) == (60, "enforce")
    assert policy_of("none.toml") == Policy()
    assert policy_of(Path("pyproject.toml")).window == 61


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("folder.toml", None, "folder.toml: the file cannot be read"),
        ("pyproject.toml", "[project]", r"pyproject.toml: there is no table \[tool.loopguard\] in it"),
        ("gone.toml", None, "The policy file 'gone.toml' cannot be read: No such file"),
        ("bad.toml", "window = ", "bad.toml: this is not TOML"),
        ("slip.toml", "windw = 5", r"slip.toml: policy has no key 'windw'. Did you mean 'window'\?"),
        ("self.toml", "policy = 'self.toml'", "self.toml' names itself as its policy"),
        (
            "tools.toml",
            "policy = 'rysh'\ntoolz = 3",
            "tools.toml: The file has no key 'toolz'. Did you mean 'tools'",
        ),
    ],
)
def test_bad_policy_files(name: str, text: str | None, said: str) -> None:
    """What is wrong with a file is said with its name."""
    Path("folder.toml").mkdir()
    if text is not None:
        write(text, name)
    with pytest.raises(PolicyError, match=said):
        policy_of(name)


FULL = """
mode = "observe"
outside_run = "ignore"
store = "memory://"
[policy]
window = 60
rules.repeat = { warn_after = 4 }
[limits]
calls = 200
[telemetry]
events = "both"
annotate_parent = false
event_prefix = "acme."
capture = "key"
[tools.Bash]
kind = "shell"
primary = "command"
"""


@pytest.mark.parametrize("name", ["loopguard.toml", "pyproject.toml"])
def test_file(name: str) -> None:
    """Every table of a settings file is taken, from either file."""
    text = FULL
    if name == "pyproject.toml":
        text = "[tool.loopguard]" + FULL.replace("\n[", "\n[tool.loopguard.")
    write(text, name)
    now = settings()

    assert now.policy == Policy(Repeat(warn_after=4), window=60)
    assert (now.mode, now.outside_run, now.store) == ("observe", "ignore", "memory://")
    assert now.limits == Limits(calls=200)
    assert now.telemetry == Telemetry(events="both", annotate_parent=False, event_prefix="acme.", capture="key")
    assert now.tools["Bash"].primary == ("command",)


def test_own_file_comes_before_pyproject() -> None:
    """Where loopguard.toml is, pyproject.toml is not looked at."""
    write("mode = 'off'")
    write("[tool.loopguard]\nmode = 'observe'", "pyproject.toml")

    assert settings().mode == "off"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[project]\nname = 'x'",
        "[tool.ruff]\nsrc = ['loopguard']",
        "loopguard = 1",
        "tool = 1\n# loopguard",
        "# loopguard\n= broken",
    ],
)
def test_pyproject_of_others(text: str) -> None:
    """A pyproject.toml that does not speak of loopguard, or is broken elsewhere, says nothing."""
    write(text, "pyproject.toml")

    assert settings() == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mod = 'off'", r"loopguard.toml: The file has no key 'mod'. Did you mean 'mode'\?"),
        ("mode = 'of'", "loopguard.toml: mode='of' is not one of"),
        ("outside_run = 1", "loopguard.toml: outside_run=1 is not one of"),
        ("store = 1", "loopguard.toml: store=1 is not known"),
        ("store = 'redis://me:secret@host'", "loopguard.toml: store='redis://…' is not known. This version keeps"),
        ("limits = 3", "loopguard.toml: limits=3 is not a Limits"),
        ("telemetry = 3", "loopguard.toml: telemetry=3 is not a Telemetry"),
        ("[telemetry]\nredact = 'x'", "telemetry cannot hold 'redact': it is an object"),
        ("[telemetry]\nspans = 'alway'", r"telemetry.spans='alway' is not one of .*Did you mean 'always'\?"),
        ("[telemetry]\ncapture = 'keys'", r"telemetry.capture='keys' is not one of .*Did you mean 'key'\?"),
        ("tools = 3", "loopguard.toml: tools=3 is not a table"),
        ("policy = 3", "loopguard.toml: policy=3 is not a table"),
        ("policy = 'loopctll'", "loopguard.toml: 'loopctll' is not a preset"),
        ("policy = 'loopguard.toml'", "names itself as its policy"),
        ("[policy]\nwindw = 3", r"loopguard.toml: policy has no key 'windw'. Did you mean 'window'\?"),
        ("[tools.Bash]\nprimry = 'x'", "loopguard.toml: .*primry.*Did you mean 'primary'"),
        ("= 3", "loopguard.toml: this is not TOML"),
    ],
)
def test_bad_files(text: str, said: str) -> None:
    """What is wrong is said with the file, the key and the nearest known name."""
    write(text)
    with pytest.raises(PolicyError, match=said):
        settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.loopguard]\nmod = 'off'", "pyproject.toml: tool.loopguard has no key 'mod'"),
        ("[tool.loopguard.policy]\nwindw = 3", "pyproject.toml: tool.loopguard.policy has no key 'windw'"),
        ("[tool.loopguard]\nx = ", "pyproject.toml: this is not TOML"),
        ("[tool]\nloopguard = 3", "pyproject.toml: tool.loopguard=3 is not a table"),
    ],
)
def test_bad_pyproject(text: str, said: str) -> None:
    """The same in pyproject.toml, with the full name of the table."""
    write(text, "pyproject.toml")
    with pytest.raises(PolicyError, match=said):
        settings()


def test_file_with_no_text() -> None:
    """A file that is no UTF-8 is said to be no TOML."""
    Path("loopguard.toml").write_bytes(b"mode = '\xff'")
    with pytest.raises(PolicyError, match=r"loopguard\.toml: this is not TOML"):
        settings()


def test_file_names_a_policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy file is looked for beside the settings file, and its errors name it alone."""
    write("policy = 'strict.toml'")
    write("window = 90", "strict.toml")
    assert settings().policy.window == 90

    config.reset()
    write("windw = 90 # longer", "strict.toml")
    with pytest.raises(PolicyError, match=r"^[^:]*strict.toml: policy has no key 'windw'"):
        settings()


def test_file_is_read_once_per_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change shows after reset; another working directory has its own file."""
    write("mode = 'off'")
    assert settings().mode == "off"
    write("mode = 'observe'")
    configure(store=None)
    assert settings().mode == "off"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    assert settings().mode is None
    monkeypatch.chdir(tmp_path)
    assert settings().mode == "off"
    config.reset()
    assert settings().mode == "observe"


def test_file_with_an_error_can_be_mended() -> None:
    """A file that could not be meant is read again."""
    write("mod = 'off'")
    with pytest.raises(PolicyError):
        settings()
    write("mode = 'off'")
    assert settings().mode == "off"


def test_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that walks through folders does not fill its memory."""
    for number in range(105):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        settings()

    assert len(config._config.files) <= 100


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory cannot be deleted there")
def test_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that is gone has no settings file."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    (tmp_path / "gone").rmdir()

    assert settings() == Settings()


def test_policy_through_two_files() -> None:
    """A policy file may name another; a change of that one is seen too."""
    write("policy = 'inner.toml'", "outer.toml")
    write("window = 90", "inner.toml")
    assert policy_of("outer.toml").window == 90
    write("window = 100", "inner.toml")
    assert policy_of("outer.toml").window == 100


def test_unreadable_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyproject.toml that cannot be opened says nothing."""
    path = write("[tool.loopguard]\nmode = 'off'", "pyproject.toml")

    def denied(*args: object, **keywords: object) -> str:
        raise PermissionError

    monkeypatch.setattr(type(path), "read_text", denied)

    assert settings() == Settings()
