"""The specification: what each request does to a record. Pure: the same input gives the same result.

The memory and SQLite engines and the simulator execute ``apply`` itself. Engines that store records on a
server translate it, and are compared with it, reply by reply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from . import mutex, rwlock, semaphore
from .queueing import (
    Admits,
    blockers,
    drop_clients,
    find_holder,
    find_waiter,
    give_turns,
    may_pass,
    poll_after,
    settle,
)
from .record import (
    EMPTY,
    MAX_TOKEN,
    NEVER_US,
    PATIENCE_SECONDS,
    Holder,
    Record,
    StoredValue,
    Tombstone,
    Waiter,
    Watcher,
    capped,
)
from .requests import (
    Absent,
    Acquire,
    Adopt,
    Break,
    Broken,
    Busy,
    CellState,
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
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Stop,
    SwapCell,
    Unwatch,
    Wake,
    Watch,
    Withdraw,
    Withdrawn,
)

__all__ = ["ADMITS", "Step", "apply", "apply_in_order", "grant"]

ADMITS: Final[dict[str | None, Admits]] = {
    None: mutex.admits,
    "lock": mutex.admits,
    "rwlock": rwlock.admits,
    "semaphore": semaphore.admits,
}

ENDED_KEPT: Final = 100
"""The most tombstones in a record. The oldest are deleted first."""

NOT_EXPORTED: Final = "it was not exported with this secret, or another client adopted it"

BROKEN_KEPT_SECONDS: Final = 3600.0
"""How long a broken grant has a tombstone beyond its ttl, so that its holder learns the reason."""

SHARED_MODES: Final = ("read", "permit")

_new = tuple.__new__
"""Constructs a tuple without calling its Python constructor: every grant constructs several."""

_DONE: Final = Done()


class Step(NamedTuple):
    """The new record, the reply, and the wake-ups to send after the record is stored."""

    record: Record
    reply: Reply
    wake: tuple[Wake, ...] = ()


def apply(record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()) -> Step:
    """One transition. ``dead``: clients known to be dead, whose claims are void at once.

    If the returned record is the one passed in, nothing needs to be stored.
    """
    kind = record.kind
    if kind is None and request.__class__ is Acquire:
        kind = request.kind
    admits = ADMITS[kind]
    settled = settle(record, now, admits)
    if dead:
        # After settle: a turn that a dead waiter kept from the next one begins when its death is known.
        settled = drop_clients(settled, dead, now, admits)
    after, reply = _HANDLERS[request.__class__](settled, request, now, wall_us, admits)
    if after is settled:
        # Only the passing of time changed it, if anything: every reader computes the same.
        return _new(Step, (record, reply, ()))
    if after.ended:
        after = after._replace(ended=tuple(e for e in after.ended if e.forget_at > now)[-ENDED_KEPT:])
    if after.watchers:
        after = after._replace(watchers=tuple(w for w in after.watchers if w.expires_at > now))
    if after.queue or after.watchers or reply.__class__ is Broken:
        return Step(after, reply, _wakes(record, after, reply))
    return _new(Step, (after, reply, ()))


def apply_in_order(
    records: Mapping[str, Record],
    steps: Iterable[tuple[str, Request]],
    now: float,
    wall_us: int,
    stop_when_refused: bool,
    dead: Collection[str] = (),
    rule: Callable[..., Step] | None = None,
) -> list[Step]:
    """Several names in one atomic step, in the given order. It may stop at the first that is not granted.

    The record of the last step of a name is the one to store. ``rule``: the transition function, instead of
    ``apply``.
    """
    rule = rule or apply
    present = dict(records)
    done: list[Step] = []
    for name, request in steps:
        step = rule(present.get(name, EMPTY), request, now, wall_us, dead)
        present[name] = step.record
        done.append(step)
        if stop_when_refused and isinstance(request, Acquire) and not isinstance(step.reply, Granted):
            break
    return done


def _wakes(before: Record, after: Record, reply: Reply) -> tuple[Wake, ...]:
    """The waiters whose turn has just begun, the watchers, and the holders whose grant was broken."""
    had_turn = {w.nonce for w in before.queue if w.turn_at is not None}
    wake = []
    for waiter in after.queue:
        if waiter.turn_at is None:
            break
        if waiter.nonce not in had_turn:
            wake.append(Wake(waiter.client, waiter.nonce))
    if after.watchers and _reported_state(before) != _reported_state(after):
        wake += [Wake(watcher.client, watcher.nonce) for watcher in after.watchers]
    if isinstance(reply, Broken):
        wake += [Wake(victim.client, victim.nonce) for victim in reply.victims if victim.client]
    return tuple(wake)


def _reported_state(record: Record) -> tuple[Any, ...]:
    """What watchers are notified of. Renewals and refreshes are left out: they come every second."""
    holders = [(holder.token, holder.owner) for holder in record.holders]
    return holders, [waiter.nonce for waiter in record.queue], record.value, record.limit


# --- acquiring ----------------------------------------------------------------------------------


def _acquire(record: Record, ask: Acquire, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    if record.kind is not None and (mismatch := _mismatch(record, ask.kind, ask.limit)) is not None:
        return record, mismatch
    holders, queue = record.holders, record.queue
    holder = find_holder(record, ask.nonce) if holders else None
    if holder is not None:
        # The reply says since when: an earlier copy of this request may have been granted long before.
        return record, _granted_reply(record, holder, now, max(now - holder.since, 0.0))
    for ended in record.ended:
        if ended.nonce == ask.nonce:
            return record, Gone(ended.reason, ended.note)
    if record.kind is None:
        record = record._replace(kind=ask.kind, limit=ask.limit, declared=ask.limit)
    place = find_waiter(record, ask.nonce) if queue else None
    if not holders and not queue:
        may = admits((), ask.mode, record.limit)
    elif place is None:
        may = may_pass(record, ask.mode, ask.fair, admits)
    else:
        may = queue[place].turn_at is not None or (
            not ask.fair and admits([h.mode for h in holders], ask.mode, record.limit)
        )
    if may:
        return grant(record, ask, place, now, wall_us, admits)
    if not ask.wait:
        return record, Busy(record.holders, now)
    return _enqueue(record, ask, place, now, admits)


def _mismatch(record: Record, kind: str, limit: int) -> Mismatch | None:
    known = record.kind
    if known == kind and (kind != "semaphore" or limit in (record.declared, record.limit)):
        return None
    return None if known is None else Mismatch(known, record.declared)


def grant(
    record: Record, ask: Acquire, place: int | None, now: float, wall_us: int, admits: Admits
) -> tuple[Record, Reply]:
    token = _next_token(record, wall_us)
    if token is None:
        return record, Exhausted()
    kind, _, holders, queue, limit, declared, value, ended, watchers = record
    nonce, client, owner, _, mode, ttl, _, _, renews, max_hold, _, metadata = ask
    until, expires_at = None, now + ttl
    if max_hold is not None:
        until = now + max_hold
        expires_at = capped(expires_at, until)
    holder = _new(Holder, (nonce, client, owner, mode, token, now, expires_at, ttl, renews, until, metadata))
    if place is not None:
        queue = queue[:place] + queue[place + 1 :]
    after = _new(Record, (kind, token, (*holders, holder), queue, limit, declared, value, ended, watchers))
    return give_turns(after, now, admits) if queue else after, _granted_reply(after, holder, now)


def _granted_reply(record: Record, holder: Holder, now: float, age: float = 0.0) -> Granted:
    _, _, _, mode, token, _, _, ttl, _, until, metadata = holder
    peers: tuple[int, ...] = ()
    if mode in SHARED_MODES:
        peers = tuple(h.token for h in record.holders if h.mode in SHARED_MODES and h is not holder)
    lasts = None if until is None else until - now
    return _new(Granted, (token, peers, record.kind or "lock", mode, ttl, lasts, metadata, age))


def _next_token(record: Record, wall_us: int) -> int | None:
    """A token larger than every earlier one, also if the counter was lost."""
    token = record.token + 1
    if token < wall_us:
        token = wall_us
    return token if token < MAX_TOKEN else None


def _enqueue(
    record: Record, ask: Acquire, place: int | None, now: float, admits: Admits
) -> tuple[Record, Reply]:
    expires_at = now + PATIENCE_SECONDS
    if place is None:
        waiter = Waiter(ask.nonce, ask.client, ask.owner, ask.mode, now, expires_at, None)
        queue = (*record.queue, waiter)
        place = len(queue) - 1
    else:
        waiter = record.queue[place]._replace(expires_at=expires_at)
        queue = (*record.queue[:place], waiter, *record.queue[place + 1 :])
    record = give_turns(record._replace(queue=queue), now, admits)
    return record, _queued_reply(record, place, now)


def _queued_reply(record: Record, place: int, now: float) -> Queued:
    return Queued(place, poll_after(record, place, now), blockers(record, place))


# --- releasing ----------------------------------------------------------------------------------


def _release(record: Record, ask: Release, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    holder = find_holder(record, ask.nonce)
    if holder is None:
        return _with_tombstone(record, ask.nonce, ask.linger, now), _gone_reply(record, ask.nonce)
    return _without_attempt(record, ask.nonce, ask.linger, now, admits), _DONE


def _withdraw(
    record: Record, ask: Withdraw, now: float, wall_us: int, admits: Admits
) -> tuple[Record, Reply]:
    if find_holder(record, ask.nonce) is None and find_waiter(record, ask.nonce) is None:
        return _with_tombstone(record, ask.nonce, ask.linger, now), Withdrawn(record.holders, now)
    after = _without_attempt(record, ask.nonce, ask.linger, now, admits)
    return after, Withdrawn(after.holders, now)


def _without_attempt(record: Record, nonce: str, linger: float, now: float, admits: Admits) -> Record:
    """The record without this attempt, and with the turns that follow."""
    kind, token, holders, queue, limit, declared, value, ended, watchers = record
    if len(holders) == 1 and holders[0].nonce == nonce:
        holders = ()
    else:
        holders = tuple([h for h in holders if h.nonce != nonce])
    if queue:
        queue = tuple([w for w in queue if w.nonce != nonce])
    after = _new(Record, (kind, token, holders, queue, limit, declared, value, ended, watchers))
    if queue:
        after = give_turns(after, now, admits)
    return _with_tombstone(after, nonce, linger, now) if linger else after


def _with_tombstone(record: Record, nonce: str, linger: float, now: float) -> Record:
    """The record with a tombstone that refuses late copies of this attempt."""
    if linger <= 0:
        return record
    ended = Tombstone(nonce, "withdrawn", "", now + linger)
    for known in record.ended:
        if known.nonce == nonce:
            if known.forget_at >= ended.forget_at:
                return record
            ended = known._replace(forget_at=ended.forget_at)
    return record._replace(ended=(*(e for e in record.ended if e.nonce != nonce), ended))


def _gone_reply(record: Record, nonce: str) -> Gone:
    for ended in record.ended:
        if ended.nonce == nonce:
            return Gone(ended.reason, ended.note)
    return Gone("stolen" if record.holders else "expired")


def _break(record: Record, ask: Break, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    victims = tuple(h for h in record.holders if ask.token is None or h.token == ask.token)
    if not victims:
        return record, Broken(None, ())
    token = _next_token(record, wall_us)
    if token is None:
        return record, Exhausted()
    ended = tuple(
        Tombstone(v.nonce, "broken", ask.reason, now + v.ttl + BROKEN_KEPT_SECONDS) for v in victims
    )
    holders = tuple(h for h in record.holders if h not in victims)
    after = record._replace(token=token, holders=holders, ended=record.ended + ended)
    return give_turns(after, now, admits), Broken(token, victims)


# --- extending ----------------------------------------------------------------------------------


def _renew(record: Record, ask: Renew, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    holder = find_holder(record, ask.nonce)
    if holder is None:
        return record, _gone_reply(record, ask.nonce)
    expires_at = max(holder.expires_at, capped(now + ask.ttl, holder.until))
    return _with_holder(record, holder, holder._replace(expires_at=expires_at, ttl=ask.ttl)), Done()


def _stop(record: Record, ask: Stop, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    holder = find_holder(record, ask.nonce)
    if holder is None:
        return record, _gone_reply(record, ask.nonce)
    return _with_holder(record, holder, holder._replace(renews=False)), Done()


def _export(record: Record, ask: Export, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    holder = find_holder(record, ask.nonce)
    if holder is None:
        return record, _gone_reply(record, ask.nonce)
    expires_at = max(holder.expires_at, capped(now + holder.ttl, holder.until))
    exported = holder._replace(client="", owner=ask.seal, renews=False, expires_at=expires_at)
    return _with_holder(record, holder, exported), Done()


def _adopt(record: Record, ask: Adopt, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    holder = find_holder(record, ask.nonce)
    if holder is None:
        return record, _gone_reply(record, ask.nonce)
    if holder.client != ask.client and (holder.client, holder.owner) != ("", ask.seal):
        return record, Gone("stolen", NOT_EXPORTED)
    expires_at = max(holder.expires_at, capped(now + holder.ttl, holder.until))
    adopted = holder._replace(client=ask.client, owner=ask.owner, renews=ask.renews, expires_at=expires_at)
    after = _with_holder(record, holder, adopted)
    return after, _granted_reply(after, adopted, now)


def _with_holder(record: Record, old: Holder, new: Holder) -> Record:
    return record._replace(holders=tuple(new if h is old else h for h in record.holders))


def _refresh(record: Record, ask: Refresh, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    expires_at = now + PATIENCE_SECONDS
    place = find_waiter(record, ask.nonce)
    if place is not None:
        waiter = record.queue[place]._replace(expires_at=expires_at)
        after = record._replace(queue=(*record.queue[:place], waiter, *record.queue[place + 1 :]))
        return after, _queued_reply(after, place, now)
    if any(w.nonce == ask.nonce and w.expires_at > now for w in record.watchers):
        watchers = tuple(
            w._replace(expires_at=expires_at) if w.nonce == ask.nonce else w for w in record.watchers
        )
        return record._replace(watchers=watchers), Done()
    return record, Absent()


# --- other requests -----------------------------------------------------------------------------


def _downgrade(
    record: Record, ask: Downgrade, now: float, wall_us: int, admits: Admits
) -> tuple[Record, Reply]:
    reader = find_holder(record, ask.reader_nonce)
    if reader is not None:
        return record, _granted_reply(record, reader, now)
    if any(e.nonce == ask.reader_nonce for e in record.ended):
        return record, _gone_reply(record, ask.reader_nonce)
    writer = find_holder(record, ask.nonce)
    if writer is None or writer.mode != "write":
        return record, _gone_reply(record, ask.nonce)
    token = _next_token(record, wall_us)
    if token is None:
        return record, Exhausted()
    expires_at = max(writer.expires_at, capped(now + writer.ttl, writer.until))
    reader = writer._replace(
        nonce=ask.reader_nonce, mode="read", token=token, since=now, expires_at=expires_at
    )
    after = give_turns(_with_holder(record, writer, reader)._replace(token=token), now, admits)
    return after, _granted_reply(after, reader, now)


def _set_value(
    record: Record, ask: SetValue, now: float, wall_us: int, admits: Admits
) -> tuple[Record, Reply]:
    holder = find_holder(record, ask.nonce)
    if holder is None:
        return record, _gone_reply(record, ask.nonce)
    value = StoredValue(ask.data, holder.token, wall_us + int(ask.retention * 1_000_000))
    return record._replace(value=value), Done()


def _read_cell(
    record: Record, ask: ReadCell, now: float, wall_us: int, admits: Admits
) -> tuple[Record, Reply]:
    value = record.value
    return record, CellState(0, None) if value is None else CellState(value.token, value.data)


def _swap_cell(
    record: Record, ask: SwapCell, now: float, wall_us: int, admits: Admits
) -> tuple[Record, Reply]:
    value = record.value
    version = 0 if value is None else value.token
    if version != ask.expected:
        return record, CellState(version, None if value is None else value.data)
    version = max(version + 1, record.token + 1, wall_us)
    if version >= MAX_TOKEN:
        return record, Exhausted()
    return record._replace(value=StoredValue(ask.data, version, NEVER_US)), CellState(version, None, True)


def _resize(record: Record, ask: Resize, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    mismatch = _mismatch(record, "semaphore", ask.declared)
    if mismatch is not None:
        return record, mismatch
    declared = record.declared or ask.declared
    after = record._replace(kind="semaphore", declared=declared, limit=ask.limit)
    return give_turns(after, now, semaphore.admits), Done()


def _watch(record: Record, ask: Watch, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    others = tuple(w for w in record.watchers if w.nonce != ask.nonce)
    after = record._replace(watchers=(*others, Watcher(ask.nonce, ask.client, now + PATIENCE_SECONDS)))
    return after, _inspect(after, Inspect(), now, wall_us, admits)[1]


def _unwatch(record: Record, ask: Unwatch, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    others = tuple(w for w in record.watchers if w.nonce != ask.nonce)
    return (record if len(others) == len(record.watchers) else record._replace(watchers=others)), Done()


def _inspect(record: Record, ask: Inspect, now: float, wall_us: int, admits: Admits) -> tuple[Record, Reply]:
    if record.value is not None and record.value.forget_at_us <= wall_us:
        return record, Snapshot(record._replace(value=None), now)
    return record, Snapshot(record, now)


_Handler = Callable[[Record, Any, float, int, Admits], tuple[Record, Reply]]

_HANDLERS: Final[dict[type, _Handler]] = {
    Acquire: _acquire,
    Release: _release,
    Withdraw: _withdraw,
    Renew: _renew,
    Refresh: _refresh,
    Stop: _stop,
    Export: _export,
    Adopt: _adopt,
    Downgrade: _downgrade,
    Break: _break,
    SetValue: _set_value,
    ReadCell: _read_cell,
    SwapCell: _swap_cell,
    Resize: _resize,
    Watch: _watch,
    Unwatch: _unwatch,
    Inspect: _inspect,
}
