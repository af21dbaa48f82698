"""PostgreSQL and PgBouncer as the lab starts them."""

from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.lab.servers import PgBouncer, PostgreSQL
from holdfast.lab.servers.postgresql import run_psql
from holdfast.lab.servers.processes import family, wait_until_gone
from support import run_python

pytestmark = pytest.mark.engine("postgresql", "postgresql+advisory")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield server


def connect(server: PostgreSQL) -> socket.socket:
    """On a plain socket, with the greeting sent."""
    plain = socket.create_connection((server.host, server.port), 5)
    hello = struct.pack(">i", 196608) + b"user\0postgres\0\0"
    plain.sendall(struct.pack(">i", len(hello) + 4) + hello)
    return plain


def read_until(plain: socket.socket, end: bytes) -> bytes:
    """Up to these bytes, or to the end of the connection."""
    read = b""
    while not read.endswith(end) and (more := plain.recv(10_000)):
        read += more
    return read


READY = b"Z" + struct.pack(">i", 5) + b"I"
"""The server has said everything and waits for a query."""


def test_it_answers_on_a_plain_socket(server: PostgreSQL) -> None:
    with connect(server) as plain:
        assert plain.recv(9) == b"R" + struct.pack(">ii", 8, 0), "authentication is done"


def test_restarts_with_and_without_its_data(server: PostgreSQL) -> None:
    server.sql("CREATE TABLE kept (x int); INSERT INTO kept VALUES (1)")
    server.restart(kill=True)
    assert server.sql("SELECT x FROM kept") == "1"
    server.restart(keep_data=False)
    assert server.sql("SELECT count(*) FROM pg_tables WHERE tablename = 'kept'") == "0"


def test_its_helpers_stop_and_die_with_it(server: PostgreSQL) -> None:
    with connect(server) as plain:
        assert read_until(plain, READY)
        plain.settimeout(0.1)
        members = family(server.pid)
        assert len(members) > 5
        server.pause()
        plain.sendall(b"Q" + struct.pack(">i", 13) + b"SELECT 1\0")
        with pytest.raises(TimeoutError):
            plain.recv(1)
        server.resume()
        plain.settimeout(5)
        assert read_until(plain, READY).startswith(b"T")
        server.kill()
        assert plain.recv(1) == b""
        wait_until_gone(members)
    server.start()


def test_a_killed_run_leaves_neither_it_nor_its_helpers() -> None:
    code = """
        from holdfast.lab.servers import PostgreSQL
        server = PostgreSQL().start()
        print("pid", server.pid, flush=True)
        input()
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-test-") as folder:
        Path(folder).chmod(0o755)  # it runs as another user, who must get there
        with run_python(code, env={"TMPDIR": folder}) as child:
            members = family(int(child.expect("pid")))
            child.kill()
            wait_until_gone(members)


def test_a_password_tls_and_settings() -> None:
    with PostgreSQL(password="it's %", tls=True, settings={"max_connections": "7"}) as server:
        with pytest.raises(ConnectionError, match="password"):
            run_psql(server.host, server.port, "SELECT 1", password="wrong")
        query = "SELECT ssl, current_setting('max_connections') FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert run_psql(server.host, server.port, query, password="it's %") == "t|7"
        with PgBouncer(server) as pool:
            assert pool.sql("SELECT 1") == "1"


def test_its_clock_can_be_set_while_it_runs(server: PostgreSQL) -> None:
    with PostgreSQL(faketime=True) as other:

        def offset() -> float:
            ours, true = (
                float(each.sql("SELECT extract(epoch FROM clock_timestamp())")) for each in (other, server)
            )
            return ours - true

        assert abs(offset()) < 2
        other.shift_clock(3600)
        assert abs(offset() - 3600) < 2
        other.shift_clock(-3600)
        assert abs(offset() + 3600) < 2


def test_a_pool_in_transaction_mode(server: PostgreSQL) -> None:
    with PgBouncer(server, settings={"default_pool_size": "1"}) as pool:
        assert pool.sql("SELECT 1") == "1"
        assert pool.sql("SHOW CONFIG", "pgbouncer").count("pool_mode|transaction|") == 1
        pool.restart()
        assert pool.sql("SELECT 1") == "1"
        pool.kill()
        with pytest.raises(ConnectionError):
            pool.sql("SELECT 1")
    assert server.sql("SELECT 1") == "1"
