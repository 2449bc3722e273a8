"""Many threads in one run, signal handlers, and finalisers: nothing is lost, and nothing waits for itself.

Where one moment decides, the test makes the moment; the others go by chance, with threads that change all the time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopguard import Limits, LoopguardError, Run, RunStopped, ToolCallRefused, guarded_run, guarded_tool
from loopguard import budget as budget_module
from loopguard import index as index_module
from loopguard import ladder as ladder_module
from loopguard.engine import Engine


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(run: Run, threads: int, work: Callable[[int], object]) -> None:
    """The same work in many threads of this run, begun at one moment."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> None:
        barrier.wait()
        work(number)

    workers = [threading.Thread(target=run.bind(begin), args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class TwoMakers:
    """Makes something for two threads at once, if they let it: the second one is late, when the first has used its own."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.both = threading.Barrier(2)
        self.used = threading.Event()
        self.came: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.came.append(threading.get_ident())
        second = len(self.came) > 1
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(0.1)
        if second:
            self.used.wait(0.2)
        return self.make(*args, **kwargs)


# -- the first calls of a tool ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name", "limits"),
    [
        (index_module, "Row", {}),
        (budget_module, "Row", {"tool": 5}),
        (ladder_module, "deque", {}),
    ],
    ids=["row", "row of a limit", "history"],
)
def test_first_calls_at_one_moment_share_one_row(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, limits: dict[str, int]
) -> None:
    """Two threads that call a tool first are both counted, and both stand in the history."""
    makers = TwoMakers(getattr(module, name) if name != "deque" else deque)

    @guarded_tool(name="tool")
    def tool(x: int) -> str:
        return f"value {x}"

    def work(number: int) -> None:
        tool(number)
        makers.used.set()

    with guarded_run("r", limits=Limits(calls_per_tool=limits)) as run:
        monkeypatch.setattr(module, name, makers)
        together(run, 2, work)
        assert makers.came
        assert (run.stats.calls, len(run.engine.history), run.engine.rows["tool"].calls) == (2, 2, 2)


@pytest.mark.usefixtures("eager")
def test_the_limit_of_a_tool_holds_among_threads() -> None:
    """Of sixteen threads that call a tool first at one moment, as many get through as its limit says."""
    for _ in range(60):
        ran: list[int] = []

        @guarded_tool(name="lim")
        def lim(x: int, ran: list[int] = ran) -> str:
            ran.append(x)
            return f"value {x}"

        def attempt(number: int, lim: Callable[[int], object] = lim) -> None:
            with contextlib.suppress(ToolCallRefused):
                lim(number)

        with guarded_run("r", limits=Limits(calls_per_tool={"lim": 5})) as run:
            together(run, 16, attempt)
        assert (len(ran), run.stats.calls, run.stats.refused) == (5, 5, 11)


# -- watching ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_no_outcome_is_lost_where_everything_is_let_through() -> None:
    """In observe mode each call of twenty threads has its outcome, and none stays in flight."""

    @guarded_tool
    def same(x: int) -> str:
        return "nothing new"

    for _ in range(2):
        with guarded_run("r", mode="observe", limits=Limits(soft_calls=0)) as run:
            together(run, 20, lambda number: [same(number % 3) for _ in range(50)])
            assert (run.stats.calls, run.stats.turns_analyzed) == (1_000, 1_000)
            assert sum(entry.flight for entry in run.engine.keys.values()) == 0
            assert not run.engine.open


def test_a_call_that_is_let_through_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that another thread begins at that moment has a number of its own."""
    inside, leave = threading.Event(), threading.Event()

    @guarded_tool
    def same(x: int) -> str:
        return "nothing new"

    @guarded_tool
    def slow(x: int) -> str:
        inside.set()
        leave.wait(5)
        return "slow"

    threads: list[threading.Thread] = []
    enforces = Run._enforces

    def interrupted(self: Run, *args: Any) -> bool:
        if not threads:
            threads.append(threading.Thread(target=run.bind(slow), args=(1,)))
            threads[0].start()
            inside.wait(0.1)
        return enforces(self, *args)

    with guarded_run("r", mode="observe") as run:
        for _ in range(5):
            same(1)
        monkeypatch.setattr(Run, "_enforces", interrupted)
        same(1)
        leave.set()
        threads[0].join()
        assert run.stats.turns_analyzed == 7
        assert sum(entry.flight for entry in run.engine.keys.values()) == 0


# -- readings and ends ------------------------------------------------------------------------------------------------


def test_stats_may_be_read_while_a_tool_is_called_first() -> None:
    """A reading counts all rows or none of a new one, whatever another thread does meanwhile."""
    threads: list[threading.Thread] = []

    class Rows(dict[str, Any]):
        """Another thread calls a new tool between two rows."""

        def values(self) -> Any:
            for row in super().values():
                if not threads:
                    threads.append(threading.Thread(target=first_call))
                    threads[0].start()
                    threads[0].join(0.1)
                yield row

    with guarded_run("r") as run:

        def first_call() -> None:
            with run.call("newcomer", {"a": 1}) as call:
                call.result = "x"

        for name in ("one", "two"):
            with run.call(name, {"a": 1}) as call:
                call.result = "x"
        run.engine.rows = Rows(run.engine.rows)
        assert run.stats.calls == 2
        threads[0].join()
        assert run.stats.calls == 3


@pytest.mark.parametrize("direct", [True, False], ids=["short", "long"])
@pytest.mark.parametrize("result", ["usual", "Error: failed", {"a": 1}, ValueError("raised")], ids=str)
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_calls_in_flight_change_under_the_lock(mode: Any, result: object, direct: bool) -> None:
    """Whichever way a call begins and ends, it is entered and taken out where no other thread can look."""
    locked: list[bool] = []

    class Open(dict[int, Any]):
        """Writes down who holds the lock when it changes."""

        def __setitem__(self, seq: int, call: Any) -> None:
            locked.append(run.owned())
            super().__setitem__(seq, call)

        def __delitem__(self, seq: int) -> None:
            locked.append(run.owned())
            super().__delitem__(seq)

        def pop(self, *args: Any) -> Any:
            locked.append(run.owned())
            return super().pop(*args)

    @guarded_tool
    def tool(x: int) -> object:
        if isinstance(result, Exception):
            raise result
        return result

    with guarded_run("r", mode=mode, on_stop="end") as run:
        run.engine.open = Open()
        run.direct = run.direct and direct
        for _ in range(7):
            with contextlib.suppress(ValueError, ToolCallRefused):
                tool(1)
        assert len(locked) >= 10
        assert all(locked)


@pytest.mark.usefixtures("eager")
def test_calls_begin_and_end_in_all_threads() -> None:
    """No call goes unwatched because another one ends while it begins."""

    @guarded_tool
    def tool(x: object) -> str:
        return f"value {x}"

    for _ in range(4):
        with guarded_run("r", limits=Limits(soft_calls=0)) as run:
            together(run, 20, lambda number: [tool((number, turn)) for turn in range(60)])
            assert run._errors == 0
            assert (run.stats.calls, run.stats.turns_analyzed) == (1_200, 1_200)


def test_a_child_may_be_closed_while_its_call_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run above forbids a call whose own run has just been closed: the caller gets the stop."""

    @guarded_tool
    def tool(x: int) -> int:
        return x

    with guarded_run("p", on_stop="end"), guarded_run("c", on_stop="end") as child:
        tool(0)

        def tick(self: Engine, tool: object, at: object) -> object:
            child.close()
            return self.stop("meanwhile")

        with monkeypatch.context() as patched:
            patched.setattr(Engine, "tick", tick)
            with pytest.raises(RunStopped):
                tool(1)


# -- code that Python runs in between ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "executed"), [("stop", [0]), ("call", [0, "inside", 1, 2]), ("read", [0, 1, 2])])
def test_code_that_interrupts_a_decision_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, what: str, executed: list[object]
) -> None:
    """In the middle of its own thread's decision a handler may stop the run and call its tools; a reading raises."""
    ran: list[object] = []

    @guarded_tool
    def tool(x: object) -> str:
        ran.append(x)
        return f"value {x}"

    def handler(run: Run) -> None:
        if what == "stop":
            run.stop("time is up")
        elif what == "call":
            tool("inside")
        else:
            with pytest.raises(LoopguardError, match="in use"):
                _ = run.stats
            interrupted.append(2)

    interrupted: list[int] = []
    start = Engine.start

    def interrupting(self: Engine, *args: Any) -> Any:
        if ran and not interrupted:
            interrupted.append(1)
            handler(runs[0])
        return start(self, *args)

    runs: list[Run] = []

    def work() -> None:
        with guarded_run("r", on_stop="end") as run:
            runs.append(run)
            for number in range(3):
                tool(number)

    monkeypatch.setattr(Engine, "start", interrupting)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert interrupted == ([1, 2] if what == "read" else [1])
    assert ran == executed
    assert (runs[0].stopped is not None) == (what == "stop")


def run_python(code: str) -> None:
    """Run this code in a process of its own, which must come to an end."""
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], timeout=20, check=True, capture_output=True, text=True
    )


def test_a_signal_handler_may_stop_the_run() -> None:
    """A handler of SIGALRM that says ``run.stop()`` at any moment ends the run, and the process goes on."""
    run_python(
        """
        import logging, signal, time
        logging.disable()
        from loopguard import Limits, guarded_run, guarded_tool

        @guarded_tool
        def tool(x):
            return f"value {x}"

        end, runs = time.time() + 2, 0
        while time.time() < end:
            with guarded_run("r", limits=Limits(soft_calls=0), on_stop="end") as run:
                signal.signal(signal.SIGALRM, lambda *args: run.stop("time is up"))
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                calls = 0
                while True:
                    tool(calls)
                    calls += 1
            assert run.stopped is not None
            runs += 1
        assert runs > 10
        """
    )


def test_a_finaliser_may_call_a_guarded_tool() -> None:
    """A session whose ``__del__`` calls a tool may be collected at any moment, also in the middle of a decision."""
    run_python(
        """
        import gc, logging, time
        logging.disable()
        from loopguard import Limits, guarded_run, guarded_tool

        @guarded_tool
        def tool(x):
            return f"value {x}"

        closed = 0

        class Session:
            def __init__(self):
                self.me = self

            def __del__(self):
                global closed
                closed += 1
                tool(f"close {closed}")

        end = time.time() + 2
        with guarded_run("r", limits=Limits(soft_calls=0)) as run:
            calls = 0
            while time.time() < end:
                calls += 1
                gc.set_threshold(3 + calls % 97)
                Session()
                tool(calls)
        assert closed > 100
        assert run._errors == 0
        """
    )
