"""MariaDB.

For root, it runs as the user ``mysql``, who owns its folder.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .server import Server, find_program, make_template

__all__ = ["MariaDB"]

PACKAGE: Final = "mariadb-server"
USER: Final = "mysql"
CLIENT_SECONDS: Final = 30.0

SETTINGS: Final = {
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "32M",
    "innodb-flush-log-at-trx-commit": "0",  # a kill may lose the last second
    "innodb-log-file-size": "8M",
    "max-connections": "200",
    "performance-schema": "OFF",
    "skip-name-resolve": "ON",
}


class MariaDB(Server):
    """``mariadbd`` with the superuser ``holdfast``, who needs no password, and the database ``holdfast``.

    ``settings`` are settings of MariaDB: ``{"innodb-lock-wait-timeout": "2"}``.
    """

    kind = "mariadb"

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = {**SETTINGS, **(settings or {})}

    @property
    def url(self) -> str:
        return f"mariadb://holdfast@{self.address}/holdfast"

    def sql(self, statement: str, database: str = "") -> str:
        """Run a statement with ``mariadb`` as root, over the local socket. Returns rows with tabs."""
        client = find_program("mariadb", PACKAGE)
        done = subprocess.run(
            [
                client,
                "--no-defaults",
                f"--socket={self._socket}",
                "--user=root",
                "-N",
                "-B",
                *([database] * bool(database)),
            ],
            input=statement,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ConnectionError(f"mariadb: {done.stderr.strip()}")
        return done.stdout.strip()

    # --- hooks of the base class

    def user(self) -> str | None:
        return _user()

    def prepare(self) -> None:
        if not (self.data / "mysql").exists():
            # `cp` keeps owners and modes, and is faster than mariadb-install-db.
            subprocess.run(
                [find_program("cp", "coreutils"), "-a", f"{_template()}/.", str(self.data)], check=True
            )

    def command_line(self) -> list[str]:
        options = {
            "datadir": str(self.data),
            "port": str(self.port),
            "bind-address": self.host,
            "socket": str(self._socket),
            "pid-file": str(self.data / "pid"),
            **self._settings,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return [find_program("mariadbd", PACKAGE), "--no-defaults", *words]

    def ping(self) -> bool:
        admin = find_program("mariadb-admin", PACKAGE)
        asked = [admin, "--no-defaults", f"--socket={self._socket}", "--user=root", "--silent", "ping"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def initialise(self) -> None:
        self.sql(
            "CREATE USER 'holdfast'@'%';"
            " GRANT ALL ON *.* TO 'holdfast'@'%' WITH GRANT OPTION;"
            " CREATE DATABASE holdfast"
        )

    @property
    def _socket(self) -> Path:
        return self.folder / "socket"


def _user() -> str | None:
    """The user that runs it; None if this process is not root."""
    return USER if os.geteuid() == 0 else None


@functools.cache
def _template() -> Path:
    """A new database, created once for each process: creating it takes longer than all the rest."""
    return make_template(
        "mariadb",
        _user(),
        lambda folder: [
            find_program("mariadb-install-db", PACKAGE),
            "--no-defaults",
            f"--datadir={folder}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-log-file-size=8M",
        ],
    )
