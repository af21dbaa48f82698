"""The figures to reach, by the scheme of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from .engines.together import LABELS
from .targets import Target, floor_and_ambition, ratio, value

__all__ = ["FIGURES"]

SQLITE: Final = "holdfast-sqlite"
REDIS: Final = "holdfast-redis"
REDLOCK: Final = "holdfast-redlock"
ETCD: Final = "holdfast-etcd"
ZOOKEEPER: Final = "holdfast-zookeeper"
LEASE_TABLE: Final = "holdfast-postgresql"
ADVISORY: Final = "holdfast-advisory"

SITUATIONS: Final = (("busy", "2 ms between"), ("hot", "nothing between"))


def fair_within_two(subject: str) -> Iterator[Target]:
    """What both engines of PostgreSQL have to reach when many want the same."""
    for key, label in SITUATIONS:
        yield Target(
            f"8 processes, {label}: largest share ÷ smallest",
            "contention",
            value("shares", f"{subject}/{key}"),
            2.0,
            "at most",
        )
    yield Target(
        "Release → granted elsewhere, p50", "handoff", value("p50", subject), 3e-3, "under", "seconds"
    )


EMBEDDED_FIGURES: Final = (
    *floor_and_ambition(
        "A pair, as a part of the rate of two bare SQLite transactions",
        "pairs",
        ratio("rate", SQLITE, "sqlite-bare"),
        0.35,
        0.7,
    ),
    Target("Rate of pairs over filelock's", "pairs", ratio("rate", SQLITE, "filelock"), 1.0, "at least"),
    Target(
        "Rate of pairs over portalocker's, ambition",
        "pairs",
        ratio("rate", SQLITE, "portalocker"),
        1.0,
        "at least",
        ambition=True,
    ),
    Target("Release → granted elsewhere, p50", "handoff", value("p50", SQLITE), 1e-3, "under", "seconds"),
    *(
        Target(f"{peer}'s hand-off over ours, p50", "handoff", ratio("p50", peer, SQLITE), 25.0, "at least")
        for peer in ("filelock", "portalocker", "fasteners")
    ),
    Target("CPU of a waiting process", "waiting", value("cpu", SQLITE), 0.005, "under", "share of a core"),
    Target(
        "8 processes, 2 ms between: acquisitions over filelock's",
        "contention",
        ratio("rate", f"{SQLITE}/busy", "filelock/busy"),
        1.7,
        "at least",
    ),
    Target(
        "8 processes, 2 ms between: largest share ÷ smallest",
        "contention",
        value("shares", f"{SQLITE}/busy"),
        1.5,
        "at most",
    ),
    Target(
        "8 processes, 2 ms between: filelock's longest wait over ours",
        "contention",
        ratio("longest", "filelock/busy", f"{SQLITE}/busy"),
        5.0,
        "at least",
    ),
    Target(
        "A pair beside a hot process on another name, p99",
        "neighbour",
        value("p99", f"{SQLITE}/beside"),
        0.020,
        "under",
        "seconds",
    ),
    Target(
        "10,000 leases held, ttl 30: CPU",
        "renewal",
        value("cpu_at_30", SQLITE),
        0.05,
        "under",
        "share of a core",
    ),
    Target(
        "10,000 leases held: renewing threads", "renewal", value("renewing", SQLITE), 1.0, "at most", "count"
    ),
)

MEMORY_FIGURES: Final = (
    Target("A pair", "pairs", value("time", "holdfast-memory"), 25e-6, "under", "seconds"),
    Target(
        "Schedules of 4 clients × 25 virtual seconds and more, per second of CPU time",
        "simulation",
        value("rate", "simulation"),
        30.0,
        "at least",
        "per second",
    ),
)

REDIS_FIGURES: Final = (
    *floor_and_ambition(
        "A pair, as a part of the rate of the same scripts over a bare socket",
        "pairs",
        ratio("rate", REDIS, "redis-socket"),
        0.55,
        0.85,
    ),
    *floor_and_ambition("Rate of pairs over redis-py's", "pairs", ratio("rate", REDIS, "redis-py"), 2.0, 3.0),
    *floor_and_ambition(
        "asyncio, 100 tasks on 100 locks: rate over redis-py's",
        "tasks",
        ratio("rate", f"{REDIS}-asyncio/100", "redis-py-asyncio/100"),
        5.0,
        12.0,
    ),
    Target(
        "asyncio, one task: rate over redis-py's",
        "tasks",
        ratio("rate", f"{REDIS}-asyncio/1", "redis-py-asyncio/1"),
        1.5,
        "at least",
    ),
    Target("Release → granted elsewhere, p50", "handoff", value("p50", REDIS), 1e-3, "under", "seconds"),
    Target(
        "redis-py's hand-off over ours, p50", "handoff", ratio("p50", "redis-py", REDIS), 30.0, "at least"
    ),
    Target(
        "8 processes, 2 ms between: acquisitions over redis-py's",
        "contention",
        ratio("rate", f"{REDIS}/busy", "redis-py/busy"),
        2.0,
        "at least",
    ),
    Target(
        "8 processes, nothing between: acquisitions over redis-py's",
        "contention",
        ratio("rate", f"{REDIS}/hot", "redis-py/hot"),
        0.9,
        "at least",
    ),
    Target(
        "8 processes, nothing between: redis-py's longest wait over ours",
        "contention",
        ratio("longest", "redis-py/hot", f"{REDIS}/hot"),
        10.0,
        "at least",
    ),
    *(
        Target(
            f"8 processes, {label}: largest share ÷ smallest",
            "contention",
            value("shares", f"{REDIS}/{key}"),
            1.2,
            "at most",
        )
        for key, label in SITUATIONS
    ),
    *(
        Target(
            f"8 processes, {label}: commands per acquisition",
            "contention",
            value("requests", f"{REDIS}/{key}"),
            4.0,
            "at most",
            "count",
        )
        for key, label in SITUATIONS
    ),
    Target(
        "10,000 leases held, ttl 30: CPU",
        "renewal",
        value("cpu_at_30", REDIS),
        0.02,
        "under",
        "share of a core",
    ),
    Target(
        "10,000 leases held: renewing threads", "renewal", value("renewing", REDIS), 1.0, "at most", "count"
    ),
    Target(
        "10,000 leases held: connections, beside the one that listens",
        "renewal",
        value("asking", REDIS),
        1.0,
        "at most",
        "count",
    ),
    *(
        Target(
            f"1,000 {waiters} waiting in one process: connections",
            "crowd",
            value("connections", key),
            4.0,
            "at most",
            "count",
        )
        for waiters, key in (("threads", REDIS), ("tasks", f"{REDIS}-asyncio"))
    ),
)

REDLOCK_FIGURES: Final = (
    Target(
        "A pair, as a part of the rate of a bare scatter and gather",
        "pairs",
        ratio("rate", REDLOCK, "redlock-scatter"),
        0.5,
        "at least",
    ),
    *(
        Target(f"Rate of pairs over {peer}'s", "pairs", ratio("rate", REDLOCK, peer), 3.0, "at least")
        for peer in ("redlock-py", "pottery")
    ),
    Target("Grants in one round", "pairs", value("one_round", REDLOCK), 0.95, "over", "share"),
    Target(
        "One node stopped: time of a pair over that with all nodes",
        "stopped",
        ratio("time", f"{REDLOCK}/stopped", f"{REDLOCK}/all"),
        2.0,
        "at most",
    ),
)

ETCD_FIGURES: Final = (
    Target(
        "A pair, as a part of the rate of two bare grpcio transactions",
        "pairs",
        ratio("rate", ETCD, "etcd-transactions"),
        0.8,
        "at least",
    ),
    Target("Rate of pairs over python-etcd3's", "pairs", ratio("rate", ETCD, "etcd3"), 2.0, "at least"),
    Target(
        "Rate of pairs over that of tooz over etcd3gw",
        "pairs",
        ratio("rate", ETCD, "tooz-etcd"),
        4.0,
        "at least",
    ),
    *(
        Target(
            f"8 processes, {label}: acquisitions over those of {name}",
            "contention",
            ratio("rate", f"{ETCD}/{key}", f"{peer}/{key}"),
            2.0,
            "at least",
        )
        for key, label in SITUATIONS
        for peer, name in (("etcd3", "python-etcd3"), ("tooz-etcd", "tooz"))
    ),
    Target("Release → granted elsewhere, p50", "handoff", value("p50", ETCD), 5e-3, "under", "seconds"),
)

ZOOKEEPER_FIGURES: Final = (
    *floor_and_ambition("Rate of pairs over kazoo's", "pairs", ratio("rate", ZOOKEEPER, "kazoo"), 1.25, 2.5),
    *(
        Target(
            f"8 processes, {label}: acquisitions over kazoo's",
            "contention",
            ratio("rate", f"{ZOOKEEPER}/{key}", f"kazoo/{key}"),
            1.0,
            "at least",
        )
        for key, label in SITUATIONS
    ),
    Target("Release → granted elsewhere, p50", "handoff", value("p50", ZOOKEEPER), 5e-3, "under", "seconds"),
)

LEASE_TABLE_FIGURES: Final = (
    Target(
        "A pair, as a part of the rate of a bare row inserted and deleted",
        "pairs",
        ratio("rate", LEASE_TABLE, "row-bare"),
        0.7,
        "at least",
    ),
    *fair_within_two(LEASE_TABLE),
)

ADVISORY_FIGURES: Final = (
    Target(
        "A pair, as a part of the rate of bare pg_advisory_lock and unlock",
        "pairs",
        ratio("rate", ADVISORY, "advisory-bare"),
        0.4,
        "at least",
    ),
    *(
        Target(f"Rate of pairs over {label}", "pairs", ratio("rate", ADVISORY, peer), 1.0, "over")
        for peer, label in (("sqlalchemy-dlock", "sqlalchemy-dlock's"), ("tooz-postgresql", "tooz's"))
    ),
    *(
        Target(
            f"8 processes, {label}: acquisitions over those of bare pg_advisory_lock",
            "contention",
            ratio("rate", f"{ADVISORY}/{key}", f"advisory-bare/{key}"),
            0.8,
            "at least",
        )
        for key, label in SITUATIONS
    ),
    *fair_within_two(ADVISORY),
)

GUARD_FIGURES: Final = (
    Target(
        "A fenced pgbench transaction, as a part of the rate of the same unfenced",
        "pairs",
        ratio("rate", "fenced", "unfenced"),
        0.75,
        "at least",
    ),
    Target(
        "A row of a protected table, as a part of the rate of an unprotected one",
        "pairs",
        ratio("rate", "protected", "unprotected"),
        0.6,
        "at least",
    ),
)

FENCING_REDIS_FIGURES: Final = (
    Target(
        "A fenced write, as a part of the rate of a plain EVALSHA that sets",
        "redis_writes",
        ratio("rate", "fenced-redis", "evalsha-set"),
        0.8,
        "at least",
    ),
)

QUEUE_FIGURES: Final = (
    *(
        Target(
            f"Jobs per second over procrastinate's, {workers} workers",
            "jobs",
            ratio("rate", f"holdfast-queue/{workers}", f"procrastinate/{workers}"),
            1.0,
            "at least",
        )
        for workers in (1, 4, 8)
    ),
    Target(
        "Put → start in an idle worker, p50",
        "starts",
        value("p50", "holdfast-queue"),
        10e-3,
        "under",
        "seconds",
    ),
    Target(
        "A claim beside 1,000,000 finished jobs over one beside 1,000, p50",
        "finished",
        ratio("p50", "holdfast-queue/1000000", "holdfast-queue/1000"),
        1.5,
        "at most",
    ),
)

CELLS_FIGURES: Final = tuple(
    Target(
        f"8 processes on one counter, {label}: `cell.update` over the same under a lock",
        "updates",
        ratio("rate", f"cells-{engine}/cell/8", f"cells-{engine}/lock/8"),
        2.0,
        "at least",
    )
    for engine, label in LABELS.items()
)

OWNERSHIP_FIGURES: Final = tuple(
    Target(
        f"1,000 partitions over 10 members, {LABELS[engine]}: moved when one is killed, over the ideal share",
        "moves",
        value("moved", f"ownership-{engine}"),
        1.2,
        "at most",
    )
    for engine in ("sqlite", "redis", "postgresql")
)

EVENTS_FIGURES: Final = tuple(
    Target(
        f"An append, as a part of the rate of a bare INSERT, {writers} writer{'s' if writers > 1 else ''}",
        "appends",
        ratio("rate", f"events/{writers}", f"insert/{writers}"),
        0.6,
        "at least",
    )
    for writers in (1, 4, 8)
)

FIGURES: Final[Mapping[str, tuple[Target, ...]]] = {
    "sqlite": EMBEDDED_FIGURES,
    "memory": MEMORY_FIGURES,
    "redis": REDIS_FIGURES,
    "redlock": REDLOCK_FIGURES,
    "redlock-in-memory": REDLOCK_FIGURES,
    "etcd": ETCD_FIGURES,
    "zookeeper": ZOOKEEPER_FIGURES,
    "postgresql": LEASE_TABLE_FIGURES,
    "postgresql+advisory": ADVISORY_FIGURES,
    "fencing": GUARD_FIGURES,
    "fencing-redis": FENCING_REDIS_FIGURES,
    "sql-counters": (),
    "queue": QUEUE_FIGURES,
    "cells": CELLS_FIGURES,
    "ownership": OWNERSHIP_FIGURES,
    "events": EVENTS_FIGURES,
}
