"""The two common changes of a contended lock, decided on the text of the record without decoding all of it.

Between processes that want the same lock nearly every change is one of two: a waiter joins the end of the
queue, or the holder hands the lock over to the first waiter. Each function here gives the same result as
``handoff.apply`` for one of them, or None where the whole record has to be decoded. ``codec`` lays the text
out for this purpose: the holders have a line of their own, and so has each waiter. Every waiter waits for the
time that a decision takes.

Why the waiters behind the first need not be read: places are taken in the order of time, and each is kept for
at least ``PATIENCE_SECONDS`` from then on. So while the first waiter has its place, all behind it have
theirs. And turns are given from the front of the queue: while the first waiter has no turn, no waiter has
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...rules.handoff import CAME_SECONDS
from ...rules.record import MAX_TOKEN, PATIENCE_SECONDS, TURN_SECONDS, Holder, Waiter, Wants, is_brief
from ...rules.requests import Acquire, Handoff, Queued, Wake
from .codec import ENDING, QUEUE_ENDING, beginning_of, encode_holder, encode_waiter, quoted

__all__ = ["HandoffResult", "JoinResult", "hand_over", "join_queue"]

_LOCK: Final = beginning_of("lock")
_new = tuple.__new__
_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # its C code
"""Decodes the value at an index of a text. Returns the value and the index where it ends."""

_UNREADABLE: Final = (ValueError, TypeError, IndexError, StopIteration)
"""What damaged texts raise. Decoding the whole record reports the damage."""


class HandoffResult(NamedTuple):
    """The record after the handoff, and the wake-up of the successor."""

    text: str
    successor: Wake


class JoinResult(NamedTuple):
    """The record with one more waiter, and the reply to that waiter."""

    text: str
    reply: Queued


def hand_over(text: str, nonce: str, now: float, wall_us: int) -> HandoffResult | None:
    """The holder releases the lock, and the first waiter, which came just now, holds it."""
    if not text.startswith(_LOCK) or not text.endswith(QUEUE_ENDING):
        return None
    try:
        before, held, _, first, others = text.split("\n", 4)
        if not held.startswith(f"[{quoted(nonce)},") or _scan(held, 0)[0][6] <= now:
            return None
        successor, client, owner, mode, since, expires_at, turn_at, wants = _scan(first, 0)[0]
        if wants is None or turn_at is not None or now - since > CAME_SECONDS or expires_at <= now:
            return None
        token = max(int(before[len(_LOCK) : -2]) + 1, wall_us)
        ttl, renews, metadata = wants
    except _UNREADABLE:
        return None
    if token >= MAX_TOKEN:
        return None
    holder = (successor, client, owner, mode, token, now, now + ttl, ttl, renews, None, metadata)
    held = encode_holder(_new(Holder, holder))
    if others == ENDING:
        after = f"{_LOCK}{token},[{held}],[{ENDING}"
    else:
        after = f"{_LOCK}{token},[\n{held}\n],[\n{others[1:]}"
    handed = _new(Handoff, (token, now - since))
    return _new(HandoffResult, (after, _new(Wake, (client, successor, handed))))


def join_queue(text: str, ask: Acquire, now: float) -> JoinResult | None:
    """A new attempt joins the end of the queue, with the lease that it wants."""
    if ask.kind != "lock" or not ask.wait or not ask.fair or ask.max_hold is not None:
        return None
    if ask.metadata and not is_brief(ask.metadata):
        return None
    lines = _lines(text)
    if lines is None or not lines[1] or f"[{quoted(ask.nonce)}," in text:
        return None
    try:
        holder, first = _scan(lines[1], 0)[0], _scan(lines[3], 0)[0]
        last = first if len(lines) == 5 else _scan(lines[-2], 1)[0]
        # Nothing expires before this. It may be too early, never too late.
        next_at = min(holder[6], first[4] + PATIENCE_SECONDS)
        if next_at <= now or first[6] is not None:
            return None
        blockers = {holder[1]: None, last[1]: None}
    except _UNREADABLE:
        return None
    blockers.pop("", None)
    wants = Wants(ask.ttl, ask.renews, ask.metadata)
    waiter = Waiter(ask.nonce, ask.client, ask.owner, ask.mode, now, now + PATIENCE_SECONDS, None, wants)
    place = len(lines) - 4
    reply = Queued(place, next_at - now + place * TURN_SECONDS, tuple(blockers))
    after = f"{text[: -len(QUEUE_ENDING)]}\n,{encode_waiter(waiter)}{QUEUE_ENDING}"
    return _new(JoinResult, (after, reply))


def _lines(text: str) -> list[Any] | None:
    """The lines of the text: the head, the holder, a separator, the waiters, the end.

    None: it is not a plain lock with one holder and waiters.
    """
    if not text.startswith(_LOCK) or not text.endswith(QUEUE_ENDING):
        return None
    lines = text.split("\n")
    return lines if len(lines) > 4 else None
