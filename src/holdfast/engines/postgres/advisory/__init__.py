"""``postgresql+advisory://…``: the server's own advisory locks, held by sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ....errors import InvalidArgument
from ....model import Guarantees
from ...clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED
from ..ground import POOLED, Ground
from ..installing import install_now
from ..schema import script_for_an_administrator
from ..target import Target
from .threads import AdvisoryThreads

if TYPE_CHECKING:
    from ...findings import Finding

__all__ = ["SCHEME", "AdvisoryEngine"]

SCHEME: Final = "postgresql+advisory"

GUARANTEES = Guarantees(
    engine=SCHEME,
    scope="cluster",
    fencing=(
        "a counter in a row, minted by the session that has the lock, never behind the server's clock in "
        "microseconds; it can regress only if the server crashes or fails over and its clock is behind then"
    ),
    fifo=(
        "always, as the server queues them; fair=False is accepted and changes nothing. Of one client eight "
        "wait in the server, and more in line behind them"
    ),
    crash_release="at once when its connection ends; after its ttl when it stands still or is cut off",
    loss_signal="at the deadline by the local clock; at once when broken or when its connection ends",
    is_fifo=True,
    can_barge=False,
    has_counted_queue=False,
    has_values=True,
    can_export=False,
    primitives=("lock", "rlock", "rwlock"),
    needs=(
        "PostgreSQL 14 or later, and psycopg 3 (`pip install 'holdfast[postgres]'`)",
        "no transaction-pooling proxy: it is noticed and refused; one that pools by session needs pooler=no",
        "the right to create a schema at first use, or an administrator who runs `holdfast init`",
        "a connection for each that waits, each ttl that is held, each reader of one name; twenty at most",
        "no handing over: a lease stays with its connection, and export() is Unsupported",
        TWO_CLOCKS_NEED,
    ),
    faults={
        "holder is killed": "kept: the server ends its session, and the next has it at once",
        "holder is paused": "loss signalled when it runs again; fenced: the server ends it after the ttl",
        "waiter is killed": "kept: its place is given up within a second",
        "connection is cut": "loss signalled at once; fenced: the next may have it before that is seen",
        "connection is silent": "loss signalled at the deadline; the server frees it after the ttl",
        "backend is terminated": "loss signalled at once; fenced: the next may have it before that is seen",
        "server is stopped or crashes": "loss signalled at once: its locks are gone with it; fenced",
        "server stands still": "loss signalled at the deadline; nothing is granted meanwhile",
        "failover": "loss signalled at once; fenced by the clock where the last tokens were not replicated",
        "server's clock jumps": (
            "tokens never go back. Set forward, the server may end sessions that were not silent: loss "
            "signalled at once, fenced. Set back, it ends those that are silent later by as much"
        ),
        "a name's row is deleted": (
            "kept: the lock is not in the row. Setting a value, extending by another ttl and downgrading "
            "need it: loss signalled then"
        ),
        **TWO_CLOCKS_FAULTS,
    },
)


class AdvisoryEngine:
    """One database, and one namespace in it."""

    linger = 0.0
    """What is under way ends with its connection, and a connection that is given up is closed."""
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, target: Target, namespace: str, shown: str) -> None:
        if target.pooler == "yes":
            raise InvalidArgument(POOLED)
        self.url = shown
        self._ground = Ground(target, namespace, SCHEME)

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        return AdvisoryThreads(self._ground, hooks)

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from .asyncio import AdvisoryAsyncio

        return AdvisoryAsyncio(self._ground, hooks)

    def install(self, io_timeout: float) -> bool:
        """Make schema, tables and functions; False: they were there."""
        return install_now(self._ground.target, io_timeout)

    def script(self) -> str:
        """The same, for an administrator to run with psql."""
        return script_for_an_administrator(self._ground.target.schema)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """How this very server stands."""
        from ..diagnosis import diagnose

        return diagnose(self._ground.target, io_timeout, advisory=True)
