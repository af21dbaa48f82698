"""Jobs that run once: of those who fire one, one runs it, and what it did is remembered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from contract.engines import needs
from contract.harness import Actor, World, held
from holdfast import InvalidArgument, LockLost
from holdfast.facades.job_run import JobRun
from holdfast.model import Run
from holdfast.recipes import names
from holdfast.recipes.job import encode

pytestmark = needs("value")


def record(name: str) -> str:
    return names.job(name)


@contextlib.asynccontextmanager
async def inside(actor: Actor, job: Any) -> AsyncIterator[JobRun[Any] | None]:
    """``with job as run`` by this actor."""
    async with actor.inside(job) as run:
        yield run  # type: ignore[misc]  # an actor enters anything that has the methods of a lock


async def last_of(actor: Actor, job: Any) -> Run | None:
    return await actor(lambda: job.last)


async def remember(actor: Actor, world: World, name: str, run: Run) -> None:
    """As if this had been the last run."""
    await store(actor, world, name, encode(run))


async def store(actor: Actor, world: World, name: str, data: bytes) -> None:
    cell = world.client().cell(name)
    cell._cell.record = names.job_state(name)
    await actor(cell.set_if, 0, data)


def hours_ago(hours: float, **fields: Any) -> Run:
    at = time.time() - hours * 3600
    run = Run(started=at, ended=at + 60, owner="host/1/main", state="done", due=at, every=3600.0)
    return dataclasses.replace(run, **fields)


async def test_of_many_that_fire_one_runs(world: World) -> None:
    actors = [world.actor() for _ in range(6)]
    jobs = [world.client().job("x", every=3600) for _ in actors]
    runs: list[JobRun[Any]] = []

    async def fire(actor: Actor, job: Any) -> None:
        async with inside(actor, job) as run:
            if run is not None:
                runs.append(run)

    for _ in range(2):
        await asyncio.gather(*[fire(actor, job) for actor, job in zip(actors, jobs, strict=True)])
    assert len(runs) == 1
    assert {job.skipped.reason for job in jobs if job.skipped is not None} == {"not due"}, (
        "a server that only decides is not taken for a run"
    )
    last = await last_of(actors[0], jobs[0])
    assert last is not None
    assert (last.state, last.token, last.missed) == ("done", runs[0].token, 0)
    assert world.look(record("x")).holders == ()


async def test_the_last_run_is_remembered(world: World) -> None:
    ann, bob = world.actor("ann"), world.actor("bob")
    mine, other = world.client().job("x", every=3600), world.client().job("x", every=3600)
    assert await last_of(bob, other) is None
    began = time.time()
    async with inside(ann, mine) as run:
        assert run is not None
        assert (run.previous, run.missed, run.reruns, run.catches_up) == (None, 0, False, False)
        running = await last_of(bob, other)
        assert running is not None
        assert (running.state, running.ended, running.token) == ("running", None, run.token)
        assert abs(running.started - began) < 60, "seconds since 1970"
        async with inside(bob, other) as not_mine:
            assert not_mine is None
        assert other.skipped is not None
        assert other.skipped.reason == "running"
        assert "/ann" in other.skipped.detail
        run.check()
        run.set_result({"rows": 7})
    last = await last_of(bob, other)
    assert last is not None
    assert (last.state, last.result, last.error, last.owner[-4:]) == ("done", {"rows": 7}, None, "/ann")
    assert last.ended is not None
    assert last.duration is not None
    assert 0 <= last.duration < 60
    assert last.next_due == last.due + 3600
    async with inside(bob, other) as again:
        assert again is None
    assert other.skipped is not None
    assert (other.skipped.reason, other.skipped.until) == ("not due", last.next_due)
    assert await last_of(bob, other) == last


async def test_a_failed_run_counts_and_its_error_is_remembered(world: World) -> None:
    ann, job = world.actor(), world.client().job("x", every=3600)
    with pytest.raises(ZeroDivisionError):
        async with inside(ann, job):
            raise ZeroDivisionError("no rows")
    last = await last_of(ann, job)
    assert last is not None
    assert (last.state, last.error) == ("failed", "ZeroDivisionError: no rows")
    async with inside(ann, job) as again:
        assert again is None


@pytest.mark.parametrize("on_crash", ["rerun", "skip"])
async def test_after_a_crash_it_runs_again_or_not(world: World, on_crash: Any) -> None:
    ann = world.actor()
    await remember(ann, world, "x", hours_ago(0.1, state="running", ended=None))
    job = world.client().job("x", every=3600, on_crash=on_crash)
    crashed = await last_of(ann, job)
    assert crashed is not None
    assert crashed.state == "crashed"
    async with inside(ann, job) as run:
        assert (run is not None) == (on_crash == "rerun")
        if run is not None:
            assert run.reruns
            assert run.previous is not None
            assert run.previous.token == crashed.token


async def test_missed_firings_are_seen_and_one_run_makes_up_for_them(world: World) -> None:
    ann, client = world.actor(), world.client()
    await remember(ann, world, "x", hours_ago(3.2))
    job, eager = client.job("x", every=3600), client.job("x", every=3600, catch_up=True)
    last = await last_of(ann, job)
    assert last is not None
    assert last.missed == 2
    async with inside(ann, job) as run:
        assert run is not None
        assert (run.missed, run.catches_up) == (2, False)
        assert run.due == pytest.approx(last.due + 3 * 3600)
    async with inside(ann, job) as run:
        assert run is None
    async with inside(ann, eager) as run:
        assert run is not None
        assert (run.missed, run.catches_up) == (2, True)
    async with inside(ann, eager) as run:
        assert run is None
    last = await last_of(ann, job)
    assert last is not None
    assert last.missed == 0


async def test_a_run_that_takes_longer_than_at_most_is_lost_and_counts_as_crashed(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    job = client.job("x", at_most=0.4, ttl=0.4, if_lost="raise")

    async def hang() -> None:
        async with inside(ann, job) as run:
            assert run is not None
            await world.until(lambda: run.lost)

    with pytest.raises(LockLost) as loss:
        await hang()
    assert loss.value.reason == "max_hold"
    await world.until_free(record("x"))  # the holder stops relying on it a little before the engine ends it
    last = await last_of(bob, job)
    assert last is not None
    assert last.state == "crashed"


async def test_a_call_of_a_decorated_function_runs_or_returns_none(world: World) -> None:
    ann, client = world.actor(), world.client()
    job = client.job("x", at_least=3600)
    if world.driver == "threads":

        @job
        def double(number: int) -> Any:
            return number * 2
    else:

        @job
        async def double(number: int) -> Any:
            return number * 2

    assert await ann(double, 21) == 42
    assert await ann(double, 21) is None
    last = await last_of(ann, job)
    assert last is not None
    assert last.result == 42


async def test_results_that_cannot_be_stored_and_wrong_arguments(world: World) -> None:
    ann, client = world.actor(), world.client()
    job = client.job("é/{%}", every=3600)

    async def store_too_much() -> None:
        async with inside(ann, job) as run:
            assert run is not None
            run.set_result("x" * 50_000)
            for wrong in (object(), float("nan"), {"a": b""}):
                with pytest.raises(InvalidArgument, match="JSON"):
                    run.set_result(wrong)
            run.set_result("x" * 60_000)

    with pytest.raises(InvalidArgument, match=r"60002 bytes.*counts"):
        await store_too_much()
    async with inside(ann, job) as run:
        assert run is None, "the run counts"
    last = await last_of(ann, job)
    assert last is not None
    assert (last.state, len(last.result)) == ("failed", 50_000)
    wrong_options: list[dict[str, Any]] = [
        {"every": 0.5},
        {"every": -1},
        {"every": "1h"},
        {"every": float("inf")},
        {"every": 101 * 366 * 86_400},
        {"at_least": -1},
        {"every": 60, "at_least": 61},
        {"at_most": 0},
        {"on_crash": "retry"},
        {"catch_up": True},
        {"timeout": -3},
        {"ttl": 0},
    ]
    for options in wrong_options:
        with pytest.raises(InvalidArgument):
            client.job("x", **options)
    for name in ("", "x" * 513, 7):
        with pytest.raises(InvalidArgument, match="name"):
            client.job(name)  # type: ignore[arg-type]  # on purpose


async def test_a_value_that_no_job_wrote_is_reported(world: World) -> None:
    ann, client = world.actor(), world.client()
    await store(ann, world, "x", b'{"format": 99}')
    job = client.job("x", every=3600)
    with pytest.raises(Exception, match=r"an unknown format.*newer version"):
        async with inside(ann, job):
            pass
    assert not world.look(record("x")).locked, "nothing is left behind"


async def test_the_clock_of_the_engine_is_used_where_its_tokens_tell_it(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    is_a_moment = abs(lease.token / 1e6 - time.time()) < 3600
    assert client.guarantees.has_timed_tokens == is_a_moment
