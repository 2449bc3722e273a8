"""The demo: four agents with scripts for models, guarded by the library as everybody uses it.

Nothing that it prints is written down in advance: numbers, refusals and sentences are read from the runs.
With other settings (``LOOPGUARD_WARN_AFTER=2``, a settings file) it shows what those do.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from loopguard.cli.sending import Sender, sender
from loopguard.errors import PolicyError, RunStopped, ToolCallRefused
from loopguard.records import Action
from loopguard.run import Run
from loopguard.scope import guarded_run
from loopguard.tool import guarded_tool
from loopguard.version import VERSION

WIDTH: Final = 100
#: Where nothing ends a loop (``LOOPGUARD_MODE=observe``), the demo does.
MOST_ATTEMPTS: Final = 60
#: Signs for terminals that have no others.
ASCII: Final = {"·": "-", "×": "x", "✓": "ok:", "⚠": "!", "✋": "x", "…": "...", "–": "-"}


# -- the tools -------------------------------------------------------------------------------------------------------


@guarded_tool(name="edit", edits="path")
def edit(path: str, text: str) -> str:
    """Changes a file."""
    return "applied"


@guarded_tool(name="pytest", ignored="failures")
def run_tests(failures: list[int]) -> str:
    """Runs tests, of which fewer fail after some edits. The argument stands for the code; it is no part of the call."""
    left = failures.pop(0)
    return f"{left} failed" if left else "all passed"


@guarded_tool(name="search", primary="query")
def search(query: str) -> str:
    """Never finds anything."""
    return "no results"


@guarded_tool(name="read_page", reads="path")
def read_page(path: str) -> str:
    """Says the same each time."""
    return "see the price list of 2019"


@guarded_tool(name="ask_user")
def ask_user(question: str) -> str:
    """A person answers."""
    return "2021"


# -- the agents ------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """An attempt: what was asked for, what came of it, and what the model was told beside it."""

    asked: str
    outcome: str
    refused: bool = False
    nudge: str = ""


@dataclass
class Scene:
    """One agent, and what came of it."""

    title: str
    run: Run
    #: Calls that make a lap, where the agent goes round in one.
    lap: int = 0
    steps: list[Step] = field(default_factory=list)
    stopped: bool = False

    def take(self, asked: str, call: Callable[[], str]) -> bool:
        """Let the agent make a call. False if it was not executed."""
        outcome, refused = "", False
        try:
            outcome = call()
        except ToolCallRefused:
            outcome, refused = "✋ refused", True
        except RunStopped:
            outcome, refused, self.stopped = "run over", True, True
        nudge = " ".join(nudge.text.removeprefix("Note: ") for nudge in self.run.pop_nudges())
        self.steps.append(Step(asked, outcome, refused, nudge))
        return not refused

    @property
    def verdict(self) -> str:
        """What the guard did, in a few words."""
        actions = {finding.action for finding in self.run.findings}
        said = [word for action, word in _WORDS.items() if action in actions]
        if self.run.mode == "off":
            return "loopguard is off"
        if self.run.mode == "observe":
            return f"only watching: would have {', '.join(said)}" if said else "only watching: nothing to say"
        if self.lap and not self.stopped and said:
            first = {finding.action: finding.seqs[-1] for finding in reversed(self.run.findings)}
            return ", ".join(f"{_WORDS[action]} at lap {-(-first[action] // self.lap)}" for action in reversed(first))
        if self.stopped:
            return f"stopped at the {_ordinal(len(self.steps))} attempt"
        return ", ".join([*said, "went on"]) if said else "nothing to say"


_WORDS: Final = {Action.WARN: "warned", Action.REFUSE: "refused", Action.STOP: "stopped"}


@contextmanager
def _scene(title: str, name: str, to: Sender, lap: int = 0) -> Iterator[Scene]:
    with to.trace(name), guarded_run("demo", agent=name, on_stop="end") as run:
        yield Scene(title, run, lap)


def healthy(to: Sender) -> Scene:
    """Edits and tests in turn: one result comes three times, but each time something was changed in between."""
    failures = [3, 1, 1, 1, 0]
    with _scene("healthy: edit, test, edit, test", "coder", to) as scene:
        for attempt in range(len(failures)):
            scene.take("edit a.py", lambda text=f"attempt {attempt}": edit("a.py", text))  # type: ignore[misc]
            scene.take("pytest", lambda: run_tests(failures))
    return scene


def listening(to: Sender) -> Scene:
    """Searches for the same until it is refused, then asks somebody who knows."""
    with _scene("a loop that listens", "listener", to) as scene:
        while scene.take('search "refund 2019"', lambda: search("refund 2019")):
            if len(scene.steps) >= MOST_ATTEMPTS:
                return scene
        if not scene.stopped:
            scene.take('ask_user "which year?"', lambda: ask_user("which year?"))
    return scene


def stubborn(to: Sender) -> Scene:
    """Searches for the same whatever it is told."""
    with _scene("a loop that does not", "stubborn", to) as scene:
        while not scene.stopped and len(scene.steps) < MOST_ATTEMPTS:
            scene.take('search "refund 2019"', lambda: search("refund 2019"))
    return scene


def alternating(to: Sender) -> Scene:
    """Goes to and fro between two calls, neither of which says anything new, until one of them is refused."""
    with _scene("A-B-A-B", "alternating", to, lap=2) as scene:
        while scene.take('search "price list"', lambda: search("price list")):
            if not scene.take("read_page prices", lambda: read_page("prices")) or len(scene.steps) >= MOST_ATTEMPTS:
                break
    return scene


# -- what is printed -------------------------------------------------------------------------------------------------

#: Pieces of a line, each with the name of a style (of rich, where it is used).
Line = list[tuple[str, str]]


def _title(number: int, scene: Scene) -> Line:
    colour = "red" if scene.stopped else "yellow" if scene.run.findings else "green"
    return [(f" {number}  ", "dim"), (f"{scene.title:<64}", "bold"), (scene.verdict, colour)]


def _steps(scene: Scene, most: int | None = None) -> Iterator[Line]:
    """The attempts, equal ones together, as many on a line as fit; a nudge has a line of its own."""
    line: Line = []
    number = 0
    known = ""
    for (asked, outcome, refused), group in groupby(scene.steps[:most], key=lambda step: step[:3]):
        for steps in _until_nudge(list(group)):
            first, number = number + 1, number + len(steps)
            calls = f"#{first}" if first == number else f"#{first}-#{number}"
            times = f" ×{len(steps)}" if len(steps) > 1 else ""
            # A refused call is the one before it.
            text = f"{calls} {outcome}{times}" if refused and asked == known else f"{calls} {asked}  {outcome}{times}"
            known = asked
            if line and sum(len(piece) for piece, _ in line) + len(text) > WIDTH - 4:
                yield line
                line = []
            line.append((f"{'    ' if line else ''}{text}", "red" if refused else ""))
            if steps[-1].nudge:
                yield line
                yield [(f"⚠ nudge: {steps[-1].nudge}", "yellow")]
                line = []
    if line:
        yield line


def _until_nudge(steps: list[Step]) -> Iterator[list[Step]]:
    part: list[Step] = []
    for step in steps:
        part.append(step)
        if step.nudge:
            yield part
            part = []
    if part:
        yield part


def _page(scenes: list[Scene], took: float, to: Sender, notes: list[str]) -> Iterator[Line]:
    good, listener, deaf, to_and_fro = scenes
    version = ".".join(VERSION.split(".")[:2])
    yield [(f"loopguard {version}", "bold"), (f" · demo · no key, no network · {took:.2f} s", "dim")]
    yield []
    yield _title(1, good)
    *lines, last = _steps(good, 4)
    for line in lines:
        yield [("    ", ""), *line]
    yield [("    ", ""), *last, ("    …", "")]
    end = good.steps[-1]
    yield [("    ", ""), (f"#{len(good.steps)} {end.asked}  {end.outcome}", "red" if end.refused else "")]
    refused = sum(step.refused for step in good.steps)
    yield [("    ", ""), (f"✓ {len(good.steps) - refused} calls, {refused} refused", "green")]
    yield []
    yield _title(2, listener)
    for line in _steps(listener):
        yield [("    ", ""), *line]
    if listener.run.stats.heeded:
        refusals = sum(step.refused for step in listener.steps)
        yield [("    ", ""), (f"✓ heeded after {refusals} refusal{'s' if refusals != 1 else ''}", "green")]
    yield []
    yield _title(3, deaf)
    yield _sums(deaf, "run over" if deaf.stopped else "nothing ended it, so the demo did")
    yield [("    ", ""), ("Without loopguard: the framework's limit, e.g. LangChain 4,999 calls", "dim")]
    yield []
    yield _title(4, to_and_fro)
    refused = any(step.refused for step in to_and_fro.steps)
    yield _sums(to_and_fro, "the agent answers" if refused else "nothing ended it, so the demo did")
    yield []
    for note in notes:
        yield [(" note      ", "dim"), (note, "yellow")]
    for name, text in to.report:
        yield [(f" {name:<10}", "dim"), (text, "")]
    yield [
        (" next      ", "dim"),
        ('guard yours: @guarded_tool + with guarded_run("name"):   docs/tutorial.md', ""),
    ]
    yield [(" " * 11, ""), ("check them:  loopguard doctor my_agent.tools:TOOLS", "")]


def _sums(scene: Scene, end: str) -> Line:
    refused = sum(step.refused for step in scene.steps)
    return [
        ("    ", ""),
        (f"{len(scene.steps) - refused} executed · {refused - scene.stopped} refused · {end}", ""),
    ]


def _ordinal(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def _print(lines: Iterator[Line], plain: bool) -> None:
    if not plain and _colours():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            console = Console(highlight=False)
            for line in lines:
                console.print(Text.assemble(*line), soft_wrap=True)
            return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        print(_encodable("".join(piece for piece, _ in line), encoding))


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _encodable(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = "".join(ASCII.get(sign, sign) for sign in text).encode(encoding, "replace").decode(encoding)
    return text


# -- the command -----------------------------------------------------------------------------------------------------


@contextmanager
def _log_lines() -> Iterator[list[str]]:
    """Keep the log of loopguard off the screen. Gives its lines, without those that repeat a finding."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not hasattr(record, "loopguard_rule"):
                lines.append(record.getMessage().removeprefix("loopguard: "))

    logger = logging.getLogger("loopguard")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [Keep()], False
    try:
        yield lines
    finally:
        logger.handlers, logger.propagate = before


def run(plain: bool) -> int:
    """Play the demo and print it.

    Args:
        plain: Plain text, also where rich is installed.

    Returns:
        The exit code: 0, or 2 where the settings file cannot be used.
    """
    try:
        with _log_lines() as notes:
            start = time.perf_counter()
            with sender() as to:
                scenes = [healthy(to), listening(to), stubborn(to), alternating(to)]
                took = time.perf_counter() - start
    except PolicyError as error:
        print(f"loopguard: {error}", file=sys.stderr)
        return 2
    _print(_page(scenes, took, to, notes), plain)
    return 0
