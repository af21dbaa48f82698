"""``holdfast elect``: its arguments and its help."""

from __future__ import annotations

import os

from .options import NAMESPACE, URL, Argument, Command, Misuse, Option, duration

__all__ = ["COMMAND", "elect"]

RESTARTS = ("always", "on-failure", "never")

EPILOG = """
Examples:
  holdfast elect scheduler -- ./scheduler
  holdfast elect database --value "$(hostname):5432" --ttl 10s -- ./primary
  holdfast elect import --restart on-failure ./import.sh

Start it on every machine: the command runs on one of them at a time. If its
machine or its holdfast dies, the command is started on another one, within the
TTL (at once, with the embedded engine). "holdfast leader NAME" shows where.

Options end at the first word of COMMAND. Write -- before a command that begins
with a dash; it is allowed before any command.

When the command ends, and is to be started again, the leadership goes to the
next candidate first, so that a machine on which the command fails does not keep
it. After a failure this candidate pauses before it campaigns again: half a
second at first, then twice as long each time, up to 30 s. --restart always (the
default) starts it again in any case, on-failure only unless its exit status is
0, and never not at all. A command that was ended because the leadership was
lost is started again except with never. SIGINT, SIGQUIT and SIGTERM are passed
on to the command, which is not started again after that; nor is it after a
SIGHUP that it dies of. An engine that cannot be reached is an error at the
start; later on, the candidate campaigns again until it can.

If the leadership cannot be renewed, the process group gets SIGTERM --grace
before the lease ends, and all processes that it started get SIGKILL when it
ends. The leadership is given up only after the command has ended. "holdfast run
--help" says what becomes of signals, of the terminal, of processes that the
command leaves behind, and of the command if holdfast itself is killed.

The command gets HOLDFAST_NAME, HOLDFAST_TOKEN (the number of the term, which is
its fencing token), HOLDFAST_FENCE, HOLDFAST_URL, HOLDFAST_NAMESPACE and
HOLDFAST_HELD.

Exit status: that of the command, 128+N if signal N ended it; otherwise
   64  usage error, or an operation that this engine does not support
   69  the engine cannot be reached or used
   71  the system refused an operation (processes, memory, files)
   76  the leadership was lost while the command ran, with --restart never
  126  the command cannot be executed
  127  the command was not found
128+N  signal N came while waiting; nothing is left in the queue
"""


def restart_policy(text: str) -> str:
    if text not in RESTARTS:
        raise Misuse(f"--restart is always, on-failure or never, not {text!r}")
    return text


PARAMS = (
    Argument("name", "The name of the election."),
    Argument("command", "The command to run, with its options.", many=True, raw=True),
    Option(
        ("--value",),
        "What the leader proclaims, for example its address.",
        metavar="TEXT",
        default="",
        shown_default="nothing",
    ),
    Option(
        ("--restart",),
        "When to run the command again after its end: always, on-failure or never.",
        metavar="WHEN",
        convert=restart_policy,
        default="always",
        shown_default="always",
    ),
    Option(
        ("--ttl",),
        "How long the leadership lasts after its leader has vanished.",
        metavar="TIME",
        convert=duration,
        default=30.0,
        shown_default="30s",
    ),
    Option(
        ("--grace",),
        "If the leadership is being lost, send SIGTERM this long before the lease ends, and SIGKILL when it "
        "ends.",
        metavar="TIME",
        convert=duration,
        default=0.0,
        shown_default="0s",
    ),
    Option(("--no-url",), "Do not pass HOLDFAST_URL, which may contain a password, to the command."),
    URL,
    NAMESPACE,
    Option(("-v", "--verbose"), "Print the beginning and the end of each term on standard error."),
)


def elect(
    *,
    name: str,
    command: list[str],
    value: str,
    restart: str,
    ttl: float,
    grace: float,
    no_url: bool,
    url: str | None,
    namespace: str,
    verbose: bool,
) -> int:
    """Keep exactly one instance of a command running, on one of many machines.

    Durations are seconds, or written as 500ms, 90s, 5m, 1h30m, 2d.
    """
    if not hasattr(os, "fork"):
        raise Misuse("elect needs a POSIX system")
    if not command:
        raise Misuse("COMMAND is missing: write the command to run while leading")

    from .candidate import run_elected
    from .wrapper import Plan

    return run_elected(
        Plan(
            name=name,
            command=command,
            url=url,
            namespace=namespace,
            mode="exclusive",
            limit=None,
            ttl=ttl,
            timeout=None,
            blocking=True,
            grace=grace,
            max_hold=None,
            status_if_not_granted=0,
            nested=False,
            passes_url=not no_url,
            verbose=verbose,
            what="leadership",
        ),
        os.fsencode(value),
        restart,
    )


COMMAND = Command(elect, PARAMS, EPILOG)
