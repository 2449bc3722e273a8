"""What a run does about its limits: usage comes in, warnings go out, handoffs are asked.

The sums and the decisions are made by the fold (``loopguard.budget``); here are the prices, the texts and the
callbacks, none of them under a run's lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

from loopguard import _safety, wording
from loopguard.budget import UNFED
from loopguard.prices import money, price_of, tokens
from loopguard.records import Hit
from loopguard.rules import Limits
from loopguard.stats import LimitStatus
from loopguard.telemetry import logs

if TYPE_CHECKING:
    from loopguard.run import Run

#: Models without a price that a run names in the log.
MOST_MODELS = 20


class Handoff:
    """Keeps who asks: a call that meets the limit meanwhile waits for the answer."""

    __slots__ = ("lock", "names")

    def __init__(self) -> None:
        # The callback itself may call guarded tools of the run.
        self.lock = threading.RLock()
        self.names: set[str] = set()

    def renew(self) -> None:
        """After a fork: a thread that the child does not have may be asking."""
        self.lock = threading.RLock()


def note_usage(run: Run, input_tokens: Any, output_tokens: Any, cost: Any, model: str | None) -> None:
    """Take in what the model used: here, and in all runs around this one."""
    used = tokens(input_tokens), tokens(output_tokens)
    paid = money(cost)
    runs = [one for one in (run, *run.ancestors()) if not one.closed]
    if any(one.owned() for one in runs):  # a signal handler or a finaliser, in the middle of what is locked
        logs.warning("loopguard: usage that a signal handler or finaliser noted in run %r is not counted.", run.name)
        return
    # A run without prices of its own takes those of the nearest run that has some.
    usual = next((one.engine.limits.price for one in runs if one.engine.limits.price is not None), None)
    seen: list[Any] = []
    for one in runs:
        engine = one.engine
        if engine in seen:
            continue
        seen.append(engine)
        amount = paid
        if amount is None:
            amount = price_of(engine.limits.price or usual, model, *used) if any(used) else 0.0
        with one._lock:
            hit = engine.note_usage(one.clock(), *used, amount)
        if hit is not None:
            warn(one, hit)
        if amount is None and engine.limits.cost is not None:
            _say_unpriced(one, model, engine.limits.cost)


def _say_unpriced(run: Run, model: str | None, allowed: float) -> None:
    said = run.report.unpriced_models
    name = logs.one_line(str(model)[:100]) if model is not None else ""
    if name not in said and len(said) < MOST_MODELS:
        run.report.unpriced_models = said | {name}
        logs.warning("loopguard: %s", wording.unpriced_sentence(name, allowed, run.name))


def say_unfed(run: Run, hit: Hit) -> None:
    """Say in the log that a limit sees nothing."""
    logs.warning("loopguard: %s", wording.unfed_sentence(hit, run.name))


def warn(run: Run, hit: Hit) -> None:
    """A limit of this run is to be warned about, where no call's result is at hand to put the nudge beside."""
    if hit.rule == UNFED:
        say_unfed(run, hit)
        return
    if hit.report:
        enforced = run.mode == "enforce"
        finding = run.report.finding(hit, None, enforced)
        run.report.publish(finding, None, (), {})
        if enforced:
            run.report.nudge_of_limit(finding)
    hand_off(run, hit)


def warn_above(run: Run, tool: str, restarted: bool) -> None:
    """Tell the runs around this one of an outcome in it: what is due there is said, what it restarts restarts."""
    for above in run.ancestors():
        engine = above.engine
        if engine is run.engine or not (restarted or engine.limit_due):
            continue
        hit = None
        with above._lock:
            if restarted:
                engine.note_descendant_write()
            if engine.limit_due:
                hit = engine.limit_warning(tool, above.clock())
        if hit is not None:
            warn(above, hit)


def hand_off(run: Run, hit: Hit) -> None:
    """Ask ``on_handoff`` about a limit that warned; the answer is a record of the fold. Waits while another asks."""
    handoff, engine = run.handoff, run.engine
    if handoff is None or hit.limit is None:
        return
    name, used, allowed = hit.limit
    with handoff.lock:
        if name not in engine.books.asking:
            return
        began = run.clock()
        answer: Limits | Literal["stop"] | None = None
        try:
            if run.mode == "enforce" and name not in handoff.names:
                handoff.names.add(name)
                status = LimitStatus(
                    limit=name,
                    used=used,
                    allowed=allowed,
                    message=wording.limit_sentence(hit, run.name),
                    run_name=run.name,
                    run_id=run.id,
                    limits=engine.limits,
                    stats=run.stats,
                )
                with _safety.guarded("on_handoff"):
                    answer = _checked(engine.limits.on_handoff, status)
        finally:
            handoff.names.discard(name)
            now = run.clock()
            with run._lock:
                stop = engine.note_handoff(name, answer, now, max(0.0, now - began))
    if stop is not None:
        run.report.publish(run.report.finding(stop, None, True), None, (), {})


def _checked(ask: Any, status: LimitStatus) -> Limits | Literal["stop"] | None:
    answer = ask(status)
    if answer is None or isinstance(answer, Limits):
        return answer
    if isinstance(answer, str) and answer == "stop":
        return "stop"
    if hasattr(answer, "close"):
        answer.close()  # a coroutine that nobody is going to await
    logs.warning(
        "loopguard: on_handoff answered with %s, which is not None, a Limits or 'stop'; the run goes on.",
        type(answer).__name__,
    )
    return None
