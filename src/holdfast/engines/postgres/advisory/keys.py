"""Names as the numbers by which the server knows its advisory locks."""

from __future__ import annotations

from typing import Final

from ....core.hashing import hash_to_int64

__all__ = ["key_of", "session_namespace"]

_PERSON: Final = b"holdfast"


def key_of(namespace: str, name: str) -> int:
    """64 bits with a sign, the same on every machine and in every version.

    Should two names ever share a number they exclude each other, which is slow but safe.
    """
    scope, own = namespace.encode(), name.encode()
    told = len(scope).to_bytes(4, "big") + scope + own
    return hash_to_int64(told, _PERSON)


def session_namespace(namespace: str) -> bytes:
    """As it is stored: apart from what the lease table keeps under the same namespace."""
    return b"\xff" + namespace.encode()
