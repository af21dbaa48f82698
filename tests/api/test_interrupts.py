"""Ctrl-C, wherever it comes: nothing stays behind, and the lock can be used again.

An interrupt is raised between two bytecodes of the main thread, where the interpreter looks for signals: when
a function begins, when a generator goes on, when a call to C returns. Those points are swept one by one, by a
profiler that raises there; and real signals come at many moments besides.

One window no lock written in Python can close: an interrupt before ``release`` has begun its work. Then the
object still knows what it holds (``lock.lease``), and can release it again.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from contract.engines import FRESH_URL, VARIANTS, each_engine, fresh_namespace, needs
from holdfast import BrokenBarrierError, Client, Lease, Lock, LockTimeout, NotHeld
from holdfast.facades.threads.multilock import AnyLock, MultiLock
from support import interrupted_after, wait_until
from support.thorough import THOROUGH

RESUME = dis.opmap["RESUME"]

STRIDES = {"redlock": 17, "zookeeper": 5, "etcd": 3}
"""Where there are hundreds of points, much alike (as when several nodes are asked at once), an ordinary run
takes every so many-th of them."""

SEVERAL_STRIDE = 7
"""Several locks at once, and recipes, have all the points of one lock, and more beside."""

PARTIES = "_holdfast/parties:x"
"""The lock of which each party of the barrier ``x`` holds a read lease."""

SETTLES_IN = {"redlock": 5.0}
"""Where a majority decides: a minority may not have received a release yet, and connections that an interrupt
struck are made anew. Who tries but once may then find too few nodes."""


class Interrupter:
    """Raises KeyboardInterrupt at the n-th point at which the interpreter would."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.seen = 0
        self.where = ""
        self.fired = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not _looks_for_signals(frame, event) or not _is_ours(frame):
            return
        self.seen += 1
        if self.seen == self._at:
            sys.setprofile(None)
            self.fired = True
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} after {event} {argument!r}"
            raise KeyboardInterrupt(self.where)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def _looks_for_signals(frame: FrameType, event: str) -> bool:
    if event == "c_return":
        return True
    if event != "call":
        return False
    code, at = frame.f_code.co_code, frame.f_lasti
    # A coroutine that goes on after an await (RESUME 3, 2 for `yield from`) does not look.
    return code[at] != RESUME or code[at + 1] & 3 < 2


def _is_ours(frame: FrameType) -> bool:
    """In the library, or in what it called; not in this file's own doings."""
    at: FrameType | None = frame
    called = ""
    while at is not None:
        name = at.f_globals.get("__name__", "")
        if at.f_code.co_name == "__del__":
            return False  # what is raised there goes nowhere
        if name == "logging":
            return False  # it would keep its lock, and any other thread that logs would wait for ever
        if name == __name__:
            return called.startswith("holdfast.")
        called = name
        at = at.f_back
    return False


# A script that was interrupted before its first step was never awaited, and Python says so.
# One that falls into a finalizer is thrown away by Python, with a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(params=each_engine(but=VARIANTS))
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with holdfast.connect(FRESH_URL[request.param](tmp_path), namespace=fresh_namespace()) as client:
        yield client
    gc.collect()  # what an interrupt left in a traceback may warn here, where that is expected


KINDS = ["lock", "rlock", pytest.param("semaphore", marks=needs("semaphore"))]


Held = Lock | MultiLock


def acquire(lock: Held) -> None:
    lock.acquire()


def acquire_in_vain(lock: Held) -> None:
    lock.acquire(timeout=0.01)


def enter(lock: Held) -> None:
    lock.__enter__()


def enter_in_vain(lock: Held) -> None:
    with contextlib.suppress(LockTimeout):
        lock.__enter__()


def sweep(
    client: Client,
    lock: Held,
    act: Callable[[Held], None],
    prepare: Callable[[], Callable[[], None]] | None = None,
    releasing: bool = False,
) -> int:
    """Interrupt ``act`` at every point in turn; after each, nothing may be left. Tells how many there are."""
    at = not_begun = swallowed = 0
    stride = 1 if THOROUGH else STRIDES.get(client.guarantees.engine, 1)
    if not THOROUGH and isinstance(lock, MultiLock | AnyLock):
        stride *= SEVERAL_STRIDE
    while True:
        at += stride
        undo = prepare() if prepare is not None else None
        interrupter = Interrupter(at)
        interrupted = interrupted_by(interrupter, act, lock)
        if undo is not None:
            undo()
        if not interrupted and not releasing and held_through(lock) is not None:
            lock.release()
        if not interrupter.fired:
            assert not_begun < 25, "a release that has begun is finished"
            assert swallowed < 5, "interrupts are for the caller"
            return at - 1
        swallowed += not interrupted
        if releasing and held_through(lock) is not None:
            not_begun += 1
            lock.release()
        nothing_is_left(client, lock, interrupter.where)


def interrupted_by(interrupter: Interrupter, act: Callable[[Held], None], lock: Held) -> bool:
    """Whether the interrupt reached us. One that falls into a callback of the collector's does not."""
    try:
        with interrupter.at_work():
            act(lock)
    except KeyboardInterrupt:
        return True
    return False


def held_through(lock: Held) -> Any:
    return lock.leases if isinstance(lock, MultiLock) else lock.lease


def nothing_is_left(client: Client, lock: Held, where: str) -> None:
    names = lock.names if isinstance(lock, MultiLock | AnyLock) else (lock.name,)

    def free() -> bool:
        infos = [client.inspect(name) for name in names]
        return not any(info.holders or info.waiters for info in infos)

    wait_until(free, timeout=5, message=f"something stayed behind: interrupted in {where}")
    assert held_through(lock) is None, f"the object thinks it holds what it does not: interrupted in {where}"
    lease = lock.acquire(timeout=SETTLES_IN.get(client.guarantees.engine, 0.0))
    assert lease is not None, where
    lease.check()
    lock.release()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("act", [acquire, enter])
def test_interrupted_while_acquiring(client: Client, kind: str, act: Callable[[Held], None]) -> None:
    lock = client.semaphore("x", 2) if kind == "semaphore" else getattr(client, kind)("x")
    assert sweep(client, lock, act) > 10


@pytest.mark.parametrize("act", [acquire_in_vain, enter_in_vain])
def test_interrupted_while_waiting_in_vain(client: Client, act: Callable[[Held], None]) -> None:
    lock = client.lock("x", timeout=0.01)

    def hold() -> Callable[[], None]:
        lease = client.lock("x").acquire(timeout=5)
        assert lease is not None
        return lease.release

    assert sweep(client, lock, act, hold) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_while_releasing(client: Client, kind: str) -> None:
    """It was released, or it is released behind our back: it does not stay held."""
    lock = client.semaphore("x", 2) if kind == "semaphore" else getattr(client, kind)("x")

    def hold() -> Callable[[], None]:
        assert lock.acquire(timeout=5) is not None
        return lambda: None

    def release(lock: Held) -> None:
        lock.release()

    assert sweep(client, lock, release, hold, releasing=True) > 10


def test_interrupted_while_leaving_with(client: Client) -> None:
    lock = client.lock("x")

    def hold() -> Callable[[], None]:
        lock.__enter__()
        return lambda: None

    def leave(lock: Held) -> None:
        lock.__exit__(None, None, None)

    assert sweep(client, lock, leave, hold, releasing=True) > 10


# --- recipes ------------------------------------------------------------------------------------


def points(client: Client, stride: int = 1) -> Iterator[Interrupter]:
    """An interrupter for every point in turn, until one was not reached."""
    at = 0
    while True:
        at += 1 if THOROUGH else stride * STRIDES.get(client.guarantees.engine, 1)
        interrupter = Interrupter(at)
        yield interrupter
        if not interrupter.fired:
            break
    assert at > 20, "hardly anything was interrupted"


@pytest.mark.parametrize("value", [b"", bytes(2000)], ids=["short", "long"])
def test_interrupted_while_campaigning(client: Client, value: bytes) -> None:
    """A value that is too long for the grant is stored after it: one step more to be interrupted in."""
    if len(value) > 1024 and not client.guarantees.has_values:
        return  # refused before any request
    election, lock = client.election("x", value), client.lock(client.election("x").lock_name)
    for interrupter in points(client, 3):
        campaign = election.campaign()
        if not interrupted_by(interrupter, lambda _, campaign=campaign: campaign.__enter__(), lock):  # type: ignore[misc]  # mypy cannot type a lambda with a default
            campaign.__exit__(None, None, None)
        if interrupter.fired:
            nothing_is_left(client, lock, interrupter.where)


def test_interrupted_while_campaigning_in_vain(client: Client) -> None:
    election, lock = client.election("x"), client.lock(client.election("x").lock_name)
    with client.election("x").campaign() as leadership:
        for interrupter in points(client, SEVERAL_STRIDE):
            with contextlib.suppress(KeyboardInterrupt, LockTimeout), interrupter.at_work():
                election.campaign(timeout=0.01).__enter__()
            wait_until(
                lambda: not client.inspect(lock.name).waiters,
                timeout=5,
                message=f"waits: {interrupter.where}",
            )
            leadership.check()


@needs("cells")
def test_interrupted_in_a_job(client: Client) -> None:
    """Wherever it comes, nothing is held afterwards, and the job can run again."""
    not_begun = 0
    for interrupter in points(client, 1 if client.guarantees.engine == "memory" else SEVERAL_STRIDE):
        job = client.job("x")
        with contextlib.suppress(KeyboardInterrupt), interrupter.at_work(), job:
            pass
        if job._entries:
            not_begun += 1
            with contextlib.suppress(NotHeld):
                job.__exit__(None, None, None)
        wait_until(lambda: not client.inspect("_holdfast/job:x").locked, message=interrupter.where, timeout=5)
    assert not_begun < 25, "an end that has begun is finished"
    with client.job("x") as run:
        assert run is not None


@needs("value")
@pytest.mark.parametrize("how", ["run", "with"])
def test_interrupted_in_an_idempotent_operation(client: Client, how: str) -> None:
    """Wherever it comes, nothing is held afterwards, and the next caller gets the one result."""
    not_begun = 0
    stride = 1 if client.guarantees.engine == "memory" else SEVERAL_STRIDE
    for number, interrupter in enumerate(points(client, stride)):
        key = f"x{number}"
        operation = client.idempotent(key)
        with contextlib.suppress(KeyboardInterrupt), interrupter.at_work():
            if how == "run":
                operation.run(lambda: "done")
            else:
                with operation as attempt:
                    attempt.set_result("done")
        if operation._entered:
            not_begun += 1
            operation.__exit__(None, None, None)
        name = f"_holdfast/idempotency:/{key}"
        wait_until(lambda name=name: not client.inspect(name).locked, message=interrupter.where, timeout=5)  # type: ignore[misc]  # as above
        assert client.idempotent(key, timeout=0).run(lambda: "done") == "done"
    assert not_begun < 10 if how == "with" else not not_begun, "an end that has begun is finished"


# --- several locks at once ----------------------------------------------------------------------


def several(client: Client, kind: str, **options: Any) -> Held:
    if kind == "any":
        return client.any("x", "y", **options)
    return client.all("x", "y", order="given" if kind == "given" else "sorted", **options)


def give_back(leases: list[Lease]) -> None:
    for lease in leases:
        lease.release()


SEVERAL = ["sorted", "given", "any"]


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("act", [acquire, enter])
def test_interrupted_while_acquiring_several(client: Client, kind: str, act: Callable[[Held], None]) -> None:
    assert sweep(client, several(client, kind), act) > 20


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("act", [acquire_in_vain, enter_in_vain])
def test_interrupted_while_waiting_for_several_in_vain(
    client: Client, kind: str, act: Callable[[Held], None]
) -> None:
    busy = ("x", "y") if kind == "any" else ("y",)

    def hold() -> Callable[[], None]:
        leases = client.all(*busy).acquire(timeout=5)
        assert leases is not None
        return lambda: give_back(list(leases.values()))

    assert sweep(client, several(client, kind, timeout=0.01), act, hold) > 20


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", ["sorted", "any"])
@pytest.mark.parametrize("how", ["release", "leave"])
def test_interrupted_while_releasing_several(client: Client, kind: str, how: str) -> None:
    lock = several(client, kind)

    def hold() -> Callable[[], None]:
        lock.__enter__()
        return lambda: None

    def let_go(lock: Held) -> None:
        if how == "release":
            lock.release()
        else:
            lock.__exit__(None, None, None)

    assert sweep(client, lock, let_go, hold, releasing=True) > 10


@needs("cells")
def test_interrupted_while_waiting_at_a_barrier(client: Client) -> None:
    """Nobody stays a party: the lease by which the others count it is released."""
    barrier = client.barrier("x", 2)
    at, fired = 0, True
    while fired:
        at += 1 if THOROUGH else 3 * SEVERAL_STRIDE
        interrupter = Interrupter(at)
        with contextlib.suppress(KeyboardInterrupt, BrokenBarrierError), interrupter.at_work():
            barrier.wait(0.01)
        fired = interrupter.fired
        wait_until(
            lambda: not client.inspect(PARTIES).holders,
            timeout=5,
            message=f"still a party: interrupted in {interrupter.where}",
        )
        barrier.reset()
    assert at > 50


# --- real signals -------------------------------------------------------------------------------


in_the_main_thread = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread"
)


@in_the_main_thread
def test_a_real_signal_while_waiting(client: Client) -> None:
    holder = client.lock("x").acquire()
    assert holder is not None
    lock = client.lock("x")
    for number in range(10):
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.001 + number * 0.004):
            lock.acquire()
        wait_until(lambda: not client.inspect("x").waiters, timeout=5)
        assert lock.lease is None
    holder.release()
    nothing_is_left(client, lock, "waiting")


@in_the_main_thread
def test_real_signals_during_acquire_and_release(client: Client) -> None:
    """Again and again, at moments spread over the whole of it."""
    lock = client.lock("x")
    interrupted = 0
    where = ""
    for number in range(200):
        try:
            with interrupted_after(0.00002 + (number % 50) * 0.00001):
                for _ in range(20):
                    with lock:
                        pass
        except KeyboardInterrupt as interrupt:
            interrupted += 1
            where = "".join(traceback.format_tb(interrupt.__traceback__))
        current = lock.lease
        if current is not None:
            # It came between the grant and the body, or before the end of the body and the release: windows
            # that every lock written in Python has. The object knows what it holds.
            lock.release()
        nothing_is_left(client, lock, where)
    assert interrupted > 20
