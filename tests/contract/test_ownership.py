"""Single ownership: each partition of a group belongs to one live member, and moves only when it must."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from contract.engines import needs
from contract.harness import Actor, World
from holdfast import Client, InvalidArgument, NotHeld, ownership
from holdfast.ownership import GroupInfo, Member, Owner
from holdfast.ownership import aio as async_ownership
from support import async_wait_until

pytestmark = [needs("cells"), needs("rwlock")]

TTL = 20.0


class Crew:
    """Members of one group, each with a client of its own unless it is given one."""

    def __init__(self, world: World, partitions: int = 8) -> None:
        self.world = world
        self.partitions = partitions
        self.api: Any = ownership if world.driver == "threads" else async_ownership
        self.looker, self.looking = world.actor("looker"), world.client()
        self.joined: list[Member] = []

    async def join(self, actor: Actor, client: Client | None = None, **options: Any) -> Member:
        given = {"partitions": self.partitions, "ttl": TTL, **options}
        member: Member = await actor(self.api.join, client or self.world.client(), "g", **given)
        self.joined.append(member)
        return member

    async def show(self) -> GroupInfo:
        info: GroupInfo | None = await self.looker(self.api.show, self.looking, "g")
        assert info is not None
        return info

    async def settled(self, count: int) -> GroupInfo:
        """The group once it has so many members, and each owns what it is to own, and knows it."""
        for _ in range(2000):
            info = await self.show()
            if len(info.members) == count and info.settled and self.knows(info):
                return info
            await asyncio.sleep(0.01)
        raise AssertionError(f"never settled: {info}")

    def knows(self, info: GroupInfo) -> bool:
        """A grant is in the engine a moment before its owner knows of it."""
        known = {(member.name, member.owned) for member in self.joined}
        return all((member.member, frozenset(member.owned)) in known for member in info.members)


def loads(info: GroupInfo) -> list[int]:
    return sorted(len(member.owned) for member in info.members)


async def test_partitions_are_shared_out_and_few_of_them_move(world: World) -> None:
    crew = Crew(world, 9)
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    first = await crew.join(ann)
    await crew.settled(1)
    assert first.owned == frozenset(range(9))
    second = await crew.join(bob)
    before = await crew.settled(2)
    assert loads(before) == [4, 5]
    assert not first.owned & second.owned
    third = await crew.join(cid)
    after = await crew.settled(3)
    assert loads(after) == [3, 3, 3]
    moved = [p for p in range(9) if before.owners[p] != after.owners[p]]
    assert len(moved) == 3, "the share of the newcomer, and no other partition"
    assert all(owner is not None and owner.member == third.name for owner in (after.owners[p] for p in moved))
    await cid(third.leave)
    assert third.owned == frozenset()
    assert loads(await crew.settled(2)) == [4, 5]
    await bob(second.leave)
    await crew.settled(1)
    assert first.owned == frozenset(range(9))
    await ann(first.leave)
    await ann(first.leave)
    assert (await crew.show()).members == ()
    assert not first.active


async def test_every_member_knows_the_owner_of_a_key(world: World) -> None:
    crew = Crew(world)
    ann, bob = world.actor(), world.actor()
    members = [await crew.join(ann), await crew.join(bob)]
    await crew.settled(2)
    for key in ("customer-7", b"\xff", "é"):
        partition = members[0].partition_of(key)
        (owner,) = [member for member in members if member.owns(key)]
        lease = owner.lease_of(partition)
        lease.check()
        expected = Owner(owner.name, partition, lease.token)
        for actor, member in zip((ann, bob), members, strict=True):
            assert await actor(member.owner_of, key) == expected
        assert await crew.looker(crew.api.owner_of, crew.looking, "g", key) == expected
        (other,) = [member for member in members if member is not owner]
        with pytest.raises(NotHeld, match="not owned by this member"):
            other.lease_of(partition)
    assert [info.group for info in await crew.looker(crew.api.groups, crew.looking)] == ["g"]
    assert await crew.looker(crew.api.show, crew.looking, "other") is None
    assert await crew.looker(crew.api.owner_of, crew.looking, "other", "x") is None


async def test_a_partition_is_handed_over_when_its_work_has_stopped(world: World) -> None:
    crew = Crew(world, 2)
    ann, bob = world.actor(), world.actor()
    events: list[tuple[str, str, int]] = []
    go = threading.Event()

    def note(who: str, what: str) -> Callable[[int, Any], None]:
        return lambda partition, lease: events.append((who, what, partition))

    def drain(partition: int, lease: Any) -> Any:
        lease.check()
        events.append(("ann", "stops", partition))
        if world.driver == "threads":
            go.wait(20)
            events.append(("ann", "stopped", partition))
            return None

        async def stopped() -> None:
            await async_wait_until(go.is_set)
            events.append(("ann", "stopped", partition))

        return stopped()

    first = await crew.join(ann, on_revoked=drain)
    await crew.settled(1)
    tokens = [first.lease_of(partition).token for partition in range(2)]
    first.on_assigned(note("ann", "assigned"))
    second = await crew.join(bob, on_assigned=note("bob", "assigned"))
    await world.until(lambda: any(what == "stops" for _, what, _ in events))
    assert len(first.owned) == 1, "no new work on a partition that is to move"
    (moving,) = {0, 1} - first.owned
    first.lease_of(moving).check()
    assert await bob(second.owner_of, "x") is not None
    assert second.owned == frozenset()
    go.set()
    await crew.settled(2)
    await world.until(lambda: ("bob", "assigned", moving) in events)
    assert sorted(events[:2]) == [("ann", "assigned", 0), ("ann", "assigned", 1)], "also those it had got"
    assert events[2:] == [("ann", "stops", moving), ("ann", "stopped", moving), ("bob", "assigned", moving)]
    assert second.lease_of(moving).token > tokens[moving]


async def test_a_member_whose_work_does_not_stop_is_taken_out_until_it_has(world: World) -> None:
    crew = Crew(world, 4)
    ann, bob = world.actor(), world.actor()
    lost: list[int] = []
    go = threading.Event()

    def hang(partition: int, lease: Any) -> Any:
        if world.driver == "threads":
            return go.wait(20)

        async def hanging() -> None:
            await async_wait_until(go.is_set)

        return hanging()

    first = await crew.join(
        ann, on_revoked=hang, on_lost=lambda partition, lease: lost.append(partition), drain=0.1
    )
    await crew.settled(1)
    second = await crew.join(bob)
    await world.until(lambda: second.owned == frozenset(range(4)), "it did not take over")
    assert sorted(lost) == [0, 1, 2, 3]
    assert not first.active
    go.set()
    assert loads(await crew.settled(2)) == [2, 2]
    assert first.active


async def test_a_lost_partition_is_reported_and_acquired_again(world: World) -> None:
    crew = Crew(world, 1)
    ann, bob = world.actor(), world.actor()
    events: list[tuple[str, int]] = []
    member = await crew.join(
        ann,
        on_assigned=lambda partition, lease: events.append(("assigned", lease.token)),
        on_lost=lambda partition, lease: events.append(("lost", lease.token)),
    )
    await crew.settled(1)
    await world.until(lambda: len(events) == 1)
    token = member.lease_of(0).token
    assert await bob(crew.looking.break_lock, member.lease_of(0).name, reason="test") is not None
    await world.until(lambda: len(events) == 3, "it was not acquired again")
    assert events[:2] == [("assigned", token), ("lost", token)]
    assert events[2] == ("assigned", member.lease_of(0).token)
    assert member.lease_of(0).token > token


async def test_a_member_with_a_name_gets_its_partitions_back(world: World) -> None:
    crew = Crew(world, 8)
    ann, bob = world.actor(), world.actor()
    first = await crew.join(ann, member="web-1", rejoin_within=600)
    other = await crew.join(bob, member="web-2", rejoin_within=600)
    before = await crew.settled(2)
    await ann(first.leave, True)
    gone = await crew.show()
    assert [(member.member, member.present) for member in gone.members] == [("web-1", False), ("web-2", True)]
    assert gone.generation == before.generation
    await crew.join(ann, member="web-1", rejoin_within=600)
    after = await crew.settled(2)
    assert [owner and owner.member for owner in after.owners] == [
        owner and owner.member for owner in before.owners
    ]
    assert len(other.owned) == 4


async def test_what_is_kept_for_a_name_is_given_up_after_a_while(world: World) -> None:
    crew = Crew(world, 4)
    ann, bob = world.actor(), world.actor()
    client = world.client()
    await crew.join(ann, client, member="web-1", rejoin_within=0.3)
    other = await crew.join(bob)
    await crew.settled(2)
    await ann(client.close)
    await crew.settled(1)
    assert other.owned == frozenset(range(4))


async def test_closing_the_client_stops_the_work(world: World) -> None:
    crew = Crew(world, 2)
    ann, client = world.actor(), world.client()
    lost: list[int] = []
    member = await crew.join(ann, client, on_lost=lambda partition, lease: lost.append(partition))
    await crew.settled(1)
    await ann(client.close)
    await world.until(lambda: sorted(lost) == [0, 1])
    assert (member.owned, member.active) == (frozenset(), False)
    await ann(member.leave)


async def test_the_newer_of_two_processes_has_the_name(world: World) -> None:
    crew = Crew(world, 4)
    ann, bob = world.actor(), world.actor()
    older = await crew.join(ann, member="web-1")
    await crew.settled(1)
    newer = await crew.join(bob, member="web-1")
    await world.until(lambda: newer.owned == frozenset(range(4)))
    assert older.owned == frozenset()
    await world.until(lambda: not older.active)
    await ann(older.leave)


async def test_a_callback_that_raises_stops_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    crew = Crew(world, 2)
    ann, bob = world.actor(), world.actor()

    def fail(partition: int, lease: Any) -> None:
        raise ZeroDivisionError

    await crew.join(ann, on_assigned=fail, on_revoked=fail)
    await crew.settled(1)
    await crew.join(bob)
    await crew.settled(2)
    await world.until(lambda: "an on_revoked callback of partition" in caplog.text)
    assert "an on_assigned callback of partition" in caplog.text


async def test_work_that_is_cancelled_has_stopped(world: World) -> None:
    """A callback that awaits the task it has cancelled ends with CancelledError."""
    crew = Crew(world, 4)
    ann, bob = world.actor(), world.actor()

    def end(partition: int, lease: Any) -> Any:
        if world.driver == "threads":
            raise SystemExit

        async def cancel() -> None:
            work = asyncio.ensure_future(asyncio.Event().wait())
            await asyncio.sleep(0)
            work.cancel()
            await work

        return cancel()

    member = await crew.join(ann, on_revoked=end, on_lost=end, drain=600)
    await crew.settled(1)
    assert await bob(crew.looking.break_lock, member.lease_of(0).name, reason="test") is not None
    await crew.settled(1)
    await crew.join(bob)
    assert loads(await crew.settled(2)) == [2, 2]


async def test_every_member_has_the_same_number_of_partitions(world: World) -> None:
    crew = Crew(world, 4)
    ann, bob = world.actor(), world.actor()
    member = await crew.join(ann)
    with pytest.raises(InvalidArgument, match="has 4 partitions, not 5"):
        await crew.join(bob, partitions=5)
    assert len((await crew.settled(1)).members) == 1
    await ann(member.leave)
    await crew.join(bob, partitions=5)
    assert (await crew.settled(1)).partitions == 5


async def test_leaving_is_the_end_of_the_block(world: World) -> None:
    crew = Crew(world, 2)
    ann = world.actor()

    def block() -> Any:
        joined = crew.api.join(world.client(), "g", 2, ttl=TTL)
        if not inspect.isawaitable(joined):
            with joined as member:
                assert isinstance(member, Member)
                return member

        async def inside() -> Any:
            async with await joined as member:
                return member

        return inside()

    member = await ann(block)
    assert not member.active
    assert (await crew.show()).members == ()


async def test_wrong_arguments(world: World) -> None:
    crew = Crew(world)
    ann = world.actor()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("between 1 and 4096", {"partitions": 0}),
        ("between 1 and 4096", {"partitions": 5000}),
        ("whole number", {"partitions": "8"}),
        ("empty", {"member": ""}),
        ("64 bytes", {"member": "x" * 65}),
        ("ttl", {"ttl": 0}),
        ("drain must be bounded", {"drain": None}),
        ("rejoin_within must be bounded", {"rejoin_within": -1}),
        ("on_lost takes a function", {"on_lost": "stop"}),
    ]
    if world.driver == "threads":  # it would never be awaited

        async def begin(partition: int, lease: Any) -> None: ...

        wrong.append(("is async, and this member is for threads", {"on_assigned": begin}))
    for message, options in wrong:
        with pytest.raises(InvalidArgument, match=message):
            await crew.join(ann, **options)
    with pytest.raises(InvalidArgument, match="empty"):
        await ann(crew.api.join, crew.looking, "")
    with pytest.raises(InvalidArgument, match=r"takes a client of holdfast.*this is NoneType"):
        await ann(crew.api.join, None, "g")
    member = await crew.join(ann)
    number: Any = 7
    with pytest.raises(InvalidArgument, match="on_revoked takes a function"):
        member.on_revoked(number)
    with pytest.raises(InvalidArgument, match=r"str\(key\)"):
        member.owns(number)
    text: Any = "7"
    with pytest.raises(InvalidArgument, match="partition_of"):
        member.lease_of(text)
