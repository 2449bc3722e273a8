"""Every name that loopguard gives to a backend, in one place.

``gen_ai.*`` and ``error.type`` belong to OpenTelemetry's semantic conventions; what is ours begins with
``loopguard.``. The event and the gauge have no namespace: their names are a promise of the project.
``Telemetry(event_prefix=...)`` gives them one.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "loopguard"
DISTRIBUTION: Final = "loopguard-otel"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"

# On every guarded span.
OPERATION: Final = "gen_ai.operation.name"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
AGENT: Final = "gen_ai.agent.name"
CALL_ID: Final = "gen_ai.tool.call.id"
RUN_ID: Final = "loopguard.run.id"
CALL_SEQ: Final = "loopguard.call.seq"
ERROR_TYPE: Final = "error.type"

EXECUTE_TOOL: Final = "execute_tool"
FUNCTION: Final = "function"

#: ``error.type`` of a failure that was returned, not raised (the value the conventions use for MCP tools).
TOOL_ERROR: Final = "tool_error"

# Only where capture was asked for.
CALL_KEY: Final = "loopguard.call.key"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
EXCEPTION_EVENT: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

# A finding: on the span and on the event.
LOOP_DETECTED_EVENT: Final = "on_loop_detected"
LOOP_RULE: Final = "loopguard.loop.rule"
LOOP_ACTION: Final = "loopguard.loop.action"
LOOP_ENFORCED: Final = "loopguard.loop.enforced"
LOOP_REPETITIONS: Final = "loopguard.loop.repetitions"
LOOP_THRESHOLD: Final = "loopguard.loop.threshold"
LOOP_FIRST_SEQ: Final = "loopguard.loop.first_seq"
LOOP_FIRST_AT: Final = "loopguard.loop.first_at"
LOOP_LAST_AT: Final = "loopguard.loop.last_at"
LOOP_SEQS: Final = "loopguard.loop.seqs"
LOOP_FINGERPRINT: Final = "loopguard.loop.fingerprint"
LOOP_WASTED_S: Final = "loopguard.loop.wasted_s"
LOOP_MESSAGE: Final = "loopguard.loop.message"
#: On the span only: true or absent.
LOOP_DETECTED: Final = "loopguard.loop.detected"

# On the span that was current when the run opened.
RUN_OUTCOME: Final = "loopguard.run.outcome"
RUN_CALLS: Final = "loopguard.run.calls"
RUN_FINDINGS: Final = "loopguard.run.findings"
RUN_WASTED_CALLS: Final = "loopguard.run.wasted_calls"

# Metrics.
MAX_OPERATION_COUNT: Final = "max_operation_count"
DETECTIONS: Final = "loopguard.loop.detections"
RUNS: Final = "loopguard.runs"
CALLS: Final = "loopguard.calls"
WASTED_CALLS: Final = "loopguard.wasted_calls"
INTERVENTIONS: Final = "loopguard.interventions"
UNGUARDED_CALLS: Final = "loopguard.unguarded_calls"
INTERNAL_ERRORS: Final = "loopguard.internal.errors"
DURATION: Final = "gen_ai.execute_tool.duration"

#: What stands for a tool that nobody registered (a model made its name up) and for names beyond a metric's
#: limit.
OTHER: Final = "_other"

#: Values of ``decision`` on ``loopguard.calls``.
DECISIONS: Final = ("allow", "refuse", "stop")
#: Values of ``outcome`` on ``loopguard.runs``. A run that was dropped without being closed is ``abandoned``.
OUTCOMES: Final = ("completed", "failed", "stopped", "abandoned")
#: Values of ``outcome`` on ``loopguard.interventions``.
INTERVENTION_OUTCOMES: Final = ("heeded", "ignored", "undelivered")


def clean(value: object) -> str:
    """Text that any exporter can encode.

    A lone surrogate, as it stands in text that a model cut in the middle of a sign, makes the OTLP exporter
    drop the whole batch with every other span in it. It becomes its escape.
    """
    text = value if isinstance(value, str) else str(value)
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
