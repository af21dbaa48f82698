"""One connection to a server as libpq has it: sends and receives, and never waits.

What takes time is a generator that yields what it waits for, ``READABLE`` or ``WRITABLE``. Whoever runs it
waits, in a thread or in an event loop, and goes on; so there is one account of what is said to a server.

This is libpq by way of ``psycopg.pq`` rather than psycopg's own connections: a statement costs a third, every
wait has our time limit, nothing is retried, and what a statement became is known from libpq itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
from collections.abc import Generator
from functools import partial
from typing import Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from ...runtime.adaptive_spin import AdaptiveSpin
from .statements import Call
from .target import Conninfo

__all__ = ["INTERRUPTED", "READABLE", "WRITABLE", "Link", "LinkLost", "ServerError", "Waits"]

T = TypeVar("T")

log = logging.getLogger("holdfast")

READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT

Waits = Generator[int, None, T]
"""Yields what it waits for; returns T."""

WORD: Final = re.compile(rb"[!-~]{1,200}")
"""What a notification of ours says: the name of an attempt. It has no spaces in it, and is printable."""

INTERRUPTED: Final = "57014"
PREPARED_BEFORE: Final = "42P05"

FAILED: Final = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


class LinkLost(Exception):
    """The connection is of no use any more. What was sent last may have happened."""


class ServerError(Exception):
    """The server refused a statement, and undid what it had done of it."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message


class PreparedBefore(ServerError):
    """The statement is prepared already."""


class Link:
    """A connection, from its beginning."""

    __slots__ = (
        "__weakref__",
        "_farewell",
        "_inherited",
        "_interrupted",
        "_pg",
        "_prepared",
        "dropped",
        "looks",
        "pooled",
        "readable",
    )

    def __init__(self, conninfo: Conninfo) -> None:
        self._pg: PGconn = pq.PGconn.connect_start(conninfo.encode())
        self._prepared: set[bytes] = set()
        self._farewell: list[str] = []
        """What the server said, unasked, as it ended the connection."""
        self._pg.notice_handler = partial(_note, self._farewell)
        self._inherited = False
        self._interrupted = False
        """What was noted down of it may not be all."""
        self.pooled = True
        """A proxy may run each statement on another connection: nothing is prepared, nothing set."""
        self.dropped = 0
        """So many notifications were none of ours."""
        self.readable: select.poll | None = None
        """Waits for something to read, once connected: made once, for every statement needs it."""
        self.looks = AdaptiveSpin()

    def __repr__(self) -> str:
        return f"<Link {self._pg.status}>"

    @property
    def fileno(self) -> int:
        try:
            return self._pg.socket
        except psycopg.Error as error:
            raise LinkLost(self.last_words(_plain(str(error)))) from error

    @property
    def backend(self) -> int:
        """The process that serves us, as it was told at the beginning. A proxy tells something of its own."""
        return self._pg.backend_pid

    @property
    def server_version(self) -> int:
        return self._pg.server_version

    # --- its life

    def connect(self) -> Waits[None]:
        """``fileno`` may change between two waits."""
        connecting = pq.PollingStatus
        while True:
            status = self._pg.connect_poll() if self._pg.status != pq.ConnStatus.BAD else connecting.FAILED
            if status == connecting.OK:
                self._pg.nonblocking = 1
                self.readable = select.poll()
                self.readable.register(self._pg.socket, READABLE)
                return
            if status == connecting.FAILED:
                message = self._message()
                self.close()
                raise LinkLost(message)
            yield READABLE if status == connecting.READING else WRITABLE

    def _message(self) -> str:
        return _plain(self._pg.error_message.decode("utf-8", "replace"))

    def is_quiet(self) -> bool:
        """Nothing has come unasked. A server that shut down, or closed an idle session, says so."""
        if self._pg.status != pq.ConnStatus.OK or self.readable is None:
            return False
        if not self.readable.poll(0):
            return True
        try:
            self._pg.consume_input()
            return not self._pg.is_busy() and self._pg.status == pq.ConnStatus.OK
        except psycopg.Error:
            return False

    def last_words(self, message: str = "") -> str:
        """What the server said as it ended the connection; else what libpq says."""
        return "".join(self._farewell[:1]) or message or self._message() or "the connection was closed"

    def close(self) -> None:
        """With a word to the server."""
        if not self._inherited:
            self._pg.finish()

    def forked(self) -> None:
        """In the child of a fork: close our copy of the socket, and say nothing on it.

        libpq's own memory of it is left alone: psycopg never ends a connection that another process made.
        """
        self._inherited = True
        with contextlib.suppress(LinkLost):
            os.close(self.fileno)

    # --- statements

    def call(self, call: Call) -> Waits[PGresult]:
        """One statement, and what became of it once its transaction has ended."""
        (name, text, formats), parameters = call
        pg = self._pg
        try:
            if self.pooled or not name:
                pg.send_query_params(text, parameters, None, formats, 1)
            else:
                if name not in self._prepared:
                    pg.send_prepare(name, text)
                    try:
                        yield from self._results()
                    except PreparedBefore:
                        if not self._interrupted:
                            raise  # somebody lends us another's connection
                    self._prepared.add(name)
                pg.send_query_prepared(name, parameters, formats, 1)
            return (yield from self._results())
        except psycopg.Error as error:
            raise LinkLost(self.last_words(_plain(str(error)))) from error

    def run(self, script: str) -> Waits[PGresult]:
        """Statements of our own, without parameters; the result is that of the last."""
        try:
            self._pg.send_query(script.encode())
            return (yield from self._results())
        except psycopg.Error as error:
            raise LinkLost(self.last_words(_plain(str(error)))) from error

    def _results(self) -> Waits[PGresult]:
        """All until the server is ready again: an answer counts only when its transaction has ended."""
        pg = self._pg
        while pg.flush():
            yield READABLE | WRITABLE
            pg.consume_input()
        last: PGresult | None = None
        failed: PGresult | None = None
        while True:
            while pg.is_busy():
                yield READABLE
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                break
            last = result
            if failed is None and result.status in FAILED:
                failed = result
        if pg.status != pq.ConnStatus.OK or last is None:
            raise LinkLost(self.last_words())
        if failed is not None:
            raise _server_error(failed)
        return last

    def resume(self) -> Waits[PGresult]:
        """After an interrupt came in the middle of a statement: see it to its end, if it was sent at all."""
        self._interrupted = True
        result: PGresult | None = None
        if self._pg.transaction_status == pq.TransactionStatus.ACTIVE:
            try:
                result = yield from self._results()
            except psycopg.Error as error:
                raise LinkLost(self.last_words(_plain(str(error)))) from error
        if result is None or not result.ntuples:
            raise ServerError(INTERRUPTED, "a signal came in the middle of it")
        return result

    # --- notifications

    def hear(self) -> list[str]:
        """The wake-ups that have come. Raises LinkLost where no more will come."""
        try:
            self._pg.consume_input()
            heard = self.heard()
        except psycopg.Error as error:
            raise LinkLost(self.last_words(_plain(str(error)))) from error
        if self._pg.status != pq.ConnStatus.OK:
            raise LinkLost(self.last_words())
        return heard

    def heard(self) -> list[str]:
        """Those that came along with something else."""
        heard = []
        while (notification := self._pg.notifies()) is not None:
            # Whoever may connect may notify: what cannot be a word of ours is not passed on.
            word = notification.extra
            if WORD.fullmatch(word):
                heard.append(word.decode("ascii"))
            else:
                self.dropped += 1
                log.debug("holdfast: a notification was dropped that is none of Holdfast's")
        return heard


def _note(farewell: list[str], notice: PGresult) -> None:
    if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL":
        message = notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        farewell.append(_plain(message.decode("utf-8", "replace")))


def _plain(message: str) -> str:
    """What libpq says in several lines, in one."""
    return " ".join(message.split())


def _server_error(result: PGresult) -> ServerError:
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    code = sqlstate.decode("ascii", "replace")
    kind = PreparedBefore if code == PREPARED_BEFORE else ServerError
    return kind(code, message.decode("utf-8", "replace").strip())
