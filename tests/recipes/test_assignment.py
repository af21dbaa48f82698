"""Which member is to own which partition: balanced, the same for every member, and few partitions move."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.recipes import assignment
from holdfast.recipes.assignment import balanced, decode, encode, next_state, partition_of
from support.thorough import examples

MEMBERS = st.sets(st.sampled_from([f"m{index}" for index in range(12)]), max_size=12)


def moved(before: tuple[str | None, ...], after: tuple[str | None, ...]) -> int:
    return sum(old != new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("workers", [2, 3, 10, 40])
def test_a_death_moves_the_share_of_the_dead_and_no_more(workers: int) -> None:
    """1,000 keys over 10 workers: 100 of them move, where 120 would be allowed."""
    members = [f"worker-{number}" for number in range(workers)]
    before = balanced((None,) * 1000, members)
    after = balanced(before, members[1:])
    share = Counter(before)[members[0]]
    assert share in (1000 // workers, -(-1000 // workers))
    assert moved(before, after) == share
    back = balanced(after, members)
    assert moved(after, back) == 1000 // workers


@given(st.integers(1, 60), st.lists(MEMBERS, min_size=1, max_size=8))
@settings(max_examples=examples(100))
def test_loads_differ_by_one_at_most_and_as_few_as_possible_move(
    partitions: int, history: list[set[str]]
) -> None:
    owners: tuple[str | None, ...] = (None,) * partitions
    for members in history:
        after = balanced(owners, members)
        assert after == balanced(owners, sorted(members, reverse=True)), "the order must not matter"
        assert balanced(after, members) == after, "nothing moves without a change"
        if not members:
            assert set(after) == {None}
        else:
            loads = Counter(dict.fromkeys(members, 0))
            loads.update(name for name in after if name is not None)
            assert set(loads) == members
            assert max(loads.values()) - min(loads.values()) <= 1
            assert moved(owners, after) == fewest_moves(owners, members)
        owners = after


def fewest_moves(owners: tuple[str | None, ...], members: set[str]) -> int:
    """Each member keeps what fits into its share; the largest loads get the larger shares."""
    share, more = divmod(len(owners), len(members))
    loads = sorted((sum(owner == name for owner in owners) for name in members), reverse=True)
    return len(owners) - sum(min(load, share + (index < more)) for index, load in enumerate(loads))


def test_members_come_go_and_are_kept() -> None:
    state = decode(None, 6)
    assert next_state(state, {}) is state
    both = next_state(state, {"web-1": 10.0, "b": 0.0})
    assert both.generation == 1
    assert sorted(both.members) == ["b", "web-1"]
    assert next_state(both, {"b": 0.0}) is both, "web-1 has a name, and may come back"
    alone = next_state(both, {"b": 0.0}, {"web-1"})
    assert alone.owners == ("b",) * 6
    assert next_state(alone, {}).owners == (None,) * 6
    kept = next_state(both, {"web-1": 10.0})
    assert kept.owners == ("web-1",) * 6


@given(MEMBERS, st.integers(1, 50))
@settings(max_examples=examples(50))
def test_what_is_stored_is_read_back(members: set[str], partitions: int) -> None:
    state = next_state(decode(None, partitions), {name: float(len(name) % 2) for name in members})
    again = decode(encode(state))
    assert again == state
    for name in members:
        mine = assignment.partitions_of(again, name)
        assert mine == {index for index, owner in enumerate(state.owners) if owner == name}


def test_the_largest_assignment_fits_into_a_cell() -> None:
    members = {f"{index:0>64}": 10.0 for index in range(500)}
    assert len(encode(next_state(decode(None, 4096), members))) < 64 * 1024 - 300


@pytest.mark.parametrize("stored", [b"", b"[]", b"7", b"[2,0,[],[]]", b'[1,1,[["a",0]],[1]]'])
def test_other_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it is, the recipe wraps it
        decode(stored)


def test_the_partition_of_a_key_never_changes() -> None:
    """Part of the format: another version would send a key to another partition, and so to another member."""
    keys: list[str | bytes] = ["customer-7", b"customer-7", "é", b"", "\ud800"]
    assert [partition_of(key, 64) for key in keys] == EXPECTED
    counts = Counter(partition_of(f"key-{number}", 10) for number in range(10_000))
    assert max(counts.values()) < 1200


EXPECTED = [26, 26, 47, 52, 40]
