"""When a transaction is run again, and how long after: the plan, without any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg.errors
import pymysql.err
import pytest

from holdfast import optimistic, sql
from holdfast.errors import Conflict, Deadlock, InvalidArgument, LockTimeout
from holdfast.fencing.plans import run
from holdfast.optimistic import aio as optimistic_aio
from holdfast.sql import Backoff
from holdfast.sql.retry import Policy, Sleep, run_again

pytestmark = pytest.mark.timeless


class Runs:
    """Fails by these errors first; what was slept is written down."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.pauses: list[float] = []
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    def carry_out(self, step: object) -> Any:
        return self.pauses.append(step.seconds) if isinstance(step, Sleep) else self()


def again(runs: Runs, retries: int = 5, backoff: Backoff | None = None, random: float = 0.5) -> Any:
    policy = Policy.of(retries, backoff)
    return run(run_again(policy, "the transaction", "State", lambda: random), runs.carry_out)


@pytest.mark.parametrize(
    "error",
    [
        Conflict("mine"),
        Deadlock("mine"),
        psycopg.errors.SerializationFailure("x"),
        psycopg.errors.DeadlockDetected("x"),
        pymysql.err.OperationalError(1213, "Deadlock found"),
        pymysql.err.OperationalError(1020, "Record has changed"),
    ],
    ids=repr,
)
def test_a_deadlock_or_a_conflict_is_tried_again(error: Exception) -> None:
    runs = Runs(error, error)
    assert again(runs) == "done"
    assert runs.calls == 3


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        LockTimeout("mine"),
        psycopg.errors.LockNotAvailable("x"),
        psycopg.OperationalError("the connection is lost"),
        pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
        pymysql.err.OperationalError(2013, "Lost connection"),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_nothing_else_is(error: BaseException) -> None:
    runs = Runs(error)
    with pytest.raises(type(error)) as caught:
        again(runs)
    assert caught.value is error
    assert (runs.calls, runs.pauses) == (1, [])


def test_the_pauses_double_up_to_their_maximum_and_are_drawn_whole() -> None:
    conflicts = [Conflict("x") for _ in range(6)]
    runs = Runs(*conflicts)
    again(runs, retries=6, backoff=Backoff(first=0.1, maximum=1.0), random=0.5)
    assert runs.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5])
    none_at_all = Runs(Conflict("x"))
    again(none_at_all, random=0.0)
    assert none_at_all.pauses == [0.0]


def test_after_many_failures_the_pause_is_still_a_number() -> None:
    assert Backoff().pause_seconds(100_000, 0.5) == 0.5


def test_the_last_error_is_recognised_and_has_the_drivers_as_its_cause() -> None:
    errors = [psycopg.errors.SerializationFailure(str(n)) for n in range(3)]
    runs = Runs(*errors)
    with pytest.raises(Conflict, match=r"failed 3 times in a row.*State") as caught:
        again(runs, retries=2)
    assert caught.value.__cause__ is errors[-1]
    with pytest.raises(Deadlock, match="failed once"):
        again(Runs(psycopg.errors.DeadlockDetected("x")), retries=0)


def test_an_error_of_ours_stays_as_it_is_with_a_note() -> None:
    last = Conflict("row 7")
    with pytest.raises(Conflict) as caught:
        again(Runs(Conflict("row 6"), last), retries=1)
    assert caught.value is last
    assert caught.value.__notes__ == ["holdfast: the transaction was tried 2 times in a row"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: sql.retry_transaction(lambda: None, retries=-1),
        lambda: sql.retry_transaction(lambda: None, retries=True),
        lambda: sql.retry_transaction(lambda: None, backoff="slow"),  # type: ignore[arg-type] # the mistake under test
        lambda: sql.retry_transaction(7),  # type: ignore[arg-type] # the mistake under test
        lambda: Backoff(-1),
        lambda: Backoff(float("nan")),
        lambda: Backoff(2, 1),
        lambda: optimistic.optimistic(retries=-1),
        lambda: optimistic.optimistic(7),  # type: ignore[call-arg] # the mistake under test
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises((InvalidArgument, TypeError)):
        call()


def test_the_decorator_refuses_what_it_could_not_run_again() -> None:
    async def awaited() -> None: ...
    def plain() -> None: ...
    def generator() -> Any:
        yield

    with pytest.raises(InvalidArgument, match=r"use holdfast\.optimistic\.aio\.optimistic"):
        optimistic.optimistic()(awaited)
    with pytest.raises(InvalidArgument, match=r"use holdfast\.optimistic\.optimistic"):
        optimistic_aio.optimistic()(plain)  # type: ignore[arg-type] # the mistake under test
    for module in (optimistic, optimistic_aio):
        with pytest.raises(InvalidArgument, match="is a generator"):
            module.optimistic()(generator)


@pytest.mark.realtime
def test_the_decorated_function_keeps_its_name_and_its_arguments() -> None:
    seen: list[tuple[int, int]] = []

    @optimistic.optimistic(retries=2, backoff=0)
    def write(a: int, *, b: int) -> int:
        """Its words."""
        seen.append((a, b))
        if len(seen) < 3:
            raise Conflict("not yet")
        return a + b

    assert (write(1, b=2), seen) == (3, [(1, 2)] * 3)
    assert (write.__name__, write.__doc__) == ("write", "Its words.")
