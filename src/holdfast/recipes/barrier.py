"""Barriers: a number of parties wait for each other, again and again; broken when one of them dies.

A cell has the state: the generation, the parties that wait in it, and whether it is broken. Each party that
waits holds a read lease of one lock, and the cell lists their tokens. So whether a party is alive is for the
engine to say: a party that died, or lost its lease, is no holder any more. A party that notices this breaks
the barrier, by a compare-and-swap from the very state in which it saw the party.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from ..core import arguments
from ..core.arguments import Spec
from ..core.effects import Now, Pause
from ..core.lock_options import Duration
from ..errors import BrokenBarrierError, Conflict, EngineUnavailable, InvalidArgument
from ..protocols import records
from ..protocols.client_state import ClientState, LeaseState
from . import cell, names
from .jitter import poll_pause

__all__ = ["Barrier", "abort", "is_broken", "reset", "wait", "waiting"]

PARTIES_MAX: Final = 1000
"""Their tokens have to fit into one cell."""

GENERATIONS_KEPT: Final = 64
"""How many interrupted generations are remembered for parties that have yet to learn of them."""

POLL_SECONDS_MIN: Final = 0.005
POLL_SECONDS_MAX: Final = 0.25
"""A party reads the state this often: each pause is up to twice as long as the one before."""


class State(NamedTuple):
    """What the cell of a barrier says."""

    parties: int
    generation: int = 0
    waiting: tuple[int, ...] = ()
    """The tokens of the waiting parties, in the order of their arrival."""
    broken: bool = False
    """Until ``reset``."""
    interrupted: tuple[int, ...] = ()
    """The generations that were reset while parties waited."""


class Barrier:
    """What this client knows of one barrier."""

    __slots__ = ("cell", "client_state", "parties", "spec")

    def __init__(self, client_state: ClientState, name: str, parties: int, ttl: Duration) -> None:
        self.client_state = client_state
        self.parties = arguments.check_limit(parties, "parties")
        if parties > PARTIES_MAX:
            raise InvalidArgument(f"a barrier has at most {PARTIES_MAX} parties; this one {parties}")
        self.cell = cell.Cell(client_state, name, names.barrier(name))
        self.spec = Spec(
            name=names.barrier_parties(name),
            kind="rwlock",
            mode="read",
            ttl=arguments.check_ttl(ttl),
            timeout=None,
            fair=True,
            renew=True,
            max_hold=None,
            grace=0.0,
            if_lost="raise",
        )

    @property
    def name(self) -> str:
        return self.cell.name

    def bind(self, client_state: ClientState) -> None:
        """Go on with this state of the client."""
        self.client_state = self.cell.client_state = client_state


# --- the state ----------------------------------------------------------------------------------


def encode(state: State) -> bytes:
    return json.dumps(list(state), separators=(",", ":")).encode()


def decode(barrier: Barrier, value: bytes | None) -> State:
    if value is None:
        return State(barrier.parties)
    parties, generation, waiting_tokens, broken, interrupted = json.loads(value)
    if parties != barrier.parties:
        raise InvalidArgument(
            f"the barrier {barrier.name!r} is for {parties} parties, not for {barrier.parties}: give every "
            "user of the name the same number"
        )
    return State(parties, generation, tuple(waiting_tokens), broken, tuple(interrupted))


def arrived(state: State, token: int) -> State:
    """One more party waits; the last one lets all of them pass."""
    if len(state.waiting) + 1 == state.parties:
        return state._replace(generation=state.generation + 1, waiting=())
    return state._replace(waiting=(*state.waiting, token))


def broken(state: State) -> State:
    return state._replace(broken=True)


def begun_anew(state: State) -> State:
    interrupted = state.interrupted
    if state.waiting:
        interrupted = (*interrupted, state.generation)[-GENERATIONS_KEPT:]
    return State(state.parties, state.generation + 1, interrupted=interrupted)


def outcome(state: State, generation: int) -> bool | None:
    """Whether the parties of a generation may pass; None: they have to wait."""
    if generation in state.interrupted:
        return False
    if state.generation > generation:
        return True
    return False if state.broken else None


# --- what users call ----------------------------------------------------------------------------


async def wait(barrier: Barrier, owner: str, timeout: float | None) -> int:
    """Wait for the other parties. Returns how many parties arrived before; or BrokenBarrierError."""
    client_state = barrier.client_state
    ends_at = None if timeout is None else await Now() + timeout
    lease: LeaseState | records.NotGranted | None = None
    result: int | BrokenBarrierError | None = None
    try:
        lease = await records.acquire(client_state, barrier.spec, owner, timeout)
        if isinstance(lease, records.NotGranted):
            raise _broken_error(barrier, "it could not be joined in time")
        try:
            result = await _wait(barrier, lease, ends_at)
        except BrokenBarrierError as error:
            result = error  # raised after the release, so that an interrupt of that cannot lose the lease
        await records.release(client_state, lease, 0.0)
    except BaseException as error:
        # Of a party that did not get that far the others will find that it is gone, and break the barrier.
        if isinstance(lease, LeaseState) and lease.ended is None:
            await records.abandon(client_state, lease, wait=not client_state.closed)
        if result is None or not isinstance(error, EngineUnavailable):
            raise
    if isinstance(result, BrokenBarrierError):
        raise result
    assert result is not None  # noqa: S101 - else an error was raised above
    return result


async def _wait(barrier: Barrier, lease: LeaseState, ends_at: float | None) -> int:
    """As with a lock that is waited for, an outage of the engine is waited out: here as long as it costs no
    lease."""
    generation, index = await _arrive(barrier, lease)
    tries = 0
    while True:
        try:
            if await _passes(barrier, lease, generation, ends_at):
                return index
        except EngineUnavailable:
            now = await Now()
            if lease.loss(now) is not None or (ends_at is not None and now >= ends_at):
                raise
        pause = await poll_pause(tries, POLL_SECONDS_MIN, POLL_SECONDS_MAX)
        await Pause(pause if ends_at is None else max(min(pause, ends_at - await Now()), 0.0))
        if barrier.client_state.closed:
            raise records.closed_error()
        tries += 1


async def _passes(barrier: Barrier, lease: LeaseState, generation: int, ends_at: float | None) -> bool:
    """Whether all parties of the generation have arrived; BrokenBarrierError if they never will."""
    contents = await cell.read(barrier.cell)
    state = decode(barrier, contents.data)
    passes = outcome(state, generation)
    if passes is False:
        raise _broken_error(barrier, "another party died or gave up, or it was aborted or reset")
    if passes:
        return True
    cause = None
    if ends_at is not None and await Now() >= ends_at:
        cause = f"not all of the {barrier.parties} parties arrived in time"
    elif await _missing(barrier, state, lease):
        cause = "a party died while it waited"
    if cause is not None and await _replace(barrier, contents, broken(state)):
        raise _broken_error(barrier, cause)
    return False


async def _arrive(barrier: Barrier, lease: LeaseState) -> tuple[int, int]:
    """The generation that this party waits in, and how many arrived before it."""
    while True:
        contents = await cell.read(barrier.cell)
        state = decode(barrier, contents.data)
        if state.broken:
            raise _broken_error(barrier, "it was broken before, and not reset")
        if await _missing(barrier, state, lease):
            if await _replace(barrier, contents, broken(state)):
                raise _broken_error(barrier, "a party died while it waited")
        elif await _replace(barrier, contents, arrived(state, lease.token)):
            return state.generation, len(state.waiting)


async def _missing(barrier: Barrier, state: State, lease: LeaseState) -> bool:
    """Whether a waiting party is not alive, as the engine judges, or this party has lost its own lease.

    All parties held their leases before the state was written, so a party that is no holder now is gone, or
    has passed; in the latter case the state is outdated, and nothing can be stored in its place.
    """
    if lease.loss(await Now()) is not None:
        return True
    others = set(state.waiting) - {lease.token}
    if not others:
        return False
    snapshot = await records.inspect(barrier.client_state, barrier.spec.name)
    return not others <= {holder.token for holder in snapshot.record.holders}


async def _replace(barrier: Barrier, contents: cell.Contents, state: State) -> bool:
    try:
        await cell.set_if(barrier.cell, contents.version, encode(state))
    except Conflict:
        return False
    return True


def _broken_error(barrier: Barrier, cause: str) -> BrokenBarrierError:
    error = BrokenBarrierError(
        f"the barrier {barrier.name!r} is broken: {cause}; reset() it when every party knows"
    )
    error.name = barrier.name
    return error


async def abort(barrier: Barrier) -> None:
    await cell.update(barrier.cell, lambda value: encode(broken(decode(barrier, value))))


async def reset(barrier: Barrier) -> None:
    await cell.update(barrier.cell, lambda value: encode(begun_anew(decode(barrier, value))))


async def waiting(barrier: Barrier) -> int:
    return len(decode(barrier, (await cell.read(barrier.cell)).data).waiting)


async def is_broken(barrier: Barrier) -> bool:
    return decode(barrier, (await cell.read(barrier.cell)).data).broken
