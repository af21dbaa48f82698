"""What mostly happens to a lock that others wait for, decided on its text, without reading the whole record.

Between processes that want the same lock nearly everything is one of two: one more joins the end of the
line, or the holder hands over to the first. Each function here is ``handing.apply`` for one of them, or None
where that takes a closer look. ``codec`` lays texts out for it: who holds and who waits have lines of their
own. Who waits for the lock waits for all that is done on the way.

Why those behind the first need not be read: places are asked for in the order of time, and each is kept for
``PATIENCE_SECONDS`` at least from then on. So while the first has its place, all behind it have theirs. And
turns are a front of the line: while the first has none, nobody has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...rules.handoff import CAME_SECONDS
from ...rules.record import MAX_TOKEN, PATIENCE_SECONDS, TURN_SECONDS, Holder, Waiter, Wants, is_brief
from ...rules.requests import Acquire, Handoff, Queued, Wake
from .codec import ENDING, QUEUE_ENDING, beginning_of, encode_holder, encode_waiter, quoted

__all__ = ["HandoffResult", "JoinResult", "hand_over", "joined"]

_LOCK: Final = beginning_of("lock")
_new = tuple.__new__
_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # its C code
"""The value that begins at some place of a text, and where it ends: decoding without the detours."""

_UNREADABLE: Final = (ValueError, TypeError, IndexError, StopIteration)
"""What damaged texts cause: whoever takes the closer look says so."""


class HandoffResult(NamedTuple):
    """The record after its holder gave it back, and to whom."""

    text: str
    successor: Wake


class JoinResult(NamedTuple):
    """The record with one more in line, and what that one is told."""

    text: str
    reply: Queued


def hand_over(text: str, nonce: str, now: float, wall_us: int) -> HandoffResult | None:
    """The holder gives it back, and the first in line has it: it came just now."""
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


def joined(text: str, ask: Acquire, now: float) -> JoinResult | None:
    """One who is new here joins the end of the line, with what it wants."""
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
        # Nothing happens before this: it may be told too early, never too late.
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
    """What comes before the holder, the holder, what comes between, those who wait, what comes behind.

    None: it is no lock that one holds and others wait for, or there is more to it.
    """
    if not text.startswith(_LOCK) or not text.endswith(QUEUE_ENDING):
        return None
    lines = text.split("\n")
    return lines if len(lines) > 4 else None
