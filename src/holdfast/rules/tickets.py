"""Locks as an ordered list of tickets: which tickets hold the lock, and which ticket a waiter waits for.
Pure.

Engines that provide order and sessions themselves (etcd, ZooKeeper) need no record that is rewritten at every
step. Each attempt creates one ticket, and the order of the tickets decides. A ticket holds the lock when no
earlier ticket blocks it. Mutex, reader, writer and semaphore differ by ``admits`` alone, the same predicate
that the records use; here it is applied to all earlier tickets.

The engine assigns a ticket's order when it creates the ticket, and the order never changes. So a ticket that
holds the lock holds it until the ticket is removed, and nothing is written when a waiter's turn comes.
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
"""Tokens leave room after each ticket: for the read token of a downgraded writer, and for the token that
fences off a holder whose lock is broken. Both must be larger than the holder's token and smaller than those
of the tickets that already wait behind it."""


def token_at(order: int) -> int:
    """The token of a ticket, from the number that the engine assigned to its creation."""
    return order * TOKENS_PER_PLACE


class Ticket(NamedTuple):
    """One attempt at a name. Times for people are of the client's wall clock."""

    order: int
    """Smaller is earlier. 0: not created yet."""
    token: int
    """0: unknown, because an engine may list tickets without reading them."""
    nonce: str
    client: str
    """The client whose session the ticket is attached to; empty while it is handed over to another
    process."""
    owner: str
    """The holder, for people; the seal of the hand-over's secret while the ticket is handed over."""
    kind: str
    mode: str
    ttl: float
    since: float
    max_hold: float | None
    """Counted from ``since``; None: no bound."""
    metadata: Mapping[str, str]
    handle: Any = None
    """The engine's own: the key or node of the ticket, and its version."""
    session: Any = None
    """The engine's own name of the session that the ticket is attached to; None: unknown."""


class LockConfig(NamedTuple):
    """The kind and limits of a name. Stored beside the tickets, and kept when no ticket is left."""

    kind: str
    declared: int = 0
    limit: int = 0
    admitted_through: int = 0
    """Every ticket up to this order holds a permit, although the limit has been lowered since."""


class LockView(NamedTuple):
    """The state of a name, read at one moment."""

    config: LockConfig | None = None
    tickets: tuple[Ticket, ...] = ()
    """In order. Of a mutex an engine may return fewer: the first ticket, the ticket asked about, and the one
    right before it."""
    value: StoredValue | None = None
    newest_token: int = 0
    """The newest token of the name, also when its ticket no longer exists."""
    note: Tombstone | None = None
    """How the attempt asked about was ended from outside."""
    unlisted_count: int = 0
    """The number of tickets of a mutex that exist and were not returned."""


NOTHING: Final = LockView()


class Watched(NamedTuple):
    """The tickets whose removal changes a waiter's position."""

    nonces: tuple[str, ...]
    limit: bool = False
    """A change of the semaphore's limit does so, too."""
    turns: bool = False
    """So does a change of the ticket: a waiter that gets a permit rewrites its ticket to say so."""


def ordered(tickets: Sequence[Ticket]) -> tuple[Ticket, ...]:
    return tuple(sorted(tickets, key=lambda ticket: ticket.order))


def find(tickets: Sequence[Ticket], nonce: str) -> Ticket | None:
    for ticket in tickets:
        if ticket.nonce == nonce:
            return ticket
    return None


def blockers(tickets: Sequence[Ticket], me: Ticket, config: LockConfig) -> tuple[Ticket, ...]:
    """The earlier tickets that block ``me``; none: it holds the lock."""
    ahead = [ticket for ticket in tickets if ticket.order < me.order]
    admits = ADMITS[config.kind]
    if me.order <= config.admitted_through or admits([t.mode for t in ahead], me.mode, config.limit):
        return ()
    return tuple([t for t in ahead if not admits((t.mode,), me.mode, 1)])


def watched(tickets: Sequence[Ticket], me: Ticket, config: LockConfig) -> Watched:
    """The tickets whose removal ``me`` waits for, as few as possible. None: it holds the lock.

    The last blocking ticket is enough: it is removed after those before it, or waits for them. Only the first
    waiter of a semaphore watches several tickets, because any holder may release next. The waiter behind it
    becomes the first when that one gets its permit, and so watches for that change.
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
    """The tickets that hold the lock: always the first ones."""
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
    """The configuration of the name; if it is lost, what the existing tickets imply."""
    if view.config is not None or not view.tickets:
        return view.config
    return LockConfig(view.tickets[0].kind, 0, len(view.tickets), 0)


def record_of(view: LockView, now: float) -> Record:
    """The name as ``inspect`` shows it. Times are of the wall clock, for people."""
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
    remaining = ticket.ttl
    until = None
    if ticket.max_hold is not None:
        until = ticket.since + ticket.max_hold
        remaining = min(remaining, max(until - now, 0.0))
    return Holder(
        ticket.nonce,
        ticket.client,
        ticket.owner,
        ticket.mode,
        ticket.token,
        ticket.since,
        now + remaining,
        ticket.ttl,
        True,
        until,
        ticket.metadata,
    )


def _waiter(ticket: Ticket, now: float) -> Waiter:
    return Waiter(
        ticket.nonce, ticket.client, ticket.owner, ticket.mode, ticket.since, now + ticket.ttl, None
    )
