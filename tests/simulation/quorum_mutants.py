"""Ways in which tokens by quorum go wrong, each as a small patch of the node's rule or the client's script.

Most of them have been proposed, or shipped. Every one of them must be caught by a checker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from holdfast.protocols.quorum import (
    Answers,
    Broadcast,
    Quorum,
    acquisition,
    lease_operations,
    membership,
    repair,
    views,
)
from holdfast.protocols.quorum.acquisition import Acquisition
from holdfast.protocols.quorum.effects import Batch
from holdfast.protocols.quorum.state import Attempt
from holdfast.protocols.quorum.tally import FAILED, Counted, ToStamp, Verdict, after_acquire
from holdfast.rules import node
from holdfast.rules.node import transitions
from simulation.mutants import counted_by_the_wall, deadline_from_reply
from simulation.plans import WALL_JUMP
from simulation.quorum_schedules import QUORUM_KINDS
from simulator import Fault

__all__ = ["QUORUM_MUTANTS", "QuorumMutant"]

Patch = contextlib.AbstractContextManager[Any]
Handler = Callable[[node.NodeRecord, Any, int], tuple[node.NodeRecord, node.NodeReply]]


@dataclass(frozen=True, slots=True)
class QuorumMutant:
    """A mistake, and where it shows."""

    name: str
    patch: Callable[[], Patch]
    caught_by: tuple[str, ...]
    scenarios: tuple[str, ...] = ("quorum strangers",)
    intensity: float = 1.0
    kinds: tuple[str, ...] = QUORUM_KINDS
    size: int = 0
    node_seconds: float = 0.0
    first: int = 0
    """The seed from which on it is sought: it shows soon after that."""
    drift: float = 0.01
    plan: tuple[Fault, ...] | None = None
    """What goes wrong, where chance would take too long to find it."""


def handler(request: type, replacement: Handler) -> Patch:
    return mock.patch.dict(transitions._HANDLERS, {request: replacement})


@contextlib.contextmanager
def both(*patches: Patch) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


# --- tokens -------------------------------------------------------------------------------------


def maximum_of_counters() -> Patch:
    """Each node counts for itself (INCR), and the largest of the answers is taken for the token."""
    shipped = transitions._HANDLERS[node.Acquire]

    def count(record: node.NodeRecord, ask: node.Acquire, now: int) -> tuple[node.NodeRecord, node.NodeReply]:
        after, reply = shipped(record, ask, now)
        if after is record or after.claim is None:
            return after, reply
        number = record.fence + 1
        return node.NodeRecord(number, after.claim._replace(number=number), after.tombstones), node.Issued(
            number
        )

    def take_the_largest(answers: Any, size: int, final: bool = False) -> Verdict | None:
        verdict = after_acquire(answers, size, final)
        return Counted(verdict.number) if isinstance(verdict, ToStamp) else verdict

    return both(
        handler(node.Acquire, count), mock.patch.object(acquisition, "after_acquire", take_the_largest)
    )


def write_back_not_awaited() -> Patch:
    """The largest number is written to the others, and used before they have it."""

    async def stamp(quorum: Quorum, takings: list[Acquisition]) -> None:
        for taking in takings:
            assert isinstance(taking.verdict, ToStamp)
            number = taking.verdict.number
            ask: Any = ((taking.name, node.Stamp(taking.owner, number)),)
            await quorum.ask_each(dict.fromkeys(taking.verdict.nodes, ask), lambda answers: True)
            taking.verdict = Counted(number)

    return mock.patch.object(acquisition, "_stamp", stamp)


def stamp_without_owner_check() -> Patch:
    """A number is written wherever it is larger, whichever attempt has the claim by then."""

    def stamp(record: node.NodeRecord, ask: node.Stamp, now: int) -> tuple[node.NodeRecord, node.NodeReply]:
        if ask.number > record.fence:
            return record._replace(fence=ask.number), node.Issued(ask.number)
        return record, node.Lost("stolen")

    return handler(node.Stamp, stamp)


def stamp_accepts_equal() -> Patch:
    """A number that is there already is taken for written, whichever attempt it was issued to."""
    shipped = transitions._HANDLERS[node.Stamp]

    def stamp(record: node.NodeRecord, ask: node.Stamp, now: int) -> tuple[node.NodeRecord, node.NodeReply]:
        if ask.number == record.fence:
            return record, node.Issued(ask.number)
        return shipped(record, ask, now)

    return handler(node.Stamp, stamp)


# --- nodes that forget --------------------------------------------------------------------------


def rejoin_without_copying() -> Patch:
    """A node that forgot waits for the longest ttl, and then takes part with empty hands."""

    async def no_fences(quorum: Quorum, intact: set[int]) -> tuple[dict[str, int], int]:
        return {}, 0

    return mock.patch.object(membership, "_fences_of_majority", no_fences)


def copy_without_waiting() -> Patch:
    """A node that forgot gets all fences, and takes part at once."""
    return mock.patch.object(membership, "rejoin_seconds", return_value=0.0)


def marks_never_renewed() -> Patch:
    """A node that remembers everything, but was restarted, is left out for good."""

    async def mend(quorum: Quorum, greetings: Any) -> bool:
        return False

    return mock.patch.object(membership, "_restore_marks", mend)


# --- the clock, the end -------------------------------------------------------------------------


def validity_before_the_stamp() -> Patch:
    """The time is looked at when a majority has answered; the stamp comes after that."""
    shipped_stamp, shipped_valid = acquisition._stamp, Quorum.valid_until
    stamped: set[tuple[str, float]] = set()

    async def stamp(quorum: Quorum, takings: list[Acquisition]) -> None:
        now = quorum.now()
        for taking in takings:
            if now >= shipped_valid(quorum, taking.sent, taking.ttl):
                taking.verdict = FAILED
            stamped.add((quorum.client, taking.sent))
        await shipped_stamp(quorum, takings)

    def valid_until(self: Quorum, sent: float, ttl: float) -> float:
        return float("inf") if (self.client, sent) in stamped else shipped_valid(self, sent, ttl)

    return both(
        mock.patch.object(acquisition, "_stamp", stamp), mock.patch.object(Quorum, "valid_until", valid_until)
    )


def claims_without_end() -> Patch:
    """Seconds are taken for minutes: what the dead held stays."""
    shipped = transitions._HANDLERS[node.Acquire]

    def acquire(
        record: node.NodeRecord, ask: node.Acquire, now: int
    ) -> tuple[node.NodeRecord, node.NodeReply]:
        return shipped(record, ask._replace(ttl=ask.ttl * 60), now)

    return handler(node.Acquire, acquire)


def release_to_the_granting() -> Patch:
    """Nodes that had not answered when a majority had are not told of the end."""
    granted: dict[str, set[int]] = {}
    shipped_ask, shipped_each = Quorum.ask, Quorum.ask_each

    def asks_of(fan: Broadcast) -> Broadcast:
        release = fan.asks[0][1][0][1] if fan.asks else None
        if not isinstance(release, node.Release):
            return fan
        known = granted.get(release.owner, set())
        return fan._replace(asks=tuple(each for each in fan.asks if each[0] in known))

    def remember(quorum: Quorum, taking: Acquisition) -> None:
        issued = {each for each, reply in taking.answers.items() if isinstance(reply, node.Issued)}
        granted[taking.owner] = issued

    def ask(self: Quorum, batch: Any, enough: Callable[[Answers], bool], *rest: Any) -> Broadcast:
        return asks_of(shipped_ask(self, batch, enough, *rest))

    def ask_each(
        self: Quorum, asks: Any, enough: Callable[[Answers], bool], *rest: Any, **more: Any
    ) -> Broadcast:
        return asks_of(shipped_each(self, asks, enough, *rest, **more))

    return both(
        mock.patch.object(acquisition, "_learn_from_answers", remember),
        mock.patch.object(Quorum, "ask", ask),
        mock.patch.object(Quorum, "ask_each", ask_each),
    )


def renewal_that_recreates() -> Patch:
    """A node that lacks a claim is given it by the renewal itself, whether others have it or not."""
    shipped = transitions._HANDLERS[node.Renew]

    def renew(record: node.NodeRecord, ask: node.Renew, now: int) -> tuple[node.NodeRecord, node.NodeReply]:
        if record.claim is not None:
            return shipped(record, ask, now)
        claim = node.Claim(ask.owner, record.fence, now, now + ask.ttl, ask.ttl, 0, "", "", "")
        return record._replace(claim=claim), node.Applied()

    return handler(node.Renew, renew)


def what_is_over_is_spread() -> Patch:
    """Nodes that lack a claim are given it, though it is being given back, and they are not told of that."""
    shipped = repair._claim_of

    def claims(quorum: Quorum, lacking: dict[int, list[Attempt]]) -> Any:
        hint, now = quorum.hint(quorum.wall_us()), quorum.now()
        asks: dict[int, Batch] = {
            each: tuple([(attempt.name, shipped(quorum, attempt, hint, now)) for attempt in attempts])
            for each, attempts in lacking.items()
        }
        return quorum.ask_each(asks, lambda answers: True)

    return mock.patch.object(lease_operations, "repair_nodes", claims)


def granted_names_asked_for_again() -> Patch:
    """After a round that was of no use all names are tried once more, also those that were granted."""

    async def take_again(quorum: Quorum, takings: list[Acquisition], wanted: Any) -> list[Acquisition]:
        return await acquisition.run_round(
            quorum, [acquisition._new_acquisition(quorum, *each) for each in wanted]
        )

    return mock.patch.object(acquisition, "_retry_failed", take_again)


def adopted_for_as_long_as_it_is_kept() -> Patch:
    """What nodes keep beyond what is relied on, for clocks that run fast, is taken to be part of the ttl."""
    shipped = views._holder
    return mock.patch.object(views, "_holder", lambda seen, stretch: shipped(seen, 1.0))


TOKENS: Final = ("unique tokens", "tokens grow", "in the order of grants")

FLICKER: Final = ("clock flicker",)

MISSED_AND_FORGOTTEN: Final = (
    Fault(2.0, "node cut", 2, 7.5),
    Fault(3.0, "node amnesia", 0, 0.3),
    Fault(9.5, "node cut", 1, 4.5),
)
"""One node misses what is issued, another one forgets it, and then these two are a majority."""

FORGOTTEN_WHILE_HELD: Final = tuple(
    fault
    for at in (2.0, 4.5, 7.0, 9.5)
    for fault in (Fault(at, "node cut", 2, 1.2), Fault(at + 1.0, "node amnesia", 0, 0.05))
)
"""The same for a short time, while a client relies on what was forgotten."""

QUORUM_MUTANTS: Final = (
    QuorumMutant("maximum of per-node INCR", maximum_of_counters, TOKENS),
    QuorumMutant("write-back not awaited", write_back_not_awaited, TOKENS, first=4),
    QuorumMutant(
        "stamp without owner check",
        stamp_without_owner_check,
        ("succession",),
        first=42,
        kinds=FLICKER,
        intensity=60.0,
        size=3,
    ),
    QuorumMutant(
        "stamp that accepts equal without owner check",
        stamp_accepts_equal,
        ("unique tokens",),
        kinds=FLICKER,
        intensity=60.0,
        size=3,
    ),
    QuorumMutant(
        "delayed restart without copying",
        rejoin_without_copying,
        (*TOKENS, "succession"),
        size=3,
        first=13,
        plan=MISSED_AND_FORGOTTEN,
    ),
    QuorumMutant(
        "copying without waiting",
        copy_without_waiting,
        ("exclusion",),
        ("quorum lock",),
        size=3,
        first=17,
        plan=FORGOTTEN_WHILE_HELD,
    ),
    QuorumMutant(
        "marks of restarted nodes never renewed",
        marks_never_renewed,
        ("everyone ready",),
        ("quorum lock",),
        kinds=("node crash",),
    ),
    QuorumMutant(
        "validity checked before the stamp",
        validity_before_the_stamp,
        ("decided in time",),
        ("quorum rush",),
        2.0,
        ("slow", "node slow"),
        node_seconds=2.0,
    ),
    QuorumMutant(
        "claims that outlast their ttl",
        claims_without_end,
        ("nothing left on nodes",),
        kinds=("crash",),
        intensity=3.0,
    ),
    QuorumMutant(
        "renewal that re-creates",
        renewal_that_recreates,
        ("released everywhere",),
        ("quorum lock",),
        first=2,
    ),
    QuorumMutant(
        "what is being given back is given to more nodes",
        what_is_over_is_spread,
        ("released everywhere",),
        ("quorum handling",),
    ),
    QuorumMutant("release only to nodes that granted", release_to_the_granting, ("released everywhere",)),
    QuorumMutant(
        "names that were granted are asked for again",
        granted_names_asked_for_again,
        ("every try ended",),
        ("quorum several",),
        kinds=("node crash",),
        intensity=3.0,
        size=3,
        first=2,
    ),
    QuorumMutant(
        "deadline counted from the reply",
        deadline_from_reply,
        ("kept by a majority",),
        ("quorum lock",),
        kinds=("slow",),
    ),
    QuorumMutant(
        "leases counted by the clock on the wall",
        counted_by_the_wall,
        ("exclusion",),
        ("quorum handling",),
        2.0,
        ("pause", WALL_JUMP),
        first=45,
    ),
    QuorumMutant(
        "adopted for as long as nodes keep it",
        adopted_for_as_long_as_it_is_kept,
        ("kept by a majority",),
        ("quorum handling",),
        plan=(),
        drift=0.2,
    ),
)
