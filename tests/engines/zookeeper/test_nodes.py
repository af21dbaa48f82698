"""The nodes that stay and those that are deleted: names, kinds, limits, values, notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from engines.zookeeper.admin import Admin
from engines.zookeeper.conftest import Connect, Hold
from engines.zookeeper.spy import Spy
from holdfast import EngineUnavailable, InvalidArgument, Lease, LockLost
from holdfast.engines.zookeeper import records
from holdfast.engines.zookeeper.codec import CreateContainer
from holdfast.lab.servers import ZooKeeper
from support import wait_until


class Tidy(ZooKeeper):
    """Takes empty containers away ten times a second, not once a minute."""

    def command_line(self) -> list[str]:
        java, *rest = super().command_line()
        often = "-Dznode.container.checkIntervalMs=100", "-Dznode.container.maxPerMinute=100000"
        return [java, *often, *rest]


@pytest.fixture(scope="module")
def tidy() -> Iterator[ZooKeeper]:
    with Tidy() as server:
        yield server


# --- what goes by itself --------------------------------------------------------------------------


def test_everything_goes_when_nobody_uses_it(tidy: ZooKeeper, connect: Connect, namespace: str) -> None:
    client = connect(f"zookeeper://{tidy.address}/deep/er")
    for name in ("x", "y"):
        with client.lock(name), client.semaphore(name + "s", 2):
            pass
    client.close()
    admin = Admin(tidy)
    try:
        wait_until(lambda: list(admin.nodes("/deep")) == ["/deep/er"], timeout=20)
    finally:
        admin.close()


def test_names_may_go_at_any_moment(tidy: ZooKeeper, connect: Connect, hold: Hold) -> None:
    """Right before a ticket is put, or between making a name and making it something."""
    clients = [connect(f"zookeeper://{tidy.address}") for _ in range(2)]
    tokens: list[int] = []
    inside = 0
    ends_at = time.monotonic() + 1.5

    def work(number: int) -> None:
        nonlocal inside
        round_ = 0
        while time.monotonic() < ends_at or len(tokens) <= 5:
            round_ += 1
            with clients[number % 2].lock("x", timeout=20) as lease:
                inside += 1
                assert inside == 1
                tokens.append(lease.token)
                inside -= 1
            began = time.monotonic()
            wait_until(lambda began=began: time.monotonic() - began > 0.07 * (number + 1))  # type: ignore[misc]  # bound here

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(tokens) > 5
    assert tokens == sorted(set(tokens))


def test_cached_tickets_are_forgotten_with_the_numbers(
    tidy: ZooKeeper, connect: Connect, hold: Hold, namespace: str
) -> None:
    """The numbers of a semaphore's tickets begin anew with its node; its limit stays."""
    client = connect(f"zookeeper://{tidy.address}")
    semaphore = client.semaphore("x", 3)
    leases = [hold(semaphore) for _ in range(3)]
    semaphore.resize(2)
    for lease in leases:
        lease.release()
    admin = Admin(tidy)
    try:
        path = f"/holdfast/{namespace}/n/x"
        wait_until(lambda: admin.client.get_children(path) == ["limit"], timeout=20)
    finally:
        admin.close()
    hold(semaphore)
    hold(semaphore)
    assert semaphore.acquire(blocking=False) is None, "two is the limit still"


# --- what a name is -------------------------------------------------------------------------------


def test_of_two_clients_that_make_a_name_different_kinds_one_is_refused(connect: Connect) -> None:
    ann, bob = connect(), connect()
    for number in range(12):
        name = f"x{number}"
        together = threading.Barrier(2)
        refused: list[str] = []
        taken: list[Lease] = []

        def take(kind: str, name: str = name, together: threading.Barrier = together) -> None:
            lock = ann.lock(name) if kind == "lock" else bob.rwlock(name).write()
            together.wait(20)
            try:
                lease = lock.acquire()
            except InvalidArgument:
                refused.append(kind)  # noqa: B023 - joined before the next round
            else:
                assert lease is not None
                taken.append(lease)  # noqa: B023 - as above

        threads = [threading.Thread(target=take, args=(kind,)) for kind in ("lock", "rwlock")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(refused) == 1
        (lease,) = taken
        assert ann.inspect(name).kind == lease.kind != refused[0]
        lease.release()


def test_servers_without_containers_are_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a server answers that it does not know the request, and hangs up."""
    monkeypatch.setattr(CreateContainer, "type", 99)  # which no server knows
    with pytest.raises(EngineUnavailable, match=r"3\.5\.1"):
        connect().lock("x").acquire()


def test_a_limit_that_is_as_declared_is_nowhere_kept(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    semaphore = connect().semaphore("x", 2)
    path = f"/holdfast/{namespace}/n/x"
    semaphore.resize(2)
    assert admin.client.get_children(path) == ["semaphore-2"]
    semaphore.resize(5)
    assert sorted(admin.client.get_children(path)) == ["limit", "semaphore-2"]
    semaphore.resize(2)
    assert admin.client.get_children(path) == ["semaphore-2"]
    for _ in range(2):
        hold(semaphore)
    assert semaphore.acquire(blocking=False) is None


def test_very_many_names(connect: Connect, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH_MAX", 7)
    client = connect()
    names = sorted(f"x{number}" for number in range(30))
    leases = [hold(client.lock(name)) for name in names]
    infos = connect().list()
    assert [info.name for info in infos] == names
    assert [info.holders[0].token for info in infos] == [lease.token for lease in leases]


# --- values ---------------------------------------------------------------------------------------


def test_an_expired_value_is_deleted_by_the_next_reader(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    client = connect()
    lease = hold(client.lock("x"))
    path = f"/holdfast/{namespace}/n/x/value"
    lease.set_value(b"news", retention=60)
    assert client.inspect("x").value == b"news"
    lease.set_value(b"news", retention=0.2)
    assert admin.client.exists(path), "nobody has looked"
    wait_until(lambda: client.inspect("x").value is None)
    assert not admin.client.exists(path)


def test_values_that_nobody_looks_at_are_swept(
    connect: Connect, hold: Hold, admin: Admin, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SWEEP_AFTER", 5)
    client = connect()
    for number in range(4):
        hold(client.lock(f"x{number}")).set_value(b"", retention=0.01)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 0.05)
    hold(client.lock("y")).set_value(b"stays", retention=60)
    values = [path for path in admin.nodes(f"/holdfast/{namespace}/n") if path.endswith("/value")]
    assert values == [f"/holdfast/{namespace}/n/y/value"]


# --- notices ------------------------------------------------------------------------------------


def test_a_session_remembers_the_last_letters_only(
    connect: Connect, hold: Hold, admin: Admin, namespace: str
) -> None:
    client, breaker = connect(session_timeout=60), connect()
    leases = []
    for number in range(60):
        leases.append(hold(client.lock("x")))
        assert breaker.break_lock("x", reason=f"the {number}th\ntime") is not None
    for number, lease in enumerate(leases):
        assert lease.wait_lost(timeout=20)
        with pytest.raises(LockLost) as loss:
            lease.check()
        assert loss.value.reason == "broken", f"the {number}th"
    (session,) = [s for s in admin.sessions(namespace) if admin.client.get(f"/holdfast/{namespace}/s/{s}")[0]]
    data, _ = admin.client.get(f"/holdfast/{namespace}/s/{session}")
    assert len(data.splitlines()) == 50


def test_break_and_release_at_once(connect: Connect, hold: Hold, spy: Spy) -> None:
    """Whichever request comes first: the lock is free, and no client thinks otherwise."""
    client, breaker = connect(), connect()
    for _ in range(10):
        lease = hold(client.lock("x"))
        broken: list[int | None] = []
        thread = threading.Thread(target=lambda: broken.append(breaker.break_lock("x", reason="test")))  # noqa: B023 - joined before the next round
        thread.start()
        try:
            lease.release()
            lost = False
        except LockLost:
            lost = True
        thread.join(20)
        assert lost == (broken[0] is not None)
        assert not client.inspect("x").locked
