"""A model that plays a script, and an agent that runs it against real tools."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from loopguard import _safety
from loopguard.errors import RunStopped, ToolCallRefused
from loopguard.scope import current_run
from loopguard.tool import is_guarded


class Ask(NamedTuple):
    """A tool call as a model asks for it: the tool's name, the arguments by name, the id of the call."""

    tool: str
    args: dict[str, Any]
    id: str


Asked = Ask | tuple[str, Mapping[str, Any]] | str


class Script:
    """A model that asks for calls in a fixed order.

    It stands for a model in your own agent loop: call it with whatever your loop hands to a model, and it gives the
    next `Ask`, or None where the script is over. It can be iterated over, once.

    Args:
        *calls: ``(tool, args)`` pairs, tool names, or `Ask`.
        repeat: Begin again at the end, forever.

    ```python
    from loopguard.testing import Script

    model = Script(("read", {"path": "a.py"}), "run_tests")

    assert model("the messages so far").tool == "read"
    assert model("and the result").tool == "run_tests"
    assert model("and that one's") is None
    ```
    """

    def __init__(self, *calls: Asked, repeat: bool = False) -> None:
        if not calls:
            raise ValueError("A script needs a call: Script((tool, args), ...).")
        self._calls = calls
        self._repeat = repeat
        self._number = 0

    def __call__(self, *told: object) -> Ask | None:
        """The next call, or None; what the model is told makes no difference."""
        number = self._number
        if number >= len(self._calls) and not self._repeat:
            return None
        self._number += 1
        call = self._calls[number % len(self._calls)]
        if isinstance(call, Ask):
            return call
        tool, args = (call, {}) if isinstance(call, str) else call
        return Ask(tool, dict(args), f"call-{number + 1}")

    def __iter__(self) -> Iterator[Ask]:
        while (ask := self()) is not None:
            yield ask


def always(tool: str, /, **args: Any) -> Script:
    """A model that never learns: it asks for this one call, whatever it is told."""
    return Script((tool, args), repeat=True)


class ScriptedAgent:
    """An agent loop with a script in place of a model.

    It calls your tools, is told results, refusals and nudges, and asks on. What ends a run ends it: ``RunStopped``
    leaves `run`. Errors of tools are told to the model, as agents do.
    Tools that are not guarded themselves are guarded here, by a ``run.call``: it does not show that a decorator is
    missing. That your tools have theirs is for ``assert_guarded`` to say.

    Args:
        script: A `Script`, or calls for one.
        tools: Functions by name, or an iterable of functions.
        listens: An agent that was refused a call does not ask for it again. One with nothing else to ask for is done.
        most: After so many calls something should have ended it; ``AssertionError``.

    ```python
    from loopguard import guarded_run, guarded_tool
    from loopguard.testing import ScriptedAgent, always

    @guarded_tool
    def search(query: str) -> str:
        return "no results"

    with guarded_run("research") as run:
        ScriptedAgent(always("search", query="x"), tools=[search], listens=True).run()

    assert (run.stats.calls, run.stats.refused, run.stopped) == (5, 1, None)
    ```
    """

    def __init__(
        self,
        script: Script | Iterable[Asked],
        *,
        tools: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]],
        listens: bool = False,
        most: int = 1_000,
    ) -> None:
        self.script = script if isinstance(script, Script) else Script(*script)
        self.tools: dict[str, Callable[..., Any]] = (
            dict(tools) if isinstance(tools, Mapping) else {tool.__name__: tool for tool in tools}
        )
        self.listens = listens
        self.most = most
        #: What the model was told, in order: results, refusals, errors, nudges.
        self.told: list[object] = []
        self._heeded: list[tuple[str, dict[str, Any]]] = []

    def run(self) -> list[object]:
        """Play the script. Returns what the model was told.

        Raises:
            RunStopped: The run is over.
            AssertionError: ``most`` calls were made and nothing ended the agent.
            ScriptError: A tool is unknown, does not take these arguments, or is asynchronous; for the last there is
                `arun`.
        """
        for ask in self._asks():
            try:
                self._tell(self._call(ask))
            except (RunStopped, AssertionError, ScriptError):
                raise
            except ToolCallRefused as refused:
                self._refused(ask, refused)
            except Exception as error:  # noqa: BLE001 - an agent tells its model whatever a tool raises
                self._failed(error)
        return self.told

    async def arun(self) -> list[object]:
        """As `run`, for tools of either kind."""
        for ask in self._asks():
            try:
                self._tell(await self._acall(ask))
            except (RunStopped, AssertionError, ScriptError):
                raise
            except ToolCallRefused as refused:
                self._refused(ask, refused)
            except Exception as error:  # noqa: BLE001 - an agent tells its model whatever a tool raises
                self._failed(error)
            await asyncio.sleep(0)
        return self.told

    def _asks(self) -> Iterator[Ask]:
        made = skipped = 0
        for ask in self.script:
            if (ask.tool, ask.args) in self._heeded:
                skipped += 1
                if skipped > 100:  # an endless script of nothing but refused calls
                    return
                continue
            if made >= self.most:
                raise AssertionError(f"The agent made {made} calls and nothing ended it. Is a run open around it?")
            made, skipped = made + 1, 0
            yield ask

    def _call(self, ask: Ask) -> Any:
        tool = self._tool(ask)
        if is_guarded(tool):
            return _plain(ask, tool(**ask.args))
        with current_run().call(ask.tool, ask.args, id=ask.id) as call:
            call.result = _plain(ask, tool(**ask.args))
        return call.result

    async def _acall(self, ask: Ask) -> Any:
        tool = self._tool(ask)
        if is_guarded(tool):
            return await _awaited(tool(**ask.args))
        async with current_run().call(ask.tool, ask.args, id=ask.id) as call:
            call.result = await _awaited(tool(**ask.args))
        return call.result

    def _tool(self, ask: Ask) -> Callable[..., Any]:
        try:
            tool = self.tools[ask.tool]
        except KeyError:
            known = ", ".join(sorted(self.tools))
            raise ScriptError(f"The script asks for {ask.tool!r}; the agent has {known}.") from None
        try:
            signature = inspect.signature(tool)
        except (TypeError, ValueError):  # some built-in functions have none
            return tool
        try:
            signature.bind(**ask.args)
        except TypeError as error:
            raise ScriptError(f"The script calls {ask.tool}{signature} with other arguments: {error}.") from None
        return tool

    def _tell(self, result: object) -> None:
        self.told.append(result)
        self.told += [nudge.text for nudge in current_run().pop_nudges()]

    def _refused(self, ask: Ask, refused: ToolCallRefused) -> None:
        if self.listens:
            self._heeded.append((ask.tool, ask.args))
        self._tell(refused.for_model())

    def _failed(self, error: Exception) -> None:
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        if any(frame.f_code is _safety.report.__code__ for frame in frames):
            raise error  # raised by loopguard itself, because a test is to hear of it
        self._tell(f"{type(error).__name__}: {error}")


class ScriptError(Exception):
    """A script and its agent do not fit: an unknown tool, arguments it does not take, or an asynchronous one in ``run``."""


def _plain(ask: Ask, result: Any) -> Any:
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        raise ScriptError(f"{ask.tool} is asynchronous: use await agent.arun().")
    return list(result) if inspect.isgenerator(result) else result


async def _awaited(result: Any) -> Any:
    if inspect.isasyncgen(result):
        return [item async for item in result]
    if inspect.isawaitable(result):
        return await result
    return list(result) if inspect.isgenerator(result) else result
