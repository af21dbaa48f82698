"""Losing a lease: reported once, in time, and for good."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

import pytest

from contract.engines import takes_seconds
from contract.harness import World, given_back_in_time, held
from holdfast import InvalidArgument, Lease, LockLost, NotHeld
from support import renewal_of


async def test_exactly_one_signal(world: World) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x", ttl=0.2, renew=False)
    lease = held(await ann(lock.acquire))
    reported: list[Lease] = []
    lease.on_lost(reported.append)
    assert await ann(lease.wait_lost, timeout=20) is True
    await world.until(lambda: reported)
    with pytest.raises(LockLost):
        await ann(lock.release)
    await ann(client.break_lock, "x", reason="make sure")
    async with ann.inside(client.lock("x")):
        pass
    assert reported == [lease]


async def test_loss_is_final(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=0.2, renew=False).acquire))
    await world.until(lambda: lease.lost)
    for _ in range(3):
        with pytest.raises(LockLost):
            lease.check()
        assert (lease.lost, lease.remaining) == (True, 0)
    with pytest.raises(LockLost):
        await ann(lease.release)
    assert lease.lost
    with pytest.raises(LockLost):
        lease.check()


async def test_callbacks_registered_after_the_loss_are_called_too(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=0.2, renew=False).acquire))
    reported: list[str] = []
    lease.on_lost(lambda lost: reported.append("before"))
    await world.until(lambda: reported)
    lease.on_lost(lambda lost: reported.append("after"))
    await world.until(lambda: reported == ["before", "after"])


@takes_seconds
async def test_a_callback_that_raises_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=0.2, renew=False).acquire))
    kept = held(await ann(client.lock("kept", ttl=3.0).acquire))
    is_renewed = renewal_of(kept)
    reported: list[Lease] = []

    def raises(lost: Lease) -> None:
        raise ZeroDivisionError("in the callback")

    lease.on_lost(raises)
    lease.on_lost(reported.append)
    with caplog.at_level(logging.ERROR, logger="holdfast"):
        await world.until(lambda: reported == [lease])
    assert "callback raised" in caplog.text
    await world.until(is_renewed)
    kept.check()


async def test_a_release_is_not_reported_as_a_loss(world: World) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x", ttl=0.3, renew=False)
    _, reported = await given_back_in_time(ann, lock)
    later = held(await ann(lock.acquire))
    also: list[Lease] = []
    later.on_lost(also.append)
    await world.until(lambda: also)  # that one's loss comes after the time of the first
    assert reported == []


async def test_a_loss_that_release_finds_out_first_is_reported_too(world: World) -> None:
    """The process stood still, and the first thing it does is to release: callbacks run all the same."""
    ann, client = world.actor(), world.client()
    lock = client.lock("x", ttl=0.3, renew=False)
    lease = held(await ann(lock.acquire))
    reported: list[Lease] = []
    lease.on_lost(reported.append)

    release: Callable[[], object] = lock.release  # under asyncio it gives a coroutine

    def stand_still_then_release() -> object:
        while not lease.lost:
            pass
        return release()

    with pytest.raises(LockLost):
        await ann(stand_still_then_release)
    await world.until(lambda: reported == [lease], "no callback was called", timeout=5)


async def test_waiting_for_the_loss(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lock = client.lock("x")
    lease = held(await ann(lock.acquire))
    assert await bob(lease.wait_lost, timeout=0) is False
    assert await bob(lease.wait_lost, timeout=0.05) is False
    waiting = bob(lease.wait_lost)
    await ann(lock.release)
    assert await waiting is False, "a release wakes it"
    assert await bob(lease.wait_lost) is False
    lost = held(await ann(client.lock("y", ttl=0.2, renew=False).acquire))
    assert await bob(lost.wait_lost) is True
    assert await bob(lost.wait_lost, timeout=0) is True
    with pytest.raises(InvalidArgument, match="timeout"):
        await bob(lost.wait_lost, timeout=-3)


async def test_many_may_wait_for_the_loss(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    waiting = [world.actor()(lease.wait_lost, timeout=20) for _ in range(3)]
    await ann(client.break_lock, "x", reason="test")
    for each in waiting:
        assert await each is True


@takes_seconds
async def test_grace_is_a_warning_before_the_end(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=4.0, renew=False, grace=2.0).acquire))
    seen: list[tuple[float, bool, int]] = []
    lease.on_lost(lambda lost: seen.append((lost.remaining, lost.lost, len(world.look("x").holders))))
    lease.check()
    assert await ann(lease.wait_lost, timeout=20) is True
    await world.until(lambda: seen)
    remaining, lost, holders = seen[0]
    assert 0 < remaining <= 2.0
    assert lost
    assert holders == 1, "until the deadline nobody else gets it"
    with pytest.raises(LockLost):
        lease.check()
    await world.until_free("x")


@takes_seconds
async def test_grace_counts_for_max_hold_too(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=30, max_hold=4.0, grace=2.0).acquire))
    assert await ann(lease.wait_lost, timeout=20) is True
    assert lease.remaining > 0
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "max_hold"


@takes_seconds
async def test_renewal_goes_on_with_a_grace(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=3.0, grace=0.5).acquire))
    await world.until(renewal_of(lease))
    lease.check()


@pytest.mark.parametrize("grace", [-1, 16, float("nan"), float("inf"), "1", None])
async def test_a_grace_that_means_nothing_is_refused(world: World, grace: float) -> None:
    with pytest.raises(InvalidArgument, match="grace"):
        world.client().lock("x", ttl=30, grace=grace)


async def test_losing_it_inside_with(world: World) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x", ttl=0.2, renew=False, if_lost="raise")
    with pytest.raises(LockLost) as loss:
        async with ann.inside(lock) as lease:
            await world.until(lambda: lease.lost)
    assert (loss.value.name, loss.value.token, loss.value.reason) == ("x", lease.token, "expired")
    assert lock.lease is None
    with contextlib.suppress(LockLost):  # it is as short as the first
        async with ann.inside(lock) as again:
            pass
    assert again.token > lease.token, "the object can be used again"


async def test_the_bodys_own_error_comes_first(world: World) -> None:
    ann, client = world.actor(), world.client()

    async def body() -> None:
        async with ann.inside(client.lock("x", ttl=0.2, renew=False, if_lost="raise")) as lease:
            await world.until(lambda: lease.lost)
            raise ZeroDivisionError("of the body")

    with pytest.raises(ZeroDivisionError) as error:
        await body()
    (note,) = error.value.__notes__
    assert "was lost" in note
    assert "'x'" in note


async def test_a_loss_that_is_only_noted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    ann, client = world.actor(), world.client()

    async def body(error: Exception | None) -> None:
        async with ann.inside(client.lock("x", ttl=0.2, renew=False, if_lost="note")) as lease:
            await world.until(lambda: lease.lost)
            if error is not None:
                raise error

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        await body(None)
        assert caplog.text.count("was lost") == 1
        with pytest.raises(ZeroDivisionError) as error:
            await body(ZeroDivisionError("of the body"))
    assert not hasattr(error.value, "__notes__")
    assert caplog.text.count("was lost") == 2


async def test_it_is_lost_and_with_does_not_touch_the_next_holder(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    with pytest.raises(LockLost):
        async with ann.inside(client.lock("x", ttl=0.2, renew=False, if_lost="raise")):
            lease = held(await bob(client.lock("x").acquire, timeout=20))
    lease.check()
    assert [holder.token for holder in world.look("x").holders] == [lease.token]


async def test_a_slow_callback_delays_no_other_report_and_no_renewal(world: World) -> None:
    ann, client = world.actor(), world.client()
    if world.driver == "asyncio":
        return  # callbacks are turns of the loop there: one that blocks, blocks the loop
    first = held(await ann(client.lock("first", ttl=0.2, renew=False).acquire))
    second = held(await ann(client.lock("second", ttl=0.5, renew=False).acquire))
    kept = held(await ann(client.lock("kept", ttl=3.0).acquire))
    entered, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def slow(lost: Lease) -> None:
        threads.append(threading.current_thread())
        entered.set()
        go_on.wait(20)

    try:
        first.on_lost(slow)
        reported: list[Lease] = []
        second.on_lost(reported.append)
        await world.until(entered.is_set)
        await world.until(lambda: reported == [second])
        await world.until(renewal_of(kept))
        kept.check()
        assert threads[0].name not in ("holdfast-keeper", "holdfast-timer")
    finally:
        go_on.set()


async def test_check_after_release_is_not_a_loss(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease, _ = await given_back_in_time(ann, client.lock("x", ttl=0.2, renew=False))
    await world.until(lambda: world.look("x").token and not world.look("x").locked)
    assert not lease.lost
    with pytest.raises(NotHeld, match="released"):
        lease.check()
