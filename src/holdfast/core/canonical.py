"""Values as bytes and keys as text, such that two different values never look the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from ..errors import InvalidArgument
from .hashing import blake2b

__all__ = ["Key", "canonical_bytes", "fingerprint_of", "key_text"]

Key = str | int | bytes | tuple["Key", ...]
"""What names an operation: text, a number, bytes, or a tuple of such."""

FINGERPRINT_BYTES: Final = 32
DEPTH_MAX: Final = 100

_ESCAPED: Final = {ord(character): f"%{ord(character):02X}" for character in "%/,()#\0"}


def key_text(key: Key, what: str = "key") -> str:
    """A key as readable text. ``% / , ( ) #`` and NUL in it are escaped, so no two keys look the same."""
    if isinstance(key, str | bytes | tuple) and not key:
        raise InvalidArgument(f"the {what} is empty: name what is done once, for example ('order', 7)")
    return _key_text(key, what, 0)


def _key_text(key: Key, what: str, depth: int) -> str:
    if isinstance(key, str):
        return key.translate(_ESCAPED)
    if isinstance(key, bytes):
        return f"#x{key.hex()}"
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    if isinstance(key, tuple) and key and depth < DEPTH_MAX:
        return f"({','.join([_key_text(part, what, depth + 1) for part in key])})"
    raise InvalidArgument(
        f"a {what} is text, a whole number, bytes, or a tuple of these that is not empty; "
        f"this has {type(key).__name__}: write for example ('order', str(order_id))"
    )


def fingerprint_of(value: object) -> bytes:
    """A hash of a payload. Equal payloads have equal ones, in every process and version of Python."""
    return blake2b(canonical_bytes(value), digest_size=FINGERPRINT_BYTES).digest()


def canonical_bytes(value: object) -> bytes:
    """Each value with its type and its length. Mappings are sorted, and their keys are text."""
    parts: list[bytes] = []
    _append(parts, value, 0)
    return b"".join(parts)


def _append(parts: list[bytes], value: object, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise _unencodable(f"it is nested more than {DEPTH_MAX} deep, or contains itself")
    if value is None or isinstance(value, bool):
        parts.append({None: b"n", True: b"t", False: b"f"}[value])
    elif isinstance(value, int):
        _sized(parts, b"i", b"%x" % value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _unencodable(f"{value!r} is equal to nothing that can be sent again: leave it out")
        _sized(parts, b"d", value.hex().encode())
    elif isinstance(value, str):
        _sized(parts, b"s", _utf8(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        _sized(parts, b"b", bytes(value))
    elif isinstance(value, list | tuple):
        parts.append(b"l%d:" % len(value))
        for each in value:
            _append(parts, each, depth + 1)
    elif isinstance(value, Mapping):
        _append_mapping(parts, value, depth)
    else:
        raise _unencodable(f"it contains {type(value).__name__}: write str(…) or a list of its fields")


def _append_mapping(parts: list[bytes], value: Mapping[object, object], depth: int) -> None:
    fields: list[tuple[bytes, object]] = []
    for name, each in value.items():
        if not isinstance(name, str):
            raise _unencodable(f"a mapping has the key {name!r}: keys are text")
        fields.append((_utf8(name), each))
    parts.append(b"m%d:" % len(fields))
    for encoded, each in sorted(fields, key=lambda field: field[0]):
        _sized(parts, b"s", encoded)
        _append(parts, each, depth + 1)


def _sized(parts: list[bytes], kind: bytes, data: bytes) -> None:
    parts.append(kind + b"%d:" % len(data))
    parts.append(data)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _unencodable("it contains text with lone surrogates, which UTF-8 cannot write") from None


def _unencodable(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the fingerprint cannot be computed: {why}. A payload is made of None, bool, int, float, str, "
        "bytes, lists, and mappings with text as keys"
    )
