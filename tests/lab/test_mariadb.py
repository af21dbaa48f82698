"""MariaDB as the lab starts it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from holdfast.lab.servers import MariaDB
from holdfast.lab.servers.processes import family, wait_until_gone


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    with MariaDB(settings={"lock-wait-timeout": "7"}) as server:
        yield server


def test_it_greets_on_a_plain_socket(server: MariaDB) -> None:
    with socket.create_connection((server.host, server.port), 5) as plain:
        assert b"MariaDB" in plain.recv(100)


def test_settings_reach_it(server: MariaDB) -> None:
    assert server.sql("SELECT @@lock_wait_timeout, @@default_storage_engine") == "7\tInnoDB"


def test_restarts_with_and_without_its_data(server: MariaDB) -> None:
    server.sql("CREATE TABLE kept (x int) SELECT 1 AS x", "holdfast")
    server.restart()
    assert server.sql("SELECT x FROM kept", "holdfast") == "1"
    server.restart(keep_data=False)
    assert server.sql("SHOW TABLES", "holdfast") == ""


def test_it_is_paused_and_dies_whole(server: MariaDB) -> None:
    members = family(server.pid)
    server.pause()
    with socket.create_connection((server.host, server.port), 5) as plain:
        plain.settimeout(0.1)
        with pytest.raises(TimeoutError):
            plain.recv(1)
        server.resume()
        plain.settimeout(5)
        assert plain.recv(1)
    server.kill()
    wait_until_gone(members)
    server.start()
    assert server.sql("SELECT 1") == "1"


def test_what_goes_wrong_is_said(server: MariaDB) -> None:
    with pytest.raises(ConnectionError, match="nowhere"):
        server.sql("SELECT 1 FROM nowhere", "holdfast")
