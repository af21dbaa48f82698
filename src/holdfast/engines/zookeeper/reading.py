"""Looking at names: what stands there, in which order, and being told of changes.

Reads that belong together are sent back to back: first the tickets, then the limit. So nobody judges itself
by a limit that was changed before it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ...protocols.tickets.payload import decode_settings, decode_ticket, decode_value
from ...protocols.tickets.store import EVERYTHING, Arm
from ...rules.record import StoredValue
from ...rules.tickets import LockConfig, LockView, Ticket, token_at
from ...runtime.clock import wall_seconds
from .link import Link
from .names import TURN, Paths, around, decode, kind_node, listed, settings_from
from .sessions import Sessions
from .wire import Delete, Exists, GetChildren2, GetData, Sync

__all__ = ["Reading", "is_over", "limited", "stand_of"]

AT_ONCE: Final = 500
"""So many requests are sent back to back at most."""


class Reading:
    """Of one client."""

    def __init__(self, sessions: Sessions, paths: Paths) -> None:
        self._sessions = sessions
        self._paths = paths

    async def _ask(self, link: Link, requests: list[Any]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), AT_ONCE):
            answers += await self._sessions.send(link, requests[start : start + AT_ONCE])
        return answers

    def requests(self, name: str, folder: str, kind: str) -> list[Any]:
        """What ``stand_of`` needs, where it is known what the name is."""
        if kind != "semaphore":
            return [GetChildren2(folder, None)]
        return [GetChildren2(folder, None), GetData(f"{self._paths.name(name)}/limit", None)]

    def up_to_date(self) -> Any:
        """Sent before a look, it makes sure that whatever the leader has agreed to by then is seen."""
        return Sync(self._paths.base)

    async def stand(self, link: Link, name: str) -> LockView:
        ((_, stand),) = await self._stands(link, [name])
        return stand

    async def names(self, link: Link, prefix: str) -> list[tuple[str, LockView]]:
        """All of them, in full."""
        _, read = await self._sessions.send(link, [self.up_to_date(), GetChildren2(self._paths.names, None)])
        children = [] if isinstance(read, NoNodeError) else read[0]
        names = [name for name in map(decode, children) if name.startswith(prefix)]
        stands = await self._stands(link, names)
        wanted = [ticket for _, stand in stands for ticket in stand.tickets]
        known = {ticket.handle.path: ticket for ticket in await self.filled(link, tuple(wanted))}
        return [
            (
                name,
                stand._replace(
                    tickets=tuple([known[t.handle.path] for t in stand.tickets if t.handle.path in known])
                ),
            )
            for name, stand in stands
        ]

    async def _stands(self, link: Link, names: list[str]) -> list[tuple[str, LockView]]:
        nodes = [GetChildren2(self._paths.name(name), None) for name in names]
        _, *below = await self._ask(link, [self.up_to_date(), *nodes])
        found: list[tuple[str, LockConfig | None]] = []
        requests: list[Any] = []
        for name, read in zip(names, below, strict=True):
            settings = None if isinstance(read, NoNodeError) else settings_from(read[0])
            found.append((name, settings))
            path = self._paths.name(name)
            node = "lock" if settings is None else kind_node(settings.kind, settings.declared)
            requests += [
                GetChildren2(f"{path}/{node}", None),
                GetData(f"{path}/limit", None),
                GetData(f"{path}/value", None),
            ]
        answers = await self._ask(link, requests)
        stands = []
        for index, (name, settings) in enumerate(found):
            children, limit, value = answers[3 * index : 3 * index + 3]
            stands.append((name, await self._stand(link, name, settings, children, limit, value)))
        return stands

    async def _stand(
        self, link: Link, name: str, settings: LockConfig | None, children: Any, limit: Any, value: Any
    ) -> LockView:
        stored = await self._value(link, name, value)
        if settings is None or isinstance(children, NoNodeError):
            return LockView(value=stored)
        folder = self._paths.kind(name, settings.kind, settings.declared)
        stand = stand_of(folder, settings.kind, settings.declared, [children, limit])
        return stand._replace(value=stored)

    async def _value(self, link: Link, name: str, read: Any) -> StoredValue | None:
        """One whose time is over is taken away by whoever sees it."""
        if isinstance(read, NoNodeError):
            return None
        if not is_over(read):
            return decode_value(read[0])
        await self._sessions.send(link, [Delete(f"{self._paths.name(name)}/value", read[1].version)])
        return None

    async def filled(self, link: Link, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """In full; those that are gone are left out."""
        missing = [ticket for ticket in tickets if not ticket.token]
        answers = await self._ask(link, [GetData(ticket.handle.path, None) for ticket in missing])
        read = {ticket.nonce: answer for ticket, answer in zip(missing, answers, strict=True)}
        known = [_filled(ticket, read.get(ticket.nonce)) for ticket in tickets]
        return tuple([ticket for ticket in known if ticket is not None])

    # --- being told

    async def armed(self, link: Link, op: Arm, look: list[Any]) -> list[Any]:
        """``look``: asked for in the same breath, so that the last answers tell how it stands then."""
        if op.watched == EVERYTHING:
            await self._watch_everything(link, op)
            return []
        watcher = self._sessions.watcher
        requests: list[Any] = [GetData(ticket.handle.path, watcher) for ticket in op.tickets]
        if op.watched.limit:
            requests.append(Exists(f"{self._paths.name(op.name)}/limit", watcher))
        self._sessions.watches.arm(op.nonce, [request.path for request in requests])
        return await self._ask(link, requests + look)

    async def _watch_everything(self, link: Link, op: Arm) -> None:
        """The name, what it is, its limit and its value."""
        path = self._paths.name(op.name)
        watches, watcher = self._sessions.watches, self._sessions.watcher
        watches.arm(op.nonce, [path])
        while True:
            (read,) = await self._sessions.send(link, [GetChildren2(path, watcher)])
            if not isinstance(read, NoNodeError):
                break
            (there,) = await self._sessions.send(link, [Exists(path, watcher)])
            if there is None:
                return
        beside: list[Any] = [Exists(f"{path}/{node}", watcher) for node in ("limit", "value")]
        settings = settings_from(read[0])
        if settings is not None:
            folder = f"{path}/{kind_node(settings.kind, settings.declared)}"
            beside.append(GetChildren2(folder, watcher))
        watches.add(op.nonce, [request.path for request in beside])
        await self._sessions.send(link, beside)


def stand_of(folder: str, kind: str, declared: int, read: list[Any], nonce: str = "") -> LockView:
    """From the children of what the name is, and of a semaphore its limit. ``nonce``: of a mutex, tell no
    more than matters to this attempt."""
    (children, stat), *limit = read
    standing = len(children)
    if nonce and kind == "lock":
        children = around(nonce, children)
    tickets = listed(folder, kind, children)
    settings = limited(kind, declared, stat, limit[0] if limit else None, tickets)
    newest = token_at(stat.mzxid) if stat.version else 0
    return LockView(settings, tickets, newest=newest, unlisted=standing - len(children))


def limited(kind: str, declared: int, stat: Any, read: Any, tickets: Iterable[Ticket]) -> LockConfig:
    """What a name is, with its limit if that was changed. Where the node of the kind was made anew, or the
    numbers began again, nobody is left of those who were seated."""
    if read is None or isinstance(read, NoNodeError):
        return LockConfig(kind, declared, declared)
    data, changed = read
    settings = decode_settings(data)
    seated = settings.seated if changed.mzxid > stat.czxid else 0
    if any(seated - ticket.place > TURN // 2 for ticket in tickets):
        seated = 0
    return LockConfig(kind, declared, settings.limit, seated)


def is_over(read: Any) -> bool:
    """Of a value that was read: it is to be forgotten."""
    return decode_value(read[0]).forget_at_us <= wall_seconds() * 1_000_000


def _filled(ticket: Ticket, read: Any) -> Ticket | None:
    if ticket.token:
        return ticket
    if isinstance(read, NoNodeError):
        return None
    data, stat = read
    return decode_ticket(
        data, ticket.place, token_at(stat.czxid), ticket.handle._replace(version=stat.version)
    )
