"""What must be true of every single transition of a record, told independently of how the rules do it.

``Judge.step`` runs one request through a rule (the shipped ``apply`` or a broken one) and asserts everything
that the design promises about it. Tests feed it generated sequences; mutants show that it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from holdfast.rules.queueing import drop_clients, settle
from holdfast.rules.record import EMPTY, Holder, Record, Waiter
from holdfast.rules.requests import (
    Absent,
    Acquire,
    Adopt,
    Break,
    Broken,
    Busy,
    Done,
    Downgrade,
    Exhausted,
    Export,
    Gone,
    Granted,
    Inspect,
    Mismatch,
    Queued,
    ReadCell,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    SwapCell,
    Wake,
    Withdraw,
)
from holdfast.rules.transitions import ADMITS, Step, apply

Rule = Callable[[Record, Request, float, int, Collection[str]], Step]

MINTING = (Acquire, Downgrade, Break)
MAY_EXTEND = (Renew, Export, Adopt, Downgrade)


def live_holders(record: Record, now: float, dead: Collection[str] = ()) -> dict[str, Holder]:
    return {h.nonce: h for h in record.holders if h.expires_at > now and h.client not in dead}


def excluded(record: Record, holders: Collection[Holder]) -> bool:
    """Whether these may hold the name together."""
    if record.kind == "rwlock":
        return len(holders) <= 1 or all(h.mode == "read" for h in holders)
    if record.kind == "semaphore":
        return len(holders) <= record.limit
    return len(holders) <= 1


def fits(record: Record, modes: list[str], mode: str) -> bool:
    if record.kind == "rwlock":
        return not modes or (mode == "read" and all(m == "read" for m in modes))
    return len(modes) < (record.limit if record.kind == "semaphore" else 1)


def told(record: Record) -> object:
    """What a watcher can see of a record: renewals and refreshes are no change."""
    return (
        [(h.token, h.owner) for h in record.holders],
        [w.nonce for w in record.queue],
        record.value,
        record.limit,
    )


def nonce_of(request: Request) -> str:
    """Whose attempt a request concerns; empty where it concerns none."""
    return "" if isinstance(request, Break | Resize | Inspect | ReadCell | SwapCell) else request.nonce


@dataclass
class Judge:
    """One record under a rule, with all that was ever promised about it."""

    rule: Rule = apply
    record: Record = EMPTY
    now: float = 1000.0
    minted: list[int] = field(default_factory=list)
    seals: dict[str, str] = field(default_factory=dict)
    """With which each grant was exported last."""

    def step(self, request: Request, wall_us: int, dead: Collection[str] = ()) -> Step:
        before, now = self.record, self.now
        step = self.rule(before, request, now, wall_us, dead)
        assert step == self.rule(before, request, now, wall_us, dead), "the same input, the same answer"
        if step.record is before:
            assert step.wake == (), "nothing was stored: no one is to be notified"
        else:
            self._check_turns(step.record)
            self._check_wakes(before, step)
        self._check_nothing_stored(before, request, step)
        self._check_holders(before, request, step, dead)
        self._check_tokens(before, request, step, dead)
        self._check_queue(before, request, step, dead)
        self._check_ended(before, request, step, dead)
        self._check_value(before, request, step, dead)
        self._check_hand_over(before, request, step)
        self.record = step.record
        return step

    # --- who holds -----------------------------------------------------------------------------

    def _check_holders(self, before: Record, request: Request, step: Step, dead: Collection[str]) -> None:
        had = live_holders(before, self.now, dead)
        has = live_holders(step.record, self.now, dead)
        new, gone = has.keys() - had.keys(), had.keys() - has.keys()
        if new:
            assert isinstance(request, Acquire | Downgrade), f"{request} made a grant"
            assert isinstance(step.reply, Granted)
            assert new == {request.nonce if isinstance(request, Acquire) else request.reader_nonce}
            assert excluded(step.record, has.values()), f"together: {list(has.values())}"
        if gone:
            assert gone <= self._may_end(request, step.reply), f"{request} ended {gone}"
        for nonce in had.keys() & has.keys():
            self._check_still_held(had[nonce], has[nonce], request)

    @staticmethod
    def _may_end(request: Request, reply: Reply) -> set[str]:
        if isinstance(request, Release | Withdraw | Downgrade):
            return {request.nonce}
        return {v.nonce for v in reply.victims} if isinstance(reply, Broken) else set()

    def _check_still_held(self, old: Holder, new: Holder, request: Request) -> None:
        assert (new.token, new.mode, new.since, new.until) == (old.token, old.mode, old.since, old.until)
        assert new.expires_at >= old.expires_at, "nothing shortens what is granted"
        if new != old:
            assert nonce_of(request) == old.nonce, f"{request} changed {old}"
            assert not isinstance(request, Acquire), "a retry of the same attempt changes nothing"
        if new.expires_at > old.expires_at:
            assert isinstance(request, MAY_EXTEND)
            assert new.expires_at <= self.now + new.ttl, "no more than the ttl from now"
            assert new.until is None or new.expires_at <= new.until

    # --- tokens --------------------------------------------------------------------------------

    def _check_tokens(self, before: Record, request: Request, step: Step, dead: Collection[str]) -> None:
        had, after, reply = live_holders(before, self.now, dead), step.record, step.reply
        is_new = isinstance(reply, Granted) and not any(h.token == reply.token for h in had.values())
        if is_new or (isinstance(reply, Broken) and reply.victims):
            assert isinstance(request, MINTING)
            assert isinstance(reply, Granted | Broken)
            assert after.token == reply.token
            assert after.token > max([before.token, *self.minted]), "larger than every earlier one"
            self.minted.append(after.token)
        else:
            assert after.token == before.token, "minted without a new grant"
        if isinstance(reply, Granted) and not isinstance(request, Downgrade):
            if nonce_of(request) in had:
                assert reply.token == had[nonce_of(request)].token, "the same attempt has the same token"
            assert live_holders(after, self.now)[nonce_of(request)].token == reply.token

    # --- the queue -----------------------------------------------------------------------------

    def _check_queue(self, before: Record, request: Request, step: Step, dead: Collection[str]) -> None:
        present = self._present(before, dead)
        was = [w.nonce for w in present]
        known = [w.nonce for w in step.record.queue if w.nonce in was]
        assert known == [n for n in was if n in known], "places in the queue are never exchanged"
        fresh = [w.nonce for w in step.record.queue if w.nonce not in was]
        if fresh and step.record is not before:
            assert isinstance(step.reply, Queued)
            assert fresh == [nonce_of(request)] == [step.record.queue[-1].nonce], (
                "one who comes stands at the end"
            )
        assert not {w.nonce for w in step.record.queue} & {h.nonce for h in step.record.holders}
        if isinstance(request, Acquire) and isinstance(step.reply, Granted):
            held = live_holders(before, self.now, dead)
            if request.fair and request.nonce not in held:
                self._check_fair(present, request.nonce)
        if isinstance(step.reply, Queued):
            place = [w.nonce for w in step.record.queue].index(nonce_of(request))
            assert step.reply.position == place
            assert (step.reply.poll_after == 0) == (step.record.queue[place].turn_at is not None)
        if not dead and step.record is not before:
            left = {w.nonce for w in present} - {w.nonce for w in step.record.queue}
            assert left <= {nonce_of(request)}, f"{request} dropped {left}"

    def _present(self, before: Record, dead: Collection[str]) -> tuple[Waiter, ...]:
        """Those who wait now, as the passing of time and the death of others leave them."""
        admits = ADMITS[before.kind]
        return drop_clients(settle(before, self.now, admits), dead, self.now, admits).queue

    @staticmethod
    def _check_fair(present: tuple[Waiter, ...], nonce: str) -> None:
        for waiter in present:
            if waiter.nonce == nonce:
                return
            assert waiter.turn_at is not None, f"{nonce} passed {waiter.nonce}"

    def _check_turns(self, after: Record) -> None:
        """Turns are the longest front of the queue that can be admitted together."""
        modes = [h.mode for h in after.holders]
        front = True
        for waiter in after.queue:
            front = front and fits(after, modes, waiter.mode)
            assert (waiter.turn_at is not None) == front, f"turns in {after.queue} beside {modes}"
            modes.append(waiter.mode)

    def _check_wakes(self, before: Record, step: Step) -> None:
        had_turn = {w.nonce for w in before.queue if w.turn_at is not None}
        expected = [
            Wake(w.client, w.nonce)
            for w in step.record.queue
            if w.turn_at is not None and w.nonce not in had_turn
        ]
        if told(before) != told(step.record):
            expected += [Wake(w.client, w.nonce) for w in step.record.watchers]
        if isinstance(step.reply, Broken):
            expected += [Wake(v.client, v.nonce) for v in step.reply.victims if v.client]
        assert sorted(step.wake) == sorted(expected), "exactly those whom it concerns, once each"

    # --- what stays ----------------------------------------------------------------------------

    def _check_nothing_stored(self, before: Record, request: Request, step: Step) -> None:
        reply = step.reply
        refused = isinstance(reply, Busy | Absent | Mismatch | Exhausted)
        refused = refused or (
            isinstance(reply, Gone) and not (isinstance(request, Release) and request.linger)
        )
        refused = refused or (isinstance(reply, Broken) and not reply.victims)
        if refused or isinstance(request, Inspect):
            assert step.record is before, f"{request} was answered {reply} and changed the record"

    def _check_ended(self, before: Record, request: Request, step: Step, dead: Collection[str]) -> None:
        remembered = {e.nonce for e in before.ended if e.forget_at > self.now}
        held = live_holders(before, self.now, dead)
        if isinstance(request, Acquire) and request.nonce in remembered and request.nonce not in held:
            assert isinstance(step.reply, Gone | Mismatch), "a late copy of an ended attempt"
        if isinstance(request, Release | Withdraw):
            assert request.nonce not in live_holders(step.record, self.now, dead)
            if request.linger:
                assert request.nonce in {e.nonce for e in step.record.ended}
        if isinstance(request, Withdraw):
            assert request.nonce not in {w.nonce for w in self._present(step.record, dead)}

    def _check_value(self, before: Record, request: Request, step: Step, dead: Collection[str]) -> None:
        if step.record.value == before.value:
            return
        assert isinstance(request, SetValue), f"{request} changed the value"
        holder = live_holders(before, self.now, dead)[request.nonce]
        assert step.record.value is not None
        assert step.record.value.token == holder.token
        assert step.record.value.data == request.data

    def _check_hand_over(self, before: Record, request: Request, step: Step) -> None:
        """Only what was exported is adopted, with the secret of the latest export."""
        if isinstance(request, Export) and isinstance(step.reply, Done):
            self.seals[request.nonce] = request.seal
        if isinstance(request, Downgrade) and request.nonce in self.seals:
            self.seals[request.reader_nonce] = self.seals[request.nonce]  # an exported writer
        if isinstance(request, Adopt) and isinstance(step.reply, Granted):
            client = {h.nonce: h.client for h in before.holders}[request.nonce]
            if client != request.client:
                assert client == "", f"{request} took it from {client}"
                assert request.seal == self.seals[request.nonce], f"{request} did not know the secret"
