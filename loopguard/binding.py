"""How one call is read: its key, its whole input, its target, its file, its kind.

The same call has the same key however it is spelled: by position, by keyword, or with a default left out.
Everything that does not change from call to call is prepared once, because ``Signature.bind`` would cost more than
all the rest of a guarded call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loopguard.fingerprint import secret_form
from loopguard.kinds import kind_of
from loopguard.markers import signature_of
from loopguard.readers import (
    REST,
    Args,
    KeyOf,
    Kwargs,
    Named,
    Texts,
    change_of,
    changed,
    file_reader,
    file_text,
    first_of,
    fixed_kind_of,
    keep,
    keep_hidden,
    kind_reader,
    left_out_of,
    looked_up_reader,
    named_reader,
    named_text,
    readable_parameters,
    spelled_reader,
    target_name_of,
    target_reader,
    values_reader,
)
from loopguard.records import Kind

if TYPE_CHECKING:
    from loopguard.signature import ToolSignature, ToolSpec


class Binder:
    """Reads the calls of one decorated function.

    All its functions take the positional and the keyword arguments of a call, and none raises.
    A call that does not fit the signature (the tool is going to raise a ``TypeError``) is read as it is spelled.

    Args:
        spec: what the tool said about itself.
        func: the function or its signature; None where it has none.
        bound: True where the arguments come without the first parameter of ``func``, as for a method that is called
            on its object.

    Attributes:
        spec: as given.
        names: the parameters that are part of the identity.
        values: ``(args, kwargs) -> tuple``: their values, in the order of the parameters.
        whole: ``(args, kwargs, secret=b"") -> tuple``: the same, with secret values replaced by their keyed form.
        key: ``(args, kwargs, secret=b"") -> tuple``: the primary values, normalised; the whole input where the tool
            declared none.
        named: ``(args, kwargs) -> dict``: all bound arguments by name, for functions of the user.
        target: ``(args, kwargs) -> str | None``: the first primary value, else the file, as text; None if it is
            secret or has no text form.
        target_name: the parameter that ``target`` reads, for messages; None where a function decides.
        file: ``(args, kwargs) -> str | None``: the file that is edited, else the one that is read.
        kind: ``(args, kwargs) -> Kind``.
        fixed_kind: the kind of every call; None where the arguments decide.
        edits: True if the tool changes a file that it names.
    """

    __slots__ = (
        "__weakref__",
        "edits",
        "file",
        "fixed_kind",
        "key",
        "kind",
        "named",
        "names",
        "spec",
        "target",
        "target_name",
        "values",
        "whole",
    )

    spec: ToolSpec
    names: tuple[str, ...]
    values: KeyOf
    whole: KeyOf
    key: KeyOf
    named: Named
    target: Texts
    file: Texts
    kind: Callable[[Args, Kwargs], Kind]

    def __init__(
        self, spec: ToolSpec, func: Callable[..., Any] | inspect.Signature | None, *, bound: bool = False
    ) -> None:
        signature = signature_of(func) if callable(func) else func
        parameters = readable_parameters(signature, bound=bound)
        left_out = left_out_of(spec, [name for name, one in parameters.items() if one.kind not in REST])
        members = tuple(name for name in parameters if name not in left_out)
        spelled = spelled_reader(spec, left_out)
        self.spec = spec
        self.edits = spec.edits is not None
        self.names = tuple(name for name in members if parameters[name].kind not in REST)
        self.named = named_reader(parameters, spec.injected & frozenset({"self", "cls"}))
        rest = {name: keep(left_out) for name in members if parameters[name].kind is REST[1]}
        self.values = values_reader(parameters, members, rest, spelled)
        self.whole = self.values
        if spec.secret:
            hidden = {name: keep_hidden(left_out, spec.secret) for name in rest}
            hidden.update((name, secret_form) for name in members if name in spec.secret)
            self.whole = values_reader(parameters, members, hidden, spelled)
        self.key = self.whole
        if spec.primary:
            changes = {name: change for name in spec.primary if (change := change_of(spec, name)) is not None}
            if all(name in parameters for name in spec.primary):
                self.key = values_reader(parameters, spec.primary, changes, spelled)
            else:
                self.key = looked_up_reader(self.named, spec.primary, changes)
        self.target_name = target_name_of(spec)
        self.file = file_reader(self.named, spec)
        self.target = target_reader(parameters, self.named, spec, self.target_name, self.file)
        self.fixed_kind = fixed_kind_of(spec.kind)
        self.kind = kind_reader(self.named, spec, self.fixed_kind)


class MappingBinder:
    """Reads the calls of a tool that is not decorated: its arguments come as one mapping.

    The methods are those of ``Binder``, with the mapping in place of ``args, kwargs``.
    What is not a mapping counts as one value, None as no arguments. No method raises.

    Args:
        spec: what is known about the tool.
        signature: a ``ToolSignature`` that is asked first; a method of it that raises counts as one that says nothing.
    """

    __slots__ = ("__weakref__", "_signature", "edits", "fixed_kind", "spec", "target_name")

    def __init__(self, spec: ToolSpec, signature: ToolSignature | None = None) -> None:
        self.spec = spec
        self._signature = signature
        edits = bool(self._ask("is_file_edit_tool"))
        reads = bool(self._ask("is_file_read_tool"))
        self.edits = spec.edits is not None or edits
        self.fixed_kind = fixed_kind_of(spec.kind)
        if spec.kind is None and (edits or reads):
            self.fixed_kind = Kind.WRITE if edits else Kind.READ
        self.target_name = target_name_of(spec)

    def named(self, arguments: object) -> dict[str, Any]:
        """The arguments by name; ``{"value": ...}`` for what is not a mapping."""
        if arguments is None:
            return {}
        try:
            return dict(arguments) if isinstance(arguments, Mapping) else {"value": arguments}
        except Exception:  # noqa: BLE001 - a mapping of the user that cannot be read
            return {"value": arguments}

    def values(self, arguments: object, secret: bytes = b"") -> Args:
        """One mapping with everything that is part of the identity."""
        named = self.named(arguments)
        return (keep(left_out_of(self.spec, named))(named, secret),)

    def whole(self, arguments: object, secret: bytes = b"") -> Args:
        """The same, with secret values replaced by their keyed form."""
        if not self.spec.secret:
            return self.values(arguments, secret)
        if arguments is not None and not isinstance(arguments, Mapping):
            return (secret_form(arguments, secret),)
        named = self.named(arguments)
        return (keep_hidden(left_out_of(self.spec, named), self.spec.secret)(named, secret),)

    def key(self, arguments: object, secret: bytes = b"") -> Args:
        """The primary values, None for a missing one; the whole input if none is there."""
        named = self.named(arguments)
        param = self._param(named)
        if param:
            return (param,)
        if not any(name in named for name in self.spec.primary):
            return self.whole(arguments, secret)
        changes = {name: change_of(self.spec, name) for name in self.spec.primary}
        return tuple(changed(changes[name], named.get(name), secret) for name in self.spec.primary)

    def target(self, arguments: object) -> str | None:
        """The text that names what the call is about, or None."""
        named = self.named(arguments)
        if param := self._param(named):
            return param
        if self.target_name is None:
            return self.file(arguments)
        return named_text(named, self.spec, self.target_name)

    def file(self, arguments: object) -> str | None:
        """The file that is edited, else the one that is read, or None."""
        named = self.named(arguments)
        if self._signature is not None:
            told = self._ask("file_path_for_reset", named)
            if not told and (self._ask("is_file_edit_tool") or self._ask("is_file_read_tool")):
                param = self._param(named)
                told = self._ask("normalize_param_for_comparison", param) if param else None
            if isinstance(told, str) and told:
                return told
        return file_text(named, self.spec)

    def kind(self, arguments: object) -> Kind:
        """What this call does to the world."""
        if self.fixed_kind is not None:
            return self.fixed_kind
        return kind_of(self.spec.kind, self.named(arguments), first_of(self.spec.primary))

    def suggestion(self, arguments: object) -> str | None:
        """What a nudge about this call suggests, or None."""
        told = self._ask("get_suggestion", self._param(self.named(arguments)) or "")
        return told if isinstance(told, str) and told else self.spec.suggestion

    def _param(self, named: Mapping[str, Any]) -> str | None:
        param = self._ask("extract_primary_param", named)
        return param if isinstance(param, str) and param else None

    def _ask(self, method: str, *more: Any) -> Any:
        if self._signature is None:
            return None
        try:
            return getattr(self._signature, method)(self.spec.name, *more)
        except Exception:  # noqa: BLE001 - a method of the user must not break the call
            return None
