"""Cells: small values that change by compare-and-swap, and belong to nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.engines import needs
from contract.harness import World, held
from holdfast import Conflict, InvalidArgument

pytestmark = needs("cells")


async def test_a_write_names_the_version_that_it_replaces(world: World) -> None:
    ann, client = world.actor(), world.client()
    cell = client.cell("x")
    assert await ann(cell.get) == (None, 0)
    first = await ann(cell.set_if, 0, b"one")
    assert first > 0
    assert await ann(cell.get) == (b"one", first)
    second = await ann(cell.set_if, first, b"")
    assert second > first
    assert await ann(cell.get) == (b"", second)
    for outdated in (0, first, second + 1):
        with pytest.raises(Conflict, match=f"version {second}, not {outdated}") as refused:
            await ann(cell.set_if, outdated, b"lost")
        assert (refused.value.name, refused.value.version) == ("x", second)
    assert await ann(world.client().cell("x").get) == (b"", second)


async def test_an_update_begins_again_when_another_writer_came_first(world: World) -> None:
    ann, mine, other = world.actor(), world.client().cell("x"), world.client().cell("x")
    assert await ann(mine.update, lambda value: (value or b"") + b"a") == b"a"
    assert await ann(other.update, lambda value: (value or b"") + b"b") == b"ab"
    seen: list[bytes | None] = []

    def append(value: bytes | None) -> bytes:
        seen.append(value)
        return (value or b"") + b"c"

    assert await ann(mine.update, append) == b"abc"
    assert seen == [b"a", b"ab"], "it begins from what it saw last, without a read"
    assert (await ann(other.get))[0] == b"abc"


async def test_an_update_that_refuses_has_seen_the_cell_as_it_is_now(world: World) -> None:
    """It may begin from an old value, because a write is compared; a refusal writes nothing."""
    ann, mine, other = world.actor(), world.client().cell("x"), world.client().cell("x")

    def take_one(value: bytes | None) -> bytes:
        if value == b"0":
            raise LookupError("sold out")
        return b"%d" % (int(value or b"1") - 1)

    assert await ann(mine.update, take_one) == b"0"
    with pytest.raises(LookupError):
        await ann(mine.update, take_one)
    await ann(other.update, lambda value: b"9")
    assert await ann(mine.update, take_one) == b"8"


async def test_no_addition_is_lost(world: World) -> None:
    actors = [world.actor() for _ in range(4)]
    counters = [world.client().counter("hits") for _ in actors]

    async def add(index: int) -> list[int]:
        return [await actors[index](counters[index].add) for _ in range(10)]

    sums = await asyncio.gather(*[add(index) for index in range(len(actors))])
    assert sorted(total for each in sums for total in each) == list(range(1, 41)), (
        "every sum was returned to one writer alone"
    )
    assert await actors[0](counters[0].get) == 40
    assert await actors[0](counters[0].add, -15) == 25


async def test_a_cell_has_nothing_to_do_with_a_lock_of_its_name(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    await ann(client.cell("x").set_if, 0, b"free")
    lease.check()
    assert world.look("x").value is None
    assert (await ann(client.cell("y").get)) == (None, 0)


async def test_the_largest_value_and_wrong_arguments(world: World) -> None:
    ann, client = world.actor(), world.client()
    cell, largest = client.cell("é/{%}"), bytes(range(256)) * 256
    version = await ann(cell.set_if, 0, largest)
    assert await ann(cell.get) == (largest, version)
    with pytest.raises(InvalidArgument, match="65536"):
        await ann(cell.update, lambda value: largest + b"!")
    wrong_versions: list[Any] = [-1, "1", None, True, 1.0]
    for wrong in wrong_versions:
        with pytest.raises(InvalidArgument, match="version"):
            await ann(cell.set_if, wrong, b"")
    wrong_value: Any = "text"
    with pytest.raises(InvalidArgument, match="bytes"):
        await ann(cell.set_if, version, wrong_value)
    with pytest.raises(InvalidArgument, match="whole number"):
        await ann(client.counter("é/{%}").add)
    with pytest.raises(InvalidArgument, match="empty"):
        client.cell("")
    assert await ann(cell.get) == (largest, version)


async def test_cells_are_not_listed_as_names_and_the_locks_of_recipes_are(world: World) -> None:
    ann, client = world.actor(), world.client()
    await ann(client.lock("a").acquire)
    await ann(client.cell("x").set_if, 0, b"value")
    await ann(client.counter("hits").add)
    await ann(client.latch("x", 2).count_down)
    await ann(client.barrier("x", 2).abort)

    async def listed(prefix: str = "") -> list[str]:
        return [info.name for info in await ann(client.list, prefix)]

    assert await listed() == ["a"]
    assert await listed("_holdfast/cell:") == []
    waiting = world.actor("bob")(client.barrier("y", 2).wait)
    parties = "_holdfast/parties:y"
    await world.until(lambda: world.look(parties).locked)
    assert await listed() == [parties, "a"]
    assert sorted([await ann(client.barrier("y", 2).wait), await waiting]) == [0, 1]
