"""An engine for each test, by URL scheme: an engine with a line here is held to the contract.

An engine with a server gives the URL of one that all tests of the process share (``support.servers``). What
keeps tests apart is the namespace, a fresh one each.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

import pytest
from _pytest.mark import ParameterSet

from support.servers import (
    shared_etcd,
    shared_postgresql,
    shared_redis,
    shared_redis_cluster,
    shared_redis_tls,
    shared_redlock,
    shared_sentinel,
    shared_valkey,
    shared_zookeeper,
)

__all__ = [
    "DRIVERS",
    "FRESH_URL",
    "LACKS",
    "VARIANTS",
    "Driver",
    "deselect_lacking",
    "each_engine",
    "engines_held_to",
    "excused_from",
    "fresh_namespace",
    "fresh_url",
    "lacks",
    "needs",
    "takes_seconds",
]

P = ParamSpec("P")
T = TypeVar("T")

Driver = Literal["threads", "asyncio"]
DRIVERS: Final[tuple[Driver, ...]] = ("threads", "asyncio")

FRESH_URL: Final[Mapping[str, Callable[[Path], str]]] = {
    "memory": lambda folder: f"memory://{secrets.token_hex(8)}",
    "sqlite": lambda folder: f"sqlite:///{folder}/locks.db",
    "redis": lambda folder: shared_redis().url,
    "rediss": lambda folder: (
        f"{shared_redis_tls().url}?ssl_ca_certs={shared_redis_tls().certificates.authority}"
    ),
    "redis+sentinel": lambda folder: (
        f"redis+sentinel://{shared_sentinel().addresses}?service={shared_sentinel().service}"
    ),
    "redis+cluster": lambda folder: f"redis+cluster://{shared_redis_cluster().addresses}",
    "redlock": lambda folder: f"redlock://{shared_redlock().addresses}?node_timeout=1s",
    "zookeeper": lambda folder: f"zookeeper://{shared_zookeeper().address}?session_timeout=3600",
    "etcd": lambda folder: f"etcd://{shared_etcd().address}",
    "postgresql": lambda folder: shared_postgresql().url,
    "postgresql+advisory": lambda folder: shared_postgresql().url.replace(
        "postgresql", "postgresql+advisory", 1
    ),
}
"""Scheme → a URL; ``folder`` is the test's own."""

VALKEY: Final = "valkey"
"""Another server for the engine ``redis``. Queues, read-write locks and renewal, which take long, are in
``tests/engines/redis/test_valkey.py``."""

LACKS: Final[Mapping[str, frozenset[str]]] = {
    # Independent nodes: no one place for a queue, a value or a count, and nobody who could wake a stranger.
    "redlock": frozenset({"rwlock", "semaphore", "value", "cells", "queue", "wake-ups", "counted queue"}),
    "postgresql+advisory": frozenset({"semaphore", "handing over", "counted queue"}),
}
"""What an engine cannot do, of all that a test may need (``@needs("queue")``)."""

VARIANTS: Final = frozenset({"rediss", "redis+sentinel", "redis+cluster"})
"""The same engine reached in another way: held to a part of the contract, to save time."""

ESSENTIAL: Final = frozenset({"test_lock", "test_queue", "test_rwlock", "test_semaphore"})
"""The files of that part."""

OF_VALKEY: Final = frozenset(
    {
        "test_breaking",
        "test_inspection",
        "test_lock",
        "test_rlock",
        "test_semaphore",
        "test_values",
    }
)
"""The files of Valkey's part."""

CLUSTERED: Final = "redis+cluster"
"""Names lie on several servers there, which all feel that concerns several names, or another client: held to
everything but what a client makes of its own clock."""

CLOCKED: Final = frozenset({"test_loss"})
"""The files of that."""


needs: Final = pytest.mark.needs
"""Marks a test, or one of its parameters, by what it needs of an engine: see ``LACKS``."""


def takes_seconds(test: Callable[P, T]) -> Callable[P, T]:
    """Marks a test that waits for seconds of real time, for what a protocol does by its clock.

    ``tests/protocols`` and ``tests/simulation`` test the same in virtual time. Here it is tested once for
    each engine (and each other parameter), by threads or by asyncio, and under both drivers for ``memory``
    alone (``support.thorough``); on the main Python only.
    """
    return pytest.mark.slow(pytest.mark.one_driver(test))


def lacks(url: str) -> frozenset[str]:
    return LACKS.get(url.partition("://")[0], frozenset())


def deselect_lacking(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an engine does not claim to do; that it refuses it clearly is a test of its own."""
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        needed = {need for mark in item.iter_markers("needs") for need in mark.args}
        schemes = {scheme for mark in item.iter_markers("engine") for scheme in mark.args}
        missed = any(needed & LACKS.get(scheme, frozenset()) for scheme in schemes)
        (dropped if missed else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def fresh_namespace() -> str:
    """One that nobody has used before."""
    return f"test-{secrets.token_hex(6)}"


def fresh_url(scheme: str, folder: Path) -> str:
    return shared_valkey().url if scheme == VALKEY else FRESH_URL[scheme](folder)


def engines_held_to(file: str) -> list[ParameterSet]:
    """For this file of the contract."""
    held = each_engine(but=excused_from(file))
    if file in OF_VALKEY:
        held.append(pytest.param(VALKEY, marks=pytest.mark.engine("redis"), id=VALKEY))
    return held


def excused_from(file: str) -> frozenset[str]:
    """The schemes that are not held to this file of the contract."""
    if file in ESSENTIAL:
        return frozenset()
    return VARIANTS if file in CLOCKED else VARIANTS - {CLUSTERED}


def each_engine(but: frozenset[str] = frozenset()) -> list[ParameterSet]:
    """The schemes as parameters; ``HOLDFAST_TEST_ENGINES`` chooses among them by their mark."""
    return [
        pytest.param(scheme, marks=pytest.mark.engine(scheme), id=scheme)
        for scheme in FRESH_URL
        if scheme not in but
    ]
