"""An engine in trouble: what is asked again, what is given up; nothing is thought held that is not."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from api.spy import Call, SpyWorld, nothing
from contract.engines import takes_seconds
from contract.harness import held
from holdfast import EngineUnavailable, Lease, LockLost, NotHeld
from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.engines.memory.store import space
from support import renewal_of

TTL = 4.0
"""Seconds: a renewal is due after a third of it, tried again every tenth of it; a thread may come late."""


def failing(kind: type[Exception], *asked: str, times: int | None = None) -> Callable[[Call], None]:
    """A hook that raises for these kinds of requests, so many times (None: always)."""
    left = [times]

    def fail(call: Call) -> None:
        if set(asked) & set(call.asked) and left[0] != 0:
            if left[0] is not None:
                left[0] -= 1
            raise kind("out of order")

    return fail


class Gate:
    """Holds calls up until it is opened, whatever runs them."""

    def __init__(self, world: SpyWorld, *asked: str) -> None:
        self._world, self._asked = world, asked
        self._opened = threading.Event()
        self._loop_opened = asyncio.Event()
        self.reached = threading.Event()

    def __call__(self, call: Call) -> Awaitable[object] | None:
        if not set(self._asked) & set(call.asked):
            return None
        self.reached.set()
        if self._world.driver == "asyncio":
            return self._loop_opened.wait()
        assert self._opened.wait(30)
        return None

    def open(self) -> None:
        self._opened.set()
        self._loop_opened.set()


# --- acquiring ----------------------------------------------------------------------------------


async def test_a_grant_whose_reply_was_lost_is_recognised(world: SpyWorld) -> None:
    """The same attempt asks again, and the engine knows its own: one grant, one token."""
    ann, lock = world.actor(), world.client().lock("x")
    world.spy.after = failing(OutcomeUnknown, "Acquire", times=1)
    lease = held(await ann(lock.acquire))
    assert world.spy.asked("Acquire") == 2
    info = world.look("x")
    assert [holder.token for holder in info.holders] == [lease.token]
    assert info.token == lease.token, "nothing was minted the second time"
    await ann(lock.release)
    assert not world.look("x").locked


async def test_the_deadline_counts_from_before_the_first_request(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client().lock("x", ttl=20)
    gate = Gate(world, "Acquire")
    world.spy.after = gate
    pending = ann(lock.acquire)
    await world.until(gate.reached.is_set)
    await world.until(lambda: world.look("x").holders[0].age > 0.5)
    gate.open()
    assert held(await pending).remaining < 19.5


async def test_a_grant_that_comes_too_late_is_no_grant(world: SpyWorld) -> None:
    """The answer took longer than the lease lasts: it is given back, and asked for anew."""
    ann, lock = world.actor(), world.client().lock("x", ttl=1.0)
    gate = Gate(world, "Acquire")
    world.spy.after = gate
    pending = ann(lock.acquire)
    await world.until(gate.reached.is_set)
    first = world.look("x").token
    await world.until(lambda: not world.look("x").locked)
    world.spy.after = nothing
    gate.open()
    lease = held(await pending)
    assert lease.token > first
    lease.check()


@pytest.mark.parametrize("kind", [NotApplied, OutcomeUnknown])
async def test_trouble_that_passes_is_outlasted(world: SpyWorld, kind: type[Exception]) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    world.spy.before = failing(kind, "Acquire", times=3)
    assert await ann(lock.acquire) is not None
    assert world.spy.asked("Acquire") == 4


@pytest.mark.parametrize("kind", [NotApplied, OutcomeUnknown])
async def test_an_engine_that_cannot_be_reached(world: SpyWorld, kind: type[Exception]) -> None:
    """Never queued: an error after io_timeout, however long one would have waited for the lock."""
    ann, lock = world.actor(), world.client(io_timeout=0.3).lock("x")
    world.spy.before = failing(kind, "Acquire")
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="'x'") as trouble:
        await ann(lock.acquire)
    assert 0.25 <= time.monotonic() - began < 5
    assert isinstance(trouble.value, ConnectionError)
    world.spy.before = nothing
    assert await ann(lock.acquire, timeout=0) is not None


async def test_the_timeout_bounds_the_wait_for_a_dead_engine_too(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client(io_timeout=30).lock("x")
    world.spy.before = failing(NotApplied, "Acquire")
    began = time.monotonic()
    with pytest.raises(EngineUnavailable):
        await ann(lock.acquire, timeout=0.2)
    assert time.monotonic() - began < 5


async def test_what_a_lost_attempt_left_is_cleaned_up_when_the_engine_is_back(world: SpyWorld) -> None:
    """Every reply was lost: it was granted all the same, and the keeper withdraws it."""
    ann, lock = world.actor(), world.client(io_timeout=0.2).lock("x")
    world.spy.after = failing(OutcomeUnknown, "Acquire")
    world.spy.before = failing(NotApplied, "Withdraw")
    with pytest.raises(EngineUnavailable):
        await ann(lock.acquire)
    assert world.look("x").locked
    world.spy.before = nothing
    await world.until_free("x")


async def test_once_queued_it_waits_for_the_engine_to_come_back(world: SpyWorld) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client(io_timeout=0.2)
    lock = client.lock("x")
    await ann(lock.acquire)
    waiting = bob(client.lock("x").acquire, timeout=30)
    await world.until_waiting("x", 1)
    world.spy.before = failing(NotApplied, "Acquire")
    await ann(lock.release)
    await world.until(lambda: world.spy.asked("Acquire") > 8)
    assert not waiting.done()
    world.spy.before = nothing
    assert await waiting is not None


async def test_once_queued_it_gives_up_at_its_timeout(world: SpyWorld) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client(io_timeout=0.1)
    await ann(client.lock("x", ttl=20).acquire)
    waiting = bob(client.lock("x").acquire, timeout=1.0)
    await world.until_waiting("x", 1, unless=waiting)
    world.spy.before = failing(NotApplied, "Acquire", "Withdraw", "Refresh")
    (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
    assert outcome is None or isinstance(outcome, EngineUnavailable)
    world.spy.before = nothing
    await world.until(lambda: not world.look("x").waiters)


async def test_an_engine_that_refuses_to_work_is_not_asked_again(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client(io_timeout=30).lock("x")
    world.spy.before = failing(EngineUnavailable, "Acquire")
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="out of order"):
        await ann(lock.acquire)
    assert time.monotonic() - began < 5
    assert world.spy.asked("Acquire") == 1


# --- releasing ----------------------------------------------------------------------------------


async def test_a_release_that_failed_can_be_called_again(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client(io_timeout=0.1).lock("x", ttl=20)
    lease = held(await ann(lock.acquire))
    world.spy.before = failing(NotApplied, "Release")
    with pytest.raises(EngineUnavailable):
        await ann(lock.release)
    assert lock.lease is lease
    world.spy.before = nothing
    await ann(lock.release)
    assert not world.look("x").locked
    with pytest.raises(NotHeld):
        await ann(lock.release)


async def test_a_release_of_the_lease_that_failed_can_be_called_again(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client(io_timeout=0.1).rlock("x", ttl=20)
    lease = held(await ann(lock.acquire))
    world.spy.before = failing(NotApplied, "Release")
    with pytest.raises(EngineUnavailable):
        await ann(lease.release)
    world.spy.before = nothing
    await ann(lease.release)
    assert not world.look("x").locked


async def test_a_release_whose_reply_was_lost_is_a_release(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client().lock("x", ttl=20)
    await ann(lock.acquire)
    world.spy.after = failing(OutcomeUnknown, "Release", times=1)
    await ann(lock.release)
    assert not world.look("x").locked
    assert await ann(lock.acquire, timeout=0) is not None


async def test_with_leaves_a_release_that_failed_to_the_keeper(
    world: SpyWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The body ended inside validity: logged, tried again behind our back, no exception."""
    ann, lock = world.actor(), world.client(io_timeout=0.1).lock("x", ttl=20)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        async with ann.inside(lock):
            world.spy.before = failing(NotApplied, "Release", times=3)
    assert "background" in caplog.text
    await world.until_free("x")


# --- renewing -----------------------------------------------------------------------------------


@takes_seconds
@pytest.mark.parametrize("kind", [NotApplied, OutcomeUnknown, EngineUnavailable])
async def test_a_renewal_that_fails_is_tried_again(world: SpyWorld, kind: type[Exception]) -> None:
    ann, lock = world.actor(), world.client().lock("x", ttl=TTL)
    lease = held(await ann(lock.acquire))
    is_renewed = renewal_of(lease)
    world.spy.before = failing(kind, "Renew", times=3)
    await world.until(lambda: world.spy.asked("Renew") >= 4)
    await world.until(is_renewed)
    lease.check()


@takes_seconds
@pytest.mark.parametrize("kind", [NotApplied, OutcomeUnknown, EngineUnavailable])
async def test_renewals_that_all_fail_end_in_one_loss(world: SpyWorld, kind: type[Exception]) -> None:
    """Told at the local deadline, once; then the object can be used again."""
    ann, lock = world.actor(), world.client().lock("x", ttl=TTL)
    lease = held(await ann(lock.acquire))
    reported: list[Lease] = []
    lease.on_lost(reported.append)
    world.spy.before = failing(kind, "Renew", "Release")
    assert await ann(lease.wait_lost, timeout=20) is True
    assert world.spy.asked("Renew") >= 2
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "unreachable"
    await world.until(lambda: reported)
    world.spy.before = nothing
    with pytest.raises(LockLost):
        await ann(lock.release)
    again = held(await ann(lock.acquire, timeout=20))
    assert again.token > lease.token
    again.check()
    assert reported == [lease]


async def test_a_renewal_that_hangs_for_ever(world: SpyWorld) -> None:
    """The loss is reported at the deadline all the same, by a thread other than the keeper."""
    ann, lock = world.actor(), world.client().lock("x", ttl=TTL)
    lease = held(await ann(lock.acquire))
    reported: list[Lease] = []
    lease.on_lost(reported.append)
    gate = Gate(world, "Renew")
    world.spy.before = gate
    try:
        await world.until(gate.reached.is_set)
        await world.until(lambda: reported == [lease])
        assert await ann(lease.wait_lost, timeout=20) is True
    finally:
        gate.open()


async def test_a_renewal_that_comes_after_the_loss_does_not_bring_it_back(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client().lock("x", ttl=TTL)
    lease = held(await ann(lock.acquire))
    gate = Gate(world, "Renew")
    world.spy.after = gate
    await world.until(gate.reached.is_set)  # it was renewed in the engine, and we do not know it yet
    await world.until(lambda: lease.lost)
    gate.open()
    world.spy.after = nothing
    await world.until_free("x")  # given up by both sides
    assert lease.lost
    assert lease.remaining == 0


async def test_a_renewal_that_races_a_release_does_not_bring_it_back(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client().lock("x", ttl=2.0)
    lease = held(await ann(lock.acquire))
    reported: list[Lease] = []
    lease.on_lost(reported.append)
    gate = Gate(world, "Renew")
    world.spy.before = gate
    await world.until(gate.reached.is_set)
    await ann(lock.release)
    gate.open()
    world.spy.before = nothing
    renewals = world.spy.asked("Renew")
    kept = held(await ann(world.client().lock("y", ttl=1.0).acquire))
    await world.until(lambda: world.spy.asked("Renew") > renewals + 1)
    kept.check()
    assert not world.look("x").locked
    assert reported == []


async def test_a_record_that_was_deleted_from_outside(world: SpyWorld) -> None:
    """The next renewal finds out, long before the deadline."""
    ann, lock = world.actor(), world.client().lock("x", ttl=3)
    lease = held(await ann(lock.acquire))
    space(world.url.removeprefix("memory://")).records.clear()
    assert await ann(lease.wait_lost, timeout=20) is True
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "expired"
    with pytest.raises(LockLost):
        await ann(lock.release)


async def test_one_that_another_client_got_meanwhile(world: SpyWorld) -> None:
    ann, bob, lock = world.actor(), world.actor(), world.client().lock("x", ttl=3)
    lease = held(await ann(lock.acquire))
    space(world.url.removeprefix("memory://")).records.clear()
    other = held(await bob(world.client().lock("x").acquire, timeout=0))
    assert await ann(lease.wait_lost, timeout=20) is True
    with pytest.raises(LockLost) as loss:
        await ann(lock.release)
    assert loss.value.reason == "stolen"
    other.check()
    assert other.token > lease.token, "tokens grow even over a record that was lost"


async def test_renewals_of_everything_held_go_together(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client()
    leases = [held(await ann(client.lock(f"x{number}", ttl=6.0).acquire)) for number in range(50)]
    renewals = [renewal_of(lease) for lease in leases]
    world.spy.calls.clear()
    await world.until(lambda: all(is_renewed() for is_renewed in renewals))
    for lease in leases:
        lease.check()
    tending = [call for call in world.spy.calls if call.method == "tend"]
    assert len(tending) < 5
    assert sum(len(call.asked) for call in tending) >= 50


# --- everything else ----------------------------------------------------------------------------


async def test_looking_is_tried_again_and_given_up(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client(io_timeout=0.2)
    world.spy.before = failing(NotApplied, "Inspect", "Break", times=2)
    assert (await ann(client.inspect, "x")).kind is None
    world.spy.before = failing(NotApplied, "Inspect", "Break")
    with pytest.raises(EngineUnavailable):
        await ann(client.inspect, "x")
    with pytest.raises(EngineUnavailable):
        await ann(client.break_lock, "x", reason="test")

    def list_fails(call: Call) -> None:
        if call.method == "list_names":
            raise NotApplied("out of order")

    world.spy.before = list_fails
    with pytest.raises(EngineUnavailable):
        await ann(client.list)


async def test_closing_when_the_engine_is_gone(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client(io_timeout=30)
    await ann(client.lock("x").acquire)
    world.spy.before = failing(NotApplied, "Release", "Withdraw")
    began = time.monotonic()
    await ann(client.close)
    assert time.monotonic() - began < 10


# --- waiting for other things than one lock -----------------------------------------------------


@pytest.mark.parametrize("what", ["latch", "barrier"])
async def test_a_wait_at_a_latch_or_a_barrier_outlasts_an_outage(world: SpyWorld, what: str) -> None:
    """As a waiter for a lock does. The outage is longer than ``io_timeout``."""
    ann, bob = world.actor(), world.actor()
    count = 1 if what == "latch" else 2
    mine, theirs = [
        getattr(client, what)("x", count) for client in (world.client(io_timeout=0.05), world.client())
    ]
    waiting = ann(mine.wait, 60)
    await world.until(lambda: world.spy.asked("ReadCell") >= 2)
    world.spy.before = outage = Outage("ReadCell")
    await world.until(lambda: waiting.done() or outage.seconds > 0.3)
    world.spy.before = nothing
    await bob(theirs.count_down if what == "latch" else theirs.wait)
    assert await waiting in (True, 0)
    world.spy.before = Outage("ReadCell")
    with pytest.raises(EngineUnavailable):
        await ann(mine.wait, 60)


async def test_any_takes_what_it_can_reach_and_outlasts_an_outage(world: SpyWorld) -> None:
    ann, several = world.actor(), world.client(io_timeout=5.0).any("x", "y")
    world.spy.before = failing(NotApplied, "Acquire", times=1)
    assert held(await ann(several.acquire, blocking=False)).name == "y"
    await ann(several.release)
    world.spy.before = failing(NotApplied, "Acquire", times=4)
    assert held(await ann(several.acquire)).name == "x"
    await ann(several.release)
    world.spy.before = failing(NotApplied, "Acquire")
    with pytest.raises(EngineUnavailable, match="out of order"):
        await ann(several.acquire, blocking=False)
    with pytest.raises(EngineUnavailable, match="out of order"):
        await ann(world.client(io_timeout=0.05).any("x", "y").acquire)


async def test_a_job_is_not_missed_for_a_connection_that_broke(world: SpyWorld) -> None:
    """It waits for no other server, but it does try to reach the engine."""
    ann, job = world.actor(), world.client().job("x")
    for kind in (NotApplied, OutcomeUnknown):
        world.spy.before = failing(kind, "Acquire", times=2)
        async with ann.inside(job) as run:  # type: ignore[arg-type]  # an actor enters anything like a lock
            assert run is not None
    world.spy.before = failing(NotApplied, "Acquire")
    with pytest.raises(EngineUnavailable):
        await ann(getattr(world.client(io_timeout=0.1).job("x"), ann.enter_name))


class Outage:
    """Nothing that is asked happens."""

    def __init__(self, *asked: str) -> None:
        self._asked = asked
        self._began: float | None = None
        self.seconds = 0.0
        """Between the first and the last request that failed."""

    def __call__(self, call: Call) -> None:
        if set(self._asked) & set(call.asked):
            self._began = self._began or time.monotonic()
            self.seconds = time.monotonic() - self._began
            raise NotApplied("out of order")
