"""The thread that hears wake-ups for the threads of one client."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from typing import Final, Protocol

from ...core.ops import Troubled
from ...drivers.clock import boottime
from ...errors import EngineUnavailable
from .hearing import Hearing
from .link import READABLE, Link, LinkLost, ServerError
from .pool import run
from .statements import Call, channel_of, notify

__all__ = ["Listener"]

log = logging.getLogger("holdfast")

PROOF_SECONDS: Final = 1.0
"""How long the first notification, which we send ourselves, may take."""

SILENCE_SECONDS: Final = 5.0
"""After so long without a word the server is asked for one: a connection that died says nothing either."""

LOOK_SECONDS: Final = 0.5
"""How often watchers look where no notification comes."""

DEAF_SECONDS: Final = 30.0
"""After so long a connection that did not hear is given another chance."""

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0

CLOSE_SECONDS: Final = 2.0


class Lines(Protocol):
    """What the listener needs of its adapter."""

    def open_link(self, ends_at: float) -> Link: ...

    def perform(self, call: Call) -> object: ...


class Listener:
    """Begins when it is first asked for. Whatever happens to its connection, it begins again."""

    def __init__(self, lines: Lines, hearing: Hearing, client: str, io_timeout: float) -> None:
        self._lines = lines
        self._hearing = hearing
        self._channel = channel_of(client)
        self._io_timeout = io_timeout
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None
        """A pipe: written to, so that the thread looks up from waiting."""
        self._link: Link | None = None
        self._closed = False

    def start(self) -> None:
        """Returns at once: until the first notification is heard, waiters look by themselves."""
        if self._thread is not None:
            return
        with self._mutex:
            if self._thread is not None or self._closed:
                return
            self._bell = os.pipe()
            self._thread = threading.Thread(target=self._work, name="holdfast-postgres", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self._bell is not None:
                os.write(self._bell[1], b"!")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def forked(self) -> None:
        """In the child: the thread is the parent's."""
        for descriptor in self._bell or ():
            os.close(descriptor)
        if self._link is not None:
            self._link.forked()

    # --- in the thread

    def _work(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._closed:
            try:
                self._listen()
                pause = FIRST_PAUSE_SECONDS
            except (Troubled, EngineUnavailable, LinkLost, ServerError, TimeoutError) as error:
                log.debug("holdfast: wake-ups are not heard: %s", error)
                self._doze(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            except Exception:
                log.exception("holdfast: wake-ups are not heard")
                self._doze(LONGEST_PAUSE_SECONDS)
            finally:
                self._hang_up()
        with self._mutex:
            for descriptor in self._bell or ():
                os.close(descriptor)
            self._bell = None

    def _listen(self) -> None:
        self._link = link = self._lines.open_link(boottime() + self._io_timeout)
        if link.pooled or not self._is_heard(link):
            # Somebody stands between who keeps notifications to himself.
            self._hang_up()
            self._look_now_and_then()
            return
        self._hearing.begin()
        while not self._closed:
            if not self._wait_for(link, SILENCE_SECONDS) and not self._closed:
                run(link, link.run("SELECT"), boottime() + self._io_timeout)
            for nonce in link.hear():
                self._hearing.wake(nonce)

    def _is_heard(self, link: Link) -> bool:
        """Whether what another connection says on our channel comes here."""
        run(link, link.run(f'LISTEN "{self._channel}"'), boottime() + self._io_timeout)
        self._lines.perform(notify(self._channel, PROOF))
        ends_at = boottime() + PROOF_SECONDS
        while not self._closed and boottime() < ends_at:
            if self._wait_for(link, ends_at - boottime()) and PROOF in link.hear():
                return True
        return False

    def _wait_for(self, link: Link, seconds: float) -> bool:
        """For something to read; False: there was nothing in time."""
        poll = select.poll()
        poll.register(link.fileno, READABLE)
        if self._bell is not None:
            poll.register(self._bell[0], READABLE)
        return any(descriptor == link.fileno for descriptor, _ in poll.poll(max(seconds, 0.0) * 1000.0))

    def _look_now_and_then(self) -> None:
        ends_at = boottime() + DEAF_SECONDS
        while not self._closed and boottime() < ends_at:
            self._doze(LOOK_SECONDS)
            self._hearing.wake_watchers()

    def _doze(self, seconds: float) -> None:
        poll = select.poll()
        if self._bell is not None:
            poll.register(self._bell[0], READABLE)
        poll.poll(seconds * 1000.0)

    def _hang_up(self) -> None:
        self._hearing.end()
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(LinkLost):
                link.close()


PROOF: Final = "hear, hear"
"""No nonce of ours has a space in it."""
