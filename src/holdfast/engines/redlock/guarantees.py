"""What Redlock promises, and where it can fail."""

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
        "while a majority remembers and those who forgot rejoin, whatever networks do and clocks show; but "
        "one that is set ahead by a day or more, and back again, makes its node forget unnoticed"
    ),
    fifo="no: who waits looks now and then; fair=True is refused",
    crash_release="after its ttl",
    loss_signal="at the deadline by the local clock; when broken, at the next renewal",
    is_fifo=False,
    can_barge=True,
    has_counted_queue=False,
    has_values=False,
    can_export=True,
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
        "waiter is killed": "kept: it held nothing and stood in nobody's way",
        "a minority of nodes is down, slow, stopped or cut off": "kept: nobody waits for them",
        "nodes are down one after another, each for longer than the ttl": (
            "kept: each is given what is held at the next renewal after it is back"
        ),
        "a majority of nodes is down, slow, stopped or cut off": (
            "refused; loss of what is held signalled at its deadline"
        ),
        "node restarts with its data (appendfsync always)": "kept: its mark is renewed by itself",
        "node restarts without its data, or is emptied": (
            "kept: it issues nothing until it has rejoined, which waits for the end of all that it granted; "
            "exclusion may break if that wait is cut short, tokens never repeat"
        ),
        "a majority forgets": "refused until the set is made anew, with another source: guards notice",
        "a minority of clocks jumps": "kept; one set ahead by a day or more: empty that node, let it rejoin",
        "a majority of clocks jumps": "fenced: leases end early, others may hold too, with larger tokens",
        "keys are evicted": "refused: a node that evicts is no node",
        "scripts are flushed": "kept: they are loaded again",
        **TWO_CLOCKS_FAULTS,
    },
)
