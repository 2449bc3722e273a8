"""What a result or an exception means: failed, found nothing, which class of error, which text is volatile.

Tools also return their failures, so the text is read as well, but only where it is certain: at its very beginning.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import orjson

from loopguard.canonical import canonical, class_name
from loopguard.fingerprint import stored, text_parts
from loopguard.masking import mask, template
from loopguard.records import ErrorClass, Status

__all__ = [
    "classify",
    "error_class",
    "error_text",
    "mask",
    "nothing_changed",
    "nothing_found",
    "result_error_text",
    "template",
]

#: Longest text of an error that is kept, in characters.
MAX_ERROR = 2048
#: Longest JSON text that is read as the mapping it holds, in characters.
MAX_JSON = 4096

_OK = (Status.OK, False)
_NOTHING = (Status.OK, True)
_FAILED = (Status.FAILED, False)

_TRUE_MARKS = ("is_error", "isError")
_FALSE_MARKS = ("ok", "success")
_EXIT_MARKS = ("exit_code", "exitCode", "returncode", "return_code", "exit")
_LISTS = ("results", "items", "matches", "hits", "entries", "rows", "data", "records", "documents")
_TEXTS = ("error", "message", "detail", "stderr", "output", "stdout", "content", "text", "result")
# A mapping with none of these keys says nothing about its outcome.
_TELLING = frozenset((*_TRUE_MARKS, *_FALSE_MARKS, *_EXIT_MARKS, *_LISTS, "error", "content", "parts"))
# Types that are neither mappings nor objects with marks.
_BARE = frozenset((int, bool, float, complex, bytes, bytearray, list, tuple, set, frozenset))

# First characters of texts that may be a failure, nothing, or JSON; all other texts are decided by this look alone.
HEADS = frozenset("eEtTfFnN0zZ[{(<\"' \n\r\t")
_JSON_MARK = re.compile(
    r'"(?:is_?error|error|ok|success|exit(?:_?code)?|return_?code)"\s*:'
    rf'|"(?:{"|".join(_LISTS)})"\s*:\s*(?:\[\s*\]|\{{\s*\}})',
    re.I,
)
_FALSE_WORDS = r"(?:0|none|null|nil|no|false|n/a|\"\"|'')"
_FAILURE = re.compile(
    rf"""\s*(?:
      error(?![\w-])(?!\s*[:=]?\s*{_FALSE_WORDS}\s*(?:[\r\n,;.]|\Z))
        # words that follow when a text speaks of errors instead of being one
        (?!\s+(?:handl|log|rate|count|budget|correct|margin|bar|messages?\b|page|report|free|bound|class|types?\b|
          track|detect|middleware|recover|check|estimat|codes\b|was\ fixed|fixed|cleared|gone|resolved))
    | errors\s*:\s*(?!{_FALSE_WORDS}\s*(?:[\r\n,;.]|\Z))\S
    | errors\s+(?:occurred|encountered|while|during|in)\b
    | traceback\ \(most\ recent\ call\ last\)
    | exit\ code:?\ -?[1-9]
    | fatal(?:\ error)?:
    )""",
    re.I | re.X,
)
_THINGS = (
    r"(?:results?|hits?|match(?:es)?|rows?|items?|entr(?:y|ies)|files?|records?|documents?|docs?|lines?|data"
    r"|occurrences?|references?|pages?|messages?|answers?|output|content|objects?|articles?|products?|events?|users?"
    r"|tickets?|tables?|folders?|directories|symbols?|definitions?)"
)
# What follows where such a text is about something else: an input that is missing, a verdict, a way on.
_NOT_SO = (
    r"(?!.*\b(?:but|instead|showing|however|provided|specified|given|supplied|selected|uploaded|passed|allowed"
    r"|changed|failed)\b)"
)
_NOTHING_FOUND = re.compile(
    rf"""\s*(?:[A-Za-z_.]*(?:Error|Exception|Exit):\s*)?(?:
      (?:\[\s*\]|\{{\s*\}}|\(\s*\)|""|'')
    | [\[(<"']*(?:none|null|nil|empty|nothing|n/a|no\ {_THINGS})[\])>"'.!]*
    | [\[(<]?no\ (?!access|permission|such|module|space|valid)(?:[\w-]+\ )?{_THINGS}\b{_NOT_SO}[^\n]{{0,160}}
    | nothing\ (?:was\ )?(?:found|matched|matches|returned|to\ show)\b[^\n]{{0,160}}
    | (?:0|zero)\ (?:[\w-]+\ )?{_THINGS}\b{_NOT_SO}[^\n]{{0,160}}
    | (?:the\ (?:search|query|request)\ )?(?:found|returned|matched|there\ (?:are|were|is|was))
        \ (?:(?:0|no|zero)\ (?:[\w-]+\ )?{_THINGS}\b{_NOT_SO}[^\n]{{0,160}} | nothing\b[^\n]{{0,160}})
    )\s*\Z""",
    re.I | re.X,
)
_NOTHING_CHANGED = re.compile(
    r"""\s*(?:[\w.-]{1,40}:\s*)?(?:
      no\ (?:changes?|modifications?|edits?|replacements?|updates?)\b | nothing\ (?:to\ |was\ )(?:be\ )?\w+
    | (?:already\ )?up[ -]to[ -]date
    | (?:file\ |page\ |content\ )?(?:is\ |was\ )?(?:unchanged|not\ (?:changed|modified))\b
    | 0\ (?:[\w-]+\ )?(?:changes?|replacements?|edits?|updates?|(?:rows?|files?|lines?|records?)\ \w+ed)\b
    )""",
    re.I | re.X,
)


def classify(result: object) -> tuple[Status, bool]:
    """Whether a returned result is a failure, and whether it says that nothing was found.

    A failure is a mapping or object with a true ``is_error``, ``isError`` or ``error``, a false ``ok`` or
    ``success``, or a non-zero exit code field; and text that begins, in any case, with ``error`` (as a statement:
    "error-free" and "errors: 0" are none), ``Traceback (most recent call last)``, ``exit code 1`` to 9, or
    ``fatal:``.
    Of multipart results the text counts, and text of up to `MAX_JSON` characters that is a JSON object with one of
    these fields counts as that object.
    "Nothing found" in its forms is no failure, also where it carries an error flag.

    Args:
        result: The value as a tool returned it. No stream is read.

    Returns:
        ``Status.OK`` or ``Status.FAILED``, and True for an empty outcome (then the status is OK).
    """
    if type(result) is str:
        return _OK if result and result[0] not in HEADS else _of_text(result)
    if result is None:
        return _NOTHING
    try:
        return _of_value(result)
    except Exception:  # noqa: BLE001 - a result may do anything when it is looked at
        return _OK


def nothing_found(text: str) -> bool:
    """Whether a text says that nothing was found: ``[]``, ``none``, ``0 results``, ``no matches for ...``, empty.

    The name of an exception type in front does not count, so it also reads the text of an error.
    """
    return len(text) <= 300 and (not text.strip() or _NOTHING_FOUND.match(text) is not None)


def nothing_changed(text: str) -> bool:
    """Whether the answer of a write begins by saying that nothing changed ("no changes", "already up to date")."""
    return _NOTHING_CHANGED.match(text[:200]) is not None


def error_text(exc: BaseException) -> str:
    """Type name and message of an exception, at most `MAX_ERROR` characters.

    The first members of an exception group are named with it: its own message does not tell what failed.
    Nothing is raised where the exception cannot be printed.
    """
    return _text_of(exc, 2)[:MAX_ERROR]


def result_error_text(result: object) -> str:
    """Text of a returned failure, at most `MAX_ERROR` characters; never raises."""
    try:
        text = _failure_text(result)
        if text is None:
            form = canonical(result)
            text = class_name(type(result)) if form is None else form[:MAX_ERROR].decode("utf-8", "replace")
    except Exception:  # noqa: BLE001 - a result may do anything when it is looked at
        text = class_name(type(result))
    return text[:MAX_ERROR]


def error_class(text: str, exc: BaseException | None = None) -> ErrorClass:
    """Class of an error, which decides how patient the rules are with it.

    Args:
        text: The error as `error_text` or `result_error_text` gave it; its first 300 characters are read.
        exc: The exception, where there is one: its type speaks before its text, except for a person's denial, a
            rate limit and a missing network.

    Returns:
        Never ``NONE``; ``RECOVERABLE`` is declared by a tool, so it is not given here either.
        A code such as 401 counts only at the start or beside a word such as "status", never as a bare number.
    """
    head = text[:300]
    for error, pattern in _FIRST:
        if pattern.search(head):
            return error
    if exc is not None:
        for base in type(exc).__mro__:
            named = _BY_TYPE.get(base.__name__)
            if named is not None:
                return named
    for error, pattern in _THEN:
        if pattern.search(head):
            return error
    return ErrorClass.OTHER


def _of_text(text: str) -> tuple[Status, bool]:
    if nothing_found(text):
        return _NOTHING
    if _FAILURE.match(text):
        return _FAILED
    if len(text) <= MAX_JSON and text.lstrip()[:1] == "{" and _JSON_MARK.search(text):
        try:
            held = orjson.loads(text)
        except ValueError:
            return _OK
        return _of_fields(held)
    return _OK


def _of_value(result: Any) -> tuple[Status, bool]:
    kind = type(result)
    if issubclass(kind, str):
        return _of_text(str.__str__(result))
    if isinstance(result, (list, tuple, set, frozenset, bytes, bytearray)) and not result:
        return _NOTHING
    if kind in _BARE:
        text = text_parts(result) if kind is list or kind is tuple else None
        return _OK if text is None else _of_text(text) if text else _OK
    return _of_fields(result)


def _of_fields(result: Any) -> tuple[Status, bool]:
    if isinstance(result, dict) and _TELLING.isdisjoint(result):
        return _OK if result else _NOTHING
    if _flagged(result):
        text = _failure_text(result, exit_code=False)
        return _NOTHING if text and nothing_found(text) else _FAILED
    text = text_parts(result)
    if text:
        return _of_text(text)
    lists = [value for name in _LISTS if (value := _field(result, name)) is not None]
    return _NOTHING if lists and all(value in ([], {}, 0) for value in lists) else _OK


def _flagged(result: Any) -> bool:
    """Whether a mapping or an object carries one of the fields that mark a failure."""
    return (
        any(_field(result, name) is True for name in _TRUE_MARKS)
        or any(_field(result, name) is False for name in _FALSE_MARKS)
        or any(type(code := _field(result, name)) is int and code != 0 for name in _EXIT_MARKS)
        or _is_error(_field(result, "error"))
    )


def _is_error(value: Any) -> bool:
    # Methods named error and measures of an error (floats) are no flags.
    if isinstance(value, str):
        return re.fullmatch(rf"\s*{_FALSE_WORDS}?\s*", value, re.I) is None
    return isinstance(value, (bool, int, dict, list, BaseException)) and bool(value)


def _field(result: Any, name: str) -> Any:
    if isinstance(result, (dict, MappingProxyType)):
        return result.get(name)
    return stored(result, name)


def _failure_text(result: Any, *, exit_code: bool = True) -> str | None:
    """What a returned failure says, None where it has no words."""
    if isinstance(result, str):
        return str.__str__(result)
    if isinstance(result, BaseException):
        return error_text(result)
    parts = text_parts(result)
    if parts is not None or isinstance(result, (list, tuple)):
        return parts
    texts = []
    for name in _EXIT_MARKS if exit_code else ():
        code = _field(result, name)
        if type(code) is int and code != 0:
            texts.append(f"{name} {code}")
    for name in _TEXTS:
        value = _field(result, name)
        if isinstance(value, (str, dict, BaseException)):
            text = _failure_text(value)
            if text:
                texts.append(text)
    return "\n".join(texts) if texts else None


def _text_of(exc: BaseException, depth: int) -> str:
    name = class_name(type(exc))
    try:
        message = str(exc)
        text = f"{name}: {message[:MAX_ERROR]}" if message else name
        members = exc.exceptions if isinstance(exc, BaseExceptionGroup) else ()
    except Exception:  # noqa: BLE001 - __str__ of an exception may raise
        return f"{name}: (no message: it cannot be printed)"
    if depth and members:
        text += " [" + "; ".join(_text_of(member, depth - 1)[:500] for member in members[:4]) + "]"
    return text


def _words(pattern: str) -> re.Pattern[str]:
    # One word boundary in front of all: the alternatives are then tried at the starts of words only.
    return re.compile(rf"\b(?:{pattern})", re.I | re.X | re.S)


# A status code stands at the start (behind the name of an exception type) or beside a word that says what it is.
_CODE = r"(?:\A(?:[\w.]+:\s*)?|(?:https?|http/[\d.]+|status|code|error|response|returned|answered)\b\W{0,3})"
_PERSON = r"(?:user|human|person|operator|approver|reviewer)"
_INPUT = r"(?:parameter|argument|field|property|key)"

# Looked for before the type of the exception.
_FIRST = (
    (
        ErrorClass.DENIED,
        _words(
            rf"""(?:rejected|declined|denied|refused|disapproved)\ by\ (?:the\ |an?\ )?{_PERSON}\b
            | {_PERSON}\ (?:has\ |have\ )?(?:rejected|declined|refused|denied|disapproved
                |(?:doesn't|does\ not|didn't|did\ not)\ (?:want|allow|approve|agree|consent|permit))\b
            | doesn't\ want\ to\ proceed\b"""
        ),
    ),
    (
        ErrorClass.TRANSIENT,
        _words(rf"{_CODE}429\b | rate[\ _-]?limit | too\ many\ requests\b | throttl"),
    ),
    (
        ErrorClass.FINAL_NETWORK,
        _words(
            r"""(?:could\ not|couldn't|cannot|can't|unable\ to|failed\ to)\ resolve\b
            | name\ or\ service\ not\ known\b | name\ resolution\b | getaddrinfo\b | ENOTFOUND\b
            | nodename\ nor\ servname\b | no\ address\ associated\b | unknown\ host\b
            | network\ is\ unreachable\b | no\ route\ to\ host\b | dns\ (?:error|failure|lookup)"""
        ),
    ),
)
_BY_TYPE = {
    "gaierror": ErrorClass.FINAL_NETWORK,
    "PermissionError": ErrorClass.FINAL_ACCESS,
    "ValidationError": ErrorClass.FINAL_TOOL,
    "TimeoutError": ErrorClass.TRANSIENT,
    "TimeoutExpired": ErrorClass.TRANSIENT,
    "TimeoutException": ErrorClass.TRANSIENT,
    "ConnectionError": ErrorClass.TRANSIENT,
    "BlockingIOError": ErrorClass.TRANSIENT,
}
_THEN = (
    (
        ErrorClass.FINAL_TOOL,
        _words(
            rf"""(?:unknown|unexpected|unrecogni[sz]ed|invalid)\ (?:keyword\ |input\ )?(?:tool|function|{_INPUT})s?\b
            | (?:tool|function)\ \S{{1,80}}\ (?:does\ not\ exist|not\ found|is\ not\ (?:available|defined|known))
            | (?:no\ such|not\ a\ valid)\ tool\b | tool\ not\ found\b
            | missing\ (?:\d+\ )?required\b | missing\ (?:{_INPUT})s?\b | required\ (?:{_INPUT})s?\b
            | (?:{_INPUT})s?\ [^.\n]{{0,60}}\b(?:is|are)\ (?:required|missing)\b | field\ required\b
            | validation\ ?errors?\b | schema\ (?:validation|error|mismatch) | match(?:es)?\ (?:the\ )?schema\b
            | takes\ (?:from\ )?\d+[\ \w]*\ positional\b | multiple\ values\ for\b
            | input\ should\ be\b | extra\ inputs\ are\ not\ permitted\b
            | {_CODE}(?:401|403)\b | unauthori[sz]ed\b | forbidden\b"""
        ),
    ),
    (
        ErrorClass.FINAL_ACCESS,
        _words(
            r"""not\ authori[sz]ed\b
            | (?:permission|access)[\ _]denied\b | denied\ by\b | declined\b | EACCES\b | EPERM\b
            | PermissionError\b | operation\ not\ permitted\b | insufficient\ (?:permission|privilege|scope)
            | authentication\ (?:failed|required)\b | invalid\ (?:api\ key|token|credentials)\b"""
        ),
    ),
    (
        ErrorClass.TRANSIENT,
        _words(
            rf"""{_CODE}(?:408|425|502|503|504)\b | \w*time(?:d|s)?[\ -]?out(?:Error)?\b
            | deadline\ exceeded\b | busy\b | lock(?:ed)?\b | deadlock\b | unavailable\b | overloaded\b
            | try\ again\ (?:later|in)\b | retry[\ -]after\b | resource[\ _]exhausted\b | bad\ gateway\b
            | connection\ (?:was\ )?(?:reset|refused|aborted|closed)\b | server\ disconnected\b
            | (?:ECONNRESET|ECONNREFUSED|ETIMEDOUT|EAGAIN|EBUSY)\b"""
        ),
    ),
)


_ENDED = re.compile(
    r"(?:exited|completed?|done|finished|succeeded|success|failed|failure|stopped|cancell?ed|terminated|ended|closed)\b",
    re.I,
)
_STATE = re.compile(r"[\"']?(?:status|state|phase)[\"']?\s*[:=]\s*[\"']?(\w+)", re.I)


def poll_ended(result: object) -> bool:
    """True if the answer of a poll says that what it asks about is over.

    The first word of a text counts, or the value of a field ``status``, ``state`` or ``phase``.
    """
    if isinstance(result, dict):
        return any(
            isinstance(result.get(name), str) and _ENDED.match(result[name]) for name in ("status", "state", "phase")
        )
    if not isinstance(result, str):
        return False
    text = result[:300].lstrip()
    state = _STATE.search(text)
    return bool(_ENDED.match(state[1] if state else text))
