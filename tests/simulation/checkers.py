"""What must hold of every schedule. Each checker reads a trace and returns what is wrong with it, in words.

They know what the library promises, not how it keeps it, and nothing of the scenarios.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from holdfast.core.effects import Apply, ApplyInOrder
from holdfast.protocols.client_state import LeaseState
from holdfast.rules.record import PATIENCE_SECONDS, Record
from holdfast.rules.requests import Acquire, Break, Broken, Downgrade, Release, Request, Withdraw
from holdfast.rules.transitions import ADMITS
from simulation.schedules import Run
from simulator import (
    Began,
    Changed,
    Copied,
    Crashed,
    Forgot,
    LetGo,
    Moved,
    Noted,
    Stopped,
    Told,
)
from simulator.faults import FORGETS

__all__ = ["CHECKERS", "Evidence", "check"]

ROUNDING_SECONDS: Final = 1e-6

HAND_OFF_SECONDS: Final = 0.2
"""Without faults, the waiter whose turn has come holds within this: a wake-up, a request, and a margin."""

AFTER_EFFECTS_SECONDS: Final = 4.0
"""How long a fault that is over may still be felt: requests that time out, pauses between attempts."""


# --- what the trace tells -----------------------------------------------------------------------


@dataclass(slots=True)
class Belief:
    """One grant as its client sees it, in true time."""

    client: str
    state: LeaseState
    token: int
    began: float
    deadline: float
    """The last one; it is only ever moved before it has come."""
    due: float
    """When a loss has to be reported: the deadline minus the grace."""
    ended: float = inf
    """Released, reported lost, or gone with its client; whichever was first."""
    let_go: float = inf
    how: str = ""
    """In which way it was let go of first."""
    crashed: float = inf
    reported: list[float] = field(default_factory=list)
    returned: float = inf
    """When the one who asked for it got it."""
    raised: list[float] = field(default_factory=list)
    failed: bool = False
    """A release of it failed: what became of it is not known to its client."""

    @property
    def until(self) -> float:
        return min(self.ended, self.deadline)


class Evidence:
    """A trace sorted by what it is about. Made once, read by all checkers."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.changes: dict[str, list[Changed]] = defaultdict(list)
        self.forgot: list[float] = []
        self.beliefs: list[Belief] = []
        self.moves: list[tuple[float, str, float]] = []
        """(at, nonce, deadline) of every grant and every extension that a client took for true."""
        self.broken: dict[str, float] = {}
        self.copied: set[str] = set()
        """Attempts of which the network copied a request."""
        self.released_twice: set[str] = set()
        """Those of which it copied the release."""
        self.pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.notes: list[Noted] = []
        self._crashed: dict[str, float] = {}
        kinds = {fault.kind for fault in run.plan}
        self.forgets = bool(kinds & set(FORGETS))
        self.jumps = "clock jump" in kinds
        self._read()
        self._windows = list(self._troubles())

    def _read(self) -> None:
        current: dict[tuple[str, str], Belief] = {}
        by_client: dict[str, list[Belief]] = defaultdict(list)
        by_state: dict[int, Belief] = {}
        for event in self.run.world.trace:
            if isinstance(event, Changed):
                self.changes[event.name].append(event)
                if isinstance(event.reply, Broken):
                    for victim in event.reply.victims:
                        self.broken[victim.nonce] = event.at
            elif isinstance(event, Began):
                state = event.state
                when = self.run.world.by_id[event.client].clock.when
                belief = Belief(
                    event.client,
                    state,
                    event.token,
                    event.at,
                    when(state.deadline),
                    when(state.deadline - state.grace),
                )
                current[event.client, event.state.nonce] = by_state[id(state)] = belief
                by_client[event.client].append(belief)
                self.beliefs.append(belief)
                self.moves.append((event.at, event.state.nonce, event.deadline))
            elif isinstance(event, Moved):
                self.moves.append((event.at, event.nonce, event.deadline))
            elif isinstance(event, LetGo):
                known = current.get((event.client, event.nonce))
                if known is not None and known.let_go == inf:
                    known.let_go, known.how = event.at, event.how
                    known.ended = min(known.ended, event.at)
            elif isinstance(event, Told):
                belief = by_state[id(event.state)]
                belief.reported.append(event.at)
                belief.ended = min(belief.ended, event.at)
            elif isinstance(event, Crashed):
                self._crashed[event.client] = event.at
                for belief in by_client[event.client]:
                    belief.crashed = event.at
                    belief.ended = min(belief.ended, event.at)
            elif isinstance(event, Stopped):
                self.pauses[event.client].append((event.at, event.until))
            elif isinstance(event, Copied):
                self.copied.update(_nonces(event.op))
                if isinstance(event.op, Apply) and isinstance(event.op.request, Release):
                    self.released_twice.add(event.op.request.nonce)
            elif isinstance(event, Forgot):
                self.forgot.append(event.at)
            else:
                self.notes.append(event)
                if event.what == "got":
                    by_state[id(event.facts[0])].returned = event.at
                else:
                    self._read_note(event, by_client)

    def _read_note(self, event: Noted, by_client: dict[str, list[Belief]]) -> None:
        if event.what == "release failed":
            for belief in by_client[event.client]:
                if belief.state.name == event.facts[0] and belief.let_go <= event.at:
                    belief.failed = True
        elif event.what == "raised loss":
            for belief in by_client[event.client]:
                known = belief.state.reason is not None and belief.token == event.facts[1]
                if known and belief.state.name == event.facts[0]:
                    belief.raised.append(event.at)

    def _troubles(self) -> Iterator[tuple[float, float, int]]:
        """(from, to, machine or −1) of everything that may make a client slow."""
        for fault in self.run.plan:
            if fault.kind == "wall jump":
                continue  # which is no excuse for anything
            everyone = fault.kind.startswith(("node", "clock")) or fault.target < 0
            ends = fault.at + fault.duration + AFTER_EFFECTS_SECONDS
            if fault.kind == "duplicate":
                ends += PATIENCE_SECONDS  # a copy that queues is not known to be in vain any sooner
            yield fault.at, ends, -1 if everyone else fault.target

    def troubled(self, nonce: str, since: float, until: float) -> bool:
        """Whether anything was wrong with the client of this attempt, or with the node."""
        machine = machine_of(nonce)
        if nonce in self.copied or self._crashed.get(nonce[: nonce.index("-")], inf) <= until:
            return True
        return any(
            begins <= until and ends >= since and target in (-1, machine)
            for begins, ends, target in self._windows
        )

    def interrupts(self, nonce: str) -> bool:
        """Whether the client of this attempt was interrupted at some time."""
        machine = machine_of(nonce)
        return any(fault.kind == "interrupt" and fault.target == machine for fault in self.run.plan)

    def forgot_between(self, since: float, until: float) -> bool:
        return any(since <= at <= until for at in self.forgot)


def machine_of(nonce: str) -> int:
    return int(nonce[1 : nonce.index(".")])


def _nonces(op: object) -> list[str]:
    if isinstance(op, Apply):
        # A copy of a downgrade may find a writer again, which another copy brought back.
        return [getattr(op.request, "nonce", ""), getattr(op.request, "reader_nonce", "")]
    if isinstance(op, ApplyInOrder):
        return [getattr(request, "nonce", "") for _, request in op.steps]
    return []


def _new_holders(change: Changed) -> list[tuple[str, int]]:
    if change.before.holders is change.after.holders:
        return []
    known = {(holder.nonce, holder.token) for holder in change.before.holders}
    return [(h.nonce, h.token) for h in change.after.holders if (h.nonce, h.token) not in known]


# --- exclusion ----------------------------------------------------------------------------------


def exclusion(seen: Evidence) -> Iterator[str]:
    """No two clients believe to hold a name at once, beyond what the primitive allows.

    A node that forgets, or whose clock is set, breaks this by nature; then the guard must hold.
    """
    yield from _granted_beyond_the_limit(seen)
    if seen.forgets or seen.jumps:
        return
    by_name: dict[str, list[Belief]] = defaultdict(list)
    for belief in seen.beliefs:
        by_name[belief.state.name].append(belief)
    limits = _limits(seen)
    for name, beliefs in by_name.items():
        active: list[Belief] = []
        for belief in sorted(beliefs, key=lambda b: b.began):
            end = min(belief.until, seen.broken.get(belief.state.nonce, inf))
            if end <= belief.began:
                continue
            active = [
                b
                for b in active
                if min(b.until, seen.broken.get(b.state.nonce, inf)) > belief.began + ROUNDING_SECONDS
            ]
            modes = [b.state.mode for b in active]
            if not ADMITS[belief.state.kind](modes, belief.state.mode, limits.get(name, 0)):
                others = ", ".join(f"{b.client} ({b.state.mode}, token {b.token})" for b in active)
                yield (
                    f"{name!r} at {belief.began:.4f} s: {belief.client} ({belief.state.mode}, "
                    f"token {belief.token}) beside {others}"
                )
            active.append(belief)


def _granted_beyond_the_limit(seen: Evidence) -> Iterator[str]:
    """What clients believe is compared with the largest limit. The node knows the one of the moment. (A
    holder of tickets may look like one who waits for a moment, while the limit is lowered.)"""
    for name, changes in seen.changes.items():
        known: set[tuple[str, int]] = set()
        for change in changes:
            after = change.after
            new = [grant for grant in _new_holders(change) if grant not in known]
            known.update(new)
            if new and after.kind == "semaphore" and len(after.holders) > after.limit:
                yield (
                    f"{name!r} at {change.at:.4f} s: {', '.join(nonce for nonce, _ in new)} got it, "
                    f"{len(after.holders)} hold it, the limit is {after.limit}"
                )


def _limits(seen: Evidence) -> dict[str, int]:
    """The largest limit that a semaphore ever had: making it smaller revokes nobody."""
    limits: dict[str, int] = {}
    for name, changes in seen.changes.items():
        limits[name] = max((change.after.limit for change in changes), default=0)
    return limits


# --- tokens -------------------------------------------------------------------------------------


def tokens(seen: Evidence) -> Iterator[str]:
    """Each grant of a name has a larger token than every grant before it, as its client received it.

    Also after the node forgot, unless its clock was also set back.
    """
    if seen.forgets and any(f.kind == "clock jump" and f.amount < 0 for f in seen.run.plan):
        return
    order: dict[str, list[tuple[float, int]]] = defaultdict(list)
    """nonce → (at, number in the order of grants) of each time it was granted"""
    number = 0
    for name, changes in seen.changes.items():
        highest, whose = 0, ""
        for change in changes:
            grants = _new_holders(change)
            if isinstance(change.request, Break) and isinstance(change.reply, Broken) and change.reply.token:
                grants.append(("the break", change.reply.token))
            for nonce, token in grants:
                number += 1
                order[nonce].append((change.at, number))
                if token <= highest:
                    yield f"{name!r} at {change.at:.4f} s: {token} for {nonce}, after {highest} for {whose}"
                highest, whose = max(token, highest), nonce
    yield from _tokens_as_told(seen, order)


def _tokens_as_told(seen: Evidence, order: dict[str, list[tuple[float, int]]]) -> Iterator[str]:
    reported: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for belief in seen.beliefs:
        grants = order.get(belief.state.nonce, [])
        index = bisect_right(grants, (belief.began, 1 << 60)) - 1
        if index >= 0:
            reported[belief.state.name].append((grants[index][1], belief.state.token, belief.state.nonce))
    for name, grants_told in reported.items():
        last = (0, 0, "")
        for grant in sorted(grants_told):
            if grant[0] != last[0] and grant[1] <= last[1]:
                yield f"{name!r}: {grant[2]} after {last[2]}, with token {grant[1]} after {last[1]}"
            last = grant


def one_grant_per_attempt(seen: Evidence) -> Iterator[str]:
    """An attempt is granted once, however often it is asked again, and never once it was withdrawn.

    A copy made by the network, or a node that forgot, may do that; it then expires with its ttl. And one that
    was granted, but never heard of it before it expired, may ask again.
    """
    if seen.jumps:
        return  # the node's clock decides what is remembered, and for how long
    clock = seen.run.world.node.clock
    for name, changes in seen.changes.items():
        granted: dict[str, float] = {}
        over: dict[str, float] = {}
        expiries: dict[str, float] = {}
        for change in changes:
            request = change.request
            for nonce, _ in _new_holders(change):
                if nonce in seen.copied:
                    continue
                before = granted.get(nonce, over.get(nonce))
                if nonce in granted and clock.when(expiries[nonce]) <= change.at:
                    continue
                if before is not None and not seen.forgot_between(before, change.at):
                    reported = "granted twice" if nonce in granted else "granted after it was withdrawn"
                    yield f"{name!r} at {change.at:.4f} s: {nonce} {reported}"
                granted[nonce] = change.at
            if change.before.holders is not change.after.holders:
                for holder in change.after.holders:
                    expiries[holder.nonce] = holder.expires_at
            if isinstance(request, Release | Withdraw):
                over.setdefault(request.nonce, change.at)
            elif isinstance(request, Acquire) and request.nonce in over:
                queued = {w.nonce for w in change.after.queue} - {w.nonce for w in change.before.queue}
                for nonce in sorted(queued & over.keys() - seen.copied):
                    if not seen.forgot_between(over[nonce], change.at):
                        yield f"{name!r} at {change.at:.4f} s: {nonce} queues after it was withdrawn"


# --- the queue ----------------------------------------------------------------------------------


def first_come_first_served(seen: Evidence) -> Iterator[str]:
    """Nobody passes one who waits longer, and nobody whose client is well loses its place."""
    for name, changes in seen.changes.items():
        for change in changes:
            before, after = change.before, change.after
            if not before.queue or (before.queue is after.queue and before.holders is after.holders):
                continue
            grants = [nonce for nonce, _ in _new_holders(change)]
            waiting = [w.nonce for w in before.queue]
            still = {w.nonce: w for w in after.queue}
            for nonce in grants:
                if nonce == _free_to_pass(change.request):
                    continue
                ahead = waiting[: waiting.index(nonce)] if nonce in waiting else waiting
                passed = [n for n in ahead if n in still and not _admitted(after, still[n].mode)]
                if passed:
                    yield f"{name!r} at {change.at:.4f} s: {nonce} passed {', '.join(passed)}"
            own = getattr(change.request, "nonce", "")
            for waiter in before.queue:
                if waiter.nonce in still or waiter.nonce in grants or waiter.nonce == own:
                    continue
                since = change.at - AFTER_EFFECTS_SECONDS
                if not seen.troubled(waiter.nonce, since, change.at):
                    yield f"{name!r} at {change.at:.4f} s: {waiter.nonce} lost its place, though all was well"


def _free_to_pass(request: Request) -> str:
    """An attempt that asked not to queue may pass; and a writer that turns into a reader takes nothing from
    others."""
    if isinstance(request, Downgrade):
        return request.reader_nonce
    return request.nonce if isinstance(request, Acquire) and not request.fair else ""


def _admitted(record: Record, mode: str) -> bool:
    return ADMITS[record.kind]([h.mode for h in record.holders], mode, record.limit)


def prompt_hand_off(seen: Evidence) -> Iterator[str]:
    """Where nothing is wrong, whose turn has come has the lock a few messages later: no wake-up is lost."""
    for name, changes in seen.changes.items():
        since: dict[str, float] = {}
        for change in changes:
            if not change.after.queue and not since:
                continue
            turns = {w.nonce for w in change.after.queue if w.turn_at is not None}
            for nonce in [n for n in since if n not in turns]:
                began = since.pop(nonce)
                if change.at - began > HAND_OFF_SECONDS and not seen.troubled(nonce, began, change.at):
                    yield (
                        f"{name!r}: the turn of {nonce} came at {began:.4f} s, "
                        f"and was taken {change.at - began:.3f} s later"
                    )
            for nonce in turns:
                since.setdefault(nonce, change.at)
    yield from _heirs_told_late(seen)


def _heirs_told_late(seen: Evidence) -> Iterator[str]:
    """Who was handed a lock knows of it as soon; unless it gives it up just then, or it is taken from it."""
    began = {belief.state.nonce: belief.began for belief in reversed(seen.beliefs)}
    for name, changes in seen.changes.items():
        handed: dict[str, float] = {}
        for change in changes:
            held = {holder.nonce for holder in change.after.holders} if handed else set()
            for heir in [nonce for nonce in handed if nonce not in held]:
                at = handed.pop(heir)
                known = min(began.get(heir, inf), change.at)
                if known - at > HAND_OFF_SECONDS and not seen.troubled(heir, at, known):
                    yield f"{name!r}: {heir} was handed it at {at:.4f} s, known {known - at:.3f} s later"
            handed |= {nonce: change.at for nonce, _ in _handed_over(change)}


def _handed_over(change: Changed) -> list[tuple[str, int]]:
    return _new_holders(change) if isinstance(change.request, Release) else []


def wake_ups(seen: Evidence) -> Iterator[str]:
    """Nobody is woken in vain: whose turn has come, who watches, and from whom it was taken."""
    for name, changes in seen.changes.items():
        for change in changes:
            if not change.wakes:
                continue
            due = {w.nonce for w in change.after.queue if w.turn_at is not None}
            due |= {w.nonce for w in change.after.watchers}
            due |= {nonce for nonce, _ in _handed_over(change)}
            if isinstance(change.reply, Broken):
                due |= {victim.nonce for victim in change.reply.victims}
            vain = [wake.nonce for wake in change.wakes if wake.nonce not in due]
            if vain:
                yield f"{name!r} at {change.at:.4f} s: {', '.join(vain)} woken for nothing"


def everyone_served(seen: Evidence) -> Iterator[str]:
    """Once nothing goes wrong any more, everyone is done within bounded time."""
    for worker in seen.run.unfinished:
        yield f"not done by {seen.run.finished_at:.1f} s: {worker}"


# --- what is left -------------------------------------------------------------------------------


def nothing_left_behind(seen: Evidence) -> Iterator[str]:
    """Neither in the node nor in any book, once all is quiet and what the dead held has expired."""
    if seen.run.unfinished:
        return
    world = seen.run.world
    for name in sorted(world.node.records):
        record, now = world.node.look(name)
        holders = [f"{h.nonce} until {h.expires_at - now:+.1f} s" for h in record.holders]
        queue = [w.nonce for w in record.queue]
        watchers = [w.nonce for w in record.watchers if w.expires_at > now]
        for what, left in (("holders", holders), ("queue", queue), ("watchers", watchers)):
            if left:
                yield f"{name!r} at the end: {what} {', '.join(left)}"
    for client in world.clients:
        client_state = client.client_state
        for what, left in (
            ("leases", list(client_state.leases)),
            ("waiting", list(client_state.waiting)),
            ("jobs", [job.nonce for job in client_state.cleanup_tasks]),
            ("holds", [name for (name, _), hold in client_state.holds.items() if hold.state.ended is None]),
            ("mailboxes", list(client.wakeups)),
        ):
            if left:
                yield f"{client.id} at the end: {what} {', '.join(left)}"


# --- guards -------------------------------------------------------------------------------------


def no_lost_update(seen: Evidence) -> Iterator[str]:
    """Every write that the guard accepted is in the counter, whatever went wrong with the locks."""
    if seen.forgets and any(f.kind == "clock jump" and f.amount < 0 for f in seen.run.plan):
        return
    store = seen.run.board.store
    for name, accepted in sorted(store.accepted.items()):
        if store.counters[name] != accepted:
            yield f"{name!r}: {accepted} writes accepted, the counter says {store.counters[name]}"


# --- loss ---------------------------------------------------------------------------------------


def deadlines(seen: Evidence) -> Iterator[str]:
    """Nobody relies on a grant for longer than the node keeps it.

    Also where it was a copy of the request that was granted, made by the client or behind everyone's back.
    """
    if seen.jumps:
        return
    clock = seen.run.world.node.clock
    expiries: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for changes in seen.changes.values():
        for change in changes:
            if change.before.holders is not change.after.holders:
                for holder in change.after.holders:
                    expiries[holder.nonce].append((change.at, clock.when(holder.expires_at)))
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
                f"the node keeps it until {known[index][1]:.4f} s"
            )


def loss_reported(seen: Evidence) -> Iterator[str]:
    """A loss is reported by the deadline minus the grace, or as soon as the client runs again; once."""
    for belief in seen.beliefs:
        if len(belief.reported) > 1:
            yield f"{belief.state.nonce}: loss reported {len(belief.reported)} times"
        due = belief.due
        if belief.returned > due or min(belief.let_go, belief.crashed) <= due + ROUNDING_SECONDS:
            continue
        if belief.state.ended not in (None, "released"):
            continue  # downgraded, exported, dropped: the request was on its way
        by = due
        for begins, ends in sorted(seen.pauses[belief.client]):
            if begins <= by <= ends:
                by = ends
        if belief.crashed <= by or belief.let_go <= min(by + ROUNDING_SECONDS, belief.deadline):
            continue  # gone with its client, or given back in time, though the pause took away the grace
        if belief.let_go <= by + ROUNDING_SECONDS and seen.interrupts(belief.state.nonce):
            continue  # interrupted the moment it ran again: given back without another look
        if not belief.reported:
            yield f"{belief.state.nonce}: loss due at {due:.4f} s, never reported"
        elif belief.reported[0] > by + ROUNDING_SECONDS:
            yield f"{belief.state.nonce}: loss due at {by:.4f} s, reported at {belief.reported[0]:.4f} s"


def no_false_alarm(seen: Evidence) -> Iterator[str]:
    """A loss is reported before the deadline only where the grant is really gone, and not by its own release.

    Where the network copies a release, the answer to the copy may come first: it finds nothing any more.
    """
    ends = _ends_of_grants(seen)
    for belief in seen.beliefs:
        nonce = belief.state.nonce
        due = belief.due - ROUNDING_SECONDS
        gone = ends.get(nonce)
        ours = gone is not None and _gives_back(gone.request, nonce)
        if seen.jumps or nonce in seen.released_twice or seen.forgot_between(0.0, belief.deadline):
            continue
        for at in belief.reported:
            if at < due and (gone is None or gone.at > at or ours):
                yield f"{nonce}: loss reported at {at:.4f} s, though it was held until its own release"
        for at in belief.raised:
            in_time = belief.let_go < due and belief.how == "Release" and not belief.failed
            if in_time and ours and nonce not in seen.broken:
                yield f"{nonce}: LockLost raised at {at:.4f} s, though it was given back in time"


def _gives_back(request: Request, nonce: str) -> bool:
    return isinstance(request, Release | Withdraw) and request.nonce == nonce


def _ends_of_grants(seen: Evidence) -> dict[str, Changed]:
    """What took each grant away."""
    ends: dict[str, Changed] = {}
    for changes in seen.changes.values():
        for change in changes:
            if change.before.holders is not change.after.holders:
                left = {h.nonce for h in change.after.holders}
                for holder in change.before.holders:
                    if holder.nonce not in left:
                        ends[holder.nonce] = change
    return ends


def scripts_end_well(seen: Evidence) -> Iterator[str]:
    """No script ends with an error that its user was not promised."""
    yield from seen.run.world.failures
    for note in seen.notes:
        if note.what.startswith("re-entry"):
            yield f"{note.client}: {note.what} {note.facts}"


CHECKERS: Final[dict[str, Callable[[Evidence], Iterator[str]]]] = {
    checker.__name__.replace("_", " "): checker
    for checker in (
        exclusion,
        tokens,
        one_grant_per_attempt,
        first_come_first_served,
        prompt_hand_off,
        wake_ups,
        everyone_served,
        nothing_left_behind,
        no_lost_update,
        deadlines,
        loss_reported,
        no_false_alarm,
        scripts_end_well,
    )
}


def check(run: Run) -> dict[str, list[str]]:
    """Everything that is wrong, by checker; nothing: all is well."""
    seen = Evidence(run)
    found = {name: list(checker(seen)) for name, checker in CHECKERS.items()}
    return {name: wrong for name, wrong in found.items() if wrong}
