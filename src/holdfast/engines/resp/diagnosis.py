"""What ``holdfast doctor`` finds out about one server: connection, clock, rights, eviction, persistence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hiredis import ReplyError

from ...core.effects import TransientError
from ...errors import EngineUnavailable
from ..findings import Finding, clock, connection, fail, ok, unknown, verified, warn
from .codec import pack_command
from .config import Address, ServerConfig
from .connection import RespSocket, open_socket, run_sync
from .handshake import perform_handshake

__all__ = ["NO_SUCH_SCRIPT", "ServerDiagnosis"]

TLS_REMEDY: Final = "use rediss://, and leave ssl_cert_reqs and ssl_check_hostname as they are"
NO_SUCH_SCRIPT: Final = b"0" * 40

EXCESS_RIGHTS: Final = {
    "+eval": pack_command(b"EVAL", b"return 1", b"0"),
    "+client|kill": pack_command(b"CLIENT", b"KILL", b"ID", b"0"),
    "+acl|list": pack_command(b"ACL", b"LIST"),
    "all keys": pack_command(b"EXISTS", b"no:key:of:ours"),
}
"""Permissions that Holdfast does not need, each with a request that changes nothing."""


class ServerDiagnosis:
    """Examines one server on a connection of its own."""

    def __init__(
        self,
        config: ServerConfig,
        address: Address,
        io_timeout: float,
        permission_hint: str,
        label: str = "",
    ) -> None:
        self._config = config
        self._address = address
        self._label = label
        try:
            self._connection = RespSocket(open_socket(address, config.tls, io_timeout), address, io_timeout)
            try:
                credentials = config.login.credentials()
                run_sync(perform_handshake(self._connection, config, credentials, "doctor", permission_hint))
            except BaseException:
                self._connection.close()
                raise
        except TransientError as error:
            raise EngineUnavailable(str(error)) from error
        self._info = self._read_info()

    def __enter__(self) -> ServerDiagnosis:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, payload: bytes) -> Any:
        """The reply. An error reply is returned, not raised."""
        try:
            return run_sync(self._connection.exchange(payload, 1))[0]
        except TransientError as error:
            raise EngineUnavailable(str(error)) from error

    def topic(self, name: str) -> str:
        return f"{name} {self._label}".strip()

    def _read_info(self) -> Mapping[str, str]:
        fields: dict[str, str] = {}
        for section in (b"server", b"memory", b"persistence", b"replication"):
            reply = self.ask(pack_command(b"INFO", section))
            rows = reply.decode("utf-8", "replace").splitlines() if isinstance(reply, bytes) else []
            fields.update(row.partition(":")[::2] for row in rows if ":" in row)
        return fields

    # --- findings -------------------------------------------------------------------------------

    def connection(self) -> Finding:
        tls = self._config.tls
        host = self._address.host if self._address.port else ""
        return connection(
            self.topic("connection"), host, tls is not None, tls is not None and verified(tls), TLS_REMEDY
        )

    def clock(self) -> Finding:
        topic = self.topic("clock")
        if isinstance(self.ask(pack_command(b"TIME")), ReplyError):
            return fail(topic, "the server does not report its time: allow it (ACL rule +time)")

        def time() -> float:
            seconds, micros = self.ask(pack_command(b"TIME"))
            return int(seconds) + int(micros) / 1_000_000

        return clock(topic, time)

    def version(self) -> Finding:
        version = self._info.get("valkey_version") or self._info.get("redis_version")
        name = "Valkey" if "valkey_version" in self._info else "Redis"
        if version is None:
            return unknown(
                self.topic("version"),
                "recent enough; the server does not report which (ACL rule +info|server)",
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
        return [ok(topic, "what is needed, and none that can harm other users")]

    def eviction(self) -> Finding:
        topic = self.topic("eviction")
        policy, limit = self._info.get("maxmemory_policy"), self._info.get("maxmemory", "0")
        if policy is None:
            return unknown(topic, "the server does not report its policy: allow it (ACL rule +info|memory)")
        if policy == "noeviction":
            return ok(topic, "noeviction: no lock is evicted when memory is full")
        if limit == "0":
            return ok(topic, f"policy {policy}, but without maxmemory nothing is evicted")
        return fail(topic, f"policy {policy}: locks are evicted when memory is full; set noeviction")

    def persistence(self) -> Finding:
        topic = self.topic("persistence")
        append_only = self._info.get("aof_enabled")
        if append_only is None:
            return unknown(topic, "the server does not report it (ACL rule +info|persistence)")
        reply = self.ask(pack_command(b"CONFIG", b"GET", b"appendfsync"))
        fsync = reply[1].decode() if isinstance(reply, list) and len(reply) == 2 else ""
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
        return ok(
            topic, "append-only file; the server does not report how often it syncs (ACL rule +config|get)"
        )

    def replicas(self, wait_replicas: int) -> Finding:
        topic = self.topic("replicas")
        count = self._info.get("connected_slaves")
        if count is None:
            return unknown(topic, "the server does not report it (ACL rule +info|replication)")
        if wait_replicas > int(count):
            return fail(
                topic,
                f"wait_replicas={wait_replicas}, but {count} are connected: nothing is granted",
            )
        if count == "0":
            return ok(topic, "none: while the server is down nothing is granted, and nothing granted twice")
        if wait_replicas:
            return ok(topic, f"{count}; each grant waits for {wait_replicas}")
        return warn(
            topic,
            f"{count}, and grants do not wait for them: a failover forgets the last ones; see wait_replicas",
        )


def _is_denied(reply: Any) -> bool:
    return isinstance(reply, ReplyError) and str(reply).startswith("NOPERM")
