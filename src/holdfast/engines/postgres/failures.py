"""Failures sorted: nothing happened, it may have happened, or there is no point in trying again."""

from __future__ import annotations

from typing import Final

from ...core.effects import NotApplied, OutcomeUnknown
from ...errors import EngineUnavailable
from .link import LinkLost, ServerError

__all__ = ["NOT_INSTALLED", "TRIES", "Again", "can_go_on", "cannot_begin", "verdict"]

NOT_INSTALLED: Final = {"3F000", "42883", "42P01", "42704"}
"""The schema, a function, a table or a type is not there."""

TRY_AGAIN: Final = {
    "40001": "the server asks to try again",
    "40P01": "the server ended it to break a deadlock",
}
TRIES: Final = 5
"""How often a statement is tried that met another: that is no trouble of the server's."""

MAY_PASS: Final = {
    "53200": "the server is out of memory",
    "53400": "the server is at a limit of its configuration",
    "55P03": "a row stayed locked: is a process of the server stopped?",
    "57014": "the server took longer than io_timeout",
}

POOLED: Final = "a proxy lends out its connections by the transaction, it seems; write pooler=yes"

FINAL: Final = {
    "26000": POOLED,
    "42P05": POOLED,
    "25006": "it is read-only: a standby, or default_transaction_read_only is set",
    "42501": "a privilege is missing; an administrator can run what `holdfast init --sql` prints",
    "53100": "its disk is full",
    "HF002": (
        "the holder was told that its lock is broken and does not let go; ending its connection takes its "
        "role, or an administrator's GRANT pg_signal_backend TO ours"
    ),
}

MAY_HAVE_HAPPENED: Final = ("08", "57P")
"""The connection or the server ended, or a proxy lost it."""

FOREIGN: Final = (
    "expected authentication request from server",
    "invalid response to GSSAPI negotiation",
    "invalid response to SSL negotiation",
)
"""What libpq says of a server that speaks something else: HTTP, RESP, TLS from the first byte on."""

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
"""libpq has no code for why a connection was refused, only the text."""


class Again(NotApplied):
    """It met another statement: the next try may not."""


class NotInstalled(NotApplied):
    """What we call is not there, or not any more: it is installed with the next connection."""


def verdict(error: Exception, io_timeout: float) -> Exception:
    """What became of a statement that was sent and failed."""
    if isinstance(error, ServerError):
        return _refused(error.sqlstate, error.message)
    if isinstance(error, LinkLost):
        return OutcomeUnknown(f"the connection to PostgreSQL was lost: {error}")
    if isinstance(error, TimeoutError):
        return OutcomeUnknown(f"PostgreSQL did not answer in {io_timeout:g} s")
    return error


def _refused(code: str, message: str) -> Exception:
    """A statement was refused. Its transaction is undone, unless the connection went with it."""
    if code.startswith(MAY_HAVE_HAPPENED):
        return OutcomeUnknown(f"PostgreSQL ended the connection: {message} ({code})")
    if code in NOT_INSTALLED:
        return NotInstalled(
            f"something of Holdfast's is not in the database, `holdfast init` makes it: {message} ({code})"
        )
    if code in TRY_AGAIN:
        return Again(f"PostgreSQL refused: {TRY_AGAIN[code]} ({code}: {message})")
    if code in MAY_PASS:
        return NotApplied(f"PostgreSQL refused: {MAY_PASS[code]} ({code}: {message})")
    why = FINAL.get(code, "it is not what Holdfast expects")
    return EngineUnavailable(f"PostgreSQL cannot be used: {why} ({code}: {message})")


def can_go_on(verdict: Exception) -> bool:
    """Whether the connection is good for more. A server that refuses for good may be the wrong one now."""
    return isinstance(verdict, NotApplied) and not isinstance(verdict, NotInstalled)


def cannot_begin(error: Exception, seconds: float, where: str = "the server") -> Exception:
    """Why there is no connection. Nothing was asked yet; but some refusals do not pass by themselves."""
    found = _beginning(error, seconds, where)
    if isinstance(found, EngineUnavailable):
        found.nothing_was_sent = True
    return found


def _beginning(error: Exception, seconds: float, where: str) -> Exception:
    if isinstance(error, LinkLost):
        message = str(error)
        if any(each in message for each in FOREIGN):
            return EngineUnavailable(
                f"{where} does not speak PostgreSQL's protocol: is it the right port? ({message})"
            )
        if any(each in message for each in LOGIN_REFUSED):
            hint = _tls_hint(message)
            return EngineUnavailable(f"PostgreSQL refuses the connection: {message}{hint}")
        return NotApplied(f"PostgreSQL cannot be reached: {message}")
    if isinstance(error, TimeoutError):
        return NotApplied(f"{where} did not answer in {seconds:.3g} s: is it PostgreSQL, and not stopped?")
    found = verdict(error, seconds)
    return NotApplied(str(found)) if isinstance(found, OutcomeUnknown) else found


def _tls_hint(message: str) -> str:
    """What to do where TLS is the matter, so that nobody turns it off."""
    if "does not support SSL" in message:
        return ": set ssl=on on the server; sslmode=disable sends everything, passwords too, in the clear"
    if "root.crt" in message or "root certificate" in message or "certificate verify failed" in message:
        return ": name the file of the authority that signed the server's certificate, sslrootcert=…"
    if "does not match host name" in message:
        return ": connect by a name that is in the certificate; sslmode=verify-full compares them"
    if "no encryption" in message or "SSL off" in message:
        return ": the server wants TLS, write sslmode=verify-full and sslrootcert=…"
    return ""
