"""The wait-for graph: which waiters can never be served, because they wait for each other.

Pure functions of what was read: the records of locks, and the waits that waiters have published. A waiter for
exclusive access, or to read or write, waits for all holders that are in its way: one that never releases is
enough. A waiter for a permit waits until any holder releases: only if none of them ever will, it is stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from ..model import Mode, WaitEdge
from ..rules.record import Holder, Record

__all__ = ["Blocker", "Knot", "WaitEntry", "blocking_holders", "edges_of", "find_knots"]

NONCE_TAIL = 16
"""So much of a nonce identifies a grant of one client."""


class WaitEntry(NamedTuple):
    """One waiting thread or task, as it has published itself."""

    attempt: str
    """The nonce of its attempt. It has one at a time, so this names the waiter, too."""
    client: str
    owner: str
    name: str
    """The name that it waits for."""
    mode: str
    can_be_victim: bool
    """It asked for ``Deadlock``."""
    held: frozenset[str]
    """The grants that it holds: the ends of their nonces."""

    def holds(self, holder: Holder) -> bool:
        return holder.client == self.client and holder.nonce[-NONCE_TAIL:] in self.held


class Blocker(NamedTuple):
    """A grant that is in the way of a waiter, and the waiter that holds it."""

    attempt: str
    """Of the waiter that holds it; empty: its holder does not wait, as far as is known."""
    nonce: str
    owner: str
    token: int


class Waiter(NamedTuple):
    entry: WaitEntry
    blockers: tuple[Blocker, ...]
    needs_one: bool
    """It is served when any of the blockers releases, not only when all do."""


@dataclass(frozen=True, slots=True)
class Knot:
    """Waiters of which each waits for others of them, and for nothing else that could still come."""

    waiters: Mapping[str, Waiter]
    edges: frozenset[tuple[str, str]]
    """Attempt, and nonce of the grant that it waits for. Neither is used twice: so if the same edges are read
    twice, all of them existed together between the two reads."""
    victim: str | None
    """The attempt that has to give up; None: no waiter asked for that."""

    def cycle(self) -> tuple[WaitEdge, ...]:
        """The shortest cycle in it, through the victim if there is one."""
        path = _shortest_cycle(self.waiters, self.victim or max(self.waiters))
        return tuple(
            [
                WaitEdge(
                    owner=waiter.entry.owner,
                    client=waiter.entry.client,
                    name=waiter.entry.name,
                    mode=cast(Mode, waiter.entry.mode),
                    held_by=blocker.owner,
                    token=blocker.token,
                    is_victim=waiter.entry.attempt == self.victim,
                )
                for waiter, blocker in path
            ]
        )


def find_knots(
    records: Mapping[str, Record], entries: Iterable[WaitEntry], shows_waiters: bool
) -> list[Knot]:
    """All deadlocks among these waiters.

    ``records``: of the names that they wait for. A name that is missing was not read: its waiters may be
    served. ``shows_waiters``: a record's queue has every waiter with the nonce of its attempt.
    """
    known = {entry.attempt: entry for entry in entries}
    holders: dict[str, list[WaitEntry]] = {}
    for entry in known.values():
        holders.setdefault(entry.client, []).append(entry)
    waiters = {}
    for entry in known.values():
        in_the_way = blocking_holders(entry, records.get(entry.name), shows_waiters)
        if in_the_way:
            blockers = tuple([_blocker(holder, holders.get(holder.client, ())) for holder in in_the_way])
            waiters[entry.attempt] = Waiter(entry, blockers, entry.mode == "permit")
    return [_knot(members) for members in _knots_among(waiters)]


def blocking_holders(
    entry: WaitEntry, record: Record | None, shows_waiters: bool = True
) -> tuple[Holder, ...]:
    """The grants in the way of a waiter; none: it may be served, or it does not wait any more."""
    if record is None or any(holder.nonce == entry.attempt for holder in record.holders):
        return ()
    places = [waiter.nonce for waiter in record.queue]
    if shows_waiters and entry.attempt not in places:
        return ()
    if entry.mode == "permit":
        return record.holders if len(record.holders) >= record.limit else ()
    if entry.mode == "read" and all(holder.mode == "read" for holder in record.holders):
        before = record.queue[: places.index(entry.attempt)] if shows_waiters else record.queue
        return record.holders if any(waiter.mode == "write" for waiter in before) else ()
    return record.holders


def edges_of(knots: Iterable[Knot]) -> set[frozenset[tuple[str, str]]]:
    return {knot.edges for knot in knots}


def _blocker(holder: Holder, entries: Iterable[WaitEntry]) -> Blocker:
    waits = next((entry.attempt for entry in entries if entry.holds(holder)), "")
    return Blocker(waits, holder.nonce, holder.owner, holder.token)


# --- the search ---------------------------------------------------------------------------------


def _knots_among(waiters: Mapping[str, Waiter]) -> list[dict[str, Waiter]]:
    """The groups that are stuck by themselves. A waiter that only waits for such a group is in none."""
    stuck = _stuck_among(waiters)
    groups = _strongly_connected(stuck)
    if len(groups) == 1 and len(groups[0]) == len(waiters):
        return [stuck]
    return [knot for group in groups for knot in _knots_among({each: stuck[each] for each in group})]


def _stuck_among(waiters: Mapping[str, Waiter]) -> dict[str, Waiter]:
    """Those that are not served even if every other thread and task releases what it holds."""
    stuck = dict(waiters)
    waiting_for: dict[str, list[str]] = {}
    for attempt, waiter in waiters.items():
        for blocker in waiter.blockers:
            waiting_for.setdefault(blocker.attempt, []).append(attempt)
    to_check = list(waiters)
    while to_check:
        attempt = to_check.pop()
        if attempt in stuck and not _is_stuck(stuck[attempt], stuck):
            del stuck[attempt]
            to_check += waiting_for.get(attempt, ())
    return stuck


def _is_stuck(waiter: Waiter, stuck: Mapping[str, Waiter]) -> bool:
    never_released = [blocker.attempt in stuck for blocker in waiter.blockers]
    return all(never_released) if waiter.needs_one else any(never_released)


def _next_of(waiters: Mapping[str, Waiter], attempt: str) -> list[str]:
    return [each.attempt for each in waiters[attempt].blockers if each.attempt in waiters]


def _strongly_connected(waiters: Mapping[str, Waiter]) -> list[list[str]]:
    """The groups in which every waiter waits for every other one, over any number of steps.

    Two searches in depth, the second against the direction of the edges; no recursion, since a chain of
    waiters may be long.
    """
    finished: list[str] = []
    seen: set[str] = set()
    for start in sorted(waiters):
        path = [] if start in seen else [(start, iter(_next_of(waiters, start)))]
        seen.add(start)
        while path:
            following = next((each for each in path[-1][1] if each not in seen), None)
            if following is None:
                finished.append(path.pop()[0])
            else:
                seen.add(following)
                path.append((following, iter(_next_of(waiters, following))))
    before: dict[str, list[str]] = {each: [] for each in waiters}
    for attempt in waiters:
        for following in _next_of(waiters, attempt):
            before[following].append(attempt)
    groups: list[list[str]] = []
    placed: set[str] = set()
    for start in reversed(finished):
        group, open_ends = [], [start]
        while open_ends:
            each = open_ends.pop()
            if each not in placed:
                placed.add(each)
                group.append(each)
                open_ends += before[each]
        if len(group) > 1 or (group and start in before[start]):
            groups.append(group)
    return groups


def _knot(waiters: Mapping[str, Waiter]) -> Knot:
    inside = [
        (attempt, blocker)
        for attempt, waiter in waiters.items()
        for blocker in waiter.blockers
        if blocker.attempt in waiters
    ]
    newest: dict[str, int] = {}
    for _, blocker in inside:
        newest[blocker.attempt] = max(newest.get(blocker.attempt, 0), blocker.token)
    candidates = [each for each, waiter in waiters.items() if waiter.entry.can_be_victim]
    # The waiter that took its lock last has done least with it. Every waiter reads the same tokens.
    victim = max(candidates, key=lambda each: (newest[each], each), default=None)
    edges = frozenset((attempt, blocker.nonce) for attempt, blocker in inside)
    return Knot(waiters, edges, victim)


def _shortest_cycle(waiters: Mapping[str, Waiter], start: str) -> list[tuple[Waiter, Blocker]]:
    """From ``start`` back to it. In a knot, there is a path from every waiter to every other one."""
    came_from: dict[str, tuple[str, Blocker]] = {}
    layer = [start]
    while start not in came_from:
        following = []
        for attempt in layer:
            for blocker in waiters[attempt].blockers:
                if blocker.attempt in waiters and blocker.attempt not in came_from:
                    came_from[blocker.attempt] = attempt, blocker
                    following.append(blocker.attempt)
        layer = following
    path: list[tuple[Waiter, Blocker]] = []
    at = start
    while not path or at != start:
        at, blocker = came_from[at]
        path.append((waiters[at], blocker))
    return path[::-1]
