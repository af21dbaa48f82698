"""Redlock when things go wrong: nodes die, hang, crawl, are cut off, forget, and jump in time."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
import holdfast.aio
from faults.children import acting, holding, waiting
from faults.redlock_nodes import HARM, Nodes, nodes
from holdfast import Client, EngineUnavailable, Lease, LockLost, StaleToken, fencing
from holdfast.engines.redlock.admin import rejoin
from holdfast.protocols.quorum import membership
from support import async_wait_until, renewal_of, wait_until

pytestmark = pytest.mark.engine("redlock")

HURRY = 0.6
"""Seconds: how long one tries who is to find that too few nodes answer. Who is to get it has more time."""

AT_ONCE = 6.0
"""Seconds: far less than the time that is given to a node, and than waiting for slow ones would take.
But long enough for a busy machine."""

PATIENCE = "30s"


@pytest.fixture
def five() -> Iterator[Nodes]:
    with nodes() as five:
        yield five


@pytest.fixture(scope="module")
def five_with_clocks() -> Iterator[Nodes]:
    """For all tests that leave them as they were."""
    with nodes(faketime=True) as five:
        yield five


@pytest.fixture
def mended(five_with_clocks: Nodes) -> Iterator[Nodes]:
    yield five_with_clocks
    five_with_clocks.mend()


@pytest.fixture
def three() -> Iterator[Nodes]:
    with nodes(3) as three:
        yield three


def taken(client: Client, timeout: float | None = 0, ttl: float = 30.0) -> Lease:
    lease = client.lock("x", ttl=ttl).acquire(timeout=timeout)
    assert lease is not None
    return lease


def harm(nodes: Nodes, how: str, count: int) -> None:
    for server, proxy in list(zip(nodes.servers, nodes.proxies, strict=True))[:count]:
        HARM[how](server, proxy)


# --- a minority ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HARM)
@pytest.mark.parametrize("count", [1, 2])
def test_nobody_waits_for_a_minority(five: Nodes, how: str, count: int) -> None:
    """Taking, keeping and giving back go on, for those who were there before and for those who come."""
    with holdfast.connect(five.url(node_timeout=PATIENCE)) as client:
        before = taken(client, ttl=6.0)
        harm(five, how, count)
        wait_until(renewal_of(before))
        began = time.monotonic()
        before.release()
        tokens = [before.token]
        for _ in range(3):
            lease = taken(client)
            tokens.append(lease.token)
            lease.release()
        assert time.monotonic() - began < AT_ONCE
        assert tokens == sorted(set(tokens))
    began = time.monotonic()
    with holdfast.connect(five.url(node_timeout=PATIENCE)) as newcomer:
        lease = taken(newcomer)
        assert lease.token > tokens[-1]
        lease.release()
    assert time.monotonic() - began < AT_ONCE


@pytest.mark.parametrize("how", HARM)
def test_nobody_waits_for_a_minority_in_a_loop(five: Nodes, how: str) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(five.url(node_timeout=PATIENCE)) as client:
            lease = await client.lock("x", ttl=6.0).acquire()
            assert lease is not None
            harm(five, how, 2)
            await async_wait_until(renewal_of(lease))
            began = time.monotonic()
            await lease.release()
            async with client.lock("x") as again:
                assert again.token > lease.token
            assert time.monotonic() - began < AT_ONCE

    asyncio.run(main())


def test_an_attempt_at_a_minority_leaves_nothing_behind(five: Nodes) -> None:
    """Two nodes are back that the holder never reached: who tries gets these, and gives them back."""
    with holdfast.connect(five.url()) as holder, holdfast.connect(five.url()) as other:
        taken(other).release()
        for proxy in five.proxies[:2]:
            proxy.hold()
        lease = taken(holder)
        with holdfast.connect(five.url(), namespace="elsewhere") as stranger:
            stranger.inspect("x")  # it is not the nodes
        owner = five.claims()[-1]
        for proxy in five.proxies[:2]:
            proxy.cut()
            proxy.pass_on()
        wait_until(lambda: set(five.claims()) <= {owner, ""})
        before = five.fences()[:2]

        def got_a_minority() -> bool:
            assert other.lock("x").acquire(timeout=0) is None
            return all(fence > was for fence, was in zip(five.fences(), before, strict=False))

        wait_until(got_a_minority, message="it was granted nothing that it could leave behind")
        assert other.lock("x").acquire(timeout=0.5) is None
        wait_until(lambda: set(five.claims()) <= {owner, ""}, message="an attempt that failed stayed behind")
        lease.release()
        wait_until(lambda: five.claims() == [""] * 5)


def test_a_node_that_hung_comes_back_and_holds_up_nobody(five: Nodes) -> None:
    """What it was asked meanwhile it does when it wakes: each grant is followed by its release."""
    with holdfast.connect(five.url()) as client:
        taken(client).release()
        wait_until(lambda: five.claims() == [""] * 5)
        asked = five.evaluated(0)
        five.servers[0].pause()
        for _ in range(20):
            taken(client).release()
        five.servers[0].resume()
        wait_until(lambda: five.evaluated(0) >= asked + 40, message="it did not do what it was asked")
        wait_until(lambda: five.claims() == [""] * 5, message="a late grant stayed behind")


# --- nodes that are restarted -------------------------------------------------------------------


def test_nodes_that_remember_take_part_again_by_themselves(five: Nodes) -> None:
    """All of them, one after the other, and then all at once."""
    with holdfast.connect(five.url()) as client, holdfast.connect(five.url()) as other:
        lease = taken(client, ttl=60)
        for server in five.servers:
            server.restart(kill=True)
            lease.extend()
            assert other.lock("x").acquire(timeout=0) is None
        for server in five.servers:
            server.kill()
        for server in five.servers:
            server.start()
        wait_until(lambda: _is_extended(lease))
        assert other.lock("x").acquire(timeout=1) is None
        lease.release()
        newer = taken(other, timeout=10)
        assert newer.token > lease.token
        newer.release()
        runs = [server.info("server")["run_id"].encode() for server in five.servers]
        wait_until(
            lambda: all(mark.endswith(run) for mark, run in zip(_marks(other, five), runs, strict=True))
        )


def _marks(client: Client, nodes: Nodes) -> list[bytes]:
    taken(client, timeout=5).release()
    return [mark or b"" for mark in nodes.marks()]


def _is_extended(lease: Lease) -> bool:
    try:
        lease.extend()
    except EngineUnavailable:
        return False
    return True


def test_tokens_never_repeat_whichever_nodes_forget_in_turn(mended: Nodes) -> None:
    """Each node forgets once, rejoins, and is then needed for the majority."""
    url = mended.url(node_timeout="500ms")
    tokens = []
    with holdfast.connect(url) as client:
        for number in range(5):
            lease = taken(client, timeout=10)
            tokens.append(lease.token)
            lease.release()
            mended.servers[number].restart(keep_data=False, kill=True)
            assert "rejoined" in rejoin(url, {number}, wait=0.2)[number]
            absent = [mended.servers[(number + other) % 5] for other in (1, 2)]
            for server in absent:
                server.pause()
            lease = taken(client, timeout=10)
            tokens.append(lease.token)
            lease.release()
            for server in absent:
                server.resume()
    assert tokens == sorted(set(tokens))


def test_a_node_that_rejoins_waits_for_as_long_as_is_needed(
    mended: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless told otherwise: longer than the longest ttl. What is held meanwhile is held by the others."""
    monkeypatch.setattr(membership, "DECIDE_SECONDS", 0.2)
    url = mended.url()
    with holdfast.connect(url) as client, holdfast.connect(url) as other:
        lease = taken(client, ttl=1.0)
        mended.servers[0].restart(keep_data=False, kill=True)
        began = time.monotonic()
        assert rejoin(url, {0}) == {0: "rejoined: 1 fences were copied"}
        assert time.monotonic() - began > 2.0, "a ttl, and a second to be sure"
        assert mended.fences()[0] == lease.token
        lease.check()
        assert other.lock("x").acquire(timeout=0) is None


def test_a_node_that_may_have_forgotten_is_not_trusted(tmp_path: Path) -> None:
    """Its mark is there, but its settings do not say that everything else is."""
    with nodes(3) as three:
        url = three.url()
        with holdfast.connect(url) as client:
            taken(client).release()
            server = three.servers[0]
            server.command("CONFIG", "SET", "appendfsync", "everysec")
            server.command("CONFIG", "REWRITE")
            server.restart()
            taken(client, timeout=5).release()
            three.servers[1].kill()
            with pytest.raises(EngineUnavailable, match="not appendonly yes with appendfsync always"):
                client.lock("x").acquire(timeout=HURRY)
            assert rejoin(url, {0}, remembers=True) == {0: "trusted: its mark was renewed"}
            taken(client, timeout=10).release()


def test_nodes_that_are_emptied_while_they_run(mended: Nodes) -> None:
    url = mended.url()
    with holdfast.connect(url) as client, holdfast.connect(url) as other:
        lease = taken(client, ttl=60)
        for server in mended.servers[:2]:
            server.command("FLUSHALL")
            lease.extend()
            assert other.lock("x").acquire(timeout=0) is None
        mended.servers[2].command("FLUSHALL")
        with pytest.raises(EngineUnavailable, match=r"of 5 nodes take part, 3 must.*(rejoin.*){3}"):
            other.lock("x").acquire(timeout=HURRY)
        assert mended.claims()[:3] == [""] * 3, "a node that forgot granted something"


# --- a majority ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HARM)
def test_without_a_majority_nothing_is_granted_and_loss_is_signalled_in_time(mended: Nodes, how: str) -> None:
    url = mended.url(node_timeout="200ms")
    with holdfast.connect(url) as client, holdfast.connect(url) as other:
        taken(other, timeout=5).release()
        lease = taken(client, timeout=5, ttl=1.5)
        harm(mended, how, 3)
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match="of 5 nodes take part, 3 must"):
            other.lock("y").acquire(timeout=HURRY)
        assert lease.wait_lost(timeout=10)
        assert time.monotonic() - began < 1.5 + 1.0
        with pytest.raises(LockLost) as caught:
            lease.check()
        assert caught.value.reason == "unreachable"
        for server, proxy in zip(mended.servers, mended.proxies, strict=True):
            server.start()
            server.resume()
            proxy.pass_on()
        newer = taken(other, timeout=20)
        assert newer.token > lease.token
        newer.release()


def test_without_a_majority_in_a_loop(mended: Nodes) -> None:
    """Nodes that crawl: each answer comes, too late."""

    async def main() -> None:
        url = mended.url(node_timeout="200ms")
        async with holdfast.aio.connect(url) as client, holdfast.aio.connect(url) as other:
            async with other.lock("x", timeout=5):
                pass
            lease = await client.lock("x", ttl=1.5).acquire(timeout=5)
            assert lease is not None
            harm(mended, "slow", 3)
            with pytest.raises(EngineUnavailable, match="of 5 nodes take part, 3 must"):
                await other.lock("y").acquire(timeout=HURRY)
            assert await lease.wait_lost(timeout=10)
            for proxy in mended.proxies:
                proxy.pass_on()
            async with other.lock("x", timeout=20) as newer:
                assert newer.token > lease.token

    asyncio.run(main())


# --- clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_minority_of_clocks_jumps(mended: Nodes, seconds: float) -> None:
    """Nothing is lost and nobody else is let in."""
    with holdfast.connect(mended.url()) as client:
        lease = taken(client, ttl=600)
        for server in mended.servers[:2]:
            server.shift_clock(seconds)
        with holdfast.connect(mended.url()) as other:
            assert other.lock("x").acquire(timeout=0.5) is None
            lease.extend()
            lease.check()
            lease.release()
            newer = taken(other)
            assert newer.token > lease.token
            newer.release()


def test_a_minority_of_clocks_jumps_in_a_loop(mended: Nodes) -> None:
    """One ahead and one back."""

    async def main() -> None:
        async with holdfast.aio.connect(mended.url()) as client, holdfast.aio.connect(mended.url()) as other:
            lease = await client.lock("x", ttl=600).acquire()
            assert lease is not None
            for server, seconds in zip(mended.servers[:2], (3600.0, -3600.0), strict=True):
                server.shift_clock(seconds)
            assert await other.lock("x").acquire(timeout=0.5) is None
            await lease.extend()
            lease.check()
            await lease.release()
            async with other.lock("x", timeout=5) as newer:
                assert newer.token > lease.token

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_majority_of_clocks_jumps(mended: Nodes, seconds: float, tmp_path: Path) -> None:
    """Ahead, two may hold it; the fence lets only the newer write. Back, it is held for longer."""
    with (
        holdfast.connect(mended.url()) as client,
        closing(sqlite3.connect(tmp_path / "data.db")) as db,
    ):
        fencing.install(db)
        old = taken(client, ttl=600)
        with db:
            fencing.advance(db, "invoices", old)
        for server in mended.servers[:3]:
            server.shift_clock(seconds)
        with holdfast.connect(mended.url()) as other:
            newer = other.lock("x").acquire(timeout=0.5)
            if seconds < 0:
                assert newer is None
                old.release()
                newer = taken(other, timeout=5)
            assert newer is not None
            assert newer.token > old.token
            with db:
                fencing.advance(db, "invoices", newer)
            with pytest.raises(StaleToken), db:
                fencing.enforce(db, "invoices", old.fence)
            newer.release()


# --- processes ----------------------------------------------------------------------------------


def test_a_holder_that_is_killed_is_followed_when_its_ttl_is_over(three: Nodes) -> None:
    with holding(three.url(), ttl=2.0) as child, holdfast.connect(three.url()) as client:
        token = int(child.expect("held"))
        child.kill()
        began = time.monotonic()
        lease = taken(client, timeout=20, ttl=600)
        assert time.monotonic() - began < 10
        assert lease.token > token
        lease.release()


def test_a_holder_that_is_stopped_loses_it_and_its_write_is_refused(three: Nodes, tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    with closing(sqlite3.connect(data)) as db:
        fencing.install(db)
        db.commit()
    code = f"""
import sqlite3
db = sqlite3.connect({str(data)!r})

def write():
    with db:
        fencing.enforce(db, "invoices", lease.fence)
    return "written"

lease = locks.lock("x", ttl=1.0).acquire()
with db:
    fencing.advance(db, "invoices", lease)
print("held", lease.token, flush=True)
for line in sys.stdin:
    try:
        print("did", eval(line), flush=True)
    except holdfast.HoldfastError as error:
        print("did", type(error).__name__, flush=True)
"""
    with acting(three.url(), code) as child, holdfast.connect(three.url()) as client:
        token = int(child.expect("held"))
        child.send("write()")
        assert child.expect("did") == "written"
        child.stop()
        lease = taken(client, timeout=20)
        assert lease.token > token
        with closing(sqlite3.connect(data)) as db, db:
            fencing.advance(db, "invoices", lease)
        child.cont()
        for order, said in (("write()", "StaleToken"), ("lease.check()", "LockLost")):
            child.send(order)
            assert child.expect("did") == said
        lease.release()


def test_a_waiter_that_is_interrupted_leaves_nothing_behind(three: Nodes) -> None:
    with holdfast.connect(three.url()) as client:
        lease = taken(client)
        (owner,) = {*three.claims()} - {""}
        with waiting(three.url()) as child:
            child.expect("asking")
            calls = three.evaluated(0)
            wait_until(lambda: three.evaluated(0) > calls + 2)  # it has asked, and asks again
            child.interrupt()
            assert child.expect("interrupted") == "None"
        assert {*three.claims()} - {""} == {owner}
        lease.release()
        taken(client).release()


def test_holders_in_forked_children_and_parents(three: Nodes) -> None:
    """The child says nothing on its parent's connections: the parent goes on holding and renewing."""
    code = """
lease = locks.lock("x", ttl=1.5).acquire()
pid = os.fork()
if pid == 0:
    try:
        lease.check()
    except holdfast.LockLost:
        os._exit(0 if locks.lock("y").acquire(timeout=5) else 2)
    os._exit(1)
_, status = os.waitpid(pid, 0)
lost = lease.wait_lost(timeout=2)
print("child", os.waitstatus_to_exitcode(status), "lost", lost, flush=True)
lease.release()
"""
    with acting(three.url(), code) as parent:
        assert parent.expect("child") == "0 lost False"
