"""How many connections to some servers a process has: what the kernel knows of its sockets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["connections_to", "ports_to"]

ESTABLISHED = "01"


def connections_to(addresses: Collection[str]) -> int:
    """Of this process, to any of these addresses (``host:port``), by their ports."""
    return len(ports_to(addresses))


def ports_to(addresses: Collection[str]) -> list[int]:
    """The ports of this process's own ends of these connections."""
    wanted = {int(address.rpartition(":")[2]) for address in addresses}
    ours = _sockets_of_this_process()
    return [own for inode, own, port in _connected() if inode in ours and port in wanted]


def _sockets_of_this_process() -> set[str]:
    inodes = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            kind, _, inode = os.readlink(f"/proc/self/fd/{descriptor}").partition(":")
            if kind == "socket":
                inodes.add(inode.strip("[]"))
    return inodes


def _connected() -> list[tuple[str, int, int]]:
    """Inode, own and remote port of every TCP connection of the machine."""
    found = []
    for table in ("tcp", "tcp6"):
        path = Path("/proc/self/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == ESTABLISHED:
                own, remote = (int(fields[which].rpartition(":")[2], 16) for which in (1, 2))
                found.append((fields[9], own, remote))
    return found
