"""What row locks ask of a connection, statement by statement, with answers made up: no server, no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg.errors
import pymysql.err
import pytest

from holdfast.errors import Deadlock, LockTimeout, Unsupported
from holdfast.fencing.connections import DIALECTS
from holdfast.fencing.dialects import Control, SqlDialect
from holdfast.fencing.plans import Result, Statement, run
from holdfast.sql.locking import RowLock, lock_row, lock_transaction

pytestmark = pytest.mark.timeless

Answer = Callable[[str], Result]
FREE = Result(1, [(7,)], ["id"])
NOTHING = Result(0, [], ["id"])


@dataclass
class Connection:
    """In a transaction; answers by ``answer``, and remembers how each statement begins or ends."""

    dialect: SqlDialect
    answer: Answer
    asked: list[str] = field(default_factory=list)

    is_always_in_a_transaction = False

    def in_transaction(self) -> bool:
        return True

    def commits_at_once(self) -> bool:
        return False

    def has_reported(self, setting: str) -> bool:
        return False

    def carry_out(self, request: Any) -> Result | None:
        if request is Control.FLUSH:
            return None
        assert isinstance(request, Statement)
        self.asked.append(request.text)
        return self.answer(request.text)


def asked(connection: Connection, wait: Any) -> list[str]:
    """The statements, each by its telling end."""
    lock = RowLock.of("t", {"id": 7}, wait, False, "update")
    run(lock_row(connection, lock), connection.carry_out)
    return [text.rpartition(":k0 ")[2] for text in connection.asked]


def answering(answers: dict[str, Any]) -> Answer:
    """By a word of the statement; an exception is raised."""

    def answer(text: str) -> Result:
        for word, result in answers.items():
            if word in text:
                if isinstance(result, Exception):
                    raise result
                found: Result = result
                return found
        return Result(0, [("0",)], ["setting"])

    return answer


def postgresql(answers: dict[str, Any]) -> Connection:
    return Connection(DIALECTS["postgresql"], answering(answers))


def mariadb(answers: dict[str, Any]) -> Connection:
    return Connection(DIALECTS["mariadb"], answering(answers))


@pytest.mark.parametrize("wait", [True, False, 5])
def test_a_free_row_takes_one_statement(wait: Any) -> None:
    assert len(asked(postgresql({"FOR UPDATE": FREE}), wait)) == 1
    assert len(asked(mariadb({"FOR UPDATE": FREE}), wait)) == 1


def test_a_row_that_is_not_free_is_waited_for_within_a_savepoint() -> None:
    statements = asked(postgresql({"SKIP LOCKED": NOTHING, "FOR UPDATE": FREE}), 5)
    assert statements[0] == "FOR UPDATE SKIP LOCKED"
    assert statements[1] == "SAVEPOINT holdfast_lock"
    assert "set_config" in statements[2]
    assert statements[3] == "FOR UPDATE"
    assert "set_config" in statements[4]
    assert statements[5:] == ["RELEASE SAVEPOINT holdfast_lock"]


def test_a_refusal_goes_back_to_the_savepoint_and_a_deadlock_does_not() -> None:
    refused = postgresql({"SKIP LOCKED": NOTHING, "FOR UPDATE": psycopg.errors.LockNotAvailable("x")})
    with pytest.raises(LockTimeout):
        asked(refused, 5)
    assert refused.asked[-2:] == ["ROLLBACK TO SAVEPOINT holdfast_lock", "RELEASE SAVEPOINT holdfast_lock"]
    chosen = postgresql({"SKIP LOCKED": NOTHING, "FOR UPDATE": psycopg.errors.DeadlockDetected("x")})
    with pytest.raises(Deadlock, match="PostgreSQL has aborted the transaction"):
        asked(chosen, 5)
    assert chosen.asked[-1].endswith("FOR UPDATE"), "nobody shall commit a part of it"


def test_what_fails_for_another_reason_stays_the_drivers_error() -> None:
    broken = postgresql({"SKIP LOCKED": psycopg.errors.UndefinedTable("no table t")})
    with pytest.raises(psycopg.errors.UndefinedTable):
        asked(broken, 5)


@pytest.mark.parametrize(
    ("wait", "said"), [(0.2, "WAIT 1"), (2.0, "WAIT 2"), (0, "NOWAIT"), (-1, "FOR UPDATE")]
)
def test_mariadb_waits_whole_seconds(wait: float, said: str) -> None:
    assert asked(mariadb({"FOR UPDATE": FREE}), wait)[0].endswith(said)


def test_a_server_that_rolls_back_on_a_time_out_is_not_said_to_be_as_before() -> None:
    timed_out = pymysql.err.OperationalError(1205, "Lock wait timeout exceeded")
    with pytest.raises(LockTimeout, match="rolled the whole transaction back"):
        asked(mariadb({"FOR UPDATE": timed_out, "rollback_on_timeout": Result(0, [(1,)], ["x"])}), True)


def test_mysql_has_no_seconds() -> None:
    with pytest.raises(Unsupported, match="MySQL knows no number of seconds"):
        asked(mariadb({"FOR UPDATE": pymysql.err.ProgrammingError(1064, "syntax")}), 5)


def test_a_free_name_takes_one_statement() -> None:
    for timeout in (None, 0.0, 5.0):
        connection = postgresql({"advisory": Result(1, [(True,)], ["granted"])})
        run(lock_transaction(connection, "closing", timeout, False), connection.carry_out)
        assert len(connection.asked) == 1
