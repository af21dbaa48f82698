"""A search reads one record after the other, and the world goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from unittest import mock

import pytest

from holdfast.core.effects import Apply
from holdfast.protocols.records import Attempt
from holdfast.recipes.deadlock import DeadlockWatch, encode
from holdfast.recipes.names import waits
from holdfast.recipes.wait_graph import NONCE_TAIL, Knot, WaitEntry
from holdfast.rules.record import EMPTY, Holder, Record, Waiter
from holdfast.rules.requests import Snapshot

Records = Mapping[str, Record]
Waits = Mapping[str, tuple[str, str]]
"""Who waits: the name that it holds, and the name that it waits for."""


def holder(who: str, name: str, metadata: Mapping[str, str] | None = None) -> Holder:
    nonce = f"{who}{who}-{name}".rjust(NONCE_TAIL, ".")
    return Holder(nonce, who * 2, who, "exclusive", ord(who), 0.0, 9.0, 9.0, True, None, metadata or {})


def entry(who: str, waiting: Waits) -> WaitEntry:
    held, name = waiting[who]
    return WaitEntry(
        f"{who}>{name}", who * 2, who, name, "exclusive", True, frozenset([holder(who, held).nonce])
    )


def world(holds: Mapping[str, str], waiting: Waits) -> Records:
    """``holds``: name → who holds it."""
    locks = {
        name: Record(
            "lock",
            holders=(holder(who, name),),
            queue=tuple(
                Waiter(f"{each}>{wanted}", each * 2, each, "exclusive", 0.0, 9.0, None)
                for each, (_, wanted) in waiting.items()
                if wanted == name
            ),
        )
        for name, who in holds.items()
    }
    published = {
        waits(who * 2): Record("rwlock", holders=(holder(who, "waits", encode(entry(who, waiting))),))
        for who in waiting
    }
    return locks | published


BEFORE: Waits = {"a": ("z", "x"), "b": ("x", "y")}
AFTER: Waits = {"a": ("z", "x"), "c": ("y", "z")}
"""b has given up, and then c has begun to wait: at no moment did all three wait."""
HOLDS = {"x": "b", "y": "c", "z": "a"}


def search(now: Callable[[int, str], Records]) -> Knot | None:
    """a's search; ``now``: the world at the read of that number, of that name."""
    watch = DeadlockWatch(cast(Attempt, mock.Mock(spec=Attempt)), shows_waiters=True)
    coroutine = cast(Iterator[Any], watch._confirmed_knot(entry("a", BEFORE)).__await__())
    reads = 0
    try:
        op = next(coroutine)
        while True:
            assert isinstance(op, Apply)
            reads += 1
            op = cast(Any, coroutine).send(Snapshot(now(reads, op.name).get(op.name, EMPTY), 0.0))
    except StopIteration as end:
        return cast("Knot | None", end.value)


def test_what_all_wait_for_at_once_is_one() -> None:
    together = world(HOLDS, {**BEFORE, **AFTER})
    knot = search(lambda reads, name: together)
    assert knot is not None
    assert {waiter.entry.owner for waiter in knot.waiters.values()} == {"a", "b", "c"}


def reads_of_different_moments(reads: int, name: str) -> Records:
    """The first search is paused after it has read y, where b waits."""
    return world(HOLDS, BEFORE if reads <= 3 else AFTER)


def test_reads_of_different_moments_are_none() -> None:
    assert search(reads_of_different_moments) is None


def test_a_wait_that_began_anew_is_another_one() -> None:
    """b gave up and waits again: the second search sees other attempts than the first."""
    together = world(HOLDS, {**BEFORE, **AFTER})

    def renamed(record: Record) -> Record:
        queue = [each._replace(nonce=each.nonce.replace("b>y", "b>>y")) for each in record.queue]
        holders = [
            each._replace(metadata={k: v.replace("b>y", "b>>y") for k, v in each.metadata.items()})
            for each in record.holders
        ]
        return record._replace(queue=tuple(queue), holders=tuple(holders))

    again = {name: renamed(record) for name, record in together.items()}
    assert search(lambda reads, name: again) is not None
    assert search(lambda reads, name: together if reads <= 6 else again) is None


@pytest.mark.parametrize(
    "check", [test_reads_of_different_moments_are_none, test_a_wait_that_began_anew_is_another_one]
)
def test_a_search_without_a_second_read_is_seen(check: Callable[[], None]) -> None:
    once = mock.patch.object(DeadlockWatch, "_confirmed_knot", DeadlockWatch._own_knot)
    with once, pytest.raises(AssertionError):
        check()
