"""What etcd promises as an engine of locks, and where it can fail."""

from __future__ import annotations

from typing import Final

from ...model import Guarantees
from ..clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED

__all__ = ["GUARANTEES"]

GUARANTEES: Final = Guarantees(
    engine="etcd",
    scope="cluster",
    fencing=(
        "four times the revision that created the ticket: never regresses, unless the cluster is restored "
        "from an older backup"
    ),
    fifo="always, among all clients; fair=False is accepted and changes nothing",
    crash_release="after its ttl in whole seconds, two at least with etcd's own settings",
    loss_signal="at the deadline by the local clock; at once when broken or when its session ends",
    is_fifo=True,
    can_barge=False,
    has_counted_queue=True,
    has_values=True,
    has_cells=True,
    can_export=True,
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=(
        "etcd 3.4 or newer; 3.4.28 or 3.5.10 lest a leader that was stopped and goes on ends living sessions",
        TWO_CLOCKS_NEED,
    ),
    faults={
        "holder is killed": "kept: free after its ttl",
        "holder is paused": "loss signalled when it runs again; fenced by the next holder's larger token",
        "wall clock jumps": "kept: no grant depends on it",
        "waiter is killed": "kept: its place is given up after its ttl",
        "connection is cut or silent": "kept over another member; else loss signalled at the deadline",
        "follower is killed or paused": "kept",
        "leader is killed or paused": "kept: refused until another is elected, which gives all more time",
        "majority is lost": "refused; loss signalled at the deadline",
        "session is ended from outside": "loss signalled at once",
        "history is compacted": "kept",
        "disk is full": "refused; loss is not: what is held stays held",
        **TWO_CLOCKS_FAULTS,
    },
)
