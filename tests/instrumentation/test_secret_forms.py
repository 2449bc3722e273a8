"""A declared secret stays out of the texts for the model in other forms than the one in which it was passed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from loopguard import Secret, ToolCallRefused, guarded_run, guarded_tool


def texts_for_the_model(tool: Callable[[Any], object], argument: object) -> str:
    """All that a model reads in a loop of failures, refusals and nudges."""
    texts = []
    with guarded_run("r", on_stop="end") as run:
        for _ in range(7):
            try:
                tool(argument)
            except ToolCallRefused as error:
                texts.append(error.for_model())
            except ValueError:
                pass
            texts += [nudge.text for nudge in run.pop_nudges()]
    assert len(texts) == 3
    return "\n".join(texts)


@pytest.mark.parametrize(
    ("secret", "shown_as"),
    [
        ("hunter2\n", "hunter2"),
        ("Bearer abcdefgh1234", "abcdefgh1234"),
        ("hunter2xyzabcdef", "HUNTER2XYZABCDEF"),
        ("HUNTER2XYZABCDEF", "hunter2xyzabcdef"),
    ],
    ids=["line end", "bearer", "upper", "lower"],
)
def test_a_secret_in_another_form_is_hidden(secret: str, shown_as: str) -> None:
    """Without white space around it, without its scheme, and in another case."""

    @guarded_tool
    def login(token: Annotated[str, Secret]) -> str:
        raise ValueError(f"bad token {shown_as} (x)")

    said = texts_for_the_model(login, secret)
    assert "bad token" in said
    assert shown_as not in said


def test_the_end_of_a_secret_is_hidden() -> None:
    """A service that shows only the last characters of a key shows them to nobody else."""
    secret = "sk-live-AbCdEfGhIjKlMnOpQrStUvWx"

    @guarded_tool
    def login(token: Annotated[str, Secret]) -> str:
        raise ValueError(f"bad key ...{token[-20:]} (x)")

    said = texts_for_the_model(login, secret)
    assert "bad key" in said
    assert secret[-12:] not in said


def test_a_secret_in_a_slotted_dataclass_is_hidden() -> None:
    """Fields without a ``__dict__`` are looked through as well."""

    @dataclasses.dataclass(slots=True)
    class Credentials:
        token: SecretStr

    @guarded_tool
    def login(credentials: Credentials) -> str:
        raise ValueError(f"bad token {credentials.token.get_secret_value()}")

    said = texts_for_the_model(login, Credentials(SecretStr("hunter2xyz")))
    assert "bad token" in said
    assert "hunter2xyz" not in said
