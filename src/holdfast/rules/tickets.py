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
    "config_of",
    "find",
    "holders_of",
    "ordered",
    "record_of",
    "token_at",
    "waiters_of",
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

    order: int
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
    admitted_through: int = 0
    """Everyone up to this place holds, although the limit has been lowered since."""


class LockView(NamedTuple):
    """A name as it stands, read at one moment."""

    config: LockConfig | None = None
    tickets: tuple[Ticket, ...] = ()
    """In order. Of a mutex an engine may tell less: the first, the one that was asked about, and the one
    right before that."""
    value: StoredValue | None = None
    newest_token: int = 0
    """The newest token of the name, also when its ticket is gone."""
    note: Tombstone | None = None
    """How the attempt that was asked about was ended from outside."""
    unlisted_count: int = 0
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
    return tuple(sorted(tickets, key=lambda ticket: ticket.order))


def find(tickets: Sequence[Ticket], nonce: str) -> Ticket | None:
    for ticket in tickets:
        if ticket.nonce == nonce:
            return ticket
    return None


def blockers(tickets: Sequence[Ticket], me: Ticket, config: LockConfig) -> tuple[Ticket, ...]:
    """Those before me that keep me from holding; nobody: I hold."""
    ahead = [ticket for ticket in tickets if ticket.order < me.order]
    admits = ADMITS[config.kind]
    if me.order <= config.admitted_through or admits([t.mode for t in ahead], me.mode, config.limit):
        return ()
    return tuple([t for t in ahead if not admits((t.mode,), me.mode, 1)])


def watched(tickets: Sequence[Ticket], me: Ticket, config: LockConfig) -> Watched:
    """Whose end to wait for: never the crowd's. Nobody: I hold.

    The last of those who block me: it leaves after, or it waits for, those before it. Only the first who
    waits for a semaphore waits for several: any holder may be the next to leave. Who is behind it becomes
    the first when it gets its permit, and must hear of that.
    """
    blocking = blockers(tickets, me, config)
    if not blocking:
        return Watched(())
    if config.kind != "semaphore":
        return Watched((blocking[-1].nonce,))
    if blockers(tickets, blocking[-1], config):
        return Watched((blocking[-1].nonce,), turns=True)
    return Watched(tuple([ticket.nonce for ticket in blocking]), limit=True)


def holders_of(view: LockView) -> tuple[Ticket, ...]:
    """Those who hold: always the first few."""
    config = config_of(view)
    if config is None:
        return ()
    admits = ADMITS[config.kind]
    modes: list[str] = []
    for ticket in view.tickets:
        if ticket.order > config.admitted_through and not admits(modes, ticket.mode, config.limit):
            break
        modes.append(ticket.mode)
    return view.tickets[: len(modes)]


def waiters_of(view: LockView) -> tuple[Ticket, ...]:
    return view.tickets[len(holders_of(view)) :]


def config_of(view: LockView) -> LockConfig | None:
    """What the name is; should its settings be lost, what those are who stand there."""
    if view.config is not None or not view.tickets:
        return view.config
    return LockConfig(view.tickets[0].kind, 0, len(view.tickets), 0)


def record_of(view: LockView, now: float) -> Record:
    """The name as those see it who inspect it. Times are of the wall clock, for people."""
    config = config_of(view)
    holders = tuple([_holder(ticket, now) for ticket in holders_of(view)])
    value = view.value
    if value is not None and value.forget_at_us <= now * 1_000_000:
        value = None
    return Record(
        kind=None if config is None else config.kind,
        token=max([holder.token for holder in holders], default=view.newest_token),
        holders=holders,
        queue=tuple([_waiter(ticket, now) for ticket in view.tickets[len(holders) :]]),
        limit=0 if config is None else config.limit,
        declared=0 if config is None else config.declared,
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
