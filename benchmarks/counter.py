"""A number in shared memory that only a working lock keeps right: read, compute, write, with no atomicity."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType

__all__ = ["Counter"]

_NUMBER = struct.Struct("q")


class Counter:
    """Opened by every process that takes the lock. Increments made without exclusion get lost."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            if path.stat().st_size < _NUMBER.size:
                file.truncate(_NUMBER.size)
            self._memory = mmap.mmap(file.fileno(), _NUMBER.size)

    @property
    def value(self) -> int:
        number: int = _NUMBER.unpack_from(self._memory)[0]
        return number

    @value.setter
    def value(self, number: int) -> None:
        _NUMBER.pack_into(self._memory, 0, number)

    def __enter__(self) -> Counter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()
