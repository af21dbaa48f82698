"""Connections of a store's own, blocking: opened when needed, one for each thread that uses it at once.

What differs between the databases is here; what is sent over the connections is in ``plans``.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from ..errors import EngineUnavailable, HoldfastError
from ..fencing.connections import FenceTable, table_of
from ..fencing.dialects import TableState, driver_error, sqlstate
from ..fencing.plans import Plan, run
from ..runtime.forks import register_after_fork
from ..runtime.readable import wait_readable
from ..runtime.self_pipe import SelfPipe
from .address import PostgresqlAddress, SqliteAddress
from .plans import Now, Pause, StoreDialect, Woken
from .postgresql import PostgresqlStore
from .sqlite import SqliteStore

__all__ = [
    "ConnectionPool",
    "FeedConnection",
    "Opener",
    "PostgresqlOpener",
    "SqliteOpener",
    "opener_of",
    "psycopg_module",
    "raise_unavailable",
    "unavailable",
]

Done = TypeVar("Done")

_IDLE_MAX: Final = 8
_READ_COMMITTED: Final = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""Each statement has to see what was committed before it, whatever the database's default is."""


class Opener(Protocol):
    """Opens connections to one database."""

    @property
    def dialect(self) -> StoreDialect: ...
    def open(self) -> Any: ...
    def is_usable(self, connection: Any) -> bool:
        """Whether an idle connection can be used again, as far as it is known without asking."""
        ...

    def listen(self, connection: Any) -> None: ...


class SqliteOpener:
    def __init__(self, address: SqliteAddress, io_timeout: float) -> None:
        self.dialect = SqliteStore()
        self._address = address
        self._io_timeout = io_timeout

    def open(self) -> sqlite3.Connection:
        path = self._address.path
        try:
            if self._address.makes_folder:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            connection = sqlite3.connect(
                path, timeout=self._io_timeout, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise _not_opened(
                f"the file of the events {path} cannot be opened ({error}): its folder must exist, and this"
                " user must be allowed to write there"
            ) from error
        try:
            if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
                connection.execute(
                    "PRAGMA journal_mode = WAL"
                )  # readers and the writer do not wait for each other
        except BaseException:
            connection.close()
            raise
        return connection

    def is_usable(self, connection: sqlite3.Connection) -> bool:
        return not connection.in_transaction

    def listen(self, connection: sqlite3.Connection) -> None:
        """Nothing notifies."""


class PostgresqlOpener:
    def __init__(self, address: PostgresqlAddress, io_timeout: float) -> None:
        self.dialect = PostgresqlStore(address.schema, address.is_pooled)
        self._address = address
        self._io_timeout = io_timeout

    def open(self) -> Any:
        psycopg = psycopg_module()
        try:
            connection = psycopg.connect(self._address.conninfo, **self.settings())
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        try:
            connection.execute(_READ_COMMITTED)
        except BaseException:
            connection.close()
            raise
        return connection

    async def open_async(self) -> Any:
        psycopg = psycopg_module()
        try:
            connection = await psycopg.AsyncConnection.connect(self._address.conninfo, **self.settings())
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        try:
            await connection.execute(_READ_COMMITTED)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _unreachable(self, error: Exception) -> EngineUnavailable:
        why = str(error).strip().partition("\n")[0]
        return _not_opened(f"the database of the events {self._address.shown} cannot be reached: {why}")

    def settings(self) -> dict[str, Any]:
        return {
            "connect_timeout": max(2, int(self._io_timeout)),  # libpq's least
            "tcp_user_timeout": int(self._io_timeout * 1000),
            "keepalives_idle": 10,
            "keepalives_interval": 3,
            "keepalives_count": 3,
            **self._address.settings,
            "autocommit": True,
            # Prepared statements belong to a session.
            "prepare_threshold": None if self._address.is_pooled else 5,
        }

    def is_usable(self, connection: Any) -> bool:
        native = connection.pgconn
        if native.status or native.transaction_status:  # broken, closed, or in a transaction
            return False
        # A server that ended the connection has said so: an idle one has nothing else to read.
        return not wait_readable([native.socket], 0.0)

    def listen(self, connection: Any) -> None:
        if not self._address.is_pooled:
            connection.add_notify_handler(_ignore)
            connection.execute(self.dialect.listen())

    async def listen_async(self, connection: Any) -> None:
        if not self._address.is_pooled:
            connection.add_notify_handler(_ignore)
            await connection.execute(self.dialect.listen())


def _ignore(notification: object) -> None:
    """The arrival of a notification has woken the subscription. Without a handler psycopg would keep it."""


def opener_of(
    address: SqliteAddress | PostgresqlAddress, io_timeout: float
) -> SqliteOpener | PostgresqlOpener:
    if isinstance(address, SqliteAddress):
        return SqliteOpener(address, io_timeout)
    return PostgresqlOpener(address, io_timeout)


def psycopg_module() -> Any:
    try:
        return import_module("psycopg")
    except ModuleNotFoundError:
        raise EngineUnavailable(
            "postgresql:// needs the package 'psycopg': pip install 'holdfast[postgres]'"
        ) from None


class ConnectionPool:
    """The store's idle connections."""

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self._idle: list[FenceTable] = []
        self._mutex = threading.Lock()
        self._is_closed = False
        register_after_fork(self)

    def run(self, make_plan: Callable[[TableState], Plan[Done]]) -> Done:
        table = self._take()
        try:
            done = run(make_plan(table), table.carry_out)
        except BaseException as error:
            if isinstance(error, HoldfastError) and self.opener.is_usable(table.connection):
                self._give_back(table)
                raise
            _discard(table.connection)
            raise_unavailable(error)
        self._give_back(table)
        return done

    def close(self) -> None:
        with self._mutex:
            idle, self._idle, self._is_closed = self._idle, [], True
        for table in idle:
            _discard(table.connection)

    def forked(self) -> None:
        """The parent's connections are left alone: neither used nor closed here."""
        _abandoned.extend(self._idle)
        self._idle = []
        self._mutex = threading.Lock()

    def check_open(self) -> None:
        if self._is_closed:
            raise EngineUnavailable("this store is closed: connect again")

    def _take(self) -> FenceTable:
        self.check_open()
        while True:
            with self._mutex:
                table = self._idle.pop() if self._idle else None
            if table is None:
                return table_of(open_with(self.opener))
            if self.opener.is_usable(table.connection):
                return table
            _discard(table.connection)

    def _give_back(self, table: FenceTable) -> None:
        with self._mutex:
            if not self._is_closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(table)
                return
        _discard(table.connection)


_abandoned: list[Any] = []


def open_with(opener: Opener) -> Any:
    try:
        return opener.open()
    except Exception as error:
        raise_unavailable(error)
        raise


def _discard(connection: Any) -> None:
    with contextlib.suppress(Exception):
        connection.close()


def _not_opened(message: str) -> EngineUnavailable:
    found = EngineUnavailable(message)
    found.nothing_was_sent = True
    return found


def unavailable(error: BaseException) -> EngineUnavailable | None:
    """What a driver's error is to the user of a store, where it is no answer of the database's."""
    inner = driver_error(error)
    if isinstance(inner, sqlite3.Error):
        return EngineUnavailable(f"the file of the events cannot be used: {inner}")
    package = type(inner).__module__.partition(".")[0]
    code = sqlstate(inner)
    if package == "psycopg" and (not code or code[:2] in ("08", "57", "53")):
        found = EngineUnavailable(
            f"the connection to PostgreSQL failed ({type(inner).__name__}{f' {code}' if code else ''})."
            " Whether what was being written is there is not known: read the stream before writing it again"
        )
        found.nothing_was_sent = False
        return found
    if code == "42501":
        return EngineUnavailable(
            "this role may not use the schema of the events: its owner grants USAGE on the schema, EXECUTE on"
            " its functions, and SELECT, INSERT, UPDATE and DELETE on its tables"
        )
    return None


def raise_unavailable(error: BaseException) -> None:
    """Raise the error as what it is to the user."""
    if isinstance(error, HoldfastError):
        raise error
    found = unavailable(error)
    if found is None:
        raise error
    raise found from error


class FeedConnection:
    """The connection of one subscription: carries its plan out, opens another where one broke."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._pipe = SelfPipe()
        self._table: FenceTable | None = None
        self.is_closed = False
        register_after_fork(self)

    def forked(self) -> None:
        """In the child: the parent's connection is left alone, and another one is opened when needed."""
        if self._table is not None:
            _abandoned.append(self._table)
        self._table = None
        if not self.is_closed:
            self._pipe.close()
            self._pipe = SelfPipe()

    def run(self, plan: Plan[Done]) -> Done:
        try:
            return run(plan, self._carry_out)
        except BaseException:
            self._drop()  # it may be in the middle of anything
            raise

    def wake(self) -> None:
        """From any thread: what waits ends."""
        self.is_closed = True
        self._pipe.wake()

    def close(self) -> None:
        self.is_closed = True
        self._drop()
        self._pipe.close()

    def _carry_out(self, request: Any) -> Any:
        if isinstance(request, Now):
            return time.monotonic()
        if isinstance(request, Pause):
            return self._pause(request.seconds)
        try:
            return self._opened().carry_out(request)
        except Exception as error:  # noqa: BLE001 - raised again, as what it is to the user
            self._drop()
            raise_unavailable(error)

    def _opened(self) -> FenceTable:
        if self._table is None:
            connection = self._opener.open()
            try:
                self._opener.listen(connection)
            except BaseException:
                _discard(connection)
                raise
            self._table = table_of(connection)
        return self._table

    def _pause(self, seconds: float) -> Woken:
        if self.is_closed:
            return Woken.CLOSED
        readable = [self._pipe.fileno()]
        if self._table is not None and hasattr(self._table.connection, "fileno"):
            readable.append(self._table.connection.fileno())
        found = wait_readable(readable, seconds)
        if self.is_closed:
            return Woken.CLOSED
        return Woken.NOTIFIED if found else Woken.TIMED_OUT

    def _drop(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            _discard(table.connection)
