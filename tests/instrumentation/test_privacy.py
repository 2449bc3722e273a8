"""Secrets of a call are in no sink: logs, spans, metrics, exceptions, records, and what the model reads."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import xxhash
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, SecretStr

from loopguard import (
    Ignored,
    Limits,
    LoopguardError,
    Nudge,
    Primary,
    RunStopped,
    Secret,
    Telemetry,
    ToolCallRefused,
    _safety,
    configure,
    current_run,
    guarded_run,
    guarded_tool,
)

TOKEN = "tok_hunter2_9431"
LONG = "eyJhbGciOiJIUzI1NiJ9." + "Q7xZ" * 300


@dataclass
class Sinks:
    """Every place to which loopguard says something, with all that arrived there."""

    caplog: pytest.LogCaptureFixture
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    said: dict[str, list[str]] = field(default_factory=dict)
    model: list[str] = field(default_factory=list)
    errors: list[LoopguardError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader])

    def telemetry(self, **options: Any) -> Telemetry:
        """Settings with these providers."""
        return Telemetry(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider, **options)

    def note(self, sink: str, *texts: object) -> None:
        """Something was said here."""
        self.said.setdefault(sink, []).extend(map(str, texts))

    def drive(self, call: Callable[[], Any], tool_error: type[Exception] = ValueError, **options: Any) -> None:
        """An agent that never learns: warned, refused and stopped, with everything listened to."""

        class Observer:
            def on_loop_detected(_, pattern: str, repetitions: int) -> None:
                self.note("observer", pattern, repetitions)

        def found(finding: Any) -> None:
            self.note("finding", repr(finding), str(finding), finding.message)
            self.note("pickle", pickle.dumps(finding))

        before = len(self.errors)
        scope = guarded_run("support", on_finding=found, on_stop="end", agent="helper", **options)
        with self.tracer_provider.get_tracer("app").start_as_current_span("agent"), scope as run:
            run.add_observer(Observer())
            for _ in range(12):
                try:
                    call()
                except LoopguardError as error:
                    self.errors.append(error)
                except tool_error:
                    pass
                nudges = run.pop_nudges()
                self.model += [nudge.text for nudge in nudges]
                self.note("nudge", *map(repr, nudges))
                self.note("run", repr(run), repr(run.stats), run.stats, run.check_loop(), current_run())
        assert {finding.action for finding in run.findings} == {"warn", "refuse", "stop"}
        for error in self.errors[before:]:
            assert isinstance(error, (ToolCallRefused, RunStopped))
            self.model.append(error.for_model())
            self.note("error", str(error), repr(error), error.args, error.__notes__)
            self.note("traceback", "".join(traceback.format_exception(error)))

    def collect(self) -> dict[str, list[str]]:
        """Everything outside the texts for the model."""
        for span in self.exporter.get_finished_spans():
            self.note(
                "span",
                span.to_json(),
                repr(span.events),
                repr(span.status),
                repr(dict(span.attributes or {})),
            )
        data = self.reader.get_metrics_data()
        self.note("metric", data.to_json() if data is not None else "")
        for record in self.caplog.records:
            self.note("log", record.getMessage(), record.__dict__)
        self.note("log", self.caplog.text)
        return self.said

    @property
    def pickled(self) -> list[bytes]:
        """The exceptions as another process gets them."""
        return [pickle.dumps(error) for error in self.errors]


@pytest.fixture
def sinks(caplog: pytest.LogCaptureFixture) -> Iterator[Sinks]:
    """All sinks, with logging at DEBUG and in-memory exporters."""
    caplog.set_level(logging.DEBUG)
    sinks = Sinks(caplog)
    with configure(telemetry=sinks.telemetry()):
        yield sinks
    sinks.tracer_provider.shutdown()
    sinks.meter_provider.shutdown()


def forms(secret: str) -> list[str]:
    """A secret as text, and as what a short value could be guessed from: its unkeyed digests."""
    data = [secret.encode(), b'"' + secret.encode() + b'"']
    found = [secret]
    for raw in data:
        found += [getattr(hashlib, name)(raw).hexdigest()[:16] for name in ("md5", "sha1", "sha256", "blake2b")]
        found += [hashlib.blake2b(raw, digest_size=size).hexdigest() for size in (4, 8, 16, 32)]
        found += [xxhash.xxh3_64_hexdigest(raw), str(xxhash.xxh3_64_intdigest(raw))]
        found += [xxhash.xxh64_hexdigest(raw), xxhash.xxh32_hexdigest(raw)]
    return found


def assert_nowhere(sinks: Sinks, *secrets: str) -> None:
    """The secrets stand in no sink, in no form."""
    said = sinks.collect()
    assert {"finding", "error", "traceback", "run", "span", "metric", "log", "nudge"} <= set(said)
    for secret in secrets:
        for form in forms(secret):
            where = [sink for sink, texts in said.items() for text in texts if form in text]
            assert not where, f"{form[:20]} stands in {set(where)}"


def assert_hidden_from_all(sinks: Sinks, *secrets: str) -> None:
    """Nor in what the model reads, nor in a pickled exception."""
    assert_nowhere(sinks, *secrets)
    assert sinks.model
    for secret in secrets:
        # A long one may have been cut: its beginning gives it away as well.
        beginning = secret[:24]
        assert not [text for text in sinks.model if beginning in text]
        assert not [data for data in sinks.pickled if beginning.encode() in data]


# -- declared secrets -------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-secrets-every-sink")
@pytest.mark.parametrize("secret", [TOKEN, LONG, "ä-geheim-é\n7", "q7x!"], ids=["token", "long", "unicode", "short"])
def test_a_marked_secret_is_nowhere(sinks: Sinks, secret: str) -> None:
    """A ``Secret`` argument that the tool echoes in its result leaves the process nowhere, the model included."""

    @guarded_tool
    def search(query: str, api_key: Annotated[str, Secret]) -> str:
        return f"no access for key {api_key}: sorry, {api_key} and {api_key}"

    sinks.drive(lambda: search("x", secret))
    assert_hidden_from_all(sinks, secret)


@pytest.mark.scenario("ins-secrets-every-sink")
@pytest.mark.parametrize("secret", [TOKEN, LONG], ids=["token", "long"])
def test_a_secret_in_an_error_text_is_nowhere(sinks: Sinks, secret: str) -> None:
    """An exception whose message quotes the secret argument gives it away nowhere."""

    @guarded_tool
    def search(query: str, api_key: Annotated[str, Secret]) -> str:
        raise ValueError(f"bad key {api_key}")

    sinks.drive(lambda: search("x", api_key=secret))
    assert_hidden_from_all(sinks, secret)


@pytest.mark.scenario("ins-secrets-every-sink")
@pytest.mark.asyncio
async def test_a_secret_str_is_nowhere() -> None:
    """A ``pydantic.SecretStr`` parameter is a secret without a mark, in a coroutine as well."""

    @guarded_tool
    async def search(query: str, password: SecretStr) -> str:
        return f"{password.get_secret_value()} is wrong"

    with guarded_run("r", on_refuse="return") as run:
        texts = [await search("x", SecretStr(TOKEN)) for _ in range(6)]
        nudges = run.pop_nudges()
        assert TOKEN in texts[4]
        assert TOKEN not in texts[5]
        assert "[secret] is wrong" in texts[5]
        assert not [nudge for nudge in nudges if TOKEN in nudge.text]


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_str_is_in_no_sink(sinks: Sinks) -> None:
    """The value behind a ``SecretStr`` is in no sink, nor is its unkeyed digest."""

    @guarded_tool
    def search(query: str, password: SecretStr) -> str:
        raise ValueError(f"{password.get_secret_value()} is wrong")

    sinks.drive(lambda: search("x", SecretStr(TOKEN)))
    assert_hidden_from_all(sinks, TOKEN)


class Login(BaseModel):
    """A model that wraps a secret."""

    user: str
    password: SecretStr


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_str_inside_a_model_is_nowhere(sinks: Sinks) -> None:
    """A ``SecretStr`` in a field of a model, or in a list, counts as declared too."""

    @guarded_tool
    def enter(login: Login, more: list[SecretStr]) -> str:
        return f"{login.password.get_secret_value()} and {more[0].get_secret_value()} are wrong"

    other = f"other-secret-{6 // 6}"  # not in the source line that a traceback shows
    sinks.drive(lambda: enter(Login(user="a", password=SecretStr(TOKEN)), [SecretStr(other)]))
    assert_hidden_from_all(sinks, TOKEN, other)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_inside_the_target_is_nowhere(sinks: Sinks) -> None:
    """A target that happens to hold the secret argument is quoted without it."""

    @guarded_tool
    def fetch(url: Annotated[str, Primary], token: Annotated[str, Secret]) -> str:
        return "same"

    sinks.drive(lambda: fetch(f"https://x/?t={TOKEN}", TOKEN))
    sinks.said.pop("observer")  # called with the target, as in loopctl: it is the application's own
    assert_hidden_from_all(sinks, TOKEN)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_that_changes_from_call_to_call_is_nowhere(sinks: Sinks) -> None:
    """With a key of its own a call may come with another token each time; none of them is quoted."""
    tokens = [f"tok_secret_{n}_{n * 7919}" for n in range(12)]
    left = list(tokens)

    @guarded_tool
    def fetch(url: Annotated[str, Primary], token: Annotated[str, Secret]) -> str:
        raise ValueError(f"denied at {url}, request id {token}")

    sinks.drive(lambda: fetch("https://x", left.pop(0)))
    assert_hidden_from_all(sinks, *tokens)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_that_is_the_key_is_nowhere(sinks: Sinks) -> None:
    """A parameter that is both primary and secret forms the key and is not named as target."""

    @guarded_tool(primary="token", secret="token")
    def fetch(token: str) -> str:
        return "same"

    sinks.drive(lambda: fetch(TOKEN))
    assert_hidden_from_all(sinks, TOKEN)


@pytest.mark.scenario("ins-secrets-every-sink")
@pytest.mark.parametrize("value", [{"t": TOKEN}, [TOKEN], TOKEN.encode(), (TOKEN, {"x": [TOKEN]})])
def test_a_secret_of_any_shape_is_nowhere(sinks: Sinks, value: Any) -> None:
    """A secret that is a mapping, a list or bytes is hidden as well."""

    @guarded_tool(secret="credentials")
    def fetch(url: str, credentials: Any) -> str:
        raise ValueError(f"denied: {TOKEN}, {credentials}")

    sinks.drive(lambda: fetch("https://x", value))
    assert_hidden_from_all(sinks, TOKEN)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_in_keywords_is_nowhere(sinks: Sinks) -> None:
    """A secret that comes in ``**kwargs``, declared by name."""

    @guarded_tool(secret="api_key")
    def fetch(url: str, **more: Any) -> str:
        return f"denied: {more}"

    sinks.drive(lambda: fetch("https://x", api_key=TOKEN, page=1))
    assert_hidden_from_all(sinks, TOKEN)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_in_a_call_that_does_not_fit_is_nowhere(sinks: Sinks) -> None:
    """A call with a parameter too many raises ``TypeError`` each time and gives nothing away."""

    @guarded_tool(secret="api_key")
    def fetch(url: str, api_key: str) -> str:
        return "never"

    sinks.drive(lambda: fetch("https://x", TOKEN, surplus=TOKEN), TypeError)  # type: ignore[call-arg]
    assert_nowhere(sinks, TOKEN)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_secret_of_a_tool_by_name_is_nowhere(sinks: Sinks) -> None:
    """Through ``run.call`` the table of the tool says what is secret."""

    def ask() -> None:
        with current_run().call("http", {"url": "x", "api_key": TOKEN, "headers": {"Authorization": TOKEN}}) as call:
            call.result = f"denied for {TOKEN}"

    sinks.drive(ask, tools={"http": {"primary": "url", "secret": ["api_key", "headers"]}})
    assert_hidden_from_all(sinks, TOKEN)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_equal_secrets_are_one_call_and_others_are_not() -> None:
    """A secret is part of the identity by its keyed digest."""

    @guarded_tool(kind="read")
    def fetch(url: str, token: Annotated[str, Secret]) -> str:
        return "same"

    with guarded_run("r") as run:
        for n in range(20):
            fetch("x", f"token-{n}")
        assert not run.findings
        for _ in range(2):
            fetch("x", "token-0")
        assert [finding.action for finding in run.findings] == ["warn"]


@pytest.mark.scenario("ins-secrets-every-sink")
def test_the_digest_of_a_secret_is_salted() -> None:
    """What stands for a short secret differs from run to run, so it cannot be looked up."""
    from loopguard.fingerprint import secret_form

    runs = []
    for _ in range(2):
        with guarded_run("r") as run:
            runs.append(run)
    assert runs[0].secret_key != runs[1].secret_key
    assert secret_form("1234", runs[0].secret_key) != secret_form("1234", runs[1].secret_key)


# -- what nobody declared ---------------------------------------------------------------------------------------------


NESTED = {
    "api_key": TOKEN,
    "deep": [{"password": "pass-word-1!"}],
    "headers": {"Authorization": "Bearer abc.def"},
}
NESTED_SECRETS = (TOKEN, "pass-word-1!", "Bearer abc.def")


@pytest.mark.scenario("ins-secrets-every-sink")
def test_undeclared_arguments_are_in_no_sink(sinks: Sinks) -> None:
    """Arguments stay in the process whether or not they are declared; the model is shown its first text and no other."""

    @guarded_tool
    def post(body: dict[str, Any], text: str, token: str) -> str:
        return "denied"

    bare = f"bare-token-{70 + 7}"  # not in the source line that a traceback shows
    sinks.drive(lambda: post(NESTED, f"use {TOKEN} please", bare))
    assert_nowhere(sinks, *NESTED_SECRETS, bare)
    assert any("please" in text for text in sinks.model)
    assert not [text for text in sinks.model if bare in text or "pass-word-1!" in text]


@pytest.mark.scenario("ins-secrets-every-sink")
@pytest.mark.parametrize("raises", [True, False], ids=["raised", "returned"])
def test_undeclared_content_reaches_the_model_alone(sinks: Sinks, raises: bool) -> None:
    """The model is shown what the tool itself told it; no other sink has the result or the error text."""

    @guarded_tool
    def post(body: dict[str, Any]) -> str:
        if raises:
            raise ValueError(f"denied for {body['api_key']}")
        return f"denied for {body['api_key']}"

    sinks.drive(lambda: post(NESTED))
    assert_nowhere(sinks, *NESTED_SECRETS)
    assert any(TOKEN in text for text in sinks.model)
    assert not [text for text in sinks.model if "pass-word-1!" in text]


@pytest.mark.scenario("ins-secrets-every-sink")
def test_limits_say_nothing_of_a_call(sinks: Sinks) -> None:
    """The errors of limits name tool and numbers only."""

    @guarded_tool
    def post(body: dict[str, Any]) -> str:
        return "ok"

    limits = Limits(calls=4, calls_per_tool={"post": 2})
    with guarded_run("r", limits=limits, on_stop="end"):
        for _ in range(8):
            try:
                post(NESTED)
            except (ToolCallRefused, RunStopped) as error:
                text = f"{error!r} {error} {error.for_model()} {error.__notes__} {pickle.dumps(error)!r}"
                assert not [secret for secret in NESTED_SECRETS if secret in text]
    assert not [secret for secret in NESTED_SECRETS if secret in sinks.caplog.text]


@pytest.mark.scenario("ins-secrets-every-sink")
def test_an_ignored_argument_is_in_no_sink(sinks: Sinks) -> None:
    """What is no part of the identity is not told either."""

    @guarded_tool
    def post(path: Annotated[str, Primary], nonce: Annotated[str, Ignored]) -> str:
        return "same"

    sinks.drive(lambda: post("a", TOKEN))
    assert_hidden_from_all(sinks, TOKEN)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_an_internal_error_does_not_quote_arguments(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong inside loopguard, or in a callback, is logged by type and line, without its message."""
    monkeypatch.setattr(_safety, "strict", False)
    monkeypatch.setattr(_safety, "errors", {})
    caplog.set_level(logging.DEBUG)

    def broken(*_: Any) -> None:
        raise RuntimeError(f"callback got {TOKEN}")

    class Broken:
        def on_loop_detected(self, pattern: str, repetitions: int) -> None:
            broken()

    @guarded_tool(failed=broken)
    def post(token: str) -> str:
        return "same"

    with guarded_run("r", on_warn=broken, on_finding=broken) as run:
        run.add_observer(Broken())
        for _ in range(3):
            post(TOKEN)
        assert run.findings
    assert "internal error" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_call_outside_a_run_tells_no_argument(sinks: Sinks) -> None:
    """The hint, the counter and the span of an unguarded call carry nothing of it."""

    @guarded_tool
    def post(token: Annotated[str, Secret]) -> str:
        raise ValueError(f"denied {token}")

    for _ in range(2):
        with pytest.raises(ValueError, match="denied"):
            post(TOKEN)
    said = sinks.collect()
    assert "post was called outside a run" in sinks.caplog.text
    assert len(sinks.exporter.get_finished_spans()) == 2
    for form in forms(TOKEN):
        assert not [sink for sink, texts in said.items() for text in texts if form in text]


# -- where content is exported on request -----------------------------------------------------------------------------


@pytest.mark.scenario("ins-secrets-every-sink")
@pytest.mark.parametrize("capture", ["key", "content"])
@pytest.mark.parametrize("raises", [True, False], ids=["raised", "returned"])
@pytest.mark.parametrize("secret", [TOKEN, LONG], ids=["token", "long"])
def test_capture_never_exports_a_declared_secret(sinks: Sinks, capture: Any, raises: bool, secret: str) -> None:
    """With ``capture`` on, keys, results and error texts are exported without the declared secrets."""

    @guarded_tool
    def fetch(url: str, login: Login, token: Annotated[str, Secret]) -> str:
        text = f"denied {url} for {token}, {login.password.get_secret_value()}"
        if raises:
            raise ValueError(text)
        return text

    login = Login(user="a", password=SecretStr("inner-secret-5"))
    with configure(telemetry=sinks.telemetry(capture=capture)):
        sinks.drive(lambda: fetch("https://host", login, secret))
    assert_hidden_from_all(sinks, secret, "inner-secret-5")
    exported = "".join(span.to_json() for span in sinks.exporter.get_finished_spans())
    assert "https://host" in exported
    assert secret[:24] not in exported


@pytest.mark.scenario("ins-secrets-every-sink")
def test_capture_outside_a_run_never_exports_a_declared_secret(sinks: Sinks) -> None:
    """The span of an unguarded call carries no error text that quotes a secret."""

    @guarded_tool
    def fetch(url: str, token: Annotated[str, Secret]) -> str:
        raise ValueError(f"denied for {token}")

    with configure(telemetry=sinks.telemetry(capture="content")), pytest.raises(ValueError, match="denied"):
        fetch("https://host", TOKEN)
    exported = "".join(span.to_json() for span in sinks.exporter.get_finished_spans())
    assert "execute_tool" in exported
    assert TOKEN not in exported


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_redactor_sees_what_nobody_declared(sinks: Sinks) -> None:
    """Undeclared content that is exported on request goes through the redactor."""

    @guarded_tool
    def fetch(url: str, headers: dict[str, str]) -> str:
        return f"denied for {headers['Authorization']}"

    telemetry = sinks.telemetry(capture="content", redact=lambda text: text.replace(TOKEN, "***"))
    with configure(telemetry=telemetry):
        sinks.drive(lambda: fetch("https://host", {"Authorization": TOKEN}))
    assert_nowhere(sinks, TOKEN)
    exported = "".join(span.to_json() for span in sinks.exporter.get_finished_spans())
    assert "***" in exported


# -- the records ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_nudge_shows_its_text_to_the_model_only() -> None:
    """``repr`` of a nudge, which lands in logs, leaves out its text; ``str`` is for the model."""

    @guarded_tool
    def read(path: Annotated[str, Primary]) -> str:
        return "same"

    with guarded_run("r") as run:
        for _ in range(3):
            read("private/path.txt")
        (nudge,) = run.pop_nudges()
    assert isinstance(nudge, Nudge)
    assert "private/path.txt" in str(nudge)
    assert "private/path.txt" not in repr(nudge)
    assert "read" in repr(nudge)


@pytest.mark.scenario("ins-secrets-every-sink")
def test_operations_hold_digests_only() -> None:
    """What the engine keeps of a call is numbers, the tool's name apart."""

    @guarded_tool
    def read(path: str) -> str:
        return "content of the file"

    with guarded_run("r") as run:
        for _ in range(3):
            read("private/path.txt")
        kept = repr(run.engine.operations()) + repr(run.check_loop())
    assert "private" not in kept
    assert "content" not in kept


# -- whose excerpt ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("ins-secrets-every-sink")
@pytest.mark.asyncio
async def test_a_late_result_is_not_quoted_as_another_calls() -> None:
    """A slow call that ends while another one repeats itself: the model is shown what its own call gave."""
    finished = asyncio.Event()

    @guarded_tool(kind="read")
    async def slow(token: Annotated[str, Secret]) -> str:
        await finished.wait()
        return f"slow result for {token}"

    @guarded_tool(kind="read")
    async def quick(n: int) -> str:
        return "quick result" if n < 0 else f"quick result {n}"

    with guarded_run("r"):
        job = asyncio.create_task(slow(TOKEN))
        await asyncio.sleep(0)
        for n in range(27):
            await quick(n)
        for _ in range(5):
            await quick(-1)
        finished.set()
        await job
        with pytest.raises(ToolCallRefused) as refused:
            await quick(-1)
    assert TOKEN not in refused.value.for_model()
    assert "slow result" not in refused.value.for_model()


@pytest.mark.scenario("ins-secrets-every-sink")
def test_a_run_that_counts_with_another_quotes_its_own() -> None:
    """With ``evidence="parent"`` the calls of two runs have one row of numbers; texts are not mixed up."""

    @guarded_tool(kind="read")
    def login(token: Annotated[str, Secret], n: int) -> str:
        return f"welcome {token} {n}"

    @guarded_tool(kind="read")
    def read(n: int) -> str:
        return "content" if n < 0 else f"content {n}"

    with guarded_run("parent"):
        for n in range(5):
            login(TOKEN, n)
        with guarded_run("child", evidence="parent"):
            for n in range(27):
                read(n)
            for _ in range(5):
                read(-1)
        with pytest.raises(ToolCallRefused) as refused:
            read(-1)
    assert TOKEN not in refused.value.for_model()
    assert "welcome" not in refused.value.for_model()
