"""Exit statuses, which error has which, and how a complaint reaches the person at the terminal.

The numbers are those of sysexits.h where it has one, and the shell's own for a command that could
not be started. Everything written to standard error goes through ``complain``, which removes secrets and
what could steer a terminal.
"""

from __future__ import annotations

import contextlib
import enum
import sys

from holdfast import errors

from .redaction import scrub
from .text import printable_lines

__all__ = ["Status", "complain", "status_of"]


class Status(enum.IntEnum):
    """What ``holdfast`` itself exits with; ``run`` passes on the command's own status otherwise."""

    OK = 0
    NOTHING_DONE = 1
    """``break`` found nobody to take the lock from; ``doctor`` found problems."""
    USAGE = 64
    UNAVAILABLE = 69
    INTERNAL = 70
    SYSTEM = 71
    """The operating system refused something; the message has its name."""
    OUTPUT = 74
    """Standard output could not be written."""
    NOT_GRANTED = 75
    LOST = 76
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    SIGNAL = 128
    """Added to the number of the signal that ended it."""


STATUS_OF_ERRORS: tuple[tuple[type[errors.HoldfastError], Status], ...] = (
    (errors.InvalidArgument, Status.USAGE),
    (errors.Unsupported, Status.USAGE),
    (errors.EngineUnavailable, Status.UNAVAILABLE),
    (errors.LockTimeout, Status.NOT_GRANTED),
    (errors.LockLost, Status.LOST),
    (errors.Deadlock, Status.USAGE),
)


def status_of(error: errors.HoldfastError) -> Status:
    """The exit status that tells a script what went wrong."""
    return next((status for kind, status in STATUS_OF_ERRORS if isinstance(error, kind)), Status.INTERNAL)


def complain(message: str) -> None:
    """Write one message to standard error. A closed standard error is no reason to fail."""
    # ValueError: the stream was closed; OSError: nobody reads it any more.
    with contextlib.suppress(OSError, ValueError):
        print(f"holdfast: {printable_lines(scrub(message))}", file=sys.stderr, flush=True)
