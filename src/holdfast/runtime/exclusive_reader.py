"""One waiting thread reads notifications itself, instead of getting them from the listener thread.

The way through the listener thread takes a good part of the time of a wake-up.

One thread at a time reads, and the listener thread leaves the connection alone meanwhile. The engine decides
how that is arranged and what is read. Where both wait for one descriptor, ``EpollExclusiveReader`` lets the
kernel arrange it.
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
    """Register a descriptor that other pollers wait for, too.

    Only one of them is notified: in the order of registration, the first in which a thread really waits.
    Systems that cannot do that notify all of them.
    """
    try:
        poller.register(fileno, select.POLLIN | _EXCLUSIVELY)
    except OSError:
        if not _EXCLUSIVELY:
            raise
        poller.register(fileno, select.POLLIN)


class ExclusiveReader:
    """A ``NotificationReader`` (``engine_api``), but for ``take``."""

    __slots__ = ("_awake", "_bell", "_hearer", "_listens_to", "_poller")

    def __init__(self) -> None:
        self._bell = SelfPipe()
        self._hearer: dict[None, int] = {}
        """The thread that reads: set in one atomic step."""
        self._poller = select.poll()
        self._listens_to = -1
        self._awake = False
        """The reading thread is about to check what it waits for, and need not be woken."""

    def _is_mine(self) -> bool:
        """Whether this thread is the reader. It becomes the reader if there was none."""
        me = threading.get_ident()
        return self._hearer.setdefault(None, me) == me

    def _listen_to(self, fileno: int) -> None:
        """Wait for this descriptor and the self-pipe only."""
        if fileno == self._listens_to:
            return
        poller = select.poll()
        poller.register(self._bell.fileno(), select.POLLIN)
        poller.register(fileno, select.POLLIN)
        self._poller, self._listens_to = poller, fileno

    def _listen_no_more(self) -> None:
        """Wait for the self-pipe only."""
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
        """Read what arrived. True: it is for the reading thread; in ``EpollExclusiveReader``: more may
        follow."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """Let the listener thread read again."""
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
    """While a thread waits here, the kernel notifies it of what arrives, and not the listener thread.

    Both use ``register_exclusive`` for the descriptor, and the listener thread registers second. It is
    notified of what arrives while no thread waits here. So neither has to tell the other when it starts or
    stops.
    """

    __slots__ = ("_epoll", "_is_behind")

    def __init__(self) -> None:
        super().__init__()
        self._is_behind = False
        """There may be more to read."""
        self._epoll = select.epoll()
        self._epoll.register(self._bell.fileno(), select.EPOLLIN)

    def _listen_to(self, fileno: int) -> None:
        """Wait for this descriptor and the self-pipe. A closed descriptor leaves the epoll by itself."""
        register_exclusive(self._epoll, fileno)
        self._listens_to = fileno

    def _leave(self, fileno: int) -> None:
        """Stop waiting for a descriptor."""
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
            return True  # Closed: the waiter polls, and then waits for notifications.
        finally:
            self._awake = False
        return False

    def give_back(self) -> None:
        if self._hearer.get(None) != threading.get_ident():
            return
        try:
            # The listener thread was not notified of what arrived while this thread waited.
            while self._is_behind and self._epoll.poll(0, 1):
                self._is_behind = self._heard(self._listens_to)
        except ValueError:
            pass  # Closed.
        self._is_behind = False
        del self._hearer[None]

    def close(self) -> None:
        super().close()
        self._epoll.close()
