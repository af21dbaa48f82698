"""Which nonces wait for which nodes. Each watch fires once, as ZooKeeper's own do; a waiter sets a new one.

A watch that is no longer needed stays with the server until it fires: there is one for each node, however
many nonces wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ...protocols.tickets import TicketClient

__all__ = ["WatchRegistry"]


class WatchRegistry:
    """The watches of one client. ``node_changed`` is called in kazoo's thread, the rest from any thread."""

    def __init__(self, client: TicketClient, post: Callable[[str], None]) -> None:
        self._client = client
        self._post = post
        self._lock = threading.Lock()
        self._nonces: dict[str, set[str]] = {}
        """By path."""
        self._paths: dict[str, set[str]] = {}
        """By nonce."""

    def arm(self, nonce: str, paths: Iterable[str]) -> None:
        """From now on watch these paths, and no others."""
        self.disarm(nonce)
        self.add(nonce, paths)

    def add(self, nonce: str, paths: Iterable[str]) -> None:
        with self._lock:
            for path in paths:
                self._nonces.setdefault(path, set()).add(nonce)
                self._paths.setdefault(nonce, set()).add(path)

    def disarm(self, nonce: str) -> None:
        with self._lock:
            self._drop(nonce)

    def _drop(self, nonce: str) -> None:
        for path in self._paths.pop(nonce, ()):
            nonces = self._nonces[path]
            nonces.discard(nonce)
            if not nonces:
                del self._nonces[path]

    def is_armed(self, nonce: str) -> bool:
        """Whether its watch is still set."""
        return nonce in self._paths

    def node_changed(self, path: str) -> None:
        """A watch on this node fired."""
        with self._lock:
            nonces = list(self._nonces.get(path, ()))
            for nonce in nonces:
                self._drop(nonce)
        self._notify(nonces)

    def connection_changed(self) -> None:
        """The connection is a new one: changes in between were not reported."""
        with self._lock:
            nonces = list(self._paths)
            self._nonces.clear()
            self._paths.clear()
        self._notify(nonces)

    def _notify(self, nonces: list[str]) -> None:
        for nonce in nonces:
            self._client.watch_ended(nonce)
            self._post(nonce)
