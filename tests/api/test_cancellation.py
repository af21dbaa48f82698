"""Cancelling at every await of every operation: nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import holdfast
import holdfast.aio
from api.spy import Call, Spy
from holdfast import BrokenBarrierError, LockTimeout, NotHeld
from holdfast.aio import AsyncClient, AsyncLease, AsyncLock
from holdfast.core.effects import Apply, OutcomeUnknown
from holdfast.rules.requests import Inspect
from support import async_wait_until

Act = Callable[[AsyncClient], Awaitable[object]]


class Canceller:
    """Makes every call to the engine wait before and after it happens, and cancels at the n-th wait."""

    def __init__(self, at: int, again: bool = False) -> None:
        self._at, self._again = at, again
        self.task: asyncio.Task[object] | None = None
        self.waits = 0

    async def __call__(self, call: Call) -> None:
        task = asyncio.current_task()
        if task is None or task is not self.task:
            return  # the keeper and the timer are not who is cancelled
        self.waits += 1
        if self.waits == self._at or (self._again and self.waits == self._at + 1):
            task.cancel()
        await asyncio.sleep(0)


async def sweep(make: Callable[[AsyncClient], Awaitable[Act]], again: bool = False) -> int:
    """Cancel what ``make`` gives at every wait in turn; afterwards nobody holds or waits for anything."""
    at = 0
    while True:
        at += 1
        spy = Spy(f"memory://{secrets.token_hex(8)}")
        observer = holdfast.connect(spy.url)
        async with AsyncClient(spy, "holdfast", 5.0) as client:
            act = await make(client)
            canceller = Canceller(at, again)
            spy.before = spy.after = canceller
            canceller.task = asyncio.create_task(_awaited(act, client))
            with contextlib.suppress(asyncio.CancelledError):
                await canceller.task
            spy.before = spy.after = lambda call: None
            if canceller.waits < at:
                observer.close()
                return at - 1
            await nothing_is_left(client, observer, f"cancelled at wait {at}: something stayed behind")
        observer.close()


async def nothing_is_left(client: AsyncClient, observer: holdfast.Client, message: str) -> None:
    def is_clean() -> bool:
        idle = all(not info.holders and not info.waiters for info in observer.list())
        return idle and not client._driver.client_state.waiting and not client._driver._wakeups

    await async_wait_until(is_clean, timeout=5, message=message)


async def _awaited(act: Act, client: AsyncClient) -> object:
    return await act(client)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_cancelled_while_acquiring(again: bool) -> None:
    async def make(client: AsyncClient) -> Act:
        lock = client.lock("x")
        return lambda client: lock.acquire()

    # What is granted on the last turn is given back by closing the client.
    assert asyncio.run(sweep(make, again)) >= 2


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("kind", ["lock", "write", "semaphore"])
def test_cancelled_while_waiting(kind: str, again: bool) -> None:
    """Asked, queued, woken, asked again: each step of it."""

    def of(client: AsyncClient) -> AsyncLock:
        if kind == "write":
            return client.rwlock("x").write()
        return client.semaphore("x", 1) if kind == "semaphore" else client.lock("x")

    async def make(client: AsyncClient) -> Act:
        holder = of(client)
        await holder.acquire()

        async def let_go_when_somebody_waits() -> None:
            await async_wait_until(lambda: client._driver.client_state.waiting)
            with contextlib.suppress(NotHeld):
                await holder.release()

        async def act(client: AsyncClient) -> None:
            letting_go = asyncio.create_task(let_go_when_somebody_waits())
            try:
                async with of(client):
                    pass
            finally:
                letting_go.cancel()
                with contextlib.suppress(NotHeld):
                    # The task that is left holding it is not the cancelled one.
                    lease = holder.lease
                    if lease is not None:
                        await asyncio.shield(lease.release())

        return act

    assert asyncio.run(sweep(make, again)) >= 6


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("how", ["lock", "lease", "with"])
def test_cancelled_while_releasing(how: str, again: bool) -> None:
    """It is completed behind the caller's back."""

    async def make(client: AsyncClient) -> Act:
        lock = client.lock("x")

        async def act(client: AsyncClient) -> None:
            lease = await lock.acquire()
            assert lease is not None
            if how == "lock":
                await lock.release()
            elif how == "lease":
                await lease.release()

        async def with_it(client: AsyncClient) -> None:
            async with lock:
                pass

        return with_it if how == "with" else act

    assert asyncio.run(sweep(make, again)) >= 4


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_cancelled_while_downgrading(again: bool) -> None:
    async def make(client: AsyncClient) -> Act:
        async def act(client: AsyncClient) -> None:
            write = client.rwlock("x").write()
            async with write as written:
                assert isinstance(written, AsyncLease)
                lease = await written.downgrade()
                assert lease.mode == "read"

        return act

    assert asyncio.run(sweep(make, again)) >= 6


def test_cancelled_while_adopting() -> None:
    async def make(client: AsyncClient) -> Act:
        lease = await client.lock("x", ttl=0.5).acquire()
        assert lease is not None
        text = await lease.export()

        async def act(client: AsyncClient) -> None:
            with contextlib.suppress(NotHeld):  # this machine stood still, and nobody waits for longer
                adopted = await client.adopt(text)
                await adopted.release()

        return act

    assert asyncio.run(sweep(make)) >= 2


def test_cancelled_while_setting_a_value_extending_or_looking() -> None:
    """The lock is still held, and still can be given back."""

    async def make(client: AsyncClient) -> Act:
        async def act(client: AsyncClient) -> None:
            async with client.lock("x") as lease:
                await lease.set_value(b"1")
                await lease.extend(20)
                await client.inspect("x")
                await client.list()

        return act

    assert asyncio.run(sweep(make)) >= 12


async def campaign(client: AsyncClient) -> None:
    async with client.election("x", b"short").campaign() as leadership:
        await leadership.proclaim(bytes(2000))


async def campaign_with_a_long_value(client: AsyncClient) -> None:
    """It is stored after the grant: one step more."""
    async with client.election("x", bytes(2000)).campaign():
        pass


async def one_term(client: AsyncClient) -> None:
    terms = client.election("x").terms()
    try:
        async with await anext(terms):
            pass
    finally:
        await terms.aclose()


async def job(client: AsyncClient) -> None:
    async with client.job("x") as run:
        assert run is not None
        run.set_result(1)


async def idempotent_run(client: AsyncClient) -> None:
    async def work() -> int:
        return 1

    assert await client.idempotent("x").run(work) == 1


async def idempotent_block(client: AsyncClient) -> None:
    async with client.idempotent("x") as attempt:
        if not attempt.done:
            attempt.set_result(1)


async def all_of_them(client: AsyncClient) -> None:
    async with client.all("x", "y"):
        pass


async def all_in_order(client: AsyncClient) -> None:
    async with client.all("y", "x", order="given"):
        pass


async def any_of_them(client: AsyncClient) -> None:
    async with client.any("x", "y"):
        pass


async def barrier(client: AsyncClient) -> None:
    with contextlib.suppress(BrokenBarrierError):
        await client.barrier("x", 2).wait(0)


@contextlib.asynccontextmanager
async def held(client: AsyncClient, *names: str) -> AsyncIterator[None]:
    """By another task, which is not cancelled."""

    async def acquire() -> list[AsyncLease]:
        leases = await client.all(*names).acquire()
        assert leases is not None
        return list(leases.values())

    leases = await asyncio.create_task(acquire())
    try:
        with contextlib.suppress(LockTimeout):
            yield
    finally:
        for lease in leases:
            await asyncio.shield(lease.release())


async def campaign_in_vain(client: AsyncClient) -> None:
    async with held(client, "_holdfast/election:x"), client.election("x").campaign(timeout=0.01):
        pass


async def idempotent_in_vain(client: AsyncClient) -> None:
    async with held(client, "_holdfast/idempotency:/x"), client.idempotent("x", timeout=0.01):
        pass


async def all_in_vain(client: AsyncClient) -> None:
    async with held(client, "y"), client.all("x", "y", timeout=0.01):
        pass


async def all_in_order_in_vain(client: AsyncClient) -> None:
    async with held(client, "x"), client.all("y", "x", order="given", timeout=0.01):
        pass


async def any_in_vain(client: AsyncClient) -> None:
    async with held(client, "x", "y"), client.any("x", "y", timeout=0.01):
        pass


RECIPES = [
    campaign,
    campaign_with_a_long_value,
    one_term,
    job,
    idempotent_run,
    idempotent_block,
    all_of_them,
    all_in_order,
    any_of_them,
    barrier,
    campaign_in_vain,
    idempotent_in_vain,
    all_in_vain,
    all_in_order_in_vain,
    any_in_vain,
]


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.__name__))
def test_cancelled_in_a_recipe(recipe: Act, again: bool) -> None:
    """Afterwards it can be used at once."""

    async def make(client: AsyncClient) -> Act:
        async def act(client: AsyncClient) -> None:
            try:
                await recipe(client)
            except asyncio.CancelledError:
                await async_wait_until(lambda: not client._driver.client_state.leases, timeout=5)
                await asyncio.wait_for(asyncio.create_task(_awaited(recipe, client)), 10)
                raise

        return act

    assert asyncio.run(sweep(make, again)) >= 4


def test_cancelled_before_it_began() -> None:
    async def main() -> None:
        async with holdfast.aio.connect("memory://not-begun") as client:
            lock = client.lock("x")
            task = asyncio.create_task(lock.acquire())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await lock.locked()

    asyncio.run(main())


def test_a_lock_is_usable_after_a_cancelled_wait() -> None:
    async def main() -> None:
        async with holdfast.aio.connect("memory://usable-again") as client:
            lock = client.lock("x")
            held = await client.lock("x").acquire()
            assert held is not None
            for _ in range(3):
                waiting = asyncio.create_task(lock.acquire())
                await async_wait_until(lambda: client._driver.client_state.waiting)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert not (await client.inspect("x")).waiters
            await held.release()
            assert await lock.acquire(timeout=0) is not None
            await lock.release()

    asyncio.run(main())


def test_the_cancellation_does_not_hang_when_the_engine_does() -> None:
    """A second at most, for the withdrawal; then the caller is let go, and the keeper goes on trying."""

    async def main() -> None:
        spy = Spy("memory://hangs")
        client = AsyncClient(spy, "holdfast", 5.0)
        stuck = asyncio.Event()

        async def hang(call: Call) -> None:
            if "Withdraw" in call.asked or "Acquire" in call.asked:
                await stuck.wait()

        spy.before = hang
        task = asyncio.create_task(client.lock("x").acquire())
        await async_wait_until(lambda: spy.asked("Acquire"))
        began = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began < 4
        stuck.set()
        await client.close()

    asyncio.run(main())


def test_a_request_of_the_clean_up_that_is_cancelled_too_has_an_unknown_outcome() -> None:
    """It was taken for answered, so that a lock was thought released that was still held."""
    seen: list[BaseException] = []

    async def cleans_up() -> None:
        try:
            await Apply("x", Inspect())
        except asyncio.CancelledError:
            try:
                await Apply("x", Inspect())
            except OutcomeUnknown as unknown:
                seen.append(unknown)
            raise

    async def main() -> None:
        async def cancel(call: Call) -> None:
            task.cancel()
            await asyncio.sleep(0)

        spy = Spy("memory://cancelled-twice")
        async with AsyncClient(spy, "holdfast", 5.0) as client:
            task = asyncio.create_task(client._driver.run(cleans_up()))
            spy.before = cancel
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert len(seen) == 1


def test_acquire_is_a_plain_function() -> None:
    """It knows its caller when it is called, not when it is awaited."""
    assert not inspect.iscoroutinefunction(AsyncLock.acquire)
