"""Barriers, for threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ...core import arguments
from ...core.lock_options import Duration
from ...recipes import barrier as recipe
from ...recipes import cell

if TYPE_CHECKING:
    from ...client import Client

__all__ = ["Barrier"]


class Barrier:
    """A point at which a number of parties wait for each other, again and again."""

    __slots__ = ("_barrier", "_client")

    def __init__(self, client: Client, name: str, parties: int, ttl: Duration) -> None:
        arguments.check_name(name)
        cell.check_engine(client.guarantees)
        self._client = client
        self._barrier = recipe.Barrier(client._driver.client_state, name, parties, ttl)

    def __repr__(self) -> str:
        return f"<holdfast.Barrier {self.name!r} for {self.parties}>"

    @property
    def name(self) -> str:
        return self._barrier.name

    @property
    def parties(self) -> int:
        """How many have to arrive."""
        return self._barrier.parties

    def wait(self, timeout: Duration | None = None) -> int:
        """Wait until all parties have arrived. Returns how many had arrived before this one.

        timeout: seconds or a timedelta, None or -1 for ever. When it is over, the barrier is broken.

        BrokenBarrierError, for every party that waits: one died or gave up, or it was aborted or reset.
        """
        seconds = arguments.check_timeout(timeout)
        driver = self._client._driver
        owner = driver.owner_prefix + threading.current_thread().name
        return driver.run(recipe.wait(self._current(), owner, seconds))

    def abort(self) -> None:
        """Break it: those that wait, and those that come, get BrokenBarrierError until it is reset."""
        self._client._driver.run(recipe.abort(self._current()))

    def reset(self) -> None:
        """Begin anew, with no party waiting. Parties that wait get BrokenBarrierError."""
        self._client._driver.run(recipe.reset(self._current()))

    def n_waiting(self) -> int:
        """How many wait now."""
        return self._client._driver.run(recipe.waiting(self._current()))

    def broken(self) -> bool:
        """Whether it is broken, and was not reset."""
        return self._client._driver.run(recipe.is_broken(self._current()))

    def _current(self) -> recipe.Barrier:
        """After a fork the driver has another ``ClientState``, whose keeper renews the leases of parties."""
        self._barrier.bind(self._client._driver.client_state)
        return self._barrier
