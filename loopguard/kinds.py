"""What a call does to the world, read from its arguments.

A shell line or an SQL statement says itself whether it reads, changes or waits.
For other tools a table or a function of the bound arguments decides.
Reading goes by words, nothing is run; what is not recognised stays ``Kind.UNKNOWN``, which no rule takes for a
read.

A line of several commands is a write if one of them changes something, else a poll if one of them waits, else
unknown if one of them is not known, else a read.
Running tests or a script counts as a read, because its answer changes only when something else did.
Building counts as a write.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from loopguard.commands import (
    BLOCK_WORDS,
    COMMANDS,
    INTERPRETERS,
    KEYWORDS,
    RUN_OPTIONS,
    RUNNERS,
    SHELLS,
    SQL_CLIENTS,
    WRAPPERS,
    names,
)
from loopguard.records import Kind

#: The value of the argument named by ``"by"`` decides; ``"*"`` stands for every other value.
KindTable = Mapping[str, "str | Kind"]
#: What ``kind=`` may be: a kind, a way to read it from the arguments, or None for unknown.
KindRule = Kind | str | KindTable | Callable[[Mapping[str, Any]], Any] | None

#: The names of the kinds, as ``kind=`` takes them.
KIND_NAMES: Mapping[str, Kind] = {kind.name.lower(): kind for kind in Kind}
#: Kinds that are read from the text of one argument.
TEXT_KINDS = names("shell sql")

_COMMAND_ARGUMENTS = ("command", "cmd", "commands", "script", "code", "input", "chars", "action")
_STATEMENT_ARGUMENTS = ("query", "sql", "statement", "command", "q", "code")

# Longer texts are judged by their beginning, so that a pasted file cannot make a call slow.
_LOOKED_AT = 6_000
_ARGUMENTS = 2_000
_CACHED = 4_096
# How deep `$(... $(...))` and `bash -c "bash -c ..."` are followed.
_NESTED = 3


def kind_of(kind: KindRule, arguments: Mapping[str, Any], primary: str | None = None) -> Kind:
    """The kind of one call.

    Args:
        kind: what the tool declared: a ``Kind`` or its name, ``"shell"``, ``"sql"``, a table such as
            ``{"by": "command", "view": "read", "*": "write"}``, a function of the bound arguments, or None.
        arguments: the bound arguments by name.
        primary: the argument that holds the command line or statement; without it the usual names are tried,
            then the only argument that is a text.

    Returns:
        The kind; ``Kind.UNKNOWN`` where the declaration does not decide, also when a function of the user raises.
    """
    if kind is None or isinstance(kind, Kind):
        return kind or Kind.UNKNOWN
    if isinstance(kind, str):
        if kind == "shell":
            return shell_kind(_text_argument(arguments, primary, _COMMAND_ARGUMENTS))
        if kind == "sql":
            return sql_kind(_text_argument(arguments, primary, _STATEMENT_ARGUMENTS))
        return KIND_NAMES.get(kind, Kind.UNKNOWN)
    try:
        if isinstance(kind, Mapping):
            decided = kind.get(str(arguments.get(str(kind.get("by")))), kind.get("*"))
            return decided if isinstance(decided, Kind) else KIND_NAMES.get(str(decided), Kind.UNKNOWN)
        return kind_of(kind(arguments), arguments, primary)
    except Exception:  # noqa: BLE001 - code of the user (a function, the text of a value) must not break the call
        return Kind.UNKNOWN


def _text_argument(arguments: Mapping[str, Any], primary: str | None, usual: tuple[str, ...]) -> object:
    if primary is not None and primary in arguments:
        return arguments[primary]
    for name in usual:
        if name in arguments:
            return arguments[name]
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else None


# --------------------------------------------------------------------------------------------- shell lines

# One pass from left to right, so that a quote in a comment and a comment sign in a quote are not mistaken.
_ASIDE = re.compile(
    r"""(?P<comment>(?<![^\s;(])\#[^\n]*) | (?P<escape>\\.) | '(?P<single>[^']*)' | "(?P<double>(?:\\.|[^"\\])*+)" """,
    re.DOTALL | re.VERBOSE,
)
_PUT_ASIDE = re.compile("\x01(\\d+)\x01")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_NO_COMMANDS = re.compile(r"\[\[[^\[\]\n]*\]\]|\(\([^()\n]*\)\)")
_REDIRECTION = re.compile(r"(?P<source>\d|&)?(?<![-=<])>{1,2}\|?[ \t]*(?P<target>&[\d-]|\(|[^\s;|&()<>]+)?")
_HARMLESS_TARGET = re.compile(r"&|\(|/dev/(?:null|stdout|stderr|tty|fd/)")
_SEPARATOR = re.compile(r"[;|&\n()`]+")
_ASSIGNMENT = re.compile(r"\w+(?:\[[^\]]*\])?\+?=")
_OPTION_VALUE = re.compile(r"\d+(?:\.\d+)?[smhd]?|\{\}|\x01\d+\x01")
_FENCE = re.compile(r"```(?:(?:bash|sh|shell|zsh|console)\b)?", re.IGNORECASE)
_INPUT = re.compile(r"\d?<{1,3}-?[ \t]*[^\s;|&()<>]*")
_SUBSTITUTION = re.compile(r"[$<>]\(([^()]*)\)|`([^`]*)`")
_RUN = names("run exec")
_FIND_RUNS = names("-exec -execdir -ok -okdir")
# What code writes with; decides about `python -c` and about a script that an interpreter reads from its input.
_WRITING_CODE = re.compile(
    r"write_text|write_bytes|\.write\(|open\([^)\n]*,\s*[fr]?['\"][wax]|shutil\."
    r"|os\.(?:remove|rename|mkdir|makedirs|unlink|replace|rmdir)|writeFile|appendFile|unlinkSync|File\.write"
)


def shell_kind(command: object) -> Kind:
    """The kind of a shell line: read, write, poll or unknown.

    An empty line asks a running program for news and is a poll.
    A list is taken as an argument vector, ``["bash", "-lc", LINE]`` as its line.
    Quoted text does not count, except as the code of ``bash -c`` or ``python -c`` and as the statement of an SQL
    client; a here-document counts likewise.
    """
    if isinstance(command, list | tuple):
        command = _line_of([str(word) for word in command])
    if not isinstance(command, str):
        return Kind.UNKNOWN
    if len(command) <= _CACHED:
        return _cached_line_kind(command)
    return _line_kind(command[:_LOOKED_AT], 0)


def _line_of(words: list[str]) -> str:
    if len(words) > 2 and _base(words[0]) in SHELLS and words[1].startswith("-") and "c" in words[1]:
        return words[2]
    return shlex.join(words)


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


@lru_cache(maxsize=256)
def _cached_line_kind(line: str) -> Kind:
    # Reading a line costs tens of microseconds, and a loop asks for the same line again.
    return _line_kind(line, 0)


def _line_kind(line: str, depth: int) -> Kind:
    if not line.strip():
        return Kind.POLL
    if depth > _NESTED:
        return Kind.UNKNOWN
    # A model may leave the fence of a code block around the line.
    line, document = _without_heredocs(_FENCE.sub("\n", line))
    quoted: list[str] = []
    parts: list[str] = []

    def put_aside(match: re.Match[str]) -> str:
        if match["comment"] is not None:
            return ""
        if match["escape"] is not None:
            return " " if match["escape"] == "\\\n" else "_"
        quoted.append(match["double"] if match["single"] is None else match["single"])
        if match["double"] is not None and "$(" in match["double"]:
            parts.extend(inner for inner, _ in _SUBSTITUTION.findall(match["double"]))
        return f"\x01{len(quoted) - 1}\x01"

    def take_out(match: re.Match[str]) -> str:
        parts.append(match[1] or match[2] or "")
        return "_"

    line = _NO_COMMANDS.sub(" ", _ASIDE.sub(put_aside, line.replace("\x01", "")))
    for _ in range(_NESTED):
        line, found = _SUBSTITUTION.subn(take_out, line)
        if not found:
            break
    kinds: set[Kind] = set()
    for part in [line, *parts]:
        kinds.update(map(_redirected, _REDIRECTION.finditer(part)))
        for command in _SEPARATOR.split(_INPUT.sub(" ", _REDIRECTION.sub(" ", part))):
            words = _meant(command.split())
            if words:
                texts = [quoted[int(number)] for number in _PUT_ASIDE.findall(" ".join(words))]
                kinds.add(_command_kind(words, [*texts, document] if document else texts, depth))
    return _hardest(kinds)


def _without_heredocs(line: str) -> tuple[str, str]:
    """The line without the bodies of its here-documents, and the bodies."""
    if "<<" not in line:
        return line, ""
    kept: list[str] = []
    bodies: list[str] = []
    rows = line.split("\n")
    ends = {row.strip() for row in rows}
    waiting_for: str | None = None
    for row in rows:
        if waiting_for is None:
            kept.append(row)
            opened = _HEREDOC.search(row)
            waiting_for = opened[2] if opened is not None and opened[2] in ends else None
        elif row.strip() == waiting_for:
            waiting_for = None
        else:
            bodies.append(row)
    return "\n".join(kept), "\n".join(bodies)


def _redirected(match: re.Match[str]) -> Kind:
    target = match["target"]
    # An error log beside the work (`2> log`) changes nothing that the agent works on.
    if target is None or match["source"] == "2" or _HARMLESS_TARGET.match(target):
        return Kind.READ
    return Kind.WRITE


def _meant(words: list[str]) -> list[str]:
    """The words from the command that is meant on: without keywords, assignments and wrappers."""
    while words:
        program = _base(words[0])
        if program in KEYWORDS or _ASSIGNMENT.match(words[0]):
            words = words[1:]
        elif program in WRAPPERS:
            words = _after_options(words[1:], WRAPPERS[program])
        elif program in RUNNERS and (_RUN & set(words[1:4])):
            at = next(at for at, word in enumerate(words) if word in _RUN)
            words = _after_options(words[at + 1 :], RUN_OPTIONS)
        elif program in BLOCK_WORDS or _PUT_ASIDE.fullmatch(words[0]) or words[0] in ("_", "$"):
            # The end of a block, or a text whose command cannot be seen.
            return []
        else:
            break
    return words


def _after_options(words: list[str], take_value: frozenset[str]) -> list[str]:
    while words and (words[0].startswith("-") or _OPTION_VALUE.fullmatch(words[0])):
        words = words[2:] if words[0] in take_value else words[1:]
    return words


def _command_kind(words: list[str], texts: list[str], depth: int) -> Kind:
    """The kind of one command; ``texts`` is what was quoted in it, and the here-document of the line."""
    program, rest = _base(words[0]), words[1:]
    if program in INTERPRETERS and rest[:1] == ["-m"] and len(rest) > 1:
        program, rest = rest[1], rest[2:]
    if program == "find":
        return _find_kind(rest, texts, depth)
    if program in SHELLS:
        # `bash script.sh` runs a script; `bash -c LINE` and `bash <<EOF` run what is written there.
        return _hardest({_line_kind(text, depth + 1) for text in texts if text.strip()})
    if program in SQL_CLIENTS:
        return _hardest({sql_kind(text) for text in texts} or {Kind.UNKNOWN})
    if program not in COMMANDS:
        # A script of the project (`./run_tests.sh`) is run, as with `bash run_tests.sh`.
        script = words[0].startswith(("./", "../")) or program.endswith((".sh", ".py"))
        return Kind.READ if script else Kind.UNKNOWN
    rules, otherwise = COMMANDS[program]
    arguments = " ".join(rest)[:_ARGUMENTS]
    for kind, pattern in rules:
        if re.search(pattern, arguments):
            return kind
    if program in INTERPRETERS and any(map(_WRITING_CODE.search, texts)):
        return Kind.WRITE
    return otherwise


def _find_kind(rest: list[str], texts: list[str], depth: int) -> Kind:
    kinds = {Kind.WRITE for word in rest if word == "-delete" or word.startswith("-fprint")}
    starts = [at for at, word in enumerate(rest) if word in _FIND_RUNS]
    for at, end in pairwise([*starts, len(rest)]):
        words = _meant(rest[at + 1 : end])
        kinds.add(_command_kind(words, texts, depth) if words else Kind.UNKNOWN)
    return _hardest(kinds)


def _hardest(kinds: set[Kind]) -> Kind:
    return next((kind for kind in (Kind.WRITE, Kind.POLL, Kind.UNKNOWN) if kind in kinds), Kind.READ)


# ------------------------------------------------------------------------------------------- SQL statements

_SQL_ASIDE = re.compile(r"--[^\n]*|/\*(?:.*?\*/|.*)|'(?:[^']|'')*+'|\"[^\"]*\"|`[^`]*`", re.DOTALL)
_SQL_CHANGES = re.compile(r"\b(?:insert|update|delete|merge|replace)\b", re.IGNORECASE)
_SQL_INTO = re.compile(r"\binto\s+(?!@)", re.IGNORECASE)
_SQL_FROM = re.compile(r"\bfrom\b", re.IGNORECASE)
_SQL_WRITES = names(
    "insert update delete create alter drop truncate replace merge upsert grant revoke comment vacuum load import"
    " rename reindex refresh lock"
)
_SQL_READS = names("select show describe desc explain values table with pragma")
_SQL_FRAME = names("begin start commit end rollback savepoint release set use reset go")


def sql_kind(statement: object) -> Kind:
    """The kind of an SQL statement, or of several: read, write or unknown.

    Comments and quoted text do not count; the frame of a transaction (``BEGIN``, ``SET``, ``COMMIT``) says nothing.
    """
    if not isinstance(statement, str):
        return Kind.UNKNOWN
    kinds = set()
    for part in _SQL_ASIDE.sub(" ", statement[:_LOOKED_AT]).split(";"):
        words = re.findall(r"[A-Za-z]+", part[:200])
        if words and (kind := _statement_kind(words[0].lower(), part)) is not None:
            kinds.add(kind)
    return _hardest(kinds or {Kind.UNKNOWN})


def _statement_kind(word: str, part: str) -> Kind | None:
    if word in _SQL_WRITES:
        return Kind.WRITE
    if word in _SQL_READS:
        # A plan is only looked at, unless it is carried out.
        carried_out = word == "with" or (word == "explain" and "analy" in part.lower())
        changes = (
            (word == "select" and _SQL_INTO.search(part))
            or (word == "pragma" and "=" in part)
            or (carried_out and _SQL_CHANGES.search(part))
        )
        return Kind.WRITE if changes else Kind.READ
    if word == "copy":
        return Kind.WRITE if _SQL_FROM.search(part) else Kind.READ
    return None if word in _SQL_FRAME else Kind.UNKNOWN
