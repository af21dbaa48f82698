"""The entry point of the command ``holdfast``, and nothing else.

It exists apart from the commands so that a machine without the extra ``cli`` gets one clear line
instead of a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

EXIT_UNAVAILABLE = 69  # sysexits.h: "a support program or file does not exist"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status. ``arguments`` default to those of the process."""
    try:
        from .app import run_command_line
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "holdfast":
            raise
        print("holdfast: the command line needs: pip install 'holdfast[cli]'", file=sys.stderr)
        return EXIT_UNAVAILABLE
    return run_command_line(sys.argv[1:] if arguments is None else arguments)
