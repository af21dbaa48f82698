"""PostgreSQL.

It refuses to run as root. For root, it runs as the user ``postgres``, who owns its folder.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from .certificates import Certificates, make_certificates
from .errors import ProgramMissing, ServerFailed
from .server import Server, find_program, make_template

__all__ = ["PostgreSQL", "run_psql", "unprivileged_user"]

PACKAGE: Final = "postgresql"
SUPERUSER: Final = "postgres"
PSQL_SECONDS: Final = 30.0

SETTINGS: Final = {
    "fsync": "off",  # a process that ends loses no written data
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "300",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "10s",
    "log_line_prefix": "%m [%p] ",
}


class PostgreSQL(Server):
    """``postgres`` with the superuser ``postgres``.

    With a ``password``, connections over TCP need it (SCRAM); without one, every connection over loopback is
    trusted. With ``tls`` it offers TLS. ``settings`` are settings of PostgreSQL: ``{"max_connections":
    "10"}``. With ``standby_of`` it is a read-only standby of that server until it is promoted.
    """

    kind = "postgresql"
    stop_signal = signal.SIGINT
    """Fast shutdown: clients are disconnected. At SIGTERM it would wait for them."""

    def __init__(
        self,
        *,
        password: str | None = None,
        tls: bool = False,
        faketime: bool = False,
        settings: Mapping[str, str] | None = None,
        standby_of: PostgreSQL | None = None,
    ) -> None:
        super().__init__(faketime=faketime)
        self.password = password
        self._primary = standby_of
        self.tls = tls
        self._settings = {**SETTINGS, **(settings or {})}

    @property
    def url(self) -> str:
        secret = f":{quote(self.password, safe='')}" if self.password is not None else ""
        return f"postgresql://{SUPERUSER}{secret}@{self.address}/postgres"

    @property
    def certificates(self) -> Certificates:
        """The certificates of a server with ``tls``."""
        if not self.tls:
            raise ServerFailed("this PostgreSQL has no TLS")
        return make_certificates(self.folder, find_program("openssl", "openssl"))

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement with ``psql`` as the superuser, over the local socket. Returns rows as ``a|b``
        lines."""
        return run_psql(str(self.folder), self.port, statement, database=database)

    def promote(self) -> None:
        """Promote a standby: from here on it accepts writes."""
        if self.sql("SELECT pg_promote()") != "t":
            raise ServerFailed(f"{self!r} was not promoted")

    # --- hooks of the base class

    def user(self) -> str | None:
        return unprivileged_user()

    def prepare(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            if self._primary is not None:
                self._copy(self._primary)
                return
            # `cp` keeps owners and modes, and is faster than initdb.
            subprocess.run(
                [find_program("cp", "coreutils"), "-a", f"{_template()}/.", str(self.data)], check=True
            )
        method = "trust" if self.password is None else "scram-sha-256"
        rules = f"local all,replication all trust\nhost all all 127.0.0.1/32 {method}\n"
        (self.data / "pg_hba.conf").write_text(rules)
        if self.tls:
            for path in self.certificates:
                self._own(path)

    def _copy(self, primary: PostgreSQL) -> None:
        """Copy the primary with all its users, passwords and rules, and the settings to follow it."""
        user = self.user()
        source = ["-h", str(primary.folder), "-p", str(primary.port), "-U", SUPERUSER]
        made = subprocess.run(
            [program("pg_basebackup"), "-D", str(self.data), *source, "-R", "-c", "fast", "--no-sync"],
            capture_output=True,
            text=True,
            cwd=self.folder,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            check=False,
        )
        if made.returncode != 0:
            raise ServerFailed(f"pg_basebackup: {made.stderr}")

    def command_line(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **self._settings,
        }
        if self.tls:
            settings |= {
                "ssl": "on",
                "ssl_cert_file": str(self.certificates.certificate),
                "ssl_key_file": str(self.certificates.key),
            }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [program("postgres"), "-D", str(self.data), *words]

    def ping(self) -> bool:
        asked = [program("pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def initialise(self) -> None:
        if self.password is not None and self._primary is None:
            secret = self.password.replace("'", "''")
            run_psql(str(self.folder), self.port, f"ALTER ROLE {SUPERUSER} PASSWORD '{secret}'")


def unprivileged_user() -> str | None:
    """The user that runs programs which refuse to run as root; None if this process is not root."""
    return SUPERUSER if os.geteuid() == 0 else None


@functools.cache
def program(name: str) -> str:
    """The path of a program of PostgreSQL. Debian has a folder for each version."""

    def version(path: Path) -> int:
        return int(path.name) if path.name.isdigit() else 0

    for folder in sorted(Path("/usr/lib/postgresql").glob("*"), key=version, reverse=True):
        if (folder / "bin" / name).exists():
            return str(folder / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise ProgramMissing(name, PACKAGE)
    return found


def run_psql(
    host: str, port: int, statement: str, *, database: str = "postgres", password: str | None = None
) -> str:
    """Run one statement, passed on standard input, which other users cannot read."""
    options = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", host, "-p", str(port), "-U", SUPERUSER]
    done = subprocess.run(
        [program("psql"), *options, "-d", database],
        input=statement,
        capture_output=True,
        text=True,
        timeout=PSQL_SECONDS,
        env={**os.environ, "PGPASSWORD": password or "", "PGCONNECT_TIMEOUT": "5"},
        check=False,
    )
    if done.returncode != 0:
        raise ConnectionError(f"psql: {done.stderr.strip()}")
    return done.stdout.strip()


@functools.cache
def _template() -> Path:
    """A new database, created once for each process: creating it takes longer than all the rest."""
    options = ["-A", "trust", "-U", SUPERUSER, "-E", "UTF8", "--locale", "C.UTF-8", "--no-sync"]
    return make_template(
        "postgresql",
        unprivileged_user(),
        lambda folder: [program("initdb"), "-D", str(folder), "--no-instructions", *options],
    )
