"""Row locks of MariaDB. ``WAIT n`` and ``NOWAIT`` belong to the one statement: nothing has to be put back."""

from __future__ import annotations

import math
from typing import Final

from ..errors import Unsupported
from ..fencing.connections import MARIADB
from ..fencing.dialects import error_number
from ..fencing.plans import Plan, Result, Statement
from .tables import Row

__all__ = ["MariadbLocks"]

_STRENGTHS: Final = {"update": "FOR UPDATE", "share": "LOCK IN SHARE MODE"}
_SECONDS_MAX: Final = 100_000_000
"""What innodb_lock_wait_timeout takes for no limit."""
_SYNTAX_ERROR: Final = 1064


class MariadbLocks:
    """``locking.DatabaseLocks``."""

    def lock_name(self, name: str, timeout: float | None, shared: bool) -> Plan[bool]:
        raise Unsupported(
            "MariaDB has no lock that ends with the transaction: GET_LOCK belongs to the session, so a rolled"
            " back transaction would keep it, and a pool would hand it to the next user of the connection."
            " Lock a row by row_lock, take transaction_lock on PostgreSQL, or a lock of holdfast.connect()"
        )
        yield

    def lock_row(self, row: Row, mode: str, wait: float | None, skip_locked: bool, what: str) -> Plan[Result]:
        strength = _STRENGTHS.get(mode)
        if strength is None:
            raise Unsupported(
                f"MariaDB has no lock of mode {mode!r}: whether a row's key changes is nothing its locks"
                " know. Use mode='update' or 'share', or PostgreSQL"
            )
        text = (
            f"SELECT * FROM {row.table.quoted(MARIADB.quote)} WHERE {row.condition(MARIADB)}"  # noqa: S608 - quoted
            f" {strength}{_waiting(wait, skip_locked)}"
        )
        try:
            result: Result = yield Statement(text, row.values)
        except Exception as error:
            if error_number(error) == _SYNTAX_ERROR:
                raise Unsupported(
                    "this server does not know how to wait so: MariaDB does from 10.6 on, MySQL knows no"
                    " number of seconds. Use wait=True, or wait=False"
                ) from error
            raise
        return result


def _waiting(wait: float | None, skip_locked: bool) -> str:
    if skip_locked:
        return " SKIP LOCKED"
    if wait is None:
        return ""
    # MariaDB counts whole seconds: rounded up, so that no caller waits for less than its timeout.
    return f" WAIT {min(math.ceil(wait), _SECONDS_MAX)}" if wait else " NOWAIT"
