"""Statements on a session, and what a failure of one says."""

from __future__ import annotations

from typing import Final

from psycopg.pq.abc import PGresult

from ....core.effects import NotApplied, OutcomeUnknown
from ....errors import EngineUnavailable
from ..failures import verdict
from ..ground import POOLED
from ..link import ServerError
from ..statements import Call
from .desk import Desk, Ended, Finish, Session, Start, Task

__all__ = ["CANCELLED", "say", "say_again", "seen", "sort"]

CANCELLED: Final = "57014"
"""A cancellation that was meant for the statement before may strike the next."""

FOREIGN: Final = {"HF001", "26000", "42P05"}
"""Another process answers than the one that was asked."""

OVER: Final = ("08", "57P")
"""The session ends with it."""


async def say(desk: Desk, session: Session, call: Call) -> PGresult:
    """One statement, from beginning to end. Raises Refused, Unknown or EngineUnavailable."""
    result, _ = await say_again(desk, session, call)
    return result


async def say_again(desk: Desk, session: Session, call: Call) -> tuple[PGresult, bool]:
    """The same, and whether it was cancelled and said again: what it unlocked before is not undone."""
    for last in (False, True):
        task = Task(call)
        try:
            await Start(session, task, desk.io_timeout)
        except Ended as end:
            desk.lost(session, str(end))
            raise NotApplied(f"the session ended before: {end}") from end
        except TimeoutError:
            raise NotApplied("PostgreSQL does not answer on the connection that has the lock") from None
        if not await Finish(session, task, desk.io_timeout):
            raise OutcomeUnknown(f"PostgreSQL did not answer in {desk.io_timeout:g} s")
        try:
            return seen(desk, session, task), last
        except ServerError as error:
            if error.sqlstate != CANCELLED:
                raise sort(error, desk) from error
            if last:
                raise OutcomeUnknown(
                    "PostgreSQL cancelled it, twice"
                ) from error  # locks are not undone with it
    raise AssertionError("unreachable")


def seen(desk: Desk, session: Session, task: Task) -> PGresult:
    """What became of a task that is done. ServerError: the session lives on."""
    error = task.error
    if error is None and task.result is not None:
        return task.result
    if isinstance(error, ServerError) and not error.sqlstate.startswith(OVER):
        raise error
    why = str(error)
    desk.lost(session, why)
    raise OutcomeUnknown(f"the session ended: {why}") from error


def sort(error: ServerError, desk: Desk) -> Exception:
    if error.sqlstate in FOREIGN:
        return EngineUnavailable(f"{POOLED} ({error.sqlstate}: {error.message})")
    return verdict(error, desk.io_timeout)
