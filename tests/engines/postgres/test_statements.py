"""Leases in a table: how many statements things cost."""

from __future__ import annotations

import pytest
from psycopg.pq.abc import PGresult

from contract.harness import World, held
from holdfast.engine_api import Steps
from holdfast.engines.postgres.asyncio import PostgresAsyncio
from holdfast.engines.postgres.codec import Call
from holdfast.engines.postgres.connection import PgConnection, PQGen
from holdfast.engines.postgres.statements import BATCH
from holdfast.engines.postgres.threads import PostgresThreads
from holdfast.rules.requests import Reply

MANY = 3 * BATCH


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of the functions that are called, without those of handshakes and listening."""
    sent: list[bytes] = []
    execute = PgConnection.execute

    def noting(self: PgConnection, call: Call) -> PQGen[PGresult]:
        if call.statement.name.endswith(b"_1"):
            sent.append(call.statement.name)
        return execute(self, call)

    monkeypatch.setattr(PgConnection, "execute", noting)
    return sent


async def test_a_lock_and_its_release_are_a_statement_each(world: World, sent: list[bytes]) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x")
    await ann(held(await ann(lock.acquire)).release)  # connected, prepared
    sent.clear()
    for _ in range(3):
        async with ann.inside(lock):
            pass
    assert sent == [b"holdfast_acquire_1", b"holdfast_release_1"] * 3


async def test_readers_writers_and_permits_cost_no_more(world: World, sent: list[bytes]) -> None:
    ann, client = world.actor(), world.client()
    locks = [client.rwlock("rw").read(), client.rwlock("rw").write(), client.semaphore("s", 2)]
    for lock in locks:
        await ann(held(await ann(lock.acquire)).release)
    sent.clear()
    for lock in locks:
        await ann(held(await ann(lock.acquire)).release)
    assert sent == [b"holdfast_acquire_1", b"holdfast_release_1"] * len(locks)


async def test_many_leases_are_renewed_in_batches(
    world: World, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[Steps] = []
    renew_batch, tend_in_loop = PostgresThreads.renew_batch, PostgresAsyncio.renew_batch

    def tending(self: PostgresThreads, steps: Steps) -> list[Reply]:
        replies = renew_batch(self, steps)
        rounds.append(steps)
        return replies

    async def tending_in_loop(self: PostgresAsyncio, steps: Steps) -> list[Reply]:
        replies = await tend_in_loop(self, steps)
        rounds.append(steps)
        return replies

    monkeypatch.setattr(PostgresThreads, "renew_batch", tending)
    monkeypatch.setattr(PostgresAsyncio, "renew_batch", tending_in_loop)
    ann, client = world.actor(), world.client()
    leases = [held(await ann(client.lock(f"name {number}", ttl=6.0).acquire)) for number in range(MANY)]
    await world.until(
        lambda: len({name for steps in list(rounds) for name, _ in steps}) == MANY, "some were not renewed"
    )
    for lease in leases:
        lease.check()
    tends = sent.count(b"holdfast_tend_1")
    assert 0 < tends <= sum(-(-len(steps) // BATCH) for steps in rounds) + 1, "not one for each lease"
    assert len(rounds) <= 20, "they are renewed together, however far apart they were taken"
