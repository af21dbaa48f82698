"""Names as numbers of 64 bits, the same on every machine and in every version."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["hash_to_int64"]


def hash_to_int64(data: bytes, space: bytes) -> int:
    """With a sign. ``space`` (at most 16 bytes) keeps the numbers of two purposes apart."""
    return int.from_bytes(blake2b(data, digest_size=8, person=space).digest(), "big", signed=True)
