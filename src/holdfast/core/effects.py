"""Effects: the values that a protocol awaits, and its only contact with the world.

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
    "mark_never_sent",
    "never_sent",
]

T = TypeVar("T")
ProtocolCoroutine = Coroutine["Effect", Any, T]
"""A running protocol: it awaits effects and returns T."""

TimerName = Literal["keeper", "timer"]


class TransientError(Exception):
    """An effect failed in a way that may pass. Protocols try again; users never see it."""


class NotApplied(TransientError):
    """The request was not applied."""


class OutcomeUnknown(TransientError):
    """The request may have been applied: check before trying again."""


def never_sent(error: BaseException) -> bool:
    """Whether the failed request cannot have reached the engine, so that there is nothing to withdraw.

    Besides errors, interrupts say so: one that comes while a connection is opened.
    """
    return getattr(error, "nothing_was_sent", False) is True


def mark_never_sent(error: BaseException, unsent: bool = True) -> None:
    error.__dict__["nothing_was_sent"] = unsent


@dataclass(slots=True)
class Apply:
    """One transition of one record. Every grant needs one, so it is the kind of class made fastest."""

    name: str
    request: Request
    connect_seconds: float | None = None
    """How long connecting may take where there is no connection yet. None: ``io_timeout``."""

    def __await__(self) -> Generator[Apply, Reply, Reply]:
        return (yield self)


class ApplyInOrder(NamedTuple):
    """Transitions of several records in one atomic step, which may stop at the first that is not granted."""

    steps: tuple[tuple[str, Request], ...]
    stop_when_refused: bool

    def __await__(self) -> Generator[ApplyInOrder, list[Reply], list[Reply]]:
        return (yield self)


class RenewBatch(NamedTuple):
    """The keeper's batch of renewals and refreshes. An engine may renew the client as a whole."""

    steps: tuple[tuple[str, Request], ...]

    def __await__(self) -> Generator[RenewBatch, list[Reply], list[Reply]]:
        return (yield self)


class ListNames(NamedTuple):
    """All names that begin with a prefix, each with a snapshot of its record."""

    prefix: str

    def __await__(self) -> Generator[ListNames, list[tuple[str, Snapshot]], list[tuple[str, Snapshot]]]:
        return (yield self)


class Listen(NamedTuple):
    """From now on keep the wake-ups of this nonce, until ``Unlisten``.

    ``name``: the record whose changes wake the nonce. None: only ``Notify`` wakes it, and the engine is not
    involved.
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

    The result says whether one came, or is the grant it carried, which also ends ``Listen``. A wake-up
    without a grant requires the waiter to ask the engine, whatever other wake-ups carry: those may be older.
    ``blockers``: clients whose death wakes the waiter, where the engine notices it.
    """

    nonce: str
    until: float
    blockers: tuple[str, ...] = ()

    def __await__(self) -> Generator[Wait, Handoff | bool, Handoff | bool]:
        return (yield self)


class Notify(NamedTuple):
    """Wake the waiter of this nonce in this client."""

    nonce: str

    def __await__(self) -> Generator[Notify, None, None]:
        return (yield self)


class Pause(NamedTuple):
    """Wait so many seconds, only between attempts at an engine that failed."""

    seconds: float

    def __await__(self) -> Generator[Pause, None, None]:
        return (yield self)


class SleepUntil(NamedTuple):
    """Sleep until a moment or until the timer is woken. None: until it is woken."""

    timer: TimerName
    until: float | None

    def __await__(self) -> Generator[SleepUntil, None, None]:
        return (yield self)


class Signal(NamedTuple):
    """Call the loss callbacks of this lease, outside the keeper and the timer."""

    lease: Any

    def __await__(self) -> Generator[Signal, None, None]:
        return (yield self)


class Now:
    """The local clock: seconds that also pass while the machine sleeps, unmoved by the wall clock."""

    __slots__ = ()

    def __await__(self) -> Generator[Now, float, float]:
        return (yield self)


class Nonce:
    """A fresh unique name for an attempt."""

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
