"""One connection to a server through libpq. Its methods send and receive, and never wait.

What takes time is a generator (``PQGen``) that yields the event it waits for, ``READABLE`` or ``WRITABLE``. A
thread or an event loop waits for the event and resumes the generator, so the exchange with the server is
written once.

This uses libpq through ``psycopg.pq`` instead of psycopg's connections: a statement costs a third, every wait
has our time limit, nothing is retried, and libpq itself says what became of a statement.
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
from ...runtime.clock import boottime
from .codec import Call
from .config import Conninfo

__all__ = [
    "INTERRUPTED",
    "READABLE",
    "WRITABLE",
    "ConnectionLostError",
    "PQGen",
    "PgConnection",
    "ServerError",
    "run_generator",
    "wait_ready",
]

T = TypeVar("T")

log = logging.getLogger("holdfast")

READABLE: Final = select.POLLIN
WRITABLE: Final = select.POLLOUT

PQGen = Generator[int, None, T]
"""Yields the events it waits for; returns T."""

NONCE: Final = re.compile(rb"[!-~]{1,200}")
"""The payload of our notifications is a nonce: printable ASCII without spaces."""

INTERRUPTED: Final = "57014"
ALREADY_PREPARED: Final = "42P05"

FAILED: Final = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


class ConnectionLostError(Exception):
    """The connection cannot be used any more. The last statement may have been executed."""


class ServerError(Exception):
    """The server refused a statement and rolled it back."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message


class AlreadyPreparedError(ServerError):
    """A prepared statement of this name exists already."""


class PgConnection:
    """A connection, from ``connect_start`` on."""

    __slots__ = (
        "__weakref__",
        "_fatal_messages",
        "_is_inherited",
        "_pg",
        "_prepared",
        "_was_interrupted",
        "foreign_notifications",
        "is_pooled",
        "read_poll",
        "spin",
    )

    def __init__(self, conninfo: Conninfo) -> None:
        self._pg: PGconn = pq.PGconn.connect_start(conninfo.encode())
        self._prepared: set[bytes] = set()
        self._fatal_messages: list[str] = []
        """Unsolicited FATAL messages: why the server ended the connection."""
        self._pg.notice_handler = partial(_record_fatal_notice, self._fatal_messages)
        self._is_inherited = False
        self._was_interrupted = False
        """``_prepared`` may be incomplete."""
        self.is_pooled = True
        """A proxy may run each statement on another session: nothing is prepared, nothing is set."""
        self.foreign_notifications = 0
        """How many notifications were not from Holdfast."""
        self.read_poll: select.poll | None = None
        """Waits for input once connected. Made once, since every statement needs it."""
        self.spin = AdaptiveSpin()

    def __repr__(self) -> str:
        return f"<PgConnection {self._pg.status}>"

    @property
    def fileno(self) -> int:
        try:
            return self._pg.socket
        except psycopg.Error as error:
            raise ConnectionLostError(self.fatal_message(_one_line(str(error)))) from error

    @property
    def backend_pid(self) -> int:
        """The server process, as the startup message named it. A proxy names something of its own."""
        return self._pg.backend_pid

    @property
    def server_version(self) -> int:
        return self._pg.server_version

    # --- opening and closing

    def connect(self) -> PQGen[None]:
        """``fileno`` may change between two waits."""
        polling = pq.PollingStatus
        while True:
            status = self._pg.connect_poll() if self._pg.status != pq.ConnStatus.BAD else polling.FAILED
            if status == polling.OK:
                self._pg.nonblocking = 1
                self.read_poll = select.poll()
                self.read_poll.register(self._pg.socket, READABLE)
                return
            if status == polling.FAILED:
                message = self._error_message()
                self.close()
                raise ConnectionLostError(message)
            yield READABLE if status == polling.READING else WRITABLE

    def _error_message(self) -> str:
        return _one_line(self._pg.error_message.decode("utf-8", "replace"))

    def is_quiet(self) -> bool:
        """No input has arrived. A server that shuts down or closes an idle session sends a message."""
        if self._pg.status != pq.ConnStatus.OK or self.read_poll is None:
            return False
        if not self.read_poll.poll(0):
            return True
        try:
            self._pg.consume_input()
            return not self._pg.is_busy() and self._pg.status == pq.ConnStatus.OK
        except psycopg.Error:
            return False

    def fatal_message(self, message: str = "") -> str:
        """Why the server ended the connection; otherwise ``message``, or libpq's own."""
        return (
            "".join(self._fatal_messages[:1])
            or message
            or self._error_message()
            or "the connection was closed"
        )

    def close(self) -> None:
        """Tell the server, and close the socket."""
        if not self._is_inherited:
            self._pg.finish()

    def detach_after_fork(self) -> None:
        """In the child of a fork: close the child's copy of the socket and send nothing on it.

        libpq's memory of the connection stays: psycopg never finishes a connection of another process.
        """
        self._is_inherited = True
        with contextlib.suppress(ConnectionLostError):
            os.close(self.fileno)

    # --- statements

    def execute(self, call: Call) -> PQGen[PGresult]:
        """Execute one statement; its result is known once its transaction has ended."""
        (name, text, formats), parameters = call
        pg = self._pg
        try:
            if self.is_pooled or not name:
                pg.send_query_params(text, parameters, None, formats, 1)
            else:
                if name not in self._prepared:
                    pg.send_prepare(name, text)
                    try:
                        yield from self._results()
                    except AlreadyPreparedError:
                        if not self._was_interrupted:
                            raise  # a proxy lends us a session of another client
                    self._prepared.add(name)
                pg.send_query_prepared(name, parameters, formats, 1)
            return (yield from self._results())
        except psycopg.Error as error:
            raise ConnectionLostError(self.fatal_message(_one_line(str(error)))) from error

    def execute_script(self, script: str) -> PQGen[PGresult]:
        """Execute statements of our own without parameters; the result is that of the last one."""
        try:
            self._pg.send_query(script.encode())
            return (yield from self._results())
        except psycopg.Error as error:
            raise ConnectionLostError(self.fatal_message(_one_line(str(error)))) from error

    def _results(self) -> PQGen[PGresult]:
        """Read until the server is ready for a query: a result counts once its transaction has ended."""
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
            raise ConnectionLostError(self.fatal_message())
        if failed is not None:
            raise _server_error(failed)
        return last

    def finish_interrupted(self) -> PQGen[PGresult]:
        """After a signal interrupted a statement: read its result, if the statement was sent at all."""
        self._was_interrupted = True
        result: PGresult | None = None
        if self._pg.transaction_status == pq.TransactionStatus.ACTIVE:
            try:
                result = yield from self._results()
            except psycopg.Error as error:
                raise ConnectionLostError(self.fatal_message(_one_line(str(error)))) from error
        if result is None or not result.ntuples:
            raise ServerError(INTERRUPTED, "a signal interrupted the statement")
        return result

    # --- notifications

    def receive_notifications(self) -> list[str]:
        """The nonces that have arrived. Raises ConnectionLostError where no more will."""
        try:
            self._pg.consume_input()
            nonces = self.take_notifications()
        except psycopg.Error as error:
            raise ConnectionLostError(self.fatal_message(_one_line(str(error)))) from error
        if self._pg.status != pq.ConnStatus.OK:
            raise ConnectionLostError(self.fatal_message())
        return nonces

    def take_notifications(self) -> list[str]:
        """The nonces that arrived together with other input."""
        nonces = []
        while (notification := self._pg.notifies()) is not None:
            # Any role that may connect may notify: a payload that cannot be a nonce is dropped.
            payload = notification.extra
            if NONCE.fullmatch(payload):
                nonces.append(payload.decode("ascii"))
            else:
                self.foreign_notifications += 1
                log.debug("holdfast: a notification was dropped that does not come from Holdfast")
        return nonces


def _record_fatal_notice(fatal_messages: list[str], notice: PGresult) -> None:
    if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL":
        message = notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        fatal_messages.append(_one_line(message.decode("utf-8", "replace")))


def _one_line(message: str) -> str:
    """libpq's messages have several lines."""
    return " ".join(message.split())


def _server_error(result: PGresult) -> ServerError:
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    code = sqlstate.decode("ascii", "replace")
    kind = AlreadyPreparedError if code == ALREADY_PREPARED else ServerError
    return kind(code, message.decode("utf-8", "replace").strip())


# --- waiting in a thread ------------------------------------------------------------------------


def run_generator(connection: PgConnection, generator: PQGen[T], ends_at: float) -> T:
    """Run a generator to its end in this thread. Raises TimeoutError at the moment ``ends_at``."""
    try:
        events = next(generator)
        while True:
            poll = connection.read_poll if events == READABLE else None
            if poll is None:
                poll = select.poll()
                poll.register(connection.fileno, events)
            elif connection.spin.spin_poll(poll):
                events = generator.send(None)
                continue
            left = ends_at - boottime()
            if poll.poll(left * 1000.0 if left > 0 else 0):
                events = generator.send(None)
            elif left <= 0:
                raise TimeoutError
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value that the generator returns is its T
    finally:
        generator.close()


def wait_ready(connection: PgConnection, events: int, ends_at: float, spin: AdaptiveSpin | None) -> bool:
    """Wait in this thread until the connection is ready; False: it was not in time.

    ``spin``: the answer may come soon, so poll for a moment before sleeping.
    """
    poll = connection.read_poll if events == READABLE else None
    if poll is None:
        poll = select.poll()
        poll.register(connection.fileno, events)
    elif spin is not None and spin.spin_poll(poll):
        return True
    return bool(poll.poll(max(ends_at - boottime(), 0.0) * 1000.0))
