"""The nodes beside the tickets: the name and its kind, its limit, its value; and cells."""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ...core.effects import NotApplied, OutcomeUnknown
from ...protocols.tickets.codec import encode_config, encode_value
from ...rules.record import StoredValue
from ...rules.requests import CellState
from ...rules.tickets import LockConfig, LockView, Ticket
from .codec import (
    EPHEMERAL,
    SEQUENTIAL,
    CheckVersion,
    Create,
    Delete,
    GetChildren2,
    GetData,
    Multi,
    SetData,
    Sync,
)
from .keys import Paths, config_from_children, kind_node, order_of, tickets_from_children
from .pool import SessionPool
from .queue_reader import config_with_limit, is_expired
from .rpc import failed_operation
from .session import Session

__all__ = ["Cells", "LockMetadata"]

ATTEMPTS: Final = 20
"""A change is tried at most this often when other clients changed the node in between."""

SWEEP_AFTER: Final = 100

MARK: Final = "m_"
"""The prefix of a node that only takes a sequence number among the tickets."""


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
    """The metadata of names, for one client."""

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
