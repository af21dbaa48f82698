"""What happened, as values. Times are true time; nothing in the simulated world can see them."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.protocols.client_state import LeaseState
from holdfast.rules.record import Record
from holdfast.rules.requests import Reply, Request, Wake

__all__ = [
    "Began",
    "Changed",
    "Copied",
    "Crashed",
    "Event",
    "Forgot",
    "LetGo",
    "Moved",
    "Noted",
    "Stopped",
    "Told",
]


class Changed(NamedTuple):
    """The node stored a record."""

    at: float
    name: str
    before: Record
    after: Record
    request: Request
    reply: Reply
    wakes: tuple[Wake, ...]


class Forgot(NamedTuple):
    """The node lost all it knew, or what it learnt since ``back_to``."""

    at: float
    back_to: float


class Began(NamedTuple):
    """A client was granted something; from here on it relies on it."""

    at: float
    client: str
    state: LeaseState
    deadline: float
    """In true time, by the client's clock."""
    token: int


class Moved(NamedTuple):
    """A client relies on it for longer."""

    at: float
    client: str
    nonce: str
    deadline: float


class LetGo(NamedTuple):
    """A client stopped relying on it of its own will: its request to give it back is about to be sent."""

    at: float
    client: str
    nonce: str
    how: str
    """The request, or how the lease ended."""


class Told(NamedTuple):
    """The loss was signalled."""

    at: float
    client: str
    state: LeaseState
    reason: str


class Stopped(NamedTuple):
    """A client was paused."""

    at: float
    client: str
    until: float


class Crashed(NamedTuple):
    """A client vanished."""

    at: float
    client: str


class Copied(NamedTuple):
    """The network delivered a request twice."""

    at: float
    op: Any


class Noted(NamedTuple):
    """Something a worker or a store has to say."""

    at: float
    client: str
    what: str
    facts: tuple[Any, ...]


Event = Changed | Forgot | Began | Moved | LetGo | Told | Stopped | Crashed | Copied | Noted
