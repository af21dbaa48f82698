"""Real signals as Ctrl-C, at a chosen moment."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["interrupted_after"]


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """SIGALRM as Ctrl-C, after so long. In the main thread only."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        # The handler stays until the timer is off: a signal that comes now must not kill the test.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
