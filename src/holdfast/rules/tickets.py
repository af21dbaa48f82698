"""Locks as an ordered list of tickets: who holds, who waits, and for whom one waits. Pure.

Engines that keep order and sessions themselves (etcd, ZooKeeper) need no record that is rewritten at every
step: each attempt puts one ticket, and the order of the tickets decides. A ticket holds when none of those
before it keeps it from holding. Mutex, reader, writer and semaphore differ by ``admits`` alone, the same
predicate that the records use: asked here with everyone who came earlier.

Nobody comes in between: a ticket's place is given by the engine when it is put and never changes. So who
holds once holds until its ticket is gone, and nothing has to be written when a turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .record import Holder, Record, StoredValue, Tombstone, Waiter
from .transitions import ADMITS, SHARED_MODES

__all__ = [
    "NOTHING",
    "SHARED_MODES",
    "TOKENS_PER_PLACE",
    "LockConfig",
    "LockView",
    "Ticket",
    "Watched",
    "blockers",
    "find",
    "holding",
    "ordered",
    "record_of",
    "settings_of",
    "token_at",
    "waiting",
    "watched",
]

TOKENS_PER_PLACE: Final = 4
"""Tokens leave room after each place: for the reader that a writer turns into and for the number that fences
off a holder whose lock is broken. Both must be larger than the holder's token and smaller than those of the
tickets that wait behind it already."""


def token_at(order: int) -> int:
    """The token of a ticket, by the number that the engine's order gives to its creation."""
    return order * TOKENS_PER_PLACE


class Ticket(NamedTuple):
    """One attempt, in the order of a name. What is told for people is told by the client's wall clock."""

    place: int
    """Where it stands: smaller is earlier. 0: not put yet."""
    token: int
    """0: not known yet, for an engine may list tickets without reading them."""
    nonce: str
    client: str
    """Whose session carries it; empty while it is handed over from one process to another."""
    owner: str
    """The holder, for people; the seal of its secret while it is handed over."""
    kind: str
    mode: str
    ttl: float
    since: float
    lasts: float | None
    """The longest time it may be held (``max_hold``), counted from ``since``; None: no such bound."""
    metadata: Mapping[str, str]
    handle: Any = None
    """The engine's own: where it is kept, and in which version."""
    session: Any = None
    """What carries it, in the engine's own words; None: not told."""


class LockConfig(NamedTuple):
    """What a name is. Beside the tickets, and there when all of them are gone."""

    kind: str
    declared: int = 0
    limit: int = 0
    seated: int = 0
    """Everyone up to this place holds, although the limit has been lowered since."""


class LockView(NamedTuple):
    """A name as it stands, read at one moment."""

    settings: LockConfig | None = None
    tickets: tuple[Ticket, ...] = ()
    """In order. Of a mutex an engine may tell less: the first, the one that was asked about, and the one
    right before that."""
    value: StoredValue | None = None
    newest: int = 0
    """The newest token of the name, also when its ticket is gone."""
    note: Tombstone | None = None
    """How the attempt that was asked about was ended from outside."""
    unlisted: int = 0
    """So many tickets more stand there, of a mutex of which less was told."""


NOTHING: Final = LockView()


class Watched(NamedTuple):
    """Whose end changes where one stands."""

    nonces: tuple[str, ...]
    limit: bool = False
    """A change of the semaphore's limit does, too."""
    turns: bool = False
    """And so does a change of the ticket: whoever had to wait for a permit tells so that it got one."""


def ordered(tickets: Sequence[Ticket]) -> tuple[Ticket, ...]:
    return tuple(sorted(tickets, key=lambda ticket: ticket.place))


def find(tickets: Sequence[Ticket], nonce: str) -> Ticket | None:
    for ticket in tickets:
        if ticket.nonce == nonce:
            return ticket
    return None


def blockers(tickets: Sequence[Ticket], me: Ticket, settings: LockConfig) -> tuple[Ticket, ...]:
    """Those before me that keep me from holding; nobody: I hold."""
    ahead = [ticket for ticket in tickets if ticket.place < me.place]
    admits = ADMITS[settings.kind]
    if me.place <= settings.seated or admits([t.mode for t in ahead], me.mode, settings.limit):
        return ()
    return tuple([t for t in ahead if not admits((t.mode,), me.mode, 1)])


def watched(tickets: Sequence[Ticket], me: Ticket, settings: LockConfig) -> Watched:
    """Whose end to wait for: never the crowd's. Nobody: I hold.

    The last of those who block me: it leaves after, or it waits for, those before it. Only the first who
    waits for a semaphore waits for several: any holder may be the next to leave. Who is behind it becomes
    the first when it gets its permit, and must hear of that.
    """
    blocking = blockers(tickets, me, settings)
    if not blocking:
        return Watched(())
    if settings.kind != "semaphore":
        return Watched((blocking[-1].nonce,))
    if blockers(tickets, blocking[-1], settings):
        return Watched((blocking[-1].nonce,), turns=True)
    return Watched(tuple([ticket.nonce for ticket in blocking]), limit=True)


def holding(stand: LockView) -> tuple[Ticket, ...]:
    """Those who hold: always the first few."""
    settings = settings_of(stand)
    if settings is None:
        return ()
    admits = ADMITS[settings.kind]
    modes: list[str] = []
    for ticket in stand.tickets:
        if ticket.place > settings.seated and not admits(modes, ticket.mode, settings.limit):
            break
        modes.append(ticket.mode)
    return stand.tickets[: len(modes)]


def waiting(stand: LockView) -> tuple[Ticket, ...]:
    return stand.tickets[len(holding(stand)) :]


def settings_of(stand: LockView) -> LockConfig | None:
    """What the name is; should its settings be lost, what those are who stand there."""
    if stand.settings is not None or not stand.tickets:
        return stand.settings
    return LockConfig(stand.tickets[0].kind, 0, len(stand.tickets), 0)


def record_of(stand: LockView, now: float) -> Record:
    """The name as those see it who inspect it. Times are of the wall clock, for people."""
    settings = settings_of(stand)
    holders = tuple([_holder(ticket, now) for ticket in holding(stand)])
    value = stand.value
    if value is not None and value.forget_at_us <= now * 1_000_000:
        value = None
    return Record(
        kind=None if settings is None else settings.kind,
        token=max([holder.token for holder in holders], default=stand.newest),
        holders=holders,
        queue=tuple([_waiter(ticket, now) for ticket in stand.tickets[len(holders) :]]),
        limit=0 if settings is None else settings.limit,
        declared=0 if settings is None else settings.declared,
        value=value,
    )


def _holder(ticket: Ticket, now: float) -> Holder:
    lasts = ticket.ttl
    until = None
    if ticket.lasts is not None:
        until = ticket.since + ticket.lasts
        lasts = min(lasts, max(until - now, 0.0))
    return Holder(
        ticket.nonce,
        ticket.client,
        ticket.owner,
        ticket.mode,
        ticket.token,
        ticket.since,
        now + lasts,
        ticket.ttl,
        True,
        until,
        ticket.metadata,
    )


def _waiter(ticket: Ticket, now: float) -> Waiter:
    return Waiter(
        ticket.nonce, ticket.client, ticket.owner, ticket.mode, ticket.since, now + ticket.ttl, None
    )
