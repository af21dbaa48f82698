"""Taking a lock from its holder by force."""

from __future__ import annotations

import pytest

from contract.engines import needs
from contract.harness import World, held
from holdfast import InvalidArgument, LockLost


async def test_the_holder_is_notified_and_the_next_is_served(world: World) -> None:
    ann, bob, eve = world.actor(), world.actor(), world.actor()
    client = world.client()
    lock = client.lock("x", ttl=3)
    lease = held(await ann(lock.acquire))
    waiting = bob(world.client().lock("x").acquire)
    await world.until_waiting("x", 1)
    token = await eve(world.client().break_lock, "x", reason="its host is on fire")
    assert token is not None
    assert token > lease.token
    assert held(await waiting).token > token
    await world.until(lambda: lease.lost, "the holder was not notified")
    assert lease.remaining == 0
    with pytest.raises(LockLost, match="its host is on fire") as loss:
        lease.check()
    assert (loss.value.reason, loss.value.name, loss.value.token) == ("broken", "x", lease.token)
    with pytest.raises(LockLost, match="its host is on fire"):
        await ann(lock.release)


@needs("wake-ups")
async def test_the_holder_is_notified_at_once_however_long_its_ttl(world: World) -> None:
    ann, eve = world.actor(), world.actor()
    lease = held(await ann(world.client().lock("x", ttl=3600).acquire))
    reported: list[object] = []
    lease.on_lost(reported.append)
    waiting = ann(lease.wait_lost, timeout=20)
    await eve(world.client().break_lock, "x", reason="test")
    assert await waiting is True
    await world.until(lambda: reported == [lease])


@needs("wake-ups")
async def test_also_when_it_does_not_renew(world: World) -> None:
    ann, eve = world.actor(), world.actor()
    lease = held(await ann(world.client().lock("x", ttl=3600, renew=False).acquire))
    await eve(world.client().break_lock, "x", reason="test")
    assert await ann(lease.wait_lost, timeout=20) is True


async def test_only_the_grant_that_was_meant(world: World) -> None:
    ann, eve, client = world.actor(), world.actor(), world.client()
    lock = client.lock("x")
    old = held(await ann(lock.acquire))
    await ann(lock.release)
    lease = held(await ann(lock.acquire))
    assert await eve(client.break_lock, "x", token=old.token, reason="too late") is None
    assert await eve(client.break_lock, "x", token=lease.token + 1, reason="no such") is None
    lease.check()
    assert world.look("x").holders[0].token == lease.token
    token = await eve(client.break_lock, "x", token=lease.token, reason="that one")
    assert token is not None
    assert token > lease.token
    assert not world.look("x").locked


async def test_there_is_nothing_to_break(world: World) -> None:
    ann, client = world.actor(), world.client()
    assert await ann(client.break_lock, "x", reason="nobody there") is None
    await ann(client.lock("x").acquire)
    assert await ann(client.break_lock, "x", reason="a test") is not None
    assert await ann(client.break_lock, "x", reason="nobody again") is None


@needs("semaphore")
async def test_one_permit_of_several(world: World) -> None:
    ann, client = world.actor(), world.client()
    semaphore = client.semaphore("x", 3)
    leases = [held(await ann(semaphore.acquire)) for _ in range(3)]
    await ann(client.break_lock, "x", token=leases[1].token, reason="the middle one")
    await world.until(lambda: leases[1].lost)
    assert [lease.lost for lease in leases] == [False, True, False]
    await ann(client.break_lock, "x", reason="all of them")
    await world.until(lambda: all(lease.lost for lease in leases))


async def test_the_token_fences_off_the_holder(world: World) -> None:
    """The next grant is newer still."""
    ann, eve, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    token = await eve(client.break_lock, "x", reason="test")
    assert token is not None
    assert lease.token < token < held(await eve(client.lock("x").acquire)).token


@pytest.mark.parametrize("reason", ["", "   ", None, 7, "x" * 5000])
async def test_a_reason_is_needed(world: World, reason: str) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    with pytest.raises(InvalidArgument, match="reason"):
        await ann(client.break_lock, "x", reason=reason)
    lease.check()


@pytest.mark.parametrize("token", [-1, 1.5, "1", True])
async def test_a_token_is_a_number(world: World, token: int) -> None:
    ann, client = world.actor(), world.client()
    with pytest.raises(InvalidArgument, match="token"):
        await ann(client.break_lock, "x", token=token, reason="test")
