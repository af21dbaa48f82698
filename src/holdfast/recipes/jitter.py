"""Randomness of a recipe, for pauses that spread out those who try again."""

from __future__ import annotations

from hashlib import blake2b

from ..core.effects import Nonce

__all__ = ["random_fraction"]


async def random_fraction() -> float:
    """A protocol has no random numbers, but its nonces are random."""
    return int.from_bytes(blake2b((await Nonce()).encode(), digest_size=4).digest(), "big") / 2**32
