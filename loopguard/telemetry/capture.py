"""What may leave the process of a call's content: nothing, unless it was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from loopguard import _safety
from loopguard.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from loopguard.telemetry.settings import Telemetry

#: Captured texts are cut after so many characters.
MOST_CHARACTERS: Final = 1024


def exportable(
    value: object, redact: Callable[[str], str] | None, hide: Callable[[str], str | None] | None = None
) -> str | None:
    """A captured value as text that may be exported: as JSON if it is no text, redacted, cut, encodable.

    Args:
        value: A text, or what JSON can say.
        redact: The application's own function. It sees the whole text, before it is cut: a cut could hide
            from it the half by which it knows a secret.
        hide: Takes the declared secrets of the call out of the text, before the redactor sees it; None from it
            means that it cannot.

    Returns:
        None if there is nothing to export, or if the redactor failed: then nothing leaves.
    """
    if value is None:
        return None
    text = value if isinstance(value, str) else as_json(value)
    if hide is not None:
        try:
            shown = hide(text)
        except Exception as error:  # noqa: BLE001 - it looks at the arguments of the call
            _safety.report("telemetry.hide", error)
            return None
        if shown is None:
            return None
        text = shown
    if redact is not None:
        try:
            text = _text(redact(text))
        except Exception as error:  # noqa: BLE001 - a foreign function
            _safety.report("telemetry.redact", error)
            return None
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - 1] + "…"
    return names.clean(text)


def _text(redacted: object) -> str:
    if not isinstance(redacted, str):
        raise TypeError(f"the redactor returned {type(redacted).__name__}, not text")
    return redacted


def as_json(value: object) -> str:
    """The value as JSON; what JSON cannot say stands as its type. Never raises."""
    try:
        return json.dumps(value, ensure_ascii=False, skipkeys=True, default=_by_type)
    except (ValueError, TypeError, RecursionError):
        # A cycle, or too deep. A foreign object cannot raise here: it is shown by its type.
        return _by_type(value)


def _by_type(value: object) -> str:
    # Not its repr: that runs foreign code, and may show a field that was hidden on purpose.
    return f"<{type(value).__qualname__}>"


def type_name(error: BaseException) -> str:
    """The qualified name of an exception's type, without ``builtins``."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Capture:
    """Puts a call's content on its span, as far as the settings allow.

    ``level`` is ``"none"``, ``"key"`` or ``"content"``: a caller need not prepare what is not asked for.
    """

    __slots__ = ("_redact", "level")

    def __init__(self, settings: Telemetry) -> None:
        self.level = settings.captures
        self._redact = settings.redact

    def at_start(self, attributes: dict[str, AttributeValue], key_text: str | None, arguments: object = None) -> None:
        """Add key and arguments to the attributes of a span."""
        if self.level == "none":
            return
        key = exportable(key_text, self._redact)
        if key is not None:
            attributes[names.CALL_KEY] = key
        if self.level == "content":
            text = exportable(arguments, self._redact)
            if text is not None:
                attributes[names.ARGUMENTS] = text

    def at_end(
        self,
        span: Span,
        error: BaseException | None,
        result: object,
        hide: Callable[[str], str | None] | None = None,
    ) -> str | None:
        """Put result and error on a span.

        Returns:
            The message of the error, if it may be exported.
        """
        if self.level != "content":
            return None
        text = exportable(result, self._redact, hide)
        if text is not None:
            span.set_attribute(names.RESULT, text)
        message = exportable(_message(error), self._redact, hide)
        if error is not None and message is not None:
            # Not record_exception: it adds a stack trace, at half a millisecond, and a redactor would not see
            # it.
            span.add_event(
                names.EXCEPTION_EVENT,
                {names.EXCEPTION_TYPE: type_name(error), names.EXCEPTION_MESSAGE: message},
            )
        return message


def _message(error: BaseException | None) -> str | None:
    try:
        return None if error is None else str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__
        return None
