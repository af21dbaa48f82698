"""Mistakes that locks on sessions make, each as a small patch of the scripts or of what the server runs.

Every one of them must be caught by a checker; that is the test of the checkers.
"""

from __future__ import annotations

from typing import Any, Final
from unittest import mock

from holdfast.core.effects import TransientError
from holdfast.engines.postgres.advisory import holding, taking
from holdfast.engines.postgres.advisory.desk import Desk, Mine, Session
from holdfast.protocols import keeper
from holdfast.rules.requests import Granted, Reply
from simulation.mutants import Mutant, Patch, _both
from simulation.sessions_schedules import KINDS
from simulator.advisory import SessionsClient
from simulator.session_functions import Asked, Functions, Row
from simulator.session_locks import Backend
from simulator.sessions import Connection

__all__ = ["SESSIONS_MUTANTS"]


def minted_before_the_grant() -> Patch:
    """The token is taken when the lock is asked for: who waits longest has the smallest."""
    early: dict[Backend, int] = {}
    wanted, grant, mint = Functions._wanted, Functions._grant, Functions.mint

    def early_wanted(self: Functions, backend: Backend, asked: Asked, waits: bool) -> None:
        early[backend] = mint(self, self._rows.get(asked.name) or Row(asked.kind, 0))
        wanted(self, backend, asked, waits)

    def late_grant(self: Functions, backend: Backend, asked: Asked) -> str:
        token = early.pop(backend, 0)
        with mock.patch.object(Functions, "mint", lambda self, row: token or mint(self, row)):
            return grant(self, backend, asked)

    return mock.patch.multiple(Functions, _wanted=early_wanted, _grant=late_grant)


def left_on_the_connection() -> Patch:
    """Who gave up waiting does not look whether it was granted just then."""

    async def take_back(desk: Desk, mine: Mine) -> None:
        session, task = mine.session, mine.task
        if session is not None and not session.dead and task is not None and not task.done:
            try:
                await taking._stop(desk, session, mine, task)
            except TransientError:
                taking.give_up(desk, session, mine)
                raise
        desk.part(mine)

    return mock.patch.object(taking, "take_back", take_back)


def grant_counted_from_the_look() -> Patch:
    """The answer to one who waited is as old as the look at it."""

    async def counted(desk: Desk, mine: Mine, grant: Granted, now: float) -> Granted:
        return grant

    return mock.patch.object(taking, "_counted", counted)


def sign_of_life_counted_from_the_reply() -> Patch:
    """A session lives on from when its sign of life was answered."""
    shipped = keeper._handle_renewal

    async def renewed(
        client_state: Any, state: Any, ttl: float, reply: Reply, sent: float, now: float
    ) -> None:
        await shipped(client_state, state, ttl, reply, now, now)

    return mock.patch.object(keeper, "_handle_renewal", renewed)


def released_on_any_session() -> Patch:
    """What is given back is said on whichever connection is at hand."""
    shipped = holding._give_back

    async def give_back(desk: Desk, session: Session, mine: Mine) -> Reply:
        return await shipped(desk, (desk.sessions or [session])[0], mine)

    return mock.patch.object(holding, "_give_back", give_back)


def reader_known_when_it_is_answered() -> Patch:
    """Whoever is interrupted while it downgrades has a shared lock that nobody knows of."""
    becoming, became = Desk.becoming, Desk.became

    def unknown(self: Desk, writer: Mine, session: Session, nonce: str) -> Mine:
        reader = becoming(self, writer, session, nonce)
        del self.mine[nonce]
        session.keys[writer.key] = writer
        return reader

    def known(self: Desk, reader: Mine, writer: Mine, grant: Granted) -> None:
        self.mine[reader.nonce] = reader
        if reader.session is not None:
            reader.session.keys[reader.key] = reader
        became(self, reader, writer, grant)

    return mock.patch.multiple(Desk, becoming=unknown, became=known)


def stacked_on_one_connection() -> Patch:
    """Two of one client share a connection: the server gives both the same lock."""

    def may_have(self: Session, key: int, alone: bool) -> bool:
        return not (self.dead or self.waiter is not None)

    def in_our_own_way(self: Desk, mine: Mine) -> bool:
        return False

    return _both(
        mock.patch.object(Session, "may_have", may_have),
        mock.patch.object(Desk, "in_our_own_way", in_our_own_way),
    )


def told_by_whoever_hears_the_answer() -> Patch:
    """What a server was told of silence, by one who did not wait for the answer, is not told again."""
    return mock.patch.object(Session, "tell_idle_ms", return_value=None)


def silence_never_told() -> Patch:
    """The server waits for ever for one that stands still."""
    return mock.patch.object(taking, "idle_ms_of", return_value=0)


def end_of_a_session_not_heard() -> Patch:
    """Only who asks finds out that its session ended."""
    shipped = SessionsClient._session_over

    def over(self: SessionsClient, connection: Connection, session: Session, why: str) -> None:
        if session.is_busy:
            shipped(self, connection, session, why)
        connection.is_open = False

    return mock.patch.object(SessionsClient, "_session_over", over)


SESSIONS_MUTANTS: Final = (
    Mutant(
        "token minted before the grant",
        minted_before_the_grant,
        ("tokens",),
        ("sessions tools",),
        kinds=KINDS,
    ),
    Mutant(
        "lock left on a connection by a time-out",
        left_on_the_connection,
        ("no stray lock",),
        ("sessions lock", "sessions crowd"),
        kinds=KINDS,
    ),
    Mutant(
        "grant counted from when it was looked at",
        grant_counted_from_the_look,
        ("deadlines",),
        ("sessions lock", "sessions rlock"),
        3.0,
        ("pause", "slow"),
    ),
    Mutant(
        "sign of life counted from the reply",
        sign_of_life_counted_from_the_reply,
        ("deadlines",),
        ("sessions lock", "sessions guard"),
        3.0,
        ("slow", "loss"),
    ),
    Mutant(
        "released on whichever session is at hand",
        released_on_any_session,
        ("no stray lock",),
        ("sessions lock", "sessions several"),
        kinds=KINDS,
    ),
    Mutant(
        "reader known when it is answered",
        reader_known_when_it_is_answered,
        ("no stray lock",),
        ("sessions rwlock",),
        3.0,
        ("node hang", "interrupt"),
    ),
    Mutant(
        "two owners on one connection",
        stacked_on_one_connection,
        ("one session each", "exclusion"),
        ("sessions lock", "sessions crowd"),
        kinds=KINDS,
    ),
    Mutant(
        "silence told and not heard to be",
        told_by_whoever_hears_the_answer,
        ("deadlines",),
        ("sessions tools", "sessions crowd"),
        kinds=KINDS,
    ),
    Mutant("silence never told", silence_never_told, ("silence ends",), ("sessions lock",), kinds=KINDS),
    Mutant(
        "end of a session not heard",
        end_of_a_session_not_heard,
        ("loss at once",),
        ("sessions rwlock",),
        6.0,
        ("terminate",),
    ),
)
