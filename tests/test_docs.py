"""README, docs and docstrings are executed, and what they claim to print is compared with what is printed.

The blocks of one page run from top to bottom and share their names, as they do for a reader who follows the page.
The words after the opening fence decide what happens:

- `python`: executed; `await` at the top is allowed.
- `text title="Output"`: what the block above prints, log lines of loopguard and the last line of an error included.
- `python title="test_....py"`: written to a file of that name; pytest has to pass the files of a page together.
- `toml title="loopguard.toml"`: a settings file in whose folder loopguard has to start without complaint.
- `<!--- skip: next --->` above a block: not executed (it needs a server), but it has to compile.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import io
import logging
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil import Example
from sybil.document import Document, PythonDocStringDocument
from sybil.parsers.markdown import ClearNamespaceParser, CodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

import loopguard
from loopguard import wording
from loopguard.options import CHECKS, DEFAULT_IGNORED
from loopguard.rules import RULES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    path
    for path in Path(loopguard.__file__).parent.rglob("*.py")
    if not path.stem.startswith("_") or path.stem == "__init__"  # an underscore: not for users
)
OUTPUT = 'text title="Output"'
KNOWN_INFO = re.compile(
    r'(python( title="test_\w+\.py")?|text( title="Output")?|toml( title="loopguard\.toml")?|bash|yaml|promql|)'
)


def name_of(path: Path) -> str:
    """A short test id: the path below the repository or the package."""
    base = ROOT if path.is_relative_to(ROOT) else Path(loopguard.__file__).parents[1]
    return path.relative_to(base).as_posix()


class Printed:
    """What the last executed block printed; an error that no output block mentions is raised."""

    def __init__(self) -> None:
        self.text = ""
        self.error: BaseException | None = None

    def run(self, example: Example) -> None:
        """Execute a `python` block and keep its output."""
        self.settle()
        source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, example.path, "exec", flags=flags, dont_inherit=True)
        buffer = io.StringIO()
        example.namespace.setdefault("__name__", "docs")
        try:
            with contextlib.redirect_stdout(buffer), log_lines_into(buffer):
                if code.co_flags & inspect.CO_COROUTINE:
                    asyncio.run(eval(code, example.namespace))
                else:
                    exec(code, example.namespace)
        except Exception as error:
            self.error = error
            buffer.write(last_line(error))
        self.text = buffer.getvalue()

    def compare(self, example: Example) -> None:
        """Compare an output block with what was printed."""
        self.error = None

        assert str(example.parsed).rstrip() == self.text.rstrip()

    def settle(self) -> None:
        """Raise the error of the last block if no output block has shown it."""
        error, self.error = self.error, None
        if error is not None:
            raise error


@contextlib.contextmanager
def log_lines_into(buffer: io.StringIO) -> Iterator[None]:
    """Write warnings of the logger "loopguard" to the buffer as a program without logging set-up shows them."""
    handler = logging.StreamHandler(buffer)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("loopguard")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def last_line(error: BaseException) -> str:
    """The line of a traceback that names the error, without the notes below it."""
    return next(iter(traceback.TracebackException.from_exception(error).format_exception_only())).rstrip("\n")


def write_test_file(name: str, example: Example) -> None:
    """Write the block to the test file that its title names."""
    Path(name).write_text(str(example.parsed), encoding="utf-8")


def run_test_files() -> None:
    """Let pytest pass the test files of a page, all of them in one process."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=60,
        env=importable(os.environ),
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def run_with_settings(example: Example) -> None:
    """Start a guarded run in a folder with the block as its settings file."""
    Path("loopguard.toml").write_text(str(example.parsed), encoding="utf-8")
    program = "import loopguard\nwith loopguard.guarded_run('x') as run: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=60,
        env=importable(os.environ),
    )  # fmt: skip
    Path("loopguard.toml").unlink()

    assert (done.returncode, done.stderr) == (0, "")


def importable(environment: os._Environ[str]) -> dict[str, str]:
    """The environment, with the tested loopguard found from any folder and no settings of the developer."""
    kept = {name: value for name, value in environment.items() if not name.startswith("LOOPGUARD_")}
    return kept | {"PYTHONPATH": str(Path(loopguard.__file__).parents[1])}


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks read and write files in a folder of their own and see no loopguard variable of the developer."""
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("loopguard")
    level = logger.level
    yield
    logger.setLevel(level)  # a page may have made it quiet


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page(page: Path, in_empty_folder: None) -> None:
    """Each block of a page runs, in order, and prints what the page says."""
    printed = Printed()
    files = sorted(
        set(re.findall(r'^```python title="(test_\w+\.py)"$', page.read_text(encoding="utf-8"), re.MULTILINE))
    )
    document = Document.parse(
        str(page),
        CodeBlockParser("python", printed.run),
        CodeBlockParser(OUTPUT, printed.compare),
        CodeBlockParser('toml title="loopguard.toml"', run_with_settings),
        *(CodeBlockParser(f'python title="{name}"', functools.partial(write_test_file, name)) for name in files),
        ClearNamespaceParser(),
        SkipParser(),
    )
    for example in document.examples():
        with contextlib.suppress(pytest.skip.Exception):
            example.evaluate()
    printed.settle()
    if files:
        run_test_files()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_known(page: Path) -> None:
    """Each fenced block says what it is in words this file acts on, and each Python block compiles."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

    for info, source in blocks:
        assert KNOWN_INFO.fullmatch(info), info
        if info.startswith("python"):
            compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_docstrings(module: Path, in_empty_folder: None) -> None:
    """Each example in a docstring of a public module runs, written with prompts or as a fenced block."""
    printed = Printed()
    document = PythonDocStringDocument.parse(
        str(module),
        CodeBlockParser("python", printed.run),
        CodeBlockParser(OUTPUT, printed.compare),
        DocTestParser(),
        SkipParser(),
    )
    for example in document.examples():
        with contextlib.suppress(pytest.skip.Exception):
            example.evaluate()
    printed.settle()


@pytest.mark.parametrize("name", loopguard.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    """Each public name has an entry in the reference; errors have theirs together."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    entry = f"::: loopguard.{name}\n"
    thing = getattr(loopguard, name)

    assert entry in pages or (isinstance(thing, type) and issubclass(thing, loopguard.LoopguardError))


def test_options_of_a_tool_are_in_the_reference() -> None:
    """Each option of a tool has a row in the table of the API page, and each that a text can say one in the other."""
    tables = {}
    for page, title in (("api", "Options of a tool"), ("configuration", "Tools by name")):
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
        section = re.split(rf"^##+ {title}$", text, flags=re.MULTILINE)[1].partition("\n## ")[0]
        cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
        tables[page] = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}

    assert tables["api"] == set(CHECKS)
    assert tables["configuration"] == set(CHECKS) - {"normalise", "running", "control_flow", "rules", "on_stop"}


def test_ignored_arguments_are_in_the_how_to() -> None:
    """The page names every argument that is ignored where nothing is declared."""
    text = (ROOT / "docs" / "howto" / "tools.md").read_text(encoding="utf-8")
    sentence = re.search(r"^Arguments named (.*) are ignored where", text, re.MULTILINE)

    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[1])) == DEFAULT_IGNORED


def test_rungs_of_the_rules_page() -> None:
    """The numbers on the page of rules are the defaults."""
    text = (ROOT / "docs" / "rules" / "index.md").read_text(encoding="utf-8")
    for rule in (loopguard.Repeat(), loopguard.Failing(), loopguard.Poll(), loopguard.SameCall()):
        rungs = " / ".join(str(rung or "–") for rung in (rule.warn_after, rule.refuse_after, rule.stop_after))
        assert re.search(rf"\({rule.name}\.md\) \|[^|]*\| {rungs}[ ,]", text), rungs


def test_one_address_of_the_docs() -> None:
    """Site, project and notes below a traceback name the same place, and the page of each rule is there."""
    site = re.search(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert site is not None
    assert site[1].rstrip("/") == project["urls"]["Documentation"].rstrip("/") == wording.DOCS.removesuffix("/rules")
    for name in {rule.name for rule in RULES} | {loopguard.Limits.name}:
        assert (ROOT / "docs" / "rules" / f"{name}.md").is_file(), name


def fenced(info: str) -> list[str]:
    """The blocks of the README with this opening."""
    pattern = rf"^```{re.escape(info)}\n(.*?)^```$"
    return re.findall(pattern, README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_quick_start_as_a_program(in_empty_folder: None) -> None:
    """Saved to a file and run, the README's first block prints the README's first output and ends in the error."""
    Path("quick_start.py").write_text(fenced("python")[0], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "quick_start.py"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=60,
        env=importable(os.environ),
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if re.match(r"loopguard(\.\w+)?: \w+ ", line)]
    said = [line for line in said if not line.startswith("loopguard: rule ")]  # the note below the traceback

    assert said == fenced(OUTPUT)[0].splitlines()
    assert (done.returncode, done.stdout) == (1, "")


def test_quick_start_is_short() -> None:
    """The README's first block has at most 15 lines."""
    assert len(fenced("python")[0].splitlines()) <= 15


def test_demo_output() -> None:
    """What the README shows of the demo is what `python -m loopguard` prints, the time and the folder excepted."""
    done = subprocess.run(
        [sys.executable, "-m", "loopguard", "demo", "--plain"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=60,
        env={k: v for k, v in importable(os.environ).items() if not k.startswith("OTEL_")} | {"PYTHONUTF8": "1"},
    )  # fmt: skip
    seconds = re.compile(r"\d+\.\d+ s\b")
    shown, printed = (seconds.sub("N s", text).rstrip() for text in (fenced("text")[0], done.stdout))

    assert done.returncode == 0, done.stderr
    assert textwrap.dedent(shown) == printed


def test_setup_is_two_commands() -> None:
    """The README names one command that shows the demo and one that passes the tests; CI runs the second."""
    text = README.read_text(encoding="utf-8")

    assert re.search(r"^python -m pip install \. && python -m loopguard( +#.*)?$", text, re.MULTILINE)
    assert re.search(r"^python -m pip install -e '\.\[test\]' && python -m pytest( +#.*)?$", text, re.MULTILINE)
