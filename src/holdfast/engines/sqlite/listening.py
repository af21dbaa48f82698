"""Listening for wake-ups and for the deaths of others, on a thread of its own or in an event loop.

A client that blocks us is watched through a descriptor of its process, readable when it ends. Where there is
none (another pid namespace, another system, too many at once) its liveness is probed four times a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .liveness import Identity, Status
from .wakeups import Inbox

if TYPE_CHECKING:
    import asyncio

__all__ = ["Listener"]

MOST_DESCRIPTORS: Final = 64
PROBE_SECONDS: Final = 0.25
STOP_SECONDS: Final = 1.0


class _Watch:
    """One client whose death somebody waits for."""

    __slots__ = ("fd", "nonces", "them")

    def __init__(self, them: Identity | None, fd: int) -> None:
        self.them = them
        self.fd = fd
        """-1: probed now and then."""
        self.nonces: set[str] = set()


class Listener:
    """What one client hears of others."""

    def __init__(
        self,
        inbox: Inbox,
        us: Identity,
        post: Callable[[str], None],
        probe: Callable[[str, Identity | None], Status],
    ) -> None:
        self._inbox = inbox
        self._us = us
        self._post = post
        self._probe = probe
        self._mutex = threading.Lock()
        self._watches: dict[str, _Watch] = {}
        self._watching: dict[str, frozenset[str]] = {}
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    # --- what to watch --------------------------------------------------------------------------

    def watch(self, nonce: str, clients: dict[str, Identity | None]) -> None:
        """Post to the nonce when one of these dies; those watched for it before are let go."""
        wanted = frozenset(clients)
        with self._mutex:
            if self._closing or self._watching.get(nonce) == wanted:
                return
            for client in self._watching.get(nonce, frozenset()) - wanted:
                self._let_go(client, nonce)
            self._watching[nonce] = wanted
            for client, them in clients.items():
                watch = self._watches.get(client) or self._begin(client, them)
                watch.nonces.add(nonce)
        self._ring()

    def unwatch(self, nonce: str) -> None:
        with self._mutex:
            for client in self._watching.pop(nonce, frozenset()):
                self._let_go(client, nonce)

    def _begin(self, client: str, them: Identity | None) -> _Watch:
        watch = self._watches[client] = _Watch(them, self._open(client, them))
        if self._loop is not None and watch.fd >= 0:
            self._loop.add_reader(watch.fd, self._died, client)
        elif self._loop is not None and self._timer is None:
            self._timer = self._loop.call_later(PROBE_SECONDS, self._probe_in_loop)
        return watch

    def _open(self, client: str, them: Identity | None) -> int:
        """A descriptor of its process, if there is one and it is of the right process."""
        if them is None or not them.pid_namespace or not hasattr(os, "pidfd_open"):
            return -1
        if (them.pid_namespace, them.boot) != (self._us.pid_namespace, self._us.boot):
            return -1
        if sum(watch.fd >= 0 for watch in self._watches.values()) >= MOST_DESCRIPTORS:
            return -1
        try:
            fd = os.pidfd_open(them.pid)
        except OSError:
            return -1
        # Dead already, or its number in use again: probing it is bounded, a readable descriptor is not.
        if self._probe(client, them) is Status.ALIVE:
            return fd
        os.close(fd)
        return -1

    def _let_go(self, client: str, nonce: str) -> None:
        watch = self._watches.get(client)
        if watch is None:
            return
        watch.nonces.discard(nonce)
        if not watch.nonces:
            del self._watches[client]
            self._end(watch)

    def _end(self, watch: _Watch) -> None:
        if watch.fd >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(watch.fd)
            os.close(watch.fd)
            watch.fd = -1

    # --- what happens ---------------------------------------------------------------------------

    def _died(self, client: str) -> None:
        with self._mutex:
            watch = self._watches.pop(client, None)
            if watch is None:
                return
            self._end(watch)
            for nonce in watch.nonces:
                self._watching[nonce] = self._watching.get(nonce, frozenset()) - {client}
        for nonce in watch.nonces:
            self._post(nonce)

    def _probe_all(self) -> bool:
        """Look after those who have no descriptor; tells whether there are any."""
        with self._mutex:
            probed = [(client, watch.them) for client, watch in self._watches.items() if watch.fd < 0]
        for client, them in probed:
            if self._probe(client, them) is Status.DEAD:
                self._died(client)
        return bool(probed)

    def _deliver(self) -> None:
        for nonce in self._inbox.receive():
            self._post(nonce)

    # --- on a thread ----------------------------------------------------------------------------

    def start_thread(self) -> None:
        with self._mutex:
            if self._thread is not None or self._closing:
                return
            self._bell = os.pipe()
            for fd in self._bell:
                os.set_blocking(fd, False)
            self._thread = threading.Thread(target=self._listen, name="holdfast-listener", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        bell = self._bell
        while not self._closing and bell is not None:
            poller = select.poll()
            poller.register(self._inbox.fileno(), select.POLLIN)
            poller.register(bell[0], select.POLLIN)
            with self._mutex:
                watched = {watch.fd: client for client, watch in self._watches.items() if watch.fd >= 0}
                probing = len(watched) < len(self._watches)
            for fd in watched:
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll(PROBE_SECONDS * 1000 if probing else None):
                self._heard(fd, watched)
            if probing:
                self._probe_all()

    def _heard(self, fd: int, watched: dict[int, str]) -> None:
        if fd in watched:
            self._died(watched[fd])
        elif self._bell is not None and fd == self._bell[0]:
            with contextlib.suppress(OSError):
                os.read(fd, 4096)
        else:
            self._deliver()

    def _ring(self) -> None:
        """Let the thread see what is watched now."""
        if self._bell is not None:
            with contextlib.suppress(OSError):
                os.write(self._bell[1], b"\0")

    # --- in a loop ------------------------------------------------------------------------------

    def join_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None or self._closing:
            return
        self._loop = loop
        loop.add_reader(self._inbox.fileno(), self._deliver)

    def _probe_in_loop(self) -> None:
        self._timer = None
        if self._loop is not None and self._probe_all():
            self._timer = self._loop.call_later(PROBE_SECONDS, self._probe_in_loop)

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening. The inbox is closed by whoever opened it, afterwards."""
        self._closing = True
        self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)
        with self._mutex:
            for watch in self._watches.values():
                self._end(watch)
            self._watches.clear()
            self._watching.clear()
            self._leave_loop()
            self._close_bell()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._inbox.fileno())

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, None
        for fd in bell or ():
            os.close(fd)

    def forked(self) -> None:
        """This is the child: close descriptors, but leave the loop alone: its own is the parent's, too."""
        self._closing = True
        self._loop = self._timer = None
        self._mutex = threading.Lock()
        for watch in self._watches.values():
            self._end(watch)
        self._watches.clear()
        self._close_bell()
