"""Real signals as Ctrl-C, at a chosen moment."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

__all__ = ["interrupted_after"]

AGAIN_SECONDS = 0.001


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """SIGALRM as Ctrl-C, after so long. In the main thread only.

    Python throws away what is raised while something is being finalised, an interrupt too: it is then sent
    again, as a person would who sees nothing happen.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        give_back()
        raise KeyboardInterrupt

    def thrown_away(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            take(AGAIN_SECONDS)
        else:
            told_to(unraisable)

    def take(seconds: float) -> None:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def give_back() -> None:
        """Gives the timer back: a test that hangs from here on is ended by its time limit."""
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)

    left = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.getsignal(signal.SIGALRM)
    told_to, sys.unraisablehook = sys.unraisablehook, thrown_away
    try:
        take(seconds)
        yield
    finally:
        try:
            # The handler stays until the timer is off: a signal that comes now must not kill the test.
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            sys.unraisablehook = told_to
            give_back()
