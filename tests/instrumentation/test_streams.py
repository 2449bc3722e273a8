"""Arguments and results that can be read once: the guard never touches them."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopguard import guarded_run, guarded_tool


def numbers() -> Iterator[int]:
    """Three items, once."""
    yield from (1, 2, 3)


async def async_numbers() -> AsyncIterator[int]:
    """Three items, once."""
    for n in (1, 2, 3):
        yield n


class Response:
    """Like a streaming HTTP response: what was read is gone."""

    def __init__(self, text: str = "body") -> None:
        self._left = io.StringIO(text)
        self.reads = 0

    def read(self) -> str:
        """Read what is left."""
        self.reads += 1
        return self._left.read()

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return iter(self._left)


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-iterator-argument-untouched")
@pytest.mark.parametrize("spelled", ["position", "keyword", "rest", "more"])
@pytest.mark.parametrize(
    ("make", "read"),
    [
        (numbers, list),
        (lambda: iter([1, 2, 3]), list),
        (lambda: map(int, "123"), list),
        (lambda: zip("ab", "cd", strict=True), list),
        (lambda: io.StringIO("text"), lambda file: file.read()),
        (lambda: io.BytesIO(b"text"), lambda file: file.read()),
        (Response, lambda response: response.read()),
    ],
    ids=["generator", "iterator", "map", "zip", "text-file", "bytes-file", "response"],
)
def test_all_of_an_argument_arrives(make: Callable[[], Any], read: Callable[[Any], Any], spelled: str) -> None:
    """However it is passed, the tool gets every item, and nothing was read before."""

    @guarded_tool
    def tool(source: Any = None, *rest: Any, **more: Any) -> str:
        got = source or (rest and rest[-1]) or more["also"]
        return str(read(got))

    expected = str(read(make()))
    with guarded_run("arguments"):
        one = make()
        args, kwargs = {
            "position": ((one,), {}),
            "keyword": ((), {"source": one}),
            "rest": ((None, 1, one), {}),
            "more": ((), {"also": one}),
        }[spelled]
        assert tool(*args, **kwargs) == expected


@pytest.mark.scenario("ins-iterator-argument-untouched")
def test_a_real_file_keeps_its_position(tmp_path: Path) -> None:
    """An open file arrives where it stood."""
    (tmp_path / "a.txt").write_text("first\nsecond\n", encoding="utf-8")

    @guarded_tool
    def tool(file: Any) -> str:
        return str(file.read())

    with guarded_run("file"), (tmp_path / "a.txt").open(encoding="utf-8") as file:
        file.readline()
        assert tool(file) == "second\n"


@pytest.mark.scenario("ins-iterator-argument-untouched")
@pytest.mark.asyncio
async def test_all_of_an_async_iterator_arrives() -> None:
    """Every item is there for the tool, also where it hides in a list."""

    @guarded_tool
    async def tool(sources: list[AsyncIterator[int]]) -> list[int]:
        return [item for source in sources async for item in source]

    async with guarded_run("async"):
        assert await tool([async_numbers(), async_numbers()]) == [1, 2, 3, 1, 2, 3]


@pytest.mark.scenario("ins-iterator-argument-untouched")
def test_an_iterator_stands_as_its_type(three: Any) -> None:
    """Different generators are the same argument: such evidence warns, and never refuses."""
    ran: list[int] = []

    @guarded_tool
    def tool(items: Iterable[int]) -> str:
        ran.append(sum(items))
        return "stored"

    with guarded_run("inexact", policy=three) as run:
        for n in range(6):
            tool(one for one in (n, 1))

    assert ran == [1, 2, 3, 4, 5, 6]
    assert [str(finding.action) for finding in run.findings] == ["warn"]


@pytest.mark.scenario("ins-iterator-argument-untouched")
def test_a_primary_key_tells_calls_with_iterators_apart(three: Any) -> None:
    """Where the tool declares its key, the iterator is no part of the call."""

    @guarded_tool(primary="name")
    def tool(name: str, items: Iterable[int]) -> str:
        return "stored"

    with guarded_run("key", policy=three) as run:
        for n in range(6):
            tool(str(n), iter([n]))

    assert run.findings == ()


# -- results --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-stream-result-untouched")
@pytest.mark.parametrize(
    ("make", "read", "content"),
    [
        (numbers, list, [1, 2, 3]),
        (lambda: iter("abc"), list, ["a", "b", "c"]),
        (lambda: io.StringIO("text"), lambda file: file.read(), "text"),
        (lambda: io.BytesIO(b"text"), lambda file: file.read(), b"text"),
        (Response, lambda response: response.read(), "body"),
        (lambda: {"body": Response()}, lambda result: result["body"].read(), "body"),
        (lambda: [numbers()], lambda result: list(result[0]), [1, 2, 3]),
    ],
    ids=[
        "generator",
        "iterator",
        "text-file",
        "bytes-file",
        "response",
        "response-in-dict",
        "generator-in-list",
    ],
)
def test_a_result_that_is_read_once_is_not_read(
    three: Any, make: Callable[[], Any], read: Callable[[Any], Any], content: Any
) -> None:
    """Content and position are untouched, and an unknown result is never "the same": nothing is found."""
    made: list[Any] = []

    @guarded_tool
    def tool(query: str) -> Any:
        made.append(make())
        return made[-1]

    with guarded_run("results", policy=three) as run:
        for _ in range(8):
            result = tool("x")
            assert result is made[-1]
            assert read(result) == content

    assert run.findings == ()
    assert run.max_operation_count() <= 1


@pytest.mark.scenario("ins-stream-result-untouched")
def test_a_file_result_keeps_its_position(tmp_path: Path) -> None:
    """An open file comes back open, where the tool left it."""
    (tmp_path / "a.txt").write_text("first\nsecond\n", encoding="utf-8")

    @guarded_tool
    def tool() -> Any:
        file = (tmp_path / "a.txt").open(encoding="utf-8")
        file.readline()
        return file

    with guarded_run("file"), tool() as file:
        assert not file.closed
        assert file.read() == "second\n"


@pytest.mark.scenario("ins-stream-result-untouched")
@pytest.mark.asyncio
async def test_an_async_iterator_that_is_returned_is_not_read(three: Any) -> None:
    """A coroutine that returns a stream hands it on as it is."""

    @guarded_tool
    async def tool(query: str) -> AsyncIterator[int]:
        return async_numbers()

    async with guarded_run("async", policy=three) as run:
        for _ in range(5):
            assert [item async for item in await tool("x")] == [1, 2, 3]

    assert run.findings == ()


@pytest.mark.scenario("ins-stream-result-untouched")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_streamed_items_that_are_streams_are_not_read(three: Any, asynchronous: bool) -> None:
    """A generator tool may yield files; they arrive unread, and its outcome is unknown."""
    import asyncio

    @guarded_tool
    def tool(query: str) -> Iterator[Any]:
        yield Response()

    @guarded_tool
    async def async_tool(query: str) -> AsyncIterator[Any]:
        yield Response()

    async def read() -> list[Any]:
        return [item async for item in async_tool("x")]

    with guarded_run("items", policy=three) as run:
        for _ in range(5):
            (item,) = asyncio.run(read()) if asynchronous else list(tool("x"))
            assert item.reads == 0

    assert run.findings == ()
