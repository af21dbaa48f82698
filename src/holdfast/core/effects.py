"""Operations: the only way in which a protocol touches the world.

A protocol is a coroutine that awaits these values; a driver performs each and sends back the reply.
So the same protocol runs on threads, on asyncio and in virtual time. Awaiting an operation may raise
``Refused`` (nothing happened), ``Unknown`` (it may have happened), ``EngineUnavailable`` (there is no
point in trying again), or whatever interrupts the caller: KeyboardInterrupt, a cancellation.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from ..rules.requests import Handoff, Reply, Request, Snapshot

__all__ = [
    "Apply",
    "ApplyInOrder",
    "Effect",
    "ListNames",
    "Listen",
    "Nonce",
    "NotApplied",
    "Notify",
    "Now",
    "OutcomeUnknown",
    "Pause",
    "ProtocolCoroutine",
    "RenewBatch",
    "Signal",
    "SleepUntil",
    "TransientError",
    "Unlisten",
    "Wait",
]

T = TypeVar("T")
ProtocolCoroutine = Coroutine["Effect", Any, T]
"""A protocol under way: what it awaits are operations, what it returns is T."""

TimerName = Literal["keeper", "timer"]


class TransientError(Exception):
    """An operation failed in a way that may pass; tried again by the protocol, never seen by a user."""


class NotApplied(TransientError):
    """Nothing happened."""


class OutcomeUnknown(TransientError):
    """It may have happened: look before trying again."""


@dataclass(slots=True)
class Apply:
    """One transition of one record. On the path of every grant, so the kind of value that is made fastest."""

    name: str
    request: Request
    connect_seconds: float | None = None
    """Where there is no connection yet: in so many seconds it must be had. None: in ``io_timeout``."""

    def __await__(self) -> Generator[Apply, Reply, Reply]:
        return (yield self)


class ApplyInOrder(NamedTuple):
    """Transitions of several records in one atomic step; may end with the first that is not granted."""

    steps: tuple[tuple[str, Request], ...]
    stop_when_refused: bool

    def __await__(self) -> Generator[ApplyInOrder, list[Reply], list[Reply]]:
        return (yield self)


class RenewBatch(NamedTuple):
    """Renew and refresh: the keeper's batch. Engines may do it for the client as a whole."""

    steps: tuple[tuple[str, Request], ...]

    def __await__(self) -> Generator[RenewBatch, list[Reply], list[Reply]]:
        return (yield self)


class ListNames(NamedTuple):
    """All names that begin with a prefix, with what stands there."""

    prefix: str

    def __await__(self) -> Generator[ListNames, list[tuple[str, Snapshot]], list[tuple[str, Snapshot]]]:
        return (yield self)


class Listen(NamedTuple):
    """From now on keep wake-ups addressed to this nonce, until ``Unlisten``.

    ``name``: the record whose changes wake it; None: only ``Post`` does, so the engine need not be asked.
    """

    nonce: str
    name: str | None

    def __await__(self) -> Generator[Listen, None, None]:
        return (yield self)


class Unlisten(NamedTuple):
    nonce: str

    def __await__(self) -> Generator[Unlisten, None, None]:
        return (yield self)


class Wait(NamedTuple):
    """Wait for a wake-up (kept since ``Listen``) until a moment of the local clock.

    Tells whether one came, or what it brought: the lock, and then listening has ended. One that brings
    nothing asks us to look, whatever others bring: they may be older.
    ``blockers`` are clients whose death should wake us where the engine can tell.
    """

    nonce: str
    until: float
    blockers: tuple[str, ...] = ()

    def __await__(self) -> Generator[Wait, Handoff | bool, Handoff | bool]:
        return (yield self)


class Notify(NamedTuple):
    """Wake one who waits in this client."""

    nonce: str

    def __await__(self) -> Generator[Notify, None, None]:
        return (yield self)


class Pause(NamedTuple):
    """Wait so many seconds: only between attempts at an engine in trouble."""

    seconds: float

    def __await__(self) -> Generator[Pause, None, None]:
        return (yield self)


class SleepUntil(NamedTuple):
    """Sleep until a moment, or until the bell rings. None: until it rings."""

    timer: TimerName
    until: float | None

    def __await__(self) -> Generator[SleepUntil, None, None]:
        return (yield self)


class Signal(NamedTuple):
    """Tell those who wait for the loss of this lease, apart from the threads that keep and time leases."""

    lease: Any

    def __await__(self) -> Generator[Signal, None, None]:
        return (yield self)


class Now:
    """The local clock: seconds that also pass while the machine sleeps, unmoved by the wall clock."""

    __slots__ = ()

    def __await__(self) -> Generator[Now, float, float]:
        return (yield self)


class Nonce:
    """A name for an attempt that nobody else will ever use."""

    __slots__ = ()

    def __await__(self) -> Generator[Nonce, str, str]:
        return (yield self)


Effect = (
    Apply
    | ApplyInOrder
    | RenewBatch
    | ListNames
    | Listen
    | Unlisten
    | Wait
    | Notify
    | Pause
    | SleepUntil
    | Signal
    | Now
    | Nonce
)
