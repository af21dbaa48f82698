"""What there is to find out about Redis servers: how they are reached, who we are there, what they keep."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from hiredis import ReplyError

from ...core.effects import TransientError
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ..findings import Finding, clock, connection, fail, ok, unknown, verified, warn
from ..resp.connection import RespSocket, open_socket
from ..resp.handshake import perform_handshake
from ..resp.interfaces import pack_command, run_sync
from .config import Address, Login, RedisConfig, provided_credentials
from .keys import Keyspace
from .threads import RedisThreads

__all__ = ["ServerDiagnosis", "diagnose"]

TLS_REMEDY: Final = "use rediss://, and leave ssl_cert_reqs and ssl_check_hostname as they are"
NO_SUCH_SCRIPT: Final = b"0" * 40


def diagnose(settings: RedisConfig, space: Keyspace, io_timeout: float) -> list[Finding]:
    findings = []
    addresses = _masters(settings, space, io_timeout)
    for address in addresses:
        with ServerDiagnosis(
            settings, address, io_timeout, str(address) if len(addresses) > 1 else ""
        ) as exam:
            findings += [
                exam.connection(),
                exam.clock(),
                exam.version(),
                *exam.rights(_needed_rights(space, settings)),
                exam.eviction(),
                exam.persistence(),
                exam.replicas(settings),
            ]
    return findings


def _masters(settings: RedisConfig, space: Keyspace, io_timeout: float) -> list[Address]:
    """Whoever serves us: one, or in a Cluster several."""
    if settings.deployment == "single":
        return [settings.addresses[0]]
    hooks = AdapterContext(secrets.token_hex(8), _nobody, _nobody, io_timeout)
    adapter = RedisThreads(settings, space, hooks, _nobody)
    try:
        return adapter.masters()
    except TransientError as trouble:
        raise EngineUnavailable(str(trouble)) from trouble
    finally:
        adapter.close()


def _nobody(*_: Any) -> None:
    """Nobody waits here."""


def _needed_rights(space: Keyspace, settings: RedisConfig) -> dict[str, bytes]:
    """A harmless request for each right that is needed. A key in a Cluster must be one that is served here,
    which is not known beforehand: a redirection is as good as an answer."""
    key = space.prefix + b"doctor"
    needed = {
        "+evalsha": pack_command(b"EVALSHA", NO_SUCH_SCRIPT, b"1", key),
        "+script|load": pack_command(b"SCRIPT", b"LOAD", b"return 1"),
        "+get": pack_command(b"GET", key),
        "+set": pack_command(b"SET", key, b"", b"XX"),  # it is not there, so nothing is set
        "+time": pack_command(b"TIME"),
        "+scan": pack_command(b"SCAN", b"0", b"COUNT", b"1"),
        "+ping": pack_command(b"PING"),
    }
    channel = space.channel + b"doctor"
    if settings.deployment == "cluster":
        needed["+spublish"] = pack_command(b"SPUBLISH", channel, b"")
        needed["+cluster|slots"] = pack_command(b"CLUSTER", b"SLOTS")
    else:
        needed["+publish"] = pack_command(b"PUBLISH", channel, b"")
    return needed


EXCESS_RIGHTS: Final = {
    "+eval": pack_command(b"EVAL", b"return 1", b"0"),
    "+client|kill": pack_command(b"CLIENT", b"KILL", b"ID", b"0"),
    "+acl|list": pack_command(b"ACL", b"LIST"),
    "all keys": pack_command(b"EXISTS", b"no:key:of:ours"),
}
"""Rights that Holdfast does not need, each with a request that does nothing."""


class ServerDiagnosis:
    """One server, on a connection of its own. ``redlock://`` examines its nodes with it, too."""

    def __init__(self, settings: RedisConfig, address: Address, io_timeout: float, label: str = "") -> None:
        self._settings = settings
        self._address = address
        self._label = label
        try:
            self._line = RespSocket(open_socket(address, settings.tls, io_timeout), address, io_timeout)
            try:
                run_sync(perform_handshake(self._line, settings, _credentials(settings.login), "doctor"))
            except BaseException:
                self._line.close()
                raise
        except TransientError as trouble:
            raise EngineUnavailable(str(trouble)) from trouble
        self._info = self._read_info()

    def __enter__(self) -> ServerDiagnosis:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def ask(self, payload: bytes) -> Any:
        """The reply; an error reply is a value too."""
        try:
            return run_sync(self._line.exchange(payload, 1))[0]
        except TransientError as trouble:
            raise EngineUnavailable(str(trouble)) from trouble

    def topic(self, name: str) -> str:
        return f"{name} {self._label}".strip()

    def _read_info(self) -> Mapping[str, str]:
        facts: dict[str, str] = {}
        for section in (b"server", b"memory", b"persistence", b"replication"):
            told = self.ask(pack_command(b"INFO", section))
            rows = told.decode("utf-8", "replace").splitlines() if isinstance(told, bytes) else []
            facts.update(row.partition(":")[::2] for row in rows if ":" in row)
        return facts

    # --- what is looked at ----------------------------------------------------------------------

    def connection(self) -> Finding:
        tls = self._settings.tls
        host = self._address.host if self._address.port else ""
        return connection(
            self.topic("connection"), host, tls is not None, tls is not None and verified(tls), TLS_REMEDY
        )

    def clock(self) -> Finding:
        topic = self.topic("clock")
        if isinstance(self.ask(pack_command(b"TIME")), ReplyError):
            return fail(topic, "the server does not tell its time: allow it (ACL rule +time)")

        def time() -> float:
            seconds, micros = self.ask(pack_command(b"TIME"))
            return int(seconds) + int(micros) / 1_000_000

        return clock(topic, time)

    def version(self) -> Finding:
        version = self._info.get("valkey_version") or self._info.get("redis_version")
        name = "Valkey" if "valkey_version" in self._info else "Redis"
        if version is None:
            return unknown(
                self.topic("version"), "recent enough; which one is not told (ACL rule +info|server)"
            )
        return ok(self.topic("version"), f"{name} {version}")

    def rights(self, needed: Mapping[str, bytes]) -> list[Finding]:
        topic = self.topic("rights")
        missing = [right for right, payload in needed.items() if _is_denied(self.ask(payload))]
        if missing:
            return [fail(topic, f"missing: {' '.join(missing)}; add them to the user with ACL SETUSER")]
        whoami = self.ask(pack_command(b"ACL", b"WHOAMI"))
        excess = [right for right, payload in EXCESS_RIGHTS.items() if not _is_denied(self.ask(payload))]
        if whoami == b"default" and len(excess) == len(EXCESS_RIGHTS):
            return [
                warn(topic, "all rights, as the user 'default': make a user for Holdfast (docs/redis.md)")
            ]
        if excess:
            return [warn(topic, f"more than needed: {', '.join(excess)}; take them away with ACL SETUSER")]
        return [ok(topic, "what is needed, and none of those that harm others")]

    def eviction(self) -> Finding:
        topic = self.topic("eviction")
        policy, limit = self._info.get("maxmemory_policy"), self._info.get("maxmemory", "0")
        if policy is None:
            return unknown(topic, "its policy is not told: allow it (ACL rule +info|memory)")
        if policy == "noeviction":
            return ok(topic, "noeviction: no lock is thrown away for want of memory")
        if limit == "0":
            return ok(topic, f"policy {policy}, but without maxmemory nothing is thrown away")
        return fail(topic, f"policy {policy}: locks are thrown away when memory is full; set noeviction")

    def persistence(self) -> Finding:
        topic = self.topic("persistence")
        append_only = self._info.get("aof_enabled")
        if append_only is None:
            return unknown(topic, "the server does not tell (ACL rule +info|persistence)")
        told = self.ask(pack_command(b"CONFIG", b"GET", b"appendfsync"))
        fsync = told[1].decode() if isinstance(told, list) and len(told) == 2 else ""
        if append_only == "0":
            return warn(topic, "no append-only file: a restart forgets what is held; set appendonly yes")
        if self._info.get("aof_last_write_status", "ok") != "ok":
            return fail(
                topic, "the append-only file cannot be written: look at the disk and the server's log"
            )
        if fsync == "always":
            return ok(topic, "append-only file, on disk with every grant")
        if fsync:
            return warn(
                topic,
                f"append-only file with appendfsync {fsync}: a crash forgets the last grants; set always",
            )
        return ok(topic, "append-only file; how often it goes to disk is not told (ACL rule +config|get)")

    def replicas(self, settings: RedisConfig) -> Finding:
        topic = self.topic("replicas")
        count = self._info.get("connected_slaves")
        if count is None:
            return unknown(topic, "the server does not tell (ACL rule +info|replication)")
        if settings.wait_replicas > int(count):
            return fail(
                topic,
                f"wait_replicas={settings.wait_replicas}, but {count} are connected: nothing is granted",
            )
        if count == "0":
            return ok(topic, "none: while the server is down nothing is granted, and nothing granted twice")
        if settings.wait_replicas:
            return ok(topic, f"{count}; each grant waits for {settings.wait_replicas}")
        return warn(
            topic,
            f"{count}, and grants do not wait for them: a failover forgets the last ones; see wait_replicas",
        )


def _credentials(login: Login) -> tuple[str | None, str | None]:
    if login.provider is not None:
        return provided_credentials(login.provider.get_credentials())
    return login.username, login.password


def _is_denied(reply: Any) -> bool:
    return isinstance(reply, ReplyError) and str(reply).startswith("NOPERM")
