"""The rules, one file each. A new rule is its file and one line in ``RULES``."""

from __future__ import annotations

from loopguard.rules.base import Attempt, Off, Rule
from loopguard.rules.cycle import Cycle
from loopguard.rules.failing import Failing
from loopguard.rules.limits import Limits
from loopguard.rules.poll import Poll
from loopguard.rules.repeat import Repeat
from loopguard.rules.same_call import SameCall
from loopguard.rules.same_error import SameError
from loopguard.rules.tally import FailingTally, RepeatTally

#: Every rule that watches calls; True = part of the default policy.
RULES: dict[type[Rule], bool] = {
    Failing: True,
    Cycle: True,
    Repeat: True,
    Poll: True,
    SameError: True,
    SameCall: False,
    RepeatTally: False,
    FailingTally: False,
}

__all__ = [
    "RULES",
    "Attempt",
    "Cycle",
    "Failing",
    "FailingTally",
    "Limits",
    "Off",
    "Poll",
    "Repeat",
    "RepeatTally",
    "Rule",
    "SameCall",
    "SameError",
]
