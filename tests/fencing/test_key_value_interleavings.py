"""Two holders' read-modify-writes in every order, on real Redis, etcd and ZooKeeper: none loses an update.

As in ``test_interleavings.py``, the counter being in the store too. With a guard on a token, one that is
told of the new holder only by its first write lets 22 of 70 orders lose an update; with ``advance`` first
none of 252 does. A transaction on the holder's ticket needs no ``advance``: the old ticket is gone before
the new holder is granted. And where a guarded write is two requests (read the fence, commit), they may come
apart in any order as well.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import combinations
from typing import Any, Protocol

import pytest
import redis

import holdfast
from engines.zookeeper.admin import Admin
from fencing.test_interleavings import NEW, OLD, READ_MODIFY_WRITE, schedules
from fencing.test_plans import Versioned
from holdfast import Lease, StaleToken, fencing
from holdfast.fencing.plans import conditional
from holdfast.fencing.rule import Mark
from support.servers import shared_etcd, shared_redis, shared_zookeeper

TWO = READ_MODIFY_WRITE * 2
TABLE = [(TWO, 22, 70), (("advance", *TWO), 0, 252)]


class Counter(Protocol):
    """A counter in a store, guarded by the tokens of its writers."""

    def read(self) -> int: ...
    def advance(self, holder: int) -> None: ...
    def write(self, holder: int, value: int) -> None: ...


def loses_an_update(schedule: list[int], script: tuple[str, ...], counter: Counter) -> bool:
    """Whether a write that was accepted is missing from the counter at the end."""
    remaining = {holder: iter(script) for holder in (OLD, NEW)}
    seen: dict[int, int] = {}
    refused: set[int] = set()
    accepted = 0
    for holder in schedule:
        step = next(remaining[holder])
        if holder in refused:
            continue
        try:
            if step == "read":
                seen[holder] = counter.read()
            elif step == "advance":
                counter.advance(holder)
            else:
                counter.write(holder, seen[holder] + 1)
                accepted += 1
        except StaleToken:
            refused.add(holder)
    return counter.read() != accepted


def count_lost(script: tuple[str, ...], counters: Iterator[Counter]) -> tuple[int, int]:
    outcomes = [loses_an_update(schedule, script, next(counters)) for schedule in schedules(len(script))]
    return sum(outcomes), len(outcomes)


# --- guards on a token --------------------------------------------------------------------------


class RedisCounter:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._name = f"counter-{secrets.token_hex(6)}"
        self._guard = fencing.FencedRedis(client, self._name)
        self.advance = self._guard.advance

    def read(self) -> int:
        found: Any = self._client.get(self._name)
        return int(found or 0)

    def write(self, holder: int, value: int) -> None:
        self._guard.set(self._name, value, holder)


class RedisScriptCounter(RedisCounter):
    def write(self, holder: int, value: int) -> None:
        self._guard.eval("redis.call('SET', KEYS[1], ARGV[1])", [self._name], [value], holder)


class EtcdCounter:
    def __init__(self) -> None:
        self._name = f"counter-{secrets.token_hex(6)}"
        self._guard = fencing.FencedEtcd(shared_etcd().call, self._name)
        self.advance = self._guard.advance

    def read(self) -> int:
        return read_etcd(self._name)

    def write(self, holder: int, value: int) -> None:
        self._guard.put(self._name, str(value), holder)


def read_etcd(name: str) -> int:
    kvs = shared_etcd().call("/v3/kv/range", {"key": b64(name)}).get("kvs", [])
    return int(base64.b64decode(kvs[0]["value"])) if kvs else 0


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class ZooKeeperCounter:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._path = f"/counter-{secrets.token_hex(6)}"
        client.create(self._path, b"0")
        self._guard = fencing.FencedZooKeeper(client, self._path)
        self.advance = self._guard.advance

    def read(self) -> int:
        return int(self._client.get(self._path)[0])

    def write(self, holder: int, value: int) -> None:
        self._guard.set(self._path, str(value).encode(), holder)


@pytest.fixture
def kazoo() -> Iterator[Any]:
    with closing(Admin(shared_zookeeper())) as admin:
        yield admin.client


@pytest.mark.realtime
@pytest.mark.engine("redis")
@pytest.mark.parametrize(("script", "lost", "total"), TABLE)
@pytest.mark.parametrize("kind", [RedisCounter, RedisScriptCounter])
def test_redis(kind: type[RedisCounter], script: tuple[str, ...], lost: int, total: int) -> None:
    with redis.Redis.from_url(shared_redis().url) as client:
        assert count_lost(script, (kind(client) for _ in iter(int, 1))) == (lost, total)


@pytest.mark.realtime
@pytest.mark.engine("etcd")
@pytest.mark.parametrize(("script", "lost", "total"), TABLE)
def test_etcd(script: tuple[str, ...], lost: int, total: int) -> None:
    assert count_lost(script, (EtcdCounter() for _ in iter(int, 1))) == (lost, total)


@pytest.mark.realtime
@pytest.mark.engine("zookeeper")
@pytest.mark.parametrize(("script", "lost", "total"), TABLE)
def test_zookeeper(kazoo: Any, script: tuple[str, ...], lost: int, total: int) -> None:
    assert count_lost(script, (ZooKeeperCounter(kazoo) for _ in iter(int, 1))) == (lost, total)


# --- transactions on the ticket -----------------------------------------------------------------


class TicketCounter:
    """The old holder's lock is broken and granted to the new one, who begins with the first of its steps."""

    def __init__(self, locks: holdfast.Client, others: holdfast.Client) -> None:
        self._name = f"counter-{secrets.token_hex(6)}"
        self._others = others
        self._locks = locks
        self._leases = {OLD: taken(locks, self._name)}
        self._writes = {OLD: self.writing(self._leases[OLD])}

    def hand_over(self) -> None:
        self._locks.break_lock(self._name, reason="the old holder stands still")
        self._leases[NEW] = taken(self._others, self._name)
        self._writes[NEW] = self.writing(self._leases[NEW])

    def writing(self, lease: Lease) -> Callable[[int], None]:
        raise NotImplementedError

    def write(self, holder: int, value: int) -> None:
        self._writes[holder](value)

    def advance(self, holder: int) -> None:
        raise NotImplementedError

    def read(self) -> int:
        raise NotImplementedError


def taken(locks: holdfast.Client, name: str) -> Lease:
    lease = locks.lock(name).acquire(timeout=20)
    assert lease is not None
    return lease


class EtcdTicketCounter(TicketCounter):
    def read(self) -> int:
        return read_etcd(self._name)

    def writing(self, lease: Lease) -> Callable[[int], None]:
        compare = [each.json() for each in fencing.etcd_compares(lease)]

        def write(value: int) -> None:
            put = {"request_put": {"key": b64(self._name), "value": b64(str(value))}}
            answer = shared_etcd().call("/v3/kv/txn", {"compare": compare, "success": [put]})
            if not answer.get("succeeded"):
                raise StaleToken

        return write


class ZooKeeperTicketCounter(TicketCounter):
    client: Any = None

    def read(self) -> int:
        return int(self.client.get(f"/{self._name}")[0]) if self.client.exists(f"/{self._name}") else 0

    def writing(self, lease: Lease) -> Callable[[int], None]:
        self.client.ensure_path(f"/{self._name}")
        if self.client.get(f"/{self._name}")[0] == b"":
            self.client.set(f"/{self._name}", b"0")
        # Made while the lease is held; a holder that stands still sends it later.
        made = [self.client.transaction() for _ in READ_MODIFY_WRITE]
        checks = [fencing.zookeeper_check(each, lease) for each in made]

        def write(value: int) -> None:
            transaction, check = made.pop(), checks.pop()
            transaction.set_data(f"/{self._name}", str(value).encode())
            check.verify(transaction.commit())

        return write


def loses_with_tickets(schedule: list[int], counter: TicketCounter) -> bool:
    """The lock changes hands right before the new holder's first step."""
    remaining = {holder: iter(TWO) for holder in (OLD, NEW)}
    seen: dict[int, int] = {}
    accepted, handed_over = 0, False
    for holder in schedule:
        if holder == NEW and not handed_over:
            counter.hand_over()
            handed_over = True
        if next(remaining[holder]) == "read":
            seen[holder] = counter.read()
            continue
        try:
            counter.write(holder, seen[holder] + 1)
            accepted += 1
        except StaleToken:
            assert holder == OLD
    return counter.read() != accepted


@pytest.mark.realtime
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("etcd", marks=pytest.mark.engine("etcd")),
        pytest.param("zookeeper", marks=pytest.mark.engine("zookeeper")),
    ],
)
def test_tickets_need_no_advance(engine: str) -> None:
    with ExitStack() as stack:
        kind: type[TicketCounter] = EtcdTicketCounter
        server: Any = shared_etcd() if engine == "etcd" else shared_zookeeper()
        if engine == "zookeeper":
            kind = ZooKeeperTicketCounter
            ZooKeeperTicketCounter.client = stack.enter_context(closing(Admin(server))).client
        namespace = f"test-{secrets.token_hex(6)}"
        locks, others = (
            stack.enter_context(holdfast.connect(f"{engine}://{server.address}", namespace=namespace))
            for _ in range(2)
        )
        counters = [(schedule, kind(locks, others)) for schedule in schedules(len(TWO))]
        outcomes = [loses_with_tickets(schedule, counter) for schedule, counter in counters]
    assert (sum(outcomes), len(outcomes)) == (0, 70)


# --- check and commit apart ---------------------------------------------------------------------


class Holder:
    """A conditional write in single requests: advance (two), read the data, write (two)."""

    def __init__(self, store: VersionedCounter, token: int) -> None:
        self._store = store
        self._mark = Mark(token, "s", f"nonce-{token}")
        self._steps = self._run()
        self.refused = self.done = False

    def step(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self.done = True
        except StaleToken:
            self.refused = self.done = True

    def _run(self) -> Iterator[None]:
        yield from self._commit(lambda: None)
        seen = self._store.counter
        yield
        yield from self._commit(lambda: self._store.add(seen))

    def _commit(self, write: Callable[[], None]) -> Iterator[None]:
        plan = conditional("r", self._mark)
        try:
            request = next(plan)
            while True:
                answer = self._store.carry_out(request)
                if answer is True:
                    write()
                yield
                request = plan.send(answer)
        except StopIteration:
            return


class VersionedCounter(Versioned):
    def __init__(self) -> None:
        super().__init__()
        self.counter = self.accepted = 0

    def add(self, seen: int) -> None:
        self.counter, self.accepted = seen + 1, self.accepted + 1


def test_check_and_commit_in_every_order() -> None:
    """Each request of the conditional form by itself; what is left over of a holder runs at the end."""
    steps = 8
    for places in combinations(range(2 * steps), steps):
        store = VersionedCounter()
        holders = {OLD: Holder(store, OLD), NEW: Holder(store, NEW)}
        for place in range(2 * steps):
            holder = holders[OLD if place in places else NEW]
            if not holder.done:
                holder.step()
        for holder in holders.values():
            while not holder.done:
                holder.step()
        assert store.counter == store.accepted
        assert not holders[NEW].refused
