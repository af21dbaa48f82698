"""Wake-ups are notifications: sent only to waiters, received by one connection of each client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

import holdfast
from contract.harness import World, held
from engines.postgres.introspection import receives_notifications
from holdfast import provision
from holdfast.engines.postgres.connection import PgConnection
from holdfast.engines.postgres.notifications import ListenerThread
from holdfast.engines.postgres.scripts import VERSION
from support import renewal_of, wait_until
from support.servers import shared_postgresql


@pytest.fixture
def listener(url: str, schema: str) -> Iterator[psycopg.Connection]:
    """Receives the notifications for the clients ``a`` and ``b``, which the test made up."""
    provision.install(url)
    with psycopg.connect(shared_postgresql().url, autocommit=True) as connection:
        connection.execute("LISTEN holdfast_a")
        connection.execute("LISTEN holdfast_b")
        yield connection


def ask(connection: psycopg.Connection, schema: str, nonce: str, wait: bool) -> str:
    row = connection.execute(
        f"SELECT {schema}.acquire_{VERSION}('s', 'x', %s, %s, 'o', 'lock', 'exclusive', 30, %s,"
        " true, true, NULL, 0, NULL)".encode(),
        (nonce, nonce[0], wait),
    ).fetchone()
    assert row is not None
    return str(row[0])


def release(connection: psycopg.Connection, schema: str, nonce: str) -> None:
    connection.execute(f"SELECT {schema}.release_{VERSION}('s', 'x', %s, 0)".encode(), (nonce,))


def received(connection: psycopg.Connection) -> list[tuple[str, str]]:
    connection.execute("SELECT")
    return [(note.channel, note.payload) for note in connection.notifies(timeout=0.2)]


def test_nothing_is_sent_without_a_waiter(listener: psycopg.Connection, schema: str) -> None:
    """Commits that notify queue for one lock of the whole server."""
    for number in range(10):
        ask(listener, schema, f"a{number}", wait=False)
        assert ask(listener, schema, "b0", wait=False).startswith("B")
        release(listener, schema, f"a{number}")
    assert received(listener) == []


def test_only_the_next_waiter_is_notified(listener: psycopg.Connection, schema: str) -> None:
    ask(listener, schema, "a0", wait=False)
    assert ask(listener, schema, "b1", wait=True).startswith("Q[0")
    assert ask(listener, schema, "a2", wait=True).startswith("Q[1")
    assert received(listener) == []
    release(listener, schema, "a0")
    assert received(listener) == [("holdfast_b", "b1")]
    assert ask(listener, schema, "b1", wait=True).startswith("g")
    assert received(listener) == []
    release(listener, schema, "b1")
    assert received(listener) == [("holdfast_a", "a2")]


async def test_a_wake_up_comes_at_once(world: World) -> None:
    """Not by polling: the next poll would be seconds away."""
    ann, bob = world.actor(), world.actor()
    mine, theirs = world.client(), world.client()
    lock, other = mine.lock("x"), theirs.lock("x")
    for _ in range(5):
        await ann(lock.acquire)
        waiting = bob(other.acquire)
        await world.until_waiting("x", 1)
        await world.until(lambda: receives_notifications(theirs))
        began = time.monotonic()
        await ann(lock.release)
        held(await waiting)
        took = time.monotonic() - began
        await bob(other.release)
        if took < 0.5:
            return
    raise AssertionError(f"it took {took} s")


async def test_a_broken_holder_learns_it_even_if_it_listens_later(world: World) -> None:
    """The notification may come before the client listens: then the keeper looks when listening begins."""
    ann, eve = world.actor(), world.actor()
    mine, theirs = world.client(), world.client()
    await eve(theirs.inspect, "x")
    lease = held(await ann(mine.lock("x", ttl=3600).acquire))
    await eve(theirs.break_lock, "x", reason="test")
    await world.until(lambda: lease.lost)


def test_one_connection_listens_for_all_threads(url: str, schema: str) -> None:
    """Two hundred wait: a handful of connections, and the holder still renews and releases."""
    named = f"{url}&application_name={schema}"
    count = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'"
    with holdfast.connect(named) as client:
        lock = client.lock("x", ttl=12)
        lease = lock.acquire()
        assert lease is not None
        done: list[int] = []

        def wait_for_it() -> None:
            with client.lock("x", ttl=60) as mine:
                done.append(mine.token)

        threads = [threading.Thread(target=wait_for_it) for _ in range(200)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(client.inspect("x").waiters) == 200, timeout=60)
        wait_until(renewal_of(lease), timeout=20)
        lease.check()
        assert int(shared_postgresql().sql(count)) <= 5
        lock.release()
        for thread in threads:
            thread.join(60)
        assert len(done) == 200
        assert done == sorted(done)


def test_a_closed_client_does_not_listen(url: str, schema: str) -> None:
    named = f"{url}&application_name={schema}"
    count = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'"
    with holdfast.connect(named) as client, client.lock("x"):
        wait_until(lambda: receives_notifications(client))
        assert int(shared_postgresql().sql(count)) >= 2
    wait_until(lambda: shared_postgresql().sql(count) == "0")
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-postgres"]


def test_watchers_are_notified_of_changes(url: str) -> None:
    with holdfast.connect(url) as client, holdfast.connect(url) as other, client.watch("x") as watch:
        assert watch.next() is not None
        wait_until(lambda: receives_notifications(client))
        with other.lock("x") as lease:
            began = time.monotonic()
            seen = watch.next(timeout=20)
            assert seen is not None
            assert [holder.token for holder in seen.holders] == [lease.token]
            assert time.monotonic() - began < 2


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a proxy that answers as the server would and keeps notifications to itself."""
    hear = PgConnection.receive_notifications

    def hear_nothing(link: PgConnection) -> list[str]:
        hear(link)
        return []

    monkeypatch.setattr(PgConnection, "receive_notifications", hear_nothing)


@pytest.mark.usefixtures("swallowed")
async def test_where_notifications_do_not_come_it_is_found_out(world: World) -> None:
    """By a test message: otherwise waiters, watchers and holders poll."""
    ann, bob, eve = world.actor(), world.actor(), world.actor()
    mine, theirs = world.client(), world.client()
    watch = theirs.watch("x")
    await eve(getattr(watch, eve.enter_name))
    assert await eve(watch.next) is not None
    lease = held(await ann(mine.lock("x", ttl=3600).acquire))
    waiting = bob(theirs.lock("x", ttl=3600).acquire, timeout=60)
    await world.until_waiting("x", 1)
    await ann(lease.release)
    newer = held(await waiting)
    assert newer.token > lease.token

    async def sees_it_held() -> None:
        while (seen := await eve(watch.next, timeout=20)) is not None:
            if [holder.token for holder in seen.holders] == [newer.token]:
                return
        raise AssertionError("it was never seen")

    await sees_it_held()
    await eve(mine.break_lock, "x", reason="test")
    assert await bob(newer.wait_lost, timeout=20), "nobody looked after what is held"
    assert not receives_notifications(mine)
    assert not receives_notifications(theirs)
    await eve(getattr(watch, eve.exit_name), None, None, None)


class BusyListener(ListenerThread):
    """A listener that does not look at its self-pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def _work(self) -> None:
        self.go_on.wait(30)


def test_waking_a_busy_listener_never_blocks() -> None:
    """A pipe holds some 65,000 bytes; one more wake-up would wait for the listener to read them."""
    listener = BusyListener()
    listener.start()

    def wake_often() -> None:
        for _ in range(70_000):
            listener.wake()

    waking = threading.Thread(target=wake_often, daemon=True)
    waking.start()
    waking.join(20)
    assert not waking.is_alive()
    listener.go_on.set()
    listener.close()
    listener.wake()
