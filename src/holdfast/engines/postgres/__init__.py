"""``postgresql://…``: leases in a table of PostgreSQL. Works behind a transaction-pooling proxy.

``postgresql+advisory://…`` uses the server's own advisory locks: see ``advisory``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, Engine, ThreadsAdapter
from ...errors import InvalidArgument
from ...model import Guarantees
from ..clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED
from .admin import install_database
from .config import PostgresConfig, config_from_url
from .handshake import DatabaseContext
from .live_client import config_from_client
from .scripts import administrator_script
from .threads import PostgresThreads

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_client", "open_engine"]

LINGER_SECONDS: Final = 60.0
"""How long a statement can wait in a server that is stopped, after its client has given up."""

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
    has_cells=True,
    can_export=True,
    has_timed_tokens=True,
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=(
        "PostgreSQL 14 or later, and psycopg 3 (`pip install 'holdfast[postgres]'`)",
        "the right to create a schema at first use, or an administrator who runs `holdfast init`",
        "synchronous_commit on, which is the default: otherwise a crash of the server loses the last grants",
        "behind a transaction-pooling proxy waiters poll, since no notification passes through it",
        TWO_CLOCKS_NEED,
    ),
    faults={
        "holder is killed": "kept: its ttl runs out, then the next waiter is granted the lock",
        "holder is paused": "loss signalled when it runs again; fenced by the next holder's larger token",
        "waiter is killed": "kept: it costs the waiters behind it one turn (two seconds)",
        "server is stopped or unreachable": "loss signalled at the deadline; nothing is granted meanwhile",
        "server crashes and restarts": "kept: grants are on its disk; a lease released in the last moments "
        "may reappear until its ttl ends",
        "connection is cut": (
            "kept: the next statement opens a new connection, and a repeated attempt finds its own grant"
        ),
        "failover to a synchronous standby": "kept",
        "failover to an asynchronous standby": "fenced: the last grants may be lost",
        "server's clock jumps": "fenced: leases may end early or late, tokens never go back",
        "the rows are deleted": "loss signalled at the next renewal",
        **TWO_CLOCKS_FAULTS,
    },
)


class PostgresEngine:
    """One database, and one namespace in it."""

    scheme = "postgresql"
    linger = LINGER_SECONDS
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, config: PostgresConfig, namespace: str, url: str) -> None:
        self.url = url
        self._context = DatabaseContext(config, namespace, self.scheme)

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        return PostgresThreads(self._context, hooks)

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from .asyncio import PostgresAsyncio

        return PostgresAsyncio(self._context, hooks)

    def install(self, io_timeout: float) -> bool:
        """Make the schema with its tables and functions; False: everything was there."""
        return install_database(self._context.config, io_timeout)

    def script(self) -> str:
        """The installation as a script for psql."""
        return administrator_script(self._context.config.schema)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """Findings about this server."""
        from .diagnosis import diagnose

        return diagnose(self._context.config, io_timeout, advisory=self.scheme != "postgresql")


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> Engine:
    config = config_from_url(url, options)
    if url.scheme == "postgresql":
        return PostgresEngine(config, namespace, str(url))
    from .advisory import AdvisoryEngine  # loaded when it is first used

    return AdvisoryEngine(config, namespace, str(url))


def open_client(client: object, namespace: str, options: Mapping[str, Any]) -> PostgresEngine:
    """The database that a psycopg connection or pool is connected to."""
    config = config_from_client(client, options)
    if "host" not in config.libpq and "service" not in config.libpq:
        raise InvalidArgument(
            "the given client does not say which server it is connected to: give a URL instead"
        )
    address = f"{config.libpq.get('host', '')}/{config.libpq.get('dbname', '')}"
    return PostgresEngine(config, namespace, f"postgresql://{address}")
