"""A role with rights on the functions alone does everything that clients do, and nothing else."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import Iterator

import psycopg
import pytest

import holdfast
import holdfast.aio
from holdfast import Client, LockLost, provision
from holdfast.engines.postgres.advisory.statements import SessionStatements
from holdfast.engines.postgres.statements import CellStatements, Statements
from support.servers import shared_postgresql
from support.waiting import wait_until

ENGINES = pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])


@pytest.fixture
def role(url: str, schema: str) -> Iterator[str]:
    """A role with the grants that the script of ``holdfast init --sql`` names, and nothing else."""
    server, name = shared_postgresql(), f"role_{secrets.token_hex(4)}"
    script = provision.script(url)
    server.sql(script)
    server.sql(f"CREATE ROLE {name} LOGIN")
    grants = re.findall(r"^--   (GRANT .*;)$", script, re.MULTILINE)
    server.sql("\n".join(grants).replace("the_role", name))
    yield name
    server.sql(f"DROP OWNED BY {name}; DROP ROLE {name}; DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def theirs(url: str, role: str) -> str:
    return url.replace("postgres@", f"{role}@")


def wait_and_take(locks: Client, name: str) -> None:
    """One holds it, another waits for it and is granted it."""
    tokens: list[int] = []

    def wait() -> None:
        with locks.lock(name, timeout=20) as lease:
            tokens.append(lease.token)

    thread = threading.Thread(target=wait)
    with locks.lock(name, timeout=20) as lease:
        thread.start()
        wait_until(lambda: len(locks.inspect(name).waiters) == 1)
    thread.join(20)
    assert len(tokens) == 1
    assert tokens[0] > lease.token


@ENGINES
def test_functions_are_enough(engine: str, theirs: str, role: str) -> None:
    url = theirs.replace("postgresql:", f"{engine}:")
    with holdfast.connect(url) as locks, holdfast.connect(url) as others:
        with locks.lock("x", metadata={"why": "because"}) as lease:
            lease.extend(60)
            lease.set_value(b"mine")
            assert others.lock("x").acquire(timeout=0) is None
            assert [info.name for info in others.list("x")] == ["x"]
            assert others.inspect("x").holders[0].metadata == {"why": "because"}
        assert others.inspect("x").value == b"mine"
        wait_and_take(locks, "y")
        with locks.rlock("again") as outer, locks.rlock("again") as inner:
            assert inner.token == outer.token
        with locks.rwlock("rw").write() as writing:
            writing.downgrade()
            with others.rwlock("rw").read():
                pass
        with others.watch("broken") as watch:
            lost = locks.lock("broken").acquire()
            assert lost is not None
            assert watch.next(20) is not None
        assert others.break_lock("broken", token=lost.token, reason="to see") is not None
        assert lost.wait_lost(20)
        with pytest.raises(LockLost):
            lost.check()
        if engine == "postgresql":
            semaphore = locks.semaphore("s", 2)
            assert semaphore.acquire() is not None
            semaphore.resize(3)
            semaphore.release()
            handed = locks.lock("given", ttl=30).acquire()
            assert handed is not None
            others.adopt(handed.export()).release()


@ENGINES
def test_with_asyncio_they_are_as_well(engine: str, theirs: str) -> None:
    async def use() -> None:
        url = theirs.replace("postgresql:", f"{engine}:")
        async with holdfast.aio.connect(url) as locks:
            async with locks.lock("x") as lease:
                await lease.extend(60)
                waiter = asyncio.create_task(locks.lock("x").acquire(timeout=20))
                await asyncio.to_thread(wait_until, lambda: looking.inspect("x").waiters)
            granted = await waiter
            assert granted is not None
            assert granted.token > lease.token
            await granted.release()

    with holdfast.connect(theirs.replace("postgresql:", f"{engine}:")) as looking:
        asyncio.run(use())


TABLES = ("locks", "values", "meta", "versions", "session_names", "session_waiters")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("statement", ["SELECT * FROM {}", "DELETE FROM {}", "TRUNCATE {}"])
def test_tables_are_out_of_reach(table: str, statement: str, theirs: str, schema: str) -> None:
    connection = psycopg.connect(theirs.partition("?")[0], autocommit=True)
    with connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.format(f"{schema}.{table}"))


def test_all_tables_are_named_here(theirs: str, schema: str) -> None:
    found = shared_postgresql().sql(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
    assert sorted(found.split()) == sorted(TABLES)


def test_what_functions_call_is_out_of_reach(theirs: str, schema: str) -> None:
    """They run with the rights of their caller, which has none."""
    with psycopg.connect(theirs.partition("?")[0], autocommit=True) as connection:
        for call in ("sweep_1(32, 0)", "floor_1()", "session_sweep_waiters_1()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT {schema}.{call}")


def test_a_role_without_grants_may_call_no_function(url: str, schema: str, role: str) -> None:
    server, name = shared_postgresql(), f"role_{secrets.token_hex(4)}"
    server.sql(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {name}")
    try:
        locks = holdfast.connect(url.replace("postgres@", f"{name}@"))
        with locks, pytest.raises(holdfast.EngineUnavailable, match="42501"):
            locks.lock("x").acquire(timeout=0)
    finally:
        server.sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_borrowed_rights_come_with_a_pinned_search_path(theirs: str, schema: str) -> None:
    """Exactly what clients call has them, but for what ends other sessions, and for what commits half-way."""
    found = shared_postgresql().sql(
        "SELECT p.proname, p.proconfig::text FROM pg_proc p"
        f" WHERE p.pronamespace = '{schema}'::regnamespace AND p.prosecdef"
    )
    rows = dict(line.split("|", 1) for line in found.splitlines())
    assert set(rows.values()) == {'{"search_path=pg_catalog, pg_temp"}'}
    statements = [
        *vars(Statements(schema, "n")).values(),
        *vars(CellStatements(schema, b"n")).values(),
        *vars(SessionStatements(schema, "n")).values(),
    ]
    called = set(re.findall(rf"{schema}\.(\w+)\(", repr(statements)))
    assert len(called) > 20
    by_caller = {"session_end_1", "session_cancel_1", "session_wait_1"}
    assert set(rows) == (called | {"hello_1", "session_waits_1"}) - by_caller


def test_names_that_the_role_puts_first_are_not_called(theirs: str, role: str, schema: str) -> None:
    """A function of its own in place of one of the server's, by its search path."""
    server, trap = shared_postgresql(), f"trap_{role}"
    server.sql(f"CREATE SCHEMA {trap} AUTHORIZATION {role}")
    with psycopg.connect(theirs.partition("?")[0], autocommit=True) as connection:
        for name in ("clock_timestamp() RETURNS timestamptz", "pg_backend_pid() RETURNS integer"):
            connection.execute(
                f"CREATE FUNCTION {trap}.{name} LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$"
            )
        connection.execute(f"SET search_path = {trap}, pg_catalog")
        row = connection.execute(f"SELECT {schema}.hello_1()").fetchone()
        assert row is not None
        answer = connection.execute(
            f"SELECT {schema}.acquire_1('n', 'x', 'nonce', 'c', 'o', 'lock', 'exclusive',"
            " 30, false, true, true, NULL, 0, '{}')"
        ).fetchone()
        assert answer is not None
        assert answer[0][:1] in ("g", "G")
