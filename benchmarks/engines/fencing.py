"""Guarded transactions beside the same ones without a guard, on PostgreSQL through psycopg.

No locks: a "pair" is a whole transaction, its statements and its commit. It excludes others by its rows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from holdfast import Fence, fencing

from ..contestant import Ability, Contestant, Handle, Place
from .group import Group
from .postgresql import number_of, serve

__all__ = ["GROUP"]

TABLES: Final = """
CREATE TABLE IF NOT EXISTS accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS tellers (id bigint PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS branches (id bigint PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS history (account bigint, delta bigint, at timestamptz DEFAULT now());
CREATE TABLE IF NOT EXISTS guarded (id bigint PRIMARY KEY, balance bigint NOT NULL);
"""
ROWS: Final = ("accounts", "tellers", "branches", "guarded")

TRANSFER: Final = (
    "UPDATE accounts SET balance = balance + 1 WHERE id = %(id)s",
    "SELECT balance FROM accounts WHERE id = %(id)s",
    "UPDATE tellers SET balance = balance + 1 WHERE id = %(id)s",
    "UPDATE branches SET balance = balance + 1 WHERE id = %(id)s",
    "INSERT INTO history (account, delta) VALUES (%(id)s, 1)",
)
"""What pgbench does by default."""

ONE_ROW: Final = ("UPDATE accounts SET balance = balance + 1 WHERE id = %(id)s",)
ONE_GUARDED_ROW: Final = ("UPDATE guarded SET balance = balance + 1 WHERE id = %(id)s",)


class Transaction(Handle):
    """``acquire`` runs the statements, ``release`` commits."""

    def __init__(self, statements: tuple[str, ...], place: Place, name: str) -> None:
        import psycopg

        self._busy: type[Exception] = psycopg.errors.LockNotAvailable
        self._connection: Any = psycopg.connect(f"postgresql://postgres@{place.addresses[0]}/postgres")
        self._statements = statements
        self._row = {"id": number_of(place, name)}
        self._resource = f"{place.space}:{name}"
        with self._connection.transaction():
            # Two that create it at the same time would both begin, and one would fail.
            self._connection.execute("SELECT pg_advisory_xact_lock(1)")
            self._prepare()
        self._connection.execute("SET lock_timeout = '200ms'")
        self._connection.commit()
        self.acquire = self._acquire
        self.release = self._release

    def _prepare(self) -> None:
        self._connection.execute(TABLES)
        for table in ROWS[:3]:
            self._connection.execute(
                f"INSERT INTO {table} VALUES (%(id)s, 0) ON CONFLICT DO NOTHING",  # noqa: S608 - our own names
                self._row,
            )

    def _acquire(self) -> None:
        self._run(self._connection.cursor())

    def _run(self, cursor: Any) -> None:
        for statement in self._statements:
            cursor.execute(statement, self._row)

    def _release(self) -> None:
        self._connection.commit()

    def try_acquire(self) -> bool:
        try:
            self._acquire()
        except self._busy:
            self._connection.rollback()
            return False
        return True

    def close(self) -> None:
        self._connection.close()


class Fenced(Transaction):
    """The same within ``fencing.transaction``."""

    _guard: AbstractContextManager[Any]

    def _prepare(self) -> None:
        super()._prepare()
        fencing.install(self._connection)
        self._grant = fencing.Grant(Fence("bench", 1, "n"))

    def _acquire(self) -> None:
        self._guard = fencing.transaction(self._connection, self._grant, self._resource)
        self._run(self._guard.__enter__())

    def _release(self) -> None:
        self._guard.__exit__(None, None, None)


class Protected(Fenced):
    """One row of a protected table, the token presented by ``enforce`` in the same transaction."""

    def _prepare(self) -> None:
        super()._prepare()
        row = self._connection.execute("SELECT 1 FROM guarded WHERE id = %(id)s", self._row).fetchone()
        if row is None:
            fencing.unprotect_table(self._connection, "guarded")
            self._connection.execute("INSERT INTO guarded VALUES (%(id)s, 0)", self._row)
        # All of a place present the same resource; the table is of the place that came last.
        fencing.protect_table(self._connection, "guarded", self._resource)

    def _acquire(self) -> None:
        fencing.enforce(self._connection, self._resource, self._grant)
        super(Fenced, self)._acquire()

    def _release(self) -> None:
        self._connection.commit()


TRANSACTIONS: frozenset[Ability] = frozenset({"transactions"})

GROUP = Group(
    "Guards for PostgreSQL",
    (
        Contestant(
            "fenced",
            "a pgbench transaction, fenced",
            "subject",
            partial(Fenced, TRANSFER),
            TRANSACTIONS,
            "psycopg",
        ),
        Contestant(
            "unfenced", "the same, unfenced", "raw", partial(Transaction, TRANSFER), TRANSACTIONS, "psycopg"
        ),
        Contestant(
            "protected",
            "one row of a protected table",
            "subject",
            partial(Protected, ONE_GUARDED_ROW),
            TRANSACTIONS,
            "psycopg",
        ),
        Contestant(
            "unprotected",
            "one row, unprotected",
            "raw",
            partial(Transaction, ONE_ROW),
            TRANSACTIONS,
            "psycopg",
        ),
    ),
    ("pairs",),
    {"pairs": "unfenced"},
    {
        "pairs": "A pair is a whole transaction here, begun, run and committed, with no lock around it. One "
        "PostgreSQL on loopback, which does not wait for its disk: where it does, a guard costs a smaller "
        "part. All ratios here are to the unfenced transaction; what a protected row costs beside an "
        "unprotected one is among the figures to reach.",
    },
    serve,
)
