"""What results and errors mean, and which part of a text is volatile."""

from __future__ import annotations

import json
import socket
import subprocess
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard.masking import without
from loopguard.outcome import (
    classify,
    error_class,
    error_text,
    mask,
    nothing_changed,
    nothing_found,
    poll_ended,
    result_error_text,
    template,
)
from loopguard.records import ErrorClass, Status

OK = (Status.OK, False)
NOTHING = (Status.OK, True)
FAILED = (Status.FAILED, False)


class Text(str):
    """A subclass of str."""


class Explosive:
    """Raises whatever is asked."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError


class Logger:
    """Its `error` and `ok` are methods, no flags."""

    def error(self) -> None: ...
    def ok(self) -> None: ...


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


FAILURES: list[Any] = [
    "error",
    "Error: no such column",
    "ERROR\nstack",
    "  error: indented",
    "error[E0308]: mismatched types",
    "Error (code 7)",
    "Error executing tool read: boom",
    "error TS2304: Cannot find name",
    "Error 404",
    "Error: 404",
    "error: 3",
    "Error: none of the files exist",
    "error: target check failed",
    "Errors: 2 fields",
    "Errors occurred while building",
    "Traceback (most recent call last):\n  File",
    "traceback (MOST recent call last)",
    "Exit code 1\nboom",
    "exit code: 127",
    "exit code -9",
    "fatal: not a git repository",
    "Fatal error: out of memory",
    Text("Error: x"),
    {"is_error": True},
    {"isError": True, "content": [{"type": "text", "text": "boom"}]},
    {"error": True},
    {"error": "boom"},
    {"error": {"code": 7}},
    {"error": 7},
    {"error": ValueError("x")},
    {"ok": False},
    {"success": False, "data": []},
    {"exit_code": 1},
    {"exitCode": 2, "output": ""},
    {"returncode": -9},
    {"return_code": 1},
    {"exit": 1},
    MappingProxyType({"ok": False}),
    SimpleNamespace(is_error=True),
    SimpleNamespace(success=False),
    subprocess.CompletedProcess(["x"], 1),
    [{"type": "text", "text": "Error: boom"}],
    {"content": [{"type": "text", "text": "Error: boom"}]},
    '{"exit_code": 1, "output": "error: missing header"}',
    ' {"error": "boom"}',
]
NORMAL: list[Any] = [
    "ok",
    "12 passed",
    "error-free",
    "error_count=3",
    "errors: 0",
    "Errors: none",
    "Errors fixed",
    "error: 0",
    "error = null, value = 3",
    "Error handling was added to parser.py",
    "error rate 0.1 %",
    "Error logs rotated",
    "errorless",
    "0 failed",
    "0 errors",
    "0 open",
    "0",
    "1 hit",
    "exit code 0",
    "Exit codes are documented",
    "fatality",
    "The traceback is below",
    "traceback",
    "none of the files changed",
    "No such file or directory",
    "no access to files",
    "No content was provided",
    "No files changed",
    "No results here, but 3 elsewhere",
    "[1]",
    "[",
    "{",
    '{"error": ',
    '{"error": null}',
    '{"errors": 3, "note": "x"}',
    '{"ok": true}',
    '{"exit":0,"output":"upstream answered 503, nothing collected"}',
    '{"error": "boom", "pad": "' + "x" * 5000 + '"}',
    "found it",
    "not found",
    7,
    0,
    False,
    True,
    1.5,
    b"error",
    [0],
    ("error",),
    [{"type": "image", "data": ""}],
    [{"type": "text", "text": "fine"}],
    {"ok": True},
    {"ok": 0, "failed": 3},
    {"success": None},
    {"error": None},
    {"error": ""},
    {"error": "none"},
    {"error": []},
    {"error": 0.25},
    {"exit_code": 0},
    {"exit_code": True},
    {"exit_code": "1"},
    {"results": [], "items": [1]},
    {"results": [1]},
    Logger(),
    lambda: None,
]
EMPTY: list[Any] = [
    None,
    "",
    " \n",
    [],
    {},
    (),
    set(),
    b"",
    "[]",
    "{ }",
    "null",
    "None",
    "(empty)",
    "(no output)",
    "<none>",
    "nothing found",
    "0 results",
    "0 hits",
    "0 rows",
    "Zero matches for 'x'",
    "no matches",
    "No matches found for 'a.b' in src",
    "No results.",
    "no entries",
    "Error: none",
    "Error: no matches found",
    "No python files found",
    "no answer (timeout)",
    "Found 0 matches",
    "found nothing",
    "There are no results for x",
    "The search returned no rows",
    {"is_error": True, "content": "no matches (exit 1)"},
    {"isError": True, "content": [{"type": "text", "text": "No files found"}]},
    {"ok": False, "error": "no results"},
    {"exit_code": 1, "output": "no matches found"},
    {"results": [], "query": "x"},
    {"hits": 0},
    [{"type": "text", "text": "No matches found"}],
    '{"results": [], "query": "x"}',
]


@pytest.mark.parametrize("result", FAILURES, ids=lambda value: repr(value)[:40])
def test_returned_failures(result: object) -> None:
    """Flags, exit codes and texts that begin as errors begin are failures."""
    assert classify(result) == FAILED


@pytest.mark.parametrize("result", NORMAL, ids=lambda value: type(value).__name__)
def test_results_that_are_no_failures(result: object) -> None:
    """Words that only look like failures, zero counts, methods and hostile objects are ordinary results."""
    assert classify(result) == OK


@pytest.mark.parametrize("result", EMPTY, ids=lambda value: repr(value)[:40])
def test_nothing_found_is_an_empty_outcome(result: object) -> None:
    """Every form of finding nothing is a success that is empty, with an error flag as well."""
    assert classify(result) == NOTHING


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_anything(text: str) -> None:
    """Every function takes every text."""
    status, nothing = classify(text)

    assert not (nothing and status is not Status.OK)
    assert error_class(text) is not ErrorClass.NONE
    assert template(text) == template(text)
    assert classify(json.dumps({"error": text, "ok": False})) in (FAILED, NOTHING)
    assert isinstance(result_error_text({"error": text}), str)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no matches (exit 1)", True),
        ("RuntimeError: no matches (exit 1)", True),
        ("", True),
        ("old_string not found", False),
        ("ModuleNotFoundError: No module named 'x'", False),
        ("no results " + "x" * 300, False),
    ],
)
def test_nothing_found_reads_errors_too(text: str, expected: bool) -> None:
    """The name of an exception in front does not hide that nothing was found."""
    assert nothing_found(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No changes made", True),
        ("Already up to date.", True),
        ("make: nothing to be done", True),
        ("nothing to commit, working tree clean", True),
        ("unchanged since your last read", True),
        ("File is unchanged", True),
        ("0 replacements", True),
        ("UPDATE: 0 rows affected", True),
        ("0 files changed", True),
        ("applied", False),
        ("1 replacement", False),
        ("10 replacements", False),
        ("0 failed", False),
    ],
)
def test_nothing_changed(text: str, expected: bool) -> None:
    """The answer of a write that changed nothing is told from one that did."""
    assert nothing_changed(text) is expected


def test_error_text_names_type_and_message() -> None:
    """The text of an exception is its type and its message, bounded, surrogates kept."""
    assert error_text(ValueError("bad")) == "ValueError: bad"
    assert error_text(TimeoutError()) == "TimeoutError"
    assert error_text(ValueError("\ud800")) == "ValueError: \ud800"
    assert len(error_text(ValueError("x" * 10_000))) == 2048
    assert error_text(Mute()) == "Mute: (no message: it cannot be printed)"


def test_error_text_of_a_group_names_its_members() -> None:
    """Groups of one message with different members have different texts, to a bounded depth."""
    deep: Exception = ValueError("end")
    for _ in range(5):
        deep = ExceptionGroup("g", [deep])

    assert error_text(ExceptionGroup("g", [ValueError("a"), KeyError("b")])) == (
        "ExceptionGroup: g (2 sub-exceptions) [ValueError: a; KeyError: 'b']"
    )
    assert "end" not in error_text(deep)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("Error: x", "Error: x"),
        ({"error": "boom"}, "boom"),
        ({"error": True, "message": "boom"}, "boom"),
        ({"error": {"code": 7, "message": "deep"}}, "deep"),
        ({"error": ValueError("x")}, "ValueError: x"),
        ({"exit_code": 2, "stderr": "no", "output": "out"}, "exit_code 2\nno\nout"),
        ({"isError": True, "content": [{"type": "text", "text": "boom"}]}, "boom"),
        ({"ok": False, "why": 7}, '{"ok":false,"why":7}'),
        (ValueError("x"), "ValueError: x"),
        ([1], "[1]"),
        (Logger(), "Logger"),
    ],
)
def test_result_error_text(result: object, expected: str) -> None:
    """A returned failure speaks through its fields, else through its content or its type."""
    assert result_error_text(result) == expected


def test_hostile_results_raise_nothing() -> None:
    """A result that raises when it is looked at is an ordinary one, named by its type."""
    assert classify(Explosive()) == OK
    assert result_error_text(Explosive()) == "Explosive"


class Strict(pydantic.BaseModel):
    x: int


def pydantic_error() -> Exception:
    """The error of a model that lacks a field."""
    with pytest.raises(pydantic.ValidationError) as caught:
        Strict()  # type: ignore[call-arg]
    return caught.value


def call_error(*args: Any, **kwargs: Any) -> Exception:
    """The TypeError of a call that does not fit."""

    def tool(path: str) -> None: ...

    with pytest.raises(TypeError) as caught:
        tool(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unknown tool 'serch'", "FINAL_TOOL"),
        ("tool 'search_workspace_v2' does not exist", "FINAL_TOOL"),
        ("unknown parameter index_pattern", "FINAL_TOOL"),
        ("validation error: field 'content' is required", "FINAL_TOOL"),
        ("missing required argument 'path'", "FINAL_TOOL"),
        ("Invalid arguments: timeout must be positive", "FINAL_TOOL"),
        ("output does not match the schema", "FINAL_TOOL"),
        ("401 Unauthorized: token expired", "FINAL_TOOL"),
        ("HTTPError: 403 Client Error", "FINAL_TOOL"),
        ("status 403", "FINAL_TOOL"),
        ("Permission denied: /etc/demo.conf", "FINAL_ACCESS"),
        ("bash: /etc/demo.conf: Permission denied", "FINAL_ACCESS"),
        ("PermissionError: /etc/demo.conf", "FINAL_ACCESS"),
        ("denied by policy: secrets", "FINAL_ACCESS"),
        ("Client error '403 Forbidden' for url", "FINAL_TOOL"),
        ("Could not resolve host: pypi.example", "FINAL_NETWORK"),
        ("name resolution failed: pypi.example", "FINAL_NETWORK"),
        ("unable to resolve host address pypi.example", "FINAL_NETWORK"),
        ("Temporary failure in name resolution", "FINAL_NETWORK"),
        ("429 Too Many Requests, retry after 2", "TRANSIENT"),
        ("403: API rate limit exceeded", "TRANSIENT"),
        ("HTTP 429", "TRANSIENT"),
        ("503 unavailable", "TRANSIENT"),
        ("server returned 502", "TRANSIENT"),
        ("busy", "TRANSIENT"),
        ("database is locked", "TRANSIENT"),
        ("timeout waiting for the answer", "TRANSIENT"),
        ("request timed out", "TRANSIENT"),
        ("ReadTimeout", "TRANSIENT"),
        ("Connection refused", "TRANSIENT"),
        ("declined by the user", "DENIED"),
        ("The user doesn't want to proceed with this tool use", "DENIED"),
        ("user rejected the edit", "DENIED"),
        ("404: no such ticket", "OTHER"),
        ("HTTP 400 bad request (request id 7f3c)", "OTHER"),
        ("ModuleNotFoundError: No module named 'app_settings'", "OTHER"),
        ("old_string not found in app.py", "OTHER"),
        ("no such table: invoices", "OTHER"),
        ("line 403: syntax error", "OTHER"),
        ("500 Internal Server Error", "OTHER"),
        ("upstream answered 503, nothing collected", "TRANSIENT"),
        ("unblocked 503 rows", "OTHER"),
        ("x" * 300 + " busy", "OTHER"),
    ],
)
def test_error_class_of_text(text: str, expected: str) -> None:
    """The first 300 characters tell the class of an error."""
    assert error_class(text).name == expected


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (PermissionError("x"), "FINAL_ACCESS"),
        (TimeoutError(), "TRANSIENT"),
        (ConnectionResetError("x"), "TRANSIENT"),
        (subprocess.TimeoutExpired("x", 3), "TRANSIENT"),
        (socket.gaierror("x"), "FINAL_NETWORK"),
        (pydantic_error(), "FINAL_TOOL"),
        (call_error(), "FINAL_TOOL"),
        (call_error("a", "b"), "FINAL_TOOL"),
        (call_error("a", nope=1), "FINAL_TOOL"),
        (call_error("a", path="b"), "FINAL_TOOL"),
        (TypeError("unsupported operand type(s)"), "OTHER"),
        (ValueError("busy"), "TRANSIENT"),
        (PermissionError("declined by the user"), "DENIED"),
        (Mute(), "OTHER"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_error_class_of_exceptions(exc: Exception, expected: str) -> None:
    """The type of an exception speaks before its text, a person's denial before both."""
    assert error_class(error_text(exc), exc).name == expected


SAME = [
    ("at 2031-03-04T10:00:00Z", "at 2031-03-05T11:22:33.5+02:00"),
    ("[2031-03-04 10:00:00,123] x", "[2031-03-04 10:00:01,456] x"),
    ("at 10:00:00", "at 9:59:59.25"),
    ("backup 20310304T100000Z", "backup 20310305T110000Z"),
    ("3:05 PM", "11:45 am"),
    ("row 123e4567-e89b-12d3-a456-426614174000", "row 00000000-e89b-12d3-a456-426614174fff"),
    ("<Client object at 0x7f00aa12>", "<Client object at 0x7fffbb34>"),
    ("pid 17 ended", "pid 18 ended"),
    ("Process 17: x", "Process 180: x"),
    ("commit 3f2a9c1e", "commit 99aa8b7"),
    ("bad (request id 7f1c)", "bad (request id 7f2c)"),
    ("/bin/bash: line 62215: javac: command not found", "/bin/bash: line 62230: javac: command not found"),
    ("in /tmp/tmpab12/x.py: boom", "in /tmp/tmpzz/x.py: boom"),
    ("in '/var/folders/ab/T/x' boom", "in '/var/folders/zz/T/y' boom"),
    ("C:\\Users\\a\\AppData\\Local\\Temp\\q1: boom", "C:\\Users\\a\\AppData\\Local\\Temp\\q2: boom"),
]
DIFFERENT = [
    ("3 failed", "2 failed"),
    ("2031-03-04", "2031-03-05"),
    ("page 1 of 3", "page 2 of 3"),
    ("order 17000001", "order 17000002"),
    ("0x80070005", "0x80070002"),
    ("error[E0301]", "error[E0302]"),
    ("defaced", "effaced"),
    ("a.py: boom", "b.py: boom"),
    ("ValueError: x", "KeyError: x"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_volatile_text_is_masked(left: str, right: str) -> None:
    """Texts that differ only by what is volatile are equal when masked."""
    assert mask(left) == mask(right) != left
    assert template(left) == template(right)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_numbers_with_a_meaning_stay(left: str, right: str) -> None:
    """Counts, dates, pages, codes and names are content."""
    assert mask(left) != mask(right)
    assert template(left) != template(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("failed after 0.12s", "failed after 3.4 seconds"),
        ("took 1m 3s", "took 2m 14s"),
        ("429, retry after 2", "429, retry after 16"),
        ("attempt 2 of 5 failed", "attempt 3 of 5 failed"),
    ],
)
def test_durations_are_masked_in_errors_only(left: str, right: str) -> None:
    """A duration may be the answer of a tool; in an error it is not."""
    assert mask(left) != mask(right)
    assert mask(left, durations=True) == mask(right, durations=True)
    assert template(left) == template(right)


def test_text_without_volatile_parts_is_itself() -> None:
    """Nothing to mask gives the very same text."""
    text = "nothing volatile here"

    assert mask(text) is text


def test_template_forgets_the_end_of_long_errors() -> None:
    """Volatile values of different lengths at the start do not change what counts of a long error."""
    tail = "x y " * 1000

    assert template("/tmp/a " + tail) == template("/tmp/" + "a" * 60 + " " + tail)
    assert len(template(tail)) < 2048


# -- what a tool declares ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "parts", "left"),
    [
        ("done at 2026-01-01 12:00:01", True, "done at <time>"),
        ('{"id": 1, "rows": [{"id": 2, "n": 3}]}', ("id",), {"rows": [{"n": 3}]}),
        ({"id": 1, "rows": ({"id": 2, "n": 3},)}, ("id",), {"rows": [{"n": 3}]}),
        ("pid=4711, load: 3", ("pid",), "pid=<volatile>, load: 3"),
        ("{pid: 4711}", ("pid",), "{pid: <volatile>}"),
        ("took 17 turns", (r"\d+ turns",), "took <volatile>"),
        (17, ("pid",), 17),
    ],
)
def test_what_is_declared_volatile_is_taken_out(result: Any, parts: Any, left: Any) -> None:
    """Fields of mappings and of JSON text wherever they stand, fields of other text, and regular expressions."""
    assert without(result, parts) == left


@pytest.mark.parametrize("parts", [(), False])
@pytest.mark.parametrize("result", ['{"id": 1}', {"id": 1}])
def test_where_nothing_is_volatile_the_result_is_itself(result: Any, parts: Any) -> None:
    """Nothing declared, nothing copied."""
    assert without(result, parts) is result
    assert without(result := object(), True) is result


def test_a_deep_result_keeps_what_lies_below() -> None:
    """Below 64 levels nothing is taken out, and nothing fails."""
    deep: Any = {"id": 1}
    for _ in range(64):
        deep = [deep]
    assert without([deep], ("id",)) == [deep]
    assert without(deep[0], ("id",)) != deep[0]


@pytest.mark.parametrize(
    ("result", "ended"),
    [
        ("completed", True),
        ("  Done: 3 files", True),
        ("running, 3 of 5 done", False),
        ('{"status": "succeeded"}', True),
        ("state: running; done 3", False),
        ({"phase": "failed"}, True),
        ({"status": "running"}, False),
        ({"status": 3}, False),
        (b"done", False),
        (None, False),
    ],
)
def test_a_poll_says_whether_it_is_over(result: object, ended: bool) -> None:
    """By its first word, or by a field that names the state."""
    assert poll_ended(result) is ended
