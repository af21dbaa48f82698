"""``zookeeper://h1:2181,h2:2181/path``: locks by the agreement of an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...errors import Unsupported
from ...model import Guarantees
from ...protocols.tickets import TicketClient
from ..clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED
from ..prefixes import check_apart
from ..tickets import TicketsThreads
from .names import Paths
from .options import PARTS, Options, parse_client, parse_options
from .transport import ZooKeeperThreads

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_client", "open_engine"]

DEFAULT_TTL = 30.0
"""What a lock has that does not say anything else: here that means as long as the session."""

GUARANTEES = Guarantees(
    engine="zookeeper",
    scope="cluster",
    fencing=(
        "four times the zxid that created the ticket: never regresses, unless the ensemble is restored from "
        "an older backup"
    ),
    fifo="always, among all clients; fair=False is accepted and changes nothing",
    crash_release="after session_timeout, 30 s unless told otherwise and within the servers' bounds",
    loss_signal="at the deadline by the local clock; at once when broken or when its session ends",
    is_fifo=True,
    can_barge=False,
    has_counted_queue=True,
    has_values=True,
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


class ZooKeeperEngine:
    """One ensemble, and one namespace in it."""

    linger = 60.0
    """A request may be under way; but never beyond one that is sent after it."""
    session_bound = True
    guarantees = GUARANTEES

    def __init__(self, url: str, options: Options, namespace: str) -> None:
        self.url = url
        self._options = options
        check_apart(options.prefix.strip("/").split("/"), namespace, PARTS)
        self._paths = Paths(options.prefix, namespace)

    def _seconds_for(self, ttl: float) -> float:
        """One session carries everything; it is as long as it is."""
        seconds = self._options.session_timeout
        if ttl > seconds and ttl != DEFAULT_TTL:
            raise Unsupported(
                f"ttl={ttl:g} is longer than the session that would carry it ({seconds:g} s): leave out the "
                f"ttl, or connect with session_timeout={ttl:g}; etcd:// has a session for each ttl"
            )
        return seconds

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        desk = TicketClient(hooks.client, self._seconds_for)
        return TicketsThreads(desk, ZooKeeperThreads(self._options, self._paths, hooks, desk))

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from ..tickets_asyncio import TicketsAsyncio
        from .transport_asyncio import ZooKeeperAsyncio

        desk = TicketClient(hooks.client, self._seconds_for)
        return TicketsAsyncio(desk, ZooKeeperAsyncio(self._options, self._paths, hooks, desk))

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """How this very server stands."""
        from .diagnosis import diagnose

        return diagnose(self._options, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> ZooKeeperEngine:
    return ZooKeeperEngine(str(url), parse_options(url, options), namespace)


def open_client(client: Any, namespace: str, options: Mapping[str, Any]) -> ZooKeeperEngine:
    """Whatever a live ``KazooClient`` is connected to, with its settings."""
    parsed = parse_client(client, options)
    return ZooKeeperEngine(f"zookeeper://{','.join(parsed.hosts)}{parsed.prefix}", parsed, namespace)
