"""``guarded_run``: opening and leaving runs, and which one is current.

The context variable holds the run itself, so what a thread or a child task records is seen by all.
Leaving never uses a token: a scope may be left in another context than it was entered in (an async generator closed
by another task), where resetting by token raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from loopguard.config import effective_mode, policy_of, settings
from loopguard.context import current
from loopguard.errors import PolicyError, RunStopped
from loopguard.no_run import NO_RUN, NoRun
from loopguard.policy import MODES, Mode, Plan, Policy
from loopguard.records import Finding
from loopguard.rules import Limits
from loopguard.run import OnRefuse, OnStop, OnWarn, Options, Run, renew_locks
from loopguard.within import within

P = ParamSpec("P")
R = TypeVar("R")

#: Plans of the policies seen last: runs are opened often, policies are few.
_plans: list[tuple[Policy, Limits | None, Plan]] = []
#: Not empty once forks are looked after: with the first run, not at import.
_forks: list[bool] = []

#: What runs are made of, and their clock (seconds since the epoch; None = the system's).
#: ``loopguard.testing`` puts its own in their place.
run_class: type[Run] = Run
clock: Callable[[], float] | None = None


def plan_for(policy: Policy, limits: Limits | None) -> Plan:
    """The policy made ready, shared by all runs that use it."""
    for known, known_limits, plan in _plans:
        if (known is policy or known == policy) and known_limits == limits and known.signature is policy.signature:
            return plan
    plan = Plan(policy, limits)
    _plans.insert(0, (policy, limits, plan))
    del _plans[32:]
    return plan


def current_run() -> Run | NoRun:
    """The run that is open here. Outside of one, an object that takes everything and does nothing."""
    run = open_run()
    return run if run is not None else NO_RUN


def open_run() -> Run | None:
    """The innermost open run of this context, or None."""
    run = current.get()
    while run is not None and run.closed:
        run = run.parent
    return run


class guarded_run:  # noqa: N801 - reads as a verb: ``with guarded_run("triage") as run``
    """The scope in which operations are compared: one task of one agent.

    A context manager, sync and async, and a decorator for plain, coroutine and generator functions.
    A run inside a run is a sub-agent: its own evidence, the limits of all runs around it.
    Runs that overlap may be left in any order: a run that was left is never the current one again.

    ```python
    with guarded_run("triage", limits=Limits(calls=200)) as run: ...
    ```

    Args:
        name: The kind of work, of few values; it stands in messages and telemetry.
        run_id: This run; a UUID of version 7 if left out.
        agent: Name of the agent, for telemetry.
        policy: A ``Policy``, the name of a preset, or a TOML file; None = as configured.
        limits: Limits of this run; they replace the policy's.
        tools: Tables of tools by name, for ``run.call``; added to the configured ones.
        mode: ``"enforce"``, ``"observe"`` or ``"off"``; ``LOOPGUARD_MODE`` can only weaken it.
        evidence: ``"own"``, or ``"parent"`` to count together with the run around it.
        on_warn: ``"queue"`` (``run.pop_nudges()``), ``"append"`` (below a ``str`` result), or a callable that gets
            the ``Nudge``.
        on_refuse: ``"raise"`` ``ToolCallRefused``, ``"return"`` its ``for_model()`` as the result, or a callable
            that gets the error and returns what stands for the result.
        on_stop: ``"raise"``: the block of a stopped run is left with ``RunStopped``, also where it was swallowed
            inside. ``"end"``: the block swallows its own ``RunStopped``. A callable is told of the stop, and the
            block is left as with ``"end"``.
        on_finding: Called with each ``Finding``.

    Raises:
        PolicyError: For a value that cannot be meant.
    """

    def __init__(
        self,
        name: str,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        policy: Policy | str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        tools: Any = None,
        mode: Mode | None = None,
        evidence: Literal["own", "parent"] = "own",
        on_warn: OnWarn = "queue",
        on_refuse: OnRefuse = "raise",
        on_stop: OnStop = "raise",
        on_finding: Callable[[Finding], object] | None = None,
    ) -> None:
        if callable(name):
            raise TypeError('guarded_run needs a name: @guarded_run("my-agent").')
        for option, value, known in (
            ("on_warn", on_warn, ("queue", "append")),
            ("on_refuse", on_refuse, ("raise", "return")),
            ("on_stop", on_stop, ("raise", "end")),
        ):
            if not callable(value) and value not in known:
                raise PolicyError(f"{option}={value!r} is not a callable, nor one of {', '.join(map(repr, known))}.")
        if evidence not in ("own", "parent"):
            raise PolicyError(f"evidence={evidence!r} is not one of 'own', 'parent'.")
        if mode is not None and mode not in MODES:
            raise PolicyError(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}.")
        if limits is not None and not isinstance(limits, Limits):
            raise PolicyError(f"limits={limits!r} is not a Limits: guarded_run(..., limits=Limits(calls=200)).")
        self._name = str(name)
        self._run_id = str(run_id) if run_id is not None else None
        self._agent = str(agent) if agent is not None else None
        self._policy = policy_of(policy) if policy is not None else None
        self._limits = limits
        self._tools = tools
        self._mode = mode
        self._evidence = evidence
        self._options = Options(on_warn, on_refuse, on_stop, on_finding)
        self._run: Run | None = None
        self._span: Any = None

    def _open(self) -> Run:
        if self._run is not None and not self._run.closed:
            raise RuntimeError("This guarded_run is open already; make a new one for each block.")
        if not _forks:
            _forks.append(True)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=renew_locks)
        now = settings()
        policy = self._policy if self._policy is not None else now.policy
        if self._tools is not None:
            now = now.with_tools(self._tools, policy)
        parent = open_run()
        if parent is not None and self._evidence == "parent" and (self._policy is not None or self._limits is not None):
            raise PolicyError(
                'evidence="parent" counts with the run around it, by its policy and limits; give none here.'
            )
        own = self._policy.mode if self._policy is not None and self._policy.mode != "enforce" else None
        mode = effective_mode(self._mode, own, now.mode, policy.mode)
        plan = plan_for(policy, self._limits or now.limits)
        if parent is not None and self._evidence == "parent":
            plan, mode = parent.plan, effective_mode(self._mode, parent.mode)
        run = run_class(
            self._name,
            plan=plan,
            settings=now,
            run_id=self._run_id,
            agent=self._agent or (parent.agent if parent is not None else None),
            mode=mode,
            options=self._options,
            parent=parent,
            shared=self._evidence == "parent",
            clock=clock,
        )
        self._run = run
        current.set(run)
        return run

    def _leave(self, error: BaseException | None) -> bool:
        run = self._run
        if run is None:
            return False
        run.end(error)
        if current.get() is run:
            current.set(open_run())
        stopped = run.stopped
        if stopped is None:
            return False
        on_stop = run.options.on_stop
        if on_stop != "raise":
            return _only_stops(error) and run.engine.latch is not None
        if error is None:
            own = run.report.stop_error()
            if own is not None:
                raise own
        return False

    def __enter__(self) -> Run:
        return self._open()

    # "bool | None": type checkers take a plain "bool" to mean that any exception may be swallowed, and complain about
    # every ``return`` inside a block. Only ``on_stop="end"`` swallows, and only the run's own stop.
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._leave(error)

    async def __aenter__(self) -> Run:
        return self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._leave(error)

    def _again(self) -> Self:
        """A fresh scope with the same settings, for each call of a decorated function."""
        scope = object.__new__(type(self))
        scope.__dict__.update(self.__dict__)
        scope._run = scope._span = None
        return scope

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Open a run around each call of the function."""
        return within(function, self._again)


def _only_stops(error: BaseException | None) -> bool:
    """True for a stop, and for what a task group makes of several."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(RunStopped)[1] is None
    return isinstance(error, RunStopped)
