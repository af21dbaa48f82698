"""A lease on its way from one process to another, as text."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pytest

from contract.engines import needs, takes_seconds
from contract.harness import World, held
from holdfast import InvalidArgument, LockLost, NotHeld
from support import renewal_of

pytestmark = needs("handing over")


async def test_the_adopter_has_the_same_grant(world: World) -> None:
    ann, bob = world.actor("ann"), world.actor("bob")
    giver, taker = world.client(), world.client()
    lock = giver.lock("x", ttl=20, metadata={"job": "7"})
    given = held(await ann(lock.acquire))
    text = await ann(given.export)
    assert isinstance(text, str)
    assert text.isascii()
    taken = await bob(taker.adopt, text)
    assert (taken.token, taken.id, taken.fence) == (given.token, given.id, given.fence)
    assert (taken.name, taken.kind, taken.mode, taken.ttl) == ("x", "lock", "exclusive", 20)
    assert taken.metadata == {"job": "7"}
    taken.check()
    (holder,) = world.look("x").holders
    assert holder.thread == "bob"
    assert holder.token == given.token
    await bob(taken.release)
    assert not world.look("x").locked


async def test_the_exporter_has_it_no_more(world: World) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x")
    lease = held(await ann(lock.acquire))
    await ann(lease.export)
    assert lease.remaining == 0
    assert not lease.lost
    assert lock.lease is None
    with pytest.raises(NotHeld, match="exported"):
        lease.check()
    with pytest.raises(NotHeld, match="exported"):
        await ann(lease.release)
    with pytest.raises(NotHeld):
        await ann(lock.release)
    with pytest.raises(NotHeld):
        await ann(lease.export)
    assert world.look("x").locked, "it is held for the adopter"


async def test_leaving_with_after_an_export_gives_nothing_back(world: World) -> None:
    ann, client = world.actor(), world.client()
    async with ann.inside(client.lock("x")) as lease:
        text = await ann(lease.export)
    assert world.look("x").holders[0].token == lease.token
    assert (await ann(world.client().adopt, text)).token == lease.token


async def test_it_is_adopted_once(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    text = await ann(lease.export)
    taker = world.client()
    taken = await ann(taker.adopt, text)
    for again in (taker, world.client(), client):
        with pytest.raises(NotHeld, match="adopted"):
            await ann(again.adopt, text)
    taken.check()
    await ann(taken.release)
    with pytest.raises(NotHeld):
        await ann(world.client().adopt, text)


async def test_the_exporter_may_take_it_back(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    back = await ann(client.adopt, await ann(lease.export))
    back.check()
    assert back.token == lease.token
    await ann(back.release)
    assert not world.look("x").locked


@takes_seconds
async def test_it_waits_one_ttl_for_its_adopter(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=2.0).acquire))
    text = await ann(lease.export)
    newer = held(await bob(client.lock("x").acquire, timeout=20))
    assert newer.token > lease.token
    with pytest.raises(NotHeld, match="'x'"):
        await ann(world.client().adopt, text)
    newer.check()


async def test_it_outlives_the_client_that_exported_it(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=20).acquire))
    text = await ann(lease.export)
    await ann(client.close)
    assert world.look("x").locked
    taken = await ann(world.client().adopt, text)
    assert taken.token == lease.token


@takes_seconds
async def test_it_is_kept_after_adoption(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=3.0).acquire))
    taken = await ann(world.client().adopt, await ann(lease.export))
    await world.until(renewal_of(taken))
    taken.check()


async def test_every_kind_can_be_handed_over(world: World) -> None:
    ann, client, taker = world.actor(), world.client(), world.client()
    for lock in world.one_of_each(client):
        lease = held(await ann(lock.acquire))
        taken = await ann(taker.adopt, await ann(lease.export))
        assert (taken.token, taken.kind, taken.mode) == (lease.token, lease.kind, lease.mode)
        taken.check()


@takes_seconds
async def test_max_hold_goes_along(world: World) -> None:
    """A hung holder must not hold for ever, and neither must an adopter."""
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=20, max_hold=2.5).acquire))
    taken = await ann(world.client().adopt, await ann(lease.export))
    assert taken.remaining <= 2.5
    assert await ann(taken.wait_lost, timeout=20) is True
    with pytest.raises(LockLost) as loss:
        taken.check()
    assert loss.value.reason == "max_hold"
    await world.until_free("x")


async def test_what_is_lost_is_not_exported(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=0.2, renew=False).acquire))
    await world.until(lambda: lease.lost)
    with pytest.raises(LockLost):
        await ann(lease.export)


async def test_another_namespace_is_another_lock(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    text = await ann(lease.export)
    with pytest.raises(InvalidArgument, match="namespace"):
        await ann(world.client(namespace=world.namespace + "-another").adopt, text)
    await ann(client.adopt, text)


def _changed(text: str, **changes: Any) -> str:
    prefix, _, payload = text.partition(":")
    fields = json.loads(base64.urlsafe_b64decode(payload))
    fields.update(changes)
    fields = {key: value for key, value in fields.items() if value is not ...}
    return prefix + ":" + base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


async def test_damaged_text_is_refused_and_changes_nothing(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    text = await ann(lease.export)
    damaged: list[Any] = [
        "",
        "x",
        None,
        7,
        text[:-5],
        text[:20],
        text.swapcase(),
        text + "é",
        text.replace("holdfast1:", "holdfast2:"),
        "holdfast1:",
        "holdfast1:" + base64.urlsafe_b64encode(b"[1, 2]").decode(),
        "holdfast1:" + base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        _changed(text, nonce=...),
        _changed(text, more=1),
        _changed(text, name=""),
        _changed(text, name=5),
        _changed(text, ttl=0),
        _changed(text, ttl="30"),
        _changed(text, ttl=None),
        _changed(text, kind="banana"),
        _changed(text, kind=None),
        _changed(text, mode="sideways"),
        _changed(text, mode="read"),
        _changed(text, nonce=None),
        _changed(text, grace=None),
        _changed(text, grace="0"),
        _changed(text, grace=-1),
        _changed(text, grace=10**9),
        _changed(text, namespace=3),
    ]
    for each in damaged:
        with pytest.raises(InvalidArgument, match="export"):
            await ann(world.client().adopt, each)
    assert (await ann(client.adopt, text)).token == lease.token


async def test_pickling_a_lease_says_what_to_do_instead(world: World) -> None:
    ann = world.actor()
    lease = held(await ann(world.client().lock("x").acquire))
    with pytest.raises(TypeError, match=r"export\(\)"):
        pickle.dumps(lease)
