"""The queue as those who stand in it see it: first come, first served, and the dead cost little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.record import PATIENCE_SECONDS, TURN_SECONDS
from rules.crowd import REFRESH_SECONDS, Crowd, Member
from rules.moves import KINDS, MODES
from rules.mutants import MUTANTS
from support.thorough import examples

TTL = 10.0


def members(kind: str, mortal: bool) -> st.SearchStrategy[list[Member]]:
    drawn = st.tuples(
        st.sampled_from(MODES[kind]),
        st.sampled_from((0.0, 0.1, 0.5, 1.5, 4.0)),
        st.sampled_from((0.0, 0.3, 2.5, 6.0)),
        st.sampled_from((None, None, 0.0, 0.7, 3.0)) if mortal else st.none(),
        st.integers(0, 2),
    )

    def build(rows: list[tuple[str, float, float, float | None, int]]) -> list[Member]:
        made, at = [], 0.0
        for number, (mode, pause, holds, dies, client) in enumerate(rows):
            at += pause
            dies_at = None if dies is None else at + dies
            # Threads of one client die together; each of the living has a client of its own here.
            name = f"m{number}"
            made.append(Member(name, f"c{client}" if dies is None else name, mode, at, holds, dies_at))
        return made

    return st.lists(drawn, min_size=2, max_size=10).map(build)


@pytest.mark.parametrize("looks", [True, False], ids=["looking", "woken"])
@pytest.mark.parametrize("kind", KINDS)
def test_among_the_living_all_are_served_in_order(kind: str, looks: bool) -> None:
    """Wake-ups alone are enough while nobody dies: no missed ones, and nobody passes another."""

    @settings(max_examples=examples(120))
    @given(members(kind, mortal=False))
    def check(crowd_members: list[Member]) -> None:
        crowd = Crowd(kind, crowd_members, TTL, limit=2 if kind == "semaphore" else 0, looks=looks)
        crowd.run(until=1000.0)
        assert sorted(crowd.granted) == sorted(m.name for m in crowd_members)
        waited = [name for name in crowd.granted if name in crowd.queued]
        assert waited == crowd.queued, "granted in the order of the queue"
        if not looks:
            assert all(m.asked <= 2 for m in crowd_members), "woken once, when its turn had come"

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_dies_delays_the_others_by_little(kind: str) -> None:
    """A dead holder costs its ttl, a dead waiter one turn: never for ever."""

    @settings(max_examples=examples(120))
    @given(members(kind, mortal=True))
    def check(crowd_members: list[Member]) -> None:
        crowd = Crowd(kind, crowd_members, TTL, limit=2 if kind == "semaphore" else 0)
        crowd.run(until=1000.0)
        for member in crowd_members:
            if member.dies_at is None:
                assert member.granted_at is not None, f"{member.name} waited for ever"
                assert member.granted_at - member.arrives_at <= bound(member, crowd_members) + 0.001

    def bound(member: Member, everyone: list[Member]) -> float:
        others = [m for m in everyone if m is not member]
        return sum(TTL + TURN_SECONDS if m.dies_at is not None else m.holds_for for m in others)

    check()


@pytest.mark.parametrize("dead", [1, 2, 5])
def test_one_turn_for_each_dead_client_and_no_more(dead: int) -> None:
    """All before it vanish while they wait; the holder releases in good order."""
    holder = Member("holder", "h", "exclusive", 0.0, 4.0)
    vanished = [
        Member(f"dead{n}", f"d{n}", "exclusive", 0.1 + n / 100, 1.0, dies_at=3.9) for n in range(dead)
    ]
    last = Member("last", "l", "exclusive", 0.5, 1.0)
    Crowd("lock", [holder, *vanished, last], TTL).run(until=100.0)
    assert last.granted_at is not None
    # Their places expire beside their turns: whichever comes first frees the way.
    assert last.granted_at <= 4.0 + min(dead * TURN_SECONDS, PATIENCE_SECONDS) + REFRESH_SECONDS


def test_threads_of_one_dead_client_cost_one_turn_together() -> None:
    holder = Member("holder", "h", "exclusive", 0.0, 4.0)
    vanished = [Member(f"dead{n}", "d", "exclusive", 0.1 + n / 100, 1.0, dies_at=3.95) for n in range(5)]
    last = Member("last", "l", "exclusive", 0.5, 1.0)
    Crowd("lock", [holder, *vanished, last], TTL).run(until=100.0)
    assert last.granted_at is not None
    assert last.granted_at <= 4.0 + TURN_SECONDS + REFRESH_SECONDS


def test_everyone_before_it_vanishes_at_once() -> None:
    """The holder too: its ttl has to pass, then one turn for each client before us, at most."""
    gone = [Member(f"dead{n}", f"d{n}", "exclusive", n / 100, 50.0, dies_at=1.0) for n in range(4)]
    last = Member("last", "l", "exclusive", 0.5, 1.0)
    Crowd("lock", [*gone, last], TTL).run(until=100.0)
    assert last.granted_at is not None
    assert last.granted_at <= TTL + REFRESH_SECONDS, "the places of the dead had expired by then"


def test_an_unfair_attempt_passes_waiters_and_a_fair_one_does_not() -> None:
    for fair, order in ((False, ["holder", "late", "waiter"]), (True, ["holder", "waiter", "late"])):
        holder = Member("holder", "h", "exclusive", 0.0, 4.0)
        waiter = Member("waiter", "w", "exclusive", 0.1, 1.0)
        # It comes at the very moment of the release, before the waiter that was woken can ask.
        late = Member("late", "b", "exclusive", 4.0, 1.0, fair=fair)
        crowd = Crowd("lock", [holder, waiter], TTL)
        crowd.run(until=3.9)
        crowd.members.append(late)
        crowd.release_with_a_newcomer(holder, late)
        assert crowd.run_on(until=100.0).granted == order


def test_a_writer_is_not_starved_by_readers() -> None:
    readers = [Member(f"r{n}", f"r{n}", "read", n * 0.5, 1.0) for n in range(40)]
    writer = Member("writer", "w", "write", 3.2, 1.0)
    Crowd("rwlock", [*readers, writer], TTL).run(until=100.0)
    assert writer.granted_at is not None
    assert writer.granted_at <= 3.2 + 1.0, "only the readers before it are waited for"


@pytest.mark.parametrize("name", [None, "dead_head_stays"])
def test_a_head_that_never_leaves_is_noticed(name: str | None) -> None:
    """The same crowd with the rules as they are, and with turns that are never missed."""
    holder = Member("holder", "h", "exclusive", 0.0, 2.0)
    head = Member("head", "d", "exclusive", 0.1, 1.0, dies_at=1.9)
    last = Member("last", "l", "exclusive", 0.5, 1.0)
    crowd = Crowd("lock", [holder, head, last], TTL)
    if name is not None:
        crowd.rule = MUTANTS[name]
    crowd.run(until=1000.0)
    assert (last.granted_at is not None) == (name is None)
