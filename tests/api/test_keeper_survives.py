"""The renewal thread, or task, of a client: no error of an engine ends it; if it ends it is started again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from api.spy import Call, SpyWorld
from contract.harness import held
from holdfast import EngineUnavailable, connect
from support import renewal_of, wait_until

TTL = 3.0


class Strange(BaseException):
    """Neither an Exception nor an exit."""


def raising(error: type[BaseException], method: str, times: int) -> Any:
    left = [times]

    def fail(call: Call) -> None:
        if call.method == method and "Acquire" not in call.asked and left[0]:
            left[0] -= 1
            raise error("out of the blue")

    return fail


@pytest.mark.parametrize("error", [ValueError, Strange])
async def test_an_error_of_the_engine_that_comes_once_costs_nothing(
    world: SpyWorld, error: type[BaseException]
) -> None:
    ann, client = world.actor(), world.client()
    leases = [held(await ann(client.lock(name, ttl=TTL).acquire)) for name in "xyz"]
    world.spy.before = raising(error, "tend", 1)
    for lease in leases:
        await world.until(renewal_of(lease))
        lease.check()


@pytest.mark.parametrize("error", [KeyError, Strange])
async def test_one_that_always_fails_is_lost_alone(world: SpyWorld, error: type[BaseException]) -> None:
    ann, client = world.actor(), world.client()
    good, bad = [held(await ann(client.lock(name, ttl=TTL).acquire)) for name in ("good", "bad")]
    adapter = client._driver.adapter
    inner = adapter.renew_batch

    def poisoned(steps: Any) -> Any:
        if any(name == "bad" for name, _ in steps):
            raise error("out of the blue")
        return inner(steps)

    adapter.renew_batch = poisoned  # type: ignore[method-assign]  # to fail for one of them
    assert await ann(bad.wait_lost, timeout=20) is True
    await world.until(renewal_of(good))
    good.check()
    again = held(await ann(client.lock("other").acquire))
    again.check()


async def test_a_background_job_that_fails_ends_nothing(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=TTL).acquire))
    world.spy.before = raising(ValueError, "apply", 3)
    with pytest.raises(ValueError, match="blue"):
        await ann(held(await ann(client.lock("y").acquire)).release)
    await world.until(lambda: not world.look("y").locked)
    await world.until(renewal_of(lease))


async def test_a_thread_that_ends_is_started_again_and_nothing_is_acquired_meanwhile(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=TTL).acquire))
    refused: list[BaseException] = []

    def end(call: Call) -> None:
        if call.method == "tend" and not refused:
            refused.append(SystemExit())
            raise asyncio.CancelledError if world.driver == "asyncio" else SystemExit

    client_state = client._driver.client_state
    runs: list[str] = []
    book_runs = type(client_state).mark_running

    def held_up(self: Any, bell: Any) -> None:
        if refused and not go_on.is_set():
            return
        runs.append(bell)
        book_runs(self, bell)

    go_on = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(client_state), "runs", held_up)
        world.spy.before = end
        await world.until(lambda: "keeper" in client_state.stopped_timers)
        with pytest.raises(EngineUnavailable, match="started again"):
            await ann(client.lock("y").acquire)
        assert not world.look("y").locked
        go_on.set()
        await world.until(lambda: not client_state.stopped_timers)
    await ann(held(await ann(client.lock("y").acquire)).release)
    await world.until(renewal_of(lease))
    lease.check()


def test_no_more_threads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with connect("memory://no-more-threads") as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(EngineUnavailable, match="started again"):
                client.lock("x").acquire()
            with pytest.raises(EngineUnavailable, match="started again"):
                client.lock("x").acquire()
        with pytest.raises(EngineUnavailable, match="started again"):
            client.lock("x").acquire()  # and it is started
        wait_until(lambda: not client._driver.client_state.stopped_timers)
        lock = client.lock("x", timeout=10)
        assert lock.acquire() is not None, "what was granted before was given back"
        lock.release()
