"""The waiters of a client, and whether notifications reach it.

A wake-up is a notification on the client's own channel. Where none arrive (behind a transaction-pooling
proxy, or while the connection that listens is down) waiters poll, often at first and then less often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...rules.requests import (
    Acquire,
    Adopt,
    Downgrade,
    Export,
    Granted,
    Queued,
    Release,
    Reply,
    Request,
    Unwatch,
    Watch,
    Withdraw,
)

__all__ = ["WakeupRegistry"]

FIRST_POLL_SECONDS: Final = 0.05
POLL_BACKOFF: Final = 1.2
POLL_SECONDS_MAX: Final = 0.25
"""For the first waiter in the queue; those behind it poll less often."""

POSITION_FACTOR_MAX: Final = 4


class WakeupRegistry:
    """Threads share it: each method takes a few atomic steps on dictionaries."""

    __slots__ = ("_held", "_polls", "_post", "_watching", "has_notifications")

    def __init__(self, post: Callable[[str], None]) -> None:
        self._post = post
        self._polls: dict[str, int] = {}
        """The nonces of waiters, and how often each has polled."""
        self._watching: set[str] = set()
        self._held: dict[str, str] = {}
        """Leases, nonce → name: one that is broken while no notification arrives has to be looked for."""
        self.has_notifications = False
        """Notifications arrive: a test message came through."""

    def record_request(self, request: Request) -> bool:
        """Before a request is sent; returns whether its wake-ups would arrive from that moment on."""
        if request.__class__ is Release:
            self._held.pop(request.nonce, None)
        elif isinstance(request, Acquire):
            if request.wait:
                self._polls.setdefault(request.nonce, 0)
        elif isinstance(request, Watch):
            self._watching.add(request.nonce)
        elif isinstance(request, Unwatch):
            self._watching.discard(request.nonce)
        elif isinstance(request, Withdraw | Export | Downgrade):
            self._held.pop(request.nonce, None)
        return self.has_notifications

    def record_reply(self, name: str, request: Request, reply: Reply, is_notified: bool) -> Reply:
        """Returns the reply to pass on: a waiter that would not be notified polls soon."""
        if reply.__class__ is Granted:
            if isinstance(request, Acquire | Adopt):
                self._held[request.nonce] = name
            elif isinstance(request, Downgrade):
                self._held[request.reader_nonce] = name
        if is_notified or not isinstance(reply, Queued) or not isinstance(request, Acquire):
            return reply
        polls = self._polls.get(request.nonce, 0)
        self._polls[request.nonce] = polls + 1
        soon = min(FIRST_POLL_SECONDS * POLL_BACKOFF ** min(polls, 50), POLL_SECONDS_MAX)
        soon *= 1 + min(reply.position, POSITION_FACTOR_MAX)
        return reply if reply.poll_after <= soon else reply._replace(poll_after=soon)

    def discard(self, nonce: str) -> None:
        self._polls.pop(nonce, None)
        self._watching.discard(nonce)

    def start_notifications(self) -> None:
        """Notifications arrive from now on. An earlier request may have missed one."""
        self.has_notifications = True
        self.wake_all()

    def stop_notifications(self) -> None:
        """Notifications no longer arrive: every waiter polls from now on."""
        if self.has_notifications:
            self.has_notifications = False
            self.wake_all()

    def wake_all(self) -> None:
        for nonce in [*self._polls, *self._watching]:
            self._post(nonce)

    def held(self) -> list[tuple[str, str]]:
        """The leases of this client, (name, nonce) each."""
        return [(name, nonce) for nonce, name in self._held.copy().items()]

    def wake_watchers(self) -> None:
        """A watcher learns of changes from notifications only: without them it has to look now and then."""
        for nonce in list(self._watching):
            self._post(nonce)

    def wake(self, nonce: str) -> None:
        self._post(nonce)
