"""The keeper renews what is held and refreshes where one waits; the timer tells in time what is lost.

Two scripts, because a renewal that hangs must not keep the loss from being told.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from ..core.deadlines import RENEW_AFTER, pause_seconds, relied_until
from ..core.ops import Apply, Doze, Now, Pause, Post, Script, Tend, Troubled
from ..errors import EngineUnavailable, LossReason
from ..rules.requests import Absent, Done, Gone, Queued, Refresh, Release, Renew, Reply, Stop
from .book import Book, Job, LeaseState
from .records import tell_of_loss

__all__ = ["keep", "watch_deadlines"]

BATCH_AHEAD = 0.1
"""What is due within this part of its ttl is renewed along with what is due now."""

RETRY_SECONDS_MAX = 1.0

SURPRISES_MAX = 5
"""So often something is cleaned up in vain with an error that nobody expected, before it is given up."""

TELL_AGAIN_SECONDS = 0.5
TELL_SECONDS_MAX = 60.0
"""How often, and for how long, a loss is told that could not be told."""

LOOKS = 20
"""So many leases that are not renewed are looked at between two rounds of renewing."""


async def keep(book: Book) -> None:
    """Until the client closes: renew, refresh, clean up, sleep until the next duty."""
    setbacks = 0
    while not book.closing:
        book.keeper_wakes_at = inf
        done = [await _isolated(book, each) for each in (_tend, _look, _clean_up, _rest)]
        setbacks = 0 if all(done) else setbacks + 1
        if setbacks:
            await Pause(pause_seconds(setbacks))


async def _rest(book: Book) -> None:
    until = _next_duty(book)
    book.keeper_wakes_at = inf if until is None else until
    book.runs("keeper")
    await Doze("keeper", until)


async def _isolated(book: Book, step: Callable[[Book], Script[None]]) -> bool:
    """One step of the keeper. An error that nobody expected ends the step, not the keeper."""
    try:
        await step(book)
    except book.exits:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, others are to be renewed
        book.reports.unexpected("renewing what this client holds", error)
        return False
    return True


class Due(NamedTuple):
    """One renewal of a lease, or one refresh of a place in a queue."""

    name: str
    nonce: str
    request: Renew | Refresh
    state: LeaseState | None
    """None: it waits."""


async def _tend(book: Book) -> None:
    sent = await Now()
    leases = [s for s in list(book.leases.values()) if s.renews and _is_due(s, sent)]
    refreshes = [(n, w) for n, w in list(book.waiting.items()) if w.refresh_at <= sent]
    if not leases and not refreshes:
        return
    due = [Due(s.name, s.nonce, Renew(s.nonce, s.ttl), s) for s in leases]
    due += [Due(waiting.name, nonce, Refresh(nonce), None) for nonce, waiting in refreshes]
    for state in leases:
        state.renew_at = sent + state.ttl * RENEW_AFTER  # before we ask: a nudge meanwhile asks once more
    for _, waiting in refreshes:
        waiting.refresh_at = sent + waiting.refresh_in
    await _ask(book, due, sent)


async def _ask(book: Book, due: list[Due], sent: float, again: bool = False) -> None:
    """``again``: it is one, and it is asked alone after an error that nobody expected."""
    leases = [each.state for each in due if each.state is not None]
    for state in leases:
        state.asked = sent, book.reports.engine
    try:
        replies = await Tend(tuple([(each.name, each.request) for each in due]))
        now = await Now()
    except (Troubled, EngineUnavailable) as trouble:
        for state in leases:
            _ask_again_soon(book, state, sent, str(trouble))
        book.reports.failing(leases, str(trouble), book.now())
        return
    except book.exits:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it concerns one of them
        await _ask_apart(book, due, error, again)
        return
    finally:
        for state in leases:
            state.asked = None
    for each, reply in zip(due, replies, strict=False):
        try:
            await _answered(book, each, reply, sent, now)
        except book.exits:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it concerns this one alone
            await _lose_alone(book, each, error)
    troubled = [state for state in leases if state.trouble and _is_held(state)]
    if troubled:
        book.reports.failing(troubled, troubled[0].trouble, now)
    else:
        book.reports.working(now)


async def _ask_apart(book: Book, due: list[Due], error: BaseException, again: bool) -> None:
    """One of them cannot be renewed, and no engine should say so in this way: find out which, by halves."""
    if again:
        await _lose_alone(book, due[0], error)
        return
    middle = len(due) // 2
    for some in (due[:middle], due[middle:]):
        if some:
            await _ask(book, some, await Now(), again=len(due) == 1)


async def _lose_alone(book: Book, due: Due, error: BaseException) -> None:
    """It cannot be told any more whether it is held: that is the loss of this one, and of no other."""
    state = due.state
    if state is None:
        book.reports.unexpected(f"keeping the place of {due.nonce} in the queue of {due.name!r}", error)
        await Post(due.nonce)  # let it ask for itself
        return
    book.reports.unexpected(f"renewing the {state.kind} {state.name!r} (token {state.token})", error)
    if _is_held(state):
        state.lose("unreachable", f"renewing it ended with an unexpected {type(error).__name__}: see the log")
        book.ring("timer")  # which tells of it, apart from what failed here


async def _answered(book: Book, due: Due, reply: Reply, sent: float, now: float) -> None:
    if due.state is not None and isinstance(due.request, Renew):
        await _renewed(book, due.state, due.request.ttl, reply, sent, now)
    elif isinstance(reply, Absent) or (isinstance(reply, Queued) and reply.look_in <= 0):
        await Post(due.nonce)


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
            await _renewed(book, state, state.ttl, reply, now, await Now())
        except (Troubled, EngineUnavailable):
            continue
        except book.exits:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it concerns this one alone
            await _lose_alone(book, Due(state.name, state.nonce, Renew(state.nonce, state.ttl), state), error)


async def _renewed(book: Book, state: LeaseState, ttl: float, reply: Reply, sent: float, now: float) -> None:
    """``ttl`` is what was asked for: meanwhile the lease may have been given another."""
    if isinstance(reply, Done):
        state.trouble = ""
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
        _ask_again_soon(book, state, sent, "it cannot tell whether this one is held")


def _ask_again_soon(book: Book, state: LeaseState, sent: float, cause: str) -> None:
    state.trouble = f"{book.reports.engine}: {cause}"
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
        except book.exits:
            book.jobs.append(job)
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it concerns this one alone
            await _put_off(book, job, now, error)
        else:
            book.setbacks = 0
            await Post(job.nonce)


async def _put_off(book: Book, job: Job, now: float, error: BaseException) -> None:
    """It may not happen again; if it does, what is left behind ends with its ttl, or with this client."""
    job.surprises += 1
    told = f"{type(job.request).__name__.lower()} of {job.name!r} in the background"
    book.reports.unexpected(f"trying the {told}, for the time number {job.surprises}", error)
    if job.surprises < SURPRISES_MAX:
        job.due_at = now + pause_seconds(job.attempts)
        job.attempts += 1
        book.jobs.append(job)
    else:
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
    setbacks = 0
    while not book.closing:
        book.timer_wakes_at = inf
        done = await _isolated(book, _tell_losses)
        setbacks = 0 if done else setbacks + 1
        if setbacks:
            await Pause(pause_seconds(setbacks))


async def _tell_losses(book: Book) -> None:
    now = await Now()
    earliest = 0.0
    for state in list(book.leases.values()):
        try:
            await _look_at_clock(book, state, now)
        except book.exits:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it concerns this one alone
            book.reports.unexpected(f"telling the loss of the {state.kind} {state.name!r}", error)
            earliest = now + TELL_AGAIN_SECONDS
            if now >= state.deadline + TELL_SECONDS_MAX:
                book.drop(state)
    until = _next_deadline(book, now)
    until = until if until is None else max(until, earliest)
    book.timer_wakes_at = inf if until is None else until
    book.runs("timer")
    await Doze("timer", until)


async def _look_at_clock(book: Book, state: LeaseState, now: float) -> None:
    if state.leaving:
        return
    if state.reason is None and now >= state.signal_at:
        state.foresee_loss(now)
    if state.reason is not None:
        if state.reason == "unreachable" and not state.signalled:
            book.reports.failing((state,), state.note, now)
        await tell_of_loss(state)
        if now >= state.deadline or state.reason in ("stolen", "broken"):
            _bury(book, state)
        return
    asked = state.asked
    if asked is not None and now >= state.warn_at and state.is_unanswered(now):
        book.reports.failing((state,), f"no answer for {now - asked[0]:.1f} s", now)


def _bury(book: Book, state: LeaseState) -> None:
    """It is over: nothing keeps it any more, and the engine is told so that others need not wait."""
    book.drop(state)
    if state.reason not in ("stolen", "broken"):
        request = Release(state.nonce, book.linger)
        book.hand_over(Job(state.name, request, f"{state.nonce}/job", give_up_at=state.deadline + state.ttl))


def _next_deadline(book: Book, now: float) -> float | None:
    due = book.timer_horizon
    book.timer_horizon = inf
    for state in list(book.leases.values()):
        at = state.warn_at
        if state.signalled:
            at = state.deadline
        elif at <= now or state.reason is not None:
            at = state.signal_at if state.reason is None else now
        if not state.leaving and at < due:
            due = at
    return None if due == inf else due
