"""Connections and cursors as users have them, recognised by their class: one small binding for each driver.

No driver is imported: a class says by its module which one it comes from. A binding runs statements on a
cursor of its own (the user's may be in the middle of a result, or make rows of its own kind), and knows how
its driver begins and ends transactions. Bindings decide nothing. Those that await are in
``connections_asyncio``.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from ..errors import InvalidArgument
from .dialects import Control, CreateFunction, SqlDialect
from .mariadb import MariadbDialect
from .plans import Result, Statement
from .postgresql import PostgresqlDialect
from .simple_query import IDLE, begin_of, fits, is_in_pipeline, query
from .sqlite import SqliteDialect

__all__ = [
    "Executes",
    "FenceTable",
    "PsycopgState",
    "SqlalchemyTable",
    "SqliteState",
    "columns_of",
    "family_of",
    "is_asynchronous",
    "names_in",
    "pyformat",
    "rows_of",
    "table_of",
    "written",
]

SQLITE: Final = SqliteDialect()
POSTGRESQL: Final = PostgresqlDialect()
MARIADB: Final = MariadbDialect()

DIALECTS: Final[Mapping[str, SqlDialect]] = {
    "sqlite": SQLITE,
    "postgresql": POSTGRESQL,
    "mysql": MARIADB,
    "mariadb": MARIADB,
}
"""By the name that SQLAlchemy and Django have for the database."""

IN_ORDER: Final = 2
"""The status of a transaction of PostgreSQL that is open and not aborted."""

IN_TRANSACTION: Final = 1
AUTOCOMMIT: Final = 2
"""Bits of the status that MariaDB sends with its answers."""


class _HasExecute(Protocol):
    @property
    def execute(self) -> Callable[..., object]: ...


class _HasCursor(Protocol):
    @property
    def cursor(self) -> Callable[..., object]: ...


Executes = _HasExecute | _HasCursor
"""A connection, cursor or session, as far as types can express it without importing the driver."""


class FenceTable:
    """``holdfast_fence`` through one connection of the user's: carries out what plans ask for, blocking."""

    dialect: SqlDialect

    @property
    def is_always_in_a_transaction(self) -> bool:
        return False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def carry_out(self, request: Any) -> Result | None:
        if isinstance(request, Statement):
            return self.execute(request)
        if request is Control.BEGIN:
            self.begin()
        elif request is Control.BEGIN_WITH_NEXT:
            self.begin_with_next()
        elif request is Control.FLUSH:
            self.flush()
        elif request is Control.COMMIT:
            self.commit()
        elif request is Control.ROLL_BACK:
            self.roll_back()
        else:
            self.create_function(request)
        return None

    def execute(self, statement: Statement) -> Result:
        with closing(self.own_cursor()) as cursor:
            if statement.values:
                cursor.execute(self.text_for_driver(statement.text), dict(statement.values))
            else:
                cursor.execute(statement.text)
            return Result(cursor.rowcount, rows_of(cursor), columns_of(cursor))

    def text_for_driver(self, text: str) -> str:
        return pyformat(text)

    def own_cursor(self) -> Any:
        return self.connection.cursor()

    def users_cursor(self) -> Any:
        """What ``fencing.transaction`` gives to its user."""
        return self.connection.cursor()

    def in_transaction(self) -> bool:
        raise NotImplementedError

    def commits_at_once(self) -> bool | Statement:
        raise NotImplementedError

    def has_reported(self, setting: str) -> bool:
        return False

    def begin(self) -> None:
        raise NotImplementedError

    def begin_with_next(self) -> None:
        """Begin, now or with the statement that is executed next."""
        self.begin()

    def commit(self) -> None:
        self.connection.commit()

    def roll_back(self) -> None:
        self.connection.rollback()

    def flush(self) -> None:
        """Most connections keep nothing back."""

    def create_function(self, request: CreateFunction) -> None:
        self.connection.create_function(request.name, request.parameters, request.function)


# --- SQLite -------------------------------------------------------------------------------------


class SqliteState:
    """The state of transactions in sqlite3 and aiosqlite."""

    dialect: SqlDialect = SQLITE
    connection: Any

    def has_reported(self, setting: str) -> bool:
        return False

    def in_transaction(self) -> bool:
        return bool(self.connection.in_transaction)

    def commits_at_once(self) -> bool | Statement:
        if self.connection.in_transaction:
            return False
        # Python 3.12 added `autocommit`; where it is absent or not a bool, isolation_level rules.
        autocommit = getattr(self.connection, "autocommit", None)
        if isinstance(autocommit, bool):
            return autocommit
        return self.connection.isolation_level is None

    @property
    def is_always_in_a_transaction(self) -> bool:
        """Python 3.12: ``sqlite3.connect(autocommit=False)``."""
        return getattr(self.connection, "autocommit", None) is False


class SqliteTable(SqliteState, FenceTable):
    def text_for_driver(self, text: str) -> str:
        return text

    def own_cursor(self) -> Any:
        module: Any = sys.modules["sqlite3"]
        cursor = module.Connection.cursor(self.connection, module.Cursor)
        cursor.row_factory = None
        return cursor

    def begin(self) -> None:
        if not self.is_always_in_a_transaction:
            self.execute(Statement("BEGIN IMMEDIATE"))

    def commit(self) -> None:
        if self.is_always_in_a_transaction:
            self.connection.commit()
        else:
            self.execute(Statement("COMMIT"))

    def roll_back(self) -> None:
        if self.is_always_in_a_transaction:
            self.connection.rollback()
        else:
            self.execute(Statement("ROLLBACK"))


# --- PostgreSQL ---------------------------------------------------------------------------------


class PsycopgState:
    """The state of transactions in psycopg's connections, blocking and awaited."""

    dialect: SqlDialect = POSTGRESQL
    connection: Any
    begins_with_next = False
    """In autocommit mode: the transaction that was asked for begins with the next statement."""

    @property
    def is_always_in_a_transaction(self) -> bool:
        return False

    def in_transaction(self) -> bool:
        return bool(self.connection.pgconn.transaction_status)

    def commits_at_once(self) -> bool | Statement:
        return bool(self.connection.autocommit) and not self.in_transaction()

    def has_reported(self, setting: str) -> bool:
        pgconn = self.connection.pgconn
        # In a pipeline the server may have reported something that has not been read yet.
        return (
            pgconn.transaction_status == IN_ORDER
            and not is_in_pipeline(pgconn)
            and pgconn.parameter_status(setting.encode()) == b"on"
        )

    def begin_in_one_message(self) -> bytes | None:
        """The BEGIN that the next statement is to be sent with, if any."""
        begins, self.begins_with_next = self.begins_with_next, False
        if begins or (self.connection.pgconn.transaction_status == IDLE and not self.connection.autocommit):
            return begin_of(self.connection)
        return None


_AT_ONCE: Final = nullcontext()


class PsycopgTable(PsycopgState, FenceTable):
    def execute(self, statement: Statement) -> Result:
        connection = self.connection
        if fits(connection, statement):
            with connection.lock:
                begin = self.begin_in_one_message()
                result: Result = connection.wait(query(connection, statement, begin))
                return result
        if self.begins_with_next:
            self.begin()
        # Not closed: it has nothing on the server, and rows may be fetched after the transaction.
        cursor = self.own_cursor()
        # Within the user's pipeline one of our own, whose end waits for the answers.
        with connection.pipeline() if is_in_pipeline(connection.pgconn) else _AT_ONCE:
            cursor.execute(*written(statement))
        names = names_in(cursor)
        return Result(cursor.rowcount, cursor.fetchall() if names else (), names)

    def own_cursor(self) -> Any:
        return self.connection.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)

    def begin(self) -> None:
        self.begins_with_next = False
        if self.connection.autocommit:
            self.execute(Statement(begin_of(self.connection).decode()))

    def begin_with_next(self) -> None:
        self.begins_with_next = bool(self.connection.autocommit)


class Psycopg2Table(FenceTable):
    dialect: SqlDialect = POSTGRESQL

    def in_transaction(self) -> bool:
        return int(self.connection.info.transaction_status) != 0

    def commits_at_once(self) -> bool | Statement:
        return bool(self.connection.autocommit) and not self.in_transaction()

    def has_reported(self, setting: str) -> bool:
        info = self.connection.info
        return int(info.transaction_status) == IN_ORDER and bool(info.parameter_status(setting) == "on")

    def own_cursor(self) -> Any:
        return self.connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)

    def begin(self) -> None:
        if self.connection.autocommit:
            self.execute(Statement("BEGIN"))

    # In autocommit mode its own methods do nothing, whatever was begun by a statement.

    def commit(self) -> None:
        if self.connection.autocommit:
            self.execute(Statement("COMMIT"))
        else:
            self.connection.commit()

    def roll_back(self) -> None:
        if self.connection.autocommit:
            self.execute(Statement("ROLLBACK"))
        else:
            self.connection.rollback()


# --- MariaDB and MySQL --------------------------------------------------------------------------


class MariadbTable(FenceTable):
    dialect: SqlDialect = MARIADB

    def begin(self) -> None:
        self.execute(Statement("START TRANSACTION"))


class PymysqlTable(MariadbTable):
    def own_cursor(self) -> Any:
        return self.connection.cursor(sys.modules["pymysql.cursors"].Cursor)

    def in_transaction(self) -> bool:
        return bool(self.connection.server_status & IN_TRANSACTION)

    def commits_at_once(self) -> bool | Statement:
        return bool(self.connection.get_autocommit()) and not self.in_transaction()


class MysqlclientTable(MariadbTable):
    """It does not tell whether a transaction is open, so the server is asked (MariaDB knows; MySQL does
    not)."""

    def own_cursor(self) -> Any:
        return self.connection.cursor(sys.modules["MySQLdb.cursors"].Cursor)

    def in_transaction(self) -> bool:
        try:
            return bool(self.execute(Statement("SELECT @@in_transaction")).rows[0][0])
        except Exception as error:
            if error.args and error.args[0] == 1193:  # there is no such variable
                return False
            raise

    def commits_at_once(self) -> bool | Statement:
        return bool(self.connection.get_autocommit()) and not self.in_transaction()


class MysqlConnectorTable(MariadbTable):
    def text_for_driver(self, text: str) -> str:
        return pyformat(text, doubles_percent=False)

    def own_cursor(self) -> Any:
        return self.connection.cursor(buffered=True)

    def in_transaction(self) -> bool:
        return bool(self.connection.in_transaction)

    def commits_at_once(self) -> bool | Statement:
        if self.in_transaction():
            return False
        # Its `autocommit` asks the server; the implementation in C has the last answer's status.
        status = getattr(self.connection, "_server_status", None)
        return bool(status & AUTOCOMMIT) if isinstance(status, int) else Statement("SELECT @@autocommit")


# --- frameworks ---------------------------------------------------------------------------------


class DjangoTable(FenceTable):
    """Through Django's own cursors, so that it logs, checks and translates errors as for every statement."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        dialect = DIALECTS.get(connection.vendor)
        if dialect is None:
            raise InvalidArgument(_unknown_database(connection.vendor))
        self.dialect = dialect
        self._atomic: Any = None

    def in_transaction(self) -> bool:
        return bool(self.connection.in_atomic_block) or not self.connection.get_autocommit()

    def commits_at_once(self) -> bool | Statement:
        return not self.in_transaction()

    def begin(self) -> None:
        atomic = sys.modules["django.db.transaction"].atomic(using=self.connection.alias, durable=True)
        atomic.__enter__()
        self._atomic = atomic

    def commit(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            self.connection.commit()
        else:
            atomic.__exit__(None, None, None)

    def roll_back(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            self.connection.rollback()
        else:
            reason = InvalidArgument("rolled back")
            atomic.__exit__(type(reason), reason, None)

    def create_function(self, request: CreateFunction) -> None:
        self.connection.connection.create_function(request.name, request.parameters, request.function)


class SqlalchemyTable(FenceTable):
    """A ``Connection`` or ``Session`` of SQLAlchemy 2, on whatever driver it uses."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._is_session = hasattr(connection, "flush")
        name = (connection.get_bind() if self._is_session else connection).dialect.name
        dialect = DIALECTS.get(name)
        if dialect is None:
            raise InvalidArgument(_unknown_database(name))
        self.dialect = dialect
        self._has_executed = False

    def execute(self, statement: Statement) -> Result:
        text = sys.modules["sqlalchemy"].text(_text_for_sqlalchemy(statement.text))
        result = self.connection.execute(text, dict(statement.values))
        self._has_executed = True
        if not result.returns_rows:
            return Result(result.rowcount)
        return Result(result.rowcount, [tuple(row) for row in result], tuple(result.keys()))

    def users_cursor(self) -> Any:
        return self.connection

    def in_transaction(self) -> bool:
        return bool(self.connection.in_transaction())

    def commits_at_once(self) -> bool | Statement:
        if not self.connection.in_transaction():
            if self._is_session:
                return False  # to ask would begin; the answer after the check counts
            if self.connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
                return True
            if self.dialect is SQLITE:
                return False  # as above
        sync = self.connection.connection() if self._is_session else self.connection
        driver = sync.connection.driver_connection
        binding = _STATES.get(family_of(driver) or "")
        if binding is not None:
            at_once: bool | Statement = binding(driver).commits_at_once()
            return at_once
        return self._commits_at_once_through(sync.connection.dbapi_connection, driver)

    def _commits_at_once_through(self, dbapi: Any, driver: Any) -> bool | Statement:
        """The same of a driver that only SQLAlchemy knows (asyncpg, asyncmy, pg8000, …)."""
        if getattr(dbapi, "autocommit", None) is False:
            return False
        if hasattr(driver, "get_autocommit") and hasattr(driver, "get_transaction_status"):
            return bool(driver.get_autocommit()) and not driver.get_transaction_status()
        if not self._has_executed:
            return False  # the answer after the check counts
        return self.dialect.ask_whether_it_commits_at_once or False

    def begin(self) -> None:
        """SQLAlchemy begins with the first statement."""

    def flush(self) -> None:
        if self._is_session:
            self.connection.flush()

    def create_function(self, request: CreateFunction) -> None:
        sync = self.connection.connection() if self._is_session else self.connection
        driver = sync.connection.dbapi_connection
        driver.create_function(request.name, request.parameters, request.function)


class _AiosqliteState(SqliteState):
    def __init__(self, connection: Any) -> None:
        self.connection = connection


# --- which is which -----------------------------------------------------------------------------

_TABLES: Final[Mapping[str, Callable[[Any], FenceTable]]] = {
    "sqlite3": SqliteTable,
    "psycopg": PsycopgTable,
    "psycopg2": Psycopg2Table,
    "pymysql": PymysqlTable,
    "MySQLdb": MysqlclientTable,
    "mysql": MysqlConnectorTable,
    "django": DjangoTable,
    "sqlalchemy": SqlalchemyTable,
}
"""By the package that the class comes from."""

_STATES: Final[Mapping[str, Callable[[Any], Any]]] = {**_TABLES, "aiosqlite": _AiosqliteState}

_DEPENDS_ON_THE_OBJECT: Final = {"django", "sqlalchemy"}
"""For classes whose name does not show whether they are connections."""

_IS_CONNECTION: Final[WeakKeyDictionary[type, Callable[[Any], FenceTable]]] = WeakKeyDictionary()
"""Classes that turned out to be a driver's connections, so that each is looked at once."""

_ASYNCHRONOUS: Final = {
    ("psycopg", "AsyncConnection"),
    ("psycopg", "AsyncCursor"),
    ("sqlalchemy", "AsyncConnection"),
    ("sqlalchemy", "AsyncSession"),
    ("sqlalchemy", "async_scoped_session"),
    ("aiosqlite", "Connection"),
    ("aiosqlite", "Cursor"),
}


def table_of(target: Executes) -> FenceTable:
    """The binding of a connection, a cursor (also a wrapped one), or a session."""
    known = _IS_CONNECTION.get(type(target))
    if known is not None:
        return known(target)
    if is_asynchronous(target):
        raise InvalidArgument(
            f"{_class_of(target)} is awaited: use holdfast.fencing.aio, which has the same functions, awaited"
            " (and so does the `aio` of holdfast.sql and of holdfast.optimistic)"
        )
    for candidate in _candidates(target):
        family = family_of(candidate)
        if family is not None and family in _TABLES:
            connection = _connection_of(candidate, family)
            if connection is not None:
                if connection is target and family not in _DEPENDS_ON_THE_OBJECT:
                    _IS_CONNECTION[type(target)] = _TABLES[family]
                return _TABLES[family](connection)
    raise InvalidArgument(_unknown_connection(target))


def _candidates(target: Any) -> Iterator[Any]:
    """What it is itself, and what it wraps."""
    yield target
    # What SQLAlchemy's pool gives out names the driver's own connection so.
    yield getattr(target, "driver_connection", None)
    yield getattr(target, "connection", None)


def family_of(target: object) -> str | None:
    """The known package that a connection's class belongs to."""
    for cls in type(target).__mro__:
        package = cls.__module__.partition(".")[0]
        if package in _STATES:
            return package
    return None


def is_asynchronous(target: object) -> bool:
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(target).__mro__}
    return not names.isdisjoint(_ASYNCHRONOUS)


def _connection_of(target: Any, family: str) -> Any:
    """The connection that a connection is, or a cursor has; None for anything else of that package."""
    if family == "django":
        # A cursor has its connection in `db`; what django.db calls `connection` stands for that of this
        # thread.
        found = getattr(target, "db", target)
        return found if hasattr(found, "vendor") else None
    if family == "sqlalchemy":
        registry = getattr(target, "registry", None)
        found = registry() if callable(registry) and not hasattr(target, "exec_driver_sql") else target
        return found if hasattr(found, "exec_driver_sql") or hasattr(found, "get_bind") else None
    if hasattr(target, "cursor"):
        return target
    # mysql-connector's cursors keep it to themselves.
    found = getattr(target, "connection", None) or getattr(target, "_connection", None)
    return found if hasattr(found, "cursor") else None


def _class_of(target: object) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"


def _unknown_connection(target: object) -> str:
    return (
        f"{_class_of(target)} is not a connection or cursor this guard knows: pass one of sqlite3, psycopg,"
        " psycopg2, PyMySQL, mysqlclient, mysql-connector or Django, or a Connection or Session of SQLAlchemy"
    )


def _unknown_database(name: object) -> str:
    return f"there is no guard for databases of {name!r}: it is for SQLite, PostgreSQL and MariaDB or MySQL"


# --- texts and rows -----------------------------------------------------------------------------

_VALUE = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|(?<![:\w]):([a-z]\w*)""")
"""What is quoted, whole, or a value's name."""


@functools.lru_cache(256)
def pyformat(text: str, doubles_percent: bool = True) -> str:
    """``:name`` as ``%(name)s``, but not in what is quoted."""

    def written(found: re.Match[str]) -> str:
        return f"%({found[1]})s" if found[1] else found[0]

    return _VALUE.sub(written, text.replace("%", "%%") if doubles_percent else text)


def written(statement: Statement) -> tuple[Any, ...]:
    """What ``execute`` of a cursor of psycopg is given. Without values a percent sign is one."""
    return (pyformat(statement.text), statement.values) if statement.values else (statement.text,)


@functools.lru_cache(256)
def _text_for_sqlalchemy(text: str) -> str:
    """A colon within quotes is no value's."""

    def written(found: re.Match[str]) -> str:
        return found[0] if found[1] else found[0].replace(":", "\\:")

    return _VALUE.sub(written, text.replace("\\", "\\\\"))


def columns_of(cursor: Any) -> tuple[str, ...]:
    """The names of what a cursor returned."""
    return tuple(column[0] for column in cursor.description or ())


def names_in(cursor: Any) -> tuple[str, ...]:
    """The same of a cursor of psycopg, whose description takes longer to make than a statement to send."""
    result = cursor.pgresult
    try:
        return tuple([result.fname(number).decode("ascii") for number in range(result.nfields)])
    except UnicodeDecodeError:
        return columns_of(cursor)


def rows_of(cursor: Any) -> list[Any]:
    """What a cursor returned; rows that are mappings, by their values."""
    if not cursor.description:
        return []
    return [tuple(row.values()) if isinstance(row, Mapping) else row for row in cursor.fetchall()]
