"""What ``holdfast doctor`` finds out about Redis servers."""

from __future__ import annotations

import secrets
from typing import Any

from ...core.effects import TransientError
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ..findings import Finding
from ..resp.codec import pack_command
from ..resp.config import Address
from ..resp.diagnosis import NO_SUCH_SCRIPT, ServerDiagnosis
from .config import RedisConfig
from .errors import PERMISSION_HINT
from .keys import Keyspace
from .threads import RedisThreads

__all__ = ["diagnose"]


def diagnose(config: RedisConfig, space: Keyspace, io_timeout: float) -> list[Finding]:
    findings = []
    addresses = _masters(config, space, io_timeout)
    for address in addresses:
        label = str(address) if len(addresses) > 1 else ""
        with ServerDiagnosis(config, address, io_timeout, PERMISSION_HINT, label) as server:
            findings += [
                server.connection(),
                server.clock(),
                server.version(),
                *server.rights(_needed_rights(space, config)),
                server.eviction(),
                server.persistence(),
                server.replicas(config.wait_replicas),
            ]
    return findings


def _masters(config: RedisConfig, space: Keyspace, io_timeout: float) -> list[Address]:
    """The masters that serve this client: one, or several in a Cluster."""
    if config.deployment == "single":
        return [config.addresses[0]]
    hooks = AdapterContext(secrets.token_hex(8), _ignore, _ignore, io_timeout)
    adapter = RedisThreads(config, space, hooks, _ignore)
    try:
        return adapter.masters()
    except TransientError as error:
        raise EngineUnavailable(str(error)) from error
    finally:
        adapter.close()


def _ignore(*_: Any) -> None:
    """No lock is waited for here."""


def _needed_rights(space: Keyspace, config: RedisConfig) -> dict[str, bytes]:
    """A harmless request for each permission that Holdfast needs.

    In a Cluster another server may have the slot of the key. A redirection shows the permission as well.
    """
    key = space.prefix + b"doctor"
    needed = {
        "+evalsha": pack_command(b"EVALSHA", NO_SUCH_SCRIPT, b"1", key),
        "+script|load": pack_command(b"SCRIPT", b"LOAD", b"return 1"),
        "+get": pack_command(b"GET", key),
        "+set": pack_command(b"SET", key, b"", b"XX"),  # the key does not exist, so SET … XX changes nothing
        "+time": pack_command(b"TIME"),
        "+scan": pack_command(b"SCAN", b"0", b"COUNT", b"1"),
        "+ping": pack_command(b"PING"),
    }
    channel = space.channel + b"doctor"
    if config.deployment == "cluster":
        needed["+spublish"] = pack_command(b"SPUBLISH", channel, b"")
        needed["+cluster|slots"] = pack_command(b"CLUSTER", b"SLOTS")
    else:
        needed["+publish"] = pack_command(b"PUBLISH", channel, b"")
    return needed
