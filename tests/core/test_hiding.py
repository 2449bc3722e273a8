"""Secrets are taken out of texts, in every form in which they may stand there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretBytes, SecretStr

from loopguard.hiding import HIDDEN, secrets_of, without_secrets

LONG = "eyJhbGciOiJIUzI1NiJ9." + "Q7xZ" * 100


class Login(BaseModel):
    name: str
    password: SecretStr


@dataclass
class Account:
    login: Login


def test_declared_values_are_secrets() -> None:
    """Text, bytes and pydantic secrets of declared arguments; an empty one and a missing one are none."""
    named = {
        "a": "one",
        "b": b"two",
        "c": SecretStr("three"),
        "d": SecretBytes(b"four"),
        "e": "",
        "f": None,
        "g": "x",
    }
    found = secrets_of(named, frozenset("abcdefh"))
    assert sorted(found or ()) == ["four", "one", "three", "two"]


@pytest.mark.parametrize("value", [1, True, 1.5, ["x"], {"x": "y"}, object()])
def test_a_declared_value_that_is_no_text(value: Any) -> None:
    """Nobody can say how it looks in a text, so no text may be shown."""
    assert secrets_of({"a": value}, frozenset("a")) is None
    assert secrets_of({"a": value}, frozenset()) == []


def test_wrapped_secrets_are_found_anywhere() -> None:
    """In lists, mappings, dataclasses and models, without being declared."""
    login = Login(name="n", password=SecretStr("pass"))
    named = {
        "a": [SecretStr("in-list"), 1],
        "b": {"x": (SecretStr("in-tuple"),), "y": {"z"}},
        "c": Account(login),
        "d": SecretBytes(b"raw\xff"),
    }
    assert sorted(secrets_of(named, frozenset()) or ()) == ["in-list", "in-tuple", "pass", "raw\\xff"]


def test_fields_in_slots_are_found() -> None:
    """In a class without a ``__dict__`` as well, and also where its slots are one text."""

    @dataclass
    class Account:
        __slots__ = "login"  # noqa: PLC0205 - it may be written like this
        login: SecretStr

    assert secrets_of({"a": Account(SecretStr("in-slot"))}, frozenset()) == ["in-slot"]


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("hunter2\n", "no access for hunter2.", f"no access for {HIDDEN}."),
        ("Bearer abcdefgh1234", "bad abcdefgh1234", f"bad {HIDDEN}"),
        ("Bearer abcdefgh1234", "the bearer has none", "the bearer has none"),
        ("hunter2xyz", "HUNTER2XYZ", HIDDEN),
        ("ab12", "AB12", "AB12"),
        ("sk-live-AbCdEfGhIjKlMnOpQrSt", "key ...IjKlMnOpQrSt", f"key ...{HIDDEN}"),
        ("   ", "a   b", f"a{HIDDEN}b"),
    ],
)
def test_parts_and_other_cases_of_a_secret(secret: str, text: str, shown: str) -> None:
    """Stripped, a long word of it, the end of a long one, and in another case unless it is short."""
    assert without_secrets(text, [secret]) == shown


def test_looking_has_an_end() -> None:
    """Cycles, depth and very large containers end the search."""
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = SecretStr("deep")
    for _ in range(20):
        deep = [deep]
    assert secrets_of({"a": cycle, "b": deep}, frozenset()) == []
    assert secrets_of({"a": [SecretStr("first"), *range(20_000)]}, frozenset()) == ["first"]


def test_every_form_is_replaced() -> None:
    """Plain, in a ``repr``, in JSON and in a URL."""
    secret = "a b/ä\n\"'7"
    forms = [secret, repr(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False)]
    for form in [*forms, quote(secret, safe=""), quote_plus(secret), repr({"k": [secret]})]:
        assert HIDDEN in without_secrets(f"<{form}>", [secret])
        assert "a b" not in without_secrets(f"<{form}>", [secret])


@pytest.mark.parametrize("cut", [4, 11, 12, 13, 100, 300, len(LONG) - 1, len(LONG)])
def test_a_text_that_was_cut_inside_a_secret(cut: int) -> None:
    """The beginning of a secret at the end of a text is taken out as well."""
    assert without_secrets(f"bad key: {LONG[:cut]}", [LONG]) == f"bad key: {HIDDEN}"


def test_a_text_that_was_cut_in_its_middle() -> None:
    """The beginning of a long secret gives it away wherever it stands."""
    assert without_secrets(f"a {LONG[:200]}; b {LONG}; c", [LONG]) == f"a {HIDDEN}; b {HIDDEN}; c"


def test_a_few_letters_in_common_are_no_secret() -> None:
    """What merely begins like a secret stays, unless the text ends with it."""
    assert without_secrets("a hunt for hunger", ["hunter2-and-more"]) == "a hunt for hunger"
    assert without_secrets("on the hun", ["hunter2"]) == "on the hun"
    assert without_secrets("nothing of it", ["hunter2"]) == "nothing of it"


def test_secrets_in_one_another() -> None:
    """The longer one goes first, so that nothing of it is left."""
    assert without_secrets("x abcdef y abc", ["abc", "abcdef"]) == f"x {HIDDEN} y {HIDDEN}"


@given(st.text(), st.text(min_size=1), st.text())
def test_a_secret_is_never_left(before: str, secret: str, after: str) -> None:
    """Whatever stands around it, the secret is gone, unless what stands for it spells it."""
    text = without_secrets(before + secret + after, [secret])
    assert secret not in text.replace(HIDDEN, "\0") or "\0" in secret
