"""Errors: two axes, one sentence, and a way through pickle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from loopguard import errors
from loopguard.errors import (
    LimitReached,
    LimitRefused,
    LoopDetected,
    LoopguardError,
    LoopRefused,
    LoopStopped,
    PolicyError,
    RunStopped,
    StoreError,
    ToolCallRefused,
    TraceError,
)
from loopguard.records import Action, ErrorClass, Finding

FINDING = Finding("repeat", Action.STOP, "read", 5, 5, (1, 2, 3, 4, 5), 1, "read gave the same result 5 times")
ALL: list[LoopguardError] = [
    LoopguardError("it"),
    ToolCallRefused("not executed", tool="read"),
    RunStopped("over"),
    LoopDetected("a loop", finding=FINDING),
    LoopRefused("not executed", tool="read", finding=FINDING, _model_text="Not executed: `read`."),
    LoopStopped("over", finding=FINDING),
    LimitReached("over", limit="calls", used=5, allowed=5),
    LimitRefused("not executed", tool="read", limit="calls_per_tool[read]", used=2, allowed=2),
    PolicyError("window=0"),
    StoreError("away"),
    TraceError("unreadable"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_survive_copying_and_pickling(error: LoopguardError, way: Any) -> None:
    """Text, facts and notes come through; the class keeps its public home."""
    error.__notes__ = ["loopguard: rule repeat"]
    again = way(error)

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert type(error).__module__ == "loopguard"


def test_every_error_is_tried_here() -> None:
    """A new error needs a place in the list above."""
    classes = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, LoopguardError)}

    assert {cls for cls in classes if not cls.__name__.startswith("_")} == {type(error) for error in ALL}


def test_what_happened_and_why() -> None:
    """Refused and stopped are two things; a loop and a limit are two reasons."""
    assert not issubclass(ToolCallRefused, RunStopped)
    assert not issubclass(RunStopped, ToolCallRefused)
    assert issubclass(LoopRefused, LoopDetected)
    assert issubclass(LoopRefused, ToolCallRefused)
    assert issubclass(LoopStopped, LoopDetected)
    assert issubclass(LoopStopped, RunStopped)
    assert issubclass(LimitReached, RunStopped)
    assert issubclass(LimitRefused, ToolCallRefused)
    assert issubclass(PolicyError, ValueError)


def test_text_for_a_model() -> None:
    """What the guard wrote for the model, else the sentence itself."""
    assert ToolCallRefused("read was not executed").for_model() == "read was not executed."
    assert LoopRefused("x", finding=FINDING, _model_text="Not executed: `read`.").for_model() == "Not executed: `read`."


def test_final_errors() -> None:
    """Errors that the same call cannot get rid of."""
    final = {ErrorClass.FINAL_TOOL, ErrorClass.FINAL_ACCESS, ErrorClass.DENIED}

    assert {error_class for error_class in ErrorClass if error_class.final} == final
