"""Renewal of tickets: one keep-alive, whatever it carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from holdfast.protocols import tickets
from holdfast.protocols.tickets import TicketClient
from holdfast.protocols.tickets.client import LockAttempt
from holdfast.protocols.tickets.renewal import CHECKED_TICKETS_MAX
from holdfast.protocols.tickets.store import KeptAlive, TicketStore
from holdfast.rules.requests import Absent, Done, Gone, Renew, Reply
from holdfast.rules.tickets import LockView, Ticket

MANY = 10_000


def client_with(count: int) -> TicketClient:
    """A client that holds so many locks, on one session."""
    client = TicketClient("client", lambda ttl: ttl, lambda: 100.0, lambda: 0.0)
    session = client.session(30.0)
    session.id = 1
    for number in range(count):
        nonce = f"n-{number}"
        attempt = client.attempts[nonce] = LockAttempt(f"x{number}", nonce, "lock", "exclusive", 30.0)
        attempt.ticket = Ticket(number + 1, 4, nonce, "client", "o", "lock", "exclusive", 30.0, 0.0, None, {})
        attempt.session, attempt.is_created = session, True
    return client


def renewals(count: int) -> tuple[tuple[str, Renew], ...]:
    return tuple([(f"x{number}", Renew(f"n-{number}", 30.0)) for number in range(count)])


class FakeStore:
    """Records what is asked of it, and answers that all is well."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.calls: list[str] = []
        self.checked: list[tuple[str, Ticket]] = []
        self.sessions: tuple[Any, ...] = ()
        self._meanwhile = meanwhile

    async def keep_alive(
        self, sessions: tuple[Any, ...], tickets: tuple[tuple[str, Ticket], ...] = ()
    ) -> KeptAlive:
        self.calls.append("keep_alive")
        self.sessions, self.checked = sessions, list(tickets)
        self._meanwhile()
        return KeptAlive((True,) * len(sessions), (True,) * len(tickets))

    async def read_queue(self, *arguments: Any) -> LockView:
        self.calls.append("read_queue")
        return LockView()

    async def read_note(self, nonce: str) -> None:
        self.calls.append("read_note")


def renew(
    client: TicketClient, count: int, meanwhile: Callable[[], None] = lambda: None
) -> tuple[list[Reply], FakeStore]:
    """What the batch returns, and what it asked of the store."""
    store = FakeStore(meanwhile)
    client.store = cast(TicketStore, store)
    coroutine = tickets.renew_batch(client, renewals(count))
    try:
        coroutine.send(None)
    except StopIteration as end:
        replies: list[Reply] = end.value
        return replies, store
    raise AssertionError("it awaited something other than the store")


def test_ten_thousand_held_locks_cost_the_same_keep_alive_as_one() -> None:
    for count in (1, MANY):
        replies, store = renew(client_with(count), count)
        assert replies == [Done()] * count
        assert store.calls == ["keep_alive"]
        assert store.sessions == (1,)
        assert len(store.checked) == min(count, CHECKED_TICKETS_MAX)


def test_each_ticket_is_checked_in_its_turn() -> None:
    client = client_with(3 * CHECKED_TICKETS_MAX)
    seen: set[str] = set()
    for _ in range(3):
        _, store = renew(client, 3 * CHECKED_TICKETS_MAX)
        seen |= {ticket.nonce for _, ticket in store.checked}
    assert len(seen) == 3 * CHECKED_TICKETS_MAX


def test_a_ticket_released_meanwhile_is_not_asked_about() -> None:
    """Otherwise the keeper would follow a client that releases much, and renew nothing meanwhile."""
    client = client_with(MANY)

    def release_most() -> None:
        for number in range(1, MANY):
            client.forget(f"n-{number}")

    replies, store = renew(client, MANY, release_most)
    assert store.calls == ["keep_alive"]
    assert replies == [Done()] + [Absent()] * (MANY - 1), "which is no news for the keeper"


def test_an_unknown_ticket_is_asked_about() -> None:
    replies, store = renew(client_with(1), 2)
    assert replies == [Done(), Gone("expired")]
    assert store.calls == ["keep_alive", "read_note", "read_queue"]
