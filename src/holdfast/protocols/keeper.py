"""The keeper renews what is held and refreshes where one waits; the timer tells in time what is lost.

Two scripts, because a renewal that hangs must not keep the loss from being told.
"""

from __future__ import annotations

from math import inf

from ..core.deadlines import RENEW_AFTER, pause_seconds, relied_until
from ..core.ops import Apply, Doze, Now, Post, Tend, Troubled
from ..errors import EngineUnavailable, LossReason
from ..rules.requests import Absent, Done, Gone, Queued, Refresh, Release, Renew, Reply, Request, Stop
from .book import Book, Job, LeaseState
from .records import tell_of_loss

__all__ = ["keep", "watch_deadlines"]

BATCH_AHEAD = 0.1
"""What is due within this part of its ttl is renewed along with what is due now."""

RETRY_SECONDS_MAX = 1.0

LOOKS = 20
"""So many leases that are not renewed are looked at between two rounds of renewing."""


async def keep(book: Book) -> None:
    """Until the client closes: renew, refresh, clean up, sleep until the next duty."""
    while not book.closing:
        book.keeper_wakes_at = inf
        await _tend(book)
        await _look(book)
        await _clean_up(book)
        until = _next_duty(book)
        book.keeper_wakes_at = inf if until is None else until
        await Doze("keeper", until)


async def _tend(book: Book) -> None:
    sent = await Now()
    leases = [s for s in list(book.leases.values()) if s.renews and _is_due(s, sent)]
    refreshes = [(n, w) for n, w in list(book.waiting.items()) if w.refresh_at <= sent]
    if not leases and not refreshes:
        return
    ttls = [state.ttl for state in leases]
    steps: list[tuple[str, Request]] = [(s.name, Renew(s.nonce, s.ttl)) for s in leases]
    steps += [(waiting.name, Refresh(nonce)) for nonce, waiting in refreshes]
    for state in leases:
        state.renew_at = sent + state.ttl * RENEW_AFTER  # before we ask: a nudge meanwhile asks once more
    for _, waiting in refreshes:
        waiting.refresh_at = sent + waiting.refresh_in
    try:
        replies = await Tend(tuple(steps))
    except (Troubled, EngineUnavailable):
        for state in leases:
            _ask_again_soon(state, sent)
        return
    now = await Now()
    for state, ttl, reply in zip(leases, ttls, replies, strict=False):
        await _renewed(book, state, ttl, reply, sent, now)
    for (nonce, _), reply in zip(refreshes, replies[len(leases) :], strict=False):
        if isinstance(reply, Absent) or (isinstance(reply, Queued) and reply.look_in <= 0):
            await Post(nonce)


def _is_held(state: LeaseState) -> bool:
    return state.reason is None and state.ended is None and not state.leaving


def _is_due(state: LeaseState, now: float) -> bool:
    if not _is_held(state):
        return False
    return state.renew_at == 0.0 or (state.renews and state.renew_at <= now + state.ttl * BATCH_AHEAD)


async def _look(book: Book) -> None:
    """Something may have happened to leases that are not renewed: ask, but give them no time by asking.

    A few at a time: others are to be renewed meanwhile.
    """
    now = await Now()
    suspects = [s for s in list(book.leases.values()) if not s.renews and _is_due(s, now)]
    for state in suspects[:LOOKS]:
        state.renew_at = inf  # before we ask: a nudge meanwhile asks once more
        try:
            reply = await Apply(state.name, Stop(state.nonce))
        except (Troubled, EngineUnavailable):
            continue
        await _renewed(book, state, state.ttl, reply, now, await Now())


async def _renewed(book: Book, state: LeaseState, ttl: float, reply: Reply, sent: float, now: float) -> None:
    """``ttl`` is what was asked for: meanwhile the lease may have been given another."""
    if isinstance(reply, Done):
        state.trouble = False
        state.renew_at = min(state.renew_at, sent + (ttl - reply.age) * RENEW_AFTER)
        if state.renews:
            state.extended(relied_until(sent - reply.age, ttl), now)
    elif isinstance(reply, Gone) and state.ended is None and not state.leaving:
        reason: LossReason = "expired"
        if reply.reason == "stolen":
            reason = "stolen"
        elif reply.reason == "broken":
            reason = "broken"
        state.lose(reason, reply.note)
        book.drop(state)
        await tell_of_loss(state)
    elif not isinstance(reply, Gone):
        _ask_again_soon(state, sent)  # of this one the engine could not tell


def _ask_again_soon(state: LeaseState, sent: float) -> None:
    state.trouble = True
    state.renew_at = sent + min(state.ttl / 10, RETRY_SECONDS_MAX)


async def _clean_up(book: Book) -> None:
    for _ in range(len(book.jobs)):
        job = book.jobs.popleft()
        now = await Now()
        if job.due_at > now:
            book.jobs.append(job)
            continue
        try:
            await Apply(job.name, job.request)
        except (Troubled, EngineUnavailable):
            if now < job.give_up_at:
                job.due_at = now + pause_seconds(job.attempts)
                job.attempts += 1
                book.jobs.append(job)
            if book.lasting:
                _hold_off(book, now)
            return  # a failure may have taken its time: first see to what is held
        else:
            book.setbacks = 0
            await Post(job.nonce)


def _hold_off(book: Book, now: float) -> None:
    """There is one engine for all of them, which may be away for long: one asks at a time, however many."""
    due_at = now + pause_seconds(book.setbacks)
    book.setbacks += 1
    for job in list(book.jobs):
        job.due_at = max(job.due_at, due_at)


def _next_duty(book: Book) -> float | None:
    due = book.keeper_horizon
    book.keeper_horizon = inf
    for state in list(book.leases.values()):
        if (state.renews or state.renew_at == 0.0) and _is_held(state) and state.renew_at < due:
            due = state.renew_at
    for waiting in list(book.waiting.values()):
        due = min(due, waiting.refresh_at)
    for job in list(book.jobs):
        due = min(due, job.due_at)
    return None if due == inf else due


async def watch_deadlines(book: Book) -> None:
    """Until the client closes: tell of every loss, at the deadline less the grace at the latest."""
    while not book.closing:
        book.timer_wakes_at = inf
        now = await Now()
        for state in list(book.leases.values()):
            if state.leaving:
                continue
            if state.reason is None and now >= state.signal_at:
                state.foresee_loss()
            if state.reason is not None:
                await tell_of_loss(state)
                if now >= state.deadline or state.reason in ("stolen", "broken"):
                    _bury(book, state)
        until = _next_deadline(book)
        book.timer_wakes_at = inf if until is None else until
        await Doze("timer", until)


def _bury(book: Book, state: LeaseState) -> None:
    """It is over: nothing keeps it any more, and the engine is told so that others need not wait."""
    book.drop(state)
    if state.reason not in ("stolen", "broken"):
        request = Release(state.nonce, book.linger)
        book.hand_over(Job(state.name, request, f"{state.nonce}/job", give_up_at=state.deadline + state.ttl))


def _next_deadline(book: Book) -> float | None:
    due = book.timer_horizon
    book.timer_horizon = inf
    for state in list(book.leases.values()):
        at = state.deadline if state.signalled else state.signal_at
        if not state.leaving and at < due:
            due = at
    return None if due == inf else due
