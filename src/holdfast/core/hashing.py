"""Hashes that are the same on every machine and in every version."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # what hashlib.blake2b is; hashlib also loads OpenSSL, 2 ms of every start
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b", "hash_to_int64"]


def hash_to_int64(data: bytes, space: bytes) -> int:
    """A number with a sign. ``space`` (at most 16 bytes) keeps the numbers of two purposes apart."""
    return int.from_bytes(blake2b(data, digest_size=8, person=space).digest(), "big", signed=True)
