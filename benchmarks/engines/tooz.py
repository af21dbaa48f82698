"""Locks of tooz, which has a driver for most servers: what differs between them is the URL."""

from __future__ import annotations

from typing import Any

from ..contestant import Handle, Place

__all__ = ["open_tooz"]


class Tooz(Handle):
    """A lock of a coordinator, at its defaults."""

    def __init__(self, url: str, name: str) -> None:
        from tooz import coordination

        self._coordinator: Any = coordination.get_coordinator(url, b"member")
        self._coordinator.start()
        self._lock: Any = self._coordinator.get_lock(name.encode())
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def close(self) -> None:
        self._coordinator.stop()


def open_tooz(url: str, place: Place, name: str) -> Handle:
    """``{address}`` in the URL is that of the first server."""
    return Tooz(url.format(address=place.addresses[0]), f"{place.space}-{name}")
