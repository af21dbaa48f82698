"""What one client knows of the tickets that it put, and of names that it left empty."""

from __future__ import annotations

from typing import Final, NamedTuple

from ...rules.tickets import LockView, Ticket
from .session import Session

__all__ = ["CachedTicket", "KindVersion", "TicketCache"]

EMPTIED_KEPT: Final = 1000
"""Of so many names it is remembered how they were left."""


class KindVersion(NamedTuple):
    """The node of what a name is, as it was seen: which one, and how often it was written to."""

    made: int
    version: int


class CachedTicket:
    """A ticket that we put, or may have put."""

    __slots__ = ("alone", "folder", "prefetched_view", "session", "ticket")

    def __init__(self, folder: str, session: Session, ticket: Ticket | None = None) -> None:
        self.folder = folder
        self.session = session
        self.ticket = ticket
        """None: whether it is there nobody knows."""
        self.prefetched_view: LockView | None = None
        """How it stood when it was armed: the answer to a look, as long as nothing came since."""
        self.alone: KindVersion | None = None
        """Nobody else was there when it was put."""


class TicketCache:
    """By attempt."""

    def __init__(self) -> None:
        self._entries: dict[str, CachedTicket] = {}
        self._emptied: dict[str, KindVersion] = {}
        """Names as we left them: empty."""
        self._shared: set[str] = set()
        """Names that others used since, when it was last seen: they will have done so again."""

    def add(self, nonce: str, folder: str, session: Session, ticket: Ticket | None = None) -> CachedTicket:
        self._entries[nonce] = cached = CachedTicket(folder, session, ticket)
        return cached

    def get(self, nonce: str) -> CachedTicket | None:
        return self._entries.get(nonce)

    def of(self, session: Session) -> bool:
        """Whether something hangs on this session."""
        return any(cached.session is session for cached in list(self._entries.values()))

    def forget(self, nonce: str) -> None:
        self._entries.pop(nonce, None)

    def forget_session(self, session: Session) -> None:
        """The session is over."""
        for nonce, cached in list(self._entries.items()):
            if cached.session is session:
                self._entries.pop(nonce, None)

    def completed(self, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """Our own in full."""
        return tuple([self._completed(ticket) for ticket in tickets])

    def _completed(self, ticket: Ticket) -> Ticket:
        cached = self._entries.get(ticket.nonce)
        if cached is None or cached.ticket is None or cached.ticket.handle.path != ticket.handle.path:
            return ticket
        return cached.ticket._replace(order=ticket.order)

    # --- names that were left empty

    def forget_removed(self, nonce: str) -> None:
        """Our ticket is gone."""
        cached = self._entries.pop(nonce, None)
        if cached is not None and cached.alone is not None:
            if len(self._emptied) >= EMPTIED_KEPT:
                self._emptied.clear()
                self._shared.clear()
            self._emptied[cached.folder] = cached.alone

    def version_when_emptied(self, folder: str) -> KindVersion | None:
        """When it was empty, if it is worth a guess that it still is. Asked once."""
        return None if folder in self._shared else self._emptied.pop(folder, None)

    def mark_shared(self, folder: str) -> None:
        self._shared.add(folder)

    def kind_read(self, folder: str, kind_read: KindVersion) -> None:
        """It was looked at."""
        if self._emptied.pop(folder, None) == kind_read:
            self._shared.discard(folder)
