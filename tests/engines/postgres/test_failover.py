"""A standby takes over: the guarantees of both engines, on real servers that replicate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from contract.harness import World, held
from holdfast import EngineUnavailable, LockLost
from holdfast.lab.servers import PostgreSQL
from support import wait_until


class Servers(NamedTuple):
    """A primary and its standby."""

    primary: PostgreSQL
    standby: PostgreSQL

    def set(self, server: PostgreSQL, name: str, value: str) -> None:
        server.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        server.sql("SELECT pg_reload_conf()")

    def replicate_before_answering(self) -> None:
        self.set(self.primary, "synchronous_standby_names", "*")
        wait_until(lambda: self.primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync")

    def replicate_all(self) -> None:
        """Also what the primary itself has yet to write: nobody waits for a release to be."""
        position = self.primary.sql("SELECT pg_current_wal_insert_lsn()")
        wait_until(lambda: self.standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") == "t")

    def stop_replicating(self) -> None:
        """What is written from now on does not get there."""
        self.set(self.standby, "primary_conninfo", "")
        wait_until(lambda: self.primary.sql("SELECT count(*) FROM pg_stat_replication") == "0")

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with PostgreSQL() as primary, PostgreSQL(standby_of=primary) as standby:
        wait_until(lambda: primary.sql("SELECT state FROM pg_stat_replication") == "streaming")
        yield Servers(primary, standby)


@pytest.fixture
def url(servers: Servers, schema: str) -> str:
    """Both hosts: clients find the one that runs."""
    hosts = f"{servers.primary.address},{servers.standby.address}"
    return f"postgresql://postgres@{hosts}/postgres?schema={schema}"


async def test_a_lease_is_kept_by_a_standby_that_had_it_before_it_was_granted(
    world: World, servers: Servers
) -> None:
    servers.replicate_before_answering()
    ann, bob = world.actor(), world.actor()
    lock, other = world.client().lock("x", ttl=60), world.client().lock("x", ttl=60)
    lease = held(await ann(lock.acquire))
    await ann(lease.set_value, b"kept")
    waiting = bob(other.acquire)
    await world.until_waiting("x", 1)
    servers.fail_over()
    await ann(lease.extend)
    lease.check()
    assert world.look("x").holders[0].token == lease.token
    assert world.look("x").value == b"kept"
    await world.until_waiting("x", 1)
    await ann(lock.release)
    assert held(await waiting).token > lease.token
    await bob(other.release)


async def test_a_lease_that_a_standby_never_received_is_lost_and_fenced(
    world: World, servers: Servers
) -> None:
    ann, bob = world.actor(), world.actor()
    lock, other = world.client().lock("x", ttl=60), world.client().lock("x", ttl=60)
    await ann(held(await ann(lock.acquire)).release)
    servers.replicate_all()
    servers.stop_replicating()
    lease = held(await ann(lock.acquire))
    servers.fail_over()
    later = held(await bob(other.acquire))
    assert later.token > lease.token
    with pytest.raises(LockLost):
        await ann(lock.release)
    await bob(other.release)


@pytest.mark.engine("postgresql+advisory")
async def test_session_locks_are_lost_with_their_server_and_reported(world: World, servers: Servers) -> None:
    servers.replicate_before_answering()
    world.url = world.url.replace("postgresql", "postgresql+advisory", 1)
    ann, bob = world.actor(), world.actor()
    lock, other = world.client().lock("x", ttl=60), world.client().lock("x", ttl=60)
    lease = held(await ann(lock.acquire))
    waiting = bob(other.acquire)
    await world.until_waiting("x", 1)
    servers.primary.kill()
    await world.until(lambda: lease.lost)
    with pytest.raises(LockLost):
        lease.check()
    servers.standby.promote()
    assert held(await waiting).token > lease.token
    await bob(other.release)


async def test_a_standby_that_was_not_promoted_is_refused(
    world: World, servers: Servers, schema: str
) -> None:
    ann = world.actor()
    await ann(held(await ann(world.client().lock("x").acquire)).release)
    servers.replicate_all()
    world.url = f"{servers.standby.url}?schema={schema}"
    with pytest.raises(EngineUnavailable, match="read-only"):
        await ann(world.client(io_timeout=1.0).lock("x").acquire)
