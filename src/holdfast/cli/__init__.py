"""The entry point of the command ``holdfast``, and nothing else.

It exists apart from the commands so that a machine without the extra ``cli``, which tables need, gets one
clear line instead of a traceback. ``holdfast run`` needs no extra.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

__all__ = ["main"]

EXIT_UNAVAILABLE = 69  # sysexits.h: "a support program or file does not exist"
GARBAGE_THRESHOLD = 50_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status. ``arguments`` default to those of the process."""
    if arguments is not None:
        return _run(arguments)
    # Most of a short command is imports, which leave no garbage: look for it less often, and not at the end.
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()


def _run(arguments: Sequence[str]) -> int:
    from .app import run_command_line

    try:
        return run_command_line(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "holdfast":
            raise
        print("holdfast: tables need: pip install 'holdfast[cli]'", file=sys.stderr)
        return EXIT_UNAVAILABLE
