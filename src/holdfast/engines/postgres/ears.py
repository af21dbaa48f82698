"""Who waits in this client, and whether wake-ups reach it.

A wake-up is a notification on a channel of the client's own. Where they do not come (behind a proxy that
lends out connections by the transaction, or while the connection that listens is down) waiters look by
themselves, often at first and then less so.
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

__all__ = ["Ears"]

FIRST_LOOK_SECONDS: Final = 0.05
LOOKS_GROW: Final = 1.2
LONGEST_LOOK_SECONDS: Final = 0.25
"""For the next in line; those behind it look less often."""

FURTHER_BACK: Final = 4


class Ears:
    """Threads share it: each method is a few single steps on dictionaries."""

    __slots__ = ("_held", "_looks", "_post", "_watching", "hears")

    def __init__(self, post: Callable[[str], None]) -> None:
        self._post = post
        self._looks: dict[str, int] = {}
        """Waiters, and how often each has looked by itself."""
        self._watching: set[str] = set()
        self._held: dict[str, str] = {}
        """Leases with their names: should one be broken while nobody hears of it, somebody has to look."""
        self.hears = False
        """Notifications come: it was tried."""

    def expect(self, request: Request) -> bool:
        """Before it is sent; tells whether its wake-ups would be heard from that moment on."""
        if request.__class__ is Release:
            self._held.pop(request.nonce, None)
        elif isinstance(request, Acquire):
            if request.wait:
                self._looks.setdefault(request.nonce, 0)
        elif isinstance(request, Watch):
            self._watching.add(request.nonce)
        elif isinstance(request, Unwatch):
            self._watching.discard(request.nonce)
        elif isinstance(request, Withdraw | Export | Downgrade):
            self._held.pop(request.nonce, None)
        return self.hears

    def answered(self, name: str, request: Request, reply: Reply, heard: bool) -> Reply:
        """The reply as it is passed on: one who would not be woken is told to look soon."""
        if reply.__class__ is Granted:
            if isinstance(request, Acquire | Adopt):
                self._held[request.nonce] = name
            elif isinstance(request, Downgrade):
                self._held[request.reader_nonce] = name
        if heard or not isinstance(reply, Queued) or not isinstance(request, Acquire):
            return reply
        looks = self._looks.get(request.nonce, 0)
        self._looks[request.nonce] = looks + 1
        soon = min(FIRST_LOOK_SECONDS * LOOKS_GROW ** min(looks, 50), LONGEST_LOOK_SECONDS)
        soon *= 1 + min(reply.position, FURTHER_BACK)
        return reply if reply.poll_after <= soon else reply._replace(poll_after=soon)

    def forget(self, nonce: str) -> None:
        self._looks.pop(nonce, None)
        self._watching.discard(nonce)

    def begin(self) -> None:
        """Notifications come from now on. Who asked before that may have missed one."""
        self.hears = True
        self.wake_all()

    def end(self) -> None:
        """They no longer come: let all look by themselves from now on."""
        if self.hears:
            self.hears = False
            self.wake_all()

    def wake_all(self) -> None:
        for nonce in [*self._looks, *self._watching]:
            self._post(nonce)

    def held(self) -> list[tuple[str, str]]:
        """Names and nonces of what this client holds."""
        return [(name, nonce) for nonce, name in self._held.copy().items()]

    def wake_watchers(self) -> None:
        """Those who watch are told of changes only: where none is heard they have to look now and then."""
        for nonce in list(self._watching):
            self._post(nonce)

    def wake(self, nonce: str) -> None:
        self._post(nonce)
