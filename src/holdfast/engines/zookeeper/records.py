"""What the server stores of a name: its tickets in order, its kind, its limit and its value; and cells.

Reads that belong together are sent in one batch: first the tickets, then the limit. So no ticket is judged by
a limit that was changed before the ticket was created.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ...core.effects import NotApplied, OutcomeUnknown
from ...protocols.tickets.codec import decode_config, decode_ticket, decode_value, encode_config, encode_value
from ...protocols.tickets.store import EVERYTHING
from ...rules.record import StoredValue
from ...rules.requests import CellState
from ...rules.tickets import LockConfig, LockView, Ticket, Watched, token_at
from ...runtime.clock import wall_seconds
from .codec import (
    EPHEMERAL,
    SEQUENTIAL,
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetChildren2,
    GetData,
    Multi,
    SetData,
    Sync,
)
from .effects import failed_operation
from .keys import (
    SEQUENCE_MODULUS,
    Paths,
    config_from_children,
    decode,
    kind_node,
    nearest_children,
    order_of,
    tickets_from_children,
)
from .pool import SessionPool
from .session import Session

__all__ = ["Cells", "LockMetadata", "QueueReader", "config_with_limit", "is_expired", "view_of"]

BATCH_MAX: Final = 500
"""At most this many requests are sent in one batch."""

ATTEMPTS: Final = 20
"""A change is tried at most this often when other clients changed the node in between."""

SWEEP_AFTER: Final = 100

MARK: Final = "m_"
"""The prefix of a node that only takes a sequence number among the tickets."""


class QueueReader:
    """The reads of one client: the tickets of a name in order, and watches for changes."""

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
        """Most names are locks, so what belongs to a lock is read at once with the kind of the name."""
        nodes: list[Any] = []
        for name in names:
            path = self._paths.name(name)
            nodes += [GetChildren2(path, None), GetChildren2(f"{path}/lock", None)]
            nodes += [GetData(f"{path}/limit", None), GetData(f"{path}/value", None)]
        _, *answers = await self._ask(session, [self.sync_request(), *nodes])
        read = {name: answers[4 * index : 4 * index + 4] for index, name in enumerate(names)}
        configs = {
            name: None if isinstance(below, NoNodeError) else config_from_children(below[0])
            for name, (below, *_) in read.items()
        }
        others = {name: config for name, config in configs.items() if config and config.kind != "lock"}
        nodes = []
        for name, config in others.items():
            path = self._paths.name(name)
            folder = f"{path}/{kind_node(config.kind, config.declared)}"
            nodes += [GetChildren2(folder, None), GetData(f"{path}/limit", None)]
        answers = await self._ask(session, nodes)
        for index, name in enumerate(others):
            read[name][1:3] = answers[2 * index : 2 * index + 2]
        return [(name, await self._view(session, name, configs[name], *read[name][1:])) for name in names]

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


class Cells:
    """Values that change by compare-and-swap: a node each, whose version is the number of its changes."""

    def __init__(self, pool: SessionPool, paths: Paths) -> None:
        self._pool = pool
        self._paths = paths

    async def read(self, session: Session, name: str) -> CellState:
        path = self._paths.cell(name)
        _, read = await self._pool.send(session, [Sync(path), GetData(path, None)])
        if isinstance(read, NoNodeError):
            return CellState(0, None)
        data, stat = read
        return CellState(stat.version + 1, data)

    async def swap(self, session: Session, name: str, expected: int, data: bytes) -> CellState:
        """The read is sent along: where the version was another one, it tells the cell as it is."""
        path = self._paths.cell(name)
        change = SetData(path, data, expected - 1) if expected else Create(path, data, self._pool.acl, 0)
        for _ in range(ATTEMPTS):
            changed, read = await self._pool.send(session, [change, GetData(path, None)])
            if not isinstance(changed, Exception):
                return CellState(expected + 1, None, True)
            if not isinstance(read, NoNodeError):
                return CellState(read[1].version + 1, read[0])
            if expected:
                return CellState(0, None)
            await self._pool.send(session, [self._pool.container(self._paths.cells)])
        raise NotApplied("the node above the cells comes and goes too quickly")


class LockMetadata:
    """The nodes beside the tickets, for one client: a name and its kind, its limit, its value."""

    def __init__(self, pool: SessionPool, paths: Paths) -> None:
        self._pool = pool
        self._paths = paths
        self._send = pool.send
        self._made = 0
        """Number of values created by this client."""

    def made_at_once(self, name: str, folder: str) -> Any:
        """Creates a name that does not exist yet."""
        container = self._pool.container
        return Multi((container(self._paths.name(name)), container(folder)))

    async def make_kind(self, session: Session, name: str, kind: str, declared: int) -> LockConfig | None:
        """Give the name its kind, unless it has another: then that is returned. Of two clients that set
        different kinds at once, both writing to the name's node, one finds it changed."""
        path, wanted = self._paths.name(name), kind_node(kind, declared)
        for _ in range(ATTEMPTS):
            (read,) = await self._send(session, [GetChildren2(path, None)])
            if isinstance(read, NoNodeError):
                (results,) = await self._send(session, [self.made_at_once(name, f"{path}/{wanted}")])
                wrong = failed_operation(results)
                if wrong is not None and isinstance(wrong[1], NoNodeError):
                    await self._pool.make_base(session)
                continue
            children, stat = read
            if wanted in children:
                return None
            config = config_from_children(children)
            if config is not None:
                return config
            make = Multi((SetData(path, b"", stat.version), self._pool.container(f"{path}/{wanted}")))
            await self._send(session, [make])
        raise NotApplied("the nodes of a name come and go too quickly")

    # --- the limit

    async def set_config(
        self, session: Session, name: str, expected: LockConfig | None, new: LockConfig
    ) -> LockView | None:
        """In one multi the limit is changed and a sequence number taken, which shows the tickets that came
        before the change."""
        path = self._paths.name(name)
        if expected is None and await self.make_kind(session, name, new.kind, new.declared) is not None:
            return None
        folder = f"{path}/{kind_node(new.kind, new.declared)}"
        present, limit = await self._send(
            session, [GetChildren2(folder, None), GetData(f"{path}/limit", None)]
        )
        if isinstance(present, NoNodeError):
            return None
        tickets = tickets_from_children(folder, new.kind, present[0])
        seen = config_with_limit(new.kind, new.declared, present[1], limit, tickets)
        if expected is not None and seen != expected:
            return None
        change = self._limit_change(
            f"{path}/limit", new, None if isinstance(limit, NoNodeError) else limit[1]
        )
        mark = Create(f"{folder}/{MARK}", b"", self._pool.acl, EPHEMERAL | SEQUENTIAL)
        results, after = await self._send(session, [Multi((change, mark)), GetChildren2(folder, None)])
        if failed_operation(results) is not None:
            return None
        marked = results[1]
        await self._send(session, [Delete(marked, -1)])
        tickets = tickets_from_children(folder, new.kind, [] if isinstance(after, NoNodeError) else after[0])
        before = tuple([ticket for ticket in tickets if ticket.order < order_of(marked)])
        return LockView(new, before)

    def _limit_change(self, path: str, new: LockConfig, stat: Any) -> Any:
        """``stat``: of the limit's node; None: there is none, because the limit is as declared."""
        if new.limit == new.declared and not new.admitted_through:
            return CheckVersion(path.rpartition("/")[0], -1) if stat is None else Delete(path, stat.version)
        data = encode_config(new)
        if stat is None:
            return Create(path, data, self._pool.acl, 0)
        return SetData(path, data, stat.version)

    # --- the value

    async def set_value(self, session: Session, name: str, ticket: Ticket, value: StoredValue) -> bool:
        """Change the value's node, or create it if there is none."""
        path, data = f"{self._paths.name(name)}/value", encode_value(value)
        held = CheckVersion(ticket.handle.path, -1)
        for _ in range(ATTEMPTS):
            changed, made = await self._send(
                session,
                [
                    Multi((held, SetData(path, data, -1))),
                    Multi((held, Create(path, data, self._pool.acl, 0))),
                ],
            )
            if failed_operation(changed) is None:
                return True
            wrong = failed_operation(made)
            if wrong is None:
                await self._sweep(session)
                return True
            if wrong[0] == 0:
                return False
        raise NotApplied("the value of a name comes and goes too quickly")

    async def _sweep(self, session: Session) -> None:
        """Expired values are deleted when a client reads them. For values that no client reads: after this
        many creations, twice as many names are read at random. So expired values never outnumber the
        others."""
        self._made += 1
        if self._made % SWEEP_AFTER:
            return
        with contextlib.suppress(NotApplied, OutcomeUnknown):
            (read,) = await self._send(session, [GetChildren2(self._paths.names, None)])
            nodes = [] if isinstance(read, NoNodeError) else read[0]
            chosen = random.sample(nodes, min(2 * SWEEP_AFTER, len(nodes)))
            paths = [f"{self._paths.names}/{node}/value" for node in chosen]
            values = await self._send(session, [GetData(path, None) for path in paths])
            over = [
                Delete(path, value[1].version)
                for path, value in zip(paths, values, strict=True)
                if not isinstance(value, NoNodeError) and is_expired(value)
            ]
            await self._send(session, over)
