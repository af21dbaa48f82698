"""What all clients of one engine in this process stand on."""

from __future__ import annotations

from typing import Final

from ...errors import EngineUnavailable
from .target import Target

__all__ = ["COMMAND_LINKS", "POOLED", "Ground"]

COMMAND_LINKS: Final = 3
"""How many connections one client has at most for its statements, beside one to keep and one to hear."""


POOLED: Final = (
    "a proxy stands between that lends out its connections, by the transaction it seems, and session locks "
    "need one of their own: connect without it, or use postgresql:// (leases in a table), which works "
    "behind it; pooler=no says that it lends them out by the session"
)


class Ground:
    """Where the tables are, and what is known of them. A fork may inherit it: there is nothing to share."""

    __slots__ = ("_scheme", "_source", "namespace", "target")

    def __init__(self, target: Target, namespace: str, scheme: str = "postgresql") -> None:
        self.target = target
        self.namespace = namespace
        self._scheme = scheme
        self._source = ""

    def learn(self, source: str, pooled: bool) -> None:
        """Told by every connection as it begins."""
        if pooled and self._scheme != "postgresql":
            raise EngineUnavailable(POOLED)
        self._source = source

    @property
    def source(self) -> str:
        """Whose numbers the tokens are. Known once there was a connection, and so with every lease."""
        return f"{self._scheme}:{self._source}/{self.namespace}"
