"""Holders that die or stand still, connections that break, a server that is killed: one ZooKeeper alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
import holdfast.aio
from contract.engines import fresh_namespace
from engines.zookeeper.admin import Admin
from engines.zookeeper.conftest import session_of
from faults.children import holding, waiting
from holdfast import Client, EngineUnavailable, Lease, LockLost
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import ZooKeeper
from holdfast.lab.servers.ports import free_port
from holdfast.protocols.tickets.acquisition import POLL_SECONDS
from holdfast.runtime.clock import boottime
from support import async_wait_until, run_python, wait_until

pytestmark = pytest.mark.engine("zookeeper")

Connect = Callable[..., Client]

SECONDS = 2.0
"""A session that is soon over."""

LONG = 60.0
"""One that is not over before the test is: as much as the server gives."""


@pytest.fixture(scope="module")
def the_server() -> Iterator[ZooKeeper]:
    with ZooKeeper(tick_ms=250, settings={"maxSessionTimeout": "60000"}) as server:
        yield server


@pytest.fixture
def server(the_server: ZooKeeper) -> Iterator[ZooKeeper]:
    """One to be harmed. It is well again for the next test, also if this one failed half-way."""
    yield the_server
    the_server.resume()
    if not the_server.running:
        the_server.start()


@pytest.fixture
def proxy(server: ZooKeeper) -> Iterator[Proxy]:
    with Proxy(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
def admin(server: ZooKeeper) -> Iterator[Admin]:
    admin = Admin(server)
    yield admin
    admin.close()


@pytest.fixture
def namespace() -> str:
    return fresh_namespace()


@pytest.fixture
def connect(server: ZooKeeper, namespace: str) -> Iterator[Connect]:
    """Makes clients, with the server itself or with what is at another address."""
    with ExitStack() as clients:

        def make(address: str = "", **options: Any) -> Client:
            given = {"namespace": namespace, "session_timeout": SECONDS, **options}
            return clients.enter_context(
                holdfast.connect(f"zookeeper://{address or server.address}", **given)
            )

        yield make


def taken(client: Client, name: str = "x", ttl: float | None = None) -> Lease:
    """As soon as the server grants it: one that has just begun, or goes on, takes its time, and most clients
    here give up soon."""
    lock = client.lock(name) if ttl is None else client.lock(name, ttl=ttl)

    def take() -> Lease | None:
        with contextlib.suppress(EngineUnavailable):
            return lock.acquire(timeout=20)
        return None

    lease = wait_until(take, timeout=20)
    assert lease is not None
    return lease


def in_background(take: Callable[[], Lease], granted: list[Lease]) -> threading.Thread:
    thread = threading.Thread(target=lambda: granted.append(take()))
    thread.start()
    return thread


def until_waiting(client: Client, count: int) -> None:
    wait_until(lambda: len(client.inspect("x").waiters) == count)


# --- holders and waiters --------------------------------------------------------------------------


@pytest.fixture
def url(server: ZooKeeper) -> str:
    return f"zookeeper://{server.address}/{fresh_namespace()}"


@pytest.fixture
def soon_over(url: str) -> str:
    """For those that die: their sessions do not last long."""
    return f"{url}?session_timeout={SECONDS}"


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    """Of one that lives on, whose session outlasts whatever keeps the machine busy."""
    with holdfast.connect(url, session_timeout=LONG) as client:
        yield client


def test_a_holder_that_is_killed_is_followed_after_its_session(soon_over: str, locks: Client) -> None:
    """Not when its follower would look by itself."""
    with holding(soon_over) as child:
        token = int(child.expect("held"))
        granted: list[Lease] = []
        thread = in_background(lambda: taken(locks), granted)
        until_waiting(locks, 1)
        child.kill()
        killed = time.monotonic()
        thread.join(POLL_SECONDS)
        assert granted[0].token > token
        assert time.monotonic() - killed < POLL_SECONDS / 3
        granted[0].release()


def test_a_waiter_that_is_killed_is_passed_after_its_session(soon_over: str, locks: Client) -> None:
    lease = taken(locks)
    with waiting(soon_over) as dead, waiting(soon_over) as alive:
        until_waiting(locks, 2)
        dead.kill()
        wait_until(lambda: len(locks.inspect("x").waiters) == 1, timeout=20)
        lease.release()
        alive.expect("granted")
        alive.send()
        alive.expect("released")


def test_a_paused_holder_is_notified_when_it_goes_on(soon_over: str, locks: Client) -> None:
    with holding(soon_over) as child:
        token = int(child.expect("held"))
        child.stop()
        lease = taken(locks)
        assert lease.token > token
        child.cont()
        assert child.expect("told") == "True"
        for attempt in ("lease.check()", "lock.release()"):
            child.send(attempt)
            assert child.expect("did").startswith("LockLost")
        lease.check()
        assert [holder.token for holder in locks.inspect("x").holders] == [lease.token]
        lease.release()


def test_a_waiter_that_is_paused_takes_a_new_place(soon_over: str, locks: Client) -> None:
    """Its session is over meanwhile; it is not served in its absence, nor twice, nor never."""
    lease = taken(locks)
    with waiting(soon_over) as child:
        until_waiting(locks, 1)
        child.stop()
        until_waiting(locks, 0)
        child.cont()
        until_waiting(locks, 1)
        lease.release()
        assert int(child.expect("granted")) > lease.token
        child.send()
        child.expect("released")


def test_an_interrupted_waiter_leaves_nothing_behind(soon_over: str, locks: Client) -> None:
    lease = taken(locks)
    with waiting(soon_over) as child:
        until_waiting(locks, 1)
        child.interrupt()
        child.expect("interrupted")
        until_waiting(locks, 0)
        lease.release()


FORKED = """
    import os, threading
    import holdfast

    locks = holdfast.connect(URL)
    lease = locks.lock("held").acquire()
    waiter = threading.Thread(target=lambda: locks.lock("held", timeout=60).acquire().release(), daemon=True)
    waiter.start()
    while not locks.inspect("held").waiters:
        pass
    child = os.fork()
    if child == 0:
        assert lease.lost
        with locks.lock("child") as own:
            assert own.token > lease.token
        assert locks.inspect("held").holders[0].pid == os.getppid()
        locks.close()
        print("child", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    lease.check()
    lease.extend()
    lease.release()
    waiter.join(20)
    assert not waiter.is_alive()
    print("parent", flush=True)
"""


def test_the_child_of_a_fork_leaves_its_parents_session_alone(url: str) -> None:
    with run_python(FORKED.replace("URL", repr(url))) as process:
        process.expect("child")
        process.expect("parent")
        assert process.wait() == 0


# --- the server -----------------------------------------------------------------------------------


def test_a_restart_is_survived(server: ZooKeeper, connect: Connect) -> None:
    """What is held stays held, who waits is served, though the connection and the watch are gone."""
    client, other = connect(session_timeout=LONG), connect(session_timeout=LONG)
    lease = taken(client)
    granted: list[Lease] = []
    thread = in_background(lambda: taken(other), granted)
    until_waiting(client, 1)
    session = session_of(client).session_id
    server.restart(kill=True)
    lease.extend()
    assert session_of(client).session_id == session
    assert not granted
    lease.release()
    thread.join(20)
    assert granted[0].token > lease.token
    granted[0].release()


def test_what_was_lost_while_the_server_was_away_is_free_when_it_is_back(
    server: ZooKeeper, connect: Connect
) -> None:
    """The server would go on with the session, and the client needs one: but nobody gives back the ticket."""
    client, other = connect(io_timeout=1), connect(session_timeout=LONG)
    lease = taken(client)
    server.kill()
    assert lease.wait_lost(timeout=20)
    wait_until(
        lambda: not client._driver.client_state.cleanup_tasks, timeout=20, message="it goes on giving back"
    )
    server.start()
    kept = taken(client, "y")
    newer = taken(other)
    assert newer.token > lease.token
    kept.check()
    for held in (kept, newer):
        held.release()


def test_a_paused_server_grants_nothing_and_loss_is_signalled_in_time(
    server: ZooKeeper, connect: Connect
) -> None:
    client = connect(io_timeout=1)
    lease = taken(client)
    server.pause()
    try:
        paused = boottime()
        with pytest.raises(EngineUnavailable):
            client.lock("y").acquire()
        assert lease.wait_lost(timeout=20)
        with pytest.raises(LockLost) as loss:
            lease.check()
        assert loss.value.reason == "unreachable"
        assert lease._state.deadline <= paused + SECONDS, "nothing moved it since"
    finally:
        server.resume()
    again = taken(client)
    assert again.token > lease.token
    again.release()


def test_an_engine_that_is_not_there(connect: Connect) -> None:
    client = connect(f"127.0.0.1:{free_port()}", io_timeout=0.5)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="'x'"):
        client.lock("x").acquire()
    assert time.monotonic() - began < 5
    assert client.lock("x").lease is None


# --- the connection: SUSPENDED, CONNECTED again, LOST ---------------------------------------------


def test_a_cut_connection_costs_nothing(connect: Connect, proxy: Proxy) -> None:
    """The session is taken on again by whichever connection comes next: nothing is lost or granted anew."""
    client, other = connect(proxy.address, session_timeout=LONG), connect(session_timeout=LONG)
    lease, theirs = taken(client, "mine"), taken(other)
    session = session_of(client).session_id
    granted: list[Lease] = []
    thread = in_background(lambda: taken(client), granted)
    until_waiting(other, 1)
    for _ in range(3):
        assert proxy.cut()
        wait_until(lambda: proxy.open_connections)
    theirs.release()
    thread.join(20)
    assert granted
    lease.extend()
    assert session_of(client).session_id == session
    for held in (lease, *granted):
        held.release()


def test_a_silent_connection_is_reported_at_the_deadline_and_revived_by_nothing(
    connect: Connect, proxy: Proxy, namespace: str, admin: Admin
) -> None:
    client, other = connect(proxy.address, io_timeout=1), connect(session_timeout=LONG)
    lease = taken(client)
    told: list[float] = []
    lease.on_lost(lambda _: told.append(boottime()))
    (session,) = admin.sessions(namespace)
    proxy.hold()
    held_up = boottime()
    assert lease.wait_lost(timeout=20)
    assert lease._state.deadline <= held_up + SECONDS, "nothing moved it since"
    wait_until(lambda: told)
    assert told[0] >= lease._state.deadline, "suspended is not lost"
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "unreachable"
    with pytest.raises(EngineUnavailable):
        client.lock("y").acquire()
    newer = taken(other)
    assert newer.token > lease.token
    wait_until(lambda: session not in admin.sessions(namespace), timeout=20)
    proxy.pass_on()
    taken(client, "y").release()
    assert session_of(client).session_id != session, "a new one"
    assert lease.lost
    with pytest.raises(LockLost):
        lease.release()
    newer.check()
    assert [holder.token for holder in other.inspect("x").holders] == [newer.token]
    assert len(told) == 1
    newer.release()


def test_a_server_that_receives_but_whose_replies_are_lost(connect: Connect, proxy: Proxy) -> None:
    """Pings would keep the session for ever, though its client cannot do anything with it."""
    client, other = connect(proxy.address, io_timeout=1), connect(session_timeout=LONG)
    lease = taken(client)
    proxy.drop("to_client")
    assert lease.wait_lost(timeout=20)
    newer = taken(other)
    assert newer.token > lease.token
    proxy.pass_on()
    newer.check()
    newer.release()


def test_what_was_lost_while_its_session_lives_on_is_given_back_however_late(
    connect: Connect, proxy: Proxy
) -> None:
    """The session carries other things, so it does not end; giving up would leave the lock taken for good."""
    client, other = connect(proxy.address, session_timeout=30, io_timeout=0.5), connect(session_timeout=LONG)
    kept = taken(client, "kept")
    lease = taken(client, ttl=1)
    session = session_of(client).session_id
    proxy.hold()
    assert lease.wait_lost(timeout=10)
    over = time.monotonic() + 2 * lease.ttl + 1
    wait_until(lambda: time.monotonic() > over, message="nobody would clean up so late")
    assert other.lock("x").acquire(blocking=False) is None
    proxy.pass_on()
    newer = taken(other)
    assert newer.token > lease.token
    assert session_of(client).session_id == session
    newer.release()
    kept.release()


def test_a_waiter_behind_a_silent_connection_is_served_once_it_goes_on(
    connect: Connect, proxy: Proxy
) -> None:
    client, other = connect(proxy.address, session_timeout=20), connect(session_timeout=LONG)
    theirs = taken(other)
    granted: list[Lease] = []
    thread = in_background(lambda: taken(client), granted)
    until_waiting(other, 1)
    proxy.hold()
    theirs.release()
    proxy.pass_on()
    thread.join(20)
    granted[0].check()
    granted[0].release()


def test_giving_up_without_a_network_does_not_hang_and_leaves_nothing_beyond_the_session(
    connect: Connect, proxy: Proxy
) -> None:
    client, other = connect(proxy.address, io_timeout=1), connect(session_timeout=LONG)
    theirs = taken(other)
    silent = threading.Event()
    ended: list[float] = []

    def wait() -> None:
        while not silent.is_set():  # it was seen, before it gave up
            with contextlib.suppress(EngineUnavailable):
                assert client.lock("x").acquire(timeout=1) is None
        ended.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    until_waiting(other, 1)
    proxy.hold()
    silent.set()
    began = time.monotonic()
    thread.join(20)
    assert ended[0] - began < 6
    until_waiting(other, 0)
    theirs.release()


# --- what is lost on the way ----------------------------------------------------------------------

lost_on_the_way = pytest.mark.parametrize("what", ["request", "reply"])
TICKET = b"/n/x/lock/x_"


def lose(proxy: Proxy, what: str) -> threading.Event:
    return (proxy.lose_request if what == "request" else proxy.lose_reply)(TICKET)


@lost_on_the_way
def test_an_acquire_that_was_lost_recognises_itself(
    connect: Connect, proxy: Proxy, admin: Admin, namespace: str, what: str
) -> None:
    """Whether the ticket was put or not: there is one, and it is the one that we have."""
    client = connect(proxy.address, session_timeout=10)
    with client.lock("x"):
        pass
    lost = lose(proxy, what)
    lease = taken(client)
    assert lost.is_set()
    (ticket,) = admin.tickets(namespace)
    assert lease.id in ticket
    assert client.inspect("x").holders[0].token == lease.token
    lease.check()
    lease.release()
    assert not admin.tickets(namespace)


@lost_on_the_way
def test_so_does_one_that_has_to_wait(
    connect: Connect, proxy: Proxy, admin: Admin, namespace: str, what: str
) -> None:
    client, other = connect(proxy.address, session_timeout=10), connect(session_timeout=10)
    taken(client, "connected").release()
    theirs = taken(other)
    lost = lose(proxy, what)
    granted: list[Lease] = []
    thread = in_background(lambda: taken(client), granted)
    assert lost.wait(20)
    until_waiting(other, 1)
    assert len(admin.tickets(namespace)) == 2
    theirs.release()
    thread.join(20)
    (ticket,) = admin.tickets(namespace)
    assert granted[0].id in ticket
    granted[0].release()
    assert not admin.tickets(namespace)


@lost_on_the_way
def test_a_release_that_was_lost_is_done(
    connect: Connect, proxy: Proxy, admin: Admin, namespace: str, what: str
) -> None:
    client = connect(proxy.address, session_timeout=10)
    lease = taken(client)
    lost = lose(proxy, what)
    lease.release()
    assert lost.is_set()
    assert not lease.lost
    wait_until(lambda: not admin.tickets(namespace))
    taken(client).release()


def test_a_release_without_a_connection_can_be_called_again(connect: Connect, proxy: Proxy) -> None:
    client = connect(proxy.address, session_timeout=30, io_timeout=2)
    lock = client.lock("x")
    lock.acquire()
    proxy.refuse()
    proxy.cut()
    with pytest.raises(EngineUnavailable):
        lock.release()
    proxy.pass_on()

    def released() -> bool:
        with contextlib.suppress(EngineUnavailable):
            lock.release()
            return True
        return False

    wait_until(released)
    assert not client.inspect("x").locked


@lost_on_the_way
def test_a_session_whose_beginning_was_lost(connect: Connect, proxy: Proxy, what: str) -> None:
    """A client that may have registered it already finds its node."""
    client = connect(proxy.address, session_timeout=10)
    lost = (proxy.lose_request if what == "request" else proxy.lose_reply)(b"/s/")
    lease = taken(client)
    assert lost.is_set()
    lease.check()
    lease.release()


# --- asyncio --------------------------------------------------------------------------------------


def test_asyncio_over_cut_and_silent_connections(server: ZooKeeper, proxy: Proxy, namespace: str) -> None:
    """The body is cancelled at the deadline; before that a cut costs nothing, and afterwards all goes on."""

    async def main() -> None:
        async with holdfast.aio.connect(
            f"zookeeper://{proxy.address}", namespace=namespace, session_timeout=SECONDS, io_timeout=1.0
        ) as locks:
            tokens: list[int] = []

            async def hold() -> None:
                async with locks.lock("x", timeout=20) as lease:
                    tokens.append(lease.token)
                    proxy.cut()
                    before = lease._state.deadline
                    await async_wait_until(lambda: lease._state.deadline > before, timeout=20)
                    lease.check()
                    proxy.hold()
                    tokens.append(lease.token)
                    await asyncio.Event().wait()

            with pytest.raises(LockLost):
                await hold()
            with pytest.raises(EngineUnavailable):
                await locks.lock("y").acquire()
            proxy.pass_on()
            async with locks.lock("x", timeout=20) as newer:
                assert [newer.token > token for token in tokens] == [True, True]

    asyncio.run(main())


def test_asyncio_cancelled_while_nothing_answers(
    server: ZooKeeper, connect: Connect, proxy: Proxy, namespace: str
) -> None:
    """The cancellation does not hang; what it leaves goes with the session."""
    other = connect(session_timeout=LONG)
    assert not other.inspect("x").holders  # it is connected

    async def main() -> None:
        client = holdfast.aio.connect(
            f"zookeeper://{proxy.address}", namespace=namespace, session_timeout=LONG, io_timeout=4.0
        )
        async with client.lock("x"):
            pass
        proxy.hold("to_client")
        asking = asyncio.ensure_future(client.lock("x").acquire())
        await async_wait_until(lambda: other.inspect("x").holders)
        asking.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert time.monotonic() - began < 5
        await client.close()

    asyncio.run(main())
    taken(other).release()
