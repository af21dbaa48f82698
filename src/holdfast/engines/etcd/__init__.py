"""``etcd://h1:2379,h2:2379``: locks by the agreement of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...errors import EngineUnavailable
from ...model import Guarantees
from ...protocols.tickets import TicketClient
from ..clock_rates import TWO_CLOCKS_FAULTS, TWO_CLOCKS_NEED
from ..prefixes import check_apart
from ..tickets import TicketsThreads
from .options import PARTS, Options, parse_options

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_engine"]

GUARANTEES = Guarantees(
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


class EtcdEngine:
    """One cluster, and one namespace in it."""

    linger = 60.0
    """A request may sit in a queue somewhere; how long a late one is refused is told by its session."""
    session_bound = True
    guarantees = GUARANTEES

    def __init__(self, url: URL, options: Options, namespace: str) -> None:
        self.url = str(url)
        self._options = options
        self._namespace = namespace
        check_apart(options.prefix.split("/"), namespace, PARTS)
        self._scope = f"{options.prefix}/{quote(namespace, safe='')}"

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        from .keys import Keys
        from .store import seconds_for
        from .transport import EtcdThreads

        desk = TicketClient(hooks.client, seconds_for)
        keys = Keys(self._options.prefix, self._namespace)
        return TicketsThreads(desk, EtcdThreads(self._options, keys, hooks, desk, self._scope))

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from ..tickets_asyncio import TicketsAsyncio
        from .keys import Keys
        from .store import seconds_for
        from .transport_asyncio import EtcdAsyncio

        desk = TicketClient(hooks.client, seconds_for)
        keys = Keys(self._options.prefix, self._namespace)
        return TicketsAsyncio(desk, EtcdAsyncio(self._options, keys, hooks, desk, self._scope))

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """How this very server stands."""
        from .diagnosis import diagnose

        return diagnose(self._options, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> EtcdEngine:
    parsed = parse_options(url, options)
    try:
        import hpack  # noqa: F401 - only to see whether it is there
        from google import protobuf  # noqa: F401 - as above
    except ImportError as missing:
        raise EngineUnavailable("etcd:// needs hpack and protobuf: pip install 'holdfast[etcd]'") from missing
    return EtcdEngine(url, parsed, namespace)
