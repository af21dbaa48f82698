"""Mistakes that locks on ordered stores make, each as a small patch of the tickets family.

Every one of them must be caught by a checker; that is the test of the checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from unittest import mock

from holdfast.protocols.client_state import LeaseState
from holdfast.protocols.records import acquisition as records_acquisition
from holdfast.protocols.tickets import acquisition
from holdfast.protocols.tickets.client import LockAttempt, SessionState, TicketClient
from holdfast.protocols.tickets.store import Removed
from holdfast.rules import tickets as rule
from holdfast.rules.requests import Queued
from holdfast.rules.tickets import LockConfig, LockView, Ticket, Watched
from holdfast.rules.tickets import find as shipped_find
from holdfast.rules.tickets import watched as shipped_watched
from simulation.mutants import Mutant, Patch, counted_by_the_wall
from simulation.plans import WALL_JUMP
from simulation.tickets_schedules import KINDS
from simulator.ordered import OrderedStore

__all__ = ["TICKETS_MUTANTS"]


def watch_the_crowd() -> Patch:
    """Every waiter is woken whenever any ticket before it goes."""

    def watched(tickets: Sequence[Ticket], me: Ticket, config: LockConfig) -> Watched:
        one = shipped_watched(tickets, me, config)
        ahead = tuple(ticket.nonce for ticket in tickets if ticket.order < me.order)
        return one._replace(nonces=ahead) if one.nonces else one

    return mock.patch.object(acquisition, "watched", watched)


def watch_the_holder_only() -> Patch:
    """Every waiter waits for the first, whichever others are before it."""

    def watched(tickets: Sequence[Ticket], me: Ticket, config: LockConfig) -> Watched:
        one = shipped_watched(tickets, me, config)
        return one._replace(nonces=(tickets[0].nonce,)) if one.nonces else one

    return mock.patch.object(acquisition, "watched", watched)


def trust_the_wake_up() -> Patch:
    """The one before us is gone: so it is ours, without another look."""

    def watched(tickets: Sequence[Ticket], me: Ticket, config: LockConfig) -> Watched:
        one = shipped_watched(tickets, me, config)
        waited_for = before.get(me.nonce)
        before[me.nonce] = one
        if waited_for is not None and not any(t.nonce in waited_for.nonces for t in tickets):
            return Watched(())
        return one

    before: dict[str, Watched] = {}
    return mock.patch.object(acquisition, "watched", watched)


def own_ticket_taken_for_granted() -> Patch:
    """After a wake-up only those before us are looked at; that our own ticket is still there is assumed."""
    known: dict[str, Ticket] = {}

    def find(tickets: Sequence[Ticket], nonce: str) -> Ticket | None:
        ticket = shipped_find(tickets, nonce)
        if ticket is not None:
            known[nonce] = ticket
        return known.get(nonce)

    return mock.patch.object(acquisition, "find", find)


def counted_from_the_request() -> Patch:
    """A grant lasts a ttl from when it was asked for, however old the session is that carries it."""
    return mock.patch.object(SessionState, "age", return_value=0.0)


def counted_from_the_reply() -> Patch:
    """A session lives on from when its sign of life was answered."""
    shipped = SessionState.kept

    def kept(self: SessionState, sent: float, age: float = 0.0) -> None:
        shipped(self, sent + 0.25, age)

    return mock.patch.object(SessionState, "kept", kept)


def watch_without_another_look() -> Patch:
    """Look, then watch: who went in between is waited for."""
    shipped = acquisition.AcquireRequest._ticket_found

    async def there(self: acquisition.AcquireRequest, view: LockView, me: Ticket) -> Any:
        reply = await shipped(self, view, me)
        return Queued(0, 60.0, ()) if reply is None and self.attempt.watch_set is not None else reply

    return mock.patch.object(acquisition.AcquireRequest, "_ticket_found", there)


def late_arrival_accepted() -> Patch:
    """Nobody remembers that an attempt was withdrawn."""
    shipped = OrderedStore._remove

    def remove(
        self: OrderedStore,
        name: str,
        nonce: str,
        mode: str,
        order: int = 0,
        tombstone_session: str | None = None,
    ) -> Removed:
        return shipped(self, name, nonce, mode, order)

    return mock.patch.object(OrderedStore, "_remove", remove)


def another_try_under_the_same_name() -> Patch:
    """Who was granted it too late, and gave it back, asks again as if nothing had been."""
    shipped = records_acquisition.Attempt.granted_too_late

    async def granted_too_late(self: records_acquisition.Attempt, state: LeaseState) -> Any:
        done = await shipped(self, state)
        self.nonce = state.nonce
        self.request = records_acquisition.acquire_request(
            self.client_state, self.spec, self.owner, self.nonce
        )
        return done

    return mock.patch.object(records_acquisition.Attempt, "granted_too_late", granted_too_late)


def no_room_between_tokens() -> Patch:
    """The token is the place: who breaks a lock, or turns into a reader, has the number of the next one."""
    return mock.patch.object(rule, "TOKENS_PER_PLACE", 1)


def keeps_its_permit_to_itself() -> Patch:
    """Who gets a permit after waiting does not tell the next one, which goes on waiting for it alone."""

    async def notify_next(
        client: TicketClient, attempt: LockAttempt, view: LockView, session: SessionState
    ) -> bool:
        return True

    return mock.patch.object(acquisition, "_notify_next", notify_next)


def any_session_will_do() -> Patch:
    """A ticket found under another session than ours is dated by ours."""
    shipped = OrderedStore._view

    def view(self: OrderedStore, name: str, nonce: str = "") -> LockView:
        told = shipped(self, name, nonce)
        return told._replace(tickets=tuple(t._replace(session=None) for t in told.tickets))

    def session_reported_ended(self: TicketClient, session_id: Any) -> list[str]:
        """Old news of an earlier session of the same name is believed at once."""
        lost = [session for session in self.open_sessions() if session.id == session_id]
        for session in lost:
            self.session_lost(session)
        return [attempt.nonce for attempt in self.attempts.values() if attempt.session in lost]

    both = mock.patch.multiple(OrderedStore, _view=view)
    return _together(both, mock.patch.object(TicketClient, "session_reported_ended", session_reported_ended))


def _together(*patches: Any) -> Patch:
    from simulation.mutants import _both

    return _both(*patches)


TICKETS_MUTANTS: Final = (
    Mutant(
        "watch the crowd", watch_the_crowd, ("wake ups",), ("tickets lock", "tickets rwlock"), kinds=KINDS
    ),
    Mutant(
        "watch the holder only",
        watch_the_holder_only,
        ("wake ups",),
        ("tickets lock", "tickets rlock"),
        kinds=KINDS,
    ),
    Mutant(
        "trust the wake-up", trust_the_wake_up, ("exclusion",), ("tickets lock", "tickets rlock"), kinds=KINDS
    ),
    Mutant(
        "own ticket not read again",
        own_ticket_taken_for_granted,
        ("deadlines",),
        ("tickets tools",),
        3.0,
        ("slow", "pause"),
    ),
    Mutant(
        "deadline counted from the request, not the session's",
        counted_from_the_request,
        ("deadlines",),
        ("tickets lock", "tickets rwlock"),
        kinds=KINDS,
    ),
    Mutant(
        "deadline counted from the reply",
        counted_from_the_reply,
        ("deadlines",),
        ("tickets lock", "tickets rwlock"),
        kinds=KINDS,
    ),
    Mutant(
        "no look after watching",
        watch_without_another_look,
        ("prompt grant",),
        ("tickets lock", "tickets rlock"),
        kinds=KINDS,
    ),
    Mutant(
        "late arrival of a withdrawn attempt accepted",
        late_arrival_accepted,
        ("everyone served",),
        ("tickets lock", "tickets several"),
        3.0,
        ("slow", "interrupt"),
    ),
    Mutant(
        "another try under the same nonce",
        another_try_under_the_same_name,
        ("one grant per attempt",),
        ("tickets lock", "tickets rlock"),
        3.0,
        ("pause", "slow"),
    ),
    Mutant(
        "no room between tokens",
        no_room_between_tokens,
        ("tokens",),
        ("tickets rwlock", "tickets tools"),
        kinds=KINDS,
    ),
    Mutant(
        "permit kept to oneself",
        keeps_its_permit_to_itself,
        ("prompt grant",),
        ("tickets semaphore",),
        kinds=KINDS,
    ),
    Mutant(
        "ticket of another session trusted",
        any_session_will_do,
        ("deadlines", "exclusion"),
        ("tickets guard",),
        3.0,
        ("slow", "loss"),
    ),
    Mutant(
        "leases counted by the clock on the wall",
        counted_by_the_wall,
        ("exclusion", "deadlines"),
        ("tickets lock", "tickets rwlock"),
        kinds=("pause", WALL_JUMP),
    ),
)
