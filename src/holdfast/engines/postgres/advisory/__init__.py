"""``postgresql+advisory://…``: the server's own advisory locks, held by sessions."""

from __future__ import annotations

from typing import Final

from ....engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ....errors import InvalidArgument
from ....model import Guarantees
from ...clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED
from .. import PostgresEngine
from ..config import PostgresConfig
from ..errors import SESSION_POOLER_NEEDED
from .threads import AdvisoryThreads

__all__ = ["SCHEME", "AdvisoryEngine"]

SCHEME: Final = "postgresql+advisory"

GUARANTEES = Guarantees(
    engine=SCHEME,
    scope="cluster",
    fencing=(
        "a counter in a row, incremented by the session that has the lock, never behind the server's clock "
        "in microseconds; it can regress only if the server crashes or fails over with its clock behind"
    ),
    fifo=(
        "always, in the order of the server's queue; fair=False is accepted and changes nothing. At "
        "most eight waiters of one client are in the server's queue; further ones queue in the client"
    ),
    crash_release="at once when its connection ends; after its ttl when the holder is stopped or cut off",
    loss_signal="at the deadline by the local clock; at once when broken or when its connection ends",
    is_fifo=True,
    can_barge=False,
    has_counted_queue=False,
    has_values=True,
    has_cells=True,
    can_export=False,
    has_timed_tokens=True,
    primitives=("lock", "rlock", "rwlock"),
    needs=(
        "PostgreSQL 14 or later, and psycopg 3 (`pip install 'holdfast[postgres]'`)",
        "no transaction-pooling proxy: it is detected and refused; a session-pooling proxy needs pooler=no",
        "the right to create a schema at first use, or an administrator who runs `holdfast init`",
        "one connection for each waiter, each ttl in use, and each reader of one name; twenty at most",
        "no handover: a lease stays with its connection, and export() is Unsupported",
        TWO_CLOCKS_NEED,
    ),
    faults={
        "holder is killed": "kept: the server ends its session and grants the next waiter the lock at once",
        "holder is paused": "loss signalled when it runs again; fenced: the server ends it after the ttl",
        "waiter is killed": "kept: it leaves the queue within a second",
        "connection is cut": "loss signalled at once; fenced: the next holder may come before that",
        "connection is silent": "loss signalled at the deadline; the server frees it after the ttl",
        "backend is terminated": "loss signalled at once; fenced: the next holder may come before that",
        "server is stopped or crashes": "loss signalled at once: the server's locks are gone; fenced",
        "server stands still": "loss signalled at the deadline; nothing is granted meanwhile",
        "failover": "loss signalled at once; fenced by the clock where the last tokens were not replicated",
        "server's clock jumps": (
            "tokens never go back. After a jump forward the server may end sessions that were not idle: loss "
            "signalled at once, fenced. After a jump back it ends idle sessions later by as much"
        ),
        "a name's row is deleted": (
            "kept: the lock is not in the row. Setting a value, extending with another ttl and downgrading "
            "need the row: loss signalled then"
        ),
        **TWO_CLOCKS_FAULTS,
    },
)


class AdvisoryEngine(PostgresEngine):
    """One database, and one namespace in it."""

    scheme = SCHEME
    linger = 0.0
    """A statement ends with its connection, and a connection that is given up is closed."""
    guarantees = GUARANTEES

    def __init__(self, config: PostgresConfig, namespace: str, url: str) -> None:
        if config.pooler == "yes":
            raise InvalidArgument(SESSION_POOLER_NEEDED)
        super().__init__(config, namespace, url)

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        return AdvisoryThreads(self._context, hooks)

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from .asyncio import AdvisoryAsyncio

        return AdvisoryAsyncio(self._context, hooks)
