"""Randomness of a recipe, for pauses that spread out repeated attempts."""

from __future__ import annotations

from hashlib import blake2b

from ..core.effects import Nonce

__all__ = ["poll_pause", "random_fraction", "random_pause"]


async def random_fraction() -> float:
    """A protocol has no random numbers, but its nonces are random."""
    return int.from_bytes(blake2b((await Nonce()).encode(), digest_size=4).digest(), "big") / 2**32


async def random_pause(tries: int, least: float, most: float) -> float:
    """Full jitter: anything below a bound that doubles with each try."""
    return await random_fraction() * _bound(tries, least, most)


async def poll_pause(tries: int, least: float, most: float) -> float:
    """Between half of the bound and the bound: spreads out clients that poll together."""
    return (0.5 + 0.5 * await random_fraction()) * _bound(tries, least, most)


def _bound(tries: int, least: float, most: float) -> float:
    return min(least * 2.0 ** min(tries, 20), most)
