"""The schema is made at first use, or beforehand: once, by many at once, over an older one, or not at all."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

import holdfast
from cli.tools import CommandLine
from faults.children import holding
from holdfast import Client, EngineUnavailable, InvalidArgument, Unsupported, provision
from holdfast.cli.exits import Status
from holdfast.engines.postgres import scripts
from support import run_python, wait_until
from support.servers import shared_postgresql

FIRST_USE = """
import sys, holdfast
print("ready", flush=True)
input()
with holdfast.connect(sys.argv[1]) as client:
    with client.lock("x", timeout=30) as lease:
        print("token", lease.token, flush=True)
"""


def test_first_use_makes_everything(url: str, schema: str) -> None:
    with holdfast.connect(url) as client:
        assert client.inspect("x").kind is None
    assert shared_postgresql().sql(f"SELECT version FROM {schema}.versions") == str(scripts.VERSION)


def test_twenty_processes_at_once(url: str, schema: str) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(run_python(FIRST_USE, url)) for _ in range(20)]
        for child in children:
            child.expect("ready")
        for child in children:
            child.send()
        tokens = [int(child.expect("token", timeout=60)) for child in children]
        for child in children:
            child.succeed()
    assert len(set(tokens)) == 20
    assert shared_postgresql().sql(f"SELECT count(*) FROM {schema}.versions") == "1"
    assert shared_postgresql().sql(f"SELECT count(*) FROM {schema}.meta") == "1"


def test_a_session_with_a_stale_catalogue_cache(schema: str) -> None:
    """A session that waited for another's installation, and has used the catalogue before, sees it."""
    found = f"SELECT to_regprocedure('{schema}.hello_{scripts.VERSION}()') IS NOT NULL"
    server = shared_postgresql()
    with psycopg.connect(server.url, autocommit=True) as first, psycopg.connect(server.url) as second:
        second.autocommit = True
        second.execute(scripts.install_script(f"{schema}_warm").encode())
        assert second.execute(found.encode()).fetchone() == (False,)
        first.execute(scripts.begin_script(schema).encode())
        waiting = threading.Thread(target=second.execute, args=(scripts.begin_script(schema).encode(),))
        waiting.start()
        wait_until(lambda: server.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1")
        first.execute(scripts.install_script(schema).encode())
        first.execute("COMMIT")
        waiting.join(20)
        assert second.execute(found.encode()).fetchone() == (True,)
        second.execute(scripts.install_script(schema).encode())
        second.execute("COMMIT")


def test_beforehand_and_again(url: str, schema: str) -> None:
    assert provision.install(url) is True
    source = shared_postgresql().sql(f"SELECT source FROM {schema}.meta")
    assert provision.install(url) is False
    with holdfast.connect(url) as client, client.lock("x") as lease:
        assert lease.fence.source == f"postgresql:{source}/holdfast/x"


def test_the_script_is_all_that_is_needed(url: str, schema: str) -> None:
    """And may be run again by an administrator."""
    server = shared_postgresql()
    server.sql(provision.script(url))
    source = server.sql(f"SELECT source FROM {schema}.meta")
    server.sql(provision.script(url))
    assert server.sql(f"SELECT source FROM {schema}.meta") == source
    assert provision.install(url) is False


def test_engines_without_tables_refuse_to_prepare() -> None:
    with pytest.raises(Unsupported, match="memory:// needs no preparation"):
        provision.install("memory://")
    with pytest.raises(Unsupported):
        provision.script("memory://")


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "a.b", "pg_mine", "x" * 64, "a; DROP TABLE b", 'a"b'])
def test_a_schema_is_a_plain_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match="schema must consist"):
        holdfast.connect("postgresql://db/app", schema=name)


# --- rights -------------------------------------------------------------------------------------


@pytest.fixture
def role() -> Iterator[str]:
    """A role that may log in and nothing else."""
    server, name = shared_postgresql(), f"role_{secrets.token_hex(4)}"
    server.sql(f"CREATE ROLE {name} LOGIN")
    yield name
    server.sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_without_the_right_to_create_the_error_names_the_remedy(url: str, schema: str, role: str) -> None:
    theirs = url.replace("postgres@", f"{role}@")
    with holdfast.connect(theirs) as client, pytest.raises(EngineUnavailable) as refused:
        client.lock("x").acquire()
    assert "holdfast init --sql" in str(refused.value)
    assert "42501" in str(refused.value)
    with pytest.raises(EngineUnavailable, match="holdfast init --sql"):
        provision.install(theirs)
    assert shared_postgresql().sql(f"SELECT to_regnamespace('{schema}') IS NULL") == "t"


@pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
def test_what_the_script_grants_is_enough(engine: str, url: str, schema: str, role: str) -> None:
    """The last lines, for the role that locks; also where PUBLIC may call no function by default."""
    script = provision.script(url)
    grants = [line.removeprefix("--   ") for line in script.splitlines() if line.startswith("--   GRANT")]
    assert len(grants) == 2
    server = shared_postgresql()
    server.sql(script)
    server.sql(f"REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA {schema} FROM PUBLIC")
    theirs = url.replace("postgres@", f"{role}@").replace("postgresql:", f"{engine}:")
    with holdfast.connect(theirs) as client:
        with pytest.raises(EngineUnavailable, match="holdfast init --sql"):
            client.lock("x").acquire()
        server.sql("\n".join(grants).replace("the_role", role))
        with client.lock("x") as lease:
            lease.set_value(b"mine")
            lease.extend(60)
        _pass_it_on(client, "x")
        assert client.inspect("x").value == b"mine"
        assert [info.name for info in client.list()] == ["x"]
        with client.rwlock("rw").write() as writing:
            writing.downgrade()
        with client.lock("y", if_lost="note"), client.watch("y") as watch:
            assert watch.next() is not None
            assert client.break_lock("y", reason="test") is not None


def _pass_it_on(client: Client, name: str) -> None:
    """To a waiter: it has to queue, and to be woken."""
    lease = client.lock(name).acquire()
    assert lease is not None
    with ThreadPoolExecutor(1) as waiter:
        waiting = waiter.submit(client.lock(name).acquire, timeout=20)
        wait_until(lambda: waiting.done() or client.inspect(name).waiters)
        lease.release()
        granted = waiting.result(timeout=20)
    assert granted is not None
    assert granted.token > lease.token
    granted.release()


# --- older and newer ----------------------------------------------------------------------------


def newer_script(schema: str) -> str:
    """Of a version with a column more in each table, and functions under its own names, like a later one."""
    text = scripts.install_script(schema)
    for end in "( ;)\n'":
        text = text.replace(f"_1{end}", f"_2{end}")
    tables, mark, rest = text.partition("-- The types of values that functions pass to each other.")
    assert mark
    columns = "".join(
        f"ALTER TABLE {schema}.{table} ADD COLUMN IF NOT EXISTS motto text;\n"
        for table in ("meta", "locks", "values")
    )
    sessions = "".join(
        f"ALTER TABLE {schema}.{table} ADD COLUMN IF NOT EXISTS motto text;\n"
        for table in ("session_names", "session_waiters")
    )
    return f"{tables}{columns}{rest}{sessions}".replace(".versions VALUES (1)", ".versions VALUES (2)")


def test_an_upgrade_keeps_what_is_held_and_what_older_clients_call(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = shared_postgresql()
    with holding(url) as older:
        token = older.expect("held")
        monkeypatch.setattr("holdfast.engines.postgres.admin.install_script", newer_script)
        monkeypatch.setattr("holdfast.engines.postgres.admin.VERSION", 2)
        assert provision.install(url) is True, "only an older version is there"
        assert provision.install(url) is False
        assert server.sql(f"SELECT version FROM {schema}.versions ORDER BY 1") == "1\n2"
        assert server.sql(f"SELECT motto IS NULL FROM {schema}.meta") == "t"
        assert server.sql(f"SELECT (holders[1]).token FROM {schema}.locks") == token
        older.send("locks.lock('y').acquire(blocking=False) is not None")
        assert older.expect("did") == "True"
        nonce = server.sql(f"SELECT (holders[1]).nonce FROM {schema}.locks WHERE name = 'x'")
        asked = f"SELECT {schema}.release_2('holdfast', 'x', '{nonce}', 0)"
        assert server.sql(asked) == "D", "both versions keep the same records"
        older.send("lease.release()")
        assert older.expect("did").startswith("LockLost")


@pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
def test_an_older_client_goes_on_with_columns_it_does_not_know(engine: str, url: str, schema: str) -> None:
    """On connections that it had before, and on new ones; what it does for the first time, too."""
    theirs = url.replace("postgresql:", f"{engine}:")
    with holdfast.connect(theirs) as before, holdfast.connect(theirs) as after:
        use_all_of_it(before, "before")
        held = before.lock("held", ttl=30).acquire()
        assert held is not None
        shared_postgresql().sql(newer_script(schema))
        for client, name in ((before, "before"), (before, "new"), (after, "before"), (after, "newer")):
            use_all_of_it(client, name)
        held.extend(60)
        held.set_value(b"2")
        assert after.inspect("held").value == b"2"
        held.release()


def use_all_of_it(client: Client, name: str) -> None:
    """Everything the engine does: granted, changed, waited for, handed over, inspected and broken."""
    with client.lock(name) as lease:
        lease.set_value(b"1")
        lease.extend(60)
    _pass_it_on(client, name)
    assert client.inspect(name).value == b"1"
    with client.rwlock(f"{name}/rw").write() as writing:
        writing.downgrade()
    if "semaphore" in client.guarantees.primitives:
        semaphore = client.semaphore(f"{name}/semaphore", 2)
        with semaphore, semaphore:
            semaphore.resize(3)
        semaphore.resize(2)
    with client.lock(f"{name}/broken", if_lost="note"), client.watch(f"{name}/broken") as watch:
        assert watch.next() is not None
        assert client.break_lock(f"{name}/broken", reason="test") is not None


@pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
@pytest.mark.parametrize(
    "what",
    [
        "TABLE {}.locks",
        "TABLE {}.values",
        "TABLE {}.meta",
        "TABLE {}.session_names",
        "TABLE {}.session_waiters",
        "TYPE {}.ask_1",
        "TYPE {}.step_1",
        "FUNCTION {}.next_token_1",
    ],
)
def test_what_is_missing_is_made_again(engine: str, what: str, url: str, schema: str) -> None:
    """Where the rest is there, and seems to be all."""
    theirs = url.replace("postgresql:", f"{engine}:")
    assert provision.install(theirs) is True
    shared_postgresql().sql(f"DROP {what.format(schema)} CASCADE")
    assert provision.install(theirs) is True
    assert provision.install(theirs) is False
    with holdfast.connect(theirs) as client:
        use_all_of_it(client, "x")


@pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
def test_first_use_makes_again_what_it_cannot_begin_without(engine: str, url: str, schema: str) -> None:
    theirs = url.replace("postgresql:", f"{engine}:")
    assert provision.install(theirs) is True
    shared_postgresql().sql(f"DROP TABLE {schema}.meta")
    with holdfast.connect(theirs) as client, client.lock("x") as lease:
        lease.check()


def test_what_is_missing_later_on_is_said(url: str, schema: str) -> None:
    provision.install(url)
    shared_postgresql().sql(f"DROP TABLE {schema}.values")
    with (
        holdfast.connect(url, io_timeout=0.5) as client,
        pytest.raises(EngineUnavailable, match=r"holdfast init.*42P01"),
        client.lock("x") as lease,
    ):
        lease.set_value(b"1")


@pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])
def test_a_table_that_was_emptied_is_said_and_filled(engine: str, url: str, schema: str) -> None:
    theirs = url.replace("postgresql:", f"{engine}:")
    provision.install(theirs)
    shared_postgresql().sql(f"DELETE FROM {schema}.meta")
    with holdfast.connect(theirs) as client:
        with pytest.raises(EngineUnavailable, match="meta is empty: `holdfast init`"):
            client.lock("x").acquire()
        assert provision.install(theirs) is True
        use_all_of_it(client, "x")


def test_a_role_that_may_not_change_the_schema_finds_it(url: str, schema: str, role: str) -> None:
    """As a deployment does that prepares the database each time, with the role of the program."""
    provision.install(url)
    shared_postgresql().sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    assert provision.install(url.replace("postgres@", f"{role}@")) is False


def test_a_schema_that_was_dropped_is_made_again(url: str, schema: str) -> None:
    with holdfast.connect(url) as client:
        lease = client.lock("x").acquire()
        assert lease is not None
        source = lease.fence.source
        shared_postgresql().sql(f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(holdfast.LockLost):
            lease.release()
        again = client.lock("x").acquire()
        assert again is not None
        assert again.token > lease.token
        assert again.fence.source != source, "numbers of another table"
        again.release()


# --- the command --------------------------------------------------------------------------------


def test_the_command_prepares_and_reports_it(command_line: CommandLine, url: str, schema: str) -> None:
    assert "were created" in command_line.start("init", "--url", url).succeed()
    assert "existed already" in command_line.start("init", "--url", url).succeed()
    assert command_line.start("init", "--sql", "--url", url).succeed() == provision.script(url)
    assert shared_postgresql().sql(f"SELECT count(*) FROM {schema}.versions") == "1"


def test_the_command_without_a_server(command_line: CommandLine) -> None:
    process = command_line.start("init", "--url", "postgresql://127.0.0.1:1/nowhere")
    assert process.wait() == Status.UNAVAILABLE
    assert "cannot be reached" in process.stderr
    assert command_line.start("init", "--url", "memory://").wait() != 0
