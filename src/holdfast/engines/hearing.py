"""Letting one waiting thread hear for itself what a thread that listens would have to pass on.

The way through that thread is a good part of being woken.

One at a time hears, and the thread that listens leaves it alone meanwhile. How that is arranged, and what is
heard, is the engine's affair.
"""

from __future__ import annotations

import select
import threading

from .bell import Bell

__all__ = ["OneHears"]


class OneHears:
    """What ``drivers.adapter.Hearing`` asks for, but for ``take``."""

    __slots__ = ("_awake", "_bell", "_hearer", "_listens_to", "_poller")

    def __init__(self) -> None:
        self._bell = Bell()
        self._hearer: dict[None, int] = {}
        """The thread that hears: set in one step, so that nothing can come in between."""
        self._poller = select.poll()
        self._listens_to = -1
        self._awake = False
        """Whoever hears is about to look at what it waits for, and needs no bell."""

    def _is_mine(self) -> bool:
        """Whether this thread is the one that hears, from now on if there was none."""
        me = threading.get_ident()
        return self._hearer.setdefault(None, me) == me

    def _listen_to(self, fileno: int) -> None:
        """This, the bell, and nothing else."""
        if fileno == self._listens_to:
            return
        poller = select.poll()
        poller.register(self._bell.fileno(), select.POLLIN)
        poller.register(fileno, select.POLLIN)
        self._poller, self._listens_to = poller, fileno

    def _listen_no_more(self) -> None:
        """Only to the bell."""
        self._poller.unregister(self._listens_to)
        self._listens_to = -1

    def hear(self, seconds: float) -> bool:
        news = self._poller.poll(seconds * 1000)
        came = False
        try:
            self._awake = True
            for fd, _ in news:
                if fd == self._bell.fileno():
                    self._bell.clear()
                elif self._heard(fd):
                    came = True
        finally:
            self._awake = False
        return came

    def _heard(self, fd: int) -> bool:
        """Something came. True: it is for the one who hears."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """The thread that listens hears it again."""
        raise NotImplementedError

    def ring(self) -> None:
        if not self._awake:
            self._bell.ring()

    def give_back(self) -> None:
        if self._hearer.get(None) == threading.get_ident():
            self._let_go()
            del self._hearer[None]

    def close(self) -> None:
        self._bell.close()
