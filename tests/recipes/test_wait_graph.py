"""Who can never be served: cycles, and what looks like one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import WaitEdge
from holdfast.recipes import wait_graph
from holdfast.recipes.deadlock import KEYS, decode, describe_cycle, encode
from holdfast.recipes.wait_graph import Knot, WaitEntry, find_knots
from holdfast.rules.record import Holder, Record, Waiter
from support.thorough import examples

Wait = tuple[str, str]
"""Who waits, and for what."""


def nonce(who: str, name: str) -> str:
    return f"client-{who}/{name}".rjust(40, ".")


def holder(who: str, name: str, token: int = 1, mode: str = "exclusive", suffix: str = "") -> Holder:
    return Holder(
        nonce(who, name + suffix), f"client-{who}", who, mode, token, 0.0, 30.0, 30.0, True, None, {}
    )


def place(who: str, name: str, mode: str = "exclusive") -> Waiter:
    return Waiter(f"{who}>{name}", f"client-{who}", who, mode, 0.0, 30.0, None)


def entry(
    who: str, name: str, held: Iterable[Holder], mode: str = "exclusive", raises: bool = True
) -> WaitEntry:
    mine = frozenset(each.nonce[-wait_graph.NONCE_TAIL :] for each in held if each.owner == who)
    return WaitEntry(f"{who}>{name}", f"client-{who}", who, name, mode, raises, mine)


def locks(held: Mapping[str, str], waits: Mapping[str, str], raises: str = "") -> list[Knot]:
    """``held``: name → who holds it; ``waits``: who → the name it waits for; ``raises``: who may be a victim.

    The tokens are in the order of ``held``."""
    records = {
        name: Record(
            "lock", 0, (holder(who, name, token),), tuple(place(w, n) for w, n in waits.items() if n == name)
        )
        for token, (name, who) in enumerate(held.items(), 1)
    }
    all_held = [each for record in records.values() for each in record.holders]
    entries = [entry(who, name, all_held, raises=who in raises) for who, name in waits.items()]
    return find_knots(records, entries, shows_waiters=True)


def members(knots: Iterable[Knot]) -> list[str]:
    """The waiters of each deadlock."""
    return sorted("".join(sorted(waiter.entry.owner for waiter in knot.waiters.values())) for knot in knots)


def victims(knots: Iterable[Knot]) -> list[str | None]:
    return [knot.victim and knot.waiters[knot.victim].entry.owner for knot in knots]


# --- locks --------------------------------------------------------------------------------------


def test_two_that_wait_for_each_other() -> None:
    (knot,) = locks({"x": "a", "y": "b"}, {"a": "y", "b": "x"}, raises="ab")
    assert victims([knot]) == ["b"], "it took its lock last"
    assert knot.cycle() == (
        WaitEdge("b", "client-b", "x", "exclusive", "a", 1, True),
        WaitEdge("a", "client-a", "y", "exclusive", "b", 2, False),
    )
    assert describe_cycle(knot.cycle()) == (
        "b waits for 'x', held by a (token 1), a waits for 'y', held by b (token 2)"
    )


def test_the_victim_is_one_that_asked_for_it() -> None:
    held, waits = {"x": "a", "y": "b", "z": "c"}, {"a": "y", "b": "z", "c": "x"}
    assert victims(locks(held, waits, "abc")) == ["c"]
    assert victims(locks(held, waits, "ab")) == ["b"]
    assert victims(locks(held, waits)) == [None]
    assert members(locks(held, waits)) == ["abc"]


def test_what_is_no_cycle() -> None:
    assert locks({}, {}) == []
    assert locks({"x": "a"}, {"b": "x"}) == [], "the holder does not wait"
    assert locks({"x": "a", "y": "b", "z": "c"}, {"b": "x", "c": "x"}) == [], "two wait for one"
    assert locks({"x": "a", "y": "b"}, {"b": "x", "c": "y", "d": "x"}) == [], "a chain"
    assert locks({"x": "a", "y": "b"}, {"a": "z", "b": "x"}) == [], "nothing is known of z"


def test_a_holder_that_waits_for_itself() -> None:
    (knot,) = locks({"x": "a"}, {"a": "x"}, "a")
    assert (victims([knot]), len(knot.cycle())) == (["a"], 1)


def test_waiters_outside_are_in_no_cycle_and_do_not_hang_the_search() -> None:
    held = {"x": "a", "y": "b", "z": "c"}
    assert members(locks(held, {"a": "y", "b": "x", "c": "x", "d": "z"}, "abcd")) == ["ab"]
    crowd = {f"name-{number}": f"w{number}" for number in range(3000)}
    chain = {f"w{number}": f"name-{number - 1}" for number in range(1, 3000)}
    assert locks(crowd, chain) == []
    (knot,) = locks(crowd, {**chain, "w0": "name-2999"})
    assert len(knot.cycle()) == 3000


def test_each_deadlock_has_its_own_victim() -> None:
    held = {"x": "a", "y": "b", "u": "c", "v": "d"}
    knots = locks(held, {"a": "y", "b": "x", "c": "v", "d": "u"}, "abcd")
    assert members(knots) == ["ab", "cd"]
    assert sorted(map(str, victims(knots))) == ["b", "d"]


# --- what a record says against it --------------------------------------------------------------


def test_a_waiter_that_has_been_served_or_has_gone_does_not_wait() -> None:
    x, y = holder("a", "x"), holder("b", "y")
    entries = [entry("a", "y", [x, y]), entry("b", "x", [x, y])]
    stuck = {
        "x": Record("lock", 0, (x,), (place("b", "x"),)),
        "y": Record("lock", 0, (y,), (place("a", "y"),)),
    }
    assert members(find_knots(stuck, entries, True)) == ["ab"]
    gone = {**stuck, "y": Record("lock", 0, (y,))}
    assert find_knots(gone, entries, True) == []
    assert members(find_knots(gone, entries, False)) == ["ab"], "the engine shows no waiters"
    served = {**stuck, "y": Record("lock", 0, (holder("a", "y")._replace(nonce="a>y"),))}
    assert find_knots(served, entries, False) == []
    released = {**stuck, "x": Record("lock", 0, (holder("a", "x", 7, suffix="again"),), (place("b", "x"),))}
    assert find_knots(released, entries, True) == [], "another grant, that a does not know of"


def test_another_client_with_the_same_owner() -> None:
    """Containers may share host name, process id and name of the thread."""
    x = holder("a", "x")
    twin = x._replace(client="client-twin")
    entries = [entry("a", "y", [x]), entry("b", "x", [holder("b", "y")])]
    records = {
        "x": Record("lock", 0, (twin,), (place("b", "x"),)),
        "y": Record("lock", 0, (holder("b", "y"),), (place("a", "y"),)),
    }
    assert find_knots(records, entries, True) == []


# --- readers and writers, permits ---------------------------------------------------------------


def rwlock(readers: str, name: str, queue: Iterable[tuple[str, str]], mode: str = "read") -> Record:
    return Record(
        "rwlock",
        0,
        tuple(holder(who, name, ord(who), mode) for who in readers),
        tuple(place(who, name, how) for who, how in queue),
    )


def test_a_writer_waits_for_every_reader() -> None:
    y = holder("w", "y")
    records = {
        "x": rwlock("abc", "x", [("w", "write")]),
        "y": Record("lock", 0, (y,), (place("b", "y"),)),
    }
    held = [*records["x"].holders, y]
    entries = [entry("w", "x", held, "write"), entry("b", "y", held)]
    assert members(find_knots(records, entries, True)) == ["bw"]


@pytest.mark.parametrize(
    ("queue", "stuck"),
    [
        ([("w", "write"), ("b", "read")], ["ab"]),
        ([("b", "read"), ("w", "write")], []),
        ([("b", "read")], []),
    ],
)
def test_a_reader_waits_for_readers_only_behind_a_writer(queue: list[Wait], stuck: list[str]) -> None:
    y = holder("b", "y")
    records = {"x": rwlock("a", "x", queue), "y": Record("lock", 0, (y,), (place("a", "y"),))}
    held = [*records["x"].holders, y]
    entries = [entry("b", "x", held, "read"), entry("a", "y", held)]
    assert members(find_knots(records, entries, True)) == stuck


def test_a_reader_that_reads_again_behind_a_writer() -> None:
    records = {"x": rwlock("a", "x", [("w", "write"), ("a", "read")])}
    assert members(find_knots(records, [entry("a", "x", records["x"].holders, "read")], True)) == ["a"]


def permits(limit: int, holders: str, waits: Mapping[str, str], locks_held: str) -> list[str]:
    """Permits of ``p``; ``locks_held``: each of these holds a lock of its own name."""
    records = {
        "p": Record(
            "semaphore",
            0,
            tuple(holder(who, "p", 1, "permit") for who in holders),
            tuple(place(who, "p", "permit") for who, name in waits.items() if name == "p"),
            limit,
        ),
        **{
            who: Record(
                "lock", 0, (holder(who, who, 2),), tuple(place(w, who) for w, n in waits.items() if n == who)
            )
            for who in locks_held
        },
    }
    held = [each for record in records.values() for each in record.holders]
    entries = [
        entry(who, name, held, "permit" if name == "p" else "exclusive") for who, name in waits.items()
    ]
    return members(find_knots(records, entries, True))


def test_a_waiter_for_a_permit_is_stuck_only_if_no_holder_can_release() -> None:
    assert permits(2, "bc", {"a": "p", "b": "a", "c": "a"}, "a") == ["abc"]
    assert permits(2, "bc", {"a": "p", "b": "a"}, "a") == [], "c may release"
    assert permits(3, "bc", {"a": "p", "b": "a", "c": "a"}, "a") == [], "one is free"
    assert permits(2, "bb", {"a": "p", "b": "a"}, "a") == ["ab"], "b holds both"


def test_a_permit_that_another_deadlock_keeps_back() -> None:
    """c is stuck because of d and e: when that deadlock is broken, c goes on, and a gets its permit."""
    waits = {"a": "p", "b": "a", "c": "d", "d": "e", "e": "d"}
    assert permits(2, "bc", waits, "ade") == ["de"]


# --- in general ---------------------------------------------------------------------------------

GRAPHS = st.integers(2, 7).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, size - 1), min_size=size, max_size=size),
        st.dictionaries(st.integers(0, size - 1), st.integers(0, size - 1)),
    )
)


def cycles_of(next_of: Mapping[str, str]) -> set[frozenset[str]]:
    """Where each waits for one at most: follow from each until someone comes back to it."""
    found = set()
    for start in next_of:
        at = start
        path: list[str] = []
        while at in next_of and len(path) <= len(next_of):
            path.append(at)
            at = next_of[at]
            if at == start:
                found.add(frozenset(path))
                break
    return found


@settings(max_examples=examples(100))
@given(GRAPHS)
def test_of_locks_every_cycle_and_nothing_else_is_found(graph: tuple[list[int], dict[int, int]]) -> None:
    held = {f"name-{name}": str(who) for name, who in enumerate(graph[0])}
    waits = {str(who): f"name-{name}" for who, name in graph[1].items()}
    knots = locks(held, waits, "0123456789")
    assert {frozenset(w.entry.owner for w in knot.waiters.values()) for knot in knots} == cycles_of(
        {who: held[name] for who, name in waits.items()}
    )
    for knot in knots:
        cycle = knot.cycle()
        assert [edge.held_by for edge in cycle] == [edge.owner for edge in cycle[1:] + cycle[:1]]
        assert [edge.is_victim for edge in cycle].count(True) == 1


# --- what is published --------------------------------------------------------------------------


def test_what_is_published_is_read_again() -> None:
    mine = entry("a", "é x", [holder("a", "x"), holder("a", "y")])
    said = encode(mine)
    assert set(said) == KEYS
    carrier = holder("a", "waits", mode="read")._replace(metadata=said)
    assert decode(Record(holders=(carrier,))) == [mine]


@pytest.mark.parametrize("missing", sorted(KEYS))
def test_what_is_not_understood_is_left_out(missing: str) -> None:
    said: dict[str, Any] = {key: text for key, text in encode(entry("a", "x", [])).items() if key != missing}
    carrier = holder("a", "waits", mode="read")._replace(metadata=said)
    exported = carrier._replace(client="", metadata=encode(entry("a", "x", [])))
    assert decode(Record(holders=(carrier, exported))) == []


# --- mistakes -----------------------------------------------------------------------------------


def test_a_search_that_takes_permits_for_locks_is_seen() -> None:
    original = wait_graph._stuck_among

    def any_of_them(waiters: Mapping[str, Any]) -> dict[str, Any]:
        return original({key: waiter._replace(needs_one=False) for key, waiter in waiters.items()})

    with mock.patch.object(wait_graph, "_stuck_among", any_of_them), pytest.raises(AssertionError):
        test_a_waiter_for_a_permit_is_stuck_only_if_no_holder_can_release()
