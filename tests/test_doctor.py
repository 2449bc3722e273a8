"""``loopguard doctor``: what it prints, and what counts as a problem."""

from __future__ import annotations

import functools
import os
import re
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from loopguard import _clash, config
from loopguard.cli import doctor, main
from loopguard.policy import Policy
from loopguard.rules import Limits
from loopguard.telemetry.settings import Telemetry
from loopguard.tool import guarded_tool

Doctor = Callable[..., tuple[int, str]]


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


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs doctor and gives its exit code and report."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["doctor", *arguments])
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def agent_tools(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of tools, guarded and not."""
    module = types.ModuleType("agent_tools")

    @guarded_tool(kind="read")
    def search(query: str) -> str:
        return query

    @guarded_tool
    def act(what: str) -> str:
        return what

    def bare(query: str) -> str:
        return query

    def hidden() -> None: ...

    bare.__module__ = hidden.__module__ = "agent_tools"
    module.__dict__.update(
        search=search, act=act, bare=bare, _hidden=hidden, imported=functools.reduce,
        Some=type("Some", (), {}), number=3,
        MAPPING={"find": search}, LIST=[search, act], BARE=[bare], EMPTY=[], TEXT="text",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "agent_tools", module)
    return module


def test_healthy(examine: Doctor) -> None:
    """With nothing set, the report shows the defaults and no problem."""
    code, report = examine()

    assert code == 0
    assert report.startswith("loopguard ")
    assert "no other distribution installs 'loopguard'" in report
    assert "default · failing 3/5/10, cycle 3/4/6, repeat 3/5/10" in report
    assert "limits             a warning at 1,000 calls, no stop\n" in report
    assert "store              memory:// · runs are kept in this process\n" in report
    assert "no OTEL_ variable is set" in report
    assert report.endswith("\nno problems\n")


def test_settings_and_where_they_came_from(examine: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each setting is shown with the one who said it; secrets are not shown."""
    (tmp_path / "loopguard.toml").write_text("outside_run = 'ignore'\n[tools.b]\n[tools.a]\n")
    monkeypatch.setenv("LOOPGUARD_STORE", "memory://")
    monkeypatch.setenv("LOOPGUARD_KEY", "hunter3")
    monkeypatch.setenv("LOOPGUARD_MODE", "observe")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter4@host:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hunter5")
    config.configure(
        policy=Policy.rysh(),
        on_finding=print,
        limits=Limits(calls=7, refusals=2, calls_per_tool={"x": 1}),
        telemetry=Telemetry(capture="key"),
    )
    code, report = examine()
    lines = [" ".join(line.split()) for line in report.splitlines()]

    assert code == 0
    assert "hunter" not in report
    assert "policy rysh · same_call 0/2/0 · window 20 (configure())" in lines
    assert f"tools a, b ({tmp_path / 'loopguard.toml'})" in lines
    assert f"outside_run ignore ({tmp_path / 'loopguard.toml'})" in lines
    assert "store memory:// · runs are kept in this process (LOOPGUARD_STORE)" in lines
    assert "on_finding print (configure())" in lines
    assert "telemetry spans auto, events span, capture key (configure())" in lines
    assert "limits calls 7, refusals 2, calls of 1 tool, a warning at 7 calls (configure())" in lines
    assert "mode in force observe (LOOPGUARD_MODE)" in lines
    assert "fingerprints keyed (LOOPGUARD_KEY)" in lines
    assert "OTEL_EXPORTER_OTLP_ENDPOINT http://***@host:4318" in lines
    assert "OTEL_EXPORTER_OTLP_HEADERS set" in lines


def test_own_policy_without_rules(examine: Doctor) -> None:
    """A policy of the user's own is called that, and a limit that only warns likewise."""
    config.configure(policy=Policy.of(mode="off"), limits=Limits())
    report = examine()[1]

    assert "own · no rules · window 50" in report
    assert "a warning at 1,000 calls, no stop" in report


def test_problems_of_settings(
    examine: Doctor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Variables that cannot be used are problems, said in the report and not in the log as well."""
    monkeypatch.setenv("LOOPGUARD_WARN_AFTER", "nine")
    monkeypatch.setenv("LOOPGUARD_MODE", "watch")
    code, report = examine()

    assert code == 1
    assert "problem: LOOPGUARD_WARN_AFTER='nine': Not a whole number" in report
    assert "problem: LOOPGUARD_MODE='watch'" in report
    assert report.endswith("\n2 problems\n")
    assert not caplog.records


def test_a_store_that_this_version_lacks(examine: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of a shared store is a problem that says what there is, and keeps its password to itself."""
    monkeypatch.setenv("LOOPGUARD_STORE", "redis://user:hunter2@host/0")
    code, report = examine()

    assert code == 1
    assert "problem: LOOPGUARD_STORE='redis://…': This version keeps runs in the process: 'memory://'" in report
    assert "hunter" not in report


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(), "a warning at 1,000 calls, no stop"),
        (Limits(soft_calls=0), "no warning, no stop"),
        (Limits(calls=2_000), "calls 2,000, a warning at 1,800 calls"),
        (Limits(calls=10, handoff_at=0, calls_per_tool={"a": 1, "b": 2}), "calls 10, calls of 2 tools, no warning"),
    ],
)
def test_limits_in_words(examine: Doctor, limits: Limits, text: str) -> None:
    """What warns and what stops; those of a policy hold where nobody gave others."""
    config.configure(policy=Policy(limits=limits))

    assert f"limits             {text}\n" in examine()[1]


def test_needed_packages_are_those_of_the_distribution() -> None:
    """Doctor looks at every package that pyproject.toml requires."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}  # type: ignore[index]

    assert set(doctor._NEEDED) == required


def test_broken_settings_file(examine: Doctor, tmp_path: Path) -> None:
    """A settings file that cannot be meant is one problem; the rest of the report is there."""
    (tmp_path / "loopguard.toml").write_text("mod = 'off'")
    code, report = examine()

    assert code == 1
    assert "loopguard.toml: The file has no key 'mod'. Did you mean 'mode'?" in report
    assert "opentelemetry-api" in report
    assert report.endswith("\n1 problem\n")


def test_import_clash(examine: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another distribution and replaced files are problems that name the command."""
    monkeypatch.setattr(_clash, "other_owners", lambda: ["loopguard"])
    monkeypatch.setattr(_clash, "describe", lambda others: f"{others} share the folder")
    monkeypatch.setattr(_clash, "damaged_files", lambda: [f"loopguard/{name}.py" for name in "abcd"])
    code, report = examine()

    assert code == 1
    assert "problem: ['loopguard'] share the folder" in report
    assert "loopguard/a.py, loopguard/b.py, loopguard/c.py and 1 more" in report
    assert "no other distribution" not in report


def test_missing_packages(examine: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dependency that is missing is a problem, an optional package a note; an endpoint without a sender too."""

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    code, report = examine()

    assert code == 1
    assert "problem: wrapt is not installed. pip install wrapt" in report
    assert "problem: msgspec is not installed" in report
    assert "not installed   (colours in the demo: the extra 'cli')" in report
    assert "to add them: pip install 'loopguard-otel[otel,cli]' (in a clone: pip install '.[otel,cli]')" in report
    assert "nothing can send there. pip install 'loopguard-otel[otel]' (in a clone: pip install '.[otel]')" in report
    assert "this is a clone" in report


def test_tracer_provider(examine: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's type is shown if OpenTelemetry is imported, else that it is not."""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert "OpenTelemetry is not imported here" in examine()[1]

    api = types.ModuleType("opentelemetry.trace")
    api.get_tracer_provider = lambda: Telemetry()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)
    assert "tracer provider    Telemetry\n" in examine()[1]


def test_module_of_tools(examine: Doctor, agent_tools: types.ModuleType) -> None:
    """Of a module, the functions that it defines: guarded, without a kind, not guarded."""
    code, report = examine("agent_tools")

    assert code == 1
    assert "search             guarded   (read)" in report
    assert "act                guarded   (kind unknown)" in report
    assert "problem: bare is not guarded. Put @guarded_tool on it" in report
    assert 'act: say kind="read"' in report
    assert not any(f" {name} " in report.partition("tools of")[2] for name in ("_hidden", "imported", "Some", "number"))


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("agent_tools:MAPPING", 0, "find               guarded   (read)"),
        ("agent_tools:LIST", 0, "kind unknown"),
        ("agent_tools:search", 0, "(read)"),
        ("agent_tools:BARE", 1, "bare is not guarded"),
        ("agent_tools:EMPTY", 1, "there is no tool in it"),
    ],
)
def test_collections_of_tools(
    examine: Doctor, agent_tools: types.ModuleType, target: str, code: int, said: str
) -> None:
    """A mapping, a list, one function; a kind that is missing is no problem, an unguarded tool is one."""
    assert (found := examine(target))[0] == code
    assert said in found[1]


def test_a_table_for_a_decorated_tool(examine: Doctor, agent_tools: types.ModuleType) -> None:
    """It does nothing, and the report says so."""
    Path("loopguard.toml").write_text("[tools.search]\nrefuse_after = 4\n", encoding="utf-8")
    config.reset()
    code, report = examine("agent_tools")

    assert code == 1
    assert "search is decorated: its table [tools.search] does nothing." in report


def test_tools_of_the_working_directory(examine: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the user is found, and what it configures is in the report."""
    (tmp_path / "my_tools_here.py").write_text(
        "from loopguard.config import configure\nconfigure(outside_run='raise')\ndef bare(): ...\n"
    )
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    code, report = examine("my_tools_here")
    monkeypatch.delitem(sys.modules, "my_tools_here")

    assert code == 1
    assert "raise   (configure())" in report
    assert "bare is not guarded" in report


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module_here:TOOLS", "there is no module 'no_such_module_here'"),
        (":TOOLS", "there is no module ''"),
        ("agent_tools:TOLS", "'agent_tools' has no 'TOLS'"),
        ("agent_tools:number", "'int', not a mapping, list or module of tools"),
        ("agent_tools:TEXT", "'str', not a mapping, list or module of tools"),
        ("needs_more", "needs_more cannot be imported: No module named 'no_such_dependency'"),
        ("raises", "raises cannot be imported: KeyError: 'x'"),
        ("leaves", "leaves cannot be imported: SystemExit: 3"),
    ],
)
def test_tools_that_cannot_be_found(
    agent_tools: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, said: str
) -> None:
    """What cannot be found is wrong usage: exit code 2, one line, no report."""
    (tmp_path / "needs_more.py").write_text("import no_such_dependency")
    (tmp_path / "raises.py").write_text("raise KeyError('x')")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")

    assert main(["doctor", target]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("loopguard doctor: ")
    assert said in printed.err


class Toolbox:
    """Tools as methods."""

    @guarded_tool(reads="path")
    def method(self, path: str) -> str:
        """A method."""
        return path

    @guarded_tool(kind="poll")
    @classmethod
    def of_class(cls) -> str:
        """A class method, guarded outside."""
        return ""

    @classmethod
    @guarded_tool(kind="poll")
    def of_class_inside(cls) -> str:
        """A class method, guarded inside."""
        return ""

    @staticmethod
    @guarded_tool(kind="poll")
    def static(path: str) -> str:
        """A static method."""
        return path


class FrameworkTool:
    """Stands for a framework's tool object around a function."""

    def __init__(self, func: Any) -> None:
        self.name = "framed"
        self.func = func


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        (Toolbox().method, "read"),
        (Toolbox.method, "read"),
        (Toolbox.of_class, "poll"),
        (Toolbox().of_class_inside, "poll"),
        (Toolbox.static, "poll"),
        (vars(Toolbox)["static"], "poll"),
        (FrameworkTool(Toolbox.static), "poll"),
        (guarded_tool(kind="shell")(lambda command: command), "shell"),
        (guarded_tool(kind=lambda arguments: "read")(lambda command: command), "decided for each call"),
        (guarded_tool(kind={"by": "command", "*": "write"})(lambda command: command), "by command"),
        (guarded_tool(edits=lambda arguments: "a.py")(lambda command: command), "write"),
        (guarded_tool(lambda command: command), ""),
    ],
)
def test_kinds(tool: Any, kind: str) -> None:
    """Guarded tools are recognised in every shape, and their kind is put in a word or two."""
    assert doctor.kind_text(doctor.spec_of(tool)) == kind


def test_unguarded_shapes() -> None:
    """Unguarded functions, tool objects of frameworks and other things are not taken for guarded."""
    assert [doctor.spec_of(tool) for tool in (len, FrameworkTool(len), 3, Toolbox)] == [None] * 4
    assert doctor._name_of(FrameworkTool(len)) == "framed"
    assert doctor._name_of(3) == "int"
