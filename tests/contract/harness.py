"""One way to write a test for threads and for asyncio: actors.

An actor is a thread, or a task, that carries out orders, one after the other. Calling it with a
function has it done there and gives a future of the result:

    ann, bob = world.actor("ann"), world.actor("bob")
    lock = world.client().lock("x")
    lease = await ann(lock.acquire)
    waiting = bob(lock.acquire)            # blocks bob, not the test
    await world.until_waiting("x", 1)
    await ann(lock.release)
    assert (await waiting).token > lease.token

So who calls is always plain, which is what ownership is about. The asyncio API has the names of the threads
API, so tests are typed against the latter; an actor that is a task awaits what has to be awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import pytest

import holdfast
import holdfast.aio
from contract.engines import Driver, fresh_namespace, lacks
from holdfast import Client, Lease, Lock, LockInfo, LockLost
from holdfast.aio import AsyncLease
from support import Seen, async_wait_until

__all__ = ["Actor", "World", "given_back_in_time", "held", "run_in_its_world"]

P = ParamSpec("P")
T = TypeVar("T")


def held(lease: Lease | None) -> Lease:
    """What ``acquire`` returned, which must be a lease."""
    assert lease is not None, "it was not granted"
    return lease


async def given_back_in_time(actor: Actor, lock: Lock) -> tuple[Lease, list[Lease]]:
    """A short lease that was released before it ran out, and the calls of its callback."""
    for _ in range(20):
        reported: list[Lease] = []
        lease = held(await actor(lock.acquire))
        lease.on_lost(reported.append)
        try:
            await actor(lock.release)
        except LockLost:
            continue  # this machine stood still
        return lease, reported
    raise AssertionError("it was lost every time")


class Actor(Protocol):
    """One thread or task of the test's own."""

    name: str
    enter_name: str
    """What ``with`` calls first, and last: a thread's names differ from a task's."""
    exit_name: str

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]: ...

    def inside(self, lock: Lock) -> contextlib.AbstractAsyncContextManager[Lease]:
        """``with lock`` by this actor."""
        ...

    async def stop(self) -> None: ...


class _Actor:
    """What both kinds share."""

    enter_name: str
    exit_name: str

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def inside(self, lock: Lock) -> AsyncIterator[Lease]:
        leave = getattr(lock, self.exit_name)
        lease: Lease = await self(getattr(lock, self.enter_name))
        try:
            yield lease
        except BaseException as error:
            await self(leave, type(error), error, error.__traceback__)
            raise
        else:
            await self(leave, None, None, None)


def _heard(future: asyncio.Future[Any]) -> None:
    """A test may not care how something ended. What asyncio would say of that, it says while garbage is
    collected, and formatting a traceback then breaks any thread that is parsing Python at that moment."""
    if not future.cancelled():
        future.exception()


class ThreadActor(_Actor):
    """A thread."""

    enter_name, exit_name = "__enter__", "__exit__"

    def __init__(self, name: str, keep: Callable[[object], None]) -> None:
        self.name = name
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        future.add_done_callback(_heard)
        self._orders.put((future, lambda: function(*args, **kwargs)))
        return future

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            self._do(*order)
            del order  # what was done must not be kept alive by us

    def _do(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        try:
            result = call()
            self._keep(result)
        except BaseException as error:
            self._tell(future, future.set_exception, error)
        else:
            self._tell(future, future.set_result, result)

    def _tell(self, future: asyncio.Future[Any], tell: Callable[[Any], None], what: Any) -> None:
        def reported() -> None:
            if not future.done():
                tell(what)

        with contextlib.suppress(RuntimeError):  # the test has ended, and its loop with it
            self._loop.call_soon_threadsafe(reported)

    async def stop(self) -> None:
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join, 5.0)


class TaskActor(_Actor):
    """A task."""

    enter_name, exit_name = "__aenter__", "__aexit__"

    def __init__(self, name: str, keep: Callable[[object], None]) -> None:
        self.name = name
        self._keep = keep
        self._orders: asyncio.Queue[tuple[asyncio.Future[Any], Callable[[], Any]]] = asyncio.Queue()
        self._task = asyncio.create_task(self._work(), name=name)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(_heard)
        self._orders.put_nowait((future, lambda: function(*args, **kwargs)))
        return future

    async def _work(self) -> None:
        while True:
            await self._do(*await self._orders.get())

    async def _do(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        try:
            result = call()
            if inspect.isawaitable(result):
                result = await result
            self._keep(result)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class World:
    """An engine, or a part of one, of the test's own, and those who use it."""

    def __init__(self, driver: Driver, url: str) -> None:
        self.driver = driver
        self.url = url
        self.namespace = fresh_namespace()
        """Of its own, so that engines with a server can share one; another one should begin with it."""
        self._actors: list[Actor] = []
        self._clients: list[Client] = []
        self._observer: Client | None = None
        self._kept: list[object] = []
        self.keeps_leases = True
        """Leases taken by actors live until the end of the test, so that none is dropped by accident."""

    def _keep(self, result: object) -> None:
        if self.keeps_leases and isinstance(result, Lease | AsyncLease):
            self._kept.append(result)

    def client(self, **options: Any) -> Client:
        """A client for the actors, closed at the end; by default in the world's own namespace."""
        client = self._connect(**{"namespace": self.namespace, **options})
        self._clients.append(client)
        return client

    def _connect(self, namespace: str, **options: Any) -> Client:
        connect = holdfast.connect if self.driver == "threads" else holdfast.aio.connect
        return cast(Client, connect(self.url, namespace=namespace, **options))

    def actor(self, name: str = "") -> Actor:
        name = name or f"actor-{len(self._actors) + 1}"
        actor: Actor = cast(
            Actor,
            ThreadActor(name, self._keep) if self.driver == "threads" else TaskActor(name, self._keep),
        )
        self._actors.append(actor)
        return actor

    def one_of_each(self, client: Client, ttl: float = 30.0) -> list[Lock]:
        """A lock of every kind that the engine has, each of a name of its own."""
        missing = lacks(self.url)
        locks: list[Lock] = [client.lock("lock", ttl=ttl), client.rlock("rlock", ttl=ttl)]
        if "rwlock" not in missing:
            locks += [client.rwlock("read", ttl=ttl).read(), client.rwlock("write", ttl=ttl).write()]
        if "semaphore" not in missing:
            locks.append(client.semaphore("semaphore", 2, ttl=ttl))
        return locks

    # --- what is in the engine, as another client sees it

    def look(self, name: str) -> LockInfo:
        if self._observer is None:
            self._observer = holdfast.connect(self.url, namespace=self.namespace)
        return self._observer.inspect(name)

    async def until(self, predicate: Callable[[], T], message: str = "", timeout: float = 20.0) -> T:
        return await async_wait_until(predicate, timeout=timeout, message=message)

    async def until_waiting(self, name: str, count: int, unless: asyncio.Future[Any] | None = None) -> None:
        """Until so many wait for the name; or one of them, who waits for a while only, does so no more."""
        await self.until(
            lambda: self._waiting(name) == count or (unless is not None and unless.done()),
            f"never {count} waiting for {name!r}",
        )

    def _waiting(self, name: str) -> int:
        """As the engine shows; where it has no queue to show, as the clients of this world know."""
        if "queue" not in lacks(self.url):
            return len(self.look(name).waiters)
        books = [client._driver.client_state for client in self._clients]
        return sum(
            1 for client_state in books for each in list(client_state.waiting.values()) if each.name == name
        )

    def seen(self, name: str) -> Seen:
        """The lease of its first holder, as another client sees it."""
        return Seen(lambda: self.look(name).holders[0].remaining)

    async def until_free(self, name: str) -> None:
        """Until nobody holds the name or waits for it."""
        await self.until(
            lambda: not self.look(name).holders and not self.look(name).waiters, f"{name!r} stayed in use"
        )

    # --- its life

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closer = self.actor("closer")
        for client in self._clients:
            await closer(client.close)
        if self._observer is not None:
            self._observer.close()
        for actor in reversed(self._actors):
            await actor.stop()


def run_in_its_world(item: pytest.Function) -> bool | None:
    """For ``pytest_pyfunc_call``: run a coroutine function in a loop of its own, inside its ``world``."""
    test = item.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: item.funcargs[name] for name in inspect.signature(test).parameters}
    world = arguments["world"]
    assert isinstance(world, World)

    async def run() -> None:
        async with world:
            await test(**arguments)

    asyncio.run(run())
    return True
