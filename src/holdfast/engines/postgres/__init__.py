"""``postgresql://…``: leases in a table of PostgreSQL. Works behind a transaction-pooling proxy.

``postgresql+advisory://…`` are the server's own locks: ``advisory``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, Engine, ThreadsAdapter
from ...errors import InvalidArgument
from ...model import Guarantees
from ..clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED
from .ground import Ground
from .installing import install_now
from .schema import script_for_an_administrator
from .target import Target, target_of_client, target_of_url
from .threads import PostgresThreads

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_client", "open_engine"]

LINGER_SECONDS: Final = 60.0
"""How long a statement can wait in a server that stands still, after its client has given up."""

GUARANTEES = Guarantees(
    engine="postgresql",
    scope="cluster",
    fencing=(
        "a counter in the row, never behind the server's clock in microseconds; it can regress only if "
        "committed rows are lost (a failover to an asynchronous standby) and the new server's clock is behind"
    ),
    fifo="yes, among all clients of the database",
    crash_release="after its ttl",
    loss_signal="at the deadline by the local clock; at once when broken",
    is_fifo=True,
    can_barge=True,
    has_counted_queue=True,
    has_values=True,
    can_export=True,
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=(
        "PostgreSQL 14 or later, and psycopg 3 (`pip install 'holdfast[postgres]'`)",
        "the right to create a schema at first use, or an administrator who runs `holdfast init`",
        "synchronous_commit on, as it is by default: else a crash of the server forgets the last grants",
        "behind a transaction-pooling proxy waiters poll, since notifications do not come through",
        TWO_CLOCKS_NEED,
    ),
    faults={
        "holder is killed": "kept: its ttl runs out, then the next in line has it",
        "holder is paused": "loss signalled when it runs again; fenced by the next holder's larger token",
        "waiter is killed": "kept: it costs those behind it one turn (two seconds)",
        "server is stopped or unreachable": "loss signalled at the deadline; nothing is granted meanwhile",
        "server crashes and restarts": "kept: what was granted is on its disk; a release of the last moments "
        "may come back until its ttl ends",
        "connection is cut": "kept: the next statement connects again, and the attempt recognises itself",
        "failover to a synchronous standby": "kept",
        "failover to an asynchronous standby": "fenced: grants of the last moments may be forgotten",
        "server's clock jumps": "fenced: leases may end early or late, tokens never go back",
        "the rows are deleted": "loss signalled with the next renewal",
        **TWO_CLOCKS_FAULTS,
    },
)


class PostgresEngine:
    """One database, and one namespace in it."""

    linger = LINGER_SECONDS
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, target: Target, namespace: str, shown: str) -> None:
        self.url = shown
        self._ground = Ground(target, namespace)

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        return PostgresThreads(self._ground, hooks)

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from .asyncio import PostgresAsyncio

        return PostgresAsyncio(self._ground, hooks)

    def install(self, io_timeout: float) -> bool:
        """Make schema, tables and functions; False: they were there."""
        return install_now(self._ground.target, io_timeout)

    def script(self) -> str:
        """The same, for an administrator to run with psql."""
        return script_for_an_administrator(self._ground.target.schema)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """How this very server stands."""
        from .diagnosis import diagnose

        return diagnose(self._ground.target, io_timeout, advisory=False)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> Engine:
    target = target_of_url(url, options)
    if url.scheme == "postgresql":
        return PostgresEngine(target, namespace, str(url))
    from .advisory import AdvisoryEngine  # loaded when it is asked for

    return AdvisoryEngine(target, namespace, str(url))


def open_client(client: object, namespace: str, options: Mapping[str, Any]) -> PostgresEngine:
    """The database that a psycopg connection or pool is connected to."""
    target = target_of_client(client, options)
    if "host" not in target.libpq and "service" not in target.libpq:
        raise InvalidArgument("the given client does not say where it is connected to: give a URL instead")
    where = f"{target.libpq.get('host', '')}/{target.libpq.get('dbname', '')}"
    return PostgresEngine(target, namespace, f"postgresql://{where}")
