"""Deadlocks of threads and tasks that take locks one by one, across processes and hosts.

A thread or task that holds something and has waited for more than a second publishes what it waits for and
what it holds. It publishes this as the metadata of a read lease: the lease ends with the wait, and with its
client. Then it follows the edges: from the name that it waits for to the holders, from these to what they
wait for. The records of the locks have the last word about who holds and who waits.

A cycle counts if two reads, one after the other, show the same attempts waiting for the same grants: then all
of them existed together in between. A deadlock does not go away by itself, so every waiter finds the same
one, and all choose the same victim.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from ..core.arguments import Spec
from ..core.effects import Apply, TransientError
from ..core.printable import printable
from ..errors import Deadlock, EngineUnavailable, HoldfastError, Unsupported
from ..model import Guarantees, WaitEdge
from ..protocols import records
from ..protocols.client_state import ClientState, LeaseState
from ..rules.record import Record
from ..rules.requests import Inspect, Snapshot
from .names import waits
from .wait_graph import NONCE_TAIL, Knot, WaitEntry, edges_of, find_knots

__all__ = ["DeadlockWatch", "check_engine", "deadlocks", "describe_cycle"]

log = logging.getLogger("holdfast")

LOOK_SECONDS_MIN: Final = 1.0
LOOK_SECONDS_MAX: Final = 5.0
"""Between two searches, growing with the time of the wait: most deadlocks are there from the start."""

HELD_READ_MAX: Final = 8
"""For so many names that a waiter holds, one search reads which clients wait for them."""

PUBLISHED_MAX: Final = 64
"""So many waiters of one client publish at a time: a reader reads everything that a client has published."""

HELD_MAX: Final = 200
"""How many grants one waiter publishes, the newest first: more would not fit into metadata."""

KEYS: Final = frozenset({"attempt", "name", "mode", "victim", "held"})
"""Of the metadata that a waiter publishes."""

NAMES_MAX: Final = 1000
"""How many names one search reads."""


def check_engine(promised: Guarantees) -> None:
    """Refuse an engine without a view of waiters and what they wait for, before any I/O."""
    if "rwlock" not in promised.primitives:
        raise Unsupported(
            f"{promised.engine} cannot tell deadlocks: its nodes know the holders of a name, and have no one "
            "place that shows who waits for it. Use sqlite://, redis://, etcd://, zookeeper:// or "
            "postgresql://"
        )


def describe_cycle(cycle: Sequence[WaitEdge]) -> str:
    """The cycle in one line, for logs and errors."""
    return ", ".join(
        f"{printable(edge.owner)} waits for {edge.name!r}, held by {printable(edge.held_by)} "
        f"(token {edge.token})"
        for edge in cycle
    )


# --- what waiters publish -----------------------------------------------------------------------


def encode(entry: WaitEntry) -> dict[str, str]:
    return {
        "attempt": entry.attempt,
        "name": entry.name,
        "mode": entry.mode,
        "victim": "yes" if entry.can_be_victim else "no",
        "held": " ".join(sorted(entry.held)),
    }


def decode(record: Record) -> list[WaitEntry]:
    """The published waits of one record. Entries in the unknown format of another version are left out."""
    return [
        WaitEntry(
            said["attempt"],
            holder.client,
            holder.owner,
            said["name"],
            said["mode"],
            said["victim"] == "yes",
            frozenset(said["held"].split()),
        )
        for holder in record.holders
        if holder.client and (said := holder.metadata).keys() >= KEYS
    ]


def held_by(attempt: records.Attempt) -> list[LeaseState]:
    """What the waiting thread or task holds through the same client, the newest first."""
    leases = list(attempt.client_state.leases.values())
    mine = [each for each in leases if each.caller == attempt.caller and each.ended is None]
    return sorted(mine, key=lambda state: state.token, reverse=True)[:HELD_MAX]


# --- reading ------------------------------------------------------------------------------------


async def _read(name: str) -> Record:
    reply = await Apply(name, Inspect())
    if not isinstance(reply, Snapshot):
        raise EngineUnavailable(f"the engine answered {type(reply).__name__} for {name!r}")
    return reply.record


async def read_knots(start: Iterable[WaitEntry], shows_waiters: bool) -> list[Knot]:
    """The deadlocks that can be reached from these waiters. Every name and every client is read once."""
    entries = {entry.attempt: entry for entry in start}
    found: dict[str, Record] = {}
    published: dict[str, list[WaitEntry]] = {}
    names = list(dict.fromkeys(entry.name for entry in entries.values()))
    while names and len(found) < NAMES_MAX:
        name = names.pop()
        found[name] = record = await _read(name)
        for holder in record.holders:
            place = waits(holder.client)
            if place not in published:
                published[place] = decode(await _read(place))
            for entry in published[place]:
                if entry.holds(holder) and entry.attempt not in entries:
                    entries[entry.attempt] = entry
                    if entry.name not in found and entry.name not in names:
                        names.append(entry.name)
    return find_knots(found, entries.values(), shows_waiters)


async def deadlocks(client_state: ClientState, shows_waiters: bool) -> list[tuple[WaitEdge, ...]]:
    """The cycles of all waiters that have waited for more than a second."""
    first = await _all_knots(client_state, shows_waiters)
    if not first:
        return []
    confirmed = edges_of(await _all_knots(client_state, shows_waiters))
    return [knot.cycle() for knot in first if knot.edges in confirmed]


async def _all_knots(client_state: ClientState, shows_waiters: bool) -> list[Knot]:
    places = await records.list_names(client_state, records.WAITS)
    entries = {entry.attempt: entry for _, snapshot in places for entry in decode(snapshot.record)}
    found = {}
    for name in {entry.name for entry in entries.values()}:
        found[name] = (await records.inspect(client_state, name)).record
    return find_knots(found, entries.values(), shows_waiters)


# --- a waiter -----------------------------------------------------------------------------------


class DeadlockWatch:
    """What one attempt does beside a long wait."""

    __slots__ = ("attempt", "entry", "lease", "looks", "reported", "shows_waiters")

    def __init__(self, attempt: records.Attempt, shows_waiters: bool) -> None:
        self.attempt = attempt
        self.shows_waiters = shows_waiters
        self.entry: WaitEntry | None = None
        """As published."""
        self.lease: LeaseState | None = None
        """It carries the entry."""
        self.looks = 0
        self.reported: frozenset[tuple[str, str]] | None = None
        """The deadlock that was written to the log."""

    async def look(self) -> float:
        """Look for a deadlock of this waiter. Returns the seconds until the next look."""
        held = held_by(self.attempt)
        if not held:
            return inf  # no one waits for this waiter
        self.looks += 1
        knot = None
        try:
            if self.lease is not None or await self._is_in_the_way(held):
                entry = await self._publish(held)
                knot = await self._confirmed_knot(entry)
        except (TransientError, HoldfastError) as trouble:
            log.debug("holdfast: looking for a deadlock failed: %s", trouble)
        if knot is not None:
            self._act(knot)
        return min(max(LOOK_SECONDS_MIN, self.looks / 4), LOOK_SECONDS_MAX)

    async def end(self, is_granted: bool) -> None:
        """The wait is over. If it was in vain, other waiters must not find the entry any more: the thread or
        task goes on."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        self.attempt.client_state.published_waits -= 1
        if lease.ended is None:
            await records.abandon(self.attempt.client_state, lease, wait=not is_granted)

    async def _is_in_the_way(self, held: list[LeaseState]) -> bool:
        """Whether another waiter may wait for what this one holds. If not, it is in no cycle; and most
        waiters are in none, so that few of them publish anything."""
        if self.attempt.client_state.published_waits >= PUBLISHED_MAX:
            return False
        if not self.shows_waiters:
            return True
        begin = (self.looks - 1) * HELD_READ_MAX % len(held)
        for state in held[begin : begin + HELD_READ_MAX]:
            if (await _read(state.name)).queue:
                return True
        return False

    async def _publish(self, held: list[LeaseState]) -> WaitEntry:
        attempt, spec = self.attempt, self.attempt.spec
        entry = WaitEntry(
            attempt.nonce,
            attempt.client_state.client,
            attempt.owner,
            spec.name,
            spec.mode,
            spec.deadlock == "raise",
            frozenset([state.nonce[-NONCE_TAIL:] for state in held]),
        )
        if self.lease is not None:
            if self.entry == entry and self.lease.loss(attempt.client_state.now()) is None:
                return entry
            await self.end(is_granted=True)
        place = Spec(
            name=waits(attempt.client_state.client),
            kind="rwlock",
            mode="read",
            ttl=spec.ttl,
            timeout=0.0,
            fair=True,
            renew=True,
            max_hold=None,
            grace=0.0,
            if_lost="note",
            metadata=encode(entry),
            deadlock="ignore",
        )
        lease = await records.acquire(attempt.client_state, place, attempt.owner, 0.0)
        if isinstance(lease, LeaseState):
            attempt.client_state.published_waits += 1
            self.entry, self.lease = entry, lease
        return entry

    async def _confirmed_knot(self, entry: WaitEntry) -> Knot | None:
        first = await self._own_knot(entry)
        if first is None:
            return None
        second = await self._own_knot(entry)
        return second if second is not None and second.edges == first.edges else None

    async def _own_knot(self, entry: WaitEntry) -> Knot | None:
        """The deadlock that this waiter is part of; it may also wait for one without being part of it."""
        knots = await read_knots([entry], self.shows_waiters)
        return next((knot for knot in knots if entry.attempt in knot.waiters), None)

    def _act(self, knot: Knot) -> None:
        spec = self.attempt.spec
        if knot.victim == self.attempt.nonce:
            cycle = knot.cycle()
            error = Deadlock(
                f"the {spec.kind} {spec.name!r} would never be granted: {describe_cycle(cycle)}. "
                "This waiter was chosen to give up: release what it holds, and try again"
            )
            error.name, error.cycle = spec.name, cycle
            raise error
        if spec.deadlock == "warn" and knot.edges != self.reported:
            self.reported = knot.edges
            log.warning("holdfast: deadlock: %s", describe_cycle(knot.cycle()))
