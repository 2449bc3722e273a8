"""Small functions that each read one thing of a call; ``binding`` puts them together, once per tool.

None of them raises: a call that does not fit a signature is read as it is spelled, and what a function of the user
raises counts as nothing said.
"""

from __future__ import annotations

import inspect
import keyword
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from loopguard.fingerprint import secret_form
from loopguard.kinds import KIND_NAMES, TEXT_KINDS, KindRule, kind_of
from loopguard.options import DEFAULT_IGNORED
from loopguard.records import Kind

if TYPE_CHECKING:
    from loopguard.signature import FileRule, ToolSpec

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Parameters = Mapping[str, inspect.Parameter]
Named = Callable[[Args, Kwargs], dict[str, Any]]
Texts = Callable[[Args, Kwargs], "str | None"]
#: From a value and the key for secret forms to what stands for it in an identity.
Change = Callable[[Any, bytes], Any]

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class KeyOf(Protocol):
    """Reads the values that form an identity; ``secret`` is the key of the hashes that stand for secret values."""

    def __call__(self, args: Args, kwargs: Kwargs, secret: bytes = b"", /) -> Args:
        """The values, in a fixed order."""
        ...


def readable_parameters(signature: inspect.Signature | None, *, bound: bool) -> Parameters:
    """The parameters of a signature, without the first where calls are ``bound``; none where they cannot be used."""
    if signature is None:
        return {}
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].kind in POSITIONAL:
        del parameters[0]
    # A signature that somebody wrote by hand may hold names that no function can have.
    if not all(one.name.isidentifier() and not keyword.iskeyword(one.name) for one in parameters):
        return {}
    return {one.name: one for one in parameters}


def left_out_of(spec: ToolSpec, known: Iterable[str]) -> frozenset[str]:
    """The names among ``known`` that are no part of the identity."""
    left_out = spec.without
    if spec.ignored == DEFAULT_IGNORED and left_out.issuperset(known):
        # The names that are ignored unasked would leave nothing of `think(thought)` or `wait(timeout)`.
        return spec.injected
    return left_out


def _function(parameters: Parameters, body: str) -> Callable[..., Any]:
    """A function with these parameters and defaults that returns ``body``.

    The interpreter binds a call to a function about ten times faster than any code of ours could; named tuples and
    dataclasses are made the same way. Nothing but checked names of parameters enters the source.
    """
    wanted = [one.replace(annotation=one.empty, default=None if one.default is not one.empty else one.empty)
              for one in parameters.values()]  # fmt: skip
    source = f"def read{inspect.Signature(wanted)}: return {body}"
    scope: dict[str, Any] = {"__builtins__": {}}
    exec(source, scope)  # noqa: S102 - see above
    read: Any = scope["read"]
    given = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    read.__defaults__ = tuple(given[name] for name in given if parameters[name].kind in POSITIONAL)
    read.__kwdefaults__ = {name: given[name] for name in given if parameters[name].kind not in POSITIONAL}
    return read  # type: ignore[no-any-return]


def values_reader(
    parameters: Parameters, members: tuple[str, ...], changes: Mapping[str, Change], spelled: KeyOf
) -> KeyOf:
    """Reads the values of ``members``, each passed through its change."""
    if not parameters:
        return spelled
    read = _function(parameters, f"({''.join(f'{name}, ' for name in members)})")
    if changes:
        steps = [(at, changes[name]) for at, name in enumerate(members) if name in changes]

        def changed(args: Args, kwargs: Kwargs, secret: bytes = b"", /) -> Args:
            try:
                values = list(read(*args, **kwargs))
            except TypeError:
                return spelled(args, kwargs, secret)
            for at, change in steps:
                values[at] = change(values[at], secret)
            return tuple(values)

        return changed
    count = len(members)
    if members == tuple(parameters) and all(one.kind in POSITIONAL for one in parameters.values()):

        def as_given(args: Args, kwargs: Kwargs, secret: bytes = b"", /) -> Args:
            if len(args) == count and not kwargs:
                return args
            try:
                return read(*args, **kwargs)  # type: ignore[no-any-return]
            except TypeError:
                return spelled(args, kwargs, secret)

        return as_given

    def chosen(args: Args, kwargs: Kwargs, secret: bytes = b"", /) -> Args:
        try:
            return read(*args, **kwargs)  # type: ignore[no-any-return]
        except TypeError:
            return spelled(args, kwargs, secret)

    return chosen


def spelled_reader(spec: ToolSpec, left_out: frozenset[str]) -> KeyOf:
    """For calls that do not fit the signature, and for functions without one."""

    def spelled(args: Args, kwargs: Kwargs, secret: bytes = b"", /) -> Args:
        if spec.secret:
            # Which position is the secret one cannot be known.
            args = tuple(secret_form(value, secret) for value in args)
            return args, keep_hidden(left_out, spec.secret)(kwargs, secret)
        return args, keep(left_out)(kwargs, secret)

    return spelled


def keep(left_out: frozenset[str]) -> Change:
    """A change: a mapping in sorted order, without the names in ``left_out``."""

    def without(named: Mapping[str, Any], secret: bytes) -> dict[str, Any]:
        return {name: named[name] for name in _sorted(named) if name not in left_out}

    return without


def keep_hidden(left_out: frozenset[str], secrets: frozenset[str]) -> Change:
    """A change: likewise, with secret forms for the names in ``secrets``."""

    def hidden(named: Mapping[str, Any], secret: bytes) -> dict[str, Any]:
        return {
            name: secret_form(named[name], secret) if name in secrets else named[name]
            for name in _sorted(named)
            if name not in left_out
        }

    return hidden


def _sorted(named: Mapping[str, Any]) -> list[str]:
    try:
        return sorted(named)
    except TypeError:
        # Keys of several types, in a mapping that is not a call's keywords.
        return list(named)


def change_of(spec: ToolSpec, name: str) -> Change | None:
    """What happens to the value of a primary parameter before it becomes part of the key."""
    normalise = spec.normalise.get(name)
    if name not in spec.secret:
        return None if normalise is None else lambda value, _: _normalised(normalise, value)
    if normalise is None:
        return secret_form
    return lambda value, secret: secret_form(_normalised(normalise, value), secret)


def changed(change: Change | None, value: Any, secret: bytes) -> Any:
    """The value after a change that may be None."""
    return value if change is None else change(value, secret)


def _normalised(normalise: Callable[[Any], Any], value: Any) -> Any:
    try:
        return normalise(value)
    except Exception:  # noqa: BLE001 - a function of the user must not break the call
        return value


def named_reader(parameters: Parameters, owner: frozenset[str] = frozenset()) -> Named:
    """Reads all bound arguments into a new dict, but not the ``owner`` of a method (``self``, ``cls``)."""
    rest = next((name for name, one in parameters.items() if one.kind is REST[1]), None)
    pairs = [f"{name!r}: {name}" for name in parameters if name != rest and name not in owner]
    read = _function(parameters, f"{{{', '.join([*pairs, *([f'**{rest}'] if rest else [])])}}}")
    order = [name for name, one in parameters.items() if one.kind in POSITIONAL]

    def named(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        try:
            return read(*args, **kwargs)  # type: ignore[no-any-return]
        except TypeError:
            spelled = {**dict(zip(order, args, strict=False)), **kwargs}
            return {name: value for name, value in spelled.items() if name not in owner}

    return named


def looked_up_reader(
    named: Named,
    members: tuple[str, ...],
    changes: Mapping[str, Change],
) -> KeyOf:
    """For primary arguments that come in ``**kwargs``."""

    def looked_up(args: Args, kwargs: Kwargs, secret: bytes = b"", /) -> Args:
        found = named(args, kwargs)
        return tuple(changed(changes.get(name), found.get(name), secret) for name in members)

    return looked_up


# ---------------------------------------------------------------------------------------- target, file, kind


def first_of(names: tuple[str, ...]) -> str | None:
    """The first name, or None."""
    return names[0] if names else None


def target_name_of(spec: ToolSpec) -> str | None:
    """The parameter that says what a call is about: the first primary one, else that of the file."""
    file = spec.edits or spec.reads
    return first_of(spec.primary) or (file if isinstance(file, str) else None)


def target_reader(parameters: Parameters, named: Named, spec: ToolSpec, name: str | None, file: Texts) -> Texts:
    """Reads the text of the parameter ``name``, or the file where a function decides."""
    if name is None:
        return file
    if name in spec.secret:
        return _nothing
    normalise = spec.normalise.get(name)
    if name not in parameters or normalise is not None:
        return lambda args, kwargs: named_text(named(args, kwargs), spec, name)
    read = _function(parameters, name)

    def target(args: Args, kwargs: Kwargs) -> str | None:
        try:
            value = read(*args, **kwargs)
        except TypeError:
            value = named(args, kwargs).get(name)
        return value if type(value) is str else _text(value)

    return target


def file_reader(named: Named, spec: ToolSpec) -> Texts:
    """Reads the file that is edited, else the one that is read."""
    if spec.edits is None and spec.reads is None:
        return _nothing
    return lambda args, kwargs: file_text(named(args, kwargs), spec)


def _nothing(args: Args, kwargs: Kwargs) -> None:
    return None


def named_text(named: Mapping[str, Any], spec: ToolSpec, name: str) -> str | None:
    """The normalised text of one argument; None if it is secret or has no text form."""
    if name in spec.secret:
        return None
    value = named.get(name)
    normalise = spec.normalise.get(name)
    return _text(value if normalise is None else _normalised(normalise, value))


def file_text(named: Mapping[str, Any], spec: ToolSpec) -> str | None:
    """The file among bound arguments, or None."""
    return _one_file(spec.edits, named, spec) or _one_file(spec.reads, named, spec)


def _one_file(rule: FileRule, named: Mapping[str, Any], spec: ToolSpec) -> str | None:
    if rule is None:
        return None
    if isinstance(rule, str):
        return named_text(named, spec, rule)
    try:
        return _text(rule(named))
    except Exception:  # noqa: BLE001 - a function of the user must not break the call
        return None


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, os.PathLike):
        try:
            return os.fsdecode(value)
        except Exception:  # noqa: BLE001 - a path of the user's own making
            return None
    return None


def fixed_kind_of(kind: KindRule) -> Kind | None:
    """The kind that every call has, or None where the arguments decide."""
    if kind is None or isinstance(kind, Kind):
        return kind or Kind.UNKNOWN
    if isinstance(kind, str) and kind not in TEXT_KINDS:
        return KIND_NAMES.get(kind, Kind.UNKNOWN)
    return None


def kind_reader(named: Named, spec: ToolSpec, fixed: Kind | None) -> Callable[[Args, Kwargs], Kind]:
    """Reads the kind of a call."""
    if fixed is not None:
        return lambda _args, _kwargs: fixed
    rule, primary = spec.kind, first_of(spec.primary)
    return lambda args, kwargs: kind_of(rule, named(args, kwargs), primary)
