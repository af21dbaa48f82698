"""Running a command while leading: ``holdfast elect``, from one term to the next.

A term is run by the wrapper of ``holdfast run``, under the lease that the leader holds.
"""

from __future__ import annotations

import contextlib
import time

import holdfast
from holdfast import errors

from .child import Child
from .exits import Status, complain
from .nesting import find_around
from .signals import Inbox, Interrupted
from .wrapper import Holding, Plan

__all__ = ["run_elected"]

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Of the pauses after failures: each is twice as long as the one before."""

NEVER_AGAIN = frozenset({Status.NOT_EXECUTABLE.value, Status.NOT_FOUND.value})
"""Statuses of a command that cannot be started: it will not be, here, by trying again."""


def run_elected(plan: Plan, value: bytes, restart: str) -> int:
    """Campaign, run the command, resign, again and again; return the exit status."""
    child = Child.prepare(plan.command)  # Before the client is created: this forks, and a client has threads.
    try:
        with Inbox() as inbox:
            client = holdfast.connect(plan.url, namespace=plan.namespace)
            try:
                election = client.election(plan.name, value, ttl=plan.ttl, grace=plan.grace)
                if client.guarantees.scope == "process":
                    complain(f"{client.url} keeps elections within one process: no other can take part")
                with inbox.waiting():
                    around = find_around(client, election.lock_name)
                if around is not None:
                    raise errors.Deadlock(
                        f"{plan.name!r} is led by an enclosing run ({around.owner}, token {around.token}): "
                        "waiting for it would never end. Take another name"
                    )
                return Candidate(plan, value, restart, client, child, inbox).run()
            except Interrupted as interruption:
                plan.tell(f"{interruption}: no longer a candidate of {plan.name!r}")
                return Status.SIGNAL + interruption.signum
            finally:
                # The command has ended. A leadership that an unreachable engine still has will expire.
                with contextlib.suppress(errors.HoldfastError):
                    client.close()
    finally:
        child.close()


class Candidate:
    """This process as a candidate, through all its terms."""

    def __init__(
        self, plan: Plan, value: bytes, restart: str, client: holdfast.Client, child: Child, inbox: Inbox
    ) -> None:
        self._plan = plan
        self._value = value
        self._client = client
        self._child = child
        self._inbox = inbox
        self._restart = restart
        self._pause_seconds = PAUSE_SECONDS_MIN

    def run(self) -> int:
        while True:
            began = time.monotonic()
            status, was_lost = self._one_term()
            if self._inbox.stopped_by is not None or self._child.is_gone:
                return status
            if not self._is_to_be_started_again(status, was_lost):
                return status
            if time.monotonic() - began > PAUSE_SECONDS_MAX:
                self._pause_seconds = PAUSE_SECONDS_MIN
            if status == Status.OK:
                continue
            self._plan.tell(f"campaigning for {self._plan.name!r} again after {self._pause_seconds:g} s")
            with self._inbox.waiting():
                time.sleep(self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)

    def _is_to_be_started_again(self, status: int, was_lost: bool) -> bool:
        if self._restart == "never" or status in NEVER_AGAIN:
            return False
        return was_lost or self._restart == "always" or status != Status.OK

    def _one_term(self) -> tuple[int, bool]:
        """The exit status, and whether the leadership was lost. It is given up after the command's end."""
        plan, name, was_lost, status = self._plan, self._plan.name, False, int(Status.LOST)
        election = self._client.election(name, self._value, ttl=plan.ttl, grace=plan.grace)
        try:
            with contextlib.ExitStack() as term:
                with self._inbox.waiting():
                    leadership = term.enter_context(election.campaign())
                stopped_by = self._inbox.stopped_by
                if stopped_by is not None:
                    # The signal came while the grant was on its way; the command was not started.
                    return Status.SIGNAL + stopped_by, False
                plan.tell(f"elected for {name!r}, term {leadership.token}")
                holding = Holding(plan, leadership.lease, self._child, self._inbox)
                status = holding.run_command(plan.url or self._client.url)
                was_lost = holding.lost
        except errors.LockLost:
            was_lost = True
        finally:
            self._inbox.leave_job_control()
        if was_lost:
            complain(f"the leadership of {name!r} was lost; the command ended with status {status}")
            return Status.LOST, True
        plan.tell(f"resigned from {name!r}; the command ended with status {status}")
        return status, False
