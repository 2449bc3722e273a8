"""Canonical forms, digests and hashes of values."""

from __future__ import annotations

import io
import json
import math
import socket
import string
import tracemalloc
import uuid
from collections import Counter, OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import orjson
import pydantic
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard import canonical as canonical_module
from loopguard import fingerprint
from loopguard.canonical import MAX_DEPTH, class_name
from loopguard.fingerprint import (
    arguments,
    canonical,
    digest,
    keyed_hex,
    outcome_digest,
    secret_form,
    text_parts,
)
from loopguard.records import EMPTY_OUTCOME, UNKNOWN_OUTCOME

SEED = 0xFEED_FACE_CAFE_BEEF


class Colour(Enum):
    RED = 1
    PLAIN = object()


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    RED = "red"


class Text(str):
    """A subclass of str."""

    def __str__(self) -> str:
        raise RuntimeError


class Pair(NamedTuple):
    x: int
    y: int


@dataclass
class Point:
    x: int
    note: str = field(default="", compare=False)


@dataclass
class Place:
    x: int


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    x: int = 1
    hidden: str = pydantic.Field(default="h", exclude=True)


class Struct:
    """Looks like a msgspec structure."""

    __struct_fields__ = ("x",)

    def __init__(self, x: object) -> None:
        self.x = x


class Attribute(NamedTuple):
    name: str
    eq: bool


class Attrs:
    """Looks like an attrs class."""

    __attrs_attrs__ = (Attribute("x", True), Attribute("cache", False))

    def __init__(self, x: object, cache: object = None) -> None:
        self.x = x
        self.cache = cache


class Dumped:
    """Knows only how to dump itself."""

    def model_dump(self) -> dict[str, int]:
        return {"x": 1}


class Angry(type):
    """A metaclass whose classes refuse to answer for themselves."""

    def __getattribute__(cls, name: str) -> Any:
        if name in {"__class__", "__name__"}:
            return super().__getattribute__(name)
        raise RuntimeError(name)


class Hostile(metaclass=Angry):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError


class BadZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        raise RuntimeError


NOON = datetime(2031, 3, 4, 12, tzinfo=UTC)

# One value of each kind, all different from one another.
DISTINCT: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    "1",
    b"1",
    "",
    b"",
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    10**30,
    1e30,
    -(10**30),
    2**64 - 1,
    2**64,
    Decimal(1),
    Decimal("1.5"),
    Decimal(-15),
    Decimal(150),
    Decimal(0),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    Decimal("-Infinity"),
    Fraction(1, 2),
    1j,
    NOON,
    NOON.replace(tzinfo=None),
    NOON.date(),
    time(12),
    time(12, tzinfo=UTC),
    timedelta(1),
    timedelta(microseconds=1),
    uuid.UUID(int=1),
    str(uuid.UUID(int=1)),
    PurePosixPath("a"),
    PureWindowsPath("a"),
    "a",
    Colour.RED,
    Colour.PLAIN,
    Level.LOW,
    Word.RED,
    "red",
    [],
    {},
    set(),
    deque(),
    range(0),
    range(3),
    range(1, 3),
    range(0, 4, 2),
    [1],
    [True],
    ["1"],
    [[1]],
    {1},
    {"1": 1},
    {1: 1},
    {"a": None},
    {"a": math.nan},
    {"a": 1, "b": [1.5]},
    Pair(1, 2),
    Point(1),
    Place(1),
    Model(),
    Model(x=2),
    Model(hidden="other"),
    Model(more=1),
    Struct(1),
    Attrs(1),
    Dumped(),
    pydantic.SecretStr("a"),
    pydantic.SecretStr("b"),
    "\ud800",
    "\ud800\udc00",
    "\U00010000",
]

# Pairs that Python, or the documentation, calls equal.
EQUAL: list[tuple[Any, Any]] = [
    (1, 1.0),
    (0.0, -0.0),
    (10**16, 1e16),
    (int(1e30), 1e30),
    (int(1.7e308), 1.7e308),
    (math.nan, float("nan")),
    ([1, 2], (1, 2)),
    (Pair(1, 2), (1, 2)),
    (namedtuple("Other", "a b")(1, 2), [1.0, 2.0]),  # noqa: PYI024
    (b"ab", bytearray(b"ab")),
    (b"ab", memoryview(b"ab")),
    ({1, 2, 3}, frozenset((3, 2, 1))),
    ({"a": 1, "b": 2.5}, {"b": 2.5, "a": 1}),
    ({1: "x", "k": 2, b"z": 3, None: 4}, {None: 4, b"z": 3, "k": 2, 1: "x"}),
    ({"a": 1}, OrderedDict(a=1)),
    ({"a": 2}, Counter("aa")),
    ({"a": 1}, MappingProxyType({"a": 1})),
    ("text", Text("text")),
    ({"a": "text"}, {Text("a"): Text("text")}),
    (Decimal("1.0"), Decimal(1)),
    (Decimal("1E+2"), Decimal(100)),
    (Decimal("0.0"), Decimal("-0")),
    (NOON, NOON.astimezone(timezone(timedelta(hours=5)))),
    (time(12, tzinfo=UTC), time(14, tzinfo=timezone(timedelta(hours=2)))),
    (range(0, 3, 2), range(0, 4, 2)),
    (range(5, 5), range(0)),
    (PureWindowsPath("A/b"), PureWindowsPath("a\\B")),
    (Point(1, "x"), Point(1, "y")),
    (Attrs(1, "x"), Attrs(1, "y")),
    (Model(x=2), Model.model_validate({"x": 2})),
    (
        datetime.min.replace(tzinfo=timezone(timedelta(hours=9))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=9))),
    ),
]


def nested(depth: int) -> list[Any]:
    """Lists in lists, `depth` of them."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.text(string.printable),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner, max_size=12),
    max_leaves=20,
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.decimals()
    | st.fractions()
    | st.complex_numbers()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from([Colour.RED, Level.LOW, Word.RED, Point(1)]),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.dates(), inner)
    ),
    max_leaves=20,
)


def test_distinct_values_have_distinct_forms() -> None:
    """No two values of the table share a canonical form."""
    forms = [canonical(value) for value in DISTINCT]

    assert None not in forms
    assert len(set(forms)) == len(DISTINCT)


@pytest.mark.parametrize(("left", "right"), EQUAL, ids=lambda value: type(value).__name__)
def test_equal_values_have_equal_forms(left: object, right: object) -> None:
    """What counts as equal has the same form, alone and inside a container."""
    assert canonical(left) == canonical(right) is not None
    assert canonical({"k": [left]}) == canonical({"k": [right]}) is not None


@given(plain)
@settings(max_examples=200, deadline=None)
def test_fast_path_equals_exact_walk(value: object) -> None:
    """The path through orjson and the exact walk write the same bytes."""
    assert canonical(value) == canonical_module._Walk().write(value, 0)


@given(anything)
@settings(max_examples=300, deadline=None)
def test_equal_trees_are_equal_in_any_order(value: object) -> None:
    """Neither the order of keys nor list or tuple changes the form, and nothing is raised."""

    def turned(part: object) -> object:
        if isinstance(part, dict):
            return {key: turned(part[key]) for key in reversed(part)}
        if isinstance(part, list):
            return tuple(map(turned, part))
        return part

    assert canonical(value) == canonical(turned(value))


@given(plain, plain)
@settings(max_examples=200, deadline=None)
def test_form_of_json_is_injective(left: object, right: object) -> None:
    """Two JSON values have one form only when their sorted JSON is the same."""

    def plain_json(value: object) -> str:
        return json.dumps(value, sort_keys=True)

    assert (canonical(left) == canonical(right)) == (plain_json(left) == plain_json(right))


def test_many_members_take_the_same_form() -> None:
    """Long containers are checked another way and written the same."""
    row = list(range(50))
    table = {str(number): number for number in row}

    assert canonical(row) == orjson.dumps(row)
    assert canonical(table) == orjson.dumps(table, option=orjson.OPT_SORT_KEYS)
    assert canonical({number: number for number in row}) != canonical(table)
    assert canonical({**table, "deep": row}) == orjson.dumps({**table, "deep": row}, option=orjson.OPT_SORT_KEYS)


@pytest.mark.parametrize(
    "value",
    [
        lambda: None,
        object(),
        io.StringIO("text"),
        (number for number in (1, 2)),
        iter([1]),
        SimpleNamespace(x=1),
        [object()],
        {"a": {1: object()}},
        Point(object()),  # type: ignore[arg-type]
        datetime(2031, 1, 1, tzinfo=BadZone()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_form(value: object) -> None:
    """Functions, streams, identities and hostile objects have no canonical form."""
    assert canonical(value) is None
    assert outcome_digest(value, SEED) == UNKNOWN_OUTCOME


def test_hostile_values_have_no_form() -> None:
    """Objects that refuse every question, an open socket and a released memoryview raise nothing."""
    assert canonical(Hostile()) is canonical(Hostile) is None
    assert outcome_digest(Hostile(), SEED) == outcome_digest([Hostile()], SEED) == UNKNOWN_OUTCOME
    view = memoryview(b"a")
    view.release()
    with socket.socket() as connection:
        assert canonical(connection) is None
    assert canonical(view) is None


def test_depth_and_cycles_end() -> None:
    """Containers count up to the depth, cycles and deeper ones have no form, by either path."""
    ring: list[Any] = []
    ring.append(ring)
    table: dict[str, Any] = {}
    table["self"] = [table, 1.5]

    assert canonical(nested(MAX_DEPTH)) is not None
    assert canonical(nested(MAX_DEPTH + 1)) is None
    assert canonical([1.5, nested(MAX_DEPTH - 1)]) is not None
    assert canonical([1.5, nested(MAX_DEPTH)]) is None
    assert canonical(nested(100_000)) is None
    assert canonical(ring) is canonical(table) is None


def test_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of too many values has no form, shared containers counting each time."""
    monkeypatch.setattr(canonical_module, "MAX_VALUES", 1000)
    bomb: list[Any] = [1]
    for _ in range(40):
        bomb = [bomb, bomb]

    assert canonical([[1] * 400, [1] * 400]) is not None
    assert canonical([[1] * 600, [1] * 600]) is None
    assert canonical([[1.5] * 600, [1] * 600]) is None
    assert canonical(bomb) is None


def test_equal_counts_by_either_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long flat list is bounded like any other tree."""
    monkeypatch.setattr(canonical_module, "MAX_VALUES", 100)

    assert canonical([1] * 101) is canonical([1.0] * 101) is None
    assert canonical([1] * 100) == canonical([1.0] * 100) is not None


def test_streams_are_untouched() -> None:
    """Position and content of what was looked at stay as they were."""
    stream = io.BytesIO(b"abc")
    stream.seek(1)
    numbers = (number for number in (1, 2, 3))

    arguments((stream, numbers))
    outcome_digest(numbers, SEED)
    text_parts(stream)

    assert stream.tell() == 1
    assert list(numbers) == [1, 2, 3]


def test_content_at_the_time_of_the_look() -> None:
    """A changed object has another form: the bytes hold no reference to it."""
    shared = {"a": [1]}
    before = canonical(shared)
    shared["a"].append(2)

    assert before == canonical({"a": [1]})
    assert canonical(shared) != before


def test_arguments_are_the_form_of_their_tuple() -> None:
    """Exact arguments have the canonical bytes of the tuple, by every path."""
    for values in [("abc",), ("a", 1, True, None), ({"b": 1, "a": 1.5},), (10**40,), ("\ud800", 1), ()]:
        assert arguments(values) == (canonical(values), True)


def test_arguments_without_form_stand_as_their_type() -> None:
    """One argument without form leaves the others in place and says that the bytes are not exact."""
    data, exact = arguments(("a", lambda: None, 1))

    assert (data, exact) == (b'["a",!type("function"),1]', False)
    assert arguments((Hostile(),)) == (b'[!type("object")]', False)
    assert arguments((object(),)) != arguments(("object",))


def test_arguments_deeper_only_together_are_exact() -> None:
    """An argument at the full depth has a form, although the tuple around it is one level deeper."""
    assert arguments((nested(MAX_DEPTH),)) == (b"[" + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]", True)


def test_digest_depends_on_data_and_seed() -> None:
    """The digest is the seeded xxh3 of the data."""
    assert digest(b"a", SEED) == xxhash.xxh3_64_intdigest(b"a", SEED)
    assert digest(b"a", SEED) != digest(b"a", SEED + 1)
    assert digest(b"a", SEED) != digest(b"b", SEED)


@pytest.mark.parametrize("number", [0, 1])
def test_digest_avoids_the_reserved_outcomes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A hash of 0 or 1 is moved away from the outcomes that mean unknown and empty."""

    class Fixed:
        def __init__(self, seed: int) -> None: ...
        def update(self, data: bytes) -> None: ...
        def intdigest(self) -> int:
            return number

    monkeypatch.setattr(fingerprint, "xxh3_64_intdigest", lambda data, seed: number)
    monkeypatch.setattr(fingerprint, "xxh3_64", Fixed)

    assert digest(b"a", SEED) == outcome_digest("a", SEED) == number + 2
    assert outcome_digest("a" * (fingerprint.WHOLE + 1), SEED) == number + 2


@pytest.mark.parametrize(
    "value",
    [None, "", b"", [], {}, (), set(), deque(), bytearray(), OrderedDict(), Text("")],
    ids=lambda value: type(value).__name__,
)
def test_empty_outcomes_are_equal(value: object) -> None:
    """All that holds nothing is one outcome."""
    assert outcome_digest(value, SEED) == EMPTY_OUTCOME


def test_outcomes_of_text() -> None:
    """A text is digested as its UTF-8, surrogates included, and is never the structure it spells."""
    assert outcome_digest("é", SEED) == xxhash.xxh3_64_intdigest("é".encode(), SEED)
    assert outcome_digest("\ud800", SEED) not in (outcome_digest("\udc00", SEED), UNKNOWN_OUTCOME)
    assert outcome_digest(Text("a"), SEED) == outcome_digest("a", SEED) != outcome_digest(Word.RED, SEED)
    assert outcome_digest("[1]", SEED) != outcome_digest([1], SEED)
    assert outcome_digest({"a": 1, "b": 2}, SEED) == outcome_digest({"b": 2, "a": 1.0}, SEED)


def test_one_character_in_a_long_text_counts() -> None:
    """Texts beyond the limit are digested whole, in pieces, with little added memory."""
    half = "é" * 3_000_000
    first, last, middle = half + half, half + half[:-1] + "e", half[:-1] + "e" + half
    tracemalloc.start()
    digests = [outcome_digest(text, SEED) for text in (first, last, middle)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert digests[0] == xxhash.xxh3_64_intdigest(first.encode(), SEED)
    assert len(set(digests)) == 3
    assert peak < 1_000_000


def test_keyed_hex() -> None:
    """The hash depends on the key, long keys too, and has twice as many characters as bytes."""
    long = b"k" * 100

    assert len(keyed_hex(b"a", b"k")) == 8
    assert len({keyed_hex(b"a", key, 8) for key in (b"", b"k", long, long + b"k")}) == 4


def test_secret_form_hides_and_compares() -> None:
    """Equal secrets stand as equal hashes that hold no part of them; a wrapped secret is its content."""
    form = secret_form("hunter2", b"key")

    assert form.startswith("secret:")
    assert "hunter2" not in form
    assert form == secret_form(pydantic.SecretStr("hunter2"), b"key")
    assert form != secret_form("hunter3", b"key")
    assert form != secret_form("hunter2", b"other")
    assert b"hunter2" not in (canonical(pydantic.SecretStr("hunter2")) or b"")


def test_secret_without_form_stands_as_its_type() -> None:
    """A secret that cannot be read raises nothing."""

    class Locked:
        def get_secret_value(self) -> str:
            raise RuntimeError

    assert secret_form(object(), b"k") == secret_form(object(), b"k")
    assert secret_form(Locked(), b"k").startswith("secret:")


class Block:
    """A content block as MCP and others have it."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content


class Lazy:
    @property
    def content(self) -> str:
        raise AssertionError

    text = "plain"


class Explosive:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError


TEXT = {"type": "text", "text": "a"}
IMAGE = {"type": "image", "data": "..."}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("text", None),
        (7, None),
        ([], None),
        (["a", "b"], None),
        ([1, 2], None),
        ([{"x": 1}], None),
        ({"a": 1}, None),
        ({"content": "text"}, None),
        ([TEXT, IMAGE, TEXT], "a\na"),
        ((TEXT, "b"), "a\nb"),
        ([IMAGE], ""),
        ({"parts": [{"text": "a"}, {"inline_data": {}}]}, "a"),
        ({"content": [TEXT]}, "a"),
        ([{"type": "resource", "resource": {"text": "r"}}], "r"),
        (Block(content=[Block(type="text", text="a"), Block(type="image", data="")]), "a"),
        (Block(content="whole"), "whole"),
        (Block(content=7), None),
        (Slotted([TEXT]), "a"),
        (Lazy(), "plain"),
    ],
)
def test_text_parts(result: object, expected: str | None) -> None:
    """Multipart results give their text, others None, and properties are not called."""
    assert text_parts(result) == expected


def test_text_parts_of_a_hostile_object() -> None:
    """A result that raises when a field is read is not multipart."""
    assert text_parts(Explosive()) is None


def test_class_name_of_a_hostile_class() -> None:
    """A class that hides its name is an object."""
    assert class_name(Hostile) == "object"
    assert class_name(date) == "date"
