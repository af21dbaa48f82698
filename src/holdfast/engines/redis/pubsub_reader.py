"""Lets one waiting thread read the connection that listens itself; others' messages it delivers."""

from __future__ import annotations

import contextlib

from ...runtime.exclusive_reader import EpollExclusiveReader
from ..resp.connection import SubscriberSocket
from .pubsub import PubSub

__all__ = ["PubSubReader"]


class PubSubReader(EpollExclusiveReader):
    """For one waiter at a time."""

    __slots__ = ("_connection", "_pubsub")

    def __init__(self, ears: PubSub) -> None:
        super().__init__()
        self._pubsub = ears
        self._connection: SubscriberSocket | None = None
        """None: it broke, and only the bell is left to hear."""

    def take(self) -> bool:
        if not super().take():
            return False
        line = self._pubsub.subscribed_connection()
        if line is self._connection and line is not None:
            return True
        if isinstance(line, SubscriberSocket) and self._register_first(line):
            return True
        self._hearer.pop(None, None)
        return False

    def _register_first(self, line: SubscriberSocket) -> bool:
        """From now on it is heard here first; False: it cannot be, or is closed."""
        if not line.is_shared:
            return False
        try:
            self._listen_to(line.fileno())
            line.requeue_poller()
        except (OSError, ValueError):
            return False
        self._connection = line
        return True

    def _heard(self, fd: int) -> bool:
        line = self._connection
        if line is not None and not self._pubsub.deliver(line):
            # The thread that listens finds out for itself, and makes it anew; then everyone is told to look.
            self._connection = None
            self._leave(fd)
            with contextlib.suppress(OSError, ValueError):
                line.requeue_poller()  # which has it look
        return False  # all of what was there was read
