"""When two calls are the same call, and two results the same result."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from itertools import combinations, count
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import BaseModel

from loopguard import Ignored, LoopRefused, guarded_run, guarded_tool

# -- helpers ----------------------------------------------------------------------------------------------------------


def same_call(*values: Any) -> list[bool]:
    """For each value after the first: is ``f(value)`` the same call as ``f(first)``?"""

    @guarded_tool
    def f(x: Any) -> str:
        return "same"

    keys = []
    with guarded_run("r") as run:
        for value in values:
            f(value)
            keys.append(run.engine.operations()[-1].key)
    return [one == keys[0] for one in keys[1:]]


def same_result(*values: Any) -> list[bool]:
    """For each value after the first: is it the same result as the first?"""
    given = iter(values)

    @guarded_tool
    def f() -> Any:
        return next(given)

    with guarded_run("r") as run:
        for _ in values:
            f()
        outcomes = [operation.outcome for operation in run.engine.operations()]
    return [bool(one) and one == outcomes[0] for one in outcomes[1:]]


def executed_of(call: Callable[[], Any], times: int = 8) -> int:
    """How many of so many equal calls are executed before the first refusal."""
    for n in range(times):
        try:
            call()
        except LoopRefused:
            return n
    return times


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-number-and-bool-forms")
@pytest.mark.parametrize("same", [same_call, same_result])
@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 1.0), (0.0, -0.0), (0, -0.0), (10**30, 1e30), (2**53, float(2**53)), (-3, -3.0), (10**16, 1e16)],
    ids=repr,
)
def test_equal_numbers_are_one_value(same: Callable[..., list[bool]], first: Any, second: Any) -> None:
    """An integral float is its int, and -0.0 is 0, as documented; numbers of any size are fine."""
    expected = int(first) == int(second)
    assert same(first, second) == [expected]


@pytest.mark.scenario("ins-number-and-bool-forms")
@pytest.mark.parametrize("same", [same_call, same_result])
@pytest.mark.parametrize(
    ("first", "second"),
    list(combinations([1, True, "1", b"1", Decimal(1), 1.5, 10**30, "1.0", 1 + 0j, None, Fraction(1)], 2)),
    ids=repr,
)
def test_other_forms_of_one_are_other_values(same: Callable[..., list[bool]], first: Any, second: Any) -> None:
    """True, text, bytes, Decimal and complex are not the number 1, nor one another."""
    assert same(first, second) == [False]
    assert same(first, first) == [True]


@pytest.mark.scenario("ins-number-and-bool-forms")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 10**400, -(2**70), 5e-324, 1.7e308])
def test_numbers_at_the_edge(value: Any) -> None:
    """NaN, the infinities and numbers of any size have a form of their own and never overflow."""
    assert same_call(value, value, None, 0, "nan") == [True, False, False, False]
    assert same_result(value, value, 0) == [True, False]


@pytest.mark.scenario("ins-number-and-bool-forms")
def test_a_bool_inside_a_structure_is_no_number() -> None:
    """The same rules hold inside containers, keys included."""
    assert same_call([1], [1.0], [True], ["1"]) == [True, False, False]
    assert same_call({1: "a"}, {"1": "a"}, {True: "a"}) == [False, False]
    assert same_call({"a": 1, "b": 2}, {"b": 2.0, "a": 1}) == [True]


# -- values of any type -----------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    ONE = 1


class Word(StrEnum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


class Pair(NamedTuple):
    x: int
    y: int


class Model(BaseModel):
    x: int
    y: int = 2


ZERO = uuid.UUID(int=0)
#: For each type a way to make a value, and to make another one.
VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "bytes": (lambda: b"ab", lambda: b"ac"),
    "datetime": (lambda: datetime(2026, 1, 2, 3, tzinfo=UTC), lambda: datetime(2026, 1, 2, 4, tzinfo=UTC)),
    "naive datetime": (lambda: datetime(2026, 1, 2), lambda: datetime(2026, 1, 3)),  # noqa: DTZ001
    "date": (lambda: date(2026, 1, 2), lambda: date(2026, 1, 3)),
    "time": (lambda: time(1), lambda: time(2)),
    "timedelta": (lambda: timedelta(1), lambda: timedelta(2)),
    "Decimal": (lambda: Decimal("1.50"), lambda: Decimal("1.51")),
    "Fraction": (lambda: Fraction(1, 2), lambda: Fraction(1, 3)),
    "complex": (lambda: 1 + 2j, lambda: 1 + 3j),
    "Path": (lambda: Path("a/b"), lambda: Path("a/c")),
    "UUID": (lambda: uuid.UUID(int=1), lambda: ZERO),
    "Enum": (lambda: Colour.RED, lambda: Level.ONE),
    "StrEnum": (lambda: Word.RED, lambda: "red"),
    "set": (lambda: {"a", "b", "c"}, lambda: {"a", "b"}),
    "frozenset": (lambda: frozenset("xyz"), lambda: frozenset("xy")),
    "range": (lambda: range(3), lambda: range(4)),
    "dataclass": (lambda: Point(1, 2), lambda: Point(2, 1)),
    "NamedTuple": (lambda: Pair(1, 2), lambda: Pair(2, 1)),
    "pydantic": (lambda: Model(x=1), lambda: Model(x=1, y=3)),
    "memoryview": (lambda: memoryview(b"abc"), lambda: memoryview(b"abd")),
    "bytearray": (lambda: bytearray(b"abc!"), lambda: bytearray(b"abd!")),
    "surrogate": (lambda: "a\ud800", lambda: "a\ud801"),
    "nested": (lambda: {"a": [Point(1, 2), {"b": {1, 2}}]}, lambda: {"a": [Point(1, 2), {"b": {1, 3}}]}),
}


@pytest.mark.scenario("ins-any-type-arguments")
@pytest.mark.parametrize("name", VALUES)
def test_values_of_any_type(name: str) -> None:
    """As argument and as result: equal values are equal, different ones are not, whatever the type."""
    value, other = VALUES[name]
    assert same_call(value(), value(), other()) == [True, False]
    assert same_result(value(), value(), other()) == [True, False]


@pytest.mark.scenario("ins-any-type-arguments")
def test_values_of_different_types_differ() -> None:
    """No value of one type passes for a value of another."""
    made = [value() for value, _ in VALUES.values()] + [
        "a/b",
        str(uuid.UUID(int=1)),
        "2026-01-02",
        1,
        "ab",
        None,
    ]
    for first, second in combinations(made, 2):
        assert same_call(first, second) == [False], (first, second)


@pytest.mark.scenario("ins-any-type-arguments")
def test_paths_differ_from_their_text() -> None:
    """A path is not its text; equal paths of the same flavour are equal."""
    assert same_call(PurePosixPath("a/b"), "a/b", PurePosixPath("a//b")) == [False, True]


class Hostile:
    """Everything that looks at it fails."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("getattr")

    def __len__(self) -> int:
        raise RuntimeError("len")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


ODD: dict[str, Callable[[], Any]] = {
    "lambda": lambda: lambda: None,
    "object": object,
    "hostile": Hostile,
    "cycle": _cycle,
    "deep": _deep,
    "generator": lambda: (n for n in range(3)),
    "class": lambda: Point,
    "module": lambda: socket,
    "exception": lambda: ValueError("x"),
}


@pytest.mark.scenario("ins-any-type-arguments")
@pytest.mark.parametrize("name", ODD)
def test_what_has_no_canonical_form_goes_through(name: str) -> None:
    """An odd argument breaks nothing: such calls may be warned about, and are never refused."""

    @guarded_tool
    def take(x: Any) -> str:
        return "same"

    with guarded_run("r") as run:
        for _ in range(30):
            assert take(ODD[name]()) == "same"
        assert {finding.action for finding in run.findings} <= {"warn"}


@pytest.mark.scenario("ins-any-type-arguments")
@pytest.mark.parametrize("name", [name for name in ODD if name != "exception"])
def test_a_result_without_canonical_form_equals_nothing(name: str) -> None:
    """An odd result is returned as it is and is never the same result."""
    made = ODD[name]()

    @guarded_tool
    def give() -> Any:
        return made

    with guarded_run("r") as run:
        for _ in range(30):
            assert give() is made
        assert not run.findings


@pytest.mark.scenario("ins-any-type-arguments")
def test_an_open_socket_is_left_alone() -> None:
    """A socket passes as argument and as result, untouched."""

    @guarded_tool
    def use(x: Any) -> Any:
        return x

    with socket.socket() as open_socket, guarded_run("r"):
        for _ in range(12):
            assert use(open_socket) is open_socket
        assert open_socket.fileno() >= 0


# -- arguments that the tool changes ----------------------------------------------------------------------------------


@pytest.mark.scenario("ins-argument-mutated-by-tool")
def test_arguments_are_read_before_the_call() -> None:
    """A tool that takes its arguments apart gets fresh equal ones each time: the same call each time."""

    @guarded_tool
    def consume(options: dict[str, int], items: list[int]) -> str:
        options.pop("a")
        items.append(len(items))
        return "same"

    with guarded_run("r") as run:
        assert executed_of(lambda: consume({"a": 1, "b": 2}, [1])) == 5
        assert [finding.repetitions for finding in run.findings] == [3, 5]


@pytest.mark.scenario("ins-argument-mutated-by-tool")
def test_a_shared_object_is_judged_by_its_content() -> None:
    """One list that grows from call to call makes different calls; once it stays, they are equal."""
    items: list[int] = []
    grows = True

    @guarded_tool
    def consume(items: list[int]) -> str:
        if grows:
            items.append(1)
        return "same"

    with guarded_run("r") as run:
        assert executed_of(lambda: consume(items), 12) == 12
        assert not run.findings
        grows = False
        assert executed_of(lambda: consume(items)) == 5


@pytest.mark.scenario("ins-argument-mutated-by-tool")
def test_a_result_that_is_changed_later_keeps_its_outcome() -> None:
    """The digest is of the content at the return: what the caller does with the object changes nothing."""
    shared: list[int] = [1]

    @guarded_tool
    def give() -> list[int]:
        return shared

    with guarded_run("r") as run:
        for n in range(3):
            give()
            shared.append(n)
        assert not run.findings


# -- volatile parts ---------------------------------------------------------------------------------------------------


def clock_text() -> Callable[[], str]:
    """A text with a time that changes from call to call."""
    seconds = count()
    return lambda: f"ready at 2026-01-02T03:04:{next(seconds):02d}Z"


@pytest.mark.scenario("ins-volatile-rules-per-tool")
def test_a_declared_time_does_not_count() -> None:
    """A tool that declares the time volatile repeats itself, and may be refused."""
    text = clock_text()

    @guarded_tool(volatile=[r"\d{4}-\d\d-\d\dT[\d:]+Z"])
    def status() -> str:
        return text()

    with guarded_run("r") as run:
        assert executed_of(status) == 5
        assert [finding.action for finding in run.findings] == ["warn", "refuse"]


@pytest.mark.scenario("ins-volatile-rules-per-tool")
def test_the_usual_volatile_text_can_be_declared() -> None:
    """``volatile=True`` declares times, ids and the like, so that a match which rests on them may be refused."""
    text = clock_text()

    @guarded_tool(volatile=True)
    def status() -> str:
        return text()

    with guarded_run("r") as run:
        assert executed_of(status) == 5
        assert [finding.action for finding in run.findings] == ["warn", "refuse"]


@pytest.mark.scenario("ins-volatile-rules-per-tool")
def test_a_time_that_is_the_state_counts() -> None:
    """``volatile=False`` says that the time is the answer: nothing is masked."""
    text = clock_text()

    @guarded_tool(volatile=False)
    def clock() -> str:
        return text()

    with guarded_run("r") as run:
        assert executed_of(clock, 12) == 12
        assert not run.findings


@pytest.mark.scenario("ins-volatile-rules-per-tool")
def test_an_undeclared_time_may_warn_and_never_refuses() -> None:
    """Where nothing is declared a match that rests on masking warns at most."""
    text = clock_text()

    @guarded_tool
    def status() -> str:
        return text()

    with guarded_run("r") as run:
        assert executed_of(status, 12) == 12
        assert [finding.action for finding in run.findings] == ["warn"]


@pytest.mark.scenario("ins-volatile-rules-per-tool")
def test_volatile_fields_are_taken_out_of_structures() -> None:
    """A declared field is left out of mappings at any depth, and of JSON text."""
    number = count()

    @guarded_tool(volatile=["at", "request_id"])
    def status(form: str) -> Any:
        n = next(number)
        if form == "json":
            return f'{{"state": "queued", "meta": {{"at": {n}}}}}'
        return {"state": "queued", "meta": [{"at": n, "request_id": f"r{n}"}]}

    for form in ("json", "mapping"):
        with guarded_run("r"):
            assert executed_of(lambda form=form: status(form)) == 5  # type: ignore[misc]


@pytest.mark.scenario("ins-volatile-rules-per-tool")
def test_what_one_tool_declares_holds_for_it_alone() -> None:
    """Ignored arguments and volatile parts of one tool leave another one of the same shape as it was."""
    text = clock_text()

    @guarded_tool(volatile=True)
    def lenient(path: str, nonce: Annotated[int, Ignored]) -> str:
        return text()

    @guarded_tool(volatile=False)
    def strict(path: str, nonce: int) -> str:
        return "same"

    numbers = count()
    with guarded_run("r") as run:
        for _ in range(3):
            lenient("a", next(numbers))
            strict("a", next(numbers))
        assert {finding.tool.rpartition(".")[2] for finding in run.findings} <= {"lenient"}
    with guarded_run("r"):
        assert executed_of(lambda: lenient("a", next(numbers))) == 5
