"""The keeper renews leases and refreshes places in queues; the timer reports losses in time.

They are two coroutines, because a renewal that hangs must not delay the report of a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from ..core.deadlines import RENEW_AFTER, lease_deadline, pause_seconds
from ..core.effects import (
    Apply,
    Notify,
    Now,
    Pause,
    ProtocolCoroutine,
    RenewBatch,
    SleepUntil,
    TransientError,
)
from ..errors import EngineUnavailable, LossReason
from ..rules.requests import Absent, Done, Gone, Queued, Refresh, Release, Renew, Reply, Stop
from .client_state import CleanupTask, ClientState, LeaseState
from .records import report_loss

__all__ = ["deadline_loop", "renewal_loop"]

BATCH_AHEAD = 0.1
"""A lease that is due within this fraction of its ttl is renewed together with those due now."""

RETRY_SECONDS_MAX = 1.0

UNEXPECTED_ERRORS_MAX = 5
"""After so many unexpected errors a clean-up task is given up."""

REPORT_AGAIN_SECONDS = 0.5
REPORT_SECONDS_MAX = 60.0
"""How often, and for how long, the report of a loss is repeated after it failed."""

CHECKS_MAX = 20
"""How many leases without renewal are checked between two rounds of renewals."""


async def renewal_loop(client_state: ClientState) -> None:
    """Until the client closes: renew, refresh, clean up, sleep until the next duty."""
    failures = 0
    while not client_state.closing:
        client_state.keeper_wakes_at = inf
        done = [
            await _isolated(client_state, each)
            for each in (_renew_batch, _check_unrenewed, _clean_up, _sleep)
        ]
        failures = 0 if all(done) else failures + 1
        if failures:
            await Pause(pause_seconds(failures))


async def _sleep(client_state: ClientState) -> None:
    until = _next_duty(client_state)
    client_state.keeper_wakes_at = inf if until is None else until
    client_state.mark_running("keeper")
    await SleepUntil("keeper", until)


async def _isolated(
    client_state: ClientState, step: Callable[[ClientState], ProtocolCoroutine[None]]
) -> bool:
    """Run one step. An unexpected error ends the step, not the keeper. False: there was one."""
    try:
        await step(client_state)
    except client_state.exits:
        raise
    except BaseException as error:  # noqa: BLE001 - the other leases still have to be renewed
        client_state.reports.unexpected("renewing what this client holds", error)
        return False
    return True


class Due(NamedTuple):
    """One renewal of a lease, or one refresh of a place in a queue."""

    name: str
    nonce: str
    request: Renew | Refresh
    state: LeaseState | None
    """None: a place in a queue."""


async def _renew_batch(client_state: ClientState) -> None:
    sent = await Now()
    leases = [s for s in list(client_state.leases.values()) if s.renews and _is_due(s, sent)]
    refreshes = [(n, w) for n, w in list(client_state.waiting.items()) if w.refresh_at <= sent]
    if not leases and not refreshes:
        return
    due = [Due(s.name, s.nonce, Renew(s.nonce, s.ttl), s) for s in leases]
    due += [Due(waiting.name, nonce, Refresh(nonce), None) for nonce, waiting in refreshes]
    for state in leases:
        state.renew_at = (
            sent + state.ttl * RENEW_AFTER
        )  # before the request: a wake-up meanwhile asks once more
    for _, waiting in refreshes:
        waiting.refresh_at = sent + waiting.refresh_in
    await _send_batch(client_state, due, sent)


async def _send_batch(client_state: ClientState, due: list[Due], sent: float, again: bool = False) -> None:
    """``again``: a single request, repeated alone after an unexpected error."""
    leases = [each.state for each in due if each.state is not None]
    for state in leases:
        state.renewal_in_flight = sent, client_state.reports.engine
    try:
        replies = await RenewBatch(tuple([(each.name, each.request) for each in due]))
        now = await Now()
    except (TransientError, EngineUnavailable) as trouble:
        for state in leases:
            _retry_soon(client_state, state, sent, str(trouble))
        client_state.reports.failing(leases, str(trouble), client_state.now())
        return
    except client_state.exits:
        raise
    except BaseException as error:  # noqa: BLE001 - it concerns one request of the batch
        await _bisect_batch(client_state, due, error, again)
        return
    finally:
        for state in leases:
            state.renewal_in_flight = None
    for each, reply in zip(due, replies, strict=False):
        try:
            await _handle_reply(client_state, each, reply, sent, now)
        except client_state.exits:
            raise
        except BaseException as error:  # noqa: BLE001 - it concerns this lease alone
            await _fail_one(client_state, each, error)
    troubled = [state for state in leases if state.trouble and _is_held(state)]
    if troubled:
        client_state.reports.failing(troubled, troubled[0].trouble, now)
    else:
        client_state.reports.working(now)


async def _bisect_batch(client_state: ClientState, due: list[Due], error: BaseException, again: bool) -> None:
    """One request of the batch raised an error that no engine should raise: find out which, by bisection."""
    if again:
        await _fail_one(client_state, due[0], error)
        return
    middle = len(due) // 2
    for some in (due[:middle], due[middle:]):
        if some:
            await _send_batch(client_state, some, await Now(), again=len(due) == 1)


async def _fail_one(client_state: ClientState, due: Due, error: BaseException) -> None:
    """It is unknown whether this lease is still held: it counts as lost, and no other lease does."""
    state = due.state
    if state is None:
        client_state.reports.unexpected(
            f"keeping the place of {due.nonce} in the queue of {due.name!r}", error
        )
        await Notify(due.nonce)  # the waiter asks for itself
        return
    client_state.reports.unexpected(f"renewing the {state.kind} {state.name!r} (token {state.token})", error)
    if _is_held(state):
        state.mark_lost(
            "unreachable", f"renewing it ended with an unexpected {type(error).__name__}: see the log"
        )
        client_state.wake_timer("timer")  # which reports the loss, apart from what failed here


async def _handle_reply(client_state: ClientState, due: Due, reply: Reply, sent: float, now: float) -> None:
    if due.state is not None and isinstance(due.request, Renew):
        await _handle_renewal(client_state, due.state, due.request.ttl, reply, sent, now)
    elif isinstance(reply, Absent) or (isinstance(reply, Queued) and reply.poll_after <= 0):
        await Notify(due.nonce)


def _is_held(state: LeaseState) -> bool:
    return state.reason is None and state.ended is None and not state.is_releasing


def _is_due(state: LeaseState, now: float) -> bool:
    if not _is_held(state):
        return False
    return state.renew_at == 0.0 or (state.renews and state.renew_at <= now + state.ttl * BATCH_AHEAD)


async def _check_unrenewed(client_state: ClientState) -> None:
    """Ask whether leases without renewal are still held, without extending them.

    A few at a time, because other leases have to be renewed meanwhile.
    """
    now = await Now()
    suspects = [s for s in list(client_state.leases.values()) if not s.renews and _is_due(s, now)]
    for state in suspects[:CHECKS_MAX]:
        state.renew_at = inf  # before the request: a wake-up meanwhile asks once more
        try:
            reply = await Apply(state.name, Stop(state.nonce))
            await _handle_renewal(client_state, state, state.ttl, reply, now, await Now())
        except (TransientError, EngineUnavailable):
            continue
        except client_state.exits:
            raise
        except BaseException as error:  # noqa: BLE001 - it concerns this lease alone
            await _fail_one(
                client_state, Due(state.name, state.nonce, Renew(state.nonce, state.ttl), state), error
            )


async def _handle_renewal(
    client_state: ClientState, state: LeaseState, ttl: float, reply: Reply, sent: float, now: float
) -> None:
    """``ttl`` is that of the request: meanwhile ``extend`` may have given the lease another."""
    if isinstance(reply, Done):
        state.trouble = ""
        state.renew_at = min(state.renew_at, sent + (ttl - reply.age) * RENEW_AFTER)
        if state.renews:
            state.extend(lease_deadline(sent - reply.age, ttl), now)
    elif isinstance(reply, Gone) and state.ended is None and not state.is_releasing:
        reason: LossReason = "expired"
        if reply.reason == "stolen":
            reason = "stolen"
        elif reply.reason == "broken":
            reason = "broken"
        state.mark_lost(reason, reply.note)
        client_state.drop(state)
        await report_loss(state)
    elif not isinstance(reply, Gone):
        _retry_soon(client_state, state, sent, "it cannot say whether this lease is held")


def _retry_soon(client_state: ClientState, state: LeaseState, sent: float, cause: str) -> None:
    state.trouble = f"{client_state.reports.engine}: {cause}"
    state.renew_at = sent + min(state.ttl / 10, RETRY_SECONDS_MAX)


async def _clean_up(client_state: ClientState) -> None:
    for _ in range(len(client_state.cleanup_tasks)):
        task = client_state.cleanup_tasks.popleft()
        now = await Now()
        if task.due_at > now:
            client_state.cleanup_tasks.append(task)
            continue
        try:
            await Apply(task.name, task.request)
        except (TransientError, EngineUnavailable):
            if now < task.give_up_at:
                task.due_at = now + pause_seconds(task.attempts)
                task.attempts += 1
                client_state.cleanup_tasks.append(task)
            if client_state.session_bound:
                _delay_all(client_state, now)
            return  # the failure may have taken long: leases come first
        except client_state.exits:
            client_state.cleanup_tasks.append(task)
            raise
        except BaseException as error:  # noqa: BLE001 - it concerns this lease alone
            await _retry_later(client_state, task, now, error)
        else:
            client_state.cleanup_failures = 0
            await Notify(task.nonce)


async def _retry_later(
    client_state: ClientState, task: CleanupTask, now: float, error: BaseException
) -> None:
    """Try again after an unexpected error; after too many, what is left ends with its ttl or its client."""
    task.unexpected_errors += 1
    request = f"the {type(task.request).__name__.lower()} of {task.name!r}"
    client_state.reports.unexpected(
        f"trying {request} in the background, attempt {task.unexpected_errors}", error
    )
    if task.unexpected_errors < UNEXPECTED_ERRORS_MAX:
        task.due_at = now + pause_seconds(task.attempts)
        task.attempts += 1
        client_state.cleanup_tasks.append(task)
    else:
        await Notify(task.nonce)


def _delay_all(client_state: ClientState, now: float) -> None:
    """All clean-up tasks need the same engine, which may be away for long: try one at a time."""
    due_at = now + pause_seconds(client_state.cleanup_failures)
    client_state.cleanup_failures += 1
    for task in list(client_state.cleanup_tasks):
        task.due_at = max(task.due_at, due_at)


def _next_duty(client_state: ClientState) -> float | None:
    due = client_state.keeper_horizon
    client_state.keeper_horizon = inf
    for state in list(client_state.leases.values()):
        if (state.renews or state.renew_at == 0.0) and _is_held(state) and state.renew_at < due:
            due = state.renew_at
    for waiting in list(client_state.waiting.values()):
        due = min(due, waiting.refresh_at)
    for task in list(client_state.cleanup_tasks):
        due = min(due, task.due_at)
    return None if due == inf else due


async def deadline_loop(client_state: ClientState) -> None:
    """Until the client closes: report every loss, at the deadline minus the grace period at the latest."""
    failures = 0
    while not client_state.closing:
        client_state.timer_wakes_at = inf
        done = await _isolated(client_state, _report_losses)
        failures = 0 if done else failures + 1
        if failures:
            await Pause(pause_seconds(failures))


async def _report_losses(client_state: ClientState) -> None:
    now = await Now()
    earliest = 0.0
    for state in list(client_state.leases.values()):
        try:
            await _check_deadline(client_state, state, now)
        except client_state.exits:
            raise
        except BaseException as error:  # noqa: BLE001 - it concerns this lease alone
            client_state.reports.unexpected(f"reporting the loss of the {state.kind} {state.name!r}", error)
            earliest = now + REPORT_AGAIN_SECONDS
            if now >= state.deadline + REPORT_SECONDS_MAX:
                client_state.drop(state)
    until = _next_deadline(client_state, now)
    until = until if until is None else max(until, earliest)
    client_state.timer_wakes_at = inf if until is None else until
    client_state.mark_running("timer")
    await SleepUntil("timer", until)


async def _check_deadline(client_state: ClientState, state: LeaseState, now: float) -> None:
    if state.is_releasing:
        return
    if state.reason is None and now >= state.signal_at:
        state.mark_expiring(now)
    if state.reason is not None:
        if state.reason == "unreachable" and not state.is_loss_reported:
            client_state.reports.failing((state,), state.note, now)
        await report_loss(state)
        if now >= state.deadline or state.reason in ("stolen", "broken"):
            _discard_expired(client_state, state)
        return
    asked = state.renewal_in_flight
    if asked is not None and now >= state.warn_at and state.is_unanswered(now):
        client_state.reports.failing((state,), f"no answer for {now - asked[0]:.1f} s", now)


def _discard_expired(client_state: ClientState, state: LeaseState) -> None:
    """The lease is over: stop keeping it, and release it in the engine, so that waiters need not wait."""
    client_state.drop(state)
    if state.reason not in ("stolen", "broken"):
        request = Release(state.nonce, client_state.linger)
        client_state.queue_cleanup(
            CleanupTask(state.name, request, f"{state.nonce}/job", give_up_at=state.deadline + state.ttl)
        )


def _next_deadline(client_state: ClientState, now: float) -> float | None:
    due = client_state.timer_horizon
    client_state.timer_horizon = inf
    for state in list(client_state.leases.values()):
        at = state.warn_at
        if state.is_loss_reported:
            at = state.deadline
        elif at <= now or state.reason is not None:
            at = state.signal_at if state.reason is None else now
        if not state.is_releasing and at < due:
            due = at
    return None if due == inf else due
