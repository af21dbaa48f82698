"""The views of several nodes as one record. Pure.

A claim counts as holding the name where a majority has it or, with the nodes that did not answer, could have
it. Nodes have clocks of their own, so all times are relative to the moment of the inspection, which is 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from ...rules.node import Claim, HeldByOther, View
from ...rules.record import Holder, Record
from .tally import majority

__all__ = ["SeenClaim", "holders_of", "record_of", "seen_claims", "soonest_end"]


class SeenClaim(NamedTuple):
    """One attempt as several nodes show it."""

    owner: str
    token: int
    """The number that most of them issued to it."""
    issued_by: int
    """How many nodes issued that number."""
    nodes: int
    """How many nodes have its claim."""
    claim: Claim
    age: float
    remaining: float
    """Seconds until no majority has the claim any more."""


def seen_claims(replies: Iterable[Any], size: int, unseen: int) -> list[SeenClaim]:
    """Attempts that may have a majority; ``unseen`` nodes have not answered."""
    by_owner: dict[str, list[tuple[Claim, int]]] = {}
    for reply in replies:
        found = _claim_of(reply)
        if found is not None:
            by_owner.setdefault(found[0].owner, []).append(found)
    needed = majority(size)
    seen = [_seen(claims, needed, unseen) for claims in by_owner.values()]
    return [each for each in seen if each.nodes + unseen >= needed]


def _claim_of(reply: Any) -> tuple[Claim, int] | None:
    if reply.__class__ is HeldByOther:
        return reply.claim, reply.now
    if reply.__class__ is View and reply.record.claim is not None:
        return reply.record.claim, reply.now
    return None


def _seen(claims: list[tuple[Claim, int]], needed: int, unseen: int) -> SeenClaim:
    count: dict[int, int] = {}
    for claim, _ in claims:
        count[claim.number] = count.get(claim.number, 0) + 1
    token, at_it = max(count.items(), key=lambda item: (item[1], item[0]))
    for claim, _ in claims:
        if claim.token:
            token, at_it = claim.token, needed  # it was exported or repaired: the holder knew the token
    ends = sorted(((claim.expires_at - now) / 1e6 for claim, now in claims), reverse=True)
    remaining = ends[min(max(needed - unseen, 1), len(ends)) - 1]
    age = max((now - claim.since) / 1e6 for claim, now in claims)
    return SeenClaim(claims[0][0].owner, token, at_it, len(claims), claims[0][0], age, remaining)


def holders_of(seen: Iterable[SeenClaim], stretch: float) -> tuple[Holder, ...]:
    """``stretch``: how many times longer than the client relies on it a node keeps a claim: see
    ``Quorum``."""
    return tuple([_holder(each, stretch) for each in seen])


def soonest_end(seen: Iterable[SeenClaim]) -> float:
    """Seconds until the first claim loses its majority; inf: there is none."""
    return min((max(each.remaining, 0.0) for each in seen), default=inf)


def _holder(seen: SeenClaim, stretch: float) -> Holder:
    claim = seen.claim
    until = (claim.until - claim.since) / stretch / 1e6 - seen.age if claim.until else None
    return Holder(
        nonce=seen.owner.rpartition(".")[0],
        client=claim.client,
        owner=claim.label,
        mode="exclusive",
        token=seen.token,
        since=-seen.age,
        expires_at=seen.remaining,
        ttl=claim.ttl / stretch / 1e6,
        renews=True,
        until=until,
        metadata=_metadata(claim.metadata),
    )


def _metadata(text: str) -> Mapping[str, str]:
    """Metadata that a client wrote. Damaged metadata is ignored."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def record_of(replies: Iterable[Any], size: int, unseen: int, stretch: float) -> Record:
    """The record for ``inspect``."""
    views = [reply for reply in replies if reply.__class__ is View]
    fence = max((view.record.fence for view in views), default=0)
    holders = holders_of(seen_claims(views, size, unseen), stretch)
    return Record(kind="lock" if fence else None, token=fence, holders=holders)
