"""Any role that may connect may notify any channel. Forged notifications neither grant nor release."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from engines.postgres.introspection import receives_notifications
from holdfast import Client
from holdfast.engines.postgres.advisory.notifications import SessionListener
from holdfast.engines.postgres.connection import PgConnection
from support import wait_until
from support.servers import shared_postgresql

ENGINES = pytest.mark.parametrize("engine", ["postgresql", "postgresql+advisory"])


@pytest.fixture
def stranger() -> Iterator[psycopg.Connection]:
    """A role that may log in, and has no other right."""
    server, name = shared_postgresql(), f"role_{secrets.token_hex(4)}"
    server.sql(f"CREATE ROLE {name} LOGIN")
    where = server.url.replace("postgres@", f"{name}@")
    with psycopg.connect(where, autocommit=True) as connection:
        yield connection
    server.sql(f"DROP ROLE {name}")


def shout(stranger: psycopg.Connection, client: Client, words: list[str]) -> None:
    """To the channel of a client, whose id is no secret."""
    for word in words:
        stranger.execute("SELECT pg_notify(%s, %s)", (f"holdfast_{id_of(client)}", word))


def id_of(client: Client) -> str:
    driver: Any = client._driver
    return str(driver.client_state.client)


def guesses(client: Client) -> list[str]:
    """Names as attempts once had them, grants as other engines write them, and what cannot be read."""
    us = id_of(client)
    return [
        *[f"{us}-{number}" for number in range(20)],
        f"{us}-{'0' * 32}",
        f"{us}-1 {2**62} 0 30",
        f'{{"nonce": "{us}-1", "token": {2**62}}}',
        "",
        "ünlesbar \u2603",
        "\x1b[31m",
        "x" * 7000,
        "hear, hear",
    ]


@ENGINES
def test_a_notification_grants_nothing_and_takes_nothing(
    engine: str, url: str, stranger: psycopg.Connection
) -> None:
    url = url.replace("postgresql:", f"{engine}:")
    granted: list[int] = []
    with holdfast.connect(url) as holder, holdfast.connect(url) as waiter:
        lease = holder.lock("x", ttl=60).acquire()
        assert lease is not None

        def wait() -> None:
            with waiter.lock("x", timeout=30) as mine:
                granted.append(mine.token)

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            wait_until(lambda: len(holder.inspect("x").waiters) == 1)
            if engine == "postgresql":
                wait_until(lambda: receives_notifications(waiter) and receives_notifications(holder))
            for client in (holder, waiter):
                shout(stranger, client, guesses(client))
            assert not lease.wait_lost(0.5)
            assert granted == []
            assert [each.token for each in holder.inspect("x").holders] == [lease.token]
            lease.check()
        finally:
            lease.release()
            thread.join(30)
        assert len(granted) == 1
        assert lease.token < granted[0] < 2**53


def test_what_cannot_be_read_is_dropped_and_counted(
    url: str, stranger: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PgConnection] = []
    begin = PgConnection.__init__

    def noting(self: PgConnection, *args: Any) -> None:
        made.append(self)
        begin(self, *args)

    monkeypatch.setattr(PgConnection, "__init__", noting)
    with holdfast.connect(url) as client:
        lease = client.lock("x", ttl=60).acquire()
        assert lease is not None
        wait_until(lambda: receives_notifications(client))
        shout(stranger, client, ["", "ünlesbar", "two words", "x" * 7000, "\x1b[31m"])
        wait_until(lambda: sum(connection.foreign_notifications for connection in made) == 5)
        assert receives_notifications(client)
        lease.check()
        lease.release()


def test_the_listener_continues_after_any_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged once, waiters poll meanwhile, and then it listens again."""
    receive, failures = PgConnection.receive_notifications, [ZeroDivisionError("of all things")]

    def failing(self: PgConnection) -> list[str]:
        if failures and receives_notifications(client):
            raise failures.pop()
        return receive(self)

    monkeypatch.setattr(PgConnection, "receive_notifications", failing)
    with holdfast.connect(url) as client, holdfast.connect(url) as other:
        lease = client.lock("x", ttl=60).acquire()
        assert lease is not None
        wait_until(lambda: receives_notifications(client))
        client_id = id_of(client)
        shared_postgresql().sql(f"NOTIFY \"holdfast_{client_id}\", 'anything'")
        wait_until(lambda: not failures)
        wait_until(lambda: receives_notifications(client))
        assert other.break_lock("x", reason="to see") is not None
        assert lease.wait_lost(20)


def test_the_session_listener_continues_after_any_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tick, failures, ticks = SessionListener._tick, [ZeroDivisionError("of all things")], []

    def failing(self: SessionListener) -> None:
        ticks.append(len(failures))
        if failures:
            raise failures.pop()
        tick(self)

    monkeypatch.setattr(SessionListener, "_tick", failing)
    url = url.replace("postgresql:", "postgresql+advisory:")
    with holdfast.connect(url) as client, holdfast.connect(url) as other:
        lease = client.lock("x", ttl=60).acquire()
        assert lease is not None
        wait_until(lambda: 0 in ticks)
        assert other.break_lock("x", reason="to see") is not None
        assert lease.wait_lost(20)
