"""The guard for SQL databases, awaited: the functions of ``holdfast.fencing``, the same names.

For psycopg's ``AsyncConnection`` and ``AsyncCursor``, SQLAlchemy's ``AsyncConnection`` and ``AsyncSession``,
and aiosqlite. What a function does and raises is described at the function of the same name in
``holdfast.fencing``.

    from holdfast.fencing import aio as fencing

    async with locks.lock("invoices") as lease, fencing.transaction(db, lease) as cursor:
        await cursor.execute("UPDATE invoices SET total = total + 10")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..model import Fence
from . import row_plans, sql_plans
from .arguments import Presentable, checked_resource, checked_source, mark_of, name_of, refuse_read_lease
from .connections import Executes
from .connections_asyncio import runner_of
from .dialects import TableName
from .row_plans import TOKEN_COLUMN, RowChange
from .sql_plans import StoredMark

if TYPE_CHECKING:
    from .etcd import AsyncFencedEtcd as FencedEtcd
    from .object_store import AsyncFencedObject as FencedObject
    from .redis import AsyncFencedRedis as FencedRedis

__all__ = [
    "FencedEtcd",
    "FencedObject",
    "FencedRedis",
    "advance",
    "enforce",
    "fenced_update",
    "fenced_upsert",
    "install",
    "marks",
    "move",
    "newest",
    "protect_table",
    "prune",
    "transaction",
    "unprotect_table",
]

_IMPORTED_WHEN_USED: Final = {"FencedEtcd": ".etcd", "FencedObject": ".object_store", "FencedRedis": ".redis"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The awaited guards of other storages, under the names that the blocking ones have."""
        if name not in _IMPORTED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_IMPORTED_WHEN_USED[name], __package__)
        found = globals()[name] = getattr(module, f"Async{name}")
        return found


async def install(connection: Executes) -> None:
    """Create the guard's table in this database, unless it is there."""
    await runner_of(connection).run(sql_plans.install)


async def enforce(cursor: Executes, resource: str, lease_or_token: Presentable) -> None:
    """Refuse a stale holder. The first statement of the transaction that writes."""
    resource = checked_resource(resource)
    refuse_read_lease(lease_or_token)
    mark = mark_of(lease_or_token)
    await runner_of(cursor).run(lambda table: sql_plans.enforce(table, resource, mark))


@asynccontextmanager
async def transaction(
    connection: Executes, lease_or_token: Presentable, resource: str | None = None
) -> AsyncIterator[Any]:
    """A whole guarded transaction: begins, shuts out older holders, and commits what is written within.

    It gives the connection (or session) itself.
    """
    resource = checked_resource(name_of(lease_or_token) if resource is None else resource)
    refuse_read_lease(lease_or_token)
    mark = mark_of(lease_or_token)
    runner = runner_of(connection)
    presented = await runner.run(lambda table: sql_plans.begin_guarded(table, resource, mark))
    try:
        yield runner.users_cursor()
        await runner.run(lambda table: sql_plans.commit_guarded(table, resource, mark, presented))
    except BaseException:
        await runner.run(sql_plans.roll_back_guarded)
        raise


async def advance(cursor: Executes, resource: str, lease_or_token: Presentable) -> None:
    """Tell the guard of a new grant **before the first read**, so that older holders are out from here on."""
    resource = checked_resource(resource)
    mark = mark_of(lease_or_token)
    await runner_of(cursor).run(lambda table: sql_plans.advance(table, resource, mark))


async def newest(cursor: Executes, resource: str) -> Fence | None:
    """The newest grant the guard has seen, None if none. For people and tests: reading guards nothing."""
    resource = checked_resource(resource)
    mark = await runner_of(cursor).run(lambda table: sql_plans.newest(table, resource))
    return None if mark is None else mark.fence


async def marks(cursor: Executes) -> list[StoredMark]:
    """All fences of this database, by resource. For people."""
    return await runner_of(cursor).run(sql_plans.marks)


async def move(cursor: Executes, resource: str, source: str) -> None:
    """Hand the resource to another source of tokens, deliberately: ``source`` is ``lease.fence.source``."""
    resource, source = checked_resource(resource), checked_source(source)
    await runner_of(cursor).run(lambda table: sql_plans.move(table, resource, source))


async def prune(cursor: Executes, older_than: float) -> int:
    """Remove the fences that nothing was presented to for ``older_than`` seconds; return how many."""
    return await runner_of(cursor).run(lambda table: sql_plans.prune(table, older_than))


async def protect_table(connection: Executes, table: str | Sequence[str], resource: str) -> None:
    """Have the database itself refuse writers that have not presented a token of ``resource``."""
    name, resource = TableName.of(table), checked_resource(resource)
    await runner_of(connection).run(lambda binding: sql_plans.protect(binding, name, resource))


async def unprotect_table(connection: Executes, table: str | Sequence[str]) -> None:
    """Remove what ``protect_table`` made. Without that it changes nothing."""
    name = TableName.of(table)
    await runner_of(connection).run(lambda binding: sql_plans.unprotect(binding, name))


async def fenced_update(
    cursor: Executes,
    table: str | Sequence[str],
    key: Mapping[str, object],
    lease_or_token: Presentable,
    changes: Mapping[str, object],
    *,
    token_column: str = TOKEN_COLUMN,
) -> bool:
    """Update one row unless it was written under a newer token; return whether there is such a row."""
    refuse_read_lease(lease_or_token)
    row = RowChange.of(table, key, changes, mark_of(lease_or_token).token, token_column)
    return await runner_of(cursor).run(lambda binding: row_plans.update(binding, row))


async def fenced_upsert(
    cursor: Executes,
    table: str | Sequence[str],
    key: Mapping[str, object],
    lease_or_token: Presentable,
    changes: Mapping[str, object],
    *,
    token_column: str = TOKEN_COLUMN,
) -> None:
    """``fenced_update`` that inserts the row where there is none."""
    refuse_read_lease(lease_or_token)
    row = RowChange.of(table, key, changes, mark_of(lease_or_token).token, token_column)
    await runner_of(cursor).run(lambda binding: row_plans.upsert(binding, row))
