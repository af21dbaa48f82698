"""How those that wait for jobs are woken, and what they do when the connection breaks."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast.queue
from holdfast.errors import EngineUnavailable, InvalidArgument, Unsupported
from holdfast.lab.proxy import Proxy
from holdfast.queue import Job, NewJob, Queue, aio
from holdfast.queue import store as queue_store
from queue_tests.databases import FRESH_URL
from queue_tests.test_processes import server_in
from support import wait_until
from support.servers import shared_postgresql


def claimed_by_waiting(queue: Queue) -> list[Job]:
    while True:
        if found := queue.claim("a"):
            return found
        queue.wait(1)


def test_a_waiter_is_woken(url: str, queue: Queue) -> None:
    queue.install()
    with holdfast.queue.connect(url) as other:
        found: list[float] = []

        def work() -> None:
            for _ in range(5):
                claimed_by_waiting(other)[0].finish()
                found.append(time.monotonic())

        worker = threading.Thread(target=work)
        worker.start()
        delays = []
        for number in range(5):
            wait_until(lambda number=number: len(found) == number)  # type: ignore[misc]  # bound at once
            put = time.monotonic()
            queue.put("a")
            wait_until(lambda number=number: len(found) == number + 1)  # type: ignore[misc]  # as above
            delays.append(found[-1] - put)
        worker.join()
    assert sorted(delays)[2] < 0.3, delays


def test_a_database_of_serializable_transactions(tmp_path: Path) -> None:
    """The queue's own connections see what was committed before each statement, whatever the default is."""
    url = FRESH_URL["postgresql"](tmp_path)
    url += ("&" if "?" in url else "?") + "options=-c%20default_transaction_isolation%3Dserializable"
    with holdfast.queue.connect(url) as queue:
        jobs = queue.put_many([NewJob("a", number) for number in range(120)])

        def work() -> int:
            done = 0
            while queue.counts()["finished"] < len(jobs):
                for job in queue.claim("a"):
                    job.finish()
                    done += 1
            return done

        with ThreadPoolExecutor(4) as pool:
            workers = [pool.submit(work) for _ in range(4)]
        assert sum(worker.result() for worker in workers) == queue.counts()["finished"]


def test_what_becomes_due_is_waited_for(queue: Queue) -> None:
    queue.put("a", run_at=timedelta(milliseconds=300))
    begun = time.monotonic()
    claimed_by_waiting(queue)
    assert time.monotonic() - begun < 5


def terminate(admin: psycopg.Connection[Any], queue: Queue, connection: Any) -> None:
    admin.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    wait_until(lambda: not queue._store.database.is_usable(connection))


@pytest.mark.engine("postgresql")
def test_terminated_backends(tmp_path: Path) -> None:
    url = FRESH_URL["postgresql"](tmp_path)
    with (
        holdfast.queue.connect(url) as queue,
        psycopg.connect(server_in(url), autocommit=True) as admin,
    ):
        id_ = queue.put("a")
        (job,) = queue.claim("a")
        queue.wait(0.1)
        with queue._store.connection() as (connection, _):
            pids = [connection.info.backend_pid, queue._store._listener.info.backend_pid]
        for pid in pids:
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        wait_until(
            lambda: not admin.execute("SELECT FROM pg_stat_activity WHERE pid = ANY(%s)", (pids,)).fetchall()
        )
        job.check()  # an idle connection that was ended is not used
        with pytest.raises(EngineUnavailable), job.transaction() as db:
            terminate(admin, queue, db)
        found = queue.get(id_)
        assert found is not None
        assert found.state == "running"
        queue.wait(0.1)
        job.finish()


@pytest.mark.engine("postgresql")
def test_a_server_that_is_silent_is_given_up_and_a_slow_one_is_not(tmp_path: Path) -> None:
    """A network that loses everything ends no connection."""
    url = FRESH_URL["postgresql"](tmp_path)
    server = shared_postgresql()
    with Proxy(server.host, server.port) as proxy:
        through = url.replace(server.address, proxy.address)

        async def story() -> None:
            with holdfast.queue.connect(through, io_timeout=0.4) as queue:
                async with aio.connect(through, io_timeout=0.4) as awaited:
                    queue.put_many([NewJob("a"), NewJob("a")])
                    (job,) = queue.claim("a")
                    (other,) = await awaited.claim("a")
                    with job.transaction() as db:
                        db.execute("SELECT pg_sleep(0.5)")
                    async with other.transaction() as own:
                        await own.execute("SELECT pg_sleep(0.5)")
                    proxy.hold()
                    calls = asyncio.to_thread(queue.put, "b"), awaited.put("b")
                    for error in await asyncio.gather(*calls, return_exceptions=True):
                        assert isinstance(error, EngineUnavailable), repr(error)
                        assert "nor on a second connection" in str(error)
                    proxy.pass_on()
                    assert queue.counts()["finished"] == (await awaited.counts())["finished"] == 2

        asyncio.run(story())


@pytest.mark.engine("postgresql")
def test_a_proxy_before_transactions_that_see_old_snapshots_is_refused(tmp_path: Path) -> None:
    url = FRESH_URL["postgresql"](tmp_path)
    url += "&pooler=yes&options=-c%20default_transaction_isolation%3Dserializable"

    async def put() -> None:
        async with aio.connect(url) as queue:
            await queue.put("a")

    for call in (holdfast.queue.connect(url).install, lambda: asyncio.run(put())):
        with pytest.raises(Unsupported, match="default_transaction_isolation = 'read committed'"):
            call()


def test_a_forked_child_has_connections_of_its_own(url: str, queue: Queue) -> None:
    queue.put("a")
    (job,) = queue.claim("a")
    queue.wait(0.05)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            queue.put("from the child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    job.finish()
    assert len(queue.claim("from the child")) == 1


def test_a_long_transaction_in_a_lane_keeps_no_claimant_waiting(queue: Queue, url: str) -> None:
    if url.startswith("sqlite"):
        return  # its one writer keeps all others waiting
    queue.put("a", key="k", ordered=True)
    queue.claim("a", lease=0.05)
    with psycopg.connect(server_in(url), prepare_threshold=None) as db:
        queue.put("a", key="k", ordered=True, connection=db)
        queue.put("b")
        assert len(wait_until(lambda: queue.claim("b"))) == 1
        for _ in range(3):
            assert queue.claim("a") == []
            queue.wait(0.05)
    assert len(wait_until(lambda: queue.claim("a"))) == 1


# --- what cannot be used


def test_unreachable() -> None:
    with (
        holdfast.queue.connect("postgresql://me:geheim@127.0.0.1:1/none", io_timeout=1) as queue,
        pytest.raises(EngineUnavailable) as refused,
    ):
        queue.put("a")
    assert "geheim" not in f"{refused.value!r} {refused.value} {queue!r}"


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="postgresql://"):
        holdfast.queue.connect("redis://localhost")
    with pytest.raises(InvalidArgument, match="schema"):
        holdfast.queue.connect("postgresql://localhost/x?schema=Bad;")
    with pytest.raises(InvalidArgument, match="no option 'shema'"):
        holdfast.queue.connect("postgresql://localhost/x?shema=shop")
    with pytest.raises(InvalidArgument, match="synchronous"):
        holdfast.queue.connect("sqlite:///x.db?synchronous=off")
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path / 'chosen.db'}")
    with holdfast.queue.connect() as queue:
        queue.put("a")
    assert (tmp_path / "chosen.db").exists()
    with pytest.raises(InvalidArgument, match="closed"):
        queue.put("a")


def test_a_database_of_locks_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass
    with holdfast.queue.connect(url) as queue, pytest.raises(InvalidArgument, match="database of locks"):
        queue.put("a")


@pytest.mark.engine("postgresql")
def test_the_script_of_the_administrator(tmp_path: Path) -> None:
    url = FRESH_URL["postgresql"](tmp_path)
    with psycopg.connect(server_in(url), autocommit=True) as admin:
        admin.execute(holdfast.queue.script(url).encode())
    with holdfast.queue.connect(url) as queue:
        assert not queue.install()
        queue.put("a")


@pytest.mark.engine("postgresql")
def test_an_interrupt_before_it_listens_leaves_no_deaf_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(namespace: str) -> str:
        raise KeyboardInterrupt

    with holdfast.queue.connect(FRESH_URL["postgresql"](tmp_path)) as queue:
        queue.install()
        with monkeypatch.context() as patched:
            patched.setattr(queue_store, "listen_to", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.wait(0.1)
        assert queue.wait(0.1), "it listens from now on, so what was put before has to be looked for"


def test_a_queue_that_is_closed_while_others_wait(url: str) -> None:
    queue = holdfast.queue.connect(url)
    queue.install()
    while queue.wait(0.01):
        pass  # it listens
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                queue.wait(1)
        except BaseException as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(queue._store._listening.locked)
    queue.close()
    waiter.join(20)
    (error,) = errors
    assert isinstance(error, InvalidArgument), repr(error)
    assert "closed" in str(error)


@pytest.mark.parametrize("password", ["s3cret%zz", "s3cret%20 x", "s3cret"])
def test_a_password_is_in_no_error(password: str) -> None:
    """libpq repeats what it cannot read."""
    queue = holdfast.queue.connect(f"postgresql://ann:{password}@127.0.0.1:1/x", io_timeout=1)
    with queue, pytest.raises(EngineUnavailable) as raised:
        queue.put("a")
    assert "s3cret" not in "".join(traceback.format_exception_only(raised.value))
    assert "s3cret" not in repr(raised.value.__cause__)
