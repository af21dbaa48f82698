"""ZooKeeper as the lab starts it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from socket import create_connection, create_server

import pytest

from holdfast.lab.servers import ZooKeeper, ZooKeeperEnsemble, ports
from holdfast.lab.servers import group as group_module
from holdfast.lab.servers import server as server_module
from support import wait_until

pytestmark = pytest.mark.engine("zookeeper")


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


def session(server: ZooKeeper, session_id: int = 0, password: bytes = bytes(16)) -> tuple[int, bytes]:
    """Open a session, or take one up again, on a plain socket; 0 is said of one that is gone."""
    with closing(create_connection((server.host, server.port), 5)) as plain:
        request = struct.pack(">iqiqi", 0, 0, 10_000, session_id, len(password)) + password
        plain.sendall(struct.pack(">i", len(request)) + request)
        with plain.makefile("rb") as stream:
            answer = stream.read(struct.unpack(">i", stream.read(4))[0])
    return struct.unpack(">q", answer[8:16])[0], answer[20:36]


def test_it_answers_on_a_plain_socket(server: ZooKeeper) -> None:
    assert server.four_letters("ruok") == "imok"
    assert server.mode() == "standalone"
    assert session(server)[0] > 0


def test_restarts_with_and_without_its_data(server: ZooKeeper) -> None:
    ours = session(server)
    server.restart(kill=True)
    assert session(server, *ours)[0] == ours[0], "the session was kept"
    server.restart(keep_data=False)
    assert session(server, *ours)[0] == 0


def test_a_taken_port_is_exchanged_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with create_server((ports.HOST, 0)) as taken:
        choices = iter([taken.getsockname()[1], ports.free_port()])
        monkeypatch.setattr(server_module, "free_port", lambda: next(choices))
        with ZooKeeper() as server:
            assert server.mode() == "standalone"


def test_an_ensemble_survives_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    with create_server((ports.HOST, 0)) as taken:
        # The first choice of its ports cannot work: the whole ensemble takes others.
        choices = iter([taken.getsockname()[1]])
        monkeypatch.setattr(group_module, "free_port", lambda: next(choices, None) or ports.free_port())
        ensemble = ZooKeeperEnsemble().start()
    with ensemble:
        ours = session(ensemble.members[0])
        old = ensemble.leader()
        assert sorted(member.mode() for member in ensemble.members) == ["follower", "follower", "leader"]
        old.kill()
        others = [member for member in ensemble.members if member is not old]
        wait_until(lambda: {member.mode() for member in others} == {"leader", "follower"})
        assert session(others[0], *ours)[0] == ours[0]
        old.start()
        assert old.mode() == "follower"
