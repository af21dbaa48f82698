"""Wake-ups are notifications: sent only where somebody waits, heard by one connection of each client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

import holdfast
from contract.harness import World, held
from engines.postgres.looking import hears
from holdfast import provision
from holdfast.engines.postgres.connection import PgConnection
from holdfast.engines.postgres.scripts import VERSION
from support import renewal_of, wait_until
from support.servers import shared_postgresql


@pytest.fixture
def ear(url: str, schema: str) -> Iterator[psycopg.Connection]:
    """Hears what is sent to the clients ``a`` and ``b``, who are none of Holdfast's own making."""
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


def heard(connection: psycopg.Connection) -> list[tuple[str, str]]:
    connection.execute("SELECT")
    return [(note.channel, note.payload) for note in connection.notifies(timeout=0.2)]


def test_nothing_is_sent_where_nobody_waits(ear: psycopg.Connection, schema: str) -> None:
    """Commits that notify stand in line behind one lock of the whole server."""
    for number in range(10):
        ask(ear, schema, f"a{number}", wait=False)
        assert ask(ear, schema, "b0", wait=False).startswith("B")
        release(ear, schema, f"a{number}")
    assert heard(ear) == []


def test_the_next_in_line_is_told_and_nobody_else(ear: psycopg.Connection, schema: str) -> None:
    ask(ear, schema, "a0", wait=False)
    assert ask(ear, schema, "b1", wait=True).startswith("Q[0")
    assert ask(ear, schema, "a2", wait=True).startswith("Q[1")
    assert heard(ear) == []
    release(ear, schema, "a0")
    assert heard(ear) == [("holdfast_b", "b1")]
    assert ask(ear, schema, "b1", wait=True).startswith("g")
    assert heard(ear) == []
    release(ear, schema, "b1")
    assert heard(ear) == [("holdfast_a", "a2")]


async def test_a_wake_up_comes_at_once(world: World) -> None:
    """Not by looking: the next look would be seconds away."""
    ann, bob = world.actor(), world.actor()
    mine, theirs = world.client(), world.client()
    lock, other = mine.lock("x"), theirs.lock("x")
    for _ in range(5):
        await ann(lock.acquire)
        waiting = bob(other.acquire)
        await world.until_waiting("x", 1)
        await world.until(lambda: hears(theirs))
        began = time.monotonic()
        await ann(lock.release)
        held(await waiting)
        took = time.monotonic() - began
        await bob(other.release)
        if took < 0.5:
            return
    raise AssertionError(f"it took {took} s")


async def test_a_broken_holder_is_told_even_if_it_listens_only_later(world: World) -> None:
    """The notification may come before anybody hears: then the keeper looks when hearing begins."""
    ann, eve = world.actor(), world.actor()
    mine, theirs = world.client(), world.client()
    await eve(theirs.inspect, "x")
    lease = held(await ann(mine.lock("x", ttl=3600).acquire))
    await eve(theirs.break_lock, "x", reason="test")
    await world.until(lambda: lease.lost)


def test_one_connection_hears_for_all_threads(url: str, schema: str) -> None:
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


def test_a_client_that_is_closed_hears_no_more(url: str, schema: str) -> None:
    named = f"{url}&application_name={schema}"
    count = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'"
    with holdfast.connect(named) as client, client.lock("x"):
        wait_until(lambda: hears(client))
        assert int(shared_postgresql().sql(count)) >= 2
    wait_until(lambda: shared_postgresql().sql(count) == "0")
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-postgres"]


def test_who_watches_hears_of_changes(url: str) -> None:
    with holdfast.connect(url) as client, holdfast.connect(url) as other, client.watch("x") as watch:
        assert watch.next() is not None
        wait_until(lambda: hears(client))
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
    """By trying, where nothing else tells: those who wait, watch and hold look by themselves."""
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
    assert not hears(mine)
    assert not hears(theirs)
    await eve(getattr(watch, eve.exit_name), None, None, None)
