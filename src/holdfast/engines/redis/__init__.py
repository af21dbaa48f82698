"""``redis://``, ``rediss://``, ``redis+sentinel://``, ``redis+cluster://``: locks on Redis or Valkey.

Records are kept by the server, changed by scripts that run where the record lives. The URLs and their options
are described in ``settings.py``; a live client of redis-py may be given instead of a URL.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...model import Guarantees
from .config import DEPLOYMENTS, RedisConfig, config_from_url
from .guarantees import guarantees_of
from .keys import Keyspace
from .live_client import config_from_client
from .threads import RedisThreads

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_client", "open_engine"]

log = logging.getLogger("holdfast")

LINGER_SECONDS: Final = 60.0
"""A request can sit in the buffers of a server that is stopped, or of a proxy, and be carried out when nobody
waits for it any more. What is given up is cut off, so that nothing more of it is sent; what was sent, and is
older than this when the server goes on, may be granted to nobody. It is free again after its ttl."""


class RedisEngine:
    """One deployment and one namespace in it."""

    linger = LINGER_SECONDS
    session_bound = False

    def __init__(self, url: str, settings: RedisConfig, namespace: str) -> None:
        self.url = url
        self._settings = settings
        self._space = Keyspace(namespace, sharded=settings.deployment == "cluster")
        self._policy: str | None = ""

    @property
    def guarantees(self) -> Guarantees:
        return guarantees_of(self._settings, self._policy)

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        return RedisThreads(self._settings, self._space, hooks, self._evicts)

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from .asyncio import RedisAsyncio

        return RedisAsyncio(self._settings, self._space, hooks, self._evicts)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """How these very servers stand."""
        from .diagnosis import diagnose

        return diagnose(self._settings, self._space, io_timeout)

    def _evicts(self, policy: str | None) -> None:
        """Found at connect. Said once: it is the operator who can change it."""
        if policy and not self._policy:
            log.warning(
                "holdfast: %s throws keys away when its memory is full (maxmemory-policy %s), locks among "
                "them: set it to noeviction",
                self.url,
                policy,
            )
        elif policy is None and self._policy == "":
            log.warning(
                "holdfast: %s does not say whether it throws keys away when its memory is full, locks among "
                "them: let the user ask (ACL rule +info|memory)",
                self.url,
            )
        self._policy = policy


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> RedisEngine:
    return RedisEngine(str(url), config_from_url(url, options), namespace)


def open_client(client: Any, namespace: str, options: Mapping[str, Any]) -> RedisEngine:
    """Whatever a live client of redis-py is connected to, with its settings."""
    settings = config_from_client(client, options)
    scheme = next(scheme for scheme, shape in DEPLOYMENTS.items() if shape == settings.deployment)
    scheme = "rediss" if scheme == "redis" and settings.tls is not None else scheme
    hosts = ",".join(map(str, settings.addresses))
    query = f"?service={settings.service}" if settings.service else ""
    path = f"/{settings.database}" if settings.database or query else ""
    return RedisEngine(f"{scheme}://{hosts}{path}{query}", settings, namespace)
