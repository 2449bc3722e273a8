"""Secrets taken out of texts that are going to be shown.

Only used where such a text is made, so never on the path of a usual call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MemberDescriptorType
from typing import Any
from urllib.parse import quote, quote_plus

#: What stands for a secret.
HIDDEN = "[secret]"

# A text may have been cut inside a secret. So much of its beginning gives it away wherever it stands ...
_BEGINNING = 12
# ... and so much of it at the end of a text.
_TAIL = 4
# A word of a secret that is at least so long is one itself.
_WORD = 8
# Arguments are looked through so far for secrets that nobody declared.
_DEPTH = 8
_MOST = 10_000
# Classes whose fields are values: dataclasses, pydantic, attrs, msgspec.
_MODELS = ("__dataclass_fields__", "model_fields", "__attrs_attrs__", "__struct_fields__")


def secrets_of(named: Mapping[str, Any], declared: frozenset[str]) -> list[str] | None:
    """The secrets among the arguments of one call, as texts.

    Args:
        named: The arguments by name.
        declared: The names of those that are secret.

    Returns:
        The values of declared arguments, and of ``pydantic`` secrets wherever they stand.
        None if a declared one is no text: nobody can say then how it would look in a text.
    """
    found: list[str] = []
    for name in declared:
        value: Any = named.get(name)
        if hasattr(type(value), "get_secret_value"):
            value = value.get_secret_value()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        if isinstance(value, str):
            found.append(str.__str__(value))
        elif value is not None:
            return None
    others = [value for name, value in named.items() if name not in declared]
    found.extend(_wrapped(others))
    return [value for value in found if value]


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret replaced by `HIDDEN`, also escaped, and also where the text was cut inside one."""
    for form in sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True):
        text = _replaced(text, form)
    return text


def _parts(secret: str) -> Iterator[str]:
    """The secret, without the white space around it, and its longer words: "Bearer abc" is shown as "abc"."""
    yield secret
    stripped = secret.strip()
    if stripped:
        yield stripped
    words = stripped.split()
    if len(words) > 1:
        yield from (word for word in words if len(word) >= _WORD)
    if len(stripped) >= 2 * _BEGINNING:
        yield stripped[-_BEGINNING:]  # services show the end of a key


def _forms(whole: str) -> Iterator[str]:
    """How a secret looks in plain text, in a ``repr``, in JSON, in a URL, and in another case."""
    for secret in _parts(whole):
        yield secret
        yield repr(secret)[1:-1]
        yield json.dumps(secret)[1:-1]
        yield json.dumps(secret, ensure_ascii=False)[1:-1]
        raw = secret.encode("utf-8", "surrogatepass")
        yield quote(raw, safe="")
        yield quote_plus(raw)
        if len(secret) >= _WORD:
            yield secret.lower()
            yield secret.upper()


def _replaced(text: str, secret: str) -> str:
    beginning = secret[:_BEGINNING]
    parts = []
    at = 0
    while (start := text.find(beginning, at)) >= 0:
        end = start + len(beginning)
        limit = min(len(text), start + len(secret))
        while end < limit and text[end] == secret[end - start]:
            end += 1
        parts += [text[at:start], HIDDEN]
        at = end
    rest = text[at:]
    for size in range(min(len(beginning), len(rest)), _TAIL - 1, -1):
        if rest.endswith(beginning[:size]):
            rest = rest[:-size] + HIDDEN
            break
    return "".join([*parts, rest])


def _slots(kind: type) -> Iterator[str]:
    """The fields of a class without a ``__dict__``."""
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            # Only what is stored is read: a property may do anything.
            if isinstance(base.__dict__.get(name), MemberDescriptorType):
                yield name


def _wrapped(values: Iterable[Any]) -> list[str]:
    """What stands inside ``SecretStr`` and its kin, however deep in containers and models."""
    found: list[str] = []
    level = list(values)
    seen = 0
    for _ in range(_DEPTH):
        following: list[Any] = []
        for value in level:
            seen += 1
            if seen > _MOST:
                return found
            if hasattr(type(value), "get_secret_value"):
                inner = value.get_secret_value()
                found.append(inner.decode("utf-8", "backslashreplace") if isinstance(inner, bytes) else str(inner))
            elif isinstance(value, Mapping):
                following += value.values()
            elif isinstance(value, (list, tuple, set, frozenset)):
                following += value
            elif any(hasattr(type(value), mark) for mark in _MODELS):
                following += getattr(value, "__dict__", {}).values()
                following += [getattr(value, name, None) for name in _slots(type(value))]
        level = following
        if not level:
            break
    return found
