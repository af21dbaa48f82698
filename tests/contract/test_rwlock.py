"""Many readers or one writer."""

from __future__ import annotations

import asyncio
import gc

import pytest

from contract.engines import needs, takes_seconds
from contract.harness import World, held
from holdfast import InvalidArgument, LockLost, NotHeld, Unsupported
from support import renewal_of

pytestmark = needs("rwlock")


async def test_readers_share_and_a_writer_is_alone(world: World) -> None:
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    rwlock = world.client().rwlock("x")
    first, second = held(await ann(rwlock.read().acquire)), held(await bob(rwlock.read().acquire))
    assert first.token < second.token
    assert (first.mode, first.kind) == ("read", "rwlock")
    assert first.peers == ()
    assert second.peers == (first.token,), "the shared grants that lived when this one was made"
    assert await cid(rwlock.write().acquire, blocking=False) is None
    await ann(rwlock.read().release)
    await bob(rwlock.read().release)
    lease = held(await cid(rwlock.write().acquire))
    assert (lease.mode, lease.peers) == ("write", ())
    assert await ann(rwlock.read().acquire, blocking=False) is None
    assert await ann(rwlock.write().acquire, blocking=False) is None


async def test_each_reader_releases_its_own(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    read = world.client().rwlock("x").read()
    first, second = held(await ann(read.acquire)), held(await bob(read.acquire))
    await ann(read.release)
    assert [holder.token for holder in world.look("x").holders] == [second.token]
    assert not first.lost
    await bob(read.release)
    with pytest.raises(NotHeld):
        await bob(read.release)


async def test_writers_are_not_starved(world: World) -> None:
    """Readers who come after a waiting writer wait behind it, and then read together."""
    ann, bob, cid, dan = world.actor(), world.actor("bob"), world.actor("cid"), world.actor("dan")
    rwlock = world.client().rwlock("x")
    await ann(rwlock.read().acquire)
    writer = bob(rwlock.write().acquire)
    await world.until_waiting("x", 1)
    readers = [cid(rwlock.read().acquire)]
    await world.until_waiting("x", 2)
    readers.append(dan(rwlock.read().acquire))
    await world.until_waiting("x", 3)
    assert [(w.thread, w.mode) for w in world.look("x").waiters] == [
        ("bob", "write"),
        ("cid", "read"),
        ("dan", "read"),
    ]
    await ann(rwlock.read().release)
    written = held(await writer)
    assert not any(reader.done() for reader in readers)
    await bob(rwlock.write().release)
    leases = [held(lease) for lease in await asyncio.gather(*readers)]
    assert all(lease.token > written.token for lease in leases)
    assert len(world.look("x").holders) == 2


async def test_downgrade(world: World) -> None:
    """No moment in between at which another writer could come in."""
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    rwlock = world.client().rwlock("x")
    write = rwlock.write()
    written = held(await ann(write.acquire))
    writer = bob(rwlock.write().acquire)
    await world.until_waiting("x", 1)
    read = await ann(written.downgrade)
    assert read.mode == "read"
    assert read.token > written.token
    assert not read.lost
    read.check()
    assert [(h.mode, h.token) for h in world.look("x").holders] == [("read", read.token)]
    assert not writer.done()
    assert await cid(rwlock.read().acquire, blocking=False) is None, "the writer was there first"
    with pytest.raises(NotHeld, match="downgrade"):
        await ann(written.release)
    with pytest.raises(NotHeld, match="downgrade"):
        written.check()
    with pytest.raises(NotHeld):
        await ann(written.downgrade)
    await ann(read.release)
    assert held(await writer).token > read.token


async def test_downgrade_lets_waiting_readers_in(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    rwlock = world.client().rwlock("x")
    written = held(await ann(rwlock.write().acquire))
    reader = bob(rwlock.read().acquire)
    await world.until_waiting("x", 1)
    mine = await ann(written.downgrade)
    theirs = held(await reader)
    assert theirs.peers == (mine.token,)


async def test_with_gives_back_what_it_was_downgraded_to(world: World) -> None:
    ann = world.actor()
    rwlock = world.client().rwlock("x")
    async with ann.inside(rwlock.write()) as written:
        read = await ann(written.downgrade)
        assert world.look("x").holders[0].token == read.token
    assert not world.look("x").locked
    with pytest.raises(NotHeld):
        read.check()


@takes_seconds
async def test_with_keeps_what_it_was_downgraded_to(world: World) -> None:
    """The body need not hold on to the read lease: it goes on reading under it."""
    world.keeps_leases = False
    ann = world.actor()
    rwlock = world.client().rwlock("x", ttl=3.0)
    async with ann.inside(rwlock.write()) as written:
        await ann(written.downgrade)
        gc.collect()
        await world.until(renewal_of(world.seen("x")))
        assert world.look("x").holders[0].mode == "read"
    assert not world.look("x").locked


async def test_only_a_write_lease_in_force_is_downgraded(world: World) -> None:
    ann, client = world.actor(), world.client()
    read = held(await ann(client.rwlock("x").read().acquire))
    with pytest.raises(InvalidArgument, match="write"):
        await ann(read.downgrade)
    plain = held(await ann(client.lock("plain").acquire))
    with pytest.raises(InvalidArgument, match="write"):
        await ann(plain.downgrade)
    short = held(await ann(client.rwlock("y", ttl=0.2, renew=False).write().acquire))
    await world.until(lambda: short.lost)
    with pytest.raises(LockLost):
        await ann(short.downgrade)


@takes_seconds
async def test_a_downgraded_lease_is_kept_on(world: World) -> None:
    ann, rwlock = world.actor(), world.client().rwlock("x", ttl=3.0)
    read = await ann(held(await ann(rwlock.write().acquire)).downgrade)
    await world.until(renewal_of(read))
    read.check()


async def test_upgrading_is_refused_and_says_what_to_do(world: World) -> None:
    rwlock = world.client().rwlock("x")
    with pytest.raises(Unsupported, match=r"write\(\)"):
        rwlock.upgrade()


async def test_the_two_sides_are_locks_of_one_name(world: World) -> None:
    rwlock = world.client().rwlock("x")
    assert rwlock.name == rwlock.read().name == rwlock.write().name == "x"
    assert rwlock.read() is rwlock.read()
