"""The handshake of every connection: login, database, and whether the server can serve.

``HELLO`` answers with the server's version, mode and role, also to users with few permissions. What the
server does when its memory is full stands only in ``INFO``. For a user who may not run that command it is
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown
from ...core.printable import printable
from ...errors import EngineUnavailable
from .codec import pack_command
from .config import Address, Credentials, ServerConfig
from .connection import Connection
from .errors import error_for

__all__ = [
    "MINIMUM_VERSION",
    "NotMasterError",
    "ServerInfo",
    "eviction_policy",
    "perform_handshake",
    "query_once",
]

MINIMUM_VERSION: Final = (7, 0, 1)
"""Sharded channels and scripts that may run where memory is full are new in 7.0 and correct since 7.0.1."""


class NotMasterError(NotApplied):
    """The server is a replica: it never was the master, or is not any more."""


class ServerInfo(NamedTuple):
    """What a server says about itself."""

    version: str
    mode: str
    role: str


async def perform_handshake(
    connection: Connection,
    config: ServerConfig,
    credentials: Credentials,
    client: str,
    permission_hint: str,
) -> None:
    """Log in, select the database, refuse a server that cannot serve. No error leaves a request behind."""
    try:
        server = await _log_in(connection, credentials, client, permission_hint)
        if config.database:
            select = pack_command(b"SELECT", b"%d" % config.database)
            await _reply_to(connection, select, permission_hint)
        _check_server(server, config, connection.address)
    except OutcomeUnknown as error:
        tls = "rediss://" if config.deployment == "single" else "ssl=true"
        raise _handshake_error(str(error), connection.address, "" if config.tls else tls) from None


def _handshake_error(reason: str, address: Address, tls: str) -> NotApplied | EngineUnavailable:
    """The error where no readable reply came. No request was sent. ``tls``: how TLS is turned on; empty: it
    is."""
    hint = f": does it want TLS ({tls})?" if tls else ""
    if "Protocol error" in reason:
        return EngineUnavailable(
            f"{address} does not speak Redis' protocol, is it the right port{hint or '?'}"
        )
    return NotApplied(reason + hint if "closed" in reason or "reset" in reason.lower() else reason)


async def query_once(
    connection: Connection,
    credentials: Credentials,
    client: str,
    payload: bytes,
    permission_hint: str,
    has_tls: bool,
) -> Any:
    """Log in at a Sentinel and send one query. That it cannot answer may pass: there are others."""
    try:
        await _log_in(connection, credentials, client, permission_hint)
        return (await connection.exchange(payload, 1))[0]
    except OutcomeUnknown as error:
        tls = "" if has_tls else "ssl=true"
        raise NotApplied(str(_handshake_error(str(error), connection.address, tls))) from None


async def _log_in(
    connection: Connection, credentials: Credentials, client: str, permission_hint: str
) -> ServerInfo:
    parts = [b"HELLO", b"2"]
    username, password = credentials
    if password is not None:
        parts += [b"AUTH", (username or "default").encode(), password.encode()]
    parts += [b"SETNAME", b"holdfast-" + client.encode()]
    fields = _mapping(await _reply_to(connection, pack_command(*parts), permission_hint))
    return ServerInfo(
        fields.get(b"version", b"").decode("ascii", "replace"),
        fields.get(b"mode", b"standalone").decode("ascii", "replace"),
        fields.get(b"role", b"master").decode("ascii", "replace"),
    )


async def _reply_to(connection: Connection, payload: bytes, permission_hint: str) -> Any:
    reply = (await connection.exchange(payload, 1))[0]
    if isinstance(reply, ReplyError):
        raise error_for(str(reply), connection.address, permission_hint)
    return reply


def _mapping(reply: Any) -> Mapping[bytes, Any]:
    pairs = reply if isinstance(reply, list) else []
    return {key: value for key, value in zip(pairs[::2], pairs[1::2], strict=False) if isinstance(key, bytes)}


def _check_server(server: ServerInfo, config: ServerConfig, address: Address) -> None:
    is_cluster = config.deployment == "cluster"
    if server.mode == "sentinel":
        raise EngineUnavailable(f"{address} is a Sentinel: write redis+sentinel://…?service=NAME")
    if server.mode == "cluster" and not is_cluster:
        raise EngineUnavailable(f"{address} is part of a cluster: write redis+cluster://")
    if server.mode != "cluster" and is_cluster:
        raise EngineUnavailable(f"{address} is not part of a cluster: write redis://")
    if _version(server.version) < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        raise EngineUnavailable(
            f"the server at {address} is version {printable(server.version) or 'unknown'}; "
            f"Holdfast needs {minimum} or later"
        )
    if server.role not in ("master", "primary") and not is_cluster:
        raise NotMasterError(
            f"the server at {address} is a read-only replica: connect to its master "
            "(redis+sentinel:// finds it)"
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())


def eviction_policy(info: Any) -> str | None:
    """The policy by which the server evicts keys, from its reply to ``INFO memory``.

    Empty: it evicts none. None: the reply does not say.
    """
    rows = info.splitlines() if isinstance(info, bytes) else []
    fields = dict(row.split(b":", 1) for row in rows if b":" in row)
    if b"maxmemory_policy" not in fields:
        return None
    policy = printable(fields[b"maxmemory_policy"].decode("ascii", "replace"))
    return "" if policy == "noeviction" or fields.get(b"maxmemory", b"0") == b"0" else policy
