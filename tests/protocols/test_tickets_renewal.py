"""Tending what is held by tickets: one sign of life, whatever hangs on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.effects import Now
from holdfast.protocols import tickets
from holdfast.protocols.tickets import TicketClient
from holdfast.protocols.tickets.client import LockAttempt
from holdfast.protocols.tickets.renewal import CHECKED_TICKETS_MAX
from holdfast.protocols.tickets.store import Keep, Kept, Look, ReadNote
from holdfast.rules.requests import Absent, Done, Gone, Renew
from holdfast.rules.tickets import LockView, Ticket

MANY = 10_000


def desk_with(count: int) -> TicketClient:
    """A client that holds so many locks, on one session."""
    client = TicketClient("client", lambda ttl: ttl)
    session = client.session(30.0)
    session.id = 1
    for number in range(count):
        nonce = f"n-{number}"
        attempt = client.attempts[nonce] = LockAttempt(f"x{number}", nonce, "lock", "exclusive", 30.0)
        attempt.ticket = Ticket(number + 1, 4, nonce, "client", "o", "lock", "exclusive", 30.0, 0.0, None, {})
        attempt.session, attempt.entered = session, True
    return client


def renewals(count: int) -> tuple[tuple[str, Renew], ...]:
    return tuple([(f"x{number}", Renew(f"n-{number}", 30.0)) for number in range(count)])


def run(script: Any, meanwhile: Callable[[], None] = lambda: None) -> tuple[Any, list[Any]]:
    """What it returns, and what it asked of the store, which says that all is well."""
    asked: list[Any] = []
    reply: Any = None
    while True:
        try:
            op = script.send(reply)
        except StopIteration as end:
            return end.value, asked
        if isinstance(op, Now):
            reply = 100.0
            continue
        asked.append(op)
        if isinstance(op, Keep):
            meanwhile()
            reply = Kept((True,) * len(op.sessions), (True,) * len(op.tickets))
        elif isinstance(op, Look):
            reply = LockView()
        else:
            assert isinstance(op, ReadNote)
            reply = None


def test_ten_thousand_held_locks_cost_the_same_sign_of_life_as_one() -> None:
    for count in (1, MANY):
        client = desk_with(count)
        replies, asked = run(tickets.renew_batch(client, renewals(count)))
        assert replies == [Done()] * count
        (keep,) = asked
        assert keep.sessions == (1,)
        assert len(keep.tickets) == min(count, CHECKED_TICKETS_MAX)


def test_each_of_them_is_looked_at_in_its_turn() -> None:
    client = desk_with(3 * CHECKED_TICKETS_MAX)
    seen: set[str] = set()
    for _ in range(3):
        _, (keep,) = run(tickets.renew_batch(client, renewals(3 * CHECKED_TICKETS_MAX)))
        seen |= {ticket.nonce for _, ticket in keep.tickets}
    assert len(seen) == 3 * CHECKED_TICKETS_MAX


def test_what_was_given_back_meanwhile_is_not_asked_about() -> None:
    """Or the keeper would run after a client that gives back much, and renew nothing meanwhile."""
    client = desk_with(MANY)

    def give_back() -> None:
        for number in range(1, MANY):
            client.forget(f"n-{number}")

    replies, asked = run(tickets.renew_batch(client, renewals(MANY)), give_back)
    assert [type(op) for op in asked] == [Keep]
    assert replies == [Done()] + [Absent()] * (MANY - 1), "which is no news for the keeper"


def test_what_nobody_knows_of_is_asked_about() -> None:
    replies, asked = run(tickets.renew_batch(desk_with(1), renewals(2)))
    assert replies == [Done(), Gone("expired")]
    assert [type(op) for op in asked] == [Keep, ReadNote, Look]
