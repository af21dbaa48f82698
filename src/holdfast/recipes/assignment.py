"""Which member of a group is to own which partition: pure functions, and the state that a group stores.

An assignment follows from the one before it. A partition stays with its owner unless the owner is gone, or
has more than its share; so a death moves the partitions of the dead member alone, and a join moves no more
than the share of the newcomer. Where a partition has to move, rendezvous hashing chooses among the members
with room, so that every member computes the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

__all__ = ["State", "balanced", "decode", "encode", "next_state", "partition_of", "partitions_of"]

FORMAT: Final = 1

NOBODY: Final = -1


class State(NamedTuple):
    """The contents of the cell of a group."""

    generation: int
    """How often the assignment has changed."""
    members: Mapping[str, float]
    """Each member, and for how many seconds its partitions are kept while it is away; 0: not at all."""
    owners: tuple[str | None, ...]
    """Which member is to own each partition."""


# --- keys ---------------------------------------------------------------------------------------


def partition_of(key: str | bytes, partitions: int) -> int:
    """The partition of a key; the same in every process and version."""
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else bytes(key)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") % partitions


def _weight(member: str, partition: int) -> bytes:
    """Of the members that could take a partition, the one with the largest weight does."""
    return blake2b(f"{partition}/{member}".encode(), digest_size=8).digest()


# --- assignments --------------------------------------------------------------------------------


def balanced(owners: Sequence[str | None], members: Collection[str]) -> tuple[str | None, ...]:
    """The assignment that follows when these are the members: each has its share, the largest at most one
    more than the smallest, and as few partitions as possible move."""
    if not members:
        return (None,) * len(owners)
    owned: dict[str, list[int]] = {name: [] for name in sorted(members)}
    pending: list[int] = []
    for partition, owner in enumerate(owners):
        owned.get(owner or "", pending).append(partition)
    share, more = divmod(len(owners), len(owned))
    by_load = sorted(owned, key=lambda name: (-len(owned[name]), name))
    room: dict[str, int] = {}
    for index, name in enumerate(by_load):
        room[name] = share + (index < more) - len(owned[name])
        if room[name] < 0:
            mine = sorted(owned[name], key=partial(_weight, name))
            pending += mine[: -room[name]]
    result = list(owners)
    for partition in sorted(pending):
        takers = [name for name in room if room[name] > 0]
        taker = max(takers, key=lambda name: _weight(name, partition))
        room[taker] -= 1
        result[partition] = taker
    return tuple(result)


def next_state(state: State, present: Mapping[str, float], given_up: Collection[str] = ()) -> State:
    """The state that follows when these members are present; the same one, if nothing has changed.

    ``present``: each with the seconds for which its partitions are to be kept while it is away.
    ``given_up``: the members that were away for longer than that, or that left.
    """
    members = {
        name: seconds
        for name, seconds in state.members.items()
        if name not in given_up and (name in present or seconds > 0)
    }
    members.update({name: seconds for name, seconds in present.items() if name not in given_up})
    if members == state.members:
        return state
    owners = balanced(state.owners, members)
    return State(state.generation + 1, dict(sorted(members.items())), owners)


def partitions_of(state: State, member: str) -> frozenset[int]:
    """The partitions that this member is to own."""
    return frozenset(partition for partition, owner in enumerate(state.owners) if owner == member)


# --- what is stored -----------------------------------------------------------------------------


def encode(state: State) -> bytes:
    place = {name: index for index, name in enumerate(state.members)}
    owners = [NOBODY if owner is None else place[owner] for owner in state.owners]
    stored = [FORMAT, state.generation, list(state.members.items()), owners]
    return json.dumps(stored, separators=(",", ":")).encode()


def decode(data: bytes | None, partitions: int = 0) -> State:
    """Raises ValueError for bytes that no group has written. Never set: none of ``partitions`` has an
    owner."""
    if data is None:
        return State(0, {}, (None,) * partitions)
    try:
        version, generation, members, owners = json.loads(data)
        if version != FORMAT:
            raise ValueError(f"format {version!r}")
        names = [name for name, _ in members]
        return State(
            generation,
            {name: float(seconds) for name, seconds in members},
            tuple(None if index == NOBODY else names[index] for index in owners),
        )
    except (TypeError, IndexError) as error:
        raise ValueError(str(error)) from error
