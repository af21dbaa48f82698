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
from abc import ABC, abstractmethod
from typing import Final, Protocol

from .self_pipe import SelfPipe

__all__ = ["HAS_EPOLL", "EpollExclusiveReader", "PollExclusiveReader", "register_exclusive"]

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


class ExclusiveReader(ABC):
    """What both kinds of ``NotificationReader`` (``engine_api``) share: one thread at a time reads."""

    __slots__ = ("_awake", "_fileno", "_reading_thread", "_self_pipe")

    def __init__(self) -> None:
        self._self_pipe = SelfPipe()
        self._reading_thread: dict[None, int] = {}
        """The thread that reads: set in one atomic step."""
        self._fileno = -1
        """The descriptor whose input is read."""
        self._awake = False
        """The reading thread is about to check what it waits for, and need not be woken."""

    @abstractmethod
    def try_acquire(self) -> bool: ...

    @abstractmethod
    def read(self, seconds: float) -> bool: ...

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def _receive(self, fd: int) -> bool:
        """Read what arrived."""

    def _claim(self) -> bool:
        """Whether this thread is the reader. It becomes the reader if there was none."""
        me = threading.get_ident()
        return self._reading_thread.setdefault(None, me) == me

    def interrupt(self) -> None:
        if not self._awake:
            self._self_pipe.wake()

    def close(self) -> None:
        self._self_pipe.close()


class PollExclusiveReader(ExclusiveReader):
    """The listener thread has to leave the descriptor alone while a thread reads here.

    ``_receive`` returns whether the input is for the reading thread.
    """

    __slots__ = ("_poller",)

    def __init__(self) -> None:
        super().__init__()
        self._poller = select.poll()

    @abstractmethod
    def _released(self) -> None:
        """Let the listener thread read again."""

    def _wait_for(self, fileno: int) -> None:
        """Wait for this descriptor and the self-pipe only."""
        if fileno == self._fileno:
            return
        poller = select.poll()
        poller.register(self._self_pipe.fileno(), select.POLLIN)
        poller.register(fileno, select.POLLIN)
        self._poller, self._fileno = poller, fileno

    def read(self, seconds: float) -> bool:
        ready = self._poller.poll(seconds * 1000)
        came = False
        try:
            self._awake = True
            for fd, _ in ready:
                if fd == self._self_pipe.fileno():
                    self._self_pipe.clear()
                elif self._receive(fd):
                    came = True
        finally:
            self._awake = False
        return came

    def release(self) -> None:
        if self._reading_thread.get(None) == threading.get_ident():
            self._released()
            del self._reading_thread[None]


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
        self._epoll.register(self._self_pipe.fileno(), select.EPOLLIN)

    def _wait_for(self, fileno: int) -> None:
        """Wait for this descriptor and the self-pipe. A closed descriptor leaves the epoll by itself."""
        register_exclusive(self._epoll, fileno)
        self._fileno = fileno

    def _leave(self, fileno: int) -> None:
        """Stop waiting for a descriptor."""
        self._fileno = -1
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fileno)

    def try_acquire(self) -> bool:
        return not self._epoll.closed and self._claim()

    def read(self, seconds: float) -> bool:
        try:
            self._is_behind = True
            ready = self._epoll.poll(seconds, 2)
            self._awake = True
            for fd, _ in ready:
                if fd == self._fileno:
                    self._is_behind = self._receive(fd)
                else:
                    self._self_pipe.clear()
        except ValueError:
            return True  # Closed: the waiter polls, and then waits for notifications.
        finally:
            self._awake = False
        return False

    def release(self) -> None:
        if self._reading_thread.get(None) != threading.get_ident():
            return
        try:
            # The listener thread was not notified of what arrived while this thread waited.
            while self._is_behind and self._epoll.poll(0, 1):
                self._is_behind = self._receive(self._fileno)
        except ValueError:
            pass  # Closed.
        self._is_behind = False
        del self._reading_thread[None]

    def close(self) -> None:
        super().close()
        self._epoll.close()
