"""``TicketStore``: the ordered store with sessions that an engine of the tickets family provides.

The protocol awaits these methods directly. An engine implements them as coroutines that await nothing but its
own I/O; the simulator implements them over a simulated network. Each method may raise ``NotApplied`` (nothing
happened), ``OutcomeUnknown``, ``EngineUnavailable`` or ``Unsupported``. A method that depends on a session
raises ``SessionEndedError`` if that session has ended; then nothing happened.

Every method can be called again after an unknown outcome: a ticket is recognised by its nonce.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ...rules.record import StoredValue, Tombstone
from ...rules.requests import CellState
from ...rules.tickets import LockConfig, LockView, Ticket, Watched

__all__ = [
    "EVERYTHING",
    "KeptAlive",
    "OpenedSession",
    "Removed",
    "SessionEndedError",
    "SessionId",
    "TicketStore",
]

SessionId = Any
"""The engine's own name for a session."""

EVERYTHING = Watched(("*",), True)
"""Every change of the name."""


class SessionEndedError(Exception):
    """The session has ended, and with it every ticket attached to it. Nothing happened."""


class OpenedSession(NamedTuple):
    id: SessionId
    seconds: float
    """How long the session lives without a keep-alive."""
    fresh: bool
    """This request opened the session. Otherwise the session existed, and its age is unknown."""
    age: float = 0.0
    """Of a fresh session: its life counts from this many seconds before the request was sent."""


class KeptAlive(NamedTuple):
    alive: tuple[bool, ...]
    """For each session: it lives, for its full length from the sending of the request."""
    there: tuple[bool, ...]
    """For each ticket: it still exists."""
    age: float = 0.0
    """The keep-alive counts from this many seconds before the request was sent: an engine may not yet know
    that this very keep-alive has reached every server that decides about the session."""


class Removed(NamedTuple):
    found: bool
    note: Tombstone | None = None
    """If the ticket was not found: how the attempt was ended from outside."""


class TicketStore(Protocol):
    """One client's view of the store."""

    # --- sessions

    async def open_session(self, seconds: float, generation: int) -> OpenedSession:
        """Open the client's session of this length, the ``generation``-th; it may be open already."""
        ...

    async def keep_alive(
        self, sessions: tuple[SessionId, ...], tickets: tuple[tuple[str, Ticket], ...] = ()
    ) -> KeptAlive:
        """Keep these sessions alive, then check whether these few tickets (with their names) exist."""
        ...

    # --- tickets

    async def create(
        self,
        name: str,
        ticket: Ticket,
        session: SessionId,
        config: LockConfig | None,
        declared: int,
        alone: bool,
    ) -> LockView:
        """Create the ticket at the end of the queue, and return the name as it is after that same step.

        The ticket is created only if it does not exist yet, if the attempt was not ended (``remove`` with
        ``tombstone_session``, or ``evict``), and if the name has the kind and the declared limit that
        ``config`` says. None: the name has no kind; then it gets the ticket's kind, with ``declared`` as its
        limit. ``alone``: only if no ticket would be in its way; an engine that cannot tell in advance creates
        it all the same. The tickets returned show whether it was created.
        """
        ...

    async def create_together(
        self, wanted: tuple[tuple[str, Ticket, LockConfig | None], ...], session: SessionId
    ) -> tuple[LockView, ...] | None:
        """Create tickets of mutexes at several names in one step: each as ``create`` does alone, and all of
        them or none. Returns each name as it is after that step; None: an engine that cannot did nothing."""
        ...

    async def read_queue(
        self, name: str, nonce: str = "", kind: str = "", order: int = 0, behind: Ticket | None = None
    ) -> LockView:
        """Read the name. ``nonce``: the attempt that asks; its note is wanted too.

        ``kind`` "lock": the first ticket, that of the nonce (its last known order is ``order``) and the one
        right before it are enough. Otherwise every ticket is wanted.

        ``behind``: of a mutex, the ticket that this attempt waits for. If it still exists, it and the
        attempt's own are enough: a waiter in a long queue need not have the queue read.
        """
        ...

    async def read_tickets(self, name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """Read these tickets in full, where the engine lists them by name alone, without missing ones."""
        ...

    async def remove(
        self, name: str, nonce: str, mode: str, order: int = 0, tombstone_session: SessionId | None = None
    ) -> Removed:
        """Remove the ticket of this attempt. ``order``: only the ticket with this order, for the attempt may
        create another. ``tombstone_session``: the attempt is over; a late copy of its ``create`` is refused
        for as long as this session lives."""
        ...

    async def evict(self, name: str, tickets: tuple[Ticket, ...], reason: str) -> tuple[str, ...]:
        """Remove tickets of other clients and leave each client a note. Returns the nonces of the tickets
        that still existed. Each client is notified at once (``TicketClient.suspect``, then a wake-up)."""
        ...

    async def read_note(self, nonce: str) -> Tombstone | None:
        """How an attempt of this client was ended from outside, if it was."""
        ...

    async def exchange(self, name: str, old: Ticket, new: Ticket, session: SessionId) -> None:
        """In one step, remove the old ticket and create the new one in its place, with the token it has here.
        Nothing happens if the old ticket is missing or the new attempt was ended: ``read_queue`` tells."""
        ...

    async def detach(self, name: str, ticket: Ticket, seconds: float) -> bool:
        """Let the ticket live for this many seconds without a session, with this content, if it is unchanged
        since it was read. False: it is missing or changed."""
        ...

    async def attach(self, name: str, ticket: Ticket, session: SessionId) -> Ticket | None:
        """Attach the ticket to this session, with this content, if it is unchanged since it was read. Its
        order and token stay. None: it is missing or changed. (An engine that cannot move a ticket from one
        session to another removes the ticket: its session has ended.)"""
        ...

    # --- beside the tickets

    async def set_value(self, name: str, ticket: Ticket, value: StoredValue, retention: float) -> bool:
        """Store the value of the name if the ticket still exists."""
        ...

    async def read_cell(self, name: str) -> CellState:
        """A linearizable read of the cell of this name, which is apart from its tickets and its value."""
        ...

    async def swap_cell(self, name: str, expected: int, data: bytes) -> CellState:
        """Store the data if the cell's version is still the expected one. 0: the cell was never set."""
        ...

    async def set_config(self, name: str, seen: LockConfig | None, config: LockConfig) -> LockView | None:
        """Store this configuration of a semaphore if the stored one is still ``seen`` (None: there was none),
        and return the name as it is after that same step. None: the configuration has changed."""
        ...

    async def list_names(self, prefix: str) -> list[tuple[str, LockView]]:
        """All names that begin with a prefix, in full. At least those in use."""
        ...

    async def watch(self, nonce: str, name: str, watched: Watched, tickets: tuple[Ticket, ...] = ()) -> None:
        """Wake this nonce when a watched ticket goes (``turns``: or changes; ``limit``: or the limit changes;
        ``EVERYTHING``: at any change of the name), until another ``watch`` or the driver's ``unlisten``.
        ``tickets``: those of ``watched``.

        Returns when the engine has confirmed the watch: what happens afterwards is not missed. If the engine
        loses a watch, it watches again and then wakes the nonce once."""
        ...
