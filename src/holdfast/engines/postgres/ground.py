"""What all clients of one engine in this process stand on."""

from __future__ import annotations

from typing import Final

from .target import Target

__all__ = ["COMMAND_LINKS", "Ground"]

COMMAND_LINKS: Final = 3
"""How many connections one client has at most for its statements, beside one to keep and one to hear."""


class Ground:
    """Where the table is, and what is known of it. A fork may inherit it: there is nothing to share."""

    __slots__ = ("_source", "namespace", "target")

    def __init__(self, target: Target, namespace: str) -> None:
        self.target = target
        self.namespace = namespace
        self._source = ""

    def learn(self, source: str) -> None:
        """Told by every connection as it begins."""
        self._source = source

    @property
    def source(self) -> str:
        """Whose numbers the tokens are. Known once there was a connection, and so with every lease."""
        return f"postgresql:{self._source}/{self.namespace}"
