"""Being a client: known to be alive, able to hear, in the table of clients, in this order; and leaving."""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from ...engine_api import Notifier
from ...runtime.clock import boottime, wall_us
from .census import Census
from .listening import Listener
from .liveness import AliveFile, identify
from .place import Side
from .table import Execute
from .wakeups import Inbox

if TYPE_CHECKING:
    import asyncio

__all__ = ["HERE", "Membership"]

INSERT: Final = "INSERT OR REPLACE INTO clients VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)"
RENEW: Final = "UPDATE clients SET renewed_at = ? WHERE id = ? AND dead = 0"
DELETE: Final = "DELETE FROM clients WHERE id = ?"

HERE: dict[str, weakref.ref[Membership]] = {}
"""The clients of this process: alive without a look, and woken without a message."""


def _dropped(client: str, here: weakref.ref[Membership]) -> None:
    """Nobody has it any more, and nobody closed it."""
    if HERE.get(client) is here:
        del HERE[client]


def _renewed_here(client: str) -> float | None:
    here = HERE.get(client)
    membership = None if here is None else here()
    return None if membership is None else membership.renewed_at


class Membership:
    """By what others know this client."""

    def __init__(
        self,
        execute: Execute,
        side: Side,
        client: str,
        post: Notifier,
    ) -> None:
        self.client = client
        self.tell = post
        """What a message would do, were it from another process: the nonce is posted."""
        self.side = side
        self.us = identify()
        with contextlib.ExitStack() as undo:
            self._alive = AliveFile(side, client)
            undo.callback(side.unlink, self._alive.name)
            undo.callback(self._alive.close)
            self.inbox = Inbox(side, client)
            undo.callback(side.unlink, self.inbox.name)
            undo.callback(self.inbox.close)
            self.renewed_at = boottime()
            self._register(execute)
            undo.pop_all()
        self.census = Census(side, self.us, _renewed_here)
        self.listener = Listener(self.inbox, self.us, post, self.census.probe)
        HERE[client] = weakref.ref(self, partial(_dropped, client))

    def _register(self, execute: Execute) -> None:
        boot, *process = self.us
        execute(INSERT, (self.client, boot, self.renewed_at, wall_us(), *process))

    def renew(self, execute: Execute, now: float) -> bool:
        """All that this client holds and waits for lasts from ``now``; False: others took it for dead."""
        if execute(RENEW, (now, self.client)).rowcount != 1:
            return False
        self.renewed_at = now
        return True

    def is_registered(self, execute: Execute) -> bool:
        row = execute("SELECT dead FROM clients WHERE id = ?", (self.client,)).fetchone()
        return row is not None and not row[0]

    def say_goodbye(self, execute: Execute) -> None:
        """Without its row a client claims nothing; only then its files go."""
        execute(DELETE, (self.client,))
        self.side.unlink(self.inbox.name)
        self.side.unlink(self._alive.name)

    def listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is None:
            self.listener.start_thread()
        else:
            self.listener.join_loop(loop)

    def close(self) -> None:
        HERE.pop(self.client, None)
        self.listener.close()
        self._close_files()

    def forked(self) -> None:
        """This is the child: close what was inherited, without a word."""
        HERE.pop(self.client, None)
        self.listener.forked()
        self._close_files()

    def _close_files(self) -> None:
        self.inbox.close()
        self._alive.close()
        self.side.close()
