"""What models and developers read about patterns of more than one call."""

from __future__ import annotations

import pytest

from loopguard import Cycle, Policy, SameError, Secret, ToolCallRefused, guarded_run, guarded_tool
from loopguard.records import Action


@guarded_tool(kind="read")
def inbox() -> str:
    """A list that stays the same."""
    return "1 item: A-17"


@guarded_tool(kind="read")
def item(id: str) -> str:
    """An item that stays the same."""
    return "waiting for approval"


@guarded_tool(kind="read")
def search(query: str, token: str = "") -> str:
    """A search that is not allowed."""
    raise RuntimeError(f"401 Unauthorized: {token or 'the token'} has expired")


def test_a_cycle() -> None:
    """The model reads what this call gave, the developer how to allow it."""
    with guarded_run("clerk") as run, pytest.raises(ToolCallRefused) as caught:
        while True:
            inbox()
            item("A-17")

    refused = caught.value
    assert str(refused) == "inbox was not executed: the same call has been part of the same cycle 4 times in this run"
    assert refused.for_model().startswith(
        'Not executed: `inbox` is the next step of a cycle that has run 4 times, with the same results each time: "1 item'
    )
    notes = "\n".join(refused.__notes__)
    assert "rule cycle, refuse_after=4" in notes
    assert "@guarded_tool(rules=(Cycle.off(),))" in notes
    assert [nudge.finding.rule for nudge in run.pop_nudges()] == ["repeat", "cycle"]
    assert [(finding.rule, finding.action, finding.tool) for finding in run.findings] == [
        ("repeat", Action.WARN, "inbox"),
        ("cycle", Action.WARN, "item"),
        ("cycle", Action.REFUSE, "inbox"),
    ]


def test_the_advice_holds() -> None:
    """A tool with ``Cycle(refuse_after=0)`` is not refused for a cycle; the other one of the lap still is."""

    @guarded_tool(kind="read", rules=[Cycle(refuse_after=0)])
    def free() -> str:
        return "as before"

    with guarded_run("clerk"), pytest.raises(ToolCallRefused, match="item"):
        for _ in range(5):
            free()
            item("A-17")


def test_one_error() -> None:
    """After ten failures the tool is refused, whatever it is asked for; no text of another call is quoted."""
    with guarded_run("support") as run:
        for n in range(10):
            with pytest.raises(RuntimeError):
                search(f"question {n}")
            nudges = run.pop_nudges()
            assert bool(nudges) == (n == 2)
        with pytest.raises(ToolCallRefused) as caught:
            search("something else")

    refused = caught.value
    assert str(refused) == (
        "search was not executed: calls like it have failed 10 times with the same error in this run"
    )
    assert refused.for_model().startswith(
        'Not executed: `search` with query "something else" would be the next of 10 calls that failed with the same error. '
        "It has stayed the same under different arguments."
    )
    assert "@guarded_tool(rules=(SameError.off(),))" in "\n".join(refused.__notes__)


def test_the_arguments_do_not_matter() -> None:
    """Arguments that the error repeats do not make it another error."""

    @guarded_tool(kind="read")
    def load(path: str, options: dict[str, str], tags: tuple[str, ...] = ()) -> str:
        raise LookupError(f"{path} is no table; {options['schema']} has none, nor {tags[0]}")

    with guarded_run("analyst", policy=Policy.of(SameError())) as run:
        for n in range(6):
            with pytest.raises(LookupError):
                load("table" + "xyz"[: n % 3] + "e", {"schema": f"schema_{n}"}, ("anything" + "x" * n,))

    assert [finding.rule for finding in run.findings] == ["same_error"]


def test_secrets_of_other_calls_are_not_quoted() -> None:
    """The refused call quotes nothing that another call of the pattern said."""

    @guarded_tool(kind="read", secret="token")
    def fetch(query: str, token: str) -> str:
        raise RuntimeError(f"401 Unauthorized: {token}")

    assert Secret is not None
    with guarded_run("support"):
        for n in range(10):
            with pytest.raises(RuntimeError):
                fetch(f"question {n}", f"hunter{n}")
        with pytest.raises(ToolCallRefused) as caught:
            fetch("something else", "hunter99")

    assert "hunter" not in caught.value.for_model()
