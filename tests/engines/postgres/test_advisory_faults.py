"""Session locks under faults: sessions that end, servers that stop, networks that drop packets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from contract.engines import takes_seconds
from contract.harness import World, held
from engines.postgres.introspection import granted
from faults.children import acting, holding, waiting
from holdfast import Client, EngineUnavailable, LockLost, StaleToken, fencing, provision
from holdfast.aio import AsyncClient
from holdfast.engines.postgres.advisory.notifications import SessionListener
from holdfast.engines.postgres.advisory.pool import SessionPool
from holdfast.engines.postgres.advisory.session import Session
from holdfast.engines.postgres.advisory.statements import SessionStatements
from holdfast.engines.postgres.codec import Call
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import PostgreSQL
from holdfast.runtime.clock import wall_seconds
from support import TimedOut, wait_until
from support.servers import shared_postgresql

pytestmark = pytest.mark.engine("postgresql+advisory")


def _advisory(url: str) -> str:
    return url.replace("postgresql", "postgresql+advisory", 1)


@pytest.fixture
def url(schema: str) -> str:
    """The schema is made, so that what follows is about locks alone."""
    url = f"{_advisory(shared_postgresql().url)}?schema={schema}"
    provision.install(url)
    return url


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        yield client


def client_at(world: World, url: str, **options: float) -> Client:
    """A client that connects another way than the others."""
    before, world.url = world.url, url
    try:
        return world.client(**options)
    finally:
        world.url = before


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = shared_postgresql()
    with Proxy(server.host, server.port) as proxy:
        yield proxy


def named(schema: str) -> str:
    """A way by which the server tells connections from others."""
    return f"{_advisory(shared_postgresql().url)}?schema={schema}&application_name={schema}"


def through(proxy: Proxy, schema: str) -> str:
    return f"postgresql+advisory://postgres@{proxy.address}/postgres?schema={schema}"


def end_backends(schema: str) -> int:
    answer = shared_postgresql().sql(
        f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{schema}'"
    )
    return int(answer)


def waiting_backends(schema: str) -> set[str]:
    answer = shared_postgresql().sql(
        f"SELECT w.backend FROM {schema}.session_waiters w"
        " JOIN pg_locks l ON l.pid = w.backend AND NOT l.granted"
    )
    return set(answer.split())


# --- sessions that end --------------------------------------------------------------------------


async def test_a_terminated_backend_is_a_loss_signalled_at_once(world: World, schema: str) -> None:
    """However long the ttl is, and whether or not it renews."""
    ann, bob, client = world.actor(), world.actor(), client_at(world, named(schema))
    leases = [
        held(await ann(client.lock("one", ttl=3600).acquire)),
        held(await ann(client.lock("two", ttl=3600, renew=False).acquire)),
    ]
    began = time.monotonic()
    assert end_backends(schema) >= 1
    for lease in leases:
        assert await ann(lease.wait_lost, timeout=20) is True
    assert time.monotonic() - began < 5
    with pytest.raises(LockLost, match="its connection ended: terminating connection due to administrator"):
        leases[0].check()
    newer = held(await bob(world.client().lock("one").acquire, timeout=5))
    assert newer.token > leases[0].token
    with pytest.raises(LockLost):
        await ann(leases[1].release)
    assert held(await ann(client.lock("two").acquire, timeout=5)).token > leases[1].token


def test_a_session_opened_after_all_were_lost_is_read_as_well(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener may look for sessions before this one is there, and find none."""
    looked = 0
    look, add = SessionListener._sessions, SessionPool.add_session

    def looking(listener: SessionListener, poll: select.poll) -> dict[int, Session]:
        nonlocal looked
        looked += 1
        return look(listener, poll)

    def add_later(pool: SessionPool, *arguments: Any) -> None:
        before = looked
        # The listener was woken already. Give it the time to look, and to sleep again.
        with contextlib.suppress(TimedOut):
            wait_until(lambda: looked > before, timeout=0.5)
        add(pool, *arguments)

    monkeypatch.setattr(SessionListener, "_sessions", looking)
    with holdfast.connect(named(schema)) as client:
        lock = client.lock("x", ttl=3600, renew=False)
        for _ in range(2):
            lease = held(lock.acquire(timeout=20))
            assert end_backends(schema) >= 1
            assert lease.wait_lost(timeout=20), "the end of its connection was not noticed"
            with pytest.raises(LockLost):
                lock.release()
            monkeypatch.setattr(SessionPool, "add_session", add_later)


async def test_a_waiter_is_served_although_its_connection_was_ended(world: World, schema: str) -> None:
    ann, bob = world.actor(), world.actor()
    lease = held(await bob(world.client().lock("x").acquire))
    pending = ann(client_at(world, named(schema)).lock("x").acquire, timeout=30)
    await world.until_waiting("x", 1)
    (first,) = waiting_backends(schema)
    assert end_backends(schema) >= 1
    await world.until(lambda: waiting_backends(schema) - {first}, "it did not come back")
    await bob(lease.release)
    assert held(await pending).token > lease.token


@pytest.mark.parametrize("reset", [True, False])
async def test_a_cut_connection_is_a_loss_signalled_at_once(
    world: World, schema: str, proxy: Proxy, reset: bool
) -> None:
    ann, bob = world.actor(), world.actor()
    lock = client_at(world, through(proxy, schema)).lock("x", ttl=600)
    lease = held(await ann(lock.acquire))
    pending = bob(client_at(world, through(proxy, schema)).lock("x").acquire, timeout=30)
    await world.until_waiting("x", 1)
    began = time.monotonic()
    proxy.cut(reset=reset)
    assert await ann(lease.wait_lost, timeout=20) is True
    assert time.monotonic() - began < 5
    assert held(await pending).token > lease.token, "the server gave it up, and who waited came back"
    with pytest.raises(LockLost):
        await ann(lock.release)


async def test_a_silent_connection_is_lost_at_the_deadline_and_free_after_the_ttl(
    world: World, schema: str, proxy: Proxy
) -> None:
    ann, bob, other = world.actor(), world.actor(), world.client()
    client = client_at(world, through(proxy, schema), io_timeout=0.5)
    lease = await granted(ann, client.lock("x", ttl=2.0))
    began = time.monotonic()
    proxy.hold()
    assert await bob(other.lock("x").acquire, timeout=0) is None
    newer = held(await bob(other.lock("x").acquire, timeout=20))
    assert lease.lost, "the holder knew before the next had it"
    assert time.monotonic() - began < 10
    assert newer.token > lease.token
    proxy.pass_on()


async def test_silent_connections_do_not_delay_the_others(world: World, schema: str) -> None:
    """Each was waited for in turn, and sessions that answered lost their locks meanwhile."""
    ann, client = world.actor(), client_at(world, named(schema), io_timeout=1.0)
    silent = [held(await ann(client.lock(f"{n}", ttl=3.0 + n / 10).acquire)) for n in range(4)]
    stopped = [int(pid) for pid in backends_with_locks(schema)]
    kept = held(await ann(client.lock("kept", ttl=4.0).acquire))
    assert len(backends_with_locks(schema)) == len(stopped) + 1 == len(silent) + 1
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        await world.until(lambda: kept.lost or all(lease.lost for lease in silent))
        await world.until(lambda: kept.lost or world.look("kept").holders[0].age > 8.5)
        kept.check()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    await ann(kept.release)


async def test_a_lost_answer_leaves_nothing(world: World, schema: str, proxy: Proxy) -> None:
    """The reply with the grant is lost: its session ends, and the attempt continues on another."""
    ann, client = world.actor(), client_at(world, through(proxy, schema))
    await ann(held(await ann(client.lock("warm").acquire)).release)
    lost = proxy.lose_reply(b"holdfast_session_take_1")
    lease = held(await ann(client.lock("x").acquire, timeout=20))
    assert lost.is_set()
    assert [holder.token for holder in world.look("x").holders] == [lease.token]
    await ann(lease.release)
    assert not world.look("x").locked


async def test_a_loss_is_signalled_once(world: World, schema: str, proxy: Proxy) -> None:
    """The connection is silent, so renewals fail; then it is cut; then the server ends its session."""
    ann, client = world.actor(), client_at(world, through(proxy, schema), io_timeout=0.3)
    lease = await granted(ann, client.lock("x", ttl=1.5))
    losses: list[bool] = []
    lease.on_lost(lambda lost: losses.append(lost.lost))
    proxy.hold()
    assert await ann(lease.wait_lost, timeout=20)
    proxy.cut()
    proxy.pass_on()
    await world.until_free("x")
    assert held(await ann(client.lock("x").acquire, timeout=20)).token > lease.token
    with pytest.raises(LockLost):
        await ann(lease.release)
    assert losses == [True]


async def test_a_deadlock_is_not_busy(world: World, schema: str) -> None:
    """The server ended our statement to break a deadlock: that says nothing about the holder."""
    refuse_to_take(schema, "40P01", 3)
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire, timeout=5))
    await ann(lease.release)
    refuse_to_take(schema, "40P01", 1_000_000)
    with pytest.raises(EngineUnavailable, match="40P01"):
        await ann(world.client(io_timeout=0.5).lock("x").acquire, timeout=0)
    assert not world.look("x").locked


def refuse_to_take(schema: str, sqlstate: str, times: int) -> None:
    """Have the server answer the next statements that increment a token with this error."""
    shared_postgresql().sql(f"""
        DROP SEQUENCE IF EXISTS {schema}.refused CASCADE;
        CREATE SEQUENCE {schema}.refused;
        CREATE OR REPLACE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('{schema}.refused') <= {times} THEN
                RAISE EXCEPTION 'on purpose' USING ERRCODE = '{sqlstate}';
            END IF;
            RETURN NEW;
        END $$;
        CREATE OR REPLACE TRIGGER refuse BEFORE INSERT OR UPDATE ON {schema}.session_names
            FOR EACH ROW EXECUTE FUNCTION {schema}.refuse();
    """)


# --- cancelled ----------------------------------------------------------------------------------

only_tasks = pytest.mark.parametrize("driver", ["asyncio"], indirect=True)
"""A thread cannot be cancelled."""


@only_tasks
async def test_cancelled_during_the_request(world: World, schema: str, proxy: Proxy) -> None:
    """The server has granted the lock, and its caller is gone."""
    ann, client = world.actor(), client_at(world, through(proxy, schema))
    other = held(await ann(client.lock("other", ttl=60).acquire))
    proxy.hold("to_client")
    task = asyncio.ensure_future(cast(AsyncClient, client).lock("x", ttl=60).acquire())
    await world.until(lambda: world.look("x").locked)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.pass_on()
    await world.until_free("x")
    assert held(await ann(client.lock("x").acquire, timeout=10)).token > other.token


@only_tasks
async def test_cancelled_while_waiting(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=60).acquire))
    locks = cast(AsyncClient, world.client())
    first = asyncio.ensure_future(locks.lock("x").acquire())
    await world.until_waiting("x", 1)
    second = bob(client.lock("x").acquire, timeout=20)
    await world.until_waiting("x", 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await world.until_waiting("x", 1)
    await ann(lease.release)
    newer = held(await second)
    assert newer.token > lease.token
    await bob(newer.release)
    await world.until_free("x")


# --- servers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """Of this module's own: it is stopped and killed."""
    with PostgreSQL() as server:
        yield server


def at(server: PostgreSQL, schema: str) -> str:
    return f"{_advisory(server.url)}?schema={schema}"


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_a_restart_is_a_loss_of_every_lock(
    world: World, schema: str, server: PostgreSQL, kill: bool
) -> None:
    world.url = at(server, schema)
    ann, bob = world.actor(), world.actor()
    lease = held(await ann(world.client().lock("x", ttl=600).acquire))
    pending = bob(world.client().lock("x").acquire, timeout=60)
    await world.until_waiting("x", 1)
    server.restart(kill=kill)
    assert await ann(lease.wait_lost, timeout=20) is True
    newer = held(await pending)
    assert newer.token > lease.token, "also where the server forgot the last tokens"
    assert world.look("x").holders[0].token == newer.token


async def test_a_value_that_was_set_outlives_a_crash(world: World, schema: str) -> None:
    """Unlike a token, which does not wait for the disk: the clock makes up for a lost token."""
    with PostgreSQL(settings={"wal_writer_delay": "10s"}) as server:
        world.url = at(server, schema)
        ann, client = world.actor(), world.client()
        lease = held(await ann(client.lock("x", ttl=60).acquire))
        await ann(lease.set_value, b"precious")
        server.restart(kill=True)
        await world.until(lambda: lease.lost)
        newer = held(await ann(client.lock("x").acquire, timeout=20))
        assert newer.token > lease.token
        assert world.look("x").value == b"precious"
        await ann(client.close)


@takes_seconds
@pytest.mark.parametrize("seconds", [-7200.0, 7200.0], ids=["back", "forward"])
async def test_a_clock_that_jumps_sets_back_no_token_and_takes_no_lock_in_silence(
    world: World, schema: str, seconds: float
) -> None:
    """The server uses it to find idle sessions: it may end a session that was not idle."""
    with PostgreSQL(faketime=True) as server:
        world.url = at(server, schema)
        ann, bob, client, other = world.actor(), world.actor(), world.client(), world.client()
        lease = held(await ann(client.lock("x", ttl=3.0).acquire))
        waiting = bob(other.lock("x", ttl=3.0).acquire, timeout=60)
        await world.until_waiting("x", 1)
        server.shift_clock(seconds)
        far_off = "SELECT abs(extract(epoch FROM clock_timestamp()) - {}) > 3600"
        await world.until(lambda: server.sql(far_off.format(wall_seconds())) == "t")
        jumped = time.monotonic()
        await world.until(lambda: lease.lost or waiting.done() or time.monotonic() - jumped > 4.0)
        if not lease.lost and not waiting.done():
            await ann(lease.release)
        newer = held(await waiting)
        await world.until(lambda: lease.lost or lease._state.ended == "released", timeout=1.0)
        assert newer.token > lease.token
        for one in (client, other):
            await ann(one.close)


async def test_a_server_that_shuts_down_is_not_busy(world: World, schema: str, server: PostgreSQL) -> None:
    world.url = at(server, schema)
    ann, client = world.actor(), world.client(io_timeout=0.5)
    lock = client.lock("x")
    await ann((await granted(ann, lock)).release)
    server.stop()
    try:
        with pytest.raises(EngineUnavailable):
            await ann(lock.acquire, timeout=0)
        with pytest.raises(EngineUnavailable):
            await ann(lock.acquire, timeout=0.3)
    finally:
        server.start()
    assert await ann(lock.acquire, timeout=20) is not None


async def test_a_stopped_server_is_a_loss_at_the_deadline(
    world: World, schema: str, server: PostgreSQL
) -> None:
    """Its kernel answers and nothing else does. If it goes on in time nothing is lost."""
    world.url = at(server, schema)
    ann, client = world.actor(), world.client(io_timeout=1.0)
    short, long = client.lock("short", ttl=2.0), client.lock("long", ttl=60)
    kept, lost = await granted(ann, long), await granted(ann, short)
    server.pause()
    try:
        began = time.monotonic()
        await world.until(lambda: lost.lost)
        assert time.monotonic() - began < 5
        with pytest.raises(EngineUnavailable, match="answer"):
            await ann(client.lock("y").acquire)
    finally:
        server.resume()
    kept.check()
    await ann(kept.release)
    await world.until_free("short")
    await world.until_free("y")
    assert held(await ann(short.acquire, timeout=20)).token > lost.token


async def test_a_release_that_the_server_does_not_receive_is_made_up_for(
    world: World, schema: str, server: PostgreSQL
) -> None:
    world.url = at(server, schema)
    ann, client = world.actor(), world.client(io_timeout=1.0)
    kept = await granted(ann, client.lock("kept", ttl=6.0))
    lease = await granted(ann, client.lock("x", ttl=6.0))
    server.pause()
    try:
        with pytest.raises(EngineUnavailable):
            await ann(lease.release)
    finally:
        server.resume()
    await ann(lease.release)  # may be said again, and is no error
    await world.until_free("x")
    await world.until(lambda: kept.lost or world.look("kept").holders[0].age > 6.5)
    kept.check()


# --- processes ----------------------------------------------------------------------------------


def test_a_holder_that_is_killed_holds_no_more(url: str, locks: Client) -> None:
    """At once, not after its ttl."""
    with holding(url, ttl=600) as child:
        token = int(child.expect("held"))
        assert locks.lock("x").acquire(blocking=False) is None
        child.kill()
        began = time.monotonic()
        lease = locks.lock("x").acquire(timeout=20)
        assert time.monotonic() - began < 5
    assert lease is not None
    assert lease.token > token
    lease.release()


def test_a_holder_that_is_stopped_loses_it_and_its_write_is_refused(
    url: str, locks: Client, tmp_path: Path
) -> None:
    """Declared dead, it cannot finish what was given to another."""
    data = tmp_path / "data.db"
    with closing(sqlite3.connect(data)) as db:
        db.execute("CREATE TABLE invoice (writer TEXT)")
        fencing.install(db)
        db.commit()
    code = f"""
import sqlite3
lease = locks.lock("x", ttl=1.5).acquire()
print("held", lease.token, flush=True)
sys.stdin.readline()
db = sqlite3.connect({str(data)!r})
try:
    fencing.enforce(db.cursor(), "invoice", lease.fence)
except Exception as error:
    print("refused", type(error).__name__, lease.lost, flush=True)
"""
    with acting(url, code) as child:
        token = int(child.expect("held"))
        child.signal(signal.SIGSTOP)
        lease = locks.lock("x").acquire(timeout=20)
        assert lease is not None
        assert lease.token > token
        with closing(sqlite3.connect(data)) as db:
            fencing.enforce(db.cursor(), "invoice", lease)
            db.commit()
        child.signal(signal.SIGCONT)
        child.send()
        assert child.expect("refused") == f"{StaleToken.__name__} True"
    lease.release()


def test_a_broken_holder_that_is_stopped_loses_its_connection(url: str, locks: Client) -> None:
    with holding(url, ttl=600) as child:
        token = int(child.expect("held"))
        child.signal(signal.SIGSTOP)
        try:
            fence = locks.break_lock("x", reason="it stands still")
            assert fence is not None
            lease = locks.lock("x").acquire(timeout=5)
            assert lease is not None
            assert token < fence < lease.token
        finally:
            child.signal(signal.SIGCONT)
        child.expect("told")
        child.send("lease.check()")
        assert child.expect("did") == "LockLost broken"
        lease.release()


def test_a_holder_that_releases_and_locks_again_keeps_its_connection(
    locks: Client, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same connection, before the breaker looked. Its other locks would be lost, too."""
    taken_again = threading.Event()
    still_holding = SessionStatements.still_holding

    def still_holding_afterwards(statements: SessionStatements, name: str, backends: Sequence[int]) -> Call:
        assert taken_again.wait(20)
        return still_holding(statements, name, backends)

    monkeypatch.setattr(SessionStatements, "still_holding", still_holding_afterwards)
    with holdfast.connect(named(schema)) as client, ThreadPoolExecutor(1) as breaker:
        other = held(client.lock("other", ttl=60).acquire())
        lock = client.lock("x", ttl=60)
        lease = held(lock.acquire())
        breaking = breaker.submit(locks.break_lock, "x", reason="test")
        assert lease.wait_lost(timeout=20)
        again = held(lock.acquire(timeout=20))
        assert len(backends_with_locks(schema)) == 1, "on the connection that it was on before"
        taken_again.set()
        fence = breaking.result(timeout=20)
        assert fence is not None
        assert lease.token < fence < again.token
        for kept in (other, again):
            kept.extend(60)
            kept.release()


def backends_with_locks(schema: str) -> set[str]:
    answer = shared_postgresql().sql(
        "SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        f" WHERE l.locktype = 'advisory' AND a.application_name = '{schema}'"
    )
    return set(answer.split())


def test_a_lock_of_another_role_is_broken_or_it_is_said_what_is_missing(
    url: str, schema: str, locks: Client
) -> None:
    """A role that may end the connection of a stopped holder does so."""
    server, role = shared_postgresql(), f"role_{schema}"
    server.sql(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    server.sql(f"GRANT EXECUTE ON ALL ROUTINES IN SCHEMA {schema} TO {role}")
    holder = f"holder_{schema}"
    server.sql(f"CREATE ROLE {holder} LOGIN IN ROLE {role}")
    try:
        with (
            holding(url.replace("postgres@", f"{holder}@"), ttl=600) as child,
            holdfast.connect(url.replace("postgres@", f"{role}@")) as theirs,
        ):
            child.expect("held")
            child.signal(signal.SIGSTOP)
            try:
                with pytest.raises(EngineUnavailable, match="GRANT pg_signal_backend"):
                    theirs.break_lock("x", reason="it stands still")
            finally:
                child.signal(signal.SIGCONT)
            wait_until(lambda: not locks.inspect("x").locked)
    finally:
        server.sql(f"DROP OWNED BY {role}; DROP ROLE {holder}; DROP ROLE {role}")


def test_a_killed_waiter_delays_no_other(url: str, locks: Client) -> None:
    mine = locks.lock("x").acquire()
    assert mine is not None
    with waiting(url) as first:
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        with waiting(url) as second:
            wait_until(lambda: len(locks.inspect("x").waiters) == 2)
            first.kill()
            wait_until(lambda: len(locks.inspect("x").waiters) == 1)
            mine.release()
            second.expect("granted")
            second.send()
            second.expect("released")


def test_ctrl_c_while_waiting(url: str, locks: Client) -> None:
    with locks.lock("x"), waiting(url) as waiter:
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        waiter.interrupt()
        assert waiter.expect("interrupted") == "None"
        wait_until(lambda: not locks.inspect("x").waiters)
        waiter.succeed()


FORKING = """
def main():
    lease = locks.lock("x", ttl=5).acquire()
    before = locks.inspect("x").holders[0].client
    pid = os.fork()
    if pid == 0:
        assert lease.lost
        assert locks.lock("x").acquire(blocking=False) is None, "the parent holds it"
        mine = locks.lock("y").acquire(blocking=False)
        assert mine is not None
        assert locks.inspect("y").holders[0].client != before, "it goes by the parent's name"
        END
    _, status = os.waitpid(pid, 0)
    print("child", os.waitstatus_to_exitcode(status), flush=True)
    lease.check()
    lease.extend(5)
    assert locks.inspect("x").holders[0].client == before
    print("kept", lease.token, flush=True)
    sys.stdin.readline()
    lease.release()

main()
"""


@pytest.mark.parametrize(
    "ending",
    [
        "os._exit(0)",
        "lease.release(); mine.release(); locks.close(); os._exit(0)",
        "return",  # as any program ends: what was to be done at exit is done in the child, too
    ],
    ids=["at once", "given back and closed", "in order"],
)
def test_a_fork_takes_nothing_along(url: str, locks: Client, ending: str) -> None:
    """The child's exit sends nothing on the parent's connection, and the child has its own client."""
    with acting(url, FORKING.replace("END", ending)) as child:
        assert child.expect("child") == "0"
        token = int(child.expect("kept"))
        assert [holder.token for holder in locks.inspect("x").holders] == [token]
        wait_until(lambda: not locks.inspect("y").locked)
        child.send()
        child.succeed()
    assert not locks.inspect("x").locked


def test_eight_processes_exclude_each_other_and_take_turns(url: str, locks: Client, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = f"""
print("ready", flush=True)
sys.stdin.readline()
for _ in range(15):
    with locks.lock("x", ttl=10) as lease:
        with open({str(log)!r}, "a") as log:
            log.write(f"in {{os.getpid()}} {{lease.token}}\\n")
            log.flush()
            log.write(f"out {{os.getpid()}}\\n")
"""
    with ExitStack() as stack:
        children = [stack.enter_context(acting(url, code)) for _ in range(8)]
        for child in children:
            child.expect("ready")
        for child in children:
            child.send()
        for child in children:
            child.succeed()
    lines = log.read_text().splitlines()
    assert len(lines) == 8 * 15 * 2
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert all(entered.split()[1] == left.split()[1] for entered, left in pairs), "two were inside at once"
    tokens = [int(entered.split()[2]) for entered, _ in pairs]
    assert tokens == sorted(set(tokens))
    assert os.getpid() not in {int(entered.split()[1]) for entered, _ in pairs}
