"""What the embedded engine guarantees."""

from __future__ import annotations

from typing import Final

from ...model import Guarantees
from ..clock_rates import ONE_CLOCK_FAULTS, ONE_CLOCK_NEED

__all__ = ["GUARANTEES"]

GUARANTEES: Final = Guarantees(
    engine="sqlite",
    scope="user",
    fencing=(
        "a counter in the record, never less than the wall clock in microseconds; it can go back only if the "
        "file is deleted and the wall clock was set back"
    ),
    fifo="yes, among all processes that share the file",
    crash_release=(
        "at once: the kernel releases the holder's liveness lock; after the ttl only if a child process that "
        "was forked without Python noticing keeps that lock, and the waiter is in another pid namespace"
    ),
    loss_signal="at the deadline by the local clock; at once when the lock is broken",
    is_fifo=True,
    can_barge=True,
    has_counted_queue=True,
    has_values=True,
    has_cells=True,
    can_export=True,
    has_timed_tokens=True,
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=(
        "one user, one machine, one file; containers must share the whole folder of the file",
        "a local file system (network, FUSE, 9p and virtiofs mounts are refused)",
        ONE_CLOCK_NEED,
    ),
    faults={
        "holder is killed": "kept: the lock is released at once, also if the holder had forked",
        "holder is paused": (
            "loss signalled when the holder runs again; fenced by the next holder's larger token"
        ),
        "wall clock jumps": "kept: only tokens and retention read the wall clock, and tokens never go back",
        "waiter is killed": "kept: its turn passes to the next waiter at once",
        "waiter is paused": (
            "kept: the waiters behind it lose one turn (two seconds), or its ttl if it began to wait less "
            "than a tenth of a second before the lock became free"
        ),
        "machine restarts": "kept: no process has the old liveness locks, so every lock is free",
        "process is paused in the middle of a write": "refused after io_timeout until it runs again",
        "disk is full": "refused; held locks are lost at their deadlines, and the loss is signalled",
        "file is deleted": "loss signalled at the next renewal; fenced by the next holder's larger token",
        "file is damaged": "refused",
        **ONE_CLOCK_FAULTS,
    },
)
