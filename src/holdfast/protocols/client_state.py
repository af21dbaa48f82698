"""The state of one client: the leases it holds, the names it waits for, and the clean-up it still owes.

Plain data with a few derived values. Times are readings of the local clock, passed in. Threads share one
``ClientState``: every method relies on single dict, list and attribute operations, which are atomic.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol

from ..core.arguments import MAX_WAITERS
from ..core.deadlines import RENEW_AFTER
from ..core.effects import TimerName
from ..core.printable import printable
from ..errors import EngineUnavailable, LockLost, LossReason
from ..model import Kind, Mode
from ..rules.record import REFRESH_SECONDS
from ..rules.requests import Request
from .reports import Reports

__all__ = ["EXITS", "CleanupTask", "ClientState", "HasCallbacks", "Hold", "LeaseState", "WaitRegistration"]

CONTENDED_NAMES_MAX: Final = 1000

ROUNDING_SECONDS: Final = 1e-6
"""Two times this close are the same time, computed from two clocks."""

LATE_SECONDS: Final = 1.0
"""A running process reports a loss within this time after it is due; a later report means it was paused."""

UNANSWERED: Final = 0.1
"""A renewal that has been in flight for this fraction of the ttl counts as unanswered."""

WARN_AHEAD: Final = 1 / 3
"""An unanswered renewal is reported when this fraction of the ttl is left."""

EXITS: Final[tuple[type[BaseException], ...]] = (KeyboardInterrupt, SystemExit, GeneratorExit)

LOSS_MESSAGES: Final[Mapping[str, str]] = {
    "ended": "its ttl ran out, and renew=False",
    "expired": "it was not renewed in time (this process was paused, or its event loop was blocked)",
    "stolen": "another client holds it now",
    "unreachable": "the engine could not be reached to renew it in time",
    "broken": "it was broken",
    "max_hold": "it was held for as long as max_hold allows",
    "together": "a lock that was acquired together with it was lost",
    "forked": "it belongs to the parent process: after fork() the child owns nothing",
}


class HasCallbacks(Protocol):
    """What a driver reports the loss of: one grant, or several that are held as one."""

    loss_callbacks: list[Callable[[], object]]

    def call_end_callbacks(self) -> None: ...

    def take_loss_callbacks(self) -> list[Callable[[], object]]: ...


class LeaseState:
    """One grant as its holder sees it: whether it may still be relied on is computed from the clock."""

    __slots__ = (
        "__weakref__",
        "caller",
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
        """How the lease ended on purpose: released, downgraded, exported, dropped, forked."""
        self.ended_by: weakref.ref[Any] | None = None
        """The thread or task that called ``lease.release()``, where that is known."""
        self.is_releasing = False
        """A release is in flight: a renewal that finds the lease gone, or the deadline, is then no loss."""
        self.release_outcome_unknown = False
        """An earlier release may have been applied: a later one that finds the lease gone is then no loss."""
        self.successor: LeaseState | None = None
        self.caller: weakref.ref[Any] | None = None
        """The thread or task that acquired it, where that is known."""
        self.trouble = ""
        """Why the last renewal failed, and on which engine; empty: it succeeded."""
        self.renewal_in_flight: tuple[float, str] | None = None
        """When the renewal in flight was sent, and to which engine."""
        self.uncertain = False
        """A request of this attempt may still be in flight."""
        self.is_loss_reported = False
        self.has_fired = False
        self.loss_callbacks: list[Callable[[], object]] = []
        """Called at the loss, on a thread or task of their own: the user's callbacks."""
        self.end_callbacks: list[Callable[[], None]] = []
        """Called at once at the loss or the end, and must not block."""

    def complete(self, token: int, later: float) -> None:
        """Complete a lease prepared before its grant, which came ``later`` seconds later than assumed."""
        self.token = token
        self.renew_at += later
        self.deadline += later

    def __repr__(self) -> str:
        return f"<LeaseState {self.name!r} token={self.token} ended={self.ended} reason={self.reason}>"

    def extend(self, deadline: float, now: float) -> None:
        """A renewal succeeded. It never revives a lost lease: loss is final once a caller has seen it."""
        if self.held_until is not None and deadline > self.held_until:
            deadline = self.held_until
        if now < self.deadline and deadline > self.deadline and self.reason is None:
            self.deadline = deadline

    def loss(self, now: float) -> LossReason | None:
        """Why the lease can no longer be relied on; None: it can. Final once returned."""
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
        """Whether a renewal is in flight that should have been answered by ``now``.

        A renewal that a process sent just after it resumed says nothing about the engine.
        """
        return self.renewal_in_flight is not None and now - self.renewal_in_flight[0] >= self.ttl * UNANSWERED

    def mark_expiring(self, now: float) -> None:
        """The grace period has begun: from here on the lease counts as lost."""
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
        """When a renewal that is still unanswered is reported."""
        return self.deadline - max(self.grace, self.ttl * WARN_AHEAD if self.renews else 0.0)

    def lost_error(self) -> LockLost:
        reason: LossReason = self.reason or "expired"
        detail = LOSS_MESSAGES["ended" if reason == "expired" and not self.renews else reason]
        detail += f" ({printable(self.note)})" if self.note else ""
        error = LockLost(f"the {self.kind} {self.name!r} (token {self.token}) was lost: {detail}")
        error.name, error.token, error.reason = self.name, self.token, reason
        return error

    def end(self, how: str) -> None:
        """The lease ended on purpose."""
        self.ended = how
        if self.end_callbacks:
            self.call_end_callbacks()

    def call_end_callbacks(self) -> None:
        for tell in list(self.end_callbacks):
            tell()

    def take_loss_callbacks(self) -> list[Callable[[], object]]:
        """The callbacks to call now. Each is returned once, however often and by whichever thread."""
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
    """A clean-up request that the keeper repeats until it succeeds or until ``give_up_at``."""

    name: str
    request: Request
    nonce: str
    """The nonce that is notified when the task is done."""
    give_up_at: float
    due_at: float = 0.0
    attempts: int = 0
    unexpected_errors: int = 0
    """How often the request raised an error that no engine should raise."""


@dataclass(slots=True)
class Hold:
    """A reentrant lock that one thread or task holds."""

    state: LeaseState
    lease: weakref.ref[Any]
    depth: int = 1


@dataclass(slots=True)
class ClientState:
    """Everything one client remembers."""

    client: str
    io_timeout: float
    linger: float
    """How long a copy of a request can stay in flight; 0 where requests cannot be delayed."""
    wake_timer: Callable[[TimerName], None]
    now: Callable[[], float]
    """The result of ``await Now()`` as a plain call, for the path of every grant."""
    new_nonce: Callable[[], str]
    """The result of ``await Nonce()``, likewise."""
    session_bound: bool = False
    """What is left in the engine does not expire with its ttl, so the keeper never gives up a clean-up."""
    max_waiters: int = MAX_WAITERS
    """How many waiters of all clients one name may have; a further one is refused."""
    leases: dict[str, LeaseState] = field(default_factory=dict)
    waiting: dict[str, WaitRegistration] = field(default_factory=dict)
    published_waits: int = 0
    """How many long waits are published, for the search for deadlocks."""
    cleanup_tasks: deque[CleanupTask] = field(default_factory=deque)
    cleanup_failures: int = 0
    """How many clean-up tasks have failed since the last one succeeded."""
    holds: dict[tuple[str, weakref.ref[Any]], Hold] = field(default_factory=dict)
    """Reentrant locks by name and holder. A weak reference to a thread or task that has ended equals no
    other, so a new thread with the same id is never taken for the holder."""
    rwlock_holds: dict[tuple[str, weakref.ref[Any]], list[LeaseState]] = field(default_factory=dict)
    """Reader/writer locks by name and holder, likewise."""
    contended: dict[str, None] = field(default_factory=dict)
    """Names that were not free at the last attempt: the next attempt asks for a place in the queue first."""
    closed: bool = False
    """Nothing new is granted to this client."""
    closing: bool = False
    """The keeper and the timer have to end."""
    keeper_wakes_at: float = inf
    timer_wakes_at: float = inf
    keeper_horizon: float = inf
    """The earliest duty that arose since the keeper's last round, even if it is gone by now: one needless
    wake-up is cheaper than one at every grant."""
    timer_horizon: float = inf
    reports: Reports = field(default_factory=Reports)
    exits: tuple[type[BaseException], ...] = EXITS
    """The errors that end the keeper and the timer; no other error does."""
    stopped_timers: set[TimerName] = field(default_factory=set)
    """Those that ended unexpectedly and do not run again yet: meanwhile nothing is granted."""

    def check_timers_run(self) -> None:
        """Refuse to grant a lease that no keeper would renew, or whose loss no timer would report."""
        if self.stopped_timers:
            for timer in list(self.stopped_timers):
                self.wake_timer(timer)
            raise EngineUnavailable(
                f"the background work of this client on {self.reports.engine} stopped unexpectedly and is "
                "being started again, so nothing is acquired: try again in a moment, the log says why"
            )

    def mark_running(self, timer: TimerName) -> None:
        """The keeper or the timer has completed a round."""
        if self.stopped_timers:
            self.stopped_timers.discard(timer)

    def mark_stopped(self, timer: TimerName) -> None:
        """The keeper or the timer ended unexpectedly: until it runs again, every new duty wakes it."""
        self.stopped_timers.add(timer)
        if timer == "keeper":
            self.keeper_wakes_at = inf
        else:
            self.timer_wakes_at = inf

    def add(self, state: LeaseState) -> None:
        """A new grant: from here on the keeper renews it and the timer watches its deadline."""
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
        """The lease's times were changed outside the keeper."""
        if state.nonce in self.leases:
            self.add(state)

    def wait(self, nonce: str, name: str, now: float) -> None:
        self.waiting[nonce] = WaitRegistration(name, now + REFRESH_SECONDS)
        if now + REFRESH_SECONDS < self.keeper_wakes_at:
            self.wake_timer("keeper")

    def refresh_every(self, nonce: str, seconds: float) -> None:
        """Refresh a waiter's place this often, because its engine forgets waiters sooner than others do."""
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
        """Something happened to a lease of this client: have the keeper check it at once."""
        state = self.leases.get(nonce)
        if state is None:
            return False
        state.renew_at = 0.0
        self.wake_timer("keeper")
        return True

    def forked(self) -> None:
        """Called in the child of a fork, which owns nothing of what its parent holds."""
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
