"""What must hold of every schedule of the sessions family: what holds of the records, and what is its own.

A session may end through no fault of its client's: the connection is cut, its process is terminated, the
server crashes, or its clock is set forward. The next one may then have the lock before the last one hears of
it; that is what tokens are for. So exclusion is asked for up to that moment, and for good where the server
only waited out a silence.
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
"""Within this a client whose session ended has told so, though it asks the server first why, in vain, and
gives back something else before."""


class SessionsEvidence(Evidence):
    """No lock depends on the server's clock on the wall: setting it excuses nothing."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.jumps = False

    @property
    def server(self) -> SessionServer:
        server = self.run.world.node
        assert isinstance(server, SessionServer)
        return server

    def until(self, belief: Belief) -> float:
        """How long nobody else may believe to have it."""
        return min(belief.until, self.broken.get(belief.state.nonce, inf), self.severed(belief))

    def severed(self, belief: Belief) -> float:
        return self.server.severed.get((belief.state.name, belief.token), inf)

    def was_cut(self, belief: Belief) -> bool:
        """Whether its client may rightly take its session for lost."""
        since = belief.began - IO_SECONDS
        return any(
            client == belief.client and since <= at <= belief.deadline for at, client in self.server.cuts
        )


def exclusion(seen: SessionsEvidence) -> Iterator[str]:
    """Nobody believes to hold what somebody else believes to hold, while the server keeps it for them."""
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
    """Each grant of a name has a larger token than every one before it, and each was told as it was minted.

    Also after a crash that undid the last of them, unless somebody also set the server's clock back.
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
    """An attempt is granted once, and never once its client has given it back; unless what was granted was
    over before its client heard of it."""
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
            yield f"{nonce}: granted at {times[0]:.4f} s, after it was given back at {over[nonce]:.4f} s"


def one_session_each(seen: SessionsEvidence) -> Iterator[str]:
    """No session has a key twice: the server would stack them, and one release would not do."""
    yield from seen.server.locks.stacked


def no_stray_lock(seen: SessionsEvidence) -> Iterator[str]:
    """Whatever the server has locked for a living session is known to its client."""
    for note in seen.notes:
        if note.what == "stray lock":
            name, pid, shared = note.facts
            mode = "shared" if shared else "exclusive"
            yield f"{name!r} at {note.at:.4f} s: {note.client} has it on {pid}, {mode}, and does not know"


def silence_ends(seen: SessionsEvidence) -> Iterator[str]:
    """Whatever is held lives on a session that the server ends when it has been silent for a ttl."""
    clock = seen.server.clock
    for name, changes in seen.changes.items():
        for change in changes:
            for holder in change.after.holders:
                lasts = clock.when(holder.expires_at) - change.at
                if lasts > (TTL_SECONDS_MAX + 0.1) * 1.01:
                    yield f"{name!r} at {change.at:.4f} s: {holder.nonce} would last {lasts:.1f} s"


def deadlines(seen: SessionsEvidence) -> Iterator[str]:
    """Nobody relies on a grant for longer than its session lives; what was broken is not in the record."""
    for told in checkers.deadlines(seen):
        if told.partition(" ")[0] not in seen.broken:
            yield told


def loss_at_once(seen: SessionsEvidence) -> Iterator[str]:
    """Whose session ended knows it as soon as the news has come, though the deadline is far away."""
    for belief in seen.beliefs:
        ended = seen.severed(belief)
        over = min(belief.ended, belief.deadline)
        if ended < belief.began or over <= ended + AT_ONCE_SECONDS:
            continue
        if not _is_slow(seen, belief, ended, over):
            yield f"{belief.state.nonce}: its session ended at {ended:.4f} s, known {over - ended:.3f} s on"


def _is_slow(seen: SessionsEvidence, belief: Belief, since: float, until: float) -> bool:
    """Whether anything but the end of its session kept its client from hearing of it."""
    machine = checkers.machine_of(belief.state.nonce)
    return any(
        fault.at <= until
        and fault.at + fault.duration + AT_ONCE_SECONDS >= since
        and (fault.target in (-1, machine) or fault.kind.startswith("node"))
        for fault in seen.run.plan
        if fault.kind not in ("terminate", "cut", "clock jump")
    )


def no_false_alarm(seen: SessionsEvidence) -> Iterator[str]:
    """Loss is told early only where the grant is gone, or may be for all that its client can know: its
    connection ended, or an earlier grant of the attempt was broken before anybody heard of it."""
    known = {belief.state.nonce for belief in seen.beliefs if seen.was_cut(belief)} | seen.broken.keys()
    for told in checkers.no_false_alarm(seen):
        if told.partition(":")[0] not in known:
            yield told


def nothing_left_behind(seen: SessionsEvidence) -> Iterator[str]:
    """Neither in the server nor on any desk: above all no lock on a connection that nobody looks at."""
    yield from checkers.nothing_left_behind(seen)
    if seen.run.unfinished:
        return
    server = seen.server
    for key, name in server.functions.names.items():
        for what, left in (("held", server.locks.holders(key)), ("wanted", server.locks.waiting(key))):
            if left:
                told = ", ".join(f"{backend.client} on {backend.pid}" for backend, _ in left)
                yield f"{name!r} at the end: {what} by {told}"
    living = {client.id for client in seen.run.world.clients}
    for backend in server.backends.values():
        if backend.client not in living:
            yield f"{backend.client} is no more, and its session {backend.pid} is there"
    for client in seen.run.world.clients:
        assert isinstance(client, SessionsClient)
        desk = client.desk
        for session in desk.sessions:
            session.prune()
        for what, named in (
            ("attempts", list(desk.mine)),
            ("line", list(desk.line)),
            ("waiting", sorted(desk._waiting)),
            ("keys", [str(session.backend) for session in desk.sessions if session.keys]),
            ("told", sorted(desk.told)),
            ("rooms", ["some"] if len(desk._rooms) else []),
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
    """Everything that is wrong, by checker; nothing: all is well."""
    seen = SessionsEvidence(run)
    found = {name: list(checker(seen)) for name, checker in OWN.items()}
    found |= {name: list(checker(seen)) for name, checker in SHARED.items()}
    return {name: wrong for name, wrong in found.items() if wrong}
