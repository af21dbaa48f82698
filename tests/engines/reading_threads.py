"""A thread that reads notifications itself, as a waiter does."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.engine_api import NotificationReader
from support import wait_until

__all__ = ["ReadingThread", "is_polling"]

LONG_SECONDS = 60.0


def is_polling(thread: threading.Thread) -> bool:
    """Whether it waits for descriptors, as the kernel sees it."""
    place = Path(f"/proc/self/task/{thread.native_id}/wchan").read_text(encoding="ascii")
    return "poll" in place


class ReadingThread(threading.Thread):
    """Reads until the block ends; within the block it waits already."""

    def __init__(self, reader: NotificationReader, seconds: float = LONG_SECONDS) -> None:
        super().__init__(name="reading_thread")
        self._reader = reader
        self._seconds = seconds
        self._ends = False
        self.took = False

    def run(self) -> None:
        self.took = self._reader.try_acquire()
        while self.took and not self._ends:
            self._reader.read(self._seconds)
        self._reader.release()

    def __enter__(self) -> Self:
        self.start()
        wait_until(lambda: self.took and is_polling(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends = True
        while self.is_alive():
            self._reader.interrupt()
            self.join(0.1)
