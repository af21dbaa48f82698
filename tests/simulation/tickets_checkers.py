"""What must hold of every schedule of the tickets family: what holds of the records, and what is its own.

A ticket holds when those before it are gone; nobody writes that down. So what counts as granted is told by
the clients: by when they began to rely on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from holdfast.rules.record import Record
from holdfast.rules.requests import Acquire, Broken, Renew
from holdfast.rules.tickets import LockConfig, Ticket, Watched, watched
from simulation import checkers
from simulation.checkers import AFTER_EFFECTS_SECONDS, HAND_OFF_SECONDS, ROUNDING_SECONDS, Evidence
from simulation.schedules import Run
from simulator import Changed, LetGo

__all__ = ["TICKETS_CHECKERS", "check"]


def tokens(seen: Evidence) -> Iterator[str]:
    """Each new holder has a larger token than every holder before it, and so has the number of a break. (A
    holder may look like one who waits for a moment, while a semaphore's limit is lowered.)"""
    for name, changes in seen.changes.items():
        highest, whose = 0, ""
        known: set[tuple[str, int]] = set()
        for change in changes:
            grants = [(h.nonce, h.token) for h in change.after.holders]
            if isinstance(change.reply, Broken) and change.reply.token:
                grants.append(("the break", change.reply.token))
            for nonce, token in grants:
                if (nonce, token) in known:
                    continue
                known.add((nonce, token))
                if token <= highest:
                    yield f"{name!r} at {change.at:.4f} s: {token} for {nonce}, after {highest} for {whose}"
                highest, whose = max(token, highest), nonce


def one_grant_per_attempt(seen: Evidence) -> Iterator[str]:
    """An attempt is granted once, and never once its client has given it back; unless it was handed over, or
    what was granted ran out before its client heard of it."""
    began: dict[tuple[str, str], list[float]] = defaultdict(list)
    for belief in seen.beliefs:
        if belief.deadline > belief.began:
            began[belief.client, belief.state.nonce].append(belief.began)
    session_reported_ended: dict[tuple[str, str], tuple[float, str]] = {}
    for event in seen.run.world.trace:
        if isinstance(event, LetGo):
            session_reported_ended.setdefault((event.client, event.nonce), (event.at, event.how))
    for (client, nonce), times in began.items():
        at, how = session_reported_ended.get((client, nonce), (inf, ""))
        if how in ("Export", "exported"):
            continue
        if len(times) > 1:
            yield f"{nonce}: granted {len(times)} times, at {times}"
        elif times[0] > at:
            yield f"{nonce}: granted at {times[0]:.4f} s, after it was given back at {at:.4f} s"


def deadlines(seen: Evidence) -> Iterator[str]:
    """Nobody relies on a grant for longer than the session lives that carries its ticket."""
    clock = seen.run.world.node.clock
    expiries: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for changes in seen.changes.values():
        for change in changes:
            for holder in change.after.holders:
                expiries[holder.nonce].append((change.at, clock.when(holder.expires_at)))
            for waiter in change.after.queue:
                expiries[waiter.nonce].append((change.at, clock.when(waiter.expires_at)))
    for known in expiries.values():
        known.sort(key=lambda entry: entry[0])
    for at, nonce, deadline in seen.moves:
        known = expiries.get(nonce, [])
        index = bisect_right(known, at, key=lambda entry: entry[0]) - 1
        if index < 0:
            yield f"{nonce} at {at:.4f} s: relied on, never granted"
        elif deadline > known[index][1] + ROUNDING_SECONDS:
            yield (
                f"{nonce} at {at:.4f} s: relied on until {deadline:.4f} s, "
                f"its session lives until {known[index][1]:.4f} s"
            )


def prompt_grant(seen: Evidence) -> Iterator[str]:
    """Where nothing is wrong, who waited has the lock a few messages after those before it have gone: no
    wake-up is lost, and everyone waits for the right one."""
    began: dict[str, float] = {}
    for belief in seen.beliefs:
        began.setdefault(belief.state.nonce, belief.began)
    for name, changes in seen.changes.items():
        due: dict[str, float] = {}
        involved: set[str] = set()
        for change in changes:
            involved.update(waiter.nonce for waiter in change.before.queue)
            waited = {waiter.nonce for waiter in change.before.queue}
            held = {holder.nonce for holder in change.after.holders}
            for nonce in held & waited:
                due.setdefault(nonce, change.at)
            for nonce in [n for n in due if n not in held]:
                since = due.pop(nonce)
                until = min(began.get(nonce, inf), change.at)
                if until - since <= HAND_OFF_SECONDS:
                    continue
                # One who got its permit tells the next: the trouble of one is felt by those behind it.
                if not any(seen.troubled(other, since, until) for other in {nonce, *involved}):
                    yield (
                        f"{name!r}: {nonce} could have it from {since:.4f} s, "
                        f"and did not for {until - since:.3f} s"
                    )


def wake_ups(seen: Evidence) -> Iterator[str]:
    """No waiter is woken for nothing: it had just this one to wait for. (One whose session was lost may
    still hear of those who were before its old place.)"""
    for name, changes in seen.changes.items():
        for change in changes:
            vain = [
                wake.nonce
                for wake in change.wakes
                if not _concerned(change, wake.nonce)
                and not seen.troubled(wake.nonce, change.at - AFTER_EFFECTS_SECONDS, change.at)
            ]
            if vain:
                yield f"{name!r} at {change.at:.4f} s: {', '.join(vain)} woken for nothing"


def _concerned(change: Changed, nonce: str) -> bool:
    before, after = change.before, change.after
    if isinstance(change.request, Acquire) or not any(w.nonce == nonce for w in before.queue):
        return True  # one who watches the name, or who has it by now
    if any(holder.nonce == nonce for holder in after.holders):
        return True
    waits_for = _waits_for(before, nonce)
    touched = _present(before) - _present(after)
    if isinstance(change.request, Renew):
        touched.add(change.request.nonce)
    return bool(touched & set(waits_for.nonces)) or (waits_for.limit and before.limit != after.limit)


def _present(record: Record) -> set[str]:
    return {holder.nonce for holder in record.holders} | {waiter.nonce for waiter in record.queue}


def _waits_for(record: Record, nonce: str) -> Watched:
    """By the rule itself, from what stood there."""
    modes = {h.nonce: h.mode for h in record.holders} | {w.nonce: w.mode for w in record.queue}
    tickets = [
        Ticket(order, 0, each, "", "", record.kind or "lock", mode, 1.0, 0.0, None, {})
        for order, (each, mode) in enumerate(modes.items(), start=1)
    ]
    (me,) = [ticket for ticket in tickets if ticket.nonce == nonce]
    config = LockConfig(record.kind or "lock", record.declared, record.limit, len(record.holders))
    return watched(tickets, me, config)


OWN: Final = {
    checker.__name__.replace("_", " "): checker
    for checker in (tokens, one_grant_per_attempt, deadlines, prompt_grant, wake_ups)
}

TICKETS_CHECKERS: Final[dict[str, Callable[[Evidence], Iterator[str]]]] = {
    **{name: checker for name, checker in checkers.CHECKERS.items() if name != "prompt hand off"},
    **OWN,
}


def check(run: Run) -> dict[str, list[str]]:
    """Everything that is wrong, by checker; nothing: all is well."""
    seen = Evidence(run)
    found = {name: list(checker(seen)) for name, checker in TICKETS_CHECKERS.items()}
    return {name: wrong for name, wrong in found.items() if wrong}
