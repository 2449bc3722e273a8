"""Digests and hashes of arguments and results, made from their canonical bytes.

A digest is a 64-bit xxh3 number under the seed of a run: fast, and good for comparing only.
What leaves the process, or stands for a secret, is hashed with keyed blake2b instead.
No function here raises, whatever a value does when it is looked at, and none reads from a stream.
"""

from __future__ import annotations

from hashlib import blake2b
from types import MemberDescriptorType
from typing import Any

import orjson
from xxhash import xxh3_64, xxh3_64_intdigest

from loopguard.canonical import SCALARS, canonical, class_name, encoded, is_text, quoted
from loopguard.records import EMPTY_OUTCOME, UNKNOWN_OUTCOME

__all__ = [
    "WHOLE",
    "arguments",
    "canonical",
    "digest",
    "keyed_hex",
    "outcome_digest",
    "secret_form",
    "stored",
    "text_parts",
]

#: Text of more characters than this is encoded and digested in pieces, so that no copy of it is made.
WHOLE = 1 << 20

# Characters in a piece: as many as stay in the processor's cache between encoding and digesting.
_PIECE = 1 << 14
# Text and structures have different seeds: the text '[1]' and the list [1] are different outcomes.
_STRUCTURE = 0x9E3779B97F4A7C15
_EMPTY_FORMS = frozenset((b"null", b'""', b"[]", b"{}", b"!set()", b"!deque([])", b"!bytes(0:)"))
#: Canonical for a tuple of `SCALARS`; a TypeError asks for ``arguments``.
dumps = orjson.dumps
# Content blocks that carry no text and name no type (Gemini's form).
_BINARY = frozenset(("inline_data", "inlineData", "file_data", "fileData"))


def arguments(values: tuple[object, ...]) -> tuple[bytes, bool]:
    """Canonical bytes of the argument values of one call, in order.

    Args:
        values: The values that make the call what it is.

    Returns:
        The bytes, and whether they are exact.
        An argument without canonical form stands as the name of its type; the bytes are then not exact, and
        evidence that rests on them may warn but not refuse.
    """
    try:
        for value in values:
            if type(value) not in SCALARS:
                break
        else:
            return scalars(values)
    except Exception:  # noqa: BLE001 - a metaclass may have a hostile hash
        return b"[" + b",".join(b"!type(" + quoted(class_name(type(value))) + b")" for value in values) + b"]", False
    whole = canonical(values)
    if whole is not None:
        return whole, True
    exact = True
    parts = []
    for value in values:
        form = canonical(value)
        if form is None:
            exact = False
            form = b"!type(" + quoted(class_name(type(value))) + b")"
        parts.append(form)
    return b"[" + b",".join(parts) + b"]", exact


def scalars(values: tuple[object, ...]) -> tuple[bytes, bool]:
    """What `arguments` gives for values that are all of `SCALARS`."""
    try:
        return dumps(values), True
    except TypeError:  # lone surrogates, integers beyond 64 bits
        whole = canonical(values)
        return (b"", False) if whole is None else (whole, True)


def text_digest(text: str, seed: int) -> int:
    """What `outcome_digest` gives for a text that is not empty."""
    if len(text) <= WHOLE:
        try:
            number = xxh3_64_intdigest(text.encode(), seed)
        except UnicodeEncodeError:
            number = xxh3_64_intdigest(encoded(text), seed)
        return number if number > 1 else number + 2
    return _long_digest(text, seed)


def digest(data: bytes, seed: int) -> int:
    """64-bit digest of `data` under `seed` (0 to 2**64 - 1), never one of the reserved outcomes 0 and 1."""
    number = xxh3_64_intdigest(data, seed)
    return number if number > 1 else number + 2


def outcome_digest(result: object, seed: int) -> int:
    """Digest of what a tool returned.

    Args:
        result: The value as returned. Generators, files and other streams are left untouched.
        seed: The run's seed, 0 to 2**64 - 1.

    Returns:
        `EMPTY_OUTCOME` for None and for empty text, bytes and containers, `UNKNOWN_OUTCOME` for what has no
        canonical form, else the digest of the text or of the canonical bytes.
        Text is digested to its last character, in pieces where it is longer than `WHOLE`.
    """
    if type(result) is str:
        if not result:
            return EMPTY_OUTCOME
        return text_digest(result, seed)
    if result is None:
        return EMPTY_OUTCOME
    if is_text(type(result)):
        return outcome_digest(str.__str__(result), seed)
    data = canonical(result)
    if data is None:
        return UNKNOWN_OUTCOME
    return EMPTY_OUTCOME if data in _EMPTY_FORMS else digest(data, seed ^ _STRUCTURE)


def keyed_hex(data: bytes, key: bytes, size: int = 4) -> str:
    """Keyed blake2b of `data` as hexadecimal text.

    Args:
        data: What to hash.
        key: The secret key; a key over 64 bytes is hashed first, an empty one leaves the hash unkeyed.
        size: Length of the hash in bytes, 1 to 64; the text is twice as long.
    """
    if len(key) > 64:
        key = blake2b(key).digest()
    return blake2b(data, key=key, digest_size=size).hexdigest()


def secret_form(value: object, key: bytes) -> str:
    """What stands for a secret argument: ``secret:`` and a keyed hash of its content.

    Args:
        value: The secret; a pydantic ``SecretStr`` is hashed by what it wraps.
            Without canonical form the name of its type is hashed.
        key: The run's key.
    """
    try:
        if hasattr(type(value), "get_secret_value"):
            value = value.get_secret_value()  # type: ignore[attr-defined]  # duck-typed: pydantic is not imported
    except Exception:  # noqa: BLE001 - without its content the type has to do
        value = type(value)
    data = canonical(value)
    return "secret:" + keyed_hex(quoted(class_name(type(value))) if data is None else data, key, 16)


def text_parts(result: object) -> str | None:
    """Text of a multipart result, its parts joined by line ends; parts without text do not count.

    Understood are lists of content blocks, mappings with ``parts`` or ``content`` holding such a list, and
    objects with ``content`` or ``text`` as plain fields (a property is not called: it may read a stream).

    Returns:
        The text ("" where no part has any), or None if the result is not multipart.
    """
    try:
        return _parts(result)
    except Exception:  # noqa: BLE001 - a result may do anything when it is looked at
        return None


def _long_digest(text: str, seed: int) -> int:
    state = xxh3_64(seed=seed)
    for start in range(0, len(text), _PIECE):
        state.update(encoded(text[start : start + _PIECE]))
    number = state.intdigest()
    return number if number > 1 else number + 2


def _parts(result: Any) -> str | None:
    if isinstance(result, dict):
        for name in ("parts", "content"):
            if isinstance(result.get(name), list):
                return _joined(result[name])
        return None
    if isinstance(result, (list, tuple)):
        return _joined(result)
    if type(result) in SCALARS:
        return None
    for name in ("parts", "content", "text"):
        value = stored(result, name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return _joined(value)
    return None


def _joined(blocks: list[Any] | tuple[Any, ...]) -> str | None:
    """Text of the blocks, or None if these are not content blocks."""
    texts = []
    marked = False
    for block in blocks:
        if isinstance(block, str):
            texts.append(block)
            continue
        kind = stored(block, "type")
        text = stored(block, "text")
        if text is None:  # an embedded resource holds its text one level down
            text = stored(stored(block, "resource"), "text")
        if isinstance(text, str):
            texts.append(text)
        elif not isinstance(kind, str) and not _BINARY.intersection(block if isinstance(block, dict) else ()):
            return None
        marked = True
    return "\n".join(texts) if marked else None


def stored(value: Any, name: str) -> Any:
    """A field of a mapping or object that can be read without running its code, or None."""
    if isinstance(value, dict):
        return value.get(name)
    declared = getattr(type(value), name, None)
    # A property or a method runs code; the descriptor of a slot only hands out what is stored.
    if hasattr(declared, "__get__") and not isinstance(declared, MemberDescriptorType):
        return None
    return getattr(value, name, None)
