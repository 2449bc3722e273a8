"""Secrets taken out of texts that are going to be shown.

Only used where such a text is made, so never on the path of a usual call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

#: What stands for a secret.
HIDDEN = "[secret]"

# A text may have been cut inside a secret. So much of its beginning gives it away wherever it stands ...
_BEGINNING = 12
# ... and so much of it at the end of a text.
_TAIL = 4
# Arguments are looked through so far for secrets that nobody declared.
_DEPTH = 8
_MOST = 10_000


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


def _forms(secret: str) -> Iterator[str]:
    """How a secret looks in plain text, in a ``repr``, in JSON, and in a URL."""
    yield secret
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    raw = secret.encode("utf-8", "surrogatepass")
    yield quote(raw, safe="")
    yield quote_plus(raw)


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
            elif hasattr(type(value), "__dataclass_fields__") or hasattr(type(value), "model_fields"):
                following += getattr(value, "__dict__", {}).values()
        level = following
        if not level:
            break
    return found
