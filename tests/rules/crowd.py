"""A crowd around one record in virtual time: waiters that look when they were notified, holders, the dead.

Nobody here is clever: a waiter asks again when it is woken or its ``poll_after`` has passed, and says once a
second that it still waits. Whatever the crowd needs beyond that, the rules have failed to give.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.rules.record import EMPTY, Record
from holdfast.rules.requests import Acquire, Granted, Queued, Refresh, Release, Request
from holdfast.rules.transitions import apply
from rules.judge import Rule

REFRESH_SECONDS = 1.0


@dataclass
class Member:
    """One who wants the lock once, holds it for a while, and may vanish on the way."""

    name: str
    client: str
    mode: str
    arrives_at: float
    holds_for: float
    dies_at: float | None = None
    fair: bool = True
    granted_at: float | None = None
    released_at: float | None = None
    asked: int = 0
    watch: int = 0
    """Counts up whenever an earlier appointment to look again is void."""

    def lives(self, now: float) -> bool:
        return self.dies_at is None or now < self.dies_at


@dataclass
class Crowd:
    """All members, one record, one clock."""

    kind: str
    members: list[Member]
    ttl: float = 10.0
    limit: int = 0
    rule: Rule = apply
    record: Record = EMPTY
    now: float = 0.0
    looks: bool = True
    """Whether waiters look again by themselves: without, all depends on wake-ups."""
    granted: list[str] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, until: float) -> Crowd:
        for member in self.members:
            self._at(member.arrives_at, lambda m=member: self._ask(m))  # type: ignore[misc]  # a bound default
        return self.run_on(until)

    def run_on(self, until: float) -> Crowd:
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, act = heapq.heappop(self._agenda)
            act()
        return self

    def release_with_a_newcomer(self, holder: Member, newcomer: Member) -> None:
        """A client comes between a release and the waiters that it woke."""
        self.now = newcomer.arrives_at
        self._release(holder)
        self._ask(newcomer)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._count), act))

    def _apply(self, request: Request) -> object:
        step = self.rule(self.record, request, self.now, 0, ())
        self.record = step.record
        for wake in step.wake:
            member = next(m for m in self.members if m.name == wake.nonce)
            self._at(self.now, lambda m=member: self._ask(m))  # type: ignore[misc]  # a bound default
        return step.reply

    def _ask(self, member: Member, watch: int | None = None) -> None:
        if member.granted_at is not None or not member.lives(self.now):
            return
        if watch is not None and watch != member.watch:
            return
        member.asked += 1
        member.watch += 1
        ask = Acquire(
            member.name, member.client, member.name, self.kind, member.mode, self.ttl, True, member.fair
        )
        reply = self._apply(ask._replace(limit=self.limit))
        if isinstance(reply, Granted):
            member.granted_at = self.now
            self.granted.append(member.name)
            self._at(self.now + member.holds_for, lambda: self._release(member))
        elif isinstance(reply, Queued):
            if member.name not in self.queued:
                self.queued.append(member.name)
                self._at(self.now + REFRESH_SECONDS, lambda: self._refresh(member))
            if self.looks:
                mine = member.watch
                self._at(self.now + reply.poll_after, lambda: self._ask(member, mine))

    def _refresh(self, member: Member) -> None:
        if member.granted_at is not None or not member.lives(self.now):
            return
        self._apply(Refresh(member.name))
        self._at(self.now + REFRESH_SECONDS, lambda: self._refresh(member))

    def _release(self, member: Member) -> None:
        if member.lives(self.now) and member.released_at is None:
            member.released_at = self.now
            self._apply(Release(member.name))
