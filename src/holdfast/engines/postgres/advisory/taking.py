"""Taking a session lock: one try, or a wait in the server's own queue."""

from __future__ import annotations

from typing import Final

from ....core.deadlines import RENEW_AFTER
from ....core.effects import NotApplied, OutcomeUnknown, TransientError
from ....errors import EngineUnavailable, Unsupported
from ....rules.requests import Acquire, Busy, Granted, Mismatch, Queued, Reply, Withdraw, Withdrawn
from ..link import ServerError
from ..statements import Call, answer_of, reply_of
from .calls import flag_of, idle_ms_of, look_of
from .desk import Ask, Close, Desk, Ended, Finish, Glance, Mine, Open, Room, Session, Start, Task
from .saying import say, seen, sort

__all__ = ["acquire", "close_spare", "give_up", "take_back", "withdraw"]

LOOK_IN_SECONDS: Final = 60.0
"""The server answers when it is granted: looking is the protocol's own caution."""

IN_LINE_SECONDS: Final = 1.0
"""How often one tries who waits for a connection to wait on."""

CANCEL_SECONDS: Final = 0.05

NO_SEMAPHORES: Final = (
    "advisory locks are exclusive or shared, and count nobody: use postgresql:// (leases in a table) for "
    "semaphores, in the same database"
)


async def acquire(desk: Desk, name: str, ask: Acquire) -> Reply:
    """One attempt, asked as often as need be."""
    if ask.kind == "semaphore":
        raise Unsupported(NO_SEMAPHORES)
    mine = desk.mine.get(ask.nonce)
    if mine is None:
        mine = Mine(name, ask.nonce, desk.calls.key(name), ask.mode, ask.ttl)
        desk.mine[ask.nonce] = mine
    try:
        return await _ask(desk, mine, ask)
    except NotApplied:
        if mine.session is None:
            desk.forget(mine)  # nothing of it is anywhere, so nobody may ever come back to it
        raise
    except EngineUnavailable as error:
        error.nothing_was_sent = error.nothing_was_sent and mine.session is None
        if error.nothing_was_sent:
            desk.forget(mine)
        raise


async def _ask(desk: Desk, mine: Mine, ask: Acquire) -> Reply:
    if mine.session is not None and mine.session.dead:
        desk.part(mine)  # the server gives back what a session had
    now = desk.now()
    if mine.grant is not None:
        return await _counted(desk, mine, mine.grant, now)
    if mine.task is None:
        waits = ask.wait and desk.may_wait(ask.nonce)
        if not waits and desk.in_our_own_way(mine):
            return await _known_to_be_taken(desk, mine, ask)
        await _begin(desk, mine, ask, now, waits)
    reply = await _look(desk, mine, ask, now)
    if isinstance(reply, Busy) and ask.wait:
        desk.part(mine)
        return _in_line(desk)
    if isinstance(reply, Granted):
        desk.leave_line(ask.nonce)
    elif not isinstance(reply, Queued):
        desk.forget(mine)
        await close_spare(desk)
    return reply


def _in_line(desk: Desk) -> Queued:
    """Too many of us wait already. What is free can be had all the same: so it is tried now and then."""
    return Queued(len(desk.line), IN_LINE_SECONDS, ())


async def _known_to_be_taken(desk: Desk, mine: Mine, ask: Acquire) -> Reply:
    """By one of us: a try would need another connection, only to be told so."""
    if ask.wait:
        return _in_line(desk)
    desk.forget(mine)
    standing = look_of(await Ask(desk.calls.look(mine.name)))
    kind = standing.record.kind
    if kind is not None and kind != ask.kind:
        return Mismatch(kind, 0)
    return Busy(standing.record.holders, standing.now)


async def _begin(desk: Desk, mine: Mine, ask: Acquire, now: float, waits: bool) -> None:
    idle_ms = idle_ms_of(ask.ttl)
    while True:
        session = await _session(desk, mine, idle_ms, waits)
        call = _call(desk, session, mine.name, ask, waits)
        task = mine.task = Task(call, ask.nonce if waits else "", session.untold_idle_ms)
        mine.began = now
        mine.unwanted = False  # whatever was given up before
        session.tell_idle_ms(task.idle_ms)
        try:
            await Start(session, task, desk.io_timeout)
        except Ended as end:
            desk.lost(session, str(end))
            desk.move(mine)  # to another
        except TimeoutError:
            desk.part(mine)
            raise NotApplied("PostgreSQL does not answer") from None
        else:
            return


def _call(desk: Desk, session: Session, name: str, ask: Acquire, waits: bool) -> Call:
    if waits and session.last_waiter != (name, ask.owner, ask.mode):
        session.last_waiter = None
        return desk.calls.waiting(session.backend, session.untold_idle_ms, name, ask)
    return desk.calls.taking(session.backend, session.untold_idle_ms, name, ask, waits)


async def _session(desk: Desk, mine: Mine, idle_ms: int, alone: bool) -> Session:
    found: Session | Room | None = None
    try:
        found = desk.reserve(mine, idle_ms, alone)
        if isinstance(found, Session):
            return found
        opened = await Open()
        desk.opened(found, opened, mine, idle_ms, alone)
    except BaseException:
        desk.leave(found)
        desk.part(mine)
        raise
    return opened


async def _look(desk: Desk, mine: Mine, ask: Acquire, now: float) -> Reply:
    """What became of what was asked."""
    task, session = mine.task, mine.session
    if task is None or session is None:
        raise OutcomeUnknown("the session ended")
    if task.nonce:
        if not await Glance(session, task, now == mine.began):
            return Queued(0, LOOK_IN_SECONDS, ())
        session.last_waiter = mine.name, ask.owner, ask.mode
    elif not await Finish(session, task, desk.io_timeout):
        raise OutcomeUnknown(f"PostgreSQL did not answer in {desk.io_timeout:g} s")
    try:
        result = seen(desk, session, task)
    except ServerError as error:
        await take_back(desk, mine)
        raise sort(error, desk) from error
    session.heard_idle_ms(task.idle_ms)
    reply = reply_of(answer_of(result), ask)
    if not isinstance(reply, Granted):
        return reply
    desk.granted(mine, reply)
    return await _counted(desk, mine, reply, now)


async def _counted(desk: Desk, mine: Mine, grant: Granted, now: float) -> Granted:
    """A grant with its age. Nobody knows how long the answer to one who waited lay here: the ttl counts from
    before it was asked, or from a new sign of life."""
    if now - mine.began > mine.ttl * RENEW_AFTER and mine.session is not None:
        sent = desk.now()
        await say(desk, mine.session, desk.calls.beat(mine.session.backend, None))
        mine.began = sent
    if now <= mine.began:
        return grant
    return tuple.__new__(Granted, (*grant[:-1], now - mine.began))  # quicker than _replace


async def withdraw(desk: Desk, name: str, ask: Withdraw) -> Reply:
    mine = desk.mine.get(ask.nonce)
    if mine is None:
        return Withdrawn((), 0.0)
    await take_back(desk, mine)
    desk.forget(mine)
    await close_spare(desk)
    standing = look_of(await Ask(desk.calls.look(name)))
    return Withdrawn(standing.record.holders, standing.now)


async def take_back(desk: Desk, mine: Mine) -> None:
    """Nothing of it stays, whether it was granted or not: that is looked at. Afterwards it can be asked anew.

    What cannot be settled on a connection that has nothing else is settled by closing it.
    """
    session, task = mine.session, mine.task
    if session is None:
        return
    if session.dead:
        desk.part(mine)
        return
    try:
        if task is not None and not task.done:
            await _stop(desk, session, mine, task)
        undone = await say(desk, session, desk.calls.undo(session.backend, mine.name, mine.mode))
    except TransientError:
        give_up(desk, session, mine)
        raise
    if mine.writer is not None and mine.writer.nonce in desk.mine and not flag_of(undone):
        desk.told.add(mine.writer.nonce)  # it had become this reader
    desk.part(mine)


def give_up(desk: Desk, session: Session, mine: Mine) -> None:
    """The server did not say that it is given back. A session with nothing else on it is closed, which does
    it; else it is done when the others are kept."""
    mine.unwanted = True
    if all(other.unwanted for other in list(session.held.values())):
        desk.lost(session, "it did not answer")


async def _stop(desk: Desk, session: Session, mine: Mine, task: Task) -> None:
    """Have the server stop waiting, and see what came of it."""
    ends_at = desk.now() + desk.io_timeout
    while not task.done:
        if task.nonce:
            # It may not have begun to wait yet: ask until it has ended.
            await Ask(desk.calls.cancel(mine.name, session.backend))
        left = ends_at - desk.now()
        if left <= 0:
            raise OutcomeUnknown(f"PostgreSQL did not answer in {desk.io_timeout:g} s")
        await Finish(session, task, min(CANCEL_SECONDS, left) if task.nonce else left)


async def close_spare(desk: Desk) -> None:
    for session in desk.spare():
        await Close(session)
