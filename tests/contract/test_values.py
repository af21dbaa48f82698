"""The small value that a name carries: set by the present holder alone, there after release."""

from __future__ import annotations

import pytest

from contract.engines import needs
from contract.harness import World, held
from holdfast import InvalidArgument, Lock, LockLost, NotHeld

pytestmark = needs("value")


async def test_a_value_is_set_seen_and_kept(world: World) -> None:
    ann, client = world.actor(), world.client()
    assert world.look("x").value is None
    lease = held(await ann(client.lock("x").acquire))
    assert world.look("x").value is None
    await ann(lease.set_value, b"one")
    assert world.look("x").value == b"one"
    await ann(lease.set_value, b"")
    assert world.look("x").value == b""
    await ann(lease.set_value, b"two")
    await ann(lease.release)
    assert world.look("x").value == b"two"
    assert [(info.name, info.value) for info in await ann(client.list)] == [("x", b"two")]
    next_lease = held(await ann(client.lock("x").acquire))
    assert world.look("x").value == b"two", "the next holder finds it"
    await ann(next_lease.set_value, b"three")
    assert world.look("x").value == b"three"


@pytest.mark.parametrize("kind", ["rwlock", pytest.param("semaphore", marks=needs("semaphore")), "rlock"])
async def test_every_kind_carries_one(world: World, kind: str) -> None:
    ann, client = world.actor(), world.client()
    made: dict[str, Lock] = {
        "rwlock": client.rwlock("x").write(),
        "semaphore": client.semaphore("x", 2),
        "rlock": client.rlock("x"),
    }
    lock = made[kind]
    lease = held(await ann(lock.acquire))
    await ann(lease.set_value, kind.encode())
    assert world.look("x").value == kind.encode()


async def test_the_largest_value(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    largest = bytes(range(256)) * 256
    await ann(lease.set_value, largest)
    assert world.look("x").value == largest
    with pytest.raises(InvalidArgument, match="65536"):
        await ann(lease.set_value, largest + b"!")
    assert world.look("x").value == largest


@pytest.mark.parametrize("wrong", ["text", 7, None, [1]])
async def test_a_value_is_bytes(world: World, wrong: bytes) -> None:
    ann = world.actor()
    lease = held(await ann(world.client().lock("x").acquire))
    with pytest.raises(InvalidArgument, match="bytes"):
        await ann(lease.set_value, wrong)


@pytest.mark.parametrize("alike", [bytearray(b"ok"), memoryview(b"ok")])
async def test_what_is_like_bytes_will_do(world: World, alike: bytes) -> None:
    ann = world.actor()
    lease = held(await ann(world.client().lock("x").acquire))
    await ann(lease.set_value, alike)
    assert world.look("x").value == b"ok"


async def test_a_former_holder_may_not_set_it(world: World) -> None:
    ann = world.actor()
    lease = held(await ann(world.client().lock("x").acquire))
    await ann(lease.set_value, b"mine")
    await ann(lease.release)
    with pytest.raises(NotHeld):
        await ann(lease.set_value, b"late")
    assert world.look("x").value == b"mine"


async def test_a_holder_that_lost_it_may_not_set_it(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lost = held(await ann(client.lock("x", ttl=0.2, renew=False).acquire))
    lease = held(await bob(client.lock("x").acquire, timeout=20))
    await bob(lease.set_value, b"new")
    with pytest.raises(LockLost):
        await ann(lost.set_value, b"old")
    assert world.look("x").value == b"new"


async def test_a_broken_holder_may_not_set_it_even_before_it_knows(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    await ann(world.client().break_lock, "x", reason="stuck")
    with pytest.raises(LockLost) as loss:
        await ann(lease.set_value, b"old")
    assert loss.value.reason == "broken"
    assert world.look("x").value is None


async def test_a_value_is_kept_as_long_as_it_was_asked_to(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    await ann(lease.set_value, b"short", retention=0.2)
    await ann(lease.release)
    await world.until(lambda: world.look("x").value is None)
    assert await ann(client.list) == [], "a name without holder, waiter or value is not in use"


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 1e12, "1", None])
async def test_retentions_that_mean_nothing_are_refused(world: World, wrong: float) -> None:
    ann = world.actor()
    lease = held(await ann(world.client().lock("x").acquire))
    with pytest.raises(InvalidArgument, match="retention"):
        await ann(lease.set_value, b"", retention=wrong)
