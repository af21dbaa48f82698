"""Fencing by a column of the row itself, as plans: the form that articles describe. No I/O.

The row has a column for the newest token that wrote it; a write goes through if the row's token is not newer,
or there is none. The same grant may write again. It is weaker than a guard of its own: it knows each row's
own past alone, it cannot shut out older holders before the first read, and a token is compared as a number
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import Conflict, HoldfastError, InvalidArgument
from .dialects import (
    SqlDialect,
    TableName,
    TableState,
    check_identifier,
    driver_error,
    error_number,
    sqlstate,
)
from .plans import TRIES, Done, Plan, Result, Statement
from .refusal import stale_row

__all__ = [
    "TOKEN_COLUMN",
    "RowChange",
    "check_changes",
    "check_key",
    "key_values",
    "update",
    "upsert",
    "where_key",
]

TOKEN_COLUMN = "fencing_token"


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row by its key, and what to write into it. Checked: every name could be one, every value is bound."""

    table: TableName
    key: Mapping[str, object]
    changes: Mapping[str, object]
    token: int
    token_column: str

    @classmethod
    def of(
        cls,
        table: str | Sequence[str],
        key: Mapping[str, object],
        changes: Mapping[str, object],
        token: int,
        token_column: str,
    ) -> RowChange:
        check_key(key)
        check_changes(changes)
        check_identifier("token_column", token_column)
        if twice := (key.keys() & changes.keys()) | ({token_column} & (key.keys() | changes.keys())):
            raise InvalidArgument(f"column {min(twice)!r} is given twice: it may be in one place only")
        return cls(TableName.of(table), dict(key), dict(changes), token, token_column)

    def __str__(self) -> str:
        return f"{self.table} {dict(self.key)!r}"

    @property
    def values(self) -> dict[str, object]:
        return {
            **key_values(self.key),
            **{f"c{n}": value for n, value in enumerate(self.changes.values())},
            "token": self.token,
        }


def check_key(key: Mapping[str, object]) -> None:
    """A key that can find a row: one column or several."""
    if not isinstance(key, Mapping) or not key:
        raise InvalidArgument("key must map the columns of the table's key to their values: {'id': 7}")
    for column, value in key.items():
        check_identifier("column", column)
        if value is None:
            raise InvalidArgument(f"key column {column!r} is None: NULL equals nothing, so it finds no row")


def key_values(key: Mapping[str, object]) -> dict[str, object]:
    return {f"k{n}": value for n, value in enumerate(key.values())}


def check_changes(changes: Mapping[str, object]) -> None:
    if not isinstance(changes, Mapping):
        raise InvalidArgument("changes must map columns to their new values: {'total': 110}")
    for column in changes:
        check_identifier("column", column)


def update(table: TableState, row: RowChange) -> Plan[bool]:
    """Whether there was such a row. ``StaleToken`` if it was written under a newer token."""
    return (yield from _explained(row, _updated(table, row)))


def upsert(table: TableState, row: RowChange) -> Plan[None]:
    """Update the row, or insert it. ``StaleToken`` as above."""
    yield from _explained(row, _upserted(table, row))


def _explained(row: RowChange, plan: Plan[Done]) -> Plan[Done]:
    try:
        return (yield from plan)
    except Exception as error:
        said = str(driver_error(error))
        if row.token_column in said and _is_column_missing(error, said):
            error.add_note(
                f"holdfast: a row keeps its token in the column {row.token_column!r}: add it to"
                f" {row.table}, an integer of 64 bits that may be NULL, or name another by token_column="
            )
        raise


def _is_column_missing(error: Exception, said: str) -> bool:
    return (
        sqlstate(error) == "42703"
        or error_number(error) == 1054
        or any(phrase in said for phrase in ("no such column", "has no column named"))
    )


def _updated(table: TableState, row: RowChange) -> Plan[bool]:
    for _ in range(TRIES):
        result: Result = yield _update(table.dialect, row)
        if result.changed > 1:
            raise InvalidArgument(
                f"the key of {row} names {result.changed} rows, not one: roll back, and give the whole key"
            )
        if result.changed == 1:
            return True
        stored: Result = yield _select(table.dialect, row)
        if not stored.rows:
            return False
        _refuse_newer(row, stored)
        if not table.dialect.counts_matches:
            # The row is locked now, so the result is right whether this statement changes it or not.
            yield _update(table.dialect, row)
            return True
    raise _changed_by_others(row)


def _upserted(table: TableState, row: RowChange) -> Plan[None]:
    dialect = table.dialect
    quoted = (row.table.quoted(dialect.quote), [dialect.quote(name) for name in row.key])
    changes = [dialect.quote(name) for name in row.changes]
    text = dialect.upsert_row(*quoted, changes, dialect.quote(row.token_column))
    if text is None:
        yield from _update_or_insert(table, row)
        return
    for _ in range(TRIES):
        result: Result = yield Statement(text, row.values)
        if result.changed == 1:
            return
        stored: Result = yield _select(dialect, row)
        if stored.rows:
            _refuse_newer(row, stored)
    raise _changed_by_others(row)


def _update_or_insert(table: TableState, row: RowChange) -> Plan[None]:
    for _ in range(TRIES):
        if (yield from _updated(table, row)):
            return
        try:
            yield _insert(table.dialect, row)
        except Exception as error:
            if not table.dialect.is_duplicate(error):
                raise
            stored: Result = yield _select(table.dialect, row)
            if not stored.rows:
                raise  # another unique key is in the way
        else:
            return
    raise _changed_by_others(row)


def _update(dialect: SqlDialect, row: RowChange) -> Statement:
    token = dialect.quote(row.token_column)
    sets = [f"{dialect.quote(name)} = :c{n}" for n, name in enumerate(row.changes)]
    text = (
        f"UPDATE {row.table.quoted(dialect.quote)} SET {', '.join([*sets, f'{token} = :token'])}"  # noqa: S608 - quoted
        f" WHERE {where_key(dialect, row.key)} AND ({token} IS NULL OR {token} <= :token)"
    )
    return Statement(text, row.values)


def _insert(dialect: SqlDialect, row: RowChange) -> Statement:
    columns = [dialect.quote(name) for name in (*row.key, *row.changes, row.token_column)]
    values = ", ".join(f":{name}" for name in row.values)
    table = row.table.quoted(dialect.quote)
    return Statement(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})", row.values)  # noqa: S608 - quoted


def _select(dialect: SqlDialect, row: RowChange) -> Statement:
    text = (
        f"SELECT {dialect.quote(row.token_column)} FROM {row.table.quoted(dialect.quote)}"  # noqa: S608 - quoted
        f" WHERE {where_key(dialect, row.key)}{dialect.row_lock}"
    )
    return Statement(text, key_values(row.key))


def where_key(dialect: SqlDialect, key: Mapping[str, object]) -> str:
    """The condition that finds the row; the values are ``:k0``, ``:k1``."""
    return " AND ".join(f"{dialect.quote(name)} = :k{n}" for n, name in enumerate(key))


def _refuse_newer(row: RowChange, stored: Result) -> None:
    newest = stored.rows[0][0]
    if newest is not None and int(newest) > row.token:
        raise stale_row(str(row), int(newest), row.token)


def _changed_by_others(row: RowChange) -> HoldfastError:
    return Conflict(
        f"row {row} was changed by others {TRIES} times in a row, and nothing was written: try again"
    )
