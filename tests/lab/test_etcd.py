"""etcd as the lab starts it."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator

import pytest

from holdfast.lab.servers import Etcd, EtcdCluster, ServerFailed
from support import wait_until

pytestmark = pytest.mark.engine("etcd")


def text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def put(server: Etcd, key: str, value: str) -> None:
    server.call("/v3/kv/put", {"key": text(key), "value": text(value)})


def get(server: Etcd, key: str) -> str | None:
    found = server.call("/v3/kv/range", {"key": text(key)}).get("kvs", [])
    return base64.b64decode(found[0]["value"]).decode() if found else None


@pytest.fixture(scope="module")
def server() -> Iterator[Etcd]:
    with Etcd() as server:
        yield server


def test_it_answers_on_a_plain_socket(server: Etcd) -> None:
    with socket.create_connection((server.host, server.port), 5) as plain:
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        with plain.makefile("rb") as stream:
            assert b'{"health":"true"}' in stream.read()


def test_restarts_with_and_without_its_data(server: Etcd) -> None:
    put(server, "x", "1")
    server.restart(kill=True)
    assert get(server, "x") == "1"
    server.restart(keep_data=False)
    assert get(server, "x") is None


def test_users_and_tls() -> None:
    with Etcd(tls=True, users={"root": "secret", "app": "other"}) as server:
        put(server, "x", "1")
        assert get(server, "x") == "1"
        asked = {"name": "app", "password": "other"}
        assert server.call("/v3/auth/authenticate", asked)["token"]
        with pytest.raises(ConnectionError, match="invalid user ID or password"):
            server.call("/v3/auth/authenticate", asked | {"password": "wrong"})
        server.restart()
        assert get(server, "x") == "1", "users stay from one start to the next"


def test_users_without_root_are_refused() -> None:
    with pytest.raises(ServerFailed, match="root"):
        Etcd(users={"app": "x"})


def test_a_cluster_survives_its_leader() -> None:
    with EtcdCluster() as cluster:
        put(cluster.members[0], "x", "1")
        assert {get(member, "x") for member in cluster.members} == {"1"}
        old = cluster.leader()
        old.kill()
        wait_until(lambda: any(member.answers() for member in cluster.members))
        assert cluster.leader() is not old
        old.start()
        assert get(old, "x") == "1"
