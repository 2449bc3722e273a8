"""The books of a run: what was warned about, refused and allowed, and what came of it.

They lie outside the window: a pattern that slid out and comes back is not warned about again.
They are bounded, and forgotten by progress: a different outcome of the call, or a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loopguard.records import Action, Evidence

if TYPE_CHECKING:
    from loopguard.index import Index
    from loopguard.rules.base import Rule

#: The outcome in a ledger that was written while all calls of the pattern were still in flight.
NO_OUTCOME_YET = -1
#: Patterns that are remembered; the oldest go first.
MAX_LEDGERS = 1_000
#: Warnings and refusals that are followed at once, and for how many executed calls.
MAX_FOLLOWED = 20
FOLLOWED_CALLS = 5

# Shared, and replaced instead of added to: most runs need neither.
_NOTHING_TOLD: frozenset[tuple[str, Action]] = frozenset()
_NOBODY_ASKED: Mapping[str, tuple[float, float]] = MappingProxyType({})


class Ledger:
    """What was said and done about one pattern."""

    __slots__ = ("allowed", "key", "last_seq", "n", "outcome", "refused", "round", "rule", "told", "warned")

    def __init__(self, rule: Rule, key: int, outcome: int, n: int) -> None:
        self.rule = rule
        self.key = key
        self.outcome = outcome
        #: The operation at which it was last touched.
        self.n = n
        self.warned = False
        self.allowed = False
        #: Rounds in which an attempt was refused.
        self.refused = 0
        self.round = -1
        self.last_seq = -1
        self.told = 0

    def refuse(self, round_: int, seq: int) -> bool:
        """Count a refused attempt; siblings of one round are one. True for the first of its round."""
        if round_ == self.round:
            return False
        self.refused += 1
        self.round = round_
        self.last_seq = seq
        return True

    def fits(self, evidence: Evidence) -> bool:
        """False if it was written for another outcome."""
        return not evidence.done or self.outcome in (evidence.outcome, NO_OUTCOME_YET)

    def tell(self, action: Action) -> bool:
        """True the first time this rung is reached; later ones are only counted."""
        bit = 1 << action.hardness
        first = not self.told & bit
        self.told |= bit
        return first


class Books:
    """All ledgers of a run, and the warnings and refusals that are being followed."""

    __slots__ = (
        "_by_key",
        "asking",
        "denied_round",
        "followed",
        "heeded",
        "ignored",
        "ledgers",
        "spoken",
        "told_limits",
    )

    def __init__(self) -> None:
        self.ledgers: dict[tuple[Any, ...], Ledger] = {}
        self._by_key: dict[int, list[tuple[Any, ...]]] = {}
        #: (rule, action, key, executed calls since) of what was said last.
        self.followed: list[list[Any]] = []
        self.heeded: dict[tuple[str, str], int] = {}
        self.ignored: dict[tuple[str, str], int] = {}
        self.told_limits: frozenset[tuple[str, Action]] = _NOTHING_TOLD
        #: Limits that were handed off and have no answer yet, with what was used and what is allowed.
        self.asking: Mapping[str, tuple[float, float]] = _NOBODY_ASKED
        self.denied_round = -1
        #: Something was said or refused in this run: from then on outcomes are looked at.
        self.spoken = False

    @property
    def refused(self) -> bool:
        """True while a refused attempt is on record."""
        return any(ledger.refused for ledger in self.ledgers.values())

    def find(self, evidence: Evidence) -> Ledger | None:
        """The ledger of this pattern, unless it was written for another outcome."""
        ledger = self.ledgers.get(evidence.pattern)
        return ledger if ledger is not None and ledger.fits(evidence) else None

    def open(self, rule: Rule, evidence: Evidence, n: int) -> Ledger:
        """The ledger of this pattern, made if needed, touched at operation ``n``."""
        ledger = self.ledgers.get(evidence.pattern)
        if ledger is None or not ledger.fits(evidence):
            self.forget(evidence.pattern)
            outcome = evidence.outcome if evidence.done else NO_OUTCOME_YET
            ledger = Ledger(rule, evidence.key, outcome, n)
            self.put(evidence.pattern, ledger)
            if len(self.ledgers) > MAX_LEDGERS:
                self.forget(next(iter(self.ledgers)))
        ledger.n = n
        return ledger

    def put(self, pattern: tuple[Any, ...], ledger: Ledger) -> None:
        """Add a ledger."""
        self.spoken = True
        self.ledgers[pattern] = ledger
        self._by_key.setdefault(ledger.key, []).append(pattern)

    def items(self) -> list[tuple[tuple[Any, ...], Ledger]]:
        """All patterns with their ledgers, oldest first."""
        return list(self.ledgers.items())

    def forget(self, pattern: tuple[Any, ...]) -> None:
        """Forget what was said about this pattern, if anything was."""
        ledger = self.ledgers.pop(pattern, None)
        if ledger is not None:
            patterns = self._by_key[ledger.key]
            patterns.remove(pattern)
            if not patterns:
                del self._by_key[ledger.key]

    def refuted(self, key: int, outcome: int) -> list[Ledger]:
        """Forget the ledgers of this call that were written for another outcome, and return them."""
        gone = []
        for pattern in list(self._by_key.get(key, ())):
            ledger = self.ledgers[pattern]
            if ledger.outcome == NO_OUTCOME_YET:
                ledger.outcome = outcome
            elif (ledger.outcome != outcome or not outcome) and ledger.rule.forgets_on_change:
                gone.append(ledger)
                self.forget(pattern)
        return gone

    def restart(self, at: int) -> None:
        """Forget what was written up to operation ``at``, for rules that restart."""
        for pattern in [p for p, ledger in self.ledgers.items() if ledger.n <= at and ledger.rule.restarts]:
            self.forget(pattern)

    def forget_edits(self, target: int, index: Index) -> None:
        """A recoverable error: what was written about edits of this target goes, for rules that clear them."""
        for pattern, ledger in list(self.ledgers.items()):
            entry = index.keys.get(ledger.key)
            if ledger.rule.clears_edits and entry is not None and entry.target == target and entry.row.tool.edits:
                self.forget(pattern)

    def tell_anew(self) -> None:
        """The mode changed: what is met from now on is reported once more, as what it is now."""
        for ledger in self.ledgers.values():
            ledger.told = 0

    def unrefuse(self, seq: int) -> None:
        """The attempt of this number was executed after all."""
        for ledger in self.ledgers.values():
            if ledger.last_seq == seq:
                ledger.refused -= 1
                ledger.round = ledger.last_seq = -1

    def clear(self) -> None:
        """Forget all ledgers; what became of earlier ones stays counted."""
        self.ledgers.clear()
        self._by_key.clear()
        self.followed.clear()

    # -- heeded or ignored ------------------------------------------------------------------------------------------

    def follow(self, rule: str, action: Action, key: int) -> None:
        """From now on watch whether this call comes back."""
        self.spoken = True
        self.followed.append([rule, str(action), key, 0])
        if len(self.followed) > MAX_FOLLOWED:
            del self.followed[0]

    def executed(self, key: int, same: bool) -> None:
        """A call was executed: the same again is ignoring, five others are heeding."""
        left = []
        for item in self.followed:
            if item[2] == key and same:
                self._count(self.ignored, item)
                continue
            item[3] += 1
            if item[3] >= FOLLOWED_CALLS:
                self._count(self.heeded, item)
            else:
                left.append(item)
        self.followed = left

    def went_on(self, rule: str) -> None:
        """What this rule warned about goes on, with whichever call of the pattern: the warning was ignored."""
        left = []
        for item in self.followed:
            if item[0] == rule and item[1] == Action.WARN:
                self._count(self.ignored, item)
            else:
                left.append(item)
        self.followed = left

    def refused_again(self, key: int) -> None:
        """An attempt of this call was refused: what was said about it before was ignored."""
        left = []
        for item in self.followed:
            if item[2] == key:
                self._count(self.ignored, item)
            else:
                left.append(item)
        self.followed = left

    def close(self) -> None:
        """The run ended: what was followed by other calls, and did not come back, was heeded."""
        for item in self.followed:
            if item[3]:
                self._count(self.heeded, item)
        self.followed = []

    @staticmethod
    def _count(into: dict[tuple[str, str], int], item: list[Any]) -> None:
        pair = (item[0], item[1])
        into[pair] = into.get(pair, 0) + 1
