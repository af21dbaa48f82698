"""``etcd://h1:2379,h2:2379``: locks by the agreement of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...errors import EngineUnavailable
from ...protocols.tickets import TicketClient
from ...runtime.clock import boottime, wall_seconds
from ..prefixes import check_apart
from ..tickets import TicketsThreads
from .config import PARTS, Config, parse_config
from .guarantees import GUARANTEES

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_engine"]


class EtcdEngine:
    """One cluster and one namespace in it."""

    linger = 60.0
    """A request may be delayed in a queue; a late one is refused for as long as its session lives."""
    session_bound = True
    guarantees = GUARANTEES

    def __init__(self, url: URL, config: Config, namespace: str) -> None:
        self.url = str(url)
        self._config = config
        self._namespace = namespace
        check_apart(config.prefix.split("/"), namespace, PARTS)
        self._scope = f"{config.prefix}/{quote(namespace, safe='')}"

    def threads(self, context: AdapterContext) -> ThreadsAdapter:
        from .keys import Keys
        from .store import seconds_for
        from .threads import EtcdThreads

        client = TicketClient(context.client, seconds_for, boottime, wall_seconds)
        keys = Keys(self._config.prefix, self._namespace)
        return TicketsThreads(client, EtcdThreads(self._config, keys, context, client, self._scope))

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter:
        from ..tickets_asyncio import TicketsAsyncio
        from .asyncio import EtcdAsyncio
        from .keys import Keys
        from .store import seconds_for

        client = TicketClient(context.client, seconds_for, boottime, wall_seconds)
        keys = Keys(self._config.prefix, self._namespace)
        return TicketsAsyncio(client, EtcdAsyncio(self._config, keys, context, client, self._scope))

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """Check these servers."""
        from .diagnosis import diagnose

        return diagnose(self._config, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> EtcdEngine:
    parsed = parse_config(url, options)
    try:
        import hpack  # noqa: F401 - only to see whether it is there
        from google import protobuf  # noqa: F401 - as above
    except ImportError as missing:
        raise EngineUnavailable("etcd:// needs hpack and protobuf: pip install 'holdfast[etcd]'") from missing
    return EtcdEngine(url, parsed, namespace)
