"""After fork() the child has connections of its own, and says nothing on those of its parent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.lab.servers import Redis
from support import run_python


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


THREADS = """
    import os, threading
    import holdfast

    locks = holdfast.connect(URL)
    lease = locks.lock("held", ttl=30).acquire()
    waiter = threading.Thread(target=lambda: locks.lock("held", timeout=60).acquire().release(), daemon=True)
    waiter.start()
    while not locks.inspect("held").waiters:
        pass
    adapter = locks._driver.adapter
    child = os.fork()
    if child == 0:
        assert lease.lost
        assert locks._driver.adapter is not adapter
        with locks.lock("child") as own:
            assert own.token > 0
        assert locks.inspect("held").holders[0].pid == os.getppid()
        print("child", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    lease.check()
    lease.extend()
    lease.release()
    waiter.join(20)
    assert not waiter.is_alive()
    print("parent", flush=True)
"""

ASYNCIO = """
    import asyncio, os
    import holdfast.aio

    async def main():
        locks = holdfast.aio.connect(URL)
        lease = await locks.lock("held", ttl=30).acquire()
        waiter = asyncio.ensure_future(locks.lock("held", timeout=60).acquire())
        while not (await locks.inspect("held")).waiters:
            pass
        while locks._driver.client_state.keeper_wakes_at == float("inf"):
            await asyncio.sleep(0)
        locks._driver.notify_all()  # keeper and waiter are about to run in the loop that the child inherits
        child = os.fork()
        if child == 0:
            assert lease.lost
            return locks, None
        _, status = os.waitpid(child, 0)
        assert status == 0
        lease.check()
        await lease.extend()
        await lease.release()
        await (await waiter).release()
        await locks.close()
        print("parent", flush=True)
        return None, None

    async def in_child(locks):
        async with locks.lock("child") as own:
            assert own.token > 0
        assert (await locks.inspect("held")).holders[0].pid == os.getppid()
        await locks.close()

    loop = asyncio.new_event_loop()
    locks, _ = loop.run_until_complete(main())
    if locks is not None:
        again = asyncio.new_event_loop()
        again.run_until_complete(in_child(locks))
        print("child", flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize("code", [THREADS, ASYNCIO], ids=["threads", "asyncio"])
def test_a_child_leaves_its_parents_connections_alone(server: Redis, code: str) -> None:
    with run_python(code.replace("URL", repr(server.url))) as process:
        process.expect("child")
        process.expect("parent")
        assert process.wait() == 0
