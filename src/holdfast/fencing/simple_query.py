"""A short statement of the guard's through psycopg as one message, with the BEGIN before it.

A cursor of psycopg sends the BEGIN that opens a transaction as a message of its own, and waits for the
answer: one round trip more. The simple query protocol takes several statements in one message. It has no
place for values, so numbers are written as digits and texts in hexadecimal, which the server decodes: what
is formatted into the statement has no character that a statement could be made of, whatever the settings and
the encoding of the connection are. Only for ``Statement.is_short``.

Public names of psycopg are used: the connection's ``lock``, ``pgconn`` and ``wait``, and a generator that
``wait`` is for. Where a connection makes cursors of another class (to log, to trace), the statement goes
through such a cursor, which sees it.
"""

from __future__ import annotations

import functools
import re
import sys
from binascii import hexlify
from collections.abc import Generator
from typing import Any, Final

from .plans import Result, Statement

__all__ = ["IDLE", "begin_of", "fits", "is_in_pipeline", "query"]

IDLE: Final = 0
"""The status of a connection without a transaction."""
_VALUE: Final = re.compile(r":([a-z_]+)\b")
_CURSORS: Final = ("Cursor", "AsyncCursor")


def fits(connection: Any, statement: Statement) -> bool:
    """Whether this statement may go this way on this connection."""
    return (
        statement.is_short
        and connection.cursor_factory in _usual_cursors(sys.modules["psycopg"])
        and not is_in_pipeline(connection.pgconn)
    )


def is_in_pipeline(pgconn: Any) -> bool:
    """Whether answers are read later than statements are sent."""
    try:
        return bool(pgconn.pipeline_status)
    except sys.modules["psycopg"].NotSupportedError:
        return False  # libpq before 14 has no pipelines


@functools.cache
def _usual_cursors(module: Any) -> tuple[Any, ...]:
    return tuple(getattr(module, name) for name in _CURSORS)


def begin_of(connection: Any) -> bytes:
    """What psycopg sends to open a transaction on this connection."""
    if connection.isolation_level is None and connection.read_only is None and connection.deferrable is None:
        return b"BEGIN"
    parts = ["BEGIN"]
    if connection.isolation_level is not None:
        parts.append("ISOLATION LEVEL " + connection.isolation_level.name.replace("_", " "))
    if connection.read_only is not None:
        parts.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        parts.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(parts).encode()


def query(connection: Any, statement: Statement, begin: bytes | None) -> Generator[Any, Any, Result]:
    """What ``connection.wait`` carries out, while its lock is held."""
    pgconn = connection.pgconn
    if pgconn.status:
        raise sys.modules["psycopg"].OperationalError("the connection is closed")
    encoding = connection.info.encoding
    text = _written(statement)
    pgconn.send_query(text if begin is None else begin + b"; " + text)
    last = (yield from sys.modules["psycopg.generators"].execute(pgconn))[-1]
    if last.status != _TUPLES_OK:
        raise sys.modules["psycopg.errors"].error_from_result(last, encoding=encoding)
    rows = [
        tuple(_text(last.get_value(row, column), encoding) for column in range(last.nfields))
        for row in range(last.ntuples)
    ]
    return Result(last.ntuples, rows, tuple(last.fname(column).decode() for column in range(last.nfields)))


_TUPLES_OK: Final = 2


def _text(value: bytes | None, encoding: str) -> str | None:
    return None if value is None else value.decode(encoding)


def _written(statement: Statement) -> bytes:
    template, names = _template(statement.text)
    return template % tuple([_literal(statement.values[name]) for name in names])


def _literal(value: Any) -> bytes:
    if value == "":
        return b"''"
    if isinstance(value, str):
        return b"pg_catalog.convert_from(pg_catalog.decode('%s', 'hex'), 'UTF8')" % hexlify(value.encode())
    return b"%d" % value


@functools.lru_cache(64)
def _template(text: str) -> tuple[bytes, tuple[str, ...]]:
    """With a place for each value, and the values' names."""
    return _VALUE.sub("%s", text.replace("%", "%%")).encode(), tuple(_VALUE.findall(text))
