"""Connections that are awaited: psycopg's, aiosqlite's, and SQLAlchemy's.

The plans are those of the blocking ones. SQLAlchemy runs blocking code over its asynchronous connections
itself (``run_sync``), so the blocking binding serves there as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, Protocol

from ..errors import InvalidArgument
from .connections import (
    Executes,
    FenceTable,
    PsycopgState,
    SqliteState,
    columns_of,
    family_of,
    is_asynchronous,
    names_in,
    rows_of,
    table_of,
    written,
)
from .dialects import Control, CreateFunction, TableState
from .plans import Done, Plan, Result, Statement, run, run_async
from .simple_query import begin_of, fits, is_in_pipeline, query

__all__ = ["Runner", "runner_of"]


class Runner(Protocol):
    """Carries plans out over one connection."""

    async def run(self, make_plan: Callable[[TableState], Plan[Done]]) -> Done: ...

    def users_cursor(self) -> Any: ...


class _AsyncTable(TableState, Protocol):
    connection: Any

    async def execute(self, statement: Statement) -> Result: ...
    async def begin(self) -> None: ...
    async def begin_with_next(self) -> None: ...
    async def create_function(self, request: CreateFunction) -> None: ...


_AT_ONCE: Final = nullcontext()


class _PsycopgTable(PsycopgState):
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: Statement) -> Result:
        connection = self.connection
        if fits(connection, statement):
            async with connection.lock:
                begin = self.begin_in_one_message()
                result: Result = await connection.wait(query(connection, statement, begin))
                return result
        if self.begins_with_next:
            await self.begin()
        # Not closed, as in PsycopgTable.
        cursor = connection.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)
        async with connection.pipeline() if is_in_pipeline(connection.pgconn) else _AT_ONCE:
            await cursor.execute(*written(statement))
        names = names_in(cursor)
        return Result(cursor.rowcount, await cursor.fetchall() if names else (), names)

    async def begin(self) -> None:
        self.begins_with_next = False
        if self.connection.autocommit:
            await self.execute(Statement(begin_of(self.connection).decode()))

    async def begin_with_next(self) -> None:
        self.begins_with_next = bool(self.connection.autocommit)

    async def create_function(self, request: CreateFunction) -> None:
        raise NotImplementedError


class _Fetched:
    """A cursor of aiosqlite whose rows have been awaited."""

    def __init__(self, description: Any, rows: Any) -> None:
        self.description = description
        self._rows = rows

    def fetchall(self) -> Any:
        return self._rows


class _AiosqliteTable(SqliteState):
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: Statement) -> Result:
        async with self.connection.execute(statement.text, dict(statement.values)) as cursor:
            rows = rows_of(_Fetched(cursor.description, await cursor.fetchall()))
            return Result(cursor.rowcount, rows, columns_of(cursor))

    async def begin(self) -> None:
        await self.execute(Statement("BEGIN IMMEDIATE"))

    begin_with_next = begin

    async def create_function(self, request: CreateFunction) -> None:
        await self.connection.create_function(request.name, request.parameters, request.function)


class _AwaitingRunner:
    def __init__(self, table: _AsyncTable) -> None:
        self._table = table

    async def run(self, make_plan: Callable[[TableState], Plan[Done]]) -> Done:
        return await run_async(make_plan(self._table), self._carry_out)

    async def _carry_out(self, request: Any) -> Result | None:
        if isinstance(request, Statement):
            return await self._table.execute(request)
        if isinstance(request, CreateFunction):
            await self._table.create_function(request)
        elif request is Control.BEGIN:
            await self._table.begin()
        elif request is Control.BEGIN_WITH_NEXT:
            await self._table.begin_with_next()
        elif request is Control.COMMIT:
            await self._table.connection.commit()
        elif request is Control.ROLL_BACK:
            await self._table.connection.rollback()
        return None

    def users_cursor(self) -> Any:
        return self._table.connection


class _SqlalchemyRunner:
    """One binding for as long as the runner lives: a transaction begun through it is committed through it."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._table: FenceTable | None = None

    async def run(self, make_plan: Callable[[TableState], Plan[Done]]) -> Done:
        def carry_out(sync: Any) -> Done:
            if self._table is None:
                self._table = table_of(sync)
            return run(make_plan(self._table), self._table.carry_out)

        done: Done = await self._target.run_sync(carry_out)
        return done

    def users_cursor(self) -> Any:
        return self._target


def runner_of(target: Executes) -> Runner:
    """The binding of a connection, cursor or session that is awaited."""
    if not is_asynchronous(target):
        table_of(target)  # what is no connection at all is refused by its own words
        raise InvalidArgument(
            f"{type(target).__module__}.{type(target).__qualname__} blocks: use holdfast.fencing, which has"
            " the same functions, not awaited (and so do holdfast.sql and holdfast.optimistic)"
        )
    family = family_of(target)
    if family == "sqlalchemy":
        registry: Any = getattr(target, "registry", None)
        return _SqlalchemyRunner(registry() if callable(registry) else target)
    cursor: Any = target
    if family == "psycopg":
        return _AwaitingRunner(_PsycopgTable(target if hasattr(target, "cursor") else cursor.connection))
    return _AwaitingRunner(_AiosqliteTable(target if hasattr(target, "cursor") else cursor._conn))
