"""One session for each length of lease, whatever is held and however many wait; and what becomes of it."""

from __future__ import annotations

import threading
import time

import pytest

from engines.etcd.admin import Admin
from engines.etcd.conftest import Connect, Hold
from engines.etcd.spy import Spy
from holdfast import Client, Lease, LockLost
from holdfast.runtime.clock import boottime
from support import stays_true, wait_until
from support.crowds import in_threads, join


def until_waiting(client: Client, count: int) -> None:
    wait_until(lambda: len(client.inspect("x").waiters) == count)


def test_one_session_for_each_distinct_ttl(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    client = connect()
    for number in range(5):
        hold(client.lock(f"a{number}", ttl=30))
    assert len(admin.sessions(namespace)) == 1
    for number in range(5):
        hold(client.lock(f"b{number}", ttl=20 - number / 10))
    assert len(admin.sessions(namespace)) == 2, "whole seconds: these share one"


def test_contention_does_not_grow_the_number_of_leases(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    client, other = connect(), connect()
    lease = hold(other.lock("x"))
    before = admin.leases()

    def wait(timeout: float) -> None:
        taken = client.lock("x").acquire(timeout=timeout)
        if taken is not None:
            taken.release()

    patient = in_threads(20, lambda: wait(60))
    wait_until(lambda: len(other.inspect("x").waiters) == 20)
    assert len(admin.sessions(namespace)) == 2
    lease.release()
    join(patient)
    lease = hold(other.lock("x"))
    join(in_threads(20, lambda: wait(0.3)))
    assert len(admin.leases() - before) <= 2, "a session, and what keeps the name in mind"
    (ticket,) = admin.tickets(namespace)
    assert lease.id in ticket, "a time-out leaves no contender behind"


def test_closing_ends_the_sessions(connect: Connect, hold: Hold, admin: Admin, namespace: str) -> None:
    client = connect()
    for ttl in (10, 20, 30):
        hold(client.lock(f"x{ttl}", ttl=ttl))
    sessions = admin.sessions(namespace)
    assert len(sessions) == 3
    client.close()
    assert not sessions & admin.leases()
    assert not admin.keys(f"/{namespace}/c/")
    assert not admin.tickets(namespace)


def test_many_threads_open_one_session(connect: Connect, hold: Hold, admin: Admin, namespace: str) -> None:
    client = connect()
    together = threading.Barrier(12)
    taken: list[Lease] = []

    def take(number: int) -> None:
        together.wait(20)
        taken.append(hold(client.lock(f"x{number}")))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(taken) == 12
    assert len(admin.sessions(namespace)) == 1


def test_a_session_revoked_from_outside_is_reported_at_once(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    """Long before the next sign of life would be due; and the client goes on with a new one."""
    client = connect()
    leases = [hold(client.lock(f"x{number}", ttl=600)) for number in range(3)]
    (session,) = admin.sessions(namespace)
    began = time.monotonic()
    admin.revoke(session)
    for lease in leases:
        assert lease.wait_lost(timeout=20)
        with pytest.raises(LockLost) as loss:
            lease.check()
        assert loss.value.reason == "expired"
    assert time.monotonic() - began < 10
    again = hold(client.lock("x0", ttl=600))
    assert again.token > max(lease.token for lease in leases)
    assert admin.sessions(namespace) != {session}


def test_a_waiter_whose_session_is_revoked_takes_a_new_place(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    holder, client = connect(), connect()
    lease = hold(holder.lock("x"))
    held = admin.sessions(namespace)
    granted: list[Lease] = []
    waiting = threading.Thread(target=lambda: granted.append(hold(client.lock("x"))))
    waiting.start()
    wait_until(lambda: len(holder.inspect("x").waiters) == 1)
    (session,) = admin.sessions(namespace) - held
    admin.revoke(session)
    wait_until(lambda: admin.sessions(namespace) - held - {session} and len(holder.inspect("x").waiters) == 1)
    lease.release()
    waiting.join(20)
    assert granted


def test_a_ticket_deleted_by_hand_is_missed(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    client = connect()
    other = hold(client.lock("other", ttl=6))
    lease = hold(client.lock("x", ttl=6))
    (key,) = [key for key in admin.tickets(namespace) if lease.id in key]
    admin.delete(key)
    assert lease.wait_lost(timeout=20)
    other.check()


def test_it_is_missed_among_very_many(connect: Connect, hold: Hold, admin: Admin, namespace: str) -> None:
    """Not all are looked at each time, but each in its turn."""
    client = connect()
    leases = [hold(client.lock(f"x{number}", ttl=6)) for number in range(230)]
    victim = leases[170]
    (key,) = [key for key in admin.tickets(namespace) if key.endswith(victim.id)]
    admin.delete(key)
    assert victim.wait_lost(timeout=30)
    for lease in leases:
        assert lease is victim or not lease.lost


def test_waiting_longer_than_the_ttl_keeps_ones_place(connect: Connect, hold: Hold) -> None:
    """In a session that would soon be over. Not the shortest: a busy machine may be too late for that."""
    holder, first, second = connect(), connect(), connect()
    lease = hold(holder.lock("x"))
    granted: list[str] = []

    def wait(client: Client, name: str) -> None:
        with client.lock("x", ttl=3):
            granted.append(name)

    threads = [threading.Thread(target=wait, args=(c, n)) for c, n in ((first, "first"), (second, "second"))]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        until_waiting(holder, number)
    order = [waiter.client for waiter in holder.inspect("x").waiters]
    wait_until(lambda: holder.inspect("x").waiters[0].age > 6.5)
    assert [waiter.client for waiter in holder.inspect("x").waiters] == order
    lease.release()
    for thread in threads:
        thread.join(20)
    assert granted == ["first", "second"]


def test_an_idle_client_sends_nothing(connect: Connect, spy: Spy) -> None:
    """Its session ends by itself, and is opened again when it is needed."""
    client = connect()
    with client.lock("x", ttl=1) as lease:
        first = lease.token
    wait_until(lambda: "Range" in spy.methods(), message="it looks once for what concerns it")
    sent: list[str] = []

    def silent() -> bool:
        sent.extend(spy.methods())
        return not sent

    stays_true(silent, 1.5, f"it sent {sent}")
    with client.lock("x", ttl=1) as lease:
        assert lease.token > first
        lease.check()


def test_a_dropped_lock_is_given_back_when_its_time_is_over(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    """Though the session lives on, for something else is held."""
    client = connect()
    other = hold(client.lock("other", ttl=4))
    began = boottime()
    with pytest.warns(ResourceWarning, match="dropped"):
        client.lock("x", ttl=4).acquire()
    wait_until(lambda: not [key for key in admin.tickets(namespace) if "/n/x/" in key], timeout=20)
    assert boottime() - began > 2, "not at once"
    other.check()


def test_what_runs_out_by_itself_is_deleted_though_the_session_lives(connect: Connect, hold: Hold) -> None:
    """``renew=False`` and ``max_hold``."""
    client, other = connect(), connect()
    kept = hold(client.lock("kept", ttl=30))
    for lock in (client.lock("x", ttl=1.0, renew=False), client.lock("x", ttl=30, max_hold=1.0)):
        lease = hold(lock)
        began = time.monotonic()
        after = hold(other.lock("x"))
        assert time.monotonic() - began < 15, "the session goes on for twice as long"
        assert lease.lost
        after.release()
    kept.check()


def test_a_lease_counts_from_the_sessions_last_sign_of_life(connect: Connect, hold: Hold, spy: Spy) -> None:
    """Not from when it was asked for: the session that carries it may be older than that."""
    client = connect()
    first = hold(client.lock("a", ttl=60))
    until, began = first._state.deadline, boottime()
    wait_until(lambda: boottime() > began + 1)
    spy.sent()
    second = hold(client.lock("b", ttl=60))
    assert second._state.deadline < until + 0.1
    assert "KeepAlive" not in spy.methods()
    full = hold(client.lock("c", ttl=60, renew=False))
    assert full._state.deadline > until + 0.5, "nobody will renew it: so it is for the whole ttl"
    assert "KeepAlive" in spy.methods()
