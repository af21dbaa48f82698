"""The servers that keep the locks of a group of contestants, as the coordinator sees them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager

__all__ = ["Service"]


class Service:
    """None, unless a group says otherwise."""

    def __init__(self, addresses: tuple[str, ...] = (), versions: Mapping[str, str] | None = None) -> None:
        self.addresses = addresses
        """``host:port`` of each."""
        self.versions = dict(versions or {})
        """What they are: name → version."""

    def requests(self) -> int | None:
        """How many requests the clients have sent so far, ours for this number not counted; None: they do
        not tell."""
        return None

    def scripts(self) -> int | None:
        """How many scripts they were asked to run so far; None: they do not tell."""
        return None

    def listening(self, ports: Collection[int]) -> int | None:
        """How many of the connections from these ports do nothing but listen; None: they do not tell."""
        return None

    def one_stopped(self) -> AbstractContextManager[None]:
        """One of several stands still meanwhile."""
        raise NotImplementedError
