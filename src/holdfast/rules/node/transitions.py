"""How each request changes the record of a node. Pure: the same input gives the same answer.

The simulator and the model check execute this code. The scripts of the Redlock engine translate it, and tests
compare their replies with it. The tokens of the quorum rest on three rules here: a node issues each number
once, its numbers grow, and it issues a number only to the attempt that has its claim at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..record import MAX_TOKEN
from .values import (
    HINT_SPAN_US,
    Acquire,
    Adopt,
    Applied,
    Claim,
    ClockSkewed,
    Export,
    HeldByOther,
    Inspect,
    Issued,
    Lost,
    Mark,
    NodeRecord,
    NodeReply,
    NodeRequest,
    Release,
    Renew,
    Stamp,
    TokensExhausted,
    Tombstone,
    Unready,
    View,
)

__all__ = ["NodeStep", "apply", "settle"]

BROKEN_KEPT_US: Final = 3_600_000_000
"""How long the tombstone of a broken attempt outlives its ttl, so that its holder learns the reason."""

TOMBSTONES_MAX: Final = 100
"""The largest number of tombstones, the latest ones. An attempt whose tombstone was dropped too soon may get
a claim without a holder, which expires."""

NOT_EXPORTED: Final = "it was not exported with this secret, or another client adopted it"


class NodeStep(NamedTuple):
    """The mark and the record after a request, and the answer."""

    mark: Mark
    record: NodeRecord
    reply: NodeReply


def apply(mark: Mark, record: NodeRecord, request: NodeRequest, expected: str, now: int) -> NodeStep:
    """Apply one request about one name. ``expected``: the mark that the client expects the node to have.

    Where the returned record is the one passed in, nothing needs to be stored.
    """
    if mark.ready != expected and request.__class__ is not Release:
        return NodeStep(mark, record, Unready(mark.ready))
    settled = settle(record, now)
    after, reply = _HANDLERS[request.__class__](settled, request, now)
    if after is settled:
        return NodeStep(mark, record, reply)
    if isinstance(request, Acquire | Renew) and not isinstance(reply, Lost) and request.ttl > mark.longest:
        mark = mark._replace(longest=request.ttl)
    return NodeStep(mark, after, reply)


def settle(record: NodeRecord, now: int) -> NodeRecord:
    """The record at ``now``: the expiry of a claim is computed, not stored."""
    if record.claim is not None and record.claim.expires_at <= now:
        return record._replace(claim=None)
    return record


# --- acquire and stamp --------------------------------------------------------------------------


def _acquire(record: NodeRecord, ask: Acquire, now: int) -> tuple[NodeRecord, NodeReply]:
    if abs(ask.hint - now) > HINT_SPAN_US:
        return record, ClockSkewed(now)
    ended = _tombstone_of(record, ask.owner, now)
    if ended is not None:
        return _without_withdrawn(record, ended), Lost(ended.reason, ended.note)
    claim = record.claim
    if claim is not None:
        if claim.owner == ask.owner:
            return record, Issued(claim.number)
        if claim.owner not in ask.instead_of:
            return record, HeldByOther(claim, now)
    over = _tombstones_of_broken(record, ask, now) if ask.instead_of else record.tombstones
    number = max(record.fence + 1, ask.hint)
    if number >= MAX_TOKEN:
        return record, TokensExhausted()
    until = now + ask.max_hold if ask.max_hold else 0
    expires_at = _capped(now + ask.ttl, until)
    lives = (expires_at, ask.ttl, until)
    claim = Claim(ask.owner, number, now, *lives, ask.client, ask.label, ask.metadata, ask.token)
    return NodeRecord(number, claim, over), Issued(number)


def _tombstones_of_broken(record: NodeRecord, ask: Acquire, now: int) -> tuple[Tombstone, ...]:
    """Tombstones for all broken attempts, also those without a claim here: a repair may be about to send
    one."""
    over = _live_tombstones(record.tombstones, now)[1 - TOMBSTONES_MAX :]
    claim = record.claim
    for owner in ask.instead_of:
        if all(each.owner != owner for each in over):
            ttl = claim.ttl if claim is not None and claim.owner == owner else ask.ttl
            over.append(Tombstone(owner, "broken", ask.note, now + ttl + BROKEN_KEPT_US))
    return tuple(over[-TOMBSTONES_MAX:])


def _without_withdrawn(record: NodeRecord, ended: Tombstone) -> NodeRecord:
    """The record without the tombstone of a withdrawn attempt, which has arrived now and was refused."""
    if ended.reason != "withdrawn":
        return record
    return record._replace(tombstones=tuple([each for each in record.tombstones if each is not ended]))


def _stamp(record: NodeRecord, ask: Stamp, now: int) -> tuple[NodeRecord, NodeReply]:
    claim = record.claim
    if claim is None or claim.owner != ask.owner:
        return record, _lost(record, ask.owner, now)
    if not record.fence < ask.number < MAX_TOKEN:
        return record, Issued(claim.number)
    return record._replace(fence=ask.number, claim=claim._replace(number=ask.number)), Issued(ask.number)


# --- release ------------------------------------------------------------------------------------


def _release(record: NodeRecord, ask: Release, now: int) -> tuple[NodeRecord, NodeReply]:
    claim = record.claim
    if claim is not None and claim.owner == ask.owner:
        return record._replace(claim=None), Applied()
    reply = _lost(record, ask.owner, now)
    if ask.linger <= 0:
        return record, reply
    return _with_tombstone(record, ask.owner, now + ask.linger, now), reply


def _with_tombstone(record: NodeRecord, owner: str, forget_at: int, now: int) -> NodeRecord:
    """Remember to refuse an Acquire of this attempt that may still arrive."""
    ended = _tombstone_of(record, owner, now)
    if ended is None:
        ended = Tombstone(owner, "withdrawn", "", forget_at)
    elif ended.forget_at >= forget_at:
        return record
    others = [each for each in _live_tombstones(record.tombstones, now) if each.owner != owner]
    return record._replace(tombstones=(*others, ended._replace(forget_at=forget_at))[-TOMBSTONES_MAX:])


def _live_tombstones(over: tuple[Tombstone, ...], now: int) -> list[Tombstone]:
    return [ended for ended in over if ended.forget_at > now]


# --- renewal and handover -----------------------------------------------------------------------


def _renew(record: NodeRecord, ask: Renew, now: int) -> tuple[NodeRecord, NodeReply]:
    claim = record.claim
    if claim is None or claim.owner != ask.owner:
        return record, _lost(record, ask.owner, now)
    renewed = claim._replace(ttl=ask.ttl, expires_at=_extended(claim, now + ask.ttl))
    return record._replace(claim=renewed), Applied()


def _export(record: NodeRecord, ask: Export, now: int) -> tuple[NodeRecord, NodeReply]:
    claim = record.claim
    if claim is None or claim.owner != ask.owner:
        return record, _lost(record, ask.owner, now)
    expires_at = _extended(claim, now + claim.ttl)
    exported = claim._replace(client="", label=ask.seal, token=ask.token, expires_at=expires_at)
    return record._replace(claim=exported), Applied()


def _adopt(record: NodeRecord, ask: Adopt, now: int) -> tuple[NodeRecord, NodeReply]:
    claim = record.claim
    if claim is None or claim.owner != ask.owner:
        return record, _lost(record, ask.owner, now)
    if claim.client != ask.client and (claim.client, claim.label) != ("", ask.seal):
        return record, Lost("stolen", NOT_EXPORTED)
    expires_at = _extended(claim, now + claim.ttl)
    adopted = claim._replace(client=ask.client, label=ask.label, expires_at=expires_at)
    return record._replace(claim=adopted), Applied()


def _inspect(record: NodeRecord, ask: Inspect, now: int) -> tuple[NodeRecord, NodeReply]:
    return record, View(record, now)


def _extended(claim: Claim, expires_at: int) -> int:
    """Later, never sooner, and not beyond ``max_hold``."""
    return max(claim.expires_at, _capped(expires_at, claim.until))


def _capped(expires_at: int, until: int) -> int:
    return min(expires_at, until) if until else expires_at


def _tombstone_of(record: NodeRecord, owner: str, now: int) -> Tombstone | None:
    for ended in record.tombstones:
        if ended.owner == owner and ended.forget_at > now:
            return ended
    return None


def _lost(record: NodeRecord, owner: str, now: int) -> Lost:
    ended = _tombstone_of(record, owner, now)
    if ended is not None:
        return Lost(ended.reason, ended.note)
    return Lost("expired" if record.claim is None else "stolen")


_Handler = Callable[[NodeRecord, Any, int], tuple[NodeRecord, NodeReply]]

_HANDLERS: Final[dict[type, _Handler]] = {
    Acquire: _acquire,
    Stamp: _stamp,
    Release: _release,
    Renew: _renew,
    Export: _export,
    Adopt: _adopt,
    Inspect: _inspect,
}
