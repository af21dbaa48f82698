"""How a session begins: what it is to hear, what it is set to, and who serves it."""

from __future__ import annotations

from typing import Final

from ..link import Link, ServerError, Waits
from ..statements import channel_of

__all__ = ["NEW_IDLE_MS", "begin"]

NEW_IDLE_MS: Final = 10_000
"""How long a session may be silent that was told no ttl yet. It is told with the first lock, which is undone
if the statement fails; but the lock that it took stays, and must not for ever if nobody comes back to it."""

SETTINGS: Final = (
    "set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),"
    " set_config('idle_in_transaction_session_timeout', '0', false),"
    " set_config('synchronous_commit', 'off', false),"
    f" set_config('idle_session_timeout', '{NEW_IDLE_MS}', false)"
)
"""It may wait for as long as it takes. A token that a crash forgets is made up for by the clock."""

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
