"""Databases that guards are for, and connections to them through every driver that a user may have.

``databases()`` are the three; ``open_client(database, driver)`` gives a connection in the same few verbs.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import itertools
import shutil
import sqlite3
import sys
import sysconfig
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.model import Fence
from support.servers import shared_mariadb, shared_postgresql

__all__ = [
    "DATABASES",
    "DRIVERS",
    "Client",
    "Database",
    "FakeLease",
    "lease",
    "new_database",
    "open_client",
]

DATABASES = [
    pytest.param("sqlite"),
    pytest.param("postgresql", marks=pytest.mark.engine("postgresql")),
    pytest.param("mariadb", marks=pytest.mark.engine("mariadb")),
]

_DEBIANS_MODULES = Path("/usr/lib/python3/dist-packages")
_IS_FOR_THIS_PYTHON = (_DEBIANS_MODULES / f"MySQLdb/_mysql{sysconfig.get_config_var('EXT_SUFFIX')}").exists()
# It has no wheels, so it is Debian's, which is for one version of Python.
_MYSQLCLIENT = ["mysqlclient"] if _IS_FOR_THIS_PYTHON else []

DRIVERS = [
    pytest.param("sqlite", "sqlite3"),
    pytest.param("sqlite", "django"),
    pytest.param("sqlite", "sqlalchemy"),
    pytest.param("sqlite", "session"),
    *(
        pytest.param("postgresql", driver, marks=pytest.mark.engine("postgresql"))
        for driver in ("psycopg", "psycopg2", "django", "sqlalchemy", "session")
    ),
    *(
        pytest.param("mariadb", driver, marks=pytest.mark.engine("mariadb"))
        for driver in ("pymysql", "connector", *_MYSQLCLIENT, "django", "sqlalchemy", "session")
    ),
]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class FakeLease:
    """What a guard reads of a lease."""

    fence: Fence
    name: str = "invoices"
    mode: str = "exclusive"
    peers: tuple[int, ...] = ()


def lease(token: int, source: str = "s", mode: str = "exclusive", nonce: str = "") -> FakeLease:
    return FakeLease(Fence(source, token, nonce or f"n{token}"), mode=mode)


@dataclass(frozen=True)
class Database:
    """One database of its own on a server that all tests share, or a file."""

    kind: str
    name: str
    host: str = ""
    port: int = 0

    def connect(self, **options: Any) -> Any:
        """By the first driver of its kind, with autocommit off."""
        if self.kind == "sqlite":
            return sqlite3.connect(self.name, **{"timeout": 0.2, **options})
        if self.kind == "postgresql":
            import psycopg

            where: dict[str, Any] = {
                "host": self.host,
                "port": self.port,
                "user": "postgres",
                "dbname": self.name,
            }
            return psycopg.connect(**where, **options)
        import pymysql

        return pymysql.connect(host=self.host, port=self.port, user="holdfast", database=self.name, **options)

    @property
    def first_driver(self) -> str:
        return {"sqlite": "sqlite3", "postgresql": "psycopg", "mariadb": "pymysql"}[self.kind]

    def sqlalchemy_url(self, driver: str) -> str:
        if self.kind == "sqlite":
            return f"sqlite+{driver}:///{self.name}"
        user = "postgres" if self.kind == "postgresql" else "holdfast"
        return f"{'postgresql' if self.kind == 'postgresql' else 'mysql'}+{driver}://{user}@{self.host}:{self.port}/{self.name}"


@functools.cache
def _folder() -> Path:
    """For the files of one test process."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-guard-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def new_database(kind: str) -> Database:
    """Empty; it stays until its server ends."""
    name = f"guard{next(_numbers)}"
    if kind == "sqlite":
        return Database(kind, str(_folder() / f"{name}.db"))
    if kind == "postgresql":
        server = shared_postgresql()
        server.sql(f"CREATE DATABASE {name}")
        return Database(kind, name, server.host, server.port)
    other = shared_mariadb()
    other.sql(f"CREATE DATABASE {name}")
    return Database(kind, name, other.host, other.port)


@dataclass
class Client:
    """A connection in a few verbs; ``target`` is what the user has, and hands to the guard."""

    target: Any
    execute: Callable[[str], list[Any]]
    commit: Callable[[], object]
    rollback: Callable[[], object]
    close: Callable[[], object]
    begin: Callable[[], object] = lambda: None


@contextmanager
def open_client(database: Database, driver: str, **options: Any) -> Iterator[Client]:
    client = _OPEN[driver](database, **options)
    try:
        yield client
    finally:
        client.rollback()
        client.close()


def _plain(connection: Any) -> Client:
    def execute(statement: str) -> list[Any]:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = list(cursor.fetchall()) if cursor.description else []
        cursor.close()
        return rows

    return Client(connection, execute, connection.commit, connection.rollback, connection.close)


def _first(database: Database, **options: Any) -> Client:
    return _plain(database.connect(**options))


def _psycopg2(database: Database, **options: Any) -> Client:
    import psycopg2

    where = {"host": database.host, "port": database.port, "user": "postgres", "dbname": database.name}
    connection = psycopg2.connect(**where)
    connection.autocommit = options.get("autocommit", False)
    return _plain(connection)


def _connector(database: Database, **options: Any) -> Client:
    import mysql.connector

    where = {"host": database.host, "port": database.port, "user": "holdfast", "database": database.name}
    return _plain(mysql.connector.connect(**where, **options))


@functools.cache
def _mysqldb() -> Any:
    """mysqlclient's module, and nothing else of that folder."""
    sys.path.append(str(_DEBIANS_MODULES))
    try:
        return importlib.import_module("MySQLdb.connections")
    finally:
        sys.path.remove(str(_DEBIANS_MODULES))


def _mysqlclient(database: Database, **options: Any) -> Client:
    where = {"host": database.host, "port": database.port, "user": "holdfast", "db": database.name}
    return _plain(_mysqldb().Connection(**where, **options))


def _django(database: Database, **options: Any) -> Client:
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}})
        django.setup()
    if database.kind == "mariadb" and _MYSQLCLIENT:
        _mysqldb()
    elif database.kind == "mariadb":
        import pymysql

        pymysql.install_as_MySQLdb()
    engine = {"mariadb": "mysql"}.get(
        database.kind, "sqlite3" if database.kind == "sqlite" else database.kind
    )
    alias = f"guard{next(_numbers)}"
    connections.databases[alias] = connections.configure_settings(
        {
            "default": {},
            alias: {
                "ENGINE": f"django.db.backends.{engine}",
                "NAME": database.name,
                "HOST": database.host,
                "PORT": str(database.port or ""),
                "USER": "" if engine == "sqlite3" else "postgres" if engine == "postgresql" else "holdfast",
            },
        }
    )[alias]
    connection = connections[alias]
    connection.connect()

    def execute(statement: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def end(verb: str) -> Callable[[], None]:
        def run() -> None:
            if not connection.get_autocommit():
                getattr(connection, verb)()
                connection.set_autocommit(True)

        return run

    def begin() -> None:
        connection.set_autocommit(False)

    return Client(connection, execute, end("commit"), end("rollback"), connection.close, begin)


def _engine(database: Database, driver: str | None = None) -> Any:
    import sqlalchemy

    name = driver or {"sqlite": "pysqlite", "postgresql": "psycopg", "mariadb": "pymysql"}[database.kind]
    return sqlalchemy.create_engine(database.sqlalchemy_url(name), poolclass=sqlalchemy.NullPool)


def _sqlalchemy(database: Database, **options: Any) -> Client:
    connection = _engine(database).connect()
    if options.get("autocommit"):
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")

    def execute(statement: str) -> list[Any]:
        result = connection.exec_driver_sql(statement)
        return list(result.fetchall()) if result.returns_rows else []

    return Client(connection, execute, connection.commit, connection.rollback, connection.close)


def _session(database: Database, **options: Any) -> Client:
    from sqlalchemy import text
    from sqlalchemy.orm import Session

    driver = {"sqlite": "pysqlite", "postgresql": "psycopg2", "mariadb": "mysqlconnector"}[database.kind]
    engine = _engine(database, driver)
    if options.get("autocommit"):
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    session = Session(engine)

    def execute(statement: str) -> list[Any]:
        result: Any = session.execute(text(statement))
        return list(result.fetchall()) if result.returns_rows else []

    return Client(session, execute, session.commit, session.rollback, session.close)


_OPEN: types.MappingProxyType[str, Callable[..., Client]] = types.MappingProxyType(
    {
        "sqlite3": _first,
        "psycopg": _first,
        "pymysql": _first,
        "psycopg2": _psycopg2,
        "connector": _connector,
        "mysqlclient": _mysqlclient,
        "django": _django,
        "sqlalchemy": _sqlalchemy,
        "session": _session,
    }
)
