"""Processes: what an import starts, forks, spawned workers, and a store that is away."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import loopguard
from loopguard import (
    LoopRefused,
    Policy,
    RunStopped,
    Telemetry,
    ToolCallRefused,
    configure,
    flush,
    guarded_run,
    guarded_tool,
)
from loopguard.run import _live
from loopguard.telemetry.metrics import metrics

PACKAGE_PARENT = Path(loopguard.__file__).parents[1]


def python(code: str, tmp_path: Path, timeout: float = 60, **variables: str) -> str:
    """Run this code as a script of its own; returns what it printed."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    path = os.pathsep.join([str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-no-threads-at-import")
def test_nothing_is_started(tmp_path: Path) -> None:
    """Importing everything public, making guards and running them starts no thread and adds few fork hooks."""
    said = python(
        """
        import os, threading
        hooks = []
        real = os.register_at_fork
        os.register_at_fork = lambda **given: (hooks.append(given), real(**given))
        import loopguard
        assert threading.active_count() == 1
        for name in loopguard.__all__:
            getattr(loopguard, name)
        hooks = [one for one in hooks if "loopguard" in next(iter(one.values())).__module__]
        assert len(hooks) <= 3, hooks

        @loopguard.guarded_tool
        def search(query):
            return "same"

        assert threading.active_count() == 1
        for _ in range(20):
            with loopguard.guarded_run("r", on_refuse="return"):
                for _ in range(6):
                    search("x")
        mine = [one for one in hooks if "loopguard" in next(iter(one.values())).__module__]
        assert len(mine) <= 3, mine
        assert threading.active_count() == 1
        print("fine")
        """,
        tmp_path,
    )
    assert said == "fine\n"


class Slow(SpanExporter):
    """Takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def export(self, spans: Any) -> SpanExportResult:
        time.sleep(self.seconds)
        return SpanExportResult.SUCCESS


@pytest.mark.scenario("ins-no-threads-at-import")
def test_flush_sends_what_waits() -> None:
    """One call sends the spans that wait in a batch, as a worker does before it is recycled."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))

    @guarded_tool
    def search(query: str) -> str:
        return "same"

    with configure(telemetry=Telemetry(tracer_provider=provider)):
        with guarded_run("r"):
            search("x")
        assert not exporter.get_finished_spans()
        assert flush(5.0) is True
        assert [span.name.partition(" ")[0] for span in exporter.get_finished_spans()] == ["execute_tool"]
    provider.shutdown()


@pytest.mark.scenario("ins-no-threads-at-import")
def test_flush_keeps_to_its_time() -> None:
    """An exporter that hangs delays the call by no more than the time-out, and is said to be late."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Slow(1.5), schedule_delay_millis=60_000))

    @guarded_tool
    def search(query: str) -> str:
        return "same"

    with configure(telemetry=Telemetry(tracer_provider=provider)):
        with guarded_run("r"):
            search("x")
        start = time.perf_counter()
        assert flush(0.2) is False
        assert time.perf_counter() - start < 1.0
    provider.shutdown()


@pytest.mark.scenario("ins-no-threads-at-import")
def test_flush_without_telemetry_is_done_at_once() -> None:
    """With nothing to send there is nothing to wait for."""
    start = time.perf_counter()
    assert flush(5.0) is True
    assert time.perf_counter() - start < 1.0


# -- forks ------------------------------------------------------------------------------------------------------------

_FORKS = """
    import faulthandler, os, signal, sys, threading, time
    from loopguard import Telemetry, configure, current_run, guarded_run, guarded_tool
    from loopguard.telemetry.metrics import metrics

    forks = int(os.environ["FORKS"])
    if os.environ["SDK"] == "yes":
        # Not the metrics of the SDK: their own locks are not renewed in a child, and it hangs without us too.
        from opentelemetry.sdk.trace import TracerProvider
        configure(telemetry=Telemetry(tracer_provider=TracerProvider()))

    @guarded_tool
    def search(query):
        return "same"

    done = threading.Event()
    calls = 0

    def busy():
        global calls
        while not done.is_set():
            with guarded_run("busy", on_refuse="return") as run:
                for n in range(200):
                    search(f"q{n % 50}")
                    calls += 1
                    if n % 20 == 0:
                        configure(outside_run="ignore")
                        metrics.series("loopguard.calls")

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    with guarded_run("parent") as parent:
        search("x"), search("x")
        for n in range(forks):
            pid = os.fork()
            if pid == 0:
                faulthandler.dump_traceback_later(4)
                signal.alarm(5)
                try:
                    # A documented copy: the child sees the parent's run as it was, and goes on alone.
                    assert current_run().id == parent.id
                    assert parent.stats.calls == 2 and len(parent.findings) == 0
                    search("x")
                    assert len(parent.findings) == 1
                    with guarded_run("child") as run:
                        assert run.stats.calls == 0
                        for _ in range(3):
                            search("x")
                        assert run.stats.calls == 3 and len(run.findings) == 1
                    assert metrics.live_runs() == 0
                    os._exit(0)
                except BaseException as error:
                    sys.stderr.write(repr(error))
                    os._exit(1)
            _, status = os.waitpid(pid, 0)
            assert status == 0, (n, status)
        assert parent.stats.calls == 2 and not parent.findings
        search("x")
        assert len(parent.findings) == 1
    before = calls
    time.sleep(0.05)
    assert calls > before
    done.set()
    for thread in threads:
        thread.join()
    print("fine")
"""


@pytest.mark.scenario("ins-fork-with-lock-held")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize("sdk", ["no", "yes"])
def test_forks_while_locks_are_held(sdk: str, tmp_path: Path) -> None:
    """Children that are forked while threads hold our locks never hang, and the parent does not notice."""
    assert python(_FORKS, tmp_path, FORKS="25", SDK=sdk).endswith("fine\n")


@pytest.mark.slow
@pytest.mark.scenario("ins-fork-with-lock-held")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_two_hundred_forks_while_locks_are_held(tmp_path: Path) -> None:
    """The same with 200 forks."""
    assert python(_FORKS, tmp_path, timeout=300, FORKS="200", SDK="no").endswith("fine\n")


@pytest.mark.scenario("ins-fork-with-lock-held")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize("lock", ["run._lock", "config._config.lock", "metrics._lock"])
def test_a_fork_while_this_lock_is_held(lock: str, tmp_path: Path) -> None:
    """Each lock of ours, held by another thread at the moment of the fork, is free in the child."""
    said = python(
        f"""
        import os, signal, threading
        from loopguard import config, configure, guarded_run, guarded_tool
        from loopguard.telemetry.metrics import metrics

        @guarded_tool
        def search(query):
            return "same"

        held, done = threading.Event(), threading.Event()
        with guarded_run("parent") as run:
            search("x")

            def hold():
                with {lock}:
                    held.set()
                    done.wait()

            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            pid = os.fork()
            if pid == 0:
                signal.alarm(5)
                search("x")
                run.stats
                configure(outside_run="ignore")
                with guarded_run("child", evidence="parent") as child:
                    search("x")
                    assert child.stats.calls == 3
                    assert child._lock is run._lock
                    if os.fork() == 0:
                        assert child._lock is run._lock
                        search("x")
                        assert run.stats.calls == 4
                        os._exit(0)
                    assert os.wait()[1] == 0
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            done.set()
            thread.join()
        print(status)
        """,
        tmp_path,
    )
    assert said == "0\n"


# -- workers ----------------------------------------------------------------------------------------------------------

_WORKERS = """
    import multiprocessing
    import pickle
    from concurrent.futures import ProcessPoolExecutor
    from loopguard import LoopRefused, guarded_run, guarded_tool

    @guarded_tool
    def search(query):
        return "same"

    def work(run_id):
        with guarded_run("worker", run_id=run_id) as run:
            search("x"), search("x")
            return run.id, run.stats.calls, run.max_operation_count(), len(run.findings)

    def refuse(run_id):
        with guarded_run("worker", run_id=run_id):
            for _ in range(6):
                search("x")

    def call(tool, query):
        with guarded_run("worker") as run:
            tool(query)
            return run.stats.calls

    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(4, mp_context=context) as pool:
            said = list(pool.map(work, ["shared-id"] * 4))
            assert said == [("shared-id", 2, 2, 0)] * 4, said
            # A decorated function goes to a worker, and an error of ours comes back whole.
            assert pool.submit(call, search, "x").result() == 1
            error = pool.submit(refuse, "shared-id").exception()
            assert type(error) is LoopRefused, error
            assert error.finding.run_id == "shared-id" and error.finding.repetitions == 5
            assert "has been run 5 times" in error.for_model()
            assert any("refuse_after=5" in note for note in error.__notes__)
        print("fine")
"""


@pytest.mark.scenario("ins-spawned-worker-run")
def test_spawned_workers_count_for_themselves(tmp_path: Path) -> None:
    """Four spawned workers under one run id: without a shared store each sees its own two calls."""
    assert python(_WORKERS, tmp_path, timeout=120) == "fine\n"


@pytest.mark.scenario("ins-new-guard-keeps-shared-state")
def test_constructing_changes_nothing() -> None:
    """New guards, policies and scopes beside a stopped run write nothing; it stays stopped until it is lifted."""

    def search(query: str) -> str:
        return "same"

    tool = guarded_tool(search)
    with guarded_run("r", run_id="shared-id", on_stop="end") as run:
        for _ in range(12):
            with suppress(ToolCallRefused, RunStopped):
                tool("x")
        assert run.stopped is not None
        before = (len(_live), metrics.live_runs(), run.stats, run.findings, run.engine.operations())
        again = guarded_tool(search)
        guarded_run("r", run_id="shared-id")
        Policy()
        assert (len(_live), metrics.live_runs(), run.stats, run.findings, run.engine.operations()) == before
        with pytest.raises(RunStopped):
            again("x")
        run.resume("looked at it")
        assert again("x") == "same"


@pytest.mark.scenario("ins-new-guard-keeps-shared-state")
def test_constructing_touches_no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a store configured, constructing opens no connection and writes no file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("a connection was opened"))
    with configure(store="memory://"):
        guarded_tool(lambda: "same")
        guarded_run("r", run_id="shared-id")
    assert not list(tmp_path.iterdir())


@pytest.mark.scenario("ins-store-down")
@pytest.mark.parametrize("address", ["redis://127.0.0.1:1/0", "redis://192.0.2.1:6379/0"], ids=["refused", "hangs"])
def test_calls_go_on_while_a_store_is_away(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment that names a store which is not there delays nothing: calls are counted in the process."""
    monkeypatch.setenv("LOOPGUARD_STORE", address)

    @guarded_tool
    def search(query: str) -> str:
        return "same"

    start = time.perf_counter()
    with guarded_run("r") as run:
        for _ in range(5):
            search("x")
        with pytest.raises(LoopRefused):
            search("x")
        for n in range(200):
            search(f"q{n}")
        assert run.stats.calls == 205
    assert time.perf_counter() - start < 1.0
    assert threading.active_count() < 20
