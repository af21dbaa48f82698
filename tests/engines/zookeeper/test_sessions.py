"""One session carries everything that a client holds: how long that is, and what becomes of it."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest

import holdfast.aio
from engines.zookeeper.admin import Admin
from engines.zookeeper.conftest import Connect, Hold, session_of
from holdfast import Client, Lease, LockLost, Unsupported
from holdfast.core.deadlines import lease_deadline
from holdfast.runtime.clock import boottime
from support import wait_until
from support.crowds import in_threads, join


def until_waiting(client: Client, count: int, name: str = "x") -> None:
    wait_until(lambda: len(client.inspect(name).waiters) == count)


# --- how long it is -------------------------------------------------------------------------------


def test_a_lock_that_says_nothing_lasts_as_long_as_the_session(connect: Connect, hold: Hold) -> None:
    for seconds in (4, 12):
        began = boottime()
        lease = hold(connect(session_timeout=seconds).lock(f"x{seconds}"))
        assert lease.ttl == seconds
        assert lease_deadline(began, seconds) <= lease._state.deadline <= boottime() + seconds


def test_the_servers_bounds_count(connect: Connect, hold: Hold) -> None:
    """The shared one gives nothing below a second."""
    lease = hold(connect(session_timeout=0.2).lock("x"))
    assert lease.ttl == 1.0


def test_a_ttl_beyond_the_session_is_unsupported(connect: Connect, hold: Hold) -> None:
    client = connect(session_timeout=5)
    with pytest.raises(Unsupported, match=r"session_timeout=6.*etcd"):
        client.lock("x", ttl=6).acquire()
    lease = hold(client.lock("x", ttl=5))
    with pytest.raises(Unsupported):
        lease.extend(6)
    lease.check()
    assert not client.inspect("y").locked


def test_a_shorter_ttl_is_kept_by_us(connect: Connect, hold: Hold) -> None:
    """It notifies its holder; a client that comes after one that died waits for the session."""
    client = connect(session_timeout=20)
    lease = hold(client.lock("x", ttl=0.5, renew=False))
    assert lease.ttl == 0.5
    assert lease.wait_lost(timeout=20)
    hold(client.lock("x")).check()
    hold(client.lock("y", ttl=0.5, max_hold=0.5)).wait_lost(timeout=20)
    hold(client.lock("y")).check()


def threads_of_ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-zookeeper")]


# --- one for all ----------------------------------------------------------------------------------


def test_contention_does_not_grow_the_number_of_sessions(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    client, other = connect(), connect()
    lease = hold(other.lock("x"))

    def wait(timeout: float) -> None:
        taken = client.lock("x").acquire(timeout=timeout)
        if taken is not None:
            taken.release()

    patient = in_threads(20, lambda: wait(60))
    until_waiting(other, 20)
    assert len(admin.sessions(namespace)) == 2
    lease.release()
    join(patient)
    lease = hold(other.lock("x"))
    join(in_threads(20, lambda: wait(0.3)))
    assert len(admin.sessions(namespace)) == 2
    (ticket,) = admin.tickets(namespace)
    assert lease.id in ticket, "a time-out leaves no contender behind"


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


def test_closing_ends_it(connect: Connect, hold: Hold, admin: Admin, namespace: str) -> None:
    """Long before it would end by itself. A server that is slow is not waited for."""
    client = connect(session_timeout=600)
    for number in range(5):
        hold(client.lock(f"x{number}"))
    assert len(admin.tickets(namespace)) == 5
    client.close()
    wait_until(lambda: (admin.tickets(namespace), admin.sessions(namespace)) == ([], []))
    wait_until(lambda: not threads_of_ours(), message="a thread was left")


# --- its end --------------------------------------------------------------------------------------


def _secret(client: Client) -> tuple[str, bytes]:
    session = session_of(client)
    return session.session_id, session._client.client_id[1]


def test_a_session_ended_from_outside_is_reported_at_once(connect: Connect, hold: Hold, admin: Admin) -> None:
    client, other = connect(session_timeout=60), connect()
    leases = [hold(client.lock("x")), hold(client.semaphore("y", 2)), hold(client.rwlock("z").read())]
    told: list[Lease] = []
    for lease in leases:
        lease.on_lost(told.append)
    admin.expire(*_secret(client))
    wait_until(lambda: len(told) == 3, message="no one was notified")
    for lease in leases:
        with pytest.raises(LockLost) as loss:
            lease.check()
        assert loss.value.reason == "expired"
        assert lease.remaining > 0, "the deadline is far away"
    newer = hold(other.lock("x"))
    assert newer.token > leases[0].token
    with pytest.raises(LockLost):
        leases[0].release()
    newer.check()
    assert other.inspect("x").holders[0].token == newer.token
    again = hold(client.lock("again"))
    again.check()
    assert leases[0].lost, "a new session revives nothing"


def test_a_waiter_whose_session_is_ended_takes_a_new_place(
    connect: Connect, hold: Hold, admin: Admin
) -> None:
    client, other = connect(session_timeout=60), connect(session_timeout=60)
    lease = hold(other.lock("x"))
    granted: list[Lease] = []
    thread = threading.Thread(target=lambda: granted.append(hold(client.lock("x"))))
    thread.start()
    until_waiting(other, 1)
    admin.expire(*_secret(client))
    until_waiting(other, 1)
    assert not granted
    lease.release()
    thread.join(20)
    assert granted
    granted[0].check()


def test_a_ticket_deleted_by_hand_is_missed(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    lease = hold(connect(session_timeout=60).lock("x", ttl=3))
    (ticket,) = admin.tickets(namespace)
    admin.client.delete(ticket)
    assert lease.wait_lost(timeout=20)
    with pytest.raises(LockLost):
        lease.check()


def test_a_node_of_a_session_deleted_by_hand_ends_it(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    """Nobody could reach its client any more."""
    client = connect(session_timeout=60)
    lease = hold(client.lock("x", ttl=3))
    (session,) = admin.sessions(namespace)
    admin.client.delete(f"/holdfast/{namespace}/s/{session}")
    assert lease.wait_lost(timeout=20)
    hold(client.lock("x")).check()
    wait_until(lambda: len(admin.sessions(namespace)) == 1)
    assert admin.sessions(namespace) != [session]


def test_waiting_longer_than_the_session_lasts_keeps_ones_place(connect: Connect, hold: Hold) -> None:
    client, other, late = connect(session_timeout=2), connect(), connect()
    lease = hold(other.lock("x"))
    granted: list[str] = []

    def take(who: Client, name: str) -> None:
        with who.lock("x"):
            granted.append(name)

    threads = [threading.Thread(target=take, args=(client, "first"))]
    threads[0].start()
    until_waiting(other, 1)
    (waiter,) = other.inspect("x").waiters
    wait_until(lambda: other.inspect("x").waiters[0].age > 2.5, timeout=20)
    threads.append(threading.Thread(target=take, args=(late, "second")))
    threads[1].start()
    until_waiting(other, 2)
    assert other.inspect("x").waiters[0].client == waiter.client
    lease.release()
    for thread in threads:
        thread.join(20)
    assert granted == ["first", "second"]


def test_a_dropped_lock_is_given_back_when_its_time_is_over(connect: Connect) -> None:
    """Though the session lives on, with what else it carries."""
    client = connect(session_timeout=60)
    with client.lock("kept", ttl=6) as kept:
        began = boottime()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            client.lock("x", ttl=1).acquire()
            gc.collect()
        with client.lock("x", timeout=20):
            assert boottime() >= lease_deadline(began, 1), "not before"
            kept.check()


def test_fair_is_what_it_is(connect: Connect, hold: Hold) -> None:
    client = connect()
    lease = hold(client.lock("x", fair=False))
    assert client.lock("x", fair=True).acquire(timeout=0) is None
    lease.release()


# --- a client that does nothing any more ----------------------------------------------------------


def test_a_loop_that_is_blocked_does_not_keep_its_session(
    url: str, namespace: str, connect: Connect, hold: Hold
) -> None:
    """kazoo's thread would, for ever. What its loop could not have used is given up."""
    held, go_on = threading.Event(), threading.Event()
    seen: list[tuple[int, bool]] = []

    async def main() -> None:
        async with holdfast.aio.connect(url, namespace=namespace, session_timeout=1.5) as client:
            lease = await client.lock("x").acquire()
            assert lease is not None
            held.set()
            go_on.wait(20)  # it is meant to block
            seen.append((lease.token, lease.lost))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert held.wait(20)
        newer = hold(connect().lock("x"))
    finally:
        go_on.set()
        thread.join(20)
    ((token, lost),) = seen
    assert lost
    assert newer.token > token
    newer.check()
