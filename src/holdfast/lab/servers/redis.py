"""Redis, alone or as a replica."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from .certificates import Certificates, make_certificates
from .errors import ServerFailed
from .resp import ReplyError, ask
from .server import Server, find_program

__all__ = ["Persistence", "Redis"]

Persistence = Literal["none", "aof-always", "rdb"]
"""What a restart keeps: nothing, every write, or the last snapshot (also taken at an orderly stop)."""

PERSISTENCE: Final[Mapping[Persistence, Sequence[str]]] = {
    "none": ('save ""', "appendonly no"),
    "aof-always": ('save ""', "appendonly yes", "appendfsync always"),
    "rdb": ("save 3600 1", "appendonly no"),
}
ASK_SECONDS: Final = 5.0
PROGRAM: Final = "redis-server"
"""The program and the name of its Debian package."""


class Redis(Server):
    """``redis-server``, or another ``program`` that takes the same configuration: ``valkey-server``.

    ``acl`` are users with their rules, as in ``{"app": "on >secret ~* +@all"}``. With ``tls`` it speaks
    nothing else; servers that talk to each other need one authority, that of ``certificates_of``.
    ``settings`` are lines of its configuration: ``{"maxmemory-policy": "allkeys-lru"}``.
    """

    kind = "redis"

    def __init__(
        self,
        *,
        persistence: Persistence = "none",
        password: str | None = None,
        acl: Mapping[str, str] | None = None,
        tls: bool = False,
        maxmemory: str | None = None,
        replica_of: Redis | None = None,
        faketime: bool = False,
        settings: Mapping[str, str] | None = None,
        certificates_of: Redis | None = None,
        program: str = PROGRAM,
    ) -> None:
        super().__init__(faketime=faketime)
        self.password = password
        self.tls = tls
        self.program = program
        self._certificates_of = certificates_of or (replica_of if replica_of and replica_of.tls else None)
        self._persistence = persistence
        self._acl = dict(acl or {})
        self._maxmemory = maxmemory
        self._replica_of = replica_of
        self._settings = dict(settings or {})

    @property
    def url(self) -> str:
        """The URL, without the options for TLS: see ``certificates``."""
        user = f":{quote(self.password, safe='')}@" if self.password is not None else ""
        return f"{'rediss' if self.tls else 'redis'}://{user}{self.address}"

    @property
    def certificates(self) -> Certificates:
        """The certificates of a server with ``tls``."""
        if not self.tls:
            raise ServerFailed("this Redis has no TLS")
        if self._certificates_of is not None:
            return self._certificates_of.certificates
        return make_certificates(self.folder, find_program("openssl", "openssl"))

    # --- requests

    def command(self, *words: str | bytes | float) -> Any:
        """Send one command on a separate connection. Texts are returned as bytes, an error is raised."""
        return self.commands(words)[0]

    def commands(self, *commands: tuple[str | bytes | float, ...]) -> list[Any]:
        """Send several commands, one after the other on one connection."""
        with self.connection() as connection:
            return ask(connection, *commands)

    def is_replica(self) -> bool | None:
        """None: unknown. Changing the role of a server makes it close all its connections."""
        try:
            return bool(self.command("ROLE")[0] == b"slave")
        except OSError:
            return None

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """A socket (with TLS, if the server uses it), logged in as the default user."""
        with socket.create_connection((self.host, self.port), ASK_SECONDS) as plain:
            if not self.tls:
                self._log_in(plain)
                yield plain
                return
            with self.certificates.client_context().wrap_socket(plain, server_hostname="localhost") as secure:
                self._log_in(secure)
                yield secure

    def info(self, section: str) -> dict[str, str]:
        """``INFO`` as a mapping."""
        text: str = self.command("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def _log_in(self, connection: socket.socket) -> None:
        if self.password is not None:
            ask(connection, ("AUTH", self.password))

    # --- hooks of the base class

    def prepare(self) -> None:
        """Write its configuration once: Redis itself rewrites it when its role changes."""
        if not self._configuration.exists():
            self._configuration.touch(mode=0o600)
            self._configuration.write_text("".join(f"{line}\n" for line in self._lines()))

    def command_line(self) -> list[str]:
        package = PROGRAM if self.program == PROGRAM else None
        return [find_program(self.program, package), str(self._configuration)]

    def ping(self) -> bool:
        try:
            return bool(self.command("PING") == "PONG")
        except ReplyError:
            return False  # it is loading its data

    @property
    def _configuration(self) -> Path:
        return self.folder / "redis.conf"

    def _lines(self) -> Iterator[str]:
        yield f"bind {self.host}"
        yield f"dir {quoted(str(self.data))}"
        yield "repl-diskless-sync-delay 0"  # a replica does not wait for other replicas
        yield "shutdown-timeout 0"  # and shutdown does not wait for replicas
        yield from PERSISTENCE[self._persistence]
        yield from self._listening()
        if self.password is not None:
            yield f"requirepass {quoted(self.password)}"
            yield f"masterauth {quoted(self.password)}"  # it may become a replica later
        for user, rules in self._acl.items():
            yield f"user {user} {rules}"
        if self._maxmemory is not None:
            yield f"maxmemory {self._maxmemory}"
        if self._replica_of is not None:
            yield from self._following(self._replica_of)
        for name, value in self._settings.items():
            yield f"{name} {value}"

    def _listening(self) -> Iterator[str]:
        if not self.tls:
            yield f"port {self.port}"
            return
        authority, certificate, key = self.certificates
        yield "port 0"
        yield f"tls-port {self.port}"
        yield f"tls-ca-cert-file {quoted(str(authority))}"
        yield f"tls-cert-file {quoted(str(certificate))}"
        yield f"tls-key-file {quoted(str(key))}"
        yield "tls-auth-clients no"
        if self._replica_of is None or self._replica_of.tls:
            yield "tls-replication yes"  # it may become a replica later

    def _following(self, master: Redis) -> Iterator[str]:
        yield f"replicaof {master.host} {master.port}"
        if master.password is not None and self.password is None:
            yield f"masterauth {quoted(master.password)}"


def quoted(text: str) -> str:
    """A word of Redis' configuration file."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'
