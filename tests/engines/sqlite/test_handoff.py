"""Waiters are woken across processes, in order, whichever of them dies. A message is a hint, or a grant."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
import holdfast.aio
from engines.sqlite.stores import HOLDER, PATIENT, Clock, One, query, record_of, update
from holdfast.engines.sqlite import sockets
from holdfast.engines.sqlite import store as stores
from holdfast.engines.sqlite.codec import decode
from holdfast.engines.sqlite.liveness import Status
from holdfast.engines.sqlite.notifications import DESCRIPTORS_MAX
from holdfast.engines.sqlite.records import RecordTable
from holdfast.engines.sqlite.session import LOCAL_CLIENTS, _unregister_local
from holdfast.rules import handoff
from holdfast.rules.requests import Acquire, Break, Done, Gone, Granted, Handoff, Queued, Release, Renew, Wake
from holdfast.runtime.clock import boottime
from support import run_python, stays_true, wait_until

AWAKE = "import holdfast.rules.handoff; holdfast.rules.handoff.CAME_SECONDS = 60.0"


@pytest.fixture
def awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, who waits came just now, and is handed what is given back here."""
    monkeypatch.setattr(handoff, "CAME_SECONDS", 60.0)


def _held_and_wanted(client: Callable[[], One], fair: bool = True) -> tuple[One, Acquire, One, Acquire]:
    """One who holds it and one who waits for it, each with its attempt."""
    holder, waiter = client(), client()
    attempt, _ = holder.hold("x")
    waiting = waiter.attempt(wait=True, fair=fair)
    assert isinstance(waiter.ask("x", waiting), Queued)
    return holder, attempt, waiter, waiting


@pytest.mark.usefixtures("patient")
def test_waiters_of_many_processes_are_served_in_order(url: str) -> None:
    """None of them by looking itself."""
    with holdfast.connect(url) as locks, ExitStack() as children:
        lock = locks.lock("x", ttl=60)
        lock.acquire()
        waiters = []
        for _ in range(5):
            waiters.append(children.enter_context(run_python(PATIENT, url, "x", "60")))
            wait_until(lambda: len(locks.inspect("x").waiters) == len(waiters))
        lock.release()
        tokens = []
        for waiter in waiters:
            tokens.append(int(waiter.expect("held")))
            waiter.send("release")
        assert tokens == sorted(tokens)


async def until_waiting(locks: holdfast.aio.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while not (await locks.inspect("x")).waiters:  # noqa: ASYNC110 - it comes true in the engine
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("patient")
def test_a_release_wakes_a_waiter_in_an_event_loop(url: str) -> None:
    async def wait_for_it() -> None:
        async with holdfast.aio.connect(url) as locks:
            waiting = asyncio.ensure_future(locks.lock("x").acquire())
            await until_waiting(locks)
            holder.send("release")
            lease = await asyncio.wait_for(waiting, 20)
            assert lease is not None
            await lease.release()

    with run_python(HOLDER, url, "x", "60") as holder:
        holder.expect("held")
        asyncio.run(wait_for_it())


@pytest.mark.usefixtures("patient")
def test_the_death_of_a_holder_wakes_a_waiter_in_an_event_loop(url: str) -> None:
    async def wait_for_it() -> None:
        async with holdfast.aio.connect(url) as locks:
            waiting = asyncio.ensure_future(locks.lock("x").acquire())
            await until_waiting(locks)
            holder.kill()
            lease = await asyncio.wait_for(waiting, 20)
            assert lease is not None
            await lease.release()

    with run_python(HOLDER, url, "x", "60") as holder:
        holder.expect("held")
        asyncio.run(wait_for_it())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("where", ["without a descriptor", "with one"])
def test_a_loop_watches_others_either_way(url: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "without a descriptor":
        monkeypatch.delattr("os.pidfd_open")
    test_the_death_of_a_holder_wakes_a_waiter_in_an_event_loop(url)


def test_breaking_a_lock_notifies_its_holder(url: str) -> None:
    with run_python(HOLDER, url, "x", "60") as holder, holdfast.connect(url) as locks:
        holder.expect("held")
        locks.break_lock("x", reason="maintenance")
        holder.send("assert lease.wait_lost(5), 'not told'")
        holder.expect("done")


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("strangers")
def test_only_what_looks_like_a_nonce_of_ours_is_posted(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = client(), client()
    one.hold("x")
    one.store.listen_in_thread()
    monkeypatch.chdir(f"{path}.clients")
    ours = f"{one.id}-1".encode()
    garbage = (b"", b"\0", b"\xff" * 40, b"a" * 5000, b"two words", b"new\nline", "schön".encode(), b"-1")
    others = (f"{other.id}-1".encode(), one.id.encode(), b"x" + ours, b"\n" + ours)
    longer = (ours + b"1" * sockets.MESSAGE_BYTES_MAX, ours + b"\xff")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for message in (*garbage, *others, *longer, ours):
            stranger.sendto(message, f"{one.id}.sock")
        wait_until(lambda: one.posted)
    assert one.posted == [f"{one.id}-1"]
    assert one.handed == {f"{one.id}-1": None}


@pytest.mark.usefixtures("strangers")
def test_a_message_of_another_version_wakes(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = client()
    one.hold("x")
    one.store.listen_in_thread()
    monkeypatch.chdir(f"{path}.clients")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(f"{one.id}-1\n5\nboot\n1\nx{'text' * 500}".encode(), f"{one.id}.sock")
        wait_until(lambda: one.posted)
    assert one.handed == {f"{one.id}-1": None}


@pytest.mark.usefixtures("strangers")
def test_only_what_makes_sense_is_taken_for_a_lock(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = client()
    one.hold("x")
    one.store.listen_in_thread()
    monkeypatch.chdir(f"{path}.clients")
    nonsense = ("", "17", "17\n", "\n0.5", "x\n0.5", "17\nx", "17\n0.5\n", "1.5\n0.5", "17\n0.5\n1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for rest in nonsense:
            stranger.sendto(f"{one.id}-1\n{rest}".encode(), f"{one.id}.sock")
        stranger.sendto(f"{one.id}-2\n17\n0.5".encode(), f"{one.id}.sock")
        wait_until(lambda: f"{one.id}-2" in one.posted)
    assert one.handed.get(f"{one.id}-1") is None
    assert one.handed[f"{one.id}-2"] == Handoff(17, 0.5)


@pytest.mark.usefixtures("strangers", "awake")
def test_a_full_inbox_holds_nobody_up(client: Callable[[], One]) -> None:
    """It is not emptied here: nobody listens."""
    holder, attempt, waiter, _ = _held_and_wanted(client)
    wakeup_socket = holder.store._session.registration
    assert wakeup_socket is not None
    while wakeup_socket.wakeup_socket.send(Wake(waiter.id, "0-1")) is sockets.SendResult.DELIVERED:
        pass
    assert wakeup_socket.wakeup_socket.send(Wake(waiter.id, "0-1")) is sockets.SendResult.FULL
    assert holder.release("x", attempt) == Done()
    assert [h.client for h in record_of(holder, "x").holders] == [waiter.id]


@pytest.mark.usefixtures("strangers", "awake", "clock")
@pytest.mark.parametrize("fair", [True, False], ids=["handed over", "its turn"])
def test_a_live_waiter_that_cannot_be_notified_keeps_its_grant(
    path: Path, client: Callable[[], One], fair: bool
) -> None:
    holder, attempt, waiter, waiting = _held_and_wanted(client, fair)
    (path.parent / "locks.db.clients" / f"{waiter.id}.sock").unlink()
    holder.release("x", attempt)
    record = record_of(holder, "x")
    assert [one.nonce for one in (record.holders if fair else record.queue)] == [waiting.nonce]
    assert isinstance(waiter.ask("x", waiting), Granted)


@pytest.mark.usefixtures("strangers")
def test_the_places_of_a_dead_waiter_are_dropped_and_the_next_is_notified(client: Callable[[], One]) -> None:
    holder, dead, next_one = client(), client(), client()
    attempt, _ = holder.hold("x")
    for _ in range(3):
        assert isinstance(dead.ask("x", dead.attempt(wait=True)), Queued)
    waiting = next_one.attempt(wait=True)
    next_one.ask("x", waiting)
    next_one.store.listen_in_thread()
    _die(dead)
    holder.ask("x", Release(attempt.nonce))
    wait_until(lambda: next_one.posted == [waiting.nonce])
    assert [w.client for w in record_of(holder, "x").queue] == [next_one.id]


@pytest.mark.usefixtures("strangers")
def test_dropping_a_dead_waiter_takes_nothing_from_clients_that_renewed(
    client: Callable[[], One], clock: Clock
) -> None:
    """What the record says of their leases is long past; what their rows say is not."""
    holder, leaving, dead, other = client(), client(), client(), client()

    def permit(one: One, ttl: float, wait: bool = False) -> Acquire:
        return one.attempt(ttl, wait)._replace(kind="semaphore", mode="permit", limit=2)

    kept = permit(holder, 0.5)
    given = permit(leaving, 30.0)
    assert isinstance(holder.ask("s", kept), Granted)
    assert isinstance(leaving.ask("s", given), Granted)
    assert isinstance(dead.ask("s", permit(dead, 30.0, wait=True)), Queued)
    for _ in range(4):
        clock.passes(0.25)
        assert holder.renew_batch(("s", Renew(kept.nonce, 0.5))) == [Done()]
    _die(dead)
    assert leaving.ask("s", Release(given.nonce)) == Done()
    record = record_of(other, "s")
    assert [h.nonce for h in record.holders] == [kept.nonce]
    assert record.queue == ()


def _die(client: One) -> None:
    """What the kernel does when a process is killed: close its files, no more."""
    registration = client.store._session.registration
    assert registration is not None
    registration.close()


@pytest.mark.usefixtures("strangers")
def test_a_client_that_cannot_bind_a_socket_still_gets_its_turn(
    client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets.WakeupSocket, "_address", lambda self, name: None)
    holder, attempt, waiter, waiting = _held_and_wanted(client)
    assert holder.release("x", attempt) == Done()
    assert isinstance(waiter.ask("x", waiting), Granted)


def test_without_sockets_a_waiter_looks_by_itself(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets.WakeupSocket, "_address", lambda self, name: None)
    with run_python(HOLDER, url, "x", "60") as holder, holdfast.connect(url) as locks:
        holder.expect("held")
        holder.send("import threading; threading.Timer(0.3, lease.release).start()")
        with locks.lock("x", timeout=10):
            pass


# --- what a message tells -------------------------------------------------------------------------


def _told(waiter: One, nonce: str) -> Handoff | None:
    """What the last message brought along."""
    waiter.store.listen_in_thread()
    wait_until(lambda: nonce in waiter.posted)
    return waiter.handed[nonce]


@pytest.mark.usefixtures("awake")
@pytest.mark.parametrize("where", ["another process", "this one"])
def test_a_handoff_carries_the_token_and_the_age_of_the_place(
    client: Callable[[], One], where: str, request: pytest.FixtureRequest
) -> None:
    if where == "another process":
        request.getfixturevalue("strangers")
    asked_at = boottime()
    holder, attempt, waiter, waiting = _held_and_wanted(client)
    holder.release("x", attempt)
    (successor,) = record_of(holder, "x").holders
    handed = _told(waiter, waiting.nonce)
    assert handed is not None
    assert handed.token == successor.token
    assert 0 < handed.age <= successor.since - asked_at


@pytest.mark.usefixtures("strangers")
def test_a_wake_up_for_a_turn_carries_no_grant(client: Callable[[], One]) -> None:
    holder, attempt, waiter, waiting = _held_and_wanted(client, fair=False)
    holder.release("x", attempt)
    assert _told(waiter, waiting.nonce) is None


@pytest.mark.usefixtures("strangers", "clock")
def test_whose_turn_it_is_knows_the_record_and_does_not_read_it(
    client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, attempt, waiter, waiting = _held_and_wanted(client, fair=False)
    holder.release("x", attempt)
    with monkeypatch.context() as patch:
        patch.setattr(RecordTable, "load", None)
        assert isinstance(waiter.ask("x", waiting), Granted)
    assert [h.nonce for h in record_of(holder, "x").holders] == [waiting.nonce]


@pytest.mark.usefixtures("strangers", "clock")
def test_what_is_outdated_by_the_time_it_is_used_decides_nothing(client: Callable[[], One]) -> None:
    """Another came in between, out of turn."""
    holder, attempt, waiter, waiting = _held_and_wanted(client, fair=False)
    other = client()
    holder.release("x", attempt)
    _told(waiter, waiting.nonce)
    assert isinstance(other.ask("x", other.attempt(wait=True)), Queued)
    barging, _ = other.hold("x", fair=False)
    assert isinstance(waiter.ask("x", waiting), Queued)
    assert [h.nonce for h in record_of(holder, "x").holders] == [barging.nonce]


@pytest.mark.usefixtures("strangers", "awake")
def test_a_successor_that_asks_writes_nothing_and_counts_from_the_handoff(
    client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, attempt, waiter, waiting = _held_and_wanted(client)
    holder.release("x", attempt)
    (handed,) = record_of(holder, "x").holders
    _told(waiter, waiting.nonce)
    with monkeypatch.context() as patch:
        patch.setattr(RecordTable, "store_text", None)
        reply = waiter.ask("x", waiting)
    assert isinstance(reply, Granted)
    assert reply.token == handed.token
    assert 0 < reply.age <= boottime() - handed.since


@pytest.mark.usefixtures("strangers", "awake")
def test_a_successor_that_is_not_notified_finds_out(client: Callable[[], One]) -> None:
    holder, attempt, waiter, waiting = _held_and_wanted(client)
    holder.release("x", attempt)
    (handed,) = record_of(holder, "x").holders
    reply = waiter.ask("x", waiting)
    assert isinstance(reply, Granted)
    assert reply.token == handed.token
    assert reply.age > 0


@pytest.mark.usefixtures("strangers", "awake")
@pytest.mark.parametrize("order", ["in order", "the other way round"])
def test_what_was_broken_meanwhile_is_not_granted_to_a_successor_that_asks(
    client: Callable[[], One], monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Whichever message comes first: that it was handed over, or that it was taken away."""
    holder, attempt, waiter, waiting = _held_and_wanted(client)
    admin = client()
    late: list[Callable[[], object]] = []
    if order != "in order":
        send = sockets.WakeupSocket.send
        with monkeypatch.context() as patch:
            patch.setattr(sockets.WakeupSocket, "send", lambda *message: late.append(lambda: send(*message)))
            holder.release("x", attempt)
    else:
        holder.release("x", attempt)
    admin.ask("x", Break(None, "because"))
    for message in late:
        message()
    waiter.store.listen_in_thread()
    wait_until(lambda: waiter.posted == [waiting.nonce] * 2)
    assert (waiter.handed[waiting.nonce] is None) == (order == "in order")
    assert waiter.ask("x", waiting) == Gone("broken", "because")


@pytest.mark.usefixtures("strangers")
def test_what_one_wrote_itself_is_looked_at_before_it_is_believed(client: Callable[[], One]) -> None:
    holder, admin = client(), client()
    attempt, _ = holder.hold("x")
    admin.ask("x", Break(None, "because"))
    assert holder.ask("x", attempt) == Gone("broken", "because")


@pytest.mark.usefixtures("strangers", "awake")
def test_a_record_too_long_for_the_cache_invalidates_what_others_published(client: Callable[[], One]) -> None:
    holder, attempt, waiter, waiting = _held_and_wanted(client)
    admin = client()
    holder.release("x", attempt)
    admin.ask("x", Break(None, "because" * 2000))
    assert waiter.ask("x", waiting) == Gone("broken", "because" * 2000)


def test_what_one_of_the_same_process_broke_meanwhile_is_not_taken_for_granted(
    client: Callable[[], One], url: str, path: Path
) -> None:
    with run_python(HOLDER, url, "x", "60") as holder:
        holder.expect("held")
        holder.send(AWAKE)
        holder.expect("done")
        waiter, admin = client(), client()
        waiting = waiter.attempt(wait=True)
        assert isinstance(waiter.ask("x", waiting), Queued)
        holder.send("release")
        wait_until(lambda: [h.nonce for h in record_of(admin, "x").holders] == [waiting.nonce])
        _told(waiter, waiting.nonce)
        admin.ask("x", Break(None, "because"))
        assert waiter.ask("x", waiting) == Gone("broken", "because")


@pytest.mark.usefixtures("strangers", "awake")
def test_nothing_is_handed_to_a_client_that_was_taken_for_dead(client: Callable[[], One], path: Path) -> None:
    """It may be notified of its death before we are: then it gets a turn, which it cannot take."""
    holder, attempt, waiter, _ = _held_and_wanted(client)
    update(path, "UPDATE clients SET dead = 1 WHERE id = ?", waiter.id)
    assert holder.release("x", attempt) == Done()
    text = query(path, "SELECT record FROM locks WHERE name = ?", b"x")[0][0]
    assert not decode(text).holders


@pytest.mark.usefixtures("strangers")
def test_ways_to_others_are_few_and_found_anew(client: Callable[[], One], path: Path) -> None:
    one = client()
    one.hold("x")
    assert one.store._session.registration is not None
    wakeup_socket = one.store._session.registration.wakeup_socket
    side = Path(f"{path}.clients")
    for number in range(2 * sockets.PEERS_MAX):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.bind(str(side / f"peer{number}.sock"))
            assert wakeup_socket.send(Wake(f"peer{number}", "0-1")) is sockets.SendResult.DELIVERED
    assert len(wakeup_socket._peers) <= sockets.PEERS_MAX
    last = f"peer{number}"
    assert wakeup_socket.send(Wake(last, "0-1")) is sockets.SendResult.REFUSED  # it is closed
    (side / f"{last}.sock").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(str(side / f"{last}.sock"))
        assert wakeup_socket.send(Wake(last, "0-1")) is sockets.SendResult.DELIVERED


# --- watching -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("strangers")
def test_no_more_processes_are_watched_than_descriptors_allow(client: Callable[[], One]) -> None:
    one, other = client(), client()
    one.hold("x")
    other.hold("y")
    other.ask("x", other.attempt())  # Looks at who ``one`` is.
    registration = other.store._session.registration
    assert registration is not None
    us = registration.directory.known_identity(one.id)
    assert us is not None
    listener = registration.listener
    registration.directory._known.update(
        {f"{n:016x}": registration.directory._known[one.id] for n in range(200)}
    )
    monitored = [f"{n:016x}" for n in range(200)]
    listener._probe = lambda client, them: Status.ALIVE
    for number, client_id in enumerate(monitored):
        other.store.watch_clients(f"n-{number}", (client_id,))
    descriptors = [watch.fd for watch in listener._watches.values() if watch.fd >= 0]
    assert len(descriptors) == DESCRIPTORS_MAX
    for number in range(200):
        other.store.unlisten(f"n-{number}", "x")
    listener._probe_all()
    kept = list(listener._watches)
    assert len(kept) == DESCRIPTORS_MAX  # for the next time
    other.store.watch_clients("n-again", (kept[0],))
    other.store.watch_clients("n-new", (monitored[-1],))
    assert set(listener._watches) == {kept[0], monitored[-1]}  # the others made room
    assert all(watch.fd >= 0 for watch in listener._watches.values())


@pytest.mark.usefixtures("strangers")
def test_watching_the_dead_again_and_again_does_not_spin(client: Callable[[], One]) -> None:
    holder, waiter = client(), client()
    holder.hold("x")
    waiter.ask("x", waiter.attempt(wait=True))
    waiter.store.listen_in_thread()
    _die(holder)
    began = time.monotonic()
    for _ in range(6):
        waiter.posted.clear()
        waiter.store.watch_clients("n-1", (holder.id,))
        wait_until(lambda: waiter.posted)
    assert time.monotonic() - began > 0.4  # told at once, and then again a quarter of a second later
    waiter.store.unlisten("n-1", "x")
    waiter.posted.clear()
    stays_true(lambda: not waiter.posted, 0.5)


@pytest.mark.usefixtures("strangers")
def test_breaking_wakes_the_holder(client: Callable[[], One]) -> None:
    holder, other = client(), client()
    attempt, _ = holder.hold("x")
    holder.store.listen_in_thread()
    other.ask("x", Break(None, "because"))
    wait_until(lambda: attempt.nonce in holder.posted)


# --- threads that read themselves -----------------------------------------------------------------


def _until_waited_for(locks: holdfast.Client, name: str) -> None:
    wait_until(lambda: locks.inspect(name).waiters)


def _until_in(names: list[str], name: str) -> None:
    wait_until(lambda: name in names)


@pytest.mark.usefixtures("patient")
def test_one_thread_reads_for_all_waiters_of_its_process(url: str) -> None:
    """Each waits for another lock; the one that reads passes on what is not for it."""
    names = [f"n-{number}" for number in range(4)]
    with (
        run_python(HOLDER, url, names[0], "60") as first,
        holdfast.connect(url) as locks,
        ExitStack() as more,
    ):
        first.expect("held")
        holders = [first] + [more.enter_context(run_python(HOLDER, url, name, "60")) for name in names[1:]]
        for holder in holders[1:]:
            holder.expect("held")
        granted: list[str] = []

        def wait(name: str) -> None:
            with locks.lock(name, ttl=60):
                granted.append(name)

        threads = [threading.Thread(target=wait, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for name in names:
            _until_waited_for(locks, name)
        for name, holder in reversed(list(zip(names, holders, strict=True))):
            holder.send("release")
            _until_in(granted, name)
        for thread in threads:
            thread.join(10)


@pytest.mark.usefixtures("patient")
def test_a_reader_is_also_woken_from_within_its_process(url: str) -> None:
    with run_python(HOLDER, url, "x", "60") as holder, holdfast.connect(url) as locks:
        holder.expect("held")

        def wait() -> None:
            with contextlib.suppress(holdfast.HoldfastError):
                locks.lock("x").acquire()

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: locks.inspect("x").waiters)
        locks.close()  # wakes it: there is nothing to wait for any more
        waiting.join(10)
        assert not waiting.is_alive()


@pytest.mark.usefixtures("patient")
def test_a_child_of_a_fork_leaves_the_reader_of_its_parent_alone(url: str) -> None:
    with run_python(HOLDER, url, "x", "60") as holder, holdfast.connect(url) as locks:
        holder.expect("held")
        leases: list[holdfast.Lease | None] = []
        lock = locks.lock("x", ttl=60)
        waiting = threading.Thread(target=lambda: leases.append(lock.acquire()))
        waiting.start()
        wait_until(lambda: locks.inspect("x").waiters)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        holder.kill()  # noticed through a descriptor that the child inherited
        waiting.join(10)
        assert not waiting.is_alive()


@pytest.mark.usefixtures("patient")
def test_a_client_that_comes_after_the_death_of_a_holder_notices_it_at_once(url: str) -> None:
    """It asks for a place in the queue first, since the lock was held the last time, and looks only then."""
    with run_python(HOLDER, url, "x", "60") as holder, holdfast.connect(url) as locks:
        holder.expect("held")
        lock = locks.lock("x", ttl=60)
        assert lock.acquire(timeout=0.05) is None
        holder.kill()
        began = time.monotonic()
        assert lock.acquire(timeout=50) is not None
        assert time.monotonic() - began < 25, "only its last look told it"


def test_a_client_that_was_dropped_without_being_closed_is_gone(client: Callable[[], One]) -> None:
    one = client()
    one.hold("x")
    registration = one.store._session.registration
    assert registration is not None
    here = LOCAL_CLIENTS[one.id]
    assert here() is registration
    _unregister_local(one.id, weakref.ref(registration, lambda _: None))  # an earlier one of the same client
    assert LOCAL_CLIENTS[one.id] is here
    _unregister_local(one.id, here)
    assert one.id not in LOCAL_CLIENTS


@pytest.mark.usefixtures("strangers", "awake")
@pytest.mark.parametrize("in_threads", [True, False])
def test_the_successor_runs_first_where_no_event_loop_would_wait_for_it(
    client: Callable[[], One], monkeypatch: pytest.MonkeyPatch, in_threads: bool
) -> None:
    told: list[bool] = []
    holder, attempt, waiter, waiting = _held_and_wanted(client)
    waiter.store.listen_in_thread()
    if in_threads:
        holder.store.listen_in_thread()
    monkeypatch.setattr(
        stores, "yield_processor", lambda: told.append(bool(holder.store._table.unpublished_handoffs))
    )
    holder.release("x", attempt)
    wait_until(lambda: waiter.handed.get(waiting.nonce))
    assert told == ([True] if in_threads else [])
    waiter.release("x", waiting)
    waiter.release("x", waiter.hold("x")[0])
    assert len(told) == in_threads, "nobody had waited for it"
