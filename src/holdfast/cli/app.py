"""The table of commands, and the message and exit status of every error."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Sequence

import holdfast
from holdfast import errors

from .exits import Status, complain, status_of, write_error
from .options import Group, Misuse
from .output import OutputFailed, print_text, repair_streams
from .parser import HelpWanted, parse, resolve
from .redaction import learn

__all__ = ["ROOT", "run_command_line"]

EPILOG = """
Examples:
  holdfast run backup -- ./backup.sh
  holdfast run deploy --url redis://localhost/0 --timeout 30s -- make deploy
  holdfast ls

HOLDFAST_URL chooses the engine for every command, HOLDFAST_NAMESPACE the
namespace. Durations are seconds, or written as 500ms, 90s, 5m, 1h30m, 2d.
Exit status: 0 done, 64 usage error, 69 engine unavailable, 71 system error,
74 output not written. "holdfast run --help" lists the other statuses of run.
"""

ROOT = Group(
    "Distributed locks you can trust: run commands under a lock, see who holds which lock.",
    {
        "run": "run:COMMAND",
        "elect": "elect:COMMAND",
        "leader": "leader:COMMAND",
        "once": "once:GROUP",
        "ls": "ls:COMMAND",
        "show": "show:COMMAND",
        "watch": "watch:COMMAND",
        "deadlocks": "deadlocks:COMMAND",
        "break": "break_:COMMAND",
        "advise": "advise:COMMAND",
        "guarantees": "guarantees:COMMAND",
        "doctor": "doctor:COMMAND",
        "init": "init:COMMAND",
        "demo": "demo.command:COMMAND",
        "completion": "completion:COMMAND",
        "group": "group:GROUP",
        "fence": "fence:GROUP",
        "queue": "queue:GROUP",
        "redlock": "redlock:GROUP",
    },
    EPILOG,
)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command and return the exit status."""
    repair_streams()
    learn([*arguments, os.environ.get("HOLDFAST_URL", "")])
    _say_warnings()
    try:
        return _run(arguments)
    except OutputFailed as error:
        if error.errno == errno.EPIPE:
            _end_by_closed_pipe()
        complain(f"cannot write to standard output: {error}")
        return Status.OUTPUT
    except errors.HoldfastError as error:
        complain(str(error))
        return status_of(error)
    except KeyboardInterrupt:
        return Status.SIGNAL + signal.SIGINT
    except ModuleNotFoundError:
        raise  # A missing extra: the caller reports it.
    except OSError as error:
        if error.errno is None:
            return _tell_internal_error()
        place = f": {error.filename}" if error.filename is not None else ""
        complain(f"{error.strerror}{place}")
        return Status.SYSTEM
    except Exception:  # noqa: BLE001 - the last resort, so that no secret gets out in a traceback
        return _tell_internal_error()


def _run(arguments: Sequence[str]) -> int:
    path = ["holdfast"]
    try:
        if arguments and arguments[0] == "--version":
            print_text(f"holdfast {holdfast.__version__}\n")
            return Status.OK
        command, words = resolve(ROOT, arguments, path)
        if isinstance(command, Group):
            from .help import help_of

            if words and words[0] in {"-h", "--help"}:
                print_text(help_of(command, path))
                return Status.OK
            if words:
                option = words[0].partition("=")[0]
                raise Misuse(
                    f"there is no option {option} before the command: write options after the command"
                )
            write_error(help_of(command, path))
            return Status.USAGE
        try:
            values = parse(command, words)
        except HelpWanted:
            from .help import help_of

            print_text(help_of(command, path))
            return Status.OK
        status = command.handler(**values)
    except Misuse as error:
        complain(str(error))
        complain(f"try: {' '.join(path)} --help")
        return Status.USAGE
    return Status.OK if status is None else status


def _tell_internal_error() -> int:
    import traceback

    complain(f"internal error\n{traceback.format_exc()}")
    return Status.INTERNAL


def _end_by_closed_pipe() -> None:
    """End by SIGPIPE, which Python ignores, as other programs do."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)


class Complaints(logging.Handler):
    """Prints the library's warnings as other messages are printed."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def _say_warnings() -> None:
    logger = logging.getLogger("holdfast")
    if not logger.hasHandlers():
        logger.addHandler(Complaints(logging.WARNING))
