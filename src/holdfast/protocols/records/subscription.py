"""Subscriptions to the changes of a name."""

from __future__ import annotations

from ...core.effects import (
    Listen,
    Nonce,
    Notify,
    Now,
    TransientError,
    Unlisten,
    Wait,
)
from ...rules.queueing import next_event_at
from ...rules.requests import (
    Snapshot,
    Unwatch,
    Watch,
)
from ..client_state import ClientState
from .acquisition import POLL_SECONDS_MAX
from .retry import pause_or_give_up, retry_until_deadline, unexpected_reply_error
from .shutdown import CLOSING, closed_error

__all__ = [
    "forget_subscription",
    "look_again",
    "next_change",
    "subscribe",
    "unsubscribe",
    "wait_for_wakeup",
]


async def subscribe(client_state: ClientState, name: str) -> tuple[str, Snapshot]:
    """From now on every change of the name wakes ``next_change``. Returns the nonce and the present state."""
    nonce = await Nonce()
    try:
        await _listen(client_state, name, nonce)
        return nonce, await _read_and_watch(client_state, name, nonce)
    except BaseException:
        await Unlisten(nonce)
        raise


async def next_change(
    client_state: ClientState, name: str, nonce: str, timeout: float | None, seen: Snapshot | None = None
) -> Snapshot | None:
    """The state after the next change since ``seen``; None: nothing changed in time.

    The engine writes nothing when a lease expires or a holder dies, so this reads the state again when an
    expiry is due, and when the engine notices that a holder died.
    """
    now = await Now()
    ends_at = None if timeout is None else now + timeout
    while True:
        until = now + (POLL_SECONDS_MAX if seen is None else _seconds_to_next_event(seen))
        if ends_at is not None:
            until = min(until, ends_at)
        woken = await Wait(nonce, until, () if seen is None else _clients_of(seen))
        if client_state.closed:
            client_state.waiting.pop(nonce, None)
            await Notify(CLOSING)
            raise closed_error()
        if woken or seen is not None:
            present = await _read_and_watch(client_state, name, nonce)
            if seen is None or _visible_state(present) != _visible_state(seen):
                return present
            seen = present
        now = await Now()
        if ends_at is not None and now >= ends_at:
            return None


async def wait_for_wakeup(client_state: ClientState, nonce: str, seconds: float, seen: Snapshot) -> None:
    """Wait for at most ``seconds``: for a change since ``seen``, or for ``Notify``. Then ``look_again``."""
    until = await Now() + min(seconds, _seconds_to_next_event(seen))
    await Wait(nonce, until, _clients_of(seen))


async def look_again(client_state: ClientState, name: str, nonce: str) -> Snapshot:
    """The present state; later changes wake the subscription ``nonce`` again."""
    return await _read_and_watch(client_state, name, nonce)


async def forget_subscription(client_state: ClientState, nonce: str) -> None:
    """End a subscription without a request: the engine forgets it, because it is not refreshed."""
    client_state.waiting.pop(nonce, None)
    await Unlisten(nonce)
    if client_state.closed:
        await Notify(CLOSING)


def _seconds_to_next_event(seen: Snapshot) -> float:
    """Seconds until the passing of time alone changes ``seen``."""
    at = next_event_at(seen.record)
    return POLL_SECONDS_MAX if at is None else min(max(at - seen.now, 0.01), POLL_SECONDS_MAX)


def _clients_of(seen: Snapshot) -> tuple[str, ...]:
    return tuple({holder.client: None for holder in seen.record.holders if holder.client})


def _visible_state(seen: Snapshot) -> tuple[object, ...]:
    """The part of a snapshot whose changes a subscriber sees."""
    record = seen.record
    holders = [(holder.token, holder.owner) for holder in record.holders]
    return record.token, holders, [waiter.nonce for waiter in record.queue], record.value, record.limit


async def unsubscribe(client_state: ClientState, name: str, nonce: str) -> None:
    client_state.waiting.pop(nonce, None)
    await Unlisten(nonce)
    await retry_until_deadline(client_state, name, Unwatch(nonce))


async def _listen(client_state: ClientState, name: str, nonce: str) -> None:
    ends_at = (await Now()) + client_state.io_timeout
    failures = 0
    while True:
        try:
            return await Listen(nonce, name)
        except TransientError as trouble:
            failures = await pause_or_give_up(repr(name), trouble, ends_at, failures)


async def _read_and_watch(client_state: ClientState, name: str, nonce: str) -> Snapshot:
    reply, _ = await retry_until_deadline(client_state, name, Watch(nonce, client_state.client))
    if not isinstance(reply, Snapshot):
        raise unexpected_reply_error(name, reply)
    client_state.wait(nonce, name, await Now())
    return reply
