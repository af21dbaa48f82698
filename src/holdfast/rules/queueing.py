"""How the queue moves: turns, the removal of dead clients, admission. Shared by every primitive.

No client writes down that a lease expired or that a turn was missed. ``settle`` computes what the passing of
time did to a record, event by event in order of time, so that every reader sees the same. The waiters with a
turn are always the front of the queue: as many as can be admitted together. Each has ``TURN_SECONDS`` from
the moment its turn began. A missed turn removes every place of that client, so that a dead process costs one
turn and not one for each of its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .record import TURN_SECONDS, Holder, Record, Waiter

__all__ = ["Admits", "drop_clients", "give_turns", "may_pass", "next_event_at", "poll_after", "settle"]

Admits = Callable[[Sequence[str], str, int], bool]
"""``admits(modes held, mode wanted, limit)``: the one predicate by which primitives differ."""


def next_event_at(record: Record) -> float | None:
    """When the passing of time next changes this record; None: never."""
    soonest: float | None = None
    for holder in record.holders:
        at = holder.expires_at
        if soonest is None or at < soonest:
            soonest = at
    for waiter in record.queue:
        at = waiter.expires_at
        if waiter.turn_at is not None and waiter.turn_at + TURN_SECONDS < at:
            at = waiter.turn_at + TURN_SECONDS
        if soonest is None or at < soonest:
            soonest = at
    return soonest


def settle(record: Record, now: float, admits: Admits) -> Record:
    """The record at ``now``: without expired leases and missed turns, and with the turns that follow."""
    if not record.holders and not record.queue:
        return record
    while True:
        at = next_event_at(record)
        if at is None or at > now:
            return record
        record = _pass_event(record, at, admits)


def _pass_event(record: Record, at: float, admits: Admits) -> Record:
    """The record after the event at the moment ``at``."""
    late = {w.client for w in record.queue if w.turn_at is not None and w.turn_at + TURN_SECONDS <= at}
    holders = tuple(h for h in record.holders if h.expires_at > at)
    queue = tuple(w for w in record.queue if w.expires_at > at and w.client not in late)
    return give_turns(record._replace(holders=holders, queue=queue), at, admits)


def give_turns(record: Record, at: float, admits: Admits) -> Record:
    """The record with turns for the longest front of the queue that can be admitted together."""
    if not record.queue:
        return record
    modes = [holder.mode for holder in record.holders]
    queue: list[Waiter] = []
    open_so_far = True
    for index, waiter in enumerate(record.queue):
        open_so_far = open_so_far and admits(modes, waiter.mode, record.limit)
        if open_so_far:
            modes.append(waiter.mode)
            queue.append(waiter if waiter.turn_at is not None else waiter._replace(turn_at=at))
        elif waiter.turn_at is not None:
            queue.append(waiter._replace(turn_at=None))
        else:
            # Turns are a front of the queue: behind the first waiter without one, no waiter has one.
            queue.extend(record.queue[index:])
            break
    return record._replace(queue=tuple(queue))


def may_pass(record: Record, mode: str, fair: bool, admits: Admits) -> bool:
    """Whether an attempt that is not in the queue is admitted now. A fair one comes after all waiters."""
    modes = [holder.mode for holder in record.holders]
    if fair and record.queue:
        for waiter in record.queue:
            if waiter.turn_at is None:
                return False
            modes.append(waiter.mode)
    return admits(modes, mode, record.limit)


def poll_after(record: Record, position: int, now: float) -> float:
    """Seconds until the waiter at ``position`` should poll, even if it is not woken."""
    at = next_event_at(record)
    if at is None or record.queue[position].turn_at is not None:
        return 0.0
    ahead = sum(1 for waiter in record.queue[:position] if waiter.turn_at is None)
    return max(at - now, 0.0) + ahead * TURN_SECONDS


def blockers(record: Record, position: int) -> tuple[str, ...]:
    """The clients whose death would move the waiter at ``position``: the holders, the waiter before it."""
    clients = {holder.client: None for holder in record.holders}
    if position:
        clients[record.queue[position - 1].client] = None
    clients.pop("", None)
    return tuple(clients)


def drop_clients(record: Record, dead: Collection[str], now: float, admits: Admits) -> Record:
    """The record without the claims of clients that are known to be dead."""
    if not dead:
        return record
    holders = tuple(h for h in record.holders if h.client not in dead)
    queue = tuple(w for w in record.queue if w.client not in dead)
    watchers = tuple(w for w in record.watchers if w.client not in dead)
    if len(holders) == len(record.holders) and len(queue) == len(record.queue):
        return record if len(watchers) == len(record.watchers) else record._replace(watchers=watchers)
    return give_turns(record._replace(holders=holders, queue=queue, watchers=watchers), now, admits)


def find_holder(record: Record, nonce: str) -> Holder | None:
    for holder in record.holders:
        if holder.nonce == nonce:
            return holder
    return None


def find_waiter(record: Record, nonce: str) -> int | None:
    for index, waiter in enumerate(record.queue):
        if waiter.nonce == nonce:
            return index
    return None
