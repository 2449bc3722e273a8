"""What a tool tells about itself: annotations, options, tables, the ready table."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional

import pydantic
import pytest

from loopguard.errors import PolicyError
from loopguard.ready_table import READY_TABLE, file_argument, spec_for
from loopguard.records import Kind
from loopguard.signature import (
    DEFAULT_IGNORED,
    Ignored,
    Primary,
    Secret,
    ToolSignature,
    ToolSpec,
    is_recoverable,
    spec_from_function,
    spec_from_options,
    tools_from_toml,
)


def read(path: str, limit: int = 2000) -> None:
    """Stands for a tool."""


def facts(spec: ToolSpec) -> tuple[Any, Any, Any]:
    """What annotations can say."""
    return spec.primary, spec.ignored, spec.secret


# ---------------------------------------------------------------------------------------------- markers


@pytest.mark.parametrize("mark", [Primary, Ignored, Secret])
def test_a_marker_is_no_text_and_prints_as_its_name(mark: Any) -> None:
    """Frameworks take texts for descriptions and print signatures for the model."""
    assert not isinstance(mark(), str)
    assert mark.__name__ == repr(mark) == repr(mark())
    assert f"x: Annotated[str, {mark.__name__}]" in str(
        inspect.signature(lambda x: None).replace(
            parameters=[inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str, mark])]
        )
    ).replace("typing.", "")


@pytest.mark.parametrize("mark", [Primary(), Primary(str.lower), Ignored(), Secret()])
def test_markers_copy_compare_and_pickle(mark: Any) -> None:
    """Frameworks copy annotations and use them as keys."""
    assert mark == copy.deepcopy(mark) == pickle.loads(pickle.dumps(mark))
    assert hash(mark) == hash(copy.copy(mark))
    assert mark != "Primary"
    assert Primary() != Primary(str.lower)
    assert Ignored() != Secret()


def test_annotations_say_what_options_say() -> None:
    """Class and instance of a marker mean the same."""

    def tool(a: Annotated[str, Primary], b: Annotated[int, Ignored()], c: Annotated[str, "text", Secret()]) -> None: ...
    def bare(a: str, b: int, c: str) -> None: ...

    by_marks = spec_from_function(tool, name="t")

    assert by_marks == spec_from_function(bare, name="t", primary="a", ignored=["b"], secret={"c"})
    assert facts(by_marks) == (("a",), {"b"}, {"c"})


def test_options_replace_the_key_and_add_to_the_rest() -> None:
    """`primary=` holds over the marks; ignored and secret add up; normalisers meet by parameter."""

    def tool(a: Annotated[str, Primary(str.lower)], b: Annotated[int, Ignored], c: int = 0) -> None: ...

    spec = spec_from_function(tool, primary=("c", "a"), ignored="b", normalise={"c": abs})

    assert spec.primary == ("c", "a")
    assert {"b"} == spec.ignored == spec.without
    assert {"a": str.lower, "c": abs} == spec.normalise


def test_marks_are_found_inside_optional_types() -> None:
    """`Annotated[...] | None` says what `Annotated[...]` says."""

    def tool(
        a: Annotated[str, Primary] | None = None,
        b: Optional[Annotated[str, Ignored]] = None,  # noqa: UP045 - the old spelling is what is tested
        c: typing.Union[Annotated[str, Secret], None] = None,  # noqa: UP007 - likewise
    ) -> None: ...

    spec = spec_from_function(tool)

    assert facts(spec) == (("a",), {"b"}, {"c"})


def test_names_that_only_type_checkers_know_do_no_harm() -> None:
    """The marks beside an unresolvable type still count; what cannot be read says nothing."""

    def tool(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any) -> None: ...

    tool.__annotations__ = {
        "a": "Annotated[Missing, Primary]",
        "b": "Missing | None",
        "c": "this is no annotation",
        "d": "missing.RunContext[Deps] | None",
        "e": "Optional[RunContextWrapper]",
        "f": "list[Missing]",
        "g": "'Secret'",
        "h": typing.ForwardRef("Annotated[int, Ignored]"),
        "i": "missing()",
    }
    spec = spec_from_function(tool)

    assert facts(spec) == (("a",), {"h"}, frozenset())
    assert {"d", "e"} == spec.injected


def test_wrapped_functions_partials_and_callables_are_read() -> None:
    """Annotations written as text are resolved where the innermost function was defined."""

    def tool(path: Annotated[str, Primary], more: int = 0) -> None: ...

    @functools.wraps(tool)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    class Tool:
        def __call__(self, path: Annotated[str, Primary]) -> None: ...

        def method(self, path: Annotated[str, Primary]) -> None: ...

    assert all(
        spec_from_function(each).primary == ("path",)
        for each in (wrapped, functools.partial(tool, more=1), Tool(), Tool().method, Tool.method)
    )
    assert spec_from_function(Tool()).name == "Tool"
    assert {"self"} == spec_from_function(Tool.method).injected
    assert frozenset() == spec_from_function(Tool().method).injected


def test_a_callable_without_a_signature_can_be_declared() -> None:
    """Nothing is known about its parameters, so every name is accepted."""

    class Odd:
        @property
        def __signature__(self) -> Any:
            raise RuntimeError

        def __call__(self) -> None: ...

    assert spec_from_function(Odd(), primary="x").primary == ("x",)
    assert spec_from_function(dict).name == "dict"


@dataclass
class RunContext:
    """Named as a framework's type is; frameworks define theirs as dataclasses too."""


class Context:
    """A type that a model cannot fill in."""


class InjectedState:
    """A mark of a framework."""


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    """Some generic type."""


def test_parameters_that_a_framework_fills_in_are_no_part_of_a_call() -> None:
    """They are found by the name of their type or mark."""

    def tool(
        ctx: RunContext,
        context: Context | None,
        state: Annotated[dict[str, Any], InjectedState],
        other: Annotated[dict[str, Any], InjectedState()],
        box: Box[int],
        query: str,
    ) -> None: ...

    assert {"ctx", "context", "state", "other"} == spec_from_function(tool).injected


def test_a_context_of_ones_own_is_an_argument() -> None:
    """A model can fill in a dataclass or a pydantic model; only a framework's own is injected."""
    own: Any = dataclass(type("Context", (), {"__annotations__": {"a": int}}))
    foreign = type("Context", (pydantic.BaseModel,), {"__module__": "mcp.server"})

    def tool(a: Any, b: Any) -> None: ...

    tool.__annotations__ = {"a": own, "b": foreign}

    assert {"b"} == spec_from_function(tool).injected


def test_pydantic_secrets_are_secret_without_a_mark() -> None:
    """Found by name, so that pydantic need not be there."""

    def tool(token: pydantic.SecretStr, other: pydantic.SecretBytes | None = None, name: str = "") -> None: ...

    assert {"token", "other"} == spec_from_function(tool).secret


# ---------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options",
    [
        {"primary": "pth"},
        {"ignored": "pth"},
        {"secret": "pth"},
        {"reads": "pth"},
        {"edits": "pth"},
        {"normalise": {"pth": str.lower}},
        {"kind": {"by": "pth", "*": "read"}},
    ],
)
def test_a_parameter_that_does_not_exist_is_named(options: dict[str, Any]) -> None:
    """The text says which tool, which parameters it has, and which one may be meant."""
    with pytest.raises(PolicyError) as caught:
        spec_from_function(read, **options)

    text = str(caught.value)
    assert all(
        part in text for part in (next(iter(options)), "'pth'", "'read'", "'path', 'limit'", "Did you mean 'path'")
    )


def test_a_tool_without_parameters_has_none_to_name() -> None:
    """The text stays readable."""
    with pytest.raises(PolicyError, match=r"it has: none\)\.$"):
        spec_from_function(lambda: None, primary="x")


def test_a_tool_with_kwargs_may_name_any_parameter() -> None:
    """What comes in `**kwargs` is known only when it is called."""

    def tool(**kwargs: Any) -> None: ...

    assert spec_from_function(tool, primary="path").primary == ("path",)


def test_the_usual_free_texts_are_ignored_where_nothing_is_declared() -> None:
    """A declaration replaces them, also an empty one; a primary parameter is never ignored."""

    def tool(description: str, note: str = "") -> None: ...

    assert spec_from_function(tool).ignored == DEFAULT_IGNORED
    assert {"note"} == spec_from_function(tool, ignored="note").ignored
    assert frozenset() == spec_from_function(tool, ignored=()).ignored
    assert spec_from_options("t", {"ignored": None}).ignored == DEFAULT_IGNORED
    assert "description" not in spec_from_function(tool, primary="description").without


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", ""),
        ("primary", 3),
        ("primary", {"a": 1}),
        ("primary", [1]),
        ("normalise", {"a": 1}),
        ("kind", "wirte"),
        ("kind", "zzz"),
        ("kind", 3),
        ("kind", {"view": "read"}),
        ("kind", {"by": "command", "view": "shell"}),
        ("reads", 3),
        ("failed", True),
        ("recoverable", 3),
        ("recoverable", [3]),
        ("control_flow", "KeyError"),
        ("control_flow", [int]),
        ("volatile", "("),
        ("patience", -1),
        ("patience", True),
        ("patience", float("nan")),
        ("running", 3),
        ("suggestion", 3),
        ("warn_after", -1),
        ("warn_after", True),
        ("refuse_after", 1.5),
        ("rules", "Failing"),
        ("rules", 3),
        ("mode", "observer"),
        ("mode", 3),
        ("on_warn", "apend"),
        ("on_refuse", "zzz"),
        ("on_stop", 3),
    ],
)
def test_an_impossible_value_is_an_error_that_names_it(option: str, value: Any) -> None:
    """Settings are checked when they are made."""
    with pytest.raises(PolicyError, match=r"'t'") as caught:
        spec_from_options("t", {option: value})

    assert option in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_the_nearest_word_is_offered() -> None:
    """For option names and for values that are words."""
    with pytest.raises(PolicyError, match=r"'ignore' is no option of tool 't'\. Did you mean 'ignored'\?"):
        spec_from_options("t", {"ignore": "x"})
    with pytest.raises(PolicyError, match="Did you mean 'write'"):
        spec_from_options("t", {"kind": "wirte"})
    with pytest.raises(PolicyError, match="Did you mean 'append'"):
        spec_from_options("t", {"on_warn": "apend"})


@pytest.mark.parametrize("word", ["once", "retries", "window", "key", "timeout", "pattern", "idempotent"])
def test_a_wrong_neighbour_is_not_offered(word: str) -> None:
    """A word that is like none of the options gets the list of them, and no guess."""
    with pytest.raises(PolicyError, match=rf"'{word}' is no option of tool 't'\. Options are: control_flow, "):
        spec_from_options("t", {word: True})


def test_volatile_says_what_it_takes() -> None:
    """Fields or patterns, not parameters."""
    with pytest.raises(PolicyError, match=r"volatile=\[3\] of tool 't' cannot be meant: give fields or regular expr"):
        spec_from_options("t", {"volatile": [3]})


def test_contradictions_are_errors() -> None:
    """A parameter is primary or ignored; the rungs rise or are equal."""
    assert len(spec_from_options("t", {"warn_after": 3, "refuse_after": 3, "stop_after": 5}).rungs) == 3
    with pytest.raises(PolicyError, match="both primary and ignored"):
        spec_from_options("t", {"primary": "a", "ignored": "a"})
    with pytest.raises(PolicyError, match="warn_after=5 above stop_after=3"):
        spec_from_options("t", {"warn_after": 5, "refuse_after": 0, "stop_after": 3})


def test_options_are_normalised() -> None:
    """One name or several, one type or several: the spec holds one form."""
    spec = spec_from_options(
        "t",
        {
            "name": "other",
            "primary": ["a", "a", "b"],
            "secret": None,
            "normalise": None,
            "kind": "poll",
            "control_flow": KeyError,
            "recoverable": ValueError,
            "volatile": "ts",
            "patience": 5,
            "rules": [1],
            "running": len,
            "suggestion": "ask",
            "warn_after": 0,
            "stop_after": None,
            "mode": "observe",
            "on_warn": "append",
            "on_refuse": print,
        },
    )

    assert (spec.name, spec.primary, spec.kind) == ("other", ("a", "b"), Kind.POLL)
    assert ((KeyError,), (ValueError,), ("ts",), 5.0) == (
        spec.control_flow,
        spec.recoverable,
        spec.volatile,
        spec.patience,
    )
    assert spec.rungs == (("warn_after", 0),)
    tool = spec.tool()
    assert (
        tool.name,
        tool.edits,
        tool.volatile,
        tool.rungs,
        tool.rules,
    ) == ("other", False, True, (("warn_after", 0),), (1,))


def test_none_is_the_default_of_every_option_that_takes_it() -> None:
    """A table that is filled from elsewhere may leave gaps."""
    names = (
        "primary",
        "kind",
        "reads",
        "failed",
        "recoverable",
        "control_flow",
        "volatile",
        "patience",
        "rules",
    )

    assert ToolSpec(name="t") == spec_from_options("t", dict.fromkeys(names))
    assert spec_from_options("t", {"volatile": False}).volatile is False
    assert spec_from_options("t", {"volatile": True}).volatile is True
    assert spec_from_options("t", {"failed": False}).failed is False


def test_files_imply_a_kind_unless_one_is_given() -> None:
    """`edits=` makes a write, `reads=` a read, both a write."""
    kinds = [
        spec_from_options("t", options).kind
        for options in (
            {"edits": "a"},
            {"reads": "a"},
            {"reads": "a", "edits": "a"},
            {"edits": "a", "kind": Kind.POLL},
        )
    ]

    assert kinds == [Kind.WRITE, Kind.READ, Kind.WRITE, Kind.POLL]


@pytest.mark.parametrize(
    ("expected", "declared", "error"),
    [
        (True, ValueError, ValueError("x")),
        (True, (KeyError, "No MATCH"), None),
        (False, KeyError, ValueError("x")),
        (False, KeyError, None),
        (True, True, None),
        (False, False, None),
        (True, lambda error: "no match" in str(error), None),
        (True, lambda error: isinstance(error, ValueError), ValueError("x")),
        (False, lambda error: error.missing, None),
    ],
)
def test_recoverable_errors_are_told_by_type_text_or_predicate(
    expected: bool, declared: Any, error: BaseException | None
) -> None:
    """A predicate sees what was raised, or the text of a returned failure; what it raises counts as no."""
    spec = spec_from_options("t", {"recoverable": declared})

    assert expected is is_recoverable(spec, error, "no match found")


# ----------------------------------------------------------------------------------------------- tables

TABLE = """
[tools.Bash]
primary = "command"
ignored = ["description"]

[tools]
str_replace_editor = { kind = { by = "command", view = "read", "*" = "write" } }
read_file = { reads = "path", volatile = ["ts"], warn_after = 4 }
"""


def test_tables_say_what_options_say(tmp_path: Path) -> None:
    """As text, as a file by path or by name, as a mapping with or without its head."""
    file = tmp_path / "tools.toml"
    file.write_text(TABLE.replace("[tools.Bash]", '[tools."Bash"]'), encoding="utf-8")
    tools = tools_from_toml(TABLE)

    assert tools == tools_from_toml(file) == tools_from_toml(str(file))
    assert spec_from_options("Bash", {"primary": "command", "ignored": "description"}) == tools["Bash"]
    assert tools["str_replace_editor"].kind == {"by": "command", "view": Kind.READ, "*": Kind.WRITE}
    assert (tools["read_file"].kind, tools["read_file"].volatile, tools["read_file"].warn_after) == (
        Kind.READ,
        ("ts",),
        4,
    )
    own = ToolSpec(name="x")
    assert {"x": own} == tools_from_toml({"x": own}) == tools_from_toml({"tools": {"x": own}})
    assert tools_from_toml("") == {}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("[tools.Bash]\nprimry = 'x'\n", "'primry' is no option of tool 'Bash'. Did you mean 'primary'"),
        ("[tools]\nBash = 'x'\n", "'Bash' is described by a table"),
        ("tools = 3\n", "one table per tool"),
        ("[[[\n", "not TOML"),
    ],
)
def test_a_wrong_table_is_an_error_that_names_it(source: str, text: str) -> None:
    """Unknown keys come with the nearest known one."""
    with pytest.raises(PolicyError) as caught:
        tools_from_toml(source)

    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("expected", "tool", "arguments"),
    [
        (Kind.READ, "Bash", {"command": "ls"}),
        (Kind.WRITE, "Bash", {"command": "rm x", "description": "tidy"}),
        (Kind.POLL, "exec_command", {"cmd": "sleep 1"}),
        (Kind.WRITE, "Edit", {}),
        (Kind.READ, "Read", {}),
        (Kind.THINK, "TodoWrite", {}),
        (Kind.POLL, "BashOutput", {}),
        (Kind.READ, "str_replace_editor", {"command": "view"}),
        (Kind.WRITE, "str_replace_editor", {"command": "create"}),
    ],
)
def test_the_ready_table_knows_the_tools_of_coding_agents(expected: Kind, tool: str, arguments: dict[str, Any]) -> None:
    """Nobody has to declare them."""
    from loopguard.binding import MappingBinder

    assert expected == MappingBinder(spec_for(tool)).kind(arguments)


def test_every_name_the_manual_promises_is_in_the_ready_table() -> None:
    """The list that tables of users rely on."""
    promised = "Bash Read Edit Write Grep Glob MultiEdit NotebookEdit WebFetch WebSearch Task TodoWrite"

    assert set(promised.split()) <= set(READY_TABLE)
    assert all(name == spec.name for name, spec in READY_TABLE.items())


def test_the_path_of_a_file_tool_has_many_names() -> None:
    """Agents name the same argument differently."""
    assert file_argument({"file_path": "", "path": "a"}) == "a"
    assert file_argument({}) is None


def test_a_table_of_the_user_replaces_the_ready_entry() -> None:
    """The first table that has the name counts; a name that nobody knows is known by name."""
    own = ToolSpec(name="Bash", kind=Kind.READ)

    assert own is spec_for("Bash", {"Bash": own})
    assert own is spec_for("Bash", ({}, {"Bash": own}, {"Bash": ToolSpec(name="Bash")}))
    assert READY_TABLE["Bash"] is spec_for("Bash", {"x": own})
    assert ToolSpec(name="unheard") == spec_for("unheard")


def test_specs_pickle_and_copy() -> None:
    """Workers get them from the process that started them."""
    spec = READY_TABLE["Edit"]

    assert spec == copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec))


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.extract_primary_param("t", {}),
        lambda s: s.is_recoverable_error("t", "x"),
        lambda s: s.tool_thresholds(),
        lambda s: s.get_suggestion("t", "x"),
    ],
)
def test_the_bare_tool_signature_says_nothing(call: Callable[[ToolSignature], Any]) -> None:
    """Its defaults change nothing."""
    assert not call(ToolSignature())
    assert ToolSignature().normalize_param_for_comparison("t", "p") == "p"


@pytest.mark.parametrize("options", [{"patience": 60}, {"running": bool}, {"kind": "read", "patience": 60}])
def test_what_is_for_polls_only(options: dict[str, Any]) -> None:
    """Patience without a poll would be ignored: it is told where it is written."""
    with pytest.raises(PolicyError, match="is for polls only"):
        spec_from_options("status", options)


@pytest.mark.parametrize("kind", ["poll", "shell", {"by": "command", "wait": "poll"}, lambda arguments: "poll"])
def test_patience_of_what_may_be_a_poll(kind: Any) -> None:
    """A kind that is decided call by call may be a poll."""
    assert spec_from_options("status", {"kind": kind, "patience": 60}).patience == 60
