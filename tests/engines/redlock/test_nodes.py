"""Servers that may be nodes, servers that may not, and what a grant costs them."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
import holdfast.aio
from holdfast import Client, EngineUnavailable, Lease
from holdfast.core.arguments import Spec
from holdfast.engine_api import Steps
from holdfast.engines.redlock.routing import NodeConnections
from holdfast.engines.redlock.threads import RedlockThreads
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Redis
from holdfast.lab.servers.group import Group
from holdfast.protocols import records
from holdfast.protocols.quorum import Answers, Broadcast
from holdfast.protocols.quorum.lease_operations import RENEWALS_MAX
from holdfast.protocols.quorum.repair import WAIT_SECONDS
from holdfast.rules import node
from holdfast.rules.requests import Reply
from support import renewal_of, run_python, wait_until

HURRY = 0.5

TRIES_SECONDS = 20.0
"""For the failure message only: until then the last of the nodes has said who it is."""


def url_of(servers: Sequence[Redis], **options: object) -> str:
    given = {"node_timeout": "500ms", **options}
    query = "&".join(f"{name}={value}" for name, value in given.items())
    return f"redlock://{','.join(each.address for each in servers)}?{query}"


@pytest.fixture
def three() -> Iterator[Sequence[Redis]]:
    with Group([Redis() for _ in range(3)]) as group:
        yield group.members


# --- who may be a node --------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["a new set", "a set that is known"])
def test_two_addresses_of_one_server_are_refused(three: Sequence[Redis], known: bool) -> None:
    if known:
        with holdfast.connect(url_of(three)) as client, client.lock("x"):
            pass
    with Proxy(three[0].host, three[0].port) as double:
        url = f"redlock://{three[0].address},{three[1].address},{double.address}?node_timeout=500ms"
        with (
            holdfast.connect(url) as client,
            pytest.raises(EngineUnavailable, match="are one server"),
        ):
            _try_for(client)

        async def main() -> None:
            async with holdfast.aio.connect(url) as client:
                with pytest.raises(EngineUnavailable, match="are one server"):
                    await _try_in_a_loop(client)

        asyncio.run(main())


def _try_for(client: Client) -> None:
    """A majority may decide before the last of them has said who it is; it does not go on like that."""
    ends_at = time.monotonic() + TRIES_SECONDS
    while time.monotonic() < ends_at:
        with client.lock("x"):
            pass


async def _try_in_a_loop(client: holdfast.aio.AsyncClient) -> None:
    ends_at = time.monotonic() + TRIES_SECONDS
    while time.monotonic() < ends_at:
        async with client.lock("x"):
            await asyncio.sleep(0.01)


def test_another_number_of_nodes_is_another_set(three: Sequence[Redis]) -> None:
    with holdfast.connect(url_of(three)) as client, client.lock("x"):
        pass
    with (
        Group([Redis() for _ in range(2)]) as more,
        holdfast.connect(url_of([*three, *more.members])) as client,
        pytest.raises(EngineUnavailable, match="a set of 3 nodes"),
    ):
        client.lock("x").acquire(timeout=0)


def test_a_node_that_evicts_is_no_node(three: Sequence[Redis]) -> None:
    for server in three[:2]:
        server.command("CONFIG", "SET", "maxmemory", "100mb")
        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with (
        holdfast.connect(url_of(three), io_timeout=HURRY) as client,
        pytest.raises(EngineUnavailable, match="evicts keys when its memory is full"),
    ):
        client.lock("x").acquire(timeout=0)


def test_a_replica_is_no_node(three: Sequence[Redis]) -> None:
    with (
        Redis(replica_of=three[0]) as replica,
        holdfast.connect(url_of([replica, *three[1:]]), io_timeout=HURRY) as client,
        pytest.raises(EngineUnavailable, match="read-only replica"),
    ):
        client.lock("x").acquire(timeout=0)


def test_passwords() -> None:
    with Group([Redis(password="s@cret") for _ in range(3)]) as group:
        hosts = group.addresses
        with holdfast.connect(f"redlock://:s%40cret@{hosts}?node_timeout=500ms") as client, client.lock("x"):
            assert "s@cret" not in repr(client)
        with (
            holdfast.connect(f"redlock://:wr%40ng@{hosts}?node_timeout=500ms", io_timeout=HURRY) as client,
            pytest.raises(EngineUnavailable, match="does not know this user") as caught,
        ):
            client.lock("x").acquire(timeout=0)
        assert "wr@ng" not in str(caught.value)


def test_a_user_with_only_the_rights_that_are_needed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "redlock.md").read_text()
    (rules,) = re.findall(r"^ACL SETUSER app (.*)$", page, re.MULTILINE)
    rules = rules.replace(">password", ">secret")
    with Group([Redis(acl={"app": rules}) for _ in range(3)]) as group:
        url = f"redlock://app:secret@{group.addresses}?node_timeout=500ms"
        with holdfast.connect(url) as client, client.lock("x") as lease:
            assert [info.token for info in client.list()] == [lease.token]
            lease.extend()
        for command in (
            "EVAL x 0",
            "SCRIPT FLUSH",
            "CLIENT KILL ID 1",
            "FLUSHALL",
            "DEL x",
            "CONFIG SET x y",
        ):
            denied = group.members[0].command("ACL", "DRYRUN", "app", *command.split())
            assert b"no permissions" in denied.lower()


def test_all_come_at_once_to_nodes_that_are_empty(three: Sequence[Redis]) -> None:
    """Whichever client initialises them, it becomes one set, and tokens are in one order."""
    url = url_of(three)
    tokens: list[tuple[str, int]] = []

    def take() -> None:
        with holdfast.connect(url) as client, client.lock("x", timeout=30) as lease:
            tokens.append((lease.fence.source, lease.token))

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert len({source for source, _ in tokens}) == 1
    assert [token for _, token in tokens] == sorted({token for _, token in tokens})


# --- what it costs ------------------------------------------------------------------------------


def calls(server: Redis, command: str = "evalsha") -> int:
    told = server.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(told.partition("=")[2].partition(",")[0])


def test_a_grant_is_one_round_trip_and_so_is_its_end(three: Sequence[Redis]) -> None:
    with holdfast.connect(url_of(three)) as client:
        lock = client.lock("x")
        with lock:
            pass
        before = [calls(server) for server in three]
        for _ in range(100):
            with lock:
                pass
        wait_until(
            lambda: [calls(server) - was for server, was in zip(three, before, strict=True)] == [200] * 3
        )


def test_what_is_free_is_taken_in_one_round_however_many(
    three: Sequence[Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several names, all or none."""
    rounds: list[list[str]] = []
    ask = NodeConnections.broadcast

    def asking(self: NodeConnections, op: Broadcast) -> Answers:
        rounds.append([type(request).__name__ for _, request in op.asks[0][1]])
        return ask(self, op)

    monkeypatch.setattr(NodeConnections, "broadcast", asking)
    with holdfast.connect(url_of(three)) as client:
        client_state = client._driver.client_state
        specs = tuple([_spec(client, name) for name in ("a", "b", "c")])
        with client.lock("warm"):
            pass
        rounds.clear()
        taken = client._driver.run(records.acquire_in_order(client_state, specs, "me", 0))
        assert rounds == [["Acquire"] * 3]
        assert isinstance(taken, tuple)
        assert [state.name for state in taken] == ["a", "b", "c"]
        assert {info.name for info in client.list()} == {"a", "b", "c"}
        for state in taken:
            client._driver.run(records.release(client_state, state, 1.0))
        with holdfast.connect(url_of(three)) as other, other.lock("b"):
            refused = client._driver.run(records.acquire_in_order(client_state, specs, "me", 0.3))
            assert isinstance(refused, records.NotGranted)
            wait_until(lambda: {info.name for info in client.list()} == {"b"})


def _spec(client: Client, name: str) -> Spec:
    return client.lock(name)._core.spec


def test_many_wait_over_few_connections_and_what_is_held_is_kept(three: Sequence[Redis]) -> None:
    with holdfast.connect(url_of(three), io_timeout=20) as client, holdfast.connect(url_of(three)) as other:
        held = client.lock("x", ttl=3.0)
        lease = held.acquire()
        assert lease is not None
        waiting = [threading.Thread(target=_take_in_turn, args=(client,)) for _ in range(150)]
        for thread in waiting:
            thread.start()
        wait_until(lambda: len(client._driver.client_state.waiting) == 150)
        wait_until(renewal_of(lease))
        lease.check()
        # Three to take, one to keep, one that tells what was missed; and ours and the other client's.
        assert all(int(server.info("clients")["connected_clients"]) <= 12 for server in three)
        assert other.lock("x").acquire(timeout=0) is None
        assert len(client._driver.client_state.waiting) == 150
        held.release()
        for thread in waiting:
            thread.join(30)
        assert not any(thread.is_alive() for thread in waiting)


def _take_in_turn(client: Client) -> None:
    """However long it takes until all the others wait, too: the holder tells when that is over."""
    with client.lock("x"):
        pass


def test_many_are_renewed_in_a_few_rounds(three: Sequence[Redis], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all of them, two hundred in a round, over one connection to each node."""
    tended: list[int] = []
    rounds: list[int] = []
    tend, ask = RedlockThreads.renew_batch, NodeConnections.broadcast

    def tending(self: RedlockThreads, steps: Steps) -> list[Reply]:
        tended.append(len(steps))
        return tend(self, steps)

    def asking(self: NodeConnections, op: Broadcast) -> Answers:
        # Not what is asked once more: on a busy machine no majority may have answered in the first moment.
        if op.seconds <= WAIT_SECONDS and isinstance(op.asks[0][1][0][1], node.Renew):
            rounds.append(len(op.asks[0][1]))
        return ask(self, op)

    monkeypatch.setattr(RedlockThreads, "renew_batch", tending)
    monkeypatch.setattr(NodeConnections, "broadcast", asking)
    with holdfast.connect(url_of(three)) as client:
        leases: list[Lease] = []
        for number in range(450):
            lease = client.lock(f"{number}", ttl=6.0).acquire()
            assert lease is not None
            leases.append(lease)
        wait_until(renewal_of(leases[0]))
        wait_until(lambda: sum(tended) >= len(leases), message="not all of them were renewed")
        wait_until(lambda: all(lease.remaining > 4.0 for lease in leases))
        for lease in leases:
            lease.check()
    assert sum(rounds) == sum(tended)
    assert len(rounds) == sum(-(-count // RENEWALS_MAX) for count in tended)
    assert len(tended) <= 20, "they are renewed together, however far apart they were taken"


# --- forks --------------------------------------------------------------------------------------


def test_a_forked_child_of_a_loop(three: Sequence[Redis]) -> None:
    code = """
        import asyncio, os, sys
        import holdfast.aio

        async def main():
            locks = holdfast.aio.connect(sys.argv[1])
            lease = await locks.lock("held", ttl=1.5).acquire()
            child = os.fork()
            if child == 0:
                os._exit(0 if lease.lost else 1)
            _, status = os.waitpid(child, 0)
            assert status == 0
            assert not await lease.wait_lost(timeout=2)
            await lease.release()
            await locks.close()
            print("parent", flush=True)

        asyncio.run(main())
    """
    with ExitStack() as stack:
        quiet = ("-W", "ignore:This process:DeprecationWarning")
        process = stack.enter_context(run_python(code, url_of(three), options=quiet))
        process.expect("parent")
