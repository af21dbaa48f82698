"""The connections of a client's threads, each taken for one statement: see ``runtime/pool.py``."""

from __future__ import annotations

import contextlib

from psycopg.pq.abc import PGresult

from ...core.effects import NotApplied
from ...runtime import pool, trampoline
from ...runtime.clock import boottime
from .codec import Call
from .connection import ConnectionLostError, PgConnection, ServerError, run_generator
from .errors import TRIES, ConflictError, classify_failure, is_reusable_after
from .handshake import DatabaseContext, open_connection, perform_in_thread

__all__ = ["COMMAND_CONNECTIONS_MAX", "ConnectionPool"]

COMMAND_CONNECTIONS_MAX = 3
"""How many connections a client opens for its requests, beside one that renews and one that listens."""


class ConnectionPool(pool.Pool[PgConnection]):
    """At most ``size_max`` connections to one database."""

    def __init__(self, context: DatabaseContext, io_timeout: float, size_max: int) -> None:
        super().__init__(size_max)
        self._context = context
        self._io_timeout = io_timeout

    def execute(self, call: Call) -> PGresult:
        """Execute one statement, in ``io_timeout`` seconds from taking a connection to the result."""
        ends_at = boottime() + self._io_timeout
        for _ in range(TRIES - 1):
            with contextlib.suppress(ConflictError):
                return self._try(call, ends_at)
        return self._try(call, ends_at)

    def _try(self, call: Call, ends_at: float) -> PGresult:
        connection = self.take(ends_at)
        try:
            result = run_generator(connection, connection.execute(call), ends_at)
            self.give(connection)
        except (ServerError, ConnectionLostError, TimeoutError) as error:
            failure = classify_failure(error, self._io_timeout)
            (self.give if is_reusable_after(failure) else self._discard)(connection)
            raise failure from error
        except BaseException:
            self._discard(connection)  # interrupted: the next statement would read this one's result
            raise
        return result

    def take(self, ends_at: float) -> PgConnection:
        """A connection that is quiet, for the caller alone. NotApplied, if none becomes free in time."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._wait_for_connection(max(ends_at - boottime(), 0.0))
            try:
                if connection.is_quiet():
                    return connection
            except BaseException:
                self._discard(connection)
                raise
            self._discard(connection)

    def give(self, connection: PgConnection) -> None:
        """Return a connection that is ready for the next statement."""
        if self._closed:
            self._discard(connection)
        else:
            self._give_back(connection)

    def open_connection(self, ends_at: float) -> PgConnection:
        """A new connection, which the pool does not keep."""
        return trampoline.run(open_connection(self._context, self._io_timeout, ends_at), perform_in_thread)

    def _open(self, seconds: float) -> PgConnection:
        return self.open_connection(boottime() + seconds)

    def _exhausted(self) -> NotApplied:
        return NotApplied("all connections to PostgreSQL are in use, and none became free in time")

    def close(self) -> None:
        """Connections that are in use are closed when they are given back."""
        self._closed = True
        self._discard_idle()

    def detach_after_fork(self) -> None:
        """In the child of a fork: drop the sockets and send nothing on them."""
        for connection in self._connections():
            connection.detach_after_fork()
