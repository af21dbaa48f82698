"""Names of hosts looked up in an event loop: libpq would hold it up."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...core.effects import NotApplied
from .target import Conninfo

__all__ = ["resolved"]


async def resolved(conninfo: Conninfo) -> list[Conninfo]:
    """The same for each address of its host, with nothing left to look up."""
    settings = conninfo_to_dict(conninfo)
    host = str(settings.get("host") or "")
    if settings.get("hostaddr") or not host or host.startswith(("/", "@")) or _is_address(host):
        return [conninfo]
    port = int(settings.get("port") or 5432)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotApplied(f"PostgreSQL cannot be reached: {error}") from error
    addresses = dict.fromkeys(str(address[0]) for _, _, _, _, address in found)
    return [Conninfo(make_conninfo(conninfo, hostaddr=address)) for address in addresses]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
