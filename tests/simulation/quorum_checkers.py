"""What must hold of every schedule on a quorum of nodes, whatever their clocks do and whichever of them
forgets.

What does not concern nodes is checked as everywhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf
from typing import Any, Final

from holdfast.core.deadlines import lease_deadline
from holdfast.rules import node
from simulation import checkers
from simulation.checkers import Belief, Evidence, machine_of
from simulation.quorum_schedules import QuorumRun
from simulator import QuorumNode
from simulator.servers import WALL_SECONDS

__all__ = ["QUORUM_CHECKERS", "check_quorum"]

LINGERS_SECONDS: Final = 1.5
"""How long after its attempt is over a claim may stand where nothing is wrong: told again, a message each."""


class QuorumEvidence(Evidence):
    """The same, and what the nodes did."""

    def __init__(self, run: QuorumRun) -> None:
        super().__init__(run)
        self.forgets = False  # a node that forgot does not take part: it costs no promise
        self.jumps = self.jumps or any(fault.kind == "clock flicker" for fault in run.plan)
        self.nodes = run.nodes
        self.asked: dict[str, list[float]] = defaultdict(list)
        """nonce → when it asked, each time"""
        self.decided: list[tuple[float, str, str, str, int, float, float]] = []
        """(at, client, nonce, owner, token, ttl, seconds since the first request was sent)"""
        self.stored: list[tuple[float, str, str, Any, Any, node.NodeRecord]] = []
        for note in self.notes:
            if note.what == "asks":
                self.asked[note.facts[0]].append(note.at)
            elif note.what == "decided":
                self.decided.append((note.at, note.client, *note.facts))
            elif note.what == "stored":
                self.stored.append((note.at, note.client, *note.facts))
                for owner in getattr(note.facts[1], "instead_of", ()):
                    self.broken.setdefault(owner.rpartition(".")[0], note.at)

    def beliefs_by_name(self) -> dict[str, list[Belief]]:
        by_name: dict[str, list[Belief]] = defaultdict(list)
        for belief in self.beliefs:
            by_name[belief.state.name].append(belief)
        return by_name

    def hindered(self, owner: str, since: float) -> bool:
        """Whether this client, or its way to the nodes, may have ended before it could give it back."""
        target, until = machine_of(owner), since + LINGERS_SECONDS
        return bool(self._crashed.get(owner[: owner.index("-")], inf) <= until) or any(
            fault.target in (-1, target) and fault.at <= until and fault.at + fault.duration >= since
            for fault in self.run.plan
            if not fault.kind.startswith(("node", "clock"))
        )

    def asked_before(self, belief: Belief) -> float:
        """When the request was made that was granted."""
        times = [at for at in self.asked[belief.state.nonce] if at <= belief.began]
        return times[-1] if times else -inf


def unique_tokens(seen: QuorumEvidence) -> Iterator[str]:
    """No two grants of a name have the same token."""
    for name, beliefs in seen.beliefs_by_name().items():
        whose: dict[int, str] = {}
        for belief in beliefs:
            other = whose.setdefault(belief.token, belief.state.nonce)
            if other != belief.state.nonce:
                yield f"{name!r}: token {belief.token} for {other} and for {belief.state.nonce}"


def tokens_grow(seen: QuorumEvidence) -> Iterator[str]:
    """Who asks after another was granted gets a larger token, whatever the clocks say."""
    for name, beliefs in seen.beliefs_by_name().items():
        granted = sorted(beliefs, key=lambda belief: belief.began)
        for later in beliefs:
            asked = seen.asked_before(later)
            earlier = [b for b in granted if b.began < asked and b.state.nonce != later.state.nonce]
            if earlier and later.token <= (highest := max(earlier, key=lambda b: b.token)).token:
                yield (
                    f"{name!r}: {later.state.nonce} asked at {asked:.4f} s and got {later.token}, "
                    f"{highest.state.nonce} had {highest.token} since {highest.began:.4f} s"
                )


def in_the_order_of_grants(seen: QuorumEvidence) -> Iterator[str]:
    """Where no clock was set, tokens grow in the order in which they were granted. Adopting is no grant, and
    neither is what was broken before its client heard of it."""
    if seen.jumps:
        return
    for name, beliefs in seen.beliefs_by_name().items():
        last: Belief | None = None
        granted: set[str] = set()
        for belief in sorted(beliefs, key=lambda b: b.began):
            nonce = belief.state.nonce
            if nonce in granted or seen.broken.get(nonce, inf) < belief.began:
                continue
            granted.add(nonce)
            if last is not None and belief.token <= last.token:
                yield (
                    f"{name!r} at {belief.began:.4f} s: {belief.token} for {belief.state.nonce}, "
                    f"after {last.token} for {last.state.nonce}"
                )
            last = belief


def succession(seen: QuorumEvidence) -> Iterator[str]:
    """An attempt that was taken over on a node that counted for both has the lower token."""
    count = 0
    token_of = {owner: token for _, _, _, owner, token, _, _ in seen.decided}
    came: dict[tuple[str, str, str], int] = {}
    """(node, name, owner) → when its claim began, in the order of all claims"""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    """(node, name) → owners to whom it issued what became their token → when the claim for that began"""
    for _, label, name, request, reply, _ in seen.stored:
        if isinstance(reply, node.Issued):
            key = label, name, request.owner
            if isinstance(request, node.Acquire) or key not in came:
                count += 1
                came[key] = count
            if token_of.get(request.owner) == reply.number:
                counts[label, name][request.owner] = came[key]
    for (label, name), owners in counts.items():
        in_order = sorted(owners, key=lambda owner: owners[owner])
        for earlier, later in pairwise(in_order):
            if token_of[earlier] >= token_of[later]:
                yield (
                    f"{name!r} on {label}: {later} ({token_of[later]}) took over "
                    f"from {earlier} ({token_of[earlier]})"
                )


def decided_in_time(seen: QuorumEvidence) -> Iterator[str]:
    """Nothing is granted once it took longer than it lasts."""
    for at, _, nonce, _, token, ttl, took in seen.decided:
        if lease_deadline(0.0, ttl) <= took:
            yield f"{nonce} at {at:.4f} s: token {token} granted after {took:.4f} s, it lasts {ttl} s"


def kept_by_a_majority(seen: QuorumEvidence) -> Iterator[str]:
    """Nobody relies on a grant for longer than a majority keeps it."""
    if seen.jumps or any(note.what == "forgot" for note in seen.notes):
        return
    by_owner: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    walls = {each.label: each for each in seen.nodes}
    for at, label, _, request, _, record in seen.stored:
        owner = getattr(request, "owner", "")
        if record.claim is not None and record.claim.owner == owner:
            ends = _true_time(walls[label], record.claim.expires_at)
            by_owner[owner.rpartition(".")[0]][label].append((at, ends))
    for at, nonce, deadline in seen.moves:
        ends_by_node = []
        for known in by_owner[nonce].values():
            before = [ends for stored, ends in known if stored <= at]
            if before:
                ends_by_node.append(before[-1])
        ends_by_node.sort(reverse=True)
        needed = len(seen.nodes) // 2 + 1
        if len(ends_by_node) < needed:
            yield f"{nonce} at {at:.4f} s: relied on, granted by {len(ends_by_node)} nodes only"
        elif deadline > ends_by_node[needed - 1] + 2e-6:
            yield (
                f"{nonce} at {at:.4f} s: relied on until {deadline:.4f} s, "
                f"a majority keeps it until {ends_by_node[needed - 1]:.4f} s"
            )


def _true_time(each: QuorumNode, wall_us: int) -> float:
    return each.wall.when(wall_us / 1e6 - WALL_SECONDS)


def released_everywhere(seen: QuorumEvidence) -> Iterator[str]:
    """What was given back, or never granted, stays on no node, not even on one that answered late."""
    over = _attempts_over(seen)
    standing: dict[tuple[str, str], tuple[str, float]] = {}
    for at, label, name, _, _, record in [*seen.stored, *_at_the_end(seen)]:
        key = (label, name)
        owner = record.claim.owner if record.claim is not None else ""
        before = standing.get(key)
        if before is not None and before[0] != owner:
            del standing[key]
            since = max(before[1], over.get(before[0], inf))
            if at - since > LINGERS_SECONDS and not seen.troubled(before[0], since - 4.0, at):
                yield f"{name!r} on {label}: the claim of {before[0]} stood {at - since:.2f} s after its end"
        if owner and key not in standing:
            standing[key] = (owner, at)


def _attempts_over(seen: QuorumEvidence) -> dict[str, float]:
    """Owner → when its client was done with it."""
    over: dict[str, float] = {}
    for at, _, _, request, _, _ in seen.stored:
        if isinstance(request, node.Release):
            over.setdefault(request.owner, at)
    return over


def every_try_ended(seen: QuorumEvidence) -> Iterator[str]:
    """Who tries again, as another owner, has given back what the try before was granted."""
    over = _attempts_over(seen)
    issued: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    """nonce → number of its try → nodes that have a claim of it"""
    for at, label, name, request, reply, _ in seen.stored:
        if not isinstance(request, node.Acquire):
            continue
        nonce, _, text = request.owner.rpartition(".")
        number, tries = int(text, 16), issued[nonce]
        if isinstance(reply, node.Issued):
            tries[number].add(label)
        for earlier in [each for each in tries if each < number]:
            owner = f"{nonce}.{earlier:x}"
            is_held = len(tries.pop(earlier)) > len(seen.nodes) // 2
            if is_held and owner not in over and not seen.hindered(owner, at):
                yield f"{name!r} at {at:.4f} s: {owner} had a majority, and was followed by {request.owner}"


def _at_the_end(seen: QuorumEvidence) -> Iterator[tuple[float, str, str, Any, Any, node.NodeRecord]]:
    for each in seen.nodes:
        for name in sorted(each.records):
            yield seen.run.world.now, each.label, name, None, None, node.UNUSED


def nothing_left_on_nodes(seen: QuorumEvidence) -> Iterator[str]:
    """Once all is quiet and what the dead held has expired."""
    if seen.run.unfinished:
        return
    jumps_back = any(f.kind == "clock jump" and f.amount < 0 for f in seen.run.plan)
    for each in seen.nodes:
        for name, record in sorted(each.records.items()):
            claim = node.settle(record, each.now_us()).claim
            if claim is not None and not jumps_back:
                yield f"{name!r} on {each.label} at the end: {claim.owner}"


def everyone_ready(seen: QuorumEvidence) -> Iterator[str]:
    """In the end every node takes part again: marks were renewed, or the nodes rejoined."""
    for each in seen.nodes:
        if each.mark.ready.rpartition("/")[2] != each.run:
            yield f"{each.label} is not ready: {each.mark}, in its life {each.run}"


QUORUM_CHECKERS: Final[dict[str, Callable[[Any], Iterator[str]]]] = {
    checker.__name__.replace("_", " "): checker
    for checker in (
        unique_tokens,
        tokens_grow,
        in_the_order_of_grants,
        succession,
        decided_in_time,
        kept_by_a_majority,
        released_everywhere,
        every_try_ended,
        nothing_left_on_nodes,
        everyone_ready,
        checkers.exclusion,
        checkers.everyone_served,
        checkers.nothing_left_behind,
        checkers.no_lost_update,
        checkers.loss_reported,
        checkers.scripts_end_well,
    )
}


def check_quorum(run: QuorumRun) -> dict[str, list[str]]:
    """Everything that is wrong, by checker; nothing: all is well."""
    seen = QuorumEvidence(run)
    found = {name: list(checker(seen)) for name, checker in QUORUM_CHECKERS.items()}
    return {name: wrong for name, wrong in found.items() if wrong}
