"""What things cost, in calls: fewer calls win."""

from __future__ import annotations

import threading

from engines.etcd.conftest import Connect, Hold
from engines.etcd.spy import Spy
from holdfast import Client
from holdfast.engines.tickets import TicketsThreads
from support import wait_until


def until_waiting(client: Client, count: int) -> None:
    wait_until(lambda: len(client.inspect("x").waiters) == count)


def test_an_uncontended_acquire_is_one_transaction_and_a_release_one_delete(
    connect: Connect, spy: Spy
) -> None:
    client = connect()
    locks = [
        client.lock("x"),
        client.rwlock("y").write(),
        client.rwlock("z").read(),
        client.semaphore("s", 2),
    ]
    for lock in locks:
        with lock:
            pass  # the first use opens the session and says what the name is
    spy.until_settled(listening=1)
    for lock in locks:
        spy.sent()
        lease = lock.acquire()
        assert spy.methods() == ["Txn"]
        assert lease is not None
        lease.release()
        assert spy.methods() == ["DeleteRange"]


def test_several_free_locks_are_one_transaction(connect: Connect, hold: Hold, spy: Spy) -> None:
    """Whether their names are known or new; and where one of them is held, none stays acquired."""
    client, other = connect(), connect()
    known, new = [f"x{number}" for number in range(25)], [f"y{number}" for number in range(3)]
    with client.all(*known):
        pass
    spy.until_settled(listening=1)
    for names, sent in ((known, 1), (new, 2), ([*known, *new], 2)):
        spy.sent()
        leases = client.all(*names).acquire()
        assert leases is not None
        assert spy.methods() == ["Txn"] * sent, names
        assert {client.inspect(name).holders[0].token for name in names} == {
            lease.token for lease in leases.values()
        }
        leases["x1" if names is known else "y1"].check()
        assert client.all(*names).acquire(blocking=False) is None
        for lease in leases.values():
            lease.release()
    hold(other.lock("x1"))
    assert client.all("x0", "x1", "x2").acquire(blocking=False) is None
    assert not client.inspect("x0").locked
    assert not client._driver.client_state.leases
    attempts = client._driver.adapter._client.attempts  # type: ignore[attr-defined]  # the tickets family's
    wait_until(lambda: not attempts)


def test_a_refused_try_is_one_transaction(connect: Connect, hold: Hold, spy: Spy) -> None:
    """Nothing is put for it, and so nothing has to be taken back."""
    holder, other = connect(), connect()
    hold(holder.lock("x"))
    hold(holder.rwlock("y").write())
    with other.lock("z"):
        spy.until_settled(listening=2)
    for lock in (other.lock("x"), other.rwlock("y").read(), other.rwlock("y").write()):
        lock.acquire(blocking=False)
        spy.sent()
        assert lock.acquire(blocking=False) is None
        assert spy.methods() == ["Txn"]


def test_a_waiter_looks_once_when_it_is_woken(connect: Connect, hold: Hold, spy: Spy) -> None:
    """One notification, one look; waiters behind it are not woken."""
    client, first, second = connect(), connect(), connect()
    lease = hold(client.lock("x"))
    granted: list[int] = []
    go_on = threading.Event()

    def wait(locks: Client, number: int) -> None:
        with locks.lock("x"):
            granted.append(number)
            go_on.wait(20)

    threads = [threading.Thread(target=wait, args=(each, n)) for n, each in enumerate((first, second))]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        until_waiting(client, number)
    spy.until_settled(listening=3, waiting=2)
    lease.release()
    wait_until(lambda: granted == [0])
    assert spy.methods() == ["DeleteRange", "Txn"], "the release, and one look"
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert granted == [0, 1]


def test_many_leases_cost_one_sign_of_life(connect: Connect, hold: Hold, spy: Spy) -> None:
    """However many are held: one stream, one read after it."""
    client = connect()
    leases = [hold(client.lock(f"x{number}", ttl=10)) for number in range(250)]
    spy.until_settled(listening=1)
    sent: list[str] = []

    def twice() -> bool:
        sent.extend(spy.methods())
        return sent.count("KeepAlive") >= 2

    wait_until(twice, timeout=30)
    assert set(sent) == {"KeepAlive", "Txn"}
    assert len(sent) <= 5, "a sign of life, a look at some of them, and so on"
    for lease in leases:
        lease.check()


def test_waiting_costs_next_to_nothing(connect: Connect, hold: Hold, spy: Spy) -> None:
    """A session that is young needs no sign of life, though the keeper asks every second."""
    client, other = connect(), connect()
    hold(client.lock("x"))
    hold(other.lock("y"))
    spy.until_settled(listening=2)
    waiting = other.lock("x", deadlock="ignore")  # who waits for what it holds is not asked either
    assert waiting.acquire(timeout=3.2) is None
    enters, leaves = ["Txn", "Txn", "Txn"], ["Txn", "DeleteRange", "Txn"]
    assert spy.methods() == enters + leaves, "when its time is over it looks, leaves, and looks who has it"
    assert len(spy.looks) == 2, "when it has armed, and when its time is over"


def test_a_waiter_in_a_long_queue_does_not_have_it_sorted_again_and_again(
    connect: Connect, hold: Hold, spy: Spy
) -> None:
    """As long as the one before it is there, a look asks for two keys. A thousand who each had etcd sort a
    thousand, every few seconds, kept it so busy that it did not answer in time."""
    holder, client = connect(), connect()
    lease = hold(holder.lock("x"))

    def wait() -> None:
        with client.lock("x"):
            pass

    waiting = threading.Thread(target=wait)
    waiting.start()
    spy.until_settled(listening=2, waiting=1)
    adapter = client._driver.adapter
    assert isinstance(adapter, TicketsThreads)
    (nonce,) = adapter._client.attempts
    client._driver.post(nonce)
    spy.until_settled(listening=2, waiting=2)
    until_waiting(holder, 1)
    spy.sent()
    assert len(spy.looks) == 2, "when it has armed, and when it is woken"
    for look in spy.looks:
        assert not any(act.request_range.sort_order for act in look.success)
        assert not any(act.request_range.range_end for act in look.success)
    lease.release()
    waiting.join(20)
