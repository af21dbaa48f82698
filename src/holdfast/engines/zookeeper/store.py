"""The operations of the tickets family as requests of ZooKeeper. No I/O here: a transport sends them.

Requests of one session are carried out in the order in which they were sent, or not at all, over however
many connections. So when an answer was lost, a look tells what became of the request: no copy comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from ...protocols.tickets.codec import encode_ticket
from ...protocols.tickets.store import (
    Arm,
    Enter,
    Evict,
    Exchange,
    Fill,
    Keep,
    Kept,
    Lend,
    Look,
    Names,
    Open,
    Opened,
    ReadNote,
    Remove,
    Removed,
    SessionEndedError,
    SetLimit,
    SetValue,
    Take,
)
from ...rules.record import Tombstone
from ...rules.tickets import LockConfig, LockView, Ticket, find
from ...runtime.clock import boottime
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
from .creation import TicketCreation
from .keys import SEQUENCE_MODULUS, Handle, Paths, ticket_node, tickets_from_children
from .metadata import LockMetadata
from .pool import SessionPool, append_notice
from .queue_reader import QueueReader, view_of
from .rpc import failed_operation
from .session import Session
from .ticket_cache import CachedTicket

__all__ = ["ZooKeeperStore"]

PATIENCE: Final = 1 / 6
"""A sign of life that is not answered within this part of the session is tried over another connection."""

PATIENCE_SECONDS_MIN: Final = 0.5

TOO_OLD: Final = 0.8
"""What is left of a session that is older than this part of itself is not worth much."""

LEANING: Final = (Open, Keep, Enter, Remove, Exchange, Take)
"""These know what it means that the session is gone."""

ATTEMPTS: Final = 20
"""So often something is tried again that others changed in between."""

Work = Coroutine[Any, Any, Any]


class ZooKeeperStore:
    """What one client asks of ZooKeeper. Each operation is a script."""

    def __init__(self, options: Config, paths: Paths, hooks: AdapterContext, client: TicketClient) -> None:
        self.sessions = SessionPool(options, paths, hooks, client)
        self._paths = paths
        self._send = self.sessions.send
        self._cache = cache = self.sessions.cache
        self._reader = reader = QueueReader(self.sessions, paths)
        self._metadata = metadata = LockMetadata(self.sessions, paths)
        self._creation = TicketCreation(self.sessions, paths, cache, reader, metadata)
        self._scripts: dict[type, Callable[[Any], Work]] = {
            Open: self._open,
            Keep: self._keep,
            Enter: self._enter,
            Look: self._look,
            Fill: self._fill,
            Remove: self._remove,
            Evict: self._evict,
            ReadNote: self._read_note,
            Exchange: self._exchange,
            Lend: self._lend,
            Take: self._take,
            SetValue: self._set_value,
            SetLimit: self._set_limit,
            Names: self._names,
            Arm: self._arm,
        }

    @property
    def source(self) -> str:
        """By when the prefix was made: numbers of another ensemble do not compare."""
        return f"zookeeper/{self.sessions.origin}{self._paths.base}"

    def script(self, op: Any) -> Work:
        work = self._scripts[op.__class__](op)
        return work if op.__class__ in LEANING else self._apart(work)

    @staticmethod
    async def _apart(work: Work) -> Any:
        """What leans on no session can be asked again through the next one."""
        try:
            return await work
        except SessionEndedError:
            raise NotApplied("the session ended meanwhile") from None

    # --- sessions -------------------------------------------------------------------------------

    async def _open(self, op: Open) -> Opened:
        link = await self.sessions.opened(op.generation)
        self._not_too_old(link)
        return Opened(link, link.seconds, fresh=True, age=link.clock.age(boottime()))

    async def _keep(self, op: Keep) -> Kept:
        """A change that changes nothing: the leader and a majority agree on it, and no one is told."""
        (link,) = op.sessions  # there is one length of session here
        looks = [Exists(ticket.handle.path, None) for _, ticket in op.tickets]
        patience = min(self.sessions.timeout, max(link.seconds * PATIENCE, PATIENCE_SECONDS_MIN))
        now = boottime()
        try:
            heard, *seen = await self._send(link, [self.sessions.sync_write(link), *looks], patience)
        except SessionEndedError:
            return self._not_kept(op)
        if failed_operation(heard) is not None:
            self.sessions.session_ended(link)
            return self._not_kept(op)
        for (_, ticket), stat in zip(op.tickets, seen, strict=True):
            if stat is None:
                self._cache.forget(ticket.nonce)
        self._not_too_old(link)
        there = tuple([stat is not None for stat in seen])
        return Kept((True,), there, age=link.clock.age(now))

    @staticmethod
    def _not_too_old(link: Session) -> None:
        """Where nothing was heard for nearly as long as the session lasts, and it lives all the same: a new
        connection counts at once."""
        if link.clock.age(boottime()) > link.seconds * TOO_OLD:
            link.reconnect()
            raise NotApplied("nothing was sent for too long: another connection is made")

    @staticmethod
    def _not_kept(op: Keep) -> Kept:
        return Kept((False,), (False,) * len(op.tickets))

    # --- tickets --------------------------------------------------------------------------------

    async def _enter(self, op: Enter) -> LockView:
        if self._cache.get(op.ticket.nonce) is not None:
            # It may be there already: then an answer was lost.
            view = await self._look(Look(op.name, op.ticket.nonce, op.ticket.kind), sync_write=True)
            if view.note is not None or find(view.tickets, op.ticket.nonce) is not None:
                return view
        return await self._creation.enter(op)

    async def _look(self, op: Look, sync_write: bool = False) -> LockView:
        link = await self.sessions.opened()
        view = await self._looked(link, op, [self.sessions.sync_write(link)] if sync_write else [])
        mine = find(view.tickets, op.nonce) if op.nonce else None
        entry = self._cache.get(op.nonce)
        if mine is not None or entry is None:
            return view
        return view._replace(note=await self.sessions.note(entry.link, op.nonce))

    async def _looked(self, link: Session, op: Look, first: list[Any]) -> LockView:
        entry = self._cache.get(op.nonce)
        if entry is not None and entry.prefetched_view is not None:
            prefetched_view, entry.prefetched_view = entry.prefetched_view, None
            if op.kind and not first and self.sessions.notifications.is_armed(op.nonce):
                return prefetched_view
        if op.behind is not None and entry is not None and entry.ticket is not None and not first:
            view = await self._still_behind(link, entry, entry.ticket, op.behind)
            if view is not None:
                return view
        folder = "" if entry is None else entry.folder
        if not folder and op.kind in ("lock", "rwlock"):
            folder = self._paths.kind(op.name, op.kind, 0)
        if folder and op.kind:
            requests = first + self._reader.requests(op.name, folder, op.kind)
            read = (await self._send(link, requests))[len(first) :]
            stood = self._view_from(folder, op.kind, read, op.nonce)
            if stood is not None:
                return stood
        view = await self._reader.view(link, op.name)
        return view._replace(tickets=self._cache.known(view.tickets))

    async def _still_behind(
        self, link: Session, entry: CachedTicket, mine: Ticket, behind: Ticket
    ) -> LockView | None:
        """Whether both are still there: in a crowd that is far less than listing everybody."""
        if entry.link is not link:
            return None
        there = await self._send(link, [Exists(ticket.handle.path, None) for ticket in (behind, mine)])
        return None if None in there else LockView(LockConfig(mine.kind), (behind, mine))

    async def _fill(self, op: Fill) -> tuple[Ticket, ...]:
        link = await self.sessions.opened()
        return await self._reader.filled(link, op.tickets)

    async def _remove(self, op: Remove) -> Removed:
        entry = self._cache.get(op.nonce)
        if entry is None:
            return Removed(False)
        try:
            if entry.link.give_up_expired(boottime()):
                raise SessionEndedError
            ticket = entry.ticket or await self._found(entry, op.nonce)
            if ticket is None or (op.order and (op.order - ticket.order) % SEQUENCE_MODULUS):
                removed = Removed(False, await self.sessions.note(entry.link, op.nonce))
            else:
                removed = await self._delete(entry.link, ticket)
        except SessionEndedError:
            removed = Removed(False, entry.link.notices.get(op.nonce))
        self._cache.leave(op.nonce)
        return removed

    async def _found(self, entry: CachedTicket, nonce: str) -> Ticket | None:
        """A ticket that we may have put."""
        requests = [self.sessions.sync_write(entry.link), GetChildren2(entry.folder, None)]
        _, read = await self._send(entry.link, requests)
        return (
            None
            if isinstance(read, NoNodeError)
            else find(tickets_from_children(entry.folder, "", read[0]), nonce)
        )

    async def _delete(self, link: Session, ticket: Ticket) -> Removed:
        (result,) = await self._send(link, [Delete(ticket.handle.path, -1)])
        if isinstance(result, NoNodeError):
            return Removed(False, await self.sessions.note(link, ticket.nonce))
        return Removed(True)

    async def _evict(self, op: Evict) -> tuple[str, ...]:
        """One by one: whoever has gone meanwhile is not among them."""
        link = await self.sessions.opened()
        evicted: list[str] = []
        for ticket in op.tickets:
            try:
                if await self._evict_one(link, ticket, op.reason):
                    evicted.append(ticket.nonce)
            except (NotApplied, SessionEndedError) as refusal:
                raise (
                    OutcomeUnknown(f"some of them: {refusal}") if evicted else NotApplied(str(refusal))
                ) from None
        return tuple(evicted)

    async def _evict_one(self, link: Session, ticket: Ticket, reason: str) -> bool:
        """The ticket goes and its client has a letter, in one step."""
        node = self._paths.session(ticket.handle.session)
        said = Tombstone(ticket.nonce, "broken", reason, 0.0)
        for _ in range(ATTEMPTS):
            (read,) = await self._send(link, [GetData(node, None)])
            acts = [Delete(ticket.handle.path, -1)]
            if not isinstance(read, NoNodeError):
                data, stat = read
                acts.append(SetData(node, append_notice(data, said), stat.version))
            (results,) = await self._send(link, [Multi(tuple(acts))])
            wrong = failed_operation(results)
            if wrong is None or wrong[0] == 0:
                return wrong is None
        raise OutcomeUnknown("a session is told too many things at once")

    async def _read_note(self, op: ReadNote) -> Tombstone | None:
        entry = self._cache.get(op.nonce)
        self._cache.forget(op.nonce)
        return await self.sessions.note(self.sessions.link() if entry is None else entry.link, op.nonce)

    async def _exchange(self, op: Exchange) -> None:
        old, new, link = op.old, op.new, op.session
        folder = old.handle.path.rpartition("/")[0]
        entry = self._cache.begin(new.nonce, folder, link)
        entry.ticket = await self._moved(link, old, new)

    async def _moved(self, link: Session, old: Ticket, new: Ticket) -> Ticket | None:
        """In one step: the old node goes, another stands in its place, with the token that ``new`` has."""
        folder = old.handle.path.rpartition("/")[0]
        path = f"{folder}/{ticket_node(new.mode, new.nonce, link.session_id, new.order)}"
        acts = (
            self.sessions.check_session(link),
            Delete(old.handle.path, old.handle.version),
            Create(path, encode_ticket(new, new.token), self.sessions.acl, EPHEMERAL),
        )
        (results,) = await self._send(link, [Multi(acts)])
        wrong = failed_operation(results)
        if wrong is not None:
            if wrong[0] == 0:
                raise self.sessions.no_session(link)
            return None
        return new._replace(handle=Handle(path, link.session_id))

    async def _lend(self, op: Lend) -> bool:
        """A session of its own carries it, of which nobody gives a sign of life."""
        link = self.sessions.another(op.seconds)
        try:
            await self.sessions.connected(link)
            folder, old = op.ticket.handle.path.rpartition("/")[0], op.ticket.handle
            node = ticket_node(op.ticket.mode, op.ticket.nonce, link.session_id, op.ticket.order)
            put = Create(
                f"{folder}/{node}", encode_ticket(op.ticket, op.ticket.token), self.sessions.acl, EPHEMERAL
            )
            (results,) = await self._send(link, [Multi((Delete(old.path, old.version), put))])
        except SessionEndedError:
            raise NotApplied("the session that was to carry it ended at once") from None
        finally:
            link.abandon()
            self.sessions.done_with(link)
        lent = failed_operation(results) is None
        if lent:
            self._cache.forget(op.ticket.nonce)
        return lent

    async def _take(self, op: Take) -> Ticket | None:
        ticket, link = op.ticket, op.session
        handle: Handle = ticket.handle
        taken: Ticket | None
        if handle.session == link.session_id:
            taken = await self._rewritten(link, ticket)
        else:
            taken = await self._moved(link, ticket, ticket)
        if taken is not None:
            self._cache.begin(ticket.nonce, handle.path.rpartition("/")[0], link, taken)
        return taken

    async def _rewritten(self, link: Session, ticket: Ticket) -> Ticket | None:
        handle: Handle = ticket.handle
        payload = encode_ticket(ticket, ticket.token)
        (results,) = await self._send(
            link, [Multi((self.sessions.check_session(link), SetData(handle.path, payload, handle.version)))]
        )
        wrong = failed_operation(results)
        if wrong is not None:
            if wrong[0] == 0:
                raise self.sessions.no_session(link)
            return None
        return ticket._replace(handle=handle._replace(version=results[1].version))

    # --- beside the tickets ---------------------------------------------------------------------

    async def _set_value(self, op: SetValue) -> bool:
        link = await self.sessions.opened()
        return await self._metadata.set_value(link, op)

    async def _set_limit(self, op: SetLimit) -> LockView | None:
        link = await self.sessions.opened()
        return await self._metadata.set_limit(link, op)

    async def _names(self, op: Names) -> list[tuple[str, LockView]]:
        link = await self.sessions.opened()
        return await self._reader.names(link, op.prefix)

    async def _arm(self, op: Arm) -> None:
        """Whoever armed looks next, for what it waits for may have gone before: that is asked along."""
        link = await self.sessions.opened()
        entry = self._cache.get(op.nonce)
        if entry is None or entry.link is not link or not op.tickets:
            await self._reader.armed(link, op, [])
            return
        kind = op.tickets[0].kind
        if kind == "lock" and entry.ticket is not None:
            await self._arm_behind(link, op, entry, entry.ticket)
            return
        look = self._reader.requests(op.name, entry.folder, kind)
        read = (await self._reader.armed(link, op, look))[-len(look) :]
        entry.prefetched_view = self._view_from(entry.folder, kind, read)

    async def _arm_behind(self, link: Session, op: Arm, entry: CachedTicket, mine: Ticket) -> None:
        """Of a mutex: if the one before us is there when it is put under watch, all is as it was seen."""
        (behind,) = op.tickets
        look = Exists(mine.handle.path, None)
        watched, there = await self._reader.armed(link, op, [look])
        if not isinstance(watched, NoNodeError) and there is not None:
            entry.prefetched_view = LockView(LockConfig(mine.kind), (behind, mine))
            return
        read = await self._send(link, self._reader.requests(op.name, entry.folder, mine.kind))
        entry.prefetched_view = self._view_from(entry.folder, mine.kind, read, op.nonce)

    def _view_from(self, folder: str, kind: str, read: list[Any], nonce: str = "") -> LockView | None:
        if isinstance(read[0], NoNodeError):
            return None
        declared = int(folder.rpartition("-")[2]) if kind == "semaphore" else 0
        view = view_of(folder, kind, declared, read, nonce)
        return view._replace(tickets=self._cache.known(view.tickets))
