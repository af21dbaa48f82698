"""What an engine cannot do it refuses, with the reason and the name of one that can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from contract.engines import FRESH_URL, LACKS, each_engine, lacks
from contract.harness import World, held
from holdfast import Client, Lock, Unsupported, ownership

MAKE: dict[str, Callable[[Client], Lock]] = {
    "rwlock": lambda client: client.rwlock("x").read(),
    "semaphore": lambda client: client.semaphore("x", 2),
}

REASONS: dict[str, dict[str, str]] = {
    "redlock": {
        "rwlock": "a quorum of independent nodes has no reader/writer locks",
        "semaphore": "a semaphore cannot be split over a quorum of independent nodes",
        "resize": "a quorum of independent nodes has plain locks only",
        "value": "independent nodes have no one place for a value",
    },
}


def why(world: World, what: str) -> str:
    """What the refusal says: the reason, and an engine that can."""
    return REASONS.get(world.url.partition("://")[0], {}).get(what, "") + r".*\w+://"


@pytest.mark.parametrize("scheme", each_engine())
def test_the_guarantees_say_what_is_lacking(scheme: str, tmp_path: Path) -> None:
    with holdfast.connect(FRESH_URL[scheme](tmp_path)) as client:
        promised = client.guarantees
    lacking = LACKS.get(scheme, frozenset())
    assert {kind for kind in MAKE if kind not in promised.primitives} == lacking & MAKE.keys()
    assert promised.is_fifo == ("queue" not in lacking)
    assert promised.has_counted_queue == ("counted queue" not in lacking)
    assert promised.has_values == ("value" not in lacking)
    assert promised.has_cells == ("cells" not in lacking)
    assert promised.can_export == ("handing over" not in lacking)


async def test_what_is_lacking_is_refused_by_name(world: World) -> None:
    ann, client = world.actor(), world.client()
    missing = lacks(world.url)
    for kind in MAKE.keys() & missing:
        for timeout in (0, 5):
            with pytest.raises(Unsupported, match=why(world, kind)):
                await ann(MAKE[kind](client).acquire, timeout=timeout)
    if "rwlock" in missing:
        with pytest.raises(Unsupported, match=why(world, "rwlock")):
            await ann(client.rwlock("x").write().acquire, timeout=0)
    if "semaphore" in missing:
        with pytest.raises(Unsupported, match=why(world, "resize")):
            await ann(client.semaphore("x", 2).resize, 3)
    if "value" in missing:
        lease = held(await ann(client.lock("x").acquire))
        with pytest.raises(Unsupported, match=why(world, "value")):
            await ann(lease.set_value, b"x")
        lease.check()
    if "value" in missing:
        with pytest.raises(Unsupported, match=r"stores no results.*\w+://"):
            client.idempotent("x")
    if "cells" in missing:
        for make in (client.cell, client.counter):
            with pytest.raises(Unsupported, match=r"no cells.*\w+://"):
                make("x")
        with pytest.raises(Unsupported, match=r"no jobs.*\w+://"):
            client.job("x")
        for limited in (client.latch, client.barrier):
            with pytest.raises(Unsupported, match=r"no cells.*\w+://"):
                limited("x", 2)
        for call in (lambda: ownership.join(client, "x"), lambda: ownership.groups(client)):
            with pytest.raises(Unsupported, match=r"no assignment.*\w+://"):
                call()
    if "handing over" in missing:
        lock = client.lock("z")
        lease = held(await ann(lock.acquire))
        with pytest.raises(Unsupported, match=r"\w+://"):
            await ann(lease.export)
        lease.check()
        assert world.look("z").holders[0].token == lease.token, "it is held as before"
        await ann(lock.release)
    if "queue" in missing:
        with pytest.raises(Unsupported, match="fair=True"):
            client.lock("x", fair=True)
        assert await ann(client.lock("y", fair=False).acquire, timeout=0) is not None
