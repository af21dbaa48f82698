"""Several locks at once, for threads."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ...client import LOOP_WARNING, Lease, Lock, RWLock
from ...core import arguments
from ...core.lock_options import Duration
from ...model import UNSET, Unset
from ...recipes import multilock as recipe
from ...recipes.multilock import AnyCore, Group, MultiCore, Order
from ...runtime.clock import boottime

if TYPE_CHECKING:
    from ...client import Client
    from ...drivers.threads import ThreadsDriver

__all__ = ["AnyLock", "Leases", "MultiLock"]

P = ParamSpec("P")
R = TypeVar("R")


class Leases(Mapping[str, Lease]):
    """The leases of several locks, by name: all of them can be relied on, or none."""

    __slots__ = ("__weakref__", "_client", "_leases", "_state")

    def __init__(self, client: Client, group: Group) -> None:
        self._client = client
        self._state = group
        self._leases = {state.name: Lease(client, state) for state in group.states}
        for state in group.states:
            state.loss_callbacks.append(functools.partial(_lose_all, client._driver, group))
            if state.has_fired:
                client._driver.signal(state)

    def __repr__(self) -> str:
        return f"<holdfast.Leases {', '.join(map(repr, self._leases))} {self._state.ended or ''}>"

    def __getitem__(self, name: str) -> Lease:
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

    def on_lost(self, callback: Callable[[Leases], object]) -> None:
        """Call ``callback`` with these leases when the first of them is lost, in another thread."""
        myself = weakref.ref(self)
        self._state.loss_callbacks.append(
            lambda: callback(leases) if (leases := myself()) is not None else None
        )
        if self._state.has_fired:
            self._client._driver.signal(self._state)


def _lose_all(driver: ThreadsDriver, group: Group) -> None:
    group.lost_state(boottime())
    driver.signal(group)


class MultiLock:
    """Several locks as one: acquire, release, ``with``, and as a decorator."""

    __slots__ = ("__weakref__", "_client", "_core")

    def __init__(self, client: Client, items: tuple[str | Lock, ...], order: Order, named: Named) -> None:
        cores = recipe.cores_of("all", client, items, lambda name: named(name)._core, Lock, RWLock)
        options = named(cores[0].spec.name)._core.spec
        self._client = client
        self._core = MultiCore(
            client._driver.client_state, options, cores, order, functools.partial(Leases, client)
        )

    def __repr__(self) -> str:
        return f"<holdfast.MultiLock {', '.join(map(repr, self.names))}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return self._core.names

    @property
    def leases(self) -> Leases | None:
        """The latest leases acquired through this object and not released; None: there are none."""
        leases: Leases | None = self._core.current()
        return leases

    def acquire(self, blocking: bool = True, timeout: Duration | Unset | None = UNSET) -> Leases | None:
        """All leases, or None if they were not granted in time.

        ``blocking=False`` tries once. ``timeout``: seconds or a timedelta, None or -1 for ever; left out,
        that of ``all()``.
        """
        seconds = arguments.chosen_timeout(blocking, timeout, self._core.spec.timeout)
        driver, caller, owner = self._ready()
        return driver.run(recipe.acquire(self._core, caller, owner, seconds))

    def release(self) -> None:
        """Release this thread's leases, or, in a thread without any, the object's current ones."""
        driver, caller, _ = self._ready()
        driver.run(recipe.release(self._core, caller))

    def __enter__(self) -> Leases:
        driver, caller, owner = self._ready()
        leases = driver.run(recipe.acquire(self._core, caller, owner, self._core.spec.timeout, entered=True))
        assert leases is not None  # noqa: S101 - else it raised LockTimeout
        return leases

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver, caller, _ = self._ready()
        if error is not None and driver.closed:
            return  # closing released them, and the body's own error comes first
        driver.run(recipe.leave(self._core, caller, error))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate ``function``: each call of it runs inside all the locks."""
        arguments.check_decorated(function, "plain", "holdfast.aio")

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return locked

    def _ready(self) -> tuple[ThreadsDriver, weakref.ref[threading.Thread], str]:
        """The driver and the caller. After a fork the driver has another ``ClientState``."""
        driver = self._client._driver
        _warn_of_loop(driver)
        self._core.client_state = driver.client_state
        thread = threading.current_thread()
        return driver, weakref.ref(thread), driver.owner_prefix + thread.name


class AnyLock(Lock):
    """Several locks of which one is enough: its lease says which one it is (``lease.name``)."""

    __slots__ = ()
    _core: AnyCore[Lease]

    def __init__(self, client: Client, items: tuple[str | Lock, ...], named: Named) -> None:
        cores = recipe.cores_of("any", client, items, lambda name: named(name)._core, Lock, RWLock)
        options = named(cores[0].spec.name)._core.spec
        self._client = client
        self._core = AnyCore(client._driver.client_state, options, cores, functools.partial(Lease, client))

    def __repr__(self) -> str:
        return f"<holdfast.AnyLock {', '.join(map(repr, self.names))}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are tried."""
        return self._core.names

    def acquire(self, blocking: bool = True, timeout: Duration | Unset | None = UNSET) -> Lease | None:
        """The lease of the first lock that is free, or None if none was in time.

        ``blocking=False`` tries each once. ``timeout``: seconds or a timedelta, None or -1 for ever; left
        out, that of ``any()``.
        """
        seconds = arguments.chosen_timeout(blocking, timeout, self._core.spec.timeout)
        driver, caller, thread = self._ready()
        return driver.run(recipe.acquire_any(self._core, caller, driver.owner_prefix + thread.name, seconds))

    def locked(self) -> bool:
        """Whether none of the locks is free."""
        return all(self._client.inspect(name).locked for name in self.names)

    def __enter__(self) -> Lease:
        driver, caller, thread = self._ready()
        owner = driver.owner_prefix + thread.name
        lease = driver.run(
            recipe.acquire_any(self._core, caller, owner, self._core.spec.timeout, entered=True)
        )
        assert lease is not None  # noqa: S101 - else it raised LockTimeout
        return lease


Named = Callable[[str], Lock]
"""Makes a lock of a name, with the options of the call."""


def _warn_of_loop(driver: ThreadsDriver) -> None:
    if driver.running_loop() is not None:
        driver.mark_loop_warned()
        warnings.warn(LOOP_WARNING, RuntimeWarning, stacklevel=4)
