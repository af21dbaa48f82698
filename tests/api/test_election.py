"""A leader gives up when its work has stopped; its body learns of a loss; candidates and observers go on."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import holdfast
import holdfast.aio
from holdfast import EngineUnavailable, InvalidArgument, LockLost, NotHeld, fencing
from holdfast.aio import AsyncClient
from holdfast.lab.servers import Redis
from support import async_wait_until, wait_until


def run(test: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """In a loop and with a client of its own; afterwards no cancellation may be left on the task."""

    async def main() -> None:
        async with holdfast.aio.connect(f"memory://{secrets.token_hex(8)}") as client:
            await test(client)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "a stray cancellation was left behind"

    asyncio.run(main())


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_loss_cancels_the_body_and_is_raised_when_the_body_has_ended() -> None:
    async def test(client: AsyncClient) -> None:
        election = client.election("x")
        happened: list[str] = []
        elected = asyncio.Event()

        async def lead() -> None:
            async with election.campaign():
                elected.set()
                try:
                    await for_ever()
                except asyncio.CancelledError:
                    happened.append("cancelled")
                    await election.leader()
                    happened.append("stopped")
                    raise

        leading = asyncio.create_task(lead())
        await elected.wait()
        await client.break_lock(election.lock_name, reason="test")
        with pytest.raises(LockLost, match="leadership of 'x'") as loss:
            await leading
        assert happened == ["cancelled", "stopped"]
        assert (loss.value.name, loss.value.reason) == ("x", "broken")

    run(test)


def test_no_other_is_elected_while_the_work_winds_down() -> None:
    """The grace is the time to stop in. The leadership is given up when the body has ended, not before."""

    async def test(client: AsyncClient) -> None:
        happened: list[str] = []
        renewals = asyncio.Event()
        mine = client.election("x", ttl=1.0, grace=0.4)

        async def lead() -> None:
            with contextlib.suppress(LockLost):
                async with mine.campaign() as leadership:
                    leadership.lease._state.renews = False  # as when the engine answers no renewal
                    renewals.set()
                    try:
                        await for_ever()
                    finally:
                        assert leadership.remaining > 0
                        assert (await client.inspect(mine.lock_name)).waiters, "the other one waits"
                        assert not await client.election("x").campaign(timeout=0)._lock.acquire()
                        happened.append("stopped")

        async def follow() -> None:
            await renewals.wait()
            async with client.election("x").campaign():
                happened.append("followed")

        await asyncio.gather(lead(), follow())
        assert happened == ["stopped", "followed"]

    run(test)


def test_terms_survive_losses_and_leave_outer_cancellations_alone() -> None:
    async def test(client: AsyncClient) -> None:
        election = client.election("x", b"me")
        tokens: list[int] = []

        async def serve() -> None:
            async for term in election.terms():
                async with term:
                    tokens.append(term.token)
                    await for_ever()

        serving = asyncio.create_task(serve())
        for count in (1, 2, 3):
            await async_wait_until(lambda count=count: len(tokens) == count)  # type: ignore[misc]  # mypy cannot type a lambda with a default
            await client.break_lock(election.lock_name, reason="test")
        await async_wait_until(lambda: len(tokens) == 4)
        assert tokens == sorted(set(tokens))
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert await election.leader() is None, "it was given up on the way out"

    run(test)


def test_a_time_out_inside_a_term_is_the_users_own() -> None:
    async def test(client: AsyncClient) -> None:
        async for term in client.election("x").terms():
            with pytest.raises(TimeoutError):
                async with term, asyncio.timeout(0.01):
                    await for_ever()
            break

    run(test)


@pytest.mark.parametrize("seconds", [0, 0.001])
def test_a_cancelled_campaign_leaves_nothing(seconds: float) -> None:
    async def test(client: AsyncClient) -> None:
        mine, theirs = client.election("x"), client.election("x")
        async with mine.campaign():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds), theirs.campaign():
                    pytest.fail("it was not elected")
            assert (await client.inspect(mine.lock_name)).waiters == ()

    run(test)


def test_threads_learn_of_a_loss_by_callback_and_by_check(sqlite_url: str) -> None:
    with holdfast.connect(sqlite_url) as client:
        election, told = client.election("x"), threading.Event()
        with (  # noqa: PT012 - the loss is raised at the end of the body
            pytest.raises(LockLost, match="leadership of 'x'"),
            election.campaign() as leadership,
        ):
            leadership.on_lost(lambda lost: told.set() if lost is leadership else None)
            client.break_lock(election.lock_name, reason="test")
            assert told.wait(20)
        assert leadership.lost
        assert leadership.wait_lost(0)
        with pytest.raises(LockLost, match="leadership of 'x'"):
            leadership.check()


def test_the_error_of_the_body_comes_first(sqlite_url: str) -> None:
    with holdfast.connect(sqlite_url) as client:
        election = client.election("x")
        for term in election.terms():
            with pytest.raises(ZeroDivisionError), term:
                _ = 1 / 0
            assert election.leader() is None
            break
        for number, term in enumerate(election.terms()):
            with term:
                client.break_lock(election.lock_name, reason="test")
                wait_until(lambda term=term: term.lost)  # type: ignore[misc]  # mypy cannot type a lambda with a default
                term.check()
                pytest.fail("it had lost its term")
            if number == 1:
                break


def test_a_client_that_is_closed_ends_its_campaigns_and_observers(sqlite_url: str) -> None:
    client = holdfast.connect(sqlite_url)
    observer, terms = client.election("x").observe(), client.election("x").terms()
    assert next(observer) is None
    next(terms)
    client.close()
    for each in (observer, terms):
        with pytest.raises(InvalidArgument, match="closed"):
            next(each)


def test_a_guard_takes_a_leadership_as_it_takes_a_lease(sqlite_url: str, tmp_path: Path) -> None:
    with holdfast.connect(sqlite_url) as client:
        file = fencing.FencedFile(tmp_path / "data")
        with client.election("x").campaign() as first:
            file.write(b"one", first)
        with client.election("x").campaign() as second:
            file.write(b"two", second)
            with pytest.raises((NotHeld, holdfast.StaleToken)):
                file.write(b"late", first)
            with pytest.raises(holdfast.StaleToken):
                file.write(b"late", first.token)
        assert file.read() == b"two"


@pytest.mark.engine("redis")
def test_an_observer_and_a_candidate_survive_a_server_that_goes_away() -> None:
    """What happened meanwhile is reported when the server is back; before the first report, the error is."""
    with Redis() as server:
        url = server.url
        with holdfast.connect(url, io_timeout=0.3) as client, holdfast.connect(url, io_timeout=0.3) as other:
            observer = client.election("x").observe()
            assert next(observer) is None
            seen: list[object] = []
            reading = threading.Thread(target=lambda: seen.extend([next(observer), next(observer)]))
            reading.start()
            terms = other.election("x", b"one", ttl=1.0).terms()
            first = next(terms)
            wait_until(lambda: len(client.inspect("_holdfast/election:x").holders) == 1)
            server.restart()
            second = next(terms)
            assert second.token > first.token
            reading.join(20)
            assert not reading.is_alive()
            terms.close()
            observer.close()
    with holdfast.connect(url, io_timeout=0.1) as client, pytest.raises(EngineUnavailable):
        next(client.election("x").observe())
