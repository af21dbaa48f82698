"""Several locks at once, for asyncio."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ...aio import AsyncLease, AsyncLock, AsyncRWLock, _current_task
from ...core import arguments
from ...core.lock_options import Duration
from ...drivers.asyncio import LossCancellation
from ...model import UNSET, Unset
from ...recipes import multilock as recipe
from ...recipes.multilock import AnyCore, Group, MultiCore, Order
from ...runtime.clock import boottime

if TYPE_CHECKING:
    from ...aio import AsyncClient
    from ...drivers.asyncio import AsyncioDriver

__all__ = ["AsyncAnyLock", "AsyncLeases", "AsyncMultiLock"]

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLeases(Mapping[str, AsyncLease]):
    """The leases of several locks, by name: all of them can be relied on, or none."""

    __slots__ = ("__weakref__", "_client", "_leases", "_state")

    def __init__(self, client: AsyncClient, group: Group) -> None:
        self._client = client
        self._state = group
        self._leases = {state.name: AsyncLease(client, state) for state in group.states}
        for state in group.states:
            state.loss_callbacks.append(functools.partial(_lose_all, client._driver, group))
            if state.has_fired:
                client._driver.signal(state)

    def __repr__(self) -> str:
        return f"<holdfast.AsyncLeases {', '.join(map(repr, self._leases))} {self._state.ended or ''}>"

    def __getitem__(self, name: str) -> AsyncLease:
        return self._leases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def lost(self) -> bool:
        """Whether one of them was lost, and so all."""
        return self._state.lost_state(boottime()) is not None

    @property
    def remaining(self) -> float:
        """Seconds this process may still rely on all of them, by its own clock."""
        return self._state.remaining(boottime())

    def check(self) -> None:
        """Raise LockLost unless all of them may still be relied on (NotHeld, if one was released)."""
        recipe.check(self._state, boottime())

    def on_lost(self, callback: Callable[[AsyncLeases], object]) -> None:
        """Call ``callback`` with these leases when the first of them is lost; it may be async."""
        myself = weakref.ref(self)
        self._state.loss_callbacks.append(
            lambda: callback(leases) if (leases := myself()) is not None else None
        )
        if self._state.has_fired:
            self._client._driver.signal(self._state)


def _lose_all(driver: AsyncioDriver, group: Group) -> None:
    group.lost_state(boottime())
    driver.signal(group)


class AsyncMultiLock:
    """Several locks as one: acquire, release, ``async with``, and as a decorator."""

    __slots__ = ("__weakref__", "_cancellations", "_client", "_core")

    def __init__(
        self, client: AsyncClient, items: tuple[str | AsyncLock, ...], order: Order, named: Named
    ) -> None:
        cores = recipe.cores_of("all", client, items, lambda name: named(name)._core, AsyncLock, AsyncRWLock)
        options = named(cores[0].spec.name)._core.spec
        self._client = client
        self._core = MultiCore(
            client._driver.client_state, options, cores, order, functools.partial(AsyncLeases, client)
        )
        self._cancellations: dict[asyncio.Task[Any], list[LossCancellation]] = {}

    def __repr__(self) -> str:
        return f"<holdfast.AsyncMultiLock {', '.join(map(repr, self.names))}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return self._core.names

    @property
    def leases(self) -> AsyncLeases | None:
        """The latest leases acquired through this object and not released; None: there are none."""
        leases: AsyncLeases | None = self._core.current()
        return leases

    def acquire(
        self, blocking: bool = True, timeout: Duration | Unset | None = UNSET
    ) -> Coroutine[Any, Any, AsyncLeases | None]:
        """All leases, or None if they were not granted in time.

        ``blocking=False`` tries once. ``timeout``: seconds or a timedelta, None or -1 for ever; left out,
        that of ``all()``.

        The leases belong to the task that called this, also when another task awaits it.
        """
        seconds = arguments.chosen_timeout(blocking, timeout, self._core.spec.timeout)
        driver, task, owner = self._ready()
        return driver.call(recipe.acquire, self._core, weakref.ref(task), owner, seconds)

    def release(self) -> Coroutine[Any, Any, None]:
        """Release this task's leases, or, in a task without any, the object's current ones."""
        driver, task, _ = self._ready()
        return driver.call(recipe.release, self._core, weakref.ref(task))

    async def __aenter__(self) -> AsyncLeases:
        driver, task, owner = self._ready()
        leases = await driver.run(
            recipe.acquire(self._core, weakref.ref(task), owner, self._core.spec.timeout, entered=True)
        )
        assert leases is not None  # noqa: S101 - else it raised LockTimeout
        if self._core.spec.if_lost == "cancel":
            cancellation = LossCancellation(task)
            self._cancellations.setdefault(task, []).append(cancellation)
            leases._state.loss_callbacks.append(cancellation.cancel)
            if leases._state.has_fired:
                driver.signal(leases._state)
        return leases

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver, task, _ = self._ready()
        left = error
        pending = self._cancellations.get(task)
        if pending:
            left = await pending.pop().finish(error)
            if not pending:
                del self._cancellations[task]
        if left is None or not driver.closed:  # closing released them, and the body's own error comes first
            await driver.run(recipe.leave(self._core, weakref.ref(task), left))
        if left is not None and left is not error:
            raise left

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate ``function``: each call of it runs inside all the locks."""
        arguments.check_decorated(function, "async", "holdfast.connect()")

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        return locked

    def _ready(self) -> tuple[AsyncioDriver, asyncio.Task[Any], str]:
        task, driver = _current_task(), self._client._driver
        self._core.client_state = driver.client_state
        return driver, task, driver.owner_prefix + task.get_name()


class AsyncAnyLock(AsyncLock):
    """Several locks of which one is enough: its lease says which one it is (``lease.name``)."""

    __slots__ = ()
    _core: AnyCore[AsyncLease]

    def __init__(self, client: AsyncClient, items: tuple[str | AsyncLock, ...], named: Named) -> None:
        cores = recipe.cores_of("any", client, items, lambda name: named(name)._core, AsyncLock, AsyncRWLock)
        options = named(cores[0].spec.name)._core.spec
        self._client = client
        wrap = functools.partial(AsyncLease, client)
        self._core = AnyCore(client._driver.client_state, options, cores, wrap)
        self._cancellations = {}

    def __repr__(self) -> str:
        return f"<holdfast.AsyncAnyLock {', '.join(map(repr, self.names))}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are tried."""
        return self._core.names

    def acquire(
        self, blocking: bool = True, timeout: Duration | Unset | None = UNSET
    ) -> Coroutine[Any, Any, AsyncLease | None]:
        """The lease of the first lock that is free, or None if none was in time.

        ``blocking=False`` tries each once. ``timeout``: seconds or a timedelta, None or -1 for ever; left
        out, that of ``any()``.
        """
        seconds = arguments.chosen_timeout(blocking, timeout, self._core.spec.timeout)
        task, driver = _current_task(), self._driver()
        owner = driver.owner_prefix + task.get_name()
        return driver.call(recipe.acquire_any, self._core, weakref.ref(task), owner, seconds)

    async def locked(self) -> bool:
        """Whether none of the locks is free."""
        for name in self.names:
            if not (await self._client.inspect(name)).locked:
                return False
        return True

    async def __aenter__(self) -> AsyncLease:
        task, driver = _current_task(), self._driver()
        owner = driver.owner_prefix + task.get_name()
        lease = await driver.run(
            recipe.acquire_any(self._core, weakref.ref(task), owner, self._core.spec.timeout, entered=True)
        )
        assert lease is not None  # noqa: S101 - else it raised LockTimeout
        if self._core.spec.if_lost == "cancel":
            self._cancel_on_loss(task, lease)
        return lease


Named = Callable[[str], AsyncLock]
"""Makes a lock of a name, with the options of the call."""
