"""Holdfast as a user types it: mypy strict reads this file, and so says what an editor will.

Nothing here is run. ``assert_type`` is the assertion; an ``ignore`` that is no longer needed is an error too,
so each of them says that a wrong call is seen.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from typing import Any, assert_type

import holdfast
import holdfast.actors.aio
import holdfast.aio
from holdfast import (
    Fence,
    Guarantees,
    HolderInfo,
    LockInfo,
    WaitEdge,
    WaiterInfo,
    actors,
    events,
    fencing,
    idempotency,
    optimistic,
    ownership,
    queue,
    sql,
)
from holdfast.aio import AsyncClient, AsyncLease, AsyncLock, AsyncRLock, AsyncRWLock, AsyncSemaphore
from holdfast.facades.job_run import JobRun
from holdfast.model import Run
from holdfast.ownership import aio as async_ownership


def threads() -> None:
    locks = holdfast.connect()
    assert_type(locks, holdfast.Client)
    assert_type(holdfast.connect("memory://", namespace="shop", io_timeout=2.5), holdfast.Client)
    assert_type(locks.guarantees, Guarantees)
    assert_type(locks.url, str)

    lock = locks.lock("x", ttl=30, timeout=None, fair=True, renew=False, max_hold=60.0, grace=1)
    assert_type(lock, holdfast.Lock)
    assert_type(lock.acquire(), holdfast.Lease | None)
    assert_type(lock.acquire(blocking=False), holdfast.Lease | None)
    assert_type(lock.acquire(timeout=holdfast.UNSET), holdfast.Lease | None)
    assert_type(lock.acquire(True, -1), holdfast.Lease | None)
    assert_type(lock.lease, holdfast.Lease | None)
    assert_type(lock.locked(), bool)
    lock.release()

    job = locks.job("x", every=3600, at_least=60.0, on_crash="skip", catch_up=True)
    assert_type(job.last, Run | None)
    with job as run:
        assert_type(run, JobRun[holdfast.Lease] | None)
    assert_type(locks.jobs(), list[str])
    locks.job("x", on_crash="retry")  # type: ignore[arg-type]  # "rerun" or "skip"

    assert_type(locks.rlock("x"), holdfast.RLock)
    rwlock = locks.rwlock("x", metadata={"job": "7"})
    assert_type(rwlock, holdfast.RWLock)
    assert_type(rwlock.read(), holdfast.Lock)
    assert_type(rwlock.write(), holdfast.Lock)
    semaphore = locks.semaphore("x", 3, if_lost="note")
    assert_type(semaphore, holdfast.Semaphore)
    semaphore.release(2)
    semaphore.resize(5)

    with locks, locks.lock("x") as lease, rwlock.read() as read, semaphore as permit:
        assert_type(lease, holdfast.Lease)
        assert_type(read, holdfast.Lease)
        assert_type(permit, holdfast.Lease)

    several = locks.all("x", rwlock.read(), semaphore, ttl=30, timeout=5, order="given", deadlock="raise")
    assert_type(several.names, tuple[str, ...])
    with several as leases, locks.any("x", lock, timeout=1) as first:
        assert_type(leases["x"], holdfast.Lease)
        assert_type(leases.lost, bool)
        assert_type(leases.remaining, float)
        assert_type(first, holdfast.Lease)
        leases.check()
        leases.on_lost(lambda lost: lost.remaining)
    several.release()

    latch, barrier = locks.latch("x", 3), locks.barrier("x", 2, ttl=5)
    assert_type(latch.count_down(), int)
    assert_type(latch.wait(timeout=1), bool)
    assert_type(barrier.wait(1.5), int)
    assert_type(barrier.broken(), bool)

    info = locks.inspect("x")
    assert_type(info, LockInfo)
    assert_type(info.holders, tuple[HolderInfo, ...])
    assert_type(info.waiters, tuple[WaiterInfo, ...])
    assert_type(info.value, bytes | None)
    assert_type(locks.list("x"), list[LockInfo])
    assert_type(locks.break_lock("x", reason="stuck"), int | None)
    assert_type(locks.deadlocks(), tuple[tuple[WaitEdge, ...], ...])
    locks.rwlock("x", deadlock="raise")
    with locks.watch("x") as changes:
        assert_type(changes.next(timeout=1), LockInfo | None)
        for change in changes:
            assert_type(change, LockInfo)


def a_lease(lease: holdfast.Lease, locks: holdfast.Client) -> None:
    assert_type(lease.name, str)
    assert_type(lease.token, int)
    assert_type(lease.fence, Fence)
    assert_type(lease.remaining, float)
    assert_type(lease.lost, bool)
    assert_type(lease.wait_lost(timeout=1), bool)
    assert_type(lease.downgrade(), holdfast.Lease)
    assert_type(lease.export(), str)
    assert_type(locks.adopt("text"), holdfast.Lease)
    lease.check()
    lease.extend(30)
    lease.extend()
    lease.on_lost(lambda lost: lost.token)
    lease.set_value(b"value", retention=60)
    lease.release()


def decorated(locks: holdfast.Client) -> None:
    @locks.lock("x")
    def work(a: int, *, b: str) -> float:
        return a / len(b)

    assert_type(work(1, b="b"), float)
    work("1", b="b")  # type: ignore[arg-type]  # a decorated function keeps its signature
    work(1)  # type: ignore[call-arg]  # as above


def wrong(locks: holdfast.Client) -> None:
    locks.lock(7)  # type: ignore[arg-type]  # a name is text
    locks.lock("x", deadlock="die")  # type: ignore[arg-type]  # one of three words
    locks.all(7)  # type: ignore[arg-type]  # names and locks
    locks.all("x", order="any")  # type: ignore[arg-type]  # one of two words
    locks.lock("x", if_lost="never")  # type: ignore[arg-type]  # one of three words
    locks.semaphore("x")  # type: ignore[call-arg]  # a limit is needed
    locks.break_lock("x")  # type: ignore[call-arg]  # a reason is needed
    assert locks.lock("x").acquire().token  # type: ignore[union-attr]  # it may not have been granted
    holdfast.Fence("s", 1, "n").token = 2  # type: ignore[misc]  # values do not change


async def tasks() -> None:
    locks = holdfast.aio.connect(namespace="shop")
    assert_type(locks, AsyncClient)
    lock = locks.lock("x", if_lost="cancel")
    assert_type(lock, AsyncLock)
    assert_type(await lock.acquire(timeout=5), AsyncLease | None)
    attempt: Coroutine[Any, Any, AsyncLease | None] = lock.acquire()  # fit for create_task and wait_for
    assert_type(await attempt, AsyncLease | None)
    assert_type(await lock.locked(), bool)
    assert_type(lock.lease, AsyncLease | None)
    await lock.release()
    async with locks.all("x", lock, order="sorted") as leases, locks.any("y", "z") as first:
        assert_type(leases["x"], AsyncLease)
        assert_type(first, AsyncLease)
        leases.check()
    assert_type(await locks.latch("x", 3).wait(1), bool)
    assert_type(await locks.barrier("x", 3).wait(), int)
    assert_type(locks.rlock("x"), AsyncRLock)
    assert_type(locks.rwlock("x"), AsyncRWLock)
    assert_type(locks.semaphore("x", 2), AsyncSemaphore)
    async with locks, locks.lock("x") as lease, locks.rwlock("y").write() as written:
        assert_type(lease, AsyncLease)
        assert_type(lease.token, int)
        assert_type(await lease.wait_lost(), bool)
        assert_type(await written.downgrade(), AsyncLease)
        assert_type(await lease.export(), str)
        lease.check()
    assert_type(await locks.inspect("x"), LockInfo)
    assert_type(await locks.list(), list[LockInfo])
    assert_type(await locks.break_lock("x", reason="stuck", token=3), int | None)
    async with locks.watch("x") as changes:
        async for change in changes:
            assert_type(change, LockInfo)


async def async_decorated(locks: AsyncClient) -> None:
    @locks.lock("x")
    async def work(a: int) -> str:
        return str(a)

    assert_type(await work(1), str)
    await work("1")  # type: ignore[arg-type]  # a decorated function keeps its signature


def elections(locks: holdfast.Client) -> None:
    election = locks.election("x", b"host:1", ttl=10, grace=2.5)
    with election.campaign(timeout=5) as leadership:
        assert_type(leadership.token, int)
        assert_type(leadership.lease, holdfast.Lease)
        leadership.on_lost(lambda lost: lost.token)
        leadership.proclaim(b"host:2")
    for term in election.terms():
        with term:
            assert_type(term.fence, Fence)
    assert_type(election.leader(), holdfast.Leader | None)
    for leader in election.observe():
        assert_type(leader, holdfast.Leader | None)
    locks.election("x", "text")  # type: ignore[arg-type]  # a value is bytes


async def async_elections(locks: AsyncClient) -> None:
    election = locks.election("x")
    async with election.campaign() as leadership:
        assert_type(leadership.lease, AsyncLease)
        await leadership.resign()
    async for term in election.terms():
        async with term:
            term.check()
    async for leader in election.observe():
        assert_type(leader, holdfast.Leader | None)


def errors() -> None:
    try:
        threads()
    except holdfast.LockTimeout as error:
        assert_type(error.name, str)
        assert_type(error.holders, tuple[HolderInfo, ...])
    except holdfast.LockLost as error:
        assert_type(error.token, int | None)
    except holdfast.StaleToken as error:
        assert_type(error.newest, int | None)
    except holdfast.HoldfastError as error:
        assert_type(error.message, str)


def guarded(db: Any, lease: holdfast.Lease, async_lease: AsyncLease) -> None:
    fencing.enforce(db, "invoices", lease)
    fencing.enforce(db, "invoices", async_lease)
    fencing.advance(db, "invoices", lease.fence)
    fencing.advance(db, "invoices", 7)


def guarded_elsewhere(s3: Any, lease: holdfast.Lease, app: Any) -> None:
    file = fencing.FencedFile("prices.json", timeout=5)
    file.write(b"x", lease)
    file.write("text", lease)  # type: ignore[arg-type]  # bytes alone
    assert_type(file.read(), bytes)
    assert_type(file.newest(), Fence | None)
    stored = fencing.FencedObject(s3, "shop", "prices.json", layout="manifest")
    stored.put(b"x", lease.fence)
    assert_type(stored.get(), bytes | None)
    fencing.FencedObject(s3, "shop", "prices.json", layout="metadata")  # type: ignore[arg-type]  # no such
    awaited: Coroutine[Any, Any, bytes | None] = fencing.AsyncFencedObject(s3, "shop", "x").get()
    awaited.close()
    assert_type(fencing.fencing_headers(lease), dict[str, str])
    fencing.FencingMiddleware(app, lambda: closing(sqlite3.connect("shop.db")), resource="invoices")
    fencing.WSGIFencingMiddleware(app, lambda: closing(sqlite3.connect("shop.db")))


def idempotent(locks: holdfast.Client, awaited: AsyncClient, app: Any) -> None:
    operation = locks.idempotent(("order", 7), keep=60, fingerprint={"a": [1]}, scope="t", timeout=0)
    with operation as attempt:
        assert_type(attempt.done, bool)
        assert_type(attempt.token, int | None)
        assert_type(attempt.lease, holdfast.Lease | None)
        attempt.set_result({"id": 7})

    def charge(order: int) -> str:
        return str(order)

    assert_type(operation.run(charge, 7), str)
    operation.run(charge, "7")  # type: ignore[arg-type]  # no number
    assert_type(locks.idempotent(lambda order: ("charge", order))(charge)(7), str)
    locks.idempotent("x", on_error="retry")  # type: ignore[arg-type]  # no such choice
    locks.idempotent(1.5)  # type: ignore[arg-type]  # no key
    idempotency.WSGIIdempotencyMiddleware(app, locks, scope=lambda environ: environ["REMOTE_USER"])
    idempotency.IdempotencyMiddleware(app, awaited, scope=("tenant", 7), timeout=0, required=True)
    idempotency.IdempotencyMiddleware(app, awaited)  # type: ignore[call-arg]  # whose keys are they?

    async def refund(order: int) -> str:
        return str(order)

    refunding: Coroutine[Any, Any, str] = awaited.idempotent("x")(refund)(7)
    refunding.close()


def in_ones_own_database(db: Any) -> None:
    assert_type(sql.row_lock(db, "account", {"id": 7}, wait=2.5), Mapping[str, Any] | None)
    sql.row_lock(db, ("shop", "account"), {"id": 7}, False, mode="no key update")
    sql.row_lock(db, "account", {"id": 7}, mode="exclusive")  # type: ignore[arg-type]  # no such mode
    sql.transaction_lock(db, "closing", timeout=5, shared=True)
    assert_type(sql.retry_transaction(lambda: 7, backoff=sql.Backoff(maximum=2)), int)
    with sql.idempotent(db, ("charge", 7), fingerprint={"amount": 1}, keep=60) as attempt:
        assert_type(attempt, sql.SqlAttempt)
        assert_type(attempt.done, bool)
    assert_type(sql.prune_idempotency_table(db), int)
    assert_type(optimistic.decrement_if_available(db, "stock", {"id": 1}, "quantity", 2), bool)
    where = [("quantity", ">=", 2)]
    assert_type(optimistic.update_where(db, "stock", {"id": 1}, {"quantity": 0}, where), bool)

    @optimistic.optimistic(retries=3, backoff=0.1)
    def write(amount: int) -> str:
        return str(amount)

    assert_type(write(7), str)


def jobs_in_ones_own_database(db: Any) -> None:
    jobs = queue.connect("postgresql://localhost/shop", namespace="shop", retention=None)
    assert_type(jobs, queue.Queue)
    assert_type(jobs.put("mail", {"to": "ann"}, connection=db, key="7", unique="queued"), int)
    jobs.put("mail", unique="once")  # type: ignore[arg-type]  # no such uniqueness
    assert_type(jobs.put_many([queue.NewJob("mail", 1, priority=3)]), list[int])
    (job,) = assert_type(jobs.claim(["mail"], lease=60), list[queue.Job])
    assert_type(job.fail(ValueError()), queue.State)
    with job.transaction(db):
        pass
    assert_type(jobs.get(7), queue.JobInfo | None)
    assert_type(jobs.counts(), dict[queue.State, int])

    @queue.Worker(jobs, concurrency=2, lease=30).job("mail", every=60)
    def send(job: queue.Job) -> str:
        return str(job.payload)

    assert_type(send(job), str)


def actors_on_a_queue(locks: holdfast.Client, jobs: queue.Queue, db: Any) -> None:
    system = actors.System(locks, jobs, concurrency=8, lease=10)

    @system.actor("account", state="events", attempts=3)
    class Account:
        balance = 0

        def apply(self, event: Mapping[str, Any]) -> None: ...
        def deposit(self, amount: int) -> int:
            assert_type(actors.context(), actors.Context)
            return self.balance + amount

    assert_type(Account().deposit(7), int)  # the class stays what it was
    system.tell("account", "7", "deposit", amount=1, id="one", connection=db)
    system.ask("account", "7", "deposit", amount=1, timeout=5)
    assert_type(system.state("account", "7"), dict[str, Any] | None)
    assert_type(system.dead_letters("account"), list[actors.DeadLetter])
    system.actor("account", state="rows")  # type: ignore[arg-type]  # no such state
    actors.System(locks, "a queue")  # type: ignore[arg-type]  # no URL
    actors.aio.System(locks, jobs)  # type: ignore[arg-type]  # both are for threads


def events_of(db: Any, store: events.EventStore) -> None:
    assert_type(store.append("account", [{"type": "opened"}], expected_version=0, connection=db), int)
    assert_type([*store.read("account"), *store.read_all(from_=3)], list[events.Event])
    assert_type(store.load_snapshot("account"), events.Snapshot | None)
    with store.subscribe(timeout=1) as subscription:
        assert_type(subscription.get(), events.Event | None)
    assert_type(store.projection("sums").run(db, lambda db, event: db.execute(event.stream)), int)
    store.append("account", {"type": "opened"})  # type: ignore[arg-type]  # one event is no list


CALLBACK: Callable[[holdfast.Lease], object] = print


def single_ownership(locks: holdfast.Client) -> None:
    def told(partition: int, lease: holdfast.Lease) -> None: ...

    with ownership.join(locks, "orders", 64, "web-1", ttl=5, drain=1.5, on_assigned=told) as member:
        assert_type(member, ownership.Member)
        assert_type(member.owned, frozenset[int])
        assert_type(member.owns("key"), bool)
        assert_type(member.owns(b"key"), bool)
        assert_type(member.owner_of("key"), ownership.Owner | None)
        assert_type(member.lease_of(3), holdfast.Lease)
        member.on_revoked(told)
        member.on_lost(told)
        member.on_lost(lambda partition: None)  # type: ignore[arg-type, misc]  # it takes the lease, too
        member.owns(7)  # type: ignore[arg-type]  # a key is text or bytes
        member.leave(returning=True)
    assert_type(ownership.show(locks, "orders"), ownership.GroupInfo | None)
    assert_type(ownership.groups(locks), list[ownership.GroupInfo])
    assert_type(ownership.partition_of("key", 64), int)


async def single_ownership_awaited(locks: AsyncClient) -> None:
    async def told(partition: int, lease: AsyncLease) -> None: ...

    async with await async_ownership.join(locks, "orders", on_assigned=told) as member:
        assert_type(member, async_ownership.AsyncMember)
        assert_type(await member.owner_of("key"), ownership.Owner | None)
        assert_type(member.lease_of(3), AsyncLease)
        member.on_revoked(told)
        await member.leave()
    assert_type(await async_ownership.owner_of(locks, "orders", "key"), ownership.Owner | None)
