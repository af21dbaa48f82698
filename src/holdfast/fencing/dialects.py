"""What every dialect of SQL says about ``holdfast_fence``, and what the dialects have in common. No I/O.

A dialect is a file of texts: ``sqlite``, ``postgresql``, ``mariadb``. Texts name their values ``:like_this``;
what a driver wants instead is the business of ``connections``. Every value is bound. The one exception are
the statements that define triggers, where databases bind nothing: names are quoted there by ``TableName``,
and a resource is written as hexadecimal digits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import InvalidArgument
from .plans import Dialect, Plan, Result, Statement
from .rule import Mark

__all__ = [
    "CommonDialect",
    "Control",
    "CreateFunction",
    "SqlDialect",
    "TableName",
    "TableState",
    "decode_peers",
    "driver_error",
    "encode_peers",
    "error_number",
    "hexadecimal",
    "sqlstate",
]


class Control(enum.Enum):
    """What a plan asks of a connection beside statements."""

    BEGIN = "begin"
    BEGIN_WITH_NEXT = "begin with what is asked next"
    """Begin; the next request is a statement, and the two may be one message."""
    COMMIT = "commit"
    ROLL_BACK = "roll back"
    FLUSH = "flush"
    """Send what the connection's owner has not sent yet (a session of an ORM)."""


@dataclass(frozen=True, slots=True)
class CreateFunction:
    """Define a function of SQL on this connection (SQLite)."""

    name: str
    parameters: int
    function: Callable[..., Any]


class TableState(Protocol):
    """``holdfast_fence`` through one connection of the user's, as far as it is known without I/O."""

    @property
    def dialect(self) -> SqlDialect: ...
    def in_transaction(self) -> bool: ...
    def commits_at_once(self) -> bool | Statement:
        """Whether a statement run now is a transaction of its own. A statement: its first value says it."""
        ...

    def has_reported(self, setting: str) -> bool:
        """Whether a transaction is open and in order, and the server has reported this setting as on.
        Known without asking; False also where it is not known."""
        ...

    @property
    def is_always_in_a_transaction(self) -> bool: ...


class SqlDialect(Dialect, Protocol):
    """The texts of one kind of SQL."""

    name: str
    definitions_commit: bool
    """Whether CREATE ends the transaction that is open."""
    counts_matches: bool
    """Whether an UPDATE counts the rows that it found, or else the rows that it changed."""
    row_lock: str
    """What makes a SELECT lock its rows and see what is newest; empty where the writer is alone anyway."""
    how_to_begin: str
    ask_whether_it_commits_at_once: Statement | None
    """For drivers that do not know. After a mark was presented; None: there is no telling."""

    def install(self) -> Plan[None]: ...
    def after_enforce(self, resource: str, result: Result) -> Plan[None]:
        """What is to be refused or done once a mark has passed for writing; mostly nothing."""
        ...

    def marks(self) -> Statement:
        """All of them: the columns of ``select``, the resource and the time of the last change as text."""
        ...

    def move(self, resource: str, source: str) -> Statement: ...
    def prune(self, older_than_seconds: float) -> Statement: ...
    def set_seal(self) -> Statement | None: ...

    reported_seal: str | None
    """A setting that is on from ``Purpose.TRANSACTION`` to the end of the transaction, and whose changes the
    server reports to its client. None: there is none."""

    def check_seal(self, presented: Result) -> Statement:
        """Fails, or returns a false value, in another transaction than that of ``set_seal``."""
        ...

    def end_of_transaction(self) -> Plan[None]: ...
    def protect(self, table: TableName, resource: str) -> Plan[None]: ...
    def unprotect(self, table: TableName) -> Plan[None]: ...
    def quote(self, identifier: str) -> str: ...
    def upsert_row(self, table: str, key: Sequence[str], changes: Sequence[str], token: str) -> str | None:
        """One statement that inserts a row, or changes it if its token allows. None: not supported."""
        ...

    def is_not_installed(self, error: BaseException) -> bool: ...
    def is_seal_missing(self, error: BaseException) -> bool: ...
    def is_lost_race(self, error: BaseException) -> bool:
        """Whether another transaction won the race: a transaction that is run again sees its outcome."""
        ...

    def is_duplicate(self, error: BaseException) -> bool: ...
    def explain(self, error: BaseException) -> str | None:
        """What to add to an error of the driver's, which stays the user's to handle."""
        ...


class CommonDialect:
    """What a dialect does unless it says otherwise."""

    quotation_mark = '"'

    reported_seal: str | None = None
    ask_whether_it_commits_at_once: Statement | None = None

    def after_enforce(self, resource: str, result: Result) -> Plan[None]:
        return
        yield

    def end_of_transaction(self) -> Plan[None]:
        return
        yield

    def mark_in(self, row: Sequence[Any]) -> Mark:
        token, source, nonce, peers = row[:4]
        return Mark(int(token), as_text(source), as_text(nonce), decode_peers(as_text(peers)))

    def quote(self, identifier: str) -> str:
        mark = self.quotation_mark
        return mark + identifier.replace(mark, mark * 2) + mark

    def upsert_row(self, table: str, key: Sequence[str], changes: Sequence[str], token: str) -> str | None:
        """Columns are quoted; values are ``:k0``, ``:c0``, ``:token``."""
        columns = [*key, *changes, token]
        values = [*(f":k{n}" for n in range(len(key))), *(f":c{n}" for n in range(len(changes))), ":token"]
        sets = ", ".join(f"{column} = excluded.{column}" for column in (*changes, token))
        return (
            f"INSERT INTO {table} AS stored ({', '.join(columns)}) VALUES ({', '.join(values)})"  # noqa: S608 - quoted
            f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}"
            f" WHERE stored.{token} IS NULL OR stored.{token} <= excluded.{token}"
        )


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of the user's, by the very names that the database's catalogue has."""

    table: str
    schema: str | None = None

    @classmethod
    def of(cls, name: str | Sequence[str]) -> TableName:
        """``"invoice"``, ``"shop.invoice"``, or ``("shop", "a name with a . in it")``."""
        parts = name.split(".") if isinstance(name, str) else list(name) if isinstance(name, Sequence) else []
        if not 1 <= len(parts) <= 2 or not all(isinstance(part, str) and part.strip() for part in parts):
            raise InvalidArgument(
                f"table {name!r} is no name of a table: write 'table', 'schema.table', or"
                " ('schema', 'table') where a name contains a dot"
            )
        for part in parts:
            check_identifier("table", part)
        return cls(parts[-1], parts[0] if len(parts) == 2 else None)

    def quoted(self, quote: Callable[[str], str]) -> str:
        return ".".join(quote(part) for part in (self.schema, self.table) if part is not None)

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


def check_identifier(what: str, name: object) -> str:
    """A name that a database could have."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidArgument(f"{what} {name!r} is no name: write text, not empty and without NUL characters")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {name!r} cannot be written as UTF-8 (a lone surrogate)") from None
    if size > 256:
        raise InvalidArgument(f"{what} {name[:40]!r}… is {size} bytes long: no database has such a name")
    return name


def hexadecimal(text: str) -> str:
    """A text as the digits of its UTF-8 bytes: what no quoting can get wrong."""
    return text.encode().hex()


def encode_peers(peers: tuple[int, ...]) -> str:
    """``,5,6,``: a comma on both sides of each, so that looking for ``,5,`` finds no 15 or 56."""
    return f",{','.join(map(str, peers))}," if peers else ""


def decode_peers(text: str) -> tuple[int, ...]:
    return tuple(int(peer) for peer in text.strip(",").split(",") if peer)


def as_text(value: Any) -> str:
    """A column as text, whatever the driver makes of bytes."""
    return value if isinstance(value, str) else bytes(value).decode()


# --- errors of drivers --------------------------------------------------------------------------


def driver_error(error: BaseException) -> BaseException:
    """The driver's own, within what SQLAlchemy (``orig``) or Django (``__cause__``) made of it."""
    inner = getattr(error, "orig", None)
    if isinstance(inner, BaseException):
        return driver_error(inner)
    cause = error.__cause__
    return cause if cause is not None and type(error).__module__.startswith("django.") else error


def sqlstate(error: BaseException) -> str:
    """PostgreSQL's code: psycopg and asyncpg call it ``sqlstate``, psycopg2 ``pgcode``."""
    inner = driver_error(error)
    return getattr(inner, "sqlstate", None) or getattr(inner, "pgcode", None) or ""


def error_number(error: BaseException) -> int:
    """MariaDB's number: mysql-connector has it in ``errno``, the others as the first argument."""
    inner = driver_error(error)
    number = getattr(inner, "errno", None) or (inner.args[0] if inner.args else 0)
    return number if isinstance(number, int) else 0
