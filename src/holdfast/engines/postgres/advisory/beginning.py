"""How a session begins: what it is to hear, what it is set to, and who serves it."""

from __future__ import annotations

from typing import Final

from ..link import Link, ServerError, Waits
from ..statements import channel_of

__all__ = ["begin"]

SETTINGS: Final = (
    "set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),"
    " set_config('idle_in_transaction_session_timeout', '0', false),"
    " set_config('idle_session_timeout', '0', false),"
    " set_config('synchronous_commit', 'off', false)"
)
"""It may wait for as long as it takes, and be silent until it is told otherwise. A token that a crash forgets
is made up for by the clock."""

NOTICE_GONE: Final = ", set_config('client_connection_check_interval', '1000', false)"
"""Some systems cannot have it: there one who left is noticed when it is its turn."""


def begin(link: Link, client: str) -> Waits[int]:
    """After the greeting; returns the process that serves us."""
    listen = f'LISTEN "{channel_of(client)}"'
    try:
        result = yield from link.run(f"{listen}; SELECT pg_backend_pid(), {SETTINGS}{NOTICE_GONE}")
    except ServerError:
        result = yield from link.run(f"{listen}; SELECT pg_backend_pid(), {SETTINGS}")
    return int(result.get_value(0, 0) or 0)
