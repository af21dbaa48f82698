"""Holders that die or stand still, connections that break, a server that is killed: one etcd alone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

import holdfast
from engines.etcd.admin import Admin
from engines.etcd.conftest import Connect, Hold
from faults.children import holding, waiting
from holdfast import Client, EngineUnavailable, Lease, LockLost
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Etcd
from holdfast.protocols.tickets.acquisition import POLL_SECONDS
from holdfast.runtime.clock import boottime
from support import renewal_of, wait_until

NAMESPACE = "holdfast"
"""Of child processes, which use the default."""


@pytest.fixture(scope="module")
def server() -> Iterator[Etcd]:
    """One to be harmed."""
    with Etcd() as server:
        yield server


def until_waiting(client: Client, count: int) -> None:
    wait_until(lambda: len(client.inspect("x").waiters) == count)


# --- holders and waiters --------------------------------------------------------------------------


def test_a_holder_that_is_killed_is_followed_after_its_ttl(server: Etcd) -> None:
    url = f"etcd://{server.address}"
    with holdfast.connect(url) as locks, holding(url, ttl=2) as child:
        token = int(child.expect("held"))
        granted: list[tuple[int, float]] = []

        def wait() -> None:
            with locks.lock("x") as lease:
                granted.append((lease.token, time.monotonic()))

        thread = threading.Thread(target=wait)
        thread.start()
        until_waiting(locks, 1)
        child.kill()
        killed = time.monotonic()
        thread.join(20)
    ((newer, at),) = granted
    assert newer > token
    assert at - killed < POLL_SECONDS / 3, "long before it would look by itself"


def test_a_waiter_that_is_killed_is_passed_after_its_ttl(server: Etcd) -> None:
    url = f"etcd://{server.address}"
    with holdfast.connect(url) as locks:
        lease = locks.lock("x").acquire()
        assert lease is not None
        with waiting(url, ttl=2) as dead, waiting(url, ttl=2) as alive:
            until_waiting(locks, 2)
            dead.kill()
            wait_until(lambda: len(locks.inspect("x").waiters) == 1, timeout=20)
            lease.release()
            alive.expect("granted")
            alive.send()
            alive.expect("released")


def test_a_paused_holder_is_notified_when_it_goes_on(server: Etcd) -> None:
    url = f"etcd://{server.address}"
    with holdfast.connect(url) as locks, holding(url, ttl=2) as child:
        token = int(child.expect("held"))
        child.stop()
        lease = locks.lock("x").acquire(timeout=20)
        assert lease is not None
        assert lease.token > token
        child.cont()
        assert child.expect("told") == "True"
        child.send("lease.check()")
        assert child.expect("did").startswith("LockLost")
        child.send("lock.release()")
        assert child.expect("did").startswith("LockLost")
        lease.check()
        assert [holder.token for holder in locks.inspect("x").holders] == [lease.token]
        lease.release()


def test_an_interrupted_waiter_leaves_nothing_behind(server: Etcd) -> None:
    url = f"etcd://{server.address}"
    with holdfast.connect(url) as locks:
        lease = locks.lock("x").acquire()
        assert lease is not None
        with waiting(url) as child:
            until_waiting(locks, 1)
            child.interrupt()
            child.expect("interrupted")
            wait_until(lambda: len(Admin(server).tickets(NAMESPACE)) == 1)
        lease.release()


# --- the server -----------------------------------------------------------------------------------


def test_a_restart_is_survived(server: Etcd) -> None:
    """What is held stays held, who waits is served, though the connection and the watch are gone."""
    url = f"etcd://{server.address}"
    with holdfast.connect(url) as locks, holdfast.connect(url) as others:
        lease = locks.lock("x", ttl=10).acquire()
        assert lease is not None
        granted: list[int] = []

        def wait() -> None:
            with others.lock("x", ttl=10) as theirs:
                granted.append(theirs.token)

        thread = threading.Thread(target=wait)
        thread.start()
        until_waiting(locks, 1)
        server.restart(kill=True)
        lease.check()
        wait_until(renewal_of(lease), timeout=20, message="it was not renewed")
        assert not granted
        lease.release()
        thread.join(20)
        assert granted
        assert granted[0] > lease.token


def test_a_paused_server_grants_nothing_and_loss_is_signalled_in_time(server: Etcd) -> None:
    url = f"etcd://{server.address}"
    with holdfast.connect(url, io_timeout=1) as locks:
        lease = locks.lock("x", ttl=2).acquire()
        assert lease is not None
        server.pause()
        try:
            paused, began = boottime(), time.monotonic()
            with pytest.raises(EngineUnavailable):
                locks.lock("y").acquire()
            assert time.monotonic() - began < 5
            assert lease.wait_lost(timeout=20)
            with pytest.raises(LockLost) as loss:
                lease.check()
            assert loss.value.reason == "unreachable"
            assert lease._state.deadline <= paused + 2, "nothing moved it since"
        finally:
            server.resume()
        wait_until(server.answers, timeout=20)
        with locks.lock("x", timeout=20) as again:
            assert again.token > lease.token


def test_a_server_that_is_full_grants_nothing_and_what_is_held_stays_held() -> None:
    with Etcd(quota_bytes=2**20) as server, holdfast.connect(f"etcd://{server.address}") as locks:
        lease = locks.lock("x", ttl=6).acquire()
        assert lease is not None
        until_full(Admin(server))
        with pytest.raises(EngineUnavailable, match="is full"):
            locks.lock("y", ttl=2).acquire()
        until = lease._state.deadline
        wait_until(lambda: lease._state.deadline > until, message="it was not renewed", timeout=20)
        lease.check()
        lease.release()
        assert not locks.inspect("x").holders


def until_full(admin: Admin) -> None:
    def refused() -> bool:
        try:
            admin.put("elsewhere", b"x" * 2**18)
        except ConnectionError:
            return True
        return False

    wait_until(refused)


# --- the connection -------------------------------------------------------------------------------


def test_a_cut_connection_costs_nothing(connect: Connect, hold: Hold, proxy: Proxy) -> None:
    client, other = connect(f"etcd://{proxy.address}"), connect()
    lease = hold(client.lock("mine", ttl=6))
    theirs = hold(other.lock("x"))
    granted: list[Lease] = []
    thread = threading.Thread(target=lambda: granted.append(hold(client.lock("x"))))
    thread.start()
    until_waiting(other, 1)
    for _ in range(3):
        assert proxy.cut()
        wait_until(lambda: proxy.open_connections)
    theirs.release()
    thread.join(20)
    assert granted
    wait_until(renewal_of(lease), message="it was not renewed", timeout=20)
    lease.check()


def test_a_silent_connection_is_reported_at_the_deadline(connect: Connect, hold: Hold, proxy: Proxy) -> None:
    """Nothing is closed, nothing answers. And when it goes on, so do we."""
    client = connect(f"etcd://{proxy.address}", io_timeout=1)
    lease = hold(client.lock("x", ttl=2))
    proxy.hold()
    held_up = boottime()
    assert lease.wait_lost(timeout=20)
    assert lease._state.deadline <= held_up + 2, "nothing moved it since"
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "unreachable"
    with pytest.raises(EngineUnavailable):
        client.lock("y").acquire()
    proxy.pass_on()
    hold(client.lock("y", ttl=2)).check()
    assert lease.lost, "reconnecting does not revive it"


def test_a_waiter_behind_a_silent_connection_is_served_once_it_goes_on(
    connect: Connect, hold: Hold, proxy: Proxy
) -> None:
    client, other = connect(f"etcd://{proxy.address}", io_timeout=1), connect()
    theirs = hold(other.lock("x"))
    granted: list[Lease] = []
    thread = threading.Thread(target=lambda: granted.append(hold(client.lock("x", ttl=20))))
    thread.start()
    until_waiting(other, 1)
    proxy.hold()
    theirs.release()
    proxy.pass_on()
    thread.join(20)
    assert granted
    granted[0].check()


def test_an_engine_that_is_not_there(connect: Connect) -> None:
    with Etcd() as server:
        address = server.address
    client = connect(f"etcd://{address}", io_timeout=0.5)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="'x'"):
        client.lock("x").acquire()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("what", ["request", "reply"])
def test_an_acquire_that_was_lost_recognises_itself(
    connect: Connect, hold: Hold, proxy: Proxy, admin: Admin, namespace: str, what: str
) -> None:
    """Whether the grant was made or not: there is one ticket, and it is the one that we have."""
    client = connect(f"etcd://{proxy.address}")
    with client.lock("x"):
        pass
    lose = proxy.lose_request if what == "request" else proxy.lose_reply
    lost = lose(b"/n/x/t/x/")
    lease = hold(client.lock("x"))
    assert lost.is_set()
    (ticket,) = admin.tickets(namespace)
    assert lease.id in ticket
    assert client.inspect("x").holders[0].token == lease.token
    lease.check()
    lease.release()
    assert not admin.tickets(namespace)
    assert [key for key in admin.keys(f"/{namespace}/c/") if "/n/" in key], (
        "a copy that arrives late would be refused"
    )


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_release_that_was_lost_is_done(
    connect: Connect, hold: Hold, proxy: Proxy, admin: Admin, namespace: str, what: str
) -> None:
    client = connect(f"etcd://{proxy.address}")
    lease = hold(client.lock("x"))
    lose = proxy.lose_request if what == "request" else proxy.lose_reply
    lost = lose(b"/n/x/t/x/")
    lease.release()
    assert lost.is_set()
    assert not lease.lost
    wait_until(lambda: not admin.tickets(namespace))


def test_giving_up_without_a_network_does_not_hang_and_leaves_nothing_beyond_the_ttl(
    connect: Connect, hold: Hold, proxy: Proxy, admin: Admin, namespace: str
) -> None:
    client, other = connect(f"etcd://{proxy.address}", io_timeout=1), connect()
    hold(other.lock("x"))
    silent = threading.Event()
    ended: list[float] = []

    def wait() -> None:
        while not silent.is_set():  # it was seen, before it gave up
            with contextlib.suppress(EngineUnavailable):
                assert client.lock("x", ttl=2).acquire(timeout=1) is None
        ended.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    until_waiting(other, 1)
    proxy.hold()
    silent.set()
    began = time.monotonic()
    thread.join(20)
    assert ended
    assert ended[0] - began < 6
    wait_until(lambda: not other.inspect("x").waiters, timeout=20)
