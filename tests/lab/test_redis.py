"""Redis as the lab starts it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.lab.servers import ProgramMissing, Redis, ServerFailed
from holdfast.lab.servers.resp import ReplyError
from support import wait_until
from support.servers import valkey_program

pytestmark = pytest.mark.engine("redis")


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def test_it_answers_on_a_plain_socket(server: Redis) -> None:
    with socket.create_connection((server.host, server.port), 5) as plain:
        plain.sendall(b"PING\r\n")
        assert plain.recv(100) == b"+PONG\r\n"
    assert server.info("server")["process_id"] == str(server.pid)


def test_replies_of_every_shape(server: Redis) -> None:
    assert server.commands(
        ("SET", "x", b"\x00\r\n"), ("GET", "x"), ("GET", "none"), ("INCR", "n"), ("CONFIG", "GET", "port")
    ) == ["OK", b"\x00\r\n", None, 1, [b"port", str(server.port).encode()]]
    with pytest.raises(ReplyError, match="unknown command"):
        server.command("NONSENSE")


def test_without_persistence_a_restart_forgets(server: Redis) -> None:
    server.command("SET", "x", "1")
    port = server.port
    server.restart()
    assert server.port == port
    assert server.command("GET", "x") is None


def test_every_write_survives_a_kill_with_aof_always() -> None:
    with Redis(persistence="aof-always") as server:
        server.command("SET", "x", "1")
        server.restart(kill=True)
        assert server.command("GET", "x") == b"1"
        server.restart(keep_data=False)
        assert server.command("GET", "x") is None


def test_rdb_keeps_what_was_saved() -> None:
    with Redis(persistence="rdb") as server:
        server.commands(("SET", "saved", "1"), ("SAVE",), ("SET", "unsaved", "1"))
        server.restart(kill=True)
        assert server.command("MGET", "saved", "unsaved") == [b"1", None]


def test_a_password_and_acl_users() -> None:
    users = {"reader": "on >other ~* +get +ping"}
    with Redis(password='se cret"\\é', acl=users) as server:
        assert server.command("ACL", "WHOAMI") == b"default"
        with pytest.raises(ReplyError, match="NOPERM"):
            server.commands(("AUTH", "reader", "other"), ("SET", "x", "1"))
        with socket.create_connection((server.host, server.port), 5) as plain:
            plain.sendall(b"GET x\r\n")
            assert plain.recv(100).startswith(b"-NOAUTH")


def test_tls_and_nothing_else() -> None:
    with Redis(tls=True, password="secret") as server:
        assert server.command("PING") == "PONG"
        assert server.url.startswith("rediss://:secret@127.0.0.1:")
        with (
            socket.create_connection((server.host, server.port), 5) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
        modes = {path.stat().st_mode & 0o077 for path in (server.folder, server.certificates.key)}
        assert modes == {0}


def test_a_replica_follows_its_master(server: Redis) -> None:
    with Redis(replica_of=server) as replica:
        server.command("SET", "followed", "1")
        wait_until(lambda: replica.command("GET", "followed") == b"1")
        with pytest.raises(ReplyError, match="READONLY"):
            replica.command("SET", "x", "1")


def test_maxmemory() -> None:
    with (
        Redis(maxmemory="2mb", settings={"maxmemory-policy": "noeviction"}) as server,
        pytest.raises(ReplyError, match="OOM"),
    ):
        server.command("SET", "x", b"x" * 2_000_000)


def test_its_clock_can_be_set_while_it_runs() -> None:
    with Redis(faketime=True) as server, Redis() as reference:

        def offset() -> float:
            ours, true = (int(each.command("TIME")[0]) for each in (server, reference))
            return ours - true

        assert abs(offset()) <= 1
        server.commands(("SET", "x", "1", "PX", "60000"), ("SET", "y", "1", "PX", "7200000"))
        server.shift_clock(3600)
        assert abs(offset() - 3600) <= 1
        assert server.command("MGET", "x", "y") == [None, b"1"]
        server.shift_clock(-3600.5)
        assert abs(offset() + 3600) <= 2
        server.shift_clock(0)
        assert abs(offset()) <= 1
        assert server.command("PTTL", "y") > 7_000_000


def test_only_a_server_with_a_clock_of_its_own_can_shift_it(server: Redis) -> None:
    with pytest.raises(ServerFailed, match="faketime=True"):
        server.shift_clock(1)


def test_another_program() -> None:
    with Redis(program=valkey_program()) as server:
        assert server.info("server")["server_name"] == "valkey"


def test_another_program_that_is_missing_is_a_failure() -> None:
    with pytest.raises(ProgramMissing, match=r"no-such-server is not installed$"):
        Redis(program="no-such-server").start()


def test_the_folder_goes_with_it() -> None:
    with Redis() as server:
        folder: Path = server.folder
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
