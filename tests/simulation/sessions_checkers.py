"""Checkers for every schedule of the sessions family: those of records, and its own.

A session may end without a fault of its client: the connection is cut, its process is terminated, the server
crashes, or its clock is set forward. The next holder may then have the lock before the last one notices:
tokens exist for that. So exclusion must hold up to that moment, and for good where the server ended a session
that was idle for its ttl.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from holdfast.rules.requests import Broken
from holdfast.rules.transitions import ADMITS
from simulation import checkers, tickets_checkers
from simulation.checkers import ROUNDING_SECONDS, Belief, Evidence
from simulation.schedules import IO_SECONDS, Run
from simulation.workloads import TTL_SECONDS_MAX
from simulator import LetGo
from simulator.advisory import SessionsClient
from simulator.sessions import SessionServer

__all__ = ["SESSIONS_CHECKERS", "check"]

AT_ONCE_SECONDS: Final = 4 * IO_SECONDS
"""Within this time a client reports that its session ended, though it asks the server first why, in vain,
and releases another lock before."""


class SessionsEvidence(Evidence):
    """No lock depends on the server's wall clock: a jump of it excuses nothing."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.jumps = False

    @property
    def server(self) -> SessionServer:
        server = self.run.world.node
        assert isinstance(server, SessionServer)
        return server

    def until(self, belief: Belief) -> float:
        """How long no other client may believe to hold the lock."""
        return min(belief.until, self.broken.get(belief.state.nonce, inf), self.severed(belief))

    def severed(self, belief: Belief) -> float:
        return self.server.severed.get((belief.state.name, belief.token), inf)

    def was_cut(self, belief: Belief) -> bool:
        """Whether the client is right to take its session for lost."""
        since = belief.began - IO_SECONDS
        return any(
            client == belief.client and since <= at <= belief.deadline for at, client in self.server.cuts
        )


def exclusion(seen: SessionsEvidence) -> Iterator[str]:
    """No two clients believe to hold a lock at once, while the server keeps it for one of them."""
    by_name: dict[str, list[Belief]] = defaultdict(list)
    for belief in seen.beliefs:
        if seen.until(belief) > belief.began:
            by_name[belief.state.name].append(belief)
    for name, beliefs in by_name.items():
        active: list[Belief] = []
        for belief in sorted(beliefs, key=lambda b: b.began):
            active = [b for b in active if seen.until(b) > belief.began + ROUNDING_SECONDS]
            if not ADMITS[belief.state.kind]([b.state.mode for b in active], belief.state.mode, 0):
                others = ", ".join(f"{b.client} ({b.state.mode}, token {b.token})" for b in active)
                yield (
                    f"{name!r} at {belief.began:.4f} s: {belief.client} ({belief.state.mode}, "
                    f"token {belief.token}) beside {others}"
                )
            active.append(belief)


def tokens(seen: SessionsEvidence) -> Iterator[str]:
    """Each grant of a name has a larger token than every earlier grant, and its holder learns that token.

    Also after a crash that rolled back the last tokens, unless the server's clock was set back, too.
    """
    if seen.forgets and any(f.kind == "clock jump" and f.amount < 0 for f in seen.run.plan):
        return
    minted: set[tuple[str, int]] = set()
    for name, changes in seen.changes.items():
        highest, whose = 0, ""
        for change in changes:
            grants = checkers._new_holders(change)
            minted.update(grants)
            if isinstance(change.reply, Broken) and change.reply.token:
                grants.append(("the break", change.reply.token))
            for nonce, token in grants:
                if token <= highest:
                    yield f"{name!r} at {change.at:.4f} s: {token} for {nonce}, after {highest} for {whose}"
                highest, whose = max(token, highest), nonce
    for belief in seen.beliefs:
        if (belief.state.nonce, belief.token) not in minted:
            yield f"{belief.state.nonce}: token {belief.token} was never granted to it"


def one_grant_per_attempt(seen: SessionsEvidence) -> Iterator[str]:
    """An attempt is granted once, and not after its client released it; unless the grant had ended before the
    client learned of it."""
    began: dict[str, list[float]] = defaultdict(list)
    for belief in seen.beliefs:
        if belief.deadline > belief.began:
            began[belief.state.nonce].append(belief.began)
    over: dict[str, float] = {}
    for event in seen.run.world.trace:
        if isinstance(event, LetGo):
            over.setdefault(event.nonce, event.at)
    for nonce, times in began.items():
        if len(times) > 1:
            yield f"{nonce}: granted {len(times)} times, at {times}"
        elif times[0] > over.get(nonce, inf):
            yield f"{nonce}: granted at {times[0]:.4f} s, after it was released at {over[nonce]:.4f} s"


def one_session_each(seen: SessionsEvidence) -> Iterator[str]:
    """No session has a key twice: the server stacks them, so one release would not be enough."""
    yield from seen.server.locks.stacked


def no_stray_lock(seen: SessionsEvidence) -> Iterator[str]:
    """The client knows every lock that the server has for a living session of it."""
    for note in seen.notes:
        if note.what == "stray lock":
            name, pid, shared = note.facts
            mode = "shared" if shared else "exclusive"
            yield f"{name!r} at {note.at:.4f} s: {note.client} has it on {pid}, {mode}, without knowing it"


def silence_ends(seen: SessionsEvidence) -> Iterator[str]:
    """Every lock is on a session that the server ends when it was idle for a ttl."""
    clock = seen.server.clock
    for name, changes in seen.changes.items():
        for change in changes:
            for holder in change.after.holders:
                lasts = clock.when(holder.expires_at) - change.at
                if lasts > (TTL_SECONDS_MAX + 0.1) * 1.01:
                    yield f"{name!r} at {change.at:.4f} s: {holder.nonce} would last {lasts:.1f} s"


def deadlines(seen: SessionsEvidence) -> Iterator[str]:
    """No holder relies on a grant for longer than its session lives; broken locks are not in the record."""
    for violation in checkers.deadlines(seen):
        if violation.partition(" ")[0] not in seen.broken:
            yield violation


def loss_at_once(seen: SessionsEvidence) -> Iterator[str]:
    """A client learns of the end of a session as soon as the message arrives, not at the deadline."""
    for belief in seen.beliefs:
        ended = seen.severed(belief)
        over = min(belief.ended, belief.deadline)
        if ended < belief.began or over <= ended + AT_ONCE_SECONDS:
            continue
        if not _is_slow(seen, belief, ended, over):
            yield f"{belief.state.nonce}: its session ended at {ended:.4f} s, known {over - ended:.3f} s on"


def _is_slow(seen: SessionsEvidence, belief: Belief, since: float, until: float) -> bool:
    """Whether another fault kept the client from noticing the end of its session."""
    machine = checkers.machine_of(belief.state.nonce)
    return any(
        fault.at <= until
        and fault.at + fault.duration + AT_ONCE_SECONDS >= since
        and (fault.target in (-1, machine) or fault.kind.startswith("node"))
        for fault in seen.run.plan
        if fault.kind not in ("terminate", "cut", "clock jump")
    )


def no_false_alarm(seen: SessionsEvidence) -> Iterator[str]:
    """Loss is reported early only where the grant is gone, or may be as far as its client knows: the session
    ended, or an earlier grant of the attempt was broken before its client learned of it."""
    known = {belief.state.nonce for belief in seen.beliefs if seen.was_cut(belief)} | seen.broken.keys()
    for violation in checkers.no_false_alarm(seen):
        if violation.partition(":")[0] not in known:
            yield violation


def nothing_left_behind(seen: SessionsEvidence) -> Iterator[str]:
    """Neither in the server nor in any pool: above all no lock on a session that no attempt uses."""
    yield from checkers.nothing_left_behind(seen)
    if seen.run.unfinished:
        return
    server = seen.server
    for key, name in server.functions.names.items():
        for what, left in (("held", server.locks.holders(key)), ("wanted", server.locks.waiting(key))):
            if left:
                names = ", ".join(f"{backend.client} on {backend.pid}" for backend, _ in left)
                yield f"{name!r} at the end: {what} by {names}"
    living = {client.id for client in seen.run.world.clients}
    for backend in server.backends.values():
        if backend.client not in living:
            yield f"{backend.client} is dead, and its session {backend.pid} is still there"
    for client in seen.run.world.clients:
        assert isinstance(client, SessionsClient)
        pool = client.pool
        for session in pool.sessions:
            session.discard_stale()
        for what, named in (
            ("attempts", list(pool.attempts)),
            ("queue", list(pool.queue.nonces)),
            ("admitted", sorted(pool.queue.admitted)),
            ("keys", [str(session.backend_pid) for session in pool.sessions if session.keys]),
            ("broken", sorted(pool.broken)),
            ("permits", ["some"] if len(pool._permits) else []),
        ):
            if named:
                yield f"{client.id} at the end: {what} {', '.join(named)}"


OWN: Final = {
    checker.__name__.replace("_", " "): checker
    for checker in (
        exclusion,
        tokens,
        one_grant_per_attempt,
        one_session_each,
        no_stray_lock,
        silence_ends,
        deadlines,
        loss_at_once,
        no_false_alarm,
        nothing_left_behind,
    )
}

SHARED: Final[dict[str, Callable[[Evidence], Iterator[str]]]] = {
    **{
        name: checker
        for name, checker in checkers.CHECKERS.items()
        if name not in (*OWN, "prompt hand off", "wake ups")
    },
    "prompt grant": tickets_checkers.prompt_grant,
}

SESSIONS_CHECKERS: Final = (*OWN, *SHARED)


def check(run: Run) -> dict[str, list[str]]:
    """The violations by checker; empty: none."""
    seen = SessionsEvidence(run)
    found = {name: list(checker(seen)) for name, checker in OWN.items()}
    found |= {name: list(checker(seen)) for name, checker in SHARED.items()}
    return {name: wrong for name, wrong in found.items() if wrong}
