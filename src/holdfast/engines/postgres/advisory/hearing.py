"""The thread that hears what comes on sessions when nobody asks: grants to those who wait, and bad news."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Final

from ....runtime.clock import boottime
from ....runtime.thread_join import join_thread
from ..link import READABLE, LinkLost
from .desk import Desk, Session

__all__ = ["Listener"]

log = logging.getLogger("holdfast")

TICK_SECONDS: Final = 0.25
"""How often it sees anew which sessions to hear, and those look who watch a name."""

CLOSE_SECONDS: Final = 2.0


class Listener:
    """Begins when it is first asked for."""

    def __init__(self, desk: Desk, look_up: Callable[[Session], bool]) -> None:
        self._desk = desk
        self._look_up = look_up
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None
        """A pipe, written to when the thread is to look up."""
        self._closed = False
        self._ended = threading.Event()

    def start(self) -> None:
        if self._thread is not None:
            return
        with self._mutex:
            if self._thread is None and not self._closed:
                self._bell = os.pipe()
                self._thread = threading.Thread(target=self._work, name="holdfast-postgres", daemon=True)
                self._thread.start()

    def ring(self) -> None:
        """There is one more to hear."""
        with self._mutex:
            if self._bell is not None:
                os.write(self._bell[1], b"!")

    def close(self) -> None:
        self._closed = True
        self._ended.set()
        self.ring()
        join_thread(self._thread, CLOSE_SECONDS)

    def forked(self) -> None:
        """In the child: the thread is the parent's."""
        for descriptor in self._bell or ():
            os.close(descriptor)

    # --- in the thread

    def _work(self) -> None:
        try:
            while not self._closed:
                try:
                    self._tick()
                except Exception:
                    log.exception("holdfast: sessions are not heard for now: an unexpected error")
                    self._ended.wait(TICK_SECONDS)
        finally:
            with self._mutex:
                for descriptor in self._bell or ():
                    os.close(descriptor)
                self._bell = None

    def _tick(self) -> None:
        """Hear the sessions that there are now, until the time comes to see which there are."""
        bell = self._bell
        if bell is None:
            return
        poll = select.poll()
        poll.register(bell[0], READABLE)
        sessions = self._sessions(poll)
        ends_at = boottime() + TICK_SECONDS
        while not self._closed:
            left = max(ends_at - boottime(), 0.0)
            idle = self._desk.is_empty and not self._desk.watching
            ready = poll.poll(None if idle else left * 1000.0)
            rung = False
            for descriptor, _ in ready:
                if descriptor == bell[0]:
                    os.read(bell[0], 4096)
                    rung = True
                elif not self._look_up(sessions[descriptor]) or sessions[descriptor].dead:
                    poll.unregister(descriptor)  # whoever uses it hears it; see to it again later
            if rung or not ready or boottime() >= ends_at:
                break
        for nonce in list(self._desk.watching):
            self._desk.post(nonce)

    def _sessions(self, poll: select.poll) -> dict[int, Session]:
        """Those where something may come: who waits and does not hear itself, and who holds."""
        found: dict[int, Session] = {}
        for session in list(self._desk.sessions):
            if (session.waiter is None and not session.held) or (session.line.is_heard and session.is_busy):
                continue
            try:
                descriptor = session.line.link.fileno
            except LinkLost as lost:
                self._desk.lost(session, str(lost))
                continue
            found[descriptor] = session
            poll.register(descriptor, READABLE)
        return found
