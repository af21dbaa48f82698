"""Several locks at once: acquired all or none, and released together."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ...core.arguments import Spec
from ...core.effects import ApplyInOrder, Nonce, Now, TransientError, never_sent
from ...errors import EngineUnavailable, HoldfastError
from ...rules.requests import Busy, Granted, Reply, Withdraw
from ..client_state import ClientState, LeaseState
from .acquisition import NotGranted, WatchLongWait, acquire, acquire_request, keep_grant
from .releases import abandon, clean_up, release, release_request
from .retry import refusal_error

__all__ = ["abandon_all", "acquire_in_order", "release_all"]


async def acquire_in_order(
    client_state: ClientState,
    specs: tuple[Spec, ...],
    owner: str,
    timeout: float | None,
    patience: float | None = None,
    watch_long_wait: WatchLongWait | None = None,
    caller: weakref.ref[Any] | None = None,
) -> tuple[LeaseState, ...] | NotGranted:
    """Acquire several locks, all or none, in the given order.

    One step takes as many as are free; then the caller waits for the next while it holds those before it.
    Callers that agree on an order cannot deadlock. ``patience``: how long a caller that does not rely on that
    waits for a lock while it holds others. ``watch_long_wait``: what to do beside a long wait of ``caller``,
    a thread or task, which holds those before it.
    """
    ends_at = None if timeout is None else (await Now()) + timeout
    held: list[LeaseState] = []
    try:
        while True:
            taken = await _take_rest(
                client_state, specs, owner, ends_at, held, patience, watch_long_wait, caller
            )
            now = await Now()
            if taken is None and all(state.loss(now) is None for state in held):
                return tuple(held)
            # Not granted in time; or one was lost during the wait for another, and all are acquired anew.
            try:
                await release_all(client_state, held, 0.0)
            except EngineUnavailable:
                await abandon_all(client_state, held)
            held.clear()
            if taken is not None or (ends_at is not None and now >= ends_at):
                return taken or NotGranted()
    except BaseException:
        await abandon_all(client_state, held)
        raise


async def _take_rest(
    client_state: ClientState,
    specs: tuple[Spec, ...],
    owner: str,
    ends_at: float | None,
    held: list[LeaseState],
    patience: float | None,
    watch_long_wait: WatchLongWait | None,
    caller: weakref.ref[Any] | None,
) -> NotGranted | None:
    """Extend ``held`` until it is complete. Returns why that is impossible, else None."""
    while len(held) < len(specs):
        rest = specs[len(held) :]
        is_refused = True
        if len(rest) > 1:
            taken_now, is_refused = await _take_free(client_state, rest, owner)
            held += taken_now
        for state in held:
            state.caller = caller
        if len(held) < len(specs) and is_refused:
            spec = specs[len(held)]
            left = None if ends_at is None else max(ends_at - await Now(), 0.0)
            if held and patience is not None:
                left = patience if left is None else min(left, patience)
            watch = None if spec.deadlock == "ignore" else watch_long_wait
            taken = await acquire(client_state, spec, owner, left, watch, caller)
            if isinstance(taken, NotGranted):
                taken.name = spec.name
                return taken
            taken.caller = caller
            held.append(taken)
    return None


async def _take_free(
    client_state: ClientState, specs: tuple[Spec, ...], owner: str
) -> tuple[list[LeaseState], bool]:
    """Acquire those that are free now, up to the first that is not, and say whether there was one: an engine
    may take fewer than all in one step."""
    attempts = [(spec, await Nonce()) for spec in specs]
    sent = await Now()
    taken: list[LeaseState] = []
    try:
        steps = tuple(
            (spec.name, acquire_request(client_state, spec, owner, nonce)) for spec, nonce in attempts
        )
        replies = await ApplyInOrder(steps, stop_when_refused=True)
        for (spec, nonce), reply in zip(attempts, replies, strict=False):
            if isinstance(reply, Busy):
                return taken, True
            if not isinstance(reply, Granted):
                raise refusal_error(spec, reply)
            taken.append(keep_grant(client_state, spec, nonce, owner, reply, sent))
    except BaseException as error:
        if never_sent(error):
            raise
        for spec, nonce in attempts:
            client_state.leases.pop(nonce, None)
            withdraw = Withdraw(nonce, client_state.linger)
            # Else the next attempt could find the locks held by this one.
            await clean_up(client_state, spec.name, spec.ttl, withdraw, wait=nonce == attempts[-1][1])
        if isinstance(error, TransientError):
            return [], True
        raise
    return taken, not taken


async def release_all(client_state: ClientState, states: Sequence[LeaseState], retry_seconds: float) -> None:
    """Release those that have not ended, in one step where the engine can.

    Each state says afterwards whether it was lost before. An error: some may still be held, and it can be
    called again.
    """
    rest = [state for state in reversed(states) if state.ended is None]
    failure: HoldfastError | None = None
    try:
        while rest:
            for state, outcome in zip(rest[:], await _send_releases(client_state, rest), strict=False):
                try:
                    await release(client_state, state, 0.0 if failure else retry_seconds, outcome)
                except HoldfastError as trouble:
                    failure = failure or trouble
                rest.remove(state)
        if failure is not None:
            raise failure
    except HoldfastError:
        raise
    except BaseException:
        await abandon_all(client_state, rest, wait=True)
        raise


async def _send_releases(
    client_state: ClientState, states: list[LeaseState]
) -> Sequence[Reply | Exception | None]:
    """The outcomes of the requests, in order: of all of them, or of the first ones."""
    if len(states) == 1:
        return [None]
    steps = tuple((state.name, release_request(client_state, state)) for state in states)
    try:
        return await ApplyInOrder(steps, stop_when_refused=False)
    except (TransientError, HoldfastError) as trouble:
        for state in states:
            # Where the engine releases one after the other, those before the one that failed were released.
            state.release_outcome_unknown = True
        return [trouble] * len(states)


async def abandon_all(client_state: ClientState, held: Sequence[LeaseState], wait: bool = False) -> None:
    """Have the keeper release those that have not ended, in reverse order.

    ``wait``: for the last of them, before which it has tried the others.
    """
    states = [state for state in reversed(held) if state.ended is None]
    for state in states:
        await abandon(client_state, state, wait=wait and state is states[-1])
