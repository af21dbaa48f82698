"""Exit statuses, the status of each error, and messages on standard error.

The numbers are those of sysexits.h, and those of shells for a command that could not be started. Everything
written to standard error goes through ``complain``, which removes secrets and terminal control characters.
"""

from __future__ import annotations

import enum
import sys

from holdfast import errors

from .redaction import scrub
from .text import printable_lines

__all__ = ["Status", "complain", "status_of", "write_error"]


class Status(enum.IntEnum):
    """The exit statuses of ``holdfast`` itself. Otherwise ``run`` returns the status of the command."""

    OK = 0
    NOTHING_DONE = 1
    """``break`` found no holder; ``doctor`` found problems."""
    USAGE = 64
    UNAVAILABLE = 69
    INTERNAL = 70
    SYSTEM = 71
    """The operating system refused an operation, which the message names."""
    OUTPUT = 74
    """Standard output could not be written."""
    NOT_GRANTED = 75
    LOST = 76
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    SIGNAL = 128
    """The number of the signal that ended the process is added to this."""


STATUS_OF_ERRORS: tuple[tuple[type[errors.HoldfastError], Status], ...] = (
    (errors.InvalidArgument, Status.USAGE),
    (errors.Unsupported, Status.USAGE),
    (errors.EngineUnavailable, Status.UNAVAILABLE),
    (errors.LockTimeout, Status.NOT_GRANTED),
    (errors.LockLost, Status.LOST),
    (errors.Deadlock, Status.USAGE),
)


def status_of(error: errors.HoldfastError) -> Status:
    """The exit status of an error."""
    return next((status for kind, status in STATUS_OF_ERRORS if isinstance(error, kind)), Status.INTERNAL)


def complain(message: str) -> None:
    """Write one message to standard error."""
    write_error(f"holdfast: {printable_lines(scrub(message))}\n")


def write_error(text: str) -> None:
    """Write text unchanged to standard error. One that is closed or full is not a failure."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except ValueError:
        pass  # The stream object was closed.
    except OSError:
        # The text stays in the buffer. When the interpreter ends it would try again, and then exit with
        # status 120, whatever the status of the command is. A new stream has an empty buffer.
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 - it stays open as long as the process
