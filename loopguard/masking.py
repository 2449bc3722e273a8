"""Volatile text out: what differs from one call to the next although nothing has changed.

Masked texts are compared, never shown.
Numbers that carry meaning stay: "3 failed" is not "2 failed", and a calendar date without a time of day is content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

#: Characters of an error that its template looks at.
TEMPLATE = 2048

#: Characters of a shape, and from which length on the value of an argument is taken out of it.
SHAPE = 100
LONG_VALUE = 6

# Characters of the line that a shape is made of.
_LINE = 400

# Of a text that was cut, the end is not compared: masked values of other lengths move it.
_SURE = TEMPLATE - 256

# Every pattern needs one of these; most texts hold none, and one look is cheaper than ten.
_ANY = re.compile(r"\d|/tmp/|/var/folders/|\\Temp\\|(?:request|correlation|trace|span)[ _-]?id", re.I)

_MASKS = tuple(
    (re.compile(pattern, re.I), stand_in)
    for pattern, stand_in in (
        # Before times and ids, which may be parts of such a path.
        (r"(?:/private)?(?:/var)?/tmp/[^\s'\"`,;:)\]}>]+|/var/folders/[^\s'\"`,;:)\]}>]+", "<tmp>"),
        (r"[a-z]:\\[^\s'\"`,;:)\]}>]*\\Temp\\[^\s'\"`,;:)\]}>]+", "<tmp>"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
        (
            r"\b\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?",
            "<time>",
        ),
        (r"\b\d{8}T\d{6}Z?\b", "<time>"),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?: ?[AP]M\b)?|\b\d{1,2}:\d\d ?[AP]M\b", "<time>"),
        # Not the codes of Windows (0x80070005), which say what went wrong.
        (r"\b0x(?!(?:8|c)00[0-9a-f]{5}\b)[0-9a-f]{4,}\b", "<address>"),
        (r"\b((?:request|correlation|trace|span)[ _-]?id)\b([\"' :=#]*)[\w.-]+", r"\1\2<id>"),
        (r"\b(pid|process(?: id)?|thread)([ =:#-]{1,3})\d+", r"\1\2<id>"),
        (r"\bline \d+", "line <n>"),
        # A word of hexadecimal digits that holds both a figure and a letter: a hash, not a number and not a word.
        (r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}\b", "<id>"),
    )
)
_WAITS = tuple(
    (re.compile(pattern, re.I), stand_in)
    for pattern, stand_in in (
        (r"\b((?:retry|try again|wait)(?:ing)?[ -](?:after|in|for))([ :=]*)\d+(?:\.\d+)?", r"\1\2<duration>"),
        (r"\b(attempt|retry|try)( #?)\d+(?:(?: ?/ ?| of )\d+)?", r"\1\2<n>"),
        (
            r"\b(?:\d+h ?)?(?:\d+m ?)?\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|secs?|seconds?|min|minutes?|hrs?|hours?)\b",
            "<duration>",
        ),
    )
)


_VOLATILE = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _ in _MASKS).replace(r"\1", ""), re.I)

# A line of an error that only introduces the next one, or none at all.
_HEADING = re.compile(r"\s*(?:[\w.]*(?:Error|Exception)?:?\s*)?(?:error|failed|exit code:? ?-?\d+)?[:.]?\s*", re.I)
_QUOTED = re.compile(
    r"(?<!\w)\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|`[^`]*`|\u201c[^\u201d]*\u201d|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|<[^<>]*>"
)
_RUN_OF_QUOTED = re.compile(r"Q(?:[ ,;]*Q\b)+")
_DIGITS = re.compile(r"\d+")

_LONG_HEX = re.compile(r"[0-9a-fA-F]{7}|T[0-9]{6}|ID|PID|Line|Thread|Process")


def volatile(text: str) -> bool:
    """True if `mask` would change the text. Most texts hold no sign of that, and looking for signs is cheap."""
    if (
        not (":" in text or "-" in text or "/" in text or "x" in text or "id" in text or "line" in text or "\\" in text)
        and (len(text) < 7 or _LONG_HEX.search(text) is None)
        and "thread" not in text
        and "process" not in text
    ):
        return False
    return _VOLATILE.search(text) is not None


def mask(text: str, durations: bool = False) -> str:
    """Text with what is volatile replaced: equal results differ by it from call to call.

    Masked are time stamps, UUIDs, addresses, process and request ids, hexadecimal ids, ``line N`` and temporary
    paths.

    Args:
        text: Any text; the time is proportional to its length.
        durations: Durations, waits and attempt counters as well. Off by default: to some tools they are the answer.
    """
    if _ANY.search(text) is None:
        return text
    for pattern, stand_in in _MASKS:
        text = pattern.sub(stand_in, text)
    if durations:
        for pattern, stand_in in _WAITS:
            text = pattern.sub(stand_in, text)
    return text


def template(text: str) -> str:
    """What stays the same of an error from one attempt to the next.

    Args:
        text: The error as text. Its first `TEMPLATE` characters count.

    Returns:
        The text with everything volatile and all durations masked.
        Errors that differ by another number ("3 failed", "2 failed") or by their type have different templates.
    """
    masked = mask(text[:TEMPLATE], durations=True)
    return masked if len(text) < TEMPLATE else masked[:_SURE]


def shape(text: str, values: Iterable[str] = ()) -> str:
    """What failures under different arguments have in common: the first line without what depends on the arguments.

    Args:
        text: The error as text. Of a traceback the last line counts, and a line that only introduces goes.
        values: The arguments of the call. Those of at least `LONG_VALUE` characters are replaced.

    Returns:
        At most `SHAPE` characters, in which A stands for an argument, Q for what was quoted or in brackets and N for
        a number; volatile text is masked.
    """
    lines = [line for line in text[:TEMPLATE].splitlines() if line.strip()]
    if lines and "Traceback (most recent call last)" in lines[0]:
        lines = lines[-1:]
    while len(lines) > 1 and _HEADING.fullmatch(lines[0]):
        del lines[0]
    line = lines[0].strip()[:_LINE] if lines else ""
    for value in sorted({value for value in values if LONG_VALUE <= len(value) <= _LINE}, key=len, reverse=True):
        line = line.replace(value, "A")
    line = _QUOTED.sub("Q", mask(line, durations=True))
    return _RUN_OF_QUOTED.sub("Q", _DIGITS.sub("N", line))[:SHAPE]


def without(result: Any, volatile_parts: Iterable[str] | bool) -> Any:
    """A result without what its tool declared to be volatile.

    Args:
        result: As returned.
        volatile_parts: Names of fields (of mappings, and of JSON text) that are taken out wherever they stand, and
            regular expressions that are taken out of text. True: the usual volatile text.

    Returns:
        The result without them; the same object where nothing applies.
    """
    if volatile_parts is True:
        return mask(result) if isinstance(result, str) else result
    if not volatile_parts:
        return result
    parts = tuple(volatile_parts)
    names = frozenset(parts)
    if not isinstance(result, str):
        return _drop(result, names, 0)
    if result[:1] in "{[":
        try:
            return _drop(json.loads(result), names, 0)
        except (ValueError, RecursionError):
            pass
    for pattern in parts:
        if not pattern.isidentifier():
            result = re.sub(pattern, "<volatile>", result)
        else:
            # The field of a text that is no JSON: "pid=4711", "pid: 4711".
            result = re.sub(
                rf"\b({pattern})([\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;)}}\]]+)", r"\1\2<volatile>", result
            )
    return result


def _drop(value: Any, names: frozenset[str], depth: int) -> Any:
    if depth > 64:
        return value
    if isinstance(value, dict):
        return {key: _drop(item, names, depth + 1) for key, item in value.items() if key not in names}
    if isinstance(value, (list, tuple)):
        return [_drop(item, names, depth + 1) for item in value]
    return value
