"""The command ``loopguard``: the demo by default, exit codes, and an installation that clashes."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopguard.cli
from loopguard import _clash, config
from loopguard.cli import doctor, main


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test has an empty folder, no variables, and an installation without a clash."""
    for name in [name for name in os.environ if name.startswith(("LOOPGUARD_", "OTEL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(_clash, "other_owners", list)
    monkeypatch.setattr(_clash, "damaged_files", list)
    config.reset()
    yield
    config.reset()


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        ([], False),
        (["demo"], False),
        (["--plain"], True),
        (["demo", "--plain"], True),
        (["--plain", "demo"], True),
    ],
)
def test_demo_is_the_default(monkeypatch: pytest.MonkeyPatch, arguments: list[str], plain: bool) -> None:
    """Without a command the demo is played; --plain is taken before and after its name."""
    asked: list[bool] = []

    def run(plain: bool) -> int:
        asked.append(plain)
        return 0

    demo = types.ModuleType("loopguard.cli.demo")
    demo.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "loopguard.cli.demo", demo)
    monkeypatch.setattr(loopguard.cli, "demo", demo, raising=False)

    assert main(arguments) == 0
    assert asked == [plain]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["doctor", "--help"], 0),
        (["dokter"], 2),
        (["--quick"], 2),
        (["demo", "x"], 2),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> None:
    """Help and version are fine, wrong usage is 2, and nothing is raised."""
    assert main(arguments) == code
    said = capsys.readouterr()
    assert bool(said.err) == (code == 2)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the version of the distribution."""
    main(["--version"])

    assert capsys.readouterr().out == f"loopguard {_clash.own_version() or '(not installed)'}\n"


def test_arguments_of_the_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments given, those of the process are read."""
    monkeypatch.setattr(sys, "argv", ["loopguard", "--version"])

    assert main() == 0
    assert capsys.readouterr().out.startswith("loopguard ")


def test_clash_at_import(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An import that fails because of another distribution ends in its sentence, another one in its traceback."""

    def broken(target: object) -> int:
        raise ImportError("cannot import name 'x'", name="loopguard.config")

    monkeypatch.setattr(doctor, "run", broken)
    with pytest.raises(ImportError, match="cannot import name"):
        main(["doctor"])
    monkeypatch.setattr(_clash, "other_owners", lambda: ["loopguard"])
    monkeypatch.setattr(_clash, "describe", lambda others: f"{others} share the folder")

    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "ImportError: ['loopguard'] share the folder\n"


@pytest.mark.parametrize("arguments", [["demo", "--plain"], ["doctor"], ["--help"]])
def test_a_reader_that_has_gone(arguments: list[str]) -> None:
    """Piped into `head`, every command ends quietly, with the exit code that shells know."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "loopguard", *arguments],
        stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(loopguard.cli.__file__).parents[2]), "PYTHONUTF8": "1"},
    )  # fmt: skip
    os.close(writer)

    assert done.stderr == ""
    assert done.returncode in ({0, 141} if arguments == ["--help"] else {141})  # argparse may have met the pipe first


def test_as_a_module() -> None:
    """`python -m loopguard` is the same command, and says nothing beside the report."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    parent = str(Path(loopguard.cli.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "loopguard", "doctor"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=60,
        env=environment | {"PYTHONPATH": parent, "PYTHONUTF8": "1"},
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.endswith("no problems\n")
