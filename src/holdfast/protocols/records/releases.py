"""Releasing a lease: at once, or in the background by the keeper."""

from __future__ import annotations

from math import inf

from ...core.effects import (
    Apply,
    Listen,
    Now,
    OutcomeUnknown,
    Signal,
    TransientError,
    Unlisten,
    Wait,
)
from ...errors import HoldfastError
from ...rules.requests import (
    Adopt,
    Gone,
    Release,
    Reply,
    Stop,
    Withdraw,
)
from ..client_state import CleanupTask, ClientState, LeaseState
from .retry import loss_reason, retry_until_deadline, unavailable_error

__all__ = ["abandon", "clean_up", "dropped", "mark_released", "release", "release_request", "report_loss"]

WITHDRAWAL_SECONDS = 1.0
"""How long an interrupted caller waits until its attempt is withdrawn."""

CLEANUP_SECONDS = 60.0
"""How long beyond the ttl the keeper repeats a clean-up; by then nothing is left to clean up."""


async def release(
    client_state: ClientState,
    state: LeaseState,
    retry_seconds: float,
    outcome: Reply | Exception | None = None,
) -> None:
    """Release the lease; ``state`` says whether it was lost before. After a failure it can be called again.

    ``outcome``: the result of the first request, where the caller has sent it itself.
    """
    request = release_request(client_state, state)
    try:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            reply = await Apply(state.name, request) if outcome is None else outcome
        except TransientError as trouble:
            state.release_outcome_unknown = state.release_outcome_unknown or isinstance(
                trouble, OutcomeUnknown
            )
            if not retry_seconds:
                raise unavailable_error(repr(state.name), trouble) from trouble
            reply, uncertain = await retry_until_deadline(client_state, state.name, request, retry_seconds)
            state.release_outcome_unknown = state.release_outcome_unknown or uncertain
    except HoldfastError as error:
        state.release_outcome_unknown = state.release_outcome_unknown or isinstance(
            error.__cause__, OutcomeUnknown
        )
        state.renews = state.is_releasing = False
        client_state.wake_timer("timer")
        raise
    except BaseException:
        await abandon(client_state, state, wait=True)
        raise
    # Had an earlier release been applied first, there would have been nothing to break.
    if isinstance(reply, Gone) and (reply.reason == "broken" or not state.release_outcome_unknown):
        client_state.leases.pop(state.nonce, None)
        state.mark_lost(loss_reason(reply), reply.note)
        await report_loss(state)
    else:
        mark_released(client_state, state)


def release_request(client_state: ClientState, state: LeaseState) -> Release:
    """The request that releases the lease, which counts as being released from now on."""
    state.is_releasing = True
    # As its constructor does, without a Python call.
    return tuple.__new__(Release, (state.nonce, client_state.linger if state.uncertain else 0.0))


def mark_released(client_state: ClientState, state: LeaseState) -> None:
    """The engine confirmed the release."""
    client_state.leases.pop(state.nonce, None)
    state.end("released")


async def abandon(client_state: ClientState, state: LeaseState, wait: bool = False) -> None:
    """Have the keeper release the lease in the background, and again if that fails."""
    client_state.drop(state)
    if state.reason is not None:
        await report_loss(state)  # from here on the timer does not watch it
    request = Release(state.nonce, client_state.linger if state.uncertain else 0.0)
    await clean_up(client_state, state.name, state.ttl, request, wait, state)


async def clean_up(
    client_state: ClientState,
    name: str,
    ttl: float,
    request: Release | Withdraw | Adopt,
    wait: bool,
    ending: LeaseState | None = None,
) -> None:
    """Queue a clean-up for the keeper; with ``wait``, wait for it, at most ``WITHDRAWAL_SECONDS``.

    Where the network is dead, what is left in the engine expires with the ttl. ``ending``: the lease that
    ends with it. It does not end before, so that an interrupt in between has the caller abandon it again.
    """
    task = CleanupTask(name, request, f"{request.nonce}/job", give_up_at=inf)
    try:
        try:
            now = await Now()
            task.give_up_at = now + ttl + CLEANUP_SECONDS
            if wait:
                await Listen(task.nonce, None)
        finally:
            client_state.queue_cleanup(task)  # also where a second interrupt came just now
            if ending is not None:
                ending.end("released")
        if wait:
            await Wait(task.nonce, now + WITHDRAWAL_SECONDS)
    finally:
        if wait:
            await Unlisten(task.nonce)


async def report_loss(state: LeaseState) -> None:
    """Report the loss once; the timer, the keeper or a release calls this, whichever notices it first."""
    if not state.is_loss_reported:
        state.is_loss_reported = True
        try:
            await Signal(state)
        except BaseException:
            state.is_loss_reported = False  # the timer tries again
            raise


def dropped(client_state: ClientState, state: LeaseState) -> None:
    """No code can reach the lease any more: let it expire. The garbage collector calls this; it never waits.

    Where one session carries everything that the client holds, the keeper releases it at its deadline.
    """
    client_state.drop(state)
    state.end("dropped")
    task = f"{state.nonce}/job"
    client_state.queue_cleanup(CleanupTask(state.name, Stop(state.nonce), task, give_up_at=state.deadline))
    release = Release(state.nonce, client_state.linger if state.uncertain else 0.0)
    over = state.deadline + state.ttl
    client_state.queue_cleanup(CleanupTask(state.name, release, task, give_up_at=over, due_at=state.deadline))
