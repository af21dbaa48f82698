"""What can be asked of a record, and what it answers.

Every request is a value; every reply says which of a few things happened. Nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .record import REFRESH_SECONDS, Holder, Record

__all__ = [
    "Absent",
    "Acquire",
    "Adopt",
    "Break",
    "Broken",
    "Busy",
    "Done",
    "Downgrade",
    "Exhausted",
    "Export",
    "Gone",
    "Granted",
    "Handoff",
    "Inspect",
    "Mismatch",
    "Queued",
    "Refresh",
    "Release",
    "Renew",
    "Reply",
    "Request",
    "Resize",
    "SetValue",
    "Snapshot",
    "Stop",
    "Unwatch",
    "Wake",
    "Watch",
    "Withdraw",
    "Withdrawn",
]


# --- requests -----------------------------------------------------------------------------------


class Acquire(NamedTuple):
    """Give me the lock. The same nonce again is the same attempt, whatever became of the first reply."""

    nonce: str
    client: str
    owner: str
    kind: str
    mode: str
    ttl: float
    wait: bool
    """Queue if it cannot be had now."""
    fair: bool = True
    """False: take it whenever it is free, whoever waits."""
    renews: bool = True
    max_hold: float | None = None
    limit: int = 0
    """The declared limit of a semaphore."""
    metadata: Mapping[str, str] = {}


class Release(NamedTuple):
    """I am done. ``linger``: how long a late copy of the attempt is still to be refused."""

    nonce: str
    linger: float = 0.0


class Withdraw(NamedTuple):
    """I no longer want it, whether it was granted, is queued, or has yet to arrive."""

    nonce: str
    linger: float = 0.0


class Renew(NamedTuple):
    """I still hold it; let it last ``ttl`` from now."""

    nonce: str
    ttl: float


class Refresh(NamedTuple):
    """I still wait (or watch); where do I stand?"""

    nonce: str


class Stop(NamedTuple):
    """Let it run out: the client's renewals no longer extend it."""

    nonce: str


class Export(NamedTuple):
    """Let it live one ttl without any client, for another process to adopt."""

    nonce: str
    seal: str
    """A hash of the secret that the adopter has to know: it stands in the owner's place meanwhile."""


class Adopt(NamedTuple):
    """Take over an exported grant, with its token."""

    nonce: str
    client: str
    owner: str
    seal: str
    """As it was exported with last."""
    renews: bool = True


class Downgrade(NamedTuple):
    """Turn a write grant into a read grant with a token of its own."""

    nonce: str
    reader_nonce: str


class Break(NamedTuple):
    """Take it from whoever holds it (only the grant ``token``, when given)."""

    token: int | None
    reason: str


class SetValue(NamedTuple):
    """Store the name's value; only a present holder may."""

    nonce: str
    data: bytes
    retention: float


class Resize(NamedTuple):
    """Change a semaphore's current limit."""

    declared: int
    limit: int


class Watch(NamedTuple):
    """Tell me of every change."""

    nonce: str
    client: str


class Unwatch(NamedTuple):
    """No longer tell me."""

    nonce: str


class Inspect(NamedTuple):
    """What stands there now?"""


Request = (
    Acquire
    | Release
    | Withdraw
    | Renew
    | Refresh
    | Stop
    | Export
    | Adopt
    | Downgrade
    | Break
    | SetValue
    | Resize
    | Watch
    | Unwatch
    | Inspect
)


# --- replies ------------------------------------------------------------------------------------


class Granted(NamedTuple):
    token: int
    peers: tuple[int, ...]
    """The shared grants that live beside this one."""
    kind: str
    mode: str
    ttl: float
    lasts: float | None
    """Seconds until ``max_hold`` ends it whatever is renewed; None: nothing does."""
    metadata: Mapping[str, str]
    age: float = 0.0
    """The ttl counts from so many seconds before the asking: where a session carries it that was there."""


class Busy(NamedTuple):
    """Not granted, and nothing was left behind."""

    holders: tuple[Holder, ...]
    now: float


class Queued(NamedTuple):
    """Not granted yet; a place in the queue is ours."""

    position: int
    """0: the next turn is ours."""
    poll_after: float
    """Seconds after which to look again at the latest."""
    blockers: tuple[str, ...]
    """The clients whose end would change where we stand."""
    refresh_in: float = REFRESH_SECONDS
    """Seconds after which to say that we still wait, at the latest."""


class Withdrawn(NamedTuple):
    """The attempt is over and nothing of it remains."""

    holders: tuple[Holder, ...]
    now: float


class Gone(NamedTuple):
    """The grant is not there any more."""

    reason: str
    """``expired``, ``stolen``, ``broken`` or ``withdrawn``."""
    note: str = ""


class Absent(NamedTuple):
    """No such place in the queue."""


class Broken(NamedTuple):
    """The grants that were taken away, and the token that fences them off (None: there were none)."""

    token: int | None
    victims: tuple[Holder, ...]


class Mismatch(NamedTuple):
    """The name is something else than what was asked for."""

    kind: str
    limit: int


class Exhausted(NamedTuple):
    """No token can be minted any more."""


class Done(NamedTuple):
    """It happened."""

    age: float = 0.0
    """Of a renewal: the ttl counts from so many seconds before the asking, as it may for ``Granted``."""


class Snapshot(NamedTuple):
    """The record as it stands at ``now``."""

    record: Record
    now: float


Reply = Granted | Busy | Queued | Withdrawn | Gone | Absent | Broken | Mismatch | Exhausted | Done | Snapshot


class Handoff(NamedTuple):
    """What a wake-up may bring along: the lock, granted to the one who waits for it."""

    token: int
    age: float
    """For how long its place in the queue had been there by then."""


class Wake(NamedTuple):
    """Whom to tell, once the change is stored; and what it has been given."""

    client: str
    nonce: str
    handed: Handoff | None = None
