"""Giving a lock back: at once, or behind the caller's back by the keeper."""

from __future__ import annotations

from math import inf

from ...core.ops import (
    Apply,
    Listen,
    Now,
    Signal,
    Troubled,
    Unknown,
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
from ..book import Book, Job, LeaseState
from .trouble import insist, loss_reason, unavailable

__all__ = ["abandon", "clean_up", "dropped", "release", "released", "releasing", "tell_of_loss"]

HAND_OVER_SECONDS = 1.0
"""How long one who was interrupted waits for its attempt to be withdrawn."""

JOB_SECONDS = 60.0
"""How long the keeper tries to clean up beyond the ttl, after which there is nothing left to clean."""


async def release(
    book: Book, state: LeaseState, patience: float, outcome: Reply | Exception | None = None
) -> None:
    """Give it back. Where it was gone already the state says so; after a failure it can be called again.

    ``outcome``: what came of the first request, where the caller has made it itself.
    """
    request = releasing(book, state)
    try:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            reply = await Apply(state.name, request) if outcome is None else outcome
        except Troubled as trouble:
            state.parted = state.parted or isinstance(trouble, Unknown)
            if not patience:
                raise unavailable(repr(state.name), trouble) from trouble
            reply, uncertain = await insist(book, state.name, request, patience)
            state.parted = state.parted or uncertain
    except HoldfastError as error:
        state.parted = state.parted or isinstance(error.__cause__, Unknown)
        state.renews = state.leaving = False
        book.ring("timer")
        raise
    except BaseException:
        await abandon(book, state, wait=True)
        raise
    # Had a release of ours come first, there would have been nothing to break.
    if isinstance(reply, Gone) and (reply.reason == "broken" or not state.parted):
        book.leases.pop(state.nonce, None)
        state.lose(loss_reason(reply), reply.note)
        await tell_of_loss(state)
    else:
        released(book, state)


def releasing(book: Book, state: LeaseState) -> Release:
    """The request that gives it back, and from now on it is on its way."""
    state.leaving = True
    # Without the detour through its Python constructor.
    return tuple.__new__(Release, (state.nonce, book.linger if state.uncertain else 0.0))


def released(book: Book, state: LeaseState) -> None:
    """It was given back."""
    book.leases.pop(state.nonce, None)
    state.end("released")


async def abandon(book: Book, state: LeaseState, wait: bool = False) -> None:
    """Give it back behind our back: the keeper does it, and again if it fails."""
    book.drop(state)
    if state.reason is not None:
        await tell_of_loss(state)  # from here on the timer does not know it
    state.end("released")
    request = Release(state.nonce, book.linger if state.uncertain else 0.0)
    await clean_up(book, state.name, state.ttl, request, wait)


async def clean_up(
    book: Book, name: str, ttl: float, request: Release | Withdraw | Adopt, wait: bool
) -> None:
    """Let the keeper do it; wait at most a second. What a dead network keeps expires with the ttl."""
    job = Job(name, request, f"{request.nonce}/job", give_up_at=inf)
    try:
        try:
            now = await Now()
            job.give_up_at = now + ttl + JOB_SECONDS
            if wait:
                await Listen(job.nonce, None)
        finally:
            book.hand_over(job)  # also if a second interrupt came just now
        if wait:
            await Wait(job.nonce, now + HAND_OVER_SECONDS)
    finally:
        if wait:
            await Unlisten(job.nonce)


async def tell_of_loss(state: LeaseState) -> None:
    """Once, by whoever finds out first: the timer, the keeper, or a release."""
    if not state.signalled:
        state.signalled = True
        try:
            await Signal(state)
        except BaseException:
            state.signalled = False  # the timer tries again
            raise


def dropped(book: Book, state: LeaseState) -> None:
    """Nobody can reach the lease any more: let it run out. Called by the garbage collector: no waiting.

    Where one session carries everything that the client holds, it is given back when its time is over.
    """
    book.drop(state)
    state.end("dropped")
    job = f"{state.nonce}/job"
    book.hand_over(Job(state.name, Stop(state.nonce), job, give_up_at=state.deadline))
    release = Release(state.nonce, book.linger if state.uncertain else 0.0)
    over = state.deadline + state.ttl
    book.hand_over(Job(state.name, release, job, give_up_at=over, due_at=state.deadline))
