"""Backends that are terminated, and a server that is restarted under a subscriber."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator

import psycopg
import pytest

from events.stores import new_store, open_store, url_of
from fencing.sql_clients import new_database
from holdfast import events
from holdfast.errors import EngineUnavailable
from holdfast.lab.servers import PostgreSQL
from support import run_python, wait_until

pytestmark = pytest.mark.engine("postgresql")


def test_a_backend_terminated_in_the_middle_of_an_append() -> None:
    """All of it or nothing is there, and the next append goes by another connection."""
    database = new_database("postgresql")
    url = url_of(database)
    with open_store(database) as store, psycopg.connect(url) as blocker, psycopg.connect(url) as killer:
        store.append("stream", [{"n": 1}])
        store.append("stream", [{"n": 2}], connection=blocker)
        outcome: list[BaseException | int] = []

        def write() -> None:
            try:
                outcome.append(store.append("stream", [{"n": 3}, {"n": 4}]))
            except BaseException as error:
                outcome.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        killer.autocommit = True
        terminate = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%append_1%'"
        )
        wait_until(lambda: killer.execute(terminate).fetchall())
        writer.join()
        assert isinstance(outcome[0], EngineUnavailable)
        assert "not known: read the stream" in str(outcome[0])
        blocker.rollback()
        assert [event.data["n"] for event in store.read("stream")] == [1]
        assert store.append("stream", [{"n": 5}], 1) == 2


def test_an_idle_connection_that_was_terminated_is_not_used() -> None:
    database = new_database("postgresql")
    with open_store(database) as store, psycopg.connect(url_of(database), autocommit=True) as killer:
        for version in range(3):
            assert store.append("a", [{}], version) == version + 1
            killer.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


def test_a_server_restarted_under_a_subscriber() -> None:
    with PostgreSQL() as server, events.connect(server.url) as store, store.subscribe() as subscription:
        store.append("a", [{"n": 1}])
        seen: list[int] = []
        reader = threading.Thread(target=lambda: seen.extend(event.data["n"] for event in subscription))
        reader.start()
        wait_until(lambda: seen == [1])
        server.stop()
        server.start()
        wait_until(lambda: append(store, 2))
        wait_until(lambda: seen[-1] == 2)
        subscription.close()
        reader.join()
        assert sorted(set(seen)) == [1, 2]
        assert len(seen) == len(list(store.read("a"))), "each once"


def append(store: events.EventStore, number: int) -> bool:
    try:
        return bool(store.append("a", [{"n": number}]))
    except EngineUnavailable:
        return False


def test_a_server_that_never_was_is_the_subscribers_to_know() -> None:
    store = events.connect("postgresql://postgres@127.0.0.1:1/nowhere")
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1/nowhere cannot be reached: .*refused"):
        store.subscribe()


@pytest.mark.parametrize("password", ["s3cret%zz", "s3cret%20 x", "s3cret"])
def test_a_server_that_cannot_be_reached_is_named_without_the_password(password: str) -> None:
    store = events.connect(f"postgresql://ann:{password}@127.0.0.1:1/x", io_timeout=1)
    with pytest.raises(EngineUnavailable, match="refused") as raised:
        store.append("a", [{"n": 1}])
    assert raised.value.nothing_was_sent
    assert "not known" not in str(raised.value), "nothing was sent"
    assert "s3cret" not in f"{raised.value} {raised.value.__cause__!r}"


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process has so many files open that the next one has a descriptor beyond those of ``select``."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.dup(opened[0]))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_with_large_descriptors(many_files: None) -> None:
    with new_store("postgresql") as store:
        for number in range(2):
            store.append("a", [{"n": number}])
        with store.subscribe() as subscription:
            assert [subscription.get(20) is not None for _ in range(2)] == [True, True]
            assert subscription.get(0.05) is None


FORK = """
import os, sys
from holdfast import events

def backend():
    return subscription._connection._table.connection.info.backend_pid

store = events.connect(sys.argv[1])
store.append("a", [{"n": 1}])
subscription = store.subscribe()
assert subscription.get(20).version == 1
parents = backend()
pid = os.fork()
if pid == 0:
    code = 1
    try:
        store.append("a", [{"n": 2}])
        code = 0 if subscription.get(20).version == 2 and backend() != parents else 2
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child used the connection of its parent"
assert subscription.get(20).version == 2
assert backend() == parents
"""


def test_a_subscription_goes_on_in_a_forked_child_by_a_connection_of_its_own() -> None:
    with run_python(FORK, url_of(new_database("postgresql"))) as process:
        process.succeed()
