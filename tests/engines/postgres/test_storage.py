"""What is kept in the table: any name, in any database; values; and how the old is forgotten."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

import holdfast
from holdfast import Client
from holdfast.engines.postgres.scripts import VERSION
from support.servers import shared_postgresql
from support.waiting import wait_until

DAY = 86_400

NAMES = [
    "x",
    "\0",
    "a\0b",
    "é☃𝄞",
    "'; DROP TABLE locks; --",
    '"',
    "\\",
    "%s",
    "$1",
    " ",
    "x" * 512,
    "☃" * 170,
]


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        client.list()
        yield client


@pytest.fixture
def connection(locks: Client) -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared_postgresql().url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_a_database_of_another_encoding(encoding: str) -> None:
    server, name = shared_postgresql(), f"db_{secrets.token_hex(4)}"
    server.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    try:
        with holdfast.connect(f"{server.url.removesuffix('postgres')}{name}") as client:
            for lock_name in NAMES:
                lease = client.lock(lock_name, metadata={"who": lock_name[:40]}).acquire()
                assert lease is not None
                info = client.inspect(lock_name)
                assert info.name == lock_name
                assert info.holders[0].metadata == {"who": lock_name[:40]}
                client.break_lock(lock_name, reason=f"because {lock_name}")
                with pytest.raises(holdfast.LockLost):
                    lease.release()
    finally:
        server.sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_names_are_listed_by_prefix_and_in_order(locks: Client) -> None:
    with ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(locks.lock(name))
        assert [info.name for info in locks.list()] == sorted(NAMES, key=str.encode)
        assert {info.name for info in locks.list("x")} == {"x", "x" * 512}
        assert [info.name for info in locks.list("☃☃")] == ["☃" * 170]
        assert locks.list("no such") == []


def test_a_long_list_comes_in_pages(locks: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("statements", "store"):
        monkeypatch.setattr(f"holdfast.engines.postgres.{module}.PAGE", 3)
    with ExitStack() as stack:
        for number in range(9):
            stack.enter_context(locks.lock(f"x{number}"))
        assert [info.name for info in locks.list()] == [f"x{number}" for number in range(9)]
        assert len(locks.list("x1")) == 1


def test_a_value_of_any_bytes_up_to_the_limit(locks: Client) -> None:
    data = bytes(range(256)) * 256
    with locks.lock("x") as lease:
        lease.set_value(data)
    assert locks.inspect("x").value == data
    assert [info.value for info in locks.list()] == [data], (
        "a name with a value is listed, though nobody holds it"
    )


# --- forgetting ---------------------------------------------------------------------------------


def age(connection: psycopg.Connection, schema: str, days: float) -> None:
    """Let everything have happened so long ago."""
    connection.execute(
        f"""
        UPDATE {schema}.locks SET changed_at = changed_at - {days * DAY}, next_at = next_at - {days * DAY},
            holders = (SELECT array_agg(ROW (nonce, client, owner, mode, token, since - {days * DAY},
                expires_at - {days * DAY}, ttl, renews, until, metadata)::{schema}.holder)
                FROM unnest(holders))
    """.encode()
    )
    connection.execute(
        f"UPDATE {schema}.values SET forget_at_us = forget_at_us - {int(days * DAY * 1_000_000)}".encode()
    )


def sweep(connection: psycopg.Connection, schema: str) -> int:
    row = connection.execute(
        f"SELECT {schema}.sweep_{VERSION}(1000, {schema}.clock_{VERSION}())".encode()
    ).fetchone()
    assert row is not None
    return int(row[0])


def names(connection: psycopg.Connection, schema: str) -> list[str]:
    rows = connection.execute(f"SELECT name FROM {schema}.locks ORDER BY name".encode()).fetchall()
    return [bytes(row[0]).decode() for row in rows]


def test_idle_records_are_forgotten_after_a_day(
    locks: Client, connection: psycopg.Connection, schema: str
) -> None:
    with locks.lock("released"):
        pass
    exported = locks.lock("died", ttl=5).acquire()
    assert exported is not None
    assert exported.export(), "nobody will ever adopt it"
    with locks.lock("valued") as lease:
        lease.set_value(b"x")
    assert sweep(connection, schema) == 0
    age(connection, schema, 0.99)
    assert sweep(connection, schema) == 0
    age(connection, schema, 0.02)
    assert sweep(connection, schema) == 2
    assert names(connection, schema) == ["valued"], "its value has a time of its own"
    age(connection, schema, 40)
    assert sweep(connection, schema) == 1
    assert connection.execute(f"SELECT count(*) FROM {schema}.values".encode()).fetchone() == (0,)


def test_what_is_in_use_is_not_forgotten(locks: Client, connection: psycopg.Connection, schema: str) -> None:
    """However long ago it was last changed."""
    broken = locks.lock("broken", ttl=3 * DAY).acquire()
    assert broken is not None
    locks.break_lock("broken", reason="test")
    with locks.lock("long", ttl=3 * DAY, renew=False), locks.watch("watched"):
        connection.execute(f"UPDATE {schema}.locks SET changed_at = changed_at - {2 * DAY}".encode())
        assert sweep(connection, schema) == 0
    with pytest.raises(holdfast.LockLost, match="test"):
        broken.release()


def test_tokens_do_not_go_back_with_a_record_that_was_forgotten(
    locks: Client, connection: psycopg.Connection, schema: str
) -> None:
    """Even if the server's clock was set back meanwhile: the largest of the forgotten is the floor."""
    with locks.lock("x"):
        pass
    connection.execute(f"UPDATE {schema}.locks SET token = token + 1000000000000".encode())
    before = locks.inspect("x").token
    age(connection, schema, 2)
    assert sweep(connection, schema) == 1
    assert locks.inspect("x").token == 0, "nothing is known of it"
    with locks.lock("x") as again:
        assert again.token == before + 1
    with locks.lock("never seen") as other:
        assert other.token == before + 1
    with locks.watch("watched first"), locks.lock("watched first") as third:
        assert third.token == before + 1


def test_clients_that_add_names_delete_old_ones(
    locks: Client, connection: psycopg.Connection, schema: str
) -> None:
    """No job is needed: clients that make the table grow sweep a few pages now and then."""

    def names_until_it_is_swept() -> int:
        # Which pages are swept is left to chance. In a table that has grown, some may be left for long.
        connection.execute(f"TRUNCATE {schema}.locks".encode())
        connection.execute(
            f"""
            INSERT INTO {schema}.locks (namespace, name, version, token, permits, declared, changed_at)
            SELECT 'old', convert_to(i::text, 'UTF8'), 1, i, 0, 0, 0 FROM generate_series(1, 500) i
        """.encode()
        )
        for number in range(2000):
            with locks.lock(f"new-{secrets.token_hex(8)}"):
                pass
            left = connection.execute(
                f"SELECT count(*) FROM {schema}.locks WHERE namespace = 'old'".encode()
            ).fetchone()
            if left == (0,):
                return number
        raise AssertionError("they stayed")

    # By chance one of the first may do it; three times over that is as good as impossible.
    assert sum(names_until_it_is_swept() for _ in range(3)) > 5, "not every one of them pays"


def test_forgetting_beside_first_use(
    url: str, locks: Client, connection: psycopg.Connection, schema: str
) -> None:
    """A record that is forgotten in the moment of its next use: no grant is lost, no token comes twice."""
    ends = threading.Event()
    failures: list[BaseException] = []

    def forget() -> None:
        try:
            with psycopg.connect(shared_postgresql().url, autocommit=True) as other:
                while not ends.is_set():
                    other.execute(f"UPDATE {schema}.locks SET changed_at = 0".encode())
                    sweep(other, schema)
        except BaseException as error:
            failures.append(error)

    tokens: list[int] = []

    def use() -> None:
        try:
            with holdfast.connect(url) as client:
                for _ in range(100):
                    with client.lock("x", ttl=60, timeout=30) as lease:
                        tokens.append(lease.token)
                        lease.check()
        except BaseException as error:
            failures.append(error)

    sweeper = threading.Thread(target=forget)
    users = [threading.Thread(target=use) for _ in range(2)]
    for thread in [sweeper, *users]:
        thread.start()
    for thread in users:
        thread.join(60)
    ends.set()
    sweeper.join(20)
    assert not failures, failures
    assert len(tokens) == 200
    assert tokens == sorted(set(tokens))


def test_a_token_below_those_that_were_deleted_is_not_stored(
    locks: Client, schema: str, connection: psycopg.Connection
) -> None:
    """Minted before they were forgotten: it is to be minted anew."""
    connection.execute(f"UPDATE {schema}.meta SET floor = 100".encode())
    insert = (
        f"SELECT {schema}.insert_1(json_populate_record(NULL::{schema}.locks,"
        """ '{"namespace": "h", "name": "x", "token": %d, "permits": 0, "declared": 0}'),"""
        f" {schema}.clock_1())"
    )
    for token in (1, 100):
        with pytest.raises(psycopg.errors.SerializationFailure):
            connection.execute((insert % token).encode())
    assert connection.execute((insert % 101).encode()).fetchone() == (True,)


def test_what_was_decided_on_a_record_that_was_forgotten_is_not_stored_over_the_next(
    locks: Client, connection: psycopg.Connection, schema: str
) -> None:
    """A client has read the record; it is deleted, and made anew by the next client, which holds it."""
    with locks.lock("x"):
        # Only a client that has just made a record finds it unchanged.
        connection.execute(f"CREATE TEMP TABLE seen AS SELECT l AS record FROM {schema}.locks l".encode())
    age(connection, schema, 2)
    assert sweep(connection, schema) == 1
    with locks.lock("x") as lease:
        stored = connection.execute(
            f"SELECT {schema}.store_1(record, record, false, {schema}.clock_1()) FROM seen".encode()
        ).fetchone()
        assert stored == (False,)
        assert [holder.token for holder in locks.inspect("x").holders] == [lease.token]


@pytest.mark.parametrize("mode", ["exclusive", "read"])
@pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
def test_an_open_transaction_does_not_make_a_lock_slower_with_every_grant(
    engine: str, mode: str, url: str, connection: psycopg.Connection, schema: str
) -> None:
    """While one is open the server keeps all versions that a row had since. They are not visited."""
    table = {"postgresql": "locks", "postgresql+advisory": "session_names"}[engine]
    index = f"'{schema}.{table}_pkey'::regclass"
    visited = f"SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelid = {index}"
    sessions = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reads {schema}'"
    theirs = f"{url.replace('postgresql:', f'{engine}:')}&application_name=reads%20{schema}"

    def entries_read_by(pairs: int) -> int:
        """A session tells what it has counted before it is gone."""
        before = one(visited)
        with holdfast.connect(theirs) as client:
            lock = client.lock("x") if mode == "exclusive" else client.rwlock("x").read()
            for _ in range(pairs):
                with lock:
                    pass
        wait_until(lambda: one(sessions) == 0)
        return one(visited) - before

    def one(question: str) -> int:
        (answer,) = connection.execute(question.encode()).fetchone() or (0,)
        return int(answer)

    with psycopg.connect(shared_postgresql().url) as report:
        entries_read_by(1)
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1")
        entries_read_by(1000)
        assert 0 < entries_read_by(20) < 20 * 8


# --- many at once -------------------------------------------------------------------------------


def test_two_clients_use_a_name_for_the_first_time(url: str) -> None:
    """Neither the row nor the grant is there twice."""
    with holdfast.connect(url) as one, holdfast.connect(url) as two:
        for number in range(50):
            start = threading.Barrier(2)
            granted: list[holdfast.Lease] = []

            def take(
                client: Client, name: str, start: threading.Barrier, granted: list[holdfast.Lease]
            ) -> None:
                start.wait()
                lease = client.lock(name).acquire(blocking=False)
                if lease is not None:
                    granted.append(lease)

            threads = [
                threading.Thread(target=take, args=(client, f"x{number}", start, granted))
                for client in (one, two)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(granted) == 1
            granted[0].release()
