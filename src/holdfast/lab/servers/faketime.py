"""A separate wall clock for one server, set while it runs, by ``libfaketime``.

Only the wall clock is faked: setting a clock does not move timers. Go programs such as etcd do not read the
time through the C library, so this has no effect on them.
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
    """The file with the offset of the clock, and the environment that makes a program read it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set_offset(0.0)

    def set_offset(self, seconds: float) -> None:
        """Set the program's clock this many seconds ahead of the machine's clock, or behind it."""
        # Written beside and renamed: the program reads the file whenever it reads the clock.
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+.6f}\n")
        os.replace(written, self._file)

    def environment(self) -> Mapping[str, str]:
        return {
            # libc again, after it: the allocator of Redis crashes otherwise.
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
