"""Guards in ZooKeeper: the caller's transaction that checks the ticket, and the fence node of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError

import holdfast
from engines.zookeeper.admin import Admin
from holdfast import Client, Conflict, HoldfastError, InvalidArgument, Lease, LockLost, StaleToken
from holdfast.fencing import FencedZooKeeper, zookeeper_check
from holdfast.model import Fence
from support import wait_until
from support.servers import shared_zookeeper

pytestmark = [pytest.mark.realtime, pytest.mark.engine("zookeeper")]

OLD, NEW = Fence("s", 41, "old"), Fence("s", 42, "new")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of the caller's own."""
    with closing(Admin(shared_zookeeper())) as admin:
        yield admin.client


@pytest.fixture
def path(client: Any) -> str:
    """A node that no other test uses."""
    path = f"/total-{secrets.token_hex(6)}"
    client.create(path, b"0")
    return path


@pytest.fixture
def locks(path: str) -> Iterator[Client]:
    url = f"zookeeper://{shared_zookeeper().address}?session_timeout=60"
    with holdfast.connect(url, namespace=path[1:]) as client:
        yield client


def taken(lock: holdfast.Lock) -> Lease:
    lease = lock.acquire(timeout=20)
    assert lease is not None
    return lease


# --- a transaction of the caller's own ----------------------------------------------------------


class Holder:
    """One who writes under the check of its lease."""

    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path

    def prepare(self, lease: Lease, value: bytes) -> Callable[[], list[Any]]:
        """A transaction that is made while the lease is held; the check is its second operation."""
        transaction = self._client.transaction()
        transaction.check(self._path, -1)
        check = zookeeper_check(transaction, lease)
        transaction.set_data(self._path, value)

        def commit() -> list[Any]:
            results: list[Any] = transaction.commit()
            check.verify(results)
            return results

        return commit

    def write(self, lease: Lease, value: bytes) -> None:
        self.prepare(lease, value)()

    def value(self) -> bytes:
        return bytes(self._client.get(self._path)[0])


@pytest.fixture
def holder(client: Any, path: str) -> Holder:
    return Holder(client, path)


def test_a_transaction_that_checks_the_ticket_does_nothing_once_the_grant_is_over(
    locks: Client, holder: Holder
) -> None:
    lock = locks.lock("invoices")
    lease = taken(lock)
    token = lease.token
    holder.write(lease, b"first")
    stale, later = holder.prepare(lease, b"stale"), holder.prepare(lease, b"stale")
    lock.release()
    with pytest.raises(StaleToken, match=f"token {token} of 'invoices' is over") as refusal:
        stale()
    assert (refusal.value.resource, refusal.value.token) == ("invoices", token)
    with lock as newer:
        holder.write(newer, b"second")
        with pytest.raises(StaleToken):
            later()
    assert holder.value() == b"second"


def test_a_lock_that_was_broken(locks: Client, holder: Holder) -> None:
    lease = taken(locks.lock("invoices"))
    stale = holder.prepare(lease, b"stale")
    locks.break_lock("invoices", reason="a test")
    with pytest.raises(StaleToken):
        stale()
    wait_until(lambda: lease.lost)
    with pytest.raises(LockLost):
        holder.prepare(lease, b"stale")


def test_other_errors_of_a_transaction_are_the_callers(locks: Client, client: Any, path: str) -> None:
    with locks.lock("invoices") as lease:
        transaction = client.transaction()
        transaction.set_data(path, b"1", version=99)
        check = zookeeper_check(transaction, lease)
        results = transaction.commit()
        check.verify(results)
        assert isinstance(results[0], BadVersionError)


def test_permits_writers_and_adopted_leases(locks: Client, holder: Holder, path: str) -> None:
    with locks.semaphore("permits", 2) as one, locks.semaphore("permits", 2) as two:
        holder.write(one, b"1")
        holder.write(two, b"2")
    with locks.rwlock("shared").write() as writing:
        holder.write(writing, b"3")
    exported = taken(locks.lock("handed"))
    before = holder.prepare(exported, b"4")
    url = f"zookeeper://{shared_zookeeper().address}?session_timeout=60"
    with holdfast.connect(url, namespace=path[1:]) as other:
        adopted = other.adopt(exported.export())
        holder.write(adopted, b"5")
        with pytest.raises(StaleToken):
            before()
        adopted.release()
    assert holder.value() == b"5"


def test_a_client_below_a_folder(locks: Client, client: Any) -> None:
    with locks.lock("invoices") as lease:
        for chroot, match in (("/holdfast", ""), ("/elsewhere", "sees only what is below /elsewhere")):
            client.ensure_path(chroot)
            below = KazooClient(f"{shared_zookeeper().address}{chroot}")
            below.start(timeout=20)
            try:
                transaction = below.transaction()
                if match:
                    with pytest.raises(InvalidArgument, match=match):
                        zookeeper_check(transaction, lease)
                else:
                    check = zookeeper_check(transaction, lease)
                    check.verify(transaction.commit())
            finally:
                below.stop()
                below.close()


def test_what_has_no_ticket_in_zookeeper(locks: Client, client: Any) -> None:
    transaction = client.transaction()
    with locks.rwlock("shared").read() as reading, pytest.raises(InvalidArgument, match="may not write"):
        zookeeper_check(transaction, reading)
    with pytest.raises(InvalidArgument, match="is no lease"):
        zookeeper_check(transaction, NEW)
    with (
        holdfast.connect(f"memory://{secrets.token_hex(6)}") as others,
        others.lock("x") as lease,
        pytest.raises(InvalidArgument, match="Take the lock with zookeeper://"),
    ):
        zookeeper_check(transaction, lease)
    assert transaction.operations == []


# --- the fence node -----------------------------------------------------------------------------


@pytest.fixture
def guard(client: Any, path: str) -> FencedZooKeeper:
    return FencedZooKeeper(client, f"resource of {path}")


def value_of(client: Any, path: str) -> bytes:
    return bytes(client.get(path)[0])


def test_writes_of_the_newest_holder(guard: FencedZooKeeper, client: Any, path: str) -> None:
    assert guard.newest() is None
    guard.advance(OLD)
    assert guard.set(path, b"1", OLD).version == 1
    assert value_of(client, path) == b"1"
    results = guard.commit(lambda t: (t.create(f"{path}/a", b"x"), t.set_data(path, b"2")), OLD)
    assert results[0] == f"{path}/a"
    guard.delete(f"{path}/a", OLD)
    assert not client.exists(f"{path}/a")
    assert guard.newest() == OLD


Write = Callable[[FencedZooKeeper, str], object]

STALE: list[Write] = [
    lambda guard, path: guard.set(path, b"stale", OLD),
    lambda guard, path: guard.delete(path, OLD),
    lambda guard, path: guard.commit(lambda t: t.set_data(path, b"stale"), OLD),
    lambda guard, path: guard.advance(OLD),
]


@pytest.mark.parametrize("write", STALE)
def test_a_stale_holder_writes_nothing(guard: FencedZooKeeper, client: Any, path: str, write: Write) -> None:
    guard.set(path, b"right", NEW)
    with pytest.raises(StaleToken, match="token 41 is too old") as refusal:
        write(guard, path)
    assert (refusal.value.token, refusal.value.newest) == (41, 42)
    assert value_of(client, path) == b"right"


def test_an_error_of_the_callers_own_operation_is_raised(guard: FencedZooKeeper, path: str) -> None:
    with pytest.raises(NoNodeError):
        guard.set(f"{path}/missing", b"1", NEW)
    with pytest.raises(BadVersionError):
        guard.commit(lambda t: t.set_data(path, b"1", version=99), NEW)
    assert guard.newest() is None, "in one step with the fence"


def test_a_resource_is_moved_on_purpose(guard: FencedZooKeeper, path: str) -> None:
    guard.set(path, b"1", NEW)
    guard.move("s")
    assert guard.newest() == NEW
    guard.move("t")
    with pytest.raises(StaleToken, match="two sources"):
        guard.set(path, b"stale", NEW)
    guard.set(path, b"2", Fence("t", 1, "first"))


class Meddling:
    """A client between whose check and commit others come, so often."""

    def __init__(self, client: Any, times: int, meddle: Callable[[], object]) -> None:
        self._client = client
        self._times = times
        self._meddle = meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def transaction(self) -> Any:
        if self._times:
            self._times -= 1
            self._meddle()
        return self._client.transaction()


def test_a_newer_holder_that_comes_between_check_and_commit(client: Any, path: str) -> None:
    newer = FencedZooKeeper(client, path)
    guard = FencedZooKeeper(Meddling(client, 1, lambda: newer.set(path, b"right", NEW)), path)
    with pytest.raises(StaleToken):
        guard.set(path, b"stale", OLD)
    assert value_of(client, path) == b"right"


def test_an_older_holder_that_comes_between_is_passed_by(client: Any, path: str) -> None:
    older = FencedZooKeeper(client, path)
    guard = FencedZooKeeper(Meddling(client, 1, lambda: older.set(path, b"old", OLD)), path)
    guard.set(path, b"new", NEW)
    assert value_of(client, path) == b"new"


def test_writes_of_one_grant_do_not_get_in_each_others_way(client: Any, path: str) -> None:
    beside = FencedZooKeeper(client, path)
    beside.advance(NEW)
    client.create(f"{path}/beside")
    guard = FencedZooKeeper(Meddling(client, 5, lambda: beside.set(f"{path}/beside", b"x", NEW)), path)
    guard.set(path, b"new", NEW)
    assert value_of(client, path) == b"new"


def test_a_fence_that_changes_all_the_time(client: Any, path: str) -> None:
    tokens = iter(range(1, 100))
    older = FencedZooKeeper(client, path)
    guard = FencedZooKeeper(Meddling(client, 99, lambda: older.advance(next(tokens))), path)
    with pytest.raises(Conflict, match="try again"):
        guard.set(path, b"new", 1000)
    assert value_of(client, path) == b"0"


def test_what_is_no_fence_is_left_alone(guard: FencedZooKeeper, client: Any, path: str) -> None:
    guard.advance(NEW)
    fence = f"/holdfast-fences/resource%20of%20%2F{path[1:]}"
    assert value_of(client, fence) == b"1:42:new:s:"
    client.set(fence, b"hello")
    with pytest.raises(HoldfastError, match="no mark of a guard"):
        guard.set(path, b"1", NEW)


@pytest.mark.parametrize("resource", [".", "..", "a/b", "zookeeper", "ü %"])
def test_a_resource_of_any_name(client: Any, path: str, resource: str) -> None:
    folder = f"/fences-{path[1:]}"
    FencedZooKeeper(client, resource, folder).advance(NEW)
    assert FencedZooKeeper(client, resource, folder).newest() == NEW
    assert len(client.get_children(folder)) == 1


class Untouched:
    """A client that must not be used."""

    def transaction(self) -> Any:
        raise AssertionError("a request was sent")


def test_bad_input_is_refused_before_any_request() -> None:
    untouched = Untouched()
    with pytest.raises(InvalidArgument, match="no client of kazoo"):
        FencedZooKeeper(None, "x")
    with pytest.raises(InvalidArgument, match="resource is empty"):
        FencedZooKeeper(untouched, "")
    guard = FencedZooKeeper(untouched, "invoices")
    with pytest.raises(InvalidArgument, match="no lease or token"):
        guard.set("/k", b"v", cast("Any", None))
    with holdfast.connect(f"memory://{secrets.token_hex(6)}") as locks:
        with locks.rwlock("x").read() as reading, pytest.raises(InvalidArgument, match="may not write"):
            guard.set("/k", b"v", reading)
        lost = locks.lock("z", ttl=0.05, renew=False).acquire()
        assert lost is not None
        assert lost.wait_lost(timeout=20)
        with pytest.raises(LockLost):
            guard.set("/k", b"v", lost)
