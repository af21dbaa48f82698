"""Handing a lock over: a release grants the lock to the first waiter in the same step.

Otherwise the first waiter gets a turn, and takes it up with another request. A handoff saves that request,
where the wake-up can tell the waiter that it holds the lock already. It comes on top of the transitions, for
engines that support it. The result is the same as if the first waiter had taken up its turn at that moment.

A stopped process would then have the lock for its ttl, whereas a turn is over after two seconds. So a lock is
handed over only to a waiter that came a moment ago. A turn shows whether an older waiter still runs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from . import transitions
from .mutex import admits
from .record import Record, Wants, is_brief
from .requests import Acquire, Done, Granted, Handoff, Queued, Release, Request
from .transitions import Step, grant

__all__ = ["CAME_SECONDS", "apply", "successor_of"]

CAME_SECONDS: Final = 0.1
"""A waiter that came no longer ago than this is taken to be running."""


def apply(record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()) -> Step:
    """``transitions.apply``, with handoffs."""
    step = transitions.apply(record, request, now, wall_us, dead)
    if request.__class__ is Acquire:
        if step.reply.__class__ is Queued:
            return _with_wanted_lease(step, request)
    elif request.__class__ is Release and step.record.queue and step.reply.__class__ is Done:
        return _hand_over(step, now, wall_us)
    return step


def successor_of(request: Request, step: Step) -> str | None:
    """The client that the lock was handed to, if it was."""
    if request.__class__ is not Release or step.record.kind != "lock" or step.reply.__class__ is not Done:
        return None
    return step.record.holders[0].client if step.record.holders else None


def _with_wanted_lease(step: Step, ask: Acquire) -> Step:
    """Note in the waiter's place which lease it wants."""
    if ask.kind != "lock" or not ask.fair or ask.max_hold is not None or not is_brief(ask.metadata):
        return step
    record = step.record
    for place, waiter in enumerate(record.queue):
        if waiter.nonce == ask.nonce and waiter.wants is None:
            wants = Wants(ask.ttl, ask.renews, ask.metadata)
            queue = (*record.queue[:place], waiter._replace(wants=wants), *record.queue[place + 1 :])
            return step._replace(record=record._replace(queue=queue))
    return step


def _hand_over(step: Step, now: float, wall_us: int) -> Step:
    record = step.record
    if record.kind != "lock" or record.holders:
        return step
    nonce, client, owner, mode, since, _, turn_at, wants = record.queue[0]
    if wants is None or turn_at is None or now - since > CAME_SECONDS:
        return step
    if record.ended and any(ended.nonce == nonce for ended in record.ended):
        return step
    ttl, renews, metadata = wants
    ask = Acquire(nonce, client, owner, "lock", mode, ttl, True, True, renews, None, record.limit, metadata)
    after, reply = grant(record, ask, 0, now, wall_us, admits)
    if reply.__class__ is not Granted:
        return step
    handed = Handoff(reply.token, now - since)
    wake = tuple([each._replace(handed=handed) if each.nonce == nonce else each for each in step.wake])
    return step._replace(record=after, wake=wake)
