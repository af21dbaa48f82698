"""What one client knows of the tickets that it created, and of names that it left empty."""

from __future__ import annotations

from typing import Final, NamedTuple

from ...rules.tickets import LockView, Ticket
from .session import Session

__all__ = ["CachedTicket", "KindVersion", "TicketCache"]

EMPTIED_KEPT: Final = 1000
"""At most this many names are remembered as left empty."""


class KindVersion(NamedTuple):
    """The node of a name's kind, as it was read: its creation zxid and its version."""

    made: int
    version: int


class CachedTicket:
    """A ticket that this client created, or may have created."""

    __slots__ = ("alone", "folder", "prefetched_view", "session", "ticket")

    def __init__(self, folder: str, session: Session, ticket: Ticket | None = None) -> None:
        self.folder = folder
        self.session = session
        self.ticket = ticket
        """None: it is unknown whether the ticket exists."""
        self.prefetched_view: LockView | None = None
        """The view when its watch was set: the answer to the next read, unless the watch has fired since."""
        self.alone: KindVersion | None = None
        """The queue was empty when the ticket was created."""


class TicketCache:
    """The tickets of one client, by attempt."""

    def __init__(self) -> None:
        self._entries: dict[str, CachedTicket] = {}
        self._emptied: dict[str, KindVersion] = {}
        """The names that this client left empty."""
        self._shared: set[str] = set()
        """Names that other clients had used since, when last read: they probably have again."""

    def add(self, nonce: str, folder: str, session: Session, ticket: Ticket | None = None) -> CachedTicket:
        self._entries[nonce] = cached = CachedTicket(folder, session, ticket)
        return cached

    def get(self, nonce: str) -> CachedTicket | None:
        return self._entries.get(nonce)

    def of(self, session: Session) -> bool:
        """Whether a ticket is attached to this session."""
        return any(cached.session is session for cached in list(self._entries.values()))

    def forget(self, nonce: str) -> None:
        self._entries.pop(nonce, None)

    def forget_session(self, session: Session) -> None:
        """The session has ended."""
        for nonce, cached in list(self._entries.items()):
            if cached.session is session:
                self._entries.pop(nonce, None)

    def completed(self, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """The tickets, with this client's own in full."""
        return tuple([self._completed(ticket) for ticket in tickets])

    def _completed(self, ticket: Ticket) -> Ticket:
        cached = self._entries.get(ticket.nonce)
        if cached is None or cached.ticket is None or cached.ticket.handle.path != ticket.handle.path:
            return ticket
        return cached.ticket._replace(order=ticket.order)

    # --- names that were left empty

    def forget_removed(self, nonce: str) -> None:
        """The ticket was removed."""
        cached = self._entries.pop(nonce, None)
        if cached is not None and cached.alone is not None:
            if len(self._emptied) >= EMPTIED_KEPT:
                self._emptied.clear()
                self._shared.clear()
            self._emptied[cached.folder] = cached.alone

    def version_when_emptied(self, folder: str) -> KindVersion | None:
        """The version at which the name was left empty, if it probably still is. Returned once."""
        return None if folder in self._shared else self._emptied.pop(folder, None)

    def mark_shared(self, folder: str) -> None:
        self._shared.add(folder)

    def kind_read(self, folder: str, kind_read: KindVersion) -> None:
        """The node of the kind was read."""
        if self._emptied.pop(folder, None) == kind_read:
            self._shared.discard(folder)
