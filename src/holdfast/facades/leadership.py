"""What the leaderships of both facades share: everything that needs no I/O."""

from __future__ import annotations

from typing import Generic, TypeVar

from ..errors import HoldfastError
from ..model import Fence, Mode
from ..recipes import election as recipe
from .base import BaseLease

__all__ = ["BaseLeadership"]

LeaseT = TypeVar("LeaseT", bound=BaseLease)


class BaseLeadership(Generic[LeaseT]):
    """One term. Guards accept it as they accept a lease."""

    __slots__ = ("__weakref__", "_election", "_lease")

    def __init__(self, election: recipe.Election, lease: LeaseT) -> None:
        self._election = election
        self._lease = lease

    def __repr__(self) -> str:
        detail = self._lease._state.ended or ("lost" if self.lost else f"remaining={self.remaining:.3f}")
        return f"<holdfast.{type(self).__name__} {self.name!r} token={self.token} {detail}>"

    @property
    def name(self) -> str:
        """The name of the election."""
        return self._election.name

    @property
    def lease(self) -> LeaseT:
        """The lease that the leader holds, for code that takes one."""
        return self._lease

    @property
    def token(self) -> int:
        """The number of the term, and its fencing token: larger than that of every earlier term."""
        return self._lease.token

    @property
    def fence(self) -> Fence:
        """What a guard stores of this term."""
        return self._lease.fence

    @property
    def mode(self) -> Mode:
        return self._lease.mode

    @property
    def owner(self) -> str:
        return self._lease.owner

    @property
    def remaining(self) -> float:
        """Seconds this process may still rely on it, by its own clock."""
        return self._lease.remaining

    @property
    def lost(self) -> bool:
        return self._lease.lost

    def check(self) -> None:
        """Raise LockLost unless the leadership may still be relied on (NotHeld after ``resign``)."""
        try:
            self._lease.check()
        except HoldfastError as error:
            recipe.renamed(error, self._election)
            raise
