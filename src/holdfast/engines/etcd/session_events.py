"""What a client hears about itself: attempts that were ended from outside, sessions that are over."""

from __future__ import annotations

from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from .store import EtcdStore

__all__ = ["SessionEvents"]


class SessionEvents:
    """Passes on what is heard: to the desk, then to those who wait and to the keeper."""

    __slots__ = ("_client", "_context", "_store", "closed", "unread")

    def __init__(self, client: TicketClient, store: EtcdStore, context: AdapterContext) -> None:
        self._client = client
        self._store = store
        self._context = context
        self.unread = False
        """It was just put under watch, perhaps again: what came before must be looked for."""
        self.closed = False
        """We end our sessions ourselves: that is no news."""

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
        """What came while nobody watched."""
        self.unread = False
        known = [session.id for session in self._client.open_sessions()]  # before we look at those that live
        ended, living = await self._store.news()
        for nonce in ended:
            self.ended(nonce)
        for lease in known:
            if lease not in living:
                self.session_over(lease)
