"""Names as the 64-bit keys of the server's advisory locks."""

from __future__ import annotations

from typing import Final

from ....core.hashing import hash_to_int64

__all__ = ["key_of", "session_namespace"]

_PERSON: Final = b"holdfast"


def key_of(namespace: str, name: str) -> int:
    """A signed 64-bit number, the same on every machine and in every version.

    Two names with the same number would exclude each other, which is slow but safe.
    """
    scope, own = namespace.encode(), name.encode()
    data = len(scope).to_bytes(4, "big") + scope + own
    return hash_to_int64(data, _PERSON)


def session_namespace(namespace: str) -> bytes:
    """The namespace as it is stored: apart from that of the lease table."""
    return b"\xff" + namespace.encode()
