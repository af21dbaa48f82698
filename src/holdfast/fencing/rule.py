"""The fencing rule: may a holder with this token still touch the resource? Pure, no storage, no clock.

A guard keeps one ``Mark`` per resource, the newest grant it has seen. A holder presents a mark of its
own, and ``decide`` answers: ``Accept`` (nothing to store), ``Advance`` (store this, go on) or ``Refuse``.
Every storage implements exactly this function; differential tests hold each of them to it.

A part that is not known is the empty string: a bare int knows neither its source nor its nonce, so it
compares by its number alone. That is weaker, and the table says where:

    stored             presented          decision
    ─────────────────  ─────────────────  ───────────────────────────────────────────────────────────────
    nothing            anything           advance: the first to come is the newest
    source S           source T           refuse (other source): their numbers do not compare, larger or not
    ─────────────────  the rest: the sources are equal, or one of them is not known  ─────────────────────
    token n            token > n          advance; from a bare int the stored source is kept, so that
                                          a bare int never opens the door to another source
    token n            token < n          refuse (older), unless n's peers contain it: then accept
    token n, nonce a   token n, nonce a   accept: the same grant
    token n, nonce a   token n, nonce b   refuse (other grant): the engine issued one number twice
    token n, nonce a   token n, bare      accept (weaker: it could be another grant's)
    token n, bare      token n, bare      accept (weaker, likewise)
    token n, bare      token n, nonce a   advance: the grant is now known, so nonce b is refused from here on

Whenever a presented mark passes and only it knows the source, the source is stored: from then on another
source is refused. Refusing stores nothing.

``peers`` are the tokens of shared holders (permits of a semaphore) that were live when the newest was
granted; they replace those of the grant before. A bare int brings none.

What follows, and is tested: the stored token never falls; presenting a mark twice changes nothing the
second time; grants of one source leave the same newest in any order; and, but for peers, which are known
by number only: no two nonces of one token both pass, and what was refused once is refused for ever.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ..model import Fence

__all__ = ["Accept", "Advance", "Decision", "Mark", "Refuse", "Why", "after", "decide", "moved"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A grant as a guard sees it: a fence of which parts may be unknown (""), and its peers."""

    token: int
    source: str = ""
    nonce: str = ""
    peers: tuple[int, ...] = ()

    @property
    def fence(self) -> Fence:
        return Fence(source=self.source, token=self.token, nonce=self.nonce)


class Why(enum.Enum):
    """Why a mark was refused."""

    OLDER = "older"
    OTHER_GRANT = "other grant"
    OTHER_SOURCE = "other source"


@dataclass(frozen=True, slots=True)
class Accept:
    """Go on; what is stored stays as it is."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Go on, and store this."""

    to: Mark


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop, store nothing."""

    why: Why


Decision = Accept | Advance | Refuse


def decide(stored: Mark | None, presented: Mark) -> Decision:
    """The table of this module's docstring."""
    if stored is None:
        return Advance(presented)
    why = _objection(stored, presented)
    if why is not None:
        return Refuse(why)
    merged = _merge(stored, presented)
    return Accept() if merged == stored else Advance(merged)


def after(stored: Mark | None, decision: Decision) -> Mark | None:
    """The mark that is stored after the decision has been carried out."""
    return decision.to if isinstance(decision, Advance) else stored


def moved(stored: Mark | None, source: str) -> Mark:
    """What is stored once the resource was deliberately given to another source.

    The old number means nothing to the new source, so the guard starts again at zero. Moving to the
    source that already has it must not do that: a move run twice would let stale holders back in.
    """
    if stored is not None and stored.source == source:
        return stored
    return Mark(token=0, source=source)


def _objection(stored: Mark, presented: Mark) -> Why | None:
    if _differ(stored.source, presented.source):
        return Why.OTHER_SOURCE
    if presented.token < stored.token and presented.token not in stored.peers:
        return Why.OLDER
    if presented.token == stored.token and _differ(stored.nonce, presented.nonce):
        return Why.OTHER_GRANT
    return None


def _differ(known: str, other: str) -> bool:
    return bool(known) and bool(other) and known != other


def _merge(stored: Mark, presented: Mark) -> Mark:
    source = presented.source or stored.source
    names_the_grant = presented.token == stored.token and not stored.nonce and bool(presented.nonce)
    if presented.token > stored.token or names_the_grant:
        return replace(presented, source=source)
    return replace(stored, source=source)
