"""Running a command as a job: ``holdfast once`` from the decision to the stored end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import holdfast
from holdfast import errors

from .child import Child
from .exits import Status, complain
from .signals import STOPS_WAITING, Inbox, Interrupted
from .wrapper import Holding, Plan, tell_scope

__all__ = ["run_once"]


class CommandFailed(Exception):
    """The command's exit status, which is stored as the error of the run."""


class CommandStopped(BaseException):
    """A signal to this program ended the command: the run is stored as crashed."""


def run_once(plan: Plan, options: Mapping[str, Any]) -> int:
    """Decide, run the command, store its end; return the exit status."""
    child = Child.prepare(plan.command)  # Before the client is created: this forks, and a client has threads.
    try:
        with Inbox() as inbox:
            client = holdfast.connect(plan.url, namespace=plan.namespace)
            try:
                return _run(plan, options, client, child, inbox)
            except Interrupted as interruption:
                plan.tell(f"{interruption}: {plan.name!r} is not run")
                return Status.SIGNAL + interruption.signum
            finally:
                # The command has run. A lock that an unreachable engine still has will expire.
                with contextlib.suppress(errors.HoldfastError):
                    client.close()
    finally:
        child.close()


def _run(plan: Plan, options: Mapping[str, Any], client: holdfast.Client, child: Child, inbox: Inbox) -> int:
    job = client.job(plan.name, at_most=plan.max_hold, ttl=plan.ttl, timeout=plan.timeout, **options)
    tell_scope(plan, client)
    status: int | None = None
    try:
        with contextlib.ExitStack() as stack:
            with inbox.waiting():
                run = stack.enter_context(job)
            if run is None:
                if job.skipped is not None:
                    plan.tell(f"{plan.name!r} is not run: {job.skipped.reason}: {job.skipped.detail}")
                return plan.status_if_not_granted
            stopped_by = next((signum for signum in inbox.take() if signum in STOPS_WAITING), None)
            if stopped_by is not None:
                raise Interrupted(stopped_by)
            plan.tell(f"runs {plan.name!r} with token {run.token}")
            due = {"HOLDFAST_DUE": f"{run.due:.6f}", "HOLDFAST_MISSED": str(run.missed)}
            status = Holding(plan, run.lease, child, inbox, due).run_command(plan.url or client.url)
            run.set_result({"status": status})
            _raise_unless_it_succeeded(status, run.lost, inbox)
    except (CommandFailed, CommandStopped) as ended:
        for note in getattr(ended, "__notes__", ()):
            complain(note.removeprefix("holdfast: "))
    except errors.LockLost as lost:
        complain(f"the job {plan.name!r}: {lost}; the command ended with status {status}")
        return Status.LOST
    return Status.OK if status is None else status


def _raise_unless_it_succeeded(status: int, lost: bool, inbox: Inbox) -> None:
    if status == Status.OK or lost:
        return  # the end of the job reports the loss
    message = f"the command ended with status {status}"
    raise CommandStopped(message) if inbox.was_stopped else CommandFailed(message)
