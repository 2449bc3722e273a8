"""The lines that a finding writes to the standard logger ``loopguard``.

They need no set-up: without any, Python prints warnings and errors to stderr.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from loopguard.records import Action
from loopguard.wording import STILL_RUNNING, words

if TYPE_CHECKING:
    from loopguard.records import Finding

logger: Final = logging.getLogger("loopguard")

_WAITS: Final = ("status", "poll", "wait", "progress", "await")


def log_finding(finding: Finding) -> None:
    """Write one line about a finding: a warning, or an error for a stop that was enforced.

    The line names tool, run, rule, rung and call numbers, never an argument or a result. The record carries
    them again as ``loopguard_rule``, ``loopguard_action``, ``loopguard_tool``, ``loopguard_run_id`` for
    structured logs.
    """
    level = logging.ERROR if finding.action is Action.STOP and finding.enforced else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    logger.log(
        level,
        "%s",
        one_line(line_of(finding)),
        extra={
            "loopguard_rule": finding.rule,
            "loopguard_action": finding.action.value,
            "loopguard_tool": one_line(finding.tool),
            "loopguard_run_id": one_line(finding.run_id),
        },
    )


def line_of(finding: Finding) -> str:
    """The sentence of the log line."""
    where = f"in run {finding.run_name!r}"
    evidence = _evidence(finding)
    if finding.action is Action.WARN:
        said = finding.message.removesuffix(" in this run")
        named = "" if where.removeprefix("in ") in said else f" {where}"
        return f"loopguard: {said}{named} ({evidence}).{_way_out(finding)}"
    if finding.action is Action.REFUSE and finding.rule != "limits":
        refused = "refused" if finding.enforced else "would have been refused"
        times = words(finding.rule).noun.format(n=finding.repetitions)
        if finding.repetitions < finding.threshold:  # calls in flight make up the rest
            times = f"the same call {STILL_RUNNING}" + (f", {times} before" if finding.repetitions else "")
        return f"loopguard: {finding.tool} {refused} {where}: {times} ({evidence}).{_way_out(finding)}"
    if finding.enforced:
        return f"loopguard: {finding.message} ({evidence})."
    return f"loopguard: only watching: {finding.message} ({evidence})."


def _evidence(finding: Finding) -> str:
    parts = []
    if calls := _calls(finding):
        parts.append(calls)
    # A limit is said in its own unit by the message; its rung would read as a number of calls.
    rung = "" if finding.rule in ("limits", "stop") else f", {finding.action.value}_after={finding.threshold}"
    parts.append(f"{finding.rule}{rung}")
    return "; ".join(parts)


def _calls(finding: Finding) -> str:
    seqs = finding.seqs
    if not seqs:
        return ""
    if len(seqs) == 1:
        return f"call {seqs[0]}"
    first = min(finding.first_seq, seqs[0]) if finding.first_seq else seqs[0]
    # The finding keeps the last ten numbers only; a row without a gap is known by its ends and its length.
    if seqs[-1] - first + 1 == max(len(seqs), finding.repetitions) and seqs[-1] - seqs[0] + 1 == len(seqs):
        return f"calls {first}-{seqs[-1]}"
    shown = ", ".join(map(str, seqs))
    return f"calls {shown}" if first == seqs[0] else f"calls {first}, …, {shown}"


def _way_out(finding: Finding) -> str:
    # The usual false alarm is a tool that is asked again and again on purpose; its name often says so.
    if finding.rule == "repeat" and any(word in finding.tool.lower() for word in _WAITS):
        return f' If {finding.tool} waits for something, say so: @guarded_tool(kind="poll").'
    return ""


def one_line(text: str) -> str:
    """Text without line breaks, control signs and lone surrogates.

    A model may have made up the tool's name; it must not write lines of its own into a log, nor make a
    handler fail.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def warning(text: str, *values: object) -> None:
    """A line of another kind. A filter or handler of the user that raises does not reach the tool."""
    with suppress(Exception):
        logger.warning(text, *values)
