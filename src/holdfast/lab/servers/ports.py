"""Free loopback ports, and the processes that listen on a port."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from .errors import ServerFailed

__all__ = ["HOST", "Listeners", "free_port", "listeners"]

HOST: Final = "127.0.0.1"

LOWEST: Final = 10_000
LISTENING: Final = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def free_port() -> int:
    """A free port outside the range of outgoing connections.

    A port of that range could be lost while its server is down: a client that keeps trying to connect may get
    the same port for its own end, and then talks to itself.
    """
    chance = random.SystemRandom()
    highest = _first_ephemeral_port() - 1
    for _ in range(1000):
        port = chance.randint(LOWEST, highest)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"no free port between {LOWEST} and {highest}")


class Listeners(NamedTuple):
    """The listeners of a port."""

    we: bool
    others: bool


def listeners(pids: Iterable[int], port: int) -> Listeners:
    """Whether one of these processes listens on the port, and whether another process does.

    That a server answers there proves nothing: it may be another server of the same kind.
    """
    sockets = _listening_sockets(port)
    ours = {socket for pid in pids for socket in _sockets_of(pid)} & sockets if sockets else set()
    return Listeners(we=bool(ours), others=sockets != ours)


def _first_ephemeral_port() -> int:
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest = 32_768
    return lowest if lowest > LOWEST + 1000 else 32_768


def _listening_sockets(port: int) -> set[str]:
    """The inodes of the sockets that listen on the port; Java's are IPv6 ones."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _sockets_of(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found: set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            found.add(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue  # closed since
    return found
