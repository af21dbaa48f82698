"""Creating a ticket: at the end of the queue, or only if no ticket would block it.

Every creation also writes to the node of the kind. So the version of that node shows whether a ticket was
created since it was last read; removals do not matter. A try-lock creates its ticket on the condition that
the version is still the one at which no ticket blocked it: a failed try leaves no trace and blocks no one. If
the version is that at which this client left the name empty, no read is needed.
"""

from __future__ import annotations

from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ...core.effects import NotApplied
from ...protocols.tickets.codec import encode_ticket
from ...rules.tickets import LockConfig, LockView, Ticket, blockers, token_at
from .cache import CachedTicket, KindVersion, TicketCache
from .codec import EPHEMERAL, SEQUENTIAL, Create, Multi, SetData
from .effects import failed_operation
from .keys import Handle, Paths, in_order, order_of, ticket_node
from .pool import SessionPool
from .records import LockMetadata, QueueReader, view_of
from .session import Session

__all__ = ["TicketCreation"]

ATTEMPTS: Final = 50
"""So often something is tried again that others changed in between."""

ANY_VERSION: Final = -1


class TicketCreation:
    """The creation of tickets by one client."""

    def __init__(
        self,
        pool: SessionPool,
        paths: Paths,
        cache: TicketCache,
        reader: QueueReader,
        metadata: LockMetadata,
    ) -> None:
        self._pool = pool
        self._paths = paths
        self._cache = cache
        self._reader = reader
        self._metadata = metadata
        self._send = pool.send

    async def create(
        self, name: str, ticket: Ticket, session: Session, declared: int, alone: bool
    ) -> LockView:
        ticket = ticket._replace(ttl=min(ticket.ttl, session.seconds))
        folder = self._paths.kind(name, ticket.kind, declared)
        cached = self._cache.add(ticket.nonce, folder, session)
        view: LockView | None = None
        if not alone:
            view = await self._create_in_queue(name, cached, ticket, declared)
        else:
            left = self._cache.version_when_emptied(folder)
            if left is not None:
                empty = LockView(LockConfig(ticket.kind, declared, declared))
                view = await self._create_if_unchanged(name, cached, ticket, left, empty)
                if view is None:
                    self._cache.mark_shared(folder)
            if view is None:
                view = await self._create_if_unblocked(name, cached, ticket, declared)
        if cached.ticket is None:
            self._cache.forget(ticket.nonce)
        return view

    async def _create_in_queue(
        self, name: str, cached: CachedTicket, ticket: Ticket, declared: int
    ) -> LockView:
        """Create the ticket and read the tickets before it."""
        put = self._put(cached, ticket, ANY_VERSION)
        requests = [put, *self._reader.requests(name, cached.folder, ticket.kind)]
        first: list[Any] = []
        for attempt in range(ATTEMPTS):
            done, *seen = (await self._send(cached.session, first + requests))[len(first) :]
            if self._is_put(cached, ticket, done):
                view = view_of(cached.folder, ticket.kind, declared, seen, ticket.nonce)
                if len(view.tickets) == 1:
                    cached.alone = KindVersion(done[1].czxid, done[1].version)
                return view._replace(tickets=self._cache.completed(view.tickets))
            # The kind's node does not exist: create the name together with the next attempt.
            first = [self._metadata.made_at_once(name, cached.folder)]
            if attempt and await self._metadata.make_kind(cached.session, name, ticket.kind, declared):
                return await self._reader.view(cached.session, name)  # the name has another kind
        raise NotApplied("the nodes of a name come and go too quickly")

    async def _create_if_unblocked(
        self, name: str, cached: CachedTicket, ticket: Ticket, declared: int
    ) -> LockView:
        for _ in range(ATTEMPTS):
            requests = self._reader.requests(name, cached.folder, ticket.kind)
            _, *read = await self._send(cached.session, [self._reader.sync_request(), *requests])
            if isinstance(read[0], NoNodeError):
                if await self._metadata.make_kind(cached.session, name, ticket.kind, declared):
                    return await self._reader.view(cached.session, name)  # the name has another kind
                continue
            stat = read[0][1]
            seen = KindVersion(stat.czxid, stat.version)
            self._cache.kind_read(cached.folder, seen)
            view = view_of(cached.folder, ticket.kind, declared, read)
            view = view._replace(tickets=self._cache.completed(view.tickets))
            last = ticket._replace(order=view.tickets[-1].order + 1 if view.tickets else 1)
            if blockers(view.tickets, last, view.config or LockConfig(ticket.kind)):
                return view
            put = await self._create_if_unchanged(name, cached, ticket, seen, view)
            if put is not None:
                return put
        raise NotApplied("other tickets come and go too quickly")

    async def _create_if_unchanged(
        self, name: str, cached: CachedTicket, ticket: Ticket, seen: KindVersion, view: LockView
    ) -> LockView | None:
        """Create the ticket beside those that were read; None: another ticket was created since."""
        (done,) = await self._send(cached.session, [self._put(cached, ticket, seen.version)])
        if not self._is_put(cached, ticket, done) or cached.ticket is None:
            return None
        stat = done[1]
        if stat.czxid != seen.made:
            # The kind's node is a new one, created since and written equally often.
            declared = 0 if view.config is None else view.config.declared
            read = await self._send(cached.session, self._reader.requests(name, cached.folder, ticket.kind))
            view = view_of(cached.folder, ticket.kind, declared, read)
            return view._replace(tickets=self._cache.completed(view.tickets))
        if not view.tickets:
            cached.alone = KindVersion(stat.czxid, stat.version)
        return view._replace(
            tickets=in_order([*view.tickets, cached.ticket]), newest_token=cached.ticket.token
        )

    def _put(self, cached: CachedTicket, ticket: Ticket, version: int) -> Multi:
        node = f"{cached.folder}/{ticket_node(ticket.mode, ticket.nonce, cached.session.session_id)}"
        return Multi(
            (
                self._pool.check_session(cached.session),
                SetData(cached.folder, b"", version),
                Create(node, encode_ticket(ticket), self._pool.acl, EPHEMERAL | SEQUENTIAL),
            )
        )

    def _is_put(self, cached: CachedTicket, ticket: Ticket, results: list[Any]) -> bool:
        wrong = failed_operation(results)
        if wrong is not None:
            if wrong[0] == 0:
                raise self._pool.ended_error(cached.session)
            return False
        _, stat, path = results
        handle = Handle(path, cached.session.session_id)
        cached.ticket = ticket._replace(order=order_of(path), token=token_at(stat.mzxid), handle=handle)
        return True
