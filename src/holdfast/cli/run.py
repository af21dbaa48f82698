"""``holdfast run``: its arguments, and the help that teaches it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from .exits import Status
from .options import DEFAULT_NAMESPACE, Name, Namespace, Url, duration

__all__ = ["EPILOG", "run"]

EPILOG = """\b
Examples:
  holdfast run nightly-report -- ./report.sh --full
  holdfast run deploy --timeout 5m --grace 10s -- make deploy

\b
  From cron, skipping it when one still runs:
  holdfast run -n -E 0 nightly-report -- ./report.sh

\b
  Readers together, the writer alone:
  holdfast run catalogue --shared -- ./export.sh
  holdfast run catalogue --write -- ./rebuild.sh

\b
  Three at a time:
  holdfast run transcode --limit 3 -- ffmpeg -i in.mov out.mp4

\b
Exit status: the command's own, 128+N when signal N ended it; otherwise
   64  usage, or something that this engine cannot do
   69  the engine cannot be reached or used
   75  not granted in time (-E changes it); the command did not run
   76  the lock was lost while the command ran
  126  the command cannot be executed
  127  the command was not found
128+N  signal N came while waiting; nothing is left in the queue

The command gets HOLDFAST_NAME, HOLDFAST_TOKEN (the fencing token of this
grant), HOLDFAST_URL and HOLDFAST_NAMESPACE, and a process group of its own.
SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and
SIGCONT are passed on to that group. A terminal is lent to it while it runs.

When the lock cannot be renewed, the group gets SIGTERM --grace before the
lease ends, and everything the command started gets SIGKILL when it ends. The
lock of a suspended run (Ctrl-Z) lasts no longer than its TTL.

When holdfast itself is killed, the command is killed with all it started.
Out of reach are programs that run as another user (sudo, setuid) and, on
other systems than Linux, processes that left the process group. What the
command leaves running when it ends is not waited for. Where a late write must
be impossible, have a guard check HOLDFAST_TOKEN.
"""

Command = Annotated[
    list[str],
    typer.Argument(metavar="COMMAND", help="What to run; write -- before it.", show_default=False),
]
Ttl = Annotated[
    float,
    typer.Option(
        parser=duration,
        metavar="SECONDS",
        help="How long the lock outlives a holder that has vanished. It is renewed while the command runs.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(parser=duration, metavar="SECONDS", help="Wait this long at most.", show_default="for ever"),
]
NonBlocking = Annotated[bool, typer.Option("-n", "--nonblock", help="Do not wait: same as --timeout 0.")]
Shared = Annotated[
    bool, typer.Option("--shared", help="The read side of a reader/writer lock: together with other readers.")
]
Write = Annotated[
    bool, typer.Option("--write", help="The write side of a reader/writer lock, against --shared.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="A semaphore: up to N at a time. All must say the same N.",
        show_default=False,
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        parser=duration,
        metavar="SECONDS",
        help="If the lock is being lost: SIGTERM this long before the lease ends, SIGKILL when it ends.",
    ),
]
MaxHold = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        metavar="SECONDS",
        help="Give the lock up after this long, so that a hung command cannot hold it for ever.",
        show_default="no limit",
    ),
]
ConflictStatus = Annotated[
    int,
    typer.Option(
        "-E", "--conflict-exit-code", min=0, max=255, metavar="N", help="Exit status when not granted."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Say on standard error the engine, its scope, the grant, the end."),
]


def run(
    name: Name,
    command: Command,
    ttl: Ttl = 30.0,
    timeout: Timeout = None,
    nonblock: NonBlocking = False,
    shared: Shared = False,
    write: Write = False,
    limit: Limit = None,
    grace: Grace = 0.0,
    max_hold: MaxHold = None,
    conflict_exit_code: ConflictStatus = Status.NOT_GRANTED.value,
    url: Url = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    verbose: Verbose = False,
) -> int:
    """Run a command while holding a lock, like flock(1), over any engine.

    A name is one kind of lock: plain, reader/writer (--shared and --write) or semaphore (--limit).
    Durations are seconds, or written as 500ms, 10s, 5m, 2h, 1d.
    """
    if not hasattr(os, "fork"):
        raise typer.BadParameter("needs a POSIX system", param_hint="'run'")
    chosen = [("read", shared), ("write", write), ("permit", limit is not None)]
    modes = [mode for mode, wanted in chosen if wanted]
    if len(modes) > 1:
        raise typer.BadParameter("choose one of --shared, --write and --limit", param_hint="'run'")
    if nonblock and timeout is not None:
        raise typer.BadParameter("choose one of -n and --timeout", param_hint="'run'")

    from .wrapper import Plan, run_under_lock

    return run_under_lock(
        Plan(
            name=name,
            command=command,
            url=url,
            namespace=namespace,
            mode=modes[0] if modes else "exclusive",
            limit=limit,
            ttl=ttl,
            timeout=timeout,
            blocking=not nonblock,
            grace=grace,
            max_hold=max_hold,
            status_if_not_granted=conflict_exit_code,
            verbose=verbose,
        )
    )
