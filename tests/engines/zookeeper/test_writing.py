"""Whoever asks writes to the socket itself: kazoo's thread is not woken for it.

An interrupt in the middle of that harms nobody else.
"""

from __future__ import annotations

from typing import Any

import pytest

from engines.zookeeper.conftest import Connect, Hold, link_of
from holdfast import Client


class Narrow:
    """A socket that takes a few bytes and then, once, does what it is told."""

    def __init__(self, socket: Any, then: BaseException | None = None) -> None:
        self._socket = socket
        self._then = then
        self._is_narrow = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, piece: bytes) -> int:
        if not self._is_narrow:
            return int(self._socket.send(piece))
        self._is_narrow = False
        sent = self._socket.send(piece[:3])
        if self._then is not None:
            raise self._then
        return int(sent)


def connection_of(client: Client) -> Any:
    """kazoo's."""
    return link_of(client)._client._connection


def test_nobody_is_woken_to_write(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(session_timeout=60)
    lock = client.lock("x")
    with lock:
        pass
    rung: list[None] = []
    monkeypatch.setattr(connection_of(client), "ring", lambda: rung.append(None))
    for _ in range(3):
        with lock:
            pass
    assert not rung


def test_what_the_socket_does_not_take_at_once_is_written_later(connect: Connect) -> None:
    client = connect(session_timeout=60)
    lock = client.lock("x")
    with lock:
        pass
    connection = connection_of(client)
    connection._socket = Narrow(connection._socket)
    with lock:
        pass
    assert isinstance(connection._socket, Narrow), "it is still the same connection"


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError("reset")], ids=["interrupt", "error"])
def test_half_a_request_costs_the_connection_and_nothing_else(
    connect: Connect, hold: Hold, trouble: BaseException
) -> None:
    """What was written after it would be taken for its end."""
    client = connect(session_timeout=60)
    lease = hold(client.lock("kept"))
    session = link_of(client).session
    connection = connection_of(client)
    connection._socket = Narrow(connection._socket, trouble)
    if isinstance(trouble, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            client.lock("x").acquire()
    with client.lock("x"), client.lock("y"):
        lease.check()
    assert link_of(client).session == session


def test_who_was_struck_before_it_knew_that_it_may_write_holds_up_nobody(connect: Connect) -> None:
    client = connect(session_timeout=60)
    with client.lock("x"):
        pass
    session = link_of(client).session
    connection_of(client)._writing.acquire()
    with client.lock("x"):
        pass
    assert link_of(client).session == session
