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
        give_back()
        raise KeyboardInterrupt

    def give_back() -> None:
        """To whoever had the timer: a test that hangs from here on is ended by its time limit."""
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)

    left = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        # The handler stays until the timer is off: a signal that comes now must not kill the test.
        signal.setitimer(signal.ITIMER_REAL, 0)
        give_back()
