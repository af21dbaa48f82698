"""The ticket store on ZooKeeper. No I/O here: its coroutines await ``SendRequests`` and ``AwaitConnected``,
which ``threads`` and ``asyncio`` perform.

The servers process the requests of one session in the order of their sending, or not at all, over any number
of connections. So after a lost reply a read tells the outcome of the request: no copy arrives later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from kazoo.exceptions import NoNodeError

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from ...protocols.tickets.codec import encode_ticket
from ...protocols.tickets.store import KeptAlive, OpenedSession, Removed, SessionEndedError
from ...rules.record import StoredValue, Tombstone
from ...rules.requests import CellState
from ...rules.tickets import LockConfig, LockView, Ticket, Watched, find
from ...runtime.clock import boottime
from .acquisition import TicketCreation
from .cache import CachedTicket
from .codec import (
    EPHEMERAL,
    Create,
    Delete,
    Exists,
    GetChildren2,
    GetData,
    Multi,
    SetData,
)
from .config import Config
from .effects import failed_operation
from .keys import SEQUENCE_MODULUS, Handle, Paths, ticket_node, tickets_from_children
from .pool import SessionPool, append_notice
from .records import Cells, LockMetadata, QueueReader, view_of
from .session import Session

__all__ = ["CLOSE_SECONDS", "ZooKeeperStore"]

CLOSE_SECONDS: Final = 1.0
"""How long closing a client waits for its session to be closed; the session expires by itself."""

KEEP_ALIVE_TIMEOUT: Final = 1 / 6
"""A keep-alive without an answer within this part of the session is repeated over another connection."""

KEEP_ALIVE_TIMEOUT_SECONDS_MIN: Final = 0.5

TOO_OLD: Final = 0.8
"""Beyond this age, as a part of the session, too little of the session is left."""

ATTEMPTS: Final = 20
"""A change is tried at most this often when other clients changed the node in between."""

P = ParamSpec("P")
T = TypeVar("T")


def _through_any_session(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A method that depends on no session can be called again through the next one."""

    @functools.wraps(method)
    async def call(*arguments: P.args, **more: P.kwargs) -> T:
        try:
            return await method(*arguments, **more)
        except SessionEndedError:
            raise NotApplied("the session ended meanwhile") from None

    return call


class ZooKeeperStore:
    """One client's ``TicketStore``."""

    def __init__(self, config: Config, paths: Paths, context: AdapterContext, client: TicketClient) -> None:
        self.pool = SessionPool(config, paths, context, client)
        self._paths = paths
        self._send = self.pool.send
        self._cache = cache = self.pool.cache
        self._reader = reader = QueueReader(self.pool, paths)
        self._cells = Cells(self.pool, paths)
        self._metadata = metadata = LockMetadata(self.pool, paths)
        self._creation = TicketCreation(self.pool, paths, cache, reader, metadata)

    @property
    def source(self) -> str:
        """By when the prefix was created: zxids of different ensembles do not compare."""
        return f"zookeeper/{self.pool.origin}{self._paths.base}"

    # --- sessions -------------------------------------------------------------------------------

    async def open_session(self, seconds: float, generation: int) -> OpenedSession:
        session = await self.pool.registered_session(generation)
        self._not_too_old(session)
        return OpenedSession(session, session.seconds, fresh=True, age=session.clock.age(boottime()))

    async def keep_alive(
        self, sessions: tuple[Session, ...], tickets: tuple[tuple[str, Ticket], ...] = ()
    ) -> KeptAlive:
        """A write that changes nothing: the leader and a majority commit it, and no watch fires."""
        (session,) = sessions  # ZooKeeper sessions have one length
        checks = [Exists(ticket.handle.path, None) for _, ticket in tickets]
        timeout = min(
            self.pool.timeout, max(session.seconds * KEEP_ALIVE_TIMEOUT, KEEP_ALIVE_TIMEOUT_SECONDS_MIN)
        )
        now = boottime()
        try:
            confirmed, *seen = await self._send(session, [self.pool.sync_write(session), *checks], timeout)
        except SessionEndedError:
            return _not_kept(tickets)
        if failed_operation(confirmed) is not None:
            self.pool.session_ended(session)
            return _not_kept(tickets)
        for (_, ticket), stat in zip(tickets, seen, strict=True):
            if stat is None:
                self._cache.forget(ticket.nonce)
        self._not_too_old(session)
        there = tuple([stat is not None for stat in seen])
        return KeptAlive((True,), there, age=session.clock.age(now))

    @staticmethod
    def _not_too_old(session: Session) -> None:
        """Where no keep-alive counted for nearly the whole length of a session that still lives: open a new
        connection, which counts at once."""
        if session.clock.age(boottime()) > session.seconds * TOO_OLD:
            session.reconnect()
            raise NotApplied("no keep-alive for too long: another connection is opened")

    # --- tickets --------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        ticket: Ticket,
        session: Session,
        config: LockConfig | None,
        declared: int,
        alone: bool,
    ) -> LockView:
        if self._cache.get(ticket.nonce) is not None:
            # The ticket may exist already: then a reply was lost.
            view = await self._read_queue(name, ticket.nonce, ticket.kind, is_synced=True)
            if view.note is not None or find(view.tickets, ticket.nonce) is not None:
                return view
        known = declared if config is None else config.declared
        return await self._creation.create(name, ticket, session, known, alone)

    @_through_any_session
    async def create_together(
        self, wanted: tuple[tuple[str, Ticket, LockConfig | None], ...], session: Session
    ) -> tuple[LockView, ...] | None:
        return None

    async def read_queue(
        self, name: str, nonce: str = "", kind: str = "", order: int = 0, behind: Ticket | None = None
    ) -> LockView:
        return await self._read_queue(name, nonce, kind, behind)

    async def _read_queue(
        self, name: str, nonce: str, kind: str, behind: Ticket | None = None, is_synced: bool = False
    ) -> LockView:
        """``is_synced``: whatever this session has written before is seen."""
        session = await self.pool.registered_session()
        first = [self.pool.sync_write(session)] if is_synced else []
        view = await self._view(session, name, nonce, kind, behind, first)
        own = find(view.tickets, nonce) if nonce else None
        cached = self._cache.get(nonce)
        if own is not None or cached is None:
            return view
        return view._replace(note=await self.pool.note(cached.session, nonce))

    async def _view(
        self, session: Session, name: str, nonce: str, kind: str, behind: Ticket | None, first: list[Any]
    ) -> LockView:
        cached = self._cache.get(nonce)
        if cached is not None and cached.prefetched_view is not None:
            prefetched_view, cached.prefetched_view = cached.prefetched_view, None
            if kind and not first and self.pool.notifications.is_armed(nonce):
                return prefetched_view
        if behind is not None and cached is not None and cached.ticket is not None and not first:
            view = await self._view_if_both_exist(session, cached, cached.ticket, behind)
            if view is not None:
                return view
        folder = "" if cached is None else cached.folder
        if not folder and kind in ("lock", "rwlock"):
            folder = self._paths.kind(name, kind, 0)
        if folder and kind:
            requests = first + self._reader.requests(name, folder, kind)
            read = (await self._send(session, requests))[len(first) :]
            partial_view = self._view_from(folder, kind, read, nonce)
            if partial_view is not None:
                return partial_view
        view = await self._reader.view(session, name)
        return view._replace(tickets=self._cache.completed(view.tickets))

    async def _view_if_both_exist(
        self, session: Session, cached: CachedTicket, own: Ticket, behind: Ticket
    ) -> LockView | None:
        """Whether both tickets still exist: in a long queue that is far cheaper than listing it."""
        if cached.session is not session:
            return None
        there = await self._send(session, [Exists(ticket.handle.path, None) for ticket in (behind, own)])
        return None if None in there else LockView(LockConfig(own.kind), (behind, own))

    @_through_any_session
    async def read_tickets(self, name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        session = await self.pool.registered_session()
        return await self._reader.filled(session, tickets)

    async def remove(
        self, name: str, nonce: str, mode: str, order: int = 0, tombstone_session: Session | None = None
    ) -> Removed:
        """``tombstone_session`` needs nothing here: no copy of a request arrives later."""
        cached = self._cache.get(nonce)
        if cached is None:
            return Removed(False)
        try:
            if cached.session.give_up_expired(boottime()):
                raise SessionEndedError
            ticket = cached.ticket or await self._found(cached, nonce)
            if ticket is None or (order and (order - ticket.order) % SEQUENCE_MODULUS):
                removed = Removed(False, await self.pool.note(cached.session, nonce))
            else:
                removed = await self._delete(cached.session, ticket)
        except SessionEndedError:
            removed = Removed(False, cached.session.notices.get(nonce))
        self._cache.forget_removed(nonce)
        return removed

    async def _found(self, cached: CachedTicket, nonce: str) -> Ticket | None:
        """The ticket of an attempt that may have created one."""
        requests = [self.pool.sync_write(cached.session), GetChildren2(cached.folder, None)]
        _, read = await self._send(cached.session, requests)
        return (
            None
            if isinstance(read, NoNodeError)
            else find(tickets_from_children(cached.folder, "", read[0]), nonce)
        )

    async def _delete(self, session: Session, ticket: Ticket) -> Removed:
        (result,) = await self._send(session, [Delete(ticket.handle.path, -1)])
        if isinstance(result, NoNodeError):
            return Removed(False, await self.pool.note(session, ticket.nonce))
        return Removed(True)

    @_through_any_session
    async def evict(self, name: str, tickets: tuple[Ticket, ...], reason: str) -> tuple[str, ...]:
        """One by one: a ticket that has gone meanwhile is not among those returned."""
        session = await self.pool.registered_session()
        evicted: list[str] = []
        for ticket in tickets:
            try:
                if await self._evict_one(session, ticket, reason):
                    evicted.append(ticket.nonce)
            except (NotApplied, SessionEndedError) as refusal:
                raise (
                    OutcomeUnknown(f"some of them: {refusal}") if evicted else NotApplied(str(refusal))
                ) from None
        return tuple(evicted)

    async def _evict_one(self, session: Session, ticket: Ticket, reason: str) -> bool:
        """Delete the ticket and leave its client a notice, in one multi."""
        node = self._paths.session(ticket.handle.session)
        tombstone = Tombstone(ticket.nonce, "broken", reason, 0.0)
        for _ in range(ATTEMPTS):
            (read,) = await self._send(session, [GetData(node, None)])
            operations = [Delete(ticket.handle.path, -1)]
            if not isinstance(read, NoNodeError):
                data, stat = read
                operations.append(SetData(node, append_notice(data, tombstone), stat.version))
            (results,) = await self._send(session, [Multi(tuple(operations))])
            wrong = failed_operation(results)
            if wrong is None or wrong[0] == 0:
                return wrong is None
        raise OutcomeUnknown("other clients keep changing the session's notices")

    @_through_any_session
    async def read_note(self, nonce: str) -> Tombstone | None:
        cached = self._cache.get(nonce)
        self._cache.forget(nonce)
        return await self.pool.note(self.pool.session() if cached is None else cached.session, nonce)

    async def exchange(self, name: str, old: Ticket, new: Ticket, session: Session) -> None:
        folder = old.handle.path.rpartition("/")[0]
        cached = self._cache.add(new.nonce, folder, session)
        cached.ticket = await self._moved(session, old, new)

    async def _moved(self, session: Session, old: Ticket, new: Ticket) -> Ticket | None:
        """In one multi, delete the old node and create another with the same order and the token of
        ``new``."""
        folder = old.handle.path.rpartition("/")[0]
        path = f"{folder}/{ticket_node(new.mode, new.nonce, session.session_id, new.order)}"
        operations = (
            self.pool.check_session(session),
            Delete(old.handle.path, old.handle.version),
            Create(path, encode_ticket(new, new.token), self.pool.acl, EPHEMERAL),
        )
        (results,) = await self._send(session, [Multi(operations)])
        wrong = failed_operation(results)
        if wrong is not None:
            if wrong[0] == 0:
                raise self.pool.ended_error(session)
            return None
        return new._replace(handle=Handle(path, session.session_id))

    @_through_any_session
    async def detach(self, name: str, ticket: Ticket, seconds: float) -> bool:
        """Attach the ticket to a session of its own, which gets no keep-alives."""
        session = self.pool.extra_session(seconds)
        try:
            await self.pool.connected(session)
            folder, old = ticket.handle.path.rpartition("/")[0], ticket.handle
            node = ticket_node(ticket.mode, ticket.nonce, session.session_id, ticket.order)
            put = Create(f"{folder}/{node}", encode_ticket(ticket, ticket.token), self.pool.acl, EPHEMERAL)
            (results,) = await self._send(session, [Multi((Delete(old.path, old.version), put))])
        except SessionEndedError:
            raise NotApplied("the session for the ticket ended at once") from None
        finally:
            session.abandon()
            self.pool.discard(session)
        is_detached = failed_operation(results) is None
        if is_detached:
            self._cache.forget(ticket.nonce)
        return is_detached

    async def attach(self, name: str, ticket: Ticket, session: Session) -> Ticket | None:
        handle: Handle = ticket.handle
        taken: Ticket | None
        if handle.session == session.session_id:
            taken = await self._rewritten(session, ticket)
        else:
            taken = await self._moved(session, ticket, ticket)
        if taken is not None:
            self._cache.add(ticket.nonce, handle.path.rpartition("/")[0], session, taken)
        return taken

    async def _rewritten(self, session: Session, ticket: Ticket) -> Ticket | None:
        handle: Handle = ticket.handle
        payload = encode_ticket(ticket, ticket.token)
        (results,) = await self._send(
            session,
            [Multi((self.pool.check_session(session), SetData(handle.path, payload, handle.version)))],
        )
        wrong = failed_operation(results)
        if wrong is not None:
            if wrong[0] == 0:
                raise self.pool.ended_error(session)
            return None
        return ticket._replace(handle=handle._replace(version=results[1].version))

    # --- beside the tickets ---------------------------------------------------------------------

    @_through_any_session
    async def set_value(self, name: str, ticket: Ticket, value: StoredValue, retention: float) -> bool:
        session = await self.pool.registered_session()
        return await self._metadata.set_value(session, name, ticket, value)

    @_through_any_session
    async def read_cell(self, name: str) -> CellState:
        session = await self.pool.registered_session()
        return await self._cells.read(session, name)

    @_through_any_session
    async def swap_cell(self, name: str, expected: int, data: bytes) -> CellState:
        session = await self.pool.registered_session()
        return await self._cells.swap(session, name, expected, data)

    @_through_any_session
    async def set_config(self, name: str, seen: LockConfig | None, config: LockConfig) -> LockView | None:
        session = await self.pool.registered_session()
        return await self._metadata.set_config(session, name, seen, config)

    @_through_any_session
    async def list_names(self, prefix: str) -> list[tuple[str, LockView]]:
        session = await self.pool.registered_session()
        return await self._reader.names(session, prefix)

    @_through_any_session
    async def watch(self, nonce: str, name: str, watched: Watched, tickets: tuple[Ticket, ...] = ()) -> None:
        """The attempt reads the queue next, for the ticket before its own may have gone: read it along."""
        session = await self.pool.registered_session()
        cached = self._cache.get(nonce)
        if cached is None or cached.session is not session or not tickets:
            await self._reader.watch(session, nonce, name, watched, tickets, [])
            return
        kind = tickets[0].kind
        if kind == "lock" and cached.ticket is not None:
            await self._watch_behind(session, nonce, name, watched, tickets[0], cached, cached.ticket)
            return
        look = self._reader.requests(name, cached.folder, kind)
        read = (await self._reader.watch(session, nonce, name, watched, tickets, look))[-len(look) :]
        cached.prefetched_view = self._view_from(cached.folder, kind, read)

    async def _watch_behind(
        self,
        session: Session,
        nonce: str,
        name: str,
        watched: Watched,
        behind: Ticket,
        cached: CachedTicket,
        own: Ticket,
    ) -> None:
        """Of a mutex: if the ticket before ours exists when the watch is set, nothing has changed."""
        look = Exists(own.handle.path, None)
        before, there = await self._reader.watch(session, nonce, name, watched, (behind,), [look])
        if not isinstance(before, NoNodeError) and there is not None:
            cached.prefetched_view = LockView(LockConfig(own.kind), (behind, own))
            return
        read = await self._send(session, self._reader.requests(name, cached.folder, own.kind))
        cached.prefetched_view = self._view_from(cached.folder, own.kind, read, nonce)

    def _view_from(self, folder: str, kind: str, read: list[Any], nonce: str = "") -> LockView | None:
        if isinstance(read[0], NoNodeError):
            return None
        declared = int(folder.rpartition("-")[2]) if kind == "semaphore" else 0
        view = view_of(folder, kind, declared, read, nonce)
        return view._replace(tickets=self._cache.completed(view.tickets))


def _not_kept(tickets: tuple[tuple[str, Ticket], ...]) -> KeptAlive:
    return KeptAlive((False,), (False,) * len(tickets))
