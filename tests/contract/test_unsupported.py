"""What an engine cannot do it refuses, with the reason and the name of one that can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from contract.engines import FRESH_URL, LACKS, each_engine, lacks
from contract.harness import World, held
from holdfast import Client, Lock, Unsupported

MAKE: dict[str, Callable[[Client], Lock]] = {
    "rwlock": lambda client: client.rwlock("x").read(),
    "semaphore": lambda client: client.semaphore("x", 2),
}


@pytest.mark.parametrize("scheme", each_engine())
def test_the_guarantees_say_what_is_lacking(scheme: str, tmp_path: Path) -> None:
    with holdfast.connect(FRESH_URL[scheme](tmp_path)) as client:
        promised = client.guarantees
    lacking = LACKS.get(scheme, frozenset())
    assert {kind for kind in MAKE if kind not in promised.primitives} == lacking & MAKE.keys()
    assert promised.fifo.startswith("no") == ("queue" in lacking)


async def test_what_is_lacking_is_refused_by_name(world: World) -> None:
    ann, client = world.actor(), world.client()
    missing = lacks(world.url)
    for kind in MAKE.keys() & missing:
        for timeout in (0, 5):
            with pytest.raises(Unsupported, match=r"\w+://"):
                await ann(MAKE[kind](client).acquire, timeout=timeout)
    if "value" in missing:
        lease = held(await ann(client.lock("x").acquire))
        with pytest.raises(Unsupported, match=r"\w+://"):
            await ann(lease.set_value, b"x")
        lease.check()
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
