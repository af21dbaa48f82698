"""Session locks: what is on which connection, what is said to the server, and what is left there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import psycopg
import pytest
from psycopg.pq.abc import PGresult

import holdfast
import holdfast.aio
from contract.harness import Actor, World, held
from holdfast import Client, EngineUnavailable, InvalidArgument, Lease, LockLost, provision
from holdfast.engine_api import Steps
from holdfast.engines.postgres.advisory import pool
from holdfast.engines.postgres.advisory.asyncio import AdvisoryAsyncio
from holdfast.engines.postgres.advisory.effects import execute
from holdfast.engines.postgres.advisory.keys import key_of
from holdfast.engines.postgres.advisory.notifications import SessionListener
from holdfast.engines.postgres.advisory.pool import SESSIONS_FOR_LOAD
from holdfast.engines.postgres.advisory.session import LockAttempt, Session
from holdfast.engines.postgres.advisory.threads import AdvisoryThreads
from holdfast.engines.postgres.codec import Call, Statement
from holdfast.engines.postgres.connection import PgConnection, PQGen, run_generator
from holdfast.lab.servers import PgBouncer
from holdfast.rules.requests import Reply
from holdfast.runtime.clock import boottime
from support import wait_until
from support.servers import shared_pgbouncer, shared_postgresql

pytestmark = pytest.mark.engine("postgresql+advisory")


@pytest.fixture
def url(schema: str) -> str:
    """A schema of its own, and a name by which the server tells the connections of this test."""
    return _url(shared_postgresql().url, schema)


def _url(url: str, schema: str, **options: str) -> str:
    answer = "".join(f"&{name}={value}" for name, value in options.items())
    advisory = url.replace("postgresql", "postgresql+advisory", 1)
    return f"{advisory}?schema={schema}&application_name={schema}{answer}"


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        yield client


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared_postgresql().url, autocommit=True) as connection:
        yield connection


def backends(schema: str) -> int:
    answer = shared_postgresql().sql(
        f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'"
    )
    return int(answer)


def advisory_locks(schema: str) -> int:
    """How many are held or wanted on the connections of this test."""
    answer = shared_postgresql().sql(
        "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        f" WHERE l.locktype = 'advisory' AND a.application_name = '{schema}'"
    )
    return int(answer)


def taken(client: Client, name: str = "x", ttl: float = 30.0) -> holdfast.Lease:
    lease = client.lock(name, ttl=ttl).acquire(timeout=0)
    assert lease is not None
    return lease


# --- keys ---------------------------------------------------------------------------------------


def test_keys_are_the_same_everywhere() -> None:
    """Fixed values: with another key, clients of older versions would take another lock."""
    assert key_of("holdfast", "x") == -5745131493836048243
    assert key_of("shop", "invoices/ä🔒") == 6870675075780230273


def test_a_hundred_thousand_names_have_as_many_keys() -> None:
    keys = {key_of("holdfast", f"order/{number}") for number in range(100_000)}
    assert len(keys) == 100_000
    assert min(keys) < -(2**62)
    assert max(keys) > 2**62, "all 64 bits are used"


def test_a_namespace_and_a_name_do_not_run_together() -> None:
    assert key_of("a", "bc") != key_of("ab", "c")


def test_the_server_has_that_key(locks: Client, schema: str) -> None:
    lease = taken(locks)
    high, low = (
        shared_postgresql()
        .sql(
            "SELECT l.classid, l.objid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            f" WHERE l.locktype = 'advisory' AND a.application_name = '{schema}'"
        )
        .split("|")
    )
    key = key_of("holdfast", "x")
    assert (int(high), int(low)) == ((key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF)
    lease.release()


# --- connections --------------------------------------------------------------------------------


def test_what_is_held_shares_a_connection(locks: Client, schema: str) -> None:
    leases = [taken(locks, f"name {number}") for number in range(300)]
    assert backends(schema) <= 3
    assert advisory_locks(schema) == 300
    for lease in leases:
        lease.release()
    assert advisory_locks(schema) == 0


def test_another_ttl_is_another_connection(locks: Client, schema: str) -> None:
    """The server ends a session that is idle for its ttl: a short ttl must not end a long lease."""
    long, short = taken(locks, "long", ttl=30), taken(locks, "short", ttl=3.0)
    wait_until(lambda: short.lost or locks.inspect("short").holders[0].age > 3.5)
    long.check()
    short.check()
    long.release()
    short.release()


async def _on_the_session(ann: Actor, client: Client, expression: str) -> str:
    """What the server makes of an expression on the connection that has a lock of this client."""
    adapter: object = client._driver.adapter
    assert isinstance(adapter, AdvisoryThreads | AdvisoryAsyncio)
    (session,) = [session for session in adapter._pool.sessions if session.held]
    call = Call(Statement(b"", f"SELECT {expression}".encode(), ()), ())
    result: Any = await ann(cast(Any, adapter)._run, execute(adapter._pool, session, call))
    return bytes(result.get_value(0, 0)).decode()


IDLE = "current_setting('idle_session_timeout')"


@pytest.mark.parametrize(("ttl", "idle"), [(2.5, "2501ms"), (30.0, "30001ms"), (30 * 86400.0, "0")])
async def test_the_server_ends_a_session_that_is_idle_for_its_ttl(
    world: World, ttl: float, idle: str
) -> None:
    """Whatever else it is set to; and never, where a ttl is longer than it can count."""
    world.url += "&options=-c%20idle_session_timeout%3D7s"
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=ttl).acquire))
    assert await _on_the_session(ann, client, IDLE) == idle
    await ann(lease.release)


async def test_another_ttl_never_shortens_the_idle_timeout(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=30.0).acquire))
    await ann(lease.extend, 60.0)
    assert await _on_the_session(ann, client, IDLE) == "60001ms"
    await ann(lease.extend, 10.0)
    assert await _on_the_session(ann, client, IDLE) == "60001ms"
    await ann(lease.release)


async def test_the_end_of_an_idle_session_is_a_loss(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=600.0).acquire))
    await _on_the_session(ann, client, "set_config('idle_session_timeout', '100ms', false)")
    assert await ann(lease.wait_lost, timeout=20)
    with pytest.raises(LockLost, match="idle-session timeout"):
        lease.check()
    assert not world.look("x").locked


async def test_each_waiter_has_a_connection_up_to_a_limit(world: World, schema: str) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x")
    lease = held(await ann(lock.acquire))
    other = held(await ann(client.lock("y").acquire))
    tokens: list[int] = []

    async def take_a_turn(actor: Actor) -> None:
        async with actor.inside(client.lock("x")) as got:
            tokens.append(got.token)

    turns = [asyncio.create_task(take_a_turn(world.actor())) for _ in range(25)]
    await world.until_waiting("x", 8)
    assert backends(schema) <= 8 + 2 + 3 + 2, "those who wait, look and hold, and the one who looks for us"
    await ann(other.release)
    await ann(lock.release)
    await asyncio.gather(*turns)
    assert len(set(tokens)) == 25
    assert tokens == sorted(tokens)
    assert min(tokens) > lease.token
    await world.until(lambda: advisory_locks(schema) == 0)


def test_many_tasks_on_one_connection_are_served_in_turn(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that had just finished was first again, and starved others until their time ran out."""
    monkeypatch.setattr(pool, "SESSIONS_FOR_LOAD", 1)
    rounds, done = 5, [0] * 40

    async def work(client: holdfast.aio.AsyncClient, number: int) -> None:
        for _ in range(rounds):
            async with client.lock(f"x{number}"):
                done[number] += 1
        assert min(done) >= rounds - 2

    async def run() -> None:
        async with holdfast.aio.connect(url) as client, client.lock("first"):
            await asyncio.gather(*[work(client, number) for number in range(len(done))])

    asyncio.run(run())


async def test_what_is_free_can_be_had_although_many_wait_for_something_else(world: World) -> None:
    ann, client = world.actor(), world.client()
    await ann(client.lock("x").acquire)
    y = held(await ann(client.lock("y").acquire))
    crowd = [world.actor()(client.lock("x").acquire, timeout=60) for _ in range(12)]
    await world.until_waiting("x", 8)
    waiting = world.actor()(client.lock("y").acquire, timeout=20)
    await ann(y.release)
    assert await waiting is not None
    await ann(client.close)
    for each in crowd:
        with pytest.raises(InvalidArgument, match="closed"):
            await each


def _noted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of all statements that are sent from now on."""
    sent: list[bytes] = []
    execute = PgConnection.execute

    def noting(self: PgConnection, call: Call) -> PQGen[PGresult]:
        sent.append(call.statement.name)
        return execute(self, call)

    monkeypatch.setattr(PgConnection, "execute", noting)
    return sent


def test_a_lock_and_its_release_are_a_statement_each(locks: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with locks.lock("x"):
        pass  # connected, prepared
    sent = _noted(monkeypatch)
    with locks.lock("x"):
        pass
    assert sent == [b"holdfast_session_take_1", b"holdfast_session_release_1"]


async def test_a_repeated_wait_does_not_record_the_waiter_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is seen to wait all the same."""
    ann, bob, mine, other = world.actor(), world.actor(), world.client(), world.client()
    sent = _noted(monkeypatch)
    for _ in range(3):
        lease = held(await ann(mine.lock("x").acquire))
        waiting = bob(other.lock("x").acquire, timeout=20)
        await world.until_waiting("x", 1)
        await ann(lease.release)
        await bob(held(await waiting).release)
    assert sent.count(b"holdfast_session_wait_1") == 1


def test_a_waiting_thread_reads_its_grant_itself(locks: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it would poll, and with a listener that reads nothing."""
    monkeypatch.setattr(SessionListener, "_sessions", lambda self, poll: {})
    lease = held(locks.lock("x").acquire())
    with ThreadPoolExecutor(1) as waiter:
        waiting = waiter.submit(locks.lock("x").acquire, timeout=20)
        wait_until(lambda: locks.inspect("x").waiters)
        lease.release()
        granted = held(waiting.result(timeout=3))
    assert granted.token > lease.token
    granted.release()


def test_a_thousand_leases_are_renewed_by_one_statement(
    locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = _noted(monkeypatch)
    rounds: list[int] = []
    renew_batch = AdvisoryThreads.renew_batch

    def counting(self: AdvisoryThreads, steps: Steps) -> list[Reply]:
        rounds.append(len(steps))
        return renew_batch(self, steps)

    monkeypatch.setattr(AdvisoryThreads, "renew_batch", counting)
    leases = [taken(locks, f"name {number}", ttl=4.0) for number in range(1000)]
    wait_until(lambda: locks.inspect("name 999").holders[0].age > 4.5)
    for lease in leases:
        lease.check()
    assert sum(rounds) >= 2 * len(leases)
    # A lock that is taken during a heartbeat opens another session: then each has its own heartbeat.
    adapter = locks._driver.adapter
    assert isinstance(adapter, AdvisoryThreads)
    sessions = len(adapter._pool.sessions)
    assert sessions <= SESSIONS_FOR_LOAD
    beats = sent.count(b"holdfast_session_beat_1")
    assert 0 < beats <= sessions * len(rounds), "one for each session in a round, not one for each lease"
    for lease in leases:
        lease.release()


# --- what is left -------------------------------------------------------------------------------


async def test_a_time_out_that_races_the_grant_leaves_nothing(world: World, schema: str) -> None:
    """Either the lock is held, or nothing of the attempt is left."""
    ann, bob = world.actor(), world.actor()
    mine, theirs = world.client().lock("x"), world.client().lock("x")
    granted, rounds, pause = 0, 40, 0.03
    for _ in range(rounds):
        lease = held(await ann(mine.acquire, timeout=20))
        waiting = bob(theirs.acquire, timeout=0.03)
        await asyncio.sleep(pause)
        await ann(lease.release)
        got = await waiting
        pause *= 1.1 if got is not None else 0.9  # so that both come as close as they do on this machine
        if got is not None:
            granted += 1
            assert got.token > lease.token
            await bob(got.release)
    await world.until(lambda: advisory_locks(schema) == 0)
    assert held(await ann(mine.acquire, timeout=5)).token > lease.token
    assert 0 < granted < rounds, "there was no race"


async def test_a_timeout_in_the_moment_of_the_grant_releases_it(
    world: World, schema: str, connection: psycopg.Connection
) -> None:
    """The server has taken the lock and has no token yet: the lock must not stay unknown to its client."""
    ann, bob = world.actor(), world.actor()
    mine, theirs = world.client().lock("x"), world.client().lock("x")
    await bob(held(await bob(theirs.acquire)).release)  # connected
    lease = held(await ann(mine.acquire))
    waiting = bob(theirs.acquire, timeout=3.0)
    await world.until_waiting("x", 1)
    with connection.transaction():
        connection.execute(f"SELECT FROM {schema}.session_names FOR UPDATE".encode())
        await ann(lease.release)
        assert await waiting is None
    await world.until(lambda: advisory_locks(schema) == 0, "it is held by nobody's grant", timeout=5)
    assert held(await ann(mine.acquire, timeout=0)).token > lease.token


def test_what_the_server_has_released_can_be_had_before_the_releaser_knows(
    locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, detach = taken(locks), pool.SessionPool.detach
    is_released, may_go_on = threading.Event(), threading.Event()

    def slowly(self: pool.SessionPool, attempt: LockAttempt) -> None:
        if threading.current_thread() is releaser:
            is_released.set()
            assert may_go_on.wait(20)
        detach(self, attempt)

    monkeypatch.setattr(pool.SessionPool, "detach", slowly)
    releaser = threading.Thread(target=lease.release)
    releaser.start()
    try:
        assert is_released.wait(20)
        again = taken(locks)
        assert again.token > lease.token
        again.release()
    finally:
        may_go_on.set()
        releaser.join()


async def test_an_error_after_the_grant_leaves_no_lock(
    world: World, schema: str, connection: psycopg.Connection
) -> None:
    ann, client = world.actor(), world.client()
    await ann(held(await ann(client.lock("x").acquire)).release)
    connection.execute(
        f"ALTER TABLE {schema}.session_names ADD CONSTRAINT no CHECK (token < 0) NOT VALID".encode()
    )
    with pytest.raises(EngineUnavailable, match="23514"):
        await ann(client.lock("x").acquire, timeout=0)
    assert advisory_locks(schema) == 0
    connection.execute(f"ALTER TABLE {schema}.session_names DROP CONSTRAINT no".encode())
    assert await ann(client.lock("x").acquire, timeout=0) is not None


async def test_no_connection_is_kept_with_a_lock_on_it(world: World, schema: str) -> None:
    ann, client = world.actor(), world.client()
    for ttl in (0.3, 5.0, 30.0):
        with contextlib.suppress(LockLost):  # where the time of the shortest is over before
            await ann(held(await ann(client.lock("x", ttl=ttl).acquire)).release)
        write = client.rwlock("rw", ttl=ttl).write()
        with contextlib.suppress(LockLost):
            read = await ann(held(await ann(write.acquire)).downgrade)
            await ann(read.release)
        held(await ann(write.acquire))
        await ann(client.break_lock, "rw", reason="test")
    await world.until(lambda: advisory_locks(schema) == 0)


def test_the_row_of_a_name_may_go(locks: Client, schema: str, connection: psycopg.Connection) -> None:
    """It decides nothing: the lock is held on, and the next token is larger by the clock."""
    lease = taken(locks)
    connection.execute(f"DELETE FROM {schema}.session_names".encode())
    assert locks.lock("x").acquire(timeout=0) is None
    lease.extend(30)
    lease.check()
    lease.release()
    again = taken(locks)
    assert again.token > lease.token
    again.release()


async def test_what_needs_the_row_of_a_name_tells_of_a_loss(
    world: World, schema: str, connection: psycopg.Connection
) -> None:
    """The row has no token any more: a value would have no owner."""
    ann, client = world.actor(), world.client()
    needs: list[Callable[[Lease], Awaitable[object]]] = [
        lambda lease: ann(lease.set_value, b"1"),
        lambda lease: ann(lease.extend, 60.0),
        lambda lease: ann(lease.downgrade),
    ]
    for need in needs:
        lease = held(await ann(client.rwlock("x", ttl=30).write().acquire, timeout=5))
        connection.execute(f"DELETE FROM {schema}.session_names".encode())
        with pytest.raises(LockLost):
            await need(lease)
        assert lease.lost
        await world.until(lambda: advisory_locks(schema) == 0)


def test_unused_names_are_deleted(locks: Client, schema: str, connection: psycopg.Connection) -> None:
    kept, idle = taken(locks, "kept"), taken(locks, "idle")
    idle.release()
    connection.execute(f"UPDATE {schema}.session_names SET changed_at = changed_at - 100000".encode())
    row = connection.execute(f"SELECT {schema}.session_sweep_1(1000, {schema}.clock_1())".encode()).fetchone()
    assert row == (1,)
    kept.check()
    kept.release()
    again = taken(locks, "idle")
    assert again.token > idle.token
    again.release()


def test_waiters_of_ended_connections_are_deleted(
    locks: Client, url: str, schema: str, connection: psycopg.Connection
) -> None:
    lease = taken(locks)
    answer = f"SELECT count(*) FROM {schema}.session_waiters"
    with holdfast.connect(url) as gone:

        def has_waited() -> bool:
            """Its time may be over before it is connected."""
            assert gone.lock("x").acquire(timeout=0.1) is None
            return shared_postgresql().sql(answer) == "1"

        wait_until(has_waited)
    ended = (
        f"SELECT count(*) FROM {schema}.session_waiters w"
        " WHERE NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = w.backend)"
    )
    wait_until(lambda: shared_postgresql().sql(ended) == "1")
    with ThreadPoolExecutor(1) as waiter:
        waiting = waiter.submit(locks.lock("x").acquire, timeout=20)
        wait_until(lambda: locks.inspect("x").waiters)
        connection.execute(f"SELECT {schema}.session_sweep_waiters_1()".encode())
        assert shared_postgresql().sql(ended) == "0"
        assert len(locks.inspect("x").waiters) == 1
        lease.release()
        held(waiting.result(timeout=20)).release()


def test_both_engines_of_one_database_keep_out_of_each_others_way(locks: Client, schema: str) -> None:
    with holdfast.connect(f"{shared_postgresql().url}?schema={schema}") as table:
        leases = taken(table), taken(locks)
        leases[0].set_value(b"table")
        leases[1].set_value(b"session")
        assert (table.inspect("x").value, locks.inspect("x").value) == (b"table", b"session")
        assert [info.name for info in table.list()] == [info.name for info in locks.list()] == ["x"]
        assert leases[0].fence.source != leases[1].fence.source
        for lease in leases:
            lease.release()


def test_it_is_prepared_beforehand_too(url: str) -> None:
    assert provision.install(url) is True
    assert provision.install(url) is False
    assert "session_names" in provision.script(url)


# --- proxies ------------------------------------------------------------------------------------


async def _refused(world: World) -> None:
    ann, client = world.actor(), world.client()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"postgresql://.*works behind") as refusal:
        await ann(client.lock("x").acquire)
    assert "pooler=no" in str(refusal.value)
    assert time.monotonic() - began < 10
    with pytest.raises(EngineUnavailable):
        await ann(client.inspect, "x")


async def test_a_transaction_pooling_proxy_is_refused(world: World, schema: str) -> None:
    provision.install(world.url)
    world.url = _url(shared_pgbouncer().url, schema)
    await _refused(world)


async def test_one_that_is_denied_is_noticed_all_the_same(world: World, schema: str) -> None:
    """pooler=no is accepted until another server process answers than the one that was expected."""
    provision.install(world.url)
    with PgBouncer(shared_postgresql(), settings={"default_pool_size": "2"}) as bouncer:
        world.url = _url(bouncer.url, schema, pooler="no")
        ann, client = world.actor(), world.client()
        held(await ann(client.lock("x").acquire, timeout=5))
        with psycopg.connect(bouncer.url) as borrower:
            borrower.execute("SELECT")  # in a transaction, so the connection with the lock on it is lent out
            with pytest.raises(EngineUnavailable, match=r"connection|one of their own"):
                await ann(client.lock("y").acquire, timeout=5)
        await ann(client.close)


async def test_a_session_pooling_proxy_works_with_pooler_no(world: World, schema: str) -> None:
    provision.install(world.url)
    with PgBouncer(shared_postgresql(), pool_mode="session") as bouncer:
        world.url = _url(bouncer.url, schema)
        await _refused(world)
        world.url = _url(bouncer.url, schema, pooler="no")
        ann, bob, client = world.actor(), world.actor(), world.client()
        lease = held(await ann(client.lock("x").acquire))
        assert await bob(client.lock("x").acquire, timeout=0) is None
        waiting = bob(client.lock("x").acquire)
        await ann(lease.release)
        assert held(await waiting).token > lease.token
        await ann(client.close)


def test_pooler_yes_makes_no_sense(schema: str) -> None:
    with pytest.raises(InvalidArgument, match="postgresql://"):
        holdfast.connect(_url(shared_postgresql().url, schema, pooler="yes"))


def test_a_broken_lock_costs_the_others_on_its_connection_nothing(locks: Client, url: str) -> None:
    one, two = taken(locks, "one"), taken(locks, "two")
    with holdfast.connect(url) as other:
        assert other.break_lock("one", reason="test") is not None
    wait_until(lambda: one.lost)
    two.check()
    with pytest.raises(LockLost) as loss:
        one.release()
    assert loss.value.reason == "broken"
    assert locks.inspect("two").holders[0].token == two.token
    two.release()


@pytest.mark.parametrize(("ttl", "answer"), [(5.0, b"5001ms"), (40 * 86_400.0, b"0")])
def test_every_session_has_an_idle_timeout_from_the_start(
    url: str, monkeypatch: pytest.MonkeyPatch, ttl: float, answer: bytes
) -> None:
    """If the first statement fails, its timeout is rolled back, but the lock that it took stays."""
    shipped = AdvisoryThreads._open
    seen: list[tuple[Session, bytes]] = []

    def idle_of(session: Session) -> bytes:
        pg: PgConnection = session.connection.pg
        with session.connection.mutex:
            result = run_generator(pg, pg.execute_script("SHOW idle_session_timeout"), boottime() + 5.0)
        return result.get_value(0, 0) or b""

    def opened(self: AdvisoryThreads) -> Session:
        session = shipped(self)
        seen.append((session, idle_of(session)))
        return session

    monkeypatch.setattr(AdvisoryThreads, "_open", opened)
    with holdfast.connect(url) as locks, locks.lock("job", ttl=ttl):
        ((session, at_first),) = seen
        assert (at_first, idle_of(session)) == (b"10s", answer)
