"""What one client knows of itself: the leases it holds, where it waits, what it still has to clean up.

Plain data with a few derived answers. Times are the local clock's, passed in. Threads share a book: every
method leans on single dict, list and attribute operations, which do not tear.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from ..core.arguments import MAX_WAITERS
from ..core.deadlines import RENEW_AFTER
from ..core.effects import TimerName
from ..core.printable import printable
from ..errors import EngineUnavailable, LockLost, LossReason
from ..model import Kind, Mode
from ..rules.record import REFRESH_SECONDS
from ..rules.requests import Request
from .reports import Reports

__all__ = ["EXITS", "CleanupTask", "ClientState", "Hold", "LeaseState", "WaitRegistration"]

CONTENDED_NAMES_MAX: Final = 1000

ROUNDING_SECONDS: Final = 1e-6
"""Two moments this close are one: the same time, reckoned on two clocks."""

LATE_SECONDS: Final = 1.0
"""A process that runs tells a loss sooner than this after its time has come: else it was paused."""

UNANSWERED: Final = 0.1
"""A renewal that has been under way for this part of its ttl may be one that is never answered."""

WARN_AHEAD: Final = 1 / 3
"""A renewal that is not answered is noticed when this part of the ttl is left."""

EXITS: Final[tuple[type[BaseException], ...]] = (KeyboardInterrupt, SystemExit, GeneratorExit)

LOSS_MESSAGES: Final[Mapping[str, str]] = {
    "ended": "its ttl ran out, and renew=False",
    "expired": "it was not renewed in time (this process was paused, or its event loop was blocked)",
    "stolen": "somebody else holds it now",
    "unreachable": "the engine could not be reached to renew it in time",
    "broken": "it was broken",
    "max_hold": "it was held for as long as max_hold allows",
    "forked": "it belongs to the parent process: after fork() the child owns nothing",
}


class LeaseState:
    """One grant as its holder sees it: whether it may still be relied on is computed from the clock."""

    __slots__ = (
        "__weakref__",
        "deadline",
        "end_callbacks",
        "ended",
        "ended_by",
        "grace",
        "has_fired",
        "held_until",
        "is_loss_reported",
        "is_releasing",
        "kind",
        "loss_callbacks",
        "metadata",
        "mode",
        "name",
        "nonce",
        "note",
        "owner",
        "peers",
        "reason",
        "release_outcome_unknown",
        "renew_at",
        "renewal_in_flight",
        "renews",
        "successor",
        "token",
        "trouble",
        "ttl",
        "uncertain",
    )

    def __init__(
        self,
        name: str,
        kind: Kind,
        mode: Mode,
        nonce: str,
        owner: str,
        token: int,
        peers: tuple[int, ...],
        metadata: Mapping[str, str],
        sent: float,
        ttl: float,
        deadline: float,
        held_until: float | None,
        renews: bool,
        grace: float,
    ) -> None:
        self.name = name
        self.kind = kind
        self.mode = mode
        self.nonce = nonce
        self.owner = owner
        self.token = token
        self.peers = peers
        self.metadata = metadata
        self.ttl = ttl
        self.deadline = deadline if held_until is None or deadline < held_until else held_until
        self.held_until = held_until
        self.renews = renews
        self.renew_at = sent + ttl * RENEW_AFTER
        self.grace = grace
        self.reason: LossReason | None = None
        self.note = ""
        self.ended: str | None = None
        """How it ended on purpose: released, downgraded, exported, forked."""
        self.ended_by: weakref.ref[Any] | None = None
        """The thread or task that released the lease itself, where that is known."""
        self.is_releasing = False
        """Its release is under way: that a renewal finds it gone, or that its time is over, is no loss."""
        self.release_outcome_unknown = False
        """An earlier release may have reached the engine: that the next finds it gone is no loss."""
        self.successor: LeaseState | None = None
        self.trouble = ""
        """Why the last renewal did not get through, and on which engine; empty: it did."""
        self.renewal_in_flight: tuple[float, str] | None = None
        """A renewal is under way: since when, on which engine."""
        self.uncertain = False
        """A request of this attempt may still be under way somewhere."""
        self.is_loss_reported = False
        self.has_fired = False
        self.loss_callbacks: list[Callable[[], object]] = []
        """To be told of the loss, apart from everything else: a user's own callbacks."""
        self.end_callbacks: list[Callable[[], None]] = []
        """To be told of the loss or of the end, at once: must not block."""

    def complete(self, token: int, later: float) -> None:
        """It was expected, and is granted now; so much later than was reckoned with."""
        self.token = token
        self.renew_at += later
        self.deadline += later

    def __repr__(self) -> str:
        return f"<LeaseState {self.name!r} token={self.token} ended={self.ended} reason={self.reason}>"

    def extend(self, deadline: float, now: float) -> None:
        """A renewal succeeded. It never revives: whoever saw the loss was right."""
        if self.held_until is not None and deadline > self.held_until:
            deadline = self.held_until
        if now < self.deadline and deadline > self.deadline and self.reason is None:
            self.deadline = deadline

    def loss(self, now: float) -> LossReason | None:
        """Why it can no longer be relied on; None: it can. Final once told."""
        if self.reason is None and now >= self.deadline and self.ended is None:
            self.mark_lost(*self._expiry_reason(now))
        return self.reason

    def mark_lost(self, reason: LossReason, note: str = "") -> None:
        if self.reason is None:
            self.note = note
            self.reason = reason

    def _expiry_reason(self, now: float) -> tuple[LossReason, str]:
        if self.held_until is not None and self.deadline > self.held_until - ROUNDING_SECONDS:
            return "max_hold", ""
        if self.trouble:
            return "unreachable", self.trouble
        asked = self.renewal_in_flight
        if asked is not None and now - self.signal_at < LATE_SECONDS and self.is_unanswered(self.signal_at):
            sent, engine = asked
            return "unreachable", f"{engine} has not answered for {now - sent:.1f} s"
        return "expired", ""

    def is_unanswered(self, now: float) -> bool:
        """Whether a renewal is under way that should have been answered by ``now``.

        One that was sent later, by a process that has just woken up, says nothing about the engine.
        """
        return self.renewal_in_flight is not None and now - self.renewal_in_flight[0] >= self.ttl * UNANSWERED

    def mark_expiring(self, now: float) -> None:
        """The deadline is so near that its holder must be told: from here on it is lost."""
        self.mark_lost(*self._expiry_reason(now))

    def remaining(self, now: float) -> float:
        if self.ended is not None or self.reason in ("stolen", "broken", "forked"):
            return 0.0
        return max(self.deadline - now, 0.0)

    @property
    def signal_at(self) -> float:
        return self.deadline - self.grace

    @property
    def warn_at(self) -> float:
        """By now a renewal should have been answered."""
        return self.deadline - max(self.grace, self.ttl * WARN_AHEAD if self.renews else 0.0)

    def lost_error(self) -> LockLost:
        reason: LossReason = self.reason or "expired"
        detail = LOSS_MESSAGES["ended" if reason == "expired" and not self.renews else reason]
        detail += f" ({printable(self.note)})" if self.note else ""
        error = LockLost(f"the {self.kind} {self.name!r} (token {self.token}) was lost: {detail}")
        error.name, error.token, error.reason = self.name, self.token, reason
        return error

    def end(self, how: str) -> None:
        """It ended on purpose."""
        self.ended = how
        if self.end_callbacks:
            self.call_end_callbacks()

    def call_end_callbacks(self) -> None:
        for tell in list(self.end_callbacks):
            tell()

    def take_loss_callbacks(self) -> list[Callable[[], object]]:
        """Those to be told now; each is handed out once, however often and from wherever this is called."""
        self.has_fired = True
        due = []
        while self.loss_callbacks:
            try:
                due.append(self.loss_callbacks.pop(0))
            except IndexError:
                break
        return due


@dataclass(slots=True)
class WaitRegistration:
    """One attempt in a queue, or one subscription."""

    name: str
    refresh_at: float
    refresh_in: float = REFRESH_SECONDS


@dataclass(slots=True)
class CleanupTask:
    """Something left to clean up: the keeper tries until it gets through or there is no point any more."""

    name: str
    request: Request
    nonce: str
    """Posted when done."""
    give_up_at: float
    due_at: float = 0.0
    attempts: int = 0
    unexpected_errors: int = 0
    """So often it ended with an error that nobody expected."""


@dataclass(slots=True)
class Hold:
    """A reentrant lock held by one thread or task."""

    state: LeaseState
    lease: weakref.ref[Any]
    depth: int = 1


@dataclass(slots=True)
class ClientState:
    """Everything one client has to remember."""

    client: str
    io_timeout: float
    linger: float
    """How long a copy of a request can be under way; 0 where requests cannot be delayed."""
    wake_timer: Callable[[TimerName], None]
    now: Callable[[], float]
    """What ``await Now()`` tells, without the way through the driver: for the path of every grant."""
    new_nonce: Callable[[], str]
    """What ``await Nonce()`` tells, likewise."""
    session_bound: bool = False
    """What is left behind does not expire with its ttl: cleaning up is never given up."""
    max_waiters: int = MAX_WAITERS
    """So many may wait for one name, of all clients; one more is turned away."""
    leases: dict[str, LeaseState] = field(default_factory=dict)
    waiting: dict[str, WaitRegistration] = field(default_factory=dict)
    cleanup_tasks: deque[CleanupTask] = field(default_factory=deque)
    cleanup_failures: int = 0
    """So many of them have failed since one was done."""
    holds: dict[tuple[str, weakref.ref[Any]], Hold] = field(default_factory=dict)
    """Reentrant locks by name and holder. A weak reference to a thread or task that is gone equals no other,
    so that a new one in its place never passes for it."""
    rwlock_holds: dict[tuple[str, weakref.ref[Any]], list[LeaseState]] = field(default_factory=dict)
    """Reader/writer locks by name and holder, likewise."""
    contended: dict[str, None] = field(default_factory=dict)
    """Names that were not to be had at once the last time: there one asks for a place in the queue first."""
    closed: bool = False
    """Nothing new is granted to this client."""
    closing: bool = False
    """The keeper and the timer are to end."""
    keeper_wakes_at: float = inf
    timer_wakes_at: float = inf
    keeper_horizon: float = inf
    """The soonest duty that arose since the keeper last looked, even if it is gone by now: waking for it
    once is cheaper than being rung at every grant."""
    timer_horizon: float = inf
    reports: Reports = field(default_factory=Reports)
    exits: tuple[type[BaseException], ...] = EXITS
    """What ends the keeper and the timer; any other error does not."""
    stopped_timers: set[TimerName] = field(default_factory=set)
    """The keeper or the timer ended unexpectedly and does not run again yet: nothing new is granted."""

    def check_timers_run(self) -> None:
        """Nothing is granted that nobody would renew, or of whose loss nobody would tell."""
        if self.stopped_timers:
            for timer in list(self.stopped_timers):
                self.wake_timer(timer)
            raise EngineUnavailable(
                f"the background work of this client on {self.reports.engine} stopped unexpectedly and is "
                "being started again, so nothing is acquired: try again in a moment, the log says why"
            )

    def mark_running(self, timer: TimerName) -> None:
        """The keeper or the timer has been round once."""
        if self.stopped_timers:
            self.stopped_timers.discard(timer)

    def mark_stopped(self, timer: TimerName) -> None:
        """It ended, though nobody asked it to: until it runs again, whatever comes rings."""
        self.stopped_timers.add(timer)
        if timer == "keeper":
            self.keeper_wakes_at = inf
        else:
            self.timer_wakes_at = inf

    def add(self, state: LeaseState) -> None:
        """A new grant: from here on it is kept and timed."""
        self.leases[state.nonce] = state
        due = state.renew_at
        if state.renews and due < self.keeper_wakes_at:
            if due < self.keeper_horizon:
                self.keeper_horizon = due
            self.wake_timer("keeper")
        due = state.warn_at
        if due < self.timer_wakes_at:
            if due < self.timer_horizon:
                self.timer_horizon = due
            self.wake_timer("timer")

    def drop(self, state: LeaseState) -> None:
        self.leases.pop(state.nonce, None)

    def retime(self, state: LeaseState) -> None:
        """Its times were changed from outside the keeper."""
        if state.nonce in self.leases:
            self.add(state)

    def wait(self, nonce: str, name: str, now: float) -> None:
        self.waiting[nonce] = WaitRegistration(name, now + REFRESH_SECONDS)
        if now + REFRESH_SECONDS < self.keeper_wakes_at:
            self.wake_timer("keeper")

    def refresh_every(self, nonce: str, seconds: float) -> None:
        """Say so often that it still waits; the engine would forget it sooner than usual."""
        waiting = self.waiting.get(nonce)
        if waiting is not None and seconds < waiting.refresh_in:
            waiting.refresh_at -= waiting.refresh_in - seconds
            waiting.refresh_in = seconds
            self.wake_timer("keeper")

    def mark_contended(self, name: str) -> None:
        if len(self.contended) >= CONTENDED_NAMES_MAX:
            self.contended.clear()
        self.contended[name] = None

    def queue_cleanup(self, task: CleanupTask) -> None:
        if self.session_bound:
            task.give_up_at = inf
        self.cleanup_tasks.append(task)
        self.wake_timer("keeper")

    def wake_background(self, nonce: str) -> bool:
        """Something happened to a lease of ours: let the keeper look at once."""
        state = self.leases.get(nonce)
        if state is None:
            return False
        state.renew_at = 0.0
        self.wake_timer("keeper")
        return True

    def forked(self) -> None:
        """This is the child of a fork: it owns nothing of what its parent holds."""
        for state in list(self.leases.values()):
            state.mark_lost("forked")
            state.ended = "forked"
            state.loss_callbacks.clear()
            state.end_callbacks.clear()
        self.leases.clear()
        self.waiting.clear()
        self.cleanup_tasks.clear()
        self.holds.clear()
        self.rwlock_holds.clear()
        self.keeper_wakes_at = self.timer_wakes_at = inf
