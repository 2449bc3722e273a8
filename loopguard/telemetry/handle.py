"""What the spans of one tool have in common, and the span of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopguard.telemetry import names
from loopguard.telemetry.metrics import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue


class Handle:
    """The span of one call, from ``Spans.start`` to ``Spans.end``.

    ``owned`` is False where a framework's span is used: then it is neither ended nor made current by us.
    """

    __slots__ = ("context", "hardest", "hide", "labels", "owned", "span", "started", "token")

    def __init__(
        self,
        span: Span,
        labels: dict[str, AttributeValue] | None = None,
        started: int = 0,
        context: Context | None = None,
        token: Any = None,
    ) -> None:
        self.span = span
        self.owned = labels is not None
        # Attributes of the duration, shared by all calls of the tool.
        self.labels = labels
        # Nanoseconds since the epoch, by the clock of the span.
        self.started = started
        # The context in which the span is current; None where nothing is to be attached.
        self.context = context
        self.token = token
        # The hardness of the hardest finding so far: its attributes are the ones that stay.
        self.hardest = 0
        # Takes the secrets of the call out of a text, where content is exported.
        self.hide: Callable[[str], str | None] | None = None


class Prepared:
    """What all spans of one tool (and agent) have in common."""

    __slots__ = ("attributes", "labels", "name", "registered")

    def __init__(self, tool: str, agent: str | None) -> None:
        shown = names.clean(tool)
        self.name = f"{names.EXECUTE_TOOL} {shown}"
        self.attributes: dict[str, AttributeValue] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL: shown,
            names.TOOL_TYPE: names.FUNCTION,
        }
        label = metrics.tool_label(tool)
        self.registered = label != names.OTHER
        self.labels: dict[str, AttributeValue] = {names.TOOL: label, names.TOOL_TYPE: names.FUNCTION}
        if agent is not None:
            self.attributes[names.AGENT] = names.clean(agent)
            self.labels[names.AGENT] = names.clean(metrics.agent_label(agent))
