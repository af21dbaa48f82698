"""The thread that hears wake-ups for the threads of one client."""

from __future__ import annotations

import logging
import os
import select
import threading
from typing import Any, Final, Protocol

from ...runtime.clock import boottime
from ...runtime.thread_join import join_thread
from .link import READABLE, Link
from .listening import Listening, Need, Open, Perform, Rest, Run
from .pool import run
from .statements import Call

__all__ = ["Listener"]

log = logging.getLogger("holdfast")

CLOSE_SECONDS: Final = 2.0


class Lines(Protocol):
    """What it needs of its adapter."""

    def open_link(self, ends_at: float) -> Link: ...

    def perform(self, call: Call) -> object: ...


class Listener:
    """Begins when it is first asked for."""

    def __init__(self, lines: Lines, script: Listening, io_timeout: float) -> None:
        self._lines = lines
        self._script = script
        self._io_timeout = io_timeout
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell: tuple[int, int] | None = None
        """A pipe, written to when the thread is to look up."""
        self._link: Link | None = None
        self._closed = False

    def start(self) -> None:
        """Returns at once: until the first notification is heard, waiters look by themselves."""
        if self._thread is not None:
            return
        with self._mutex:
            if self._thread is None and not self._closed:
                self._bell = os.pipe()
                self._thread = threading.Thread(target=self._work, name="holdfast-postgres", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self._bell is not None:
                os.write(self._bell[1], b"!")
        join_thread(self._thread, CLOSE_SECONDS)

    def forked(self) -> None:
        """In the child: the thread is the parent's."""
        for descriptor in self._bell or ():
            os.close(descriptor)
        if self._link is not None:
            self._link.forked()

    # --- in the thread

    def _work(self) -> None:
        try:
            need = next(self._script)
            while not self._closed:
                try:
                    done = self._do(need)
                except Exception as error:  # noqa: BLE001 - the script decides what becomes of it
                    need = self._script.throw(error)
                else:
                    need = self._script.send(done)
        except Exception:
            log.exception("holdfast: wake-ups are no longer heard; waiters look by themselves")
        finally:
            self._script.close()
            with self._mutex:
                for descriptor in self._bell or ():
                    os.close(descriptor)
                self._bell = None

    def _do(self, need: Need) -> Any:
        ends_at = boottime() + self._io_timeout
        match need:
            case Rest(seconds, link):
                return self._rest(seconds, link)
            case Run(link, waits):
                return run(link, waits, ends_at)
            case Perform(call):
                return self._lines.perform(call)
            case Open():
                self._link = self._lines.open_link(ends_at)
                return self._link

    def _rest(self, seconds: float, link: Link | None) -> bool:
        poll = select.poll()
        if self._bell is not None:
            poll.register(self._bell[0], READABLE)
        if link is not None:
            poll.register(link.fileno, READABLE)
        ready = poll.poll(seconds * 1000.0)
        return link is not None and any(descriptor == link.fileno for descriptor, _ in ready)
