"""What a function keeps under ``guarded_tool``: signature, kind, binding, identity of its calls."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Protocol, get_type_hints, runtime_checkable

import pydantic
import pytest

from loopguard import Ignored, LoopRefused, Primary, guard_tools, guarded_run, guarded_tool, is_guarded

PathStr = Annotated[str, Primary]


def plain(path: PathStr, /, limit: int = 2000, *rest: int, deep: bool = False, **more: str) -> str:
    """Plain."""
    return f"{path} {limit} {rest} {deep} {more}"


def late(where: Annotated[Later, Ignored], what: list[Later] | None = None, *, why: str = "") -> "Later":  # noqa: UP037
    """String annotations, one of them of a name that comes later."""
    return where


async def coroutine(path: str, depth: Annotated[int, Ignored] = 1) -> str:
    """Coroutine."""
    await asyncio.sleep(0)
    return path


def generator(path: str) -> Iterator[str]:
    """Generator."""
    yield path


async def async_generator(path: str) -> AsyncIterator[str]:
    """Async generator."""
    yield path


def bare(value, other=None):  # type: ignore[no-untyped-def]
    """Nothing is annotated."""
    return value


Later = dict[str, int]
FUNCTIONS: list[Callable[..., Any]] = [plain, late, coroutine, generator, async_generator, bare]


def model_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a pydantic model built from the signature, as agent frameworks do it."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    return pydantic.create_model("Arguments", **fields).model_json_schema()


# -- what it looks like ---------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-signature-kept")
@pytest.mark.parametrize("options", [{}, {"kind": "read", "warn_after": 2}], ids=["bare", "options"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_signature_hints_and_names_are_kept(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Everything that a framework reads is equal before and after; ``__wrapped__`` is the function."""
    tool = guarded_tool(**options)(function) if options else guarded_tool(function)

    assert inspect.signature(tool) == inspect.signature(function)
    assert get_type_hints(tool, include_extras=True) == get_type_hints(function, include_extras=True)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__"):
        assert getattr(tool, name) == getattr(function, name)
    assert tool.__annotations__ == function.__annotations__
    assert model_of(tool) == model_of(function)
    assert tool.__wrapped__ is function
    assert inspect.unwrap(tool) is function
    assert inspect.getdoc(tool) == inspect.getdoc(function)
    assert inspect.getsource(tool) == inspect.getsource(function)
    assert is_guarded(tool)
    assert not is_guarded(function)


class AsyncCallable:
    """An object that is called as a coroutine."""

    async def __call__(self, path: str) -> str:
        """Call."""
        return path


KINDS: dict[str, Callable[..., Any]] = {function.__name__: function for function in FUNCTIONS}
KINDS |= {f"partial-{name}": functools.partial(function, "a") for name, function in KINDS.items()}
KINDS |= {"async-callable": AsyncCallable(), "bound-async-call": AsyncCallable().__call__}


@pytest.mark.scenario("ins-callable-kind-kept")
@pytest.mark.parametrize("function", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning")
def test_the_kind_of_function_is_kept(function: Callable[..., Any]) -> None:
    """All who ask what kind of function it is get the answer that the bare one gives."""
    tool = guarded_tool(function)
    for ask in (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        inspect.isfunction,
        inspect.ismethod,
        asyncio.iscoroutinefunction,
        callable,
    ):
        assert ask(tool) == ask(function), ask
    assert inspect.iscoroutinefunction(type(tool).__call__) is False


@pytest.mark.scenario("ins-callable-kind-kept")
@pytest.mark.asyncio
@pytest.mark.parametrize("partial_first", [True, False], ids=["guard-over-partial", "partial-over-guard"])
async def test_partials_and_callable_objects_are_guarded(three: Any, partial_first: bool) -> None:
    """A guarded partial and a partial of a guarded function count; so does an object with an async ``__call__``."""
    if partial_first:
        tool: Any = guarded_tool(functools.partial(coroutine, depth=3))
    else:
        tool = functools.partial(guarded_tool(coroutine), depth=3)
    called = guarded_tool(AsyncCallable())

    async with guarded_run("partial", policy=three) as run:
        for one in (tool, called):
            for _ in range(3):
                assert await one("a") == "a"
            with pytest.raises(LoopRefused):
                await one("a")

    assert [finding.tool for finding in run.findings if finding.action == "refuse"] == [
        "coroutine",
        "AsyncCallable",
    ]


@runtime_checkable
class HasRun(Protocol):
    """A protocol that frameworks might look for."""

    def run(self) -> None:
        """Run."""


class Machine:
    """Has a guarded method."""

    @guarded_tool
    def start(self, path: Annotated[str, Primary]) -> int:
        """Start."""
        return 1


def test_looking_at_the_class_does_not_poison_the_hints() -> None:
    """After a runtime protocol and others have read ``type(tool).__annotations__``, all hints are still right."""
    tools = [guarded_tool(function) for function in FUNCTIONS]
    machine = Machine()
    for one in (*tools, machine.start, Machine.start):
        assert not isinstance(one, HasRun)
        for kind in type(one).__mro__:
            getattr(kind, "__annotations__", None)
        assert not isinstance(one, HasRun)

    for function, tool in zip(FUNCTIONS, tools, strict=True):
        assert get_type_hints(tool, include_extras=True) == get_type_hints(function, include_extras=True)
    made_later = guarded_tool(plain)
    assert made_later.__annotations__ == plain.__annotations__
    expected = {"path": Annotated[str, Primary], "return": int}
    assert get_type_hints(machine.start, include_extras=True) == expected
    assert get_type_hints(Machine.start, include_extras=True) == expected
    assert typing.get_type_hints(guarded_tool(functools.partial(plain, "x")).func) == get_type_hints(plain)


def test_a_partial_has_no_annotations_of_its_own() -> None:
    """What the bare object lacks, the guarded one lacks too."""
    tool = guarded_tool(functools.partial(plain, "x"))

    assert not hasattr(functools.partial(plain, "x"), "__annotations__")
    assert not hasattr(tool, "__annotations__")


# -- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_guarded_function_copies_to_itself(function: Callable[..., Any], copied: Callable[[Any], Any]) -> None:
    """As functions do, alone and inside a registry."""
    tool = guarded_tool(function)

    assert copied(tool) is tool
    assert copy.deepcopy({"tools": [tool]})["tools"][0] is tool


class Shelf:
    """Has a state and a guarded method."""

    def __init__(self) -> None:
        self.items = ["a"]

    @guarded_tool
    def look(self, at: int) -> str:
        """Look."""
        return self.items[at]


def test_a_bound_method_is_copied_with_its_object() -> None:
    """A deep copy is bound to the copied object, as that of a bare method is, and is guarded still."""
    shelf = Shelf()
    held = copy.deepcopy({"shelf": shelf, "look": shelf.look})
    held["shelf"].items[0] = "b"

    assert held["look"](0) == "b"
    assert shelf.look(0) == "a"
    assert is_guarded(held["look"])
    assert copy.copy(shelf.look)(0) == "a"
    assert copy.deepcopy(Shelf.look)(shelf, 0) == "a"


# -- methods --------------------------------------------------------------------------------------------------------


class Base:
    """Methods under guard, in both orders."""

    @guarded_tool
    def method(self, x: int) -> str:
        """Method."""
        return f"{type(self).__name__} {x}"

    @classmethod
    @guarded_tool
    def class_inside(cls, x: int) -> str:
        """Guard below."""
        return f"{cls.__name__} {x}"

    @guarded_tool
    @classmethod
    def class_outside(cls, x: int) -> str:
        """Guard above."""
        return f"{cls.__name__} {x}"

    @staticmethod
    @guarded_tool
    def static_inside(x: int) -> str:
        """Guard below."""
        return f"static {x}"

    @guarded_tool
    @staticmethod
    def static_outside(x: int) -> str:
        """Guard above."""
        return f"static {x}"

    @guarded_tool
    async def coroutine(self, x: int) -> str:
        """Coroutine."""
        return f"{type(self).__name__} {x}"

    @guarded_tool
    def generator(self, x: int) -> Iterator[str]:
        """Generator."""
        yield f"{type(self).__name__} {x}"


class Derived(Base):
    """Overrides with ``super()``."""

    @guarded_tool
    def method(self, x: int) -> str:
        """Method."""
        return f"derived of {super().method(x)}"

    @classmethod
    @guarded_tool
    def class_inside(cls, x: int) -> str:
        """Guard below."""
        return f"derived of {super().class_inside(x)}"


METHODS = ["method", "class_inside", "class_outside", "static_inside", "static_outside"]


@pytest.mark.scenario("ins-methods-both-orders")
@pytest.mark.parametrize("through", ["instance", "class"])
@pytest.mark.parametrize("name", METHODS)
def test_methods_work_through_class_and_instance(three: Any, name: str, through: str) -> None:
    """The qualified name is the tool's name; three equal calls are allowed; other arguments are other calls."""
    tool: Any = getattr(Base() if through == "instance" else Base, name)
    if name == "method" and through == "class":
        tool = functools.partial(tool, Base())
    with guarded_run("methods", policy=three) as run:
        for _ in range(3):
            assert tool(1) == ("static 1" if name.startswith("static") else "Base 1")
        with pytest.raises(LoopRefused) as refused:
            tool(x=1)
        assert tool(2).endswith(" 2")

    assert refused.value.tool == f"Base.{name}"
    assert (run.stats.calls, run.stats.refused) == (4, 1)


@pytest.mark.scenario("ins-methods-both-orders")
@pytest.mark.parametrize("name", METHODS)
def test_self_and_cls_are_no_arguments(name: str) -> None:
    """What a callable of the bound arguments sees is the arguments, without the object."""
    seen: list[dict[str, Any]] = []

    def kind(arguments: Any) -> str:
        seen.append(dict(arguments))
        return "read"

    bare = inspect.getattr_static(Base, name)
    bare = bare.__wrapped__ if is_guarded(bare) and not isinstance(bare, (classmethod, staticmethod)) else bare
    function = inspect.unwrap(bare.__func__ if isinstance(bare, (classmethod, staticmethod)) else bare)
    below: Any = guarded_tool(kind=kind)(function)
    built_in = {"class": classmethod, "static": staticmethod}.get(name.partition("_")[0])
    if built_in is not None:
        inside = name.endswith("inside")
        below = built_in(below) if inside else guarded_tool(kind=kind)(built_in(function))
    owner = type("Owner", (), {"tool": below})

    with guarded_run("arguments"):
        owner().tool(1)
        owner().tool(x=2)
        if built_in is not None:
            owner.tool(3)

    assert seen == [{"x": 1}, {"x": 2}, {"x": 3}][: len(seen)]
    assert len(seen) == (2 if built_in is None else 3)


@pytest.mark.scenario("ins-methods-both-orders")
def test_an_override_that_calls_super_is_two_tools() -> None:
    """Each of the two methods is a call under its own qualified name."""
    with guarded_run("super") as run:
        assert Derived().method(1) == "derived of Derived 1"
        assert Derived.class_inside(1) == "derived of Derived 1"
        assert Derived.class_outside(1) == "Derived 1"

    names = [row for row, decision in run._counts.metrics_snapshot()["calls"] if decision == "allow"]
    assert sorted(names) == sorted(
        ["Derived.method", "Base.method", "Derived.class_inside", "Base.class_inside", "Base.class_outside"]
    )


@pytest.mark.scenario("ins-methods-both-orders")
@pytest.mark.asyncio
async def test_methods_of_other_kinds_count_too(three: Any) -> None:
    """Coroutine and generator methods are guarded through the instance."""
    base = Base()
    async with guarded_run("kinds", policy=three):
        for _ in range(3):
            assert await base.coroutine(1) == "Base 1"
            assert list(base.generator(1)) == ["Base 1"]
        with pytest.raises(LoopRefused):
            await base.coroutine(x=1)
        with pytest.raises(LoopRefused):
            list(base.generator(1))


@pytest.mark.scenario("ins-self-not-in-identity")
def test_the_object_is_no_part_of_the_call(three: Any) -> None:
    """Equal arguments on 200 short-lived objects are one call; an address can be no part of a key."""
    ran: list[int] = []

    class Tools:
        @guarded_tool
        def find(self, what: str) -> str:
            """Find."""
            ran.append(id(self))
            return "nothing new"

    with guarded_run("objects", policy=three, on_refuse="return") as run:
        for _ in range(15):
            Tools().find("x")
            gc.collect(0)

    assert len(ran) == 3
    assert (run.stats.calls, run.stats.refused) == (3, 12)


@pytest.mark.scenario("ins-self-not-in-identity")
def test_no_two_calls_collide_by_a_reused_address(three: Any) -> None:
    """200 objects with 200 different arguments, and 200 on one object: no repetition is seen."""

    class Tools:
        @guarded_tool
        def find(self, what: str) -> str:
            """Find."""
            return "the same"

    one = Tools()
    with guarded_run("objects", policy=three) as run:
        for n in range(200):
            Tools().find(f"a {n}")
            one.find(f"b {n}")

        assert run.max_operation_count() == 1
    assert run.findings == ()


@pytest.mark.scenario("ins-class-attribute-binding")
def test_a_guarded_function_is_a_class_attribute_like_any_function() -> None:
    """``A.run(1)`` passes the number, ``A().run()`` the object: as for the bare function, and the keys say so."""

    def echo(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return (*args, kwargs)

    def itself(self: Any, other: int = 0) -> Any:
        return self

    class Bare:
        run = echo
        first = itself

    class Guarded:
        run = guarded_tool(echo)
        first = guarded_tool(itself)

    with guarded_run("attributes"):
        for kind in (Bare, Guarded):
            instance = kind()
            assert kind.run(1) == (1, {})
            assert kind.run() == ({},)
            assert instance.run() == (instance, {})
            assert instance.run(2, a=3) == (instance, 2, {"a": 3})
            assert kind.first(5) == 5
            assert kind.first(self=5, other=1) == 5
            assert instance.first() is instance
            assert kind.first(instance) is instance
            with pytest.raises(TypeError, match="itself"):
                kind.first()


@pytest.mark.scenario("ins-class-attribute-binding")
def test_calls_through_the_class_are_told_apart_by_their_arguments(three: Any) -> None:
    """``A.run(n)`` with different numbers is no loop, with equal ones it is."""

    class Owner:
        @guarded_tool
        def run(n):  # type: ignore[no-untyped-def]
            """Run."""
            return "same"

    with guarded_run("attributes", policy=three) as run:
        for n in range(9):
            Owner.run(n)
        assert run.findings == ()
        Owner.run(0)
        Owner.run(0)
        with pytest.raises(LoopRefused):
            Owner.run(0)


def test_the_same_call_however_spelled(three: Any) -> None:
    """Position, keyword and a default left out are one call."""
    tool = guarded_tool(lambda a, b=2, *, c=3: "same")
    with guarded_run("spelled", policy=three):
        tool(1)
        tool(a=1, b=2)
        tool(1, 2, c=3)
        with pytest.raises(LoopRefused):
            tool(b=2, a=1)


# -- what cannot be guarded -----------------------------------------------------------------------------------------

FRAMEWORKS = {
    "langchain_core.tools.structured": "LangChain would call invoke().*under @tool",
    "langchain.tools": "LangChain would call invoke",
    "pydantic_ai.tools": "Pydantic AI would call its function",
    "agents.tool": "OpenAI Agents would call on_invoke_tool.*under @function_tool",
    "mcp.server.fastmcp.tools": "MCP SDK would call run",
    "fastmcp.tools.tool": "FastMCP would call run",
    "claude_agent_sdk": "Claude Agent SDK would call its handler",
    "google.adk.tools": "Google ADK would call run_async",
    "strands.tools.decorator": "Strands would call stream",
    "agent_framework": "Agent Framework would call invoke",
    "crewai.tools": "CrewAI would call run",
    "llama_index.core.tools": "LlamaIndex would call call",
    "haystack.tools.tool": "Haystack would call invoke",
    "autogen_core.tools": "AutoGen would call run_json",
}


@pytest.mark.parametrize("is_callable", [True, False], ids=["callable", "not-callable"])
@pytest.mark.parametrize(("module", "text"), FRAMEWORKS.items(), ids=FRAMEWORKS)
def test_a_frameworks_tool_object_cannot_be_guarded(module: str, text: str, is_callable: bool) -> None:
    """It would be bypassed in silence; the error names the framework, its door and the right order."""
    members: dict[str, Any] = {"__module__": module, "name": "search"}
    if is_callable:
        members["__call__"] = lambda self: None
    tool = type("FunctionTool", (), members)()

    for guard in (guarded_tool, guarded_tool(kind="read"), lambda one: guard_tools([one])):
        with pytest.raises(TypeError, match=rf"FunctionTool \('search'\)\. (The )?{text}"):
            guard(tool)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (AsyncCallable, "guard its methods"),
        (object(), "cannot be called"),
        ("read", "takes a function"),
        (3, "int"),
    ],
    ids=["class", "object", "name", "number"],
)
def test_what_is_no_function_cannot_be_guarded(what: Any, text: str) -> None:
    """A class, an object that cannot be called, a name: an error that says what to give instead."""
    with pytest.raises(TypeError, match=text):
        guarded_tool(what)


def test_a_tool_guarded_twice_is_counted_once(three: Any) -> None:
    """The outer options hold, the inner guard goes."""
    twice = guarded_tool(name="outer")(guarded_tool(name="inner")(bare))
    with guarded_run("twice", policy=three) as run:
        for _ in range(3):
            twice(1)
        with pytest.raises(LoopRefused) as refused:
            twice(1)

    assert refused.value.tool == "outer"
    assert run.stats.calls == 3


def test_a_bound_guarded_method_in_a_registry_is_left_as_it_is() -> None:
    """``guard_tools`` guards what is not guarded yet, and names tools by their keys."""
    shelf = Shelf()
    tools = guard_tools({"look": shelf.look, "bare": bare})

    assert tools["look"] == shelf.look
    assert all(map(is_guarded, tools.values()))
    assert guard_tools([tools["bare"]]) == [tools["bare"]]
