"""``Run``: one task of one agent, the scope in which calls are compared.

A run holds the engine, its lock and what the engine may not know: the clock, texts, callbacks, telemetry.
The path of a guarded call is ``Run.admit``, the tool, then ``Run.done`` or ``Run.failed``.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, cast

from xxhash import xxh3_64_intdigest

from loopguard import _safety, prices, spending
from loopguard.budget import UNFED
from loopguard.call import Call, claim
from loopguard.config import Settings, deployment_key, effective_mode
from loopguard.context import Instead
from loopguard.engine import Engine
from loopguard.errors import LoopguardError, PolicyError, RunStopped, ToolCallRefused
from loopguard.fingerprint import arguments, digest, text_digest
from loopguard.guard import Guard, Outcome, worth_masking
from loopguard.ladder import Bound
from loopguard.locks import RunLock
from loopguard.outcome import HEADS
from loopguard.policy import MODES, Mode, Plan, Policy
from loopguard.records import UNKNOWN_OUTCOME, Action, Finding, Hit, LoopStatus, Operation, Status
from loopguard.report import Nudge, Reporter
from loopguard.spending import Handoff
from loopguard.stats import RunStats
from loopguard.telemetry import instruments, logs, lookup
from loopguard.telemetry.metrics import Snapshot, metrics
from loopguard.within import bind

P = ParamSpec("P")
R = TypeVar("R")

OnWarn = Literal["queue", "append"] | Callable[[Nudge], object]
OnRefuse = Literal["raise", "return"] | Callable[[ToolCallRefused], object]
OnStop = Literal["raise", "end"] | Callable[[RunStopped], object]

#: Excerpts of the last results that are kept to quote and to mask (a power of two); and their size in characters.
EXCERPTS = 32
EXCERPT_SIZE = 512
#: Runs below a run that it lists; of more only the youngest.
MOST_CHILDREN = 100
#: Internal errors after which a run only watches.
MOST_ERRORS = 3

_NO_EXCERPTS: list[tuple[int, str] | None] = [None] * EXCERPTS

_live: weakref.WeakSet[Run] = weakref.WeakSet()


class Live:
    """A guard in this run: what is needed on each call, looked up once."""

    __slots__ = ("arity", "bound", "guard", "inexact", "key_of", "kind", "mode", "plain", "seed")

    def __init__(self, run: Run, guard: Guard) -> None:
        policy = run.policy
        self.guard = guard
        self.bound = run.engine.bind(guard.tool)
        self.inexact = run.engine.bind(guard.tool, exact=False)
        self.mode: Mode = effective_mode(cast("Mode | None", guard.spec.mode), run.mode)
        if run.unsure and self.mode == "enforce":
            self.mode = "observe"
        # The seed holds the tool's name: equal arguments of two tools are different calls.
        self.seed = xxh3_64_intdigest(guard.tool.name.encode("utf-8", "surrogatepass"), run.seed)
        facts = guard.facts(policy, run.secret_key)
        self.kind = facts.kind
        self.key_of = facts.key_of
        #: With as many positional arguments, and no others, the arguments are the key's values; -1 = never.
        self.arity = guard.arity(facts)
        #: The kind is fixed and messages need no target: the key is all there is to find out about a call.
        self.plain = facts.plain and self.mode == "enforce"


@dataclass(frozen=True, slots=True)
class Options:
    """What a run does with warnings, refusals and stops."""

    on_warn: OnWarn = "queue"
    on_refuse: OnRefuse = "raise"
    on_stop: OnStop = "raise"
    on_finding: Callable[[Finding], object] | None = None


class Run:
    """A run that is open, or was. Made by ``guarded_run``."""

    #: What speaks for the run; ``loopguard.testing`` puts one that listens in its place.
    reporter: ClassVar[type[Reporter]] = Reporter

    __slots__ = (
        "__weakref__",
        "acquire",
        "_allowed",
        "_counts",
        "_errors",
        "excerpts",
        "handoff",
        "_lock",
        "release",
        "reply",
        "_shared",
        "tools",
        "untold",
        "would",
        "agent",
        "children",
        "clock",
        "closed",
        "direct",
        "dispatching",
        "engine",
        "id",
        "mode",
        "name",
        "named",
        "options",
        "owned",
        "parent",
        "plan",
        "policy",
        "report",
        "secret_key",
        "seed",
        "settings",
        "simple",
        "spans",
    )

    def __init__(
        self,
        name: str,
        *,
        plan: Plan,
        settings: Settings,
        run_id: str | None = None,
        agent: str | None = None,
        mode: Mode = "enforce",
        options: Options | None = None,
        parent: Run | None = None,
        shared: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        noise = os.urandom(40)
        self.name = name
        self.id = run_id or _uuid7(noise[:10])
        self.agent = agent
        self.plan = plan
        self.policy: Policy = plan.policy
        self.mode: Mode = mode
        self.parent = parent
        self.closed = False
        self.children: list[Run] = []
        self.settings = settings
        self.options = options or Options()
        key = deployment_key()
        #: Keys the digests of secrets and the fingerprints that telemetry shows.
        self.secret_key = key or noise[10:26]
        self.clock = clock or time.time
        self.engine: Engine
        self.seed: int
        self._lock: RunLock
        if shared and parent is not None:
            self.engine, self.seed, self._lock = parent.engine, parent.seed, parent._lock
            self.secret_key = parent.secret_key
            parent.make_excerpts()
        else:
            self.engine = Engine(plan)
            self._lock = RunLock()
            self.seed = digest(key, 0) if key else int.from_bytes(noise[26:34], "little")
        self._shared = shared and parent is not None
        prices.check(self.engine.limits.price)
        #: Who is asked when a limit is nearly used up; None where nobody wants to be.
        self.handoff: Handoff | None = None
        if self.engine.limits.on_handoff is not None:
            self.handoff = parent.handoff if shared and parent is not None else Handoff()
        self._take_lock()
        #: Results are compared as they are usually.
        self.simple = plan.simple
        self.tools: dict[Guard, Live] = {}
        #: Guards of tools that are called by name.
        self.named: dict[str, Guard] = {}
        #: Number and text of the last calls, each in a place that its number gives.
        self.excerpts: list[tuple[int, str] | None] = parent.excerpts if shared and parent else _NO_EXCERPTS
        self.would: dict[int, tuple[str, int]] = {}
        #: Findings for spans that are about to begin, by number of the call.
        self.untold: dict[int, Finding] = {}
        self._allowed: dict[str | None, int] = {}
        self.reply: int | None = None
        self._errors = 0
        #: Blocks of ``run.call`` that are open; a guarded tool inside may be the same call.
        self.dispatching = 0
        self.report = self.reporter(self)
        self.spans = lookup.spans_for_run(settings.telemetry)
        if self.spans is not None:
            self.report.parent_span = self.spans.parent()
        instruments.offer_instruments(settings.telemetry)
        metrics.expect(plan.expected)
        #: What the metrics read; it outlives a run that is dropped.
        self._counts = _Counts(self.engine, self._lock, self._shared, agent)
        metrics.register_run(self, self._counts, agent)
        _live.add(self)
        self.set_direct()
        if parent is not None:
            parent.children.append(self)
            del parent.children[:-MOST_CHILDREN]

    # -- the path of a call -----------------------------------------------------------------------------------------

    def admit(self, guard: Guard, args: tuple[Any, ...], kwargs: Mapping[str, Any], call_id: str | None = None) -> Any:
        """Ask for a call. Returns its number, 0 for a call that is not watched, or ``Instead``.

        Raises:
            ToolCallRefused: The call must not be executed.
            RunStopped: The run is over.
        """
        try:
            if self.owned():  # a signal handler or a finaliser, in the middle of what is locked
                return 0
            live = self.tools.get(guard)
            if live is None:
                live = self._adopt(guard)
            if self.dispatching and self._claimed(guard):
                return 0
            kind = live.kind
            target = 0
            bound = live.bound
            if live.plain:
                data, exact = arguments(live.key_of(args, kwargs))
                if not exact:
                    bound = live.inexact
            else:
                if live.mode == "off":
                    return 0
                kind, values, target_text = guard.describe(self.policy, self.secret_key, args, kwargs)
                data, exact = arguments(values)
                if target_text is not None:
                    target = digest(target_text.encode("utf-8", "surrogatepass"), self.seed)
                if not exact:
                    bound = live.inexact
            key = xxh3_64_intdigest(data, live.seed)
            at = self.clock()
            owner = self
            enforced = True
            with self._lock:
                seq = self.engine.start(at, bound, kind, key, target, self.reply)
                if isinstance(seq, Hit) and seq.action is not Action.WARN:
                    # In the same breath: another thread must not meet a stop that is lifted in a moment.
                    enforced = self._enforces(live, seq)
                    if not enforced:
                        self._let_through(bound, seq, at, kind, key, target)
            if isinstance(seq, int):
                charged = self._charge(live, seq, at, args, kwargs) if self.parent is not None else None
                if charged is None:
                    return seq
                seq, owner = charged
        except Exception as error:
            self.internal("run.admit", error)
            return 0
        return self.refused(live, seq, owner, enforced, args, kwargs, call_id)

    def _let_through(self, bound: Bound, hit: Hit, at: float, kind: int, key: int, target: int) -> None:
        """A refused attempt is executed after all; under the lock."""
        seq = self.engine.override(at, bound, kind, key, target, self.reply, hit.seq)
        last = self.engine.open[seq][0].op
        if hit.limit is not None:
            return  # a limit says nothing about the outcome
        self.would[seq] = (hit.rule, last.outcome if last is not None else 0)
        if len(self.would) > 1_000:
            del self.would[next(iter(self.would))]

    def done(
        self, guard: Guard, seq: int, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], handle: Any = None
    ) -> Any:
        """The tool returned. Returns what the caller gets: the result, or the result with a nudge appended."""
        try:
            engine = self.engine
            outcome: Outcome
            if type(result) is str and guard.simple and self.simple and result and result[0] not in HEADS:
                # The usual result, a text that is no failure: what ``guard.outcome_of`` would say, without asking it.
                raw = text_digest(result, self.seed)
                self.excerpts[seq & 31] = (seq, result if len(result) <= EXCERPT_SIZE else result[:EXCERPT_SIZE])
                call = engine.open.get(seq)
                before = call[0].op if call is not None else None
                if call is None or before is None or before.outcome == raw or not worth_masking(call[0], seq, result):
                    outcome = (0, raw)
                else:
                    outcome = (0, raw, 0, *guard.masked(self, before, result))
            else:
                outcome = guard.outcome_of(self, seq, result, args, kwargs)
            restarted = engine.restart_at
            with self._lock:
                hit = engine.end(self.clock(), seq, *outcome)
            if self.parent is not None:
                spending.warn_above(self, guard.tool.name, engine.restart_at != restarted)
            if hit is not None or self.would:
                return self.told(guard, hit, seq, result, args, kwargs, handle)
        except Exception as error:
            self._end_unknown(seq)
            return self.internal("run.done", error, result)
        return result

    def told(
        self,
        guard: Guard,
        hit: Hit | None,
        seq: int,
        result: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        handle: Any = None,
    ) -> Any:
        """What follows from an outcome: was it a false refusal, does it complete a warning. Returns the result."""
        if self.would:
            self._judge_false_refusal(seq)
        if hit is not None:
            return self._warned(guard, hit, seq, result, args, kwargs, handle)
        return result

    def failed(
        self,
        guard: Guard,
        seq: int,
        error: BaseException,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        handle: Any = None,
    ) -> None:
        """The tool raised."""
        try:
            outcome = guard.failure_of(self, seq, error, args, kwargs)
            now = self.clock()
            with self._lock:
                hit = self.engine.end(now, seq, *outcome)
            if self.parent is not None:
                spending.warn_above(self, guard.tool.name, restarted=False)
            self.told(guard, hit, seq, None, args, kwargs, handle)
        except Exception as internal:
            self._end_unknown(seq)
            self.internal("run.failed", internal)

    def _end_unknown(self, seq: int) -> None:
        """What came of the call cannot be told; it must not stay in flight for that."""
        try:
            with self._lock:
                self.engine.end(self.clock(), seq, Status.OK, UNKNOWN_OUTCOME)
        except Exception as error:
            _safety.report("run.end", error)

    def abandon(self, seq: int) -> None:
        """The call came to no outcome: cancelled, closed early, or its framework took over."""
        try:
            with self._lock:
                self.engine.end(self.clock(), seq, Status.ABANDONED)
        except Exception as error:
            self.internal("run.abandon", error)

    def set_direct(self) -> None:
        """Say whether the short way through ``wrappers.call`` holds: nothing is to be done but to ask the engine."""
        self.direct = (
            type(self).admit is Run.admit
            and not self.closed
            and self.parent is None
            and self.spans is None
            and not self.dispatching
            and not self._allowed
        )

    @property
    def unsure(self) -> bool:
        """True after several internal errors: whoever says otherwise, this run only watches."""
        return self._errors >= MOST_ERRORS

    def _take_lock(self) -> None:
        self.acquire, self.release, self.owned = self._lock.acquire, self._lock.release, self._lock.owned

    def _adopt(self, guard: Guard) -> Live:
        with self._lock:  # a tool has one row, however many threads call it first
            live = self.tools.get(guard)
            if live is None:
                self.make_excerpts()
                live = Live(self, guard)
                if len(self.tools) > 1_000:
                    self.tools.clear()
                self.tools[guard] = live
        if getattr(guard.binder, "declared", True):  # else a model may have made the name up
            metrics.register_tool(guard.tool.name)
        return live

    def _claimed(self, guard: Guard) -> bool:
        return claim(self, guard.tool.name)

    def _charge(
        self, live: Live, seq: int, at: float, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Hit, Run] | None:
        """Count the call in the runs above. One of them may forbid it: then it counts in none."""
        tool = live.guard.tool
        charged: list[Run] = []
        for run in self.ancestors():
            if run.mode == "off" or any(run.engine is other.engine for other in (self, *charged)):
                continue
            hit = self._tick(run, live, at, args, kwargs)
            if hit is not None:
                for other in charged:
                    with other._lock:
                        other.engine.untick(tool)
                with self._lock:
                    self.engine.withdraw(seq, hit.action)
                return hit._replace(seq=seq), run
            charged.append(run)
        return None

    @staticmethod
    def _tick(run: Run, live: Live, at: float, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hit | None:
        """Count a call below in this run, which may forbid it: the hit. A handoff comes first."""
        tool = live.guard.tool
        while True:
            with run._lock:
                before = run.engine.latch
                hit = run.engine.tick(tool, at)
                warns = hit is not None and hit.action is Action.WARN
                watched = hit is not None and not warns and before is None and run.mode != "enforce"
                if watched:  # in the same breath: nobody must meet a stop that is lifted in a moment
                    run.engine.lift()
                    run.engine.count_below(tool)
            if hit is None:
                return None
            if watched:
                if hit.report:
                    run.report.publish(run.report.finding(hit, live.guard, False), live.guard, args, kwargs)
                return None
            if not warns:
                return hit
            spending.warn(run, hit)

    def refused(
        self,
        live: Live,
        hit: Hit,
        owner: Run,
        enforced: bool,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call_id: str | None = None,
    ) -> Any:
        """An attempt met a rung: say so; then refuse it or end the run, unless the guard only watches."""
        guard = live.guard
        if hit.action is Action.WARN:
            # A limit is handed off before it acts: the attempt was not taken in, and is made again.
            try:
                spending.warn(owner, hit)
            except Exception as internal:
                self.internal("run.handoff", internal)
                return 0
            return Run.admit(self, guard, args, kwargs, call_id)
        seq = hit.seq
        try:
            finding = owner.report.finding(hit, guard, enforced)
            if hit.report:
                # A call that goes through will have a span of its own, in a moment: the finding belongs there.
                later = not enforced and self.spans is not None
                owner.report.publish(finding, guard, args, kwargs, spans=not later)
                if later:
                    self.untold[seq] = finding
            if not enforced:
                return seq
            error = owner.report.error(hit, finding, guard, args, kwargs)
            if self.spans is not None:
                self.spans.refused(
                    self.id, guard.tool.name, self.agent, seq, finding if hit.report else None, error, call_id=call_id
                )
        except Exception as internal:
            self.internal("run.refuse", internal)
            return 0
        try:
            if isinstance(error, RunStopped):
                owner.report.stop_seen(error, guard)
                if owner is not self:
                    self.report.stop_seen(error, None)
                raise error
            return self._answer(guard, error)
        finally:
            # A frame that holds the error it raised keeps the arguments alive until the collector comes by.
            del error

    def speaks_of(self, error: BaseException) -> bool:
        """True for an error of ours about this run or one around it: for the call that it passes it is no outcome.

        A run inside the call that was refused or stopped is a failure of the call.
        """
        if not issubclass(
            type(error), LoopguardError
        ):  # by type: ``isinstance`` may run code of a hostile ``__class__``
            return False
        told = error.__dict__.get("run_id")
        return told is None or any(run.id == told for run in (self, *self.ancestors()))

    def tell_span(self, seq: int, handle: Any) -> None:
        """The span of a call began: what was found when it was asked for, and only watched, goes there."""
        finding = self.untold.pop(seq, None)
        if finding is not None and self.spans is not None:
            self.spans.finding(handle, finding)

    @staticmethod
    def _how(guard: Guard, options: Options) -> OnRefuse:
        return cast("OnRefuse", guard.spec.on_refuse or options.on_refuse)

    def _answer(self, guard: Guard, error: ToolCallRefused) -> Instead:
        how = self._how(guard, self.options)
        try:
            if how == "raise":
                raise error
            return Instead(error, how if callable(how) else None)
        finally:
            del error

    def _enforces(self, live: Live, hit: Hit) -> bool:
        latch = self.engine.latch
        if hit.rule == "stop" or (latch is not None and latch.seq != hit.seq and hit.action is Action.STOP):
            return True  # a stop that was in force before this attempt
        if live.mode != "enforce":
            return False
        if hit.limit is not None:
            return True
        tool = live.guard.tool.name
        return not any(tool in run._allowed or None in run._allowed for run in (self, *self.ancestors()))

    def _judge_false_refusal(self, seq: int) -> None:
        """A call that would have been refused: was its outcome new?"""
        would = self.would.pop(seq, None)
        if would is not None:
            last = self.engine.history[-1] if self.engine.history else None
            if last is not None and last.seq == seq and last.outcome != would[1]:
                self.report.false_refusals[would[0]] = self.report.false_refusals.get(would[0], 0) + 1

    def _warned(
        self,
        guard: Guard,
        hit: Hit,
        seq: int,
        result: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        handle: Any,
    ) -> Any:
        if hit.rule == UNFED:
            spending.say_unfed(self, hit)
            return result
        live = self.tools.get(guard) or self._adopt(guard)
        enforced = live.mode == "enforce"
        finding = self.report.finding(hit, guard, enforced)
        self.report.publish(finding, guard, args, kwargs, handle)
        if hit.limit is not None:
            spending.hand_off(self, hit)
        if not enforced:
            return result
        return self.report.nudge(hit, finding, guard, seq, result, args, kwargs)

    def internal(self, where: str, error: Exception, result: Any = None) -> Any:
        """An error of ours: the call goes through with its result. A run with several of them only watches."""
        self._errors += 1
        if self._errors == MOST_ERRORS:
            if self.mode == "enforce":
                self.set_mode("observe")
            self.tools.clear()
            logs.warning("loopguard: %d internal errors in one run; it only watches from now on.", MOST_ERRORS)
        _safety.report(where, error)
        return result

    # -- excerpts ---------------------------------------------------------------------------------------------------

    def make_excerpts(self) -> None:
        """Make room for excerpts: a run in which nothing is called needs none."""
        if self.excerpts is _NO_EXCERPTS:
            self.excerpts = [None] * EXCERPTS

    def keep_excerpt(self, seq: int, text: str) -> None:
        """Keep the beginning of an outcome's text, to quote it and to compare it with volatile text taken out."""
        self.excerpts[seq & 31] = (seq, text if len(text) <= EXCERPT_SIZE else text[:EXCERPT_SIZE])

    def excerpt(self, seq: int) -> str | None:
        """The kept text of this call, if no later call took its place."""
        kept = self.excerpts[seq & 31]
        return kept[1] if kept is not None and kept[0] == seq else None

    # -- for hand-written agents ------------------------------------------------------------------------------------

    def call(self, tool: str, args: object = None, *, id: str | None = None) -> Call:
        """One call of a tool, as a block, sync or async: ``with run.call(name, args) as call: call.result = ...``.

        The call is asked for when the block is entered, and ends with it: by ``call.result``, by the exception that
        leaves it, or as abandoned when it is cancelled.

        Args:
            tool: Name of the tool; declarations come from the tool table.
            args: The arguments, usually a mapping.
            id: The model's id of the call; it goes into the span and the nudge.

        Raises:
            ToolCallRefused: On entering, if the call must not be executed.
            RunStopped: On entering, if the run is over.
        """
        return Call(self, tool, args, id)

    def begin(self, tool: str, args: object = None, *, id: str | None = None) -> Call:
        """Like ``call``, without a block: end it with ``finish``, ``fail`` or ``abandon``."""
        return self.call(tool, args, id=id).begin()

    def round(self) -> int:
        """A new reply of the model: the calls until the next one are one decision. Returns its number."""
        with self._lock:
            self.reply = self.engine.note_round()
            return self.reply

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """A callable that runs in a copy of this context with this run current, for executors that lose context."""
        return bind(self, function)

    @contextmanager
    def allow(self, *tools: str) -> Iterator[None]:
        """A block in which a loop of these tools is neither refused nor stopped (of all tools if none is named).

        It holds in the runs below too; limits hold all the same.
        """
        names: tuple[str | None, ...] = tools or (None,)
        for name in names:
            self._allowed[name] = self._allowed.get(name, 0) + 1
        self.set_direct()
        try:
            yield
        finally:
            for name in names:
                self._allowed[name] -= 1
                if not self._allowed[name]:
                    del self._allowed[name]
            self.set_direct()

    # -- notes ------------------------------------------------------------------------------------------------------

    def note_user_message(self) -> None:
        """A real message of the user arrived: evidence starts anew, and a stop that a loop caused is lifted."""
        with self._lock:
            stopped = self.engine.latch is not None
            self.engine.note_user_message()
            self.reply = None
        if stopped and self.engine.latch is None:
            self.report.stop_lifted()

    def note_compaction(self) -> None:
        """The model's memory was cut: each call may be repeated once without counting."""
        with self._lock:
            self.engine.note_compaction()

    def note_usage(
        self,
        input_tokens: int | None = 0,
        output_tokens: int | None = 0,
        cost: float | None = None,
        model: str | None = None,
    ) -> None:
        """What a reply of the model used. It counts for the limits of this run and of all runs around it.

        Args:
            input_tokens: Tokens that went in.
            output_tokens: Tokens that came out.
            cost: US dollars. None = reckoned by ``Limits(price=...)`` of this run, or of the nearest around it;
                without a price the usage counts as unpriced, never as free.
            model: The model's name, for its price.
        """
        try:
            spending.note_usage(self, input_tokens, output_tokens, cost, model)
        except Exception as error:
            self.internal("run.note_usage", error)

    def stop(self, reason: str) -> None:
        """End the run from outside: no further guarded call is executed in it, or below it."""
        latch = self.engine.latch
        if latch is not None and latch.rule == "stop":
            return
        if self.owned():
            # A signal handler has interrupted this thread in the middle of what is locked: this is one assignment.
            hit = self.engine.stop(str(reason))
        else:
            with self._lock:
                hit = self.engine.stop(str(reason))
        self.report.publish(self.report.finding(hit, None, True), None, (), {})

    def resume(self, reason: str) -> None:
        """Lift a stop; evidence starts anew, totals and findings stay. ``reason`` goes into the log."""
        with self._lock:
            self.engine.resume()
        self.report.resumed(reason)

    def set_mode(self, mode: Mode) -> None:
        """Switch the guard for this run: ``"enforce"``, ``"observe"`` or ``"off"``. ``LOOPGUARD_MODE`` still weakens."""
        if mode not in MODES:
            raise PolicyError(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}.")
        self.mode = effective_mode(mode)
        self.tools.clear()
        if not self.owned():  # else a signal handler has interrupted what is locked
            with self._lock:
                self.engine.books.tell_anew()

    def add_observer(self, observer: object) -> None:
        """Tell ``observer.on_loop_detected(pattern, repetitions)`` of each finding, as loopctl does."""
        self.report.observers.append(observer)

    def acknowledge_loop_warning(self, operations: Any) -> None:
        """Count the first of these operations (from ``check_loop``) as warned about."""
        first = next(iter(operations), None)
        if not isinstance(first, Operation):
            return
        with self._lock:
            for rule, evidence in self.engine.repeats(self.clock()):
                if evidence.key == first.key and evidence.outcome == first.outcome:
                    self.engine.acknowledge(evidence.pattern, rule, evidence)
                    return

    def pop_nudges(self) -> list[Nudge]:
        """The waiting nudges, oldest first; they count as delivered and are removed."""
        return self.report.pop_nudges()

    # -- readings ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """True while calls are watched here."""
        return not self.closed and self.mode != "off"

    @property
    def stopped(self) -> Finding | None:
        """The finding that ended this run or one above it, or None."""
        for run in (self, *self.ancestors()):
            if run.engine.latch is not None:
                return run.report.finding(run.engine.latch, None, True)
        return None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, oldest first: each rung of each pattern once."""
        return tuple(self.report.findings)

    @property
    def stats(self) -> RunStats:
        """Counts of the run so far; readable after the block too."""
        return self.report.stats()

    def ancestors(self) -> Iterator[Run]:
        """The runs around this one, innermost first."""
        run = self.parent
        while run is not None:
            yield run
            run = run.parent

    def check_loop(self) -> LoopStatus:
        """loopctl's reading: is a call repeated, which, how often, and is the next one going to be refused."""
        with self._lock:
            found = [(r, e) for r, e in self.engine.repeats(self.clock()) if e.warn and e.done >= e.warn]
            count = max((evidence.done for _, evidence in found), default=0)
            top = [(rule, evidence) for rule, evidence in found if evidence.done == count]
            last = {op.seq: op for op in self.engine.history}
            operations = tuple(last[e.seqs[-1]] for _, e in top if e.seqs and e.seqs[-1] in last)
            stop = any(evidence.stop and evidence.done >= evidence.stop for _, evidence in top)
        warning = None
        if operations:
            times = f"{operations[0].tool} gave the same result {count} times"
            warning = f"{times}; the next attempt will be refused" if stop else times
        return LoopStatus(bool(operations), operations, count, warning, stop)

    def max_operation_count(self) -> int:
        """How often the most repeated live operation was executed; 0 if nothing was."""
        with self._lock:
            return self.engine.max_operation_count()

    def close(self) -> None:
        """End the run. Later calls in it are not watched; a late outcome is dropped."""
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """``close`` for a block that ``error`` has left, which is then the run's outcome in the metrics."""
        if self.closed:
            return
        self.closed = True
        self.set_direct()
        self.report.close()
        for rule, broken in self.engine.broken:
            _safety.report(f"rule.{rule.name}", broken)
        _live.discard(self)
        with _safety.guarded("run.end"):
            self.report.tell_end(error)

    def __repr__(self) -> str:
        stats = self.stats
        state = "stopped" if self.engine.latch is not None else "closed" if self.closed else "open"
        return (
            f"<Run {self.name!r} {self.id[:8]} {state}: {stats.calls} calls, {stats.refused} refused, "
            f"{len(self.report.findings)} findings>"
        )


class _Counts:
    """What the metrics read of a run: while it lives, when it is closed, and once it was dropped without that."""

    __slots__ = ("agent", "engine", "lock", "shared")

    def __init__(self, engine: Engine, lock: RunLock, shared: bool, agent: str | None) -> None:
        self.engine = engine
        self.lock = lock
        self.shared = shared
        self.agent = agent

    def metrics_snapshot(self) -> Snapshot:
        """The counts so far."""
        calls: dict[tuple[str, str], int] = {}
        if self.shared:  # the run around it tells the same engine
            return {"max_operation_count": 0, "calls": calls, "agent": self.agent}
        with self.lock:
            for row in self.engine.rows.values():
                if row.calls:
                    calls[row.name, "allow"] = row.calls
                if row.refused:
                    calls[row.name, "refuse"] = row.refused
                if row.stopped:
                    calls[row.name, "stop"] = row.stopped
            most = self.engine.max_operation_count()
        return {"max_operation_count": most, "calls": calls, "agent": self.agent}


def _uuid7(noise: bytes) -> str:
    """A UUID of version 7: sorted by time, unique by 74 random bits."""
    number = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(noise, "big")
    number = number & ~(0xF << 76) | (0x7 << 76)
    number = number & ~(0x3 << 62) | (0x2 << 62)
    text = f"{number & (1 << 128) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def renew_locks() -> None:
    """After a fork: a lock may have been held by a thread that the child does not have."""
    locks: dict[int, RunLock] = {}
    for live in list(_live):
        # Runs that count together have one lock; a run above may have ended and is asked all the same.
        for run in (live, *live.ancestors()):
            run._lock = locks.setdefault(id(run.engine), RunLock())
            run._counts.lock = run._lock
            run._take_lock()
            if run.handoff is not None:
                run.handoff.renew()
