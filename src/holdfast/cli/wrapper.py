"""Running a command while holding a lock: ``holdfast run`` from the wait to the release.

This is the wrapper: it handles the lock, the signals and the terminal. The supervisor handles the command.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import holdfast
from holdfast import errors

from .child import Child
from .exits import Status, complain
from .nesting import Held, environment_of, find_around, replace_by
from .signals import STOPS_WAITING, Inbox, Interrupted
from .terminal import Terminal, stop_ourselves
from .waiting import WaitNotice, holders_text

__all__ = ["Holding", "Plan", "run_under_lock", "tell_scope"]

LONGEST_LOOK_SECONDS = 5.0
SHORTEST_LOOK_SECONDS = 0.02
MODES = {"lock": {"exclusive"}, "rwlock": {"read", "write"}, "semaphore": {"permit"}}
OPTIONS_OF_KIND = {
    "lock": "without --shared, --write and --limit",
    "rwlock": "with --shared or --write",
    "semaphore": "with --limit",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line."""

    name: str
    command: Sequence[str]
    url: str | None
    namespace: str
    mode: str
    """``exclusive``, ``read``, ``write`` or ``permit``."""
    limit: int | None
    ttl: float
    timeout: float | None
    blocking: bool
    grace: float
    max_hold: float | None
    status_if_not_granted: int
    nested: bool
    """Run under the lease of an enclosing run, if there is one."""
    passes_url: bool
    verbose: bool
    what: str = "lock"
    """What it holds, in messages."""

    def lock(self, client: holdfast.Client) -> holdfast.Lock:
        """The lock to take; a semaphore and each side of a reader/writer lock are locks too."""
        settings: dict[str, Any] = {
            "ttl": self.ttl,
            "timeout": self.timeout,
            "grace": self.grace,
            "max_hold": self.max_hold,
            # Only the name of the command: its arguments may contain secrets, and other users may inspect a
            # lock.
            "metadata": {"command": _as_text(os.path.basename(self.command[0]))},
        }
        match self.mode:
            case "read":
                return client.rwlock(self.name, **settings).read()
            case "write":
                return client.rwlock(self.name, **settings).write()
            case "permit":
                return client.semaphore(self.name, self.limit or 0, **settings)
            case _:
                return client.lock(self.name, **settings)

    def tell(self, message: str) -> None:
        if self.verbose:
            complain(message)


def run_under_lock(plan: Plan) -> int:
    """Wait for the lock, run the command, release; return the exit status."""
    child = Child.prepare(plan.command)  # Before the client is created: this forks, and a client has threads.
    try:
        with Inbox() as inbox:
            client = holdfast.connect(plan.url, namespace=plan.namespace)
            try:
                with inbox.waiting():
                    around = find_around(client, plan.name)
                if around is None:
                    return _run(plan, client, child, inbox)
                if not plan.nested:
                    raise errors.Deadlock(_refusal(plan, around))
            except Interrupted as interruption:
                plan.tell(f"{interruption}: no longer waiting for {plan.name!r}")
                return Status.SIGNAL + interruption.signum
            finally:
                # The command has run. A lock that an unreachable engine still has will expire.
                with contextlib.suppress(errors.HoldfastError):
                    client.close()
    finally:
        child.close()
    plan.tell(f"runs under the lease of {around.owner} on {plan.name!r}, token {around.token}")
    url = {"HOLDFAST_URL": plan.url or client.url} if plan.passes_url else {}
    return replace_by(plan.command, {**_inherited(plan), **around.environment(plan.namespace), **url})


def _run(plan: Plan, client: holdfast.Client, child: Child, inbox: Inbox) -> int:
    began = time.monotonic()
    with inbox.waiting():
        lock = plan.lock(client)
        tell_scope(plan, client)
        try:
            with WaitNotice(client, plan.name, plan.blocking and (plan.verbose or _at_a_terminal())):
                lease = lock.acquire(blocking=plan.blocking)
        except errors.InvalidArgument as error:
            raise errors.InvalidArgument(f"{error}{_advice(plan, client)}") from error
    if lease is None:
        _tell_why_not(plan, client)
        return plan.status_if_not_granted
    granted = time.monotonic()
    plan.tell(f"granted {plan.name!r} with token {lease.token} after {granted - began:.3f} s")
    stopped_by = next((signum for signum in inbox.take() if signum in STOPS_WAITING), None)
    if stopped_by is not None:
        # The signal came while the grant was on its way; the command was not started.
        _release(plan, lease)
        return Status.SIGNAL + stopped_by
    holding = Holding(plan, lease, child, inbox)
    status = holding.run_command(plan.url or client.url)
    released = _release(plan, lease)
    held = f"{time.monotonic() - granted:.3f} s"
    if released is False or holding.lost:
        complain(f"the lock {plan.name!r} was lost; the command ended with status {status}, after {held}")
        return Status.LOST
    if released:
        plan.tell(f"released {plan.name!r} after {held}")
    return status


class Holding:
    """The time between grant and release, in one loop over signals, the supervisor and the lease."""

    def __init__(
        self,
        plan: Plan,
        lease: holdfast.Lease,
        child: Child,
        inbox: Inbox,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._plan = plan
        self._lease = lease
        self._child = child
        self._inbox = inbox
        self._environment = environment or {}
        self._terminal = Terminal.controlling()
        self._wants_terminal = False
        self._status: int | None = None
        self._has_reported_loss = False
        self.lost = False

    def run_command(self, url: str) -> int:
        """Start the command and wait for its end. Returns its exit status, as a shell reports it."""
        self._lease.on_lost(self._on_lost)
        self._inbox.handle_job_control()
        self._wants_terminal = self._terminal is not None and self._terminal.to_be_lent_at_once()
        environment = {
            **_inherited(self._plan),
            **environment_of(self._lease, self._lease.name, self._plan.namespace),
            "HOLDFAST_NAME": self._plan.name,
            **self._environment,
            **({"HOLDFAST_URL": url} if self._plan.passes_url else {}),
        }
        self._child.start(environment, self._lease.remaining, self._wants_terminal)
        try:
            return self._see_to_its_end()
        finally:
            if self._terminal is not None:
                self._terminal.take_back()
                self._terminal.close()

    def _on_lost(self, _: holdfast.Lease) -> None:
        self.lost = True
        self._inbox.nudge()

    def _see_to_its_end(self) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            selector.register(self._child, selectors.EVENT_READ)
            while self._status is None:
                ready = {key.fileobj for key, _ in selector.select(self._pass_on_remaining_time())}
                for signum in self._inbox.take():
                    self._on_signal(signum)
                if self._child in ready:
                    for message in self._child.receive():
                        self._on_report(*message)
                if self._status is None:
                    self._pass_on_loss()
        return self._status

    def _pass_on_remaining_time(self) -> float:
        """Send the deadline of the lease to the supervisor. Returns when to do so again.

        The closer the deadline, the more often, so that a late renewal still reaches the supervisor.
        """
        remaining = self._lease.remaining
        self._child.allow(remaining)
        return max(SHORTEST_LOOK_SECONDS, min(remaining / 4, self._plan.ttl / 10, LONGEST_LOOK_SECONDS))

    def _pass_on_loss(self) -> None:
        self.lost = self.lost or self._lease.lost
        if self.lost and not self._has_reported_loss:
            self._has_reported_loss = True
            what = f"{self._plan.what} {self._plan.name!r}"
            complain(f"lost the {what} ({_why_lost(self._lease)}): ending the command")
            self._child.lost()

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGCONT:
            self._continue()
        else:
            self._child.signal(signum)

    def _on_report(self, kind: str, *details: int) -> None:
        match kind:
            case "started":
                if self._wants_terminal and self._terminal is not None:
                    self._terminal.note_lent(details[0])
            case "stopped":
                self._on_stopped(details[0])
            case "ended":
                status = os.waitstatus_to_exitcode(details[0])
                self._status = status if status >= 0 else Status.SIGNAL - status
            case "failed":
                command = self._plan.command[0]
                complain(f"cannot run {command!r}: {os.strerror(details[0])}")
                self._status = Status.NOT_FOUND if details[0] == errno.ENOENT else Status.NOT_EXECUTABLE
            case "late":
                self.lost = True
                self._status = Status.LOST

    def _on_stopped(self, signum: int) -> None:
        """The command was stopped: give it the terminal if it needs it, otherwise stop with it.

        A command that was stopped by SIGSTOP, or without a terminal, was stopped on purpose and will be
        continued: the wrapper keeps the lock.
        """
        if self._terminal is None or signum == signal.SIGSTOP:
            return
        if signum in {signal.SIGTTIN, signal.SIGTTOU}:
            self._wants_terminal = True
            if self._terminal.in_front():
                self._continue()
                return
        self._terminal.take_back()
        stop_ourselves(signum)
        self._continue()

    def _continue(self) -> None:
        if self._lease.remaining <= 0:
            return  # The supervisor kills it. It must not run any further.
        terminal, group = self._terminal, self._child.group
        if terminal is not None and group is not None and self._wants_terminal and terminal.in_front():
            terminal.lend(group)
        self._child.signal(signal.SIGCONT)


def _release(plan: Plan, lease: holdfast.Lease) -> bool | None:
    """Release the lock; False: it had been lost, None: the engine does not say.

    A release that fails is not a failure of the command.
    """
    try:
        lease.release()
    except (errors.LockLost, errors.NotHeld):
        return False
    except errors.HoldfastError as error:
        complain(f"could not release {plan.name!r}, which will expire within {plan.ttl:g} s: {error}")
        return None
    return True


def _why_lost(lease: holdfast.Lease) -> str:
    try:
        lease.check()
    except errors.LockLost as error:
        return error.reason
    return "not renewed in time"


def _advice(plan: Plan, client: holdfast.Client) -> str:
    """Which options take a name that is another kind of lock than requested; empty if it is not."""
    kind = client.inspect(plan.name).kind
    if kind is None or plan.mode in MODES[kind]:
        return ""
    return f" ({plan.name!r} is a {kind}: take it {OPTIONS_OF_KIND[kind]})"


def tell_scope(plan: Plan, client: holdfast.Client) -> None:
    promised = client.guarantees
    if promised.scope == "process":
        complain(f"{client.url} keeps locks within one process: this run excludes no other")
    if plan.verbose:
        complain(f"{client.url}: engine {promised.engine}, scope {promised.scope}")
        for need in promised.needs:
            complain(f"needs: {need}")


def _tell_why_not(plan: Plan, client: holdfast.Client) -> None:
    """Print one line, unless the exit status for a lock that is not granted is 0 and --verbose is not
    given."""
    if plan.status_if_not_granted == Status.OK and not plan.verbose:
        return
    within = f" within {plan.timeout:g} s" if plan.timeout else ""
    known = holders_text(client, plan.name)
    complain(f"{plan.name!r} was not granted{within}" + (f": {known}" if known else ""))


def _refusal(plan: Plan, around: Held) -> str:
    return (
        f"{plan.name!r} is held by an enclosing run ({around.owner}, token {around.token}): waiting for it "
        "would never end. Take another name, or run under the same lease with --nested"
    )


def _inherited(plan: Plan) -> dict[str, str]:
    """The environment for the command. With --no-url it has no URL, wherever the URL came from."""
    return {key: value for key, value in os.environ.items() if plan.passes_url or key != "HOLDFAST_URL"}


def _as_text(file_name: str) -> str:
    """A file name may be any bytes. Those that are not UTF-8 are escaped."""
    return os.fsencode(file_name).decode("utf-8", "backslashreplace")


def _at_a_terminal() -> bool:
    with contextlib.suppress(OSError):
        return os.isatty(2)
    return False
