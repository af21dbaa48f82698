"""``zookeeper://h1:2181,h2:2181/path``: locks by the agreement of an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...errors import Unsupported
from ...protocols.tickets import TicketClient
from ...runtime.clock import boottime, wall_seconds
from ..prefixes import check_apart
from ..tickets import TicketsThreads
from .config import PARTS, Config, parse_client, parse_config
from .guarantees import GUARANTEES
from .keys import Paths
from .threads import ZooKeeperThreads

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_client", "open_engine"]

DEFAULT_TTL = 30.0
"""The default ttl of a lock: here it means the length of the session."""


class ZooKeeperEngine:
    """One ensemble and one namespace in it."""

    linger = 60.0
    """A request may be under way, but never arrives after a later request."""
    session_bound = True
    guarantees = GUARANTEES

    def __init__(self, url: str, config: Config, namespace: str) -> None:
        self.url = url
        self._config = config
        check_apart(config.prefix.strip("/").split("/"), namespace, PARTS)
        self._paths = Paths(config.prefix, namespace)

    def _seconds_for(self, ttl: float) -> float:
        """All tickets share one session, whose length is fixed."""
        seconds = self._config.session_timeout
        if ttl > seconds and ttl != DEFAULT_TTL:
            raise Unsupported(
                f"ttl={ttl:g} is longer than the session that would carry it ({seconds:g} s): leave out the "
                f"ttl, or connect with session_timeout={ttl:g}; etcd:// has a session for each ttl"
            )
        return seconds

    def threads(self, context: AdapterContext) -> ThreadsAdapter:
        client = TicketClient(context.client, self._seconds_for, boottime, wall_seconds)
        return TicketsThreads(client, ZooKeeperThreads(self._config, self._paths, context, client))

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter:
        from ..tickets_asyncio import TicketsAsyncio
        from .asyncio import ZooKeeperAsyncio

        client = TicketClient(context.client, self._seconds_for, boottime, wall_seconds)
        return TicketsAsyncio(client, ZooKeeperAsyncio(self._config, self._paths, context, client))

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """Check these servers."""
        from .diagnosis import diagnose

        return diagnose(self._config, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> ZooKeeperEngine:
    return ZooKeeperEngine(str(url), parse_config(url, options), namespace)


def open_client(client: Any, namespace: str, options: Mapping[str, Any]) -> ZooKeeperEngine:
    """The ensemble of a live ``KazooClient``, with its settings."""
    parsed = parse_client(client, options)
    return ZooKeeperEngine(f"zookeeper://{','.join(parsed.hosts)}{parsed.prefix}", parsed, namespace)
