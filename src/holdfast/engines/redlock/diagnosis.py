"""What ``holdfast doctor`` finds out about the nodes of ``redlock://``."""

from __future__ import annotations

from ...errors import EngineUnavailable
from ..findings import Finding, fail, ok
from ..resp.codec import pack_command
from ..resp.diagnosis import NO_SUCH_SCRIPT, ServerDiagnosis
from .admin import status_of
from .config import RedlockConfig
from .errors import PERMISSION_HINT
from .keys import MARK_KEY, Keyspace

__all__ = ["diagnose"]


def diagnose(config: RedlockConfig, space: Keyspace, io_timeout: float) -> list[Finding]:
    findings: list[Finding] = []
    failures: list[str] = []
    for node, label in zip(config.nodes, config.labels, strict=True):
        try:
            with ServerDiagnosis(node, node.addresses[0], io_timeout, PERMISSION_HINT, label) as server:
                findings += [
                    server.connection(),
                    server.clock(),
                    server.version(),
                    *server.rights(_needed_rights(space)),
                    server.eviction(),
                    server.persistence(),
                ]
        except EngineUnavailable as error:
            failures.append(str(error))
            findings.append(fail(f"connection {label}", str(error)))
    reached = len(config.nodes) - len(failures)
    if not reached:
        raise EngineUnavailable(f"no node can be reached: {failures[0]}")
    return [_majority(config, reached), *_memberships(config), *findings]


def _majority(config: RedlockConfig, reached: int) -> Finding:
    count = len(config.nodes)
    if reached > count // 2:
        return ok("nodes", f"{reached} of {count} can be reached; {count // 2 + 1} are needed")
    return fail(
        "nodes", f"{reached} of {count} can be reached, {count // 2 + 1} are needed: nothing is granted"
    )


def _memberships(config: RedlockConfig) -> list[Finding]:
    """Which nodes have lost no data."""
    found = []
    for node, state, advice in status_of(config):
        topic = f"membership {node}"
        found.append(fail(topic, f"{state}: {advice}") if advice else ok(topic, state))
    return found


def _needed_rights(space: Keyspace) -> dict[str, bytes]:
    """A harmless request for each permission that Redlock needs."""
    key = space.prefix + b"doctor"
    return {
        "+evalsha": pack_command(b"EVALSHA", NO_SUCH_SCRIPT, b"1", key),
        "+script|load": pack_command(b"SCRIPT", b"LOAD", b"return 1"),
        "+get": pack_command(b"GET", key),
        "+set": pack_command(b"SET", key, b"", b"XX"),
        "+hmget": pack_command(b"HMGET", MARK_KEY, b"doctor"),
        "+time": pack_command(b"TIME"),
        "+scan": pack_command(b"SCAN", b"0", b"COUNT", b"1"),
        "+info|server": pack_command(b"INFO", b"server"),
        "+config|get": pack_command(b"CONFIG", b"GET", b"appendfsync"),
    }
