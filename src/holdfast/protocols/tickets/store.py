"""What the tickets family asks of an engine: a store that keeps order and sessions.

Like the operations of ``core.ops`` these are values that a script awaits; an engine performs them. Each may
raise ``Refused`` (nothing happened), ``Unknown`` (it may have happened), ``EngineUnavailable`` or
``Unsupported``; those that lean on a session raise ``NoSession`` if it is gone (then nothing happened).

Every one of them can be asked again after an unknown outcome: a ticket is recognised by its nonce.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from ...rules.record import StoredValue, Tombstone
from ...rules.tickets import LockConfig, LockView, Ticket, Watched

__all__ = [
    "EVERYTHING",
    "Arm",
    "Enter",
    "Evict",
    "Exchange",
    "Fill",
    "Keep",
    "Kept",
    "Lend",
    "Look",
    "Names",
    "Open",
    "Opened",
    "ReadNote",
    "Remove",
    "Removed",
    "Retire",
    "SessionEndedError",
    "SessionId",
    "SetLimit",
    "SetValue",
    "StoreOp",
    "Take",
    "Wall",
]

SessionId = Any
"""The engine's own name for a session."""

EVERYTHING = Watched(("*",), True)
"""Every change of the name."""


class SessionEndedError(Exception):
    """The session is gone, and with it every ticket that it carried. Nothing happened."""


# --- sessions -----------------------------------------------------------------------------------


class Opened(NamedTuple):
    id: SessionId
    seconds: float
    """How long it lives without a sign of life."""
    fresh: bool
    """It was opened by this very request; else it was there, and nobody can tell since when."""
    age: float = 0.0
    """If it is fresh: its life counts from so many seconds before the sending of the request."""


class Open(NamedTuple):
    """Open the client's session of this length, the ``generation``-th; it may be open already."""

    seconds: float
    generation: int

    def __await__(self) -> Generator[Open, Opened, Opened]:
        return (yield self)


class Kept(NamedTuple):
    alive: tuple[bool, ...]
    """For each session: it lives, and as long from the sending of the request as it always does."""
    there: tuple[bool, ...]
    """For each ticket: it is still there."""
    age: float = 0.0
    """The sign of life counts from so many seconds before the sending of the request: an engine may not
    be sure yet that this very one was heard by all who have to hear it."""


class Keep(NamedTuple):
    """One sign of life for each of these sessions; and look at these few tickets, after it was heard."""

    sessions: tuple[SessionId, ...]
    tickets: tuple[tuple[str, Ticket], ...] = ()
    """With their names."""

    def __await__(self) -> Generator[Keep, Kept, Kept]:
        return (yield self)


class Retire(NamedTuple):
    """End these sessions, and everything that they carry."""

    sessions: tuple[SessionId, ...]

    def __await__(self) -> Generator[Retire, None, None]:
        return (yield self)


# --- tickets ------------------------------------------------------------------------------------


class Enter(NamedTuple):
    """Put the ticket at the end, and tell in the same step how the name stands then.

    The ticket is put only if it is not there yet, if the attempt was not ended (``Remove`` with ``bury``, or
    ``Evict``), and if the name is of the kind, and as declared, that ``settings`` say (None: it has none;
    then the ticket's kind, with ``declared`` as its limit, becomes what it is). ``alone``: only if nobody is
    there who would be in its way; an engine that cannot tell in advance puts it all the same. Whether it was
    put is seen from the tickets.
    """

    name: str
    ticket: Ticket
    session: SessionId
    config: LockConfig | None
    declared: int
    alone: bool

    def __await__(self) -> Generator[Enter, LockView, LockView]:
        return (yield self)


class Look(NamedTuple):
    """How does the name stand? ``nonce``: asked about this attempt; its note is wanted too.

    ``kind`` "lock": of the tickets it is enough to tell the first, that of the nonce (which stood at
    ``place`` when last seen), and the one right before it. Otherwise everything is wanted.

    ``behind``: of a mutex, the ticket that we wait for. If it is still there, it and ours are enough: whoever
    waits in a crowd need not have all of it counted.
    """

    name: str
    nonce: str = ""
    kind: str = ""
    order: int = 0
    behind: Ticket | None = None

    def __await__(self) -> Generator[Look, LockView, LockView]:
        return (yield self)


class Fill(NamedTuple):
    """Read these tickets in full: for engines that list them by their names alone. Gone ones are left out."""

    name: str
    tickets: tuple[Ticket, ...]

    def __await__(self) -> Generator[Fill, tuple[Ticket, ...], tuple[Ticket, ...]]:
        return (yield self)


class Removed(NamedTuple):
    found: bool
    note: Tombstone | None = None
    """If it was not found: how it was ended from outside."""


class Remove(NamedTuple):
    """Take away the ticket of this attempt; ``place``: only the one that stands there, for the attempt may
    put another. ``bury``: the attempt is over; a copy of its ``Enter`` that arrives later is refused, for as
    long as this session lives."""

    name: str
    nonce: str
    mode: str
    order: int = 0
    bury: SessionId | None = None

    def __await__(self) -> Generator[Remove, Removed, Removed]:
        return (yield self)


class Evict(NamedTuple):
    """Take these tickets away from those who have them, and leave each client a note. Returns the nonces of
    those that were still there. Each client is told at once (``Desk.suspect``, then a wake-up)."""

    name: str
    tickets: tuple[Ticket, ...]
    reason: str

    def __await__(self) -> Generator[Evict, tuple[str, ...], tuple[str, ...]]:
        return (yield self)


class ReadNote(NamedTuple):
    """How an attempt of this client was ended from outside, if it was."""

    nonce: str

    def __await__(self) -> Generator[ReadNote, Tombstone | None, Tombstone | None]:
        return (yield self)


class Exchange(NamedTuple):
    """In one step: the old ticket goes, the new one stands in its place, with the token it has here. Nothing
    happens if the old one is not there or the new attempt was ended: a look tells."""

    name: str
    old: Ticket
    new: Ticket
    session: SessionId

    def __await__(self) -> Generator[Exchange, None, None]:
        return (yield self)


class Lend(NamedTuple):
    """Let the ticket live for so many seconds without any session, in this wording, if nobody changed it
    since it was read. False: it is gone or changed."""

    name: str
    ticket: Ticket
    seconds: float

    def __await__(self) -> Generator[Lend, bool, bool]:
        return (yield self)


class Take(NamedTuple):
    """Let this session carry the ticket, in this wording, if nobody changed it since it was read. Its place
    and token stay. None: it is gone or changed. (An engine that cannot move a ticket from one session to
    another takes it away: its session is over.)"""

    name: str
    ticket: Ticket
    session: SessionId

    def __await__(self) -> Generator[Take, Ticket | None, Ticket | None]:
        return (yield self)


# --- beside the tickets -------------------------------------------------------------------------


class SetValue(NamedTuple):
    """Store the name's value if the ticket is still there."""

    name: str
    ticket: Ticket
    value: StoredValue
    retention: float

    def __await__(self) -> Generator[SetValue, bool, bool]:
        return (yield self)


class SetLimit(NamedTuple):
    """Store these settings of a semaphore if they are still what was seen (None: there were none), and tell
    in the same step how it stands then. None: they are something else by now."""

    name: str
    seen: LockConfig | None
    config: LockConfig

    def __await__(self) -> Generator[SetLimit, LockView | None, LockView | None]:
        return (yield self)


class Names(NamedTuple):
    """All names that begin with a prefix, in full. Those in use, at least."""

    prefix: str

    def __await__(self) -> Generator[Names, list[tuple[str, LockView]], list[tuple[str, LockView]]]:
        return (yield self)


class Arm(NamedTuple):
    """From now on wake this nonce when one of these tickets goes (``turns``: or changes; ``limit``: or the
    limit does; ``EVERYTHING``: at any change of the name), until another ``Arm`` or the driver's
    ``unlisten``. Done when the engine has confirmed it: what happens after this is not missed. Should
    the engine lose sight of it, it arms it again and then wakes the nonce once."""

    nonce: str
    name: str
    watched: Watched
    tickets: tuple[Ticket, ...] = ()
    """Those of ``watched``."""

    def __await__(self) -> Generator[Arm, None, None]:
        return (yield self)


class Wall:
    """The wall clock, in seconds: for people, and for retentions."""

    __slots__ = ()

    def __await__(self) -> Generator[Wall, float, float]:
        return (yield self)


StoreOp = (
    Open
    | Keep
    | Retire
    | Enter
    | Look
    | Fill
    | Remove
    | Evict
    | ReadNote
    | Exchange
    | Lend
    | Take
    | SetValue
    | SetLimit
    | Names
    | Arm
)
