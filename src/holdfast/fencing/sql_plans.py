"""The calls of ``fencing.sql`` as plans: what they ask of a connection, in which order. No I/O.

Each is written once; ``sql`` carries it out blocking, ``aio`` awaiting. Beside ``Statement`` they yield
``Control``.

**A serialization failure** reports that another transaction came first, but not which holder's. The guard
finds out if that costs the user nothing: if the guard's statement itself opened the transaction, or the
transaction is ``fencing.transaction``'s own, the guard rolls it back, reads the fence again on the same
connection, and raises ``StaleToken`` if the rule refuses the mark now. A failed transaction that the user had
opened can read nothing, and the guard may not roll it back: the driver's error is raised with a note, and
running the transaction again gives the answer.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import HoldfastError, InvalidArgument, StaleToken
from .dialects import Control, TableName, TableState, as_text
from .plans import Done, Plan, Purpose, Result, Statement, load, present
from .refusal import stale_token
from .rule import Mark, Refuse, decide

__all__ = [
    "MAX_RETENTION_SECONDS",
    "MIN_RETENTION_SECONDS",
    "StoredMark",
    "advance",
    "begin_guarded",
    "commit_guarded",
    "commits_at_once",
    "enforce",
    "install",
    "marks",
    "move",
    "newest",
    "protect",
    "prune",
    "roll_back_guarded",
    "unprotect",
]

MIN_RETENTION_SECONDS = 86_400.0
MAX_RETENTION_SECONDS = 100 * 365.25 * 86_400
"""What the arithmetic of every database is sure to take."""


@dataclass(frozen=True, slots=True)
class StoredMark:
    """One fence, for people."""

    resource: str
    mark: Mark
    updated_at: str
    """When it was presented to last, in UTC."""


def install(table: TableState) -> Plan[None]:
    yield from _explained(table, _definition(table, table.dialect.install()))


def protect(table: TableState, name: TableName, resource: str) -> Plan[None]:
    yield from _explained(table, _definition(table, table.dialect.protect(name, resource)))


def unprotect(table: TableState, name: TableName) -> Plan[None]:
    yield from _explained(table, _definition(table, table.dialect.unprotect(name)))


def _definition(table: TableState, plan: Plan[None]) -> Plan[None]:
    """In the transaction that is open; else in one of its own."""
    if table.in_transaction():
        if table.dialect.definitions_commit:
            raise InvalidArgument(
                f"a transaction is open on this connection, and {table.dialect.name} would commit it with the"
                " definition: commit it or roll it back first"
            )
        yield from plan
        return
    yield Control.BEGIN
    yield from _or_roll_back(table, plan)
    if not table.is_always_in_a_transaction:
        yield Control.COMMIT


def enforce(table: TableState, resource: str, mark: Mark) -> Plan[None]:
    at_once = table.commits_at_once()
    if at_once and (yield from _is_so(at_once)):
        raise InvalidArgument(
            "this connection is in autocommit mode and no transaction is open: the check would guard nothing;"
            f" {table.dialect.how_to_begin} first, then enforce, then write, then COMMIT"
        )
    yield from _presented(table, resource, mark, Purpose.WRITE)
    yield from _refuse_autocommit(table)


def commits_at_once(table: TableState) -> Plan[bool]:
    return (yield from _is_so(table.commits_at_once()))


def _is_so(known: bool | Statement) -> Plan[bool]:
    if isinstance(known, Statement):
        answer: Result = yield known
        return bool(answer.rows[0][0])
    return known


def _refuse_autocommit(table: TableState) -> Plan[None]:
    """Some connections tell only afterwards."""
    at_once = table.commits_at_once()
    if at_once and (yield from _is_so(at_once)):
        raise InvalidArgument(
            "this connection has committed the check at once (it is in autocommit mode), so it guards"
            f" nothing: {table.dialect.how_to_begin} first, then enforce, then write, then COMMIT"
        )


def advance(table: TableState, resource: str, mark: Mark) -> Plan[None]:
    yield from _presented(table, resource, mark, Purpose.ADVANCE)


def newest(table: TableState, resource: str) -> Plan[Mark | None]:
    return (yield from _explained(table, load(table.dialect, resource)))


def marks(table: TableState) -> Plan[list[StoredMark]]:
    result: Result = yield from _explained(table, _one(table.dialect.marks()))
    dialect = table.dialect
    return [StoredMark(as_text(row[4]), dialect.mark_in(row), as_text(row[5])) for row in result.rows]


def move(table: TableState, resource: str, source: str) -> Plan[None]:
    yield from _explained(table, _one(table.dialect.move(resource, source)))


def prune(table: TableState, older_than_seconds: float) -> Plan[int]:
    if not isinstance(older_than_seconds, int | float) or older_than_seconds > MAX_RETENTION_SECONDS:
        raise InvalidArgument(
            f"older_than is {older_than_seconds!r}: write seconds as a number, at most"
            f" {MAX_RETENTION_SECONDS:.0f} (a century)"
        )
    if not older_than_seconds >= MIN_RETENTION_SECONDS:
        raise InvalidArgument(
            f"older_than is {older_than_seconds} seconds, at least a day ({MIN_RETENTION_SECONDS:.0f}) is"
            " needed: a holder that is older than a fence removed finds nothing that refuses it"
        )
    result: Result = yield from _explained(table, _one(table.dialect.prune(older_than_seconds)))
    return result.changed


# --- a transaction of the guard's own -----------------------------------------------------------


def begin_guarded(table: TableState, resource: str, mark: Mark) -> Plan[Result]:
    """Ends with what ``commit_guarded`` wants to have."""
    if table.in_transaction() and not table.is_always_in_a_transaction:
        raise InvalidArgument(
            "a transaction is open on this connection: commit it or roll it back, then begin this one"
        )
    return (yield from _truthful(table, resource, mark, _begin(table, resource, mark)))


def _begin(table: TableState, resource: str, mark: Mark) -> Plan[Result]:
    yield Control.BEGIN_WITH_NEXT
    presented = yield from _present(table, resource, mark, Purpose.TRANSACTION)
    yield from _refuse_autocommit(table)
    seal = table.dialect.set_seal()
    if seal is not None:
        yield seal
    return presented


def commit_guarded(table: TableState, resource: str, mark: Mark, presented: Result) -> Plan[None]:
    yield from _truthful(table, resource, mark, _commit(table, resource, presented))


def _commit(table: TableState, resource: str, presented: Result) -> Plan[None]:
    yield Control.FLUSH
    reported = table.dialect.reported_seal
    is_sealed = reported is not None and table.has_reported(reported)
    if not (is_sealed or (yield from _is_sealed(table, presented))):
        raise HoldfastError(
            f"the guarded transaction on {resource!r} was committed or rolled back within: what was"
            " written after that was not guarded, and is rolled back now. Leave the commit to"
            " fencing.transaction"
        )
    yield from table.dialect.end_of_transaction()
    yield Control.COMMIT


def _is_sealed(table: TableState, presented: Result) -> Plan[bool]:
    """Whether it is still the transaction that the seal was set in."""
    try:
        result: Result = yield table.dialect.check_seal(presented)
    except Exception as error:
        if table.dialect.is_seal_missing(error):
            return False
        raise
    return not result.rows or bool(result.rows[0][0])


def roll_back_guarded(table: TableState) -> Plan[None]:
    with suppress(Exception):  # as in _roll_back
        yield from table.dialect.end_of_transaction()
    yield from _roll_back(table)


# --- what all of them are made of ---------------------------------------------------------------


def _one(statement: Statement) -> Plan[Result]:
    result: Result = yield statement
    return result


# Each plan within a plan takes a microsecond of every guarded write: these two are as few as they can be.


def _presented(table: TableState, resource: str, mark: Mark, purpose: Purpose) -> Plan[Result]:
    plan = _present(table, resource, mark, purpose)
    return (yield from (plan if table.in_transaction() else _truthful(table, resource, mark, plan)))


def _present(table: TableState, resource: str, mark: Mark, purpose: Purpose) -> Plan[Result]:
    try:
        result = yield from present(table.dialect, resource, mark, purpose)
        if purpose is not Purpose.ADVANCE:
            yield from table.dialect.after_enforce(resource, result)
    except Exception as error:
        _explain(table, error)
        raise
    return result


def _or_roll_back(table: TableState, plan: Plan[Done]) -> Plan[Done]:
    """If the plan opened a transaction and failed, end it: it would keep everybody else out."""
    try:
        return (yield from plan)
    except BaseException:
        yield from _roll_back(table)
        raise


def _roll_back(table: TableState) -> Plan[None]:
    """Roll back, and ignore errors of that: then the connection is broken, the server rolls back, and the
    user gets the first error."""
    with suppress(Exception):
        if table.in_transaction():
            yield Control.ROLL_BACK


def _truthful(table: TableState, resource: str, mark: Mark, plan: Plan[Done]) -> Plan[Done]:
    """The plan has a transaction of its own. If it lost a race, find out whether a newer holder won."""
    try:
        return (yield from plan)
    except BaseException as error:
        yield from _roll_back(table)
        if isinstance(error, Exception) and table.dialect.is_lost_race(error):
            refusal = yield from _refusal_now(table, resource, mark)
            if refusal is not None:
                raise refusal from error
        raise


def _refusal_now(table: TableState, resource: str, mark: Mark) -> Plan[StaleToken | None]:
    """Whether the fence, read afresh, refuses the mark."""
    try:
        stored = yield from _or_roll_back(table, load(table.dialect, resource))
    except Exception:  # noqa: BLE001 - the user gets the first error
        return None
    yield from _roll_back(table)
    decision = decide(stored, mark)
    if stored is None or not isinstance(decision, Refuse):
        return None
    return stale_token(resource, stored, mark, decision.why)


def _explained(table: TableState, plan: Generator[Any, Any, Done]) -> Plan[Done]:
    try:
        return (yield from plan)
    except Exception as error:
        _explain(table, error)
        raise


def _explain(table: TableState, error: Exception) -> None:
    if table.dialect.is_not_installed(error):
        raise InvalidArgument(
            "this database has no guard yet: call fencing.install(connection) once, before the first"
            " enforce or advance; nothing was written"
        ) from error
    note = table.dialect.explain(error)
    if note is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
