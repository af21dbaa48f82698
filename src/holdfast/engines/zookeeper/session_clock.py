"""How long a client may rely on its session. Pure.

The leader ends a session when it has received no keep-alive of the client for the length of the session. But
the client's keep-alives go to the server it is connected to, and that server forwards them to the leader only
twice in each tick. If the server dies before that, the leader never learns of the last keep-alive. A server
that has lost the leader even goes on answering for a while.

So a keep-alive counts when a later write over the same connection confirms it, sent a good part of a tick
afterwards: writes go through the leader and a majority. The connection keeps order, so whatever the server
told the leader in between arrived before the write. The client does not know the length of a tick. ZooKeeper
grants no session shorter than two ticks, so half a tick is at most a quarter of the session.

A new connection counts at once: the leader itself opens or renews the session.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

__all__ = ["SessionClock"]

CONFIRMATION_LAG: Final = 1 / 4
"""A keep-alive counts if a write sent at least this part of the session later was answered, too."""

RECORD_INTERVAL: Final = 1 / 64
"""Keep-alives closer together than this part of the session are recorded as one."""


class SessionClock:
    """One session, by the local clock of its client. All times are from before the sending. May be called
    from any thread."""

    __slots__ = ("_lock", "_sent", "base", "last", "seconds")

    def __init__(self) -> None:
        self.base = 0.0
        """The session's length counts from here."""
        self.last = 0.0
        """The last keep-alive whose reply was waited for."""
        self.seconds = 0.0
        self._sent: deque[float] = deque()
        self._lock = threading.Lock()

    def age(self, now: float) -> float:
        """The time since the last keep-alive that counts."""
        return max(now - self.base, 0.0)

    def connected(self, sent: float, seconds: float) -> None:
        """A connection was established for the session, with this length."""
        with self._lock:
            self._sent.clear()  # what the other server received may be lost with it
            self.seconds = seconds
            self.base = max(self.base, sent)
            self.last = max(self.last, sent)

    def sent(self, at: float) -> None:
        """A request or a ping is sent, over the current connection or a later one."""
        with self._lock:
            if not self._sent or at - self._sent[-1] >= self.seconds * RECORD_INTERVAL:
                self._sent.append(at)

    def wrote(self, at: float) -> None:
        """A write that was sent then was answered over the current connection."""
        confirmed = at - self.seconds * CONFIRMATION_LAG
        with self._lock:
            self.last = max(self.last, at)
            while self._sent and self._sent[0] <= confirmed:
                self.base = max(self.base, self._sent.popleft())
