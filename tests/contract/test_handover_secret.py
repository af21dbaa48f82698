"""The exported text is a capability: its secret is what adopts, and nothing that a record tells does."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from contract.engines import needs
from contract.harness import World, held
from holdfast import InvalidArgument, NotHeld
from holdfast.core.handover import parse, seal_of

pytestmark = needs("handing over")

PREFIX = "holdfast1:"


def fields_of(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text.removeprefix(PREFIX)))
    return fields


def forged(fields: dict[str, Any], **changes: Any) -> str:
    return PREFIX + base64.urlsafe_b64encode(json.dumps(fields | changes).encode()).decode()


async def test_all_but_the_secret_adopts_nothing(world: World) -> None:
    """Nonce, token and owner stand in the record; a client that reads them has no more than that."""
    ann, eve, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=20).acquire))
    text = await ann(lease.export)
    fields = fields_of(text)
    seal = seal_of(fields["secret"])
    reported = [str(lease.token), seal, seal.rpartition("/")[2], world.look("x").holders[0].owner]
    for secret in [*reported, fields["secret"] + "0"]:
        with pytest.raises(InvalidArgument, match="secret"):
            await eve(world.client().adopt, forged(fields, secret=secret))
    head, _, random = fields["secret"].rpartition("-")
    for secret in (lease.id, f"{head}-{random[:-1]}", f"{head}-{random[::-1]}", f"{head}-{'0' * 32}"):
        with pytest.raises(NotHeld, match=r"'x' cannot be adopted: .* secret"):
            await eve(world.client().adopt, forged(fields, secret=secret))
    (holder,) = world.look("x").holders
    assert (holder.token, holder.owner, holder.client) == (lease.token, "exported", "")
    taken = await ann(world.client().adopt, text)
    assert taken.token == lease.token
    taken.check()


async def test_a_text_without_a_secret_is_refused_before_the_engine_is_asked(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    text = await ann(lease.export)
    fields = fields_of(text)
    without = {key: value for key, value in fields.items() if key != "secret"}
    for damaged in (
        without,
        fields | {"secret": ""},
        fields | {"secret": None},
        fields | {"secret": "é" * 32},
    ):
        with pytest.raises(InvalidArgument, match="export"):
            await ann(world.client().adopt, forged(damaged))
    assert (await ann(client.adopt, text)).token == lease.token


async def test_what_was_never_exported_is_not_adopted(world: World) -> None:
    """A client that knows all that the record has of a holder makes up a text, with a secret of its own."""
    ann, eve, client, another = world.actor(), world.actor(), world.client(), world.client()
    other = held(await ann(client.lock("y", ttl=20).acquire))
    fields = fields_of(await ann(other.export))
    lease = held(await ann(client.lock("x", ttl=20).acquire))
    with pytest.raises(NotHeld):
        await eve(another.adopt, forged(fields, name="x", nonce=lease.id))
    lease.check()
    await ann(lease.release)
    assert not world.look("x").locked


async def test_exported_again_the_latest_text_counts(world: World) -> None:
    """The adopter hands it on: the first text is worth nothing then, although it names the same grant."""
    ann, bob, eve = world.actor(), world.actor(), world.actor()
    lease = held(await ann(world.client().lock("x", ttl=20).acquire))
    first = await ann(lease.export)
    taken = await bob(world.client().adopt, first)
    second = await bob(taken.export)
    assert fields_of(first)["nonce"] == fields_of(second)["nonce"]
    with pytest.raises(NotHeld):
        await eve(world.client().adopt, first)
    last = await eve(world.client().adopt, second)
    last.check()
    assert last.token == lease.token


async def test_the_secret_is_random_and_not_shown(world: World) -> None:
    ann, client = world.actor(), world.client()
    secrets = set()
    for name in ("x", "y"):
        lease = held(await ann(client.lock(name).acquire))
        text = await ann(lease.export)
        secret = parse(text).secret
        random = secret.rpartition("-")[2]
        assert len(bytes.fromhex(random)) >= 16, "128 bits at least"
        assert random not in lease.id
        assert random not in repr(parse(text)), "nor in a traceback that shows its variables"
        assert random not in repr(lease)
        assert random not in repr(world.look(name))
        secrets.add(random)
    assert len(secrets) == 2
