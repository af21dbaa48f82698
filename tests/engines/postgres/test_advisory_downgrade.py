"""A writer becomes a reader and something comes in between: it is known to be one, the other, or neither."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pytest

import holdfast
import holdfast.aio
from api.test_interrupts import Held, Interrupter, interrupted_by
from contract.harness import World, held
from engines.postgres.introspection import granted
from holdfast import Client, EngineUnavailable, Lease, Lock, LockLost, NotHeld, provision
from holdfast.aio import AsyncLease
from holdfast.engines.postgres.advisory.asyncio import AdvisoryAsyncio
from holdfast.engines.postgres.advisory.effects import Effect
from holdfast.lab.proxy import Proxy
from support import async_wait_until, wait_until
from support.servers import shared_postgresql

pytestmark = pytest.mark.engine("postgresql+advisory")


@pytest.fixture
def url(schema: str) -> str:
    """With a name by which the server tells the connections of this test."""
    advisory = shared_postgresql().url.replace("postgresql", "postgresql+advisory", 1)
    url = f"{advisory}?schema={schema}&application_name={schema}"
    provision.install(url)
    return url


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        yield client


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = shared_postgresql()
    with Proxy(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared_postgresql().url, autocommit=True) as connection:
        yield connection


def modes(schema: str) -> list[str]:
    """In which the connections of this test have locks."""
    answer = shared_postgresql().sql(
        "SELECT l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        f" WHERE l.locktype = 'advisory' AND a.application_name = '{schema}' ORDER BY 1"
    )
    return answer.split()


def is_settled(lease: Lease | AsyncLease, schema: str) -> bool:
    """The server's lock matches the lease."""
    return modes(schema) == ([] if lease.lost else ["ExclusiveLock"])


def refuse_tokens(connection: psycopg.Connection, schema: str) -> None:
    connection.execute(
        f"ALTER TABLE {schema}.session_names ADD CONSTRAINT no CHECK (token < 0) NOT VALID".encode()
    )


def allow_tokens(connection: psycopg.Connection, schema: str) -> None:
    connection.execute(f"ALTER TABLE {schema}.session_names DROP CONSTRAINT no".encode())


class Canceller:
    """Cancels a task at the n-th moment before or after an effect that it awaits."""

    def __init__(self, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = at
        self.seen = 0
        self.task: asyncio.Task[Any] | None = None
        perform = AdvisoryAsyncio._perform

        async def watched(adapter: AdvisoryAsyncio, effect: Effect) -> Any:
            await self._count()
            result = await perform(adapter, effect)
            await self._count()
            return result

        monkeypatch.setattr(AdvisoryAsyncio, "_perform", watched)

    async def _count(self) -> None:
        if asyncio.current_task() is self.task is not None:
            self.seen += 1
            if self.seen == self._at:
                self.task.cancel()
                await asyncio.sleep(0)


@pytest.mark.parametrize("renew", [True, False], ids=["renewed", "not renewed"])
def test_cancelled_at_any_moment(url: str, schema: str, monkeypatch: pytest.MonkeyPatch, renew: bool) -> None:
    """The statement continues without its caller; its outcome is read and undone."""

    async def cancelled_at(at: int, observer: Client) -> bool:
        with monkeypatch.context() as patch:
            async with holdfast.aio.connect(url) as client:
                write = client.rwlock("x", ttl=60, renew=renew).write()
                lease = await write.acquire(timeout=10)
                assert lease is not None
                canceller = Canceller(at, patch)
                canceller.task = asyncio.create_task(lease.downgrade())
                with contextlib.suppress(asyncio.CancelledError):
                    await (await canceller.task).release()
                    return False
                await async_wait_until(lambda: is_settled(lease, schema), message=f"cancelled at {at}")
                reads = await asyncio.to_thread(observer.rwlock("x").read().acquire, timeout=0)
                assert (reads is not None) == lease.lost
                if reads is not None:
                    await asyncio.to_thread(reads.release)
                with contextlib.suppress(LockLost):
                    await lease.release()
                await async_wait_until(lambda: modes(schema) == [])
        return True

    with holdfast.connect(f"{url}-observer") as observer:
        at = 1
        while asyncio.run(cancelled_at(at, observer)):
            at += 1
    assert at > 4


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_at_any_moment(locks: Client, url: str, schema: str) -> None:
    write = locks.rwlock("x", ttl=60).write()

    def interrupted_at(at: int, observer: Client) -> bool:
        lease = held(write.acquire(timeout=10))
        interrupter = Interrupter(at)
        interrupted_by(interrupter, cast(Callable[[Held], None], Lease.downgrade), cast(Lock, lease))
        if lease._state.successor is None:
            wait_until(lambda: is_settled(lease, schema), message=interrupter.where)
            reads = observer.rwlock("x").read().acquire(timeout=0)
            assert (reads is not None) == lease.lost, interrupter.where
            if reads is not None:
                reads.release()
            with contextlib.suppress(LockLost, NotHeld):
                write.release()
        elif not interrupter.fired:
            assert lease._successor is not None
            cast(Lease, lease._successor).release()
        wait_until(lambda: modes(schema) == [], message=interrupter.where)
        return interrupter.fired

    at = 1
    with holdfast.connect(f"{url}-observer") as observer:
        while interrupted_at(at, observer):
            at += 1
    assert at > 50


async def test_an_answer_that_does_not_come_in_time(
    world: World, url: str, schema: str, proxy: Proxy
) -> None:
    """The server did it. Once it answers again, the writer learns that it is lost."""
    ann, bob, other = world.actor(), world.actor(), world.client()
    world.url = url.replace(shared_postgresql().url.partition("@")[2].partition("/")[0], proxy.address)
    client = world.client(io_timeout=0.5)
    write = client.rwlock("x", ttl=60, renew=False).write()
    await ann((await ann((await granted(ann, write)).downgrade)).release)  # all statements are prepared
    lease = held(await ann(write.acquire))
    proxy.hold("to_client")
    with pytest.raises(EngineUnavailable):
        await ann(lease.downgrade)
    assert modes(schema) == ["ShareLock"]
    assert await bob(other.rwlock("x").write().acquire, timeout=0) is None
    proxy.pass_on()
    await world.until(lambda: lease.lost, "it still takes itself for a writer")
    await world.until(lambda: modes(schema) == [])
    assert held(await bob(other.rwlock("x").write().acquire, timeout=5)).token > lease.token
    with pytest.raises(LockLost):
        await ann(lease.release)


async def test_an_error_leaves_the_writer_a_writer(
    world: World, schema: str, connection: psycopg.Connection
) -> None:
    """Also past its ttl: it is renewed as before."""
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.rwlock("x", ttl=2.0).write().acquire))
    refuse_tokens(connection, schema)
    with pytest.raises(EngineUnavailable, match="23514"):
        await ann(lease.downgrade)
    allow_tokens(connection, schema)
    assert modes(schema) == ["ExclusiveLock"]
    await world.until(lambda: lease.lost or world.look("x").holders[0].age > 2.5)
    lease.check()
    reader = await ann(lease.downgrade)
    assert modes(schema) == ["ShareLock"]
    await ann(reader.release)
    assert modes(schema) == []


@pytest.mark.parametrize("sqlstate", ["57014", "53200"], ids=["cancelled", "out of memory"])
async def test_a_try_that_failed_and_one_that_did_not_are_one_lock(
    world: World, schema: str, connection: psycopg.Connection, sqlstate: str
) -> None:
    """Session locks outlive the transaction that failed: each try added one, and a release took one away."""
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.rwlock("x").write().acquire))
    connection.execute(
        f"""
        CREATE SEQUENCE {schema}.refused;
        CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('{schema}.refused') <= 3 THEN
                RAISE EXCEPTION 'on purpose' USING ERRCODE = '{sqlstate}';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON {schema}.session_names
            FOR EACH ROW EXECUTE FUNCTION {schema}.refuse();
        """.encode()
    )
    reader = await ann(lease.downgrade)
    assert modes(schema) == ["ShareLock"]
    await ann(reader.release)
    assert modes(schema) == []


async def test_without_a_token_for_the_reader_the_writer_stays(
    world: World, schema: str, connection: psycopg.Connection
) -> None:
    """Nor can it be broken: the next holder's token could not be larger."""
    ann, bob, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.rwlock("x").write().acquire))
    connection.execute(f"UPDATE {schema}.session_names SET token = {2**53 - 1}".encode())
    with pytest.raises(EngineUnavailable, match="no more tokens"):
        await ann(lease.downgrade)
    with pytest.raises(EngineUnavailable, match="no more tokens"):
        await bob(world.client().break_lock, "x", reason="test")
    assert modes(schema) == ["ExclusiveLock"]
    lease.check()
    await ann(lease.release)
    assert modes(schema) == []


async def test_one_that_was_broken_does_not_become_a_reader(
    world: World, schema: str, connection: psycopg.Connection
) -> None:
    """The break has the row locked while the downgrade waits for it."""
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.rwlock("x").write().acquire))
    with connection.transaction():
        connection.execute(
            f"SELECT {schema}.session_break_1(namespace, name, key, NULL, '\"test\"')"
            f" FROM {schema}.session_names".encode()
        )
        pending = ann(lease.downgrade)
        await world.until(lambda: _waits_for_the_row(schema))
    with pytest.raises(LockLost) as loss:
        await pending
    assert loss.value.reason == "broken"
    await world.until(lambda: modes(schema) == [])


async def test_the_value_of_one_that_was_broken_is_not_set(
    world: World, schema: str, connection: psycopg.Connection
) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    with connection.transaction():
        connection.execute(
            f"SELECT {schema}.session_break_1(namespace, name, key, NULL, '\"test\"')"
            f" FROM {schema}.session_names".encode()
        )
        pending = ann(lease.set_value, b"late")
        await world.until(lambda: _waits_for_the_row(schema))
    with pytest.raises(LockLost):
        await pending
    assert world.look("x").value is None


def _waits_for_the_row(schema: str) -> bool:
    answer = shared_postgresql().sql(
        "SELECT count(*) FROM pg_stat_activity"
        f" WHERE application_name = '{schema}' AND wait_event_type = 'Lock'"
    )
    return answer != "0"


async def test_other_readers_of_the_same_client_come_in(world: World) -> None:
    """It went on being taken for a writer by its own client."""
    ann, bob, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.rwlock("x").write().acquire))
    reader = await ann(lease.downgrade)
    other = held(await bob(client.rwlock("x").read().acquire, timeout=0))
    await bob(other.release)
    await ann(reader.release)
