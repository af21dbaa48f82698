"""fork() while holding: the child owns nothing, disturbs nothing, and may begin anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from faults.children import acting
from holdfast import Client
from support import Seen, renewal_of, run_python, wait_until
from support.servers import shared_redis

# In each program below, `child` is what the forked process does; it ends with os._exit unless told otherwise.
FORK = """
import gc, warnings
lock = locks.lock("x", ttl=4)
lease = lock.acquire()
told = []
lease.on_lost(told.append)
print("held", lease.token, lease.owner, flush=True)
pid = os.fork()
if pid == 0:
    try:
        child()
        sys.stdout.flush()
    except BaseException as error:
        print("child failed", repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"
print("joined", flush=True)
sys.stdin.readline()
lease.check()
assert told == []
lock.release()
print("released", flush=True)
"""


@pytest.fixture
def locks(sqlite_url: str) -> Iterator[Client]:
    with holdfast.connect(sqlite_url) as client:
        yield client


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.engine("redis"))])
def url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """Of files that a process has open, and of connections: a child inherits both."""
    if request.param == "sqlite":
        return sqlite_url
    shared_redis().commands(("SELECT", "6"), ("FLUSHDB",))
    return f"{shared_redis().url}/6"


@pytest.fixture
def looking(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        yield client


def seen(locks: Client) -> Seen:
    """The parent's lease, as another client sees it."""
    return Seen(lambda: locks.inspect("x").holders[0].remaining)


def parent_is_undisturbed(url: str, locks: Client, child_code: str) -> list[str]:
    """Run it; the parent must still hold, still renew and still release. Returns what was printed."""
    with acting(url, child_code + FORK) as process:
        token = int(process.expect("held").split()[0])
        process.expect("joined", timeout=30)
        wait_until(renewal_of(seen(locks)))
        assert [holder.token for holder in locks.inspect("x").holders] == [token]
        process.send()
        process.expect("released")
        process.succeed()
        assert not locks.inspect("x").locked
        assert not process.stderr_lines, process.stderr
        return process.stdout_lines


def test_release_in_the_child_is_a_no_op(url: str, looking: Client) -> None:
    parent_is_undisturbed(
        url,
        looking,
        """
def child():
    lock.release()
    lease.release()
    assert lease.lost and lease.remaining == 0
    try:
        lease.check()
    except holdfast.LockLost as loss:
        assert loss.reason == "forked", loss.reason
    else:
        raise AssertionError("the child thinks that it holds the lock")
    assert lock.lease is None
""",
    )


def test_collecting_garbage_in_the_child_says_and_does_nothing(url: str, looking: Client) -> None:
    parent_is_undisturbed(
        url,
        looking,
        """
def child():
    global lock, lease, locks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del lock, lease, locks
        gc.collect()
""",
    )


def test_closing_in_the_child_closes_nothing_of_the_parents(sqlite_url: str, locks: Client) -> None:
    parent_is_undisturbed(sqlite_url, locks, "def child():\n    locks.close()\n")


def test_leaving_with_in_the_child_is_a_no_op(url: str, looking: Client) -> None:
    """The child runs out of the parent's own ``with``."""
    code = """
lock = locks.lock("x", ttl=4)
with lock as lease:
    print("held", lease.token, flush=True)
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        print("joined", flush=True)
        sys.stdin.readline()
        lease.check()
print("left", os.getpid() if pid == 0 else "parent", flush=True)
"""
    with acting(url, code) as process:
        token = int(process.expect("held"))
        process.expect("left")
        process.expect("joined")
        assert [holder.token for holder in looking.inspect("x").holders] == [token]
        process.send()
        process.expect("left")
        process.succeed()
        assert not looking.inspect("x").locked


def test_the_child_exits_in_order_and_releases_nothing(url: str, looking: Client) -> None:
    """With exit handlers and all, as ``sys.exit`` does it."""
    code = FORK.replace("    os._exit(0)", "    sys.exit(0)")
    with acting(url, "def child():\n    pass\n" + code) as process:
        token = int(process.expect("held").split()[0])
        process.expect("joined", timeout=30)
        assert [holder.token for holder in looking.inspect("x").holders] == [token]
        process.send()
        process.expect("released")
        process.succeed()


def test_the_child_may_begin_anew(sqlite_url: str, locks: Client) -> None:
    """The same client, first used in the child, is another owner: it sees the parent hold the lock."""
    lines = parent_is_undisturbed(
        sqlite_url,
        locks,
        """
def child():
    assert lock.acquire(blocking=False) is None, "the parent holds it"
    info = locks.inspect("x")
    assert info.holders[0].pid == os.getppid()
    mine = locks.lock("y").acquire(timeout=5)
    print("child owner", mine.owner, flush=True)
    other = locks.inspect("y").holders[0]
    assert other.client != info.holders[0].client
    assert other.pid == os.getpid()
    mine.check()
    mine.release()
    with holdfast.connect(sys.argv[1]) as fresh, fresh.lock("z", ttl=0.5):
        pass
    locks.close()
""",
    )
    parent = next(line for line in lines if line.startswith("held")).split()[2]
    child = next(line for line in lines if line.startswith("child owner")).split()[2]
    assert parent != child


def test_the_child_waits_for_its_parent(sqlite_url: str, locks: Client) -> None:
    code = """
lock = locks.lock("x", ttl=30)
lease = lock.acquire()
print("held", lease.token, flush=True)
pid = os.fork()
if pid == 0:
    mine = lock.acquire(timeout=20)
    print("child granted", mine.token, flush=True)
    lock.release()
    locks.close()
    os._exit(0)
sys.stdin.readline()
lock.release()
assert os.waitpid(pid, 0)[1] == 0
again = lock.acquire(timeout=5)
print("again", again.token, flush=True)
lock.release()
"""
    with acting(sqlite_url, code) as process:
        first = int(process.expect("held"))
        wait_until(lambda: locks.inspect("x").waiters)
        process.send()
        second = int(process.expect("child granted"))
        third = int(process.expect("again"))
        assert first < second < third
        process.succeed()


def test_the_child_does_not_keep_its_dead_parents_lock(sqlite_url: str, locks: Client) -> None:
    """The holder forked and was killed; the child lives on, with everything it inherited."""
    code = """
lock = locks.lock("x", ttl=600)
lease = lock.acquire()
pid = os.fork()
if pid == 0:
    print("child lives", flush=True)
    while True:
        time.sleep(1)
sys.stdin.readline()
"""
    with acting(sqlite_url, code) as process:
        process.expect("child lives")
        process.kill()
        lease = locks.lock("x").acquire(timeout=10)
        assert lease is not None
        lease.release()


def test_a_fork_while_other_threads_are_in_the_middle_of_it(sqlite_url: str, locks: Client) -> None:
    """Mutexes that a thread held at the moment of the fork do not stop the child."""
    code = """
stop = threading.Event()
def busy(name):
    while not stop.is_set():
        with locks.lock(name):
            pass
threads = [threading.Thread(target=busy, args=(f"busy-{n}",), daemon=True) for n in range(3)]
for thread in threads:
    thread.start()
for number in range(15):
    pid = os.fork()
    if pid == 0:
        try:
            with locks.lock(f"child-{number}", timeout=15):
                pass
            locks.close()
        except BaseException as error:
            print("child failed", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
print("all well", flush=True)
"""
    with acting(sqlite_url, code) as process:
        process.expect("all well", timeout=60)
        process.succeed()
        assert locks.list() == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(tmp_path: object, method: str) -> None:
    """A pool of workers that all use the locks of one module."""
    path = f"{tmp_path}/work.py"
    with open(path, "w") as module:
        module.write(
            f"""
import multiprocessing
import holdfast
locks = holdfast.connect("sqlite:///{tmp_path}/locks.db")

def work(number):
    with locks.lock("x") as lease:
        return lease.token

if __name__ == "__main__":
    with locks.lock("warm up"):
        pass
    with multiprocessing.get_context({method!r}).Pool(3) as pool:
        tokens = pool.map(work, range(30), chunksize=1)
        pool.close()
        pool.join()
    assert len(set(tokens)) == 30
    assert not locks.inspect("x").locked
    print("all well", flush=True)
"""
        )
    with run_python(script=path) as process:
        process.expect("all well", timeout=60)
        process.succeed()


def test_an_asyncio_client_across_a_fork(sqlite_url: str, locks: Client) -> None:
    code = """
import asyncio
import holdfast.aio

aio = holdfast.aio.connect(sys.argv[1])

async def parent():
    lease = await aio.lock("x", ttl=4).acquire()
    print("held", lease.token, flush=True)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if lease.lost and lease.remaining == 0 else 1)
    assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
    print("joined", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    lease.check()
    await lease.release()
    await aio.close()
    print("released", flush=True)

asyncio.run(parent())
"""
    with acting(sqlite_url, code) as process:
        token = int(process.expect("held"))
        process.expect("joined")
        wait_until(renewal_of(seen(locks)))
        assert locks.inspect("x").holders[0].token == token
        process.send()
        process.expect("released")
        process.succeed()


def test_an_asyncio_client_begins_anew_in_the_child(sqlite_url: str, locks: Client) -> None:
    code = """
import asyncio
import holdfast.aio

aio = holdfast.aio.connect(sys.argv[1])
lock = aio.lock("x", ttl=30)

async def take():
    lease = await lock.acquire(timeout=10)
    print(options["who"], lease.owner, flush=True)
    return lease

options["who"] = "parent"
loop = asyncio.new_event_loop()
lease = loop.run_until_complete(take())
pid = os.fork()
if pid == 0:
    async def child():
        assert lease.lost
        await lease.release()  # nothing happens
        assert await lock.acquire(blocking=False) is None, "the parent holds it"
        mine = await aio.lock("y").acquire(timeout=5)
        print("child", mine.owner, flush=True)
        await mine.release()
        await aio.close()
    code = 0
    try:
        asyncio.run(child())
    except BaseException as error:
        print("failed", repr(error), flush=True)
        code = 1
    os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
lease.check()
loop.run_until_complete(aio.close())
loop.close()
print("all well", flush=True)
"""
    with acting(sqlite_url, code) as process:
        parent = process.expect("parent")
        assert process.expect("child") != parent
        process.expect("all well")
        process.succeed()
    assert not locks.inspect("x").locked


BARRIER = """
barrier = locks.barrier("x", 2, ttl=1)
assert barrier.n_waiting() == 0
pid = os.fork()
if pid == 0:
    try:
        barrier.wait(30)
    except BaseException as error:
        print("child failed", repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"
print("joined", flush=True)
"""


def test_a_barrier_from_before_the_fork_keeps_its_party_in_the_child_alive(url: str, looking: Client) -> None:
    with acting(url, BARRIER) as process:
        parties = "_holdfast/parties:x"
        wait_until(lambda: looking.inspect(parties).locked)
        wait_until(renewal_of(Seen(lambda: looking.inspect(parties).holders[0].remaining)))
        looking.barrier("x", 2).wait(20)
        process.expect("joined", timeout=30)
        process.succeed()
