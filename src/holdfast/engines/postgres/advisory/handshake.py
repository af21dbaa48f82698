"""How a session begins: its channel, its settings, and the server process that serves it."""

from __future__ import annotations

from typing import Final

from ....runtime.clock import boottime
from ..connection import PgConnection, PQGen, ServerError
from ..handshake import DatabaseContext, RunGenerator, close_on_failure, open_connection
from ..statements import channel_of

__all__ = ["NEW_SESSION_IDLE_TIMEOUT_MS", "open_session"]

NEW_SESSION_IDLE_TIMEOUT_MS: Final = 10_000
"""The idle timeout of a session before a lock sets one. The statement that takes the first lock sets it, and
if that statement fails the setting is rolled back, but the lock stays. It must not stay for ever if no caller
comes back to it."""

SETTINGS: Final = (
    "set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),"
    " set_config('idle_in_transaction_session_timeout', '0', false),"
    " set_config('synchronous_commit', 'off', false),"
    f" set_config('idle_session_timeout', '{NEW_SESSION_IDLE_TIMEOUT_MS}', false)"
)
"""A statement may wait for a lock without limit. A token that a crash loses is made up for by the clock."""

CHECK_CLIENT: Final = ", set_config('client_connection_check_interval', '1000', false)"
"""Some systems do not support it: there the server notices a dead waiter when it is granted the lock."""


async def open_session(context: DatabaseContext, io_timeout: float, client: str) -> tuple[PgConnection, int]:
    """Open a connection and make it a session; returns it with the pid of its server process."""
    ends_at = boottime() + io_timeout
    connection = await open_connection(context, io_timeout, ends_at)
    with close_on_failure(connection, io_timeout):
        backend_pid: int = await RunGenerator(connection, set_up_session(connection, client), ends_at)
    return connection, backend_pid


def set_up_session(connection: PgConnection, client: str) -> PQGen[int]:
    listen = f'LISTEN "{channel_of(client)}"'
    try:
        result = yield from connection.execute_script(
            f"{listen}; SELECT pg_backend_pid(), {SETTINGS}{CHECK_CLIENT}"
        )
    except ServerError:
        result = yield from connection.execute_script(f"{listen}; SELECT pg_backend_pid(), {SETTINGS}")
    return int(result.get_value(0, 0) or 0)
