"""Leader election: one leader at a time, whom every client can find, and who is followed at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from contract.engines import lacks, needs
from contract.harness import Actor, World
from holdfast import Client, InvalidArgument, Leader, LockLost, LockTimeout, NotHeld, Unsupported

REPR_OF_BYTES = bytes(range(256))


def elections(client: Client, value: bytes = b"", **options: Any) -> Any:
    """An election of either facade. They have the same names, so tests are typed against neither."""
    return client.election("x", value, **options)


@contextlib.asynccontextmanager
async def leading(actor: Actor, campaign: Any) -> AsyncIterator[Any]:
    """``with campaign`` by this actor."""
    async with actor.inside(campaign) as leadership:
        yield leadership


class Leaders:
    """An observer, read by an actor."""

    def __init__(self, world: World, actor: Actor, election: Any) -> None:
        self._actor = actor
        self._leaders = election.observe()
        names = ("__next__", "close") if world.driver == "threads" else ("__anext__", "aclose")
        self._next, self._close = (getattr(self._leaders, name) for name in names)

    def next(self) -> asyncio.Future[Leader | None]:
        return self._actor(self._next)

    async def close(self) -> None:
        await self._actor(self._close)


async def test_one_leads_and_all_others_find_it(world: World) -> None:
    ann, bob = world.actor("ann"), world.actor("bob")
    mine, theirs = elections(world.client(), b"host:1"), elections(world.client(), b"host:2")
    assert await bob(theirs.leader) is None
    async with leading(ann, mine.campaign()) as leadership:
        leadership.check()
        leader = await bob(theirs.leader)
        assert leader is not None
        assert (leader.value, leader.token) == (b"host:1", leadership.token)
        assert leader.owner.endswith("/ann")
        with pytest.raises(LockTimeout, match="election 'x' was not granted") as late:
            await bob(getattr(theirs.campaign(timeout=0), bob.enter_name))
        assert late.value.name == "x"
    assert await bob(theirs.leader) is None
    async with leading(bob, theirs.campaign(timeout=20)) as next_one:
        assert next_one.token > leadership.token, "the token is the number of the term"
        assert (await ann(mine.leader)).value == b"host:2"


async def test_a_leader_that_resigns_is_followed_at_once(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    mine, theirs = elections(world.client()), elections(world.client(), b"bob")
    campaign, follower = mine.campaign(), theirs.campaign()
    leadership = await ann(getattr(campaign, ann.enter_name))
    waiting = bob(getattr(follower, bob.enter_name))
    await world.until_waiting("_holdfast/election:x", 1)
    with pytest.raises(NotHeld, match="another thread or task"):
        await world.actor()(leadership.resign)
    leadership.check()
    await ann(leadership.resign)
    assert (await waiting).token > leadership.token
    with pytest.raises(NotHeld, match="leadership of 'x'"):
        leadership.check()
    with pytest.raises(NotHeld):
        await ann(leadership.resign)
    await ann(getattr(campaign, ann.exit_name), None, None, None)
    assert (await ann(mine.leader)).value == b"bob", "the end of the block takes nothing from the next leader"
    await bob(getattr(follower, bob.exit_name), None, None, None)


@needs("value")
async def test_a_leader_proclaims_again_and_again(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    mine, theirs = elections(world.client(), b"one"), elections(world.client())
    largest = REPR_OF_BYTES * 256
    async with leading(ann, mine.campaign()) as leadership:
        for value in (b"two", largest, b""):
            await ann(leadership.proclaim, value)
            assert await bob(theirs.leader) == Leader(value, leadership.token, leadership.owner)
        await ann(leadership.proclaim, b"last")
    async with leading(bob, theirs.campaign(timeout=20)):
        assert (await ann(mine.leader)).value == b"", "what the one before proclaimed is not shown"
    with pytest.raises(NotHeld):
        await ann(leadership.proclaim, b"late")
    long = elections(world.client(), largest)
    async with leading(ann, long.campaign(timeout=20)):
        assert (await bob(theirs.leader)).value == largest


async def test_values_of_all_kinds_travel_with_the_grant(world: World) -> None:
    ann, client = world.actor(), world.client()
    for value in (b"", "äöü/{%}".encode(), REPR_OF_BYTES * 4, b"line\nline"):
        election = elections(client, value)
        async with leading(ann, election.campaign(timeout=20)) as leadership:
            assert (await ann(election.leader)).value == value
            if "value" in lacks(world.url):
                await ann(leadership.proclaim, value)
                with pytest.raises(Unsupported, match=r"stores no values.*\w+://"):
                    await ann(leadership.proclaim, b"other")
    if "value" in lacks(world.url):
        with pytest.raises(Unsupported, match=r"at most 1024 bytes.*\w+://"):
            elections(client, REPR_OF_BYTES * 5)


async def test_an_observer_sees_the_present_leader_and_every_change(world: World) -> None:
    ann, eve = world.actor("ann"), world.actor("eve")
    mine, theirs = elections(world.client(), b"one"), elections(world.client())
    leaders = Leaders(world, eve, theirs)
    assert await leaders.next() is None
    waiting = leaders.next()
    async with leading(ann, mine.campaign()) as leadership:
        assert await waiting == Leader(b"one", leadership.token, leadership.owner)
        waiting = leaders.next()
        if "value" not in lacks(world.url):
            await ann(leadership.proclaim, b"two")
            assert (await waiting) == Leader(b"two", leadership.token, leadership.owner)
            waiting = leaders.next()
    assert await waiting is None
    await leaders.close()
    assert not theirs._client._driver.client_state.waiting, "nothing of it is left"


async def test_the_terms_of_a_candidate_go_on_after_a_loss(world: World) -> None:
    ann, client = world.actor(), world.client()
    election = elections(client, b"me")
    terms = election.terms()
    next_term = getattr(terms, "__next__" if world.driver == "threads" else "__anext__")
    close = terms.close if world.driver == "threads" else terms.aclose
    first = await ann(next_term)
    await ann(client.break_lock, election.lock_name, reason="to see what happens")
    second = await ann(next_term)
    assert first.lost
    assert second.token > first.token
    with pytest.raises(LockLost, match=r"leadership of 'x'.*broken"):
        first.check()
    async with leading(ann, second):
        assert (await ann(election.leader)).token == second.token
    assert await ann(election.leader) is None, "it resigned at the end of the block"
    third = await ann(next_term)
    assert third.token > second.token
    await ann(close)
    assert await ann(election.leader) is None


async def test_wrong_arguments_are_refused_before_anything_is_sent(world: World) -> None:
    client = world.client()
    for wrong in ({"ttl": 0}, {"ttl": "30"}, {"grace": -1}, {"value": "text"}, {"value": bytes(65537)}):
        options: dict[str, Any] = {"value": b"", **wrong}
        with pytest.raises(InvalidArgument):
            client.election("x", **options)
    for name in ("", "x" * 513, 7):
        with pytest.raises(InvalidArgument):
            client.election(name)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidArgument, match="timeout"):
        client.election("x").campaign(timeout=-3)
