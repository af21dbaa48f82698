"""Mistakes that lock libraries make, each as a small patch of the rule, the protocol or the node.

Every one of them must be caught by a checker; that is the test of the checkers. The patches are in force
while the context manager is entered, and only schedules made meanwhile run with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from unittest import mock

from holdfast.core.deadlines import lease_deadline
from holdfast.core.effects import (
    Apply,
    Effect,
    Listen,
    Now,
    Pause,
    ProtocolCoroutine,
    TransientError,
    Unlisten,
    Wait,
)
from holdfast.protocols import keeper, records
from holdfast.protocols.client_state import ClientState, LeaseState
from holdfast.protocols.records import acquisition, releases, retry
from holdfast.rules import handoff, queueing, transitions
from holdfast.rules.record import EMPTY, Holder, Record
from holdfast.rules.requests import (
    Acquire,
    Done,
    Granted,
    Handoff,
    Inspect,
    Release,
    Renew,
    Reply,
    Request,
    Snapshot,
    Wake,
    Withdraw,
    Withdrawn,
)
from holdfast.rules.transitions import Step
from simulation.plans import WEIGHTS
from simulation.store import CounterStore
from simulator import Node, SimulatedClient
from simulator.faults import FORGETS

__all__ = ["MUTANTS", "Mutant", "Patch", "counted_by_the_wall", "deadline_from_reply"]

Handler = Callable[[Record, Any, float, int, Any], tuple[Record, Reply]]
Patch = contextlib.AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and where it shows."""

    name: str
    patch: Callable[[], Patch]
    caught_by: tuple[str, ...]
    """The checkers that see it, each in one schedule or another."""
    scenarios: tuple[str, ...]
    intensity: float = 1.0
    kinds: tuple[str, ...] = tuple(WEIGHTS)
    """What goes wrong in the schedules that are to show it."""


def handler(request: type, replacement: Handler) -> Patch:
    return mock.patch.dict(transitions._HANDLERS, {request: replacement})


def original(request: type) -> Handler:
    return transitions._HANDLERS[request]


# --- giving back --------------------------------------------------------------------------------


def release_without_owner_check() -> Patch:
    """Any client that says "release" ends whatever is held there."""

    def releases(record: Record, ask: Release, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        return queueing.give_turns(record._replace(holders=()), now, admits), Done()

    return handler(Release, releases)


class Delete(NamedTuple):
    """DEL: no questions asked."""

    nonce: str


def get_then_del() -> Patch:
    """Check that the lock is its own; then delete it, whichever client holds it by then."""

    def delete(record: Record, ask: Delete, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        return queueing.give_turns(record._replace(holders=()), now, admits), Done()

    async def releases(
        client_state: ClientState, state: LeaseState, patience: float, outcome: object = None
    ) -> None:
        seen = await Apply(state.name, Inspect())
        if isinstance(seen, Snapshot) and any(h.nonce == state.nonce for h in seen.record.holders):
            await Apply(state.name, Delete(state.nonce))  # type: ignore[arg-type]  # a request of the mutant's own
        client_state.drop(state)
        state.end("released")

    return _both(handler(Delete, delete), mock.patch.object(records, "release", releases))


# --- renewing -----------------------------------------------------------------------------------


def renewal_without_owner_check() -> Patch:
    """EXPIRE: it is extended and all is well, whichever client holds it."""

    def renew(record: Record, ask: Renew, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        holders = tuple(h._replace(expires_at=max(h.expires_at, now + ask.ttl)) for h in record.holders)
        return record._replace(holders=holders), Done()

    return handler(Renew, renew)


def renewal_that_recreates() -> Patch:
    """SET with an expiry: what is gone is there again."""
    shipped = original(Renew)
    seen: dict[str, Holder] = {}

    def renew(record: Record, ask: Renew, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        holder = queueing.find_holder(record, ask.nonce)
        if holder is not None:
            seen[ask.nonce] = holder
        elif not record.holders and ask.nonce in seen:
            again = seen[ask.nonce]._replace(expires_at=now + ask.ttl)
            return record._replace(holders=(again,)), Done()
        return shipped(record, ask, now, wall_us, admits)

    return handler(Renew, renew)


def deadline_from_reply() -> Patch:
    """The lease is counted from when the answer came."""
    shipped = records.acquire

    async def acquire(
        client_state: ClientState, spec: Any, owner: str, timeout: float | None, *long_wait: Any
    ) -> Any:
        state = await shipped(client_state, spec, owner, timeout, *long_wait)
        if isinstance(state, LeaseState):
            state.deadline = lease_deadline(await Now(), state.ttl)
            client_state.retime(state)
        return state

    return mock.patch.object(records, "acquire", acquire)


def renewal_from_reply() -> Patch:
    """A renewed lease is counted from when the answer came."""
    shipped = keeper._handle_renewal

    async def renewed(
        client_state: ClientState, state: LeaseState, ttl: float, reply: Reply, sent: float, now: float
    ) -> None:
        await shipped(client_state, state, ttl, reply, now, now)

    return mock.patch.object(keeper, "_handle_renewal", renewed)


def undated_grants() -> Patch:
    """A grant is counted from the last request, though an earlier copy of it may have been granted: neither
    does the engine say so, nor does the client renew before it relies on it. (One of the two is enough.)"""

    async def dated(self: Any, reply: Granted) -> Granted:
        return reply

    return _both(found_undated(), mock.patch.object(acquisition.Attempt, "date_grant", dated))


def found_undated() -> Patch:
    """An attempt that finds that it has the lock, by a handoff or by a copy, counts from when it learns of
    it."""
    shipped = transitions._granted_reply

    def granted(record: Record, holder: Holder, now: float, age: float = 0.0) -> Granted:
        return shipped(record, holder, now)

    return mock.patch.object(transitions, "_granted_reply", granted)


def handed_over_counted_from_the_message() -> Patch:
    """A waiter that gets the lock by handoff counts from then."""
    shipped = acquisition.Attempt.accept_handoff

    def handed(self: acquisition.Attempt, brought: Handoff) -> LeaseState:
        self.placed = self.client_state.now()
        return shipped(self, brought._replace(age=0.0))

    return mock.patch.object(acquisition.Attempt, "accept_handoff", handed)


# --- tokens -------------------------------------------------------------------------------------


def token_before_grant() -> Patch:
    """INCR first, then SET NX: the number is older than the grant."""
    minted: dict[str, int] = {}
    shipped_grant, shipped_acquire = transitions.grant, original(Acquire)
    state: dict[str, Any] = {}

    def acquire(record: Record, ask: Acquire, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        if ask.nonce not in minted:
            minted[ask.nonce] = max(record.token + 1, wall_us)
            record = record._replace(token=minted[ask.nonce])
        state["nonce"] = ask.nonce
        return shipped_acquire(record, ask, now, wall_us, admits)

    def next_token(record: Record, wall_us: int) -> int | None:
        return minted.get(state["nonce"])

    def grant(record: Record, *arguments: Any) -> tuple[Record, Reply]:
        with mock.patch.object(transitions, "_next_token", next_token):
            after, reply = shipped_grant(record, *arguments)
        return after._replace(token=max(record.token, after.token)), reply

    return _both(handler(Acquire, acquire), mock.patch.object(transitions, "grant", grant))


class Mint(NamedTuple):
    """INCR."""

    nonce: str


def token_after_grant() -> Patch:
    """SET NX first, then INCR: who was slow in between has a larger number than who took over."""
    shipped = records.acquire

    def mint(record: Record, ask: Mint, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        token = max(record.token + 1, wall_us)
        return record._replace(token=token), Granted(token, (), "lock", "exclusive", 1.0, None, {})

    async def acquire(
        client_state: ClientState, spec: Any, owner: str, timeout: float | None, *long_wait: Any
    ) -> Any:
        state = await shipped(client_state, spec, owner, timeout, *long_wait)
        if isinstance(state, LeaseState):
            await Pause(0.03)  # two calls: anything can come in between
            reply, _ = await retry.retry_until_deadline(client_state, state.name, Mint(state.nonce))  # type: ignore[arg-type]  # its own
            assert isinstance(reply, Granted)
            state.token = reply.token
        return state

    return _both(handler(Mint, mint), mock.patch.object(records, "acquire", acquire))


def millisecond_tokens() -> Patch:
    """The clock that tokens lean on is too coarse: a hot lock runs ahead of it."""

    def next_token(record: Record, wall_us: int) -> int | None:
        return max(record.token + 1, wall_us // 1000)

    return mock.patch.object(transitions, "_next_token", next_token)


# --- waking -------------------------------------------------------------------------------------


def notify_before_release() -> Patch:
    """The next one is woken before the lock is free."""
    shipped = Node.apply

    def apply(self: Node, name: str, request: Request) -> Reply:
        before = self.records.get(name, EMPTY)
        if not isinstance(request, Release) or not before.queue:
            return shipped(self, name, request)
        step = self._rule(before, request, self.now(), self.wall_us())
        for wake in step.wake:
            self.wake(wake)
        self.world.at(self.world.now + 0.05, _release_silently, self, name, request)
        return step.reply

    return mock.patch.object(Node, "apply", apply)


def _release_silently(node: Node, name: str, request: Request) -> None:
    before = node.records.get(name, EMPTY)
    step = node._rule(before, request, node.now(), node.wall_us())
    node.store(name, before, request, step._replace(wake=()))


def wake_everyone() -> Patch:
    """A release wakes all who wait."""
    shipped = transitions._wakes

    def wakes(before: Record, after: Record, reply: Reply) -> tuple[Wake, ...]:
        woken = shipped(before, after, reply)
        return tuple(Wake(w.client, w.nonce) for w in after.queue) if woken else ()

    return mock.patch.object(transitions, "_wakes", wakes)


def subscribe_after_the_check() -> Patch:
    """Ask, and subscribe only when queued: notifications in between are lost."""
    shipped = records.acquire

    def acquire(
        client_state: ClientState, spec: Any, owner: str, timeout: float | None, *long_wait: Any
    ) -> ProtocolCoroutine[Any]:
        return _listening_late(shipped(client_state, spec, owner, timeout, *long_wait))

    return mock.patch.object(records, "acquire", acquire)


async def _listening_late(script: ProtocolCoroutine[Any]) -> Any:
    """Runs a script, and has it listen only when it begins to wait."""
    late: Listen | None = None
    value: Any = None
    retry: BaseException | None = None
    while True:
        try:
            op: Effect = script.send(value) if retry is None else script.throw(retry)
        except StopIteration as end:
            return end.value
        value, retry = None, None
        if isinstance(op, Listen) and "/job" not in op.nonce:
            late = op
            continue
        try:
            if isinstance(op, Wait) and late is not None:
                await late
                late = None
            value = await op
        except BaseException as error:
            retry = error


def hands_over_to_the_last() -> Patch:
    """A stack where a queue should be: the lock goes to who came last."""
    shipped = handoff._hand_over

    def handing_over(step: Step, now: float, wall_us: int) -> Step:
        *others, last = step.record.queue
        turned = step.record._replace(queue=(last._replace(turn_at=now), *others))
        handed = shipped(step._replace(record=turned), now, wall_us)
        return step if handed.record is turned else handed

    return mock.patch.object(handoff, "_hand_over", handing_over)


def newcomer_barges() -> Patch:
    """A new request takes a free lock, though it is the turn of another waiter."""

    def may_pass(record: Record, mode: str, fair: bool, admits: Any) -> bool:
        return queueing.may_pass(record, mode, False, admits)

    return mock.patch.object(transitions, "may_pass", may_pass)


def dead_head_stays() -> Patch:
    """A waiter that does not come when it is its turn keeps its place."""

    def settle(record: Record, now: float, admits: Any) -> Record:
        holders = tuple(h for h in record.holders if h.expires_at > now)
        if len(holders) == len(record.holders):
            return record
        return queueing.give_turns(record._replace(holders=holders), now, admits)

    return mock.patch.object(transitions, "settle", settle)


# --- attempts -----------------------------------------------------------------------------------


def retry_is_new() -> Patch:
    """The engine does not recognise an attempt that asks again."""
    shipped_acquire = original(Acquire)

    def acquire(record: Record, ask: Acquire, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        with mock.patch.object(transitions, "find_holder", return_value=None):
            return shipped_acquire(record, ask, now, wall_us, admits)

    return handler(Acquire, acquire)


def late_arrival_accepted() -> Patch:
    """Nobody remembers that an attempt was withdrawn."""
    return mock.patch.object(transitions, "_with_tombstone", lambda record, nonce, linger, now: record)


def withdraw_leaves_its_place() -> Patch:
    """Who gives up while it waits does not leave the queue."""
    shipped = original(Withdraw)

    def withdraw(
        record: Record, ask: Withdraw, now: float, wall_us: int, admits: Any
    ) -> tuple[Record, Reply]:
        if queueing.find_waiter(record, ask.nonce) is not None:
            return record, Withdrawn(record.holders, now)
        return shipped(record, ask, now, wall_us, admits)

    return handler(Withdraw, withdraw)


def refreshed_for_ever() -> Patch:
    """Who stopped waiting is still said to wait: its place, or its subscription, is kept."""

    async def stop_listening(self: acquisition.Attempt) -> None:
        self.phase = acquisition.Phase.RUNNING
        await Unlisten(self.nonce)

    return mock.patch.object(acquisition.Attempt, "stop_listening", stop_listening)


def raw_errors() -> Patch:
    """What the transport raised reaches the user as it is."""

    def unavailable_error(name: str, failure: TransientError) -> Exception:
        return ConnectionError(str(failure))

    return _both(
        *(
            mock.patch.object(each, "unavailable_error", unavailable_error)
            for each in (acquisition, releases, retry)
        )
    )


def limit_as_declared() -> Patch:
    """That a semaphore was made smaller is not looked at when a permit is asked for."""
    shipped = original(Acquire)

    def acquire(record: Record, ask: Acquire, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        roomy = record._replace(limit=max(record.limit, record.declared))
        after, reply = shipped(roomy, ask, now, wall_us, admits)
        return (record if after is roomy else after._replace(limit=record.limit or after.limit)), reply

    return handler(Acquire, acquire)


# --- guards -------------------------------------------------------------------------------------


def guard_checks_writes_only() -> Patch:
    """A new holder does not advance the guard before it reads."""
    return mock.patch.object(CounterStore, "advance", return_value=True)


def loss_never_reported() -> Patch:
    """The timer sleeps."""

    async def deadline_loop(client_state: ClientState) -> None:
        return None

    return mock.patch("simulator.client.deadline_loop", deadline_loop)


def loss_reported_early() -> Patch:
    """A renewal that is late is taken for a loss, though most of the lease is left."""
    early = property(lambda state: state.deadline - state.grace - state.ttl / 2)
    return mock.patch.object(LeaseState, "signal_at", early)


@contextlib.contextmanager
def _both(*patches: Patch) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def counted_by_the_wall() -> Patch:
    """The clock that counts leases is the one that people set. (For clients that look at the wall.)"""
    wall = property(lambda client: client.clock, lambda client, wall: None)
    return mock.patch.object(SimulatedClient, "wall", wall, create=True)


MUTANTS: Final = (
    Mutant("release without owner check", release_without_owner_check, ("exclusion",), ("lock", "rlock")),
    Mutant("GET then DEL", get_then_del, ("exclusion",), ("lock", "rlock")),
    Mutant("renewal without owner check", renewal_without_owner_check, ("deadlines",), ("tools", "lock")),
    Mutant("renewal that re-creates", renewal_that_recreates, ("tokens",), ("lock", "rlock")),
    Mutant("deadline counted from the reply", deadline_from_reply, ("deadlines",), ("lock", "rwlock")),
    Mutant("renewal counted from the reply", renewal_from_reply, ("deadlines",), ("lock", "rwlock")),
    Mutant("copies in flight not counted", undated_grants, ("deadlines",), ("semaphore",), 3.0, ("slow",)),
    Mutant("handed over without a date", found_undated, ("deadlines",), ("lock", "rlock")),
    Mutant(
        "won by a copy, without a date", found_undated, ("deadlines",), ("semaphore",), 3.0, ("duplicate",)
    ),
    Mutant(
        "handed over and counted from the message",
        handed_over_counted_from_the_message,
        ("deadlines",),
        ("lock", "rlock"),
    ),
    Mutant("token minted before the grant", token_before_grant, ("tokens",), ("lock", "rlock")),
    Mutant("token minted after the grant", token_after_grant, ("tokens",), ("lock",), 3.0, ("pause",)),
    Mutant("tokens in milliseconds", millisecond_tokens, ("tokens",), ("burst",), 2.0, FORGETS),
    Mutant("notify before release", notify_before_release, ("prompt hand off",), ("lock", "rlock")),
    Mutant("wake everyone", wake_everyone, ("wake ups",), ("lock", "rwlock")),
    Mutant("hands over to the last in line", hands_over_to_the_last, ("first come first served",), ("lock",)),
    Mutant("newcomer barges", newcomer_barges, ("first come first served",), ("lock", "rwlock")),
    Mutant("dead waiter at the head", dead_head_stays, ("everyone served",), ("lock", "rlock")),
    Mutant("subscribe after the check", subscribe_after_the_check, ("prompt hand off",), ("lock", "rlock")),
    Mutant(
        "retry with the same nonce is new", retry_is_new, ("one grant per attempt",), ("semaphore", "rwlock")
    ),
    Mutant(
        "late arrival of a withdrawn attempt accepted",
        late_arrival_accepted,
        ("one grant per attempt",),
        ("lock", "rlock"),
    ),
    Mutant(
        "withdraw leaves its place behind",
        withdraw_leaves_its_place,
        ("first come first served", "prompt hand off"),
        ("lock", "rlock"),
    ),
    Mutant("place kept for who is gone", refreshed_for_ever, ("nothing left behind",), ("lock", "rlock")),
    Mutant("errors of the transport as they are", raw_errors, ("scripts end well",), ("lock", "rlock")),
    Mutant("limit as it was declared", limit_as_declared, ("exclusion",), ("semaphore",)),
    Mutant(
        "guard checks writes only", guard_checks_writes_only, ("no lost update",), ("guard",), 3.0, ("pause",)
    ),
    Mutant("loss never reported", loss_never_reported, ("loss reported",), ("lock", "rlock")),
    Mutant("loss reported early", loss_reported_early, ("no false alarm",), ("lock", "rlock")),
)
