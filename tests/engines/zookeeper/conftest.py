"""One ZooKeeper that harmless tests share, each in a namespace of its own; clients closed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
from contract.engines import fresh_namespace
from engines.zookeeper.admin import Admin
from engines.zookeeper.spy import Spy
from holdfast import Client, Lease, Lock
from holdfast.engines.zookeeper.session import Session
from support.servers import shared_zookeeper

Connect = Callable[..., Client]
Hold = Callable[[Lock], Lease]


@pytest.fixture
def namespace() -> str:
    return fresh_namespace()


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin(shared_zookeeper())
    yield admin
    admin.close()


@pytest.fixture
def url() -> str:
    return f"zookeeper://{shared_zookeeper().address}"


@pytest.fixture
def kept() -> list[Lease]:
    """Leases that live until the clients are closed, so that none is dropped by accident."""
    return []


@pytest.fixture
def hold(kept: list[Lease]) -> Hold:
    """Takes a lock, which must be free, until the end of the test."""

    def take(lock: Lock) -> Lease:
        lease = lock.acquire(timeout=20)
        assert lease is not None
        kept.append(lease)
        return lease

    return take


@pytest.fixture
def connect(url: str, namespace: str, kept: list[Lease]) -> Iterator[Connect]:
    """Makes clients of the shared server, or of another URL."""
    with ExitStack() as clients:

        def make(other: str = "", **options: Any) -> Client:
            return clients.enter_context(
                holdfast.connect(other or url, **{"namespace": namespace, **options})
            )

        yield make


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    """Counts what is sent."""
    return Spy(monkeypatch)


def session_of(client: Client) -> Session:
    """The session of a client."""
    (session,) = client._driver.adapter._transport.store.pool.all()  # type: ignore[attr-defined]  # looks inside
    assert isinstance(session, Session)
    return session
