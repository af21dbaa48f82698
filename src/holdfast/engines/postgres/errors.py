"""Failures classified: not applied, outcome unknown, or engine unavailable."""

from __future__ import annotations

from typing import Final

from ...core.effects import NotApplied, OutcomeUnknown
from ...errors import EngineUnavailable
from .connection import ConnectionLostError, ServerError

__all__ = [
    "NOT_INSTALLED",
    "SESSION_POOLER_NEEDED",
    "TRIES",
    "ConflictError",
    "classify_failure",
    "connection_failure",
    "is_reusable_after",
]

NOT_INSTALLED: Final = {"3F000", "42883", "42P01", "42704"}
"""The schema, a function, a table or a type does not exist."""

CONFLICTS: Final = {
    "40001": "the server asks to try again",
    "40P01": "the server ended it to break a deadlock",
}
TRIES: Final = 5
"""How often a statement is tried that conflicts with others: the server itself is well."""

TRANSIENT: Final = {
    "53200": "the server is out of memory",
    "53400": "the server is at a limit of its configuration",
    "55P03": "a row stayed locked: is a process of the server stopped?",
    "57014": "the server took longer than io_timeout",
}

STATEMENT_POOLER: Final = "a proxy seems to pool connections by the transaction; write pooler=yes in the URL"
SESSION_POOLER_NEEDED: Final = (
    "a proxy seems to pool connections by the transaction, and session locks need connections of their own: "
    "connect to the server directly, or use postgresql:// (leases in a table), which works behind the proxy; "
    "if the proxy pools by the session, write pooler=no"
)

PERMANENT: Final = {
    "26000": STATEMENT_POOLER,
    "42P05": STATEMENT_POOLER,
    "25006": "it is read-only: a standby, or default_transaction_read_only is set",
    "42501": "a privilege is missing; an administrator can run what `holdfast init --sql` prints",
    "53100": "its disk is full",
    "HF002": (
        "the holder was notified that its lock is broken and does not release it; to end the holder's "
        "connection takes its role, or an administrator's GRANT pg_signal_backend TO our role"
    ),
}

OUTCOME_UNKNOWN: Final = ("08", "57P")
"""Classes of SQLSTATE: the connection or the server ended, or a proxy lost the connection."""

NOT_POSTGRES: Final = (
    "expected authentication request from server",
    "invalid response to GSSAPI negotiation",
    "invalid response to SSL negotiation",
)
"""libpq's messages where the server speaks another protocol: HTTP, RESP, TLS from the first byte on."""

LOGIN_REFUSED: Final = (
    "authentication failed",
    "certificate",
    "does not exist",
    "does not support SSL",
    "is not permitted to log in",
    "no password supplied",
    "no pg_hba.conf entry",
    "permission denied",
    "root certificate",
    "root.crt",
)
"""libpq has no code for why a connection was refused, only the message."""


class ConflictError(NotApplied):
    """The statement conflicted with another one. The next try may succeed."""


class NotInstalledError(NotApplied):
    """A function or table does not exist, or no longer. The next connection installs it."""


def classify_failure(error: Exception, io_timeout: float) -> Exception:
    """What became of a statement that was sent and failed."""
    if isinstance(error, ServerError):
        return _classify_refusal(error.sqlstate, error.message)
    if isinstance(error, ConnectionLostError):
        return OutcomeUnknown(f"the connection to PostgreSQL was lost: {error}")
    if isinstance(error, TimeoutError):
        return OutcomeUnknown(f"PostgreSQL did not answer in {io_timeout:g} s")
    return error


def _classify_refusal(code: str, message: str) -> Exception:
    """The statement's transaction is rolled back, unless the connection ended with it."""
    if code.startswith(OUTCOME_UNKNOWN):
        return OutcomeUnknown(f"PostgreSQL ended the connection: {message} ({code})")
    if code in NOT_INSTALLED:
        return NotInstalledError(
            f"Holdfast's schema is incomplete in this database; `holdfast init` makes it: {message} ({code})"
        )
    if code in CONFLICTS:
        return ConflictError(f"PostgreSQL refused: {CONFLICTS[code]} ({code}: {message})")
    if code in TRANSIENT:
        return NotApplied(f"PostgreSQL refused: {TRANSIENT[code]} ({code}: {message})")
    reason = PERMANENT.get(code, "it is not what Holdfast expects")
    return EngineUnavailable(f"PostgreSQL cannot be used: {reason} ({code}: {message})")


def is_reusable_after(failure: Exception) -> bool:
    """Whether the connection can be used on. After a permanent refusal it may lead to the wrong server."""
    return isinstance(failure, NotApplied) and not isinstance(failure, NotInstalledError)


def connection_failure(error: Exception, seconds: float, server: str = "the server") -> Exception:
    """Why there is no connection. No request was sent yet; some refusals are permanent all the same."""
    failure = _classify_connection_failure(error, seconds, server)
    if isinstance(failure, EngineUnavailable):
        failure.nothing_was_sent = True
    return failure


def _classify_connection_failure(error: Exception, seconds: float, server: str) -> Exception:
    if isinstance(error, ConnectionLostError):
        message = str(error)
        if any(each in message for each in NOT_POSTGRES):
            return EngineUnavailable(
                f"{server} does not speak PostgreSQL's protocol: is it the right port? ({message})"
            )
        if any(each in message for each in LOGIN_REFUSED):
            hint = _tls_hint(message)
            return EngineUnavailable(f"PostgreSQL refuses the connection: {message}{hint}")
        return NotApplied(f"PostgreSQL cannot be reached: {message}")
    if isinstance(error, TimeoutError):
        return NotApplied(f"{server} did not answer in {seconds:.3g} s: is it PostgreSQL, and not stopped?")
    failure = classify_failure(error, seconds)
    return NotApplied(str(failure)) if isinstance(failure, OutcomeUnknown) else failure


def _tls_hint(message: str) -> str:
    """What to do about a failure of TLS, other than to turn TLS off."""
    if "does not support SSL" in message:
        return ": set ssl=on on the server; sslmode=disable sends everything unencrypted, passwords too"
    if "root.crt" in message or "root certificate" in message or "certificate verify failed" in message:
        return ": name the file of the authority that signed the server's certificate, sslrootcert=…"
    if "does not match host name" in message:
        return ": connect by a name that is in the certificate; sslmode=verify-full compares them"
    if "no encryption" in message or "SSL off" in message:
        return ": the server requires TLS, write sslmode=verify-full and sslrootcert=…"
    return ""
