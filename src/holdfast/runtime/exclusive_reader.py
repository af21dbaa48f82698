"""Letting one waiting thread hear for itself what a thread that listens would have to pass on.

The way through that thread is a good part of being woken.

One at a time hears, and the thread that listens leaves it alone meanwhile. How that is arranged, and what is
heard, is the engine's affair. Where both wait for one descriptor, ``HearsFirst`` has the kernel arrange it.
"""

from __future__ import annotations

import contextlib
import select
import threading
from typing import Final, Protocol

from .self_pipe import SelfPipe

__all__ = ["HAS_EPOLL", "EpollExclusiveReader", "ExclusiveReader", "register_exclusive"]

HAS_EPOLL: Final = hasattr(select, "epoll")


class Poller(Protocol):
    """An ``epoll`` or a ``poll``."""

    def register(self, fd: int, eventmask: int = ..., /) -> None: ...


_EXCLUSIVELY: Final = getattr(select, "EPOLLEXCLUSIVE", 0)


def register_exclusive(poller: Poller, fileno: int) -> None:
    """Have a poller wait for a descriptor that others wait for, too.

    One of them is told, not all: the first, in the order in which they came, who really waits. Systems that
    cannot do that tell all.
    """
    try:
        poller.register(fileno, select.POLLIN | _EXCLUSIVELY)
    except OSError:
        if not _EXCLUSIVELY:
            raise
        poller.register(fileno, select.POLLIN)


class ExclusiveReader:
    """What ``drivers.adapter.Hearing`` asks for, but for ``take``."""

    __slots__ = ("_awake", "_bell", "_hearer", "_listens_to", "_poller")

    def __init__(self) -> None:
        self._bell = SelfPipe()
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
        """Something came. True: it is for the one who hears; or, for ``HearsFirst``, there may be more."""
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


class EpollExclusiveReader(ExclusiveReader):
    """While one waits here it is told of what comes, and the thread that listens is not.

    Both ``wait_in_turn`` for the descriptor, and that thread comes behind us. It is told of whatever comes
    while nobody waits here. So neither has to tell the other when it begins or ends.
    """

    __slots__ = ("_epoll", "_is_behind")

    def __init__(self) -> None:
        super().__init__()
        self._is_behind = False
        """There may be more to hear than we did."""
        self._epoll = select.epoll()
        self._epoll.register(self._bell.fileno(), select.EPOLLIN)

    def _listen_to(self, fileno: int) -> None:
        """This, and the bell. What was listened to before and is closed is left out by itself."""
        register_exclusive(self._epoll, fileno)
        self._listens_to = fileno

    def _leave(self, fileno: int) -> None:
        """It is of no use any more."""
        self._listens_to = -1
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fileno)

    def take(self) -> bool:
        return not self._epoll.closed and self._is_mine()

    def hear(self, seconds: float) -> bool:
        try:
            self._is_behind = True
            news = self._epoll.poll(seconds, 2)
            self._awake = True
            for fd, _ in news:
                if fd == self._listens_to:
                    self._is_behind = self._heard(fd)
                else:
                    self._bell.clear()
        except ValueError:
            return True  # it was closed: let who waits look, and then wait to be told
        finally:
            self._awake = False
        return False

    def give_back(self) -> None:
        if self._hearer.get(None) != threading.get_ident():
            return
        try:
            # What came while we waited, nobody else was told of.
            while self._is_behind and self._epoll.poll(0, 1):
                self._is_behind = self._heard(self._listens_to)
        except ValueError:
            pass  # it was closed
        self._is_behind = False
        del self._hearer[None]

    def close(self) -> None:
        super().close()
        self._epoll.close()
