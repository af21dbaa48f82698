"""What is done with a session lock that is held: given back, kept, changed; what others do with a name."""

from __future__ import annotations

import contextlib
from typing import Final

from ....core.effects import NotApplied, OutcomeUnknown, TransientError
from ....errors import EngineUnavailable, Unsupported
from ....rules.requests import (
    Absent,
    Adopt,
    Break,
    Broken,
    Done,
    Downgrade,
    Exhausted,
    Export,
    Gone,
    Granted,
    Inspect,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Stop,
    Unwatch,
    Watch,
)
from ..link import ServerError
from ..statements import PAGE, answer_of, listed, reply_of
from .calls import backends_of, broken_of, idle_ms_of, look_of
from .desk import Ask, Desk, Ended, Finish, Mine, Rest, Session, Start, Task
from .saying import say, say_again, seen
from .taking import NO_SEMAPHORES, close_spare, give_up, take_back

__all__ = [
    "adopt",
    "break_",
    "downgrade",
    "export",
    "inspect",
    "list_names",
    "refresh",
    "release",
    "renew",
    "renew_batch",
    "resize",
    "set_value",
    "stop",
    "unwatch",
    "watch",
]

NO_HAND_OVER: Final = (
    "a session lock lives on the connection that took it, and no other process can take that over: use "
    "postgresql:// (leases in a table) to hand a lease over"
)

MUTE_SECONDS: Final = 1.0

LET_GO_LOOKS: Final = 40
LET_GO_SECONDS: Final = 0.025
"""How long a holder has to let go of what was broken, before its connection is ended."""


async def release(desk: Desk, name: str, ask: Release) -> Reply:
    mine = desk.mine.get(ask.nonce)
    if mine is None:
        return Gone("expired")
    session = mine.session
    if mine.grant is None or session is None:
        await take_back(desk, mine)
        desk.forget(mine)
        _look_after_the_writer(desk, mine)
        return Gone("expired")
    if session.dead:
        gone = await _gone(desk, mine)
        # If we said so before, and closed the session since it did not answer, that gave it back.
        return _given_back(gone) if mine.unwanted else gone
    reply = await _give_back(desk, session, mine)
    _look_after_the_writer(desk, mine)
    await close_spare(desk)
    return reply


def _look_after_the_writer(desk: Desk, mine: Mine) -> None:
    """A reader that nobody waited for is gone: if a writer became it, that holds nothing any more."""
    if mine.writer is not None:
        desk.post(mine.writer.nonce)


async def _give_back(desk: Desk, session: Session, mine: Mine) -> Reply:
    call = desk.calls.release(session.backend, mine.name, mine.nonce, mine.mode)
    try:
        result, again = await say_again(desk, session, call)
    except TransientError as trouble:
        if not session.dead:
            give_up(desk, session, mine)
        elif isinstance(trouble, OutcomeUnknown):
            return _given_back(await _gone(desk, mine))  # with its session, if not before
        raise
    reply = reply_of(answer_of(result), Release(mine.nonce))
    desk.forget(mine)
    return _given_back(reply) if again and isinstance(reply, Gone) else reply


def _given_back(gone: Gone) -> Reply:
    """It is not there, because of us: only that it was broken is news."""
    return Done() if gone.reason == "expired" else gone


async def _gone(desk: Desk, mine: Mine) -> Gone:
    """Its session ended. Why is asked of the server, if that can be: it may have been broken."""
    why = "" if mine.session is None else mine.session.why
    desk.forget(mine)
    now = desk.now()
    if now >= desk.mute_until:
        try:
            reply = reply_of(answer_of(await Ask(desk.calls.gone(mine.name, mine.nonce))), Inspect())
        except (TransientError, EngineUnavailable):
            desk.mute_until = desk.now() + MUTE_SECONDS
        else:
            if isinstance(reply, Gone) and reply.reason != "expired":
                return reply
    return Gone("expired", f"its connection ended: {why}" if why else "")


async def renew(desk: Desk, name: str, ask: Renew) -> Reply:
    """A longer ttl lets the session live longer; a shorter one shortens nothing for the others on it."""
    mine = desk.mine.get(ask.nonce)
    if mine is None or mine.session is None or mine.grant is None:
        return Gone("expired")
    if mine.session.dead or ask.nonce in desk.told:
        return await _lost(desk, mine)
    if mine.may_be_another:
        raise NotApplied("it is not known yet whether the writer became a reader")
    session = mine.session
    if ask.ttl == mine.ttl:
        await say(desk, session, desk.calls.beat(session.backend, None))
        return Done()
    desk.lengthen(session, idle_ms_of(ask.ttl))
    told = session.untold_idle_ms
    session.tell_idle_ms(told)
    call = desk.calls.extend(session.backend, told, name, ask.nonce, ask.ttl)
    reply = reply_of(answer_of(await say(desk, session, call)), ask)
    session.heard_idle_ms(told)
    mine.ttl = ask.ttl
    return await _lost(desk, mine) if isinstance(reply, Gone) else reply


async def _lost(desk: Desk, mine: Mine) -> Gone:
    """It was taken from us, with or without its session: let go of it."""
    session = mine.session
    if session is None or session.dead:
        return await _gone(desk, mine)
    reply = await _give_back(desk, session, mine)
    return reply if isinstance(reply, Gone) else Gone("expired")


async def renew_batch(desk: Desk, steps: tuple[tuple[str, Request], ...]) -> list[Reply]:
    """One sign of life for each session, all at once, whatever hangs on it."""
    due: dict[int, tuple[Session, Task]] = {}
    for _, request in steps:
        mine = desk.mine.get(request.nonce) if isinstance(request, Renew) else None
        if mine is not None and mine.session is not None and not mine.session.dead:
            session = mine.session
            due.setdefault(id(session), (session, Task(desk.calls.beat(session.backend, None))))
    silent = await _beat(desk, list(due.values()))
    for session, _ in due.values():
        if not session.dead and id(session) not in silent:
            await _give_back_unwanted(desk, session)
    replies = [await _tended(desk, name, request, silent) for name, request in steps]
    renewals = [
        reply for (_, request), reply in zip(steps, replies, strict=True) if isinstance(request, Renew)
    ]
    if renewals and all(isinstance(reply, Absent) for reply in renewals):
        raise OutcomeUnknown("PostgreSQL does not answer")
    return replies


async def _beat(desk: Desk, due: list[tuple[Session, Task]]) -> set[int]:
    """Those that did not answer, and may yet. All have the same time: what is silent delays the others once,
    however many are, and only after theirs was said."""
    ends_at = desk.now() + desk.io_timeout
    due.sort(key=lambda each: each[0].is_busy)
    silent: set[int] = set()
    for session, task in due:
        try:
            await Start(session, task, ends_at - desk.now())
        except Ended as end:
            desk.lost(session, str(end))
        except TimeoutError:
            silent.add(id(session))
    for session, task in due:
        if session.dead or id(session) in silent:
            continue
        if not await Finish(session, task, ends_at - desk.now()):
            silent.add(id(session))
            continue
        try:
            seen(desk, session, task)
        except (OutcomeUnknown, ServerError):
            if not session.dead:
                silent.add(id(session))
    return silent


async def _give_back_unwanted(desk: Desk, session: Session) -> None:
    """It answers again."""
    for mine in [mine for mine in list(session.held.values()) if mine.unwanted]:
        with contextlib.suppress(TransientError):
            await _give_back(desk, session, mine)


async def _tended(desk: Desk, name: str, request: Request, silent: set[int]) -> Reply:
    if isinstance(request, Refresh):
        return await refresh(desk, name, request)
    if not isinstance(request, Renew):
        return Done()
    mine = desk.mine.get(request.nonce)
    if mine is None or mine.session is None:
        return Gone("expired")
    if mine.session.dead or request.nonce in desk.told:
        return await _lost(desk, mine)
    if id(mine.session) in silent or mine.may_be_another:
        return Absent()  # neither kept nor lost: the deadline stays where it is
    if request.ttl != mine.ttl:
        return await renew(desk, name, request)
    return Done()


async def refresh(desk: Desk, name: str, ask: Refresh) -> Reply:
    """The server keeps our place; only a session that ended must be told here."""
    mine = desk.mine.get(ask.nonce)
    lost = mine is not None and mine.session is not None and mine.session.dead
    return Absent() if lost else Done()


async def stop(desk: Desk, name: str, ask: Stop) -> Reply:
    """Nothing here extends a lock by itself: it is released when its time is over. Is it still there?"""
    mine = desk.mine.get(ask.nonce)
    return Gone("expired") if mine is None else await renew(desk, name, Renew(ask.nonce, mine.ttl))


async def downgrade(desk: Desk, name: str, ask: Downgrade) -> Reply:
    """Asked as often as need be; and given up by a release of the reader, also if it was not granted yet."""
    reader = desk.mine.get(ask.reader_nonce)
    if reader is not None and reader.grant is not None:
        return reader.grant
    writer = desk.mine.get(ask.nonce)
    if writer is None or writer.session is None or writer.grant is None:
        await _take_back_reader(desk, reader)  # the writer was lost between two tries
        return Gone("expired")
    session = writer.session
    if session.dead or ask.nonce in desk.told:
        return await _not_downgraded(desk, writer, reader, Gone("expired"))
    if reader is None:
        reader = desk.becoming(writer, session, ask.reader_nonce)
    call = desk.calls.downgrade(session.backend, name, ask.nonce, ask.reader_nonce)
    reply = reply_of(answer_of(await say(desk, session, call)), ask)
    if not isinstance(reply, Granted):
        return await _not_downgraded(desk, writer, reader, reply)
    desk.became(reader, writer, reply)
    return reply


async def _not_downgraded(desk: Desk, writer: Mine, reader: Mine | None, reply: Reply) -> Reply:
    """An earlier try may have been, and its reader have been broken since."""
    await _take_back_reader(desk, reader)
    return await _lost(desk, writer) if isinstance(reply, Gone) else reply


async def _take_back_reader(desk: Desk, reader: Mine | None) -> None:
    if reader is not None:
        await take_back(desk, reader)
        desk.forget(reader)


async def set_value(desk: Desk, name: str, ask: SetValue) -> Reply:
    mine = desk.mine.get(ask.nonce)
    if mine is None or mine.session is None or mine.grant is None:
        return Gone("expired")
    if mine.session.dead or ask.nonce in desk.told:
        return await _lost(desk, mine)
    reply = reply_of(
        answer_of(await say(desk, mine.session, desk.calls.set_value(mine.session.backend, name, ask))), ask
    )
    return await _lost(desk, mine) if isinstance(reply, Gone) else reply


async def export(desk: Desk, name: str, ask: Export) -> Reply:
    raise Unsupported(NO_HAND_OVER)


async def adopt(desk: Desk, name: str, ask: Adopt) -> Reply:
    """Nobody can have exported it. One who only wants to be rid of it need not be told so."""
    if ask.renews:
        raise Unsupported(NO_HAND_OVER)
    return Gone("expired", NO_HAND_OVER)


async def resize(desk: Desk, name: str, ask: Resize) -> Reply:
    raise Unsupported(NO_SEMAPHORES)


async def break_(desk: Desk, name: str, ask: Break) -> Reply:
    """The holder is asked to let go, and keeps the rest; if it does not, its connection is ended."""
    broken = broken_of(await Ask(desk.calls.breaking(name, ask)))
    if broken is None:
        return Exhausted()
    standing = broken.backends
    for _ in range(LET_GO_LOOKS):
        if not standing:
            break
        # Once seen to have let go is enough: what it has later is another grant, or one on its way.
        standing = backends_of(await Ask(desk.calls.standing(name, standing)))
        await Rest(LET_GO_SECONDS if standing else 0.0)
    if standing:
        await Ask(desk.calls.end(name, standing))
    return Broken(broken.token, broken.victims)


async def inspect(desk: Desk, name: str, ask: Inspect) -> Reply:
    return look_of(await Ask(desk.calls.look(name)))


async def watch(desk: Desk, name: str, ask: Watch) -> Reply:
    desk.watching.add(ask.nonce)
    return look_of(await Ask(desk.calls.look(name)))


async def unwatch(desk: Desk, name: str, ask: Unwatch) -> Reply:
    desk.watching.discard(ask.nonce)
    return Done()


async def list_names(desk: Desk, prefix: str) -> list[tuple[str, Snapshot]]:
    found: list[tuple[str, Snapshot]] = []
    while True:
        page = listed(await Ask(desk.calls.list_names(prefix, found[-1][0] if found else "")))
        found += page
        if len(page) < PAGE:
            break
    return [(name, s) for name, s in found if s.record.holders or s.record.queue or s.record.value]
