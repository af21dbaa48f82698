"""Guards without I/O: the same plans carried out by drivers that block and by drivers that await."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import fencing
from holdfast.errors import Conflict, StaleToken
from holdfast.fencing.connections import SqliteTable
from holdfast.fencing.plans import (
    TRIES,
    Commit,
    Found,
    Plan,
    Read,
    Result,
    Statement,
    conditional,
    load,
    present,
    run,
    run_async,
)
from holdfast.fencing.rule import Mark, Refuse, after, decide
from holdfast.fencing.sqlite import SqliteDialect

marks = st.builds(
    Mark,
    st.integers(min_value=0, max_value=4),
    st.sampled_from(["", "s", "t"]),
    st.sampled_from(["", "a", "b"]),
    st.lists(st.integers(min_value=0, max_value=4), max_size=2).map(lambda each: tuple(sorted(set(each)))),
)


class Versioned:
    """An object store: one object with a mark and the user's data, and a version that each write changes."""

    def __init__(self, meddling: int = 0) -> None:
        self.mark: Mark | None = None
        self.version = 0
        self.written: list[Mark] = []
        self._meddling = meddling
        """So often another changes the object between a read and the commit."""

    def carry_out(self, request: Any) -> Any:
        if isinstance(request, Read):
            return Found(self.mark, self.version)
        assert isinstance(request, Commit)
        if self._meddling:
            self._meddling -= 1
            self.version += 1
        if request.version != self.version:
            return False
        self.mark, self.version = request.mark, self.version + 1
        self.written.append(request.mark)
        return True

    async def carry_out_async(self, request: Any) -> Any:
        await asyncio.sleep(0)
        return self.carry_out(request)


@given(st.lists(marks, max_size=12))
def test_the_conditional_form_decides_as_the_rule_does(sequence: list[Mark]) -> None:
    store = Versioned()
    stored: Mark | None = None
    for mark in sequence:
        decision = decide(stored, mark)
        written = len(store.written)
        if isinstance(decision, Refuse):
            with pytest.raises(StaleToken):
                run(conditional("r", mark), store.carry_out)
            assert len(store.written) == written
        else:
            run(conditional("r", mark), store.carry_out)
            assert len(store.written) == written + 1, "the user's writes are committed with it"
        stored = after(stored, decision)
        assert store.mark == stored


def test_a_newer_holder_that_comes_between_read_and_commit_shuts_the_older_one_out() -> None:
    store = Versioned()
    plan = conditional("r", Mark(41, "s", "old"))
    request = plan.send(store.carry_out(next(plan)))
    run(conditional("r", Mark(42, "s", "new")), store.carry_out)
    assert store.carry_out(request) is False
    with pytest.raises(StaleToken):
        plan.send(store.carry_out(plan.send(False)))
    assert [mark.token for mark in store.written] == [42]


def test_what_is_changed_by_others_again_and_again_is_a_conflict() -> None:
    run(conditional("r", Mark(41)), Versioned(TRIES - 1).carry_out)
    store = Versioned(TRIES)
    with pytest.raises(Conflict, match="try again"):
        run(conditional("r", Mark(41)), store.carry_out)
    assert store.written == []


@pytest.mark.realtime
def test_an_awaiting_driver_carries_out_the_same_plans() -> None:
    async def main() -> None:
        store = Versioned(1)
        await run_async(conditional("r", Mark(42)), store.carry_out_async)
        with pytest.raises(StaleToken):
            await run_async(conditional("r", Mark(41)), store.carry_out_async)
        assert store.mark == Mark(42)
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            fencing.install(db)
            table = SqliteTable(db)

            async def execute(statement: Statement) -> Result:
                await asyncio.sleep(0)
                return table.execute(statement)

            await run_async(present(SqliteDialect(), "r", Mark(42, "s", "a")), execute)
            with pytest.raises(StaleToken, match="too old"):
                await run_async(present(SqliteDialect(), "r", Mark(41, "s", "b")), execute)
            assert run(load(SqliteDialect(), "r"), table.carry_out) == Mark(42, "s", "a")

    asyncio.run(main())


@pytest.mark.realtime
def test_an_error_of_the_driver_is_raised_in_the_plan_which_may_clean_up() -> None:
    def plan() -> Plan[str]:
        try:
            yield "work"
        except ConnectionError:
            done: str = yield "clean up"
            return done
        return "worked"

    def carry_out(request: Any) -> str:
        if request == "work":
            raise ConnectionError
        return f"did {request}"

    async def carry_out_async(request: Any) -> str:
        return carry_out(request)

    assert run(plan(), carry_out) == "did clean up"
    assert asyncio.run(run_async(plan(), carry_out_async)) == "did clean up"


def test_what_a_driver_raises_reaches_the_caller() -> None:
    def refuse(request: Any) -> Any:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run(conditional("r", Mark(1)), refuse)
