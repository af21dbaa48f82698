"""The threads API: facades without logic. The semantics of locks are in ``protocols``."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, Unpack

from .core import arguments
from .core.arguments import Spec
from .core.lock_options import NAMES_HELP, Duration, IfLost, LockOptions, documents_lock_options
from .drivers.threads import ThreadsDriver
from .engine_api import Engine
from .errors import Unsupported
from .facades.base import (
    IO_TIMEOUT_SECONDS,
    UPGRADE_MESSAGE,
    BaseLease,
    check_fair,
    check_max_waiters,
    engine_for,
    max_waiters_of,
    watch_long_wait_of,
)
from .model import UNSET, Guarantees, Kind, LockInfo, Mode, Unset, WaitEdge
from .protocols import locks, records
from .protocols.client_state import LeaseState
from .protocols.lock_info import describe
from .protocols.locks import LockCore, ReentrantCore, SharedCore
from .rules.requests import Snapshot
from .runtime.clock import boottime
from .runtime.forks import register_after_fork
from .runtime.wakeups import ThreadWakeup

if TYPE_CHECKING:
    from .core.canonical import Key
    from .facades.threads.barrier import Barrier
    from .facades.threads.cell import Cell, Counter
    from .facades.threads.election import Election
    from .facades.threads.idempotency import Idempotent
    from .facades.threads.job import Job
    from .facades.threads.latch import Latch
    from .facades.threads.multilock import AnyLock, MultiLock
    from .recipes.multilock import Order
    from .recipes.schedule import OnCrash

__all__ = ["Client", "Lease", "Lock", "RLock", "RWLock", "Semaphore", "Watch", "connect"]

P = ParamSpec("P")
R = TypeVar("R")

IF_LOST: tuple[IfLost, ...] = ("raise", "note")
LOOP_WARNING = "the threads API of holdfast blocks, and an event loop runs in this thread: use holdfast.aio"


def connect(
    url: object = None,
    *,
    namespace: str = "holdfast",
    io_timeout: Duration = IO_TIMEOUT_SECONDS,
    **options: Any,
) -> Client:
    """A client of an engine.

    url: the engine, for example ``redis://localhost:6379/0``; None: ``$HOLDFAST_URL``, else the embedded
        engine. Instead of a URL it takes a live client (``redis.Redis`` and its relatives, a connection or
        pool of psycopg) and uses its settings.
    namespace: locks of different namespaces are independent.
    io_timeout: how long to wait for an answer of the engine: seconds, or a timedelta.
    options: of the engine, as in the query of its URL; see the page of the engine.

    Connects when it is first used. Close it, or use it as a context manager: closing releases what it holds.
    """
    seconds, given = arguments.check_io_timeout(io_timeout), max_waiters_of(url, options)
    engine = engine_for(url, namespace, options)
    return Client(engine, namespace, seconds, check_max_waiters(engine, given))


class Client:
    """Locks of one engine, for threads. Cheap to keep, meant to be shared by all threads of a process."""

    def __init__(
        self, engine: Engine, namespace: str, io_timeout: float, max_waiters: int = arguments.MAX_WAITERS
    ) -> None:
        self._engine = engine
        self._driver = ThreadsDriver(engine, io_timeout, max_waiters)
        self._watch_long_wait = watch_long_wait_of(engine.guarantees)
        self.namespace = namespace
        register_after_fork(self._driver)
        _open_clients.add(self)

    def __repr__(self) -> str:
        closed = " closed" if self._driver.closed else ""
        return f"<holdfast.Client {self.url} namespace={self.namespace!r}{closed}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a client cannot be pickled: pass the URL, and make a client in each process: "
            "holdfast.connect(url)"
        )

    @property
    def url(self) -> str:
        """The engine's URL without its secrets."""
        return self._engine.url

    @property
    def guarantees(self) -> Guarantees:
        """What this engine promises, and when a promise can fail."""
        return self._engine.guarantees

    @documents_lock_options("raise", "with")
    def lock(self, name: str, **options: Unpack[LockOptions]) -> Lock:
        """A lock: one holder at a time."""
        return Lock(self, LockCore, self._spec(name, "lock", "exclusive", 0, options))

    @documents_lock_options("raise", "with")
    def rlock(self, name: str, **options: Unpack[LockOptions]) -> RLock:
        """A reentrant lock: one holder at a time, and the thread that holds it may acquire it again."""
        return RLock(self, ReentrantCore, self._spec(name, "lock", "exclusive", 0, options))

    @documents_lock_options("raise", "with")
    def rwlock(self, name: str, **options: Unpack[LockOptions]) -> RWLock:
        """Many readers or one writer: ``read()`` and ``write()`` are each a lock."""
        return RWLock(
            Lock(self, SharedCore, self._spec(name, "rwlock", "read", 0, options)),
            Lock(self, SharedCore, self._spec(name, "rwlock", "write", 0, options)),
        )

    @documents_lock_options("raise", "with")
    def semaphore(self, name: str, limit: int, **options: Unpack[LockOptions]) -> Semaphore:
        """A semaphore: up to ``limit`` holders at a time.

        limit: how many may hold it at a time; every user of the name must give the same limit.
        """
        arguments.check_limit(limit)
        return Semaphore(self, LockCore, self._spec(name, "semaphore", "permit", limit, options))

    def _spec(self, name: str, kind: Kind, mode: Mode, limit: int, options: LockOptions) -> Spec:
        spec = arguments.make_spec(name, kind, mode, limit, options, IF_LOST)
        check_fair(self._engine, options.get("fair"))
        return spec

    @documents_lock_options("raise", "with", name_help=NAMES_HELP)
    def all(self, *names: str | Lock, order: Order = "sorted", **options: Unpack[LockOptions]) -> MultiLock:
        """Several locks at once: all of them or none. Losing one is losing all.

        order: "sorted": by name, so that callers cannot deadlock; "given": as written here, and a caller that
            has to wait while it holds some releases them, and tries again after a random pause.
        """
        from .facades.threads.multilock import MultiLock

        return MultiLock(self, names, order, lambda name: self.lock(name, **options))

    @documents_lock_options("raise", "with", name_help=NAMES_HELP)
    def any(self, *names: str | Lock, **options: Unpack[LockOptions]) -> AnyLock:
        """The first lock that is free, in the order given."""
        from .facades.threads.multilock import AnyLock

        return AnyLock(self, names, lambda name: self.lock(name, **options))

    def cell(self, name: str) -> Cell:
        """A small value that changes by compare-and-swap. It has no holder.

        name: of the cell; a lock of the same name has nothing to do with it.
        """
        from .facades.threads.cell import Cell

        return Cell(self, name)

    def counter(self, name: str) -> Counter:
        """A whole number that many processes add to, without a lock.

        name: of the counter's cell.
        """
        from .facades.threads.cell import Counter

        return Counter(self, name)

    def election(
        self, name: str, value: bytes = b"", *, ttl: Duration = 30.0, grace: Duration = 0.0
    ) -> Election:
        """An election: one of its candidates, in all processes, is the leader at a time.

        name: of the election; a lock of the same name has nothing to do with it.
        value: what ``leader()`` shows of this candidate once it leads, for example its address; up to 64 KiB.
        ttl: seconds (or a timedelta) after which another candidate is elected if the leader has vanished. It
            is renewed while the leader lives.
        grace: how long before the deadline the leader is notified of a loss, at most half of the ttl: the
            time in which its work has to stop.
        """
        from .facades.threads.election import Election

        return Election(self, name, value, ttl, grace)

    def idempotent(
        self,
        key: Key | Callable[..., Key],
        *,
        keep: Duration = 86_400.0,
        fingerprint: object = None,
        scope: Key | Callable[..., Key] = "",
        on_error: Literal["rerun", "replay"] = "rerun",
        store_errors: tuple[type[Exception], ...] = (),
        timeout: Duration | None = None,
        ttl: Duration = 30.0,
    ) -> Idempotent:
        """An operation that runs once for its key; later callers get the first result.

        key: names the operation: text, a number, bytes or a tuple of these. Of a decorator it may be a
            function of the arguments, and so may ``scope`` and ``fingerprint``.
        keep: how long the result is kept, in seconds or as a timedelta.
        fingerprint: the payload: with another one, the key is a Conflict. None: it is not compared.
        scope: whose keys these are, for example a tenant: equal keys of two scopes are two operations.
        on_error: "rerun": a failed attempt stores nothing, and the next one runs; "replay": its error is
            stored, and raised again.
        store_errors: the classes of the errors that are stored, whatever ``on_error`` is.
        timeout: how long to wait for an attempt that is under way: 0 not at all, None for ever; else
            LockTimeout.
        ttl: how soon another caller may take over from a process that has died. It has nothing to do with
            ``keep``, nor with how long the work takes.
        """
        from .facades.threads.idempotency import Idempotent
        from .recipes.idempotency import OperationOptions

        options = OperationOptions(
            key,
            scope,
            fingerprint,
            keep=keep,
            on_error=on_error,
            store_errors=store_errors,
            timeout=timeout,
            ttl=ttl,
        )
        return Idempotent(self, Lease, options)

    def job(
        self,
        name: str,
        *,
        every: Duration | None = None,
        at_most: Duration | None = None,
        at_least: Duration = 0.0,
        on_crash: OnCrash = "rerun",
        catch_up: bool = False,
        ttl: Duration = 30.0,
        timeout: Duration | None = 0.0,
        if_lost: IfLost = "raise",
    ) -> Job:
        """A job that many servers fire and one runs: ``with job as run``; None: not this time.

        name: of the job; a lock of the same name has nothing to do with it.
        every: the period, at least a second; each firing runs once. None: whenever no other server runs it.
        at_most: how long one run may hold the job, after which its lease is lost; None: no limit.
        at_least: the least time from the start of one run to the start of the next.
        on_crash: a run that began and did not end is repeated at the next request ("rerun": at least once),
            or counts ("skip": at most once).
        catch_up: one run makes up for all missed firings, also between two firings.
        ttl: how soon after a crash another server may run it; the lease is renewed while the job runs.
        timeout: how long to wait while another server runs it, before it is decided whether to run.
        if_lost: what happens if the lease is lost: "raise" raises LockLost at the end of the block, "note"
            only writes the loss to the log.
        """
        from .facades.threads.job import Job
        from .recipes.job import check_options

        options = check_options(
            name, every, at_most, at_least, on_crash, catch_up, ttl, timeout, if_lost, IF_LOST
        )
        return Job(self, options)

    def jobs(self, prefix: str = "") -> builtins.list[str]:
        """The names of the jobs that run or have run, and begin with ``prefix``; ``holdfast once ls``."""
        from .recipes.job import list_jobs

        arguments.check_prefix(prefix)
        return self._driver.run(list_jobs(self._driver.client_state, prefix))

    def latch(self, name: str, count: int) -> Latch:
        """A count that goes down to zero, once. Its waiters go on when it is zero.

        name: of the latch; a lock of the same name has nothing to do with it.
        count: how many times it has to be counted down; every user of the name must give the same count.
        """
        from .facades.threads.latch import Latch

        return Latch(self, name, count)

    def barrier(self, name: str, parties: int, *, ttl: Duration = 30.0) -> Barrier:
        """A point at which ``parties`` wait for each other, again and again.

        name: of the barrier; a lock of the same name has nothing to do with it.
        parties: how many have to arrive; every user of the name must give the same number.
        ttl: seconds (or a timedelta) after which the engine may count a party that stopped as dead.
        """
        from .facades.threads.barrier import Barrier

        return Barrier(self, name, parties, ttl)

    def inspect(self, name: str) -> LockInfo:
        """The holders of ``name``, its waiters and its value."""
        arguments.check_name(name)
        return describe(name, self._driver.run(records.inspect(self._driver.client_state, name)))

    def deadlocks(self) -> tuple[tuple[WaitEdge, ...], ...]:
        """The cycles of threads and tasks that wait for each other now, for more than a second."""
        from .recipes import deadlock

        deadlock.check_engine(self.guarantees)
        return tuple(
            self._driver.run(deadlock.deadlocks(self._driver.client_state, self.guarantees.has_counted_queue))
        )

    def list(self, prefix: str = "") -> list[LockInfo]:
        """Every name in use that begins with ``prefix``, in the order of its bytes."""
        arguments.check_prefix(prefix)
        found = self._driver.run(records.list_names(self._driver.client_state, prefix))
        return [describe(name, snapshot) for name, snapshot in found]

    def watch(self, name: str) -> Watch:
        """Look at every change of ``name``: iterate over it inside ``with``."""
        return Watch(self, arguments.check_name(name))

    def break_lock(self, name: str, *, token: int | None = None, reason: str) -> int | None:
        """Take ``name`` from its holders; with ``token``, only if the grant of that token still holds it.

        ``reason`` is shown to the holder and in the log.
        Returns a new token that fences the old holders off (pass it to ``fencing.advance``), None if
        there was nothing to break. The holder gets ``LockLost(reason="broken")``.
        """
        arguments.check_name(name)
        arguments.check_token(token)
        reason = arguments.check_reason(reason)
        return self._driver.run(records.break_lock(self._driver.client_state, name, token, reason))

    def adopt(self, text: str) -> Lease:
        """Take over the lease that another process exported (``text = lease.export()``), with its token."""
        from .core import handover  # only here: few programs hand a lease over

        given = handover.parse(text)
        owner = self._driver.owner_prefix + threading.current_thread().name
        state = self._driver.run(
            records.adopt(
                self._driver.client_state, given.spec(self.namespace), given.nonce, owner, given.secret
            )
        )
        state.caller = _calling()
        return Lease(self, state)

    def close(self) -> None:
        """Release everything held and disconnect. Safe to call again."""
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None and not driver.closed:
            driver.stop()


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A process that exits normally leaves nothing held."""
    for client in list(_open_clients):
        with contextlib.suppress(Exception):
            client.close()


_callers: Final = threading.local()


def _caller() -> tuple[weakref.ref[threading.Thread], threading.Thread]:
    """The calling thread, looked up once. It is known by its object, because thread ids are reused."""
    thread = threading.current_thread()
    this = _callers.this = weakref.ref(thread), thread
    return this


def _calling() -> weakref.ref[threading.Thread]:
    try:
        return _callers.this[0]  # type: ignore[no-any-return]  # as set below
    except AttributeError:
        return _caller()[0]


class Lease(BaseLease):
    """One grant. Any code that has it may release it; pass it to guards, or to another thread."""

    __slots__ = ()
    _client: Client

    def release(self) -> None:
        """Release the lease. NotHeld if it was released already, LockLost if it was lost."""
        self._client._driver.run(
            locks.release_lease(self._client._driver.client_state, self._state, caller=_calling())
        )

    def extend(self, ttl: Duration | None = None) -> None:
        """Renew now, and from now on with this ``ttl`` (None: the same). Never shortens what is granted."""
        seconds = locks.check_extension(self._state, ttl)
        self._client._driver.run(locks.extend(self._client._driver.client_state, self._state, seconds))

    def on_lost(self, callback: Callable[[Lease], object]) -> None:
        """Call ``callback`` with the lease at its loss, ``grace`` before the deadline, in another thread."""
        myself = weakref.ref(self)
        self._state.loss_callbacks.append(
            lambda: callback(lease) if (lease := myself()) is not None else None
        )
        if self._state.has_fired:
            self._client._driver.signal(self._state)

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` (None: for ever). False: released, or not in time."""
        seconds = arguments.check_timeout(timeout)
        wakeup = ThreadWakeup()
        self._state.end_callbacks.append(wakeup.post)
        try:
            until = None if seconds is None else boottime() + seconds
            if not self.lost and self._state.ended is None:
                wakeup.wait_until(until)
            return self.lost
        finally:
            self._state.end_callbacks.remove(wakeup.post)

    def downgrade(self) -> Lease:
        """A read lease, with a token of its own, in place of this write lease."""
        driver = self._client._driver
        return driver.run(locks.downgrade(driver.client_state, self._state, self._become))

    def _become(self, state: LeaseState) -> Lease:
        reader = self._successor = Lease(self._client, state)
        return reader

    def set_value(self, data: bytes, *, retention: Duration = arguments.VALUE_RETENTION_SECONDS) -> None:
        """Store ``data`` as the name's value; it stays after release for ``retention`` seconds (30 days)."""
        data, seconds = arguments.check_value(data), arguments.check_retention(retention)
        self._client._driver.run(
            locks.set_value(self._client._driver.client_state, self._state, data, seconds)
        )

    def export(self) -> str:
        """Hand it over: another process takes it with ``client.adopt(text)`` within one ttl."""
        from .core.handover import Handover

        secret = self._client._driver.run(locks.export(self._client._driver.client_state, self._state))
        return Handover.of(self._state, self._client.namespace, secret).text()


class Lock:
    """A lock as ``threading.Lock`` is one: acquire, release, ``with``, and as a decorator."""

    __slots__ = ("__weakref__", "_client", "_core")

    def __init__(self, client: Client, core: type[LockCore[Lease]], spec: Spec) -> None:
        self._client = client
        self._core = core(client._driver.client_state, spec, functools.partial(Lease, client))
        if spec.deadlock != "ignore":
            self._core.long_wait = client._watch_long_wait

    def __repr__(self) -> str:
        spec = self._core.spec
        return f"<holdfast.{type(self).__name__} {spec.kind} {spec.name!r} ttl={spec.ttl:g}>"

    @property
    def name(self) -> str:
        return self._core.spec.name

    @property
    def lease(self) -> Lease | None:
        """The latest lease acquired through this object and not released; None: there is none."""
        return self._core.current()

    def acquire(self, blocking: bool = True, timeout: Duration | Unset | None = UNSET) -> Lease | None:
        """The lease, or None if it was not granted in time.

        ``blocking=False`` tries once. ``timeout``: seconds or a timedelta, None or -1 for ever; left out,
        that of the lock.
        """
        core = self._core
        seconds = core.spec.timeout
        if timeout is not UNSET or not blocking:
            seconds = arguments.chosen_timeout(blocking, timeout, seconds)
        driver, caller, thread = self._ready()
        return driver.acquire(core, caller, driver.owner_prefix + thread.name, seconds)

    def release(self) -> None:
        """Release this thread's lease, or, in a thread without one, the object's current lease."""
        driver, caller, _ = self._ready()
        driver.release(self._core, caller)

    def locked(self) -> bool:
        """Whether any client holds the lock."""
        return self._client.inspect(self.name).locked

    def __enter__(self) -> Lease:
        driver, caller, thread = self._ready()
        return driver.enter(self._core, caller, driver.owner_prefix + thread.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver, caller, _ = self._ready()
        if error is not None and driver.closed:
            return  # closing released it, and the body's own error comes first
        driver.leave(self._core, caller, error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate ``function``: each call of it runs inside the lock."""
        arguments.check_decorated(function, "plain", "holdfast.aio")

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return locked

    def _ready(self) -> tuple[ThreadsDriver, weakref.ref[threading.Thread], threading.Thread]:
        """The driver and the caller. After a fork the driver has another ``ClientState``."""
        driver = self._client._driver
        if driver.running_loop() is not None:
            driver.mark_loop_warned()
            warnings.warn(LOOP_WARNING, RuntimeWarning, stacklevel=3)
        self._core.client_state = driver.client_state
        try:
            caller, thread = _callers.this
        except AttributeError:
            caller, thread = _caller()
        return driver, caller, thread


class RLock(Lock):
    """A lock as ``threading.RLock`` is one: its holder takes it again at once, and gets the same lease."""

    __slots__ = ()


class Semaphore(Lock):
    """Permits, each with a lease of its own: the permit of a crashed holder becomes free."""

    __slots__ = ()

    def release(self, n: int = 1) -> None:
        """Release ``n`` permits acquired through this object, this thread's own first."""
        arguments.check_limit(n, "n")
        driver, caller, _ = self._ready()
        driver.run(locks.release_many(self._core, caller, n))

    def resize(self, n: int) -> None:
        """Change the current limit to ``n``. Below the number held, nothing is granted, nor revoked."""
        arguments.check_limit(n)
        driver, _, _ = self._ready()
        driver.run(records.resize(driver.client_state, self._core.spec, n))

    def locked(self) -> bool:
        """Whether no permit is free."""
        info = self._client.inspect(self.name)
        return len(info.holders) >= (info.limit or self._core.spec.limit)


class RWLock:
    """Two locks of one name: many may read, or one may write."""

    __slots__ = ("_read", "_write")

    def __init__(self, read: Lock, write: Lock) -> None:
        self._read = read
        self._write = write

    def __repr__(self) -> str:
        return f"<holdfast.RWLock {self._read.name!r}>"

    @property
    def name(self) -> str:
        return self._read.name

    def read(self) -> Lock:
        """The lock to read."""
        return self._read

    def write(self) -> Lock:
        """The lock to write."""
        return self._write

    def upgrade(self) -> Lock:
        """Unsupported on every engine; the error says what to do instead."""
        raise Unsupported(UPGRADE_MESSAGE)


class Watch:
    """The changes of one name: the state at entry, then one after every change (some may be skipped)."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._nonce = ""
        self._first: LockInfo | None = None
        self._seen: Snapshot | None = None

    def __enter__(self) -> Watch:
        driver = self._client._driver
        self._nonce, snapshot = driver.run(records.subscribe(driver.client_state, self._name))
        self._first, self._seen = describe(self._name, snapshot), snapshot
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver = self._client._driver
        if not driver.closed:
            driver.run(records.unsubscribe(driver.client_state, self._name, self._nonce))

    def next(self, timeout: Duration | None = None) -> LockInfo | None:
        """The state now, when first called; then the state after the next change.

        None: no change came within ``timeout`` (None: for ever).
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        driver = self._client._driver
        seconds = arguments.check_timeout(timeout)
        snapshot = driver.run(
            records.next_change(driver.client_state, self._name, self._nonce, seconds, self._seen)
        )
        if snapshot is None:
            return None
        self._seen = snapshot
        return describe(self._name, snapshot)

    def __iter__(self) -> Iterator[LockInfo]:
        while True:
            info = self.next()
            if info is not None:
                yield info
