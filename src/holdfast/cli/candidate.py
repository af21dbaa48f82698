"""Running a command while leading: ``holdfast elect``, from one term to the next.

A term is run by the wrapper of ``holdfast run``, under the lease that the leader holds.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import NamedTuple

import holdfast
from holdfast import errors

from .child import Child
from .exits import Status, complain
from .nesting import find_around
from .signals import STOPS_WAITING, Inbox, Interrupted
from .wrapper import Holding, Plan

__all__ = ["run_elected"]

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Of the pauses after failures: each is twice as long as the one before. After success only a command that
ended at once is paused for, by the shortest."""

NEVER_AGAIN = frozenset({Status.NOT_EXECUTABLE.value, Status.NOT_FOUND.value})
"""Statuses of a command that cannot be started: it will not be, here, by trying again."""


ENDS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""After one of these the command is not started again, whatever it made of it. SIGHUP may mean "read your
settings again": it ends the candidate if the command dies of it."""


def run_elected(plan: Plan, value: bytes, restart: str) -> int:
    """Campaign, run the command, resign, again and again; return the exit status."""
    child = Child.prepare(plan.command)  # Before the client is created: this forks, and a client has threads.
    try:
        with Inbox() as inbox:
            client = holdfast.connect(plan.url, namespace=plan.namespace)
            try:
                candidate = Candidate(plan, value, restart, client, child, inbox)
                if client.guarantees.scope == "process":
                    complain(f"{client.url} keeps elections within one process: no other can take part")
                with inbox.waiting():
                    around = find_around(client, candidate.lock_name)
                if around is not None:
                    raise errors.Deadlock(
                        f"{plan.name!r} is led by an enclosing run ({around.owner}, token {around.token}): "
                        "waiting for it would never end. Take another name"
                    )
                return candidate.run()
            except Interrupted as interruption:
                plan.tell(f"{interruption}: no longer a candidate of {plan.name!r}")
                return Status.SIGNAL + interruption.signum
            finally:
                # The command has ended. A leadership that an unreachable engine still has will expire.
                with contextlib.suppress(errors.HoldfastError):
                    client.close()
    finally:
        child.close()


class Term(NamedTuple):
    """How a term ended."""

    status: int
    was_lost: bool
    seconds: float


class Candidate:
    """This process as a candidate, through all its terms."""

    def __init__(
        self, plan: Plan, value: bytes, restart: str, client: holdfast.Client, child: Child, inbox: Inbox
    ) -> None:
        self._plan = plan
        self._client = client
        self._election = client.election(plan.name, value, ttl=plan.ttl, grace=plan.grace)
        self._child = child
        self._inbox = inbox
        self._restart = restart
        self._pause_seconds = PAUSE_SECONDS_MIN

    @property
    def lock_name(self) -> str:
        return self._election.lock_name

    def run(self) -> int:
        with self._inbox.waiting():
            # An engine that cannot be reached at the start is an error. Later on it is waited for.
            self._election.leader()
        while True:
            try:
                term = self._one_term()
            except errors.EngineUnavailable as error:
                complain(f"{error}; campaigning again for {self._plan.name!r}")
            else:
                if not self._is_to_be_started_again(term):
                    return term.status
                if term.seconds > PAUSE_SECONDS_MAX:
                    self._pause_seconds = PAUSE_SECONDS_MIN
                if term.status == Status.OK:
                    if term.seconds < PAUSE_SECONDS_MIN:
                        self._pause(PAUSE_SECONDS_MIN)
                    continue
            self._pause(self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)

    def _pause(self, seconds: float) -> None:
        self._plan.tell(f"campaigning for {self._plan.name!r} again after {seconds:g} s")
        with self._inbox.waiting():
            self._stop_if_signalled()
            time.sleep(seconds)

    def _is_to_be_started_again(self, term: Term) -> bool:
        seen = self._inbox.seen
        if seen & ENDS or (signal.SIGHUP in seen and term.status == Status.SIGNAL + signal.SIGHUP):
            return False
        if self._child.is_gone or self._restart == "never" or term.status in NEVER_AGAIN:
            return False
        return term.was_lost or self._restart == "always" or term.status != Status.OK

    def _stop_if_signalled(self) -> None:
        """A signal may have come while none could interrupt."""
        signum = next((signum for signum in self._inbox.take() if signum in STOPS_WAITING), None)
        if signum is not None:
            raise Interrupted(signum)

    def _one_term(self) -> Term:
        """Lead once, and run the command meanwhile. The leadership is given up after the command's end."""
        plan, name, status, was_lost, began = self._plan, self._plan.name, int(Status.LOST), False, 0.0
        try:
            with contextlib.ExitStack() as stack:
                with self._inbox.waiting():
                    self._stop_if_signalled()
                    leadership = stack.enter_context(self._election.campaign())
                self._stop_if_signalled()
                plan.tell(f"elected for {name!r}, term {leadership.token}")
                began = time.monotonic()
                holding = Holding(plan, leadership.lease, self._child, self._inbox)
                status = holding.run_command(plan.url or self._client.url)
                was_lost = holding.lost
        except errors.LockLost:
            was_lost = True
        finally:
            self._inbox.leave_job_control()
        seconds = time.monotonic() - began
        if was_lost:
            complain(f"the leadership of {name!r} was lost; the command ended with status {status}")
            return Term(Status.LOST, True, seconds)
        plan.tell(f"resigned from {name!r}; the command ended with status {status}")
        return Term(status, False, seconds)
