"""The lock: one at a time, who may release, how long to wait."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from contract.engines import needs
from contract.harness import Actor, World, held
from holdfast import Client, InvalidArgument, Lock, LockLost, LockTimeout, NotHeld
from holdfast.protocols.records.acquisition import POLL_SECONDS_MAX

# Exclusive kinds of lock: the tests of a lock hold for each of them.
Make = Callable[[Client, float | None], Lock]
EXCLUSIVE: dict[str, Make] = {
    "lock": lambda client, timeout: client.lock("x", timeout=timeout),
    "rlock": lambda client, timeout: client.rlock("x", timeout=timeout),
    "write": lambda client, timeout: client.rwlock("x", timeout=timeout).write(),
    "semaphore of one": lambda client, timeout: client.semaphore("x", 1, timeout=timeout),
}
NEEDS = {"write": [needs("rwlock")], "semaphore of one": [needs("semaphore")]}
exclusive = pytest.mark.parametrize(
    "make", [pytest.param(make, marks=NEEDS.get(kind, ()), id=kind) for kind, make in EXCLUSIVE.items()]
)


# --- one at a time ------------------------------------------------------------------------------


@exclusive
async def test_one_at_a_time(world: World, make: Make) -> None:
    """Also between two objects of one name, and between two clients."""
    ann, bob = world.actor("ann"), world.actor("bob")
    first, second = world.client(), world.client()
    mine, same_client, other_client = make(first, None), make(first, None), make(second, None)
    lease = held(await ann(mine.acquire))
    for other in (mine, same_client, other_client):
        assert await bob(other.acquire, blocking=False) is None
        assert await bob(other.acquire, timeout=0) is None
    assert await bob(other_client.locked)
    await ann(mine.release)
    assert not await bob(other_client.locked)
    assert held(await bob(other_client.acquire, timeout=0)).token > lease.token


@exclusive
async def test_contenders_never_overlap(world: World, make: Make) -> None:
    """Every increment of a plain counter survives, though reading and writing it are apart."""
    clients = [world.client(), world.client()]
    actors = [world.actor() for _ in range(4)]
    tokens: list[int] = []
    counter = 0

    async def count(actor: Actor, client: Client) -> None:
        nonlocal counter
        lock = make(client, None)
        for _ in range(10):
            async with actor.inside(lock) as lease:
                seen = counter
                tokens.append(lease.token)
                await asyncio.sleep(0)
                counter = seen + 1

    await asyncio.gather(*(count(actor, clients[i % 2]) for i, actor in enumerate(actors)))
    assert counter == 40
    assert tokens == sorted(set(tokens)), "tokens are unique and increase with the grants"


async def test_names_do_not_exclude_each_other(world: World) -> None:
    ann, client = world.actor(), world.client()
    one, two = held(await ann(client.lock("one").acquire)), held(await ann(client.lock("two").acquire))
    assert one.id != two.id
    await ann(one.release)
    await ann(two.release)


async def test_a_second_acquire_by_the_same_caller_waits(world: World) -> None:
    """As threading.Lock does: a plain lock is not reentrant, not even through the same object."""
    ann, bob = world.actor(), world.actor()
    lock = world.client().lock("x")
    lease = held(await ann(lock.acquire))
    again = ann(lock.acquire)
    await world.until_waiting("x", 1)
    await bob(lease.release)
    assert held(await again).token > lease.token
    await ann(lock.release)


async def test_tokens_increase_across_objects_and_clients(world: World) -> None:
    ann, clients = world.actor(), [world.client(), world.client()]
    tokens = []
    for turn in range(6):
        lock = clients[turn % 2].lock("x")
        tokens.append(held(await ann(lock.acquire)).token)
        await ann(lock.release)
    assert tokens == sorted(set(tokens))
    assert all(isinstance(token, int) and 0 < token < 2**53 for token in tokens)


async def test_what_a_lease_tells(world: World) -> None:
    ann = world.actor("ann")
    client = world.client()
    before = time.time()
    lease = held(await ann(client.lock("x", ttl=20, metadata={"why": "test"}).acquire))
    assert (lease.name, lease.kind, lease.mode, lease.ttl) == ("x", "lock", "exclusive", 20.0)
    assert lease.metadata == {"why": "test"}
    assert before <= lease.acquired_at <= time.time()
    assert 0 < lease.remaining < 20
    assert not lease.lost
    lease.check()
    assert lease.owner.endswith("/ann")
    assert lease.fence.token == lease.token
    assert lease.fence.nonce == lease.id
    assert lease.fence.source.endswith("/x")
    assert str(lease.token) in repr(lease)
    await ann(lease.release)
    assert "released" in repr(lease)
    assert lease.remaining == 0
    assert not lease.lost, "released is not lost"
    with pytest.raises(NotHeld):
        lease.check()


async def test_fences_of_one_lock_compare_across_clients(world: World) -> None:
    ann = world.actor()
    fences = []
    for client in (world.client(), world.client()):
        async with ann.inside(client.lock("x")) as lease:
            fences.append(lease.fence)
    assert fences[0].source == fences[1].source
    assert fences[0].token < fences[1].token
    async with ann.inside(world.client(namespace=world.namespace + "-another").lock("x")) as lease:
        assert lease.fence.source != fences[0].source


# --- how long to wait ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0}, {"timeout": 0.0}])
async def test_trying_once(world: World, how: dict[str, Any]) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().lock("x")
    assert await ann(lock.acquire, **how) is not None
    assert await bob(lock.acquire, **how) is None
    assert not world.look("x").waiters


async def test_waiting_so_long_and_no_longer(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().lock("x")
    await ann(lock.acquire)
    began = time.monotonic()
    assert await bob(lock.acquire, timeout=0.5) is None
    assert 0.5 <= time.monotonic() - began < 5
    assert not world.look("x").waiters, "one who gave up leaves nothing in the queue"


@pytest.mark.parametrize("for_ever", [-1, -1.0, None])
async def test_waiting_for_ever(world: World, for_ever: float | None) -> None:
    """The lock's own timeout does not count when acquire has one."""
    ann, bob = world.actor(), world.actor()
    client = world.client()
    lease = held(await ann(client.lock("x").acquire))
    waiting = bob(client.lock("x", timeout=0).acquire, timeout=for_ever)
    await world.until_waiting("x", 1)
    await ann(lease.release)
    assert held(await waiting).token > lease.token


async def test_the_locks_own_timeout_counts_when_acquire_has_none(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client()
    await ann(client.lock("x").acquire)
    assert await bob(client.lock("x", timeout=0).acquire) is None
    assert await bob(client.lock("x", timeout=0.05).acquire) is None
    assert await bob(client.lock("x").acquire, timeout=0.05) is None
    assert await bob(client.lock("x", timeout=30).acquire, timeout=0) is None
    assert await bob(client.lock("x", timeout=30).acquire, blocking=False) is None


@pytest.mark.parametrize("wrong", [-2, -0.5, math.nan, math.inf, -math.inf, "1", True])
async def test_timeouts_that_mean_nothing_are_refused(world: World, wrong: Any) -> None:
    ann, client = world.actor(), world.client()
    with pytest.raises(InvalidArgument, match="timeout"):
        client.lock("x", timeout=wrong)
    with pytest.raises(InvalidArgument, match="timeout"):
        await ann(client.lock("x").acquire, timeout=wrong)
    with pytest.raises(ValueError, match="blocking"):
        await ann(client.lock("x").acquire, blocking=False, timeout=1)


async def test_a_waiter_gets_it_when_it_is_released(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().lock("x")
    other = world.client().lock("x")
    first = held(await ann(lock.acquire))
    waiting = bob(other.acquire, timeout=30)
    await world.until_waiting("x", 1)
    began = time.monotonic()
    await ann(lock.release)
    assert held(await waiting).token > first.token
    assert time.monotonic() - began < POLL_SECONDS_MAX, "a release wakes who waits; nobody polls for it"


# --- with ---------------------------------------------------------------------------------------


async def test_with_holds_it_inside_and_not_after(world: World) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    async with ann.inside(lock) as lease:
        assert world.look("x").holders[0].token == lease.token
        assert lock.lease is lease
    assert not world.look("x").locked
    assert lock.lease is None


async def test_with_gives_back_when_the_body_raises(world: World) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    with pytest.raises(ZeroDivisionError):
        async with ann.inside(lock):
            raise ZeroDivisionError
    assert not world.look("x").locked


@exclusive
@pytest.mark.parametrize("timeout", [0, 0.1])
async def test_with_that_is_not_granted_never_runs_its_body(world: World, make: Make, timeout: float) -> None:
    ann, bob = world.actor("ann"), world.actor()
    client = world.client()
    holder = make(client, None)
    lease = held(await ann(holder.acquire))
    lock = make(client, timeout)
    ran = False
    with pytest.raises(LockTimeout, match="'x'") as refusal:
        async with bob.inside(lock):
            ran = True
    assert not ran
    assert isinstance(refusal.value, TimeoutError)
    assert refusal.value.name == "x"
    assert [holder.token for holder in refusal.value.holders] == [lease.token]
    assert refusal.value.holders[0].thread == "ann"
    assert not world.look("x").waiters
    with pytest.raises(NotHeld):
        await bob(lock.release)  # which takes nothing from ann
    assert world.look("x").locked


async def test_with_twice_through_one_object(world: World) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    tokens = []
    for _ in range(2):
        async with ann.inside(lock) as lease:
            tokens.append(lease.token)
    assert tokens[0] < tokens[1]


async def test_what_with_took_was_given_back_inside(world: World) -> None:
    """That ends the entry: there is nothing left to give back, and nothing to complain about."""
    ann, lock = world.actor(), world.client().lock("x")
    async with ann.inside(lock) as lease:
        await ann(lease.release)
    async with ann.inside(lock):
        await ann(lock.release)

    async def body(release_the_lease: bool) -> None:
        async with ann.inside(lock) as lease:
            await ann(lease.release if release_the_lease else lock.release)
            raise ZeroDivisionError

    for release_the_lease in (True, False):
        with pytest.raises(ZeroDivisionError):
            await body(release_the_lease)
    assert not world.look("x").locked


# --- who may release ----------------------------------------------------------------------------


async def test_releasing_what_nobody_took(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client()
    lock = client.lock("x")
    with pytest.raises(NotHeld, match="'x'") as refusal:
        await ann(lock.release)
    assert isinstance(refusal.value, RuntimeError)
    assert refusal.value.name == "x"
    await ann(lock.acquire)
    other_object = client.lock("x")
    with pytest.raises(NotHeld):
        await bob(other_object.release)
    with pytest.raises(NotHeld):
        await ann(other_object.release)
    assert world.look("x").locked


async def test_releasing_twice(world: World) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    await ann(lock.acquire)
    await ann(lock.release)
    with pytest.raises(NotHeld):
        await ann(lock.release)


async def test_another_may_release_a_plain_lock(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().lock("x")
    await ann(lock.acquire)
    await bob(lock.release)
    assert not world.look("x").locked
    with pytest.raises(NotHeld):
        await ann(lock.release)


async def test_a_lease_may_be_handed_to_another(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().lock("x")
    lease = held(await ann(lock.acquire))
    await bob(lease.release)
    assert not world.look("x").locked
    with pytest.raises(NotHeld):
        await ann(lock.release)
    with pytest.raises(NotHeld):
        await ann(lease.release)


async def test_with_may_be_left_by_another(world: World) -> None:
    """As by an exit stack, or a fixture whose end runs in another task than its beginning."""
    ann, bob = world.actor(), world.actor()
    lock = world.client().lock("x")
    held(await ann(getattr(lock, ann.enter_name)))
    await bob(getattr(lock, bob.exit_name), None, None, None)
    assert not world.look("x").locked
    with pytest.raises(NotHeld):
        await bob(getattr(lock, bob.exit_name), None, None, None)


async def test_release_takes_nothing_from_the_next_holder(world: World) -> None:
    """One object, two callers; the first one's lease is broken, and its release concerns that one only."""
    ann, bob, cid, client = world.actor(), world.actor(), world.actor(), world.client()
    lock = client.lock("x", ttl=3)
    lost = held(await ann(lock.acquire))
    await cid(client.break_lock, "x", reason="to lose it")
    await world.until(lambda: lost.lost)
    kept = held(await bob(lock.acquire, timeout=20))
    with pytest.raises(LockLost) as loss:
        await ann(lock.release)
    assert (loss.value.name, loss.value.token) == ("x", lost.token)
    assert [holder.token for holder in world.look("x").holders] == [kept.token]
    await cid(lock.release)  # one without a lease of its own: the object's current one
    assert not world.look("x").locked
    with pytest.raises(NotHeld):
        await bob(lock.release)


async def test_the_lease_of_an_object(world: World) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    assert lock.lease is None
    lease = await ann(lock.acquire)
    assert lock.lease is lease
    await ann(lock.release)
    assert lock.lease is None


async def test_releasing_a_lost_lease_tells_of_the_loss_once(world: World) -> None:
    ann = world.actor()
    lock = world.client().lock("x", ttl=0.2, renew=False)
    lease = held(await ann(lock.acquire))
    await world.until(lambda: lease.lost)
    with pytest.raises(LockLost):
        await ann(lock.release)
    with pytest.raises(NotHeld):
        await ann(lock.release)
    assert await ann(lock.acquire, timeout=0) is not None, "the object can be used again"
