"""``redis://``, ``rediss://``, ``redis+sentinel://``, ``redis+cluster://``: locks on Redis or Valkey.

The server keeps the records, and scripts change them there. ``config.py`` describes the URLs and their
options. A live client of redis-py may be given instead of a URL.
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
"""How long a request of a caller that gave up can still be executed: it can sit in the buffers of a stopped
server or of a proxy. The client closes the connection hard, so that no more bytes are sent. A lock that the
server grants to an older request has no holder, and is free again after its ttl."""


class RedisEngine:
    """One deployment and one namespace in it."""

    linger = LINGER_SECONDS
    session_bound = False

    def __init__(self, url: str, config: RedisConfig, namespace: str) -> None:
        self.url = url
        self._config = config
        self._space = Keyspace(namespace, sharded=config.deployment == "cluster")
        self._policy: str | None = ""

    @property
    def guarantees(self) -> Guarantees:
        return guarantees_of(self._config, self._policy)

    def threads(self, context: AdapterContext) -> ThreadsAdapter:
        return RedisThreads(self._config, self._space, context, self._report_policy)

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter:
        from .asyncio import RedisAsyncio

        return RedisAsyncio(self._config, self._space, context, self._report_policy)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """The findings about these servers."""
        from .diagnosis import diagnose

        return diagnose(self._config, self._space, io_timeout)

    def _report_policy(self, policy: str | None) -> None:
        """Log the eviction policy once: only an operator can change it."""
        if policy and not self._policy:
            log.warning(
                "holdfast: %s evicts keys (and locks) when its memory is full (maxmemory-policy %s): "
                "set maxmemory-policy to noeviction",
                self.url,
                policy,
            )
        elif policy is None and self._policy == "":
            log.warning(
                "holdfast: %s does not say whether it evicts keys (and locks) when its memory is full: "
                "add the ACL rule +info|memory to the user",
                self.url,
            )
        self._policy = policy


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> RedisEngine:
    return RedisEngine(str(url), config_from_url(url, options), namespace)


def open_client(client: Any, namespace: str, options: Mapping[str, Any]) -> RedisEngine:
    """The engine with the addresses and settings of a live client of redis-py."""
    config = config_from_client(client, options)
    scheme = next(scheme for scheme, deployment in DEPLOYMENTS.items() if deployment == config.deployment)
    scheme = "rediss" if scheme == "redis" and config.tls is not None else scheme
    hosts = ",".join(map(str, config.addresses))
    query = f"?service={config.service}" if config.service else ""
    path = f"/{config.database}" if config.database or query else ""
    return RedisEngine(f"{scheme}://{hosts}{path}{query}", config, namespace)
