"""SIGTERM and SIGINT stop a worker gracefully, and do not affect other processes."""

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
    """Call ``stop`` at each of these signals. Outside the main thread this does nothing.

    A process that a job forks inherits the handlers. There they restore the handlers from before and send the
    signal again, so that the child can be terminated. ``loop.add_signal_handler`` is not used: a forked child
    shares the pipe of the event loop, so a signal to the child would reach the worker.
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
