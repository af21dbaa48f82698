"""Why a new holder advances the guard before its first read: every interleaving of two holders, counted.

The old and the new holder each do two read-modify-writes of one counter, without knowing of each other
(the old one paused and has lost its lock). Four steps each (read, write, read, write) interleave in
C(8, 4) = 70 ways; with ``advance`` as the first step, five each, in C(10, 5) = 252.

A guard that checks writes alone lets the old holder write between the new one's read and its first write:
accepted, then overwritten. That happens in 22 of the 70. With advance-first it happens in none.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import combinations
from typing import Any

import pytest

from fencing.sql_clients import new_database
from holdfast import fencing
from holdfast.errors import StaleToken
from holdfast.fencing.rule import Mark, Refuse, after, decide

OLD, NEW = 41, 42

Guard = Callable[[int], bool]
"""Presents a token; says whether it passed."""

READ_MODIFY_WRITE = ("read", "write")


def schedules(steps: int) -> Iterator[list[int]]:
    """Whose step is next, in every order of two holders with this many steps each."""
    for places in combinations(range(2 * steps), steps):
        yield [OLD if place in places else NEW for place in range(2 * steps)]


def loses_an_update(schedule: list[int], script: tuple[str, ...], guard: Guard) -> bool:
    """Whether a write that was accepted is missing from the counter at the end."""
    counter = accepted = 0
    remaining = {holder: iter(script) for holder in (OLD, NEW)}
    seen: dict[int, int] = {}
    refused: set[int] = set()
    for holder in schedule:
        step = next(remaining[holder])
        if holder in refused:
            continue
        if step == "read":
            seen[holder] = counter
        elif not guard(holder):
            refused.add(holder)
        elif step == "write":
            counter, accepted = seen[holder] + 1, accepted + 1
    return counter != accepted


def rule_guard() -> Iterator[Guard]:
    while True:
        state: list[Mark | None] = [None]

        def present(token: int, state: list[Mark | None] = state) -> bool:
            decision = decide(state[0], Mark(token, "s", f"nonce-{token}"))
            state[0] = after(state[0], decision)
            return not isinstance(decision, Refuse)

        yield present


def sql_guard(db: Any) -> Iterator[Guard]:
    """Each step is a transaction; each schedule has a resource of its own."""
    for number in itertools.count():

        def present(token: int, resource: str = f"counter {number}") -> bool:
            try:
                fencing.enforce(db, resource, token)
            except StaleToken:
                db.rollback()
                return False
            db.commit()
            return True

        yield present


GUARDS = [
    pytest.param("rule"),
    pytest.param("sqlite"),
    pytest.param("postgresql", marks=[pytest.mark.realtime, pytest.mark.engine("postgresql")]),
    pytest.param("mariadb", marks=[pytest.mark.realtime, pytest.mark.engine("mariadb")]),
]


@pytest.fixture(params=GUARDS)
def guards(request: pytest.FixtureRequest) -> Iterator[Iterator[Guard]]:
    """A fresh guard for each schedule."""
    if request.param == "rule":
        yield rule_guard()
        return
    database = None if request.param == "sqlite" else new_database(request.param)
    with closing(sqlite3.connect(":memory:") if database is None else database.connect()) as db:
        fencing.install(db)
        yield sql_guard(db)


@pytest.mark.parametrize(
    ("script", "lost", "total"),
    [
        (READ_MODIFY_WRITE, 2, 6),
        (READ_MODIFY_WRITE * 2, 22, 70),
        (("advance", *READ_MODIFY_WRITE), 0, 20),
        (("advance", *READ_MODIFY_WRITE * 2), 0, 252),
    ],
)
def test_lost_updates(script: tuple[str, ...], lost: int, total: int, guards: Iterator[Guard]) -> None:
    outcomes = [loses_an_update(schedule, script, next(guards)) for schedule in schedules(len(script))]
    assert (sum(outcomes), len(outcomes)) == (lost, total)
