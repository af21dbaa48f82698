"""What the Redis engine guarantees, and under which faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...model import Guarantees
from ..clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED
from .config import RedisConfig

__all__ = ["GUARANTEES", "guarantees_of"]

_FAULTS: Final = {
    "holder is killed": "kept: released after its ttl",
    "holder is paused": "loss signalled when it runs again; fenced by the next holder's larger token",
    "waiter is killed": "kept: its place is dropped after a turn, or five seconds without a refresh",
    "waiter is paused or cut off": (
        "kept: as for a killed waiter; after its ttl, if it had come less than a tenth of a second before "
        "the lock was free"
    ),
    "connection is cut or silent": (
        "kept: the attempt is repeated under its nonce; loss signalled at the deadline"
    ),
    "server restarts with its data (appendfsync always)": "kept",
    "server restarts without its data": (
        "fenced: others may be granted what is held, with larger tokens; loss signalled at the next renewal"
    ),
    "server's clock jumps forward": "fenced: leases end early; loss signalled at the next renewal",
    "server's clock jumps back": "kept: leases last longer; tokens never go back while the record is kept",
    "keys are evicted": "fenced: as a restart without data; set maxmemory-policy to noeviction",
    "memory or disk is full": "refused; held locks are lost at their deadlines, and the loss is signalled",
    "scripts are flushed": "kept: they are loaded again",
    **TWO_CLOCKS_FAULTS,
}

_FAILOVER: Final = {
    "master fails over": (
        "fenced: the last writes may be lost, so that others are granted what is held, with larger tokens; "
        "loss signalled at the next renewal (wait_replicas makes it rarer)"
    ),
    "master is cut off with some of its clients": (
        "fenced: it goes on granting until it finds out (min-replicas-to-write limits that)"
    ),
}

_NEEDS: Final = (
    "Redis 7.0.1 or later, or Valkey",
    "maxmemory-policy noeviction",
    TWO_CLOCKS_NEED,
    "the commands EVALSHA, SCRIPT LOAD, GET, SET, TIME, SCAN, PUBLISH, SUBSCRIBE, HELLO",
)

GUARANTEES: Final = Guarantees(
    engine="redis",
    scope="cluster",
    fencing=(
        "a counter in the record, never behind the server's wall clock in microseconds; it can regress only "
        "if the record is lost and the clock that mints afterwards is behind"
    ),
    fifo="yes, among all clients of one server; fair=False lets newcomers barge",
    crash_release="after its ttl",
    loss_signal="at the deadline by the local clock; at once when broken",
    is_fifo=True,
    can_barge=True,
    has_counted_queue=True,
    has_values=True,
    has_cells=True,
    can_export=True,
    has_timed_tokens=True,
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=_NEEDS,
    faults=_FAULTS,
)

_SENTINEL: Final = replace(GUARANTEES, engine="redis+sentinel", faults={**_FAULTS, **_FAILOVER})

_CLUSTER: Final = replace(
    GUARANTEES,
    engine="redis+cluster",
    needs=(
        *_NEEDS,
        "CLUSTER SLOTS, SSUBSCRIBE and SPUBLISH",
        "names with one {tag} for locks that must be on one server",
    ),
    faults={
        **_FAULTS,
        **_FAILOVER,
        "slots are moved": "kept: requests follow; a notification may take a second longer meanwhile",
    },
)


def guarantees_of(config: RedisConfig, policy: str | None) -> Guarantees:
    """``policy``: the eviction policy that was found; empty: no key is evicted; None: the server does not
    say."""
    promised = {"sentinel": _SENTINEL, "cluster": _CLUSTER}.get(config.deployment, GUARANTEES)
    if config.wait_replicas:
        need = f"a grant counts when {config.wait_replicas} replicas have acknowledged it"
        promised = replace(promised, needs=(*promised.needs, need))
    if policy != "":
        subject = "a master of this cluster" if config.deployment == "cluster" else "this server"
        finding = (
            f"NOT KNOWN HERE: {subject} does not say whether it evicts keys when memory is full "
            "(+info|memory)"
            if policy is None
            else f"NOT SO HERE: {subject} evicts keys when its memory is full (maxmemory-policy {policy})"
        )
        faults = {**promised.faults, "keys are evicted": f"{finding}; fenced"}
        promised = replace(promised, needs=(*promised.needs, finding), faults=faults)
    return promised
