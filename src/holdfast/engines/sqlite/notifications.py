"""Wake-ups and the deaths of other clients, received on a separate thread or in an event loop.

A client that blocks a waiter is watched through a pidfd of its process, which becomes readable when the
process ends. Without a pidfd (another pid namespace, another system, too many at once) the liveness of the
client is probed four times a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...engine_api import Notifier
from ...runtime.exclusive_reader import HAS_EPOLL, EpollExclusiveReader, register_exclusive
from ...runtime.self_pipe import SelfPipe
from ...runtime.thread_join import join_thread
from .liveness import Identity, Status
from .sockets import WakeupSocket

if TYPE_CHECKING:
    import asyncio

__all__ = ["NotificationListener"]

DESCRIPTORS_MAX: Final = 64
PROBE_SECONDS: Final = 0.25
STOP_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 0.05
"""The pause after a failure, so that a repeated failure does not fill the log."""

log = logging.getLogger("holdfast")


class _DeathWatch:
    """One client whose death waiters are notified of."""

    __slots__ = ("dead", "fd", "nonces", "them")

    def __init__(self, them: Identity | None) -> None:
        self.them = them
        self.fd = -1
        """-1: there is no pidfd, so the client is probed at intervals."""
        self.dead = False
        """It was already dead when the watch started."""
        self.nonces: set[str] = set()


class NotificationListener:
    """Receives one client's wake-ups, and watches other clients."""

    def __init__(
        self,
        wakeup_socket: WakeupSocket,
        us: Identity,
        post: Notifier,
        probe: Callable[[str, Identity | None], Status],
    ) -> None:
        self._wakeup_socket = wakeup_socket
        self._us = us
        self._post = post
        self._probe = probe
        self._mutex = threading.Lock()
        self._watches: dict[str, _DeathWatch] = {}
        self._watching: dict[str, frozenset[str]] = {}
        self._ended: deque[str] = deque()
        """Nonces that no attempt waits with any more, and whose watches are not dropped yet."""
        self._clients: dict[int, str] = {}
        """The client of each pidfd."""
        self._thread: threading.Thread | None = None
        self._self_pipe: SelfPipe | None = None
        self._poller: select.epoll | select.poll | None = None
        self.notification_reader: SocketReader | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    # --- what to watch --------------------------------------------------------------------------

    def watch(self, nonce: str, clients: dict[str, Identity | None]) -> None:
        """Notify the nonce when one of these clients dies. This replaces its earlier watches."""
        wanted = frozenset(clients)
        with self._mutex:
            self._drop_ended_watches()
            if self._closing or self._watching.get(nonce) == wanted:
                return
            for client in self._watching.get(nonce, frozenset()) - wanted:
                self._drop_watch(client, nonce)
            self._watching[nonce] = wanted
            dead = False
            for client, them in clients.items():
                watch = self._watches.get(client)
                if watch is None:
                    watch = self._start_watch(client, them)
                    dead = dead or watch.dead
                watch.nonces.add(nonce)
        if dead:
            self._post(nonce)

    def unwatch(self, nonce: str) -> None:
        """Deferred until the next watch or probe: the waiter was just woken and must not lose time."""
        self._ended.append(nonce)

    def _drop_ended_watches(self) -> None:
        while self._ended:
            nonce = self._ended.popleft()
            for client in self._watching.pop(nonce, frozenset()):
                self._drop_watch(client, nonce)

    def _start_watch(self, client: str, them: Identity | None) -> _DeathWatch:
        watch = self._watches[client] = _DeathWatch(them)
        self._open(client, watch)
        if watch.fd >= 0:
            self._clients[watch.fd] = client
        if self._loop is not None and watch.fd >= 0:
            self._loop.add_reader(watch.fd, self._report_death, client)
        elif self._loop is not None and self._timer is None:
            self._timer = self._loop.call_later(PROBE_SECONDS, self._probe_in_loop)
        elif self._poller is not None and watch.fd >= 0:
            self._poller.register(watch.fd, select.POLLIN)
        elif self._self_pipe is not None:
            self._self_pipe.wake()  # The thread has to wake up earlier now, to probe.
        return watch

    def _open(self, client: str, watch: _DeathWatch) -> None:
        """Open a pidfd of the client's process, if there can be one."""
        fd = self._descriptor(watch.them)
        # Probed after the pidfd is open: another process may have got the same process id.
        status = self._probe(client, watch.them)
        watch.dead = status is Status.DEAD
        if status is Status.ALIVE:
            watch.fd = fd
        elif fd >= 0:
            # A pidfd that stays readable would wake the thread without end. Probes are at intervals.
            os.close(fd)

    def _descriptor(self, them: Identity | None) -> int:
        if them is None or not them.pid_namespace or not hasattr(os, "pidfd_open"):
            return -1
        if (them.pid_namespace, them.boot) != (self._us.pid_namespace, self._us.boot):
            return -1
        if len(self._clients) >= DESCRIPTORS_MAX and not self._close_unused():
            return -1
        try:
            return os.pidfd_open(them.pid)
        except OSError:
            return -1

    def _drop_watch(self, client: str, nonce: str) -> None:
        watch = self._watches.get(client)
        if watch is None:
            return
        watch.nonces.discard(nonce)
        if not watch.nonces and watch.fd < 0:
            del self._watches[client]
        # A pidfd is kept for the next time: a client that blocked once mostly does so again.

    def _close_unused(self) -> bool:
        """Close the pidfds that no waiter needs at the moment. Returns whether there were any."""
        unused = [client for client, watch in self._watches.items() if watch.fd >= 0 and not watch.nonces]
        for client in unused:
            self._close_watch(self._watches.pop(client))
        return bool(unused)

    def _close_watch(self, watch: _DeathWatch) -> None:
        if watch.fd >= 0:
            self._clients.pop(watch.fd, None)
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(watch.fd)
            elif self._poller is not None:
                with contextlib.suppress(OSError, KeyError, ValueError):
                    self._poller.unregister(watch.fd)
            os.close(watch.fd)
            watch.fd = -1

    # --- what happens ---------------------------------------------------------------------------

    def _report_death(self, client: str) -> None:
        with self._mutex:
            watch = self._watches.pop(client, None)
            if watch is None:
                return
            self._close_watch(watch)
            for nonce in watch.nonces:
                self._watching[nonce] = self._watching.get(nonce, frozenset()) - {client}
        for nonce in watch.nonces:
            self._post(nonce)

    def _probe_all(self) -> bool:
        """Probe the clients without a pidfd. Returns whether there are any."""
        with self._mutex:
            self._drop_ended_watches()
            probed = [(client, watch.them) for client, watch in self._watches.items() if watch.fd < 0]
        for client, them in probed:
            if self._probe(client, them) is Status.DEAD:
                self._report_death(client)
        return bool(probed)

    def deliver(self) -> bool:
        """Deliver one message, if there is one. The caller is called again for the next."""
        try:
            message = self._wakeup_socket.receive()
        except OSError:
            return False
        if message is not None:
            self._post(*message)
        return True

    # --- on a thread ----------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the listener thread runs or is about to start."""
        thread = self._thread
        return thread is not None and (thread.ident is None or thread.is_alive())

    def start_thread(self) -> None:
        if self.is_running:
            return
        with self._mutex:
            if self.is_running or self._closing:
                return
            self._prepare()
            thread = threading.Thread(target=self._listen, name="holdfast-listener", daemon=True)
            self._thread = thread
        thread.start()

    def _prepare(self) -> None:
        """Called with the mutex held. Existing pollers may be what failed, so they are replaced."""
        if self.notification_reader is not None:
            # A waiter that reads there polls, then waits for notifications.
            self.notification_reader.interrupt()
        self._close_poller()
        self._self_pipe = SelfPipe()
        self._poller = select.epoll() if HAS_EPOLL else select.poll()
        for fd in (self._self_pipe.fileno(), *self._clients):
            self._poller.register(fd, select.POLLIN)
        if HAS_EPOLL:
            # First: of several epolls, the one that registers first is notified first.
            self.notification_reader = SocketReader(self, self._wakeup_socket)
        register_exclusive(self._poller, self._wakeup_socket.fileno())

    def _listen(self) -> None:
        """Listen until the client is closed. A failure is logged, and listening starts again.

        Nothing is lost by that: messages wait in the socket, and the pidfd of a dead process stays readable.
        """
        while not self._closing:
            try:
                self._listen_on()
            except BaseException as error:  # noqa: BLE001 - no other thread would listen
                if self._closing:
                    return  # close() did not wait for this thread any longer
                log.warning("holdfast: receiving wake-ups failed and starts again: %r", error)
                time.sleep(RESTART_SECONDS)
                with contextlib.suppress(OSError, ValueError), self._mutex:
                    if not self._closing:
                        self._prepare()

    def _listen_on(self) -> None:
        unit = 1 if HAS_EPOLL else 1000
        while not self._closing and (poller := self._poller) is not None:
            probing = len(self._clients) < len(self._watches)
            for fd, _ in poller.poll(PROBE_SECONDS * unit if probing else None):
                self._handle_input(fd)
            if probing:
                self._probe_all()

    def _handle_input(self, fd: int) -> None:
        client = self._clients.get(fd)
        if client is not None:
            self._report_death(client)
        elif self._self_pipe is not None and fd == self._self_pipe.fileno():
            self._self_pipe.clear()
        else:
            self.deliver()

    # --- in a loop ------------------------------------------------------------------------------

    def join_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None or self._closing:
            return
        self._loop = loop
        loop.add_reader(self._wakeup_socket.fileno(), self.deliver)

    def _probe_in_loop(self) -> None:
        self._timer = None
        if self._loop is not None and self._probe_all():
            self._timer = self._loop.call_later(PROBE_SECONDS, self._probe_in_loop)

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening. The owner of the socket closes it afterwards."""
        self._closing = True
        if self._self_pipe is not None:
            self._self_pipe.wake()
        if self.notification_reader is not None:
            self.notification_reader.interrupt()
        join_thread(self._thread, STOP_SECONDS)
        with self._mutex:
            for watch in self._watches.values():
                self._close_watch(watch)
            self._watches.clear()
            self._watching.clear()
            self._leave_loop()
            self._close_poller()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._wakeup_socket.fileno())

    def _close_poller(self) -> None:
        self_pipe, self._self_pipe = self._self_pipe, None
        poller, self._poller = self._poller, None
        reader, self.notification_reader = self.notification_reader, None
        for each in (self_pipe, reader):
            if each is not None:
                each.close()
        if poller is not None and HAS_EPOLL:
            poller.close()  # type: ignore[union-attr]  # an epoll

    def forked(self) -> None:
        """In the child: close descriptors, but do not touch the loop, whose selector the parent shares."""
        self._closing = True
        self._loop = self._timer = None
        self._mutex = threading.Lock()
        self._close_poller()  # First: unregistering from it would unregister for the parent, too.
        for watch in self._watches.values():
            self._close_watch(watch)
        self._watches.clear()


class SocketReader(EpollExclusiveReader):
    """Lets one waiting thread read the socket itself. It also delivers messages to other waiters."""

    __slots__ = ("_listener",)

    def __init__(self, listener: NotificationListener, wakeup_socket: WakeupSocket) -> None:
        super().__init__()
        self._listener = listener
        self._wait_for(wakeup_socket.fileno())

    def _receive(self, fd: int) -> bool:
        return self._listener.deliver()
