"""fork() while connected: the child sends nothing on inherited connections, and keeps none open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from faults.children import acting
from holdfast import Client
from support import wait_until
from support.servers import shared_postgresql

THREADS = """
lock = locks.lock("x", ttl=4.5)
lease = lock.acquire()
deadline = time.monotonic() + 10
while not locks._driver.adapter._wakeups.has_notifications and time.monotonic() < deadline:
    time.sleep(0.01)
def sockets():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if "socket" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(name)
        except FileNotFoundError:
            pass
    return found

print("connected", flush=True)
sys.stdin.readline()
inherited = sockets()
assert inherited
pid = os.fork()
if pid == 0:
    try:
        child()
    except BaseException as error:
        print("child failed", repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"
print("joined", lease.token, flush=True)
sys.stdin.readline()
lease.check()
lock.release()
print("released", flush=True)
"""

SILENT = """
def child():
    import gc
    global locks, lock, lease
    left = sockets() & inherited
    assert not left, left
    lease.release()
    lock.release()
    locks.close()
    del locks, lock, lease
    gc.collect()
"""

ANEW = """
def child():
    other = locks.lock("x").acquire(blocking=False)
    assert other is None, "the parent holds it"
    with locks.lock("y") as mine:
        assert mine.token
        ids = [locks.inspect(name).holders[0].client for name in ("x", "y")]
        assert ids[0] != ids[1], "it goes by the parent's name"
    locks.close()
"""

ASYNCIO = """
import asyncio
import holdfast.aio

async def main():
    locks = holdfast.aio.connect(sys.argv[1])
    lock = locks.lock("x", ttl=4.5)
    lease = await lock.acquire()
    while not locks._driver.adapter._wakeups.has_notifications:
        await asyncio.sleep(0.01)
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    pid = os.fork()
    if pid == 0:
        import gc
        del lock, lease, locks
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    print("joined", lease.token, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    lease.check()
    await lock.release()
    print("released", flush=True)
    await locks.close()

asyncio.run(main())
"""


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        yield client


@pytest.mark.parametrize(
    "code", [SILENT + THREADS, ANEW + THREADS, ASYNCIO], ids=["silent", "anew", "asyncio"]
)
def test_the_parent_goes_on_undisturbed(url: str, schema: str, locks: Client, code: str) -> None:
    """On the very same connections: the server saw none of them end."""
    named = f"{url}&application_name={schema}"
    backends = f"SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE application_name = '{schema}'"
    with acting(named, code) as process:
        process.expect("connected", timeout=30)
        before = shared_postgresql().sql(backends)  # now: a child has connections of its own for a while
        process.send()
        token = int(process.expect("joined", timeout=30))
        wait_until(lambda: locks.inspect("x").holders[0].age > 5.0)  # beyond its ttl
        assert [holder.token for holder in locks.inspect("x").holders] == [token]
        assert set(before.split(",")) <= set(shared_postgresql().sql(backends).split(","))
        process.send()
        process.expect("released")
        process.succeed()
        assert not process.stderr_lines, process.stderr
    assert not locks.inspect("x").locked


def test_a_child_that_lives_on_keeps_no_connection_of_its_parents(url: str, schema: str) -> None:
    """The parent is killed; the server sees its connections end, although a child is left."""
    code = """
lock = locks.lock("x", ttl=600)
lease = lock.acquire()
while not locks._driver.adapter._wakeups.has_notifications:
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    print("child lives", flush=True)
    while True:
        time.sleep(1)
sys.stdin.readline()
"""
    count = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'"
    with acting(f"{url}&application_name={schema}", code) as process:
        process.expect("child lives")
        assert int(shared_postgresql().sql(count)) >= 2
        process.kill()
        wait_until(lambda: shared_postgresql().sql(count) == "0")
