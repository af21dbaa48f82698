"""Names are any text, each of one kind, and namespaces do not see each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract.engines import lacks, needs
from contract.harness import World, held
from holdfast import Client, InvalidArgument, Lock

NAMES = [
    "invoices",
    " ",
    "a b\tc\nd",
    "naïve café",
    "锁/ロック/🔒",
    "e\u0301 is not \u00e9",
    "a/b//c/../d",
    "/leading and trailing/",
    'it\'s "quoted" `so`',
    "100% _like_ [a-z]* ?",
    "semi;colon -- comment /* x */",
    "back\\slash",
    "nul\x00byte",
    "\x01\x7f\u200b\ufeff",
    "{braces}:colon:#hash",
    "x" * 512,
    "é" * 256,
    "🔒" * 128,
    "None",
    "0",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_any_text_is_a_name(world: World, name: str) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client()
    lock = client.lock(name)
    lease = held(await ann(lock.acquire))
    assert lease.name == lock.name == name
    assert await bob(world.client().lock(name).acquire, blocking=False) is None
    info = await ann(client.inspect, name)
    assert (info.name, info.holders[0].token) == (name, lease.token)
    assert [each.name for each in await ann(client.list)] == [name]
    has_value = "value" not in lacks(world.url)
    if has_value:
        await ann(lease.set_value, b"\x00\xff")
    await ann(lock.release)
    info = await ann(client.inspect, name)
    assert (info.locked, info.value) == (False, b"\x00\xff" if has_value else None)


async def test_names_that_look_alike_are_apart(world: World) -> None:
    ann, client = world.actor(), world.client()
    alike = ["x", "X", "x ", " x", "x/", "x%", "x\x00", "x\x00y", "é", "e\u0301"]
    leases = [held(await ann(client.lock(name).acquire, timeout=0)) for name in alike]
    assert len({lease.id for lease in leases}) == len(alike)


@pytest.mark.parametrize("wrong", ["", "x" * 513, "é" * 257, "\ud800", "a\udfffb", b"x", None, 7])
async def test_what_is_no_name_is_refused(world: World, wrong: str) -> None:
    ann, client = world.actor(), world.client()
    for make in (client.lock, client.rlock, client.rwlock):
        with pytest.raises(InvalidArgument, match="name"):
            make(wrong)
    with pytest.raises(InvalidArgument, match="name"):
        client.semaphore(wrong, 1)
    with pytest.raises(InvalidArgument, match="name"):
        await ann(client.inspect, wrong)
    with pytest.raises(InvalidArgument, match="name"):
        await ann(client.break_lock, wrong, reason="no such name")
    with pytest.raises(InvalidArgument, match="name"):
        client.watch(wrong)


KINDS: dict[str, Callable[[Client], Lock]] = {
    "lock": lambda client: client.lock("x"),
    "rwlock": lambda client: client.rwlock("x").read(),
    "semaphore": lambda client: client.semaphore("x", 1),
}


@needs("rwlock", "semaphore")
@pytest.mark.parametrize("first", KINDS)
async def test_a_name_has_one_kind(world: World, first: str) -> None:
    """Also after every client has gone, because one may come back."""
    ann, client = world.actor(), world.client()
    lock = KINDS[first](client)
    await ann(lock.acquire)
    for still_held in (True, False):
        if not still_held:
            await ann(lock.release)
        for second in KINDS.keys() - {first}:
            with pytest.raises(InvalidArgument, match=f"is a {first}, here it is used as a {second}"):
                await ann(KINDS[second](world.client()).acquire)
    if first != "semaphore":
        with pytest.raises(InvalidArgument, match=f"is a {first}"):
            await ann(client.semaphore("x", 1).resize, 2)
    assert await ann(lock.acquire, timeout=0) is not None


NAMESPACES = ["a", "b", "A", "a/b", "a b", "%", "a'--", "锁"]


async def test_namespaces_do_not_see_each_other(world: World) -> None:
    ann = world.actor()
    clients = [world.client(namespace=world.namespace + suffix) for suffix in NAMESPACES]
    for number, client in enumerate(clients, start=1):
        lock = client.lock("x") if "semaphore" in lacks(world.url) else client.semaphore("x", number)
        assert await ann(lock.acquire, timeout=0) is not None
        assert await ann(client.lock(f"only in {client.namespace}").acquire, timeout=0) is not None
    for client in clients:
        assert [info.name for info in await ann(client.list)] == [f"only in {client.namespace}", "x"]
        assert len((await ann(client.inspect, "x")).holders) == 1


async def test_a_name_and_a_namespace_do_not_run_together(world: World) -> None:
    ann = world.actor()
    base = world.namespace
    one, two = world.client(namespace=f"{base}/b"), world.client(namespace=base)
    assert await ann(one.lock("c").acquire, timeout=0) is not None
    assert await ann(two.lock("b/c").acquire, timeout=0) is not None


@pytest.mark.parametrize("wrong", ["", "x" * 513, "\ud800", None])
async def test_what_is_no_namespace_is_refused(world: World, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="namespace"):
        world.client(namespace=wrong)
