"""What the Redlock engine guarantees, and under which faults."""

from __future__ import annotations

from typing import Final

from ...model import Guarantees
from ..clock_rates import TWO_CLOCKS_FAULTS

__all__ = ["GUARANTEES"]

GUARANTEES: Final = Guarantees(
    engine="redlock",
    scope="cluster",
    fencing=(
        "a number that a majority of the nodes issued to this attempt and to no other; it cannot regress "
        "while a majority keeps its data and the other nodes rejoin, whatever networks and clocks do; one "
        "exception: a node whose clock is set ahead by a day or more, and back again, loses data unnoticed"
    ),
    fifo="no: waiters poll; fair=True is refused",
    crash_release="after its ttl",
    loss_signal="at the deadline by the local clock; when broken, at the next renewal",
    is_fifo=False,
    can_barge=True,
    has_counted_queue=False,
    has_values=False,
    has_cells=False,
    can_export=True,
    has_timed_tokens=True,
    primitives=("lock", "rlock"),
    needs=(
        "an odd number, at least 3, of independent Redis 7.0.1 or later, or Valkey: no replicas, no cluster",
        "appendonly yes and appendfsync always; else a node that was restarted has to rejoin",
        "maxmemory-policy noeviction",
        "clock rates within drift (1 %) between nodes and holders, for exclusion; tokens need no clock",
        "the commands EVALSHA, SCRIPT LOAD, GET, SET, HMGET, HSET, TIME, SCAN, INFO, CONFIG GET, HELLO",
    ),
    faults={
        "holder is killed": "kept: released after its ttl",
        "holder is paused": "loss signalled when it runs again; fenced by the next holder's larger token",
        "waiter is killed": "kept: it held nothing and blocked no other waiter",
        "a minority of nodes is down, slow, stopped or cut off": "kept: no client waits for them",
        "nodes are down one after another, each for longer than the ttl": (
            "kept: the next renewal repairs each node after it is back"
        ),
        "a majority of nodes is down, slow, stopped or cut off": (
            "refused; the loss of a held lock is signalled at its deadline"
        ),
        "node restarts with its data (appendfsync always)": "kept: its mark is renewed automatically",
        "node restarts without its data, or is emptied": (
            "kept: it issues nothing until it has rejoined, which waits for the end of all leases that it "
            "granted; exclusion may break if that wait is cut short, tokens never repeat"
        ),
        "a majority loses its data": "refused until a new set is made, with another source: guards notice",
        "a minority of clocks jumps": (
            "kept; after a jump ahead by a day or more: empty that node, let it rejoin"
        ),
        "a majority of clocks jumps": (
            "fenced: leases end early, others may hold the lock too, with larger tokens"
        ),
        "keys are evicted": "refused: a server that evicts keys cannot be a node",
        "scripts are flushed": "kept: they are loaded again",
        **TWO_CLOCKS_FAULTS,
    },
)
