"""``redlock://``: locks on a majority of independent Redis servers, with fencing tokens that it issues.

The algorithm is Salvatore Sanfilippo's. ``protocols.quorum`` says when a number counts as a token.
``config.py`` describes the URL and its options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from .config import RedlockConfig, config_from_url
from .guarantees import GUARANTEES
from .keys import Keyspace
from .store import LINGER_SECONDS
from .threads import RedlockThreads

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_engine"]


class RedlockEngine:
    """One set of nodes and one namespace on it."""

    linger = LINGER_SECONDS
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, url: str, config: RedlockConfig, namespace: str) -> None:
        self.url = url
        self._config = config
        self._space = Keyspace(namespace)

    def threads(self, context: AdapterContext) -> ThreadsAdapter:
        return RedlockThreads(self._config, self._space, context)

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter:
        from .asyncio import RedlockAsyncio

        return RedlockAsyncio(self._config, self._space, context)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """The findings about these nodes."""
        from .diagnosis import diagnose

        return diagnose(self._config, self._space, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> RedlockEngine:
    return RedlockEngine(str(url), config_from_url(url, options), namespace)
