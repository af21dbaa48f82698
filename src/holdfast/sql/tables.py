"""Tables and rows as users name them: by text, or by a class or table of SQLAlchemy's. No I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import InvalidArgument, Unsupported
from ..fencing.dialects import SqlDialect, TableName
from ..fencing.plans import Result
from ..fencing.row_plans import check_key, key_values, where_key

__all__ = ["Row", "VersionCounter", "as_mapping", "table_name_of", "version_counter_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row by its key: what could be one, every name checked."""

    table: TableName
    key: Mapping[str, object]

    @classmethod
    def of(cls, table: object, key: Mapping[str, object]) -> Row:
        check_key(key)
        return cls(table_name_of(table), dict(key))

    def __str__(self) -> str:
        return f"{self.table} {dict(self.key)!r}"

    def condition(self, dialect: SqlDialect) -> str:
        return where_key(dialect, self.key)

    @property
    def values(self) -> dict[str, object]:
        return key_values(self.key)

    def only(self, result: Result) -> Mapping[str, Any] | None:
        """The one row found, by its columns' names."""
        if len(result.rows) > 1:
            raise InvalidArgument(
                f"the key of {self} names {len(result.rows)} rows, not one: roll back, and give the whole key"
            )
        return as_mapping(result) if result.rows else None


def as_mapping(result: Result) -> dict[str, Any]:
    return dict(zip(result.columns, result.rows[0], strict=True))


# --- SQLAlchemy ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionCounter:
    """The column that counts a row's versions, and what comes after a version."""

    column: str
    next_version: Callable[[Any], Any]


def _next_number(version: Any) -> Any:
    return version + 1


DEFAULT_VERSION_COLUMN: Final = "version"


def table_name_of(table: object) -> TableName:
    """Of a name, a mapped class, or a ``Table`` of SQLAlchemy's."""
    mapper = _mapper_of(table)
    found: Any = table if mapper is None else mapper.local_table
    if _is_from_sqlalchemy(found):
        name, schema = getattr(found, "name", None), getattr(found, "schema", None)
        if not isinstance(name, str):
            raise InvalidArgument(f"{found!r} is no table: pass a Table, a mapped class, or the table's name")
        return TableName.of((name,) if schema is None else (schema, name))
    if not isinstance(found, str | tuple | list):
        raise InvalidArgument(
            f"{found!r} is no name of a table: write 'table', 'schema.table' or ('schema', 'table'), or pass"
            " a mapped class or a Table of SQLAlchemy's"
        )
    return TableName.of(found)


def version_counter_of(table: object, column: str | None) -> VersionCounter:
    """The one the user names; else SQLAlchemy's own of a mapped class; else the column ``version``."""
    mapper = _mapper_of(table)
    counted = getattr(mapper, "version_id_col", None)
    if counted is None or column not in (None, counted.name):
        return VersionCounter(DEFAULT_VERSION_COLUMN if column is None else column, _next_number)
    if counted.table is not mapper.local_table:
        raise Unsupported(
            f"{table!r} keeps its version in table {counted.table.name!r}, which one statement on"
            f" {mapper.local_table.name!r} cannot change: pass the class of that table"
        )
    if not callable(mapper.version_id_generator):
        raise Unsupported(
            f"{table!r} has its versions made by the database (version_id_generator=False), so none can be"
            " computed here: use the session itself, which raises StaleDataError"
        )
    return VersionCounter(counted.name, mapper.version_id_generator)


def _mapper_of(table: object) -> Any:
    """None for what is no mapped class."""
    if isinstance(table, type) and hasattr(table, "__mapper__") and "sqlalchemy" in sys.modules:
        return sys.modules["sqlalchemy"].inspect(table)
    return None


def _is_from_sqlalchemy(found: object) -> bool:
    return any(cls.__module__.startswith("sqlalchemy.") for cls in type(found).__mro__)
