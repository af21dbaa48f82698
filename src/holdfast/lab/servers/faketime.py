"""A clock of its own for one server, set while it runs, by ``libfaketime``.

Only the wall clock is faked: a clock that is set does not move timers. Go programs such as etcd do not take
their time from the C library, so this does nothing to them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .errors import ProgramMissing

__all__ = ["FakeClock"]

LIBRARY_FOLDERS: Final = ("/usr/lib", "/usr/local/lib")
LIBRARY: Final = "*/faketime/libfaketime.so.1"


class FakeClock:
    """The file that says how far off the clock is, and the environment that makes a program read it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set_offset(0.0)

    def set_offset(self, seconds: float) -> None:
        """From now on the program's clock is so many seconds ahead of the machine's, or behind it."""
        # Written beside and moved: the program reads the file at every look at the clock.
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+.6f}\n")
        os.replace(written, self._file)

    def environment(self) -> Mapping[str, str]:
        return {
            # libc again, after it: Redis' own allocator crashes without.
            "LD_PRELOAD": f"{_library()} libc.so.6",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }


def _library() -> Path:
    for folder in LIBRARY_FOLDERS:
        for found in sorted(Path(folder).glob(LIBRARY)):
            return found
    raise ProgramMissing("libfaketime", "faketime")
