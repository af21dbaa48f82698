"""The SQL of each database is the rule: every single step where it matters, and random sequences.

SQLite's is held to it in ``test_sql``, without a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencing.sql_clients import FakeLease, new_database
from holdfast import fencing
from holdfast.errors import InvalidArgument, StaleToken
from holdfast.fencing.plans import Purpose, load, present, run
from holdfast.fencing.rule import Mark, Refuse, after, decide, moved
from holdfast.fencing.sql import table_of
from holdfast.model import Fence
from support.thorough import examples

pytestmark = pytest.mark.realtime

SERVERS = [
    pytest.param("postgresql", marks=pytest.mark.engine("postgresql")),
    pytest.param("mariadb", marks=pytest.mark.engine("mariadb")),
]


@pytest.fixture(scope="module", params=SERVERS)
def db(request: pytest.FixtureRequest) -> Iterator[Any]:
    connection = new_database(request.param).connect()
    fencing.install(connection)
    yield connection
    connection.rollback()
    connection.close()


def marks(tokens: list[int]) -> list[Mark]:
    """Every combination of known and unknown parts."""
    return [Mark(*each) for each in product(tokens, ["", "s", "t"], ["", "a", "b"], [(), (3,), (3, 15)])]


def passes(db: Any, resource: str, mark: Mark, guards_writes: bool) -> bool:
    table = table_of(db)
    try:
        run(present(table.dialect, resource, mark, Purpose(guards_writes)), table.carry_out)
    except StaleToken:
        return False
    return True


def stored_in(db: Any, resource: str) -> Mark | None:
    table = table_of(db)
    return run(load(table.dialect, resource), table.carry_out)


def clear(db: Any) -> None:
    """Whatever the case before has left, rolled back."""
    db.rollback()


@pytest.mark.parametrize(
    "mode", ["", "STRICT_ALL_TABLES,SIMULTANEOUS_ASSIGNMENT", "ANSI,NO_BACKSLASH_ESCAPES"]
)
def test_each_single_step_of_the_sql_is_the_rules(db: Any, mode: str) -> None:
    """Older, a peer, equal and newer, with every part known or not; in MariaDB under modes that change
    SQL."""
    if table_of(db).dialect.name == "MariaDB":
        db.cursor().execute("SET SESSION sql_mode = %s", (mode,))
    elif mode:
        pytest.skip("modes are MariaDB's")
    for number, (stored, presented) in enumerate(
        product([None, *marks([5])], marks([3, 4, 5, 6])[:: 3 if mode else 1])
    ):
        resource = f"r{number}"
        if stored is not None:
            assert passes(db, resource, stored, guards_writes=False)
        decision = decide(stored, presented)
        is_accepted = not isinstance(decision, Refuse)
        assert passes(db, resource, presented, guards_writes=bool(number % 2)) == is_accepted, (
            stored,
            presented,
        )
        assert stored_in(db, resource) == after(stored, decision), (stored, presented)
    clear(db)


tokens = st.one_of(st.integers(min_value=0, max_value=6), st.sampled_from([11, 16, 2**50]))
fences = st.builds(Fence, st.sampled_from(["s", "t", "S "]), tokens, st.sampled_from(["a", "b", "A", "a "]))
leases = st.builds(
    FakeLease, fences, st.just("r"), st.just("permit"), st.lists(tokens, max_size=4).map(tuple)
)
steps = st.one_of(fences, leases, tokens, st.sampled_from(["move to s", "move to t"]))


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=20), st.booleans())
def test_sql_and_rule_give_the_same_decisions_and_the_same_state(
    db: Any, sequence: list[Any], writes: bool
) -> None:
    from holdfast.fencing.arguments import mark_of

    stored: Mark | None = None
    for step in sequence:
        if isinstance(step, str):
            fencing.move(db, "r", step[-1])
            stored = moved(stored, step[-1])
        else:
            mark = mark_of(step)
            decision = decide(stored, mark)
            assert passes(db, "r", mark, writes) == (not isinstance(decision, Refuse))
            stored = after(stored, decision)
        assert stored_in(db, "r") == stored
    clear(db)


def test_names_are_compared_by_their_bytes(db: Any) -> None:
    """Not by a collation that takes some of these to be the same."""
    names = ["a", "A", "a ", "ä", "a\u0308", "ss", "ß"]
    for number, name in enumerate(names):
        fencing.advance(db, name, 10 + number)
    for number, name in enumerate(names):
        assert fencing.newest(db, name) == Fence("", 10 + number, "")
    clear(db)


def test_the_largest_of_everything(db: Any) -> None:
    peers = tuple(range(3000))
    huge = FakeLease(Fence("s" * 2000, 5000, "n" * 2000), "r", "permit", peers)
    fencing.advance(db, "x" * 512, huge)
    fencing.advance(db, "x" * 512, FakeLease(Fence("s" * 2000, 2999, "other"), "r", "permit"))
    with pytest.raises(StaleToken):
        fencing.advance(db, "x" * 512, 3000)
    if table_of(db).dialect.name == "MariaDB":
        with pytest.raises(InvalidArgument, match="at most 2048"):
            fencing.advance(db, "r", Fence("s" * 2049, 1, "n"))
    clear(db)


def test_the_guard_costs_one_statement_where_it_accepts(db: Any) -> None:
    """Asked of the binding; the first row of a resource is the exception of MariaDB."""
    fencing.advance(db, "r", 1)
    table = table_of(db)
    asked: list[str] = []

    def carry_out(request: Any) -> Any:
        asked.append(getattr(request, "text", str(request)))
        return table.carry_out(request)

    from holdfast.fencing import sql_plans

    for token in (1, 2, 2):
        run(sql_plans.enforce(table, "r", Mark(token)), carry_out)
        run(sql_plans.advance(table, "r", Mark(token)), carry_out)
    assert len(asked) == 6, asked
    clear(db)
