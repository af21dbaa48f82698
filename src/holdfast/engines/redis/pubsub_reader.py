"""Lets one waiting thread read the subscribed connection itself. It delivers the messages for other
waiters."""

from __future__ import annotations

import contextlib

from ...runtime.exclusive_reader import EpollExclusiveReader
from ..resp.connection import SubscriberSocket
from .pubsub import PubSub

__all__ = ["PubSubReader"]


class PubSubReader(EpollExclusiveReader):
    """Used by one waiter at a time."""

    __slots__ = ("_connection", "_pubsub")

    def __init__(self, pubsub: PubSub) -> None:
        super().__init__()
        self._pubsub = pubsub
        self._connection: SubscriberSocket | None = None
        """None: it broke, and the waiter listens to the self-pipe only."""

    def take(self) -> bool:
        if not super().take():
            return False
        connection = self._pubsub.subscribed_connection()
        if connection is self._connection and connection is not None:
            return True
        if isinstance(connection, SubscriberSocket) and self._register_first(connection):
            return True
        self._hearer.pop(None, None)
        return False

    def _register_first(self, connection: SubscriberSocket) -> bool:
        """Have the kernel wake this waiter before the thread of the connection. False: impossible, or
        closed."""
        if not connection.is_shared:
            return False
        try:
            self._listen_to(connection.fileno())
            connection.requeue_poller()
        except (OSError, ValueError):
            return False
        self._connection = connection
        return True

    def _heard(self, fd: int) -> bool:
        connection = self._connection
        if connection is not None and not self._pubsub.deliver(connection):
            # The thread of the connection replaces it and then notifies all waiters.
            self._connection = None
            self._leave(fd)
            with contextlib.suppress(OSError, ValueError):
                connection.requeue_poller()  # this wakes that thread
        return False  # everything that had arrived was read
