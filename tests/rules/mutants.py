"""Rules broken on purpose, one behaviour each: the properties must catch every one of them.

Most are bugs that lock libraries have had. Each wraps the shipped ``apply``.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.rules.record import Holder, Record, Waiter
from holdfast.rules.requests import (
    Acquire,
    Adopt,
    Busy,
    Done,
    Downgrade,
    Gone,
    Granted,
    Queued,
    Refresh,
    Release,
    Renew,
    Request,
    SetValue,
    Wake,
    Withdraw,
)
from holdfast.rules.transitions import Step, apply
from rules.judge import Rule

MUTANTS: dict[str, Rule] = {}


def mutant(rule: Rule) -> Rule:
    MUTANTS[rule.__name__] = rule
    return rule


@mutant
def release_without_owner_check(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """Whichever client releases, the present holder loses it."""
    if isinstance(request, Release) and record.holders:
        request = request._replace(nonce=record.holders[0].nonce)
    return apply(record, request, now, wall_us, dead)


@mutant
def renewal_creates_again(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """A renewal of what is gone brings it back."""
    step = apply(record, request, now, wall_us, dead)
    if not isinstance(request, Renew) or not isinstance(step.reply, Gone):
        return step
    nonce = request.nonce
    revived = Holder(
        nonce,
        nonce[0],
        nonce,
        "exclusive",
        record.token,
        now,
        now + request.ttl,
        request.ttl,
        True,
        None,
        {},
    )
    return Step(step.record._replace(holders=(*step.record.holders, revived)), Done())


@mutant
def everyone_is_woken(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """A release wakes the crowd."""
    step = apply(record, request, now, wall_us, dead)
    if not isinstance(request, Release) or step.record is record:
        return step
    return step._replace(wake=tuple(Wake(w.client, w.nonce) for w in step.record.queue))


@mutant
def dead_head_stays(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """Turns are never missed and places never expire: a dead head blocks for ever."""
    queue = tuple(
        w._replace(turn_at=None if w.turn_at is None else now, expires_at=now + 5.0) for w in record.queue
    )
    return apply(record._replace(queue=queue), request, now, wall_us, dead)


@mutant
def token_is_minted_before_the_check(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """Every try takes a number, also one that is not granted."""
    step = apply(record, request, now, wall_us, dead)
    if isinstance(request, Acquire) and isinstance(step.reply, Busy | Queued):
        return step._replace(record=step.record._replace(token=step.record.token + 1))
    return step


@mutant
def retry_mints_again(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """An attempt that is asked again does not recognise itself."""
    if isinstance(request, Acquire):
        holders = tuple(h for h in record.holders if h.nonce != request.nonce)
        record = record if len(holders) == len(record.holders) else record._replace(holders=holders)
    return apply(record, request, now, wall_us, dead)


@mutant
def retry_extends(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """An attempt that is asked again lasts longer than its first grant."""
    step = apply(record, request, now, wall_us, dead)
    if not isinstance(request, Acquire) or not isinstance(step.reply, Granted):
        return step
    holders = tuple(
        h._replace(expires_at=h.expires_at + h.ttl) if h.nonce == request.nonce and h in record.holders else h
        for h in step.record.holders
    )
    return step._replace(record=step.record._replace(holders=holders))


@mutant
def withdrawing_wakes_nobody(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """The head gives up and the next one sleeps on."""
    step = apply(record, request, now, wall_us, dead)
    return step._replace(wake=()) if isinstance(request, Withdraw) else step


@mutant
def downgrading_wakes_nobody(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    step = apply(record, request, now, wall_us, dead)
    return step._replace(wake=()) if isinstance(request, Downgrade) else step


@mutant
def late_copies_are_granted(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """Ended attempts are not remembered."""
    if isinstance(request, Acquire) and record.ended:
        record = record._replace(ended=())
    return apply(record, request, now, wall_us, dead)


@mutant
def fair_ones_barge(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """A newcomer takes a free lock, whichever clients wait."""
    if isinstance(request, Acquire):
        request = request._replace(fair=False)
    return apply(record, request, now, wall_us, dead)


@mutant
def one_too_many(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """One holder more than the limit says."""
    step = apply(record._replace(limit=record.limit + 1), request, now, wall_us, dead)
    return step._replace(record=step.record._replace(limit=record.limit))


@mutant
def missed_turn_drops_one_entry(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """A dead process costs a turn for each of its threads."""
    apart = tuple(w._replace(client=f"{w.client}/{w.nonce}") for w in record.queue)
    step = apply(record._replace(queue=apart), request, now, wall_us, dead)
    queue = tuple(w._replace(client=w.client.partition("/")[0]) for w in step.record.queue)
    wake = tuple(w._replace(client=w.client.partition("/")[0]) for w in step.wake)
    return Step(step.record._replace(queue=queue), step.reply, wake)


@mutant
def renewal_shortens(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """The last ttl counts, even where more was granted."""
    step = apply(record, request, now, wall_us, dead)
    if not isinstance(request, Renew) or not isinstance(step.reply, Done):
        return step
    holders = tuple(
        h._replace(expires_at=now + request.ttl) if h.nonce == request.nonce else h
        for h in step.record.holders
    )
    return step._replace(record=step.record._replace(holders=holders))


@mutant
def anybody_sets_the_value(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    if isinstance(request, SetValue) and record.holders:
        request = request._replace(nonce=record.holders[0].nonce)
    return apply(record, request, now, wall_us, dead)


@mutant
def refreshing_moves_to_the_end(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """Saying that one still waits costs one's place."""
    step = apply(record, request, now, wall_us, dead)
    if not isinstance(request, Refresh) or not isinstance(step.reply, Queued):
        return step
    queue: list[Waiter] = [w for w in step.record.queue if w.nonce != request.nonce]
    queue += [w for w in step.record.queue if w.nonce == request.nonce]
    return step._replace(record=step.record._replace(queue=tuple(queue)))


@mutant
def the_secret_is_not_compared(
    record: Record, request: Request, now: float, wall_us: int, dead: Collection[str] = ()
) -> Step:
    """The nonce adopts, and that stands in the record."""
    if isinstance(request, Adopt):
        for holder in record.holders:
            if holder.nonce == request.nonce and not holder.client:
                request = request._replace(seal=holder.owner)
    return apply(record, request, now, wall_us, dead)
