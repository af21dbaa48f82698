"""Reading names: their tickets in order, and watches for changes.

Reads that belong together are sent in one batch: first the tickets, then the limit. So no ticket is judged by
a limit that was changed before the ticket was created.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ...protocols.tickets.codec import decode_config, decode_ticket, decode_value
from ...protocols.tickets.store import EVERYTHING
from ...rules.record import StoredValue
from ...rules.tickets import LockConfig, LockView, Ticket, Watched, token_at
from ...runtime.clock import wall_seconds
from .codec import Delete, Exists, GetChildren2, GetData, Sync
from .keys import (
    SEQUENCE_MODULUS,
    Paths,
    config_from_children,
    decode,
    kind_node,
    nearest_children,
    tickets_from_children,
)
from .pool import SessionPool
from .session import Session

__all__ = ["QueueReader", "config_with_limit", "is_expired", "view_of"]

BATCH_MAX: Final = 500
"""At most this many requests are sent in one batch."""


class QueueReader:
    """The reads of one client."""

    def __init__(self, pool: SessionPool, paths: Paths) -> None:
        self._pool = pool
        self._paths = paths

    async def _ask(self, session: Session, requests: list[Any]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH_MAX):
            answers += await self._pool.send(session, requests[start : start + BATCH_MAX])
        return answers

    def requests(self, name: str, folder: str, kind: str) -> list[Any]:
        """What ``view_of`` needs, where the kind of the name is known."""
        if kind != "semaphore":
            return [GetChildren2(folder, None)]
        return [GetChildren2(folder, None), GetData(f"{self._paths.name(name)}/limit", None)]

    def sync_request(self) -> Any:
        """Sent before a read, it makes sure that the read sees everything committed so far."""
        return Sync(self._paths.base)

    async def view(self, session: Session, name: str) -> LockView:
        ((_, view),) = await self._views(session, [name])
        return view

    async def names(self, session: Session, prefix: str) -> list[tuple[str, LockView]]:
        """All names that begin with the prefix, in full."""
        _, read = await self._pool.send(session, [self.sync_request(), GetChildren2(self._paths.names, None)])
        children = [] if isinstance(read, NoNodeError) else read[0]
        names = [name for name in map(decode, children) if name.startswith(prefix)]
        views = await self._views(session, names)
        wanted = [ticket for _, view in views for ticket in view.tickets]
        known = {ticket.handle.path: ticket for ticket in await self.filled(session, tuple(wanted))}
        return [
            (
                name,
                view._replace(
                    tickets=tuple([known[t.handle.path] for t in view.tickets if t.handle.path in known])
                ),
            )
            for name, view in views
        ]

    async def _views(self, session: Session, names: list[str]) -> list[tuple[str, LockView]]:
        nodes = [GetChildren2(self._paths.name(name), None) for name in names]
        _, *below = await self._ask(session, [self.sync_request(), *nodes])
        found: list[tuple[str, LockConfig | None]] = []
        requests: list[Any] = []
        for name, read in zip(names, below, strict=True):
            config = None if isinstance(read, NoNodeError) else config_from_children(read[0])
            found.append((name, config))
            path = self._paths.name(name)
            node = "lock" if config is None else kind_node(config.kind, config.declared)
            requests += [
                GetChildren2(f"{path}/{node}", None),
                GetData(f"{path}/limit", None),
                GetData(f"{path}/value", None),
            ]
        answers = await self._ask(session, requests)
        views = []
        for index, (name, config) in enumerate(found):
            children, limit, value = answers[3 * index : 3 * index + 3]
            views.append((name, await self._view(session, name, config, children, limit, value)))
        return views

    async def _view(
        self, session: Session, name: str, config: LockConfig | None, children: Any, limit: Any, value: Any
    ) -> LockView:
        stored = await self._value(session, name, value)
        if config is None or isinstance(children, NoNodeError):
            return LockView(value=stored)
        folder = self._paths.kind(name, config.kind, config.declared)
        view = view_of(folder, config.kind, config.declared, [children, limit])
        return view._replace(value=stored)

    async def _value(self, session: Session, name: str, read: Any) -> StoredValue | None:
        """The value; an expired one is deleted by the client that reads it."""
        if isinstance(read, NoNodeError):
            return None
        if not is_expired(read):
            return decode_value(read[0])
        await self._pool.send(session, [Delete(f"{self._paths.name(name)}/value", read[1].version)])
        return None

    async def filled(self, session: Session, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """The tickets in full, without missing ones."""
        missing = [ticket for ticket in tickets if not ticket.token]
        answers = await self._ask(session, [GetData(ticket.handle.path, None) for ticket in missing])
        read = {ticket.nonce: answer for ticket, answer in zip(missing, answers, strict=True)}
        known = [_filled(ticket, read.get(ticket.nonce)) for ticket in tickets]
        return tuple([ticket for ticket in known if ticket is not None])

    # --- watches

    async def watch(
        self,
        session: Session,
        nonce: str,
        name: str,
        watched: Watched,
        tickets: tuple[Ticket, ...],
        look: list[Any],
    ) -> list[Any]:
        """``look``: requests sent in the same batch; the last answers are theirs."""
        if watched == EVERYTHING:
            await self._watch_everything(session, nonce, name)
            return []
        watcher = self._pool.watcher
        requests: list[Any] = [GetData(ticket.handle.path, watcher) for ticket in tickets]
        if watched.limit:
            requests.append(Exists(f"{self._paths.name(name)}/limit", watcher))
        self._pool.notifications.arm(nonce, [request.path for request in requests])
        return await self._ask(session, requests + look)

    async def _watch_everything(self, session: Session, nonce: str, name: str) -> None:
        """Watch the name, its kind, its limit and its value."""
        path = self._paths.name(name)
        notifications, watcher = self._pool.notifications, self._pool.watcher
        notifications.arm(nonce, [path])
        while True:
            (read,) = await self._pool.send(session, [GetChildren2(path, watcher)])
            if not isinstance(read, NoNodeError):
                break
            (there,) = await self._pool.send(session, [Exists(path, watcher)])
            if there is None:
                return
        beside: list[Any] = [Exists(f"{path}/{node}", watcher) for node in ("limit", "value")]
        config = config_from_children(read[0])
        if config is not None:
            folder = f"{path}/{kind_node(config.kind, config.declared)}"
            beside.append(GetChildren2(folder, watcher))
        notifications.add(nonce, [request.path for request in beside])
        await self._pool.send(session, beside)


def view_of(folder: str, kind: str, declared: int, read: list[Any], nonce: str = "") -> LockView:
    """The view, from the children of the kind's node, and of a semaphore its limit. ``nonce``: of a mutex,
    return only the tickets that matter to this attempt."""
    (children, stat), *limit = read
    standing = len(children)
    if nonce and kind == "lock":
        children = nearest_children(nonce, children)
    tickets = tickets_from_children(folder, kind, children)
    config = config_with_limit(kind, declared, stat, limit[0] if limit else None, tickets)
    newest_token = token_at(stat.mzxid) if stat.version else 0
    return LockView(config, tickets, newest_token=newest_token, unlisted_count=standing - len(children))


def config_with_limit(
    kind: str, declared: int, stat: Any, read: Any, tickets: Iterable[Ticket]
) -> LockConfig:
    """The configuration, with the limit if that was changed. Where the kind's node was created again, or the
    sequence numbers wrapped around, no ticket is left of those admitted before the change."""
    if read is None or isinstance(read, NoNodeError):
        return LockConfig(kind, declared, declared)
    data, changed = read
    config = decode_config(data)
    admitted_through = config.admitted_through if changed.mzxid > stat.czxid else 0
    if any(admitted_through - ticket.order > SEQUENCE_MODULUS // 2 for ticket in tickets):
        admitted_through = 0
    return LockConfig(kind, declared, config.limit, admitted_through)


def is_expired(read: Any) -> bool:
    """Whether the retention of a value that was read is over."""
    return decode_value(read[0]).forget_at_us <= wall_seconds() * 1_000_000


def _filled(ticket: Ticket, read: Any) -> Ticket | None:
    if ticket.token:
        return ticket
    if isinstance(read, NoNodeError):
        return None
    data, stat = read
    return decode_ticket(
        data, ticket.order, token_at(stat.czxid), ticket.handle._replace(version=stat.version)
    )
