"""Which database a URL names, and how a connection of the queue's own to it is made ready.

Drivers are imported when a connection is first made.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from ..core.libpq import LIBPQ_OPTIONS
from ..core.urls import URL, parse_url
from ..errors import EngineUnavailable, InvalidArgument, Unsupported
from ..runtime.readable import wait_readable
from .texts import Texts, postgresql_texts, sqlite_texts

__all__ = ["Database", "PostgresDatabase", "SqliteDatabase", "database_of", "default_path"]

LOCKS_DATABASE: Final = 0x486F6C64
"""What marks a file as a database of locks (``PRAGMA application_id``)."""

_SQLITE_LEAST: Final = (3, 35)
"""It has RETURNING."""

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_SETTINGS: Final = (
    # Each statement sees what was committed before it, whatever the database's default is.
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # The statements walk indexes in order, whatever the statistics of a table that grows and shrinks say.
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET jit = off",
    "SET plan_cache_mode = force_generic_plan",
)


def database_of(url: str | None, io_timeout: float) -> Database:
    """The database of a URL. Without a URL: that of ``$HOLDFAST_URL``, or else a file of this user."""
    if url is not None and not isinstance(url, str):
        raise InvalidArgument(
            f"a URL is text; it is {type(url).__name__}: write for example 'postgresql://localhost/shop'"
        )
    text = os.environ.get("HOLDFAST_URL") if url is None else url
    if text is None or text == "":
        return SqliteDatabase(default_path(), io_timeout, makes_folder=True)
    parsed = parse_url(text)
    if parsed.scheme in ("postgresql", "postgres"):
        return PostgresDatabase(text, parsed, io_timeout)
    if parsed.scheme == "sqlite":
        return SqliteDatabase(_path_in(parsed), io_timeout, parsed.options.get("synchronous", "full"))
    raise Unsupported(
        f"{parsed.scheme}:// cannot carry a queue, because jobs are rows of a database: use postgresql:// or"
        " sqlite://"
    )


def default_path() -> str:
    """Beside the locks of this user; the environment does not change it."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise EngineUnavailable(
            f"user {os.geteuid()} has no entry in the passwd database, so the default queue has no path: give"
            " a URL, for example 'sqlite:////var/lib/app/queue.db', or set HOLDFAST_URL"
        ) from None
    return os.path.join(home, ".local", "share", "holdfast", "queue.db")


class Database(ABC):
    """Where the tables of the queue are."""

    texts: Texts
    io_timeout: float

    @abstractmethod
    def connect(self) -> Any:
        """A connection of the blocking driver, in autocommit mode."""

    @property
    def own_transaction(self) -> str | None:
        """What to run first in a transaction that the user may keep open for any time."""
        return None

    @abstractmethod
    def is_usable(self, connection: Any) -> bool:
        """Whether a connection that lay idle may be used, as far as is known without I/O."""

    @abstractmethod
    def failure(self, error: Exception, connection: Any) -> Exception | None:
        """What to raise instead, where the database could not be reached or used."""

    def is_locked(self, error: BaseException | None) -> bool:
        """Whether the driver's error says that another transaction keeps all writers out."""
        return False

    @property
    @abstractmethod
    def name(self) -> str:
        """For messages, without secrets."""

    @property
    @abstractmethod
    def dialect(self) -> str:
        """As bindings of connections call it."""


class PostgresDatabase(Database):
    dialect = "PostgreSQL"

    def __init__(self, text: str, url: URL, io_timeout: float) -> None:
        ours = {"schema", "pooler", "notify"}
        url.only(LIBPQ_OPTIONS | ours)
        schema = url.options.get("schema", "holdfast")
        if _SCHEMA.fullmatch(schema) is None or schema.startswith("pg_"):
            raise InvalidArgument(
                "schema must consist of at most 63 lower-case letters, digits and underscores; it is"
                f" {schema!r}: write for example schema=holdfast"
            )
        self.pooler = url.options.get("pooler", "auto")
        if self.pooler not in ("auto", "yes", "no"):
            raise InvalidArgument(f"pooler must be auto, yes or no; it is {self.pooler!r}")
        notify = url.options.get("notify", "yes")
        if notify not in ("yes", "no"):
            raise InvalidArgument(f"notify must be yes or no; it is {notify!r}")
        self.notifies = notify == "yes"
        self.texts = postgresql_texts(schema)
        self.io_timeout = io_timeout
        self._shown = str(url)
        parts = urlsplit(text.strip())
        query = [(key, value) for key, value in parse_qsl(parts.query) if key not in ours]
        self._application_name = url.options.get("application_name", "holdfast")
        # libpq repeats in its errors what it cannot read. Of the user and the password it can read all.
        netloc = url.userinfo + url.hosts
        self._conninfo = urlunsplit(parts._replace(netloc=netloc, query=urlencode(query, quote_via=quote)))

    @property
    def name(self) -> str:
        return self._shown

    @property
    def settings(self) -> dict[str, Any]:
        """For psycopg's ``connect``."""
        return {
            "conninfo": self._conninfo,
            "autocommit": True,
            "connect_timeout": max(1, round(self.io_timeout)),
            "application_name": self._application_name,
            # With these the kernel notices that the other end of a connection is gone.
            "tcp_user_timeout": int(self.io_timeout * 1000),
            "keepalives_idle": 10,
            "keepalives_interval": 3,
            "keepalives_count": 3,
        }

    def settings_of(self, is_pooled: bool) -> Sequence[str]:
        """Settings of a new connection. None behind a pooling proxy: other clients would inherit them."""
        if is_pooled:
            return ()
        # A process that is stopped in the middle of a transaction does not keep its locks for ever.
        return (
            *_SETTINGS,
            f"SET idle_in_transaction_session_timeout = {max(1000, int(self.io_timeout * 2000))}",
        )

    def connect(self) -> Any:
        psycopg = import_psycopg()
        from .watched import WatchedConnection  # psycopg's, too

        try:
            connection = WatchedConnection.connect(**self.settings)
        except psycopg.Error as error:
            raise self.unavailable(error) from error
        try:
            connection.watch(self.io_timeout / 2, self.settings)
            row = connection.execute(self.first_query).fetchone()
            is_pooled = self.is_pooled(connection, row)
            for setting in self.settings_of(is_pooled):
                connection.execute(setting)
        except psycopg.Error as error:
            connection.close()
            raise self.unavailable(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    first_query: Final = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation')"
    """The first query of a new connection; ``is_pooled`` reads its result."""

    def is_pooled(self, connection: Any, row: Any) -> bool:
        """Whether the process id at login differs from the backend's: statements are not prepared then."""
        found = self.pooler == "yes" or (self.pooler == "auto" and row[0] != connection.info.backend_pid)
        connection.prepare_threshold = None if found else 2
        if found and row[1] in ("repeatable read", "serializable"):
            raise Unsupported(
                f"transactions in {self.name} are {row[1].upper()} by default, and behind a proxy that pools"
                " by transaction the queue sets nothing on its connections: let the proxy log in as a role"
                " with ALTER ROLE … SET default_transaction_isolation = 'read committed', or connect directly"
            )
        return found

    @property
    def own_transaction(self) -> str | None:
        return "SET LOCAL idle_in_transaction_session_timeout = 0"

    def is_usable(self, connection: Any) -> bool:
        if connection.closed or connection.broken:
            return False
        # On an idle connection, a server sends only the reason for which it ends the connection.
        return not wait_readable([connection.fileno()], 0.0)

    def failure(self, error: Exception, connection: Any) -> Exception | None:
        psycopg = import_psycopg()
        if isinstance(error, psycopg.OperationalError) and (connection.closed or connection.broken):
            return self.unavailable(error)
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return EngineUnavailable(
                f"this role may not do that in {self.name} ({error}): let an administrator run what"
                " holdfast.queue.script(url) returns, and grant the role USAGE on the schema and ALL on its"
                " tables whose names begin with queue_"
            )
        return None

    def unavailable(self, error: Exception) -> EngineUnavailable:
        first = str(error).strip().partition("\n")[0]
        return EngineUnavailable(f"the queue's database {self.name} cannot be used: {first}")


class SqliteDatabase(Database):
    dialect = "SQLite"

    def __init__(
        self, path: str, io_timeout: float, synchronous: str = "full", makes_folder: bool = False
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise InvalidArgument(f"synchronous must be full or normal; it is {synchronous!r}")
        self.path = path
        self.texts = sqlite_texts()
        self.io_timeout = io_timeout
        self._synchronous = synchronous
        self._makes_folder = makes_folder

    @property
    def name(self) -> str:
        return f"sqlite:///{self.path}"

    def connect(self) -> Any:
        if sqlite3.sqlite_version_info < _SQLITE_LEAST:
            raise Unsupported(
                f"this Python has SQLite {sqlite3.sqlite_version}, and the queue needs 3.35 or newer (2021):"
                " use a newer Python, or PostgreSQL"
            )
        try:
            if self._makes_folder:
                Path(self.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=self.io_timeout, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise EngineUnavailable(
                f"the queue's database {self.path} cannot be opened ({error}): its folder must exist, and"
                " this user must be allowed to write there"
            ) from error
        try:
            if connection.execute("PRAGMA application_id").fetchone()[0] == LOCKS_DATABASE:
                raise InvalidArgument(
                    f"{self.path} is a database of locks, and holds nothing else: give the queue a"
                    " file of its own, or the file of your data"
                )
            with contextlib.suppress(sqlite3.OperationalError):  # busy: the next connection does it
                connection.execute("PRAGMA journal_mode = WAL")
            is_full = self._synchronous == "full"
            connection.execute("PRAGMA synchronous = FULL" if is_full else "PRAGMA synchronous = NORMAL")
        except sqlite3.Error as error:
            connection.close()
            raise EngineUnavailable(
                f"the queue's database {self.path} cannot be used ({error}): is it a SQLite file?"
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def is_usable(self, connection: Any) -> bool:
        return True

    def is_locked(self, error: BaseException | None) -> bool:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

    def failure(self, error: Exception, connection: Any) -> Exception | None:
        if not isinstance(error, sqlite3.Error):
            return None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if self.is_locked(error):
            return EngineUnavailable(
                f"the queue's database {self.path} was locked for {self.io_timeout:g} seconds, and nothing"
                " was changed: keep transactions short, and do not use the queue without connection= while a"
                " transaction of yours is open"
            )
        if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError) and code in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_READONLY,
        ):
            return EngineUnavailable(f"the queue's database {self.path} cannot be used: {error}")
        return None


def import_psycopg() -> Any:
    try:
        import psycopg  # only where its URL is used
    except ImportError:
        raise Unsupported(
            "postgresql:// needs psycopg 3: install holdfast with its extra 'postgres'"
        ) from None
    return psycopg


def _path_in(url: URL) -> str:
    url.only({"synchronous"})
    if url.username is not None or url.password is not None or url.hosts:
        raise InvalidArgument(
            "sqlite:// has no host: write three slashes and a relative path (sqlite:///queue.db), or four and"
            " an absolute one (sqlite:////var/lib/app/queue.db)"
        )
    path = url.path[1:]
    if not path or path.endswith("/") or "\0" in path or path == ":memory:":
        raise InvalidArgument("sqlite:/// needs the path of a file: write for example sqlite:///queue.db")
    return os.path.abspath(path)
