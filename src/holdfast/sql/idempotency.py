"""Operations that run once inside a transaction of the user's, as plans: effect and result commit together.

No I/O.

The row of a key is inserted first. Where another transaction has inserted it and is still open, the database
itself makes this one wait: after a commit the row is there, with its result; after a rollback it is ours. So
nothing has to be taken over, and a crash leaves nothing: there is no state between "done" and "never begun".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ..core import outcomes
from ..core.arguments import check_retention
from ..core.canonical import Key, fingerprint_of, key_text
from ..core.lock_options import Duration
from ..core.outcomes import Outcome
from ..errors import Conflict, HoldfastError, InvalidArgument, NotHeld, Unsupported
from ..fencing.dialects import Control, TableState, driver_error, sqlstate
from ..fencing.plans import Plan, Result, Statement
from ..fencing.sql_plans import commits_at_once
from .failures import translated

__all__ = ["SqlAttempt", "SqlOperation", "begin", "create_table", "finish", "prune", "withdraw"]

TABLE: Final = "holdfast_idempotency_1"
"""The number is the version of its columns: tables of two versions can exist beside each other."""

TRIES: Final = 5
"""How often an expired row is replaced, should others be quicker each time."""


@dataclass(frozen=True, slots=True)
class _Texts:
    """What the databases call things."""

    binary: str
    name: str
    now: str
    before_creation: str = ""


_CREATION_LOCK: Final = 7525358331743

_TEXTS: Final[Mapping[str, _Texts]] = {
    "SQLite": _Texts("blob", "text", "((julianday('now') - 2440587.5) * 86400.0)"),
    "PostgreSQL": _Texts(
        "bytea",
        'text COLLATE "C"',
        "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
        # CREATE TABLE IF NOT EXISTS fails where two of them run at the same time.
        f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})",
    ),
}
"""By the name of the connection's dialect."""


@dataclass(frozen=True, slots=True)
class SqlOperation:
    """One operation as its caller names it, checked."""

    name: str
    fingerprint: bytes
    keep: float

    @classmethod
    def of(cls, key: Key, fingerprint: object, scope: Key, keep: Duration) -> SqlOperation:
        name = f"{key_text(scope, 'scope') if scope != '' else ''}/{key_text(key)}"
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("the key cannot be written as UTF-8: leave out lone surrogates") from None
        print_ = b"" if fingerprint is None else fingerprint_of(fingerprint)
        return cls(name, print_, check_retention(keep, "keep"))


class SqlAttempt:
    """What the body of ``with sql.idempotent(…) as attempt`` works with."""

    __slots__ = ("_is_ours", "_operation", "_outcome")

    def __init__(self, operation: SqlOperation, found: Outcome | None) -> None:
        self._operation = operation
        self._outcome = found
        self._is_ours = found is None

    def __repr__(self) -> str:
        return f"<holdfast.sql.SqlAttempt {self._operation.name!r} {'done' if self.done else 'first'}>"

    @property
    def done(self) -> bool:
        """Whether the operation was committed before: ``result`` is what was stored then."""
        return not self._is_ours

    @property
    def result(self) -> Any:
        """The stored result; in the first attempt what ``set_result`` got. It is a copy, as JSON has it."""
        if self._outcome is None:
            raise NotHeld(
                "this attempt has no result yet: do the work, then call set_result(value), or look at "
                "attempt.done first"
            )
        return outcomes.outcome_of(self._outcome, ())

    def set_result(self, value: object) -> None:
        """The result, which is stored at the end of ``with``: JSON or bytes. Without it, it is None."""
        if not self._is_ours:
            raise NotHeld("the operation was committed before, with its result: use attempt.result")
        self._outcome = outcomes.result_outcome(self._operation.fingerprint, value)


def create_table(table: TableState) -> Plan[None]:
    """In the transaction that is open; else in one of its own."""
    texts = _texts(table)
    is_own = not table.in_transaction()
    if is_own:
        yield Control.BEGIN
    try:
        if texts.before_creation:
            yield Statement(texts.before_creation)
        yield Statement(
            f"CREATE TABLE IF NOT EXISTS {TABLE} (name {texts.name} PRIMARY KEY,"
            f" outcome {texts.binary} NOT NULL, expires_at double precision NOT NULL)"
        )
        yield Statement(f"CREATE INDEX IF NOT EXISTS {TABLE}_expires_at ON {TABLE} (expires_at)")
    except BaseException:
        if is_own:
            with suppress(Exception):  # the first error says what is wrong
                yield Control.ROLL_BACK
        raise
    if is_own and not table.is_always_in_a_transaction:
        yield Control.COMMIT


def begin(table: TableState, operation: SqlOperation) -> Plan[SqlAttempt]:
    what = f"the operation {operation.name!r} was not begun"
    found = yield from _explained(translated(table, what, _begin(table, operation), operation.name))
    return SqlAttempt(operation, found)


def finish(table: TableState, attempt: SqlAttempt) -> Plan[None]:
    """Store the result. It commits with what the body has written, or not at all."""
    if attempt.done:
        return
    operation = attempt._operation
    outcome = attempt._outcome or outcomes.result_outcome(operation.fingerprint, None)
    texts = _texts(table)
    yield Control.FLUSH
    result: Result = yield Statement(
        f"UPDATE {TABLE} SET outcome = CAST(:outcome AS {texts.binary}) WHERE name = :name",  # noqa: S608 - constants
        {"outcome": outcomes.encode(outcome), "name": operation.name},
    )
    if result.changed != 1:
        raise HoldfastError(
            f"the transaction of the operation {operation.name!r} was rolled back within: nothing of it is "
            "stored. Leave its end to the code around sql.idempotent"
        )


def withdraw(table: TableState, attempt: SqlAttempt) -> Plan[None]:
    """The body failed. Mostly the transaction is rolled back; should it be committed, nothing is stored."""
    if not attempt.done:
        with suppress(Exception):  # a transaction that is aborted has only one way to go
            yield Statement(
                f"DELETE FROM {TABLE} WHERE name = :name",  # noqa: S608 - a constant
                {"name": attempt._operation.name},
            )


def prune(table: TableState) -> Plan[int]:
    texts = _texts(table)
    statement = Statement(f"DELETE FROM {TABLE} WHERE expires_at <= {texts.now}")  # noqa: S608 - constants
    result: Result = yield from _explained(_one(statement))
    return result.changed


# --- what they are made of ----------------------------------------------------------------------


def _begin(table: TableState, operation: SqlOperation) -> Plan[Outcome | None]:
    """The stored outcome; None: this transaction has inserted the row."""
    texts = _texts(table)
    yield from _refuse_autocommit(table)
    yield Control.FLUSH
    mark = outcomes.encode(outcomes.started(operation.fingerprint))
    values = {"name": operation.name, "outcome": mark, "keep": operation.keep}
    for _ in range(TRIES):
        inserted: Result = yield Statement(
            f"INSERT INTO {TABLE} (name, outcome, expires_at) VALUES (:name,"  # noqa: S608 - constants
            f" CAST(:outcome AS {texts.binary}), {texts.now} + CAST(:keep AS double precision))"
            " ON CONFLICT (name) DO NOTHING",
            values,
        )
        if inserted.changed == 1:
            yield from _refuse_autocommit(table)
            return None
        found: Result = yield Statement(
            f"SELECT outcome, expires_at <= {texts.now} AS is_over FROM {TABLE} WHERE name = :name",  # noqa: S608 - constants
            {"name": operation.name},
        )
        if found.rows and not found.rows[0][1]:
            return _found(operation, bytes(found.rows[0][0]))
        yield Statement(
            f"DELETE FROM {TABLE} WHERE name = :name AND expires_at <= {texts.now}",  # noqa: S608 - constants
            {"name": operation.name},
        )
    raise _conflict(operation, f"was changed by others {TRIES} times in a row: roll back, and run it again")


def _found(operation: SqlOperation, stored: bytes) -> Outcome:
    try:
        found = outcomes.decode(stored)
    except ValueError as error:
        raise HoldfastError(f"table {TABLE} has a row that was not written here ({error})") from error
    outcomes.check_fingerprint(repr(operation.name), found.fingerprint, operation.fingerprint)
    if not found.is_finished:
        raise _conflict(
            operation,
            "has begun and not ended. Either a block around this one, in this same transaction, has the key; "
            "or it was committed before its end, so it is not known whether all of it was done: look, then "
            f"delete its row of {TABLE}. Leave the commit to the code around sql.idempotent",
        )
    return found


def _refuse_autocommit(table: TableState) -> Plan[None]:
    """Some connections tell only afterwards."""
    if (yield from commits_at_once(table)):
        raise InvalidArgument(
            "this connection is in autocommit mode and no transaction is open, so the result would not "
            f"commit together with the work: {table.dialect.how_to_begin} first, then sql.idempotent, then"
            " COMMIT"
        )


def _explained(plan: Plan[Any]) -> Plan[Any]:
    try:
        return (yield from plan)
    except HoldfastError:
        raise
    except Exception as error:
        if sqlstate(error) == "42P01" or "no such table" in str(driver_error(error)):
            raise InvalidArgument(
                "this database has no table for operations that run once: call "
                "sql.create_idempotency_table(connection) once; nothing was written"
            ) from error
        raise


def _one(statement: Statement) -> Plan[Result]:
    result: Result = yield statement
    return result


def _conflict(operation: SqlOperation, why: str) -> Conflict:
    error = Conflict(f"the operation {operation.name!r} {why}")
    error.name = operation.name
    return error


def _texts(table: TableState) -> _Texts:
    texts = _TEXTS.get(table.dialect.name)
    if texts is None:
        raise Unsupported(
            f"operations that run once are stored in SQLite and PostgreSQL, not in {table.dialect.name}: "
            "there, use client.idempotent() of an engine, for example redis://"
        )
    return texts
