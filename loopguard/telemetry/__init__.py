"""What happened in a run, told to OpenTelemetry and to the standard log.

Only ``opentelemetry-api`` is used, and it is imported late: an application without OpenTelemetry never
imports it. ``names`` has every attribute, event and metric; ``settings`` what an application may decide.
"""

from __future__ import annotations

from loopguard.telemetry.settings import Telemetry

__all__ = ["Telemetry"]
