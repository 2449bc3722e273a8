"""Sending what waits in OpenTelemetry's providers, within a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from loopguard.telemetry.settings import Telemetry


def flush(telemetry: Telemetry, timeout: float) -> bool:
    """Flush the providers of these settings, or the global ones, side by side.

    Args:
        telemetry: Its providers come before the global ones.
        timeout: Seconds after which this returns in any case; what is not sent then goes on in the background.

    Returns:
        True if every provider said in time that it has sent everything; also if there is none.
    """
    from loopguard.telemetry import otel  # imports the API only where the application has done so

    deadline = time.monotonic() + timeout
    done: list[bool] = []
    finders = (otel.tracer_provider, otel.meter_provider, otel.logger_provider)
    # Not every provider keeps to the time it is given, so each has a thread that nobody has to wait for.
    threads = [
        threading.Thread(target=_flush_one, args=(find, telemetry, timeout, done), name="loopguard-flush", daemon=True)
        for find in finders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return len(done) == len(threads) and all(done)


def _flush_one(find: Callable[[Telemetry], Any], telemetry: Telemetry, timeout: float, done: list[bool]) -> None:
    try:
        send = getattr(find(telemetry), "force_flush", None)  # a no-op provider has none, and nothing to send
        # Some providers return None where others say True.
        done.append(send is None or send(timeout_millis=int(timeout * 1000)) is not False)
    except Exception:  # noqa: BLE001 - an exporter's failure is the exporter's to log
        done.append(False)
