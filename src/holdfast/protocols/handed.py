"""What was handed to those of a client who wait, where the message that wakes one says that it has the lock.

It does not say since when. But a place in the queue is asked for before anything can be handed to it, so the
lease is counted from there: that is a moment ago, for only who came a moment ago is handed anything.

A message about what became of a lease comes after the one that brought it, from the same server: who was
woken without a token asks.
"""

from __future__ import annotations

from collections.abc import Callable

from ..rules.requests import Acquire, Granted

__all__ = ["Handed"]


class Handed:
    """Attempts that wait, by their nonces. Messages may come from any thread."""

    __slots__ = ("_asked", "_now", "_tokens")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        """The local clock."""
        self._asked: dict[str, float] = {}
        """When a place in the queue was first asked for."""
        self._tokens: dict[str, int] = {}

    def told(self, nonce: str, token: int | None) -> None:
        """A message came; without a token it only wakes."""
        if token is not None and nonce in self._asked:
            self._tokens[nonce] = token
        else:
            self._tokens.pop(nonce, None)

    def asked(self, ask: Acquire) -> Granted | None:
        """It asks for a place in the queue, or where it stands: the grant, if it was handed over."""
        nonce = ask.nonce
        token = self._tokens.pop(nonce, None)
        now = self._now()
        since = self._asked.setdefault(nonce, now)
        if token is None:
            return None
        return Granted(token, (), ask.kind, ask.mode, ask.ttl, None, ask.metadata, now - since)

    def forget(self, nonce: str) -> None:
        """It does not wait any more."""
        self._asked.pop(nonce, None)
        self._tokens.pop(nonce, None)
