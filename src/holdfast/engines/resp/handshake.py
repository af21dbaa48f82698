"""The first words on every connection: who we are, which database, and whether this server will do.

``HELLO`` answers with the server's version, mode and role, also to users who may do little else. What the
server does when its memory is full it tells only in ``INFO``; who may not ask that does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown
from ...core.printable import printable
from ...errors import EngineUnavailable
from ..redis.config import Address, Credentials, RedisConfig
from .errors import error_for
from .interfaces import Connection, pack_command

__all__ = [
    "MINIMUM_VERSION",
    "NotMasterError",
    "ServerInfo",
    "eviction_policy",
    "perform_handshake",
    "query_once",
]

MINIMUM_VERSION: Final = (7, 0, 1)
"""Sharded channels, and scripts that may run where memory is full, are new in 7.0 and right since 7.0.1."""


class NotMasterError(NotApplied):
    """The server is a replica: it never was the master, or is not any more."""


class ServerInfo(NamedTuple):
    """What a server says of itself."""

    version: str
    mode: str
    role: str


async def perform_handshake(
    line: Connection, settings: RedisConfig, credentials: Credentials, client: str
) -> None:
    """Log in, choose the database, refuse a server that cannot serve. Whatever fails, nothing was asked."""
    try:
        server = await _log_in(line, credentials, client)
        if settings.database:
            await _reply_to(line, pack_command(b"SELECT", b"%d" % settings.database))
        _check_server(server, settings, line.address)
    except OutcomeUnknown as error:
        raise _handshake_error(str(error), line.address, settings.tls is not None) from None


def _handshake_error(why: str, address: Address, is_protected: bool) -> Exception:
    """Nothing that can be read came back. Nothing was asked."""
    hint = "" if is_protected else ": does it want TLS (rediss://)?"
    if "Protocol error" in why:
        return EngineUnavailable(
            f"{address} does not speak Redis' protocol, is it the right port{hint or '?'}"
        )
    return NotApplied(why + hint if "closed" in why or "reset" in why.lower() else why)


async def query_once(line: Connection, credentials: Credentials, client: str, payload: bytes) -> Any:
    """Log in, ask one question."""
    try:
        await _log_in(line, credentials, client)
        return (await line.exchange(payload, 1))[0]
    except OutcomeUnknown as error:
        raise NotApplied(str(error)) from None


async def _log_in(line: Connection, credentials: Credentials, client: str) -> ServerInfo:
    parts = [b"HELLO", b"2"]
    username, password = credentials
    if password is not None:
        parts += [b"AUTH", (username or "default").encode(), password.encode()]
    parts += [b"SETNAME", b"holdfast-" + client.encode()]
    told = _mapping(await _reply_to(line, pack_command(*parts)))
    return ServerInfo(
        told.get(b"version", b"").decode("ascii", "replace"),
        told.get(b"mode", b"standalone").decode("ascii", "replace"),
        told.get(b"role", b"master").decode("ascii", "replace"),
    )


async def _reply_to(line: Connection, payload: bytes) -> Any:
    reply = (await line.exchange(payload, 1))[0]
    if isinstance(reply, ReplyError):
        raise error_for(str(reply), line.address)
    return reply


def _mapping(reply: Any) -> Mapping[bytes, Any]:
    pairs = reply if isinstance(reply, list) else []
    return {key: value for key, value in zip(pairs[::2], pairs[1::2], strict=False) if isinstance(key, bytes)}


def _check_server(server: ServerInfo, settings: RedisConfig, address: Address) -> None:
    clustered = settings.deployment == "cluster"
    if server.mode == "sentinel":
        raise EngineUnavailable(f"{address} is a Sentinel: write redis+sentinel://…?service=NAME")
    if server.mode == "cluster" and not clustered:
        raise EngineUnavailable(f"{address} is part of a cluster: write redis+cluster://")
    if server.mode != "cluster" and clustered:
        raise EngineUnavailable(f"{address} is not part of a cluster: write redis://")
    if _version(server.version) < MINIMUM_VERSION:
        wanted = ".".join(map(str, MINIMUM_VERSION))
        raise EngineUnavailable(
            f"the server at {address} is version {printable(server.version) or 'unknown'}; "
            f"Holdfast needs {wanted} or later"
        )
    if server.role not in ("master", "primary") and not clustered:
        raise NotMasterError(
            f"the server at {address} is a read-only replica: connect to its master "
            "(redis+sentinel:// finds it)"
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())


def eviction_policy(told: Any) -> str | None:
    """Of the reply to ``INFO memory``: by which policy the server throws keys away.

    Empty: it does not. None: it does not say.
    """
    rows = told.splitlines() if isinstance(told, bytes) else []
    facts = dict(row.split(b":", 1) for row in rows if b":" in row)
    if b"maxmemory_policy" not in facts:
        return None
    policy = printable(facts[b"maxmemory_policy"].decode("ascii", "replace"))
    return "" if policy == "noeviction" or facts.get(b"maxmemory", b"0") == b"0" else policy
