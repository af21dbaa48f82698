"""Many processes meet at a database that does not exist yet."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import cast

from holdfast.engines.sqlite import connection
from holdfast.engines.sqlite.database_file import DatabaseFile
from support import run_python

FIRST_USE = """
import sys, holdfast
print("ready", flush=True)
for line in sys.stdin:
    with holdfast.connect(line.strip()) as locks:
        with locks.lock("first", ttl=30, timeout=30) as lease:
            print("token", lease.token, flush=True)
"""


def test_everyone_may_be_the_first(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(run_python(FIRST_USE)) for _ in range(6)]
        for child in children:
            child.expect("ready")
        for round_number in range(8):
            for child in children:
                child.send(f"sqlite:///{tmp_path}/{round_number}.db")
            tokens = [int(child.expect("token")) for child in children]
            assert len(set(tokens)) == len(children)


class Meddled:
    """A connection beside which another one creates the tables as soon as it has said whose the file is."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._other = sqlite3.connect(path, isolation_level=None, timeout=0)
        self._asked = False

    def execute(self, statement: str) -> sqlite3.Cursor:
        if self._asked:
            self._asked = False
            with contextlib.suppress(sqlite3.OperationalError):  # waits for the first to have looked
                connection.create_tables(self._other)
        self._asked = "application_id" in statement
        return self._connection.execute(statement)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        self._connection.close()
        self._other.close()


def test_tables_that_appear_while_we_look_are_not_taken_for_another_programs(tmp_path: Path) -> None:
    meddled = Meddled(tmp_path / "locks.db")
    try:
        connection.check_owner(
            DatabaseFile(str(tmp_path / "locks.db"), creates_folder=False), cast(sqlite3.Connection, meddled)
        )
    finally:
        meddled.close()
