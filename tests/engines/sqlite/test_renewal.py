"""Renewals: one row for all a client holds, and never a lease that two believe in."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.sqlite.stores import Clock, One, query, record_of, update
from holdfast.rules import handoff
from holdfast.rules.requests import (
    Absent,
    Acquire,
    Busy,
    Done,
    Gone,
    Granted,
    Queued,
    Refresh,
    Renew,
    Reply,
    Stop,
    Watch,
)
from support import wait_until

pytestmark = pytest.mark.usefixtures("strangers", "clock")


def version_of(path: Path, name: str) -> int:
    return int(query(path, "SELECT version FROM locks WHERE name = ?", name.encode())[0][0])


# --- what is renewed ------------------------------------------------------------------------------


def test_a_renewal_writes_one_row_whatever_is_held(path: Path, client: Callable[[], One]) -> None:
    one = client()
    held = [(f"name-{n}", one.hold(f"name-{n}")[0]) for n in range(20)]
    versions = query(path, "SELECT sum(version) FROM locks")
    before = query(path, "SELECT renewed_at FROM clients")
    assert one.renew_batch(*((name, Renew(a.nonce, 30.0)) for name, a in held)) == [Done()] * 20
    assert query(path, "SELECT sum(version) FROM locks") == versions
    assert query(path, "SELECT renewed_at FROM clients") > before


def test_a_renewed_lease_outlasts_its_ttl_for_everyone(client: Callable[[], One], clock: Clock) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x", ttl=0.5)
    for _ in range(6):
        clock.passes(0.25)
        assert holder.renew_batch(("x", Renew(attempt.nonce, 0.5))) == [Done()]
        assert isinstance(other.ask("x", other.attempt()), Busy)
    clock.passes(0.5)
    assert isinstance(other.ask("x", other.attempt()), Granted)


def test_max_hold_is_a_limit_to_renewals(client: Callable[[], One], clock: Clock) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x", ttl=0.5, max_hold=0.7)
    for _ in range(2):
        clock.passes(0.3)
        assert holder.renew_batch(("x", Renew(attempt.nonce, 0.5))) == [Done()]
    clock.passes(0.2)
    assert holder.renew_batch(("x", Renew(attempt.nonce, 0.5))) == [Gone("expired")]
    assert isinstance(other.ask("x", other.attempt()), Granted)


def test_a_lease_that_is_let_run_out_is_not_renewed_by_the_others_of_its_client(
    client: Callable[[], One], clock: Clock
) -> None:
    holder, other = client(), client()
    running_out, _ = holder.hold("x", ttl=0.5)
    kept, _ = holder.hold("y", ttl=0.5)
    holder.ask("x", Stop(running_out.nonce))
    for _ in range(4):
        clock.passes(0.2)
        assert holder.renew_batch(("y", Renew(kept.nonce, 0.5))) == [Done()]
    assert isinstance(other.ask("x", other.attempt()), Granted)
    assert isinstance(other.ask("y", other.attempt()), Busy)


def test_another_ttl_is_stored_with_the_lease(path: Path, client: Callable[[], One], clock: Clock) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x", ttl=0.3)
    assert holder.renew_batch(("x", Renew(attempt.nonce, 60.0))) == [Done()]
    version = version_of(path, "x")
    assert holder.renew_batch(("x", Renew(attempt.nonce, 60.0))) == [Done()]
    assert version_of(path, "x") == version
    clock.passes(0.4)
    assert isinstance(other.ask("x", other.attempt()), Busy)


def test_places_in_the_queue_are_kept_by_the_same_row(client: Callable[[], One], clock: Clock) -> None:
    holder, waiter, other = client(), client(), client()
    attempt, _ = holder.hold("x")
    waiting = waiter.attempt(wait=True)
    assert isinstance(waiter.ask("x", waiting), Queued)
    for _ in range(28):
        clock.passes(0.2)
        reply = waiter.renew_batch(("x", Refresh(waiting.nonce)))[0]
        assert isinstance(reply, Queued)
        assert reply.position == 0
        assert holder.renew_batch(("x", Renew(attempt.nonce, 30.0))) == [Done()]
    last = other.ask("x", other.attempt(wait=True))
    assert isinstance(last, Queued)
    assert last.position == 1
    assert waiter.renew_batch(("x", Refresh("nobody-1"))) == [Absent()]


def test_a_watch_is_refreshed_in_good_time(client: Callable[[], One], clock: Clock) -> None:
    watcher, holder = client(), client()
    watcher.ask("x", Watch(f"{watcher.id}-w", watcher.id))
    for _ in range(28):
        clock.passes(0.2)
        assert watcher.renew_batch(("x", Refresh(f"{watcher.id}-w"))) == [Done()]
    watcher.store.listen_in_thread()
    holder.hold("x")
    wait_until(lambda: f"{watcher.id}-w" in watcher.posted)


# --- what is not ----------------------------------------------------------------------------------


def test_a_renewal_never_brings_back_what_had_expired(client: Callable[[], One], clock: Clock) -> None:
    """Even where nobody has taken it yet."""
    holder, other = client(), client()
    short, _ = holder.hold("x", ttl=0.2)
    long, _ = holder.hold("y", ttl=30)
    clock.passes(0.3)
    assert holder.renew_batch(("x", Renew(short.nonce, 0.2)), ("y", Renew(long.nonce, 30.0))) == [
        Gone("expired"),
        Done(),
    ]
    assert record_of(other, "x").holders == ()
    assert isinstance(other.ask("x", other.attempt()), Granted)
    assert isinstance(other.ask("y", other.attempt()), Busy)


def test_a_late_renewal_brings_back_nothing_that_was_given_up_meanwhile(
    client: Callable[[], One], clock: Clock
) -> None:
    """Nobody asks to renew it any more, so only the client's row could keep it: and must not."""
    holder, other = client(), client()
    for number in range(3):
        holder.hold(f"given up {number}", ttl=0.2)
    kept, _ = holder.hold("kept", ttl=30)
    clock.passes(0.3)
    for _ in range(2):
        assert holder.renew_batch(("kept", Renew(kept.nonce, 30.0))) == [Done()]
    for number in range(3):
        assert isinstance(other.ask(f"given up {number}", other.attempt()), Granted)
    assert isinstance(other.ask("kept", other.attempt()), Busy)


def test_what_another_client_holds_now_is_reported_as_stolen(client: Callable[[], One], clock: Clock) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x", ttl=0.2)
    clock.passes(0.3)
    other.hold("x")
    assert holder.renew_batch(("x", Renew(attempt.nonce, 0.2))) == [Gone("stolen")]
    assert [h.client for h in record_of(holder, "x").holders] == [other.id]


def test_a_name_that_is_not_there_at_all_is_gone(path: Path, client: Callable[[], One]) -> None:
    holder = client()
    attempt, _ = holder.hold("x")
    update(path, "DELETE FROM locks")
    assert holder.renew_batch(("x", Renew(attempt.nonce, 30.0)), ("y", Refresh("n-1"))) == [
        Gone("expired"),
        Absent(),
    ]


@pytest.mark.parametrize("is_told", [True, False], ids=["told of it", "found out"])
def test_what_was_handed_over_and_given_up_is_not_kept_by_a_late_renewal_either(
    client: Callable[[], One], is_told: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "CAME_SECONDS", 60.0)
    holder, successor, other = client(), client(), client()
    attempt, _ = holder.hold("x")
    waiting = successor.attempt(ttl=0.2, wait=True)
    successor.ask("x", waiting)
    holder.release("x", attempt)
    if is_told:
        successor.store.listen_in_thread()
        wait_until(lambda: successor.handed.get(waiting.nonce))
    else:
        assert isinstance(successor.ask("x", waiting), Granted)
    assert successor.store._updates.shortest_ttl == 0.2
    clock.passes(0.3)
    successor.renew_batch()
    assert isinstance(other.ask("x", other.attempt()), Granted)


def test_what_was_handed_over_after_a_late_round_is_not_kept_either(
    client: Callable[[], One], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "CAME_SECONDS", 60.0)
    holder, successor, other = client(), client(), client()
    attempt, _ = holder.hold("x")
    waiting = successor.attempt(ttl=0.2, wait=True)
    assert isinstance(successor.ask("x", waiting), Queued)
    clock.passes(0.3)
    successor.renew_batch(("x", Refresh(waiting.nonce)))
    successor.store.listen_in_thread()
    holder.release("x", attempt)
    wait_until(lambda: successor.handed.get(waiting.nonce))
    clock.passes(0.3)
    successor.renew_batch()
    assert isinstance(other.ask("x", other.attempt()), Granted)


# --- a renewal and a take-over at the same moment ---------------------------------------------------


class Race:
    """A holder whose renewal has begun while another, for whom the lease has expired, is about to take it.

    The renewal took its time just before the lease ended, and was then held up (SIGSTOP, a slow disk).
    """

    def __init__(self, holder: One, taker: One, clock: Clock) -> None:
        self.holder, self.taker, self.clock = holder, taker, clock
        self.attempt, _ = holder.hold("x", ttl=1.0)
        self.lease_ends_at = clock() + 1.0
        self.renewed: list[bool] = []
        self.taken: list[Reply] = []

    def run(self, monkeypatch: pytest.MonkeyPatch, between: Callable[[Callable[[], None]], None]) -> Reply:
        """``between`` is called with the renewal's write, after its time was taken."""
        registration = self.holder.store._session.registration
        assert registration is not None
        renew = registration.renew

        def held_up(execute: Any, now: float) -> bool:
            assert now < self.lease_ends_at
            self.clock.passes(0.2)
            between(lambda: self.renewed.append(renew(execute, now)))
            return self.renewed[0]

        monkeypatch.setattr(registration, "renew", held_up)
        self.clock.passes(0.9)
        return self.holder.renew_batch(("x", Renew(self.attempt.nonce, 1.0)))[0]

    def take(self) -> None:
        self.taken.append(self.taker.ask("x", self.taker.attempt()))


def test_the_renewal_comes_between_the_decision_to_take_over_and_its_storing(
    client: Callable[[], One], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = Race(client(), client(), clock)
    table = race.taker.store._table
    store = table.store

    def between(renewal: Callable[[], None]) -> None:
        def renewal_first(*arguments: Any) -> bool:
            if not race.renewed:
                renewal()
            return store(*arguments)

        monkeypatch.setattr(table, "store", renewal_first)
        race.take()

    assert race.run(monkeypatch, between) == Done()
    assert isinstance(race.taken[0], Busy), "both would believe to hold it"


def test_the_take_over_comes_before_the_renewal_is_written(
    client: Callable[[], One], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = Race(client(), client(), clock)

    def between(renewal: Callable[[], None]) -> None:
        race.take()
        renewal()

    assert race.run(monkeypatch, between) == Gone("stolen")
    assert isinstance(race.taken[0], Granted)


def test_the_renewal_is_written_before_anyone_decides(
    client: Callable[[], One], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = Race(client(), client(), clock)

    def between(renewal: Callable[[], None]) -> None:
        renewal()
        race.take()

    assert race.run(monkeypatch, between) == Done()
    assert isinstance(race.taken[0], Busy)


def test_a_release_and_a_take_over_at_the_same_moment(
    client: Callable[[], One], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, taker = client(), client()
    attempt, granted = holder.hold("x", ttl=0.2)
    clock.passes(0.3)
    table = taker.store._table
    store = table.store
    released: list[Reply] = []

    def release_first(*arguments: Any) -> bool:
        if not released:
            released.append(holder.release("x", attempt))
        return store(*arguments)

    monkeypatch.setattr(table, "store", release_first)
    _, taken = taker.hold("x")
    assert released == [Gone("expired")]
    assert taken.token > granted.token


# --- no longer there ------------------------------------------------------------------------------


def test_a_client_that_was_taken_for_dead_learns_it_and_begins_anew(
    path: Path, client: Callable[[], One]
) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x")
    unseen, _ = holder.hold("y")
    update(path, "UPDATE clients SET dead = 1 WHERE id = ?", holder.id)
    assert holder.renew_batch(("x", Renew(attempt.nonce, 30.0))) == [Gone("expired")]
    assert isinstance(other.ask("x", other.attempt()), Granted)
    assert isinstance(other.ask("y", other.attempt()), Granted)
    assert holder.renew_batch(("y", Renew(unseen.nonce, 30.0))) == [Gone("stolen")]
    again, _ = holder.hold("z")
    assert isinstance(other.ask("z", other.attempt()), Busy)
    assert holder.renew_batch(("z", Renew(again.nonce, 30.0))) == [Done()]


def test_one_whom_others_took_for_dead_is_granted_nothing_that_is_void(
    path: Path, client: Callable[[], One]
) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x")
    holder.release("x", attempt)
    update(path, "UPDATE clients SET dead = 1 WHERE id = ?", holder.id)
    holder.hold("x")
    assert query(path, "SELECT dead FROM clients WHERE id = ?", holder.id) == [(0,)]
    assert isinstance(other.ask("x", other.attempt()), Busy)


def test_the_same_where_the_row_is_gone(path: Path, client: Callable[[], One]) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x")
    update(path, "DELETE FROM clients WHERE id = ?", holder.id)
    assert holder.renew_batch(("x", Renew(attempt.nonce, 30.0))) == [Gone("expired")]
    holder.hold("y")
    assert isinstance(other.ask("y", other.attempt()), Busy)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_deleted_under_its_holder(
    path: Path, client: Callable[[], One], replaced: bool
) -> None:
    holder, other = client(), client()
    attempt, granted = holder.hold("x")
    waiting = holder.attempt(wait=True)
    holder.ask("x", waiting)
    path.unlink()
    if replaced:
        _, later = other.hold("x")
        assert later.token > granted.token
    replies = holder.renew_batch(("x", Renew(attempt.nonce, 30.0)), ("x", Refresh(waiting.nonce)))
    assert replies == [Gone("expired", "the database file was deleted or replaced"), Absent()]
    # It goes on with the file that is there now.
    assert isinstance(holder.ask("x", holder.attempt()), Busy if replaced else Granted)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_an_acquire_notices_a_deleted_database_by_itself(
    path: Path, client: Callable[[], One], clock: Clock
) -> None:
    first, second = client(), client()
    first.hold("x")
    path.unlink()
    clock.passes(0.2)
    second.hold("y")
    first.hold("z")
    assert isinstance(second.ask("z", second.attempt()), Busy)


def test_a_database_that_cannot_be_seen_is_not_taken_for_deleted(
    client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = client()
    attempt, _ = holder.hold("x")

    def hidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("os.stat", hidden)
        assert holder.renew_batch(("x", Renew(attempt.nonce, 30.0))) == [Done()]


# --- many -----------------------------------------------------------------------------------------


def test_ten_thousand_leases_are_looked_after_in_a_moment(path: Path, client: Callable[[], One]) -> None:
    one = client()
    attempts: list[tuple[str, Acquire]] = [(f"name-{n}", one.attempt()) for n in range(10_000)]
    for start in range(0, len(attempts), 500):
        replies = one.store.apply_in_order(tuple(attempts[start : start + 500]), True)
        assert all(isinstance(reply, Granted) for reply in replies)
    steps = [(name, Renew(attempt.nonce, 30.0)) for name, attempt in attempts]
    began = time.thread_time()
    assert one.renew_batch(*steps) == [Done()] * 10_000
    # A tenth of a second of this thread's own, however long others keep it waiting.
    assert time.thread_time() - began < 1.5
