"""Putting a ticket: behind whoever is there, or only if nobody is in the way.

Every ticket that is put writes to the node of what the name is. So the version of that node tells whether
somebody came since it was last seen; who left does not matter. One who only tries puts its ticket on the
condition that it is still the version at which nobody was in its way: a try that fails leaves no trace, and
keeps out nobody. Who finds the name as it was left, empty, need not even look.
"""

from __future__ import annotations

from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ...core.effects import NotApplied
from ...protocols.tickets.payload import encode_ticket
from ...protocols.tickets.store import Enter
from ...rules.tickets import LockConfig, LockView, Ticket, blockers, token_at
from .asking import failing
from .entries import Entries, Entry, Seen
from .names import Handle, Paths, in_order, place_of, ticket_node
from .reading import Reading, stand_of
from .sessions import Sessions
from .upkeep import Upkeep
from .wire import EPHEMERAL, SEQUENTIAL, Create, Multi, SetData

__all__ = ["Entering"]

ATTEMPTS: Final = 50
"""So often something is tried again that others changed in between."""

ANY_VERSION: Final = -1


class Entering:
    """Of one client."""

    def __init__(
        self, sessions: Sessions, paths: Paths, entries: Entries, reading: Reading, upkeep: Upkeep
    ) -> None:
        self._sessions = sessions
        self._paths = paths
        self._entries = entries
        self._reading = reading
        self._upkeep = upkeep
        self._send = sessions.send

    async def enter(self, op: Enter) -> LockView:
        declared = op.declared if op.settings is None else op.settings.declared
        ticket = op.ticket._replace(ttl=min(op.ticket.ttl, op.session.seconds))
        folder = self._paths.kind(op.name, ticket.kind, declared)
        entry = self._entries.begin(ticket.nonce, folder, op.session)
        stand: LockView | None = None
        if not op.alone:
            stand = await self._behind(op, entry, ticket, declared)
        else:
            left = self._entries.empty_at(folder)
            if left is not None:
                nobody = LockView(LockConfig(ticket.kind, declared, declared))
                stand = await self._beside(op.name, entry, ticket, left, nobody)
                if stand is None:
                    self._entries.wrong_guess(folder)
            if stand is None:
                stand = await self._if_nobody_is_in_the_way(op.name, entry, ticket, declared)
        if entry.ticket is None:
            self._entries.forget(ticket.nonce)
        return stand

    async def _behind(self, op: Enter, entry: Entry, ticket: Ticket, declared: int) -> LockView:
        """Put it, and see who is before it."""
        put = self._put(entry, ticket, ANY_VERSION)
        requests = [put, *self._reading.requests(op.name, entry.folder, ticket.kind)]
        first: list[Any] = []
        for attempt in range(ATTEMPTS):
            done, *seen = (await self._send(entry.link, first + requests))[len(first) :]
            if self._is_put(entry, ticket, done):
                stand = stand_of(entry.folder, ticket.kind, declared, seen, ticket.nonce)
                if len(stand.tickets) == 1:
                    entry.alone = Seen(done[1].czxid, done[1].version)
                return stand._replace(tickets=self._entries.known(stand.tickets))
            # It has no such node: perhaps there is no such name, which is made along with the next attempt.
            first = [self._upkeep.made_at_once(op.name, entry.folder)]
            if attempt and await self._upkeep.make_kind(entry.link, op.name, ticket.kind, declared):
                return await self._reading.stand(entry.link, op.name)  # it is something else
        raise NotApplied("the nodes of a name come and go too quickly")

    async def _if_nobody_is_in_the_way(
        self, name: str, entry: Entry, ticket: Ticket, declared: int
    ) -> LockView:
        for _ in range(ATTEMPTS):
            requests = self._reading.requests(name, entry.folder, ticket.kind)
            _, *read = await self._send(entry.link, [self._reading.up_to_date(), *requests])
            if isinstance(read[0], NoNodeError):
                if await self._upkeep.make_kind(entry.link, name, ticket.kind, declared):
                    return await self._reading.stand(entry.link, name)  # it is something else
                continue
            stat = read[0][1]
            seen = Seen(stat.czxid, stat.version)
            self._entries.seen(entry.folder, seen)
            stand = stand_of(entry.folder, ticket.kind, declared, read)
            stand = stand._replace(tickets=self._entries.known(stand.tickets))
            last = ticket._replace(place=stand.tickets[-1].place + 1 if stand.tickets else 1)
            if blockers(stand.tickets, last, stand.settings or LockConfig(ticket.kind)):
                return stand
            put = await self._beside(name, entry, ticket, seen, stand)
            if put is not None:
                return put
        raise NotApplied("others come and go too quickly")

    async def _beside(
        self, name: str, entry: Entry, ticket: Ticket, seen: Seen, stand: LockView
    ) -> LockView | None:
        """Put it beside those that were seen; None: somebody has come since."""
        (done,) = await self._send(entry.link, [self._put(entry, ticket, seen.version)])
        if not self._is_put(entry, ticket, done) or entry.ticket is None:
            return None
        stat = done[1]
        if stat.czxid != seen.made:
            # That node is another one: made since, and written to as often.
            declared = 0 if stand.settings is None else stand.settings.declared
            read = await self._send(entry.link, self._reading.requests(name, entry.folder, ticket.kind))
            stand = stand_of(entry.folder, ticket.kind, declared, read)
            return stand._replace(tickets=self._entries.known(stand.tickets))
        if not stand.tickets:
            entry.alone = Seen(stat.czxid, stat.version)
        return stand._replace(tickets=in_order([*stand.tickets, entry.ticket]), newest=entry.ticket.token)

    def _put(self, entry: Entry, ticket: Ticket, version: int) -> Multi:
        node = f"{entry.folder}/{ticket_node(ticket.mode, ticket.nonce, entry.link.session)}"
        return Multi(
            (
                self._sessions.alive(entry.link),
                SetData(entry.folder, b"", version),
                Create(node, encode_ticket(ticket), self._sessions.acl, EPHEMERAL | SEQUENTIAL),
            )
        )

    def _is_put(self, entry: Entry, ticket: Ticket, results: list[Any]) -> bool:
        wrong = failing(results)
        if wrong is not None:
            if wrong[0] == 0:
                raise self._sessions.no_session(entry.link)
            return False
        _, stat, path = results
        handle = Handle(path, entry.link.session)
        entry.ticket = ticket._replace(place=place_of(path), token=token_at(stat.mzxid), handle=handle)
        return True
