"""What there is to find out about the nodes of ``redlock://``, each for itself."""

from __future__ import annotations

from ...errors import EngineUnavailable
from ..findings import Finding, fail, ok
from ..redis.diagnosis import NO_SUCH_SCRIPT, ServerDiagnosis
from ..resp.interfaces import pack_command
from .admin import status_of
from .config import RedlockConfig
from .keys import MARK_KEY, Keyspace

__all__ = ["diagnose"]


def diagnose(settings: RedlockConfig, space: Keyspace, io_timeout: float) -> list[Finding]:
    findings: list[Finding] = []
    failures: list[str] = []
    for node, label in zip(settings.nodes, settings.labels, strict=True):
        try:
            with ServerDiagnosis(node, node.addresses[0], io_timeout, label) as exam:
                findings += [
                    exam.connection(),
                    exam.clock(),
                    exam.version(),
                    *exam.rights(_needed_rights(space)),
                    exam.eviction(),
                    exam.persistence(),
                ]
        except EngineUnavailable as error:
            failures.append(str(error))
            findings.append(fail(f"connection {label}", str(error)))
    reached = len(settings.nodes) - len(failures)
    if not reached:
        raise EngineUnavailable(f"no node can be reached: {failures[0]}")
    return [_majority(settings, reached), *_memberships(settings), *findings]


def _majority(settings: RedlockConfig, reached: int) -> Finding:
    count = len(settings.nodes)
    if reached > count // 2:
        return ok("nodes", f"{reached} of {count} can be reached; {count // 2 + 1} are needed")
    return fail(
        "nodes", f"{reached} of {count} can be reached, {count // 2 + 1} are needed: nothing is granted"
    )


def _memberships(settings: RedlockConfig) -> list[Finding]:
    """Which of them have forgotten nothing."""
    found = []
    for node, state, trouble in status_of(settings):
        topic = f"membership {node}"
        found.append(fail(topic, f"{state}: {trouble}") if trouble else ok(topic, state))
    return found


def _needed_rights(space: Keyspace) -> dict[str, bytes]:
    """A harmless request for each right that is needed."""
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
