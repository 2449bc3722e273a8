"""``Guard``: what is known about a tool, made ready for its calls.

It turns arguments into a key and results into an outcome, in the terms of the engine.
It knows no run: what depends on one (seed, secret key, policy, excerpts) is handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from xxhash import xxh3_64

from loopguard import _safety
from loopguard.binding import Binder, MappingBinder
from loopguard.fingerprint import canonical, digest, keyed_hex, outcome_digest, text_parts
from loopguard.hiding import HIDDEN, secrets_of, without_secrets
from loopguard.masking import mask, shape, template, volatile, without
from loopguard.outcome import (
    classify,
    error_class,
    error_text,
    nothing_changed,
    nothing_found,
    poll_ended,
    result_error_text,
)
from loopguard.ready_table import READY_TABLE, spec_for
from loopguard.records import EMPTY_OUTCOME, UNKNOWN_OUTCOME, ErrorClass, Kind, Status, Tool
from loopguard.signature import ToolSpec, is_recoverable
from loopguard.telemetry.capture import as_json

if TYPE_CHECKING:
    from loopguard.index import Entry
    from loopguard.policy import Policy
    from loopguard.run import Run

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
#: What ``Engine.end`` takes after the call's number.
Outcome = tuple[Any, ...]
#: Text of more characters is not compared with volatile text taken out, unless the tool declares ``volatile``.
MASKED_TEXT = 16_384
#: Characters of a text that are kept: a longer one cannot be compared later.
EXCERPT = 511
_TARGET_SIZE = 200
# What the canonical form has for a wrapped secret.
_WRAPPED = re.compile(rb"!secret\(([0-9a-f]{32})\)")


class Facts(NamedTuple):
    """How calls of a tool are identified under a policy. ``plain`` = by ``kind`` and ``key_of`` alone."""

    kind: int
    key_of: Callable[[Args, Kwargs], Args]
    plain: bool


class ByName:
    """A ``MappingBinder`` under the signature of a ``Binder``: the mapping is the only argument."""

    __slots__ = ("_binder", "declared", "edits", "fixed_kind", "target_name")

    def __init__(self, binder: MappingBinder, declared: bool) -> None:
        self._binder = binder
        #: The tool stands in a table, or has given a result: its name is not one that a model made up.
        self.declared = declared
        self.edits = binder.edits
        self.fixed_kind = binder.fixed_kind
        self.target_name = binder.target_name

    def key(self, args: Args, kwargs: Kwargs, secret: bytes = b"") -> Args:
        """See ``Binder.key``."""
        return self._binder.key(args[0], secret)

    def whole(self, args: Args, kwargs: Kwargs, secret: bytes = b"") -> Args:
        """See ``Binder.whole``."""
        return self._binder.whole(args[0], secret)

    def named(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """See ``Binder.named``."""
        return self._binder.named(args[0])

    def target(self, args: Args, kwargs: Kwargs) -> str | None:
        """See ``Binder.target``."""
        return self._binder.target(args[0])

    def file(self, args: Args, kwargs: Kwargs) -> str | None:
        """See ``Binder.file``."""
        return self._binder.file(args[0])

    def kind(self, args: Args, kwargs: Kwargs) -> Kind:
        """See ``Binder.kind``."""
        return self._binder.kind(args[0])

    def suggestion(self, args: Args, kwargs: Kwargs) -> str | None:
        """What the signature object, or the table, suggests."""
        return self._binder.suggestion(args[0])


class Guard:
    """A tool under guard, decorated or known by name."""

    __slots__ = ("__weakref__", "_method", "simple", "binder", "spec", "tool")

    def __init__(self, spec: ToolSpec, binder: Binder | ByName) -> None:
        self.spec = spec
        self.binder = binder
        self.tool: Tool = replace(spec.tool(), edits=binder.edits)
        self._method: Guard = self
        #: Nothing about a ``str`` result needs a second look.
        self.simple = spec.failed is None and not spec.volatile and binder.fixed_kind in (Kind.UNKNOWN, Kind.READ)

    @classmethod
    def of_function(cls, function: Callable[..., Any], spec: ToolSpec, bound: bool) -> Guard:
        """For a decorated function; ``bound`` = it is a bound method already, without ``self`` in its signature."""
        guard = cls(spec, Binder(spec, function))
        if not bound:
            method = cls(spec, Binder(spec, function, bound=True))
            method.tool = guard.tool
            guard._method = method
        return guard

    def for_method(self) -> Guard:
        """The guard for calls that come without their first parameter."""
        return self._method

    # -- before the call --------------------------------------------------------------------------------------------

    def facts(self, policy: Policy, secret_key: bytes) -> Facts:
        """How calls are identified under this policy."""
        binder = self.binder
        kind = binder.fixed_kind if policy.kinds else Kind.UNKNOWN
        key_of: Any = binder.whole if kind == Kind.WRITE else binder.key
        if self.spec.secret:
            bare_key = key_of

            def key_of(args: Args, kwargs: Kwargs) -> Args:
                return cast("Args", bare_key(args, kwargs, secret_key))

        return Facts(int(kind or 0), key_of, kind is not None and not self.tool.edits)

    def arity(self, facts: Facts) -> int:
        """The number of positional arguments that are the key's values just as they come; -1 if there is none."""
        names = getattr(self.binder, "names", ())
        probe = tuple(object() for _ in names)
        return len(names) if names and facts.plain and facts.key_of(probe, {}) is probe else -1

    def describe(self, policy: Policy, secret_key: bytes, args: Args, kwargs: Kwargs) -> tuple[int, Args, str | None]:
        """Kind, values that form the key, and the edited file of one call."""
        binder = self.binder
        kind = int(binder.kind(args, kwargs)) if policy.kinds else 0
        key_of: Any = binder.whole if kind == Kind.WRITE else binder.key
        return kind, key_of(args, kwargs, secret_key), binder.file(args, kwargs) if self.tool.edits else None

    # -- after the call ---------------------------------------------------------------------------------------------

    def outcome_of(self, run: Run, seq: int, result: Any, args: Args, kwargs: Kwargs) -> Outcome:
        """What the engine is told about a returned result."""
        if type(result) is Stream:
            run.keep_excerpt(seq, "")
            return 0, result.outcome()
        policy = run.policy
        # By type: ``isinstance`` may run code of a hostile ``__class__``, and a subclass of ``str`` code of its own.
        text: str | None = str.__str__(result) if issubclass(type(result), str) else None
        status, nothing = self._classify(result if text is None else text)
        seed = run.seed
        run.keep_excerpt(seq, text or "")
        if status:
            said = result_error_text(result)
            run.keep_excerpt(seq, said)
            return self._failure(run, said, None, outcome_digest(result, seed), args, kwargs)
        parts = text_parts(result) if policy.text_parts else None
        raw = outcome_digest(result if parts is None else parts, seed)
        if not policy.masking:
            return 0, raw
        if nothing:
            raw = EMPTY_OUTCOME
        call = run.engine.open.get(seq)
        kind = call[0].kind if call is not None else 0
        before = call[0].op if call is not None else None
        masked = (0, 0)
        if self.spec.volatile:
            raw = self._without_volatile(result, raw, seed)
        elif before is not None and before.outcome != raw and not before.status and text is not None:
            masked = self.masked(run, before, text)
        changed = not (kind == Kind.WRITE and text is not None and nothing_changed(text))
        ended = kind == Kind.POLL and self._ended(result)
        return 0, raw, 0, *masked, 0, changed, ended

    def failure_of(self, run: Run, seq: int, error: BaseException, args: Args, kwargs: Kwargs) -> Outcome:
        """What the engine is told about a raised exception."""
        text = error_text(error)
        run.keep_excerpt(seq, text)
        if run.policy.masking and nothing_found(text) and not self.spec.failed:
            return 0, EMPTY_OUTCOME
        message = text.partition(": ")[2] or text
        return self._failure(run, text, error, outcome_digest(message, run.seed), args, kwargs)

    def _failure(
        self, run: Run, text: str, error: BaseException | None, raw: int, args: Args, kwargs: Kwargs
    ) -> Outcome:
        kind = error_class(text, error)
        signature = run.policy.signature
        if is_recoverable(self.spec, error, text) or (
            signature is not None and signature.is_recoverable_error(self.tool.name, text)
        ):
            kind = ErrorClass.RECOVERABLE
        status = Status.DENIED if kind is ErrorClass.DENIED else Status.FAILED
        whole = digest(template(text).encode("utf-8", "surrogatepass"), run.seed)
        line = shape(text, self._texts(args, kwargs)) if run.policy.masking else ""
        alike = digest(line.encode("utf-8", "surrogatepass"), run.seed) if line else 0
        return int(status), raw, whole, 0, 0, int(kind), True, False, alike

    def _texts(self, args: Args, kwargs: Kwargs) -> list[str]:
        """The arguments that are text, and those one level down."""
        texts: list[str] = []
        for value in self.binder.named(args, kwargs).values():
            items = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            )
            texts += [item for item in items if isinstance(item, str)]
        return texts

    def _classify(self, result: Any) -> tuple[Status, bool]:
        failed = self.spec.failed
        if failed is None:
            return classify(result)
        if failed is False:
            return Status.OK, classify(result)[1]
        if callable(failed):
            try:
                return (Status.FAILED if failed(result) else Status.OK), False
            except Exception as error:
                _safety.report("failed", error)
        return classify(result)

    def masked(self, run: Run, before: Any, result: str) -> tuple[int, int]:
        """Digests of this and the previous outcome with volatile text taken out, where that can make them equal."""
        if len(result) > MASKED_TEXT or self.spec.volatile is False or not volatile(result):
            return 0, 0
        last = run.excerpt(before.seq)
        # An excerpt that was cut says nothing about the rest.
        if not last or len(last) > EXCERPT or len(result) > EXCERPT:
            return 0, 0
        return self._digest_masked(result, run.seed), self._digest_masked(last, run.seed)

    @staticmethod
    def _digest_masked(text: str, seed: int) -> int:
        return digest(mask(text).encode("utf-8", "surrogatepass"), seed ^ 1)

    def _without_volatile(self, result: Any, raw: int, seed: int) -> int:
        """The digest of a result whose volatile parts the tool declared."""
        try:
            stripped = without(result, self.spec.volatile or ())
        except Exception as error:
            _safety.report("volatile", error)
            return raw
        return raw if stripped is result else outcome_digest(stripped, seed)

    def _ended(self, result: Any) -> bool:
        running = self.spec.running
        if running is not None:
            try:
                return not running(result)
            except Exception as error:
                _safety.report("running", error)
        return poll_ended(result)

    # -- for messages -----------------------------------------------------------------------------------------------

    def target(self, args: Args, kwargs: Kwargs, declared: bool = False) -> tuple[str, str] | None:
        """Name and text of what the call is about, for texts that stay in the process; None if it is secret.

        With ``declared``, only what the tool itself named; else the first text among the arguments will do.
        """
        name, text = self.binder.target_name or "target", self.binder.target(args, kwargs)
        if text is None and not self.spec.primary and not declared:
            # Nothing was declared: the first text among the arguments says most about the call.
            left_out = self.spec.without | self.spec.secret
            texts = (pair for pair in self.binder.named(args, kwargs).items() if type(pair[1]) is str and pair[1])
            name, text = next((pair for pair in texts if pair[0] not in left_out), (name, None))
        text = self.without_secrets(text, args, kwargs)
        if text is None:
            return None
        return name, text if len(text) <= _TARGET_SIZE else text[:_TARGET_SIZE] + "…"

    def suggestion(self, args: Args, kwargs: Kwargs) -> str | None:
        """What the tool itself suggests."""
        return self.binder.suggestion(args, kwargs) if isinstance(self.binder, ByName) else self.spec.suggestion

    def without_secrets(self, text: str | None, args: Args, kwargs: Kwargs) -> str | None:
        """The text with the secrets among these arguments taken out; None where that cannot be done."""
        if not text:
            return text
        secrets = secrets_of(self.binder.named(args, kwargs), self.spec.secret)
        return None if secrets is None else without_secrets(text, secrets)

    def secrets_are_in_key(self, args: Args, kwargs: Kwargs, policy: Policy) -> bool:
        """True if equal calls have equal secrets, so that those of an earlier one are known from this one."""
        spec = self.spec
        if not spec.primary and policy.signature is None and not spec.normalise:
            return not spec.secret & (spec.ignored or frozenset())
        return spec.secret <= set(spec.primary) - set(spec.normalise) and not secrets_of(
            {name: value for name, value in self.binder.named(args, kwargs).items() if name not in spec.primary},
            frozenset(),
        )

    def key_text(self, args: Args, kwargs: Kwargs, secret_key: bytes) -> str:
        """The key as text, secrets hashed; exported only where the settings say so."""
        data = canonical(self.binder.key(args, kwargs, secret_key))
        if data is None:
            return ""
        # Inside the process an unkeyed hash stands for a wrapped secret; a short secret could be guessed from it.
        data = _WRAPPED.sub(lambda one: b"!secret(" + keyed_hex(one[1], secret_key, 16).encode() + b")", data)
        return self.without_secrets(data.decode("utf-8", "replace"), args, kwargs) or ""

    def key_text_if_captured(self, run: Run, args: Args, kwargs: Kwargs) -> str | None:
        """The key as text if the settings want it exported."""
        if run.settings.telemetry.captures == "none":
            return None
        with _safety.guarded("telemetry.key"):
            return self.key_text(args, kwargs, run.secret_key) or None
        return None

    def hiding(self, args: Args, kwargs: Kwargs) -> Callable[[str], str | None]:
        """Takes the secrets of this call out of a text that is going to be exported."""
        return lambda text: self.without_secrets(text, args, kwargs)

    def span_with_content(self, run: Run, seq: int, call_id: str | None, args: Args, kwargs: Kwargs) -> Any:
        """The span of a call where the settings want its key or its content exported; without its secrets."""
        assert run.spans is not None
        content = run.spans.captures == "content"
        handle = run.spans.start(
            run.id,
            self.tool.name,
            run.agent,
            seq,
            call_id,
            self.key_text_if_captured(run, args, kwargs),
            self.arguments_text(args, kwargs) if content else None,
        )
        if handle is not None and content:
            handle.hide = self.hiding(args, kwargs)
        return handle

    def arguments_text(self, args: Args, kwargs: Kwargs) -> str | None:
        """The arguments as JSON without secrets, to be exported where the settings ask for content."""
        with _safety.guarded("telemetry.arguments"):
            named = self.binder.named(args, kwargs)
            shown = {name: HIDDEN if name in self.spec.secret else value for name, value in named.items()}
            return self.without_secrets(as_json(shown), args, kwargs)
        return None


def worth_masking(entry: Entry, seq: int, result: str) -> bool:
    """Whether a text that differs from the last one of its call is compared once more, without what is volatile.

    A call whose answers did change three times in a row is looked at every fourth time only: most of them are polls
    and counters, and looking costs as much as all the rest.
    """
    return (entry.flips < 3 or not seq & 3) and len(result) <= EXCERPT and volatile(result)


class Stream:
    """What a generator yielded, digested as it goes by."""

    __slots__ = ("_digest", "_known", "_seed", "empty")

    def __init__(self, seed: int) -> None:
        self._digest = xxh3_64(seed=seed)
        self._seed = seed
        self._known = True
        self.empty = True

    def add(self, item: Any) -> None:
        """One item went by."""
        self.empty = False
        try:
            number = outcome_digest(item, self._seed)
            if number == UNKNOWN_OUTCOME:
                self._known = False
            self._digest.update(number.to_bytes(8, "little"))
        except Exception as error:
            self._known = False
            _safety.report("stream", error)

    def outcome(self) -> int:
        """The digest of all items; empty if there was none, unknown if one of them has no canonical form."""
        if self.empty:
            return EMPTY_OUTCOME
        return max(2, self._digest.intdigest()) if self._known else UNKNOWN_OUTCOME


def guard_for(run: Run, name: str) -> Guard:
    """The guard of a tool that is known by name, from the tables of the run."""
    guard = run.named.get(name)
    if guard is None:
        spec = spec_for(name, run.settings.tools)
        if spec.name != name:
            spec = replace(spec, name=name)
        declared = name in run.settings.tools or name in READY_TABLE
        guard = Guard(spec, ByName(MappingBinder(spec, run.policy.signature), declared))
        if len(run.named) > 1_000:  # names may come from a model
            run.named.clear()
        run.named[name] = guard
    return guard
