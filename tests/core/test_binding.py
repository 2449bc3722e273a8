"""Reading one call: key, whole input, target, file, kind."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopguard.binding import Binder, MappingBinder
from loopguard.records import Kind
from loopguard.signature import (
    Ignored,
    Primary,
    Secret,
    ToolSignature,
    ToolSpec,
    spec_from_function,
    spec_from_options,
)

KEY = b"k" * 16


def binder(func: Any, *, bound: bool = False, **options: Any) -> Binder:
    """The binder of a function with these options."""
    return Binder(spec_from_function(func, **options), func, bound=bound)


def read(path: str, limit: int = 2000) -> None:
    """Stands for a tool."""


def test_the_spelling_of_a_call_does_not_matter() -> None:
    """By position, by keyword, or with a default left out: one key."""
    reads = binder(read)
    spellings: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("a",), {}),
        (("a", 2000), {}),
        (("a",), {"limit": 2000}),
        ((), {"limit": 2000, "path": "a"}),
    ]

    assert {("a", 2000)} == {reads.key(args, kwargs) for args, kwargs in spellings}
    assert reads.names == ("path", "limit")


def test_a_full_positional_call_is_its_own_key() -> None:
    """Nothing is built where nothing has to be changed."""
    args = ("a", 1)

    assert args is binder(read).key(args, {})


@given(st.integers(), st.integers(), st.integers(), st.booleans(), st.booleans())
def test_reading_agrees_with_signature_bind(a: int, b: int, c: int, by_name: bool, default: bool) -> None:
    """The prepared reader gives what the slow, general way gives."""

    def tool(a: int, /, b: int = 5, *more: int, c: int = 7, **rest: int) -> None: ...

    args = (a,) if by_name else (a, b)
    kwargs: dict[str, int] = {"z": 1, "y": 2}
    if by_name:
        kwargs["b"] = b
    if not default:
        kwargs["c"] = c
    bound = inspect.signature(tool).bind(*args, **kwargs)
    bound.apply_defaults()

    assert tuple(bound.arguments.values()) == binder(tool, ignored=()).values(args, kwargs)


def test_ignored_parameters_are_left_out_of_the_whole_input() -> None:
    """Marked, named and framework parameters are no part of the identity."""

    class RunContext: ...

    def tool(ctx: RunContext, path: str, nonce: Annotated[str, Ignored] = "") -> None: ...

    reads = binder(tool)

    assert reads.whole((RunContext(), "a"), {"nonce": "x"}) == ("a",)
    assert reads.names == ("path",)


def test_free_text_arguments_are_ignored_unless_they_are_all_there_is() -> None:
    """`thought` says why, but for `think(thought)` it is the call."""

    def act(path: str, thought: str = "") -> None: ...
    def think(thought: str) -> None: ...
    def method(self: Any, thought: str) -> None: ...

    assert binder(act).key(("a", "because"), {}) == ("a",)
    assert binder(think).key(("hm",), {}) == ("hm",)
    assert binder(method).key((None, "hm"), {}) == ("hm",)
    assert binder(act, ignored=()).key(("a", "because"), {}) == ("a", "because")
    assert MappingBinder(ToolSpec(name="t")).key({"q": 1, "thought": "x"}) == ({"q": 1},)
    assert MappingBinder(ToolSpec(name="t")).key({"thought": "x"}) == ({"thought": "x"},)


def test_keyword_arguments_without_parameters_are_sorted() -> None:
    """`**rest` is one mapping in sorted order, without what is ignored."""

    def tool(a: int, **rest: Any) -> None: ...

    (a, rest) = binder(tool).key((1,), {"z": 1, "b": 2, "timeout": 3})

    assert (a, list(rest.items())) == (1, [("b", 2), ("z", 1)])


def test_the_key_is_the_primary_values_in_their_order() -> None:
    """The whole input stays available: a write is identified by it."""
    reads = binder(read, primary=("limit", "path"))

    assert reads.key(("a", 3), {}) == (3, "a")
    assert reads.whole(("a", 3), {}) == ("a", 3)
    assert reads.target(("a", 3), {}) == "3"


def test_a_normaliser_is_applied_and_may_fail() -> None:
    """A value that it cannot take is compared as it is."""

    def tool(path: Annotated[str, Primary(os.path.normpath)]) -> None: ...

    reads = binder(tool)

    assert reads.key(("./a.py",), {}) == ("a.py",)
    assert reads.target(("./a.py",), {}) == "a.py"
    assert reads.key((3,), {}) == (3,)
    assert MappingBinder(reads.spec).whole({"path": "./a.py"}) == ({"path": "./a.py"},)
    assert MappingBinder(reads.spec).key({"path": "./a.py"}) == ("a.py",)


def test_a_primary_parameter_may_come_in_kwargs() -> None:
    """Tools that take everything as keywords declare their key by name."""

    def tool(**arguments: Any) -> None: ...

    reads = binder(tool, primary="path", normalise={"path": str.lower})

    assert reads.key((), {"path": "A", "x": 1}) == ("a",)
    assert reads.key((), {}) == (None,)
    assert reads.target((), {"path": "A"}) == "a"
    assert binder(tool, primary="path").key((), {"path": "A"}) == ("A",)


def test_a_call_that_does_not_fit_is_read_as_it_is_spelled() -> None:
    """The tool will raise a TypeError; the guard must not, and equal calls stay equal."""
    reads = binder(read, primary="path")
    plain = binder(read)
    changed = binder(read, primary="path", normalise={"path": str.lower})

    assert reads.key(("a", 1, 2), {}) == (("a", 1, 2), {})
    assert plain.key((), {"timeout": 3, "pth": "a"}) == ((), {"pth": "a"})
    assert changed.key((), {"pth": "a"}) == ((), {"pth": "a"})
    assert plain.named(("a", 1, 2), {}) == {"path": "a", "limit": 1}
    assert plain.named((), {"pth": "a"}) == {"pth": "a"}
    assert reads.target(("a", 1, 2), {}) == "a"


def test_a_function_without_a_signature_is_read_as_it_is_spelled() -> None:
    """Some built-in functions tell nothing about their parameters."""
    odd = inspect.Signature([inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)])
    object.__setattr__(next(iter(odd.parameters.values())), "_name", "not a name")

    for func in (None, odd):
        assert Binder(ToolSpec(name="t"), func).key((1,), {"a": 2}) == ((1,), {"a": 2})
    assert Binder(ToolSpec(name="t"), dict.get).spec.name == "t"


def test_a_bound_call_comes_without_the_first_parameter() -> None:
    """Methods are called with their object in front, or on it."""

    def method(self: Any, path: str) -> None: ...
    def everything(*args: Any) -> None: ...

    assert binder(method, bound=True).key(("a",), {}) == ("a",)
    assert binder(method).key((object(), "a"), {}) == ("a",)
    assert binder(everything, bound=True).key(("a",), {}) == (("a",),)
    assert binder(lambda: None, bound=True).key((), {}) == ((), {})


def test_secret_values_never_stand_in_a_key() -> None:
    """Neither in the key nor in the whole input, nor in what stands for a call that does not fit."""

    def login(user: str, token: Annotated[str, Secret], **rest: Any) -> None: ...

    logs = binder(login, secret="pin")
    whole = logs.whole(("bob", "hunter2"), {"pin": "1234"}, KEY)

    assert whole[0] == "bob"
    assert whole == logs.whole((), {"pin": "1234", "token": "hunter2", "user": "bob"}, KEY)
    assert whole != logs.whole(("bob", "other"), {"pin": "1234"}, KEY)
    assert "hunter2" not in repr(whole)
    assert "1234" not in repr(whole)
    assert "hunter2" not in repr(logs.whole(("bob",), {"user": "x", "token": "hunter2"}, KEY))
    assert "hunter2" not in repr(logs.whole(("hunter2", "hunter2", "hunter2"), {}, KEY))
    assert logs.values(("bob", "hunter2"), {"pin": "1234"}) == ("bob", "hunter2", {"pin": "1234"})


def test_a_secret_may_be_the_key_but_never_the_target() -> None:
    """A message must not name it; a normaliser sees it before it is hashed."""

    def tool(token: Annotated[str, Primary(str.lower), Secret]) -> None: ...
    def plain(token: Annotated[str, Primary, Secret]) -> None: ...

    for each in (binder(tool), binder(plain)):
        assert each.key(("x",), {}, KEY) == each.key((), {"token": "x"}, KEY)
        assert "x" not in each.key(("x",), {}, KEY)
        assert each.target(("x",), {}) is None
        assert MappingBinder(each.spec).key({"token": "x"}, KEY) == each.key(("x",), {}, KEY)
        assert MappingBinder(each.spec).target({"token": "x"}) is None
    assert binder(tool).key(("X",), {}, KEY) == binder(tool).key(("x",), {}, KEY)


def test_files_are_named_by_parameter_or_by_function() -> None:
    """What is edited comes before what is read; a function that fails names nothing."""

    def copy(source: str, to: str) -> None: ...

    assert binder(copy, reads="source", edits="to").file(("a", "b"), {}) == "b"
    assert binder(copy, reads="source").target(("a", "b"), {}) == "a"
    assert binder(copy).file(("a", "b"), {}) is None
    assert binder(copy, primary="to").file(("a", "b"), {}) is None
    by_function = binder(copy, edits=lambda named: named["to"])
    assert by_function.target(("a", "b"), {}) == "b"
    assert by_function.target_name is None
    assert by_function.edits
    assert binder(copy, edits=lambda named: named["x"]).file(("a", "b"), {}) is None


def test_a_target_is_text() -> None:
    """Numbers and paths have a text form, other values have none."""

    class Hostile:
        def __fspath__(self) -> str:
            raise RuntimeError

    class Name(str):
        __slots__ = ()

    targets = binder(read, primary="path").target

    assert ["a", "3", "0.5", str(Path("a", "b")), "n"] == [
        targets((value,), {}) for value in ("a", 3, 0.5, Path("a", "b"), Name("n"))
    ]
    assert [targets((value,), {}) for value in (True, None, ["a"], Hostile())] == [None] * 4


def test_the_kind_is_fixed_or_read_from_the_call() -> None:
    """A kind that never changes is known at decoration."""

    def shell(command: str) -> None: ...

    assert (binder(shell).fixed_kind, binder(shell).kind(("ls",), {})) == (Kind.UNKNOWN, Kind.UNKNOWN)
    assert binder(read, edits="path").fixed_kind == Kind.WRITE
    assert binder(read, reads="path").fixed_kind == Kind.READ
    by_line = binder(shell, kind="shell")
    assert by_line.fixed_kind is None
    assert by_line.kind(("rm x",), {}) == Kind.WRITE
    assert Binder(ToolSpec(name="t", kind="poll"), shell).fixed_kind == Kind.POLL
    by_function = binder(shell, kind=lambda named: "sample" if named["command"] == "dice" else None)
    assert by_function.kind((), {"command": "dice"}) == Kind.SAMPLE


# ------------------------------------------------------------------------------------------- by mapping


def test_a_mapping_is_read_whatever_the_order_of_its_keys() -> None:
    """Its whole input is one mapping in sorted order."""
    reads = MappingBinder(ToolSpec(name="t"))

    assert list(reads.key({"b": 1, "a": 2})[0]) == list(reads.key({"a": 2, "b": 1})[0]) == ["a", "b"]
    assert reads.named({"a": 2}) == {"a": 2}
    assert reads.key(None) == ({},)
    assert reads.key({1: "x", "a": "y"}) == ({1: "x", "a": "y"},)


def test_what_is_not_a_mapping_is_one_value() -> None:
    """Nothing raises, also not a mapping that cannot be read."""

    class Hostile(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise KeyError

        def __iter__(self) -> Iterator[str]:
            raise RuntimeError

        def __len__(self) -> int:
            return 1

    reads = MappingBinder(ToolSpec(name="t"))
    hostile = Hostile()

    assert reads.key("text") == ({"value": "text"},)
    assert reads.named(hostile) == {"value": hostile}
    secret = MappingBinder(ToolSpec(name="t", secret=frozenset({"token"})))
    assert "text" not in repr(secret.whole("text", KEY))
    assert "x1" not in repr(secret.whole({"token": "x1", "user": "bob"}, KEY))
    assert secret.whole(None, KEY) == ({},)


def test_the_primary_values_of_a_mapping_form_the_key() -> None:
    """One that is missing is None; if all are missing the whole input is the key."""
    spec = spec_from_options("t", {"primary": ("path", "mode"), "kind": "shell"})
    reads = MappingBinder(spec)

    assert reads.key({"path": "a", "x": 1}) == ("a", None)
    assert reads.key({"x": 1}) == ({"x": 1},)
    assert reads.target({"path": "a"}) == "a"
    assert reads.target({"x": 1}) is None
    assert reads.kind({"path": "rm x"}) == Kind.WRITE
    assert MappingBinder(spec_from_options("t", {"reads": "p"})).kind({"p": "a"}) == Kind.READ
    assert MappingBinder(spec_from_options("t", {"reads": lambda named: named["p"]})).target({"p": "a"}) == "a"
    assert reads.suggestion({}) is None


class Signature(ToolSignature):
    """Says something about `read` and `edit`, nothing about other tools."""

    def extract_primary_param(self, tool: str, args: Any) -> str:
        return "" if tool == "other" else str(args["path"])

    def normalize_param_for_comparison(self, tool: str, param: str) -> str:
        return param.split("#", maxsplit=1)[0]

    def get_suggestion(self, tool: str, param: str) -> str | None:
        return f"look at {param}" if tool == "edit" else None

    def is_file_read_tool(self, tool: str) -> bool:
        return tool == "read"

    def is_file_edit_tool(self, tool: str) -> bool:
        return tool == "edit"

    def file_path_for_reset(self, tool: str, args: Any) -> str | None:
        path: str | None = args.get("reset")
        return path


def test_a_tool_signature_is_asked_first() -> None:
    """Its parameter is the key as it stands, normalised it names the file."""
    args = {"path": "a.py#3", "x": 1}
    edit, reads, other = (MappingBinder(ToolSpec(name=n), Signature()) for n in ("edit", "read", "other"))

    assert ("a.py#3",) == edit.key(args) == reads.key(args)
    assert edit.target(args) == "a.py#3"
    assert edit.file(args) == "a.py"
    assert edit.file({"reset": "b.py"}) == "b.py"
    assert (edit.kind(args), reads.kind(args), other.kind(args)) == (Kind.WRITE, Kind.READ, Kind.UNKNOWN)
    assert (edit.edits, reads.edits) == (True, False)
    assert edit.suggestion(args) == "look at a.py#3"
    assert (args,) == other.key(args)
    assert other.file(args) is None


def test_a_tool_signature_that_fails_says_nothing() -> None:
    """An overridden method that raises must not break the call."""
    edit = MappingBinder(ToolSpec(name="edit", suggestion="stop"), Signature())

    assert edit.key({"x": 1}) == ({"x": 1},)
    assert edit.file({"x": 1}) is None
    assert edit.suggestion({}) == "look at "
    assert MappingBinder(ToolSpec(name="t", suggestion="stop"), Signature()).suggestion({}) == "stop"


@pytest.mark.parametrize("arguments", [None, {}, {"path": "a"}, "text", 3, [1]])
def test_the_bare_tool_signature_does_nothing(arguments: Any) -> None:
    """Every default of the class leaves the reading as it was."""
    spec = ToolSpec(name="t")
    plain, asked = MappingBinder(spec), MappingBinder(spec, ToolSignature())

    assert plain.key(arguments) == asked.key(arguments)
    assert plain.file(arguments) is asked.file(arguments) is None
    assert plain.kind(arguments) is asked.kind(arguments) is Kind.UNKNOWN
