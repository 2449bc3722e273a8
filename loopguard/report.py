"""What a run says: findings, nudges, errors, statistics, and who is told.

Off the usual path: nothing here runs on a call that is nothing to talk about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loopguard import _safety, wording
from loopguard.budget import Usage
from loopguard.errors import LimitReached, LimitRefused, LoopRefused, LoopStopped, RunStopped, ToolCallRefused
from loopguard.fingerprint import keyed_hex
from loopguard.records import Action, Finding, Hit, Status
from loopguard.stats import RunStats
from loopguard.telemetry import logs, lookup, names
from loopguard.telemetry.metrics import metrics

if TYPE_CHECKING:
    from loopguard.guard import Guard
    from loopguard.run import Run

#: Findings and nudges kept in a run; there is one finding per rung and pattern, so this is far away.
MOST_FINDINGS = 1_000
MOST_SEQS = 10
#: Listeners of a stop that are told only once.
MOST_LISTENERS = 100

_NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Nudge:
    """A sentence for the model about what was seen; it states the observation and prescribes nothing.

    ``call_id`` is the model's id of the call, where the caller gave it.
    """

    # Not in the repr, which lands in logs: it quotes the target of the call and what came back.
    text: str = field(repr=False)
    tool: str
    call_id: str | None
    finding: Finding

    def __str__(self) -> str:
        return self.text


class Reporter:
    """The voice of one run."""

    __slots__ = (
        "_final",
        "_nudges",
        "_told",
        "_secret",
        "_undelivered",
        "budget",
        "call_ids",
        "false_refusals",
        "findings",
        "nudged",
        "observers",
        "parent_span",
        "run",
        "unpriced_models",
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self.budget = run.policy.nudge_budget
        self.findings: list[Finding] = []
        self.observers: list[object] = []
        #: Calls that observe mode let through and whose outcome turned out new, by rule.
        self.false_refusals: dict[str, int] = {}
        #: The model's ids of the calls in flight, where they were given.
        self.call_ids: dict[int, str] | None = None
        self.nudged = 0
        #: Models without a price that the log named.
        self.unpriced_models: frozenset[str] = frozenset()
        #: The span that was current when the run opened.
        self.parent_span: Any = None
        self._nudges: deque[tuple[Nudge, int]] | None = None
        self._undelivered = 0
        #: Who was told of the stop: listeners, by identity.
        self._told: list[object] = []
        self._final: RunStats | None = None

    # -- findings ---------------------------------------------------------------------------------------------------

    def finding(self, hit: Hit, guard: Guard | None, enforced: bool) -> Finding:
        """The hit as everybody may see it."""
        run = self.run
        evidence = hit.evidence
        return Finding(
            rule=hit.rule,
            action=hit.action,
            tool=hit.tool,
            repetitions=evidence.done,
            threshold=hit.threshold,
            seqs=evidence.seqs[-MOST_SEQS:],
            first_seq=evidence.seqs[0] if evidence.seqs else 0,
            message=wording.sentence(hit, run.name, enforced),
            fingerprint=keyed_hex(repr((*evidence.pattern, hit.tool)).encode(), run.secret_key),
            enforced=enforced,
            run_name=run.name,
            run_id=run.id,
            refused=hit.refused,
            wasted_s=evidence.wasted_s,
            first_at=evidence.first_at,
            last_at=evidence.last_at,
            also=hit.also,
        )

    def publish(
        self,
        finding: Finding,
        guard: Guard | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        handle: Any = None,
        spans: bool = True,
    ) -> None:
        """Keep a finding and tell the log, telemetry, observers and callbacks. Each of them may fail alone.

        Without ``spans`` the span is told later, when it begins.
        """
        run = self.run
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)
        with _safety.guarded("log"):  # a filter or handler of the user may raise
            logs.log_finding(finding)
        metrics.add(
            names.DETECTIONS,
            tool=finding.tool,
            rule=finding.rule,
            action=str(finding.action),
            enforced=finding.enforced,
        )
        key_text = guard.key_text_if_captured(run, args, kwargs) if guard is not None else None
        if spans and (finding.action is Action.WARN or not finding.enforced or guard is None or run.spans is None):
            backend = run.spans or lookup.spans_for_findings(run.settings.telemetry)
            if backend is not None:
                backend.finding(handle, finding, key_text)
        callbacks: list[Any] = [run.options.on_finding, run.settings.on_finding]
        for callback in callbacks:
            if callback is not None:
                with _safety.guarded("callback"):
                    callback(finding)
        for observer in self.observers:
            with _safety.guarded("observer"):
                target = guard.target(args, kwargs, declared=True) if guard is not None else None
                pattern = f"{finding.tool}({target[1] if target else ''})"
                observer.on_loop_detected(pattern, finding.repetitions)  # type: ignore[attr-defined]

    # -- nudges -----------------------------------------------------------------------------------------------------

    def nudge(
        self,
        hit: Hit,
        finding: Finding,
        guard: Guard,
        seq: int,
        result: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Deliver or queue the nudge of a warning. Returns the result, with the nudge below it if so wished."""
        if self.nudged >= self.budget:
            return result
        how = guard.spec.on_warn or self.run.options.on_warn
        nudge = self.nudge_for(finding, guard, seq, args, kwargs)
        self.nudged += 1
        key = hit.evidence.key
        if how == "append":
            if isinstance(result, str):
                self.delivered(hit.rule, key)
                return f"{result}\n\n[{nudge.text}]"
        elif callable(how):
            with _safety.guarded("on_warn"):
                how(nudge)
                self.delivered(hit.rule, key)
            return result
        self._queue(nudge, key)
        return result

    def nudge_of_limit(self, finding: Finding) -> None:
        """Deliver or queue the nudge of a limit that no call of this run brought about."""
        if self.nudged >= self.budget:
            return
        nudge = self.nudge_for(finding, None, 0, (), {})
        self.nudged += 1
        how = self.run.options.on_warn
        if callable(how):
            with _safety.guarded("on_warn"):
                how(nudge)
        else:
            self._queue(nudge, 0)

    def _queue(self, nudge: Nudge, key: int) -> None:
        if self._nudges is None:
            self._nudges = deque(maxlen=MOST_FINDINGS)
        self._nudges.append((nudge, key))

    def nudge_for(
        self, finding: Finding, guard: Guard | None, seq: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Nudge:
        """The sentence for the model."""
        if guard is None:
            return Nudge(wording.nudge_text(finding, None, None, None), finding.tool, None, finding)
        excerpt = guard.without_secrets(self.run.excerpt(seq), args, kwargs)
        text = wording.nudge_text(finding, guard.target(args, kwargs), excerpt, guard.suggestion(args, kwargs))
        return Nudge(text, finding.tool, (self.call_ids or {}).get(seq), finding)

    def delivered(self, rule: str, key: int) -> None:
        """A nudge reached the model: from now on watch whether it is heeded."""
        with self.run._lock:
            self.run.engine.note_nudge(rule, key)

    def pop_nudges(self) -> list[Nudge]:
        """The waiting nudges; they count as delivered."""
        if not self._nudges:
            return []
        waiting, self._nudges = list(self._nudges), None
        for nudge, key in waiting:
            self.delivered(nudge.finding.rule, key)
        return [nudge for nudge, _ in waiting]

    # -- errors -----------------------------------------------------------------------------------------------------

    def error(
        self, hit: Hit, finding: Finding, guard: Guard | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ToolCallRefused | RunStopped:
        """The exception for a refused call or an ended run, with its three texts."""
        message = finding.message
        if hit.action is Action.STOP:
            text = wording.stopped_text(message)
            stopped: RunStopped
            if hit.limit is not None:
                name, used, allowed = hit.limit
                stopped = LimitReached(message, limit=name, used=used, allowed=allowed, _model_text=text)
            elif hit.rule == "stop":
                stopped = RunStopped(message, _model_text=text)
            else:
                stopped = LoopStopped(message, finding=finding, _model_text=text)
            self._note(stopped, finding)
            return stopped
        target = guard.target(args, kwargs) if guard is not None else None
        suggestion = guard.suggestion(args, kwargs) if guard is not None else None
        excerpt = None
        # What this very call gave: the others of a pattern may have had other secrets.
        entry = self.run.engine.keys.get(hit.evidence.key)
        last = entry.op if entry is not None else None
        if guard is not None and last is not None and guard.secrets_are_in_key(args, kwargs, self.run.policy):
            excerpt = guard.without_secrets(self.run.excerpt(last.seq), args, kwargs)
        text = wording.refused_text(finding, target, excerpt, suggestion, self.run.policy.restarts)
        refused: ToolCallRefused
        if hit.limit is not None:
            name, used, allowed = hit.limit
            refused = LimitRefused(message, tool=hit.tool, limit=name, used=used, allowed=allowed, _model_text=text)
        else:
            refused = LoopRefused(message, tool=hit.tool, finding=finding, _model_text=text)
        self._note(refused, finding)
        return refused

    def _note(self, error: ToolCallRefused | RunStopped, finding: Finding) -> None:
        restarted = ""
        if finding.seqs and self.run.policy.restarts:
            restarted = f"restarts that were looked for: a successful write, a user message. None since call {finding.first_seq}"
        error.run_id = finding.run_id
        for line in wording.notes(finding, restarted):
            error.add_note(line)

    def stop_error(self) -> RunStopped | None:
        """A fresh error for the stop of this run, or None if it is not stopped."""
        latch = self.run.engine.latch
        if latch is None:
            return None
        error = self.error(latch, self.finding(latch, None, True), None, (), {})
        return error if isinstance(error, RunStopped) else None

    def stop_seen(self, error: RunStopped, guard: Guard | None) -> None:
        """The stop is about to be raised; the ``on_stop`` of the run and of each tool that meets it hear of it once."""
        for on_stop in (self.run.options.on_stop, guard.spec.on_stop if guard is not None else None):
            if callable(on_stop) and not any(on_stop is one for one in self._told):
                if len(self._told) < MOST_LISTENERS:
                    self._told.append(on_stop)
                with _safety.guarded("on_stop"):
                    on_stop(error)

    def stop_lifted(self) -> None:
        """The next stop is another one."""
        self._told.clear()

    def tell_end(self, error: BaseException | None) -> None:
        """Tell telemetry how the run ended: ``error`` is what left its block."""
        run = self.run
        stats = self.stats()
        if any(one.engine.latch is not None for one in (run, *run.ancestors())):
            outcome = "stopped"
        else:
            # A generator that is closed early has not failed.
            outcome = "completed" if error is None or isinstance(error, GeneratorExit) else "failed"
        if self.parent_span is not None and run.spans is not None:
            run.spans.run_end(self.parent_span, outcome, stats.calls, len(self.findings), stats.wasted_calls)
        self.parent_span = None
        for row in run.engine.rows.values():
            if row.wasted and not run._shared:
                metrics.add(names.WASTED_CALLS, row.wasted, tool=row.name)
        for rung, counts in stats.by_rule.items() if not run._shared else ():
            rule, _, action = rung.partition(".")
            for result, n in counts.items():
                metrics.add(names.INTERVENTIONS, n, rule=rule, action=action, outcome=result)
        metrics.run_closed(run, outcome)

    def resumed(self, reason: str) -> None:
        """The stop was lifted."""
        self.stop_lifted()
        logs.logger.info("loopguard: run %r goes on: %s", self.run.name, logs.one_line(reason))

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The run ended: settle what was followed, say what never reached the model."""
        run = self.run
        with run._lock:
            if not run._shared:
                # Whoever still executes them: their late outcome finds nothing to be an outcome of.
                for seq in list(run.engine.open):
                    run.engine.end(None, seq, Status.ABANDONED)
                run.engine.late.clear()
            if not run._shared:
                run.engine.books.close()
        if self._nudges:
            self._undelivered = len(self._nudges)
            for nudge, _ in self._nudges:
                metrics.add(names.INTERVENTIONS, rule=nudge.finding.rule, action="warn", outcome="undelivered")
            logs.warning(
                "loopguard: %d nudge%s of run %r never reached the model. Add run.pop_nudges() to the messages%s.",
                self._undelivered,
                "s" if self._undelivered != 1 else "",
                run.name,
                '; on_warn="append" adds to results that are text'
                if run.options.on_warn == "append"
                else ', or say guarded_run(..., on_warn="append")',
            )
        self._final = self._read()
        self.call_ids = None

    def stats(self) -> RunStats:
        """The counts so far; those of the end once the run is closed."""
        return self._final or self._read()

    def _read(self) -> RunStats:
        run = self.run
        engine = run.engine
        with run._lock:
            totals = dict(engine.totals)
            books = engine.books
            heeded, ignored = dict(books.heeded), dict(books.ignored)
            streak = engine.max_operation_count()
            executed = engine.n
            usage = copy(engine.usage) or _NO_USAGE
            calls = sum(row.calls for row in engine.rows.values())
        by_rule: dict[str, dict[str, int]] = {}
        for word, counts in (("heeded", heeded), ("ignored", ignored)):
            for (rule, rung), n in counts.items():
                by_rule.setdefault(f"{rule}.{rung}", {})[word] = n
        return RunStats(
            calls=calls,
            refused=int(totals["refused"]),
            failed=int(totals["failed"]),
            abandoned=int(totals["abandoned"]),
            warned=int(totals["warned"]),
            heeded=sum(heeded.values()),
            ignored=sum(ignored.values()),
            nudges_undelivered=self._undelivered or (len(self._nudges) if self._nudges else 0),
            wasted_calls=int(totals["wasted"]),
            wasted_seconds=totals["wasted_s"],
            false_refusals=sum(self.false_refusals.values()),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost=usage.cost,
            unpriced_calls=usage.unpriced,
            unpriced_tokens=usage.unpriced_tokens,
            turns_analyzed=executed,
            loops_detected=int(totals["looped"]),
            current_streak=streak,
            by_rule=by_rule,
        )
