"""SIGTERM and SIGINT end a worker gracefully, and nobody else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["stopping_at_signals"]


@contextlib.contextmanager
def stopping_at_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at each of them, in the main thread. Elsewhere signals are left alone.

    A process that a job forks inherits the handlers. What is sent to it is its own: it does as it would
    without a worker, or it could not be terminated. An event loop's handlers (``add_signal_handler``) share a
    pipe with such a child, so that its signals would arrive here: they are not used.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            stop()
            return
        _restore(number)
        os.kill(os.getpid(), number)

    def _restore(number: int) -> None:
        handler = before[number]
        signal.signal(number, signal.SIG_DFL if handler is None else handler)

    before = {int(number): signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in before:
            _restore(number)
