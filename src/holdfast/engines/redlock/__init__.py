"""``redlock://``: locks on a majority of independent Redis servers, with fencing tokens that it issues.

The algorithm is Salvatore Sanfilippo's; what a number must be to count as a token is in ``protocols.quorum``.
The URL and its options are described in ``settings.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from .config import RedlockConfig, config_from_url
from .guarantees import GUARANTEES
from .keys import Keyspace
from .quorum import LINGER_SECONDS
from .threads import RedlockThreads

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_engine"]


class RedlockEngine:
    """One set of nodes and one namespace on it."""

    linger = LINGER_SECONDS
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, url: str, settings: RedlockConfig, namespace: str) -> None:
        self.url = url
        self._settings = settings
        self._space = Keyspace(namespace)

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        return RedlockThreads(self._settings, self._space, hooks)

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        from .asyncio import RedlockAsyncio

        return RedlockAsyncio(self._settings, self._space, hooks)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """How this very server stands."""
        from .diagnosis import diagnose

        return diagnose(self._settings, self._space, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> RedlockEngine:
    return RedlockEngine(str(url), config_from_url(url, options), namespace)
