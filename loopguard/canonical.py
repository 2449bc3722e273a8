"""Values to canonical bytes: one form for each value, whatever its spelling.

Two values are the same argument, or the same outcome, when their canonical bytes are equal.
The form is compact JSON with sorted keys wherever JSON can say it.
Whatever JSON cannot say stands as ``!name(...)``, which no JSON text holds outside a string.

========================================  ==============================================================
value                                     canonical form
========================================  ==============================================================
``None``, ``bool``, ``str``               JSON; ``True`` is not ``1``, ``"1"`` is not ``1``
``int``, ``float``                        by value: ``1`` and ``1.0`` are equal, so are ``0.0`` and ``-0.0``;
                                          NaN and the infinities have forms of their own
``list``, ``tuple``, ``NamedTuple``       JSON array; equal to one another (a model's JSON knows only arrays)
``dict`` and its kin                      JSON object whatever the order; the key ``1`` is not the key ``"1"``
``bytes``, ``bytearray``, ``memoryview``  equal to one another, never equal to text
``set``, ``frozenset``                    equal to one another whatever the order, never equal to a list
``Enum``, ``StrEnum``, ``IntEnum``        class name and value, never equal to the bare value
aware ``datetime`` and ``time``           the instant, so one moment in two zones is equal
``Decimal``, ``Fraction``, ``complex``    by value, never equal to an ``int``
``date``, ``timedelta``, ``UUID``, paths  by value, never equal to their text
``range``, ``deque``                      by content
dataclass, attrs, msgspec, pydantic       class name and the fields that take part in ``==``
pydantic secrets                          a hash, so that the bytes never hold the secret itself
========================================  ==============================================================

Everything else has no canonical form: functions, sockets, files, generators and other streams, and objects
whose equality is identity.
Nothing is ever read from a stream.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from hashlib import blake2b
from operator import itemgetter
from pathlib import PurePath, PureWindowsPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Containers nested deeper than this have no canonical form (which also ends cycles).
MAX_DEPTH = 64
#: Values in one tree beyond which it has no canonical form: writing it would take longer than about a second.
MAX_VALUES = 200_000

#: Types that orjson writes exactly, at the first level of a value.
SCALARS = frozenset((str, int, bool, type(None)))

_BRANCHES = frozenset((dict, list, tuple))
_KEYS = frozenset((str,))
# Up to this many members a loop is faster than a call of issuperset().
_FEW = 8
_SORTED = orjson.OPT_SORT_KEYS
_dumps = orjson.dumps

# A class with one of these hands out its content once: looking would take it from the tool.
_STREAM_MARKS = ("__next__", "__anext__", "__await__", "read")


class _NoFormError(Exception):
    """Raised inside the walk when a value has no canonical form."""


def canonical(value: object) -> bytes | None:
    """Bytes that are equal exactly when two values count as equal.

    Args:
        value: Anything. Streams are not touched.

    Returns:
        The canonical form described at the top of the module, or None where the value has none: it is
        compared by identity, is a stream, refers to itself, is nested deeper than `MAX_DEPTH`, or holds more
        than `MAX_VALUES` values. Nothing is raised, whatever the value does when it is looked at.
    """
    try:
        kind = type(value)
        try:
            if kind in SCALARS:
                return _dumps(value)
            if kind in _BRANCHES and _plain(value, kind, 1) >= 0:
                return _dumps(value, option=_SORTED)
        except TypeError:  # an integer beyond 64 bits or a lone surrogate: the walk below writes those
            pass
        return _Walk().write(value, 0)
    except Exception:  # noqa: BLE001 - a value may do anything when it is looked at
        return None


def _plain(value: Any, kind: type, depth: int) -> int:
    """Number of values in a tree that orjson writes exactly as the walk would, or -1.

    Types are compared by identity: orjson also encodes enums and UUIDs, but as plain text.
    """
    count = len(value)
    if depth > MAX_DEPTH or count > MAX_VALUES:
        return -1
    many = count > _FEW
    members: Iterable[object] = value
    if kind is dict:
        members = value.values()
        if many:
            if not _KEYS.issuperset(map(type, value)):
                return -1
        else:
            for key in value:
                if type(key) is not str:
                    return -1
    if many and SCALARS.issuperset(map(type, members)):
        return count
    for member in members:
        kind = type(member)
        if kind in SCALARS:
            continue
        if kind not in _BRANCHES:
            return -1
        inner = _plain(member, kind, depth + 1)
        count += inner
        # Giving up early bounds the time for containers that stand in one another many times over.
        if inner < 0 or count > MAX_VALUES:
            return -1
    return count


class _Walk:
    """One exact walk over a value: slower than orjson, and right about every type."""

    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = MAX_VALUES

    def write(self, value: Any, depth: int) -> bytes:
        """Canonical bytes of `value`, which stands inside `depth` containers; raises `_NoFormError`."""
        kind = type(value)
        form = _FORMS.get(kind)
        if form is None:
            form = _form_of(kind)
        return form(self, value, depth)

    def members(self, values: Iterable[object], size: int, depth: int) -> list[bytes]:
        """Canonical bytes of the `size` members of one container."""
        if depth >= MAX_DEPTH or size > self.room:
            raise _NoFormError
        self.room -= size
        return [self.write(value, depth + 1) for value in values]

    def object(self, kind: type, fields: dict[str, object], depth: int) -> bytes:
        return b"!object(" + quoted(kind.__qualname__) + b"," + _mapping(self, fields, depth) + b")"


def _form_of(kind: type) -> Callable[[_Walk, Any, int], bytes]:
    # Enum before the bases: the member of an IntEnum is an int as well.
    if issubclass(kind, Enum):
        return _enum
    for base in kind.__mro__:
        form = _FORMS.get(base)
        if form is not None:
            return form
    if any(hasattr(kind, mark) for mark in _STREAM_MARKS):
        raise _NoFormError
    for mark, form in _STRUCTURES.items():
        if hasattr(kind, mark):
            return form
    raise _NoFormError


def encoded(text: str) -> bytes:
    """UTF-8 that also takes lone surrogates, as they stand in file names and broken model output."""
    return text.encode("utf-8", "surrogatepass")


def quoted(text: str) -> bytes:
    """Canonical bytes of a text."""
    try:
        return _dumps(text)
    except TypeError:
        raw = encoded(text)
        return b"!text(%d:" % len(raw) + raw + b")"


def is_text(kind: type) -> bool:
    """Whether values of this type count as plain text: ``str`` and its subclasses, but no enums."""
    return issubclass(kind, str) and not issubclass(kind, Enum)


def class_name(kind: type) -> str:
    """Qualified name of a class, "object" where it hides it."""
    try:
        return str.__str__(kind.__qualname__)
    except Exception:  # noqa: BLE001 - a metaclass may answer anything
        return "object"


def _integer(_walk: _Walk, value: int, _depth: int) -> bytes:
    number = int.__int__(value)
    # Beyond 64 bits hexadecimal: decimal text is quadratic, and refused by Python from 4,300 digits on.
    return b"%d" % number if -(1 << 63) <= number < 1 << 64 else b"!int(%x)" % number


def _float(walk: _Walk, value: float, depth: int) -> bytes:
    number = float.__float__(value)
    if not math.isfinite(number):
        return b"!nan" if number != number else b"!inf" if number > 0 else b"!-inf"
    return _integer(walk, int(number), depth) if number.is_integer() else repr(number).encode()


def _decimal(_walk: _Walk, value: Decimal, _depth: int) -> bytes:
    # Not normalize(): it rounds to the precision of the current context.
    sign, figures, exponent = Decimal.as_tuple(value)
    if isinstance(exponent, str):
        return b"!decimal(%d%s)" % (sign, exponent.encode())
    text = "".join(map(str, figures))
    short = text.strip("0") and text.lstrip("0").rstrip("0")
    exponent += len(text) - len(text.rstrip("0"))
    return b"!decimal(%s%se%d)" % (b"-" * sign, short.encode(), exponent) if short else b"!decimal(0)"


def _datetime(_walk: _Walk, value: datetime, _depth: int) -> bytes:
    offset = value.utcoffset()
    if offset is None:
        return b"!datetime(%s)" % value.isoformat().encode()
    # As a number: astimezone() overflows near the first and the last year.
    instant = timedelta(days=value.toordinal()) - offset + _clock(value)
    return b"!instant(%d)" % (instant // timedelta(microseconds=1))


def _time(_walk: _Walk, value: time, _depth: int) -> bytes:
    offset = value.utcoffset()
    if offset is None:
        return b"!time(%s)" % value.isoformat().encode()
    return b"!timez(%d)" % ((_clock(value) - offset) // timedelta(microseconds=1))


def _clock(value: datetime | time) -> timedelta:
    return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)


def _range(_walk: _Walk, value: range, _depth: int) -> bytes:
    # As Python compares them: by the numbers they give.
    size = len(value)
    return b"!range(%d,%d,%d)" % (size, value.start if size else 0, value.step if size > 1 else 0)


def _path(_walk: _Walk, value: PurePath, _depth: int) -> bytes:
    if isinstance(value, PureWindowsPath):
        return b"!windows(" + quoted(str(value).lower()) + b")"
    return b"!path(" + quoted(str(value)) + b")"


def _bytes(_walk: _Walk, value: bytes | bytearray | memoryview, _depth: int) -> bytes:
    raw = bytes(value)
    return b"!bytes(%d:" % len(raw) + raw + b")"


def _enum(walk: _Walk, value: Enum, depth: int) -> bytes:
    try:
        content = walk.write(value._value_, depth)
    except _NoFormError:  # a function or an object as value: the name says as much
        content = b"!name(" + quoted(value._name_) + b")"
    return b"!enum(" + quoted(type(value).__qualname__) + b"," + content + b")"


def _sequence(walk: _Walk, value: list[object] | tuple[object, ...], depth: int) -> bytes:
    each = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
    return b"[" + b",".join(walk.members(each, len(value), depth)) + b"]"


def _set(walk: _Walk, value: set[object] | frozenset[object], depth: int) -> bytes:
    return b"!set(" + b",".join(sorted(walk.members(value, len(value), depth))) + b")"


def _mapping(walk: _Walk, value: dict[Any, object], depth: int) -> bytes:
    texts = []
    others = []
    for key, member in dict.items(value):
        if is_text(type(key)):
            texts.append((str.__str__(key), member))
        else:
            others.append((walk.write(key, depth + 1), member))
    texts.sort(key=itemgetter(0))  # by code points, as orjson does
    others.sort(key=itemgetter(0))
    entries = [(quoted(name), member) for name, member in texts] + others
    members = walk.members([member for _, member in entries], len(entries), depth)
    return b"{" + b",".join([entry[0] + b":" + form for entry, form in zip(entries, members, strict=True)]) + b"}"


def _dataclass(walk: _Walk, value: Any, depth: int) -> bytes:
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}
    return walk.object(type(value), fields, depth)


def _attrs(walk: _Walk, value: Any, depth: int) -> bytes:
    fields = {a.name: getattr(value, a.name) for a in type(value).__attrs_attrs__ if a.eq}
    return walk.object(type(value), fields, depth)


def _struct(walk: _Walk, value: Any, depth: int) -> bytes:
    fields = {name: getattr(value, name) for name in type(value).__struct_fields__}
    return walk.object(type(value), fields, depth)


def _model(walk: _Walk, value: Any, depth: int) -> bytes:
    # The stored fields rather than model_dump(), which runs serialisers and leaves out what they hide.
    state = value.__dict__
    fields = {name: state[name] for name in type(value).model_fields if name in state}
    return walk.object(type(value), {**fields, **(value.__pydantic_extra__ or {})}, depth)


def _dumped(walk: _Walk, value: Any, depth: int) -> bytes:
    return walk.object(type(value), value.model_dump(), depth)


def _secret(walk: _Walk, value: Any, depth: int) -> bytes:
    content = walk.write(value.get_secret_value(), depth)
    return b"!secret(" + blake2b(content, digest_size=16).hexdigest().encode() + b")"


def _items(walk: _Walk, value: MappingProxyType[Any, object], depth: int) -> bytes:
    return _mapping(walk, dict(value), depth)


def _deque(walk: _Walk, value: deque[object], depth: int) -> bytes:
    return b"!deque([" + b",".join(walk.members(deque.__iter__(value), len(value), depth)) + b"])"


def _complex(walk: _Walk, value: complex, depth: int) -> bytes:
    return b"!complex(" + _float(walk, value.real, depth) + b"," + _float(walk, value.imag, depth) + b")"


# By type; the nearest base counts.
_FORMS: dict[type, Callable[[_Walk, Any, int], bytes]] = {
    type(None): lambda _walk, _value, _depth: b"null",
    bool: lambda _walk, value, _depth: b"true" if value else b"false",
    str: lambda _walk, value, _depth: quoted(str.__str__(value)),
    int: _integer,
    float: _float,
    complex: _complex,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
    MappingProxyType: _items,
    set: _set,
    frozenset: _set,
    deque: _deque,
    range: _range,
    datetime: _datetime,
    date: lambda _walk, value, _depth: b"!date(%d)" % value.toordinal(),
    time: _time,
    timedelta: lambda _walk, value, _depth: b"!timedelta(%d)" % (value // timedelta(microseconds=1)),
    Decimal: _decimal,
    Fraction: lambda _walk, value, _depth: b"!fraction(%x/%x)" % (value.numerator, value.denominator),
    UUID: lambda _walk, value, _depth: b"!uuid(%x)" % value.int,
    PurePath: _path,
}
# By what the class carries: none of these libraries is imported.
_STRUCTURES: dict[str, Callable[[_Walk, Any, int], bytes]] = {
    "__dataclass_fields__": _dataclass,
    "__attrs_attrs__": _attrs,
    "__struct_fields__": _struct,
    "get_secret_value": _secret,
    "model_fields": _model,
    "model_dump": _dumped,
}
