"""PgBouncer, a pool in front of PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from .postgresql import SUPERUSER, PostgreSQL, run_psql, unprivileged_user
from .server import Server, find_program

__all__ = ["PgBouncer"]


class PgBouncer(Server):
    """``pgbouncer``, by default in transaction mode: each transaction may run on another connection.

    ``settings`` are lines of its configuration: ``{"default_pool_size": "2"}``.
    """

    kind = "pgbouncer"
    stop_signal = signal.SIGQUIT
    """SIGQUIT ends it at once in every version. In newer versions the other signals wait for clients."""

    def __init__(
        self,
        server: PostgreSQL,
        *,
        pool_mode: Literal["session", "transaction", "statement"] = "transaction",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.server = server
        self._pool_mode = pool_mode
        self._settings = dict(settings or {})

    @property
    def url(self) -> str:
        password = self.server.password
        secret = f":{quote(password, safe='')}" if password is not None else ""
        return f"postgresql://{SUPERUSER}{secret}@{self.address}/postgres"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement through the pool. The database ``pgbouncer`` is its console: ``SHOW POOLS``."""
        password = self.server.password
        return run_psql(self.host, self.port, statement, database=database, password=password)

    # --- hooks of the base class

    def user(self) -> str | None:
        return unprivileged_user()

    def prepare(self) -> None:
        password = self.server.password or ""
        self._write("users.txt", '"{}" "{}"\n'.format(SUPERUSER, password.replace('"', '""')))
        settings = {
            "listen_addr": self.host,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust" if self.server.password is None else "scram-sha-256",
            "auth_file": str(self.folder / "users.txt"),
            "admin_users": SUPERUSER,
            "pool_mode": self._pool_mode,
            "max_client_conn": "500",
            "ignore_startup_parameters": "extra_float_digits",
            **self._settings,
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        databases = f"[databases]\n* = host={self.server.host} port={self.server.port}\n"
        self._write("pgbouncer.ini", f"{databases}[pgbouncer]\n{lines}")

    def command_line(self) -> list[str]:
        return [find_program("pgbouncer", "pgbouncer"), str(self.folder / "pgbouncer.ini")]

    def ping(self) -> bool:
        return self.sql("SELECT 1") == "1"

    def _write(self, name: str, text: str) -> None:
        path: Path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        self._own(path)
