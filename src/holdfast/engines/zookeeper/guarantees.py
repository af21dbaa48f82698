"""What ZooKeeper promises as an engine of locks, and where it can fail."""

from __future__ import annotations

from typing import Final

from ...model import Guarantees
from ..clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED

__all__ = ["GUARANTEES"]

GUARANTEES: Final = Guarantees(
    engine="zookeeper",
    scope="cluster",
    fencing=(
        "four times the zxid that created the ticket: never regresses, unless the ensemble is restored from "
        "an older backup"
    ),
    fifo="always, among all clients; fair=False is accepted and changes nothing",
    crash_release="after session_timeout, 30 s by default and within the servers' bounds",
    loss_signal="at the deadline by the local clock; at once when broken or when its session ends",
    is_fifo=True,
    can_barge=False,
    has_counted_queue=True,
    has_values=True,
    has_cells=True,
    can_export=True,
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=(
        "a ttl of session_timeout at most: one session carries everything that a client holds",
        "ZooKeeper 3.5.1 or later; minSessionTimeout of two ticks at least, as it is by default",
        TWO_CLOCKS_NEED,
    ),
    faults={
        "holder is killed": "kept: free after session_timeout",
        "holder is paused": "loss signalled when it runs again; fenced by the next holder's larger token",
        "wall clock jumps": "kept: no grant depends on it",
        "waiter is killed": "kept: its place is given up after session_timeout",
        "connection is cut or silent": "kept over another server; else loss signalled at the deadline",
        "follower is killed or paused": "kept",
        "leader is killed or paused": "kept: refused until another is elected, which gives all more time",
        "majority is lost": "refused; loss signalled at the deadline",
        "session is ended from outside": "loss signalled at once",
        "server is read-only": "refused",
        **TWO_CLOCKS_FAULTS,
    },
)
