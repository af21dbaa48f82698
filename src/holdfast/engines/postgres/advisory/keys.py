"""Names as the 64-bit keys of the server's advisory locks."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

__all__ = ["key_of", "session_namespace"]

_PERSON: Final = b"holdfast"


def key_of(namespace: str, name: str) -> int:
    """A signed 64-bit number, the same on every machine and in every version.

    Two names with the same number would exclude each other, which is slow but safe.
    """
    scope, own = namespace.encode(), name.encode()
    data = len(scope).to_bytes(4, "big") + scope + own
    return int.from_bytes(blake2b(data, digest_size=8, person=_PERSON).digest(), "big", signed=True)


def session_namespace(namespace: str) -> bytes:
    """The namespace as it is stored: apart from that of the lease table."""
    return b"\xff" + namespace.encode()
