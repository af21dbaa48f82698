"""The registration of a client: its liveness lock, its wake-up socket and its row, taken in this order."""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from ...engine_api import Notifier
from ...runtime.clock import boottime, wall_us
from .clients import ClientDirectory
from .liveness import AliveFile, identify
from .notifications import NotificationListener
from .records import Execute
from .side_directory import SideDirectory
from .sockets import WakeupSocket

if TYPE_CHECKING:
    import asyncio

__all__ = ["LOCAL_CLIENTS", "Registration"]

INSERT: Final = "INSERT OR REPLACE INTO clients VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)"
RENEW: Final = "UPDATE clients SET renewed_at = ? WHERE id = ? AND dead = 0"
DELETE: Final = "DELETE FROM clients WHERE id = ?"

LOCAL_CLIENTS: dict[str, weakref.ref[Registration]] = {}
"""The clients of this process. They need no probe, and are notified without a message."""


def _unregister_local(client: str, here: weakref.ref[Registration]) -> None:
    """Called when a registration is garbage-collected without having been closed."""
    if LOCAL_CLIENTS.get(client) is here:
        del LOCAL_CLIENTS[client]


def _local_renewal(client: str) -> float | None:
    here = LOCAL_CLIENTS.get(client)
    registration = None if here is None else here()
    return None if registration is None else registration.renewed_at


class Registration:
    """What makes this client known to the others."""

    def __init__(
        self,
        execute: Execute,
        side: SideDirectory,
        client: str,
        post: Notifier,
    ) -> None:
        self.client = client
        self.notify = post
        """Notifies a nonce of this client, as a message from another process would."""
        self.side = side
        self.us = identify()
        with contextlib.ExitStack() as undo:
            self._alive = AliveFile(side, client)
            undo.callback(side.unlink, self._alive.name)
            undo.callback(self._alive.close)
            self.wakeup_socket = WakeupSocket(side, client)
            undo.callback(side.unlink, self.wakeup_socket.name)
            undo.callback(self.wakeup_socket.close)
            self.renewed_at = boottime()
            self._register(execute)
            undo.pop_all()
        self.directory = ClientDirectory(side, self.us, _local_renewal)
        self.listener = NotificationListener(self.wakeup_socket, self.us, post, self.directory.probe)
        LOCAL_CLIENTS[client] = weakref.ref(self, partial(_unregister_local, client))

    def _register(self, execute: Execute) -> None:
        boot, *process = self.us
        execute(INSERT, (self.client, boot, self.renewed_at, wall_us(), *process))

    def renew(self, execute: Execute, now: float) -> bool:
        """Renew all leases and queue places of this client. False: another client has marked it dead."""
        if execute(RENEW, (now, self.client)).rowcount != 1:
            return False
        self.renewed_at = now
        return True

    def is_registered(self, execute: Execute) -> bool:
        row = execute("SELECT dead FROM clients WHERE id = ?", (self.client,)).fetchone()
        return row is not None and not row[0]

    def unregister(self, execute: Execute) -> None:
        """Delete the row, so that the client claims nothing. Then remove its files."""
        execute(DELETE, (self.client,))
        self.side.unlink(self.wakeup_socket.name)
        self.side.unlink(self._alive.name)

    def listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is None:
            self.listener.start_thread()
        else:
            self.listener.join_loop(loop)

    def close(self) -> None:
        LOCAL_CLIENTS.pop(self.client, None)
        self.listener.close()
        self._close_files()

    def forked(self) -> None:
        """In the child: close what was inherited, and write nothing."""
        LOCAL_CLIENTS.pop(self.client, None)
        self.listener.forked()
        self._close_files()

    def _close_files(self) -> None:
        self.wakeup_socket.close()
        self._alive.close()
        self.side.close()
