"""Since when a session can be relied on. Pure.

A session ends when the leader has not heard of its client for as long as the session lasts. But what a client
hears is the server it is connected to, and that one tells the leader of its clients only twice in each tick:
should it die before that, the leader never learns of the last sign of life. A server that has lost the
leader goes on answering, for a while.

So a sign of life counts when a later one shows that the leader has heard of it: a later write, for those go
through the leader and a majority, over the same connection, sent a good part of a tick afterwards. That
connection keeps order: the server had both, and whatever it told the leader in between has arrived before
the write. How long a tick is nobody tells us. ZooKeeper gives no session that is shorter than two of them, so
half a tick is a quarter of the session at most.

A connection that is made counts at once: the leader itself opens a session, or takes it on again.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

__all__ = ["SessionClock"]

CONFIRMATION_LAG: Final = 1 / 4
"""A sign of life counts if one that was sent after this part of the session was heard too."""

RECORD_INTERVAL: Final = 1 / 64
"""Signs of life that are closer together than this part of the session are as good as one."""


class SessionClock:
    """One session, by the local clock of its client. All times are those before the sending. Any thread may
    tell."""

    __slots__ = ("_lock", "_sent", "base", "last", "seconds")

    def __init__(self) -> None:
        self.base = 0.0
        """It lives on from here for as long as it lasts."""
        self.last = 0.0
        """The last sign of life that somebody waited for."""
        self.seconds = 0.0
        self._sent: deque[float] = deque()
        self._lock = threading.Lock()

    def age(self, now: float) -> float:
        """How long it has lived without a sign of life that counts."""
        return max(now - self.base, 0.0)

    def connected(self, sent: float, seconds: float) -> None:
        """A connection was made for it, with this length."""
        with self._lock:
            self._sent.clear()  # what the other server was told may have died with it
            self.seconds = seconds
            self.base = max(self.base, sent)
            self.last = max(self.last, sent)

    def sent(self, at: float) -> None:
        """Something is sent, be it a ping, over the present connection or a later one."""
        with self._lock:
            if not self._sent or at - self._sent[-1] >= self.seconds * RECORD_INTERVAL:
                self._sent.append(at)

    def wrote(self, at: float) -> None:
        """Something that was sent then, and writes, was answered over the present connection."""
        confirmed = at - self.seconds * CONFIRMATION_LAG
        with self._lock:
            self.last = max(self.last, at)
            while self._sent and self._sent[0] <= confirmed:
                self.base = max(self.base, self._sent.popleft())
