"""``holdfast once``: jobs that many servers fire and one runs; its arguments and its help."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import holdfast

from .exits import Status
from .options import JSON, NAMESPACE, URL, Argument, Command, Group, Misuse, Option, duration, number

if TYPE_CHECKING:
    from holdfast.model import Run

__all__ = ["GROUP", "LS", "RUN", "SHOW"]

EPILOG = """
"holdfast once NAME ..." is short for "holdfast once run NAME ...": write the
latter for a job that is called run, ls or show.

Examples (in the crontab of every server):
  0 * * * *  holdfast once invoices --every 1h -- ./send-invoices.sh
  0 3 * * *  holdfast once backup --every 1d --on-crash skip -- ./backup.sh

  holdfast once ls
  holdfast once show invoices
"""

RUN_EPILOG = """
Examples:
  holdfast once invoices --every 1h -- ./send-invoices.sh
  holdfast once report --every 1d --at-most 2h --at-least 10m -- ./report.sh
  holdfast once cleanup --every 1d --catch-up -- ./clean-up.sh

Options end at the first word of COMMAND, as with holdfast run.

The first run sets the schedule: the next firing is --every later, and so on.
Each firing runs once, by the first server that asks in its period (or up to a
tenth of a period early), and at least half a period after the run before it.
So clocks of servers may differ by less than half a period.

A run is stored as begun before COMMAND starts. If no end is stored, because
the server died, was cut off or ran into --at-most, the run has crashed:
"--on-crash rerun" repeats it at the next request (at least once), "--on-crash
skip" does not (at most once). A COMMAND that fails has run.

Exit status: that of the command, 128+N if signal N ended it; otherwise
    0  not this time: another server runs it, or it has run (-E changes it)
   64  usage error, or an operation that this engine does not support
   69  the engine cannot be reached or used; if COMMAND ran, its end could not
       be stored
   71  the system refused an operation (processes, memory, files)
   76  the lease was lost while the command ran, or --at-most was over
  126  the command cannot be executed
  127  the command was not found
128+N  signal N came before the command was started

The command gets what holdfast run gives to its command, and HOLDFAST_DUE (the
firing, in seconds since 1970) and HOLDFAST_MISSED (firings at which nothing
ran). It is supervised in the same way: if the lease is lost, all processes
that the command started are killed.
"""

LS_EPILOG = """
Examples:
  holdfast once ls
  holdfast once ls --json | jq -r '.[] | select(.missed > 0) | .name'

A job is listed for twice its period after its last run, but for no less than
30 days and no more than 366.
"""

SHOW_EPILOG = """
Examples:
  holdfast once show invoices
  holdfast once show invoices --json | jq .last.error

Exit status: 0, or 1 if the job has never run.
"""

NAME = Argument("name", "The name of the job.")
RUN_PARAMS = (
    NAME,
    Argument("command", "The command to run, with its options.", required=False, many=True, raw=True),
    Option(("-c", "--command-line"), "Run this text with a shell, instead of COMMAND.", metavar="TEXT"),
    Option(
        ("--every",),
        "The period: each firing runs once. Without it, the job runs whenever no other server runs it.",
        metavar="TIME",
        convert=duration,
    ),
    Option(
        ("--at-most",),
        "The longest time that one run may take. Then its lease is lost, and the command is ended.",
        metavar="TIME",
        convert=duration,
        shown_default="no limit",
    ),
    Option(
        ("--at-least",),
        "The least time from the start of one run to the start of the next.",
        metavar="TIME",
        convert=duration,
        default=0.0,
        shown_default="0s",
    ),
    Option(
        ("--on-crash",),
        "What to do about a run that began and did not end: repeat it (rerun), or not (skip).",
        metavar="WHAT",
        default="rerun",
    ),
    Option(("--catch-up",), "If firings were missed, run once, also between two firings."),
    Option(
        ("--ttl",),
        "How long a server that has vanished keeps the job. The lease is renewed while the command runs.",
        metavar="TIME",
        convert=duration,
        default=30.0,
        shown_default="30s",
    ),
    Option(
        ("-w", "--timeout", "--wait"),
        "The longest time to wait for a run of another server, before deciding whether to run.",
        metavar="TIME",
        convert=duration,
        default=0.0,
        shown_default="0s",
    ),
    Option(
        ("-E", "--skip-exit-code"),
        "The exit status if the command is not run this time.",
        metavar="N",
        convert=number(0, 255),
        default=Status.OK.value,
    ),
    Option(("--no-url",), "Do not pass HOLDFAST_URL, which may contain a password, to the command."),
    URL,
    NAMESPACE,
    Option(("-v", "--verbose"), "Report on standard error whether the command runs, and if not, why."),
)


def run(
    *,
    name: str,
    command: list[str],
    command_line: str | None,
    every: float | None,
    at_most: float | None,
    at_least: float,
    on_crash: str,
    catch_up: bool,
    ttl: float,
    timeout: float,
    skip_exit_code: int,
    no_url: bool,
    url: str | None,
    namespace: str,
    verbose: bool,
) -> int:
    """Run a command on one of many servers: once for each firing of a schedule.

    Every server starts the same line, for example by cron. One of them runs the command, the others do
    nothing. Durations are seconds, or written as 500ms, 90s, 5m, 1h30m, 2d.
    """
    if not hasattr(os, "fork"):
        raise Misuse("once needs a POSIX system")
    if command_line is not None and command:
        raise Misuse("give a COMMAND or -c, not both")
    if command_line is not None:
        command = [os.environ.get("SHELL") or "/bin/sh", "-c", command_line]
    if not command:
        raise Misuse("COMMAND is missing: write the command that one server is to run")

    from .wrapper import Plan
    from .wrapper_of_jobs import run_once

    plan = Plan(
        name=name,
        command=command,
        url=url,
        namespace=namespace,
        mode="exclusive",
        limit=None,
        ttl=ttl,
        timeout=timeout,
        blocking=True,
        grace=0.0,
        max_hold=at_most,
        status_if_not_granted=skip_exit_code,
        nested=False,
        passes_url=not no_url,
        verbose=verbose,
    )
    options = {"every": every, "at_least": at_least, "on_crash": on_crash, "catch_up": catch_up}
    return run_once(plan, options)


def ls(prefix: str | None, url: str | None, namespace: str, json: bool) -> None:
    """List jobs: their last runs, when they are due, and how many firings were missed."""
    from .output import print_json, print_lines, print_table

    with holdfast.connect(url, namespace=namespace) as client:
        found = [(name, client.job(name).last) for name in client.jobs(prefix or "")]
    if json:
        print_json([_as_json(name, last) for name, last in found])
        return
    if not found:
        print_lines("no job has run" + (f" with the prefix {prefix!r}" if prefix else ""))
        return
    rows = [(name, *_row(last)) for name, last in found]
    print_table("", ("name", "last run", "state", "took", "by", "next due", "missed"), rows)


def show(name: str, url: str | None, namespace: str, json: bool) -> int:
    """Show the last run of a job: when, who, how long, its result or error, and when it is due again."""
    from .output import print_json, print_lines, print_pairs

    with holdfast.connect(url, namespace=namespace) as client:
        last = client.job(name).last
    if json:
        print_json(_as_json(name, last))
    elif last is None:
        print_lines(f"the job {name!r} has never run")
    else:
        print_pairs(_pairs(name, last))
    return Status.NOTHING_DONE if last is None else Status.OK


def _as_json(name: str, last: Run | None) -> dict[str, Any]:
    """A stable document: fields are added, never renamed."""
    if last is None:
        return {"name": name, "last": None, "next_due": None, "missed": 0}
    run = {
        field: getattr(last, field)
        for field in ("started", "ended", "duration", "owner", "token", "state", "result", "error", "due")
    }
    return {
        "name": name,
        "last": run,
        "next_due": last.next_due,
        "missed": last.missed,
        "every": last.every,
        "at_least": last.at_least,
    }


def _row(last: Run | None) -> tuple[str, ...]:
    from .output import age

    if last is None:
        return ("never", "", "", "", "", "")
    took = "" if last.duration is None else age(last.duration)
    due = "" if last.next_due is None else _moment(last.next_due)
    return (_moment(last.started), last.state, took, last.owner, due, str(last.missed))


def _pairs(name: str, last: Run) -> dict[str, str]:
    import json

    from .output import age

    pairs = {"name": name, "last run": _moment(last.started), "state": last.state, "by": last.owner}
    if last.duration is not None:
        pairs["took"] = age(last.duration)
    if last.result is not None:
        pairs["result"] = json.dumps(last.result)
    if last.error is not None:
        pairs["error"] = last.error
    if last.every is not None:
        pairs["every"] = age(last.every)
    if last.next_due is not None:
        pairs["next due"] = _moment(last.next_due)
    return {**pairs, "missed firings": str(last.missed), "token": str(last.token)}


def _moment(seconds: float) -> str:
    """In local time, as in a log."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f}"


PREFIX = Argument("prefix", "List only jobs that begin with this prefix.", required=False)
RUN = Command(run, RUN_PARAMS, RUN_EPILOG)
LS = Command(ls, (PREFIX, URL, NAMESPACE, JSON), LS_EPILOG)
SHOW = Command(show, (NAME, URL, NAMESPACE, JSON), SHOW_EPILOG)
GROUP = Group(
    "Run a command on one of many servers, and see what ran.",
    {"run": "once:RUN", "ls": "once:LS", "show": "once:SHOW"},
    EPILOG,
    default="run",
)
