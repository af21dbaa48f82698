"""``holdfast run``: its arguments and its help."""

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

  From cron, skipping a run while another one still runs:
  holdfast run -n -E 0 nightly-report ./report.sh

  Readers at the same time, the writer alone:
  holdfast run catalogue --shared ./export.sh
  holdfast run catalogue --write ./rebuild.sh

  Three at a time:
  holdfast run transcode --limit 3 ffmpeg -i in.mov out.mp4

Options end at the first word of COMMAND, as with flock(1), env(1) and
timeout(1): all later words belong to the command. Write -- before a command
that begins with a dash; it is allowed before any command.

Exit status: that of the command, 128+N if signal N ended it; otherwise
   64  usage error, or an operation that this engine does not support
   69  the engine cannot be reached or used
   71  the system refused an operation (processes, memory, files)
   75  not granted in time (-E changes it); the command did not run
   76  the lock was lost while the command ran
  126  the command cannot be executed
  127  the command was not found
128+N  signal N came while waiting; nothing is left in the queue

If the lock is not granted, one line on standard error names the holder. With
-E 0, which makes this a success, there is no such line. At a terminal, run
names the holder after it has waited for a second.

The command gets HOLDFAST_NAME, HOLDFAST_TOKEN (the fencing token of this
grant), HOLDFAST_FENCE (the whole grant as text, which guards accept),
HOLDFAST_URL and HOLDFAST_NAMESPACE, and its own process group. The URL may
contain a password, and all processes that the command starts inherit it:
--no-url removes it. HOLDFAST_HELD is for runs inside this run. A run that
takes a lock of an enclosing run would wait for ever, so it is refused; with
--nested it runs its command under the lease of the enclosing run.

SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and
SIGCONT are passed on to that process group. At a terminal, the command is in
the foreground while it runs.

If the lock cannot be renewed, the process group gets SIGTERM --grace before
the lease ends. When the lease ends, all processes that the command started get
SIGKILL. The lock of a suspended run (Ctrl-Z) lasts no longer than its TTL.

If holdfast itself is killed, the command and all processes that it started are
killed. This does not reach programs that run as another user (sudo, setuid)
nor, on systems other than Linux, processes that left the process group. When
the command ends, run does not wait for processes that the command left running.
If a late write must be impossible, let a guard check HOLDFAST_FENCE.
"""

PARAMS = (
    NAME,
    Argument("command", "The command to run, with its options.", required=False, many=True, raw=True),
    Option(("-c", "--command-line"), "Run this text with a shell, instead of COMMAND.", metavar="TEXT"),
    Option(
        ("--ttl",),
        "How long the lock lasts after its holder has vanished. It is renewed while the command runs.",
        metavar="TIME",
        convert=duration,
        default=30.0,
        shown_default="30s",
    ),
    Option(
        ("-w", "--timeout", "--wait"),
        "The longest time to wait for the lock.",
        metavar="TIME",
        convert=duration,
        shown_default="for ever",
    ),
    Option(("-n", "--nonblock"), "Do not wait: the same as --timeout 0."),
    Option(("-s", "--shared"), "Take the read side of a reader/writer lock, which readers share."),
    Option(
        ("-x", "--write", "--exclusive"),
        "Take the write side of a reader/writer lock, which excludes --shared.",
    ),
    Option(
        ("--limit",),
        "Take a permit of a semaphore: up to N holders at a time. All runs must give the same N.",
        metavar="N",
        convert=number(1),
    ),
    Option(
        ("--grace",),
        "If the lock is being lost, send SIGTERM this long before the lease ends, and SIGKILL when it ends.",
        metavar="TIME",
        convert=duration,
        default=0.0,
        shown_default="0s",
    ),
    Option(
        ("--max-hold",),
        "Release the lock after this long, so that a hung command cannot hold it for ever.",
        metavar="TIME",
        convert=duration,
        shown_default="no limit",
    ),
    Option(
        ("-E", "--conflict-exit-code"),
        "The exit status if the lock is not granted.",
        metavar="N",
        convert=number(0, 255),
        default=Status.NOT_GRANTED.value,
    ),
    Option(("--nested",), "If an enclosing run holds NAME, run under its lease, without a new lock."),
    Option(("--no-url",), "Do not pass HOLDFAST_URL, which may contain a password, to the command."),
    URL,
    NAMESPACE,
    Option(("-v", "--verbose"), "Print the engine, its scope, the grant and the end on standard error."),
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
        raise Misuse("COMMAND is missing: write the command to run under the lock")

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
