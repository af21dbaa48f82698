"""``holdfast run``: its arguments, and the help that teaches it."""

from __future__ import annotations

import os

from .exits import Status
from .options import NAME, NAMESPACE, URL, Argument, Command, Misuse, Option, duration, number

__all__ = ["COMMAND", "run"]

EPILOG = """
Examples:
  holdfast run nightly-report ./report.sh --full
  holdfast run deploy --timeout 5m --grace 10s -- make deploy
  holdfast run backup -c 'pg_dump app | zstd > app.zst'

  From cron, skipping it when one still runs:
  holdfast run -n -E 0 nightly-report ./report.sh

  Readers together, the writer alone:
  holdfast run catalogue --shared ./export.sh
  holdfast run catalogue --write ./rebuild.sh

  Three at a time:
  holdfast run transcode --limit 3 ffmpeg -i in.mov out.mp4

Options end at the first word of COMMAND, as with flock(1), env(1) and
timeout(1): what follows is the command's own. Writing -- before it is allowed,
and needed where it begins with a dash.

Exit status: the command's own, 128+N when signal N ended it; otherwise
   64  usage, or something that this engine cannot do
   69  the engine cannot be reached or used
   71  the system refused something (processes, memory, files)
   75  not granted in time (-E changes it); the command did not run
   76  the lock was lost while the command ran
  126  the command cannot be executed
  127  the command was not found
128+N  signal N came while waiting; nothing is left in the queue

One line on standard error says who held a lock that was not granted, unless
-E 0 says that this is as good as success. At a terminal, waiting for longer
than a second says for whom.

The command gets HOLDFAST_NAME, HOLDFAST_TOKEN (the fencing token of this
grant), HOLDFAST_FENCE (the whole grant as text, which guards accept),
HOLDFAST_URL and HOLDFAST_NAMESPACE, and a process group of its own. The URL
may hold a password, and reaches everything the command starts: --no-url keeps
it back. HOLDFAST_HELD is for other runs below this one: taking a lock that a
run around this one holds would wait for ever, and is refused; --nested runs
the command under the lease that is there.

SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and
SIGCONT are passed on to that group. A terminal is lent to it while it runs.

When the lock cannot be renewed, the group gets SIGTERM --grace before the
lease ends, and everything the command started gets SIGKILL when it ends. The
lock of a suspended run (Ctrl-Z) lasts no longer than its TTL.

When holdfast itself is killed, the command is killed with all it started.
Out of reach are programs that run as another user (sudo, setuid) and, on
other systems than Linux, processes that left the process group. What the
command leaves running when it ends is not waited for. Where a late write must
be impossible, have a guard check HOLDFAST_FENCE.
"""

PARAMS = (
    NAME,
    Argument("command", "What to run, with its own options.", required=False, many=True, raw=True),
    Option(("-c", "--command-line"), "Have a shell run this, in place of COMMAND.", metavar="TEXT"),
    Option(
        ("--ttl",),
        "How long the lock outlives a holder that has vanished. It is renewed while the command runs.",
        metavar="TIME",
        convert=duration,
        default=30.0,
        shown_default="30s",
    ),
    Option(
        ("-w", "--timeout", "--wait"),
        "Wait this long at most.",
        metavar="TIME",
        convert=duration,
        shown_default="for ever",
    ),
    Option(("-n", "--nonblock"), "Do not wait: same as --timeout 0."),
    Option(("-s", "--shared"), "The read side of a reader/writer lock: together with other readers."),
    Option(("-x", "--write", "--exclusive"), "The write side of a reader/writer lock, against --shared."),
    Option(
        ("--limit",),
        "A semaphore: up to N at a time. All must say the same N.",
        metavar="N",
        convert=number(1),
    ),
    Option(
        ("--grace",),
        "If the lock is being lost: SIGTERM this long before the lease ends, SIGKILL when it ends.",
        metavar="TIME",
        convert=duration,
        default=0.0,
        shown_default="0s",
    ),
    Option(
        ("--max-hold",),
        "Give the lock up after this long, so that a hung command cannot hold it for ever.",
        metavar="TIME",
        convert=duration,
        shown_default="no limit",
    ),
    Option(
        ("-E", "--conflict-exit-code"),
        "Exit status when not granted.",
        metavar="N",
        convert=number(0, 255),
        default=Status.NOT_GRANTED.value,
    ),
    Option(("--nested",), "If a run around this one holds NAME: run under its lease, without a new lock."),
    Option(("--no-url",), "Keep HOLDFAST_URL, which may hold a password, from the command."),
    URL,
    NAMESPACE,
    Option(("-v", "--verbose"), "Say on standard error the engine, its scope, the grant, the end."),
)


def run(
    *,
    name: str,
    command: list[str],
    command_line: str | None,
    ttl: float,
    timeout: float | None,
    nonblock: bool,
    shared: bool,
    write: bool,
    limit: int | None,
    grace: float,
    max_hold: float | None,
    conflict_exit_code: int,
    nested: bool,
    no_url: bool,
    url: str | None,
    namespace: str,
    verbose: bool,
) -> int:
    """Run a command while holding a lock, like flock(1), over any engine.

    A name is one kind of lock: plain, reader/writer (--shared and --write) or semaphore (--limit).
    Durations are seconds, or written as 500ms, 90s, 5m, 1h30m, 2d.
    """
    if not hasattr(os, "fork"):
        raise Misuse("run needs a POSIX system")
    chosen = [("read", shared), ("write", write), ("permit", limit is not None)]
    modes = [mode for mode, wanted in chosen if wanted]
    if len(modes) > 1:
        raise Misuse("choose one of --shared, --write and --limit")
    if nonblock and timeout is not None:
        raise Misuse("choose one of -n and --timeout")
    if command_line is not None and command:
        raise Misuse("give a COMMAND or -c, not both")
    if command_line is not None:
        command = [os.environ.get("SHELL") or "/bin/sh", "-c", command_line]
    if not command:
        raise Misuse("COMMAND is missing: what is to run under the lock?")

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
            nested=nested,
            passes_url=not no_url,
            verbose=verbose,
        )
    )


COMMAND = Command(run, PARAMS, EPILOG)
