"""Optimistic updates as plans: one statement that checks and writes. No I/O.

The condition stands in the UPDATE itself, so the database checks it when it writes, against what is newest,
however long ago the row was read. What the statement's count leaves open is looked up afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from ..errors import Conflict, InvalidArgument
from ..fencing.dialects import Control, SqlDialect, TableState, check_identifier
from ..fencing.plans import TRIES, Plan, Result, Statement
from ..fencing.row_plans import check_changes
from ..sql.failures import translated
from ..sql.tables import Row, version_counter_of

__all__ = [
    "ConditionalChange",
    "Increment",
    "VersionedChange",
    "Where",
    "compare_and_update",
    "decrement",
    "update_where",
]

Where = Mapping[str, object] | Sequence[tuple[str, str, object]]
"""``{"state": "open"}``, or ``[("state", "=", "open"), ("quantity", ">=", 2)]``. All have to hold."""

_OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Increment:
    """Among the changes: add to what the column has, in the database. Less than zero takes away."""

    by: int | float | Decimal

    def __post_init__(self) -> None:
        if isinstance(self.by, bool) or not isinstance(self.by, int | float | Decimal):
            raise InvalidArgument(f"Increment is by a number; it is {self.by!r}")


# --- by version ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionedChange:
    """What ``compare_and_update`` was asked for, checked."""

    row: Row
    changes: Mapping[str, object]
    version_column: str
    expected: object
    new: object

    @classmethod
    def of(
        cls,
        table: object,
        key: Mapping[str, object],
        expected_version: object,
        changes: Mapping[str, object],
        version_column: str | None,
    ) -> VersionedChange:
        row = Row.of(table, key)
        counter = version_counter_of(table, version_column)
        check_identifier("version_column", counter.column)
        if expected_version is None or isinstance(expected_version, bool):
            raise InvalidArgument(
                f"expected_version is the version that was read with the row; it is {expected_version!r}"
            )
        _check_changes(row, changes, counter.column)
        try:
            new = counter.next_version(expected_version)
        except TypeError:
            raise InvalidArgument(
                f"expected_version {expected_version!r} is no number, so nothing comes after it: pass the"
                f" number that was read from column {counter.column!r}"
            ) from None
        return cls(row, dict(changes), counter.column, expected_version, new)


def compare_and_update(table: TableState, change: VersionedChange) -> Plan[Any]:
    """The new version; None: there is no such row."""
    return (yield from translated(table, f"row {change.row} was not changed", _compare(table, change)))


def _compare(table: TableState, change: VersionedChange) -> Plan[Any]:
    yield Control.FLUSH
    for _ in range(TRIES):
        result: Result = yield _versioned_update(table.dialect, change)
        if _is_changed(change.row, result):
            return change.new
        found = change.row.only((yield _select_version(table.dialect, change)))
        if found is None:
            return None
        version = next(iter(found.values()))
        if version != change.expected:
            raise _conflict(change, version)
    raise _conflict(change, change.expected)


def _versioned_update(dialect: SqlDialect, change: VersionedChange) -> Statement:
    version = dialect.quote(change.version_column)
    sets = ", ".join([*_sets(dialect, change.changes), f"{version} = :new"])
    text = (
        f"UPDATE {change.row.table.quoted(dialect.quote)} SET {sets}"  # noqa: S608 - quoted
        f" WHERE {change.row.condition(dialect)} AND {version} = :expected"
    )
    values = {**change.row.values, **_change_values(change.changes), "new": change.new}
    return Statement(text, {**values, "expected": change.expected})


def _select_version(dialect: SqlDialect, change: VersionedChange) -> Statement:
    text = (
        f"SELECT {dialect.quote(change.version_column)} FROM {change.row.table.quoted(dialect.quote)}"  # noqa: S608 - quoted
        f" WHERE {change.row.condition(dialect)}{_newest(dialect)}"
    )
    return Statement(text, change.row.values)


def _conflict(change: VersionedChange, version: object) -> Conflict:
    error = Conflict(
        f"row {change.row} has version {version!r}, not {change.expected!r}: another writer changed it first,"
        " and nothing was written by this call. Roll back, read the row again, and decide again"
    )
    error.version = version
    return error


# --- by condition -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConditionalChange:
    """What ``update_where`` was asked for, checked."""

    row: Row
    changes: Mapping[str, object]
    where: Sequence[tuple[str, str, object]]

    @classmethod
    def of(
        cls, table: object, key: Mapping[str, object], changes: Mapping[str, object], where: Where
    ) -> ConditionalChange:
        row = Row.of(table, key)
        _check_changes(row, changes)
        if not changes:
            raise InvalidArgument("changes are empty: name a column and its new value, {'state': 'paid'}")
        return cls(row, dict(changes), _checked_where(where))


def decrement(table: object, key: Mapping[str, object], column: str, amount: object) -> ConditionalChange:
    if isinstance(amount, bool) or not isinstance(amount, int | float | Decimal) or not amount > 0:
        raise InvalidArgument(f"amount is a number greater than 0; it is {amount!r}")
    return ConditionalChange.of(table, key, {column: Increment(-amount)}, [(column, ">=", amount)])


def update_where(table: TableState, change: ConditionalChange) -> Plan[bool]:
    return (yield from translated(table, f"row {change.row} was not changed", _update_where(table, change)))


def _update_where(table: TableState, change: ConditionalChange) -> Plan[bool]:
    yield Control.FLUSH
    update = _conditional_update(table.dialect, change)
    result: Result = yield update
    if _is_changed(change.row, result):
        return True
    if table.dialect.counts_matches:
        return False
    # MariaDB may count the rows it changed: one that has these very values already is found, not changed.
    # The look at it keeps it locked, so that the statement does the right thing now.
    found = change.row.only((yield _conditional_select(table.dialect, change)))
    if found is not None:
        yield update
    return found is not None


def _conditional_update(dialect: SqlDialect, change: ConditionalChange) -> Statement:
    text = (
        f"UPDATE {change.row.table.quoted(dialect.quote)} SET {', '.join(_sets(dialect, change.changes))}"  # noqa: S608 - quoted
        f" WHERE {_conditions(dialect, change)}"
    )
    values = {**change.row.values, **_change_values(change.changes)}
    return Statement(text, {**values, **_where_values(change)})


def _conditional_select(dialect: SqlDialect, change: ConditionalChange) -> Statement:
    text = (
        f"SELECT 1 AS found FROM {change.row.table.quoted(dialect.quote)}"  # noqa: S608 - quoted
        f" WHERE {_conditions(dialect, change)}{_newest(dialect)}"
    )
    return Statement(text, {**change.row.values, **_where_values(change)})


def _conditions(dialect: SqlDialect, change: ConditionalChange) -> str:
    written = [change.row.condition(dialect)]
    for number, (column, operator, value) in enumerate(change.where):
        quoted = dialect.quote(column)
        if value is None:
            written.append(f"{quoted} IS {'' if operator == '=' else 'NOT '}NULL")
        else:
            written.append(f"{quoted} {operator} :w{number}")
    return " AND ".join(written)


def _where_values(change: ConditionalChange) -> dict[str, object]:
    return {f"w{n}": value for n, (_, _, value) in enumerate(change.where) if value is not None}


def _checked_where(where: Where) -> Sequence[tuple[str, str, object]]:
    if isinstance(where, Mapping):
        conditions = [(column, "=", value) for column, value in where.items()]
    elif isinstance(where, list | tuple) and all(
        isinstance(each, tuple) and len(each) == 3 for each in where
    ):
        conditions = list(where)
    else:
        raise InvalidArgument(
            f"where is a mapping {{'state': 'open'}}, or a list [('quantity', '>=', 2)]; it is {where!r}"
        )
    for column, operator, value in conditions:
        check_identifier("column", column)
        if operator not in _OPERATORS:
            raise InvalidArgument(f"{operator!r} compares nothing here: use one of {', '.join(_OPERATORS)}")
        if value is None and operator not in ("=", "<>"):
            raise InvalidArgument(f"column {column!r} {operator} None never holds: NULL has no order")
    return conditions


# --- what both are made of ----------------------------------------------------------------------


def _check_changes(row: Row, changes: Mapping[str, object], *others: str) -> None:
    check_changes(changes)
    if twice := changes.keys() & {*row.key, *others}:
        raise InvalidArgument(f"column {min(twice)!r} is given twice: it may be in one place only")


def _sets(dialect: SqlDialect, changes: Mapping[str, object]) -> list[str]:
    written = []
    for number, (name, value) in enumerate(changes.items()):
        column = dialect.quote(name)
        added = f"{column} + " if isinstance(value, Increment) else ""
        written.append(f"{column} = {added}:c{number}")
    return written


def _change_values(changes: Mapping[str, object]) -> dict[str, object]:
    return {
        f"c{n}": value.by if isinstance(value, Increment) else value
        for n, value in enumerate(changes.values())
    }


def _is_changed(row: Row, result: Result) -> bool:
    if result.changed > 1:
        raise InvalidArgument(
            f"the key of {row} names {result.changed} rows, not one: roll back, and give the whole key"
        )
    return result.changed == 1


def _newest(dialect: SqlDialect) -> str:
    """Reading what the UPDATE saw. PostgreSQL's UPDATE fails where its snapshot is older than the row;
    MariaDB's sees what is newest, and so does its locking read."""
    return "" if dialect.counts_matches else dialect.row_lock
