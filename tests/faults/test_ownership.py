"""Members in processes of their own: killed, or standing still for longer than their leases last."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from contract.engines import FRESH_URL, fresh_namespace
from holdfast import ownership
from holdfast.lab.servers import Redis
from holdfast.ownership import GroupInfo
from support import Process, run_python, wait_until
from support.thorough import THOROUGH

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "sharded_consumer.py"

MEMBER = """
import os
import sys
import holdfast
from holdfast import ownership

url, namespace, partitions, ttl, *name = sys.argv[1:]
with holdfast.connect(url, namespace=namespace) as client:
    member = ownership.join(client, "g", int(partitions), *name, ttl=float(ttl), rejoin_within=600)
    # A line in one step: each callback is on a thread of its own.
    member.on_lost(lambda partition, lease: os.write(1, b"lost %d\\n" % partition))
    print("joined", member.name, flush=True)
    sys.stdin.readline()
"""

WORKERS, PARTITIONS = (10, 1000) if THOROUGH else (4, 40)
SHARE = PARTITIONS // WORKERS

ENGINES = ["sqlite", "redis", "postgresql", "etcd"]


def each(*schemes: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "scheme", [pytest.param(scheme, marks=pytest.mark.engine(scheme)) for scheme in schemes]
    )


class Crew:
    """The members of a group, each a process, and an observer."""

    def __init__(self, url: str, stack: ExitStack, ttl: float = 2.0) -> None:
        self.url, self.namespace, self.ttl = url, fresh_namespace(), ttl
        self.stack = stack
        self.observer = stack.enter_context(holdfast.connect(url, namespace=self.namespace))

    def join(self, partitions: int, *name: str) -> tuple[str, Process]:
        words = (self.url, self.namespace, str(partitions), str(self.ttl), *name)
        process = self.stack.enter_context(run_python(MEMBER, *words))
        return process.expect("joined").strip(), process

    def show(self) -> GroupInfo:
        info = ownership.show(self.observer, "g")
        assert info is not None
        return info

    def settled(self, members: int) -> GroupInfo:
        def look() -> GroupInfo | None:
            info = self.show()
            return info if len(info.members) == members and info.settled else None

        found = wait_until(look, timeout=60.0)
        assert found is not None
        return found


@each(*(["sqlite", "redis"] if THOROUGH else ENGINES))
def test_a_killed_member_moves_its_share_and_no_more(
    scheme: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """At most 1.2 times the share of the dead one may move; in fact nothing but its share does."""
    with ExitStack() as stack:
        crew = Crew(FRESH_URL[scheme](tmp_path), stack)
        members = dict(crew.join(PARTITIONS) for _ in range(WORKERS))
        before = crew.settled(WORKERS)
        assert {len(member.owned) for member in before.members} == {SHARE}
        (dead, process) = members.popitem()
        killed_at = time.monotonic()
        process.kill()
        after = crew.settled(WORKERS - 1)
        took = time.monotonic() - killed_at
        moved = [
            old.partition
            for old, new in zip(before.owners, after.owners, strict=True)
            if old is not None and new is not None and old.token != new.token
        ]
        record_property("moved", len(moved))
        record_property("seconds to calm", round(took, 2))
        assert len(moved) <= 1.2 * SHARE
        owned = {member.member: set(member.owned) for member in before.members}
        assert set(moved) == owned[dead]
        loads = [len(member.owned) for member in after.members]
        assert max(loads) - min(loads) <= 1


@each("sqlite", "redis")
def test_a_member_that_is_paused_is_taken_out_and_comes_back(scheme: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        crew = Crew(FRESH_URL[scheme](tmp_path), stack, ttl=1.0)
        name, paused = crew.join(4)
        crew.join(4)
        before = crew.settled(2)
        (mine,) = [member.owned for member in before.members if member.member == name]
        paused.stop()
        during = crew.settled(1)
        paused.cont()
        lost: set[int] = set()
        while not lost >= set(mine):  # on a slow machine it may have lost some before
            lost.add(int(paused.expect("lost")))
        after = crew.settled(2)
        for partition in mine:
            old, new = before.owners[partition], during.owners[partition]
            assert old is not None
            assert new is not None
            assert new.token > old.token
        assert {len(member.owned) for member in after.members} == {2}


@each("sqlite", "redis")
def test_a_killed_member_with_a_name_gets_its_partitions_back(scheme: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        crew = Crew(FRESH_URL[scheme](tmp_path), stack, ttl=1.0)
        _, first = crew.join(6, "web-1")
        crew.join(6, "web-2")
        before = crew.settled(2)
        first.kill()
        wait_until(lambda: not crew.show().members[0].present)
        crew.join(6, "web-1")
        after = crew.settled(2)
        assert after.generation == before.generation, "nothing was moved"
        for old, new in zip(before.owners, after.owners, strict=True):
            assert old is not None
            assert new is not None
            assert old.member == new.member
            assert (old.token != new.token) == (old.member == "web-1")


@pytest.mark.engine("redis")
def test_leaving_does_not_wait_for_an_engine_that_stands_still() -> None:
    """Partitions are revoked, as always, and not lost when the leases end."""
    called: list[tuple[str, int]] = []
    with Redis() as server, holdfast.connect(server.url, io_timeout=0.5) as client:
        member = ownership.join(client, "g", 2, ttl=600)
        member.on_revoked(lambda partition, lease: called.append(("revoked", partition)))
        member.on_lost(lambda partition, lease: called.append(("lost", partition)))
        wait_until(lambda: len(member.owned) == 2)
        server.pause()
        member.leave()
        assert sorted(called) == [("revoked", 0), ("revoked", 1)]
        server.resume()
        with ownership.join(client, "g", 2, ttl=600) as another:  # what was held is released meanwhile
            wait_until(lambda: len(another.owned) == 2)


@each("sqlite", "redis", "postgresql")
def test_the_example_loses_and_repeats_nothing(scheme: str, tmp_path: Path) -> None:
    url = FRESH_URL[scheme](tmp_path)
    with run_python(None, url, "--messages", "400", script=EXAMPLE, cwd=tmp_path) as child:
        child.close_stdin()
        printed = child.succeed(110.0)
    assert "False" not in printed
    assert "each message has one result, in the order of its key: True" in printed
