"""A thread that hears for itself, as one does that waits for a lock."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.engine_api import NotificationReader
from support import wait_until

__all__ = ["Hearer", "is_polling"]

LONG_SECONDS = 60.0


def is_polling(thread: threading.Thread) -> bool:
    """Whether it waits for descriptors, as the kernel sees it."""
    place = Path(f"/proc/self/task/{thread.native_id}/wchan").read_text(encoding="ascii")
    return "poll" in place


class Hearer(threading.Thread):
    """Hears until the block ends; in the block it waits already."""

    def __init__(self, hearing: NotificationReader, seconds: float = LONG_SECONDS) -> None:
        super().__init__(name="hearer")
        self._hearing = hearing
        self._seconds = seconds
        self._ends = False
        self.took = False

    def run(self) -> None:
        self.took = self._hearing.try_acquire()
        while self.took and not self._ends:
            self._hearing.read(self._seconds)
        self._hearing.release()

    def __enter__(self) -> Self:
        self.start()
        wait_until(lambda: self.took and is_polling(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends = True
        while self.is_alive():
            self._hearing.interrupt()
            self.join(0.1)
