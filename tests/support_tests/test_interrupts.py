"""Interrupts come, even where Python throws one away, and the timer is whose it was."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

import pytest

from support import interrupted_after

WAIT_SECONDS = 60.0


class Interrupted:
    """Is finalised until an interrupt comes."""

    def __init__(self, came: list[bool]) -> None:
        self.came = came

    def __del__(self) -> None:
        try:
            threading.Event().wait(WAIT_SECONDS)
        finally:
            self.came.append(sys.exc_info()[0] is KeyboardInterrupt)


def test_an_interrupt_that_is_thrown_away_comes_again() -> None:
    hook = sys.unraisablehook
    came: list[bool] = []

    def wait() -> None:
        Interrupted(came)
        threading.Event().wait(WAIT_SECONDS)

    with pytest.raises(KeyboardInterrupt), interrupted_after(0.01):
        wait()
    assert came == [True]
    assert sys.unraisablehook is hook


def test_the_timer_is_restored_to_its_owner() -> None:
    """As soon as the interrupt came: what hangs from there on is ended."""
    rang: list[int] = []

    def ring(number: int, frame: FrameType | None) -> None:
        rang.append(number)

    left = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, WAIT_SECONDS)
        with interrupted_after(0.01):
            try:
                threading.Event().wait(WAIT_SECONDS)
            except KeyboardInterrupt:
                assert signal.getsignal(signal.SIGALRM) is ring
                assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= WAIT_SECONDS
        assert signal.getsignal(signal.SIGALRM) is ring
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)
    assert not rang
