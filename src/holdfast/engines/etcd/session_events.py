"""Events about a client itself: its attempts that were ended from outside, its sessions that ended."""

from __future__ import annotations

from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from .store import EtcdStore

__all__ = ["SessionEvents"]


class SessionEvents:
    """Passes events to the TicketClient, then wakes the waiters and the keeper."""

    __slots__ = ("_client", "_context", "_store", "closed", "unread")

    def __init__(self, client: TicketClient, store: EtcdStore, context: AdapterContext) -> None:
        self._client = client
        self._store = store
        self._context = context
        self.unread = False
        """The watch was just set, perhaps again: earlier events must be read."""
        self.closed = False
        """The client ends its sessions itself: their end is no event."""

    def watched(self) -> None:
        self.unread = True

    def ended(self, nonce: str) -> None:
        self._client.suspect(nonce)
        self._context.post(nonce)

    def session_over(self, lease: int) -> None:
        if not self.closed:
            for nonce in self._client.session_reported_ended(lease):
                self._context.post(nonce)

    async def read(self) -> None:
        """Read what happened while no watch was set."""
        self.unread = False
        known = [session.id for session in self._client.open_sessions()]  # before the living ones are read
        ended, living = await self._store.news()
        for nonce in ended:
            self.ended(nonce)
        for lease in known:
            if lease not in living:
                self.session_over(lease)
