"""For tests of your own agents: is every tool guarded, and what does the guard do when the model goes in circles?

pytest users have the fixture ``loopguard_events`` as well, which needs no import.
Nothing here is meant for production.
"""

from __future__ import annotations

from loopguard.testing.agents import Ask, Script, ScriptedAgent, ScriptError, always
from loopguard.testing.capture import Captured, CapturedCall, capture_events
from loopguard.testing.clock import FakeClock, fake_clock
from loopguard.testing.contracts import RuleContract
from loopguard.testing.guarded import assert_guarded

__all__ = [
    "Ask",
    "Captured",
    "CapturedCall",
    "FakeClock",
    "RuleContract",
    "Script",
    "ScriptError",
    "ScriptedAgent",
    "always",
    "assert_guarded",
    "capture_events",
    "fake_clock",
]
