"""Looking at a ZooKeeper from outside, and meddling with it, by a client of its own."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import closing
from socket import create_connection
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Close

from holdfast.lab.servers import ZooKeeper

__all__ = ["Admin"]

PREFIX = "/holdfast"


class Admin:
    """A plain client of kazoo. Close it."""

    def __init__(self, server: ZooKeeper, **options: Any) -> None:
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self.server = server
        self.client = KazooClient(server.address, **options)
        self.client.start(timeout=20)

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def nodes(self, path: str = PREFIX) -> Iterator[str]:
        """All below a path."""
        try:
            children = self.client.get_children(path)
        except NoNodeError:
            return
        for child in sorted(children):
            yield f"{path}/{child}"
            yield from self.nodes(f"{path}/{child}")

    def tickets(self, namespace: str) -> list[str]:
        """Their paths, below whatever kind of name."""
        parts = [(path, path.rpartition("/")[2]) for path in self.nodes(f"{PREFIX}/{namespace}/n")]
        return [path for path, node in parts if node.count("_") == 3]

    def sessions(self, namespace: str) -> list[str]:
        """The ids of those that registered."""
        return [path.rpartition("/")[2] for path in self.nodes(f"{PREFIX}/{namespace}/s")]

    def expire(self, session: str, password: bytes) -> None:
        """End a client's session, as a holder of its secret can: connect with it, and close. Both in one
        piece, for its owner, whom the server hangs up on, comes back for it at once."""
        number = int(session, 16)
        connect = struct.pack(">iqiqi", 0, 0, 10_000, number - (1 << 64) if number >> 63 else number, 16)
        asked = (connect + password, struct.pack(">ii", 1, Close.type))
        with closing(create_connection((self.server.host, self.server.port), 20)) as plain:
            plain.sendall(b"".join([struct.pack(">i", len(each)) + each for each in asked]))
            while plain.recv(4096):
                pass  # the server hangs up when it is done
