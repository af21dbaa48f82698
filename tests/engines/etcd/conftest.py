"""One etcd that harmless tests share, each in a namespace of its own; clients that are closed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
from contract.engines import fresh_namespace
from engines.etcd.admin import Admin
from engines.etcd.spy import Spy
from holdfast import Client, Lease, Lock
from holdfast.lab.proxy import Proxy
from support.servers import shared_etcd

Connect = Callable[..., Client]
Hold = Callable[[Lock], Lease]


@pytest.fixture
def namespace() -> str:
    return fresh_namespace()


@pytest.fixture
def admin() -> Admin:
    return Admin(shared_etcd())


@pytest.fixture
def url() -> str:
    return f"etcd://{shared_etcd().address}"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Before the shared server."""
    shared = shared_etcd()
    with Proxy(shared.host, shared.port) as proxy:
        yield proxy


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
