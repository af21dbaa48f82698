"""Guards in etcd: the caller's transaction that compares the ticket, and the fence key of its own."""

from __future__ import annotations

import asyncio
import base64
import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import grpc
import pytest

import holdfast
import holdfast.aio
from holdfast import (
    Client,
    Conflict,
    EngineUnavailable,
    HoldfastError,
    InvalidArgument,
    Lease,
    LockLost,
    StaleToken,
)
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.fencing import AsyncFencedEtcd, FencedEtcd, etcd_compares
from holdfast.model import Fence
from support import wait_until
from support.servers import shared_etcd

pytestmark = [pytest.mark.realtime, pytest.mark.engine("etcd")]

OLD, NEW = Fence("s", 41, "old"), Fence("s", 42, "new")


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def call(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return shared_etcd().call(path, body)


def value_of(key: str) -> str | None:
    kvs = call("/v3/kv/range", {"key": b64(key)}).get("kvs", [])
    return base64.b64decode(kvs[0].get("value", "")).decode() if kvs else None


@pytest.fixture
def key() -> str:
    """One that no other test uses."""
    return f"total-{secrets.token_hex(6)}"


@pytest.fixture
def locks(key: str) -> Iterator[Client]:
    with holdfast.connect(f"etcd://{shared_etcd().address}", namespace=key) as client:
        yield client


def taken(lock: holdfast.Lock, timeout: float = 20) -> Lease:
    lease = lock.acquire(timeout=timeout)
    assert lease is not None
    return lease


# --- a transaction of the caller's own ----------------------------------------------------------


def write_by_gateway(key: str, value: str, compares: Sequence[holdfast.fencing.EtcdCompare]) -> bool:
    put = {"request_put": {"key": b64(key), "value": b64(value)}}
    answer = call("/v3/kv/txn", {"compare": [each.json() for each in compares], "success": [put]})
    return bool(answer.get("succeeded", False))


def write_by_grpc(key: str, value: str, compares: Sequence[holdfast.fencing.EtcdCompare]) -> bool:
    with grpc.insecure_channel(shared_etcd().address) as channel:
        txn = channel.unary_unary(
            "/etcdserverpb.KV/Txn",
            request_serializer=wire.TxnRequest.SerializeToString,
            response_deserializer=wire.TxnResponse.FromString,
        )
        put = wire.RequestOp(request_put=wire.PutRequest(key=key.encode(), value=value.encode()))
        compare = [each.message(wire.Compare) for each in compares]
        return bool(txn(wire.TxnRequest(compare=compare, success=[put]), timeout=20).succeeded)


Writes = Callable[[str, str, Sequence[holdfast.fencing.EtcdCompare]], bool]


@pytest.mark.parametrize("write", [write_by_gateway, write_by_grpc])
def test_a_transaction_that_compares_the_ticket_does_nothing_once_the_grant_is_over(
    locks: Client, key: str, write: Writes
) -> None:
    lock = locks.lock("invoices")
    lease = taken(lock)
    compares = etcd_compares(lease)
    assert write(key, "first", compares)
    assert write(key, "second", compares)
    lock.release()
    assert not write(key, "stale", compares), "before another client has the lock"
    with lock as newer:
        assert write(key, "third", etcd_compares(newer))
        assert not write(key, "stale", compares)
    assert value_of(key) == "third"


def test_a_lock_that_was_broken(locks: Client, key: str) -> None:
    lease = taken(locks.lock("invoices"))
    compares = etcd_compares(lease)
    locks.break_lock("invoices", reason="a test")
    assert not write_by_gateway(key, "stale", compares)
    wait_until(lambda: lease.lost)
    with pytest.raises(LockLost):
        etcd_compares(lease)


def test_a_session_that_ended_and_one_that_was_lengthened(locks: Client, key: str) -> None:
    lease = taken(locks.lock("invoices", ttl=2, renew=False))
    lease.extend(60)
    assert write_by_gateway(key, "1", etcd_compares(lease)), "another session carries it now"
    lease.release()


def test_permits_writers_and_adopted_leases(locks: Client, key: str) -> None:
    semaphore = locks.semaphore("permits", 2)
    with semaphore as one, locks.semaphore("permits", 2) as two:
        assert write_by_gateway(key, "1", etcd_compares(one))
        assert write_by_gateway(key, "2", etcd_compares(two))
    with locks.rwlock("shared").write() as writing:
        assert write_by_gateway(key, "3", etcd_compares(writing))
    exported = taken(locks.lock("handed"))
    before = etcd_compares(exported)
    with holdfast.connect(f"etcd://{shared_etcd().address}", namespace=key) as other:
        adopted = other.adopt(exported.export())
        assert write_by_gateway(key, "4", etcd_compares(adopted))
        assert write_by_gateway(key, "5", before), "it is the same grant"
        adopted.release()
    assert not write_by_gateway(key, "6", before)


def test_a_lease_of_asyncio(key: str) -> None:
    async def main() -> None:
        url = f"etcd://{shared_etcd().address}"
        async with holdfast.aio.connect(url, namespace=key) as locks:
            lock = locks.lock("invoices")
            lease = await lock.acquire()
            assert lease is not None
            compares = etcd_compares(lease)
            assert await asyncio.to_thread(write_by_gateway, key, "1", compares)
            await lock.release()
            assert not await asyncio.to_thread(write_by_gateway, key, "2", compares)

    asyncio.run(main())


def test_what_has_no_ticket_in_etcd(locks: Client) -> None:
    with locks.rwlock("shared").read() as reading, pytest.raises(InvalidArgument, match="may not write"):
        etcd_compares(reading)
    for given in (NEW, 41):
        with pytest.raises(InvalidArgument, match="is no lease"):
            etcd_compares(given)
    with (
        holdfast.connect(f"memory://{secrets.token_hex(6)}") as others,
        others.lock("x") as lease,
        pytest.raises(InvalidArgument, match="Take the lock with etcd://"),
    ):
        etcd_compares(lease)


# --- the fence key ------------------------------------------------------------------------------


class Awaited:
    """An asyncio guard, called as if it blocked."""

    def __init__(self, guard: AsyncFencedEtcd) -> None:
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._guard, name)

        def run(*arguments: Any, **options: Any) -> Any:
            async def main() -> Any:
                result = found(*arguments, **options)
                return await result if inspect.isawaitable(result) else result

            return asyncio.run(main())

        return run


Call = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
Make = Callable[..., FencedEtcd]


@pytest.fixture(params=["blocking", "awaiting"])
def make(request: pytest.FixtureRequest) -> Make:
    def blocking(resource: str, call: Call = call) -> FencedEtcd:
        return FencedEtcd(call, resource)

    def awaiting(resource: str, call: Call = call) -> FencedEtcd:
        async def awaited(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            return await asyncio.to_thread(call, path, body)

        return cast("FencedEtcd", Awaited(AsyncFencedEtcd(awaited, resource)))

    return blocking if request.param == "blocking" else awaiting


@pytest.fixture
def guard(make: Make, key: str) -> FencedEtcd:
    return make(f"resource/of {key}")


def test_writes_of_the_newest_holder(guard: FencedEtcd, key: str) -> None:
    assert guard.newest() is None
    guard.advance(OLD)
    guard.put(key, "1", OLD)
    guard.put(key.encode(), b"2", OLD)
    assert value_of(key) == "2"
    assert guard.delete(key, OLD) is True
    assert guard.delete(key, OLD) is False
    assert guard.newest() == OLD


Write = Callable[[FencedEtcd, str], object]

STALE: list[Write] = [
    lambda guard, key: guard.put(key, "stale", OLD),
    lambda guard, key: guard.delete(key, OLD),
    lambda guard, key: guard.transaction(OLD, [{"request_put": {"key": b64(key), "value": b64("stale")}}]),
    lambda guard, key: guard.advance(OLD),
]


@pytest.mark.parametrize("write", STALE)
def test_a_stale_holder_writes_nothing(guard: FencedEtcd, key: str, write: Write) -> None:
    guard.put(key, "right", NEW)
    with pytest.raises(StaleToken, match="token 41 is too old") as refusal:
        write(guard, key)
    assert refusal.value.resource == f"resource/of {key}"
    assert (refusal.value.token, refusal.value.newest) == (41, 42)
    assert value_of(key) == "right"


def test_a_transaction_of_the_callers_own_has_conditions_of_its_own(guard: FencedEtcd, key: str) -> None:
    put = [{"request_put": {"key": b64(key), "value": b64("made")}}]
    look = [{"request_range": {"key": b64(key)}}]
    is_new = [{"target": "CREATE", "result": "EQUAL", "key": b64(key), "create_revision": "0"}]
    assert guard.transaction(NEW, put, is_new, look)["succeeded"]
    answer = guard.transaction(NEW, put, is_new, look)
    assert not answer.get("succeeded", False), "its own condition failed, which is no refusal"
    assert base64.b64decode(answer["responses"][0]["response_range"]["kvs"][0]["value"]) == b"made"


def test_a_resource_is_moved_on_purpose(guard: FencedEtcd, key: str) -> None:
    guard.put(key, "1", NEW)
    guard.move("s")
    assert guard.newest() == NEW
    guard.move("t")
    with pytest.raises(StaleToken, match="two sources"):
        guard.put(key, "stale", NEW)
    guard.put(key, "2", Fence("t", 1, "first"))


class Meddling:
    """A newer holder, or the same one elsewhere, comes between the check and the commit, so often."""

    def __init__(self, times: int, meddle: Callable[[], object]) -> None:
        self._times = times
        self._meddle = meddle

    def __call__(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if path.endswith("txn") and self._times:
            self._times -= 1
            self._meddle()
        return call(path, body)


def test_a_newer_holder_that_comes_between_check_and_commit(make: Make, key: str) -> None:
    newer = FencedEtcd(call, key)
    guard = make(key, Meddling(1, lambda: newer.put(key, "right", NEW)))
    with pytest.raises(StaleToken):
        guard.put(key, "stale", OLD)
    assert value_of(key) == "right"


def test_an_older_holder_that_comes_between_is_passed_by(make: Make, key: str) -> None:
    older = FencedEtcd(call, key)
    guard = make(key, Meddling(1, lambda: older.put(key, "old", OLD)))
    guard.put(key, "new", NEW)
    assert value_of(key) == "new"


def test_writes_of_one_grant_do_not_get_in_each_others_way(make: Make, key: str) -> None:
    FencedEtcd(call, key).advance(NEW)
    beside = FencedEtcd(call, key)
    guard = make(key, Meddling(5, lambda: beside.put(f"{key}-beside", "x", NEW)))
    guard.put(key, "new", NEW)
    assert value_of(key) == "new"


def test_a_fence_that_changes_all_the_time(make: Make, key: str) -> None:
    tokens = iter(range(1, 100))
    older = FencedEtcd(call, key)
    guard = make(key, Meddling(99, lambda: older.advance(next(tokens))))
    with pytest.raises(Conflict, match="try again"):
        guard.put(key, "new", 1000)
    assert value_of(key) is None


def test_what_is_no_fence_is_left_alone(guard: FencedEtcd, key: str) -> None:
    guard.advance(NEW)
    fence = f"holdfast-fences/resource%2Fof%20{key}"
    assert value_of(fence) == "1:42:new:s:"
    call("/v3/kv/put", {"key": b64(fence), "value": b64("hello")})
    with pytest.raises(HoldfastError, match="no mark of a guard"):
        guard.put(key, "1", NEW)
    assert value_of(key) is None


def test_bad_input_is_refused_before_any_request() -> None:
    def untouched(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise AssertionError(path)

    with pytest.raises(InvalidArgument, match="resource is empty"):
        FencedEtcd(untouched, "")
    guard = FencedEtcd(untouched, "invoices")
    with pytest.raises(InvalidArgument, match="etcd keeps bytes"):
        guard.put("k", cast("Any", 5), NEW)
    with pytest.raises(InvalidArgument, match="no lease or token"):
        guard.put("k", "v", cast("Any", None))
    with holdfast.connect(f"memory://{secrets.token_hex(6)}") as locks, locks.rwlock("x").read() as reading:
        with pytest.raises(InvalidArgument, match="may not write"):
            guard.put("k", "v", reading)
        lost = locks.lock("z", ttl=0.05, renew=False).acquire()
        assert lost is not None
        assert lost.wait_lost(timeout=20)
        with pytest.raises(LockLost):
            guard.put("k", "v", lost)


def test_a_lease_of_any_engine(guard: FencedEtcd, key: str) -> None:
    with holdfast.connect(f"memory://{secrets.token_hex(6)}") as locks, closing(locks):
        with locks.lock(key) as lease:
            guard.advance(lease)
            guard.put(key, "1", lease)
            stale = lease.fence
        with locks.lock(key) as newer:
            guard.advance(newer)
            with pytest.raises(StaleToken):
                guard.put(key, "stale", stale)
    assert value_of(key) == "1"


def test_an_answer_that_is_none_is_never_taken_for_an_empty_one() -> None:
    """``call`` may leave it to its caller to look at the status."""
    said = {"error": "etcdserver: permission denied", "code": 7}
    guard = FencedEtcd(lambda path, body: said, "x")
    for ask in (guard.newest, lambda: guard.put("k", "v", NEW), lambda: guard.advance(NEW)):
        with pytest.raises(EngineUnavailable, match=r"permission denied.*raise_for_status"):
            ask()
    no_function: Any = None
    with pytest.raises(InvalidArgument, match="asks etcd's gateway"):
        FencedEtcd(no_function, "x")
